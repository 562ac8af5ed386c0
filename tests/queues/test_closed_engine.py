"""A closed engine does nothing any more, whatever it is asked, and says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assay.reference_broker.queues import QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.operations.group_operations import Claim
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.conftest import START, QueueBench


def _ignore(*_: object) -> None:
    pass


REQUESTS: dict[str, Callable[[QueueEngine], object]] = {
    "subscribe": lambda engine: engine.subscribe(
        "q", pattern="", group="g", consumer_id="d", deliver=lambda _: True, now=START
    ),
    "heartbeat": lambda engine: engine.groups.heartbeat("q", "g", "c", 1, START),
    "check": lambda engine: engine.groups.check_generation("q", "g", "c", 1),
    "commit": lambda engine: engine.groups.commit("q", "g", 0, 1, consumer_id=None, now=START),
    "claim": lambda engine: engine.groups.claim(
        "q", "g", Claim(place=None, min_idle_s=0.0, limit=1), consumer_id="c", now=START
    ),
    "details": lambda engine: engine.groups.details("q", "g"),
    "delete a group": lambda engine: engine.groups.delete("q", "g", START),
    "create": lambda engine: engine.create_queue("r", {}, START),
    "update": lambda engine: engine.update_queue("q", {"max_depth": 5}, START),
    "delete": lambda engine: engine.delete_queue("q", START),
    "purge": lambda engine: engine.purge_queue("q", START, _ignore),
    "partitions": lambda engine: engine.add_partitions("q", 3, START),
    "config": lambda engine: engine.queue_config("q"),
    "delayed": lambda engine: engine.delayed("q"),
    "cancel": lambda engine: engine.cancel_delayed("q", "q:0", START),
    "producer": lambda engine: engine.transactions.init_producer("app", START, _ignore),
    "begin": lambda engine: engine.transactions.begin(1, 0, START, _ignore),
}


@pytest.fixture(scope="module")
def bench() -> QueueBench:
    bench = QueueBench(MemoryDisk())
    consumer = bench.consumer()
    bench.publish("x")
    bench.turn()
    bench.engine.close(bench.now)
    assert consumer.values == ["x"]
    return bench


@pytest.fixture(scope="module")
def closed(bench: QueueBench) -> QueueEngine:
    return bench.engine


@pytest.mark.parametrize("topic", ["$queue/q", "$queue/new"])
def test_messages_are_refused(bench: QueueBench, topic: str) -> None:
    with pytest.raises(QueueError, match="closing"):
        bench.publish("x", topic)


@pytest.mark.parametrize("request_", REQUESTS)
def test_every_request_is_refused(closed: QueueEngine, request_: str) -> None:
    with pytest.raises(QueueError) as refused:
        REQUESTS[request_](closed)
    assert refused.value.code is QueueErrorCode.CLOSED
    assert refused.value.text


def test_turns_do_nothing(closed: QueueEngine) -> None:
    closed.tick(START + 10**6)
    closed.dispatch(START + 10**6)
    assert closed.next_deadline() is None
    assert closed.take_jobs(START + 10**6) == []
    closed.close(START)
