"""Whatever becomes due in the queues at one moment, others are served in between: no call does more than a part of it.

Steps are counted, not time: lines of the broker's code that run in one call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from assay.reference_broker.config import PriorityConfig, TransactionsConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST
from assay.reference_broker.queues.jobs import agenda
from assay.reference_broker.queues.jobs.agenda import MAX_WORK
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.operations.replay import ReplayResult
from assay.reference_broker.queues.queue.priority_figures import ready_by_lane
from assay.reference_broker.queues.registry import registry
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore
from tests.mqtt.turn_steps import Steps
from tests.queues.actor import Actor
from tests.queues.conftest import BenchConsumer, Outcome, QueueBench

_N = 2 * MAX_WORK
"""Of what becomes due at once; then twice as many."""
_MOST_PER_CALL = 1_000_000
"""Lines: about 250 for each of the messages that one call may deliver, take back or move; about 40 ms."""
_MOST_MORE = 10
"""Lines for each of those that are more: lists of them are made, and so on."""
_SMALL_CACHE_BYTES = 1_000_000
_READING = ("timeouts_to_dead_letters", "expired_to_dead_letters", "expired_behind_others", "retries", "deliveries")
_MOST_MORE_READ = 25
"""Likewise, where the messages are read again: the batch that they came in is read as a whole."""
_MUCH: dict[str, Any] = {"max_in_flight": 10**6, "group": {"max_pending": 10**6}, "max_depth": 10**6}


class TurnBench(QueueBench):
    """Counts what the calls do."""

    def __init__(self, *, durable: bool = False, **fields: Any) -> None:
        self.steps = Steps()
        super().__init__(MemoryDisk() if durable else None, **fields)

    def _open(self) -> QueueEngine:
        # Without a tracer, as a broker runs.
        store = LogQueueStore(self.disk, options=LogOptions(segment_bytes=self.config.segment_bytes))
        return QueueEngine(self.config, store, random.Random(self.seed), self.now)

    def fill(self, count: int, topic: str = "$queue/q", **fields: Any) -> None:
        """Publish so many, and let others have their turns."""
        address = QueueTopics(self.engine).address(topic)
        messages = [Message(topic=topic, payload=b"%d" % number, **fields) for number in range(count)]
        self.engine.publish_many(address, messages, self.now)
        self.turn()

    def turn(self) -> None:
        self.count_turns(counted=False)

    def count_turns(self, *, counted: bool = True) -> list[int]:
        """Turns until nothing is left to do at this time; lines of each call."""
        lines: list[int] = []
        engine = self.engine

        def call(action: Callable[[], object]) -> None:
            if counted:
                lines.append(self.steps.count(action))
            else:
                action()

        for _ in range(10_000):
            call(lambda: engine.tick(self.now))
            call(lambda: engine.dispatch(self.now))
            jobs = engine.take_jobs(self.now)
            for job in jobs:
                job.run()
                call(lambda job=job: engine.job_done(job, None, self.now))  # type: ignore[misc]
            deadline = engine.next_deadline()
            if not jobs and (deadline is None or deadline > self.now):
                return lines
        raise AssertionError("the engine does not come to rest")


Case = Callable[[int], tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]]
"""From a count: a bench at the moment when much is due, what somebody does then, and whether all came of it."""


def _held(count: int, **fields: Any) -> tuple[TurnBench, BenchConsumer]:
    """One consumer that holds so many."""
    bench = TurnBench(**{**_MUCH, **fields})
    consumer = bench.consumer()
    bench.fill(count)
    assert len(consumer.got) == count
    return bench, consumer


def _waiting(bench: TurnBench) -> int:
    """Deliveries that wait for the next one."""
    return bench.engine._queues["q"].groups["g"].waiting_count


def _deliveries(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """A consumer joins a queue in which much waits."""
    bench = TurnBench(**_MUCH)
    bench.fill(count)
    consumers: list[BenchConsumer] = []
    return bench, lambda: consumers.append(bench.consumer()), lambda: len(consumers[0].got) == count


def _fair_deliveries(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    bench = TurnBench(**_MUCH, ordering="none", partitions=4)
    bench.fill(count)
    consumers: list[BenchConsumer] = []

    def join() -> None:
        consumers.extend(bench.consumer(f"c{number}") for number in range(8))

    return bench, join, lambda: [len(consumer.got) for consumer in consumers] == [count // 8] * 8


def _many_consumers(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """Partition by partition: who comes last is served as well."""
    bench = TurnBench(**_MUCH, partitions=64)
    bench.fill(count)
    consumers: list[BenchConsumer] = []

    def join() -> None:
        consumers.extend(bench.consumer(f"c{number}") for number in range(64))

    return bench, join, lambda: sum(len(consumer.got) for consumer in consumers) == count


def _timeouts(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    bench, consumer = _held(count, delivery_timeout_s=10.0)
    consumer.room = 0
    bench.now += 11

    def all_wait() -> bool:
        return _waiting(bench) == count

    return bench, None, all_wait


def _timeouts_to_dead_letters(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    bench, _ = _held(count, delivery_timeout_s=10.0, retry={"max_retries": 0}, durable=True)
    bench.now += 11
    return bench, None, lambda: bench.engine.stats("q").dead_letters == count


def _retries(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """Given back at one time, and due at one time."""
    bench, consumer = _held(count, retry={"nack_immediately": False, "initial_backoff_s": 5.0})
    for delivery in consumer.take():
        consumer.nack(delivery)
    bench.turn()
    bench.now += 6
    return bench, None, lambda: len(consumer.got) == count


def _expired(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """The queue's own time to live, with a group that nobody is in."""
    bench = TurnBench(**_MUCH, message_ttl_s=10.0)
    bench.consumer().leave()
    bench.fill(count)
    bench.now += 11
    return bench, None, lambda: bench.engine.stats("q").depth == 0


