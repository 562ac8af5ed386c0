"""How long something takes: how many times were within which bound, as Prometheus counts them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

FINE_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bounds for what there is once; seconds."""
COARSE_S: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""For what every queue has: the time of a message is kept in milliseconds."""


class Durations:
    """Counted by bounds; only grows."""

    __slots__ = ("bounds_s", "counts", "total_s")

    def __init__(self, bounds_s: tuple[float, ...] = FINE_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        """Those that were longer than all bounds are the last."""
        self.total_s = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, seconds: float, times: int = 1) -> None:
        """So many took so long each."""
        self.counts[bisect_left(self.bounds_s, seconds)] += times
        self.total_s += seconds * times

    def add_all(self, others: Iterable[Durations]) -> None:
        """Take in what others with these bounds counted."""
        for other in others:
            self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
            self.total_s += other.total_s
