"""Start the broker of a target file as a process, wait for its first handshake, stop it without a trace."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

import msgspec

from assay.conformance.targets.errors import ProbeError
from assay.conformance.targets.faces import is_told
from assay.conformance.targets.model import Endpoint, RestartHook, StartHook, Target
from assay.conformance.targets.probe import greet, greetings
from assay.reference_broker.trace.described import described

_STOP_TIMEOUT_S = 5.0
_VERSION_TIMEOUT_S = 10.0
_START_ATTEMPTS = 3
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2_000
_MOST_CROWDED = 5.0
_LATER_LISTENERS_S = 2.0
_ENDING_TIMEOUT_S = 2.0
"""Between the moment when a process closes its sockets and the one when it has ended (a core may be written)."""
_SEARCHED_LOG_BYTES = 200_000
_QUOTED_LINES = 8
_QUOTED_CHARACTERS = 300
"""Of one line."""
_LAST_WORDS = re.compile(
    r"panic: |fatal error: |Traceback |Exception in thread |.*\bpanicked at |.*\b[Aa]ssertion\b|.*\bFATAL\b"
    r"|.*Sanitizer: |.*OutOfMemoryError"
)
"""A line where the report of a crash begins, in what Go, Python, Java, Rust and C programs write."""
_DAEMON_FOLDERS = ("/usr/sbin", "/usr/local/sbin")
"""Where brokers are installed, though not on the PATH of ordinary users."""
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*|\(devel\)")


FURTHER_PORTS = ("websocket_port", "http_port", "grpc_port")
"""Of brokers that listen in several places: placeholders of target files, and fields of ready lines."""
Damage = Callable[[], None]
"""What is done to the data of a broker while it is dead."""


def unharmed() -> None:
    """No damage."""


class TargetStartError(Exception):
    """The broker of the target could not be started; the text holds the end of its log."""


class ChangeSettings(Protocol):
    """Other settings of a broker, beyond those that it has, at once or from its next start on."""

    def __call__(self, settings: Mapping[str, Any], *, reload: bool) -> None:
        """Raises :class:`TargetStartError` where they are not read."""


class RunningTarget:
    """A broker that answers. ``pid`` is None when it was running before.

    The capabilities of its ``target`` name the ports that were really taken.
    """

    def __init__(
        self,
        target: Target,
        endpoint: Endpoint,
        *,
        process: subprocess.Popen[bytes] | None = None,
        version: str = "",
        log: Path | None = None,
        ports: Mapping[str, int] | None = None,
        restart: Callable[[float, Damage], Endpoint] | None = None,
        renew: Callable[[], Endpoint] | None = None,
        change: ChangeSettings | None = None,
        drain: threading.Thread | None = None,
        find_pid: Callable[[], int] | None = None,
    ) -> None:
        self.target, self.endpoint, self.version, self.log = target, endpoint, version, log
        self._find_pid = find_pid
        self._drain = drain
        self.ports = ports or {}
        """What the placeholders of :data:`FURTHER_PORTS` stood for; 0 = unknown."""
        self._restart = restart
        self._renew = renew
        self.change = change
        """Gives a broker of ours other settings; None for one that it is not private to a case."""
        self.process = process

    def restart_by(self, restart: Callable[[Damage], Endpoint]) -> None:
        """How this broker is restarted; its clock is that of the machine."""
        self._restart = lambda _clock_ahead_s, damage: restart(damage)

    def follow(self, following: RunningTarget) -> None:
        """Be the next life of the same broker."""
        self.process, self.endpoint, self._drain = following.process, following.endpoint, following._drain

    def restart(self, clock_ahead_s: float, damage: Damage = unharmed) -> Endpoint:
        """kill -9, ``damage``, and start again on its data; the clock begins that far ahead of the wall clock.

        Raises :class:`TargetStartError`, also for a broker that is not ours to kill.
        """
        if self._restart is None:
            message = "this broker cannot be restarted: it is not private to a case"
            raise TargetStartError(message)
        self.endpoint = self._restart(clock_ahead_s, damage)
        return self.endpoint

    def renew(self) -> None:
        """Start again without any data, where that can be done. Raises :class:`TargetStartError`."""
        if self._renew is not None:
            self.endpoint = self._renew()

    @property
    def pid(self) -> int | None:
        if self._find_pid is not None:
            return self._find_pid()
        return None if self.process is None else self.process.pid

    @property
    def is_hosted(self) -> bool:
        """It was running before, and is not ours to start."""
        return self.process is None and self.log is None

    def ending(self) -> str:
        """How its process ended, e.g. ``exit status 2``; empty for one that runs on, or that is not ours.

        Waits a moment: a process that has just closed its sockets is about to end.
        """
        if self.process is None:
            return ""
        try:
            status = self.process.wait(_ENDING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return ""
        if self._drain is not None:
            self._drain.join(_ENDING_TIMEOUT_S)
        if status >= 0:
            return f"exit status {status}"
        try:
            return f"ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"ended by signal {-status}"

    def last_words(self) -> str:
        """What its log says of the end: from the line where a crash is reported, or else the last lines."""
        lines = [line.rstrip()[:_QUOTED_CHARACTERS] for line in self.log_tail(_SEARCHED_LOG_BYTES).splitlines()]
        lines = [line for line in lines if line]
        begins = max((index for index, line in enumerate(lines) if _LAST_WORDS.match(line)), default=None)
        lines = lines[-_QUOTED_LINES:] if begins is None else lines[begins:]
        half = _QUOTED_LINES // 2  # a Go panic begins with what matters, a traceback of Python ends with it
        return "\n".join(lines if len(lines) <= _QUOTED_LINES else (*lines[:half], "...", *lines[-half:]))

    def log_tail(self, size_bytes: int = _LOG_TAIL_BYTES) -> str:
        """The end of what the process wrote."""
        if self.log is None or not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - size_bytes))
            return log.read(size_bytes).decode(errors="replace").strip()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


def search_path() -> str:
    """``PATH`` for brokers: with the folder of this Python's own commands, and those of daemons."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join((own, os.environ.get("PATH", os.defpath), *_DAEMON_FOLDERS))


