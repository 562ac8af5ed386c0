"""Bugs in framing and in the reaction to malformed packets (MQTT 3.1.1)."""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.connections import connection as connection_module
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import Connack, Packet, PacketType, Pingresp, Suback, Unsuback
from assay.reference_broker.mqtt.wire.wire_types import Reader

_Decode = Callable[[int, bytes, int, int, int], Packet]
_FLAGS = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}


def _ignore_header_flags(patch: Patch, *kinds: PacketType) -> None:
    def make(original: _Decode) -> _Decode:
        def decode(header: int, data: bytes, start: int, end: int, version: int) -> Packet:
            kind = header >> 4
            if kind in kinds:
                header = kind << 4 | _FLAGS.get(PacketType(kind), 0)
            return original(header, data, start, end, version)

        return decode

    patch.wrap(connection_module, "decode_packet", make)


@mutant("v3-pingreq-flags-ignored", "the header flags of PINGREQ are not checked")
def pingreq_flags_ignored(patch: Patch) -> None:
    _ignore_header_flags(patch, PacketType.PINGREQ)


@mutant("v3-subscribe-flags-ignored", "the header flags of SUBSCRIBE and UNSUBSCRIBE are not checked")
def subscribe_flags_ignored(patch: Patch) -> None:
    _ignore_header_flags(patch, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)


@mutant("v3-pubrel-flags-ignored", "the header flags of PUBREL are not checked")
def pubrel_flags_ignored(patch: Patch) -> None:
    _ignore_header_flags(patch, PacketType.PUBREL)


@mutant("v3-bad-disconnect-discards-the-will", "the header flags of DISCONNECT are not checked")
def bad_disconnect_discards_the_will(patch: Patch) -> None:
    _ignore_header_flags(patch, PacketType.DISCONNECT)


@mutant("v3-reserved-packet-types-skipped", "packets of the types 0 and 15 are skipped")
def reserved_packet_types_skipped(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_packet(self: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
            if header >> 4 not in (0, 15):
                original(self, header, data, body, end, now)

        return on_packet

    patch.wrap(MqttConnection, "on_packet", make)


@mutant("v3-long-remaining-length", "a remaining length of five bytes is waited for in place of refused")
def long_remaining_length(patch: Patch) -> None:
    def make(original: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
        def long_length(self: MqttConnection, data: bytes, position: int) -> tuple[int, int]:
            try:
                return original(self, data, position)
            except ProtocolError:
                return -1, 0

        return long_length

    patch.wrap(MqttConnection, "long_length", make)


@mutant("v3-cut-fields-accepted", "a byte behind the end of its packet is read as 0")
def cut_fields_accepted(patch: Patch) -> None:
    def make(original: Callable[[Reader], int]) -> Callable[[Reader], int]:
        return lambda self: original(self) if self.remaining else 0

    patch.wrap(Reader, "byte", make)


@mutant("v3-server-packets-skipped", "packets that only a server sends are skipped")
def server_packets_skipped(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
            if not isinstance(packet, Connack | Suback | Unsuback | Pingresp):
                original(connection, packet, now)

        return handle

    patch.wrap(handlers, "handle", make)


@mutant("v3-needs-whole-packets", "the rest of a packet that came in pieces is forgotten")
def needs_whole_packets(patch: Patch) -> None:
    def make(
        original: Callable[[MqttConnection, bytes, float], None],
    ) -> Callable[[MqttConnection, bytes, float], None]:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            original(self, data, now)
            self._partial = bytearray()

        return receive

    patch.wrap(MqttConnection, "receive", make)


@mutant("v3-violation-ends-all-connections", "a violation on one connection ends all of them")
def violation_ends_all_connections(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
            original(self, error, now)
            for session in list(self.broker.sessions.values()):
                if isinstance(session.connection, MqttConnection):
                    session.connection.close_now(now)

        return fail

    patch.wrap(MqttConnection, "fail", make)
