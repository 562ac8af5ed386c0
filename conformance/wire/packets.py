"""Control packets of MQTT 3.1.1 and 5.0 as frozen structs; one struct serves both versions.

What 3.1.1 lacks (properties, reason codes of PUBACK ...) stays at its default there. Nothing is validated on
construction: a suite must be able to say wrong things. :mod:`assay.conformance.wire.decode` is the strict side.
"""

from __future__ import annotations

import functools
from enum import Enum, IntEnum
from typing import ClassVar

import msgspec


class PacketType(IntEnum):
    """Control packet types (3.1.1 and 5.0, table 2.1)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class PropertyKind(Enum):
    """Data types of properties (5.0, 1.5)."""

    BYTE = "byte"
    TWO_BYTES = "two_bytes"
    FOUR_BYTES = "four_bytes"
    VARINT = "varint"
    STRING = "string"
    BINARY = "binary"
    STRING_PAIR = "string_pair"


class Properties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Properties of one 5.0 packet (2.2.2); ``None`` and ``()`` mean absent."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    """Seconds."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifier: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    """Seconds."""
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    """Seconds."""
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    """Seconds."""
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_property: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    """Bytes."""
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES = Properties()


class PropertyRule(msgspec.Struct, frozen=True, kw_only=True):
    """How one property is written and where it may stand (5.0, table 2-4)."""

    name: str
    kind: PropertyKind
    packets: frozenset[PacketType]
    in_will: bool = False
    many: bool = False
    highest: int | None = None
    """Largest legal value of a number; ``None`` = what the type can hold."""
    lowest: int = 0


_T = PacketType
_ACKS = (_T.PUBACK, _T.PUBREC, _T.PUBREL, _T.PUBCOMP, _T.SUBACK, _T.UNSUBACK)
_EVERYWHERE = (_T.CONNECT, _T.CONNACK, _T.PUBLISH, *_ACKS, _T.SUBSCRIBE, _T.UNSUBSCRIBE, _T.DISCONNECT, _T.AUTH)


def _rule(
    name: str,
    kind: PropertyKind,
    *packets: PacketType,
    in_will: bool = False,
    many: bool = False,
    highest: int | None = None,
    lowest: int = 0,
) -> PropertyRule:
    return PropertyRule(
        name=name, kind=kind, packets=frozenset(packets), in_will=in_will, many=many, highest=highest, lowest=lowest
    )


_K = PropertyKind
PROPERTY_RULES: dict[int, PropertyRule] = {
    0x01: _rule("payload_format_indicator", _K.BYTE, _T.PUBLISH, in_will=True, highest=1),
    0x02: _rule("message_expiry_interval", _K.FOUR_BYTES, _T.PUBLISH, in_will=True),
    0x03: _rule("content_type", _K.STRING, _T.PUBLISH, in_will=True),
    0x08: _rule("response_topic", _K.STRING, _T.PUBLISH, in_will=True),
    0x09: _rule("correlation_data", _K.BINARY, _T.PUBLISH, in_will=True),
    0x0B: _rule("subscription_identifier", _K.VARINT, _T.PUBLISH, _T.SUBSCRIBE, many=True, lowest=1),
    0x11: _rule("session_expiry_interval", _K.FOUR_BYTES, _T.CONNECT, _T.CONNACK, _T.DISCONNECT),
    0x12: _rule("assigned_client_identifier", _K.STRING, _T.CONNACK),
    0x13: _rule("server_keep_alive", _K.TWO_BYTES, _T.CONNACK),
    0x15: _rule("authentication_method", _K.STRING, _T.CONNECT, _T.CONNACK, _T.AUTH),
    0x16: _rule("authentication_data", _K.BINARY, _T.CONNECT, _T.CONNACK, _T.AUTH),
    0x17: _rule("request_problem_information", _K.BYTE, _T.CONNECT, highest=1),
    0x18: _rule("will_delay_interval", _K.FOUR_BYTES, in_will=True),
    0x19: _rule("request_response_information", _K.BYTE, _T.CONNECT, highest=1),
    0x1A: _rule("response_information", _K.STRING, _T.CONNACK),
    0x1C: _rule("server_reference", _K.STRING, _T.CONNACK, _T.DISCONNECT),
    0x1F: _rule("reason_string", _K.STRING, _T.CONNACK, *_ACKS, _T.DISCONNECT, _T.AUTH),
    0x21: _rule("receive_maximum", _K.TWO_BYTES, _T.CONNECT, _T.CONNACK, lowest=1),
    0x22: _rule("topic_alias_maximum", _K.TWO_BYTES, _T.CONNECT, _T.CONNACK),
    0x23: _rule("topic_alias", _K.TWO_BYTES, _T.PUBLISH, lowest=1),
    0x24: _rule("maximum_qos", _K.BYTE, _T.CONNACK, highest=1),
    0x25: _rule("retain_available", _K.BYTE, _T.CONNACK, highest=1),
    0x26: _rule("user_property", _K.STRING_PAIR, *_EVERYWHERE, in_will=True, many=True),
    0x27: _rule("maximum_packet_size", _K.FOUR_BYTES, _T.CONNECT, _T.CONNACK, lowest=1),
    0x28: _rule("wildcard_subscription_available", _K.BYTE, _T.CONNACK, highest=1),
    0x29: _rule("subscription_identifier_available", _K.BYTE, _T.CONNACK, highest=1),
    0x2A: _rule("shared_subscription_available", _K.BYTE, _T.CONNACK, highest=1),
}
"""Property identifier to its rule (5.0, 2.2.2.2)."""


class Packet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the control packets."""

    type: ClassVar[PacketType]


