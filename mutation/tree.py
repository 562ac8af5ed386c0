"""Copies of the project in temporary folders, and Pythons that run commands there: one that is forked, or one anew."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mutation.operators import Mutant
from mutation.planting import VARIABLE, Planted, dotted
from mutation.starving import Starving
from mutation.warm import Command, Preload

ROOT = Path(__file__).resolve().parents[1]
_LEFT_OUT = (
    *(".git", ".tox", ".toxw", ".venv", ".*_cache", ".hypothesis", ".coverage*", "*.egg-info", "out", "build"),
    "*-pytest-*.pyc",  # there may be two thousand; tests in copies run with plain assertions
)
_AT_START = "from mutation import planting, probes\n\nplanting.plant_at_start()\nprobes.plant_at_start()\n"
_LIMITED = (
    "import os, sys\nfrom mutation.warm import limit\nlimit(int(sys.argv[1]))\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)
_WALL = 6
"""Seconds on the clock that a second of a processor may take, without those that were spent waiting for one."""
_LOOK_S = 1.0
"""How often who waits for a processor is looked for."""
_OUTPUT_BYTES = 20_000


class StoppedError(Exception):
    """The run is over: somebody interrupted it."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    status: int
    output: str
    """The end of what it printed."""
    duration_s: float
    timed_out: bool = False


