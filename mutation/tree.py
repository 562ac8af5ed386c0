"""Copies of the project in temporary folders: a mutant is planted in a copy, never in the tree that people work in."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mutation.operators import Mutant

ROOT = Path(__file__).resolve().parents[1]
_LEFT_OUT = (".git", ".tox", ".toxw", ".venv", ".*_cache", ".hypothesis", ".coverage*", "*.egg-info", "out", "build")
_MEMORY_BYTES = 6 * 2**30
_FILE_BYTES = 2**30
_LIMITED = (
    "import os, resource, sys\n"
    f"resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY_BYTES}, {_MEMORY_BYTES}))\n"
    "resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)\n"
    f"resource.setrlimit(resource.RLIMIT_FSIZE, ({_FILE_BYTES}, {_FILE_BYTES}))\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)
"""A mutant may ask for memory, compute or write without end."""
_WALL = 6
"""Seconds on the clock that a second of a processor may take: machines are busy."""
_POLL_S = 0.05
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
    stopped: bool = False
    """Whether it was ended because enough was known."""


class Tree:
    """One copy of the project. Not for several threads at once."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self.scratch = folder / "scratch"
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        # Times of change are kept, so that what is compiled stays good.
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        self.scratch.mkdir()

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """The mutant is in the copy within the block."""
        path = self.root / mutant.module
        source = path.read_text(encoding="utf-8")
        # A compiled file tells versions apart by size and second, which is not enough here: it must not be there.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        path.write_text(mutant.apply(source), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)

    def run(
        self,
        arguments: Sequence[str],
        *,
        limit_s: float,
        environment: Mapping[str, str] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> Ended:
        """``python ARGUMENTS`` in the copy; all it started has ended when this returns, and its temporary files too.

        ``limit_s`` is of the processor, for each process; by the clock all of it may take six times as long.
        ``enough`` is asked again and again whether what is known suffices.
        """
        began = time.monotonic()
        variables = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.scratch),
            **(environment or {}),
        }
        timed_out = stopped = False
        with tempfile.TemporaryFile() as sink:
            self._process = process = subprocess.Popen(
                [sys.executable, "-c", _LIMITED, str(math.ceil(limit_s)), *arguments],
                cwd=self.root,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if self._closed:
                    raise StoppedError
                while process.poll() is None and not timed_out and not stopped:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_POLL_S)
                    timed_out = time.monotonic() - began > _WALL * limit_s
                    stopped = enough()
            finally:
                self._kill()
            sink.seek(max(0, sink.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
            output = sink.read().decode(errors="replace")
        for left in self.scratch.iterdir():
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        if self._closed:
            raise StoppedError
        return Ended(
            status=process.returncode,
            output=output,
            duration_s=time.monotonic() - began,
            timed_out=process.returncode == -signal.SIGXCPU or (timed_out and process.returncode < 0),
            stopped=stopped,
        )

    def close(self) -> None:
        """End what runs, from any thread; :meth:`run` raises :class:`StoppedError` then."""
        self._closed = True
        self._kill()

    def _kill(self) -> None:
        """The whole session of the command: brokers that it started too."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def copied_tree() -> Iterator[Tree]:
    """A copy of the project, removed after the block."""
    with tempfile.TemporaryDirectory(prefix="assay-mutation-", ignore_cleanup_errors=True) as folder:
        tree = Tree(Path(folder))
        try:
            yield tree
        finally:
            tree.close()
