"""Bytes <-> packets of MQTT 3.1.1 and 5.0. Pure functions; framing is the connection's."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import islice

from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import MalformedPacketError, ProtocolError, Reason, malformed
from assay.reference_broker.mqtt.wire.packets import NO_PROPERTIES, V5, PacketType
from assay.reference_broker.mqtt.wire.properties import WILL, encode_properties, read_properties
from assay.reference_broker.mqtt.wire.wire_types import (
    MAX_VARIABLE_INTEGER,
    Reader,
    encode_binary,
    encode_string,
    encode_variable_integer,
)

_SOME_FILTERS = 256
FIXED_FLAGS = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}
"""Flags of the fixed header where they are not 0 (section 2.1.3); PUBLISH has real flags."""
_FLAG_STATEMENTS_311 = {
    PacketType.PUBREL: "MQTT-3.6.1-1",
    PacketType.SUBSCRIBE: "MQTT-3.8.1-1",
    PacketType.UNSUBSCRIBE: "MQTT-3.10.1-1",
    PacketType.DISCONNECT: "MQTT-3.14.1-1",
}
_FLAG_STATEMENTS_5 = {**_FLAG_STATEMENTS_311, PacketType.AUTH: "MQTT-3.15.1-1"}


def decode_packet(header: int, data: bytes, start: int, end: int, version: int) -> p.Packet:
    """Decode the packet whose fixed header's first byte is ``header`` and whose body is ``data[start:end]``.

    ``version`` is the protocol version of the connection; CONNECT brings its own. Raises :class:`ProtocolError`.
    """
    try:
        kind = PacketType(header >> 4)
    except ValueError:
        raise malformed("packet type 0 is reserved", version, "MQTT-4.8.0-1", "MQTT-4.13.1-1") from None
    if kind is PacketType.AUTH and version != V5:
        raise MalformedPacketError("packet type 15 is reserved in MQTT 3.1.1", "MQTT-4.8.0-1")
    if kind is not PacketType.PUBLISH and header & 0x0F != FIXED_FLAGS.get(kind, 0):
        statements = _FLAG_STATEMENTS_5 if version == V5 else _FLAG_STATEMENTS_311
        default = "MQTT-2.1.3-1" if version == V5 else "MQTT-2.2.2-2"
        message = f"the fixed header flags of {kind.name} must be {FIXED_FLAGS.get(kind, 0):#x}"
        raise MalformedPacketError(message, statements.get(kind, default))
    reader = Reader(data, start, end, version)
    packet = DECODERS[kind](header, reader, version)
    if reader.remaining:
        raise malformed(f"{kind.name} is longer than its fields", version, "MQTT-4.8.0-1", "MQTT-4.13.1-1")
    return packet


_RECEIVED = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_REASONS = {
    PacketType.PUBACK: (_RECEIVED, "MQTT-3.4.2-1"),
    PacketType.PUBREC: (_RECEIVED, "MQTT-3.5.2-1"),
    PacketType.PUBREL: (frozenset((0x00, 0x92)), "MQTT-3.6.2-1"),
    PacketType.PUBCOMP: (frozenset((0x00, 0x92)), "MQTT-3.7.2-1"),
    PacketType.DISCONNECT: (
        frozenset((0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3))),
        "MQTT-3.14.2-1",
    ),
    PacketType.AUTH: (frozenset((0x00, 0x18, 0x19)), "MQTT-3.15.2-1"),
}
"""Reason codes that a packet may carry, whoever sends it (tables 3.4 to 3.11), and the statement that says so."""


def check_reason(kind: PacketType, reason: int) -> None:
    """Raises :class:`ProtocolError` for a reason code that is not defined for the packet."""
    allowed, statement = _REASONS[kind]
    if reason not in allowed:
        raise ProtocolError(f"{kind.name} may not carry reason code 0x{reason:02x}", statement)


def read_packet_id(reader: Reader, version: int) -> int:
    packet_id = reader.two_bytes()
    if packet_id == 0:
        statement = "MQTT-2.2.1-3" if version == V5 else "MQTT-2.3.1-1"
        raise ProtocolError("packet identifier 0 is not allowed", statement)
    return packet_id


def _decode_connect(header: int, reader: Reader, _version: int) -> p.Connect:
    name = reader.binary()
    version = reader.byte()
    if name != b"MQTT":
        raise ProtocolError("the protocol name must be MQTT", "MQTT-3.1.2-1", Reason.UNSUPPORTED_PROTOCOL_VERSION)
    if version not in (p.V311, p.V5):
        raise ProtocolError(
            f"protocol version {version} is not supported", "MQTT-3.1.2-2", Reason.UNSUPPORTED_PROTOCOL_VERSION
        )
    reader.version = version
    flags = reader.byte()
    check_connect_flags(flags, version)
    keep_alive_s = reader.two_bytes()
    properties = read_properties(reader, PacketType.CONNECT) if version == V5 else NO_PROPERTIES
    client_id = reader.string()
    will = read_will(reader, flags, version) if flags & 0x04 else None
    username = reader.string() if flags & 0x80 else None
    password = reader.binary() if flags & 0x40 else None
    return p.Connect(
        version=version,
        client_id=client_id,
        clean_start=bool(flags & 0x02),
        keep_alive_s=keep_alive_s,
        will=will,
        username=username,
        password=password,
        properties=properties,
    )


def check_connect_flags(flags: int, version: int) -> None:
    five = version == V5
    if flags & 0x01:
        raise MalformedPacketError("the reserved connect flag must be 0", "MQTT-3.1.2-3")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise MalformedPacketError("will QoS 3 is not allowed", "MQTT-3.1.2-12" if five else "MQTT-3.1.2-14")
    else:
        if flags & 0x18:
            raise MalformedPacketError(
                "will QoS must be 0 without the will flag", "MQTT-3.1.2-11" if five else "MQTT-3.1.2-13"
            )
        if flags & 0x20:
            raise MalformedPacketError(
                "will retain must be 0 without the will flag", "MQTT-3.1.2-13" if five else "MQTT-3.1.2-15"
            )
    if not five and flags & 0xC0 == 0x40:
        raise MalformedPacketError("a password needs a user name in MQTT 3.1.1", "MQTT-3.1.2-22")


def read_will(reader: Reader, flags: int, version: int) -> p.WillFields:
    properties = read_properties(reader, WILL) if version == V5 else NO_PROPERTIES
    topic = reader.string()
    payload = reader.binary()
    return p.WillFields(
        topic=topic, payload=payload, qos=(flags >> 3) & 3, retain=bool(flags & 0x20), properties=properties
    )


def _decode_connack(header: int, reader: Reader, version: int) -> p.Connack:
    flags = reader.byte()
    if flags > 1:
        raise malformed(
            "CONNACK flags other than session present are reserved", version, "MQTT-4.8.0-1", "MQTT-3.2.2-1"
        )
    reason = reader.byte()
    properties = read_properties(reader, PacketType.CONNACK) if version == V5 else NO_PROPERTIES
    return p.Connack(session_present=bool(flags), reason=reason, properties=properties)


def _decode_publish(header: int, reader: Reader, version: int) -> p.Publish:
    qos = (header >> 1) & 3
    if qos == 3:
        raise MalformedPacketError("QoS 3 is not allowed", "MQTT-3.3.1-4")
    if header & 0x08 and not qos:
        raise MalformedPacketError("DUP must be 0 at QoS 0", "MQTT-3.3.1-2")
    topic = reader.string()
    packet_id = read_packet_id(reader, version) if qos else 0
    properties = read_properties(reader, PacketType.PUBLISH) if version == V5 else NO_PROPERTIES
    return p.Publish(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        retain=bool(header & 0x01),
        dup=bool(header & 0x08),
        packet_id=packet_id,
        properties=properties,
    )


def _decode_acknowledgement(header: int, reader: Reader, version: int) -> p.Acknowledgement:
    kind = PacketType(header >> 4)
    packet_id = read_packet_id(reader, version)
    reason = 0
    properties = NO_PROPERTIES
    if version == V5 and reader.remaining:
        reason = reader.byte()
        check_reason(kind, reason)
        if reader.remaining:
            properties = read_properties(reader, kind)
    return p.Acknowledgement(type=kind, packet_id=packet_id, reason=reason, properties=properties)


def _decode_subscribe(header: int, reader: Reader, version: int) -> p.Subscribe:
    packet_id = read_packet_id(reader, version)
    properties = read_properties(reader, PacketType.SUBSCRIBE) if version == V5 else NO_PROPERTIES
    requests = tuple(_read_requests(reader, version))
    if not requests:
        statement = "MQTT-3.8.3-2" if version == V5 else "MQTT-3.8.3-3"
        raise ProtocolError("SUBSCRIBE must carry at least one filter", statement)
    return p.Subscribe(packet_id=packet_id, requests=requests, properties=properties)


def _read_requests(reader: Reader, version: int) -> Iterator[p.SubscriptionRequest]:
    while reader.remaining:
        topic_filter = reader.string()
        yield subscription_request(topic_filter, reader.byte(), version)


def subscription_request(topic_filter: str, options: int, version: int) -> p.SubscriptionRequest:
    qos = options & 0x03
    if version == V5:
        if options & 0xC0:
            raise MalformedPacketError("reserved subscription option bits must be 0", "MQTT-3.8.3-5")
        if qos == 3:
            raise ProtocolError("requested QoS 3 is not allowed", "MQTT-4.13.1-1")
        if options & 0x30 == 0x30:
            raise ProtocolError("retain handling 3 is not allowed", "MQTT-4.13.1-1")
    elif options > 2:
        raise MalformedPacketError("requested QoS must be 0, 1 or 2, its reserved bits 0", "MQTT-3.8.3-4")
    return p.SubscriptionRequest(
        topic_filter=topic_filter,
        qos=qos,
        no_local=bool(options & 0x04),
        retain_as_published=bool(options & 0x08),
        retain_handling=(options >> 4) & 3,
    )


def _decode_suback(header: int, reader: Reader, version: int) -> p.Suback:
    packet_id = read_packet_id(reader, version)
    properties = read_properties(reader, PacketType.SUBACK) if version == V5 else NO_PROPERTIES
    return p.Suback(packet_id=packet_id, reasons=tuple(reader.rest()), properties=properties)


def _decode_unsubscribe(header: int, reader: Reader, version: int) -> p.Unsubscribe:
    packet_id = read_packet_id(reader, version)
    properties = read_properties(reader, PacketType.UNSUBSCRIBE) if version == V5 else NO_PROPERTIES
    filters = tuple(_read_filters(reader))
    if not filters:
        raise ProtocolError("UNSUBSCRIBE must carry at least one filter", "MQTT-3.10.3-2")
    return p.Unsubscribe(packet_id=packet_id, topic_filters=filters, properties=properties)


def _read_filters(reader: Reader) -> Iterator[str]:
    while reader.remaining:
        yield reader.string()


def decode_filters(
    kind: PacketType, reader: Reader, version: int, most: int
) -> Generator[int, None, p.Subscribe | p.Unsubscribe]:
    """A SUBSCRIBE or UNSUBSCRIBE with many filters: yields after some of them, with their number.

    What SUBSCRIBE asks for beyond ``most`` filters is checked and counted, but not kept. Raises as
    :func:`decode_packet`.
    """
    packet_id = read_packet_id(reader, version)
    properties = read_properties(reader, kind) if version == V5 else NO_PROPERTIES
    if kind is PacketType.UNSUBSCRIBE:
        filters: list[str] = []
        names = _read_filters(reader)
        while some := list(islice(names, _SOME_FILTERS)):
            filters += some
            yield len(some)
        return p.Unsubscribe(packet_id=packet_id, topic_filters=tuple(filters), properties=properties)
    requests: list[p.SubscriptionRequest] = []
    count = 0
    read = _read_requests(reader, version)
    while more := list(islice(read, _SOME_FILTERS)):
        count += len(more)
        requests += more[: max(0, most - len(requests))]
        yield len(more)
    beyond = count - len(requests)
    return p.Subscribe(packet_id=packet_id, requests=tuple(requests), properties=properties, beyond=beyond)


def _decode_unsuback(header: int, reader: Reader, version: int) -> p.Unsuback:
    packet_id = read_packet_id(reader, version)
    if version != V5:
        return p.Unsuback(packet_id=packet_id)
    properties = read_properties(reader, PacketType.UNSUBACK)
    return p.Unsuback(packet_id=packet_id, reasons=tuple(reader.rest()), properties=properties)


def decode_disconnect(header: int, reader: Reader, version: int) -> p.Disconnect:
    """Without a body it is a normal disconnection (5.0 3.14.2.1)."""
    if version != V5 or not reader.remaining:
        return p.Disconnect()
    reason = reader.byte()
    check_reason(PacketType.DISCONNECT, reason)
    properties = read_properties(reader, PacketType.DISCONNECT) if reader.remaining else NO_PROPERTIES
    return p.Disconnect(reason=reason, properties=properties)


def _decode_auth(header: int, reader: Reader, version: int) -> p.Auth:
    if not reader.remaining:
        return p.Auth()
    reason = reader.byte()
    check_reason(PacketType.AUTH, reason)
    properties = read_properties(reader, PacketType.AUTH) if reader.remaining else NO_PROPERTIES
    return p.Auth(reason=reason, properties=properties)


DECODERS: dict[PacketType, Callable[[int, Reader, int], p.Packet]] = {
    PacketType.CONNECT: _decode_connect,
    PacketType.CONNACK: _decode_connack,
    PacketType.PUBLISH: _decode_publish,
    PacketType.PUBACK: _decode_acknowledgement,
    PacketType.PUBREC: _decode_acknowledgement,
    PacketType.PUBREL: _decode_acknowledgement,
    PacketType.PUBCOMP: _decode_acknowledgement,
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.SUBACK: _decode_suback,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.UNSUBACK: _decode_unsuback,
    PacketType.PINGREQ: lambda _header, _reader, _version: p.Pingreq(),
    PacketType.PINGRESP: lambda _header, _reader, _version: p.Pingresp(),
    PacketType.DISCONNECT: decode_disconnect,
    PacketType.AUTH: _decode_auth,
}


def frame(header: int, *parts: bytes) -> bytes:
    """Fixed header and body. Raises :class:`ValueError` over the protocol's size limit."""
    length = sum(map(len, parts))
    if length > MAX_VARIABLE_INTEGER:
        raise ValueError(f"a packet body holds at most {MAX_VARIABLE_INTEGER} bytes, not {length}")
    return b"".join((bytes((header,)), encode_variable_integer(length), *parts))


