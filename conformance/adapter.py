"""The reference broker as a process of its own, optionally broken on purpose.

``python -m assay.conformance.adapter [--mutant NAME ...] [--config YAML] [--port PORT] [--disk-faults JSON]`` prints
one line of JSON when ready, ``{"ready": true, "host": ..., "port": ..., "version": ..., "pid": ...}``, and ends when
its standard input is closed, so that nothing is left behind when its parent dies. ``websocket_port``, ``http_port``
and ``grpc_port`` are in it too if the configuration has such listeners. In this process:
:func:`reference_broker_endpoint`.

``--fork`` makes it a nursery of broken brokers for the self-check, which spares them the start of Python: each line
``{"start": MUTANT, "config": FILE, "log": FILE, "number": N, "faces": BOOL}`` on standard input forks a broker with
that mutant (none for "") and configuration (the defaults for ""), whose listeners of HTTP are kept with ``faces``. Its
ready line, or one with ``error``, is printed, with that number: brokers that start at the same time may be ready in any
order. ``{"reload": PID, "number": N}`` has it read its configuration again, as SIGHUP would; its answer comes when all
there is was held against that. ``{"stop": PID}`` ends that broker, ``{"kill": PID}`` does so by SIGKILL, the end of the
input ends all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from unittest import mock

import msgspec

from assay.conformance.faulty_disk import FaultyDisk, Troubles
from assay.conformance.mutants import UnknownMutantError, all_mutants, applied
from assay.conformance.targets.model import Endpoint
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    BrokerConfig,
    ConfigError,
    ListenerConfig,
    ListenerProtocol,
    Transport,
    load_config,
)
from assay.reference_broker.server import running
from assay.reference_broker.server.collector import tune_collector
from assay.reference_broker.server.file_limit import raise_file_limit
from assay.reference_broker.server.listeners import check_extras
from assay.reference_broker.storage.disk import RealDisk

USAGE_ERROR = 2
_STOP_TIMEOUT_S = 10.0
"""A busy machine needs some of it; nobody waits for it but the end of a nursery, and that for all at once."""
_POLL_S = 0.005
_FACES = (ListenerProtocol.HTTP, ListenerProtocol.GRPC)


def broker_config(path: Path | None, port: int, *, faces: bool = True) -> BrokerConfig:
    """The configuration of ``path`` (or the defaults) with one listener on ``127.0.0.1:port``; 0 = any free port.

    It speaks what the first one there that is no WebSocket speaks. A WebSocket listener is kept, on a free port of
    127.0.0.1, and with ``faces`` those that speak HTTP, where what they need is installed. Raises :class:`ConfigError`.
    """
    config = load_config(path) if path is not None else BrokerConfig()
    websockets = [
        ListenerConfig(port=0, transport=Transport.WEBSOCKET, websocket=listener.websocket)
        for listener in config.listeners
        if listener.transport is Transport.WEBSOCKET
    ]
    plain = next((each for each in config.listeners if each.transport is Transport.TCP), ListenerConfig())
    own = ListenerConfig(port=port, protocols=plain.protocols)
    kept = [each for each in config.listeners if faces and each.protocols[0] in _FACES and _can_listen(each)]
    return msgspec.structs.replace(config, listeners=(own, *websockets[:1], *kept))


def _can_listen(listener: ListenerConfig) -> bool:
    try:
        check_extras(listener.protocols)
    except ConfigError:
        return False
    return True


@contextmanager
def reference_broker_endpoint(*mutants: str, config: BrokerConfig | None = None) -> Iterator[Endpoint]:
    """The reference broker in this process with mutants applied; both end with the block."""
    with applied(*mutants), Broker(config or broker_config(None, 0)) as broker:
        yield Endpoint(host=broker.host, port=broker.port)


def _version() -> str:
    try:
        return version("assay-mq")
    except PackageNotFoundError:
        return ""


def _ready(broker: Broker) -> dict[str, object]:
    ready = {"ready": True, "host": broker.host, "port": broker.port, "version": _version(), "pid": os.getpid()}
    for name, scheme in (("websocket_port", "ws"), ("http_port", "http"), ("grpc_port", "grpc")):
        ports = [address.port for address in broker.addresses if address.scheme == scheme]
        if ports:
            ready[name] = ports[0]
    return ready


def _answer(**values: object) -> None:
    """One line in one write, short enough for the system not to mix it with those of other processes."""
    line = json.dumps(values)
    while len(line) >= select.PIPE_BUF:
        values["error"] = str(values["error"])[: len(str(values["error"])) // 2]
        line = json.dumps(values)
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _forked_broker(mutant: str, config: str, log: str, life: int, number: int, faces: bool) -> int:
    """The life of a forked broker: until ``life``, the read end of a pipe, ends. Returns the exit status.

    Each number in it asks for a reload.
    """
    with Path(log).open("ab") as sink:
        os.dup2(sink.fileno(), sys.stderr.fileno())
    ready = False
    try:
        wanted = broker_config(Path(config) if config else None, 0, faces=faces)
        with applied(*filter(None, [mutant])), Broker(wanted) as broker:
            _answer(number=number, **_ready(broker))
            ready = True
            while asked := os.read(life, select.PIPE_BUF):
                for each in asked.split():
                    _reload(broker, Path(config), int(each))
    except Exception as error:
        traceback.print_exc()
        if not ready:  # one answer to a request
            _answer(number=number, pid=os.getpid(), error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _reload(broker: Broker, config: Path, number: int) -> None:
    try:
        broker.reload(broker_config(config, 0))
    except (ConfigError, OSError, TimeoutError) as error:
        _answer(number=number, pid=os.getpid(), error=f"{type(error).__name__}: {error}")
    else:
        _answer(number=number, pid=os.getpid())


class Nursery:
    """Forks brokers and ends them."""

    def __init__(self) -> None:
        self._lives: dict[int, int] = {}
        """Process id to the write end of the pipe that keeps the broker alive."""
        self._ending: dict[int, float] = {}
        """Process id of a broker that was told to end, to the time at which it is killed if it still has not."""

    def start(self, mutant: str, config: str, log: str, number: int, faces: bool = False) -> None:
        """Fork a broker; it prints its own ready line."""
        life, keep = os.pipe()
        pid = os.fork()
        if pid == 0:
            # A child that held the pipes of its siblings would keep them alive.
            for other in (keep, *self._lives.values()):
                os.close(other)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(_forked_broker(mutant, config, log, life, number, faces))
        os.close(life)
        self._lives[pid] = keep

    def reload(self, pid: int, number: int) -> None:
        """Have a broker read its configuration again; it answers by itself."""
        keep = self._lives.get(pid)
        if keep is None:
            _answer(number=number, pid=pid, error="the broker has ended")
            return
        try:
            os.write(keep, f"{number}\n".encode())
        except OSError as error:
            _answer(number=number, pid=pid, error=str(error))

    def kill(self, pid: int) -> None:
        """End a broker as a crash would; twice is fine."""
        keep = self._lives.pop(pid, None)
        if keep is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(keep)

    def stop(self, pid: int) -> None:
        """Tell a broker to end; twice is fine. Nobody waits for it: :meth:`reap` looks after its process."""
        keep = self._lives.pop(pid, None)
        if keep is not None:
            os.close(keep)
            self._ending[pid] = time.monotonic() + _STOP_TIMEOUT_S

    def reap(self) -> None:
        """Take leave of the processes that have ended since, and kill those that take too long."""
        for pid, deadline in list(self._ending.items()):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            elif os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
            del self._ending[pid]

    def stop_all(self) -> None:
        """End all of them and wait until they have."""
        for pid in list(self._lives):
            self.stop(pid)
        while self._ending:
            self.reap()
            time.sleep(_POLL_S)  # a blocking wait has no time limit


def _import_faces() -> None:
    """What children need that speak HTTP or gRPC, once for all of them."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # nothing of it runs here
    for name in ("http", "grpc_api"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"assay.reference_broker.{name}.server")


