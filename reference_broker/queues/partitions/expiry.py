"""What a partition remembers of single messages so that limits hold: when some expire early, and how large they are."""

from __future__ import annotations

import heapq
from array import array

from assay.reference_broker.queues.partitions.intervals import Intervals


class PartitionExpiry:
    """Messages that expire before the queue's time to live, and those that left before their turn.

    A message behind a live one cannot be passed by moving a cursor. It is counted as gone when its time comes, or when
    a limit takes it, and passed without being counted again when a cursor gets there.
    """

    __slots__ = ("_gone", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int]] = []
        self._gone = Intervals()

    def add(self, offset: int, expires_at: float) -> None:
        heapq.heappush(self._waiting, (expires_at, offset))

    @property
    def next_at(self) -> float:
        """When the next message expires; ``inf`` = none."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def pop_due(self, now: float, limit: int) -> list[int]:
        """Offsets whose time has come, at most so many."""
        due: list[int] = []
        while self._waiting and self._waiting[0][0] <= now and len(due) < limit:
            due.append(heapq.heappop(self._waiting)[1])
        return due

    def mark_gone(self, offset: int) -> None:
        """Counted as expired for every group that has not passed it."""
        self._gone.add(offset, offset + 1)

    def restore_gone(self, first: int, end: int) -> None:
        """At opening: an interval that was gone before."""
        self._gone.add(first, end)

    def is_gone(self, offset: int) -> bool:
        return offset in self._gone

    def gone(self, start: int, end: int) -> list[int]:
        """Those in ``[start, end)``."""
        return [offset for each in self._gone.between(start, end) for offset in range(*each)]

    def gone_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Likewise, as intervals: many that left take no more work than their edges."""
        return self._gone.between(start, end)

    def gone_count(self, start: int, end: int) -> int:
        """How many those are."""
        return sum(last - first for first, last in self._gone.between(start, end))

    def first_kept(self, offset: int) -> int:
        """The first offset from one on that is not gone."""
        return self._gone.first_beyond(offset)

    def drop_before(self, offset: int) -> None:
        """Forget what the log does not keep any more."""
        self._gone.drop_below(offset)
        if len(self._waiting) > 64 and self._waiting[0][1] < offset:
            self._waiting = [pair for pair in self._waiting if pair[1] >= offset]
            heapq.heapify(self._waiting)


class MessageSizes:
    """The size of every message of a partition, in bytes; four bytes each. Only for queues with ``max_bytes``."""

    __slots__ = ("_base", "_sizes")

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._sizes = array("L")

    def put(self, offset: int, size: int) -> None:
        """Offsets ascend; those left out have size 0."""
        missing = offset - self._base - len(self._sizes)
        if missing > 0:
            self._sizes.extend([0] * missing)
        self._sizes.append(size)

    def of(self, offset: int) -> int:
        at = offset - self._base
        return self._sizes[at] if 0 <= at < len(self._sizes) else 0

    def total(self, start: int) -> int:
        """All from an offset on."""
        return sum(self._sizes[max(0, start - self._base) :])

    def drop_before(self, offset: int) -> None:
        """Forget what the log does not keep any more."""
        dropped = offset - self._base
        if dropped > 0:
            del self._sizes[:dropped]
            self._base = offset
