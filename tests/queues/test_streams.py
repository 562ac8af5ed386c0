"""Queues that keep what is settled, and groups that are a consumer's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.queues.groups.subscribe_options import EARLIEST, LAST, LATEST
from assay.reference_broker.storage.memory_disk import MemoryDisk

from .conftest import QueueBench

Benches = Callable[..., QueueBench]
_STREAM: dict[str, Any] = {"retention": {"keep_settled": True, "segment_bytes": 4_096}, "message_ttl_s": 0.0}


def _filled(bench: QueueBench, count: int = 40) -> None:
    for number in range(count):
        bench.publish(f"{number:03}" + "x" * 400)
    bench.turn()


def test_what_everybody_has_settled_stays(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), **_STREAM)
    _filled(bench)
    first = bench.consumer("a", group="a")
    bench.turn()
    for delivery in first.take():
        first.ack(delivery)
    bench.now += 60
    bench.turn()
    assert bench.engine.stats("q").depth == 0
    other = bench.consumer("b", group="b")
    bench.turn()
    assert len(other.got) == 40
    bench.restart()
    third = bench.consumer("c", group="c")
    bench.turn()
    assert len(third.got) == 40


def test_nothing_of_it_expires(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), **_STREAM)
    bench.publish("a", expires_at=bench.now + 1)
    bench.turn()
    bench.now += 10
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["a"]


@pytest.mark.parametrize(("cursor", "wanted"), [(EARLIEST, ["a", "b"]), (LAST, ["b"]), (LATEST, [])])
def test_a_transient_group_begins_where_it_asks_and_goes(bench_with: Benches, cursor: Any, wanted: list[str]) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, **_STREAM)
    for value in "ab":
        bench.publish(value)
    consumer = bench.consumer("c", group="own", cursor=cursor, transient=True)
    bench.turn()
    assert consumer.values == wanted
    assert [group.group for group in bench.engine.stats("q").groups] == ["own"]
    consumer.leave()
    bench.turn()
    assert bench.engine.stats("q").groups == ()
    assert bench.engine.stats("q").depth == 2
    assert disk.list("queues/q/consumers") == []


def test_a_transient_group_is_gone_after_a_crash(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), **_STREAM)
    bench.publish("a")
    bench.consumer("c", group="own", transient=True)
    bench.turn()
    bench.restart()
    assert bench.engine.stats("q").groups == ()


def test_what_a_consumer_says_of_a_group_that_is_gone_harms_nobody(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), **_STREAM)
    bench.publish("a")
    consumer = bench.consumer("c", group="own", transient=True)
    bench.turn()
    consumer.leave()
    consumer.leave()
    bench.turn()
    assert bench.engine.next_deadline() is None or bench.engine.next_deadline() > bench.now
