"""Walks the batches of a segment file and tells sound ones from damage. Everything that reads a whole file uses it.

A damaged range with sound batches behind it is *damage*: it was written once, so it is reported, kept and skipped.
Bytes at the end that are no batch are the *tail*: most likely a write that did not finish.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from assay.reference_broker.storage.batch import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAGIC_BYTES,
    MAX_BATCH_RECORDS,
    MAX_RECORDS_BYTES,
    VERSION,
    BatchError,
    BatchHeader,
    BatchProblem,
    decode_header,
    verify_checksum,
)
from assay.reference_broker.storage.disk import DiskFile

_WINDOW_BYTES = 1024 * 1024
CHECKED_FROM = 8


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A byte range of a segment that holds no sound batch."""

    start: int
    end: int
    problem: str
    is_tail: bool = False
    """Nothing sound follows."""


class BatchPlace(NamedTuple):
    """Where a sound batch lies; a plain tuple since a scan makes one for each."""

    position: int
    base_offset: int
    record_count: int
    size: int
    base_timestamp_ms: int
    max_timestamp_ms: int


class SoundBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch whose bounds, checksum and place in the order of offsets are right."""

    position: int
    header: BatchHeader
    data: bytes


class Window:
    """Reads a file through a sliding buffer, so that many small reads cost few system calls."""

    __slots__ = ("_data", "_end", "_file", "_read_bytes", "_start", "size")

    def __init__(self, file: DiskFile, *, size: int | None = None, read_bytes: int = _WINDOW_BYTES) -> None:
        """``size``: where the file ends for this reader. ``read_bytes``: how much to read at least."""
        self._file = file
        self.size = file.size if size is None else size
        self._read_bytes = read_bytes
        self._start = self._end = 0
        self._data = b""

    def locate(self, position: int, length: int) -> tuple[bytes, int]:
        """The buffer and the place in it where a file position is; ``length`` bytes follow unless the file ends."""
        if position < self._start or position + length > self._end:
            wanted = min(max(length, self._read_bytes), max(0, self.size - position))
            self._data = self._file.read_at(position, wanted)
            self._start, self._end = position, position + len(self._data)
        return self._data, position - self._start

    def bytes_at(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer at the end of the file."""
        data, at = self.locate(position, length)
        return data[at : at + length]

    def header_at(self, position: int) -> BatchHeader:
        """The header at a position, its checksum not verified. Raises :class:`BatchError`."""
        header = decode_header(self.bytes_at(position, HEADER_BYTES))
        if position + header.total_bytes > self.size:
            raise BatchError(BatchProblem.TRUNCATED, f"{header.total_bytes} bytes claimed")
        return header

    def sound_batch(self, position: int) -> BatchHeader:
        """Header of the batch at a position, its checksum verified. Raises :class:`BatchError`."""
        header = self.header_at(position)
        verify_checksum(header, self.bytes_at(position, header.total_bytes))
        return header


def scan_batches(
    window: Window, base_offset: int, *, start: int = 0, end_offset: int | None = None
) -> Iterator[BatchPlace | Damage]:
    """The batches from a position on, each verified but not decoded, and the damage between them.

    ``base_offset``: the least offset that may come. ``end_offset``: what is found behind damage has offsets below it.
    """
    position, least, size = start, base_offset, window.size
    unpack = HEADER.unpack_from
    locate = window.locate
    while position < size:
        data, at = locate(position, HEADER_BYTES)
        if len(data) - at >= HEADER_BYTES:
            magic, checksum, base, length, count, _, _, version, reserved, base_ms, max_ms = unpack(data, at)
            total = HEADER_BYTES + length
            if (
                magic == MAGIC
                and version == VERSION
                and not reserved
                and count
                and length <= MAX_RECORDS_BYTES
                and least <= base
                and not base >> 63
                and position + total <= size
            ):
                data, at = locate(position, total)
                if crc32c(memoryview(data)[at + CHECKED_FROM : at + total]) == checksum:
                    yield BatchPlace(position, base, count, total, base_ms, max_ms)
                    least = base + count
                    position += total
                    continue
        problem = _problem_at(window, position, least)
        found = next_sound_batch(window, position, least, end_offset=end_offset)
        if found is None:
            yield Damage(start=position, end=size, problem=problem, is_tail=True)
            return
        yield Damage(start=position, end=found, problem=problem)
        position = found


