"""What exactly fits into a queue or a group fits, and one less does not, by every way that leads there.

As in ``tests/mqtt/test_exact_limits.py``: a way is measured without a limit first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.config import Durability, Ordering, Overflow
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.queues.partitions import producers
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.actor import Actor
from tests.queues.conftest import BenchConsumer, Outcome, QueueBench

COUNT = 8
NO_LIMIT = 10**9
Way = Callable[[QueueBench], None]


def _messages(*pairs: tuple[str, str]) -> list[Message]:
    return [Message(topic="$queue/q", payload=bytes(40 + number), user_properties=pairs) for number in range(COUNT)]


def one_by_one(bench: QueueBench) -> None:
    for message in _messages(("n", "v")):
        bench.publish(message.payload.decode(), user_properties=message.user_properties)
        bench.turn()


def in_one_turn(bench: QueueBench) -> None:
    for message in _messages(("n", "v")):
        bench.publish(message.payload.decode(), user_properties=message.user_properties)
    bench.turn()


def as_a_run(bench: QueueBench) -> None:
    engine, outcome = bench.engine, Outcome()
    bench.publish("the queue is there")
    bench.turn()
    engine.publish_many(QueueTopics(engine).address("$queue/q"), _messages()[1:], bench.now, outcome)
    bench.turn()
    assert len(outcome.calls) == 1


def with_keys(bench: QueueBench) -> None:
    engine = bench.engine
    bench.publish("the queue is there")
    bench.turn()
    messages = _messages(("n", "v"))[1:]
    engine.publish_many(QueueTopics(engine).address("$queue/q"), messages, bench.now, Outcome())
    bench.turn()


def in_transactions(bench: QueueBench) -> None:
    actor = Actor(bench)
    for message in _messages():
        transaction = actor.begin()
        actor.publish(message.payload.decode(), transaction)
        actor.commit(transaction)
        bench.turn()


PUBLISHES: tuple[Way, ...] = (one_by_one, in_one_turn, as_a_run, with_keys)


def _refused_in_the_end(way: Way, bench: QueueBench) -> None:
    """What is refused raises where messages go singly."""
    try:
        way(bench)
    except QueueError:
        bench.turn()


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.MEMORY])
@pytest.mark.parametrize("has_group", [False, True])
@pytest.mark.parametrize("way", [*PUBLISHES, in_transactions])
def test_what_a_queue_holds(way: Way, has_group: bool, durability: Durability) -> None:
    def stats(**fields: Any) -> Any:
        bench = QueueBench(MemoryDisk(), durability=durability, **fields)
        if has_group:
            bench.consumer(room=0)
        _refused_in_the_end(way, bench)
        return bench.engine.stats("q")

    free = stats(max_bytes=NO_LIMIT)
    assert (free.depth, free.enqueued, free.refused) == (COUNT, COUNT, 0)
    for more in (1, 0, -1):
        count = COUNT if more >= 0 else COUNT - 1
        by_depth = stats(max_depth=COUNT + more)
        assert (by_depth.depth, by_depth.refused) == (count, COUNT - count)
        by_bytes = stats(max_bytes=free.held_bytes + more)
        assert (by_bytes.depth, by_bytes.refused) == (count, COUNT - count)
        assert by_bytes.held_bytes <= free.held_bytes + more
    if way is in_transactions:
        return
    for more in (1, 0, -1):
        dropping = stats(max_depth=COUNT + more, overflow=Overflow.DROP_OLDEST)
        dropped = dropping.groups[0].dropped if has_group else dropping.dropped
        assert (dropping.depth, dropped, dropping.refused) == (min(COUNT, COUNT + more), max(0, -more), 0)
        largest = 40 + COUNT - 1 + (2 if way in (one_by_one, in_one_turn, with_keys) else 0)
        by_size = stats(max_message_bytes=largest + more)
        assert (by_size.depth, by_size.refused) == ((COUNT, 0) if more >= 0 else (COUNT - 1, 1))


class RunConsumer(BenchConsumer):
    """Takes deliveries in runs, too."""

    def deliver_run(self, run: DeliveryRun) -> int:
        self.got += [run.delivery(number) for number in range(len(run.stored))]
        return len(run.stored)


@pytest.mark.parametrize("ordering", [Ordering.PARTITION, Ordering.NONE])
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize("members", [1, 2])
def test_what_a_group_has(ordering: Ordering, lanes: bool, in_runs: bool, members: int) -> None:
    def got(**fields: Any) -> int:
        bench = QueueBench(ordering=ordering, partitions=2, priority={"enabled": lanes}, **fields)
        for number in range(3 * COUNT):
            pairs = (("priority", "high"),) if lanes and number % 2 else ()
            bench.publish(f"{number}", user_properties=(*pairs, ("partition", str(number % 2))))
        consumers = [RunConsumer(bench, f"c{number}", NO_LIMIT) for number in range(members)]
        for consumer in consumers:
            consumer.handle = bench.engine.subscribe(
                "q",
                pattern="",
                group="g",
                consumer_id=consumer.consumer_id,
                deliver=consumer.deliver,
                now=bench.now,
                deliver_run=consumer.deliver_run if in_runs else None,
            )
        bench.turn()
        (group,) = bench.engine.stats("q").groups
        count = sum(len(consumer.got) for consumer in consumers)
        assert group.in_flight == count
        return count

    assert got() == 3 * COUNT
    for most in (COUNT - 1, COUNT, COUNT + 1):
        assert got(max_in_flight=most) == most * members
        assert got(group={"max_in_flight": most}) == most
        assert got(group={"max_pending": most}) == most


def test_producers_that_a_partition_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with an open transaction is never forgotten; who is known already needs no room."""
    for more, taken in ((1, True), (0, True), (-1, False)):
        monkeypatch.setattr(producers, "MAX_PRODUCERS", 3 + more)
        bench = QueueBench()
        actors = [Actor(bench, f"app{number}") for number in range(3)]
        transactions = [actor.begin() for actor in actors]
        for actor, transaction in zip(actors[:2], transactions, strict=False):
            actor.publish("m", transaction, sequence=0)
            actor.publish("n", transaction, sequence=1)
        bench.turn()
        if taken:
            actors[2].publish("m", transactions[2], sequence=0)
            continue
        with pytest.raises(QueueError, match="limit"):
            actors[2].publish("m", transactions[2], sequence=0)
        actors[0].publish("o", transactions[0], sequence=2)
        actors[0].commit(transactions[0])
        bench.turn()
        actors[2].publish("m", transactions[2], sequence=0)
