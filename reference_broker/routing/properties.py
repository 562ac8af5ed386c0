"""What a message carries that MQTT has no field for: properties of other protocols, with their types.

They are kept as they came, so that a message leaves as it entered, whatever lies between: an integer of 16 bits stays
one, a symbol is no string. In a log they are one header, ``_properties``: a byte with the version of its format, and
MessagePack (:func:`encode_properties`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from assay.reference_broker.trace.described import described

MAX_DEPTH: Final = 32
"""Tables in tables."""
MAX_ANNOTATIONS_BYTES: Final = 1_024
"""Of what consumers noted on one message in all, encoded."""
FORMAT_VERSION: Final = 1
_VALUE_BYTES = 64
"""What a value takes in memory beside its characters."""


class Kind(StrEnum):
    """Types of AMQP 0.9.1 field tables (4.2.5) and of AMQP 1.0 (1.6)."""

    NULL = "null"
    BOOL = "bool"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"
    U16 = "u16"
    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"
    F32 = "f32"
    F64 = "f64"
    DECIMAL = "decimal"
    """Scale and unscaled value: two integers."""
    DECIMAL32 = "decimal32"
    """As its bytes are, like the next two."""
    DECIMAL64 = "decimal64"
    DECIMAL128 = "decimal128"
    CHAR = "char"
    SECONDS = "seconds"
    """Since the epoch."""
    MILLISECONDS = "milliseconds"
    UUID = "uuid"
    BYTES = "bytes"
    TEXT = "text"
    SYMBOL = "symbol"
    LIST = "list"
    MAP = "map"
    """Names and values, in turn."""
    ARRAY = "array"
    """A list whose values are of one kind."""
    DESCRIBED = "described"
    """Descriptor and value."""


_INTEGERS: Final = {
    Kind.I8: (-(1 << 7), 1 << 7),
    Kind.U8: (0, 1 << 8),
    Kind.I16: (-(1 << 15), 1 << 15),
    Kind.U16: (0, 1 << 16),
    Kind.I32: (-(1 << 31), 1 << 31),
    Kind.U32: (0, 1 << 32),
    Kind.I64: (-(1 << 63), 1 << 63),
    Kind.U64: (0, 1 << 64),
    Kind.SECONDS: (0, 1 << 64),
    Kind.MILLISECONDS: (-(1 << 63), 1 << 63),
}
_SIZED: Final = {Kind.DECIMAL32: 4, Kind.DECIMAL64: 8, Kind.DECIMAL128: 16, Kind.UUID: 16}


class Typed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value and its type."""

    kind: Kind
    value: Any
    """bool, int, float, str, bytes or None, as its kind says; of kinds that hold others a tuple of :class:`Typed`."""


Table = tuple[tuple[str, Typed], ...]
"""Names and values."""


class MessageProperties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Properties of a message, but for those that MQTT knows as well (content type, reply-to, expiry, ...)."""

    message_id: Typed | None = None
    """As its publisher named it; the broker has a name of its own for it."""
    correlation_id: Typed | None = None
    content_encoding: str | None = None
    kind: str | None = None
    """``type`` of AMQP 0.9.1, ``subject`` of 1.0."""
    app_id: str | None = None
    cluster_id: str | None = None
    user_id: bytes | None = None
    priority: int | None = None
    """As its publisher gave it, 0 to 255; its lane in the queue is what the queue made of it."""
    durable: bool | None = None
    created_at_ms: int | None = None
    headers: tuple[tuple[str, Typed], ...] = ()
    """A header table; the application properties of AMQP 1.0."""
    ttl_ms: int | None = None
    """As its publisher gave it; when it expires is the message's to say."""
    content_type: str | None = None
    """One that MQTT could not hold, as the next."""
    reply_to: str | None = None
    exchange: str | None = None
    """Of AMQP 0.9.1, by which it came to its queue; None = by the queue's name, or not over AMQP 0.9.1."""
    routing_key: str | None = None
    """As its publisher gave it to that exchange."""
    annotations: Table = ()
    """What consumers noted on it as they gave it back: message annotations of AMQP 1.0 (3.4.5)."""
    sections: tuple[tuple[str, bytes], ...] = ()
    """Sections of AMQP 1.0 that the broker does not read, by name, as their bytes are: the bare message among them."""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(described(MessageProperties))
_table_decoder = msgspec.msgpack.Decoder(described(Table))


def encode_properties(properties: MessageProperties) -> bytes:
    """As a record header holds them."""
    return bytes((FORMAT_VERSION,)) + _encode(properties)


