"""Reference brokers on demand, broken ones too: our side (the other side is ``conformance.adapter --fork``)."""

from __future__ import annotations

import itertools
import json
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from conformance.case import Case
from conformance.targets import Endpoint, RunningTarget, Target, TargetStartError
from conformance.targets.process import fill, placeholders, with_ports

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
CONFIG_FILE = "broker.yaml"
"""Among the files of a reference target: the configuration of its broker."""
_COMMAND = (sys.executable, "-m", "conformance.adapter", "--fork")
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

    def __init__(self, nursery: Nursery, target: Target, mutant: str, settings: Settings, folder: Path) -> None:
        self._nursery, self._mutant, self._folder = nursery, mutant, folder
        self._has_config = target.start is not None and CONFIG_FILE in target.start.files
        text = target.start.files[CONFIG_FILE] if target.start is not None and self._has_config else ""
        self._settings = _merged(yaml.safe_load(text) or {}, settings)
        self.log = folder.with_suffix(".log")
        self.websocket_port = 0
        self._pid = 0

    def start(self, clock_ahead_s: float = 0.0) -> Endpoint:
        """Raises :class:`TargetStartError`."""
        config = ""
        if self._has_config:
            path = self._folder.with_suffix(".yaml")
            ahead = {"testing": {"clock_ahead_s": clock_ahead_s}} if clock_ahead_s else {}
            text = json.dumps(_merged(self._settings, ahead))
            path.write_text(fill(text, placeholders(self._folder)), encoding="utf-8")
            config = str(path)
        answer = self._nursery.ask({"start": self._mutant, "config": config, "log": str(self.log)})
        self._pid = int(str(answer["pid"]))
        if "error" in answer:
            message = f"the broker does not start: {answer['error']}"
            raise TargetStartError(message)
        self.websocket_port = int(str(answer.get("websocket_port", 0)))
        return Endpoint(host=str(answer["host"]), port=int(str(answer["port"])))

    def restart(self, clock_ahead_s: float) -> Endpoint:
        """kill -9 and start again; the clock begins that far ahead. Raises :class:`TargetStartError`."""
        self._nursery.tell({"kill": self._pid})
        return self.start(clock_ahead_s)

    def stop(self) -> None:
        if self._pid:
            self._nursery.tell({"stop": self._pid})


class Nursery:
    """A context manager around the forking process; :meth:`broker` may be called from many threads."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._talking = threading.Lock()
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="assay-")))
        self._process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
            if self._process.stdout is not None:
                self._process.stdout.close()

    def tell(self, request: dict[str, object]) -> None:
        """Send a request that has no answer. Raises :class:`TargetStartError` if nobody is there."""
        with self._talking:
            self._send(request)

    def ask(self, request: dict[str, object]) -> dict[str, object]:
        """Send a request and wait for the answer. Raises :class:`TargetStartError` if there is none."""
        with self._talking:
            self._send(request)
            return self._answer()

    def _send(self, request: dict[str, object]) -> None:
        stdin = self._process.stdin
        if stdin is None or self._process.poll() is not None:
            message = "the process that starts brokers has ended"
            raise TargetStartError(message)
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()

    def _answer(self) -> dict[str, object]:
        stdout = self._process.stdout
        if stdout is None:
            message = "the process that starts brokers has no output"
            raise TargetStartError(message)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(_START_TIMEOUT_S):
                message = f"the broker was not ready within {_START_TIMEOUT_S:g} s"
                raise TargetStartError(message)
        line = stdout.readline()
        if not line:
            message = "the process that starts brokers has ended"
            raise TargetStartError(message)
        answer: dict[str, object] = json.loads(line)
        return answer

    @contextmanager
    def broker(
        self, target: Target, mutant: str, case: Case | None = None, *, settings: Settings | None = None
    ) -> Iterator[RunningTarget]:
        """The reference broker of ``target`` with ``mutant`` ("" = sound); ``case``: the one that it is private to.

        ``settings`` make it private without a case. Raises :class:`TargetStartError` with its error or log.
        """
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        if case is not None:
            settings = _settings_of(case)
        life = _Life(self, target, mutant, settings or {}, folder)
        try:
            endpoint = life.start()
            values = placeholders(folder, port=endpoint.port, websocket_port=life.websocket_port)
            yield RunningTarget(
                with_ports(target, values), endpoint, log=life.log, restart=None if settings is None else life.restart
            )
        finally:
            life.stop()
