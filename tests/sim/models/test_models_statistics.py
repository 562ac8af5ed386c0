"""Estimates and the test of Kolmogorov and Smirnov, against tables and counting."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from assay.reference_broker.trace.results import Verdict
from assay.sim.models import statistics
from assay.sim.models.model import ModelError, within


def counted_p_value(first: list[float], second: list[float]) -> float:
    """By going through all orders of the values."""
    m, n = len(first), len(second)
    wanted = statistics.ks_two_samples(first, second).statistic
    orders = list(itertools.combinations(range(m + n), m))
    reached = 0
    for chosen in orders:
        steps = np.array([place in chosen for place in range(m + n)])
        distance = np.abs(np.cumsum(steps) / m - np.cumsum(~steps) / n).max()
        reached += distance >= wanted - 1e-12
    return reached / len(orders)


@pytest.mark.parametrize("sizes", [(3, 4), (5, 5), (1, 6), (6, 4)])
def test_the_exact_p_value_is_that_of_all_orders(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(sizes)
    first, second = rng.random(sizes[0]).tolist(), (rng.random(sizes[1]) + 0.3).tolist()
    assert statistics.ks_two_samples(first, second).p_value == pytest.approx(counted_p_value(first, second))


def test_known_values() -> None:
    apart = statistics.ks_two_samples([1, 2, 3], [4, 5, 6])
    assert (apart.statistic, apart.p_value) == (1.0, pytest.approx(0.1))  # 2 of the 20 orders
    assert statistics.ks_two_samples([1, 2], [1, 2]).p_value == 1.0
    # The limit and the exact count agree for large samples.
    rng = np.random.default_rng(1)
    first, second = rng.random(1_500), rng.random(1_400) ** 1.08
    exact = statistics.ks_two_samples(first, second)
    root = math.sqrt(1_500 * 1_400 / 2_900)
    limit = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * root * exact.statistic) ** 2) for k in range(1, 50))
    assert exact.method == "exact KS"
    assert exact.p_value == pytest.approx(limit, abs=0.02)


def test_a_figure_out_of_its_bounds_by_chance_alone_is_no_claim() -> None:
    loose = within("mean", 1.03, 1.0, "s", "closed form", standard_error=0.02)
    assert loose.verdict is Verdict.UNKNOWN
    assert "more customers" in loose.check("m").reason
    assert within("mean", 1.03, 1.0, "s", "closed form", standard_error=0.005).verdict is Verdict.FAIL
    assert within("mean", 1.01, 1.0, "s", "closed form", standard_error=0.02).verdict is Verdict.PASS
    assert within("mean", 1.03, 1.0, "s", "closed form").verdict is Verdict.FAIL


def test_nothing_cannot_be_compared() -> None:
    with pytest.raises(ModelError, match="at least one"):
        statistics.ks_two_samples([], [1.0])


def test_control_variates_take_out_known_chance() -> None:
    rng = np.random.default_rng(2)
    known, noise = rng.exponential(1.0, 40_000), rng.normal(0, 0.05, 40_000)
    plain = statistics.mean(3 * known + noise)
    controlled = statistics.mean(3 * known + noise, [(known, 1.0)])
    assert controlled.standard_error < plain.standard_error / 20
    assert controlled.value == pytest.approx(3.0, abs=4 * controlled.standard_error)
