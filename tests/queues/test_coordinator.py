"""The durable memory of producers and transactions is the same after a restart, whatever was done to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.transactions.coordinator import (
    Coordinator,
    Decision,
    HeldOffset,
    Producer,
    open_coordinator,
)
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore

NAMES = ["a", "b:c", "\u00e9"]
NAMED = st.sampled_from(NAMES)
SMALL = st.integers(0, 2)
TRANSACTIONS = st.integers(8, 11).map(str)
"""9 is before 10, as numbers."""
QUEUES = st.sampled_from(["", "q", "q:1"])
HELD = st.builds(HeldOffset, QUEUES, QUEUES, SMALL, SMALL, st.none() | SMALL)


def _producer_id(name: str) -> st.SearchStrategy[int]:
    """Most often the one that it has."""
    return st.sampled_from([NAMES.index(name) + 1] * 3 + [9])


def _saves(name: str) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(
        st.just("save"), st.just(name), st.builds(Producer, _producer_id(name), SMALL, st.just(1.5), owner=QUEUES)
    )


def _decisions(name: str) -> st.SearchStrategy[tuple[Any, ...]]:
    partitions, held = st.lists(st.tuples(QUEUES, SMALL), max_size=1), st.lists(HELD, max_size=1)
    decision = st.builds(Decision, _producer_id(name), SMALL, st.just(name), partitions, held)
    return st.tuples(st.just("decide"), TRANSACTIONS, decision)


STEPS = st.lists(
    st.one_of(
        NAMED.flatmap(_saves),
        st.tuples(st.just("forget"), NAMED),
        NAMED.flatmap(_decisions),
        NAMED.flatmap(_decisions),
        st.tuples(st.just("complete"), TRANSACTIONS),
        st.tuples(st.just("partition"), QUEUES, SMALL, st.none() | st.binary(max_size=3)),
        st.tuples(st.just("number")),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


def _opened(disk: MemoryDisk) -> tuple[Coordinator, LogQueueStore]:
    store = LogQueueStore(disk)
    coordinator = open_coordinator(store, Agenda(), create=True)
    assert coordinator is not None
    return coordinator, store


save = ("save", "a", Producer(1, 0, 1.5))
committed = Decision(1, 0, "a", [], [])
parted = Decision(1, 0, "a", [("q", 0)], [])


class _Model:
    """What a coordinator must know, in plain dictionaries."""

    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self.decisions: dict[str, Decision] = {}
        self.partitions: dict[tuple[str, int], bytes] = {}
        self.numbers: set[int] = set()

    def remember(self, transaction: str, decision: Decision) -> None:
        """It is the last that its producer committed, unless a later one is."""
        producer = self.producers.get(decision.transactional_id)
        if producer is not None and producer.id == decision.producer:
            last = str(max(int(transaction), int(producer.last_committed or 0)))
            self.producers[decision.transactional_id] = msgspec.structs.replace(producer, last_committed=last)

    def held_to(self, coordinator: Coordinator) -> None:
        assert coordinator.producers == self.producers
        assert coordinator.names.keys() == {producer.id for producer in self.producers.values()}
        assert coordinator.ids_of == Counter(producer.owner for producer in self.producers.values())
        assert coordinator.decisions == self.decisions


def _do(step: tuple[Any, ...], coordinator: Coordinator, model: _Model) -> None:
    match step:
        case "save", name, producer:
            # An id is one producer's.
            used = [other for other, each in model.producers.items() if each.id == producer.id and other != name]
            if not used:
                coordinator.save_producer(name, producer)
                model.producers[name] = producer
        case "forget", name if name in model.producers:
            coordinator.forget_producer(name)
            del model.producers[name]
        case "decide", transaction, decision if transaction not in model.decisions:
            coordinator.decide(transaction, decision)
            if decision.partitions or decision.held:
                model.decisions[transaction] = decision
            else:
                model.remember(transaction, decision)
        case "complete", transaction if transaction in model.decisions:
            coordinator.complete(transaction)
            model.remember(transaction, model.decisions.pop(transaction))
        case "partition", queue, partition, snapshot:
            coordinator.save_partition(queue, partition, snapshot)
            model.partitions.pop((queue, partition), None)
            if snapshot is not None:
                model.partitions[queue, partition] = snapshot
        case ("number",):
            number = coordinator.take_number()
            assert number not in model.numbers
            assert coordinator.was_given_out(number)
            assert not coordinator.was_given_out(number + 1)
            model.numbers.add(number)


@settings(max_examples=200)
@given(STEPS)
@example([save, ("decide", "10", committed), ("decide", "9", committed), ("restart",)])
@example([save, ("decide", "9", committed), ("decide", "10", committed), ("decide", "10", committed)])
@example([save, ("decide", "9", parted), ("decide", "10", parted), ("complete", "10"), ("complete", "9"), ("number",)])
def test_a_coordinator_is_the_same_after_any_restart(steps: list[tuple[Any, ...]]) -> None:
    disk, model = MemoryDisk(), _Model()
    coordinator, store = _opened(disk)
    for step in [*steps, ("restart",), ("restart",)]:
        if step == ("restart",):
            store.close()
            coordinator, store = _opened(disk)
            assert coordinator.partitions == model.partitions
            ids = [producer.id for producer in model.producers.values() if producer.id]
            assert all(map(coordinator.was_given_out, ids)), "whether or not its number was reserved here"
        else:
            _do(step, coordinator, model)
        model.held_to(coordinator)
    store.close()


@pytest.mark.parametrize("taken", [1, 999, 1_000, 1_001])
def test_numbers_are_never_given_out_again(taken: int) -> None:
    disk = MemoryDisk()
    coordinator, store = _opened(disk)
    numbers = [coordinator.take_number() for _ in range(taken)]
    reserved = coordinator._state.next_offset
    store.close()
    assert numbers == list(range(1, taken + 1))
    assert reserved == -(-taken // 1_000), "a thousand of them with one record"
    coordinator, store = _opened(disk)
    assert coordinator.take_number() > taken
    store.close()
