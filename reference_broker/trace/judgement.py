"""What may be said of a figure that is only known within bounds: the one rule of every judge of targets.

A figure passes when its worst explanation holds the bound, fails when even the most favourable one does not, and is
``unknown`` between the two. Of a percentile two things are not known exactly:

* samples that were due and never answered. The worst explanation counts them as slower than everything measured, the
  most favourable as faster. So a p99 can only pass where at least 99 % of what was due was answered.
* the delay of the generator and of the machine, which is part of every latency. The most favourable explanation takes
  it off: the generator's own, or as much as a broker that does nothing needed for the same in the same run, if that is
  more.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from assay.reference_broker.trace.results import Verdict

HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


BUSY_SHARE: Final = 0.5
BUSY_TIMES: Final = 5


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """A figure lies between ``low`` and ``high``; ``high`` may be infinite."""

    low: float
    high: float


def exactly(value: float) -> Bounds:
    """A figure that is known."""
    return Bounds(low=value, high=value)


def verdict_within(relation: str, bound: float, figure: Bounds) -> Verdict:
    """``pass`` when the relation holds all over the bounds, ``fail`` when it holds nowhere, else ``unknown``.

    A figure that is not a number is ``unknown``.
    """
    if math.isnan(figure.low) or math.isnan(figure.high):
        return Verdict.UNKNOWN
    if relation == "==":
        if figure.low == figure.high == bound:
            return Verdict.PASS
        return Verdict.UNKNOWN if figure.low <= bound <= figure.high else Verdict.FAIL
    held = {HOLDS[relation](end, bound) for end in (figure.low, figure.high)}
    return Verdict.UNKNOWN if len(held) > 1 else (Verdict.PASS if held.pop() else Verdict.FAIL)


def nearest_rank(quantile: float, count: int) -> int:
    """Which of ``count`` sorted samples is the percentile, from 1: at least that share is not above it."""
    return max(1, math.ceil(quantile * count))


class QuantileRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks, from 1, among the ``count`` answered samples; ``low`` 0 and ``high`` None mean "none of them"."""

    low: int
    high: int | None


def quantile_ranks(quantile: float, count: int, missing: int) -> QuantileRanks:
    """Where the percentile of all that was due may lie among the answered, with the missing first, and last."""
    rank = nearest_rank(quantile, count + missing)
    return QuantileRanks(low=max(0, rank - missing), high=rank if rank <= count else None)


def quantile_bounds(ordered: Sequence[float], missing: int, quantile: float) -> Bounds:
    """Bounds of a percentile of ``ordered`` (rising) and of ``missing`` more samples of which nothing is known."""
    ranks = quantile_ranks(quantile, len(ordered), missing)
    return Bounds(
        low=float(ordered[ranks.low - 1]) if ranks.low else 0.0,
        high=math.inf if ranks.high is None else float(ordered[ranks.high - 1]),
    )


def without_delay(figure: Bounds, delay: float) -> Bounds:
    """The figure, of which up to ``delay`` may be the generator's own."""
    return Bounds(low=max(0.0, figure.low - max(0.0, delay)), high=figure.high)


def machine_delay(null: float, bound: float) -> float:
    """How much of a latency a machine may explain on which a broker that does nothing needed ``null`` for the same.

    Where even that one takes half of the bound, processes wait for a processor, and a broker that works for each
    message waits more often: only a multiple is a miss of its own.
    """
    return null * (BUSY_TIMES if null >= BUSY_SHARE * bound else 1)


def explain(figure: Bounds, unit: str, *, count: int, missing: int, delay: float, null: float = 0.0) -> str:
    """Why the figure is not known exactly, as one phrase; empty when it is. ``null``: what a null broker needed."""
    parts = []
    if missing:
        parts.append(f"{count:,} of {count + missing:,} due were answered")
    if null > delay:
        parts.append(f"a broker that does nothing needed {null:.3g} {unit} (p99) on this machine")
    elif delay > 0:
        parts.append(f"the generator itself was {delay:.3g} {unit} late (p99)")
    if not parts:
        return ""
    high = "anything" if math.isinf(figure.high) else f"{figure.high:.4g} {unit}"
    return f"{'; '.join(parts)}: the figure lies between {figure.low:.4g} {unit} and {high}"
