"""Packets to bytes, for both versions, and the raw pieces from which malformed packets are made.

:func:`encode` writes what the struct says, legal or not, as long as bytes exist for it (a packet identifier 0, a
wildcard in a topic name and a will of QoS 3 are all written); for the rest (wrong lengths, reserved bits, ill-formed
UTF-8) use :func:`raw_packet` with the pieces above it.
"""

from __future__ import annotations

import struct
from operator import attrgetter

from assay.conformance.wire.packets import (
    NO_PROPERTIES,
    PROPERTY_RULES,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    PropertyKind,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)

LARGEST_REMAINING_LENGTH = 268_435_455
_LARGEST_STRING_BYTES = 65_535

_values_of = attrgetter(*(rule.name for rule in PROPERTY_RULES.values()))
_others_of = attrgetter(*(rule.name for rule in PROPERTY_RULES.values() if rule.name != "user_property"))
_NO_OTHERS = _others_of(NO_PROPERTIES)
_USER_PROPERTY = b"\x26"
_FIXED_FLAGS = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}


class EncodeError(ValueError):
    """No bytes exist for the packet: a string over 65,535 bytes, or a number too large for its field."""


def varint(value: int, *, width: int = 0) -> bytes:
    """A variable byte integer (3.1.1 2.2.3, 5.0 1.5.5); ``width`` pads it to an illegal, longer form."""
    if 0 <= value < 0x80 and not width:
        return bytes((value,))
    if not 0 <= value <= LARGEST_REMAINING_LENGTH:
        message = f"{value} does not fit a variable byte integer (0 to {LARGEST_REMAINING_LENGTH})"
        raise EncodeError(message)
    out = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        more = value > 0 or len(out) + 1 < width
        out.append(digit | 0x80 if more else digit)
        if not more:
            return bytes(out)


def binary(value: bytes) -> bytes:
    """Two-byte length and the bytes. Also writes ill-formed strings."""
    if len(value) > _LARGEST_STRING_BYTES:
        message = f"{len(value)} bytes do not fit a two-byte length (at most {_LARGEST_STRING_BYTES})"
        raise EncodeError(message)
    return len(value).to_bytes(2, "big") + value


def string(value: str) -> bytes:
    """A UTF-8 encoded string (1.5.3 / 1.5.4)."""
    return binary(value.encode())


def uint16(value: int) -> bytes:
    """Two-byte integer, big-endian."""
    return _integer(value, 2)


def uint32(value: int) -> bytes:
    """Four-byte integer, big-endian."""
    return _integer(value, 4)


def _integer(value: int, width: int) -> bytes:
    try:
        return value.to_bytes(width, "big")
    except OverflowError as error:
        message = f"{value} does not fit {width} byte(s)"
        raise EncodeError(message) from error


def raw_packet(first_byte: int, body: bytes = b"", *, remaining_length: bytes | None = None) -> bytes:
    """A packet from its first byte and body; ``remaining_length`` replaces the correct length bytes."""
    return bytes((first_byte,)) + (varint(len(body)) if remaining_length is None else remaining_length) + body


def _property_value(kind: PropertyKind, value: object) -> bytes:
    match kind, value:
        case PropertyKind.STRING_PAIR, (str() as key, str() as text):
            return string(key) + string(text)
        case PropertyKind.BYTE, int():
            return _integer(value, 1)
        case PropertyKind.TWO_BYTES, int():
            return _integer(value, 2)
        case PropertyKind.FOUR_BYTES, int():
            return _integer(value, 4)
        case PropertyKind.VARINT, int():
            return varint(value)
        case PropertyKind.STRING, str():
            return string(value)
        case PropertyKind.BINARY, bytes():
            return binary(value)
    message = f"a property of type {kind.value} cannot hold {value!r}"
    raise EncodeError(message)


def property_fields(properties: Properties) -> bytes:
    """The properties without their length, in order of their identifiers."""
    out = bytearray()
    if _others_of(properties) == _NO_OTHERS:
        for key, text in properties.user_property:
            out += _USER_PROPERTY + string(key) + string(text)
        return bytes(out)
    for (identifier, rule), value in zip(PROPERTY_RULES.items(), _values_of(properties), strict=True):
        if value is None or value == ():
            continue
        for item in value if rule.many else (value,):
            out += varint(identifier) + _property_value(rule.kind, item)
    return bytes(out)


def property_block(properties: Properties) -> bytes:
    """Property Length and properties (5.0 2.2.2)."""
    if properties is NO_PROPERTIES:
        return b"\x00"
    fields = property_fields(properties)
    return varint(len(fields)) + fields


