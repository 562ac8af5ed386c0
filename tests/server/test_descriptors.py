"""Clients cannot take the descriptors that storage needs, and accepting rests where the system has none."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.reference_broker.core.newcomers import Newcomers
from assay.reference_broker.server.accepting import Acceptor
from assay.reference_broker.server.file_limit import connection_descriptors
from assay.reference_broker.server.log_lines import MOST_OF_A_KIND
from assay.reference_broker.storage.open_files import SPARE_FILES, reserve_of
from tests.server.test_refusing_disk import Client, numbered, numbers

LIMIT = 120
FLOOD = 200
TIMEOUT_S = 30.0


@pytest.mark.parametrize("limit", [64, 120, 700, 1_024, 4_096, 20_000, 1_000_000])
def test_some_of_any_limit_is_kept_for_storage_and_most_is_not(limit: int) -> None:
    assert min(SPARE_FILES, limit // 2) <= reserve_of(limit) <= max(SPARE_FILES, limit // 2)


class Few:
    """``assay serve`` with few descriptors; the second listener is a WebSocket."""

    def __init__(self, folder: Path) -> None:
        config = folder / "broker.yaml"
        config.write_text(
            f'data_dir: "{folder / "data"}"\n'
            "listeners: [{host: 127.0.0.1, port: 0}, {host: 127.0.0.1, port: 0, transport: websocket}]\n"
            "sessions: {segment_bytes: 65536}\n"
            "queues:\n  segment_bytes: 65536\n  configured:\n"
            "    - {name: i, partitions: 2, durability: interval}\n    - {name: f, partitions: 2, durability: fsync}\n"
        )
        self._arguments = [sys.executable, "-m", "assay.cli", "serve", "--config", str(config)]
        self._log = (folder / "log").open("w+")
        self.process: subprocess.Popen[str] | None = None
        self.ports: list[int] = []

    def start(self, limit: int = LIMIT) -> None:
        def lower() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        self.process = subprocess.Popen(
            self._arguments, stdout=subprocess.PIPE, stderr=self._log, text=True, preexec_fn=lower
        )
        assert self.process.stdout is not None
        addresses = [self.process.stdout.readline().strip() for _ in range(2)]
        self.ports = [int(address.rpartition(":")[2].partition("/")[0]) for address in addresses]

    def kill(self) -> str:
        """Returns what it said so far."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate(timeout=TIMEOUT_S)
            self.process = None
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        self.kill()
        self._log.close()


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Few]:
    broker = Few(tmp_path)
    yield broker
    broker.close()


def test_silent_connections_cost_no_message(few: Few) -> None:
    """They took every descriptor: syncs failed for good, and what had been confirmed was cut off."""
    few.start()
    publisher = Client(few.ports[0], "publisher")
    taken = dict.fromkeys(("$queue/i", "$queue/f"), 0)

    def publish(count: int) -> None:
        for topic in taken:
            for _ in range(count):
                assert publisher.publish(topic, numbered(taken[topic])) == 0
                taken[topic] += 1

    publish(20)
    flood = [socket.create_connection(("127.0.0.1", few.ports[number % 2]), TIMEOUT_S) for number in range(FLOOD)]
    # Segments are sealed and begun meanwhile, and periodic syncs run.
    publish(60)
    refused = 0
    for connection in flood[-20:]:
        connection.settimeout(TIMEOUT_S)
        try:
            refused += connection.recv(1) == b""
        except ConnectionError:
            refused += 1
    assert refused == 20
    for connection in flood:
        connection.close()
    publish(10)
    said = few.kill()
    assert 1 <= said.count("connection refused") <= MOST_OF_A_KIND, said
    assert "storage" in said
    assert "Traceback" not in said
    few.start(limit=1_024)
    for topic, count in taken.items():
        consumer = Client(few.ports[0], f"consumer-{topic[-1]}")
        consumer.subscribe(topic)
        assert sorted(numbers(consumer.deliveries(count))) == list(range(count))


class Exhausted:
    """A listening socket of a system that has no descriptor left."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.tries = 0
        self.thrice = asyncio.Event()

    def fileno(self) -> int:
        return self._listening.fileno()

    def getsockname(self) -> tuple[str, int]:
        name = self._listening.getsockname()
        return str(name[0]), int(name[1])

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        if self.tries == 3:
            self.thrice.set()
        raise OSError(errno.EMFILE, "Too many open files")

    def close(self) -> None:
        self._listening.close()


@pytest.mark.parametrize("uses_uvloop", [False, True])
def test_accepting_rests_where_there_is_no_descriptor_at_all(
    monkeypatch: pytest.MonkeyPatch, *, uses_uvloop: bool
) -> None:
    """It neither spins nor writes a line for each try, and goes on by itself."""
    from assay.reference_broker.server import accepting

    monkeypatch.setattr(accepting, "_REST_S", 0.01)
    said: list[str] = []

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            exhausted = Exhausted(listening)
            acceptor = Acceptor(
                asyncio.get_running_loop(),
                exhausted,  # type: ignore[arg-type]
                asyncio.Protocol,
                lambda kind, text: said.append(kind),
                context=None,
                handshakes=Newcomers(10),
                handshake_timeout_s=None,
            )
            with socket.create_connection(listening.getsockname()[:2]):
                await exhausted.thrice.wait()
            assert exhausted.tries == len(said)
            acceptor.close()
            acceptor.close()

    factory = asyncio.new_event_loop
    if uses_uvloop:
        factory = pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(run(), TIMEOUT_S))
    assert set(said) == {"accept"}


def test_a_limit_that_is_lowered_moves_the_bound() -> None:
    script = (
        "import resource; from assay.reference_broker.server.file_limit import connection_descriptors\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); print(connection_descriptors())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=90)
    assert int(done.stdout) == 100
    assert connection_descriptors() != 100
