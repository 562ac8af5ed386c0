"""kill -9 of ``assay serve`` while clients publish and take: sessions go on where they were.

SIGKILL may come between any two instructions of the broker. What power loss leaves is played on the simulated disk
(``tests/mqtt/test_session_crashes.py``).
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet

if TYPE_CHECKING:
    from tests.conftest import StrictClient

WAIT_S = 30.0
KILLS = int(os.environ.get("ASSAY_KILLS", "4"))
"""In each of the two tests: ``ASSAY_KILLS=100`` makes two hundred."""
MESSAGES = max(600, 40 * KILLS)
FILES = 120
"""Descriptors of the broker; in every other life more silent clients come than there are for."""
CROWD = 80
_LARGE_SHARE = 25
"""One message in so many has 100 KB."""
WINDOW = 20
"""Unfinished publishes at most."""
RECONNECT_S = 0.02


def _lower_file_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


def _payload(number: int) -> bytes:
    return b"%d:" % number + bytes(100_000 if number % _LARGE_SHARE == 7 else 0)


def _number(payload: bytes) -> int:
    return int(payload.partition(b":")[0])


class KilledBroker:
    """``assay serve`` on one port and one folder, over several lives."""

    def __init__(self, folder: Path, durability: str) -> None:
        self._config = folder / "broker.yaml"
        self._config.write_text(f'data_dir: "{folder / "data"}"\nsessions: {{durability: {durability}}}\n')
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "assay.cli", "serve", "--config", str(self._config), "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_lower_file_limit
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready mqtt://127.0.0.1:"):
            self._process.kill()
            raise AssertionError(line + self._process.communicate()[1])
        self.port = int(line.rsplit(":", 1)[1])

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


class Party(threading.Thread):
    """One client with a socket, in a thread: connects again and again, sends again what was not acknowledged."""

    def __init__(self, client: StrictClient, port: int, *, publishes: int = 0) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.changed = threading.Condition()
        self.sent = 0
        self.publishes = publishes
        self._port = port
        self._stop_now = threading.Event()
        self._socket: socket.socket | None = None

    def run(self) -> None:
        while not self._stop_now.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port)) as self._socket:
                    self._talk(self._socket)
            except OSError:
                self._stop_now.wait(RECONNECT_S)
            self.client.lost()

    def _talk(self, peer: socket.socket) -> None:
        five = self.client.version == p.V5
        properties = p.Properties(session_expiry_interval=0xFFFFFFFF) if five else p.NO_PROPERTIES
        request = p.Connect(
            version=self.client.version, client_id=self.client.client_id, clean_start=False, properties=properties
        )
        self._send(peer, request)
        if not self.client.must_be_present and not self.publishes:
            filters = tuple(p.SubscriptionRequest(topic_filter=f"k/{qos}", qos=qos) for qos in (1, 2))
            self._send(peer, p.Subscribe(packet_id=1, requests=filters))
        while data := peer.recv(65_536):
            with self.changed:
                self.client.take(data)
                self.changed.notify_all()
            answers, self.client.answers = self.client.answers, []
            self._send(peer, *answers, *self._next_publishes())

    def _next_publishes(self) -> list[p.Packet]:
        fresh: list[p.Packet] = []
        unfinished = self.client.outgoing
        while self.client.connected and self.sent < self.publishes and len(unfinished) < WINDOW:
            qos = 1 + self.sent % 2
            packet = p.Publish(topic=f"k/{qos}", payload=_payload(self.sent), qos=qos, packet_id=self.client.free_id())
            unfinished[packet.packet_id] = packet
            self.sent += 1
            fresh.append(packet)
        return fresh

    def _send(self, peer: socket.socket, *packets: p.Packet) -> None:
        peer.sendall(b"".join(encode_packet(packet, self.client.version) for packet in packets))

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, WAIT_S)

    def stop(self) -> None:
        self._stop_now.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self.join(WAIT_S)


@pytest.mark.timeout(max(120, 6 * KILLS))
@pytest.mark.parametrize(("durability", "version"), [("interval", p.V5), ("fsync", p.V311)])
def test_nothing_is_lost_when_the_broker_is_killed(
    tmp_path: Path, strict_client: type[StrictClient], durability: str, version: int
) -> None:
    moments = sorted(random.Random(f"{durability} {version}").sample(range(10, MESSAGES - 50), KILLS))
    broker = KilledBroker(tmp_path, durability)
    subscriber = Party(strict_client("subscriber", version), broker.port)
    publisher = Party(strict_client("publisher", version), broker.port, publishes=MESSAGES)
    taken = subscriber.client.got
    crowd: list[socket.socket] = []
    try:
        subscriber.start()
        assert subscriber.wait_for(lambda: subscriber.client.subscribed)
        publisher.start()
        assert publisher.wait_for(lambda: publisher.client.connected)
        subscriber.client.must_be_present = publisher.client.must_be_present = True
        for number, moment in enumerate(moments):
            if number % 2:
                assert publisher.wait_for(lambda: publisher.client.connected)
                assert subscriber.wait_for(lambda: subscriber.client.connected)
                crowd = [socket.create_connection(("127.0.0.1", broker.port), WAIT_S) for _ in range(CROWD)]
            assert subscriber.wait_for(lambda moment=moment: len(taken) >= moment), f"{len(taken)} messages came"  # type: ignore[misc]
            broker.kill()
            while crowd:
                crowd.pop().close()
            broker.start()
        assert subscriber.wait_for(lambda: len(set(taken)) == MESSAGES), f"{len(set(taken))} of {MESSAGES} came"
        assert publisher.wait_for(lambda: not publisher.client.outgoing and not publisher.client.releasing)
    finally:
        subscriber.stop()
        publisher.stop()
        broker.kill()
        for connection in crowd:
            connection.close()
    assert all(payload == _payload(_number(payload)) for payload in taken)
    twice = [_number(payload) for payload, count in Counter(taken).items() if count > 1 and _number(payload) % 2]
    assert not twice, "QoS 2 messages came more than once"
