"""Typed properties stay with their message, wherever it goes: partitions, delays, dead letters, replays, sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.mqtt.sessions.session_records import restored_message, stored_message
from assay.reference_broker.queues import Delivery, PublishOptions, QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]
PROPERTIES = MessageProperties(
    message_id=Typed(Kind.UUID, bytes(range(16))),
    correlation_id=Typed(Kind.U64, 2**64 - 1),
    content_encoding="gzip",
    priority=9,
    created_at_ms=1_700_000_000_000,
    headers=(("x", Typed(Kind.I16, -1)), ("priority", Typed(Kind.TEXT, "high"))),
    sections=(("bare", b"\0Sp\xc0"),),
)


def put(bench: QueueBench, options: PublishOptions | None = None, queue: str = "q") -> None:
    message = Message(topic="", payload=b"m", properties=PROPERTIES, user_properties=(("mine", "1"),))
    bench.engine.publish(QueueAddress(queue=queue, routing_key="k"), message, bench.now, options=options)
    bench.turn()


def first(bench: QueueBench, queue: str = "q") -> Delivery:
    consumer = bench.consumer(queue=queue, group=f"of {queue}")
    bench.turn()
    consumer.leave()
    return consumer.got[0]


def test_from_memory_and_from_disk(durable: QueueBench) -> None:
    put(durable)
    kept = first(durable).message
    durable.restart()
    read = first(durable).message
    for message in (kept, read):
        assert (message.properties, message.user_properties) == (PROPERTIES, (("mine", "1"),))


def test_over_a_delay(durable: QueueBench) -> None:
    put(durable, PublishOptions(delay_ms=5_000))
    durable.restart()
    durable.advance(6)
    assert first(durable).message.properties == PROPERTIES


def test_to_the_dead_letters_and_back(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), priority={"enabled": True})
    put(bench, PublishOptions(priority=None))
    consumer = bench.consumer()
    bench.turn()
    consumer.reject(consumer.got[0])
    bench.turn()
    consumer.leave()
    bench.restart()
    assert first(bench, "$dlq/q").message.properties == PROPERTIES
    bench.engine.dead_letters.replay("q", None, bench.now, lambda _: None)
    bench.advance(1)
    again = first(bench)
    assert (again.message.properties, again.lane) == (PROPERTIES, 2), "a header that is named priority is no option"


def test_to_a_bound_queue(bench_with: BenchWith) -> None:
    bench = bench_with(configured=(QueueConfig(name="copy", topics=("$queue/q/#",), partitions=1),))
    bound = bench.engine.bound_to("$queue/q/k", "q")
    assert bound == ("copy",)
    message = Message(topic="$queue/q/k", payload=b"m", properties=PROPERTIES)
    bench.engine.publish(QueueAddress(queue="q", routing_key="k", bound=bound), message, bench.now)
    bench.turn()
    assert first(bench, "copy").message.properties == PROPERTIES


def test_into_the_records_of_a_session() -> None:
    message = Message(topic="t", payload=b"m", properties=PROPERTIES)
    assert restored_message(stored_message(message)).properties == PROPERTIES


def test_they_count_against_the_largest_message(bench_with: BenchWith) -> None:
    bench = bench_with(max_message_bytes=100)
    with pytest.raises(QueueError) as refused:
        put(bench)
    assert refused.value.code is QueueErrorCode.TOO_LARGE
