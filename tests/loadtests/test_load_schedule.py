"""Arrival schedules: seeded, ascending, at the asked rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.loadtests.schedule import NS_PER_S, Arrivals, Shape, intended_times, spread

RATES = st.floats(min_value=1.0, max_value=2_000.0)
DURATIONS = st.floats(min_value=0.1, max_value=5.0)
SEEDS = st.integers(min_value=0, max_value=2**32)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrivals:
    return Arrivals(
        shape=draw(st.sampled_from(Shape)),
        rate_per_s=draw(RATES),
        end_rate_per_s=draw(RATES),
        every_s=draw(st.floats(min_value=0.05, max_value=2.0)),
    )


@given(arrivals(), DURATIONS, SEEDS)
def test_schedule_is_ascending_within_the_duration_and_repeatable(plan: Arrivals, duration_s: float, seed: int) -> None:
    times = intended_times(plan, duration_s, np.random.default_rng(seed))
    again = intended_times(plan, duration_s, np.random.default_rng(seed))
    assert times.dtype == np.int64
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < duration_s * NS_PER_S)).all()
    assert np.array_equal(times, again)


@given(RATES, DURATIONS, SEEDS)
def test_constant_arrivals_have_equal_gaps_and_the_exact_count(rate: float, duration_s: float, seed: int) -> None:
    times = intended_times(Arrivals(shape=Shape.CONSTANT, rate_per_s=rate), duration_s, np.random.default_rng(seed))
    assert abs(len(times) - rate * duration_s) <= 1
    assert np.allclose(np.diff(times), NS_PER_S / rate, atol=2)


@given(RATES, DURATIONS, SEEDS)
def test_poisson_count_is_within_five_standard_deviations(rate: float, duration_s: float, seed: int) -> None:
    times = intended_times(Arrivals(shape=Shape.POISSON, rate_per_s=rate), duration_s, np.random.default_rng(seed))
    mean = rate * duration_s
    assert abs(len(times) - mean) <= 6 * np.sqrt(mean) + 6


def test_poisson_gaps_are_exponential() -> None:
    times = intended_times(Arrivals(shape=Shape.POISSON, rate_per_s=1_000), 60.0, np.random.default_rng(7))
    gaps_s = np.diff(times) / NS_PER_S
    assert np.mean(gaps_s) == pytest.approx(0.001, rel=0.02)
    assert np.std(gaps_s) == pytest.approx(0.001, rel=0.05)  # a constant schedule would have none
    assert np.mean(gaps_s > 0.001) == pytest.approx(np.exp(-1), abs=0.01)


@given(RATES, RATES, st.floats(min_value=0.5, max_value=5.0), SEEDS)
def test_ramp_reaches_the_area_under_its_line(start: float, end: float, duration_s: float, seed: int) -> None:
    plan = Arrivals(shape=Shape.RAMP, rate_per_s=start, end_rate_per_s=end)
    times = intended_times(plan, duration_s, np.random.default_rng(seed))
    assert abs(len(times) - plan.expected_messages(duration_s)) <= 1
    half_ns = duration_s / 2 * NS_PER_S
    first_half = start * duration_s / 2 + (end - start) / duration_s * (duration_s / 2) ** 2 / 2
    assert abs(int((times < half_ns).sum()) - first_half) <= 1.5


def test_burst_puts_a_period_into_one_moment() -> None:
    plan = Arrivals(shape=Shape.BURST, rate_per_s=100, every_s=0.5)
    moments, counts = np.unique(intended_times(plan, 2.0, np.random.default_rng(0)), return_counts=True)
    assert moments.tolist() == [0, 500_000_000, 1_000_000_000, 1_500_000_000]
    assert counts.tolist() == [50] * 4


@given(st.integers(min_value=1, max_value=9), SEEDS)
def test_spread_loses_and_repeats_nothing(publishers: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = intended_times(Arrivals(rate_per_s=500), 1.0, rng)
    parts = spread(times, publishers, rng)
    assert len(parts) == publishers
    assert all((np.diff(part) >= 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), times)


@pytest.mark.parametrize(
    ("plan", "duration_s", "text"),
    [
        (Arrivals(rate_per_s=0), 1.0, "rate_per_s must be above 0"),
        (Arrivals(rate_per_s=-1), 1.0, "must not be negative"),
        (Arrivals(shape=Shape.RAMP, rate_per_s=0), 1.0, "a ramp needs"),
        (Arrivals(shape=Shape.BURST, rate_per_s=1, every_s=0), 1.0, "every_s"),
        (Arrivals(rate_per_s=1), 0.0, "duration"),
    ],
)
def test_parameters_without_a_schedule_are_refused(plan: Arrivals, duration_s: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        intended_times(plan, duration_s, np.random.default_rng(0))
