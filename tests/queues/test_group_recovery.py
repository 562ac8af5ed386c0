"""What a start makes of the state of a group."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from assay.reference_broker.queues.groups.group_recovery import seconds_of


@given(st.integers(0, 2**43))
@example(1_024_003)
def test_the_time_of_a_delivery_is_the_same_after_any_number_of_starts(milliseconds: int) -> None:
    """Division and multiplication lost a millisecond now and then: a decision did not know its delivery any more."""
    assert int(seconds_of(milliseconds) * 1000) == milliseconds