def walk_batches(
    file: DiskFile, base_offset: int, *, start: int = 0, end_offset: int | None = None
) -> Iterator[SoundBatch | Damage]:
    """As :func:`scan_batches`, with the bytes of each batch."""
    window = Window(file)
    for found in scan_batches(window, base_offset, start=start, end_offset=end_offset):
        if isinstance(found, Damage):
            yield found
        else:
            data = window.bytes_at(found.position, found.size)
            yield SoundBatch(position=found.position, header=decode_header(data), data=data)


def _problem_at(window: Window, position: int, least_offset: int) -> str:
    """Why the batch at a position is not sound."""
    try:
        header = window.sound_batch(position)
    except BatchError as error:
        return str(error)
    return f"offset {header.base_offset} goes back; at least {least_offset} is due"


def next_sound_batch(window: Window, position: int, least_offset: int, *, end_offset: int | None = None) -> int | None:
    """Position of the first sound batch after a bad one at ``position``; None when there is none.

    While headers look sound their lengths say where to go on: a byte search would meet batches that a publisher has put
    into a payload. Only a broken header leaves no other way.
    """
    bad = position
    while (header := _header_or_none(window, bad)) is not None:
        at = bad + header.total_bytes
        if at >= window.size:
            return _search(window, bad, position, least_offset, end_offset, to_the_end=True)
        if _is_plausible(window, at, position, least_offset, end_offset):
            return at
        if _header_or_none(window, at) is None:
            break
        bad = at
    return _search(window, bad, position, least_offset, end_offset, to_the_end=False)


def _header_or_none(window: Window, position: int) -> BatchHeader | None:
    try:
        return decode_header(window.bytes_at(position, HEADER_BYTES))
    except BatchError:
        return None


def _search(
    window: Window, bad: int, position: int, least_offset: int, end_offset: int | None, *, to_the_end: bool
) -> int | None:
    """Look for a sound batch byte by byte behind a bad one.

    ``to_the_end``: the bad one claims all that is left, as a torn write does. Then what is found in it only counts when
    it is a chain of sound batches up to the end, so that it is the length that must be wrong.
    """
    at = bad + 1
    while at < window.size:
        data, begin = window.locate(at, HEADER_BYTES)
        hit = data.find(MAGIC_BYTES, begin)
        if hit < 0:
            at += max(1, len(data) - begin - len(MAGIC_BYTES) + 1)
            continue
        at += hit - begin
        if _is_plausible(window, at, position, least_offset, end_offset) and (
            not to_the_end or _chains_to_end(window, at)
        ):
            return at
        at += 1
    return None


def _chains_to_end(window: Window, position: int) -> bool:
    """Whether sound batches reach from a position to exactly the end of the file."""
    try:
        while position < window.size:
            position += window.sound_batch(position).total_bytes
    except BatchError:
        return False
    return True


def _is_plausible(window: Window, at: int, bad_position: int, least_offset: int, end_offset: int | None) -> bool:
    """Whether a sound batch with offsets that may follow the bad one is at a position."""
    if end_offset is None:
        end_offset = least_offset + MAX_BATCH_RECORDS * ((at - bad_position) // HEADER_BYTES + 2)
    try:
        header = window.header_at(at)
        if not least_offset <= header.base_offset <= end_offset - header.record_count:
            return False
        # Last, since it costs as much as the batch is long.
        window.sound_batch(at)
    except BatchError:
        return False
    return True
