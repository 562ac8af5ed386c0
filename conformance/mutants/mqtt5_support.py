"""Ways to break the reference broker's MQTT code that several MQTT 5.0 mutants share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from assay.conformance.mutants import Patch
from assay.reference_broker.mqtt.connections import connection, handshake, inbound
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import Connect, Packet, PacketType
from assay.reference_broker.mqtt.wire.wire_types import Reader

_P = TypeVar("_P")
Decoder = Callable[[int, Reader, int], Packet]


def no_fast_lane(patch: Patch) -> None:
    """Every PUBLISH goes the general way, through the broker's state; by itself this changes nothing to be seen."""

    def renew(self: Inbound, plan: inbound.Plan, qos: int) -> None:
        plan.epoch, plan.targets = self._broker.tree.epoch, None

    patch.replace(Inbound, "renew", renew)


def rewrite_frames(patch: Patch, rewrite: Callable[[int, bytes, int], tuple[int, bytes]]) -> None:
    """Let ``rewrite(header, data, body)`` change a packet's first byte and bytes before it is decoded."""

    def decode(header: int, data: bytes, start: int, end: int, version: int) -> Packet:
        header, data = rewrite(header, data, start)
        return decode_packet(header, data, start, end, version)

    for module in (connection, handshake, inbound):
        patch.replace(module, "decode_packet", decode)


def ignore_flags(patch: Patch, *kinds: PacketType) -> None:
    """Reserved header bits of these packets are not looked at."""

    def rewrite(header: int, data: bytes, start: int) -> tuple[int, bytes]:
        kind = header >> 4
        return (kind << 4 | codec.FIXED_FLAGS.get(PacketType(kind), 0) if kind in kinds else header), data

    rewrite_frames(patch, rewrite)


def change_sent(patch: Patch, kind: type[_P], change: Callable[[MqttConnection, _P], _P]) -> None:
    """Change every packet of ``kind`` that the broker sends through ``send_packet``."""

    def make(original: Callable[[MqttConnection, object], None]) -> Callable[[MqttConnection, object], None]:
        def send_packet(self: MqttConnection, packet: object) -> None:
            original(self, change(self, packet) if isinstance(packet, kind) else packet)

        return send_packet

    patch.wrap(MqttConnection, "send_packet", make)


def change_connect(patch: Patch, change: Callable[[MqttConnection, Connect], Connect]) -> None:
    """Change a valid CONNECT before the broker acts on it."""

    def make(
        original: Callable[[MqttConnection, Connect, float], None],
    ) -> Callable[[MqttConnection, Connect, float], None]:
        def accept(self: MqttConnection, packet: Connect, now: float) -> None:
            original(self, change(self, packet), now)

        return accept

    patch.wrap(handshake, "accept", make)


def tolerate(patch: Patch, kind: PacketType, statement: str, instead: Callable[[Reader], Packet]) -> None:
    """Where decoding ``kind`` fails by ``statement``, go on with ``instead``."""
    original = codec.DECODERS[kind]

    def decode(header: int, reader: Reader, version: int) -> Packet:
        position = reader._position
        try:
            return original(header, reader, version)
        except ProtocolError as error:
            if error.statement != statement:
                raise
            reader._position = position
            return instead(reader)

    patch.item(codec.DECODERS, kind, decode)
