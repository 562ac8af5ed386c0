"""Bytes to packets, strictly: whatever the standard forbids in a packet raises :class:`MalformedPacketError`.

The parser reads both directions, so that the property tests can read back what :mod:`assay.conformance.wire.encode`
wrote.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

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
    Pingreq,
    Pingresp,
    Properties,
    PropertyKind,
    PropertyRule,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    describe,
)

DEFAULT_MAX_PACKET_BYTES = 16 * 1024 * 1024
_USER_PROPERTY = 0x26
# What msgspec has to know of it, it learns while one thread imports this, as ``described`` of the broker has it.
msgspec.json.Decoder(Properties)


class MalformedPacketError(Exception):
    """The bytes are not a legal packet. ``packets_before`` are the good ones of the same :meth:`Decoder.feed`."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.packets_before: tuple[Packet, ...] = ()


def _malformed(message: str) -> MalformedPacketError:
    return MalformedPacketError(message)


_CODES_311: dict[PacketType, frozenset[int]] = {
    PacketType.CONNACK: frozenset(range(6)),
    PacketType.SUBACK: frozenset((0, 1, 2, 0x80)),
}
_CODES_5: dict[PacketType, frozenset[int]] = {
    PacketType.CONNACK: frozenset(
        (0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
    ),
    PacketType.PUBACK: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PacketType.PUBREC: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PacketType.PUBREL: frozenset((0x00, 0x92)),
    PacketType.PUBCOMP: frozenset((0x00, 0x92)),
    PacketType.SUBACK: frozenset((0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    PacketType.UNSUBACK: frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
    PacketType.DISCONNECT: frozenset(
        (0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8C, 0x91), *range(0x93, 0xA3))
    ),
    PacketType.AUTH: frozenset((0x00, 0x18, 0x19)),
}
"""Reason codes of each packet (5.0, table 2-6)."""


class _Reader:
    """Reads the body of one packet; every read checks that the body is long enough."""

    __slots__ = ("data", "end", "name", "pos", "version")

    def __init__(self, data: bytes, pos: int, end: int, name: str, version: int) -> None:
        self.data, self.pos, self.end, self.name, self.version = data, pos, end, name, version

    def fail(self, what: str) -> MalformedPacketError:
        return _malformed(f"{self.name}: {what}")

    def take(self, size: int, what: str) -> bytes:
        start = self.pos
        self.pos = start + size
        if self.pos > self.end:
            raise self.fail(f"ends inside {what}")
        return self.data[start : self.pos]

    def byte(self, what: str) -> int:
        if self.pos >= self.end:
            raise self.fail(f"ends before {what}")
        self.pos += 1
        return self.data[self.pos - 1]

    def uint16(self, what: str) -> int:
        start = self.pos
        self.pos = start + 2
        if self.pos > self.end:
            raise self.fail(f"ends inside {what}")
        return self.data[start] << 8 | self.data[start + 1]

    def uint32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "big")

    def varint(self, what: str) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            digit = self.byte(what)
            value |= (digit & 0x7F) << shift
            if not digit & 0x80:
                if digit == 0 and shift:
                    raise self.fail(f"{what} is not in its shortest form")
                return value
        raise self.fail(f"{what} has more than four bytes")

    def binary(self, what: str) -> bytes:
        return self.take(self.uint16(f"the length of {what}"), what)

    def string(self, what: str) -> str:
        data, start = self.data, self.pos + 2
        if start > self.end:
            raise self.fail(f"ends inside the length of {what}")
        self.pos = end = start + (data[start - 2] << 8 | data[start - 1])
        if end > self.end:
            raise self.fail(f"ends inside {what}")
        try:
            text = data[start:end].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not well-formed UTF-8 ({error.reason})") from error
        if "\0" in text:
            raise self.fail(f"{what} contains U+0000")
        return text

    def rest(self) -> bytes:
        start, self.pos = self.pos, self.end
        return self.data[start : self.end]

    def packet_id(self) -> int:
        value = self.uint16("the packet identifier")
        if value == 0:
            raise self.fail("packet identifier 0")
        return value

    def reason_code(self, packet_type: PacketType) -> int:
        code = self.byte("the reason code")
        allowed = (_CODES_5 if self.version >= 5 else _CODES_311)[packet_type]
        if code not in allowed:
            raise self.fail(f"reason code 0x{code:02x} is not one of this packet")
        return code

    def user_properties(self) -> list[tuple[str, str]]:
        """A run of user properties, as most properties are; reading stops before one with which something is wrong."""
        data, end, pos = self.data, self.end, self.pos
        found = []
        try:
            while pos < end and data[pos] == _USER_PROPERTY:
                middle = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
                last = middle + 2 + (data[middle] << 8 | data[middle + 1])
                if last > end or 0 in data[pos + 3 : middle] or 0 in data[middle + 2 : last]:
                    break
                found.append((data[pos + 3 : middle].decode(), data[middle + 2 : last].decode()))
                pos = last
        except (IndexError, UnicodeDecodeError):
            pass  # the general way says what
        self.pos = pos
        return found

    def properties(self, packet_type: PacketType, *, in_will: bool = False) -> Properties:
        length = self.varint("the property length")
        if length == 0:
            return NO_PROPERTIES
        packet_end, self.end = self.end, self.pos + length
        if self.end > packet_end:
            raise self.fail("the property length goes beyond the packet")
        found: dict[str, object] = {}
        lists: dict[str, list[object]] = {}
        allowed = _IN_WILLS if in_will else _IN_PACKETS[packet_type]
        if _USER_PROPERTY in allowed and (pairs := self.user_properties()):
            if self.pos == self.end:
                self.end = packet_end
                return Properties(user_property=tuple(pairs))
            lists["user_property"] = [*pairs]
        while self.pos < self.end:
            identifier = self.varint("a property identifier")
            known = allowed.get(identifier)
            if known is None:
                rule = PROPERTY_RULES.get(identifier)
                if rule is None:
                    raise self.fail(f"unknown property identifier 0x{identifier:02x}")
                raise self.fail(f"property {rule.name} is not allowed here")
            rule, read = known
            value = read(self)
            if rule.many and not (rule.name == "subscription_identifier" and packet_type is PacketType.SUBSCRIBE):
                lists.setdefault(rule.name, []).append(value)
                continue
            if rule.name in found:
                raise self.fail(f"property {rule.name} appears twice")
            found[rule.name] = (value,) if rule.many else value
        self.end = packet_end
        found.update({name: tuple(values) for name, values in lists.items()})
        if "authentication_data" in found and "authentication_method" not in found:
            raise self.fail("authentication data without authentication method")
        return msgspec.convert(found, Properties)


def _value_reader(rule: PropertyRule) -> Callable[[_Reader], object]:
    """Reads a property's value."""
    name, kind = rule.name, rule.kind
    if kind is PropertyKind.STRING_PAIR:
        key, text = f"the key of {name}", f"the value of {name}"
        return lambda reader: (reader.string(key), reader.string(text))
    if kind is PropertyKind.STRING:
        return lambda reader: reader.string(name)
    if kind is PropertyKind.BINARY:
        return lambda reader: reader.binary(name)
    read_number = {
        PropertyKind.BYTE: _Reader.byte,
        PropertyKind.TWO_BYTES: _Reader.uint16,
        PropertyKind.FOUR_BYTES: _Reader.uint32,
        PropertyKind.VARINT: _Reader.varint,
    }[kind]

    def read(reader: _Reader) -> int:
        value = read_number(reader, name)
        if value < rule.lowest or (rule.highest is not None and value > rule.highest):
            raise reader.fail(f"{name} must not be {value}")
        return value

    return read


_KNOWN = {identifier: (rule, _value_reader(rule)) for identifier, rule in PROPERTY_RULES.items()}
_IN_WILLS = {identifier: known for identifier, known in _KNOWN.items() if known[0].in_will}
_IN_PACKETS = {
    packet_type: {identifier: known for identifier, known in _KNOWN.items() if packet_type in known[0].packets}
    for packet_type in PacketType
}


def _publish(reader: _Reader, flags: int) -> Packet:
    qos = flags >> 1 & 3
    if qos == 3:
        raise reader.fail("QoS 3")
    if qos == 0 and flags & 8:
        raise reader.fail("DUP is set at QoS 0")
    topic = reader.string("the topic name")
    if "+" in topic or "#" in topic:
        raise reader.fail("the topic name contains a wildcard")
    packet_id = reader.packet_id() if qos else 0
    properties = reader.properties(PacketType.PUBLISH) if reader.version >= 5 else NO_PROPERTIES
    if not topic and properties.topic_alias is None:
        raise reader.fail("the topic name is empty")
    return Publish(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        packet_id=packet_id,
        retain=bool(flags & 1),
        dup=bool(flags & 8),
        properties=properties,
    )


def _acknowledgement(kind: type[Acknowledgement]) -> Callable[[_Reader, int], Packet]:
    def read(reader: _Reader, flags: int) -> Packet:
        packet_id = reader.packet_id()
        if reader.version < 5 or reader.pos == reader.end:
            return kind(packet_id=packet_id)
        code = reader.reason_code(kind.type)
        properties = reader.properties(kind.type) if reader.pos < reader.end else NO_PROPERTIES
        return kind(packet_id=packet_id, reason_code=code, properties=properties)

    return read


def _connect(reader: _Reader, flags: int) -> Packet:
    name = reader.string("the protocol name")
    version = reader.byte("the protocol level")
    if version not in (4, 5):
        raise reader.fail(f"protocol level {version}")
    reader.version = version
    bits = reader.byte("the connect flags")
    if bits & 1:
        raise reader.fail("the reserved connect flag is set")
    if not bits & 4 and bits & 0x38:
        raise reader.fail("will QoS or will retain without the will flag")
    keep_alive_s = reader.uint16("the keep alive")
    properties = reader.properties(PacketType.CONNECT) if version >= 5 else NO_PROPERTIES
    client_id = reader.string("the client identifier")
    will = None
    if bits & 4:
        will_properties = reader.properties(PacketType.PUBLISH, in_will=True) if version >= 5 else NO_PROPERTIES
        will = Will(
            topic=reader.string("the will topic"),
            payload=reader.binary("the will message"),
            qos=bits >> 3 & 3,
            retain=bool(bits & 0x20),
            properties=will_properties,
        )
        if will.qos == 3:
            raise reader.fail("will QoS 3")
    return Connect(
        client_id=client_id,
        version=version,
        clean=bool(bits & 2),
        keep_alive_s=keep_alive_s,
        will=will,
        username=reader.string("the user name") if bits & 0x80 else None,
        password=reader.binary("the password") if bits & 0x40 else None,
        properties=properties,
        protocol_name=name,
    )


def _connack(reader: _Reader, flags: int) -> Packet:
    bits = reader.byte("the acknowledge flags")
    if bits & 0xFE:
        raise reader.fail(f"reserved acknowledge flags 0x{bits:02x}")
    code = reader.reason_code(PacketType.CONNACK)
    properties = reader.properties(PacketType.CONNACK) if reader.version >= 5 else NO_PROPERTIES
    if code and bits:
        raise reader.fail("session present is set although the connection is refused")
    return Connack(session_present=bool(bits), reason_code=code, properties=properties)


def _subscription(reader: _Reader) -> Subscription:
    filter_ = reader.string("a topic filter")
    options = reader.byte("the subscription options")
    if options & 3 == 3 or options & (0xC0 if reader.version >= 5 else 0xFC) or options & 0x30 == 0x30:
        raise reader.fail(f"reserved subscription options 0x{options:02x}")
    return Subscription(
        filter=filter_,
        qos=options & 3,
        no_local=bool(options & 4),
        retain_as_published=bool(options & 8),
        retain_handling=options >> 4,
    )


def _subscribe(reader: _Reader, flags: int) -> Packet:
    packet_id = reader.packet_id()
    properties = reader.properties(PacketType.SUBSCRIBE) if reader.version >= 5 else NO_PROPERTIES
    subscriptions = []
    while reader.pos < reader.end:
        subscriptions.append(_subscription(reader))
    if not subscriptions:
        raise reader.fail("no topic filter")
    return Subscribe(packet_id=packet_id, subscriptions=tuple(subscriptions), properties=properties)


def _suback(reader: _Reader, flags: int) -> Packet:
    packet_id = reader.packet_id()
    properties = reader.properties(PacketType.SUBACK) if reader.version >= 5 else NO_PROPERTIES
    codes = []
    while reader.pos < reader.end:
        codes.append(reader.reason_code(PacketType.SUBACK))
    if not codes:
        raise reader.fail("no return code")
    return Suback(packet_id=packet_id, reason_codes=tuple(codes), properties=properties)


def _unsubscribe(reader: _Reader, flags: int) -> Packet:
    packet_id = reader.packet_id()
    properties = reader.properties(PacketType.UNSUBSCRIBE) if reader.version >= 5 else NO_PROPERTIES
    filters = []
    while reader.pos < reader.end:
        filters.append(reader.string("a topic filter"))
    if not filters:
        raise reader.fail("no topic filter")
    return Unsubscribe(packet_id=packet_id, filters=tuple(filters), properties=properties)


def _unsuback(reader: _Reader, flags: int) -> Packet:
    packet_id = reader.packet_id()
    if reader.version < 5:
        return Unsuback(packet_id=packet_id)
    properties = reader.properties(PacketType.UNSUBACK)
    codes = []
    while reader.pos < reader.end:
        codes.append(reader.reason_code(PacketType.UNSUBACK))
    if not codes:
        raise reader.fail("no reason code")
    return Unsuback(packet_id=packet_id, reason_codes=tuple(codes), properties=properties)


def _disconnect(reader: _Reader, flags: int) -> Packet:
    if reader.version < 5 or reader.pos == reader.end:
        return Disconnect()
    code = reader.reason_code(PacketType.DISCONNECT)
    properties = reader.properties(PacketType.DISCONNECT) if reader.pos < reader.end else NO_PROPERTIES
    return Disconnect(reason_code=code, properties=properties)


def _auth(reader: _Reader, flags: int) -> Packet:
    if reader.version < 5:
        raise reader.fail("packet type 15 does not exist in MQTT 3.1.1")
    if reader.pos == reader.end:
        return Auth()
    code = reader.reason_code(PacketType.AUTH)
    properties = reader.properties(PacketType.AUTH) if reader.pos < reader.end else NO_PROPERTIES
    return Auth(reason_code=code, properties=properties)


_READERS: dict[PacketType, Callable[[_Reader, int], Packet]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _acknowledgement(Puback),
    PacketType.PUBREC: _acknowledgement(Pubrec),
    PacketType.PUBREL: _acknowledgement(Pubrel),
    PacketType.PUBCOMP: _acknowledgement(Pubcomp),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: lambda _reader, _flags: Pingreq(),
    PacketType.PINGRESP: lambda _reader, _flags: Pingresp(),
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
_FLAGS_OF_TWO = (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)
_KINDS = (
    None,
    *((each.name, _READERS[each], None if each is PacketType.PUBLISH else 2 if each in _FLAGS_OF_TWO else 0)
      for each in PacketType),
)  # fmt: skip
"""By number: name, reader, and the flags that its header must have."""


def _header(data: bytes | bytearray, offset: int) -> tuple[int, int] | None:
    """Start of the body and end of the packet at ``offset``; None while the fixed header is incomplete."""
    size = len(data)
    if offset + 1 < size and (value := data[offset + 1]) < 0x80:
        return offset + 2, offset + 2 + value  # nearly every packet
    value = 0
    for index, shift in enumerate((0, 7, 14, 21), 1):
        if offset + index >= size:
            return None
        digit = data[offset + index]
        value |= (digit & 0x7F) << shift
        if not digit & 0x80:
            if digit == 0 and shift:
                raise _malformed("remaining length is not in its shortest form")
            start = offset + index + 1
            return start, start + value
    raise _malformed("remaining length has more than four bytes")


def frame_length(data: bytes | bytearray, offset: int = 0) -> int | None:
    """Length of the packet that starts at ``offset``, header included; None until its header is complete.

    Raises :class:`MalformedPacketError` for a wrong remaining length.
    """
    header = _header(data, offset)
    return None if header is None else header[1] - offset


def decode_packet(frame: bytes, version: int) -> Packet:
    """The packet in ``frame``, which must hold exactly one. Raises :class:`MalformedPacketError`."""
    if len(frame) < 2:
        raise _malformed(f"a frame of {len(frame)} byte(s) is no packet")
    header = _header(frame, 0)
    if header is None or header[1] != len(frame):
        raise _malformed("the frame does not hold exactly one packet")
    kind, flags = frame[0] >> 4, frame[0] & 15
    known = _KINDS[kind]
    if known is None:
        raise _malformed("packet type 0 is reserved")
    name, read, lawful_flags = known
    if lawful_flags is not None and flags != lawful_flags:
        raise _malformed(f"{name}: reserved header flags 0x{flags:x}")
    reader = _Reader(frame, header[0], len(frame), name, version)
    packet = read(reader, flags)
    if reader.pos != reader.end:
        raise reader.fail(f"{reader.end - reader.pos} byte(s) too many")
    return packet


class Decoder:
    """Incremental parser of one direction of a connection."""

    def __init__(self, version: int, *, max_packet_bytes: int = DEFAULT_MAX_PACKET_BYTES) -> None:
        self.version = version
        self.max_packet_bytes = max_packet_bytes
        self._buffer = bytearray()

    @property
    def pending(self) -> bytes:
        """Bytes of the packet that is not complete yet."""
        return bytes(self._buffer)

    def feed_frames(self, data: bytes) -> list[bytes]:
        """Like :meth:`feed`, but the packets stay bytes (for transcripts)."""
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        offset = 0
        try:
            while offset < len(buffer):
                length = frame_length(buffer, offset)
                if length is None:
                    break
                if length > self.max_packet_bytes:
                    raise _malformed(f"a packet of {length} bytes; at most {self.max_packet_bytes} were expected")
                if offset + length > len(buffer):
                    break
                frames.append(bytes(buffer[offset : offset + length]))
                offset += length
        except MalformedPacketError as error:
            error.packets_before = tuple(decode_packet(frame, self.version) for frame in frames)
            raise
        del buffer[:offset]
        return frames

    def feed(self, data: bytes) -> list[Packet]:
        """Take a chunk; returns the packets that it completes.

        Raises :class:`MalformedPacketError`, whose ``packets_before`` holds the good packets of this call; the stream
        cannot be read on after it.
        """
        packets: list[Packet] = []
        try:
            packets.extend(decode_packet(frame, self.version) for frame in self.feed_frames(data))
        except MalformedPacketError as error:
            error.packets_before = error.packets_before or tuple(packets)
            raise
        return packets


def describe_bytes(data: bytes, version: int) -> str:
    """What packets these are, for people; raw where they are none."""
    try:
        return ", ".join(describe(packet) for packet in Decoder(version).feed(data)) or f"{len(data)} raw byte(s)"
    except MalformedPacketError as error:
        return f"malformed on purpose: {error}"
