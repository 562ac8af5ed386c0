"""What consumers note on a message as they give it back: ``modified`` of AMQP 1.0 (3.4.5)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.queues import QueueError, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.delivery.settle_request import Outcome
from assay.reference_broker.routing.properties import MAX_ANNOTATIONS_BYTES, Kind, MessageProperties, Table, Typed
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.pending_log import PendingLogFile

if TYPE_CHECKING:
    from assay.reference_broker.queues import Delivery
    from tests.queues.conftest import BenchConsumer, QueueBench

BenchWith = Callable[..., "QueueBench"]
WHY: Table = (("x-opt-why", Typed(Kind.SYMBOL, "tired")), ("x-opt-tries", Typed(Kind.U8, 1)))
AGAIN: Table = (("x-opt-tries", Typed(Kind.U8, 2)), ("x-opt-at", Typed(Kind.LIST, (Typed(Kind.U16, 7),))))
BOTH = {**dict(WHY), **dict(AGAIN)}


@pytest.fixture
def durable(bench_with: BenchWith) -> QueueBench:
    return bench_with(MemoryDisk(), delivery_timeout_s=0)


def note(
    bench: QueueBench, delivery: Delivery, annotations: Table, outcome: Outcome = Outcome.RELEASE, consumer: str = "c"
) -> None:
    request = SettleRequest(
        outcome=outcome, message_ids=(delivery.message_id,), group=delivery.group, annotations=annotations
    )
    bench.engine.settle("q", request, consumer_id=consumer, now=bench.now)


def noted(delivery: Delivery) -> dict[str, Typed]:
    properties = delivery.message.properties
    return {} if properties is None else dict(properties.annotations)


@pytest.mark.parametrize("outcome", [Outcome.RELEASE, Outcome.FAIL])
def test_the_next_delivery_has_them_also_after_a_restart(durable: QueueBench, outcome: Outcome) -> None:
    durable.publish("m", user_properties=(("mine", "1"),))
    consumer = durable.consumer()
    durable.turn()
    (delivery,) = consumer.take()
    assert not noted(delivery)
    note(durable, delivery, WHY, outcome)
    durable.advance(600.0)
    (delivery,) = consumer.take()
    assert noted(delivery) == dict(WHY)
    assert delivery.message.user_properties == (("mine", "1"),)
    note(durable, delivery, AGAIN, outcome)
    durable.turn()
    durable.restart()
    consumer = durable.consumer()
    durable.advance(600.0)
    (delivery,) = consumer.take()
    assert noted(delivery) == BOTH


def test_they_are_nobody_elses(durable: QueueBench) -> None:
    durable.publish("m")
    mine, others = durable.consumer(), durable.consumer("d", group="other")
    durable.turn()
    (theirs,) = others.take()
    note(durable, mine.take()[0], WHY)
    note(durable, theirs, (), consumer="d")
    durable.turn()
    assert [noted(each) for each in (*mine.got, *others.got)] == [dict(WHY), {}]
    (stored,) = [stored for _, stored in durable.engine.browse("q", 10)]
    assert stored.message.properties is None


@pytest.mark.parametrize("restarts", [False, True])
def test_a_dead_letter_has_them_and_takes_them_back(durable: QueueBench, restarts: bool) -> None:
    durable.publish("m")
    consumer = durable.consumer()
    durable.turn()
    note(durable, consumer.take()[0], WHY)
    durable.turn()
    if restarts:
        durable.restart()
        consumer = durable.consumer()
        durable.turn()
    note(durable, consumer.take()[0], AGAIN, Outcome.REJECT)
    durable.turn()
    (letter,) = [stored.message for _, stored in durable.engine.browse("$dlq/q", 10)]
    assert letter.properties is not None
    assert dict(letter.properties.annotations) == BOTH
    durable.engine.dead_letters.replay("q", None, durable.now, lambda _: None)
    durable.turn()
    (delivery,) = consumer.take()
    assert noted(delivery) == BOTH


def test_what_is_noted_within_the_call_of_a_delivery_is_kept(durable: QueueBench) -> None:
    consumer = durable.consumer()
    take = consumer.deliver

    def deliver(delivery: Delivery) -> bool:
        took = take(delivery)
        if delivery.delivery_count == 1:
            note(durable, delivery, WHY, Outcome.FAIL)
        return took

    assert consumer.handle is not None
    consumer.handle.deliver = deliver
    durable.publish("m")
    durable.turn()
    durable.restart()
    consumer = durable.consumer()
    durable.advance(600.0)
    assert [noted(each) for each in consumer.got] == [dict(WHY)]


def test_more_than_fits_is_refused_and_settles_nothing(bench: QueueBench) -> None:
    bench.publish("m")
    consumer = bench.consumer()
    bench.turn()
    half: Table = (("a", Typed(Kind.BYTES, bytes(MAX_ANNOTATIONS_BYTES // 2))),)
    other: Table = (("b", half[0][1]),)
    note(bench, consumer.take()[0], half)
    bench.turn()
    (delivery,) = consumer.take()
    with pytest.raises(QueueError) as caught:
        note(bench, delivery, other)
    assert caught.value.code is QueueErrorCode.BAD_OPTION
    note(bench, delivery, half)
    bench.turn()
    assert noted(consumer.got[0]) == dict(half)


@pytest.mark.parametrize("outcome", [Outcome.ACCEPT, Outcome.EXTEND])
def test_nothing_is_noted_on_what_does_not_come_back(bench: QueueBench, outcome: Outcome) -> None:
    bench.publish("m")
    consumer = bench.consumer()
    bench.turn()
    with pytest.raises(QueueError) as caught:
        note(bench, consumer.got[0], WHY, outcome)
    assert caught.value.code is QueueErrorCode.BAD_OPTION
    assert bench.engine.stats("q").in_flight == 1


def test_a_file_with_others_is_read_without_them(durable: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a broker of a later format might leave them: the message counts more than what was noted on it."""
    durable.publish("m")
    consumer = durable.consumer()
    durable.turn()
    annotate = PendingLogFile.annotate

    def of_another_format(log: PendingLogFile, partition: int, offset: int, annotations: bytes) -> None:
        annotate(log, partition, offset, b"\x09" + annotations[1:])

    monkeypatch.setattr(PendingLogFile, "annotate", of_another_format)
    note(durable, consumer.take()[0], WHY)
    durable.turn()
    durable.restart()
    consumer = durable.consumer()
    durable.turn()
    assert [noted(each) for each in consumer.got] == [{}]
    assert durable.engine.stats("q").storage_notes == 1