class Will(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The will carried by CONNECT."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.CONNECT
    client_id: str = ""
    version: int = 4
    """Protocol level: 4 = MQTT 3.1.1, 5 = MQTT 5.0."""
    clean: bool = True
    """Clean Session (3.1.1), Clean Start (5.0)."""
    keep_alive_s: int = 60
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES
    protocol_name: str = "MQTT"


class Connack(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.CONNACK
    session_present: bool = False
    reason_code: int = 0
    """Return code in 3.1.1."""
    properties: Properties = NO_PROPERTIES


class Publish(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.PUBLISH
    topic: str
    payload: bytes = b""
    qos: int = 0
    packet_id: int = 0
    """0 = none, as QoS 0 has it."""
    retain: bool = False
    dup: bool = False
    properties: Properties = NO_PROPERTIES


class Acknowledgement(Packet, frozen=True, kw_only=True):
    """Common shape of PUBACK, PUBREC, PUBREL and PUBCOMP."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class Puback(Acknowledgement, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.PUBACK


class Pubrec(Acknowledgement, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.PUBREC


class Pubrel(Acknowledgement, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.PUBREL


class Pubcomp(Acknowledgement, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.PUBCOMP


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One filter of a SUBSCRIBE with its options; all but ``qos`` exist in 5.0 only."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.SUBSCRIBE
    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


class Suback(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.SUBACK
    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.UNSUBSCRIBE
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class Unsuback(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.UNSUBACK
    packet_id: int
    reason_codes: tuple[int, ...] = ()
    """Empty in 3.1.1."""
    properties: Properties = NO_PROPERTIES


class Pingreq(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.PINGREQ


class Pingresp(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.PINGRESP


class Disconnect(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.DISCONNECT
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(Packet, frozen=True, kw_only=True):
    type: ClassVar[PacketType] = PacketType.AUTH
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


_LONGEST_SHOWN_BYTES = 40


def _show(value: object) -> str:
    if isinstance(value, bytes):
        if len(value) > _LONGEST_SHOWN_BYTES:
            return f"{value[:_LONGEST_SHOWN_BYTES]!r}... ({len(value)} bytes)"
        return repr(value)
    if isinstance(value, msgspec.Struct):
        return f"({_show_fields(value)})"
    if isinstance(value, tuple):
        return "[" + ", ".join(_show(item) for item in value) + "]"
    return repr(value)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Evaluating annotations for every packet took more than half of a suite's time."""
    return msgspec.structs.fields(kind)


def _show_fields(record: msgspec.Struct) -> str:
    shown = []
    for field in _fields(type(record)):
        value = getattr(record, field.name)
        if field.required or value != field.default:
            shown.append(f"{field.name}={_show(value)}")
    return ", ".join(shown)


def describe(packet: Packet) -> str:
    """One line for people: the packet's name and every field that is not at its default."""
    fields = _show_fields(packet)
    return f"{packet.type.name} {fields}" if fields else packet.type.name
