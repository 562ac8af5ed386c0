"""What the model of lives of queues has learnt, and what it must not let pass for that: told to it without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.deliveries import NUMBER
from assay.conformance.explore.queues.life import GroupPlan, QueuePlan
from assay.conformance.explore.queues.oracle import Oracle
from assay.conformance.explore.queues.requests import message_of
from assay.conformance.explore.queues.settlements import BEYOND
from assay.conformance.explore.queues.state import Copy, Fate, Kind, Member, Message, Queue
from assay.conformance.explore.rules import ViolationError
from assay.conformance.partitioners import fnv1a
from assay.conformance.wire import Properties, Publish

NONCE = "0123456789abcdef"
LETTER_OF_THE_FIRST = {
    "_dlq_original_queue": "q",
    "_dlq_original_topic": "$queue/q",
    "_dlq_group": "g",
    "_dlq_original_partition": "0",
    "_dlq_original_offset": "0",
    "_dlq_delivery_count": "1",
}
"""What a dead letter tells of a message that was delivered once."""


class Bench:
    """A queue, whose broker says what a test lets it say."""

    def __init__(self, **settings: Any) -> None:
        self.oracle = Oracle(("q",), (QueuePlan(**settings),))
        self.queue = self.oracle.queues[0]
        self.oracle.now = 1_000.0
        self.published = 0

    @property
    def letters(self) -> Queue:
        assert self.queue.letters is not None
        return self.queue.letters

    def ask_publish(self, transaction: Any = None, **step: Any) -> tuple[Message, Callable[[bool | None], None]]:
        message, _ = message_of(plan.Publish(**step), self.queue, self.published, self.oracle.serial, "t")
        self.published += 1
        self.oracle.round += 1
        message.client = step.get("client", 0)
        message.burst = self.oracle.round
        return message, self.oracle.publish(self.queue, message, transaction)

    def publish(self, transaction: Any = None, **step: Any) -> Message:
        message, answered = self.ask_publish(transaction, **step)
        answered(True)
        return message

    def refused(self, **step: Any) -> None:
        self.ask_publish(**step)[1](False)

    def join(self, name: str = "c", group: str = "g", queue: Queue | None = None, *, prefetch: int = 0) -> Member:
        self.oracle.round += 1
        joined = GroupPlan(dead=queue is not None)
        number = len(name) * 100 + ord(name[0])
        return self.oracle.join(
            queue or self.queue,
            group,
            joined,
            lambda made: Member(made, name, name, prefetch, 0, self.oracle.round),
            number,
        )

    def gives(
        self, member: Member, message: Message, offset: int, count: int = 1, partition: int = 0, **more: str
    ) -> None:
        queue = member.group.queue
        told = {
            "message-id": f"{queue.name}:{partition}:{offset}",
            "group-id": member.group.name,
            "queue": queue.name,
            "partition": str(partition),
            "offset": str(offset),
            "delivery-count": str(count),
            **({"redelivered": "true"} if count > 1 else {}),
            NUMBER: str(message.number),
            **more,
        }
        properties = Properties(user_property=tuple(told.items()))
        packet = Publish(topic=message.topic, payload=message.payload, qos=1, packet_id=1, properties=properties)
        self.oracle.delivered(member, packet, message.number)

    def ask(self, member: Member, *messages: Message, verb: str = "ack", **more: Any) -> Callable[..., None]:
        copies = [member.group.copies[message] for message in messages]
        answered = self.oracle.settle(member, copies, verb, 0, "", more.get("into"), more.get("by_receipt"))
        return lambda accepted, told=(): answered(accepted, told)

    def moves(self, seconds: float) -> None:
        self.oracle.about_to_move()
        self.oracle.now += seconds
        self.oracle.round += 1
        self.oracle.tick(self.oracle.now)

    def dies(self) -> None:
        self.oracle.round += 1
        self.oracle.killed(self.oracle.now)

    def copy(self, message: Message, group: str = "g") -> Copy:
        return self.queue.groups[group].copies[message]


def accused(clause: str, what: Callable[[], object]) -> None:
    with pytest.raises(ViolationError) as seen:
        what()
    assert clause in seen.value.clauses, seen.value


# Settlements of what may be on its way


def test_a_settlement_may_meet_a_delivery_that_nobody_has_read_yet() -> None:
    """A message is given back and settled again at once: that may be of its next delivery, which is read later."""
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.ask(member, message, verb="nack")(True)
    bench.ask(member, message)(True)
    bench.gives(member, message, 0, count=2)
    assert bench.copy(message).must(Kind.GONE)
    accused("Q-ACK-1", lambda: bench.gives(member, message, 0, count=3))


def test_a_settlement_of_what_is_read_while_it_is_asked_for() -> None:
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.ask(member, message, verb="nack")(True)
    answered = bench.ask(member, message)
    bench.gives(member, message, 0, count=2)
    answered(True)
    assert bench.copy(message).must(Kind.GONE)
    accused("Q-LIFE-05", lambda: bench.ask(member, message)(True))


def test_what_timed_out_may_be_settled_by_its_next_delivery() -> None:
    """Sent before the clock was moved, it has timed out by the time it is read."""
    bench = Bench(timeout_s=50)
    member, message = bench.join(), bench.publish()
    bench.moves(300_000)
    bench.gives(member, message, 0)
    answered = bench.ask(member, message)
    bench.gives(member, message, 0, count=2)
    answered(True)
    assert bench.copy(message).must(Kind.GONE)


def test_what_is_with_somebody_else_is_not_settled() -> None:
    bench = Bench()
    member, other, message = bench.join(), bench.join("other"), bench.publish()
    bench.gives(member, message, 0)
    accused("Q-LIFE-06", lambda: bench.ask(other, message)(True))


# Resets while somebody reads


def test_a_delivery_may_be_read_that_was_sent_before_a_reset() -> None:
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.oracle.reset(member.group, latest=False)(True)
    bench.gives(member, message, 0)
    bench.gives(member, message, 0)
    accused("Q-LIFE-01", lambda: bench.gives(member, message, 0))


def test_what_was_read_before_a_reset_cannot_be_settled_and_comes_again() -> None:
    bench = Bench()
    member, message = bench.join("c", prefetch=1), bench.publish()
    bench.gives(member, message, 0)
    bench.oracle.reset(member.group, latest=True)(True)
    accused("Q-LIFE-05", lambda: bench.ask(member, message)(True))
    accused("Q-CURSOR-02", lambda: bench.gives(member, message, 0))
    bench.oracle.reset(member.group, latest=False)(True)
    bench.gives(member, message, 0)


# Limits


def test_what_expired_in_an_open_transaction_may_count_until_that_ends() -> None:
    bench = Bench(max_depth=2)
    bench.oracle.leave(bench.join())
    transaction = bench.oracle.begin(900)
    bench.publish(transaction, ttl_s=50)
    bench.publish()
    bench.moves(90)
    assert bench.oracle.figures(bench.queue)["", "depth"] == (1, 2)
    assert bench.oracle.figures(bench.queue)["g", "lag"] == (1, 2)
    bench.refused()
    bench.oracle.ending(transaction, commit=False)(True)
    assert transaction.fate is Fate.ABORTED
    bench.oracle.looked_at(bench.queue)
    accused("Q-PUBLISH-1", bench.refused)


def test_what_has_expired_counts_no_more_once_the_figures_say_so() -> None:
    bench = Bench(max_depth=1)
    bench.oracle.leave(bench.join())
    bench.publish(ttl_s=50)
    bench.moves(90)
    assert bench.oracle.figures(bench.queue)["", "depth"] == (0, 0)
    bench.refused()
    bench.oracle.looked_at(bench.queue)
    accused("Q-PUBLISH-1", bench.refused)


def test_dead_letters_that_are_not_taken_yet_count_for_the_queue_they_leave() -> None:
    bench = Bench(max_depth=2, overflow="dead_letter_oldest")
    member = bench.join("c", prefetch=1)
    bench.gives(member, bench.publish(), 0)
    bench.publish()
    accused("Q-PUBLISH-1", bench.refused)
    bench.publish()
    bench.publish()
    bench.refused()


def test_a_message_may_be_as_large_as_its_queue_lets_it_be() -> None:
    bench = Bench(max_message_bytes=400)
    assert bench.publish(over_limit=0).size[0] == 400
    accused("Q-LIMIT-03", lambda: bench.publish(over_limit=1))
    accused("Q-PUBLISH-1", lambda: bench.refused(over_limit=0))
    bench.refused(over_limit=1)
    bench.refused(over_limit=0, key="a")  # whether the key counts is not said


# Dead letters


def test_a_letter_that_left_by_itself_may_have_been_sent_before_the_clock_was_moved() -> None:
    bench = Bench(timeout_s=50, to_letters=True)
    bench.join()
    message, reader = bench.publish(ttl_s=50), bench.join("reader", "letters", bench.letters)
    bench.moves(90)
    bench.moves(300_000)
    history = {
        "_dlq_reason": "TTL_EXPIRED",
        "_dlq_original_queue": "q",
        "_dlq_original_topic": "$queue/q",
        "_dlq_group": "g",
    }
    bench.gives(reader, message, 0, **history)
    letter = next(iter(bench.letters.messages))
    bench.ask(reader, letter)(False, ["$dlq/q:0:0"])


def test_a_message_may_be_back_after_a_kill_though_it_is_a_dead_letter() -> None:
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.ask(member, message, verb="reject")  # nobody hears the answer
    bench.dies()
    again, reader = bench.join(), bench.join("reader", "letters", bench.letters)
    bench.gives(again, message, 0, count=2)
    history = {
        "_dlq_reason": "r",
        "_dlq_original_queue": "q",
        "_dlq_original_topic": "$queue/q",
        "_dlq_group": "g",
        "_dlq_original_partition": "0",
        "_dlq_original_offset": "0",
        "_dlq_delivery_count": "1",
    }
    bench.gives(reader, message, 0, **history)
    bench.ask(again, message)(True)


def test_a_letter_is_taken_for_the_one_that_must_be_there() -> None:
    """Its message was reset before the first could be one, and used up its retries again."""
    bench = Bench(max_retries=0)
    bench.join("reader", "letters", bench.letters)
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.dies()
    group = bench.queue.groups["g"]
    bench.oracle.reset(group, latest=False)(True)
    again = bench.join("again")
    bench.gives(again, message, 0)
    bench.oracle.leave(again)
    reader = bench.join("reader", "letters", bench.letters)
    bench.oracle.auditing = True
    history = {
        "_dlq_reason": "r",
        "_dlq_original_queue": "q",
        "_dlq_original_topic": "$queue/q",
        "_dlq_group": "g",
        "_dlq_original_partition": "0",
        "_dlq_original_offset": "0",
        "_dlq_delivery_count": "1",
        "_dlq_consumer": "again",
    }
    assert bench.oracle.due(hard=True) is not None
    bench.gives(reader, message, 0, **history)
    assert bench.oracle.due(hard=True) is None


def test_of_two_letters_of_a_message_one_is_meant_by_its_reason() -> None:
    """It was given up as the broker died, its group was reset, and somebody rejected it after as many deliveries."""
    bench = Bench(max_retries=0)
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.dies()
    bench.oracle.reset(bench.queue.groups["g"], latest=False)(True)
    again = bench.join("again")
    bench.gives(again, message, 0)
    bench.oracle.settle(again, [bench.copy(message)], "reject", 0, "why", None, None)(True, ())
    reader = bench.join("reader", "letters", bench.letters)
    bench.gives(reader, message, 0, **LETTER_OF_THE_FIRST, _dlq_reason="max retries exceeded", _dlq_consumer="c")
    bench.gives(reader, message, 1, **LETTER_OF_THE_FIRST, _dlq_reason="why", _dlq_consumer="again")


def test_of_two_letters_of_a_message_one_is_meant_by_its_consumer() -> None:
    """It was given up after a consumer, its group was reset, and it was given up once more after another."""
    bench = Bench(max_retries=0, timeout_s=50)
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.moves(300_000)
    bench.oracle.reset(bench.queue.groups["g"], latest=False)(True)
    again = bench.join("again")
    bench.gives(again, message, 0)
    bench.moves(300_000)
    reader = bench.join("reader", "letters", bench.letters)
    accused("Q-DLQ-01", lambda: bench.gives(reader, message, 0, **LETTER_OF_THE_FIRST, _dlq_consumer="nobody"))
    bench.gives(reader, message, 0, **LETTER_OF_THE_FIRST, _dlq_consumer="c")
    accused("Q-DLQ-01", lambda: bench.gives(reader, message, 1, **LETTER_OF_THE_FIRST, _dlq_consumer="c"))
    bench.gives(reader, message, 1, **LETTER_OF_THE_FIRST, _dlq_consumer="again")


def test_what_was_given_back_untried_is_not_counted_but_for_a_kill() -> None:
    """By HTTP: the broker keeps in memory alone that a first delivery was none."""
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.ask(member, message, verb="release")(True)
    accused("Q-LIFE-04", lambda: bench.gives(member, message, 0, count=2))
    bench.gives(member, message, 0, count=1)
    bench.ask(member, message, verb="release")(True)
    bench.dies()
    bench.gives(bench.join("again"), message, 0, count=2)
    once = Bench(max_retries=0)
    member, message = once.join(), once.publish()
    once.gives(member, message, 0)
    once.ask(member, message, verb="release")(True)
    assert not once.copy(message).may(Kind.DEAD)
    once.dies()
    assert once.copy(message).may(Kind.DEAD)


def test_nothing_becomes_of_what_a_queue_in_memory_had_in_a_transaction() -> None:
    bench = Bench(durability="memory", max_retries=0)
    member, message = bench.join(), bench.publish()
    bench.join("reader", "letters", bench.letters)
    bench.gives(member, message, 0)
    bench.ask(member, message, into=bench.oracle.begin(900))(True)
    bench.dies()
    bench.oracle.auditing = True
    bench.join("reader", "letters", bench.letters)
    assert bench.oracle.due(hard=True) is None


def test_a_letter_may_come_before_the_answer_to_the_publish_that_made_it_one() -> None:
    bench = Bench(max_depth=1, overflow="dead_letter_oldest")
    bench.oracle.leave(bench.join())
    oldest, reader = bench.publish(), bench.join("reader", "letters", bench.letters)
    history = {"_dlq_reason": "QUEUE_FULL", "_dlq_original_queue": "q", "_dlq_original_topic": "$queue/q"}
    accused("Q-DLQ-09", lambda: bench.gives(reader, oldest, 0, **history))
    _, answered = bench.ask_publish()
    bench.gives(reader, oldest, 0, **history)
    answered(True)


def test_a_confirmed_rejection_holds_over_a_kill() -> None:
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.ask(member, message, verb="reject")(True)
    bench.dies()
    again = bench.join()
    accused("Q-REJECT-1", lambda: bench.gives(again, message, 0, count=2))


# Order


def test_what_fires_may_come_behind_what_was_published_after_its_time() -> None:
    """A broker may be a moment late. Where they lie is their order from then on."""
    bench = Bench()
    delayed, member = bench.publish(delay_s=50), bench.join()
    bench.moves(90)
    direct = bench.publish()
    bench.gives(member, direct, 0)
    bench.gives(member, delayed, 1)
    bench.oracle.leave(member)
    again = bench.join()
    bench.gives(again, delayed, 1, count=2)
    accused("Q-ORDER-04", lambda: bench.gives(again, direct, 0, count=2))


def test_who_leaves_may_not_have_been_sent_what_it_had_no_room_for() -> None:
    bench = Bench(ordering="strict")
    one, two = bench.join("one", prefetch=1), bench.join("two")
    first, second = bench.publish(), bench.publish()
    bench.gives(one, first, 0)
    bench.gives(two, second, 1)
    bench.oracle.leave(two)
    two = bench.join("two")
    bench.join("three")
    bench.oracle.leave(one)
    bench.gives(two, second, 1, count=2)
    bench.gives(two, first, 0, count=2)


# Claims and commits


@pytest.mark.parametrize("reads_first", [False, True])
def test_a_claim_moves_a_delivery(*, reads_first: bool) -> None:
    bench = Bench()
    slow, quick, message = bench.join("slow"), bench.join("quick"), bench.publish()
    bench.gives(slow, message, 0)
    bench.oracle.now += 30.0
    answered = bench.oracle.claim(quick, bench.copy(message), 20)
    if reads_first:
        bench.gives(quick, message, 0, count=2)
    answered(True)
    if not reads_first:
        bench.gives(quick, message, 0, count=2)
    accused("Q-LIFE-06", lambda: bench.ask(slow, message)(True))
    bench.ask(slow, message)(False)
    bench.ask(quick, message)(True)


def test_a_claim_that_was_served_must_come_to_who_claimed() -> None:
    bench = Bench()
    slow, quick, message = bench.join("slow"), bench.join("quick"), bench.publish()
    bench.gives(slow, message, 0)
    bench.oracle.claim(quick, bench.copy(message), 0)(True)
    accused("Q-LIFE-01", lambda: bench.gives(slow, message, 0, count=2))
    assert bench.oracle.due(hard=True) is bench.copy(message)


@pytest.mark.parametrize(
    ("idle_s", "accepted", "clause"),
    [
        (200, True, "Q-GROUP-09"),
        (200, False, ""),
        (20, False, "Q-GROUP-06"),
        (20, True, ""),
        (30, True, ""),
        (30, False, ""),
    ],
)
def test_a_claim_is_served_where_its_time_is_over(idle_s: int, accepted: bool, clause: str) -> None:
    """What is near the time that is asked for may be either."""
    bench = Bench()
    slow, quick, message = bench.join("slow"), bench.join("quick"), bench.publish()
    bench.gives(slow, message, 0)
    bench.oracle.now += 30.0
    answered = bench.oracle.claim(quick, bench.copy(message), idle_s)
    if clause:
        accused(clause, lambda: answered(accepted))
    else:
        answered(accepted)


def test_what_is_settled_cannot_be_claimed() -> None:
    bench = Bench()
    slow, quick, message = bench.join("slow"), bench.join("quick"), bench.publish()
    bench.gives(slow, message, 0)
    bench.ask(slow, message)(True)
    bench.oracle.claim(quick, bench.copy(message), 0)(False)
    accused("Q-GROUP-07", lambda: bench.oracle.claim(quick, bench.copy(message), 0)(True))


def test_a_claimant_without_room_may_be_refused() -> None:
    bench = Bench()
    slow, quick = bench.join("slow"), bench.join("quick", prefetch=1)
    first, second = bench.publish(), bench.publish()
    bench.gives(slow, first, 0)
    bench.gives(quick, second, 1)
    bench.oracle.now += 30.0
    bench.oracle.claim(quick, bench.copy(first), 0)(False)


def test_a_commit_settles_what_was_delivered_below_it() -> None:
    bench = Bench()
    member = bench.join()
    first, second, third = bench.publish(), bench.publish(), bench.publish()
    for offset, message in enumerate((first, second, third)):
        bench.gives(member, message, offset)
    accused("Q-CURSOR-07", lambda: bench.oracle.commit(member, 0, 2)(False))
    bench.oracle.commit(member, 0, 2)(True)
    assert bench.copy(first).must(Kind.GONE)
    assert bench.copy(second).must(Kind.GONE)
    assert bench.copy(third).is_held_by(member)
    accused("Q-LIFE-05", lambda: bench.ask(member, first)(True))
    bench.oracle.leave(member)
    accused("Q-CURSOR-07", lambda: bench.gives(bench.join("again"), first, 0, count=2))


def test_commits_beyond_everything_or_below_what_is_settled_are_refused() -> None:
    bench = Bench()
    member = bench.join()
    first, second = bench.publish(), bench.publish()
    bench.gives(member, first, 0)
    bench.gives(member, second, 1)
    bench.oracle.commit(member, 0, 0)(True)  # nothing is settled yet
    bench.ask(member, first)(True)
    bench.oracle.commit(member, 0, BEYOND)(False)
    assert bench.copy(second).is_held_by(member)
    accused("Q-CURSOR-08", lambda: bench.oracle.commit(member, 0, 0)(True))
    accused("Q-CURSOR-09", lambda: bench.oracle.commit(member, 0, BEYOND)(True))


def test_a_commit_of_one_of_several_members_may_be_refused() -> None:
    """The partition may be another's by now."""
    bench = Bench()
    member, message = bench.join(), bench.publish()
    bench.gives(member, message, 0)
    bench.join("other")
    bench.oracle.commit(member, 0, 1)(False)


