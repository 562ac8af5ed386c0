"""Every change of state that the engine makes is in the table, and every line of the table happens."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator

import pytest

from assay.reference_broker import queues
from assay.reference_broker.config import Ordering, QueueConfig, QueuesConfig, queue_defaults
from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.queues import QueueEngine, QueueError, QueueOpenError
from assay.reference_broker.queues.groups.lifecycle import READY, SETTLED, STEPS, TRANSITIONS
from assay.reference_broker.queues.groups.pending import EntryState, PendingEntry
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore
from tests.queues.actor import Actor
from tests.queues.conftest import QueueBench

Seen = set[tuple[str, str]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """The changes of state of all entries."""
    changes: Seen = set()

    class WatchedEntry(PendingEntry):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "state" and isinstance(value, EntryState):
                # A new entry has no state of its own yet: its first delivery makes the message one of the group's.
                before = READY if not self.claimed_at and value is EntryState.DELIVERED else self.state.value
                if before != value.value:
                    changes.add((before, value.value))
            super().__setattr__(name, value)

    for found in pkgutil.walk_packages(queues.__path__, f"{queues.__name__}."):
        module = importlib.import_module(found.name)
        if getattr(module, "PendingEntry", None) is PendingEntry:
            monkeypatch.setattr(module, "PendingEntry", WatchedEntry)
    yield changes
    assert changes <= STEPS


def test_a_table_has_each_event_once() -> None:
    assert len({(step.source, step.event) for step in TRANSITIONS}) == len(TRANSITIONS)
    assert all(step.source not in (SETTLED, "passed") for step in TRANSITIONS), "final is final"


@pytest.mark.parametrize("seed", range(8))
def test_the_engine_makes_no_other_steps(bench_with: Callable[..., QueueBench], seen: Seen, seed: int) -> None:
    rng = random.Random(seed)
    bench = bench_with(
        MemoryDisk(), partitions=2, message_ttl_s=40.0, retry={"max_retries": 2, "initial_backoff_s": 1.0}
    )
    consumers = [bench.consumer(f"c{number}", room=8) for number in range(2)]
    for number in range(300):
        bench.publish(str(number))
        bench.turn()
        for consumer in consumers:
            for delivery in consumer.take():
                act = rng.choice(["ack", "nack", "reject", "keep", "keep"])
                consumer.room += 1
                if act != "keep":
                    with contextlib.suppress(QueueError):  # it may have timed out since
                        consumer.settle(Verb(act), delivery)
        if rng.random() < 0.2:
            bench.advance(rng.choice([0.5, 5.0, 35.0]))
        if rng.random() < 0.03:
            consumers[0].leave()
            consumers[0] = bench.consumer("c0", room=8)
    assert (EntryState.DELIVERED.value, EntryState.WAITING.value) in seen
    assert (EntryState.WAITING.value, SETTLED) in seen


def test_a_restart_takes_deliveries_back(bench_with: Callable[..., QueueBench], seen: Seen) -> None:
    bench = bench_with(MemoryDisk())
    bench.publish("a")
    consumer = bench.consumer()
    bench.turn()
    assert consumer.counts == [1]
    bench.restart()
    again = bench.consumer()
    bench.turn()
    assert again.counts == [2]
    assert seen == {(READY, "delivered"), ("waiting", "delivered")}


def test_acknowledgements_wait_for_their_transaction(bench_with: Callable[..., QueueBench], seen: Seen) -> None:
    bench = bench_with(MemoryDisk())
    consumer = bench.consumer()
    actor = Actor(bench)
    for value, end in (("kept", actor.commit), ("given back", actor.abort)):
        bench.publish(value)
        bench.turn()
        transaction = actor.begin()
        actor.ack(consumer.got[-1], "c", transaction)
        end(transaction)
        bench.turn()
    assert consumer.values == ["kept", "given back", "given back"]
    assert {("delivered", "committing"), ("committing", SETTLED), ("committing", "waiting")} <= seen


def test_a_strict_queue_has_one_partition_whatever_is_configured() -> None:
    assert QueueConfig(name="q", ordering=Ordering.STRICT, partitions=7).partitions == 1
    defaults = {"ordering": "strict", "partitions": 9}
    assert queue_defaults(QueuesConfig(defaults=defaults), "any").partitions == 1


def test_a_queue_of_several_partitions_does_not_become_strict(bench_with: Callable[..., QueueBench]) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, partitions=3)
    bench.publish("a")
    bench.turn()
    disk.unlock()
    with pytest.raises(QueueOpenError, match="strict ordering needs one"):
        bench_with(disk, partitions=3, ordering="strict")


@pytest.mark.parametrize("name", ["a//b", "q/#", "q/$ack", "n" * 600])
def test_a_configured_queue_that_cannot_be_is_an_error_of_the_start(name: str) -> None:
    """Only what is stored is set aside; who wrote the configuration is told at once."""
    config = QueuesConfig(configured=(QueueConfig(name=name),))
    with pytest.raises(QueueOpenError):
        QueueEngine(config, LogQueueStore(MemoryDisk()), random.Random(1), 0.0)


@pytest.mark.parametrize("ordering", ["partition", "strict"])
def test_later_messages_wait_for_a_retry(bench_with: Callable[..., QueueBench], ordering: str) -> None:
    bench = bench_with(
        MemoryDisk(), ordering=ordering, partitions=1, retry={"initial_backoff_s": 2.0, "nack_immediately": False}
    )
    for number in range(4):
        bench.publish(str(number), key=str(number))
    consumer = bench.consumer(room=1)
    bench.turn()
    [first] = consumer.take()
    consumer.room = 9
    consumer.nack(first)
    bench.turn()
    assert consumer.values == []
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == []
    bench.advance(2.0)
    assert consumer.values == ["0", "1", "2", "3"]