class Tree:
    """A copy of the project, and after :meth:`warm_up` a Python that has imported it. Not for several threads at once.

    Mutants are planted in processes, never in files: the copy is as it was all the time.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.scratch = folder / "scratch"
        self._mutant = folder / "mutant.json"
        self._output = folder / "output"
        self._ran_at_import: bool | None = None
        """None: no mutant is planted."""
        self._group = 0
        """The session of the command that runs."""
        self._warm: subprocess.Popen[bytes] | None = None
        self._closed = False
        # Times of change are kept, so that what is compiled stays good.
        shutil.copytree(ROOT, self.root, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        (self.root / "sitecustomize.py").write_text(_AT_START, encoding="utf-8")
        self.scratch.mkdir()

    def _start(self, *arguments: str, environment: Mapping[str, str], **streams: Any) -> subprocess.Popen[bytes]:
        variables = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.scratch),
            **environment,
        }
        command = [sys.executable, *arguments]
        started = subprocess.Popen(command, cwd=self.root, env=variables, start_new_session=True, **streams)
        if self._closed:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            raise StoppedError
        return started

    def warm_up(self, preload: Preload, environment: Mapping[str, str] | None = None) -> None:
        """Start the Python that the commands are forked from; a second time is fine."""
        if self._warm is None:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._warm = self._start("-m", "mutation.warm", environment=environment or {}, **streams)
            self._tell(preload)
            self._answer()

    def cool_down(self) -> None:
        """End the Python of :meth:`warm_up`."""
        if self._warm is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._warm.pid, signal.SIGKILL)
            self._warm.wait()
            self._warm = None

    def _tell(self, message: msgspec.Struct) -> None:
        assert self._warm is not None
        assert self._warm.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is found when it answers
            self._warm.stdin.write(msgspec.json.encode(message) + b"\n")
            self._warm.stdin.flush()

    def _answer(self) -> dict[str, int]:
        assert self._warm is not None
        assert self._warm.stdout is not None
        line = self._warm.stdout.readline()
        if not line:
            if self._closed:
                raise StoppedError
            message = f"the Python that forks has ended with {self._warm.wait()}"
            raise OSError(message)
        answer: dict[str, int] = msgspec.json.decode(line)
        return answer

    @contextmanager
    def planted(self, mutant: Mutant, *, ran_at_import: bool) -> Iterator[None]:
        """Commands of :meth:`run` have the mutant within the block."""
        path = self.root / mutant.module
        source = mutant.apply(path.read_text(encoding="utf-8"))
        Planted(path=str(self.root / "assay" / mutant.module), module=dotted(mutant.module), source=source).write(
            self._mutant
        )
        self._ran_at_import = ran_at_import
        try:
            yield
        finally:
            self._ran_at_import = None
            shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)

    def run(
        self,
        arguments: Sequence[str],
        *,
        limit_s: float,
        environment: Mapping[str, str] | None = None,
        sound: bool = False,
    ) -> Ended:
        """``python ARGUMENTS`` in the copy; all it started has ended when this returns, and its temporary files too.

        It is forked where :meth:`warm_up` was called. ``limit_s`` is of the processor, for each process; by a clock
        that stands still while one of them waits for a processor it may take six times as long: what sleeps for good
        is found so, and what a busy machine lets wait is not. ``sound``: without the mutant that is planted.
        """
        began = time.monotonic()
        self._output.write_bytes(b"")
        planted = self._ran_at_import is not None and not sound
        variables = {**(environment or {}), **({VARIABLE: str(self._mutant)} if planted else {})}
        if self._warm is None:
            status = self._run_anew(arguments, limit_s, variables)
        else:
            command = Command(
                arguments=tuple(arguments),
                environment=variables,
                output=str(self._output),
                processor_s=math.ceil(limit_s),
                mutant=str(self._mutant) if planted else "",
                ran_at_import=bool(self._ran_at_import),
            )
            status = self._run_forked(command, limit_s)
        for left in self.scratch.iterdir():
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        if self._closed:
            raise StoppedError
        return Ended(
            status=status or 0,
            output=self._output.read_bytes()[-_OUTPUT_BYTES:].decode(errors="replace"),
            duration_s=time.monotonic() - began,
            timed_out=status is None or status == -signal.SIGXCPU,
        )

    def _run_anew(self, arguments: Sequence[str], limit_s: float, environment: Mapping[str, str]) -> int | None:
        with self._output.open("wb") as sink:
            streams = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
            limited = ("-c", _LIMITED, str(math.ceil(limit_s)), *arguments)
            process = self._start(*limited, environment=environment, **streams)
        self._group = process.pid

        def ended(most_s: float) -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(most_s)
            return process.returncode is not None

        try:
            return process.returncode if self._in_time(limit_s, ended) else None
        finally:
            self._end_group()
            process.wait()

    def _run_forked(self, command: Command, limit_s: float) -> int | None:
        assert self._warm is not None
        assert self._warm.stdout is not None
        self._tell(command)
        self._group = self._answer()["pid"]
        answers = self._warm.stdout
        try:
            in_time = self._in_time(limit_s, lambda most_s: bool(select.select([answers], [], [], most_s)[0]))
        finally:
            self._end_group()
        status = self._answer()["status"]
        return status if in_time else None

    def _in_time(self, limit_s: float, ended: Callable[[float], bool]) -> bool:
        """Whether the command ends in time; ``ended`` waits for its end, so many seconds at most."""
        starving = Starving(self._group)
        left_s = _WALL * limit_s
        while left_s > 0:
            began = time.monotonic()
            if ended(min(left_s, _LOOK_S)):
                return True
            left_s -= max(0.0, time.monotonic() - began - starving.since_s())
        return False

    def _end_group(self) -> None:
        """The whole session of the command: brokers that it started too."""
        if self._group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
            self._group = 0

    def close(self) -> None:
        """End what runs, from any thread; :meth:`run` raises :class:`StoppedError` then."""
        self._closed = True
        self._end_group()
        if (warm := self._warm) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(warm.pid, signal.SIGKILL)
            warm.wait()


@contextmanager
def copied_tree() -> Iterator[Tree]:
    """A copy of the project, removed after the block."""
    with tempfile.TemporaryDirectory(prefix="assay-mutation-", ignore_cleanup_errors=True) as folder:
        tree = Tree(Path(folder))
        try:
            yield tree
        finally:
            tree.close()
