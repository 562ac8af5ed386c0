"""Producers: epochs, sequence numbers, repetitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.actor import Actor
from tests.queues.conftest import Outcome, QueueBench

# -- producers -------------------------------------------------------------------------------------------------------


def test_a_new_epoch_fences_the_old_and_aborts_its_transaction(either: QueueBench) -> None:
    consumer = either.consumer()
    old = Actor(either)
    transaction = old.begin()
    old.publish("a", transaction)
    either.publish("b")
    either.turn()
    new = Actor(either)
    assert new.identity == (old.identity.producer_id, old.identity.epoch + 1)
    assert consumer.values == ["b"]
    for act in (
        lambda: old.publish("c", transaction),
        lambda: old.commit(transaction),
        lambda: old.abort(transaction),
        lambda: old.begin(),
        lambda: old.publish("d", sequence=0),
    ):
        with pytest.raises(QueueError) as refused:
            act()
        assert refused.value.code is QueueErrorCode.FENCED
    outcome = new.commit(new.begin())
    either.turn()
    assert outcome.confirmed


def test_an_epoch_or_producer_that_never_was_is_unknown(either: QueueBench) -> None:
    actor = Actor(either)
    for identity in (ProducerIdentity(actor.identity.producer_id, 7), ProducerIdentity(10**9, 0)):
        actor.identity = identity
        with pytest.raises(QueueError) as refused:
            actor.publish("a", sequence=0)
        assert refused.value.code is QueueErrorCode.UNKNOWN_PRODUCER


def test_ids_and_epochs_survive_a_power_loss(durable: QueueBench) -> None:
    actor, other = Actor(durable), Actor(durable, None)
    durable.restart()
    again, more = Actor(durable), Actor(durable, None)
    assert again.identity == (actor.identity.producer_id, 1)
    assert more.identity.producer_id > other.identity.producer_id


@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_sequence_is_confirmed_with_the_first_offset(either: QueueBench, restart: bool) -> None:
    actor = Actor(either, None)
    consumer = either.consumer()
    for number in range(4):
        actor.publish(str(number), sequence=number)
    either.turn()
    if restart and either.config.defaults["durability"] != "memory":
        either.restart()
        consumer = either.consumer()
    told: list[str] = []
    outcome = Outcome()
    properties = (
        ("producer-id", str(actor.identity.producer_id)),
        ("producer-epoch", "0"),
        ("sequence", "2"),
    )
    message = Message(topic="$queue/q", payload=b"2", user_properties=properties)
    QueueTopics(either.engine).publish(message, either.now, outcome, lambda kind, name: told.append(name))
    either.turn()
    assert outcome.confirmed
    assert told == ["q:0:2"]
    assert consumer.values == ["0", "1", "2", "3"]
    assert actor.publish("4", sequence=4).calls in ([], [None])


def test_a_repetition_in_the_same_turn_is_confirmed_no_sooner_than_the_first(durable: QueueBench) -> None:
    actor = Actor(durable, None)
    outcomes = [actor.publish("a", sequence=0) for _ in range(3)]
    assert [outcome.calls for outcome in outcomes] == [[], [], []]
    durable.engine.dispatch(durable.now)
    assert [outcome.calls for outcome in outcomes] == [[], [], []]
    durable.turn()
    assert all(outcome.confirmed for outcome in outcomes)
    assert durable.engine.stats("q").depth == 1


@pytest.mark.parametrize("sequence", [1, 2, 10**6])
def test_a_gap_is_refused_and_nothing_is_enqueued(either: QueueBench, sequence: int) -> None:
    actor = Actor(either, None)
    with pytest.raises(QueueError) as refused:
        actor.publish("a", sequence=sequence)
    assert refused.value.code is QueueErrorCode.OUT_OF_SEQUENCE
    either.turn()
    assert either.engine.stats("q").depth == 0


def test_a_repetition_that_is_too_old_is_refused_not_enqueued(either: QueueBench) -> None:
    actor = Actor(either, None)
    for number in range(33):
        actor.publish(str(number), sequence=number)
    either.turn()
    assert actor.publish("1", sequence=1).confirmed
    with pytest.raises(QueueError) as refused:
        actor.publish("0", sequence=0)
    assert refused.value.code is QueueErrorCode.OUT_OF_SEQUENCE


def test_sequences_count_per_partition_and_an_epoch_begins_anew(bench_with: Callable[..., QueueBench]) -> None:
    bench = bench_with(MemoryDisk(), partitions=3)
    actor = Actor(bench)
    for partition in range(3):
        properties = (("partition", str(partition)), ("producer-id", "1"), ("producer-epoch", "0"), ("sequence", "0"))
        bench.publish("a", user_properties=properties)
    actor.publish("b", sequence=1)
    bench.turn()
    actor.init()
    actor.publish("c", sequence=0)
    bench.turn()
    assert bench.engine.stats("q").depth == 5


@pytest.mark.parametrize(
    "properties",
    [
        (("sequence", "0"),),
        (("transaction-id", "1"),),
        (("producer-id", "1"), ("sequence", "0")),
        (("producer-id", "1"), ("producer-epoch", "0")),
        (("producer-id", "1"), ("producer-epoch", "0"), ("sequence", "0"), ("delay", "1s")),
        (("producer-id", "1"), ("producer-epoch", "0"), ("sequence", "0"), ("partition", "9")),
    ],
)
def test_half_a_producer_is_refused(bench: QueueBench, properties: tuple[tuple[str, str], ...]) -> None:
    Actor(bench)
    with pytest.raises(QueueError) as refused:
        bench.publish("a", user_properties=properties)
    assert refused.value.code is QueueErrorCode.BAD_OPTION


def test_a_write_that_failed_takes_its_sequence_back(bench_with: Callable[..., QueueBench]) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    actor = Actor(bench)
    actor.publish("0", sequence=0)
    bench.turn()
    transaction = actor.begin()
    partition = bench.engine._queues["q"].partitions[0]
    append = partition.log.append

    def refuse(*records: Any, **more: Any) -> int:
        raise LogError("the disk is full")

    partition.log.append = refuse  # type: ignore[method-assign]
    lost = [actor.publish("1", transaction, sequence=1), actor.publish("2", transaction, sequence=2)]
    bench.turn()
    assert all(outcome.failed for outcome in lost)
    partition.log.append = append  # type: ignore[method-assign]
    with pytest.raises(QueueError, match="a message of it was lost"):
        actor.commit(transaction)
    bench.turn()
    assert actor.publish("1", sequence=1).calls == []
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["0", "1"]
    assert bench.engine.stats("q").depth == 2
