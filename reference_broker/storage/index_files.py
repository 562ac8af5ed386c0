"""The two index files of a segment, FluxMQ's bytes: ``.idx`` finds offsets, ``.tix`` finds times.

Both are hints. A reader checks what an index says against the batch it names, so that a damaged index costs time and
never an answer. All integers are little-endian.

- ``.idx``: header of 32 bytes (magic, version, base offset, entry count, interval in bytes, 11 reserved), then entries
  of 8 bytes (offset relative to the base, position in the segment file).
- ``.tix``: header of 36 bytes (magic, version, base offset, entry count, least and greatest timestamp, 3 reserved),
  then entries of 12 bytes (timestamp in Unix ms, offset relative to the base).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from itertools import chain
from operator import lt

import msgspec

OFFSET_INDEX_MAGIC = 0x464C5849
TIME_INDEX_MAGIC = 0x464C5854
INDEX_VERSION = 1
INDEX_INTERVAL_BYTES = 4_096
"""An offset is indexed each time at least so many bytes came in since the last one."""
TIME_INTERVAL_MS = 1_000
"""A batch's time is indexed only when it is at least so much later than the last indexed one."""
MAX_INDEXED = 2**32 - 1
"""Relative offsets and positions have 32 bits. A log keeps its segments smaller; files from elsewhere may not."""
OFFSET_HEADER_BYTES = 32
TIME_HEADER_BYTES = 36
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
_OFFSET_HEADER = struct.Struct("<IBQII11x")
_TIME_HEADER = struct.Struct("<IBQIqq3x")
_TIME_ENTRY = struct.Struct("<qI")
_IS_LITTLE_ENDIAN = sys.byteorder == "little"


class IndexFileError(ValueError):
    """The bytes are not a sound index file; it can be rebuilt from its segment."""


class OffsetIndexFile(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded ``.idx``. ``offsets`` are relative to ``base_offset``; both columns grow strictly."""

    base_offset: int
    interval_bytes: int
    offsets: array[int]
    positions: array[int]

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(relative offset, position in the segment file)."""
        return list(zip(self.offsets, self.positions, strict=True))


class TimeIndexFile(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded ``.tix``. Times are Unix ms; ``offsets`` are relative to ``base_offset``; both columns grow."""

    base_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    timestamps_ms: array[int]
    offsets: array[int]

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(timestamp in ms, relative offset)."""
        return list(zip(self.timestamps_ms, self.offsets, strict=True))


def encode_offset_index(
    base_offset: int, entries: Iterable[tuple[int, int]], *, interval_bytes: int = INDEX_INTERVAL_BYTES
) -> bytes:
    """The bytes of an ``.idx``; ``entries`` are (relative offset, position), each below 2**32."""
    numbers = array("I", chain.from_iterable(entries))
    header = _OFFSET_HEADER.pack(OFFSET_INDEX_MAGIC, INDEX_VERSION, base_offset, len(numbers) // 2, interval_bytes)
    if not _IS_LITTLE_ENDIAN:
        numbers.byteswap()
    return header + numbers.tobytes()


def encode_time_index(
    base_offset: int, entries: Iterable[tuple[int, int]], *, min_timestamp_ms: int, max_timestamp_ms: int
) -> bytes:
    """The bytes of a ``.tix``; ``entries`` are (timestamp in ms, relative offset)."""
    body = b"".join(_TIME_ENTRY.pack(timestamp_ms, offset) for timestamp_ms, offset in entries)
    count = len(body) // TIME_ENTRY_BYTES
    header = _TIME_HEADER.pack(TIME_INDEX_MAGIC, INDEX_VERSION, base_offset, count, min_timestamp_ms, max_timestamp_ms)
    return header + body


def decode_offset_index(data: bytes) -> OffsetIndexFile:
    """Raises :class:`IndexFileError` when size, header or order of the entries is wrong.

    The count in the header may lag behind the file: writers of the format update it only when they sync or close.
    """
    _check_size(data, OFFSET_HEADER_BYTES, OFFSET_ENTRY_BYTES)
    magic, version, base_offset, count, interval_bytes = _OFFSET_HEADER.unpack_from(data)
    numbers = array("I")
    numbers.frombytes(data[OFFSET_HEADER_BYTES:])
    if not _IS_LITTLE_ENDIAN:
        numbers.byteswap()
    offsets, positions = numbers[::2], numbers[1::2]
    _check_header(magic, OFFSET_INDEX_MAGIC, version, data[21:32], count, len(offsets))
    _check_growth(offsets)
    _check_growth(positions)
    return OffsetIndexFile(base_offset=base_offset, interval_bytes=interval_bytes, offsets=offsets, positions=positions)


def decode_time_index(data: bytes) -> TimeIndexFile:
    """Raises :class:`IndexFileError` when size, header or order of the entries is wrong."""
    _check_size(data, TIME_HEADER_BYTES, TIME_ENTRY_BYTES)
    magic, version, base_offset, count, least_ms, greatest_ms = _TIME_HEADER.unpack_from(data)
    timestamps_ms, offsets = array("q"), array("I")
    for timestamp_ms, offset in _TIME_ENTRY.iter_unpack(data[TIME_HEADER_BYTES:]):
        timestamps_ms.append(timestamp_ms)
        offsets.append(offset)
    _check_header(magic, TIME_INDEX_MAGIC, version, data[33:36], count, len(offsets))
    _check_growth(timestamps_ms)
    _check_growth(offsets)
    if timestamps_ms and not least_ms <= timestamps_ms[0] <= timestamps_ms[-1] <= greatest_ms:
        raise IndexFileError("the entries lie outside the times that the header names")
    return TimeIndexFile(
        base_offset=base_offset,
        min_timestamp_ms=least_ms,
        max_timestamp_ms=greatest_ms,
        timestamps_ms=timestamps_ms,
        offsets=offsets,
    )


def _check_size(data: bytes, header_bytes: int, entry_bytes: int) -> None:
    if len(data) < header_bytes or (len(data) - header_bytes) % entry_bytes:
        raise IndexFileError(f"{len(data)} bytes are no header of {header_bytes} and whole entries of {entry_bytes}")


def _check_header(magic: int, expected: int, version: int, reserved: bytes, count: int, entries: int) -> None:
    if magic != expected:
        raise IndexFileError("no index starts here")
    if version != INDEX_VERSION or any(reserved):
        message = f"version {version} with reserved bytes {reserved.hex()}; this broker reads version {INDEX_VERSION}"
        raise IndexFileError(message)
    if count > entries:
        raise IndexFileError(f"the header counts {count} entries, the file has {entries}")


def _check_growth(numbers: array[int]) -> None:
    if not all(map(lt, numbers, numbers[1:])):
        raise IndexFileError("the entries do not grow")
