"""Holds an index file against the batches of its segment, entry by entry.

The file is taken apart leniently, so that one wrong byte is reported where it is and the rest is still checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import msgspec

from assay.reference_broker.storage.index_files import (
    INDEX_INTERVAL_BYTES,
    TIME_HEADER_BYTES,
    IndexFileError,
    decode_offset_index,
    decode_time_index,
)
from assay.reference_broker.storage_tools.index_rebuild import IndexBuilder, IndexFormat
from assay.reference_broker.storage_tools.segment_reader import Chunk

MAX_INDEX_BYTES = 512 * 1024 * 1024
"""No sound index of a segment is larger; what is larger is called damaged without being read."""
_COUNT_AT = 13
_TIME_HEADER = struct.Struct("<IBQIqq3x")
_GOQUEUE_ENTRY = struct.Struct(">qq")


class _Form(NamedTuple):
    """How an index of ours is laid out."""

    header: struct.Struct
    entry: struct.Struct
    decode: Callable[[bytes], object]


_FORMS = {
    IndexFormat.OFFSETS: _Form(struct.Struct("<IBQII11x"), struct.Struct("<II"), decode_offset_index),
    IndexFormat.TIMES: _Form(_TIME_HEADER, struct.Struct("<qI"), decode_time_index),
}


class IndexState(StrEnum):
    """What an index is worth."""

    SOUND = "sound"
    MISSING = "missing"
    STALE = "stale"
    """It says nothing wrong, and covers only the first part of the segment."""
    DAMAGED = "damaged"


class IndexProblem(NamedTuple):
    """Something wrong in an index file, at a byte position in it."""

    position: int
    problem: str
    is_harmless: bool = False
    """A reader gets the same answers."""


class IndexInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An index file as ``inspect`` shows it."""

    state: IndexState
    entries: int
    bytes: int


class _Entry(NamedTuple):
    at: int
    """Byte position in the index file."""
    key: int
    """What names a chunk: its position in the segment, or for times its base offset."""
    value: int
    """What the index says of it: its base offset, or its greatest time."""


