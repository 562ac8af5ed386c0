"""The bytes of a group's operation log: header, frames, operations. Everything is little-endian.

A file is a header, then frames. A frame is a length, a CRC32-C and the operations of one flush, so that a torn tail
and a flipped bit show. Header: magic u32, version u16, reserved u16, length u32 of the body, CRC32-C u32 of the twelve
bytes before it and the body. Body: group and pattern (uvarint length and UTF-8 each), sequence and previous bytes
(uvarint each): the log's number in its chain, and the exact size of the log that it continues.

Each operation starts with its code u8, an offset u64 and a partition u32. Then follow for

====  ==========  ====================================================================================
1     add         uvarint length and consumer, delivered at u64 (Unix ms), delivery count u16
2     ack
3     claim       as add: the count is absolute
4     expire      due at u64 (Unix ms)
5     cursor
6     ack ranges  uvarint number of ranges; each: uvarint offsets skipped since the last, uvarint length
7     rewind
8     add run     as add, then uvarint number of offsets that follow each other
9     annotate    uvarint length and all that consumers noted on the message so far, as a table of
              :mod:`assay.reference_broker.routing.properties`
====  ==========  ====================================================================================

Every field is absolute, so a whole log may be replayed over a snapshot taken anywhere within it. Version 1 had only
the codes 1 to 5, claims without a count (each meant one more), no sequence, and a checksum of the body alone.
Version 2 had the codes 1 to 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage.disk import DiskFile
from assay.reference_broker.storage.record import RecordError, read_uvarint, uvarint

MAGIC = 0x4C455046
VERSION = 3
_LAST_CODES = {1: 5, 2: 8, 3: 9}
"""By version."""
MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 256 * 1024
MAX_RUN = 65_536
"""Most offsets that one add run names."""
MAX_RANGES = 4_096
"""Most ranges that one operation acks."""
MAX_DELIVERY_COUNT = 65_535
_FILE_HEADER = struct.Struct("<IHHII")
_CHECKED_HEADER_BYTES = 12
_FRAME = struct.Struct("<II")
FRAME_OPERATIONS = 16_384
_READ_BYTES = 1024 * 1024
_SEARCH_BYTES = 4 * 1024 * 1024
_SEARCH_CHECKED_BYTES = 64 * 1024 * 1024
MAX_OFFSET = 2**64 - 1

PLACE = struct.Struct("<BQI")
PLACE_TIME = struct.Struct("<BQIQ")
_TIME = struct.Struct("<Q")
_TIME_COUNT = struct.Struct("<QH")


class Code(IntEnum):
    """First byte of an operation."""

    ADD = 1
    ACK = 2
    CLAIM = 3
    EXPIRE = 4
    CURSOR = 5
    ACK_RANGES = 6
    REWIND = 7
    ADD_RUN = 8
    ANNOTATE = 9


class Operation(NamedTuple):
    """One operation as replay sees it; a batch ack is one per range."""

    code: Code
    """ADD, ACK, CLAIM, EXPIRE, CURSOR, REWIND or ANNOTATE: runs and ranges only widen ADD and ACK."""
    partition: int
    offset: int
    end: int
    """One behind the last offset of an ADD or ACK."""
    consumer: str = ""
    at_ms: int = 0
    """ADD and CLAIM: when it was delivered. EXPIRE: when it is due."""
    delivery_count: int = 0
    """0 in a claim of version 1: one more than before."""
    annotations: bytes = b""


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a file."""

    version: int
    group: str
    pattern: str
    sequence: int
    """0 = the log alone is the whole state; otherwise it continues a snapshot or the log before it."""
    previous_bytes: int
    """Size of the log before it."""
    size: int
    """Bytes of the header itself."""


class LogFrame(NamedTuple):
    """A sound frame."""

    position: int
    end: int
    payload: bytes


class LogDamage(NamedTuple):
    """Where the sound part of a file ends although bytes follow."""

    position: int
    end: int
    problem: str
    is_tail: bool
    """Nothing sound follows, as after a write that was cut off."""


