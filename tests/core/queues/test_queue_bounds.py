"""Bounds of what clients create of queues: exactly at it passes, one over is refused, what goes makes room again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reference_broker.config import QueueConfig
from reference_broker.config_queues import MAX_TOPICS, binding_problems
from reference_broker.core.queues import group, queue
from reference_broker.core.queues.admin import MAX_REQUEST_BYTES, AdminRequest, ListRequest
from reference_broker.core.queues.errors import QueueError, QueueErrorCode

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


def test_groups_of_one_queue(bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_GROUPS", 2)
    bench = bench_with()
    bench.consumer("c", group="one")
    bench.consumer("c", group="two")
    assert _refused(lambda: bench.consumer("c", group="three"))
    bench.consumer("c", group="three", queue="other")


def test_consumers_of_one_group(bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MAX_CONSUMERS", 2)
    bench = bench_with()
    first = bench.consumer("a")
    bench.consumer("b")
    assert _refused(lambda: bench.consumer("c"))
    bench.consumer("b")
    first.leave()
    bench.consumer("c")


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
