"""Estimates with their error, and the exact two-sample test of Kolmogorov and Smirnov.

The test is written here rather than taken from scipy, which would be a dependency of 40 MB for this one function; the
tests hold it to values of tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from assay.sim.models.model import Floats, ModelError

WARM_UP_SHARE = 0.05
"""The first customers find an empty system, and do not count."""
_BATCHES = 40
MAX_EXACT_PATHS = 4_000_000
"""Product of the sample sizes up to which p-values are counted exactly."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its standard error."""

    value: float
    standard_error: float


def settled(values: Floats) -> Floats:
    """Without the warm-up."""
    return values[int(len(values) * WARM_UP_SHARE) :]


def _batch_means(values: Floats) -> Floats:
    size = len(values) // _BATCHES
    if not size:
        message = f"{len(values)} customers are too few: {_BATCHES} at least"
        raise ModelError(message)
    means: Floats = values[: size * _BATCHES].reshape(_BATCHES, size).mean(axis=1)
    return means


def mean(values: Floats, controls: Sequence[tuple[Floats, float]] = ()) -> Estimate:
    """Mean of a stationary sequence by batch means.

    ``controls`` are sequences of the same customers whose true mean is known (gaps, service times): what chance did to
    them is taken out of the estimate by regression (control variates).
    """
    batches = _batch_means(values)
    controls = [(sequence, true) for sequence, true in controls if sequence.std() > 0]
    if not controls:
        return Estimate(value=float(values.mean()), standard_error=float(batches.std(ddof=1) / math.sqrt(_BATCHES)))
    known = np.array([true for _, true in controls])
    seen = np.column_stack([_batch_means(sequence) for sequence, _ in controls])
    centred = seen - known
    design = np.column_stack([np.ones(_BATCHES), centred])
    solution, _, _, _ = np.linalg.lstsq(design, batches, rcond=None)
    rest = batches - design @ solution
    freedom = _BATCHES - design.shape[1]
    covariance = np.linalg.inv(design.T @ design) * float(rest @ rest) / freedom
    return Estimate(value=float(solution[0]), standard_error=float(math.sqrt(covariance[0, 0])))


def quantile(values: Floats, share: float) -> Estimate:
    """A quantile of all values; its error from the quantiles of a few long pieces."""
    pieces = np.array_split(values, 20)
    each = np.array([np.quantile(piece, share) for piece in pieces])
    error = float(each.std(ddof=1) / math.sqrt(len(pieces)))
    return Estimate(value=float(np.quantile(values, share)), standard_error=error)


class KsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Largest distance of two empirical distributions, and how likely one as large is if they are the same."""

    statistic: float
    p_value: float
    method: str


def ks_two_samples(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> KsResult:
    """Two-sided two-sample test. Raises :class:`ModelError` for an empty sample.

    Exact while the product of the sizes is at most :data:`MAX_EXACT_PATHS`: the share of monotone lattice paths from
    (0, 0) to (m, n) that somewhere leave the corridor |i/m - j/n| < D (Hodges 1957), all orders being equally likely.
    Above, Kolmogorov's limit. With ties the exact value is conservative.
    """
    a, b = np.sort(np.asarray(first, float)), np.sort(np.asarray(second, float))
    m, n = len(a), len(b)
    if not m or not n:
        raise ModelError("a comparison needs at least one value on each side")
    points = np.concatenate([a, b])
    below_a, below_b = np.searchsorted(a, points, "right"), np.searchsorted(b, points, "right")
    # In whole numbers: |i n - j m| / (m n).
    reached = int(np.abs(below_a * n - below_b * m).max())
    statistic = reached / (m * n)
    if m * n <= MAX_EXACT_PATHS:
        return KsResult(statistic=statistic, p_value=_share_of_paths(m, n, reached), method="exact KS")
    root = math.sqrt(m * n / (m + n))
    effective = (root + 0.12 + 0.11 / root) * statistic
    total = sum((-1) ** (k - 1) * math.exp(-2 * (k * effective) ** 2) for k in range(1, 101))
    return KsResult(statistic=statistic, p_value=min(1.0, max(0.0, 2 * total)), method="asymptotic KS")


def _share_of_paths(m: int, n: int, reached: int) -> float:
    """Share of the paths that touch |i n - j m| >= ``reached``; by probabilities, not counts, so nothing overflows."""
    if not reached:
        return 1.0
    # inside[j]: probability that a random path passes (i, j) and has kept inside so far, over C(i + j, i) orders of
    # the first i + j: the step to (i, j) comes from (i - 1, j) with probability i / (i + j).
    js = np.arange(n + 1)
    row = np.zeros(n + 1)
    for i in range(m + 1):
        allowed = np.abs(i * n - js * m) < reached
        above = row * (i / np.maximum(i + js, 1)) if i else row
        row = np.zeros(n + 1)
        last = 0.0
        shares = js / np.maximum(i + js, 1)
        for j in range(n + 1):
            value = 1.0 if i == 0 and j == 0 else above[j] + last * shares[j]
            last = value if allowed[j] else 0.0
            row[j] = last
    return float(1.0 - row[n])
