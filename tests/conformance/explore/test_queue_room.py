"""What claims take of the room that a queue lets a consumer and a group have, as the model has it."""

from __future__ import annotations

import pytest

from tests.conformance.explore.test_queue_lessons import Bench, accused, changed


@pytest.mark.parametrize(
    ("setting", "clause"), [("group_max_in_flight", "Q-SETTLE-14"), ("max_in_flight", "Q-SETTLE-13")]
)
def test_a_claim_of_what_one_holds_takes_no_more_room(setting: str, clause: str) -> None:
    bench = Bench(**{setting: 3})
    member, messages = bench.join(), [bench.publish() for _ in range(4)]
    for offset, message in enumerate(messages[:3]):
        bench.gives(member, message, offset)
    changed(bench, **{setting: 2})(True)
    bench.oracle.claim(member, bench.copy(messages[0]), 0)(True)
    bench.gives(member, messages[0], 0, count=2)
    accused(clause, lambda: bench.gives(member, messages[3], 3))


def test_a_claim_of_what_others_hold_takes_room_of_who_claims_and_none_of_the_group() -> None:
    bench = Bench(group_max_in_flight=3, max_in_flight=2)
    slow, quick, messages = bench.join("slow"), bench.join("quick"), [bench.publish() for _ in range(3)]
    for offset, message in enumerate(messages[:2]):
        bench.gives(slow, message, offset)
    bench.gives(quick, messages[2], 2)
    bench.oracle.claim(quick, bench.copy(messages[0]), 0)(True)
    bench.gives(quick, messages[0], 0, count=2)
    bench.oracle.claim(quick, bench.copy(messages[1]), 0)(None)
    accused("Q-SETTLE-13", lambda: bench.gives(quick, messages[1], 1, count=2))
