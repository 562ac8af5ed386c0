"""Arrival schedules of an open-loop load: when each message is due, whatever the broker does.

Latency is measured from these times, so a stalled broker cannot slow down its own measurement (coordinated omission).
A schedule is an array of int64 nanoseconds since the start of the run, ascending, within ``[0, duration)``. The same
arguments and the same generator state give the same array.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt

Nanoseconds = npt.NDArray[np.int64]
NS_PER_S = 1_000_000_000


class Shape(StrEnum):
    """How arrivals are spread."""

    CONSTANT = "constant"
    """Equal gaps, from a random phase on."""
    POISSON = "poisson"
    """Independent arrivals, as many users make them; gaps are exponential."""
    RAMP = "ramp"
    """The rate grows or falls linearly from ``rate_per_s`` to ``end_rate_per_s``."""
    BURST = "burst"
    """All messages of a period at once, every ``every_s`` seconds."""


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule's parameters. ``rate_per_s`` is the mean rate (the initial one of a ramp)."""

    shape: Shape = Shape.POISSON
    rate_per_s: float
    end_rate_per_s: float = 0.0
    """Ramp only."""
    every_s: float = 1.0
    """Burst only."""

    def problems(self) -> list[str]:
        """What is wrong with the parameters, in words; empty when nothing is."""
        found = []
        if self.rate_per_s < 0 or self.end_rate_per_s < 0:
            found.append("rates must not be negative")
        if self.shape is not Shape.RAMP and self.rate_per_s == 0:
            found.append("rate_per_s must be above 0")
        if self.shape is Shape.RAMP and self.rate_per_s + self.end_rate_per_s == 0:
            found.append("a ramp needs rate_per_s or end_rate_per_s above 0")
        if self.shape is Shape.BURST and self.every_s <= 0:
            found.append("every_s must be above 0")
        return found

    def expected_messages(self, duration_s: float) -> float:
        """Mean number of arrivals within ``duration_s``."""
        if self.shape is Shape.RAMP:
            return (self.rate_per_s + self.end_rate_per_s) / 2 * duration_s
        return self.rate_per_s * duration_s


def _constant(arrivals: Arrivals, duration_s: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    gap_s = 1 / arrivals.rate_per_s
    return np.arange(rng.uniform(0, gap_s), duration_s, gap_s)


def _poisson(arrivals: Arrivals, duration_s: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    # Given their number, the arrivals of a Poisson process are uniform order statistics.
    count = int(rng.poisson(arrivals.rate_per_s * duration_s))
    return np.sort(rng.uniform(0, duration_s, count))


def _ramp(arrivals: Arrivals, duration_s: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    # The k-th arrival is where the integral of the rate, start * t + slope / 2 * t**2, reaches k + phase.
    start, slope = arrivals.rate_per_s, (arrivals.end_rate_per_s - arrivals.rate_per_s) / duration_s
    total = arrivals.expected_messages(duration_s)
    counts = np.arange(rng.uniform(0, 1), total, 1.0)
    if slope == 0:
        return counts / start
    return (np.sqrt(np.maximum(start**2 + 2 * slope * counts, 0)) - start) / slope


def _burst(arrivals: Arrivals, duration_s: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    moments = np.arange(0, duration_s, arrivals.every_s)
    size = max(1, round(arrivals.rate_per_s * arrivals.every_s))
    return np.repeat(moments, size)


_SHAPES = {Shape.CONSTANT: _constant, Shape.POISSON: _poisson, Shape.RAMP: _ramp, Shape.BURST: _burst}


def intended_times(arrivals: Arrivals, duration_s: float, rng: np.random.Generator) -> Nanoseconds:
    """The schedule. Raises :class:`ValueError` for parameters without a schedule."""
    problems = arrivals.problems()
    if duration_s <= 0:
        problems.append("the duration must be above 0 s")
    if problems:
        raise ValueError("; ".join(problems))
    times_s = _SHAPES[arrivals.shape](arrivals, duration_s, rng)
    times_ns = (times_s * NS_PER_S).astype(np.int64)
    return times_ns[times_ns < int(duration_s * NS_PER_S)]


def spread(times_ns: Nanoseconds, publishers: int, rng: np.random.Generator) -> list[Nanoseconds]:
    """Deal the arrivals of a workload out to its publishers at random; each part stays ascending."""
    owner = rng.integers(0, publishers, len(times_ns))
    return [times_ns[owner == number] for number in range(publishers)]