def connect_flags(packet: Connect) -> int:
    """The Connect Flags byte (3.1.2.3)."""
    flags = 0x02 if packet.clean else 0
    if packet.will is not None:
        flags |= 0x04 | packet.will.qos << 3 | (0x20 if packet.will.retain else 0)
    if packet.password is not None:
        flags |= 0x40
    if packet.username is not None:
        flags |= 0x80
    return flags


def _will_fields(will: Will, version: int) -> bytes:
    block = property_block(will.properties) if version >= 5 else b""
    return block + string(will.topic) + binary(will.payload)


def connect_body(packet: Connect, *, flags: int | None = None, payload: bytes | None = None) -> bytes:
    """Variable header and payload of a CONNECT; ``flags`` and ``payload`` replace the true ones."""
    body = string(packet.protocol_name) + bytes((packet.version, connect_flags(packet) if flags is None else flags))
    body += uint16(packet.keep_alive_s)
    if packet.version >= 5:
        body += property_block(packet.properties)
    if payload is not None:
        return body + payload
    body += string(packet.client_id)
    if packet.will is not None:
        body += _will_fields(packet.will, packet.version)
    if packet.username is not None:
        body += string(packet.username)
    if packet.password is not None:
        body += binary(packet.password)
    return body


def connect_raw(packet: Connect, *, flags: int | None = None, payload: bytes | None = None) -> bytes:
    """A CONNECT whose flags byte or payload does not agree with its fields."""
    return raw_packet(PacketType.CONNECT << 4, connect_body(packet, flags=flags, payload=payload))


def subscription_options(subscription: Subscription, version: int) -> int:
    """The options byte after a filter: requested QoS in 3.1.1 (3.8.3), all options in 5.0 (3.8.3.1)."""
    if version < 5:
        return subscription.qos
    return (
        subscription.qos
        | (0x04 if subscription.no_local else 0)
        | (0x08 if subscription.retain_as_published else 0)
        | subscription.retain_handling << 4
    )


def _publish(packet: Publish, version: int) -> bytes:
    first = 0x30 | (0x08 if packet.dup else 0) | packet.qos << 1 | (0x01 if packet.retain else 0)
    head = string(packet.topic)
    if packet.qos:
        head += uint16(packet.packet_id)
    if version >= 5:
        head += property_block(packet.properties)
    return bytes((first,)) + varint(len(head) + len(packet.payload)) + head + packet.payload


def _acknowledgement(packet: Acknowledgement, version: int) -> bytes:
    first = packet.type << 4 | _FIXED_FLAGS.get(packet.type, 0)
    if version < 5 or (packet.reason_code == 0 and packet.properties == NO_PROPERTIES):
        return struct.pack(">BBH", first, 2, packet.packet_id)
    if packet.properties == NO_PROPERTIES:
        return struct.pack(">BBHB", first, 3, packet.packet_id, packet.reason_code)
    body = uint16(packet.packet_id) + bytes((packet.reason_code,)) + property_block(packet.properties)
    return raw_packet(first, body)


def _reason_only(packet: Disconnect | Auth, version: int) -> bytes:
    first = packet.type << 4
    if version < 5 or (packet.reason_code == 0 and packet.properties == NO_PROPERTIES):
        return bytes((first, 0))
    body = bytes((packet.reason_code,))
    if packet.properties != NO_PROPERTIES:
        body += property_block(packet.properties)
    return raw_packet(first, body)


def _identified(packet: Subscribe | Unsubscribe | Suback | Unsuback, version: int) -> bytes:
    body = uint16(packet.packet_id)
    if version >= 5:
        body += property_block(packet.properties)
    match packet:
        case Subscribe():
            for entry in packet.subscriptions:
                body += string(entry.filter) + bytes((subscription_options(entry, version),))
        case Unsubscribe():
            body += b"".join(string(filter_) for filter_ in packet.filters)
        case Suback() | Unsuback():
            body += bytes(packet.reason_codes)
    return raw_packet(packet.type << 4 | _FIXED_FLAGS.get(packet.type, 0), body)


def encode(packet: Packet, version: int) -> bytes:
    """The bytes of a packet in protocol ``version`` 4 (3.1.1) or 5. Raises :class:`EncodeError`."""
    match packet:
        case Publish():
            return _publish(packet, version)
        case Acknowledgement():
            return _acknowledgement(packet, version)
        case Connect():
            return raw_packet(PacketType.CONNECT << 4, connect_body(packet))
        case Connack():
            body = bytes((1 if packet.session_present else 0, packet.reason_code))
            return raw_packet(
                PacketType.CONNACK << 4, body + (property_block(packet.properties) if version >= 5 else b"")
            )
        case Subscribe() | Unsubscribe() | Suback() | Unsuback():
            return _identified(packet, version)
        case Disconnect() | Auth():
            return _reason_only(packet, version)
    return bytes((packet.type << 4, 0))