def packages_folder(target_name: str) -> Path:
    """Where packages of a target are installed: below ``$ASSAY_CACHE``, or else the user's cache folder."""
    cache = os.environ.get("ASSAY_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay"
    return Path(cache).absolute() / "packages" / target_name


def placeholders(
    folder: Path, target_name: str = "", *, port: int = 0, further: Mapping[str, int] | None = None
) -> dict[str, str]:
    """What the placeholders of a target file stand for; ``further``: by the names of :data:`FURTHER_PORTS`."""
    ports = {"{port}": str(port), **{f"{{{name}}}": str((further or {}).get(name, 0)) for name in FURTHER_PORTS}}
    folders = {"{dir}": str(folder), "{packages}": str(packages_folder(target_name))}
    return {**ports, **folders, "{python}": sys.executable}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of a text."""
    # Not str.format: broker configurations contain braces of their own.
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def with_ports(target: Target, values: Mapping[str, str]) -> Target:
    """The target with the placeholders in its capabilities filled in."""
    filled = {
        name: fill(value, values) if isinstance(value, str) else value for name, value in target.capabilities.items()
    }
    return msgspec.structs.replace(target, capabilities=filled)


class ReadyLine(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a broker that picks its own ports."""

    host: str
    port: int
    websocket_port: int = 0
    http_port: int = 0
    grpc_port: int = 0
    version: str = ""

    @property
    def further(self) -> dict[str, int]:
        """The ports beside the first."""
        return {name: getattr(self, name) for name in FURTHER_PORTS}


def crowding() -> float:
    """How many processes share a processor of this machine, from 1 up to as many as anybody waits for."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # not on every system
        return 1.0
    return min(max(1.0, load / (os.cpu_count() or 1)), _MOST_CROWDED)


class _Patience:
    """Time that a broker has to start, longer on a busy machine: there one that starts well was taken for one that
    does not start again on what it has stored (HiveMQ, at a load of 80)."""

    def __init__(self, seconds: float) -> None:
        self._began_s = time.monotonic()
        self._seconds = seconds

    @property
    def left_s(self) -> float:
        return self._began_s + self._seconds * crowding() - time.monotonic()


def _read_ready_line(stdout: IO[bytes], process: subprocess.Popen[bytes], patience: _Patience) -> ReadyLine:
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while not selector.select(max(0.0, patience.left_s)):
            if patience.left_s <= 0:  # the machine may have become busy meanwhile
                message = "it printed no ready line in time"
                raise TargetStartError(message)
    line = stdout.readline()
    if not line:
        message = f"it ended (status {process.wait(_STOP_TIMEOUT_S)}) before its ready line"
        raise TargetStartError(message)
    try:
        return msgspec.json.decode(line, type=described(ReadyLine))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f'its first line must be JSON with "host" and "port", not {line[:200]!r}'
        raise TargetStartError(message) from error


def _drain(stdout: IO[bytes], log: Path) -> threading.Thread:
    """Keep the pipe of a process empty, so that it never blocks on its own output; closes the pipe at its end."""

    def copy() -> None:
        with stdout, log.open("ab") as sink:
            for line in stdout:
                sink.write(line)
                sink.flush()

    thread = threading.Thread(target=copy, name="broker output", daemon=True)
    thread.start()
    return thread


def _await_handshake(
    target: Target, endpoint: Endpoint, process: subprocess.Popen[bytes] | None, patience: _Patience
) -> None:
    while True:
        problem = "no handshake was tried"
        for version, where in greetings(target, endpoint):
            try:
                greet(where, version, timeout_s=max(0.1, patience.left_s))
            except ProbeError as error:
                problem = str(error)
            else:
                return
        if process is not None and process.poll() is not None:
            message = f"it ended with status {process.returncode}"
            raise TargetStartError(message)
        if patience.left_s < 0:
            message = f"no handshake succeeded in time: {problem}"
            raise TargetStartError(message)
        time.sleep(_POLL_S)  # the only way to learn that a foreign process listens


def _await_listeners(target: Target) -> None:
    """A broker may listen on one port some time before it does on another, as Moquette on that of WebSocket. What does
    not listen at all is not ours to say here."""
    said = target.capabilities.items()
    urls = [urlsplit(str(value)) for name, value in said if name.endswith("_url") and is_told(str(value))]
    patience = _Patience(_LATER_LISTENERS_S)
    for url in urls:
        while patience.left_s > 0 and url.hostname and url.port:
            try:
                socket.create_connection((url.hostname, url.port), timeout=1.0).close()
                break
            except OSError:
                time.sleep(_POLL_S)


def _stop(hook: StartHook, process: subprocess.Popen[bytes], values: Mapping[str, str]) -> None:
    """End a broker. One that tells its port on standard output ends with its standard input, and is not interrupted in
    that: what it writes last would be lost."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if hook.stop and process.poll() is None:
        command = [fill(part, values) for part in hook.stop]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=_STOP_TIMEOUT_S)
    elif process.poll() is None:
        if hook.port_from == "stdout":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
        process.terminate()  # nothing to one that has ended
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it started and left behind, and itself if it does not end
    process.wait(_STOP_TIMEOUT_S)


