"""A transaction over two queues, and power that fails before each of its disk operations: all or nothing, decided."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import Delivery, QueueEngine, QueueError
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.routing.message import Message
from assay.sim.power_cuts import WatchedDisk, power_cuts
from assay.sim.transaction_life import START, TransactionLife, examine, open_engine, turn


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
@pytest.mark.parametrize("commits", [True, False])
def test_power_cut_at_every_operation_of_a_transaction(durability: Durability, commits: bool) -> None:
    disk = WatchedDisk(random.Random(7))
    life = TransactionLife(disk, durability, commits=commits)
    life.prepare()
    seen: set[tuple[bytes, bool]] = set()
    points = 0
    outcomes: set[bool] = set()

    def before() -> None:
        nonlocal points
        points += 1
        for cut in power_cuts(disk, f"{points}"):
            if (cut.digest, bool(life.told)) in seen:
                continue
            seen.add((cut.digest, bool(life.told)))
            found = examine(cut.boot(), durability)
            outcomes.add(found.input_settled)
            complaints = list(life.complaints(found))
            assert not complaints, f"operation {points}, {cut.what}: {complaints}"

    disk.before = before
    life.live()
    before()
    assert life.told == [None]
    assert points > 15
    assert outcomes == ({True, False} if commits else {False})


def _number(engine: QueueEngine, producer: ProducerIdentity, numbers: range) -> list[QueueError | None]:
    """Publish these sequence numbers; returns what was confirmed."""
    told: list[QueueError | None] = []
    for number in numbers:
        properties = (
            ("producer-id", str(producer.producer_id)),
            ("producer-epoch", str(producer.epoch)),
            ("sequence", str(number)),
        )
        message = Message(topic="$queue/q", payload=b"%d" % number, user_properties=properties)
        QueueTopics(engine).publish(message, START, told.append)
        if number % 2:
            turn(engine)
    turn(engine)
    return told


def _contents(engine: QueueEngine) -> list[bytes]:
    got: list[bytes] = []

    def deliver(delivery: Delivery) -> bool:
        got.append(delivery.message.payload)
        return True

    engine.subscribe("q", pattern="", group="g", consumer_id="c", deliver=deliver, now=START)
    turn(engine)
    return got


def test_power_cut_at_every_operation_of_numbered_publishes() -> None:
    """Whatever is left, the producer sends everything again, and each message is there once."""
    disk = WatchedDisk(random.Random(3))
    engine = open_engine(disk, Durability.FSYNC)
    found: list[ProducerIdentity | None] = []
    engine.transactions.init_producer(None, START, lambda error, identity: found.append(identity))
    turn(engine)
    [producer] = found
    assert producer is not None
    seen: set[bytes] = set()
    points = 0

    def before() -> None:
        nonlocal points
        points += 1
        for cut in power_cuts(disk, f"{points}"):
            if cut.digest in seen:
                continue
            seen.add(cut.digest)
            again = open_engine(cut.boot(), Durability.FSYNC)
            assert _number(again, producer, range(6)) == [None] * 6, f"operation {points}, {cut.what}"
            got = _contents(again)
            assert got == [b"%d" % number for number in range(6)], f"operation {points}, {cut.what}"

    disk.before = before
    assert _number(engine, producer, range(6)) == [None] * 6
    before()
    assert points > 8