def encode_header(group: str, pattern: str, *, sequence: int = 0, previous_bytes: int = 0) -> bytes:
    """The start of a file, in the version that is written."""
    names = b"".join(uvarint(len(raw)) + raw for raw in (group.encode(), pattern.encode()))
    body = names + uvarint(sequence) + uvarint(previous_bytes)
    start = _FILE_HEADER.pack(MAGIC, VERSION, 0, len(body), 0)[:_CHECKED_HEADER_BYTES]
    return start + crc32c(start + body).to_bytes(4, "little") + body


def decode_header(data: bytes) -> LogHeader | None:
    """The header at the start of a file's first :data:`MAX_HEADER_BYTES`; None when it is damaged or cut.

    Raises :class:`LogError` for a sound header of a version that this code does not know.
    """
    if len(data) < _FILE_HEADER.size:
        return None
    magic, version, _, length, checksum = _FILE_HEADER.unpack_from(data)
    end = _FILE_HEADER.size + int(length)
    if magic != MAGIC or end > len(data):
        return None
    body = data[_FILE_HEADER.size : end]
    checked = body if version == 1 else data[:_CHECKED_HEADER_BYTES] + body
    if crc32c(checked) != checksum:
        return None
    if version not in _LAST_CODES:
        raise LogError(f"a group's operation log has version {version}; this broker reads versions 1 to {VERSION}")
    try:
        group, at = _read_name(body, 0)
        pattern, at = _read_name(body, at)
        sequence = previous_bytes = 0
        if version != 1:
            sequence, at = read_uvarint(body, at)
            previous_bytes, at = read_uvarint(body, at)
    except (RecordError, UnicodeDecodeError):
        return None
    return LogHeader(
        version=int(version),
        group=group,
        pattern=pattern,
        sequence=sequence,
        previous_bytes=previous_bytes,
        size=end,
    )


# -- frames ------------------------------------------------------------------------------------------------------


def encode_frames(operations: list[bytes]) -> bytes:
    """Encoded operations, in frames that a reader accepts."""
    pieces: list[bytes] = []
    for start in range(0, len(operations), FRAME_OPERATIONS):
        some = operations[start : start + FRAME_OPERATIONS]
        payload = b"".join(some)
        for piece in (payload,) if len(payload) <= MAX_FRAME_BYTES else some:
            pieces += (_FRAME.pack(len(piece), crc32c(piece)), piece)
    return b"".join(pieces)


def walk_frames(file: DiskFile, start: int) -> Iterator[LogFrame | LogDamage]:
    """Sound frames from a position on; last, when bytes are left over, what is wrong with them.

    Reads about a megabyte or one frame at a time. Raises :class:`OSError`.
    """
    size = file.size
    at = loaded = start
    data = b""
    while at < size:
        if len(data) - (at - loaded) < _FRAME.size:
            data, loaded = file.read_at(at, _READ_BYTES), at
        wanted = _FRAME.size + _length(data, at - loaded)
        if len(data) - (at - loaded) < wanted <= min(size - at, _FRAME.size + MAX_FRAME_BYTES):
            data, loaded = file.read_at(at, max(_READ_BYTES, wanted)), at
        end = _frame_end(data, at - loaded)
        if end is None:
            follows = _sound_frame_follows(file.read_at(at, _SEARCH_BYTES))
            problem = "sound frames follow a damaged one" if follows else "its last frame is cut or damaged"
            yield LogDamage(at, size, problem, is_tail=not follows)
            return
        yield LogFrame(at, loaded + end, data[at - loaded + _FRAME.size : end])
        at = loaded + end


def _length(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _frame_end(data: bytes, at: int) -> int | None:
    if at + _FRAME.size > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, at)
    end = at + _FRAME.size + int(length)
    if not 0 < length <= MAX_FRAME_BYTES or end > len(data):
        return None
    return end if crc32c(memoryview(data)[at + _FRAME.size : end]) == checksum else None


def _sound_frame_follows(data: bytes) -> bool:
    """Whether a sound frame starts anywhere behind the first byte; yes when looking for it takes too long.

    A damaged length leaves no other way to find the next frame. Mistaking chance bytes for one only keeps a copy.
    """
    budget = _SEARCH_CHECKED_BYTES
    view = memoryview(data)
    for at in range(1, len(data) - _FRAME.size):
        length, checksum = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + int(length)
        if PLACE.size <= length <= MAX_FRAME_BYTES and end <= len(data):
            if crc32c(view[at + _FRAME.size : end]) == checksum:
                return True
            budget -= int(length)
            if budget < 0:
                return True
    return False


