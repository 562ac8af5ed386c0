"""GoQueue's messages, byte for byte: a segment file is a concatenation of them. All integers are big-endian.

====== ============================ ============================ ============================
bytes  30-byte layout               32-byte layout               34-byte layout (today's)
====== ============================ ============================ ============================
0-1    magic ``GQ``                 same                         same
2      version, always 1            same                         same
3      flags                        same                         same
4-7    CRC32-C of bytes 8 to end    same                         same
8-15   offset, signed               same                         same
16-23  timestamp, Unix ns, signed   same                         same
24     key length (2)               priority, 0 to 4             same
25                                  reserved, 0                  same
26     value length (4)             key length (2)               same
28                                  value length (4)             same
32     -                            -                            headers length (2)
then   key, value                   key, value                   key, value, headers
====== ============================ ============================ ============================

Headers: count (2), then per header name length (2), name, value length (2), value. All layouts carry the same version,
so whoever reads must know the layout; :func:`detect_layout` finds it by the checksum. Magic, version and flags are not
covered by the checksum, so they are held against what GoQueue can write.
"""

from __future__ import annotations

import struct
from enum import Enum, IntFlag
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from assay.reference_broker.queues.jobs.store import Headers
from assay.reference_broker.queues.messages.publish_options import Priority

MAGIC_BYTES = b"GQ"
VERSION = 1
MAX_KEY_BYTES = 65_535
MAX_VALUE_BYTES = 16 * 1024 * 1024
MAX_HEADERS_BYTES = 65_535
"""Bound of the headers block, its count and lengths included."""
MAX_OFFSET = 2**63 - 1
_CHECKED_FROM = 8
_COUNT = struct.Struct(">H")


class GoQueueLayout(Enum):
    """Which generation of GoQueue wrote a message. The value is the size of the fixed part in bytes."""

    V30 = 30
    """Before priorities."""
    V32 = 32
    """With priority, without headers."""
    V34 = 34
    """With priority and headers."""

    @property
    def max_message_bytes(self) -> int:
        headers_bytes = MAX_HEADERS_BYTES if self is GoQueueLayout.V34 else 0
        return self.value + MAX_KEY_BYTES + MAX_VALUE_BYTES + headers_bytes


class GoQueueFlag(IntFlag):
    COMPRESSED = 1
    HAS_HEADERS = 2
    TOMBSTONE = 4
    """The key is deleted, in a compacted topic."""
    CONTROL = 8
    """A marker of a transaction, no message of a producer."""
    COMMIT = 16
    """With CONTROL: the transaction was committed; without COMMIT it was aborted."""


_KNOWN_FLAGS = 0x1F


class GoQueueProblem(Enum):
    """Why bytes are not a message, or why a message cannot be written."""

    TRUNCATED = "the message is cut short"
    BAD_MAGIC = "no message starts here"
    BAD_VERSION = "the message is of an unknown format version"
    BAD_FLAGS = "the flags contradict the message"
    BAD_PRIORITY = "the priority is not one of 0 to 4"
    BAD_OFFSET = "the offset is out of bounds"
    BAD_TIMESTAMP = "the timestamp does not fit"
    TOO_LARGE = "a size exceeds its limit"
    BAD_CHECKSUM = "the checksum does not match"
    BAD_HEADERS = "the headers cannot be decoded"
    NOT_IN_LAYOUT = "the layout has no room for it"


class GoQueueMessageError(ValueError):
    """Bytes are not a whole, sound message, or a message cannot be encoded.

    ``position``: of the first byte of the message in what was given; 0 when encoding.
    """

    def __init__(self, problem: GoQueueProblem, detail: str = "", *, position: int = 0) -> None:
        super().__init__(f"{problem.value}: {detail}" if detail else problem.value)
        self.problem = problem
        self.detail = detail
        self.position = position


class GoQueueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as GoQueue stores it. A missing key and an empty one are the same to it."""

    offset: int
    timestamp_ns: int
    """Unix time in nanoseconds."""
    key: bytes = b""
    value: bytes = b""
    flags: GoQueueFlag = GoQueueFlag(0)
    """As stored. Encoding adds HAS_HEADERS when there are headers."""
    priority: Priority = Priority.NORMAL
    headers: Headers = ()
    """In the order of the file. GoQueue reads them into a map, so names should not repeat."""


class _Head(NamedTuple):
    """The fixed part of a message."""

    magic: bytes
    version: int
    flags: int
    checksum: int
    offset: int
    timestamp_ns: int
    priority: int
    reserved: int
    key_bytes: int
    value_bytes: int
    headers_bytes: int


_HEADS = {
    GoQueueLayout.V30: struct.Struct(">2sBBIqqHI"),
    GoQueueLayout.V32: struct.Struct(">2sBBIqqBBHI"),
    GoQueueLayout.V34: struct.Struct(">2sBBIqqBBHIH"),
}
_FIELDS_BEFORE_PRIORITY = 6
# Plain numbers and tables: operators and constructors of flags are slow, and a walk needs them for each message.
_HAS_HEADERS = int(GoQueueFlag.HAS_HEADERS)
_CONTROL = int(GoQueueFlag.CONTROL)
_COMMIT = int(GoQueueFlag.COMMIT)
_FLAGS = [GoQueueFlag(number) for number in range(_KNOWN_FLAGS + 1)]
_PRIORITIES = list(Priority)


def _read_head(data: bytes, at: int, layout: GoQueueLayout) -> _Head:
    fields = _HEADS[layout].unpack_from(data, at)
    if layout is GoQueueLayout.V34:
        return _Head._make(fields)
    if layout is GoQueueLayout.V32:
        return _Head._make((*fields, 0))
    before, after = fields[:_FIELDS_BEFORE_PRIORITY], fields[_FIELDS_BEFORE_PRIORITY:]
    return _Head._make((*before, int(Priority.NORMAL), 0, *after, 0))


def claimed_size(data: bytes, at: int, layout: GoQueueLayout) -> int | None:
    """Bytes that the lengths of the message at a position claim, whatever its magic; None when out of bounds."""
    if len(data) - at < layout.value:
        return None
    head = _read_head(data, at, layout)
    if head.value_bytes > MAX_VALUE_BYTES:
        return None
    return layout.value + head.key_bytes + head.value_bytes + head.headers_bytes


def has_sound_body(data: bytes, at: int, layout: GoQueueLayout) -> bool:
    """Whether the checksum of the message at a position holds; its magic, version and flags may be damaged."""
    size = claimed_size(data, at, layout)
    if size is None or len(data) - at < size:
        return False
    return crc32c(memoryview(data)[at + _CHECKED_FROM : at + size]) == _read_head(data, at, layout).checksum


def message_size(data: bytes, at: int, layout: GoQueueLayout) -> int:
    """Size in bytes of the message whose fixed part is at a position, within the limits; nothing else is verified.

    Raises :class:`GoQueueMessageError` (TRUNCATED, BAD_MAGIC, BAD_VERSION, BAD_OFFSET, TOO_LARGE).
    """
    head = _bounded_head(data, at, layout)
    return layout.value + head.key_bytes + head.value_bytes + head.headers_bytes


def _bounded_head(data: bytes, at: int, layout: GoQueueLayout) -> _Head:
    available = len(data) - at
    if available < layout.value:
        detail = f"{max(0, available)} of {layout.value} header bytes"
        raise GoQueueMessageError(GoQueueProblem.TRUNCATED, detail, position=at)
    head = _read_head(data, at, layout)
    problem, detail = None, ""
    if head.magic != MAGIC_BYTES:
        problem = GoQueueProblem.BAD_MAGIC
    elif head.version != VERSION:
        problem, detail = GoQueueProblem.BAD_VERSION, f"version {head.version}; known is {VERSION}"
    elif head.offset < 0:
        problem, detail = GoQueueProblem.BAD_OFFSET, f"offset {head.offset}"
    elif head.value_bytes > MAX_VALUE_BYTES:
        problem = GoQueueProblem.TOO_LARGE
        detail = f"a value of {head.value_bytes} bytes; the limit is {MAX_VALUE_BYTES}"
    if problem is not None:
        raise GoQueueMessageError(problem, detail, position=at)
    return head


def decode_message(data: bytes, at: int = 0, *, layout: GoQueueLayout = GoQueueLayout.V34) -> GoQueueMessage:
    """The message at a position, verified. What follows it is not looked at. Raises :class:`GoQueueMessageError`."""
    head = _bounded_head(data, at, layout)
    key_start = at + layout.value
    key_end = key_start + head.key_bytes
    value_end = key_end + head.value_bytes
    end = value_end + head.headers_bytes
    if len(data) < end:
        detail = f"{len(data) - at} of {end - at} bytes"
        raise GoQueueMessageError(GoQueueProblem.TRUNCATED, detail, position=at)
    if crc32c(memoryview(data)[at + _CHECKED_FROM : end]) != head.checksum:
        raise GoQueueMessageError(GoQueueProblem.BAD_CHECKSUM, position=at)
    if head.priority >= len(_PRIORITIES):
        raise GoQueueMessageError(GoQueueProblem.BAD_PRIORITY, f"priority {head.priority}", position=at)
    check_flags(head.flags, has_headers=head.headers_bytes > 0, position=at)
    return GoQueueMessage(
        offset=head.offset,
        timestamp_ns=head.timestamp_ns,
        key=data[key_start:key_end],
        value=data[key_end:value_end],
        flags=_FLAGS[head.flags],
        priority=_PRIORITIES[head.priority],
        headers=_decode_headers(data[value_end:end], position=at) if head.headers_bytes else (),
    )


def check_flags(flags: int, *, has_headers: bool, position: int) -> None:
    """Raises :class:`GoQueueMessageError` for flags that GoQueue never writes: the checksum does not cover them."""
    detail = ""
    if flags & ~_KNOWN_FLAGS:
        detail = f"unknown bits in {flags:#04x}"
    elif has_headers and not flags & _HAS_HEADERS:
        detail = "there are headers, but no flag for them"
    elif flags & _COMMIT and not flags & _CONTROL:
        detail = "a commit that is no control message"
    if detail:
        raise GoQueueMessageError(GoQueueProblem.BAD_FLAGS, detail, position=position)


def _decode_headers(block: bytes, *, position: int) -> Headers:
    headers: list[tuple[bytes, bytes]] = []
    at = _COUNT.size
    try:
        (count,) = _COUNT.unpack_from(block)
        for _ in range(count):
            (size,) = _COUNT.unpack_from(block, at)
            name = block[at + 2 : at + 2 + size]
            at += 2 + size
            (size,) = _COUNT.unpack_from(block, at)
            headers.append((name, block[at + 2 : at + 2 + size]))
            at += 2 + size
    except struct.error:
        at = len(block) + 1
    if not headers or at != len(block):
        detail = f"a block of {len(block)} bytes does not hold the headers that it counts"
        raise GoQueueMessageError(GoQueueProblem.BAD_HEADERS, detail, position=position)
    return tuple(headers)


def _headers_bytes(headers: Headers) -> int:
    return _COUNT.size + sum(4 + len(name) + len(value) for name, value in headers) if headers else 0


def _encode_headers(headers: Headers) -> bytes:
    """The headers block; empty when there are none."""
    if not headers:
        return b""
    parts = [_COUNT.pack(len(headers))]
    for name, value in headers:
        parts += (_COUNT.pack(len(name)), name, _COUNT.pack(len(value)), value)
    return b"".join(parts)


def encode_message(message: GoQueueMessage, *, layout: GoQueueLayout = GoQueueLayout.V34) -> bytes:
    """The bytes of a message. Raises :class:`GoQueueMessageError`: it breaks a limit, or the layout lacks a field."""
    check_encodable(message, layout)
    headers = _encode_headers(message.headers)
    flags = int(message.flags) | (_HAS_HEADERS if headers else 0)
    sizes: tuple[int, ...] = (len(message.key), len(message.value))
    if layout is not GoQueueLayout.V30:
        sizes = (int(message.priority), 0, *sizes)
    if layout is GoQueueLayout.V34:
        sizes = (*sizes, len(headers))
    head = _HEADS[layout].pack(MAGIC_BYTES, VERSION, flags, 0, message.offset, message.timestamp_ns, *sizes)
    checked = b"".join((head[_CHECKED_FROM:], message.key, message.value, headers))
    return head[:4] + crc32c(checked).to_bytes(4, "big") + checked


def check_encodable(message: GoQueueMessage, layout: GoQueueLayout) -> None:
    """Raises :class:`GoQueueMessageError` when the message breaks a limit or the layout lacks a field that it needs."""
    problem, detail = None, ""
    if not 0 <= message.offset <= MAX_OFFSET:
        problem, detail = GoQueueProblem.BAD_OFFSET, f"offset {message.offset}"
    elif not -(2**63) <= message.timestamp_ns < 2**63:
        problem, detail = GoQueueProblem.BAD_TIMESTAMP, f"{message.timestamp_ns} ns"
    elif not 0 <= message.priority < len(_PRIORITIES):
        problem, detail = GoQueueProblem.BAD_PRIORITY, f"priority {message.priority}"
    elif len(message.key) > MAX_KEY_BYTES:
        problem, detail = GoQueueProblem.TOO_LARGE, f"a key of {len(message.key)} bytes; the limit is {MAX_KEY_BYTES}"
    elif len(message.value) > MAX_VALUE_BYTES:
        problem = GoQueueProblem.TOO_LARGE
        detail = f"a value of {len(message.value)} bytes; the limit is {MAX_VALUE_BYTES}"
    elif (headers_bytes := _headers_bytes(message.headers)) > MAX_HEADERS_BYTES:
        problem = GoQueueProblem.TOO_LARGE
        detail = f"headers of {headers_bytes} bytes; the limit is {MAX_HEADERS_BYTES}"
    elif layout is not GoQueueLayout.V34 and message.headers:
        problem, detail = GoQueueProblem.NOT_IN_LAYOUT, f"headers need the 34-byte layout, not {layout.value}"
    elif layout is GoQueueLayout.V30 and message.priority is not Priority.NORMAL:
        problem, detail = GoQueueProblem.NOT_IN_LAYOUT, "a priority needs the 32- or 34-byte layout, not 30"
    if problem is not None:
        raise GoQueueMessageError(problem, detail)
    has_headers = bool(message.headers)
    flags = int(message.flags) | (_HAS_HEADERS if has_headers else 0)
    check_flags(flags, has_headers=has_headers, position=0)


def detect_layout(data: bytes) -> GoQueueLayout | None:
    """The layout in which the first message of a segment is sound; None when it is in none.

    ``data`` must hold the whole first message. The version does not tell the layouts apart, but the checksum does.
    """
    for layout in (GoQueueLayout.V34, GoQueueLayout.V32, GoQueueLayout.V30):
        try:
            decode_message(data, layout=layout)
        except GoQueueMessageError:
            continue
        return layout
    return None
