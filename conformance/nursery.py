"""Reference brokers on demand, broken ones too: our side (the other side is ``assay.conformance.adapter --fork``)."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from assay.conformance.case import Case
from assay.conformance.targets import Damage, Endpoint, RunningTarget, Target, TargetStartError
from assay.conformance.targets.process import FURTHER_PORTS, fill, placeholders, with_ports

_START_TIMEOUT_S = 120.0
"""A machine that is busy takes so long to import what brokers are made of; nobody waits for it otherwise."""
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.002
_GONE = "the process that starts brokers has ended"
CONFIG_FILE = "broker.yaml"
"""Among the files of a reference target: the configuration of its broker."""
_COMMAND = (sys.executable, "-m", "assay.conformance.adapter", "--fork")
Settings = Mapping[str, Any]
"""A part of a broker's configuration."""


def _merged(base: Settings, over: Settings) -> dict[str, Any]:
    both = dict(base)
    for key, value in over.items():
        known = both.get(key)
        both[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return both


def _settings_of(case: Case) -> Settings:
    """What the private broker of a case has beyond its target."""
    settings: Settings = case.settings
    if "restart" in case.requires:
        settings = _merged({"data_dir": "{dir}"}, settings)
    return settings


class _Life:
    """One broker, which may be killed and started again on the same files."""

    def __init__(
        self, nursery: Nursery, target: Target, mutant: str, settings: Settings, folder: Path, *, faces: bool
    ) -> None:
        self._nursery, self._mutant, self._folder, self._faces = nursery, mutant, folder, faces
        self._has_config = target.start is not None and CONFIG_FILE in target.start.files
        text = target.start.files[CONFIG_FILE] if target.start is not None and self._has_config else ""
        self._first_settings = _merged(_merged(yaml.safe_load(text) or {}, nursery.settings), settings)
        self._settings = self._first_settings
        self._clock_ahead_s = 0.0
        self.log = folder.with_suffix(".log")
        self.ports: dict[str, int] = {}
        self.pid = 0

    def start(self, clock_ahead_s: float = 0.0) -> Endpoint:
        """Raises :class:`TargetStartError`."""
        self._clock_ahead_s = clock_ahead_s
        config = self._write_config()
        answer = self._nursery.start(self._mutant, config, str(self.log), faces=self._faces)
        self.pid = int(str(answer["pid"]))
        if "error" in answer:
            message = f"the broker does not start: {answer['error']}"
            raise TargetStartError(message)
        self.ports = {name: int(str(answer.get(name, 0))) for name in FURTHER_PORTS}
        return Endpoint(host=str(answer["host"]), port=int(str(answer["port"])))

    def _write_config(self) -> str:
        """Returns the path; empty where there is none."""
        if not self._has_config:
            return ""
        path, ahead_s = self._folder.with_suffix(".yaml"), self._clock_ahead_s
        text = json.dumps(_merged(self._settings, {"testing": {"clock_ahead_s": ahead_s}} if ahead_s else {}))
        path.write_text(fill(text, placeholders(self._folder)), encoding="utf-8")
        return str(path)

    def change(self, settings: Settings, *, reload: bool) -> None:
        """Other settings beyond those there are: they hold at once, as SIGHUP would have it, or from the next start on.

        Raises :class:`TargetStartError`.
        """
        self._settings = _merged(self._settings, settings)
        if reload:
            self._write_config()
            answer = self._nursery.reload(self.pid)
            if "error" in answer:
                message = f"the broker does not read its configuration again: {answer['error']}"
                raise TargetStartError(message)

    def as_it_listens(self, target: Target, endpoint: Endpoint) -> Target:
        """The target with the ports of this life in its capabilities."""
        return with_ports(target, placeholders(self._folder, port=endpoint.port, further=self.ports))

    def restart(self, clock_ahead_s: float, damage: Damage) -> Endpoint:
        """kill -9 and start again; the clock begins that far ahead. Raises :class:`TargetStartError`."""
        self._nursery.tell({"kill": self.pid})
        self._await_death()
        damage()
        return self.start(clock_ahead_s)

    def renew(self) -> Endpoint:
        """kill -9 and start again without any data, as at first. Raises :class:`TargetStartError`."""
        self._settings = self._first_settings
        self._nursery.tell({"kill": self.pid})
        self._await_death()
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        return self.start()

    def _await_death(self) -> None:
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(_POLL_S)  # it is no child of ours
        message = "the broker does not end"
        raise TargetStartError(message)

    def stop(self) -> None:
        if self.pid:
            self._nursery.tell({"stop": self.pid})


def _start_process() -> subprocess.Popen[str]:
    return subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Nursery:
    """A context manager around the forking process; :meth:`broker` may be called from many threads."""

    def __init__(
        self, start_process: Callable[[], subprocess.Popen[str]] = _start_process, settings: Settings | None = None
    ) -> None:
        """``start_process`` starts what forks brokers; all of them have these ``settings``, before those of a case."""
        self._start_process = start_process
        self.settings = settings or {}
        self._stack = ExitStack()
        self._talking = threading.Lock()
        self._numbers = itertools.count()
        self._awaited: dict[int, Future[dict[str, object]]] = {}
        """The answer to each request for a broker, by its number: they come in the order in which brokers are ready."""

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="assay-")))
        self._process = self._start_process()
        self._listener = threading.Thread(target=self._listen, name="assay-nursery", daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_STOP_TIMEOUT_S)
            self._listener.join(_STOP_TIMEOUT_S)

    def tell(self, request: dict[str, object]) -> None:
        """Send a request that has no answer. Raises :class:`TargetStartError` if nobody is there."""
        with self._talking:
            stdin = self._process.stdin
            if stdin is None or self._process.poll() is not None:
                raise TargetStartError(_GONE)
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()

    def start(self, mutant: str, config: str, log: str, *, faces: bool = False) -> dict[str, object]:
        """Ask for a broker and wait for its answer; ``faces``: with the listeners that take long to start.

        Raises :class:`TargetStartError` if there is none.
        """
        return self._ask({"start": mutant, "config": config, "log": log, "faces": faces})

    def reload(self, pid: int) -> dict[str, object]:
        """Have a broker read its configuration again, and wait until it has. Raises :class:`TargetStartError`."""
        return self._ask({"reload": pid})

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        number, answer = next(self._numbers), Future[dict[str, object]]()
        self._awaited[number] = answer
        try:
            self.tell(request | {"number": number})
            return answer.result(_START_TIMEOUT_S)
        except TimeoutError as error:
            message = f"the broker was not ready within {_START_TIMEOUT_S:g} s" if self._listener.is_alive() else _GONE
            raise TargetStartError(message) from error
        finally:
            self._awaited.pop(number, None)

    def _listen(self) -> None:
        """In a thread of its own: give each answer to the one who waits for it, until there are no more."""
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                answer: dict[str, object] = json.loads(line)
                awaited = self._awaited.pop(int(str(answer["number"])), None)
                if awaited is not None:
                    awaited.set_result(answer)
        for awaited in list(self._awaited.values()):
            awaited.set_exception(TargetStartError(_GONE))

    @contextmanager
    def broker(
        self,
        target: Target,
        mutant: str,
        case: Case | None = None,
        *,
        settings: Settings | None = None,
        faces: bool = False,
    ) -> Iterator[RunningTarget]:
        """The reference broker of ``target`` with ``mutant`` ("" = sound); ``case``: the one that it is private to.

        ``settings`` make it private without a case; ``faces``: it speaks HTTP, as it does for a case about that.
        Raises :class:`TargetStartError` with its error or log.
        """
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        if case is not None:
            settings, faces = _settings_of(case), case.is_about_a_face
        life = _Life(self, target, mutant, settings or {}, folder, faces=faces)
        try:
            endpoint = life.start()
            is_shared = settings is None
            running = RunningTarget(
                life.as_it_listens(target, endpoint),
                endpoint,
                log=life.log,
                restart=None if is_shared else lambda ahead_s, damage: again(life.restart(ahead_s, damage)),
                renew=None if is_shared else lambda: again(life.renew()),
                change=None if is_shared else life.change,
                find_pid=lambda: life.pid,
            )

            def again(endpoint: Endpoint) -> Endpoint:
                running.target = life.as_it_listens(target, endpoint)
                return endpoint

            yield running
        finally:
            life.stop()
