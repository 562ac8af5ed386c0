"""Durations by bounds: each is in the first that it does not exceed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.trace.durations import COARSE_S, FINE_S, Durations


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 9))), st.sampled_from([COARSE_S, FINE_S]))
def test_each_is_counted_within_the_first_bound_that_holds_it(
    found: list[tuple[float, int]], bounds_s: tuple[float, ...]
) -> None:
    durations, others = Durations(bounds_s), Durations(bounds_s)
    for seconds, times in found:
        durations.add(seconds, times)
    so_far = 0
    for bound, count in zip((*bounds_s, float("inf")), durations.counts, strict=True):
        so_far += count
        assert so_far == sum(times for seconds, times in found if seconds <= bound)
    others.add_all([durations, durations])
    assert others.count == 2 * durations.count
    assert others.total_s == 2 * durations.total_s
