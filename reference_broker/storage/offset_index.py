"""A sparse index from offsets to file positions of one segment, as it is in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from assay.reference_broker.storage.index_files import (
    INDEX_INTERVAL_BYTES,
    MAX_INDEXED,
    OffsetIndexFile,
    encode_offset_index,
)


class OffsetIndex:
    """The first batch and then one batch each time at least 4096 bytes came in between. Offsets are relative."""

    __slots__ = ("_last_position", "_offsets", "_positions")

    def __init__(self, file: OffsetIndexFile | None = None) -> None:
        self._offsets = array("I") if file is None else file.offsets
        self._positions = array("I") if file is None else file.positions
        self._last_position = self._positions[-1] if self._positions else -INDEX_INTERVAL_BYTES

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, relative_offset: int, position: int) -> None:
        """Note a batch. Offsets and positions must grow from call to call; what is beyond 32 bits is not indexed."""
        if position - self._last_position >= INDEX_INTERVAL_BYTES and relative_offset | position <= MAX_INDEXED:
            self._offsets.append(relative_offset)
            self._positions.append(position)
            self._last_position = position

    def floor(self, relative_offset: int) -> int:
        """Number of the last entry at or before an offset; -1 when there is none."""
        return bisect_right(self._offsets, relative_offset) - 1

    def entry(self, number: int) -> tuple[int, int]:
        """(relative offset, position) of an entry; (0, 0), the start of the segment, for number -1."""
        return (self._offsets[number], self._positions[number]) if number >= 0 else (0, 0)

    def following_position(self, number: int) -> int | None:
        """Position of the entry after that one; None when it is the last."""
        return self._positions[number + 1] if number + 1 < len(self._positions) else None

    def truncate(self, size: int) -> None:
        """Forget batches at or behind a file position."""
        while self._positions and self._positions[-1] >= size:
            self._positions.pop()
            self._offsets.pop()
        self._last_position = self._positions[-1] if self._positions else -INDEX_INTERVAL_BYTES

    def encode(self, base_offset: int, *, below: int) -> bytes:
        """The ``.idx`` of the entries before a file position."""
        pairs = zip(self._offsets, self._positions, strict=True)
        return encode_offset_index(base_offset, [pair for pair in pairs if pair[1] < below])
