"""What tests of several parts share: the client's side of SCRAM-SHA-256, written from RFC 5802 without our server, and
an MQTT client that keeps to the rules of QoS 1 and 2 whatever happens, which not every library does."""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.server.collector import YOUNG_OBJECTS

# How long an example takes is the machine's affair.
settings.register_profile("assay", settings.default, deadline=None)
settings.load_profile("assay")

# As often as in a server: a twelfth of the processor time went into searching what was imported for garbage, also while
# tests are collected.
gc.set_threshold(YOUNG_OBJECTS, 20, 50)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As behind "&" in a script: processes that tests start would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_log_of_another() -> Iterator[None]:
    """A command that a test runs in this process sets up the log: its handler writes to a stream that ends with it."""
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)


class ScramClient:
    """One exchange. ``name`` is sent as it is: commas and equals signs must be escaped already."""

    def __init__(self, name: str, password: str, nonce: str = "fyko+d2lbbFgONRv9qkxdawL", header: str = "n,,") -> None:
        self.password = password
        self.nonce = nonce
        self.header = header
        self.bare = f"n={name},r={nonce}"
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The answer to the server's first message; from now on ``server_signature`` is known."""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce)
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, int(fields["i"]))
        client_key = hmac.new(salted, b"Client Key", "sha256").digest()
        unproven = f"c={base64.b64encode(self.header.encode()).decode()},r={fields['r']}"
        signed = f"{self.bare},{server_first.decode()},{unproven}".encode()
        signature = hmac.new(hashlib.sha256(client_key).digest(), signed, "sha256").digest()
        self.server_signature = hmac.new(hmac.new(salted, b"Server Key", "sha256").digest(), signed, "sha256").digest()
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return unproven.encode() + b",p=" + base64.b64encode(proof)

    def trusts(self, server_final: bytes | None) -> bool:
        """Whether the server has proven that it knows the password's credentials."""
        return server_final == b"v=" + base64.b64encode(self.server_signature)


@pytest.fixture(scope="session")
def scram_client() -> type[ScramClient]:
    return ScramClient


class StrictClient:
    """An MQTT client without sockets whose session outlives connections: what it sent and took, to the letter."""

    def __init__(self, client_id: str, version: int) -> None:
        self.client_id = client_id
        self.version = version
        self.connection: MqttConnection | None = None
        """For tests without sockets."""
        self.connected = False
        self.subscribed = False
        self.must_be_present = False
        """The broker must still have the session."""
        self.unread = b""
        self.next_id = 1
        self.outgoing: dict[int, p.Publish] = {}
        """Unacknowledged publishes, in order."""
        self.releasing: dict[int, None] = {}
        """PUBREC came, PUBCOMP did not."""
        self.received_ids: set[int] = set()
        self.got: list[bytes] = []
        self.answers: list[p.Packet] = []

    def free_id(self) -> int:
        while self.next_id in self.outgoing or self.next_id in self.releasing:
            self.next_id = self.next_id % 50 + 1
        return self.next_id

    def take(self, data: bytes) -> None:
        self.unread += data
        while len(self.unread) >= 2:
            at, length, shift = 1, 0, 0
            while at < len(self.unread):
                length |= (self.unread[at] & 0x7F) << shift
                at += 1
                shift += 7
                if self.unread[at - 1] < 0x80:
                    break
            if len(self.unread) < at + length:
                return
            packet = decode_packet(self.unread[0], self.unread, at, at + length, self.version)
            self.unread = self.unread[at + length :]
            self.on_packet(packet)

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Connack):
            assert packet.reason == 0
            self.connected = True
            assert packet.session_present or not self.must_be_present, f"the session of {self.client_id} is gone"
            self.answers += [p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=each) for each in self.releasing]
            for each in self.outgoing.values():
                self.answers.append(
                    p.Publish(topic=each.topic, payload=each.payload, qos=each.qos, packet_id=each.packet_id, dup=True)
                )
        elif isinstance(packet, p.Suback):
            self.subscribed = True
        elif isinstance(packet, p.Publish):
            self.on_publish(packet)
        elif isinstance(packet, p.Acknowledgement):
            self.on_acknowledgement(packet)

    def on_publish(self, packet: p.Publish) -> None:
        if packet.qos == 2:
            if packet.packet_id not in self.received_ids:
                self.received_ids.add(packet.packet_id)
                self.got.append(packet.payload)
            self.answers.append(p.Acknowledgement(type=p.PacketType.PUBREC, packet_id=packet.packet_id))
        else:
            self.got.append(packet.payload)
            if packet.qos:
                self.answers.append(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=packet.packet_id))

    def on_acknowledgement(self, packet: p.Acknowledgement) -> None:
        packet_id = packet.packet_id
        if packet.type is p.PacketType.PUBACK:
            self.outgoing.pop(packet_id, None)
        elif packet.type is p.PacketType.PUBREC:
            assert packet.reason < 0x80 or packet.reason == 0x10
            self.outgoing.pop(packet_id, None)
            self.releasing[packet_id] = None
            self.answers.append(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=packet_id))
        elif packet.type is p.PacketType.PUBREL:
            self.received_ids.discard(packet_id)
            self.answers.append(p.Acknowledgement(type=p.PacketType.PUBCOMP, packet_id=packet_id))
        else:
            self.releasing.pop(packet_id, None)

    def lost(self) -> None:
        """The connection is gone."""
        self.connection, self.connected, self.unread = None, False, b""
        self.answers.clear()


@pytest.fixture(scope="session")
def strict_client() -> type[StrictClient]:
    return StrictClient
