"""MQTT 5.0 properties as a table (section 2.2.2.2), and their reading and writing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import msgspec

from assay.reference_broker.mqtt.wire.errors import MalformedPacketError, ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import NO_PROPERTIES, PacketType, Properties
from assay.reference_broker.mqtt.wire.wire_types import Reader, encode_binary, encode_string, encode_variable_integer
from assay.reference_broker.routing.remembered import remember

WILL = 0
"""Stands for the will properties of a CONNECT where a packet type is asked for."""


class Kind(Enum):
    BYTE = auto()
    FLAG = auto()
    """A byte that must be 0 or 1."""
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARIABLE = auto()
    STRING = auto()
    BINARY = auto()
    PAIR = auto()


class Rule(msgspec.Struct, frozen=True):
    """A property: its identifier, field name, type and the packets it may stand in."""

    identifier: int
    name: str
    kind: Kind
    packets: frozenset[int]
    zero_allowed: bool = True


_T = PacketType
_ACKS = {_T.PUBACK, _T.PUBREC, _T.PUBREL, _T.PUBCOMP}
_EVERYWHERE = {
    _T.CONNECT,
    _T.CONNACK,
    _T.PUBLISH,
    WILL,
    *_ACKS,
    _T.SUBSCRIBE,
    _T.SUBACK,
    _T.UNSUBSCRIBE,
    _T.UNSUBACK,
    _T.DISCONNECT,
    _T.AUTH,
}
_REASONED = {_T.CONNACK, *_ACKS, _T.SUBACK, _T.UNSUBACK, _T.DISCONNECT, _T.AUTH}
_MESSAGE = {_T.PUBLISH, WILL}


def _rule(identifier: int, name: str, kind: Kind, packets: Collection[int], *, zero_allowed: bool = True) -> Rule:
    return Rule(identifier, name, kind, frozenset(packets), zero_allowed)


RULES: tuple[Rule, ...] = (
    _rule(0x01, "payload_format_indicator", Kind.FLAG, _MESSAGE),
    _rule(0x02, "message_expiry_interval", Kind.FOUR_BYTES, _MESSAGE),
    _rule(0x03, "content_type", Kind.STRING, _MESSAGE),
    _rule(0x08, "response_topic", Kind.STRING, _MESSAGE),
    _rule(0x09, "correlation_data", Kind.BINARY, _MESSAGE),
    _rule(0x0B, "subscription_identifier", Kind.VARIABLE, {_T.PUBLISH, _T.SUBSCRIBE}, zero_allowed=False),
    _rule(0x11, "session_expiry_interval", Kind.FOUR_BYTES, {_T.CONNECT, _T.CONNACK, _T.DISCONNECT}),
    _rule(0x12, "assigned_client_identifier", Kind.STRING, {_T.CONNACK}),
    _rule(0x13, "server_keep_alive", Kind.TWO_BYTES, {_T.CONNACK}),
    _rule(0x15, "authentication_method", Kind.STRING, {_T.CONNECT, _T.CONNACK, _T.AUTH}),
    _rule(0x16, "authentication_data", Kind.BINARY, {_T.CONNECT, _T.CONNACK, _T.AUTH}),
    _rule(0x17, "request_problem_information", Kind.FLAG, {_T.CONNECT}),
    _rule(0x18, "will_delay_interval", Kind.FOUR_BYTES, {WILL}),
    _rule(0x19, "request_response_information", Kind.FLAG, {_T.CONNECT}),
    _rule(0x1A, "response_information", Kind.STRING, {_T.CONNACK}),
    _rule(0x1C, "server_reference", Kind.STRING, {_T.CONNACK, _T.DISCONNECT}),
    _rule(0x1F, "reason_string", Kind.STRING, _REASONED),
    _rule(0x21, "receive_maximum", Kind.TWO_BYTES, {_T.CONNECT, _T.CONNACK}, zero_allowed=False),
    _rule(0x22, "topic_alias_maximum", Kind.TWO_BYTES, {_T.CONNECT, _T.CONNACK}),
    _rule(0x23, "topic_alias", Kind.TWO_BYTES, {_T.PUBLISH}),
    _rule(0x24, "maximum_qos", Kind.FLAG, {_T.CONNACK}),
    _rule(0x25, "retain_available", Kind.FLAG, {_T.CONNACK}),
    _rule(0x26, "user_property", Kind.PAIR, _EVERYWHERE),
    _rule(0x27, "maximum_packet_size", Kind.FOUR_BYTES, {_T.CONNECT, _T.CONNACK}, zero_allowed=False),
    _rule(0x28, "wildcard_subscription_available", Kind.FLAG, {_T.CONNACK}),
    _rule(0x29, "subscription_identifier_available", Kind.FLAG, {_T.CONNACK}),
    _rule(0x2A, "shared_subscription_available", Kind.FLAG, {_T.CONNACK}),
)
_SUBSCRIPTION_IDENTIFIER = 0x0B
_USER_PROPERTY = 0x26
"""May stand in every packet that has properties, any number of times."""
BY_IDENTIFIER = {rule.identifier: rule for rule in RULES}
_MANY = 8
"""Subscription Identifiers that are encoded anew each time."""
MAX_PROPERTIES = 4_096
"""Most properties one packet may carry: more is refused as a protocol error."""


def _read_value(reader: Reader, kind: Kind) -> int | str | bytes:
    if kind in (Kind.BYTE, Kind.FLAG):
        return reader.byte()
    if kind is Kind.TWO_BYTES:
        return reader.two_bytes()
    if kind is Kind.FOUR_BYTES:
        return reader.four_bytes()
    if kind is Kind.VARIABLE:
        return reader.variable_integer()
    if kind is Kind.STRING:
        return reader.string()
    return reader.binary()


def read_properties(reader: Reader, packet: int) -> Properties:
    """Read a property section. Raises :class:`ProtocolError` for what the packet may not carry."""
    length = reader.variable_integer()
    if length == 0:
        return NO_PROPERTIES
    section = reader.section(length)
    fields: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    identifiers: list[int] = []
    count = 0
    while section.remaining:
        count += 1
        if count > MAX_PROPERTIES:
            raise ProtocolError(
                "too many properties in one packet", "MQTT-4.13.1-1", Reason.IMPLEMENTATION_SPECIFIC_ERROR
            )
        identifier = section.variable_integer()
        if identifier == _USER_PROPERTY:
            pairs.append((section.string(), section.string()))
            continue
        rule = BY_IDENTIFIER.get(identifier)
        if rule is None or packet not in rule.packets:
            raise MalformedPacketError(f"property 0x{identifier:02x} may not stand in this packet", "MQTT-4.13.1-1")
        value = _read_value(section, rule.kind)
        check_value(rule, value)
        if identifier == _SUBSCRIPTION_IDENTIFIER and packet == PacketType.PUBLISH:
            assert isinstance(value, int)
            identifiers.append(value)
        elif rule.name in fields or (identifier == _SUBSCRIPTION_IDENTIFIER and identifiers):
            raise ProtocolError(f"property {rule.name} stands twice in one packet", "MQTT-4.13.1-1")
        elif identifier == _SUBSCRIPTION_IDENTIFIER:
            assert isinstance(value, int)
            identifiers.append(value)
        else:
            fields[rule.name] = value
    return Properties(user_property=tuple(pairs), subscription_identifier=tuple(identifiers), **fields)


def check_value(rule: Rule, value: object) -> None:
    """Raises :class:`ProtocolError` for a value of the right type that the property may not have (MQTT-4.13.1-1)."""
    if rule.kind is Kind.FLAG and value not in (0, 1):
        raise ProtocolError(f"property {rule.name} must be 0 or 1", "MQTT-4.13.1-1")
    if value == 0 and not rule.zero_allowed:
        raise ProtocolError(f"property {rule.name} must not be 0", "MQTT-4.13.1-1")


def encode_properties(properties: Properties) -> bytes:
    """The whole section, length included."""
    if properties is NO_PROPERTIES:
        return b"\0"
    parts: list[bytes] = []
    for rule in RULES:
        value = getattr(properties, rule.name)
        if value is None or value == ():
            continue
        if rule.kind is Kind.PAIR:
            parts.append(encode_user_properties(value))
        elif rule.identifier == _SUBSCRIPTION_IDENTIFIER:
            parts.append(_encode_many(value) if len(value) > _MANY else _encode_identifiers(value))
        else:
            parts.append(bytes((rule.identifier,)) + _encode_value(rule.kind, value))
    body = b"".join(parts)
    return encode_variable_integer(len(body)) + body


def _encode_identifiers(identifiers: tuple[int, ...]) -> bytes:
    return b"".join([b"\x0b" + encode_variable_integer(identifier) for identifier in identifiers])


@lru_cache(maxsize=64)
def _encode_many(identifiers: tuple[int, ...]) -> bytes:
    """Those of one subscriber are the same for every message of a topic: encoded once for many."""
    return _encode_identifiers(identifiers)


_TWO_BYTES = [number.to_bytes(2, "big") for number in range(256)]


_PROPERTY_STARTS: dict[str, bytes] = {}


def _user_property_start(name: str) -> bytes:
    known = _PROPERTY_STARTS.get(name)
    if known is None:
        known = remember(_PROPERTY_STARTS, name, b"\x26" + encode_string(name), len(name), 1_024)
    return known


def encode_user_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """User properties without the section's length, in order."""
    parts: list[bytes] = []
    for name, text in pairs:
        value = text.encode()
        if len(value) < 256:
            parts += (_user_property_start(name), _TWO_BYTES[len(value)], value)
        else:
            parts += (_user_property_start(name), encode_binary(value))
    return b"".join(parts)


def _encode_value(kind: Kind, value: int | str | bytes) -> bytes:
    if isinstance(value, str):
        return encode_string(value)
    if isinstance(value, bytes):
        return encode_binary(value)
    if kind is Kind.TWO_BYTES:
        return value.to_bytes(2, "big")
    if kind is Kind.FOUR_BYTES:
        return value.to_bytes(4, "big")
    if kind is Kind.VARIABLE:
        return encode_variable_integer(value)
    return bytes((value,))
