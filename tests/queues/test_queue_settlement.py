"""Ack, nack, reject, timeouts, retries and dead letters, with exact times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from assay.reference_broker.config import Profile, QueueConfig, RetryConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import OUTCOMES
from assay.reference_broker.queues import Outcome, QueueError, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.groups.retry import backoff_s
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]


def test_an_acked_message_is_gone(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    outcome = consumer.ack(consumer.got[0])
    bench.turn()
    assert outcome.confirmed
    bench.advance(100_000)
    assert consumer.values == ["m"]
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.in_flight, stats.groups[0].acked) == (0, 0, 1)


def test_settling_twice_is_refused(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    delivery = consumer.got[0]
    consumer.ack(delivery)
    for verb in OUTCOMES:
        with pytest.raises(QueueError) as caught:
            consumer.settle(verb, delivery)
        assert caught.value.code is QueueErrorCode.NOT_PENDING
    assert bench.engine.stats("q").groups[0].acked == 1


def test_who_does_not_hold_it_cannot_settle_it(bench: QueueBench) -> None:
    holder = bench.consumer("holder")
    bench.publish("m")
    bench.turn()
    bench.consumer("other")
    for stranger in ("other", "nobody"):
        with pytest.raises(QueueError) as caught:
            bench.settle(Verb.ACK, holder.got[0], stranger)
        assert caught.value.code is QueueErrorCode.NOT_PENDING
    bench.settle(Verb.ACK, holder.got[0], None)


def test_nobody_can_settle_what_waits_for_a_retry(bench_with: BenchWith) -> None:
    bench = bench_with(profile=Profile.GOQUEUE)
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    delivery = consumer.got[0]
    consumer.nack(delivery)
    for consumer_id in ("c", None):
        with pytest.raises(QueueError) as caught:
            bench.settle(Verb.ACK, delivery, consumer_id)
        assert caught.value.code is QueueErrorCode.NOT_PENDING


def settle(
    bench: QueueBench,
    *,
    queue: str = "q",
    message_id: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    group: str | None = None,
) -> None:
    request = SettleRequest(
        outcome=Outcome.ACCEPT,
        message_ids=() if message_id is None else (message_id,),
        partition=partition,
        ranges=() if offset is None else ((offset, offset + 1),),
        group=group,
    )
    bench.engine.settle(queue, request, consumer_id="c", now=bench.now)


def test_a_settlement_may_name_its_delivery_in_three_ways(bench: QueueBench) -> None:
    bench.consumer()
    for value in "abcd":
        bench.publish(value)
    bench.turn()
    settle(bench, message_id="q:0:0")
    settle(bench, partition=0, offset=1)
    settle(bench, message_id="q:0:2", group="g")
    settle(bench, message_id="q:0:3", partition=0, offset=3)
    assert bench.engine.stats("q").in_flight == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, QueueErrorCode.BAD_ADDRESS),
        ({"partition": 0}, QueueErrorCode.BAD_ADDRESS),
        ({"offset": 0}, QueueErrorCode.BAD_ADDRESS),
        ({"message_id": "nonsense"}, QueueErrorCode.BAD_ADDRESS),
        ({"message_id": "other:0:0"}, QueueErrorCode.BAD_ADDRESS),
        ({"message_id": "q:0:0", "offset": 1}, QueueErrorCode.BAD_ADDRESS),
        ({"message_id": "q:0:1"}, QueueErrorCode.NOT_PENDING),
        ({"message_id": "q:7:0"}, QueueErrorCode.NOT_PENDING),
        ({"partition": 0, "offset": 10**30}, QueueErrorCode.NOT_PENDING),
        ({"message_id": "q:0:0", "group": "unknown"}, QueueErrorCode.NOT_PENDING),
        ({"message_id": "x:0:0", "queue": "x"}, QueueErrorCode.UNKNOWN_QUEUE),
    ],
)
def test_bad_settlements(bench: QueueBench, fields: dict[str, Any], code: QueueErrorCode) -> None:
    bench.consumer()
    bench.publish("m")
    bench.turn()
    with pytest.raises(QueueError) as caught:
        settle(bench, **fields)
    assert caught.value.code is code
    assert bench.engine.stats("q").in_flight == 1


def test_without_a_group_the_settlement_must_be_unambiguous(bench: QueueBench) -> None:
    bench.consumer("c", group="one")
    bench.consumer("c", group="two")
    bench.publish("m")
    bench.turn()
    with pytest.raises(QueueError) as caught:
        settle(bench, message_id="q:0:0")
    assert caught.value.code is QueueErrorCode.AMBIGUOUS
    settle(bench, message_id="q:0:0", group="one")
    settle(bench, message_id="q:0:0")
    assert bench.engine.stats("q").in_flight == 0


def test_nack_brings_it_back_at_once_even_to_a_sole_consumer(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    for expected in range(2, 6):
        outcome = consumer.nack(consumer.got[-1])
        bench.turn()
        assert outcome.confirmed
        assert consumer.counts[-1] == expected
    assert consumer.times == [bench.now] * 5


def test_nack_waits_in_the_goqueue_profile(bench_with: BenchWith) -> None:
    bench = bench_with(profile=Profile.GOQUEUE)
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    start = bench.now
    for _ in range(3):
        consumer.nack(consumer.got[-1])
        bench.advance(10)
    waits = [after - before for before, after in zip([start, start + 10, start + 20], consumer.times[1:], strict=True)]
    assert waits == [1.0, 2.0, 4.0]


def test_a_timeout_is_retried_with_backoff_and_a_count(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=30.0, retry={"max_retries": 3, "max_backoff_s": 15.0})
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    start = bench.now
    bench.advance(1_000)
    assert [time - start for time in consumer.times] == [0, 35, 75, 120]
    assert consumer.counts == [1, 2, 3, 4]
    assert bench.kinds(TraceKind.TIMED_OUT, TraceKind.DEAD_LETTERED) == [TraceKind.TIMED_OUT] * 4 + [
        TraceKind.DEAD_LETTERED
    ]
    assert bench.engine.stats("q").dead_letters == 1


def test_a_stale_settlement_is_refused(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=10.0)
    slow = bench.consumer("a-slow")
    bench.publish("m")
    bench.turn()
    stale = slow.got[0]
    bench.advance(10.0)
    with pytest.raises(QueueError) as caught:
        slow.ack(stale)
    assert caught.value.code is QueueErrorCode.NOT_PENDING
    slow.leave()
    quick = bench.consumer("quick")
    bench.advance(5.0)
    with pytest.raises(QueueError):
        slow.ack(stale)
    assert quick.counts == [2]
    quick.ack(quick.got[0])


def test_what_a_leaving_consumer_held_is_ready_at_once(bench: QueueBench) -> None:
    leaver = bench.consumer("a")
    for value in "xyz":
        bench.publish(value)
    bench.turn()
    leaver.ack(leaver.got[1])
    leaver.leave()
    heir = bench.consumer("b")
    bench.turn()
    assert [(value, count) for value, count in zip(heir.values, heir.counts, strict=True)] == [("x", 2), ("z", 2)]


def dead_letters(bench: QueueBench, queue: str = "$dlq/q") -> list[tuple[str, dict[str, str]]]:
    reader = bench.consumer("reader", queue=queue, group="reader")
    bench.turn()
    found = [(delivery.message.payload.decode(), dict(delivery.message.user_properties)) for delivery in reader.got]
    for delivery in reader.got:
        reader.ack(delivery)
    reader.leave()
    return found


def test_a_rejected_message_goes_to_the_dead_letter_queue_with_its_history(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=3)
    consumer = bench.consumer(group="workers")
    enqueued = bench.now
    bench.publish(
        "m", topic="$queue/q/eu/1", key="k", publisher="p", content_type="t", user_properties=(("mine", "1"),)
    )
    bench.advance(1.5)
    delivery = consumer.got[0]
    outcome = consumer.reject(delivery, "cannot parse")
    bench.turn()
    assert outcome.confirmed
    ((value, history),) = dead_letters(bench)
    assert value == "m"
    assert history == {
        "mine": "1",
        "partition-key": "k",
        "_dlq_priority": "normal",
        "_dlq_original_queue": "q",
        "_dlq_original_topic": "$queue/q/eu/1",
        "_dlq_original_partition": str(delivery.partition),
        "_dlq_original_offset": "0",
        "_dlq_original_id": delivery.message_id,
        "_dlq_group": "workers",
        "_dlq_consumer": "c",
        "_dlq_first_delivered_at": "2023-11-14T22:13:20.000Z",
        "_dlq_delivery_count": "1",
        "_dlq_reason": "cannot parse",
        "_dlq_enqueued_at": "2023-11-14T22:13:20.000Z",
        "_dlq_last_delivered_at": "2023-11-14T22:13:20.000Z",
        "_dlq_moved_at": "2023-11-14T22:13:21.500Z",
    }
    assert enqueued == 1_700_000_000.0
    assert bench.engine.stats("q").depth == 0


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_retries_exhausted(bench_with: BenchWith, max_retries: int) -> None:
    bench = bench_with(retry={"max_retries": max_retries})
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    for _ in range(max_retries + 1):
        consumer.nack(consumer.got[-1])
        bench.turn()
    assert consumer.counts == list(range(1, max_retries + 2))
    ((value, history),) = dead_letters(bench)
    assert (value, history["_dlq_reason"], history["_dlq_delivery_count"]) == (
        "m",
        "max retries exceeded",
        str(max_retries + 1),
    )


def test_total_timeout(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=10.0, retry={"total_timeout_s": 40.0, "max_retries": 99})
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    start = bench.now
    bench.advance(500)
    assert [time - start for time in consumer.times] == [0, 15, 35]
    ((_, history),) = dead_letters(bench)
    assert history["_dlq_reason"] == "total timeout exceeded"


def test_each_group_dead_letters_for_itself(bench: QueueBench) -> None:
    one, two = bench.consumer(group="one"), bench.consumer(group="two")
    bench.publish("m")
    bench.turn()
    one.reject(one.got[0], "bad")
    two.ack(two.got[0])
    bench.turn()
    assert [history["_dlq_group"] for _, history in dead_letters(bench)] == ["one"]


def test_a_consumer_that_crashes_on_a_message_does_not_get_it_for_ever(bench_with: BenchWith) -> None:
    bench = bench_with(retry={"max_retries": 2})
    bench.publish("poison")
    seen = []
    for _ in range(6):
        consumer = bench.consumer()
        bench.turn()
        seen += consumer.counts
        consumer.leave()
        bench.turn()
    assert seen == [1, 2, 3]
    assert bench.engine.stats("q").dead_letters == 1


def test_without_dead_letters_a_given_up_message_is_counted_and_traced(bench_with: BenchWith) -> None:
    bench = bench_with(dead_letters=False, retry={"max_retries": 0})
    consumer = bench.consumer()
    for value in "ab":
        bench.publish(value)
    bench.turn()
    first, second = consumer.got
    rejected = consumer.reject(first)
    consumer.nack(second)
    bench.turn()
    assert rejected.confirmed
    assert bench.engine.queues() == ["q"]
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.groups[0].discarded) == (0, 2)
    reasons = [fields["detail"] for kind, fields in bench.trace if kind is TraceKind.DISCARDED]
    assert reasons == ["bad; the queue keeps no dead letters", "max retries exceeded; the queue keeps no dead letters"]


def test_a_dead_letter_queue_keeps_what_is_nacked_and_does_not_chain(bench_with: BenchWith) -> None:
    bench = bench_with(retry={"max_retries": 1}, message_ttl_s=60.0)
    consumer = bench.consumer()
    for value in "ab":
        bench.publish(value)
    bench.turn()
    for delivery in consumer.take():
        consumer.reject(delivery)
    bench.advance(10_000)
    reader = bench.consumer(queue="$dlq/q", group="repair")
    bench.turn()
    assert reader.values == ["a", "b"], "dead letters do not expire"
    for _ in range(5):
        reader.nack(reader.got[-1])
        bench.turn()
    assert reader.values == ["a", "b", "b", "b", "b", "b", "b"]
    reader.reject(reader.got[-1])
    reader.ack(reader.got[0])
    bench.turn()
    assert bench.engine.stats("$dlq/q").depth == 0
    assert bench.engine.stats("$dlq/q").groups[0].discarded == 1
    assert bench.engine.queues() == ["$dlq/q", "q"]


def test_a_dead_letter_can_be_replayed(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.publish("m", topic="$queue/q/eu")
    bench.turn()
    consumer.reject(consumer.take()[0])
    bench.turn()
    reader = bench.consumer(queue=QueueTopics(bench.engine).address("$queue/dlq/q").queue, group="repair")
    bench.turn()
    (letter,) = reader.got
    assert letter.topic == "$dlq/q/eu"
    bench.publish("m", topic=dict(letter.message.user_properties)["_dlq_original_topic"])
    reader.ack(letter)
    bench.turn()
    assert [(d.topic, d.delivery_count) for d in consumer.got] == [("$queue/q/eu", 1)]


def test_a_full_dead_letter_queue_keeps_the_message_pending(bench_with: BenchWith) -> None:
    tiny = QueueConfig(name="$dlq/q", partitions=1, max_depth=1)
    bench = bench_with(configured=(tiny,))
    consumer = bench.consumer()
    for value in "ab":
        bench.publish(value)
    bench.turn()
    first, second = (consumer.reject(delivery) for delivery in consumer.take())
    bench.turn()
    assert first.confirmed
    assert second.failed
    assert second.calls[0] is not None
    assert second.calls[0].code is QueueErrorCode.FULL
    assert bench.engine.stats("q").groups[0].dead_lettering == 1
    assert [value for value, _ in dead_letters(bench)] == ["a"]
    bench.advance(10)
    assert [value for value, _ in dead_letters(bench)] == ["b"]
    assert bench.engine.stats("q").depth == 0
    assert len(second.calls) == 1
    assert consumer.got == [], "it is not delivered again"


def test_backoff_grows_and_is_capped() -> None:
    retry = RetryConfig()
    assert [backoff_s(retry, failures) for failures in range(1, 9)] == [5, 10, 20, 40, 80, 160, 300, 300]
    wild = msgspec.structs.replace(retry, multiplier=1e200)
    assert backoff_s(wild, 1) == 5
    assert backoff_s(wild, 5) == 300


def test_stats_of_an_unknown_queue(bench: QueueBench) -> None:
    with pytest.raises(QueueError) as caught:
        bench.engine.stats("nothing")
    assert caught.value.code is QueueErrorCode.UNKNOWN_QUEUE


def test_stats_tell_the_states_apart(bench_with: BenchWith) -> None:
    bench = bench_with(profile=Profile.GOQUEUE, max_in_flight=3, partitions=1)
    consumer = bench.consumer()
    for value in "abcde":
        bench.publish(value)
    bench.turn()
    consumer.nack(consumer.got[2])
    bench.turn()
    stats = bench.engine.stats("q")
    group = stats.groups[0]
    assert (stats.depth, stats.ready, stats.in_flight, stats.consumers, stats.enqueued) == (5, 3, 2, 1, 5)
    assert (group.lag, group.in_flight, group.retrying, group.delivered, group.nacked) == (2, 2, 1, 3, 1)
    consumer.ack(consumer.got[0])
    bench.turn()
    later = bench.engine.stats("q")
    assert (later.depth, later.groups[0].acked) == (4, 1)
    assert (stats.depth, group.acked, stats.groups[0] is group) == (5, 0, True), "what was read stays as it was (G14)"


def test_how_long_messages_waited_is_counted(bench_with: BenchWith) -> None:
    """From publish to first delivery, singly and in runs, by group; not what is delivered again."""
    bench = bench_with()
    first = bench.consumer("a", group="a", room=0)
    bench.publish("m")
    bench.advance(3)
    first.room = 10
    assert first.handle is not None
    bench.engine.resume(first.handle, bench.now)
    bench.turn()
    first.nack(first.got[0])
    bench.turn()
    assert len(first.got) == 2
    assert bench.engine.waited("q").counts == [0, 0, 0, 0, 0, 0, 1, 0, 0]
    second = bench.consumer("b", group="b")
    bench.turn()
    assert len(second.got) == 1
    waited = bench.engine.waited("q")
    assert (waited.count, waited.total_s) == (2, 6.0)
