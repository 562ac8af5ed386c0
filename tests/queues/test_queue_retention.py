"""Retention limits of queues: what is deleted, what groups keep alive, and what slow groups lose when told so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.reference_broker.storage.memory_disk import MemoryDisk

BenchWith = Callable[..., Any]
INTERVAL_S = 10.0


def filled(bench_with: BenchWith, count: int = 20, **retention: Any) -> Any:
    """A durable queue with one message a segment, one second apart, all confirmed."""
    bench = bench_with(MemoryDisk(), segment_bytes=100, retention=retention)
    for number in range(count):
        bench.publish(f"{number}".ljust(60))
        bench.turn()
        bench.advance(1.0)
    return bench


def stored(bench: Any) -> list[str]:
    """What a group that comes now is given."""
    late = bench.consumer("late", group="late")
    bench.turn()
    return [value.strip() for value in late.values]


def test_without_limits_everything_stays_for_the_first_group(bench_with: BenchWith) -> None:
    bench = filled(bench_with)
    bench.advance(10 * INTERVAL_S)
    assert stored(bench) == [f"{number}" for number in range(20)]


def test_a_count_limit_keeps_the_newest(bench_with: BenchWith) -> None:
    bench = filled(bench_with, max_messages=5)
    bench.advance(2 * INTERVAL_S)
    assert stored(bench) == ["15", "16", "17", "18", "19"]


def test_an_age_limit_counts_from_now(bench_with: BenchWith) -> None:
    bench = filled(bench_with, max_age_s=60.0)
    bench.advance(45.0)
    assert 0 < bench.engine.stats("q").depth <= 20
    bench.advance(30 * INTERVAL_S)
    assert stored(bench) == []
    bench.publish("next")
    bench.turn()
    assert stored(bench) == ["next"]


def test_a_size_limit_holds(bench_with: BenchWith) -> None:
    bench = filled(bench_with, max_bytes=700)
    bench.advance(2 * INTERVAL_S)
    assert bench.engine.stats("q").stored_bytes <= 700
    assert stored(bench)[-1] == "19"


def test_a_slow_group_keeps_what_it_has_not_settled(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), segment_bytes=100, retention={"max_messages": 3})
    slow = bench.consumer("slow", room=2)
    for number in range(10):
        bench.publish(f"{number}".ljust(60))
        bench.turn()
    bench.advance(2 * INTERVAL_S)
    assert bench.engine.stats("q").depth == 10
    assert [value.strip() for value in slow.values] == ["0", "1"]


def test_past_groups_a_slow_group_loses_the_oldest_and_it_is_counted(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), segment_bytes=100, retention={"max_messages": 3, "past_groups": True})
    slow = bench.consumer("slow", room=2)
    for number in range(10):
        bench.publish(f"{number}".ljust(60))
        bench.turn()
    bench.advance(2 * INTERVAL_S)
    group = bench.engine.stats("q").groups[0]
    assert group.expired == 5
    slow.room = 10**9
    bench.engine.resume(slow.handle, bench.now)
    bench.turn()
    assert [value.strip() for value in slow.values] == ["0", "1", "7", "8", "9"]
    for delivery in slow.take():
        slow.ack(delivery)
    bench.turn()
    assert bench.engine.stats("q").depth == 0


def test_retention_survives_a_restart(bench_with: BenchWith) -> None:
    bench = filled(bench_with, max_messages=5)
    bench.advance(2 * INTERVAL_S)
    bench.restart()
    assert stored(bench) == ["15", "16", "17", "18", "19"]
