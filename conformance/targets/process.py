"""Start the broker of a target file as a process, wait for its first MQTT handshake, stop it without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from conformance.targets.model import Endpoint, StartHook, Target
from conformance.targets.probe import ProbeError, handshake

_STOP_TIMEOUT_S = 5.0
_START_ATTEMPTS = 3
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2_000
_DAEMON_FOLDERS = ("/usr/sbin", "/usr/local/sbin")
"""Where brokers are installed, though not on the PATH of ordinary users."""
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")


class TargetStartError(Exception):
    """The broker of the target could not be started; the text holds the end of its log."""


class RunningTarget:
    """A broker that answers. ``pid`` is None when it was running before."""

    def __init__(
        self,
        target: Target,
        endpoint: Endpoint,
        *,
        process: subprocess.Popen[bytes] | None = None,
        version: str = "",
        log: Path | None = None,
    ) -> None:
        self.target, self.endpoint, self.version, self.log = target, endpoint, version, log
        self.process = process

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def log_tail(self, size_bytes: int = _LOG_TAIL_BYTES) -> str:
        """The end of what the process wrote."""
        if self.log is None or not self.log.exists():
            return ""
        return self.log.read_bytes()[-size_bytes:].decode(errors="replace").strip()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


def _fill(text: str, port: int, folder: Path) -> str:
    # Not str.format: broker configurations contain braces of their own.
    for name, value in {"{port}": str(port), "{dir}": str(folder), "{python}": sys.executable}.items():
        text = text.replace(name, value)
    return text


def _read_ready_line(stdout: IO[bytes], process: subprocess.Popen[bytes], deadline: float) -> dict[str, object]:
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            message = "it printed no ready line in time"
            raise TargetStartError(message)
    line = stdout.readline()
    if not line:
        message = f"it ended (status {process.wait(_STOP_TIMEOUT_S)}) before its ready line"
        raise TargetStartError(message)
    try:
        ready = json.loads(line)
        return {"host": str(ready["host"]), "port": int(ready["port"]), "version": str(ready.get("version", ""))}
    except (ValueError, KeyError, TypeError) as error:
        message = f'its first line must be JSON with "host" and "port", not {line[:200]!r}'
        raise TargetStartError(message) from error


def _drain(stdout: IO[bytes], log: Path) -> None:
    """Keep the pipe of a process empty, so that it never blocks on its own output; closes the pipe at its end."""

    def copy() -> None:
        with stdout, log.open("ab") as sink:
            for line in stdout:
                sink.write(line)
                sink.flush()

    threading.Thread(target=copy, name="broker output", daemon=True).start()


def _await_handshake(endpoint: Endpoint, process: subprocess.Popen[bytes], deadline: float) -> None:
    while True:
        problem = "no MQTT handshake was tried"
        for version in (4, 5):
            try:
                handshake(endpoint, version, timeout_s=max(0.1, deadline - time.monotonic()))
            except ProbeError as error:
                problem = str(error)
            else:
                return
        if process.poll() is not None:
            message = f"it ended with status {process.returncode}"
            raise TargetStartError(message)
        if time.monotonic() > deadline:
            message = f"no MQTT handshake succeeded in time: {problem}"
            raise TargetStartError(message)
        time.sleep(_POLL_S)  # the only way to learn that a foreign process listens


def _stop(hook: StartHook, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if hook.stop and process.poll() is None:
        command = [_fill(part, port, folder) for part in hook.stop]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=_STOP_TIMEOUT_S)
    elif process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)


def _version(hook: StartHook) -> str:
    if not hook.version:
        return ""
    command = [_fill(part, 0, Path()) for part in hook.version]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, check=False, capture_output=True, timeout=_STOP_TIMEOUT_S)
        found = _VERSION.search((done.stdout + done.stderr).decode(errors="replace"))
        if found:
            return found.group()
    return ""


def _launch(target: Target, hook: StartHook, folder: Path, extra_arguments: tuple[str, ...]) -> RunningTarget:
    host = target.endpoint.host
    port = free_port(host) if hook.port_from == "free" else 0
    for name, text in hook.files.items():
        (folder / name).write_text(_fill(text, port, folder), encoding="utf-8")
    command = [_fill(part, port, folder) for part in (*hook.command, *extra_arguments)]
    log = folder / "broker.log"
    deadline = time.monotonic() + hook.ready_timeout_s
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if hook.port_from == "stdout" else sink,
                stderr=sink,
                env={**os.environ, "PATH": os.pathsep.join((os.environ.get("PATH", os.defpath), *_DAEMON_FOLDERS))},
            )
    except OSError as error:
        message = f"cannot run {command[0]!r}: {error.strerror}; is it installed and on the PATH?"
        raise TargetStartError(message) from error
    version = ""
    try:
        if process.stdout is not None:
            try:
                ready = _read_ready_line(process.stdout, process, deadline)
            except TargetStartError:
                process.stdout.close()
                raise
            host, port, version = str(ready["host"]), int(str(ready["port"])), str(ready["version"])
            _drain(process.stdout, log)
        endpoint = Endpoint(host=host, port=port, username=target.endpoint.username, password=target.endpoint.password)
        _await_handshake(endpoint, process, deadline)
    except TargetStartError as error:
        _stop(hook, process, port, folder)
        tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        message = f"{' '.join(command)}: {error}" + (f"\n{tail}" if tail else "")
        raise TargetStartError(message) from error
    return RunningTarget(target, endpoint, process=process, version=version or _version(hook), log=log)


@contextmanager
def running(target: Target, *, extra_arguments: tuple[str, ...] = ()) -> Iterator[RunningTarget]:
    """The target's broker, started if its file says how, and stopped at the end.

    ``extra_arguments`` are added to the start command (the self-check adds ``--mutant NAME``).
    Raises :class:`TargetStartError` or, for a broker that should be running already, :class:`ProbeError`.
    """
    hook = target.start
    if hook is None:
        try:
            handshake(target.endpoint, 4)
        except ProbeError:
            handshake(target.endpoint, 5)
        yield RunningTarget(target, target.endpoint)
        return
    with tempfile.TemporaryDirectory(prefix="assay-") as name:
        folder = Path(name)
        attempts = _START_ATTEMPTS if hook.port_from == "free" else 1
        for attempt in range(1, attempts + 1):
            try:
                broker = _launch(target, hook, folder, extra_arguments)
                break
            except TargetStartError:
                # Somebody else may have taken the port that was free a moment ago.
                if attempt == attempts:
                    raise
        try:
            yield broker
        finally:
            if broker.process is not None:
                _stop(hook, broker.process, broker.endpoint.port, folder)
