"""What the storage bench measures: cases that fill rows, round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec


class RowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table."""

    key: str
    """Name in ``result.json``, e.g. ``append.zstd``."""
    title: str
    unit: str
    raw_title: str = ""
    """What the same bytes are measured with beside it; empty when there is nothing to compare."""
    needs_disk: bool = False
    """The figure depends on syncs, so it means nothing on a file system in memory."""


class Sample(NamedTuple):
    """One round of a row: the figure, and the same of the raw system calls, both in the row's unit."""

    value: float
    raw: float | None = None


class Case(NamedTuple):
    """Something to measure once a round; it gives one sample for each of its rows."""

    rows: tuple[RowSpec, ...]
    measure: Callable[[], Sequence[Sample]]


class MeasuredRow(msgspec.Struct, kw_only=True):
    """A row with the samples of all rounds."""

    spec: RowSpec
    values: list[float] = []
    raw_values: list[float] = []

    def add(self, sample: Sample) -> None:
        self.values.append(sample.value)
        if sample.raw is not None:
            self.raw_values.append(sample.raw)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def raw_median(self) -> float | None:
        return statistics.median(self.raw_values) if self.raw_values else None

    @property
    def ratio(self) -> float | None:
        """Median over the rounds of figure / raw, since the two of one round met the same machine."""
        if len(self.raw_values) != len(self.values) or not all(self.raw_values):
            return None
        return statistics.median(value / raw for value, raw in zip(self.values, self.raw_values, strict=True))