def _section(properties: p.Properties, version: int) -> bytes:
    return encode_properties(properties) if version == V5 else b""


def encode_connect(packet: p.Connect) -> bytes:
    flags = 0x02 if packet.clean_start else 0
    will = b""
    if packet.will is not None:
        flags |= 0x04 | packet.will.qos << 3 | (0x20 if packet.will.retain else 0)
        will = (
            _section(packet.will.properties, packet.version)
            + encode_string(packet.will.topic)
            + encode_binary(packet.will.payload)
        )
    flags |= (0x80 if packet.username is not None else 0) | (0x40 if packet.password is not None else 0)
    return frame(
        0x10,
        b"\0\4MQTT",
        bytes((packet.version, flags)),
        packet.keep_alive_s.to_bytes(2, "big"),
        _section(packet.properties, packet.version),
        encode_string(packet.client_id),
        will,
        encode_string(packet.username) if packet.username is not None else b"",
        encode_binary(packet.password) if packet.password is not None else b"",
    )


def encode_publish(packet: p.Publish, version: int) -> bytes:
    header = 0x30 | (8 if packet.dup else 0) | packet.qos << 1 | (1 if packet.retain else 0)
    packet_id = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
    return frame(header, encode_string(packet.topic), packet_id, _section(packet.properties, version), packet.payload)


