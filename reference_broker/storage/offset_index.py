"""A sparse index from offsets to file positions of one segment, kept in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right

INDEX_INTERVAL_BYTES = 4_096


class OffsetIndex:
    """The first batch and then one batch each time at least 4096 bytes came in between."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._positions = array("Q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, base_offset: int, position: int) -> None:
        """Note a batch. Offsets and positions must grow from call to call."""
        if not self._positions or position - self._positions[-1] >= INDEX_INTERVAL_BYTES:
            self._offsets.append(base_offset)
            self._positions.append(position)

    def floor(self, offset: int) -> int:
        """Position of an indexed batch at or before the one that holds ``offset``; 0 when there is none."""
        index = bisect_right(self._offsets, offset) - 1
        return self._positions[index] if index >= 0 else 0

    def truncate(self, position: int) -> None:
        """Forget batches that start at or after a position."""
        while self._positions and self._positions[-1] >= position:
            self._positions.pop()
            self._offsets.pop()
