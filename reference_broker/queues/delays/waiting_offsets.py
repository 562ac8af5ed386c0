"""Which messages of a log of delayed ones are not done, wherever they are on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import merge
from itertools import chain, islice

from assay.reference_broker.queues.delays.timing_wheel import TimingWheel
from assay.reference_broker.queues.partitions.partition import QueuePartition


class WaitingOffsets:
    """Offsets of the log. Implements :class:`assay.reference_broker.queues.jobs.store.WantedOffsets`."""

    def __init__(self, now_ms: int) -> None:
        self.wheel = TimingWheel(now_ms)
        self.unarmed: deque[tuple[int, int]] = deque()
        """Offset and due time of what is written and not yet as durable as promised."""
        self.refused: dict[int, int] = {}
        """Due times of what the queue refused, to be tried again."""
        self.in_hand: dict[int, QueuePartition] = {}
        """Published, and not yet done."""

    @property
    def armed(self) -> int:
        """Messages that wait, those not counted that are as good as published."""
        return len(self.unarmed) + len(self.wheel) + len(self.refused)

    @property
    def lowest(self) -> int | None:
        """None when there is none; what is not armed comes behind all others."""
        some = (self.wheel.lowest, min(self.refused, default=None), min(self.in_hand, default=None))
        return min((offset for offset in some if offset is not None), default=None)

    def due_times(self, first: int, end: int, limit: int) -> list[tuple[int, int]]:
        """Offsets from one to below another, ascending, up to a number, with due times (0 = long past).

        Those that are not armed are left out.
        """
        others = [offset for offset in (*self.refused, *self.in_hand) if first <= offset < end]
        due = ((offset, self.refused.get(offset, 0)) for offset in sorted(others))
        return list(islice(merge(self.wheel.items(first, end), due), limit))

    def count(self, first: int, end: int) -> int:
        others = (*self.refused, *self.in_hand, *(offset for offset, _ in self.unarmed))
        return self.wheel.count(first, end) + sum(first <= offset < end for offset in others)

    def numbers(self, first: int, end: int) -> Iterable[int]:
        others = (*self.refused, *self.in_hand, *(offset for offset, _ in self.unarmed))
        return chain([offset for offset in others if first <= offset < end], self.wheel.snapshot(first, end))

    def listed(self, after: int, limit: int) -> list[int]:
        """Up to a number of offsets behind one, ascending, of messages that are not as good as published."""
        unarmed = [offset for offset, _ in self.unarmed if offset > after]
        refused = sorted(offset for offset in self.refused if offset > after)
        return list(islice(merge(self.wheel.numbers(after), refused, unarmed), limit))

    def cancel(self, offset: int) -> bool:
        """Take one out; False when there is none, or it is published already."""
        if self.refused.pop(offset, None) is not None or self.wheel.cancel(offset):
            return True
        for pair in self.unarmed:
            if pair[0] == offset:
                self.unarmed.remove(pair)
                return True
        return False
