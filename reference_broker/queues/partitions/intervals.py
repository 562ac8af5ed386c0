"""Sets of offsets as intervals: what many offsets have in common takes no more room than its edges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Intervals:
    """Disjoint intervals ``(first, end)``, ``end`` exclusive, ascending. Those that touch become one."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        """In any order, overlapping or not."""
        self._firsts: list[int] = []
        self._ends: list[int] = []
        firsts, ends = self._firsts, self._ends
        for first, end in sorted(intervals):
            if ends and first <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            elif first < end:
                firsts.append(first)
                ends.append(end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._ends, strict=True)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, first: int, end: int) -> None:
        """One more interval; most come right behind the last."""
        if self._ends and self._ends[-1] == first:
            self._ends[-1] = max(first, end)
            return
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        if first < end:
            self._firsts[low:high] = [first]
            self._ends[low:high] = [end]

    @property
    def end(self) -> int:
        """Behind the last; 0 when there is none."""
        return self._ends[-1] if self._ends else 0

    def first_beyond(self, offset: int) -> int:
        """The first offset from one on that is in none of them."""
        at = bisect_right(self._firsts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def drop_below(self, offset: int) -> None:
        """Only what is from an offset on stays."""
        at = bisect_right(self._ends, offset)
        del self._firsts[:at], self._ends[:at]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], offset)

    def cut(self, end: int) -> None:
        """Only what is below an offset stays."""
        at = bisect_left(self._firsts, end)
        del self._firsts[at:], self._ends[at:]
        if self._ends:
            self._ends[-1] = min(self._ends[-1], end)

    def starting_at(self, offset: int, limit: int) -> list[tuple[int, int]]:
        """The first intervals, up to a number, that begin at an offset or behind it."""
        at = bisect_left(self._firsts, offset)
        return list(zip(self._firsts[at : at + limit], self._ends[at : at + limit], strict=True))

    def between(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of the intervals within another."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        return [
            (max(first, self._firsts[at]), min(end, self._ends[at]))
            for at in range(low, high)
            if max(first, self._firsts[at]) < min(end, self._ends[at])
        ]

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of another interval that are in none of these."""
        found: list[tuple[int, int]] = []
        for covered_first, covered_end in self.between(first, end):
            if first < covered_first:
                found.append((first, covered_first))
            first = covered_end
        if first < end:
            found.append((first, end))
        return found
