"""What the model of lives of queues knows of what ends: groups, queues, deadlines, retries that are used up, room."""

from __future__ import annotations

import pytest

from assay.conformance.explore.queues.state import Kind
from assay.conformance.explore.rules import ViolationError
from tests.conformance.explore.test_queue_lessons import LETTER_OF_THE_FIRST, Bench, accused


def test_what_a_deleted_group_had_settled_may_come_to_the_next_of_its_name_and_the_rest_must() -> None:
    bench = Bench()
    member, settled, held, unread = bench.join(), bench.publish(), bench.publish(), bench.publish()
    bench.gives(member, settled, 0)
    bench.gives(member, held, 1)
    bench.ask(member, settled)(True)
    bench.oracle.leave(member)
    bench.oracle.delete_group(member.group)(True)
    assert bench.queue.groups == {}
    again = bench.join()
    assert not bench.copy(settled).must(Kind.READY)
    bench.gives(again, held, 1)
    accused("Q-LIFE-04", lambda: bench.gives(again, unread, 2, count=2))
    assert bench.oracle.due(hard=False) is bench.copy(unread)


def test_a_group_with_a_consumer_or_a_part_in_a_transaction_is_not_deleted() -> None:
    bench = Bench()
    member, message, transaction = bench.join(), bench.publish(), bench.oracle.begin(900)
    bench.gives(member, message, 0)
    answered = bench.oracle.delete_group(member.group)
    accused("Q-GROUP-16", lambda: answered(True))
    bench.ask(member, message, into=transaction)(True)
    bench.oracle.leave(member)
    assert not bench.oracle.is_unused(member.group)
    accused("Q-GROUP-17", lambda: bench.oracle.delete_group(member.group)(True))
    bench.oracle.ending(transaction, commit=True)(True)
    assert bench.oracle.is_unused(member.group)
    bench.oracle.delete_group(member.group)(True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_nothing_of_a_deleted_queue_comes_from_the_next_of_its_name(*, is_killed: bool) -> None:
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.ask(member, message, verb="reject")(True)
    bench.oracle.leave(member)
    bench.oracle.deleted(bench.queue)
    if is_killed:
        bench.dies()
    clause = "Q-ADMIN-08" if is_killed else "Q-ADMIN-07"
    accused(clause, lambda: bench.gives(bench.join(), message, 0))
    accused(clause, lambda: bench.gives(bench.join(queue=bench.letters), message, 0, 2))
    fresh = bench.publish()
    bench.gives(bench.join(), fresh, 0)


def test_a_queue_that_an_open_transaction_knows_of_is_left_alone() -> None:
    bench = Bench()
    transaction = bench.oracle.begin(900)
    assert not bench.oracle.is_in_transaction(bench.queue)
    bench.publish(transaction)
    assert bench.oracle.is_in_transaction(bench.queue)
    bench.oracle.ending(transaction, commit=False)(True)
    assert not bench.oracle.is_in_transaction(bench.queue)


@pytest.mark.parametrize(("extend_s", "is_over"), [(50, True), (0, False), (20_000, False)])
def test_an_extension_is_what_it_names(extend_s: int, is_over: bool) -> None:
    bench = Bench(timeout_s=100_000)
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    copies = [member.group.copies[message]]
    bench.oracle.settle(member, copies, "extend", extend_s, "", None)(True, ())
    bench.moves(90)
    assert bench.copy(message).must(Kind.READY) is is_over
    assert bench.copy(message).must(Kind.FLIGHT) is not is_over


@pytest.mark.parametrize("dead_letters", [False, True])
def test_what_has_used_up_its_retries_is_given_to_no_claimant(*, dead_letters: bool) -> None:
    """That it is refused is all: it may be given up by that, or stay with who holds it."""
    bench = Bench(max_retries=0, dead_letters=dead_letters)
    slow, quick, message = bench.join("slow"), bench.join("quick"), bench.publish()
    bench.gives(slow, message, 0)
    answered = bench.oracle.claim(quick, bench.copy(message), 0)
    accused("Q-RETRY-05", lambda: answered(True))
    answered(False)
    assert bench.copy(message).may(Kind.FLIGHT)
    assert bench.copy(message).may(Kind.DEAD if dead_letters else Kind.GONE)
    accused("Q-LIFE-01", lambda: bench.gives(quick, message, 0, count=2))


def test_a_claim_that_names_nothing_is_asked_for_where_only_one_can_be_meant() -> None:
    bench = Bench()
    member, first, second = bench.join(), bench.publish(), bench.publish()
    bench.gives(member, first, 0)
    bench.oracle.now += 30
    bench.gives(member, second, 1)
    found = bench.oracle.idle_alone(member.group.open_copies(), 20)
    assert found == [bench.copy(first)]
    assert bench.oracle.idle_alone(member.group.open_copies(), 0) == []  # how old the second is, is not certain
    assert bench.oracle.idle_alone(member.group.open_copies(), 200) == []


def test_what_a_refused_claim_has_made_a_dead_letter_of_stays_one_whatever_is_committed() -> None:
    bench = Bench(max_retries=0)
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.oracle.claim(member, bench.copy(message), 0)(False)
    bench.oracle.commit(member, 0, 1)(True)
    told = {"_dlq_original_queue": "q", "_dlq_original_topic": message.topic, "_dlq_group": "g"}
    told |= {
        "_dlq_delivery_count": "1",
        "_dlq_consumer": "c",
        "_dlq_original_partition": "0",
        "_dlq_original_offset": "0",
    }
    letter = next(iter(bench.letters.messages))
    bench.gives(bench.join(queue=bench.letters), letter, 0, **told)


def test_the_bytes_that_a_queue_tells_of_are_those_that_it_holds() -> None:
    bench = Bench(max_bytes=50_000)
    bench.oracle.leave(bench.join())
    kept, transaction = bench.publish(size_bytes=300), bench.oracle.begin(900)
    bench.publish(transaction, size_bytes=20_000)
    bench.oracle.ending(transaction, commit=False)(True)
    assert bench.oracle.figures(bench.queue)["", "held_bytes"] == kept.size
    assert ("", "held_bytes") not in Bench().oracle.figures(Bench().queue)


@pytest.mark.parametrize(("overflow", "is_gone"), [("drop_oldest", True), ("dead_letter_oldest", False)])
def test_what_was_given_up_for_a_newer_one_comes_to_no_group_that_is_made_later(overflow: str, is_gone: bool) -> None:
    """What becomes a dead letter may come until it is one."""
    bench = Bench(max_depth=2, overflow=overflow)
    bench.oracle.leave(bench.join())
    first = bench.publish()
    bench.oracle.now += 1
    bench.publish()
    bench.oracle.now += 1
    bench.publish()
    later = bench.join(group="later")
    if is_gone:
        accused("Q-LIMIT-16", lambda: bench.gives(later, first, 0))
    else:
        bench.gives(later, first, 0)


def test_a_message_may_be_two_dead_letters_where_a_kill_came_between_and_its_group_was_reset() -> None:
    """It is a dead letter first and settled then: killed in between, the broker gives it up once more."""
    bench = Bench(max_retries=0, timeout_s=50)
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.moves(300_000)
    bench.oracle.purge(bench.queue)(True)
    bench.dies()
    bench.oracle.reset(bench.queue.groups["g"], latest=True)(True)
    reader = bench.join("reader", "letters", bench.letters)
    for offset in (0, 1):
        bench.gives(reader, message, offset, **LETTER_OF_THE_FIRST, _dlq_consumer="c")
    with pytest.raises(ViolationError):
        bench.gives(reader, message, 2, **LETTER_OF_THE_FIRST, _dlq_consumer="c")
