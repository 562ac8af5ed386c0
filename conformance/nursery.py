"""Broken reference brokers on demand: the side of the self-check (the other side is ``conformance.adapter --fork``)."""

from __future__ import annotations

import itertools
import json
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.targets import Endpoint, RunningTarget, Target, TargetStartError
from conformance.targets.process import placeholders, with_ports

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
CONFIG_FILE = "broker.yaml"
"""Among the files of a reference target: the configuration of its broker."""
_COMMAND = (sys.executable, "-m", "conformance.adapter", "--fork")


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

    def _send(self, request: dict[str, object]) -> None:
        stdin = self._process.stdin
        if stdin is None or self._process.poll() is not None:
            message = "the process that starts broken brokers has ended"
            raise TargetStartError(message)
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()

    def _answer(self) -> dict[str, object]:
        stdout = self._process.stdout
        if stdout is None:
            message = "the process that starts broken brokers has no output"
            raise TargetStartError(message)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(_START_TIMEOUT_S):
                message = f"the broken broker was not ready within {_START_TIMEOUT_S:g} s"
                raise TargetStartError(message)
        line = stdout.readline()
        if not line:
            message = "the process that starts broken brokers has ended"
            raise TargetStartError(message)
        answer: dict[str, object] = json.loads(line)
        return answer

    @contextmanager
    def broker(self, target: Target, mutant: str) -> Iterator[RunningTarget]:
        """The reference broker of ``target`` with ``mutant`` ("" = sound).

        Raises :class:`TargetStartError` with its error or log.
        """
        number = next(self._numbers)
        log, config = self._folder / f"{number}.log", self._folder / f"{number}.yaml"
        text = "" if target.start is None else target.start.files.get(CONFIG_FILE, "")
        if text:
            config.write_text(text, encoding="utf-8")
        with self._talking:
            self._send({"start": mutant, "config": str(config) if text else "", "log": str(log)})
            answer = self._answer()
        pid = int(str(answer["pid"]))
        try:
            if "error" in answer:
                message = f"the broken broker does not start: {answer['error']}"
                raise TargetStartError(message)
            endpoint = Endpoint(host=str(answer["host"]), port=int(str(answer["port"])))
            values = placeholders(
                self._folder, port=endpoint.port, websocket_port=int(str(answer.get("websocket_port", 0)))
            )
            yield RunningTarget(with_ports(target, values), endpoint, log=log)
        finally:
            with self._talking:
                self._send({"stop": pid})