def encode_acknowledgement(packet: p.Acknowledgement, version: int) -> bytes:
    """The short forms are used wherever they are allowed (5.0 section 3.4.2.1)."""
    header = packet.type << 4 | FIXED_FLAGS.get(packet.type, 0)
    packet_id = packet.packet_id.to_bytes(2, "big")
    if version != V5 or (packet.reason == 0 and packet.properties is NO_PROPERTIES):
        return frame(header, packet_id)
    if packet.properties is NO_PROPERTIES:
        return frame(header, packet_id, bytes((packet.reason,)))
    return frame(header, packet_id, bytes((packet.reason,)), encode_properties(packet.properties))


def encode_subscribe(packet: p.Subscribe, version: int) -> bytes:
    body = b"".join(
        encode_string(request.topic_filter)
        + bytes(
            (
                request.qos
                | (4 if request.no_local else 0)
                | (8 if request.retain_as_published else 0)
                | request.retain_handling << 4,
            )
        )
        for request in packet.requests
    )
    return frame(0x82, packet.packet_id.to_bytes(2, "big"), _section(packet.properties, version), body)


def _encode_reasoned(header: int, reason: int, properties: p.Properties) -> bytes:
    """DISCONNECT and AUTH, in their shortest form."""
    if properties is NO_PROPERTIES:
        return frame(header, bytes((reason,)) if reason else b"")
    return frame(header, bytes((reason,)), encode_properties(properties))