# Receipts


def test_a_receipt_settles_its_delivery_whoever_shows_it() -> None:
    bench = Bench(receipts=True)
    member, other, message = bench.join(), bench.join("other"), bench.publish()
    bench.gives(member, message, 0, receipt=f"q:0:0:1:{NONCE}")
    copy = bench.copy(message)
    bench.ask(other, message, verb="nack", by_receipt={copy: 1})(True)
    bench.gives(member, message, 0, count=2, receipt=f"q:0:0:2:{NONCE[::-1]}")
    accused("Q-SETTLE-11", lambda: bench.ask(member, message, by_receipt={copy: 1})(True))
    bench.ask(member, message, by_receipt={copy: 1})(False)
    bench.ask(other, message, by_receipt={copy: 2})(True)


@pytest.mark.parametrize(
    ("receipt", "clause"),
    [("q:0:1:1:ff", "Q-SETTLE-10"), ("", "Q-SETTLE-10"), ("q:0:1:2:", "Q-SETTLE-10"), (f"q:0:1:1:{NONCE}", "")],
)
def test_receipts_name_their_delivery(receipt: str, clause: str) -> None:
    bench = Bench(receipts=True)
    member, first, second = bench.join(), bench.publish(), bench.publish()
    bench.gives(member, first, 0, receipt="q:0:0:1:00")
    if clause and receipt != "q:0:1:1:ff":
        accused(clause, lambda: bench.gives(member, second, 1, receipt=receipt))
    else:
        bench.gives(member, second, 1, receipt=receipt)


