"""A heap of deadlines. Time is an argument; cancelled entries are dropped lazily and never pile up."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timer:
    """A scheduled callback; :meth:`cancel` is idempotent."""

    __slots__ = ("_heap", "callback", "deadline")

    def __init__(self, deadline: float, callback: Callable[[float], None], heap: TimerHeap) -> None:
        self.deadline = deadline
        self.callback: Callable[[float], None] | None = callback
        self._heap = heap

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._heap.note_cancelled()


class TimerHeap:
    """Deadlines in order; equal deadlines fire in the order they were scheduled."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._cancelled = 0

    def schedule(self, deadline: float, callback: Callable[[float], None]) -> Timer:
        timer = Timer(deadline, callback, self)
        self._count += 1
        heapq.heappush(self._entries, (deadline, self._count, timer))
        return timer

    def note_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].callback is not None]
            heapq.heapify(self._entries)
            self._cancelled = 0

    def next_deadline(self) -> float | None:
        entries = self._entries
        while entries and entries[0][2].callback is None:
            heapq.heappop(entries)
            self._cancelled -= 1
        return entries[0][0] if entries else None

    def fire_next(self, now: float) -> bool:
        """Call the callback whose deadline has come first; False: there is none."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now:
            return False
        timer = heapq.heappop(self._entries)[2]
        callback = timer.callback
        timer.callback = None
        if callback is not None:
            callback(now)
        return True