def maven_version(target: Target) -> str:
    """The version of the first Maven artifact, if its jar is there and a compiler for the launcher beside it."""
    assert target.start is not None
    _, artifact, version = target.start.maven[0].split(":")
    jar = packages_folder(target.name) / "lib" / f"{artifact}-{version}.jar"
    return version if jar.exists() and shutil.which("javac", path=search_path()) else ""


def installed_version(target: Target) -> str:
    """The version that the target's command prints; empty if it has none, or the broker is not installed."""
    hook = target.start
    if hook is not None and hook.maven:
        return maven_version(target)
    if hook is None or not hook.version:
        return ""
    command = [fill(part, placeholders(Path(), target.name)) for part in hook.version]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=_VERSION_TIMEOUT_S,
            env={**os.environ, "PATH": search_path()},
        )
        # Some print it to standard error; a complaint there may name version numbers of its own.
        said = done.stdout if done.returncode else done.stdout + done.stderr
        found = _VERSION.search(said.decode(errors="replace"))
        if found:
            return found.group()
    return ""


def _launch(
    target: Target,
    hook: StartHook,
    folder: Path,
    extra_arguments: tuple[str, ...],
    before: RunningTarget | None = None,
) -> RunningTarget:
    """``before``: the life of the broker that this one follows, on its ports and files."""
    if hook.maven and not maven_version(target):
        message = (
            f"its packages are not there, or no compiler; {hook.advice or '`assay conformance peers` copies them'}"
        )
        raise TargetStartError(message)
    host = target.endpoint.host
    if before is not None:
        port, further = before.endpoint.port, before.ports
    else:
        picked = hook.port_from == "free"
        port, *others = [free_port(host) if picked else 0 for _ in ("port", *FURTHER_PORTS)]
        further = dict(zip(FURTHER_PORTS, others, strict=True))
    values = placeholders(folder, target.name, port=port, further=further)
    values["{spare_port}"] = str(free_port(host))
    for name, text in hook.files.items() if before is None else ():
        (folder / name).write_text(fill(text, values), encoding="utf-8")
    command = [fill(part, values) for part in (*hook.command, *extra_arguments)]
    log = folder / "broker.log"
    patience = _Patience(hook.ready_timeout_s)
    try:
        with log.open("ab") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if hook.port_from == "stdout" else sink,
                stderr=sink,
                env={**os.environ, "PATH": search_path()},
                start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
            )
    except OSError as error:
        message = f"cannot run {command[0]!r}: {error.strerror}; is it installed and on the PATH?"
        raise TargetStartError(message) from error
    version, drain = "", None
    try:
        if process.stdout is not None:
            try:
                ready = _read_ready_line(process.stdout, process, patience)
            except TargetStartError:
                process.stdout.close()
                raise
            host, port, version = ready.host, ready.port, ready.version
            further = ready.further
            values = placeholders(folder, target.name, port=port, further=further)
            drain = _drain(process.stdout, log)
        endpoint = msgspec.structs.replace(target.endpoint, host=host, port=port)
        _await_handshake(with_ports(target, values), endpoint, process, patience)
        _await_listeners(with_ports(target, values))
    except TargetStartError as error:
        _stop(hook, process, values)
        tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        message = f"{' '.join(command)}: {error}" + (f"\n{tail}" if tail else "")
        raise TargetStartError(message) from error
    except BaseException:  # the user stops the run
        _stop(hook, process, values)
        raise
    target = with_ports(target, values)
    return RunningTarget(
        target,
        endpoint,
        process=process,
        version=version or installed_version(target),
        log=log,
        ports=further,
        drain=drain,
    )