def test_a_nonce_is_of_one_delivery() -> None:
    bench = Bench(receipts=True)
    member, first, second = bench.join(), bench.publish(), bench.publish()
    bench.gives(member, first, 0, receipt=f"q:0:0:1:{NONCE}")
    accused("Q-SETTLE-12", lambda: bench.gives(member, second, 1, receipt=f"q:0:1:1:{NONCE}"))


@pytest.mark.parametrize(("partitions", "apart_s", "is_known"), [(1, 0.0, True), (3, 0.0, False), (3, 1.0, True)])
def test_the_oldest_of_several_partitions_is_known_by_time_alone(
    partitions: int, apart_s: float, is_known: bool
) -> None:
    """A broker keeps it in milliseconds: one that dropped the second of two in one of them was accused."""
    bench = Bench(partitions=partitions, max_depth=2, overflow="drop_oldest")
    first = bench.publish()
    bench.moves(apart_s)
    second = bench.publish()
    bench.moves(apart_s)
    third = bench.publish()
    member = bench.join()
    places = {second: (0, 0), third: (0, 1)} if is_known else {first: (0, 0), third: (1, 0)}
    if is_known:
        accused("Q-LIMIT-04", lambda: bench.gives(member, first, 0))
    for message, (partition, offset) in places.items():
        bench.gives(member, message, offset, partition=partition)


