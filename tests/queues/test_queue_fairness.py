"""Who gets how much: fair turns without an order, limits per consumer and per group, the bound on what is pending."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Ordering
from assay.reference_broker.queues.delivery import dispatcher
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.jobs import agenda
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import BenchConsumer, QueueBench

BenchWith = Callable[..., "QueueBench"]
UNORDERED = {"ordering": Ordering.NONE}


def joined(bench: QueueBench, count: int) -> list[BenchConsumer]:
    consumers = [bench.consumer(f"c{number}") for number in range(count)]
    bench.turn()
    return consumers


def publish(bench: QueueBench, count: int) -> None:
    for number in range(count):
        bench.publish(str(number))
    bench.turn()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("burst", [1, 7, 100])
def test_idle_consumers_get_equal_shares(bench_with: BenchWith, partitions: int, burst: int) -> None:
    bench = bench_with(partitions=partitions, **UNORDERED)
    consumers = joined(bench, 5)
    for _ in range(-(-100 // burst)):
        publish(bench, burst)
    shares = [len(consumer.got) for consumer in consumers]
    assert sum(shares) >= 100
    assert max(shares) - min(shares) <= 1, shares


def test_consumers_that_settle_at_once_get_equal_shares(bench_with: BenchWith) -> None:
    bench = bench_with(**UNORDERED)
    consumers = joined(bench, 4)
    shares = [0] * len(consumers)
    for _ in range(40):
        publish(bench, 1)
        for number, consumer in enumerate(consumers):
            for delivery in consumer.take():
                shares[number] += 1
                consumer.ack(delivery)
    assert shares == [10, 10, 10, 10]


def test_a_slow_consumer_gets_fewer(bench_with: BenchWith) -> None:
    bench = bench_with(**UNORDERED)
    slow, fast = joined(bench, 2)
    for _ in range(20):
        publish(bench, 1)
        for delivery in fast.take():
            fast.ack(delivery)
    assert len(slow.got) == 1, "it has not settled its first"
    publish(bench, 9)
    assert (len(slow.got), len(fast.got)) == (5, 5)


def test_turns_repeat_exactly(bench_with: BenchWith) -> None:
    runs = []
    for _ in range(2):
        bench = bench_with(partitions=4, **UNORDERED)
        consumers = joined(bench, 3)
        publish(bench, 50)
        runs.append([consumer.values for consumer in consumers])
    assert runs[0] == runs[1]


def test_full_and_blocked_consumers_leave_their_turns_to_others(bench_with: BenchWith) -> None:
    bench = bench_with(max_in_flight=10, **UNORDERED)
    blocked = bench.consumer("a", room=3)
    others = [bench.consumer("b"), bench.consumer("c")]
    publish(bench, 100)
    assert [len(consumer.got) for consumer in (blocked, *others)] == [3, 10, 10]
    for delivery in others[0].take():
        others[0].ack(delivery)
    bench.turn()
    assert len(others[0].got) == 10


def test_retries_are_shared_out_as_well(bench_with: BenchWith) -> None:
    bench = bench_with(**UNORDERED)
    first = bench.consumer("first")
    publish(bench, 9)
    others = joined(bench, 2)
    first.leave()
    bench.turn()
    assert sorted(len(consumer.got) for consumer in others) == [4, 5]
    assert {count for consumer in others for count in consumer.counts} == {2}


def test_lanes_are_served_in_turn_too(bench_with: BenchWith) -> None:
    bench = bench_with(**UNORDERED)
    for number in range(20):
        bench.publish(f"n{number}")
        bench.publish(f"h{number}", user_properties=(("priority", "high"),))
    bench.turn()
    consumers = joined(bench, 4)
    shares = [len(consumer.got) for consumer in consumers]
    assert sum(shares) == 40
    assert max(shares) - min(shares) <= 1
    assert all(consumer.values[0].startswith("h") for consumer in consumers[:4])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(1, 60), st.integers(1, 20))
def test_shares_differ_by_one_at_most(
    bench_with: BenchWith, partitions: int, consumers: int, messages: int, limit: int
) -> None:
    bench = bench_with(partitions=partitions, max_in_flight=limit, **UNORDERED)
    everyone = joined(bench, consumers)
    publish(bench, messages)
    shares = [len(consumer.got) for consumer in everyone]
    assert sum(shares) == min(messages, limit * consumers)
    assert max(shares) - min(shares) <= 1


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.PARTITION])
def test_a_group_has_a_limit_of_its_own(bench_with: BenchWith, ordering: Ordering) -> None:
    bench = bench_with(partitions=2, ordering=ordering, group={"max_in_flight": 7})
    consumers = joined(bench, 2)
    publish(bench, 50)
    taken = [(consumer, delivery) for consumer in consumers for delivery in consumer.take()]
    assert len(taken) == 7
    while taken:
        for consumer, delivery in taken:
            consumer.ack(delivery)
        bench.turn()
        taken = [(consumer, delivery) for consumer in consumers for delivery in consumer.take()]
        assert len(taken) <= 7
    assert bench.engine.stats("q").depth == 0


def test_timeouts_and_leaving_consumers_make_room_in_the_group(bench_with: BenchWith) -> None:
    bench = bench_with(group={"max_in_flight": 3}, delivery_timeout_s=5.0, retry={"initial_backoff_s": 100.0})
    consumer = bench.consumer()
    publish(bench, 9)
    assert consumer.values == ["0", "1", "2"]
    consumer.leave()
    other = bench.consumer("other", room=2)
    bench.turn()
    assert other.values == ["0", "1"]
    other.room = 5
    assert other.handle is not None
    bench.engine.resume(other.handle, bench.now)
    bench.turn()
    assert other.values == ["0", "1", "2"]


@pytest.mark.parametrize("ordering", [Ordering.NONE, Ordering.PARTITION])
def test_what_is_pending_is_bounded_and_delivery_goes_on_after_acks(bench_with: BenchWith, ordering: Ordering) -> None:
    bench = bench_with(ordering=ordering, group={"max_pending": 20}, max_in_flight=1_000)
    consumers = joined(bench, 2)
    publish(bench, 100)
    got = [(consumer, delivery) for consumer in consumers for delivery in consumer.take()]
    assert len(got) == 20, "a consumer that never acks stops at the limit"
    bench.advance(1)
    assert bench.engine.stats("q").in_flight == 20
    for consumer, delivery in got[:5]:
        consumer.ack(delivery)
    bench.turn()
    assert sum(len(consumer.got) for consumer in consumers) == 5


def test_at_the_bound_retries_still_go_out(bench_with: BenchWith) -> None:
    bench = bench_with(group={"max_pending": 4})
    consumer = bench.consumer()
    publish(bench, 10)
    for delivery in consumer.take():
        consumer.nack(delivery)
    bench.turn()
    assert consumer.counts == [2, 2, 2, 2]
    for delivery in consumer.take():
        consumer.reject(delivery)
    bench.turn()
    assert consumer.values == ["4", "5", "6", "7"]


def test_the_bound_holds_after_a_restart(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), group={"max_pending": 4})
    bench.consumer()
    publish(bench, 10)
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.counts == [2, 2, 2, 2]


def test_limits_can_change_while_consumers_are_at_work(bench_with: BenchWith) -> None:
    bench = bench_with(max_in_flight=5)
    consumer = bench.consumer()
    publish(bench, 20)
    assert len(consumer.got) == 5
    bench.engine.update_queue("q", {"max_in_flight": 8, "group": {"max_in_flight": 7}}, bench.now)
    bench.turn()
    assert len(consumer.got) == 7
    for delivery in consumer.take():
        consumer.ack(delivery)
    bench.turn()
    assert len(consumer.got) == 7
    bench.engine.update_queue("q", {"group": {"max_in_flight": 0}}, bench.now)
    bench.turn()
    assert len(consumer.got) == 8


@pytest.mark.parametrize("ordering", ["partition", "none"])
def test_who_has_no_room_keeps_nobody_else_waiting(bench_with: BenchWith, ordering: str) -> None:
    """P6: one blocked receiver held up all."""
    bench = bench_with(partitions=2, ordering=ordering)
    bench.consumer("a", room=0)
    free, other = bench.consumer("b"), bench.consumer("c", group="h")
    for number in range(40):
        bench.publish(str(number), key=str(number))
        bench.turn()
    assert len(other.got) == 40
    assert 0 < len(free.got) <= 40
    assert len(free.got) == 40 or ordering == "partition"


def test_a_group_that_holds_all_it_may_is_not_offered_every_partition(
    bench_with: Callable[..., QueueBench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked of each of them, in every turn, for as many turns as a turn's work did not suffice for them."""
    bench = bench_with(partitions=200, ordering="none", group={"max_in_flight": 2})
    consumers = [bench.consumer(name) for name in "ab"]
    for number in range(2):
        bench.publish(str(number))
    bench.turn()
    asked: list[object] = []
    original = Dispatcher._deliver_some
    monkeypatch.setattr(Dispatcher, "_deliver_some", lambda self, *args: (asked.append(args), original(self, *args))[1])
    bench.publish("one more")
    bench.turn()
    assert sum(len(consumer.got) for consumer in consumers) == 2
    assert len(asked) <= 2


@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("lanes", [False, True])
def test_what_a_turn_has_no_room_for_goes_out_with_the_next_ones(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch, ordering: Ordering, *, lanes: bool
) -> None:
    """Nobody has to publish, settle or join for that."""
    monkeypatch.setattr(agenda, "MAX_WORK", 8)
    monkeypatch.setattr(dispatcher, "MAX_WORK", 8)
    bench = bench_with(None, ordering=ordering)
    for number in range(60):
        bench.publish(str(number), user_properties=(("priority", "high"),) if lanes and number % 3 == 0 else ())
    bench.turn()
    consumers = [bench.consumer(f"c{number}") for number in range(2)]
    for _ in range(20):
        bench.turn()
    assert sum(len(consumer.got) for consumer in consumers) == 60
