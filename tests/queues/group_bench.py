"""What tests of consumer groups do at a bench."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.mqtt.queue_topics.subscribe_properties import parse_subscribe_options
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import parse_cursor
from tests.queues.conftest import BenchConsumer, QueueBench

BenchWith = Callable[..., QueueBench]


def join(bench: QueueBench, consumer_id: str = "c", group: str = "g", room: int = 10**9, **more: Any) -> BenchConsumer:
    """A consumer with options, as user properties; ``notify`` and ``heartbeats`` as for the engine."""
    properties = tuple((name.replace("_", "-"), value) for name, value in more.pop("asks", {}).items())
    consumer = BenchConsumer(bench, consumer_id, room)
    consumer.handle = bench.engine.subscribe(
        "q",
        pattern="",
        group=group,
        consumer_id=consumer_id,
        deliver=consumer.deliver,
        now=bench.now,
        options=parse_subscribe_options(properties),
        **more,
    )
    return consumer


def publish(bench: QueueBench, *values: str) -> None:
    for value in values:
        bench.publish(value)
    bench.turn()


def code_of(call: Callable[[], object]) -> QueueErrorCode:
    with pytest.raises(QueueError) as caught:
        call()
    return caught.value.code


def reset(bench: QueueBench, cursor: str, partition: int | None = None) -> dict[int, int]:
    return bench.engine.groups.reset("q", "g", parse_cursor(cursor), partition=partition, now=bench.now)