# Partitions


def test_a_key_leads_to_its_partition_also_after_others_are_added() -> None:
    bench = Bench(partitions=3, partitioner="fnv1a")
    member, key = bench.join(), "key"
    before = bench.publish(key=key)
    accused("Q-PART-10", lambda: bench.oracle.grow(bench.queue, 2)(True))
    bench.oracle.grow(bench.queue, 5)(True)
    after = bench.publish(key=key)
    old, new = fnv1a(key.encode()) % 3, fnv1a(key.encode()) % 5
    assert old != new
    accused("Q-PART-01", lambda: bench.gives(member, before, 0, partition=new))
    bench.gives(member, before, 0, partition=old)
    bench.gives(member, after, 0, partition=new)


def test_more_partitions_are_not_refused() -> None:
    bench = Bench(partitions=2)
    accused("Q-PART-07", lambda: bench.oracle.grow(bench.queue, 3)(False))
    bench.oracle.grow(bench.queue, 1)(False)


def test_a_partition_that_is_added_may_take_what_was_delayed_before() -> None:
    bench = Bench(partitions=2, partitioner="fnv1a")
    member, delayed = bench.join(), bench.publish(key="key", delay_s=50)
    bench.oracle.grow(bench.queue, 5)(True)
    bench.moves(90)
    bench.gives(member, delayed, 0, partition=fnv1a(b"key") % 5)


