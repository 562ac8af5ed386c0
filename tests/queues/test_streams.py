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
        bench.turn()  # what comes in one turn is in one segment


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


def _read_and_left_behind(bench: QueueBench, queue: str = "q") -> None:
    """A group of a reader's own settles what is there, and segments go that every group has settled."""
    reader = bench.consumer("reader", queue=queue, group="own", transient=True)
    bench.turn()
    for delivery in reader.take():
        reader.ack(delivery)
        bench.now += 0.5
        bench.turn()
    reader.leave()
    bench.turn()


@pytest.mark.parametrize("stays", [True, False])
def test_what_a_reader_without_a_group_has_read_is_there_for_the_first_group(bench_with: Benches, stays: bool) -> None:
    bench = bench_with(MemoryDisk(), retention={"segment_bytes": 4_096})
    _filled(bench)
    if stays:
        bench.consumer("stays", group="another", cursor=LATEST, transient=True)
    _read_and_left_behind(bench)
    _filled(bench, 1)
    first = bench.consumer("a", group="a")
    bench.turn()
    assert len(first.got) == 41


def test_what_it_has_read_counts_where_no_group_holds_the_queue_below_its_limit(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), max_depth=10)
    reader = bench.consumer("reader", group="own", transient=True)
    for number in range(15):
        bench.publish(f"{number}")
        bench.turn()
        for delivery in reader.take():
            reader.ack(delivery)
        bench.turn()
    reader.leave()
    bench.turn()
    first = bench.consumer("a", group="a")
    bench.turn()
    assert len(first.got) == 15, "none that was confirmed is given up"


@pytest.mark.parametrize(
    ("limits", "least", "most_kept"),
    [({"max_depth": 100}, 100, 250), ({"max_bytes": 8_000}, 12, 250), ({"max_depth": 1}, 1, 120)],
)
@pytest.mark.parametrize("durability", ["interval", "memory"])
def test_what_it_has_read_is_kept_up_to_the_limits(
    bench_with: Benches, limits: dict[str, int], least: int, most_kept: int, durability: str
) -> None:
    bench = bench_with(MemoryDisk(), durability=durability, retention={"segment_bytes": 4_096}, **limits)
    reader = bench.consumer("reader", group="own", transient=True)
    most = 0
    for number in range(2_000):
        bench.publish(f"{number}")
        bench.turn()
        for delivery in reader.take():
            reader.ack(delivery)
        bench.now += 0.5
        bench.turn()
        log = bench.engine._queues["q"].partitions[0].log
        most = max(most, log.next_offset - log.start_offset)
    assert least < most < most_kept, "what is beyond the limit goes by segments"
    reader.leave()
    bench.turn()
    first = bench.consumer("a", group="a")
    bench.turn()
    assert least <= len(first.got) <= most
    assert first.values[-1] == "1999"


def test_dead_letters_that_it_has_read_are_there_for_others(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), retry={"max_retries": 0})
    consumer = bench.consumer("a", group="a")
    for value in "abc":
        bench.publish(value)
    bench.turn()
    for delivery in consumer.take():
        consumer.reject(delivery)
    bench.turn()
    _read_and_left_behind(bench, "$dlq/q")
    other = bench.consumer("b", queue="$dlq/q", group="b")
    bench.turn()
    assert other.values == ["a", "b", "c"]