def _expired_to_dead_letters(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    bench = TurnBench(**_MUCH, message_ttl_s=10.0, expired_to_dead_letters=True, durable=True)
    bench.consumer().leave()
    bench.fill(count)
    bench.now += 11
    return bench, None, lambda: bench.engine.stats("q").dead_letters == count


def _expired_behind_others(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """Messages with times to live of their own behind one that lives on, in many partitions."""
    bench = TurnBench(**_MUCH, partitions=8)
    bench.consumer().leave()
    for _ in range(8):
        bench.publish("lives")
    bench.fill(count, expires_at=bench.now + 10)
    bench.now += 11
    return bench, None, lambda: bench.engine.stats("q").depth == 8


def _left(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """A consumer leaves that holds a lot."""
    bench, consumer = _held(count)
    return bench, consumer.leave, lambda: _waiting(bench) == count


def _purged(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """What waits for a retry."""
    bench, consumer = _held(count)
    consumer.leave()
    bench.turn()
    results: list[int | QueueError] = []
    return bench, lambda: bench.engine.purge_queue("q", bench.now, results.append), lambda: results == [count]


def _confirms(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """A sync that a lot of publishers wait for."""
    bench = TurnBench(**_MUCH, durable=True, durability="fsync")
    bench.publish("first")
    bench.turn()
    outcomes = [Outcome() for _ in range(count)]
    address = QueueTopics(bench.engine).address("$queue/q")
    for outcome in outcomes:
        bench.engine.publish(address, Message(topic="$queue/q", payload=b"x"), bench.now, outcome)
    bench.engine.dispatch(bench.now)
    return bench, None, lambda: all(outcome.confirmed for outcome in outcomes)


def _replayed(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    bench, consumer = _held(count)
    for delivery in consumer.take():
        consumer.reject(delivery)
    bench.turn()
    results: list[ReplayResult] = []
    return (
        bench,
        lambda: bench.engine.dead_letters.replay("q", None, bench.now, results.append),
        lambda: [result.replayed for result in results] == [count],
    )


def _transactions(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    """Many that were forgotten, each with messages in two partitions, time out at one moment."""
    bench = TurnBench(**_MUCH, partitions=2, transactions=TransactionsConfig(timeout_s=60.0, max_open=10_000))
    for number in range(count // 10):
        actor = Actor(bench, f"t{number}")
        transaction = actor.begin()
        for value in "abcdefghij":
            actor.publish(value, transaction)
    bench.turn()
    bench.now += 61
    return bench, None, lambda: not bench.engine.transactions.list()


def _many_queues_retained(count: int) -> tuple[TurnBench, Callable[[], object] | None, Callable[[], bool]]:
    bench = TurnBench(partitions=16, retention={"max_messages": 5}, durable=True, retention_interval_s=60.0)
    for number in range(count // 17):
        bench.publish("x", topic=f"$queue/q{number}")
    bench.turn()
    bench.now += 61
    return bench, None, lambda: True


CASES: dict[str, Case] = {
    case.__name__[1:]: case
    for case in (
        _deliveries,
        _fair_deliveries,
        _many_consumers,
        _timeouts,
        _timeouts_to_dead_letters,
        _retries,
        _expired,
        _expired_to_dead_letters,
        _expired_behind_others,
        _left,
        _purged,
        _confirms,
        _replayed,
        _transactions,
        _many_queues_retained,
    )
}


@pytest.mark.parametrize(
    ("name", "cache_bytes", "most_more"),
    [
        *((name, 1 << 30, _MOST_MORE) for name in CASES),
        *((name, _SMALL_CACHE_BYTES, _MOST_MORE_READ) for name in _READING),
    ],
)
def test_what_is_due_at_one_moment_is_done_in_small_parts(
    name: str, cache_bytes: int, most_more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache for all there is, and with one for some: a batch that was larger than that was read anew for each of
    its messages."""
    monkeypatch.setattr(registry, "CACHE_BYTES", cache_bytes)
    worst: list[int] = []
    for count in (_N, 2 * _N):
        bench, action, is_done = CASES[name](count)
        lines = [bench.steps.count(action)] if action is not None else []
        lines += bench.count_turns()
        for _ in range(200):
            if is_done():
                break
            deadline = bench.engine.next_deadline()
            assert deadline is not None
            bench.now = max(bench.now, deadline)
            lines += bench.count_turns()
        assert is_done()
        worst.append(max(lines))
    assert worst[1] <= _MOST_PER_CALL
    assert worst[1] <= worst[0] + most_more * _N


@pytest.mark.parametrize("priority", [False, True])
def test_many_that_left_behind_one_in_flight_are_passed_by_their_edges(*, priority: bool) -> None:
    """By a group that is set back, by figures of lanes, and by a purge."""
    counted: list[list[int]] = []
    for count in (500, 1_000):
        limits = {"max_depth": 3, "overflow": "drop_oldest", "priority": PriorityConfig(enabled=priority)}
        bench = TurnBench(partitions=1, **limits)
        holder = bench.consumer()
        bench.publish("first")
        bench.turn()
        holder.room = 0
        bench.fill(count)
        queue = bench.engine._queues["q"]
        assert len(queue.partitions[0].expiry.gone(0, count)) == count - 2
        set_back = partial(bench.engine.groups.reset, "q", "g", EARLIEST, partition=None, now=bench.now)
        figures = partial(ready_by_lane, queue.contents, queue.partitions[0])
        purge = partial(bench.engine.purge_queue, "q", bench.now, lambda _count: None)
        counted.append([bench.steps.count(action) for action in (set_back, figures, purge)])
    assert all(more <= less + 20 for less, more in zip(*counted, strict=True)), counted


def test_another_time_to_live_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what waits for a retry: the turn in which it is told takes as long however much that is."""
    monkeypatch.setattr(agenda, "MAX_WORK", 64)
    retry = {"nack_immediately": False, "initial_backoff_s": 1_000.0, "max_backoff_s": 1_000.0}
    worst = []
    for count in (500, 1_000):
        bench, consumer = _held(count, message_ttl_s=5_000.0, retry=retry)
        for delivery in consumer.take():
            consumer.nack(delivery)
        bench.turn()
        lines: list[int] = []
        lines.append(bench.steps.count(partial(bench.engine.update_queue, "q", {"message_ttl_s": 10.0}, bench.now)))
        lines += bench.count_turns()
        assert next(bench.engine._queues["q"].limits._unlooked, None) is None, "all were"
        worst.append(max(lines))
    assert worst[1] <= worst[0] + 4 * 500
