"""``assay serve`` on a disk that takes no more, or fails to sync: what clients are told, and what is there later."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_packet

TIMEOUT_S = 30.0
FAILED = 0x80
"""Unspecified error: MQTT has no code for what a disk does (5.0 section 3.4.2.1)."""
FILE_BYTES = 256 * 1024
PAYLOAD_BYTES = 4_000
QUIET_S = 1.0

_FAILING_SYNCS = """
import errno, os, sys
sync = os.fsync
trigger = sys.argv.pop(1)

def fsync(descriptor):
    try:
        part = open(trigger).read()
    except FileNotFoundError:
        part = ""
    if part and part in os.readlink(f"/proc/self/fd/{descriptor}"):
        raise OSError(errno.EIO, "Input/output error")
    sync(descriptor)

os.fsync = fsync
from assay.cli import main
main()
"""
"""Starts the broker with syncs that fail for paths that hold the text in a file."""


class Client:
    """An MQTT 5 client on a socket that waits."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._unread = b""
        self._packet_id = 0
        self.send(p.Connect(version=p.V5, client_id=name, clean_start=True))
        assert isinstance(self.receive(), p.Connack)

    def send(self, packet: p.Packet) -> None:
        self._socket.sendall(encode_packet(packet, p.V5))

    def receive(self, timeout_s: float = TIMEOUT_S) -> p.Packet | None:
        """The next packet; None when none came in time, or the connection ended."""
        self._socket.settimeout(timeout_s)
        while True:
            packet = self._decoded()
            if packet is not None:
                return packet
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            if not data:
                return None
            self._unread += data

    def _decoded(self) -> p.Packet | None:
        at, length, shift = 1, 0, 0
        while at < len(self._unread):
            length |= (self._unread[at] & 0x7F) << shift
            shift += 7
            at += 1
            if self._unread[at - 1] < 0x80:
                break
        else:
            return None
        if len(self._unread) < at + length:
            return None
        packet = decode_packet(self._unread[0], self._unread, at, at + length, p.V5)
        self._unread = self._unread[at + length :]
        return packet

    def publish(self, topic: str, payload: bytes, *pairs: tuple[str, str]) -> int:
        """The reason code of its PUBACK."""
        self._packet_id = self._packet_id % 60_000 + 1
        properties = p.Properties(user_property=pairs)
        self.send(p.Publish(topic=topic, payload=payload, qos=1, packet_id=self._packet_id, properties=properties))
        while True:
            packet = self.receive()
            assert packet is not None, "no answer"
            if isinstance(packet, p.Acknowledgement) and packet.type is p.PacketType.PUBACK:
                return int(packet.reason)

    def subscribe(self, topic_filter: str) -> None:
        request = p.SubscriptionRequest(topic_filter=topic_filter, qos=1)
        self.send(p.Subscribe(packet_id=1, requests=(request,)))
        suback = self.receive()
        assert isinstance(suback, p.Suback)
        assert suback.reasons == (1,)

    def deliveries(self, count: int) -> list[p.Publish]:
        """So many, and then none for a while."""
        found: list[p.Publish] = []
        while (packet := self.receive(TIMEOUT_S if len(found) < count else QUIET_S)) is not None:
            if isinstance(packet, p.Publish):
                found.append(packet)
                self.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=packet.packet_id))
        return found

    def settle(self, verb: str, delivery: p.Publish) -> int:
        found = dict(delivery.properties.user_property)
        pairs = [(name, found[name]) for name in ("message-id", "group-id")]
        return self.publish(f"$queue/{found['queue']}/${verb}", b"", *pairs)


