"""A broker node and clients wired in memory: bytes in, packets out, time moved by hand."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_packet
from assay.reference_broker.node import BrokerNode

START = 1_700_000_000.0


class Client:
    """A client's end of a connection."""

    def __init__(self, world: World, version: int, source: tuple[str, str] | None) -> None:
        self.world = world
        self.version = version
        self.connection: MqttConnection = world.node.accept("test", world.now, source=source)
        self.inbox: list[p.Packet] = []
        self.raw = b""
        self.auto_ack = False
        self.is_deaf = False
        """What it is sent stays in the transport until it reads."""
        self.unread = b""

    @property
    def closed(self) -> bool:
        return self.connection.closing

    def send_bytes(self, data: bytes) -> None:
        self.world.node.receive(self.connection, data, self.world.now)
        self.world.turn()

    def send(self, *packets: p.Packet) -> list[p.Packet]:
        """Send packets in one chunk; returns what came back meanwhile."""
        before = len(self.inbox)
        self.send_bytes(b"".join(encode_packet(packet, self.version) for packet in packets))
        return self.inbox[before:]

    def lose(self) -> None:
        self.unread = b""
        self.world.node.connection_lost(self.connection, self.world.now)
        self.world.turn()

    def take(self) -> list[p.Packet]:
        taken, self.inbox = self.inbox, []
        return taken

    def publishes(self) -> list[p.Publish]:
        return [packet for packet in self.inbox if isinstance(packet, p.Publish)]

    def read(self, count: int) -> None:
        """Take so many bytes from the transport."""
        self.raw, self.unread = self.raw + self.unread[:count], self.unread[count:]
        self.connection.rouse()
        self.world.turn()

    def flush(self) -> None:
        connection = self.connection
        data = connection.take_output()
        self.unread += data
        if not self.is_deaf:
            self.raw, self.unread = self.raw + self.unread, b""
        if self.unread or connection.noted_unread_bytes:
            connection.note_backlog(len(self.unread), len(data), self.world.now)
            self.unread += connection.take_output() if connection.closing else b""
        answers: list[p.Packet] = []
        while len(self.raw) >= 2:
            length, at, shift = 0, 1, 0
            while at < len(self.raw):
                length |= (self.raw[at] & 0x7F) << shift
                shift += 7
                at += 1
                if self.raw[at - 1] < 0x80:
                    break
            if self.raw[at - 1] >= 0x80 or len(self.raw) < at + length:
                break
            packet = decode_packet(self.raw[0], self.raw, at, at + length, self.version)
            self.raw = self.raw[at + length :]
            self.inbox.append(packet)
            if self.auto_ack:
                answers.extend(_answer(packet))
        if answers:
            self.send(*answers)


def _answer(packet: p.Packet) -> list[p.Packet]:
    kinds = p.PacketType
    if isinstance(packet, p.Publish) and packet.qos:
        kind = kinds.PUBACK if packet.qos == 1 else kinds.PUBREC
        return [p.Acknowledgement(type=kind, packet_id=packet.packet_id)]
    if isinstance(packet, p.Acknowledgement):
        following = {kinds.PUBREC: kinds.PUBREL, kinds.PUBREL: kinds.PUBCOMP}.get(packet.type)
        if following is not None:
            return [p.Acknowledgement(type=following, packet_id=packet.packet_id)]
    return []


class World:
    """One broker and its clients."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.now = START
        self.node = BrokerNode(config or BrokerConfig(), None, random.Random(7), self.now)
        self.clients: dict[MqttConnection, Client] = {}

    def turn(self) -> None:
        """Turns until nothing happens any more."""
        while True:
            dirty = self.node.take_dirty(self.now)
            jobs = self.node.take_jobs(self.now)
            for job in jobs:
                job.run()
                self.node.job_done(job, None, self.now)
            for connection in dirty:
                self.clients[connection].flush()
            if not dirty and not jobs and not self.node.state.sending.woken:
                return

    def open(self, version: int = p.V5, source: tuple[str, str] | None = None) -> Client:
        """``source``: listener and address, by which the connect rate is counted."""
        client = Client(self, version, source)
        self.clients[client.connection] = client
        return client

    def connect(self, client_id: str = "", version: int = p.V5, **fields: object) -> Client:
        """A client that has connected successfully; its CONNACK is ``inbox[0]``."""
        client = self.open(version)
        (connack,) = client.send(p.Connect(version=version, client_id=client_id, **fields))[:1]  # type: ignore[arg-type]
        assert isinstance(connack, p.Connack)
        assert connack.reason == 0
        return client

    def subscribed(self, topic_filter: str, qos: int = 0, version: int = p.V5, client_id: str = "") -> Client:
        client = self.connect(client_id, version)
        request = p.SubscriptionRequest(topic_filter=topic_filter, qos=qos)
        client.send(p.Subscribe(packet_id=1, requests=(request,)))
        client.take()
        return client

    def wait(self, seconds: float) -> None:
        """Move the clock, firing every timer at its time."""
        end = self.now + seconds
        while (deadline := self.node.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.node.tick(self.now)
            self.turn()
        self.now = end


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    return World