class IndexCheck:
    """Feed it the chunks of the segment in order, then ask for the outcome."""

    def __init__(self, data: bytes | None, base_offset: int, index_format: IndexFormat, *, is_final: bool) -> None:
        """``data`` None: there is no such file. ``is_final``: nothing is appended to the segment any more."""
        self._data = data
        self._format = index_format
        self._base_offset = base_offset
        self._by_offset = index_format in (IndexFormat.OFFSETS, IndexFormat.GOQUEUE_OFFSETS)
        self._builder = IndexBuilder(base_offset, index_format)
        self.problems: list[IndexProblem] = []
        self._entries: list[_Entry] = [] if data is None else self._parse(data, is_final)
        self._wanted = {entry.key: entry for entry in self._entries}
        self._last_key = self._entries[-1].key if self._entries else -1
        self._damaged: list[tuple[int, int]] = []
        self._unindexed_from: int | None = None
        self._seen_end = 0
        self._all: tuple[int, int] | None = None
        """Least and greatest time of the chunks seen ..."""
        self._indexed: tuple[int, int] | None = None
        """... and of those up to the last entry."""

    def see(self, chunk: Chunk) -> None:
        """The next sound chunk of the segment."""
        key = chunk.position if self._by_offset else chunk.base_offset
        self._seen_end = chunk.position + chunk.size
        self._all = _widened(self._all, chunk)
        self._builder.add(chunk)
        if key <= self._last_key:
            self._indexed = self._all
        elif self._unindexed_from is None:
            self._unindexed_from = chunk.position
        entry = self._wanted.pop(key, None)
        if entry is None:
            return
        said, found = entry.value, chunk.base_offset if self._by_offset else chunk.indexed_time
        if said != found:
            what = "offset" if self._by_offset else "time"
            self.problems.append(IndexProblem(entry.at, f"the entry says {what} {said}, the batch there has {found}"))

    def see_damage(self, start: int, end: int, first_offset: int, end_offset: int) -> None:
        """A damaged range of the segment: entries into it cannot be judged."""
        self._damaged.append((start, end) if self._by_offset else (first_offset, end_offset))

    def finish(self) -> IndexState:
        """Every chunk was seen. The problems are in :attr:`problems`, by position."""
        if self._data is None:
            return IndexState.MISSING
        for entry in self._wanted.values():
            if any(start <= entry.key < end for start, end in self._damaged):
                continue
            place = f"byte {entry.key}" if self._by_offset else f"offset {entry.key}"
            self.problems.append(IndexProblem(entry.at, f"the entry names {place}, where no batch starts"))
        if self._format is IndexFormat.TIMES:
            self._check_bounds(self._data)
        self.problems.sort()
        if self.problems and self._builder.is_half_written(self._data):
            end = len(self._data.rstrip(b"\0"))
            self.problems = [IndexProblem(end, "the file was only written up to here", is_harmless=True)]
            return IndexState.DAMAGED
        if any(not problem.is_harmless for problem in self.problems):
            return IndexState.DAMAGED
        return IndexState.STALE if self._is_stale() else IndexState.SOUND

    def info(self, state: IndexState) -> IndexInfo:
        size = 0 if self._data is None else len(self._data)
        return IndexInfo(state=state, entries=len(self._entries), bytes=size)

    def _is_stale(self) -> bool:
        """Whether a rebuilt index would have more entries. Time indexes are sparse in time, so offsets decide."""
        if not self._by_offset:
            return not self._entries and self._seen_end > 0
        uncovered = 0 if self._unindexed_from is None else self._seen_end - max(self._last_key, 0)
        return (not self._entries and self._seen_end > 0) or uncovered > 16 * INDEX_INTERVAL_BYTES

    def _check_bounds(self, data: bytes) -> None:
        """Least and greatest time in the header must hold for what is indexed, and should be no wider than needed."""
        if len(data) < TIME_HEADER_BYTES or self._indexed is None or self._all is None:
            return
        _, _, _, _, least_ms, greatest_ms = _TIME_HEADER.unpack_from(data)
        if not self._all[0] <= least_ms <= self._indexed[0]:
            problem = f"the header says that times start at {least_ms}; the least is {self._indexed[0]}"
            self.problems.append(IndexProblem(17, problem, is_harmless=least_ms < self._all[0]))
        if not self._indexed[1] <= greatest_ms <= self._all[1]:
            problem = f"the header says that times end at {greatest_ms}; the greatest is {self._indexed[1]}"
            self.problems.append(IndexProblem(25, problem, is_harmless=greatest_ms > self._all[1]))

    # -- taking the file apart -----------------------------------------------------------------------------------

    def _parse(self, data: bytes, is_final: bool) -> list[_Entry]:
        form = _FORMS.get(self._format)
        header_bytes, pair = (0, _GOQUEUE_ENTRY) if form is None else (form.header.size, form.entry)
        body = self._body(data, header_bytes, pair.size)
        if form is not None and len(data) >= header_bytes:
            self._read_header(data, form, len(body) // pair.size, is_final)
        # Offsets are relative to the segment's in our files: the first number of an .idx, the second of a .tix.
        value_base = self._base_offset if self._format is IndexFormat.OFFSETS else 0
        key_base = self._base_offset if self._format is IndexFormat.TIMES else 0
        entries = [
            _Entry(header_bytes + number * pair.size, key_base + key, value_base + value)
            for number, (value, key) in enumerate(pair.iter_unpack(body))
        ]
        # GoQueue indexes times as they come, and clocks may step back.
        values_grow = self._format is not IndexFormat.GOQUEUE_TIMES
        for before, entry in pairwise(entries):
            if before.key >= entry.key or (values_grow and before.value >= entry.value):
                self.problems.append(IndexProblem(entry.at, "the entry does not follow the one before it"))
        return entries

    def _read_header(self, data: bytes, form: _Form, entries: int, is_final: bool) -> None:
        try:
            form.decode(data[:_COUNT_AT] + bytes(4) + data[_COUNT_AT + 4 : form.header.size])
        except IndexFileError as error:
            self.problems.append(IndexProblem(0, str(error)))
        _, _, base_offset, count, interval_bytes, *_ = form.header.unpack_from(data)
        self._check_header(base_offset, count, entries, is_final)
        if self._format is IndexFormat.OFFSETS and interval_bytes != INDEX_INTERVAL_BYTES:
            problem = f"the header says an entry each {interval_bytes} bytes; writers use {INDEX_INTERVAL_BYTES}"
            self.problems.append(IndexProblem(17, problem, is_harmless=True))

    def _check_header(self, base_offset: int, count: int, entries: int, is_final: bool) -> None:
        if base_offset != self._base_offset:
            problem = f"it belongs to the segment of offset {base_offset}, not {self._base_offset}"
            self.problems.append(IndexProblem(5, problem))
        # Writers may update the count only when they sync or close, so that it lags while a segment grows.
        if count > entries or (count < entries and is_final):
            self.problems.append(IndexProblem(_COUNT_AT, f"the header counts {count} entries, the file has {entries}"))

    def _body(self, data: bytes, header_bytes: int, entry_bytes: int) -> bytes:
        """The whole entries."""
        length = max(0, len(data) - header_bytes)
        if len(data) < header_bytes or length % entry_bytes:
            problem = f"{len(data)} bytes are no header of {header_bytes} and whole entries of {entry_bytes}"
            self.problems.append(IndexProblem(len(data) - length % entry_bytes, problem))
        return data[header_bytes : header_bytes + length - length % entry_bytes]


def _widened(bounds: tuple[int, int] | None, chunk: Chunk) -> tuple[int, int]:
    """Least and greatest time with those of one more chunk."""
    least_ms = min(chunk.base_timestamp_ms, chunk.max_timestamp_ms)
    if bounds is None:
        return least_ms, chunk.max_timestamp_ms
    return min(bounds[0], least_ms), max(bounds[1], chunk.max_timestamp_ms)
