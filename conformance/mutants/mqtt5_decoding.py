"""Checks of bytes, properties and strings that a broken MQTT 5.0 broker leaves out."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt5_support import ignore_flags, no_fast_lane, tolerate
from assay.reference_broker.mqtt.connections import connection, handlers, inbound
from assay.reference_broker.mqtt.connections import error_packets as farewell
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.wire import codec, properties, wire_types
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import MalformedPacketError, ProtocolError
from assay.reference_broker.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    Auth,
    Connack,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from assay.reference_broker.mqtt.wire.properties import Kind, Rule, read_properties
from assay.reference_broker.mqtt.wire.wire_types import Reader, decode_string

_UNKNOWN_PROPERTY = 0x7E


# Header bits and packet types

_UNCHECKED_BITS = {
    "v5-connect-bits-unchecked": (PacketType.CONNECT,),
    "v5-subscribe-bits-unchecked": (PacketType.SUBSCRIBE,),
    "v5-unsubscribe-bits-unchecked": (PacketType.UNSUBSCRIBE,),
    "v5-pubrel-bits-unchecked": (PacketType.PUBREL,),
    "v5-acknowledgement-bits-unchecked": (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP),
    "v5-pingreq-bits-unchecked": (PacketType.PINGREQ,),
    "v5-disconnect-bits-unchecked": (PacketType.DISCONNECT,),
}
"""Mutant -> packets whose reserved header bits it ignores."""


def _register_unchecked_bits(name: str, kinds: tuple[PacketType, ...]) -> None:
    @mutant(name, f"reserved header bits of {', '.join(kind.name for kind in kinds)} are ignored")
    def unchecked(patch: Patch) -> None:
        ignore_flags(patch, *kinds)


for _name, _kinds in _UNCHECKED_BITS.items():
    _register_unchecked_bits(_name, _kinds)


def _ignore_packets(patch: Patch, *kinds: type[Packet]) -> None:
    original = handlers.handle

    def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
        if not isinstance(packet, kinds):
            original(connection, packet, now)

    patch.replace(handlers, "handle", handle)


@mutant("v5-auth-ignored", "AUTH is ignored, whatever its header bits")
def auth_ignored(patch: Patch) -> None:
    ignore_flags(patch, PacketType.AUTH)
    _ignore_packets(patch, Auth)


@mutant("v5-server-packets-ignored", "packets that only servers send are ignored")
def server_packets(patch: Patch) -> None:
    _ignore_packets(patch, Connack, Suback, Unsuback, Pingresp)


@mutant("v5-disconnect-acts-late", "what arrives together with a DISCONNECT is still processed")
def disconnect_late(patch: Patch) -> None:
    original = handlers.on_disconnect

    def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
        connection.broker.timers.schedule(now, lambda later: original(connection, packet, later))

    patch.replace(handlers, "on_disconnect", on_disconnect)


@mutant("v5-reason-codes-unchecked", "undefined reason codes are taken")
def reason_codes(patch: Patch) -> None:
    patch.replace(codec, "check_reason", lambda _kind, _reason: None)


@mutant("v5-pingreqs-answered-once", "several PINGREQs that arrive together get one PINGRESP")
def pings_once(patch: Patch) -> None:
    original = handlers.handle

    def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
        if not (isinstance(packet, Pingreq) and b"\xd0\x00" in connection._out):
            original(connection, packet, now)

    patch.replace(handlers, "handle", handle)


@mutant("v5-packet-type-0-ignored", "packets of type 0 are skipped")
def packet_type_0(patch: Patch) -> None:
    original = MqttConnection.on_packet

    def on_packet(self: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
        if header >> 4:
            original(self, header, data, body, end, now)

    patch.replace(MqttConnection, "on_packet", on_packet)


@mutant("v5-truncated-packets-tolerated", "a packet that ends inside a field is skipped")
def truncated(patch: Patch) -> None:
    original = MqttConnection.on_packet

    def on_packet(self: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
        try:
            original(self, header, data, body, end, now)
        except MalformedPacketError as error:
            if "within a field" not in error.text:
                raise

    patch.replace(MqttConnection, "on_packet", on_packet)


@mutant("v5-bad-packet-voids-its-chunk", "packets that arrive together with a malformed one are not processed")
def voids_chunk(patch: Patch) -> None:
    original = MqttConnection.receive

    def receive(self: MqttConnection, data: bytes, now: float) -> None:
        at = data[1] + 2 if len(data) > 3 else len(data)
        bad_follows = self.phase is Phase.CONNECTED and data[at : at + 1] == b"\x00"
        original(self, data[at:] if bad_follows else data, now)

    patch.replace(MqttConnection, "receive", receive)


@mutant("v5-pingreq-body-ignored", "a body of PINGREQ is ignored")
def pingreq_body(patch: Patch) -> None:
    def decode(_header: int, reader: Reader, _version: int) -> Packet:
        reader.rest()
        return Pingreq()

    patch.item(codec.DECODERS, PacketType.PINGREQ, decode)


@mutant("v5-length-of-five-bytes-accepted", "a remaining length of five bytes is waited for")
def five_length_bytes(patch: Patch) -> None:
    original = MqttConnection.long_length

    def long_length(self: MqttConnection, data: bytes, position: int) -> tuple[int, int]:
        try:
            return original(self, data, position)
        except MalformedPacketError as error:
            if "longer than 4" not in error.text:
                raise
            return -1, 0

    patch.replace(MqttConnection, "long_length", long_length)


@mutant("v5-long-lengths-accepted", "a remaining length may have more bytes than it needs")
def long_lengths(patch: Patch) -> None:
    original = MqttConnection.long_length

    def long_length(self: MqttConnection, data: bytes, position: int) -> tuple[int, int]:
        try:
            return original(self, data, position)
        except MalformedPacketError as error:
            if "than it needs" not in error.text:
                raise
            return position + 3, data[position + 1] & 0x7F

    patch.replace(MqttConnection, "long_length", long_length)


@mutant("v5-disconnect-needs-property-length", "a DISCONNECT with a reason code needs a property length")
def needs_property_length(patch: Patch) -> None:
    original = codec.decode_disconnect

    def decode(header: int, reader: Reader, version: int) -> Packet:
        if reader.remaining == 1:
            raise MalformedPacketError("no property length", "MQTT-2.2.2-1")
        return original(header, reader, version)

    patch.item(codec.DECODERS, PacketType.DISCONNECT, decode)


@mutant("v5-server-disconnect-has-session-expiry", "the broker's DISCONNECT has a Session Expiry Interval")
def disconnect_expiry(patch: Patch) -> None:
    def encode(packet: Packet, version: int) -> bytes:
        if isinstance(packet, Disconnect) and version == V5:
            more = msgspec.structs.replace(packet.properties, session_expiry_interval=0)
            packet = msgspec.structs.replace(packet, properties=more)
        return encode_packet(packet, version)

    for module in (connection, farewell):
        patch.replace(module, "encode_packet", encode)


@mutant("v5-empty-subscribe-accepted", "a SUBSCRIBE without filters is answered")
def empty_subscribe(patch: Patch) -> None:
    tolerate(
        patch,
        PacketType.SUBSCRIBE,
        "MQTT-3.8.3-2",
        lambda reader: Subscribe(packet_id=int.from_bytes(reader.rest()[:2], "big"), requests=()),
    )


@mutant("v5-empty-unsubscribe-accepted", "an UNSUBSCRIBE without filters is answered")
def empty_unsubscribe(patch: Patch) -> None:
    tolerate(
        patch,
        PacketType.UNSUBSCRIBE,
        "MQTT-3.10.3-2",
        lambda reader: Unsubscribe(packet_id=int.from_bytes(reader.rest()[:2], "big"), topic_filters=()),
    )


@mutant("v5-subscribe-identifier-0-accepted", "packet identifier 0 is taken in SUBSCRIBE")
def subscribe_identifier_0(patch: Patch) -> None:
    patch.replace(codec, "read_packet_id", lambda reader, _version: reader.two_bytes())


# Properties


def _unchecked_values(patch: Patch, *names: str) -> None:
    original = properties.check_value

    def check(rule: Rule, value: object) -> None:
        if rule.name not in names:
            original(rule, value)

    patch.replace(properties, "check_value", check)


@mutant("v5-zero-limits-accepted", "Receive Maximum 0 and Maximum Packet Size 0 count as absent")
def zero_limits(patch: Patch) -> None:
    _unchecked_values(patch, "receive_maximum", "maximum_packet_size")


@mutant("v5-request-flags-unchecked", "Request Problem and Response Information may have any value")
def request_flags(patch: Patch) -> None:
    _unchecked_values(patch, "request_problem_information", "request_response_information")


@mutant("v5-payload-format-unchecked", "the Payload Format Indicator may have any value")
def payload_format(patch: Patch) -> None:
    _unchecked_values(patch, "payload_format_indicator")


@mutant("v5-subscription-identifier-0-accepted", "Subscription Identifier 0 counts as absent")
def identifier_0(patch: Patch) -> None:
    _unchecked_values(patch, "subscription_identifier")


@mutant("v5-unknown-properties-skipped", "an unknown property is skipped")
def unknown_properties(patch: Patch) -> None:
    everywhere = frozenset((properties.WILL, *PacketType))
    rule = Rule(_UNKNOWN_PROPERTY, "payload_format_indicator", Kind.BYTE, everywhere)
    patch.item(properties.BY_IDENTIFIER, _UNKNOWN_PROPERTY, rule)


def _forgive_properties(patch: Patch, forgiven: Callable[[ProtocolError], bool]) -> None:
    """A property section that is wrong in a way that ``forgiven`` knows counts as empty."""

    def read(reader: Reader, packet: int) -> Properties:
        try:
            return read_properties(reader, packet)
        except ProtocolError as error:
            if not forgiven(error):
                raise
            return NO_PROPERTIES

    patch.replace(codec, "read_properties", read)


@mutant("v5-repeated-properties-accepted", "a property may stand twice in one packet")
def repeated_properties(patch: Patch) -> None:
    _forgive_properties(patch, lambda error: "stands twice" in error.text)


@mutant("v5-misplaced-properties-accepted", "a property that does not belong into its packet is ignored")
def misplaced_properties(patch: Patch) -> None:
    _forgive_properties(patch, lambda error: "may not stand in this packet" in error.text)


@mutant("v5-bad-property-sections-skipped", "a property section that cannot be read counts as empty")
def bad_sections(patch: Patch) -> None:
    _forgive_properties(patch, lambda error: isinstance(error, MalformedPacketError))


@mutant("v5-repeated-user-property-refused", "two equal user properties in one packet are a protocol error")
def repeated_user_property(patch: Patch) -> None:
    def read(reader: Reader, packet: int) -> Properties:
        found = read_properties(reader, packet)
        if len(set(found.user_property)) < len(found.user_property):
            raise ProtocolError("user property repeated", "MQTT-4.13.1-1")
        return found

    patch.replace(codec, "read_properties", read)


# Strings


def _decode_strings(patch: Patch, decode: Callable[[bytes, int], str]) -> None:
    for module in (wire_types, inbound):
        patch.replace(module, "decode_string", decode)


@mutant("v5-ill-formed-utf8-accepted", "ill-formed UTF-8 is replaced by question marks")
def ill_formed(patch: Patch) -> None:
    _decode_strings(patch, lambda data, version: decode_string(data.decode(errors="replace").encode(), version))


@mutant("v5-null-character-accepted", "U+0000 in a string is dropped")
def null_character(patch: Patch) -> None:
    _decode_strings(patch, lambda data, version: decode_string(data.replace(b"\0", b""), version))


@mutant("v5-byte-order-mark-stripped", "a byte order mark at the beginning of a string is dropped")
def byte_order_mark(patch: Patch) -> None:
    _decode_strings(patch, lambda data, version: decode_string(data, version).removeprefix("\ufeff"))


@mutant("v5-topics-normalised", "strings are brought into Unicode's composed form")
def normalised(patch: Patch) -> None:
    _decode_strings(patch, lambda data, version: unicodedata.normalize("NFC", decode_string(data, version)))


@mutant("v5-long-topics-cut", "strings are cut after 255 characters")
def long_topics(patch: Patch) -> None:
    no_fast_lane(patch)
    _decode_strings(patch, lambda data, version: decode_string(data, version)[:255])


class _LenientReader(Reader):
    """Reads strings that are not well-formed."""

    __slots__ = ()

    def string(self) -> str:
        return self.binary().decode(errors="replace")


@mutant("v5-property-utf8-unchecked", "ill-formed UTF-8 in texts among the properties is replaced by question marks")
def property_utf8(patch: Patch) -> None:
    original = Reader.section

    def section(self: Reader, length: int) -> Reader:
        found = original(self, length)
        return _LenientReader(found._data, found._position, found._end, found.version)

    patch.replace(Reader, "section", section)