def decode_properties(data: bytes) -> MessageProperties:
    """The opposite. Raises :class:`ValueError` for another format, and for what the broker does not write."""
    raw = _decoder.decode(_body(data))
    return msgspec.structs.replace(
        raw,
        message_id=None if raw.message_id is None else _read(raw.message_id),
        correlation_id=None if raw.correlation_id is None else _read(raw.correlation_id),
        headers=_read_table(raw.headers),
        annotations=_read_table(raw.annotations),
    )


def encode_table(table: Table) -> bytes:
    """Names and values by themselves, in the same format."""
    return bytes((FORMAT_VERSION,)) + _encode(table)


def decode_table(data: bytes) -> Table:
    """The opposite; an empty one for no bytes. Raises :class:`ValueError` as :func:`decode_properties`."""
    return _read_table(_table_decoder.decode(_body(data))) if data else ()


def merged(table: Table, newer: Table) -> Table:
    """What is in either; of values of one name the newer one."""
    return tuple({**dict(table), **dict(newer)}.items())


def _body(data: bytes) -> bytes:
    if data[:1] != bytes((FORMAT_VERSION,)):
        message = f"properties of format {data[:1].hex() or 'none'}; this version reads format {FORMAT_VERSION:02x}"
        raise ValueError(message)
    return data[1:]


def _read_table(raw: Table) -> Table:
    return tuple([(name, _read(value)) for name, value in raw])


def _read(raw: Typed) -> Typed:
    """A value whose parts are still lists. Raises :class:`ValueError`."""
    value = _rebuilt(raw.kind, raw.value, 0)
    check_value(value)
    return value


def _rebuilt(kind: Kind, content: Any, depth: int) -> Typed:
    if not isinstance(content, list):
        return Typed(kind, content)
    if depth > MAX_DEPTH or not all(isinstance(each, list) and len(each) == 2 for each in content):
        raise ValueError(f"the parts of a {kind.value} are pairs of kind and value, in {MAX_DEPTH} tables at most")
    return Typed(kind, tuple([_rebuilt(Kind(name), part, depth + 1) for name, part in content]))


def check_value(value: Typed, depth: int = 0) -> None:
    """Whether a value is one of its kind. Raises :class:`ValueError`."""
    kind, content = value.kind, value.value
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} tables in tables")
    if not _fits(kind, content):
        raise ValueError(f"{str(content)[:40]!r} is no {kind.value}")
    if isinstance(content, tuple):
        for each in content:
            check_value(each, depth + 1)


def _fits(kind: Kind, content: Any) -> bool:
    if kind in _INTEGERS:
        low, end = _INTEGERS[kind]
        return type(content) is int and low <= content < end
    if kind in _SIZED:
        return isinstance(content, bytes) and len(content) == _SIZED[kind]
    match kind:
        case Kind.NULL:
            return content is None
        case Kind.BOOL:
            return isinstance(content, bool)
        case Kind.F32 | Kind.F64:
            return isinstance(content, float)
        case Kind.BYTES:
            return isinstance(content, bytes)
        case Kind.CHAR:
            return isinstance(content, str) and len(content) == 1
        case Kind.TEXT | Kind.SYMBOL:
            return isinstance(content, str)
        case Kind.DECIMAL:
            return _is_row(content, 2) and content[0].kind is Kind.U8 and content[1].kind in (Kind.I32, Kind.U32)
        case Kind.DESCRIBED:
            return _is_row(content, 2)
        case Kind.MAP:
            return isinstance(content, tuple) and len(content) % 2 == 0
        case Kind.ARRAY:
            return isinstance(content, tuple) and len({each.kind for each in content}) < 2
        case _:
            return isinstance(content, tuple)


def _is_row(content: Any, count: int) -> bool:
    return isinstance(content, tuple) and len(content) == count


def properties_bytes(properties: MessageProperties) -> int:
    """What they take in memory, at most; also what counts against the largest message of a queue."""
    size = 0
    for value in (properties.message_id, properties.correlation_id):
        if value is not None:
            size += _value_bytes(value)
    for name, value in (*properties.headers, *properties.annotations):
        size += _VALUE_BYTES + 4 * len(name) + _value_bytes(value)
    for name, data in properties.sections:
        size += _VALUE_BYTES + 4 * len(name) + len(data)
    for text in (
        properties.content_encoding,
        properties.kind,
        properties.app_id,
        properties.cluster_id,
        properties.user_id,
        properties.content_type,
        properties.reply_to,
        properties.exchange,
        properties.routing_key,
    ):
        if text is not None:
            size += _VALUE_BYTES + 4 * len(text)
    return size


def _value_bytes(value: Typed) -> int:
    content = value.value
    if isinstance(content, tuple):
        return _VALUE_BYTES + sum([_value_bytes(each) for each in content])
    if isinstance(content, str):
        return _VALUE_BYTES + 4 * len(content)
    return _VALUE_BYTES + (len(content) if isinstance(content, bytes) else 0)