def test_a_partition_changes_hands_once_and_not_to_and_fro() -> None:
    """Where nobody comes or leaves: once it may have to wait for what is settled."""
    bench = Bench(partitions=2)
    one, two = bench.join("one"), bench.join("two")
    for offset, member in enumerate((one, one, two, two)):
        bench.gives(member, bench.publish(partition=0), offset)
    accused("Q-ASSIGN-01", lambda: bench.gives(one, bench.publish(partition=0), 4))
    bench.join("three")
    bench.gives(one, bench.publish(partition=0), 5)


def test_without_an_order_partitions_are_everybodys() -> None:
    bench = Bench(partitions=2, ordering="none")
    one, two = bench.join("one"), bench.join("two")
    for offset, member in enumerate((one, two, one, two)):
        bench.gives(member, bench.publish(partition=0), offset)


# Settings that change


def changed(bench: Bench, **settings: Any) -> Callable[[bool | None], None]:
    return bench.oracle.change(bench.queue, msgspec.structs.replace(bench.queue.plan, **settings))


def test_a_lower_limit_takes_nothing_from_who_holds_more() -> None:
    bench = Bench(max_in_flight=100)
    member, messages = bench.join(), [bench.publish() for _ in range(4)]
    for offset, message in enumerate(messages[:2]):
        bench.gives(member, message, offset)
    changed(bench, max_in_flight=2)(True)
    accused("Q-SETTLE-13", lambda: bench.gives(member, messages[2], 2))
    changed(bench, max_in_flight=3)(True)
    bench.gives(member, messages[2], 2)


