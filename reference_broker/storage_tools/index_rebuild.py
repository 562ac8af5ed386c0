"""Builds the index that a segment ought to have, to write it anew or to hold a half-written one against it."""

from __future__ import annotations

from enum import StrEnum

from assay.reference_broker.storage.offset_index import OffsetIndex
from assay.reference_broker.storage.time_index import TimeIndex
from assay.reference_broker.storage_tools.foreign.goqueue_files import INDEX_INTERVAL_BYTES, encode_index
from assay.reference_broker.storage_tools.segment_reader import Chunk

_MAX_NUMBER = 2**32 - 1
_VARYING = {".idx": ((13, 17),), ".tix": ((13, 17), (17, 33))}
"""Header fields that depend on how far an index reaches: the count, the least and greatest time."""


class IndexFormat(StrEnum):
    """Which of the four index files it is."""

    OFFSETS = ".idx"
    TIMES = ".tix"
    GOQUEUE_OFFSETS = ".index"
    GOQUEUE_TIMES = ".timeindex"


class IndexBuilder:
    """Feed it the chunks of a segment in order."""

    def __init__(self, base_offset: int, index_format: IndexFormat) -> None:
        self._base_offset = base_offset
        self._format = index_format
        self._offsets = OffsetIndex()
        self._times = TimeIndex()
        self._pairs: list[tuple[int, int]] = []
        self._last_position = 0
        self._end = 0

    @property
    def is_empty(self) -> bool:
        """No chunk came: the segment needs no index."""
        return not self._end

    def add(self, chunk: Chunk) -> None:
        """The next sound chunk. What lies beyond the numbers that the files hold is not indexed."""
        relative = chunk.base_offset - self._base_offset
        self._end = chunk.end
        if self._format in (IndexFormat.OFFSETS, IndexFormat.TIMES):
            if max(relative, chunk.position) > _MAX_NUMBER:
                return
            if self._format is IndexFormat.OFFSETS:
                self._offsets.add(relative, chunk.position)
            else:
                self._times.add(relative, chunk.base_timestamp_ms, chunk.max_timestamp_ms)
        elif not self._pairs or chunk.position - self._last_position >= INDEX_INTERVAL_BYTES:
            self._last_position = chunk.position
            by_offset = self._format is IndexFormat.GOQUEUE_OFFSETS
            self._pairs.append(
                (chunk.base_offset, chunk.position) if by_offset else (chunk.indexed_time, chunk.base_offset)
            )

    def encode(self) -> bytes:
        """The file."""
        if self._format is IndexFormat.OFFSETS:
            return self._offsets.encode(self._base_offset, below=self._end)
        if self._format is IndexFormat.TIMES:
            return self._times.encode(self._base_offset)
        return encode_index(self._pairs)

    def is_half_written(self, data: bytes) -> bool:
        """Whether a file is the start of what was to be written: indexes are not synced, so power loss leaves this.

        The rest is missing, or zeros: its size arrived on disk and its data did not.
        """
        expected = self.encode()
        there = data.rstrip(b"\0")
        wanted = expected[: len(data)]
        for start, end in _VARYING.get(self._format, ()):
            if there[start:end]:
                wanted = wanted[:start] + data[start:end] + wanted[end:]
        if not wanted.startswith(there):
            return False
        # One wrong byte in a whole file is damage, not a write that stopped.
        return len(data) < len(expected) or sum(map(int.__ne__, data, wanted)) > 1
