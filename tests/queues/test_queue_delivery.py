"""Who gets what, in which order, within which limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import Ordering, Profile
from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.delivery_properties import delivery_properties
from assay.reference_broker.queues import Delivery, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.queues.messages.partitioner import murmur3_32
from assay.reference_broker.queues.messages.stored_message import MessageCodec, is_plain
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import SharedMemory
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]


def test_every_group_gets_every_message_and_one_consumer_of_it(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=6)
    workers = [bench.consumer(f"w-{number}", group="workers") for number in range(3)]
    audit = bench.consumer("a", group="audit")
    sent = [f"m{number}" for number in range(60)]
    for value in sent:
        bench.publish(value)
    bench.turn()
    assert sorted(audit.values) == sorted(sent)
    assert sorted(value for worker in workers for value in worker.values) == sorted(sent)
    assert all(worker.got for worker in workers)
    assert {delivery.partition for delivery in workers[0].got} <= {0, 1}


def test_a_delivery_says_where_it_comes_from(bench: QueueBench) -> None:
    consumer = bench.consumer(group="g", pattern="eu/#")
    bench.publish(
        "v",
        topic="$queue/q/eu/1",
        publisher="p",
        content_type="text/plain",
        correlation_data=b"\x00\xff",
        user_properties=(("a", "1"), ("offset", "forged"), ("_topic", "x"), ("a", "2")),
    )
    bench.turn()
    (delivery,) = consumer.got
    assert (delivery.queue, delivery.partition, delivery.offset) == ("q", 0, 0)
    assert (delivery.message_id, delivery.group, delivery.delivery_count) == ("q:0:0", "g@eu/#", 1)
    assert delivery.topic == "$queue/q/eu/1"
    assert delivery_properties(delivery) == (
        ("message-id", "q:0:0"),
        ("group-id", "g@eu/#"),
        ("queue", "q"),
        ("partition", "0"),
        ("partition-id", "0"),
        ("offset", "0"),
        ("delivery-count", "1"),
        ("a", "1"),
        ("_topic", "x"),
        ("a", "2"),
    )


def test_keys_go_to_one_partition_in_order(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=4)
    consumer = bench.consumer()
    for number in range(40):
        bench.publish(f"{number % 3}:{number}", key=f"key-{number % 3}")
    bench.turn()
    for key in "012":
        mine = [delivery for delivery in consumer.got if delivery.message.payload.startswith(key.encode())]
        assert len({delivery.partition for delivery in mine}) == 1
        assert [delivery.offset for delivery in mine] == sorted(delivery.offset for delivery in mine)
        numbers = [int(delivery.message.payload.split(b":")[1]) for delivery in mine]
        assert numbers == sorted(numbers)


def test_a_new_group_starts_at_the_earliest_message(bench: QueueBench) -> None:
    first = bench.consumer(group="first")
    for number in range(5):
        bench.publish(str(number))
    bench.turn()
    for delivery in first.take():
        first.ack(delivery)
    bench.turn()
    late = bench.consumer("l", group="late")
    bench.turn()
    assert late.values == ["0", "1", "2", "3", "4"]
    assert first.got == []


def test_messages_wait_for_a_first_consumer_and_for_a_group_whose_consumers_left(bench: QueueBench) -> None:
    bench.publish("early")
    bench.turn()
    consumer = bench.consumer()
    bench.turn()
    (delivery,) = consumer.take()
    consumer.ack(delivery)
    bench.turn()
    consumer.leave()
    bench.publish("meanwhile")
    bench.turn()
    again = bench.consumer()
    bench.turn()
    assert again.values == ["meanwhile"]


def test_a_filter_makes_a_group_of_its_own(bench: QueueBench) -> None:
    eu = bench.consumer("c", pattern="eu/+")
    every = bench.consumer("c", pattern="#")
    for topic in ("$queue/q/eu/1", "$queue/q/us/1", "$queue/q", "$queue/q/eu/1/2"):
        bench.publish(topic[8:], topic=topic)
    bench.turn()
    assert eu.values == ["/eu/1"]
    assert len(every.values) == 4
    assert {delivery.group for delivery in every.got} == {"g"}
    for bad in ("a/#/b", "x+"):
        with pytest.raises(QueueError) as caught:
            bench.consumer(pattern=bad)
        assert caught.value.code is QueueErrorCode.BAD_ADDRESS
    with pytest.raises(QueueError, match="taken"):
        bench.consumer(group="g@eu/+")


def test_max_in_flight_bounds_a_consumer(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=3, max_in_flight=5)
    consumer = bench.consumer()
    for number in range(20):
        bench.publish(str(number))
    bench.turn()
    seen = 5
    assert len(consumer.got) == seen
    while seen < 20:
        consumer.ack(consumer.got[seen - 5])
        bench.turn()
        seen += 1
        assert len(consumer.got) == seen


def test_no_room_keeps_the_message_until_resume(bench: QueueBench) -> None:
    consumer = bench.consumer(room=2)
    for number in range(4):
        bench.publish(str(number))
    bench.turn()
    assert consumer.values == ["0", "1"]
    consumer.room = 1
    bench.turn()
    assert consumer.values == ["0", "1"], "not before it is resumed"
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert consumer.values == ["0", "1", "2"]
    assert consumer.counts == [1, 1, 1], "a refused delivery does not count"
    stats = bench.engine.stats("q")
    assert (stats.in_flight, stats.groups[0].lag) == (3, 1)


def test_partitions_take_turns(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=4, max_in_flight=130)
    consumer = bench.consumer()
    for number in range(2_000):
        bench.publish(str(number))
    bench.turn()
    served: dict[int, int] = {}
    for _ in range(12):
        for delivery in consumer.take():
            served[delivery.partition] = served.get(delivery.partition, 0) + 1
            consumer.ack(delivery)
        assert len(served) == 4
        assert max(served.values()) - min(served.values()) <= 33
        bench.turn()


def test_the_memory_of_past_deadlines_is_bounded(bench_with: BenchWith) -> None:
    bench = bench_with(max_in_flight=10)
    consumer = bench.consumer()
    bench.publish("never settled")
    for number in range(5_000):
        bench.publish(str(number))
        bench.turn()
        for delivery in consumer.take():
            if delivery.offset > 0:
                consumer.ack(delivery)
    assert len(bench.engine._queues["q"].groups["g"].timeouts) < 1_100


def test_messages_passed_over_stay_passed_over_after_a_restart(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    bench.consumer(pattern="eu/#").leave()
    bench.consumer(pattern="eu/#")
    for number in range(5_000):
        bench.publish(str(number), topic="$queue/q/us/1")
    bench.turn()
    assert bench.engine.stats("q").groups[0].lag == 0
    bench.restart()
    assert bench.engine.stats("q").groups[0].lag == 0


def test_idle_consumers_share_by_partition(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=8)
    consumers = [bench.consumer(f"c{number}") for number in range(4)]
    for number in range(800):
        bench.publish(str(number))
    bench.turn()
    assert all(130 < len(consumer.got) < 270 for consumer in consumers)


def test_partitions_move_when_consumers_come_and_go(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=4)
    first = bench.consumer("a")
    bench.publish("one")
    bench.turn()
    assert bench.engine.stats("q").groups[0].generation == 1
    second = bench.consumer("b")
    for number in range(40):
        bench.publish(str(number))
    bench.turn()
    assert {delivery.partition for delivery in second.got} == {2, 3}
    first.leave()
    first.leave()
    bench.turn()
    assert sorted(second.values) == sorted([*map(str, range(40)), "one"])
    returned = [delivery for delivery in second.got if delivery.delivery_count == 2]
    assert len(returned) + sum(delivery.delivery_count == 1 for delivery in second.got) == 41
    assert bench.engine.stats("q").groups[0].generation == 3


def test_subscribing_again_replaces_the_consumer_and_fences_the_old_one(bench: QueueBench) -> None:
    old = bench.consumer("c")
    bench.publish("m")
    bench.turn()
    new = bench.consumer("c")
    bench.turn()
    assert [(delivery.message_id, delivery.delivery_count) for delivery in new.got] == [("q:0:0", 2)]
    old.leave()
    bench.publish("n")
    bench.turn()
    assert new.values == ["m", "n"], "the late goodbye of the old one does not remove the new one"
    assert old.values == ["m"]


@pytest.mark.parametrize("ordering", Ordering)
def test_a_message_that_waits_for_a_retry_holds_the_later_ones_of_its_partition_back(
    bench_with: BenchWith, ordering: Ordering
) -> None:
    bench = bench_with(profile=Profile.GOQUEUE, partitions=1, ordering=ordering, max_in_flight=2)
    consumer = bench.consumer()
    for value in "abcd":
        bench.publish(value)
    bench.turn()
    a, b = consumer.take()
    consumer.nack(a)
    consumer.ack(b)
    bench.turn()
    if ordering not in (Ordering.NONE, Ordering.PLACE):
        assert consumer.values == []
        bench.advance(1.0)
        assert consumer.values == ["a", "c"]
    else:
        assert consumer.values == ["c", "d"]
        consumer.ack(consumer.got[0])
        bench.advance(1.0)
        assert consumer.values == ["c", "d", "a"]


def test_several_nacked_messages_come_back_in_order(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=1)
    consumer = bench.consumer()
    for value in "abc":
        bench.publish(value)
    bench.turn()
    a, b, c = consumer.take()
    for delivery in (c, a, b):
        consumer.nack(delivery)
    bench.publish("d")
    bench.turn()
    assert consumer.values == ["a", "b", "c", "d"]
    assert consumer.counts == [2, 2, 2, 1]


def test_ordering_of_one_partition_does_not_hold_others(bench_with: BenchWith) -> None:
    bench = bench_with(profile=Profile.GOQUEUE, partitions=2)
    consumer = bench.consumer()
    keys = {murmur3_32(f"k{i}") % 2: f"k{i}" for i in range(20)}
    bench.publish("stuck", key=keys[0])
    bench.turn()
    consumer.nack(consumer.take()[0])
    bench.publish("held", key=keys[0])
    bench.publish("free", key=keys[1])
    bench.turn()
    assert consumer.values == ["free"]


def test_expired_messages_are_not_delivered(bench_with: BenchWith) -> None:
    bench = bench_with(message_ttl_s=10.0)
    bench.publish("own", expires_at=bench.now + 5)
    bench.publish("queue's")
    bench.publish("longer own", expires_at=bench.now + 100)
    bench.advance(5.0)
    consumer = bench.consumer()
    bench.publish("fresh")
    bench.turn()
    assert consumer.values == ["queue's", "longer own", "fresh"]
    for delivery in consumer.take():
        consumer.nack(delivery)
    bench.now += 6.0
    bench.turn()
    assert consumer.values == ["fresh"], "a retry is no second life"
    stats = bench.engine.stats("q")
    assert (stats.expired, stats.groups[0].expired) == (1, 2)
    assert stats.depth == 1
    details = [fields["detail"] for kind, fields in bench.trace if kind is TraceKind.DISCARDED]
    assert details == ["expired"] * 3


def test_size_and_depth_limits(bench_with: BenchWith) -> None:
    bench = bench_with(max_message_bytes=10, max_depth=3)
    with pytest.raises(QueueError) as caught:
        bench.publish("x" * 11)
    assert caught.value.code is QueueErrorCode.TOO_LARGE
    with pytest.raises(QueueError):
        bench.publish("12345", user_properties=(("abc", "def"),))
    for number in range(3):
        bench.publish(str(number))
    with pytest.raises(QueueError) as caught:
        bench.publish("3")
    assert caught.value.code is QueueErrorCode.FULL
    bench.turn()
    consumer, other = bench.consumer(), bench.consumer(group="other")
    bench.turn()
    consumer.ack(consumer.got[0])
    with pytest.raises(QueueError):
        bench.publish("the other group still has three")
    other.ack(other.got[0])
    bench.publish("3")
    with pytest.raises(QueueError):
        bench.publish("4")
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.refused) == (3, 5)


def test_a_full_queue_of_expired_messages_takes_new_ones(bench_with: BenchWith) -> None:
    for subscribed in (False, True):
        bench = bench_with(max_depth=3, message_ttl_s=5.0)
        if subscribed:
            bench.consumer().leave()
        for number in range(3):
            bench.publish(str(number))
        bench.advance(5.0)
        bench.publish("fresh")
        consumer = bench.consumer()
        bench.turn()
        assert consumer.values == ["fresh"]


def test_a_late_group_does_not_close_the_queue(bench_with: BenchWith) -> None:
    bench = bench_with(max_depth=10)
    consumer = bench.consumer()
    for number in range(40):
        bench.publish(str(number))
        bench.turn()
        consumer.ack(consumer.got[-1])
    bench.turn()
    late = bench.consumer("l", group="late")
    assert bench.engine.stats("q").depth == 10
    bench.turn()
    assert late.values == [str(number) for number in range(30, 40)]


def test_queue_limits(bench_with: BenchWith) -> None:
    bench = bench_with(max_queues=2)
    bench.publish("a", topic="$queue/a")
    bench.publish("b", topic="$queue/b")
    with pytest.raises(QueueError) as caught:
        bench.publish("c", topic="$queue/c")
    assert caught.value.code is QueueErrorCode.LIMIT
    consumer = bench.consumer(queue="a")
    bench.turn()
    consumer.reject(consumer.got[0])
    bench.turn()
    assert bench.engine.queues() == ["$dlq/a", "a", "b"], "a dead letter is no new queue"
    closed = bench_with(auto_create=False)
    with pytest.raises(QueueError) as caught:
        closed.publish("a", topic="$queue/a")
    assert caught.value.code is QueueErrorCode.UNKNOWN_QUEUE


def test_a_settlement_topic_takes_no_message(bench: QueueBench) -> None:
    with pytest.raises(QueueError) as caught:
        bench.publish("x", topic="$queue/q/$ack")
    assert caught.value.code is QueueErrorCode.BAD_ADDRESS
    assert bench.engine.queues() == []


def test_deep_queues_are_read_back_from_the_log(bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.queues.registry.registry.CACHE_BYTES", 20_000)
    bench = bench_with(MemoryDisk(), partitions=2, compression="zstd")
    values = [f"{number}-" + "x" * 50 for number in range(1_000)]
    for number, value in enumerate(values):
        bench.publish(value, user_properties=(("n", str(number)),))
        if number % 100 == 0:
            bench.turn()
    bench.turn()
    assert bench.engine._registry._cache.stored_bytes <= 20_000
    consumer = bench.consumer()
    bench.turn()
    assert sorted(consumer.values) == sorted(values)
    assert all(dict(d.message.user_properties)["n"] == d.message.payload.decode().split("-")[0] for d in consumer.got)


def test_memory_of_settled_messages_is_freed(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=1)
    consumer = bench.consumer()
    for round_number in range(40):
        for number in range(100):
            bench.publish(f"{round_number}-{number}-" + "x" * 2_000)
        bench.turn()
        for delivery in consumer.take():
            consumer.ack(delivery)
    bench.turn()
    assert bench.engine.stats("q").stored_bytes < 3 * 1024 * 1024


def test_a_consumer_may_settle_within_the_delivery(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    consumer = bench.consumer()
    plain = consumer.deliver

    def deliver(delivery: Delivery) -> bool:
        plain(delivery)
        if delivery.delivery_count == 1 and delivery.message.payload == b"n":
            consumer.nack(delivery)
        else:
            consumer.ack(delivery)
        return True

    assert consumer.handle is not None
    consumer.handle.deliver = deliver
    for value in "anb":
        bench.publish(value)
    bench.turn()
    assert consumer.values == ["a", "n", "n", "b"]
    bench.restart()
    after = bench.consumer()
    bench.turn()
    assert after.values == []


MESSAGES = [
    Message(topic="$queue/q", payload=b""),
    Message(topic="$queue/q/a/b", payload=b"x", publisher="p", expires_at=1234.5),
    Message(topic="other/topic", payload=b"x", payload_format=1, content_type="", response_topic="r/t"),
    Message(
        topic="$queue/q",
        payload=b"x",
        correlation_data=b"\xff\x00",
        user_properties=(("_x", "1"), ("__y", "2"), ("", "")),
    ),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_stored_messages_come_back_equal(message: Message) -> None:
    codec = MessageCodec("q", 60.0, SharedMemory(1 << 20))
    routing_key = "a/b" if "a/b" in message.topic or "other" in message.topic else ""
    headers, topic = codec.headers(message, routing_key, plain=is_plain(message))
    stored = codec.decode(LogRecord(0, 1_000_500, b"", message.payload, headers))
    for field in Message.__struct_fields__:
        assert getattr(stored.message, field) == getattr(message, field), field
    assert stored.topic == topic
    assert stored.enqueued_at == 1_000.5
    assert stored.expires_at == min(message.expires_at or 1e9, 1_060.5)


def test_verbs_have_the_seeds_names() -> None:
    assert [verb.value for verb in Verb][:3] == ["ack", "nack", "reject"]


@pytest.mark.parametrize("total_timeout_s", [10_000.0, 1.0])
def test_a_delivery_given_back_and_made_again_at_one_time_times_out_once(
    bench_with: BenchWith, total_timeout_s: float
) -> None:
    """Found by the fuzzer: it timed out twice, and was then delivered twice, or dead-lettered twice, which raised."""
    bench = bench_with(delivery_timeout_s=30.0, retry={"total_timeout_s": total_timeout_s, "initial_backoff_s": 5.0})
    bench.publish("v")
    first = bench.consumer("c")
    bench.turn()
    first.leave()
    second = bench.consumer("c")
    bench.turn()
    assert (first.counts, second.counts) == ([1], [2])
    bench.advance(30.0 + 20.0)
    assert bench.kinds(TraceKind.TIMED_OUT) == [TraceKind.TIMED_OUT]
    if total_timeout_s > 100:
        assert second.counts == [2, 3]
    else:
        assert bench.kinds(TraceKind.DEAD_LETTERED) == [TraceKind.DEAD_LETTERED]
