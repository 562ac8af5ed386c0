"""The memory limit, slow consumers, and the figures per priority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.storage.memory_disk import MemoryDisk

from .conftest import BenchConsumer, QueueBench

Benches = Callable[..., QueueBench]
_LIMIT = 200_000
_VALUE = "x" * 500


# -- memory ----------------------------------------------------------------------------------------------------------


def _pressed(bench: QueueBench) -> bool:
    assert bench.engine.memory is not None
    return bench.engine.memory.pressed


def _stays(consumer: BenchConsumer) -> bool:
    assert consumer.handle is not None
    return consumer.handle.active


def _fill(bench: QueueBench) -> int:
    """Publish until told to wait; returns how many."""
    count = 0
    while not _pressed(bench):
        bench.publish(_VALUE)
        bench.turn()
        count += 1
        bench.now += 0.001
    return count


def test_publishers_wait_while_too_much_is_held_and_go_on_once_enough_is_settled(bench_with: Benches) -> None:
    bench = bench_with(durability="memory", max_memory_bytes=_LIMIT)
    released: list[float] = []
    memory = bench.engine.memory
    assert memory is not None
    memory.on_released = lambda: released.append(bench.now)
    count = _fill(bench)
    assert 100 < count < _LIMIT // 500
    consumer = bench.consumer()
    bench.advance(0.1)
    assert _pressed(bench), "delivered is not settled"
    held = consumer.take()
    for delivery in held[:5]:
        consumer.ack(delivery)
    bench.advance(0.1)
    assert _pressed(bench), "a little less is not enough: publishers would stop and go all the time"
    for delivery in held[5 : count // 2]:
        consumer.ack(delivery)
    bench.advance(0.1)
    assert not _pressed(bench)
    assert len(released) == 1
    bench.publish(_VALUE)


def test_who_does_not_wait_is_refused_in_the_end(bench_with: Benches) -> None:
    bench = bench_with(durability="memory", max_memory_bytes=_LIMIT)
    _fill(bench)

    def publish_on() -> None:
        for _ in range(400):
            bench.publish(_VALUE)

    with pytest.raises(QueueError) as refused:
        publish_on()
    assert refused.value.code is QueueErrorCode.FULL
    memory = bench.engine.memory
    assert memory is not None
    assert memory.held_bytes <= 1.13 * _LIMIT


def test_queues_on_disk_do_not_count(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), durability="fsync", max_memory_bytes=_LIMIT)
    for _ in range(1_000):
        bench.publish(_VALUE)
    bench.turn()
    assert not _pressed(bench)


# -- slow consumers --------------------------------------------------------------------------------------------------


def _slow(bench_with: Benches, action: str, **fields: Any) -> tuple[QueueBench, list[str]]:
    bench = bench_with(max_in_flight=2, slow_consumer={"action": action, "after_s": 10}, **fields)
    for number in range(6):
        bench.publish(str(number))
    return bench, []


@pytest.mark.parametrize("action", ["disconnect", "drop"])
@pytest.mark.parametrize("timeout_s", [4.0, 100.0])
def test_a_consumer_that_settles_nothing_is_sent_away(bench_with: Benches, action: str, timeout_s: float) -> None:
    """Also when its deliveries time out meanwhile."""
    bench, told = _slow(bench_with, action, delivery_timeout_s=timeout_s, retry={"initial_backoff_s": 0.1})
    slow = bench.consumer("slow")
    assert slow.handle is not None
    slow.handle.on_slow = lambda: told.append("slow")
    bench.advance(9.9)
    assert _stays(slow)
    bench.advance(0.2)
    assert not _stays(slow)
    assert told == (["slow"] if action == "disconnect" else [])
    other = bench.consumer("other")
    bench.turn()
    assert sorted(other.values) == ["0", "1"]
    assert bench.engine.stats("q").groups[0].slow_consumers == 1


def test_one_that_settles_now_and_then_stays(bench_with: Benches) -> None:
    bench, _ = _slow(bench_with, "drop")
    consumer = bench.consumer()
    bench.turn()
    for _ in range(4):
        bench.advance(9.0)
        consumer.ack(consumer.got.pop(0))
        bench.turn()
    assert _stays(consumer)


def test_by_default_slow_consumers_stay(bench_with: Benches) -> None:
    bench = bench_with(max_in_flight=1, delivery_timeout_s=0)
    bench.publish("1")
    consumer = bench.consumer()
    bench.advance(100_000.0)
    assert _stays(consumer)


# -- figures ---------------------------------------------------------------------------------------------------------


def test_figures_per_priority_and_partition(bench_with: Benches) -> None:
    bench = bench_with(partitions=2)
    consumer = bench.consumer(room=0)
    bench.publish("first")
    bench.turn()
    bench.engine.priority_figures("q", bench.now)
    for number in range(20):
        bench.publish(str(number), user_properties=(("priority", str(number % 5)), ("partition", "1")))
    consumer.room = 6
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.advance(2.0)
    figures = bench.engine.priority_figures("q", bench.now)
    encoded = msgspec.json.decode(msgspec.json.encode(figures))
    partition = encoded["topics"]["q"]["partitions"]["1"]
    assert set(partition) == {"ready", "in_flight", "enqueue_rate", "dequeue_rate"}
    assert [sum(pair) for pair in zip(partition["ready"], partition["in_flight"], strict=True)][:2] == [4, 4]
    assert partition["enqueue_rate"][0] == 2.0
    total = sum(sum(each["in_flight"]) for each in encoded["topics"]["q"]["partitions"].values())
    assert total == 6
    assert sum(sum(each["ready"]) for each in encoded["topics"]["q"]["partitions"].values()) == 15
    assert sum(partition["dequeue_rate"]) == sum(partition["in_flight"]) / 2