class Server:
    """``assay serve`` over one folder, several times."""

    def __init__(self, folder: Path, data: Path, durability: str, **settings: object) -> None:
        self._config = folder / "broker.yaml"
        queues = "".join(
            f"    - {{name: {name}, partitions: 1, durability: {durability}}}\n" for name in ("bad", "good")
        )
        more = "".join(f"  {name}: {value}\n" for name, value in settings.items())
        self._config.write_text(f'data_dir: "{data}"\nqueues:\n{more}  configured:\n{queues}')
        self.trigger = folder / "trigger"
        self.process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self, *, failing: bool = False, before: Callable[[], None] | None = None) -> None:
        arguments = ["serve", "--config", str(self._config), "--port", "0"]
        program = ["-c", _FAILING_SYNCS, str(self.trigger)] if failing else ["-m", "assay.cli"]
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=before,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready mqtt://127.0.0.1:"), line
        self.port = int(line.rsplit(":", 1)[1])

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.communicate(timeout=TIMEOUT_S)
            self.process = None


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(durability: str, data: Path | None = None, **settings: object) -> Server:
        servers.append(Server(tmp_path, data or tmp_path / "data", durability, **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def numbered(number: int) -> bytes:
    return b"%06d" % number + bytes(PAYLOAD_BYTES)


def fill(client: Client) -> int:
    """Publish to the queue until the disk refuses it; returns how many it took."""
    for number in range(10 * FILE_BYTES // PAYLOAD_BYTES):
        reason = client.publish("$queue/bad", numbered(number))
        if reason:
            assert reason == FAILED
            return number
    raise AssertionError("the disk took everything")


def numbers(deliveries: list[p.Publish]) -> list[int]:
    return [int(delivery.payload[:6]) for delivery in deliveries]


@pytest.mark.parametrize(("durability", "end"), [("fsync", signal.SIGKILL), ("interval", signal.SIGTERM)])
def test_a_file_that_cannot_grow_costs_nothing_that_was_confirmed(
    serve: Callable[..., Server], durability: str, end: signal.Signals
) -> None:
    """A publish that did not fit is refused and never seen; others go on, and this queue does once there is room."""
    server = serve(durability)
    server.start(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY)))
    publisher = Client(server.port, "publisher")
    taken = fill(publisher)
    assert taken > 10
    assert [publisher.publish("$queue/bad", numbered(taken + more)) for more in range(3)] == [FAILED] * 3
    assert publisher.publish("$queue/bad", b"small") in (0, FAILED)
    assert publisher.publish("$queue/good", b"good") == 0
    consumer = Client(server.port, "consumer")
    consumer.subscribe("$queue/good")
    (delivery,) = consumer.deliveries(1)
    assert consumer.settle("ack", delivery) == 0
    assert server.process is not None
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert publisher.publish("$queue/bad", numbered(900_000)) == 0
    server.stop(end)
    server.start()
    consumer = Client(server.port, "consumer")
    consumer.subscribe("$queue/bad")
    found = [delivery for delivery in consumer.deliveries(taken + 1) if delivery.payload != b"small"]
    assert numbers(found) == [*range(taken), 900_000]
    consumer.subscribe("$queue/good")
    assert consumer.deliveries(0) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, for who may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_has_room_for_settlements_which_make_room_for_publishes(
    serve: Callable[..., Server], small_disk: Path
) -> None:
    server = serve("fsync", small_disk / "data", disk_reserve_bytes=FILE_BYTES, segment_bytes=100_000)
    server.start()
    publisher = Client(server.port, "publisher")
    taken = fill(publisher)
    assert taken * PAYLOAD_BYTES > 1_000_000
    consumer = Client(server.port, "consumer")
    consumer.subscribe("$queue/bad")
    deliveries = consumer.deliveries(taken)
    assert numbers(deliveries) == list(range(taken))
    assert {consumer.settle("ack", delivery) for delivery in deliveries} == {0}
    # Segments whose messages are all settled are freed within a second or so.
    while publisher.publish("$queue/bad", numbered(900_000)):
        assert publisher.receive(0.2) is None
    server.stop()
    server.start()
    consumer = Client(server.port, "consumer")
    consumer.subscribe("$queue/bad")
    assert numbers(consumer.deliveries(1)) == [900_000]


def test_a_disk_without_a_byte_left_loses_nothing_and_goes_on_when_there_is_room(
    serve: Callable[..., Server], small_disk: Path
) -> None:
    server = serve("fsync", small_disk / "data", disk_reserve_bytes=0, segment_bytes=100_000)
    spare = small_disk / "spare"
    spare.write_bytes(bytes(200_000))
    server.start()
    publisher = Client(server.port, "publisher")
    taken = fill(publisher)
    assert publisher.publish("$queue/good", numbered(0)) == FAILED
    spare.unlink()
    assert publisher.publish("$queue/bad", numbered(900_000)) == 0
    assert publisher.publish("$queue/good", numbered(1)) == 0
    server.stop()
    server.start()
    consumer = Client(server.port, "consumer")
    consumer.subscribe("$queue/bad")
    assert numbers(consumer.deliveries(taken + 1)) == [*range(taken), 900_000]
    consumer.subscribe("$queue/good")
    assert numbers(consumer.deliveries(1)) == [1]


def test_a_sync_that_fails_confirms_nothing_more_until_a_restart(serve: Callable[..., Server]) -> None:
    server = serve("fsync")
    server.start(failing=True)
    publisher = Client(server.port, "publisher")
    assert [publisher.publish("$queue/bad", numbered(number)) for number in range(3)] == [0, 0, 0]
    server.trigger.write_text("/queues/bad/partitions/")
    assert publisher.publish("$queue/bad", numbered(3)) == FAILED
    # The disk is well again, but nobody knows what it has of that log.
    server.trigger.unlink()
    assert [publisher.publish("$queue/bad", numbered(number)) for number in (4, 5)] == [FAILED, FAILED]
    assert publisher.publish("$queue/good", b"good") == 0
    server.stop()
    server.start(failing=True)
    publisher = Client(server.port, "publisher")
    assert publisher.publish("$queue/bad", numbered(6)) == 0
    consumer = Client(server.port, "consumer")
    consumer.subscribe("$queue/bad")
    assert numbers(consumer.deliveries(4)) == [0, 1, 2, 6]
    consumer.subscribe("$queue/good")
    assert [delivery.payload for delivery in consumer.deliveries(1)] == [b"good"]


def test_a_settlement_whose_sync_fails_is_refused_and_costs_no_other_message(serve: Callable[..., Server]) -> None:
    """Whether it counts nobody knows until a restart, which finds what the disk has."""
    server = serve("fsync")
    server.start(failing=True)
    client = Client(server.port, "client")
    assert [client.publish("$queue/bad", numbered(number)) for number in range(3)] == [0, 0, 0]
    client.subscribe("$queue/bad")
    first, second, third = client.deliveries(3)
    assert client.settle("ack", first) == 0
    server.trigger.write_text("/queues/bad/consumers/")
    assert client.settle("ack", second) == FAILED
    server.trigger.unlink()
    assert client.settle("ack", third) == FAILED
    server.stop()
    server.start()
    client = Client(server.port, "client")
    client.subscribe("$queue/bad")
    again = client.deliveries(1)
    assert numbers(again) in ([2], [1, 2])
    assert {client.settle("ack", delivery) for delivery in again} == {0}
    server.stop()
    server.start()
    client = Client(server.port, "client")
    client.subscribe("$queue/bad")
    assert client.deliveries(0) == []
