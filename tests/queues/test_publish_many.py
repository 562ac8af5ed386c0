"""Many messages with one confirm: whatever holds for single ones holds for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import JointConfirm
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.routing.message import Message
from assay.sim.disk import SimDisk
from tests.queues.conftest import Outcome, QueueBench

BenchWith = Callable[..., QueueBench]
TOPICS = ("$queue/q/key", "captured/a", "captured/b")
"""Those of ordinary topics come by a binding."""
KINDS: dict[str, Callable[[int], Message]] = {
    "plain": lambda number: _message(number),
    "with keys": lambda number: _message(number, user_properties=(("partition-key", str(number % 7)),)),
    "some with an expiry": lambda number: _message(number, expires_at=4e9 if number % 3 else 0.0),
}


def _message(number: int, **fields: object) -> Message:
    # What comes in a row may differ in one of them, in both, or in none.
    topic, publisher = TOPICS[number // 3 % 3], f"p{number // 2 % 2}"
    return Message(topic=topic, payload=b"%d" % number, publisher=publisher, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 63, 64, 1_000])
@pytest.mark.parametrize("restarts", [False, True], ids=["remembered", "read back"])
def test_all_of_them_are_delivered_as_single_ones_are(
    bench_with: BenchWith, kind: str, count: int, restarts: bool
) -> None:
    bench = bench_with(SimDisk(random.Random(1)), partitions=4, max_in_flight=2_000)
    consumer = bench.consumer(room=0 if restarts else 2_000)
    confirmed = Outcome()
    messages = [KINDS[kind](number) for number in range(count)]
    bench.engine.publish_many(QueueTopics(bench.engine).address("$queue/q/key"), messages, bench.now, confirmed)
    assert not confirmed.calls
    bench.turn()
    assert confirmed.confirmed
    if restarts:
        bench.restart()
        consumer = bench.consumer(room=2_000)
        bench.turn()
    assert Counter(consumer.values) == Counter(str(number) for number in range(count))
    for delivery in consumer.got:
        sent = messages[int(delivery.message.payload)]
        assert (delivery.message.publisher, delivery.message.user_properties) == (sent.publisher, sent.user_properties)
        assert (delivery.topic, delivery.message.topic) == ("$queue/q/key", sent.topic)
        assert delivery.message.expires_at == sent.expires_at
    by_partition: dict[int, list[int]] = {}
    for delivery in consumer.got:
        by_partition.setdefault(delivery.partition, []).append(int(delivery.message.payload))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    assert len(by_partition) == 4 or count < 1_000


@pytest.mark.parametrize("is_there", [False, True], ids=["created", "there"])
def test_what_does_not_fit_is_refused_and_the_rest_enqueued(bench_with: BenchWith, is_there: bool) -> None:
    """Only a queue that is there takes runs, which look at the limits in a way of their own (R19)."""
    bench = bench_with(partitions=1, max_depth=100)
    if is_there:
        bench.consumer().leave()
    confirmed = Outcome()
    bench.engine.publish_many(
        QueueTopics(bench.engine).address("$queue/q"), [_message(number) for number in range(130)], bench.now, confirmed
    )
    bench.turn()
    assert confirmed.failed
    assert confirmed.calls[0] is not None
    assert confirmed.calls[0].code is QueueErrorCode.FULL
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.refused) == (100, 30)


@pytest.mark.parametrize("is_there", [False, True], ids=["created", "there"])
def test_one_too_large_is_refused_among_many(bench_with: BenchWith, is_there: bool) -> None:
    bench = bench_with(partitions=1, max_message_bytes=10)
    if is_there:
        bench.consumer().leave()
    messages = [_message(number) for number in range(100)]
    messages[50] = Message(topic="$queue/q", payload=bytes(11))
    confirmed = Outcome()
    bench.engine.publish_many(QueueTopics(bench.engine).address("$queue/q"), messages, bench.now, confirmed)
    bench.turn()
    assert confirmed.calls[0] is not None
    assert confirmed.calls[0].code is QueueErrorCode.TOO_LARGE
    assert bench.engine.stats("q").depth == 99


def test_no_messages_are_confirmed_at_once(bench: QueueBench) -> None:
    confirmed = Outcome()
    bench.engine.publish_many(QueueTopics(bench.engine).address("$queue/q"), [], bench.now, confirmed)
    assert confirmed.confirmed


def test_a_joint_confirm_waits_for_all_and_tells_the_first_error() -> None:
    outcome = Outcome()
    joint = JointConfirm(outcome)
    first, second, third = joint.part(), joint.part(), joint.part()
    joint.close()
    failure = QueueError(QueueErrorCode.FULL, "full")
    first(None)
    second(failure)
    assert not outcome.calls
    third(QueueError(QueueErrorCode.CLOSED, "closed"))
    assert outcome.calls == [failure]
