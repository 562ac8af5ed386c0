"""Content headers and the properties of class basic (AMQP 0.9.1 section 4.2.6.1)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from assay.reference_broker.amqp091.wire.fields import Reader, Table, bad_syntax, shortstr, table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.routing.remembered import remember

BASIC: Final = 60
_START: Final = struct.Struct(">HHQ")
_START_AND_FLAGS: Final = struct.Struct(">HHQH")
SECTION_AT: Final = _START.size
"""Of flags and properties in a content header."""


class BasicProperties(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """As a publisher gave them; None = it did not. The order is that of their flags."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    """1 = transient, 2 = persistent."""
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    """Milliseconds, as digits."""
    message_id: str | None = None
    timestamp: int | None = None
    """Seconds since the epoch."""
    kind: str | None = None
    """``type``"""
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None
    """Reserved; passed on."""


_TYPES: Final = (
    "shortstr",
    "shortstr",
    "table",
    "octet",
    "octet",
    "shortstr",
    "shortstr",
    "shortstr",
    "shortstr",
    "longlong",
    "shortstr",
    "shortstr",
    "shortstr",
    "shortstr",
)
_Read = Callable[[Reader], Any]
_FIELDS: Final[list[tuple[str, _Read, int]]] = [
    (name, getattr(Reader, kind), 1 << 15 - number)
    for number, (name, kind) in enumerate(zip(BasicProperties.__struct_fields__, _TYPES, strict=True))
]
_KNOWN: Final = sum(flag for _, _, flag in _FIELDS)
_MOST_READS: Final = 256
_READS: dict[int, list[tuple[str, _Read]]] = {}
"""By flags: which properties there are, and how each is read."""
_WRITERS: Final[dict[str, Any]] = {
    "shortstr": shortstr,
    "table": table,
    "octet": lambda value: bytes((value,)),
    "longlong": struct.Struct(">Q").pack,
}
_WRITES: Final = [(_WRITERS[kind], flag) for kind, (_, _, flag) in zip(_TYPES, _FIELDS, strict=True)]
NONE: Final = BasicProperties()


def decode_header(payload: bytes) -> tuple[int, BasicProperties]:
    """How long the body is, and its properties. Raises :class:`AmqpError`."""
    if len(payload) < _START_AND_FLAGS.size:
        raise bad_syntax("a content header is cut short", "sec.4.2.6.bad-content")
    class_id, weight, size, flags = _START_AND_FLAGS.unpack_from(payload)
    if class_id != BASIC or weight:
        text = f"a content header of class {class_id}, weight {weight}, where 60 and 0 belong"
        raise AmqpError(
            Reply.UNEXPECTED_FRAME, text, rule="sec.4.2.6.1.class-id" if class_id != BASIC else "sec.4.2.6.1.weight"
        )
    reader = Reader(payload, _START_AND_FLAGS.size)
    if flags & ~_KNOWN:
        raise bad_syntax(
            f"property flags {flags:#06x}: more than there are properties", "sec.4.2.6.1.flags-continuation"
        )
    if not flags:
        reader.finish()
        return size, NONE
    reads = _READS.get(flags)
    if reads is None:
        reads = remember(_READS, flags, [(name, read) for name, read, flag in _FIELDS if flags & flag], 0, _MOST_READS)
    found = {}
    for name, read in reads:
        found[name] = read(reader)
    reader.finish()
    return size, BasicProperties(**found)


def encode_header(size: int, properties: BasicProperties) -> bytes:
    """The payload of a header frame."""
    flags, parts = 0, []
    for value, (write, flag) in zip(msgspec.structs.astuple(properties), _WRITES, strict=True):
        if value is not None:
            flags |= flag
            parts.append(write(value))
    return header_with(size, b"".join((flags.to_bytes(2, "big"), *parts)))


def header_with(size: int, section: bytes) -> bytes:
    """As :func:`encode_header`, of flags and properties as they are written."""
    return _START.pack(BASIC, 0, size) + section
