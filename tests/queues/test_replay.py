"""Dead letters that go back to their queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import MARK_GROUP
from assay.reference_broker.queues.operations.replay import REPLAY_PER_TURN, ReplayResult
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import BenchConsumer, QueueBench

BenchWith = Callable[..., "QueueBench"]


def buried(bench: QueueBench, count: int) -> BenchConsumer:
    """A consumer of the queue that rejected so many messages."""
    consumer = bench.consumer()
    for number in range(count):
        bench.publish(str(number), topic="$queue/q/eu", user_properties=(("mine", "1"),))
    bench.turn()
    for delivery in consumer.take():
        consumer.reject(delivery, "bad")
    bench.turn()
    assert bench.engine.stats("q").dead_letters == count
    return consumer


def replay(bench: QueueBench, message_id: str | None = None, *, queue: str = "q") -> list[ReplayResult]:
    results: list[ReplayResult] = []
    bench.engine.dead_letters.replay(queue, message_id, bench.now, results.append)
    bench.turn()
    return results


def result(replayed: int, skipped: int = 0, failed: int = 0) -> ReplayResult:
    return ReplayResult(replayed=replayed, skipped=skipped, failed=failed)


def test_all_go_back_fresh_and_are_dead_letters_no_more(bench: QueueBench) -> None:
    consumer = buried(bench, 5)
    assert replay(bench) == [result(5)]
    assert consumer.values == ["0", "1", "2", "3", "4"]
    assert consumer.counts == [1] * 5
    assert {(d.topic, d.message.user_properties) for d in consumer.got} == {("$queue/q/eu", (("mine", "1"),))}
    assert bench.engine.stats("q").dead_letters == 0
    assert replay(bench) == [result(0)]
    assert len(consumer.got) == 5


def test_one_goes_back_and_the_others_stay(bench: QueueBench) -> None:
    consumer = buried(bench, 5)
    assert replay(bench, "$dlq/q:0:2") == [result(1)]
    assert consumer.values == ["2"]
    assert bench.engine.stats("q").dead_letters == 4
    reader = bench.consumer(queue="$dlq/q", group="repair")
    bench.turn()
    assert reader.values == ["0", "1", "3", "4"]
    assert reader.counts == [1] * 4
    assert MARK_GROUP not in bench.engine._queues["$dlq/q"].groups
    with pytest.raises(QueueError) as caught:
        replay(bench, "$dlq/q:0:2")
    assert caught.value.code is QueueErrorCode.NOT_PENDING


def test_what_a_group_of_the_dead_letters_has_settled_stays_settled(bench: QueueBench) -> None:
    consumer = buried(bench, 6)
    reader = bench.consumer(queue="$dlq/q", group="repair", room=4)
    bench.turn()
    reader.ack(reader.got[0])
    reader.nack(reader.got[1])
    assert replay(bench) == [result(3, skipped=2)], "two are with the reader, one is settled"
    assert sorted(consumer.values) == ["1", "4", "5"]
    for delivery in reader.got[2:4]:
        reader.ack(delivery)
    bench.turn()
    assert bench.engine.stats("q").dead_letters == 0
    late = bench.consumer(queue="$dlq/q", group="late")
    bench.turn()
    assert late.values == [], "what is gone is gone for later groups, too"


def test_a_letter_with_a_consumer_cannot_be_sent_back(bench: QueueBench) -> None:
    buried(bench, 1)
    reader = bench.consumer(queue="$dlq/q", group="repair")
    bench.turn()
    with pytest.raises(QueueError) as caught:
        replay(bench, reader.got[0].message_id)
    assert caught.value.code is QueueErrorCode.NOT_PENDING
    reader.ack(reader.got[0])


def test_while_it_goes_back_nobody_else_gets_it(durable: QueueBench) -> None:
    consumer = buried(durable, 2)
    reader = durable.consumer(queue="$dlq/q", group="repair", room=0)
    durable.turn()
    results: list[ReplayResult] = []
    durable.engine.dead_letters.replay("q", None, durable.now, results.append)
    durable.engine.tick(durable.now)
    durable.engine.dispatch(durable.now)
    assert durable.engine.stats("q").dead_letters == 2, "settled only once the queue has them durably"
    reader.room = 10
    assert reader.handle is not None
    durable.engine.resume(reader.handle, durable.now)
    durable.turn()
    assert results == [result(2)]
    assert (reader.values, consumer.values) == ([], ["0", "1"])


@pytest.mark.parametrize("reader", [False, True])
def test_progress_survives_and_a_crash_loses_nothing(bench_with: BenchWith, reader: bool) -> None:
    bench = bench_with(MemoryDisk())
    buried(bench, 8)
    if reader:
        bench.consumer(queue="$dlq/q", group="repair", room=0)
    for offset in (1, 5):
        assert replay(bench, f"$dlq/q:0:{offset}") == [result(1)]
    bench.engine.dead_letters.replay("q", "$dlq/q:0:3", bench.now, lambda _: None)
    bench.engine.tick(bench.now)
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    back = sorted(consumer.values)
    assert back in (["1", "5"], ["1", "3", "5"])
    (done,) = replay(bench)
    assert done.replayed == 6
    assert set(consumer.values) == {str(number) for number in range(8)}
    assert bench.engine.stats("q").dead_letters == 0


def test_a_full_queue_makes_the_replay_wait(bench_with: BenchWith) -> None:
    bench = bench_with(max_depth=3)
    consumer = buried(bench, 3)
    for value in "xyz":
        bench.publish(value)
    bench.turn()
    results = replay(bench)
    assert results == []
    assert bench.engine.stats("q").dead_letters == 3
    for delivery in consumer.take():
        consumer.ack(delivery)
    bench.advance(2)
    assert results == [result(3)]
    assert consumer.values == ["0", "1", "2"]


def test_a_queue_that_stays_full_ends_the_replay(bench_with: BenchWith) -> None:
    bench = bench_with(max_depth=1)
    buried(bench, 1)
    bench.publish("x")
    results = replay(bench)
    bench.advance(120)
    assert results == [result(0, failed=1)]
    assert bench.engine.stats("q").dead_letters == 1


def test_a_portion_a_turn(bench_with: BenchWith) -> None:
    bench = bench_with(max_in_flight=100_000)
    count = 3 * REPLAY_PER_TURN + 1
    consumer = buried(bench, count)
    results: list[ReplayResult] = []
    bench.engine.dead_letters.replay("q", None, bench.now, results.append)
    bench.engine.tick(bench.now)
    bench.engine.dispatch(bench.now)
    assert len(consumer.got) == REPLAY_PER_TURN
    with pytest.raises(QueueError) as caught:
        bench.engine.dead_letters.replay("$dlq/q", None, bench.now, results.append)
    assert caught.value.code is QueueErrorCode.LIMIT
    bench.turn()
    assert results == [result(count)]
    assert consumer.values == [str(number) for number in range(count)]


def test_letters_that_come_during_a_replay_stay(bench: QueueBench) -> None:
    consumer = buried(bench, 2)
    bench.engine.dead_letters.replay("q", None, bench.now, lambda _: None)
    bench.publish("new")
    bench.engine.dispatch(bench.now)
    consumer.reject(consumer.take()[0])
    bench.turn()
    assert consumer.values == ["0", "1"]
    assert bench.engine.stats("q").dead_letters == 1


def test_options_of_the_first_publish_do_not_count_again(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.publish("m", user_properties=(("delay", "10s"), ("priority", "high")))
    bench.advance(11)
    consumer.reject(consumer.take()[0])
    bench.turn()
    assert replay(bench) == [result(1)]
    assert consumer.values == ["m"], "it waits for no second delay"


@pytest.mark.parametrize(
    ("queue", "message_id", "code"),
    [
        ("other", None, QueueErrorCode.UNKNOWN_QUEUE),
        ("q", "q:0:0", QueueErrorCode.BAD_ADDRESS),
        ("q", "$dlq/q:0:9", QueueErrorCode.NOT_PENDING),
        ("q", "$dlq/q:4:0", QueueErrorCode.NOT_PENDING),
        ("q", "nonsense", QueueErrorCode.BAD_ADDRESS),
    ],
)
def test_what_cannot_be_replayed(bench: QueueBench, queue: str, message_id: str | None, code: QueueErrorCode) -> None:
    buried(bench, 1)
    with pytest.raises(QueueError) as caught:
        replay(bench, message_id, queue=queue)
    assert caught.value.code is code
    assert bench.engine.stats("q").dead_letters == 1


def test_the_group_name_of_the_broker_is_taken(bench: QueueBench) -> None:
    with pytest.raises(QueueError) as caught:
        bench.consumer(queue="$dlq/q", group=MARK_GROUP)
    assert caught.value.code is QueueErrorCode.BAD_ADDRESS


def test_figures_of_dead_letters(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    with pytest.raises(QueueError):
        bench.engine.dead_letters.stats("q")
    bench.consumer()
    figures = bench.engine.dead_letters.stats("q")
    assert (figures.enabled, figures.queue, figures.total, figures.current, figures.last_at) == (
        True,
        "$dlq/q",
        0,
        0,
        0.0,
    )
    buried(bench, 3)
    moved_at = bench.now
    bench.advance(5)
    replay(bench, "$dlq/q:0:0")
    bench.restart()
    for name in ("q", "$dlq/q"):
        figures = bench.engine.dead_letters.stats(name)
        assert (figures.total, figures.current, figures.last_at) == (3, 2, moved_at)


def test_a_letter_far_behind_is_not_taken_out_alone(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.queues.operations.replay.MAX_AHEAD", 3)
    buried(bench, 6)
    with pytest.raises(QueueError) as caught:
        replay(bench, "$dlq/q:0:5")
    assert caught.value.code is QueueErrorCode.LIMIT
    assert replay(bench, "$dlq/q:0:2") == [result(1)]


def test_a_configured_dead_letter_queue_of_several_partitions(bench_with: BenchWith) -> None:
    bench = bench_with(configured=(QueueConfig(name="$dlq/q", partitions=3),))
    consumer = buried(bench, 9)
    assert replay(bench) == [result(9)]
    assert sorted(consumer.values) == [str(number) for number in range(9)]


@pytest.mark.parametrize("gone", ["$dlq/q", "q"])
def test_deleting_a_queue_ends_its_replay(bench_with: BenchWith, gone: str) -> None:
    bench = bench_with(MemoryDisk(), auto_create=False, configured=(QueueConfig(name="q", partitions=1),))
    buried(bench, 3 * REPLAY_PER_TURN)
    results: list[ReplayResult] = []
    bench.engine.dead_letters.replay("q", None, bench.now, results.append)
    bench.engine.tick(bench.now)
    bench.engine.dispatch(bench.now)
    bench.engine.delete_queue(gone, bench.now)
    bench.advance(120)
    (done,) = results
    assert done.replayed < 3 * REPLAY_PER_TURN
    bench.engine.close(bench.now)