@pytest.mark.parametrize("seed", range(20))
def test_they_are_what_was_noted_last_over_any_life(bench_with: BenchWith, seed: int) -> None:
    """Against a dictionary: redeliveries, claims of snapshots, restarts, several messages at once."""
    rng = random.Random(seed)
    ordering = rng.choice(("none", "strict"))
    bench = bench_with(MemoryDisk(), seed=seed, delivery_timeout_s=0, ordering=ordering, retry={"max_retries": 0})
    for number in range(6):
        own = MessageProperties(annotations=WHY) if number % 2 else None
        bench.publish(str(number), properties=own)
    expected = {str(number): dict(WHY) if number % 2 else {} for number in range(6)}
    consumer: BenchConsumer = bench.consumer(room=3)
    for _ in range(60):
        bench.advance(rng.choice((0.0, 1.0, 100.0)))
        assert all(noted(each) == expected[each.message.payload.decode()] for each in consumer.got)
        if rng.random() < 0.1:
            bench.restart()
            consumer = bench.consumer(room=3)
            continue
        some = rng.sample(consumer.got, rng.randint(0, len(consumer.got)))
        if not some:
            continue
        table: Table = ((rng.choice("ab"), Typed(Kind.U32, rng.randrange(9))),) if rng.random() < 0.8 else ()
        request = SettleRequest(
            outcome=rng.choice((Outcome.FAIL, Outcome.RELEASE)),
            message_ids=tuple(each.message_id for each in some),
            annotations=table,
        )
        bench.engine.settle("q", request, consumer_id="c", now=bench.now)
        for each in some:
            expected[each.message.payload.decode()].update(table)
            consumer.got.remove(each)
            consumer.room += 1