# -- operations --------------------------------------------------------------------------------------------------


def encode_ack_ranges(partition: int, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
    """Ack operations for ranges ``(first, end)``, ascending and not touching each other."""
    operations: list[bytes] = []
    kept: list[tuple[int, int]] = []
    for span in ranges:
        kept.append(span)
        if len(kept) == MAX_RANGES:
            operations.append(_encode_ranges(partition, kept))
            kept = []
    if kept:
        operations.append(_encode_ranges(partition, kept))
    return operations


def _encode_ranges(partition: int, ranges: list[tuple[int, int]]) -> bytes:
    first, end = ranges[0]
    if len(ranges) == 1 and end == first + 1:
        return PLACE.pack(Code.ACK, first, partition)
    pieces = [PLACE.pack(Code.ACK_RANGES, first, partition), uvarint(len(ranges))]
    at = first
    for first, end in ranges:
        pieces.append(uvarint(first - at))
        pieces.append(uvarint(end - first))
        at = end
    return b"".join(pieces)


def decode_operations(payload: bytes, version: int = VERSION) -> list[Operation]:
    """The operations of a frame. Raises :class:`RecordError` for an unknown, cut or absurd one."""
    operations: list[Operation] = []
    at = 0
    try:
        while at < len(payload):
            at = _decode(payload, at, version, operations)
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordError(f"a damaged operation: {error}") from error
    return operations


def _decode(payload: bytes, at: int, version: int, operations: list[Operation]) -> int:
    number, offset, partition = PLACE.unpack_from(payload, at)
    at += PLACE.size
    if not Code.ADD <= number <= _LAST_CODES[version]:
        raise RecordError(f"unknown operation {number}")
    code = Code(number)
    if code in (Code.ADD, Code.CLAIM, Code.ADD_RUN):
        return _decode_delivery(payload, at, version, Operation(code, partition, offset, offset + 1), operations)
    if code is Code.ACK_RANGES:
        return _decode_ranges(payload, at, partition, offset, operations)
    due_at_ms, annotations = 0, b""
    if code is Code.EXPIRE:
        (due_at_ms,) = _TIME.unpack_from(payload, at)
        at += _TIME.size
    elif code is Code.ANNOTATE:
        annotations, at = _read_bytes(payload, at)
    operations.append(Operation(code, partition, offset, offset + 1, at_ms=due_at_ms, annotations=annotations))
    return at


def _decode_delivery(payload: bytes, at: int, version: int, named: Operation, operations: list[Operation]) -> int:
    consumer, at = _read_name(payload, at)
    count, run = 0, 1
    if named.code is Code.CLAIM and version == 1:
        (at_ms,) = _TIME.unpack_from(payload, at)
        at += _TIME.size
    else:
        at_ms, count = _TIME_COUNT.unpack_from(payload, at)
        at += _TIME_COUNT.size
    code = named.code
    if code is Code.ADD_RUN:
        code = Code.ADD
        run, at = read_uvarint(payload, at)
        if not 0 < run <= MAX_RUN:
            raise RecordError(f"a run of {run} deliveries")
    end = named.offset + run
    if code is Code.ADD and end > MAX_OFFSET:
        raise RecordError("a delivery behind the last offset")
    operations.append(Operation(code, named.partition, named.offset, end, consumer, at_ms, count))
    return at


def _decode_ranges(payload: bytes, at: int, partition: int, offset: int, operations: list[Operation]) -> int:
    ranges, at = read_uvarint(payload, at)
    if not 0 < ranges <= MAX_RANGES:
        raise RecordError(f"an ack of {ranges} ranges")
    for _ in range(ranges):
        skipped, at = read_uvarint(payload, at)
        length, at = read_uvarint(payload, at)
        start = offset + skipped
        offset = start + length
        if not length or offset > MAX_OFFSET:
            raise RecordError("an ack of an impossible range")
        operations.append(Operation(Code.ACK, partition, start, offset))
    return at


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    raw, at = _read_bytes(data, at)
    return raw.decode(), at


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_uvarint(data, at)
    if at + size > len(data):
        raise RecordError("a name reaches past the end")
    return data[at : at + size], at + size