def encode_packet(packet: p.Packet, version: int) -> bytes:
    """Encode any packet for a protocol version. Raises :class:`ValueError` for a field over its size."""
    match packet:
        case p.Publish():
            return encode_publish(packet, version)
        case p.Acknowledgement():
            return encode_acknowledgement(packet, version)
        case p.Connect():
            return encode_connect(packet)
        case p.Connack():
            flags = bytes((1 if packet.session_present else 0, packet.reason))
            return frame(0x20, flags, _section(packet.properties, version))
        case p.Subscribe():
            return encode_subscribe(packet, version)
        case p.Suback():
            packet_id = packet.packet_id.to_bytes(2, "big")
            return frame(0x90, packet_id, _section(packet.properties, version), bytes(packet.reasons))
        case p.Unsubscribe():
            packet_id = packet.packet_id.to_bytes(2, "big")
            filters = b"".join(map(encode_string, packet.topic_filters))
            return frame(0xA2, packet_id, _section(packet.properties, version), filters)
        case p.Unsuback():
            packet_id = packet.packet_id.to_bytes(2, "big")
            reasons = bytes(packet.reasons) if version == V5 else b""
            return frame(0xB0, packet_id, _section(packet.properties, version), reasons)
        case p.Pingreq():
            return b"\xc0\0"
        case p.Pingresp():
            return b"\xd0\0"
        case p.Disconnect():
            return _encode_reasoned(0xE0, packet.reason, packet.properties) if version == V5 else b"\xe0\0"
        case p.Auth():
            return _encode_reasoned(0xF0, packet.reason, packet.properties)