def test_a_higher_limit_may_hold_before_the_change_is_confirmed() -> None:
    bench = Bench(group_max_in_flight=1)
    member, first, second = bench.join(), bench.publish(), bench.publish()
    bench.gives(member, first, 0)
    answered = changed(bench, group_max_in_flight=0)
    bench.gives(member, second, 1)
    answered(True)


def test_changes_are_taken_or_refused_as_they_have_to_be() -> None:
    bench = Bench()
    accused("Q-ADMIN-04", lambda: changed(bench, max_retries=60)(False))
    bench.oracle.change(bench.queue, None)(False)
    accused("Q-ADMIN-06", lambda: bench.oracle.change(bench.queue, None)(True))


# Dead letters that go back


def rejected(bench: Bench, member: Member, offset: int) -> Message:
    """A message that its consumer rejected, as a dead letter."""
    message = bench.publish()
    bench.gives(member, message, offset)
    bench.ask(member, message, verb="reject")(True)
    letter = bench.copy(message).letter
    assert letter is not None
    return letter


def test_what_was_sent_back_comes_anew_and_is_no_dead_letter_any_more() -> None:
    bench = Bench()
    member = bench.join()
    letter = rejected(bench, member, 0)
    bench.oracle.replay(bench.letters)(True)
    reader = bench.join("reader", "d", bench.letters)
    accused("Q-DLQ-03", lambda: bench.gives(reader, letter, 0, _dlq_group="g", _dlq_delivery_count="1"))
    due = bench.oracle.due(hard=True)
    assert due is not None, "it must come"
    accused("Q-LIFE-04", lambda: bench.gives(member, due.message, 1, count=2))
    bench.gives(member, due.message, 1)