def _serve_nursery() -> int:
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        # What the first start of a broker imports and works out, its children need not: config and files as well.
        first = Path(folder) / "broker.yaml"
        first.write_text(json.dumps({"data_dir": f"{folder}/data"}), encoding="utf-8")
        all_mutants()
        with Broker(broker_config(first, 0)):
            pass
    gc.freeze()  # nor do they copy what the collector would look at
    nursery = Nursery()
    try:
        for line in sys.stdin:
            nursery.reap()
            request = json.loads(line)
            if "stop" in request:
                nursery.stop(int(request["stop"]))
            elif "reload" in request:
                nursery.reload(int(request["reload"]), int(request["number"]))
            elif "kill" in request:
                nursery.kill(int(request["kill"]))
            else:
                if request.get("faces"):
                    _import_faces()
                mutant, config, log = (str(request[key]) for key in ("start", "config", "log"))
                nursery.start(mutant, config, log, int(request["number"]), bool(request.get("faces")))
    finally:
        nursery.stop_all()
    return 0


@contextmanager
def _disk_that_has(troubles: Troubles | None) -> Iterator[None]:
    """Brokers that start within have a disk of which that is wrong."""
    if troubles is None:
        yield
        return
    with mock.patch.object(running, "RealDisk", lambda root: FaultyDisk(RealDisk(root), troubles)):
        yield


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m assay.conformance.adapter",
        description="Run the reference broker until standard input is closed; the first line of output says where.",
    )
    parser.add_argument("--mutant", action="append", default=[], metavar="NAME", help="break the broker (repeatable)")
    parser.add_argument("--config", type=Path, metavar="YAML", help="broker configuration; its listeners are replaced")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 = any free one")
    parser.add_argument(
        "--disk-faults", metavar="JSON", help="what is wrong with the disk; lines of input say it anew (faulty_disk.py)"
    )
    parser.add_argument("--fork", action="store_true", help="fork broken brokers on request, for the self-check")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run until standard input ends; returns the exit status."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    if arguments.fork:
        return _serve_nursery()
    try:
        config = broker_config(arguments.config, arguments.port)
        troubles = None if arguments.disk_faults is None else Troubles(arguments.disk_faults)
        with applied(*arguments.mutant), _disk_that_has(troubles), Broker(config) as broker:
            tune_collector()
            raise_file_limit()
            print(json.dumps(_ready(broker)), flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                for line in sys.stdin.buffer:
                    if troubles is not None:
                        troubles.take(line)
    except (ConfigError, UnknownMutantError, OSError, ValueError) as error:
        print(f"cannot start the reference broker: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
