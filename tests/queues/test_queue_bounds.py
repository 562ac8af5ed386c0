"""Bounds of what clients create of queues: exactly at it passes, one over is refused, what goes makes room again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.config_queues import MAX_TOPICS, binding_problems
from assay.reference_broker.queues.admin.admin import ListRequest
from assay.reference_broker.queues.admin.admin_request import MAX_REQUEST_BYTES, AdminRequest
from assay.reference_broker.queues.dead_letters import undelivered as undelivered
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import MARK_GROUP
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.registry import registry
from assay.reference_broker.queues.transactions import commit_phases
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.routing.message import Message, memory_bytes
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind

from .conftest import QueueBench

BenchWith = Callable[..., QueueBench]


def _refused(action: Callable[[], object]) -> bool:
    with pytest.raises(QueueError) as caught:
        action()
    return caught.value.code is QueueErrorCode.LIMIT


def test_partitions_of_all_queues(bench_with: BenchWith) -> None:
    bench = bench_with(max_partitions=7, partitions=2)
    engine = bench.engine
    engine.create_queue("a", {"partitions": 3}, bench.now)
    bench.publish("x", topic="$queue/b")
    assert _refused(lambda: engine.create_queue("c", {"partitions": 3}, bench.now))
    assert _refused(lambda: engine.add_partitions("a", 6, bench.now))
    assert engine.queues() == ["a", "b"], "what was refused left nothing"
    engine.add_partitions("a", 5, bench.now)
    assert _refused(lambda: bench.publish("x", topic="$queue/c"))
    engine.delete_queue("b", bench.now)
    bench.turn()
    bench.turn()
    bench.publish("x", topic="$queue/c")
    assert engine.usage(lambda _: True).partitions == 7


def test_groups_of_all_queues(bench_with: BenchWith) -> None:
    bench = bench_with(max_groups=3)
    bench.consumer("c", group="one", queue="a")
    bench.consumer("c", group="two", queue="a")
    bench.consumer("c", group="one", queue="b")
    assert _refused(lambda: bench.consumer("c", group="two", queue="b"))
    bench.consumer("d", group="one", queue="b")
    assert bench.engine.usage(lambda _: True).groups == 3


def test_groups_of_one_queue(bench_with: BenchWith) -> None:
    bench = bench_with(templates={"*": {"max_groups": 2}})
    first = bench.consumer("c", group="one")
    bench.consumer("c", group="two")
    assert _refused(lambda: bench.consumer("c", group="three"))
    bench.consumer("c", group="three", queue="other")
    bench.consumer("d", group="two")
    first.leave()
    bench.engine.groups.delete("q", "one", bench.now)
    bench.consumer("c", group="three")
    bench.engine.update_queue("q", {"max_groups": 3}, bench.now)
    bench.consumer("c", group="four")
    assert _refused(lambda: bench.consumer("c", group="five"))


def test_what_a_dead_letter_queue_remembers_without_groups_is_no_group(bench_with: BenchWith) -> None:
    bench = bench_with(templates={"*": {"max_groups": 1}})
    consumer = bench.consumer("c")
    bench.publish("x")
    bench.turn()
    consumer.reject(consumer.got[0])
    bench.turn()
    first = bench.consumer("d", group="one", queue="$dlq/q")
    bench.turn()
    first.leave()
    bench.turn()
    bench.engine.groups.delete("$dlq/q", "one", bench.now)
    assert list(bench.engine._queues["$dlq/q"].groups) == [MARK_GROUP]
    assert bench.engine.groups.all_details("$dlq/q") == []
    assert bench.engine.stats("$dlq/q").groups == ()
    for refused in (bench.engine.groups.details, lambda *named: bench.engine.groups.delete(*named, bench.now)):
        with pytest.raises(QueueError) as unknown:
            refused("$dlq/q", MARK_GROUP)
        assert unknown.value.code is QueueErrorCode.UNKNOWN_GROUP
    bench.consumer("d", group="two", queue="$dlq/q")
    assert _refused(lambda: bench.consumer("d", group="three", queue="$dlq/q"))


def test_consumers_of_one_group(bench_with: BenchWith) -> None:
    bench = bench_with(group={"max_consumers": 2})
    first = bench.consumer("a")
    bench.consumer("b")
    assert _refused(lambda: bench.consumer("c"))
    bench.consumer("b")
    first.leave()
    bench.consumer("c")


def test_answers_that_wait_for_a_group(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), group={"max_consumers": 2})
    consumer = bench.consumer("a").handle
    assert consumer is not None
    told: list[QueueError | None] = []
    for _ in range(3):
        bench.engine.when_begun(consumer, told.append)
    assert [error.code for error in told if error is not None] == [QueueErrorCode.LIMIT]
    bench.turn()
    assert told[1:] == [None, None]


def test_filters_bound_to_one_queue() -> None:
    most = tuple(f"t/{number}" for number in range(MAX_TOPICS))
    assert not binding_problems(QueueConfig(name="q", topics=most))
    assert binding_problems(QueueConfig(name="q", topics=(*most, "one more")))


def test_bytes_of_a_request() -> None:
    payload = b'{"prefix": "' + b"x" * (MAX_REQUEST_BYTES - 14) + b'"}'
    for over in (0, 1):
        request = AdminRequest(queue="", payload=payload + b" " * over, now=0.0, answer=lambda *_: None)
        if over:
            with pytest.raises(QueueError) as caught:
                request.read(ListRequest)
            assert caught.value.code is QueueErrorCode.TOO_LARGE
        else:
            assert len(request.payload) == MAX_REQUEST_BYTES
            assert request.read(ListRequest).prefix


def test_what_all_queues_remember_is_bounded(bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_KNOWN_BYTES", 100_000)
    # Of messages in memory no records are made.
    bench = bench_with(MemoryDisk(), durability="interval", partitions=4, partitioner="murmur3")
    known = bench.engine.known
    queues = [f"$queue/{name}" for name in "abc"]
    peak = 0
    for number in range(300):
        for topic in queues:
            properties = (("p", f"{number}"), ("partition-key", f"key-{number}"))
            bench.publish(f"{topic}-{number}", topic=f"{topic}/{number}", user_properties=properties)
            bench.publish("x", topic=f"{topic}/{number}")
            assert known.used_bytes <= 100_000
            peak = max(peak, known.used_bytes)
        if number % 25 == 0:
            codecs = [bench.engine._queues[name]._codec for name in bench.engine._queues]
            held = sum(_size(getattr(codec, name).answers) for codec in codecs for name in ("_plain", "_described"))
            assert held <= known.used_bytes + 3 * 300
        if number % 50 == 0:
            bench.turn()
    assert peak > 90_000
    bench.turn()
    consumer = bench.consumer("c", queue="a", room=10_000)
    bench.turn()
    assert len(consumer.got) == 600
    assert {len({d.partition for d in consumer.got if d.message.user_property("partition-key")})} == {4}
    for name in ("b", "c"):
        bench.engine.delete_queue(name, bench.now)
    consumer.leave()
    bench.turn()
    bench.engine.update_queue("a", {"partitioner": "fnv1a"}, bench.now)
    bench.engine.delete_queue("a", bench.now)
    assert known.used_bytes == 0


def _size(cache: object) -> int:
    """Bytes of all objects of a cache."""
    seen: set[int] = set()
    stack, size = [cache], 0
    while stack:
        thing = stack.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            size += sys.getsizeof(thing)
            stack += gc.get_referents(thing) if not isinstance(thing, type) else []
    return size


def test_an_empty_partition_is_small(bench_with: BenchWith) -> None:
    bench = bench_with()
    bench.publish("0")
    partition = bench.engine._queues["q"].partitions[0]
    assert not hasattr(partition, "__dict__")
    assert sys.getsizeof(partition) + sys.getsizeof(partition.cached) <= 384


@pytest.mark.parametrize("limit", ["_MAX_WAITING", "_MAX_WAITING_BYTES"])
def test_expired_messages_that_the_dead_letter_queue_refuses(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    size = memory_bytes(Message(topic="$queue/q", payload=b"0"))
    monkeypatch.setattr(undelivered, limit, 3 if limit == "_MAX_WAITING" else 3 * size)
    bench = bench_with(message_ttl_s=10.0, expired_to_dead_letters=True)
    bench.publish("0")
    queue = bench.engine._queues["q"]
    letters, target = queue.undelivered, queue.undelivered._target

    def refuse() -> DurableQueue:
        raise QueueError(QueueErrorCode.LIMIT, "there is no room")

    letters._target = refuse
    for number in (1, 2):
        bench.publish(str(number))
    bench.turn()
    bench.advance(11.0)
    assert letters.waiting == 3, "exactly as many as the limit"
    assert not bench.kinds(TraceKind.DISCARDED)
    bench.publish("3")
    bench.turn()
    bench.advance(11.0)
    assert letters.waiting == 3
    assert bench.kinds(TraceKind.DISCARDED) == [TraceKind.DISCARDED]
    letters._target = target
    bench.advance(11.0)
    assert (letters.waiting, letters._waiting_bytes) == (0, 0)
    assert bench.engine.stats("$dlq/q").depth == 3


@pytest.mark.parametrize("was_delivered", [True, False])
def test_a_dead_letter_that_was_refused_waits_no_longer_than_a_retry_may(
    bench_with: BenchWith, was_delivered: bool
) -> None:
    """Swarm seed 3001 of a planted bug's scenario, without the bug: it waited for the first backoff, not capped."""
    retry = {"max_retries": 0, "initial_backoff_s": 60.0, "max_backoff_s": 0.5}
    bench = bench_with(message_ttl_s=10.0, expired_to_dead_letters=True, retry=retry)
    consumer = bench.consumer() if was_delivered else None
    bench.publish("0")
    bench.turn()
    queue = bench.engine._queues["q"]
    holder: Any = queue if was_delivered else queue.undelivered
    name = "_dead_letter_target" if was_delivered else "_target"
    target = getattr(holder, name)

    def refuse() -> DurableQueue:
        raise QueueError(QueueErrorCode.STORAGE_FAILED, "there is no room")

    setattr(holder, name, refuse)
    if consumer is not None:
        consumer.reject(consumer.got[0])
    bench.advance(11.0)
    assert not bench.kinds(TraceKind.DEAD_LETTERED)
    setattr(holder, name, target)
    bench.advance(1.1)
    assert bench.kinds(TraceKind.DEAD_LETTERED) == [TraceKind.DEAD_LETTERED]


def test_ended_transactions_that_are_remembered(bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_phases, "_MAX_ENDED", 3)
    bench = bench_with()
    transactions = bench.engine.transactions
    found: list[ProducerIdentity | None] = []
    transactions.init_producer("t", bench.now, lambda _, identity: found.append(identity))
    bench.turn()
    assert found[0] is not None
    begun: list[str] = []
    for number in range(5):
        transactions.begin(*found[0], bench.now, lambda _, name: begun.append(name))
        bench.turn()
        transactions.abort(*found[0], begun[number], bench.now, lambda _: None)
        bench.turn()
        assert len(transactions._phases.ended) == min(number + 1, 3)
    assert list(transactions._phases.ended) == begun[2:], "those that ended last"