def test_of_two_letters_of_a_message_one_is_meant_by_its_place() -> None:
    """Nobody heard whether it was sent back; it was, and rejected once more."""
    bench = Bench()
    member = bench.join()
    letter = rejected(bench, member, 0)
    bench.oracle.replay(bench.letters)(None)
    (again,) = [message for message in bench.queue.messages if message.is_replayed]
    bench.gives(member, again, 8)
    bench.ask(member, again, verb="reject")(True)
    reader = bench.join("reader", "letters", bench.letters)
    history = {
        "_dlq_original_queue": "q",
        "_dlq_original_topic": "$queue/q",
        "_dlq_group": "g",
        "_dlq_original_partition": "0",
        "_dlq_delivery_count": "1",
        "_dlq_consumer": "c",
    }
    bench.gives(reader, letter, 1, **history, _dlq_original_offset="8")
    with pytest.raises(ViolationError):
        bench.gives(reader, letter, 2, **history, _dlq_original_offset="9")


def test_what_was_given_again_was_no_dead_letter_and_is_not_sent_back() -> None:
    """It might have died as its consumer left; a replay before its death was taken for one of it, which never came."""
    bench = Bench(total_timeout_s=50)
    first, second = bench.join("first"), bench.join("second")
    message = bench.publish(delay_s=100_000)
    bench.moves(300_000.0)
    bench.gives(first, message, 0)
    bench.oracle.leave(first)
    letter = bench.copy(message).letter
    assert letter is not None
    bench.gives(second, message, 0, count=2)
    bench.oracle.replay(bench.letters)(True)
    assert not any(message.is_replayed for message in bench.queue.messages)
    bench.ask(second, message, verb="reject")(True)
    bench.oracle.replay(bench.letters)(True)
    (again,) = [message for message in bench.queue.messages if message.is_replayed]
    assert again.sure
    assert bench.oracle.due(hard=True) is bench.copy(again), "it must come"
    bench.gives(second, again, 1)
    assert bench.oracle.due(hard=True) is None