def _run_restart_command(target: Target, how: RestartHook, _damage: Damage) -> Endpoint:
    """Raises :class:`TargetStartError` unless the command succeeds and the broker answers in time."""
    values = placeholders(Path(), target.name, port=target.endpoint.port)
    command = [fill(part, values) for part in how.command]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=how.timeout_s,
            env={**os.environ, "PATH": search_path()},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"cannot restart the broker by {command[0]!r}: {error}"
        raise TargetStartError(message) from error
    if done.returncode:
        said = done.stdout[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        message = f"{command[0]!r} ended with status {done.returncode}: {said}"
        raise TargetStartError(message)
    _await_handshake(target, target.endpoint, None, _Patience(how.timeout_s))
    return target.endpoint


def _restart_process(
    broker: RunningTarget,
    how: RestartHook,
    hook: StartHook,
    folder: Path,
    extra_arguments: tuple[str, ...],
    damage: Damage,
) -> Endpoint:
    """End the broker's process and start another on its ports and its files, damaged or not.

    Raises :class:`TargetStartError`.
    """
    process = broker.process
    if process is not None:
        # The group may outlive its leader: a script that started the broker, say.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.Signals[f"SIG{how.signal}"])
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_STOP_TIMEOUT_S)
        if process.stdin is not None:
            process.stdin.close()
    damage()
    following = _launch(broker.target, hook, folder, extra_arguments, before=broker)
    broker.follow(following)
    return broker.endpoint


@contextmanager
def running(target: Target, *, extra_arguments: tuple[str, ...] = ()) -> Iterator[RunningTarget]:
    """The target's broker, started if its file says how, and stopped at the end.

    ``extra_arguments`` are added to the start command (the self-check adds ``--mutant NAME``).
    Raises :class:`TargetStartError` or, for a broker that should be running already, :class:`ProbeError`.
    """
    hook = target.start
    if hook is None:
        *first, (last, place) = greetings(target, target.endpoint)
        for version, where in first:
            with contextlib.suppress(ProbeError):
                greet(where, version)
                break
        else:
            greet(place, last)
        hosted, command = RunningTarget(target, target.endpoint), target.restart
        if command is not None:
            hosted.restart_by(lambda damage: _run_restart_command(target, command, damage))
        yield hosted
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
        how = target.restart
        if how is not None:
            broker.restart_by(lambda damage: _restart_process(broker, how, hook, folder, extra_arguments, damage))
        try:
            yield broker
        finally:
            if broker.process is not None:
                _stop(hook, broker.process, placeholders(folder, target.name, port=broker.endpoint.port))
