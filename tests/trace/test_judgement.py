"""A figure that is known within bounds: the worst explanation must pass, the best must fail, else nothing is said."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.trace.judgement import (
    HOLDS,
    Bounds,
    exactly,
    explain,
    nearest_rank,
    quantile_bounds,
    verdict_within,
    without_delay,
)
from assay.reference_broker.trace.results import Verdict


@pytest.mark.parametrize(
    ("relation", "low", "high", "verdict"),
    [
        ("<", 4.0, 9.9, Verdict.PASS),
        ("<", 4.0, 10.0, Verdict.UNKNOWN),
        ("<", 10.0, math.inf, Verdict.FAIL),
        ("<=", 4.0, 10.0, Verdict.PASS),
        (">=", 10.0, 12.0, Verdict.PASS),
        (">=", 9.0, 12.0, Verdict.UNKNOWN),
        (">", 9.0, 10.0, Verdict.FAIL),
        ("==", 10.0, 10.0, Verdict.PASS),
        ("==", 9.0, 10.0, Verdict.UNKNOWN),
        ("==", 9.0, 9.5, Verdict.FAIL),
        ("<", math.nan, math.nan, Verdict.UNKNOWN),
        ("<", 1.0, math.nan, Verdict.UNKNOWN),
    ],
)
def test_between_pass_and_fail_lies_unknown(relation: str, low: float, high: float, verdict: Verdict) -> None:
    assert verdict_within(relation, 10.0, Bounds(low=low, high=high)) is verdict


@given(
    relation=st.sampled_from(["<", "<=", ">", ">="]),
    bound=st.floats(0, 100),
    ends=st.tuples(st.floats(0, 100), st.floats(0, 100)),
    share=st.floats(0, 1),
)
def test_no_value_within_the_bounds_contradicts_a_verdict(
    relation: str, bound: float, ends: tuple[float, float], share: float
) -> None:
    low, high = sorted(ends)
    value = min(high, low + share * (high - low))
    verdict = verdict_within(relation, bound, Bounds(low=low, high=high))
    if verdict is not Verdict.UNKNOWN:
        assert HOLDS[relation](value, bound) == (verdict is Verdict.PASS)


@given(
    known=st.lists(st.integers(0, 1_000), min_size=1, max_size=300),
    hidden=st.lists(st.integers(0, 1_000), max_size=300),
    quantile=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_whatever_the_missing_would_have_been_lies_within(known: list[int], hidden: list[int], quantile: float) -> None:
    everything = sorted(known + hidden)
    truth = everything[nearest_rank(quantile, len(everything)) - 1]
    bounds = quantile_bounds(sorted(known), len(hidden), quantile)
    assert bounds.low <= truth <= bounds.high
    if not hidden:
        assert bounds == exactly(truth)


@pytest.mark.parametrize(
    ("missing", "verdict"),
    [
        (0, Verdict.PASS),
        (10, Verdict.PASS),  # 990 of 1 000: the p99 is the slowest that was answered
        (11, Verdict.UNKNOWN),  # the p99 is one that was never answered
        (885, Verdict.UNKNOWN),
    ],
)
def test_a_p99_passes_only_where_99_percent_were_answered(missing: int, verdict: Verdict) -> None:
    bounds = quantile_bounds([1.0] * 990, missing, 0.99)
    assert verdict_within("<", 5.0, bounds) is verdict


def test_slow_answers_fail_although_others_are_missing() -> None:
    """322 of 1 207 were answered, all of them slower than the bound: the missing cannot make the p99 good."""
    bounds = quantile_bounds([50.0] * 322, 885, 0.99)
    assert verdict_within("<", 5.0, bounds) is Verdict.FAIL
    assert verdict_within("<", 60.0, bounds) is Verdict.UNKNOWN
    assert verdict_within("<", 5.0, quantile_bounds([], 5, 0.99)) is Verdict.UNKNOWN


def test_only_a_miss_that_the_delay_explains_is_unknown() -> None:
    assert verdict_within("<", 5.0, without_delay(exactly(150.0), 54.0)) is Verdict.FAIL
    assert verdict_within("<", 5.0, without_delay(exactly(58.0), 54.0)) is Verdict.UNKNOWN
    assert verdict_within("<", 5.0, without_delay(exactly(4.9), 54.0)) is Verdict.PASS
    assert without_delay(exactly(3.0), -1.0) == exactly(3.0)


def test_the_reason_names_what_is_not_known() -> None:
    bounds = Bounds(low=1.0, high=math.inf)
    text = explain(bounds, "ms", count=322, missing=885, delay=54.2)
    assert text == (
        "322 of 1,207 due were answered; the generator itself was 54.2 ms late (p99): "
        "the figure lies between 1 ms and anything"
    )
    assert explain(bounds, "ms", count=3, missing=0, delay=0.0) == ""