def test_what_a_consumer_of_dead_letters_holds_stays_with_it() -> None:
    bench = Bench()
    member = bench.join()
    letter = rejected(bench, member, 0)
    reader = bench.join("reader", "d", bench.letters)
    told = {
        "_dlq_group": "g",
        "_dlq_delivery_count": "1",
        "_dlq_original_queue": "q",
        "_dlq_original_topic": letter.source.message.topic if letter.source is not None else "",
        "_dlq_original_partition": "0",
        "_dlq_original_offset": "0",
        "_dlq_consumer": "c",
    }
    bench.gives(reader, letter, 0, **told)
    bench.oracle.replay(bench.letters)(True)
    assert bench.oracle.due(hard=True) is None
    assert bench.letters.groups["d"].copies[letter].must(Kind.FLIGHT)


def test_of_what_may_be_on_its_way_to_a_consumer_nobody_knows_whether_it_was_sent_back() -> None:
    bench = Bench()
    member = bench.join()
    letter = rejected(bench, member, 0)
    bench.join("reader", "d", bench.letters)
    bench.oracle.replay(bench.letters)(True)
    copy = bench.letters.groups["d"].copies[letter]
    assert copy.may(Kind.READY)
    assert copy.may(Kind.GONE)
    assert not any(message.sure for message in bench.queue.messages if message.is_replayed)


# Messages that are numbered


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_sent_once_more_behind_a_kill_may_come_to_a_group_that_begins_at_the_latest(*, is_known: bool) -> None:
    """Nobody saw whether the broker had it when it was killed: by the second time it may come anew."""
    bench = Bench()
    message, answered = bench.ask_publish()
    if is_known:
        answered(True)
    bench.dies()
    begun = GroupPlan(latest=True)
    member = bench.oracle.join(bench.queue, "g", begun, lambda made: Member(made, "c", "c", 0, 0, 0), 0)
    bench.oracle.sent_again(message)
    if is_known:
        accused("Q-CURSOR-02", lambda: bench.gives(member, message, 0))
    else:
        bench.gives(member, message, 0)
