"""Whatever takes the last messages of old segments frees these, at once: nobody has to publish for that."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.queues import Outcome, SettleRequest
from assay.reference_broker.queues.groups.subscribe_options import LATEST
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.conftest import QueueBench

_MANY = 30
_SEGMENT_BYTES = 300
_FOLDER = "queues/q/partitions/0"
Way = Callable[[QueueBench], None]


def _consume(bench: QueueBench, verb: str) -> None:
    """By each group there is."""
    for group in [each.group for each in bench.engine.stats("q").groups]:
        consumer = bench.consumer(f"of {group}", group=group)
        bench.turn()
        for delivery in consumer.take():
            getattr(consumer, verb)(delivery)
        bench.turn()
        consumer.leave()


def by_ranges(bench: QueueBench) -> None:
    for group in [each.group for each in bench.engine.stats("q").groups]:
        consumer = bench.consumer(f"of {group}", group=group)
        bench.turn()
        request = SettleRequest(outcome=Outcome.ACCEPT, partition=0, ranges=((0, _MANY),), group=group)
        bench.engine.settle("q", request, consumer_id=consumer.consumer_id, now=bench.now, on_done=lambda _: None)
        bench.turn()
        consumer.leave()


def by_a_purge(bench: QueueBench) -> None:
    bench.engine.purge_queue("q", bench.now, lambda _: None)


def by_a_purge_of_what_waits(bench: QueueBench) -> None:
    _consume(bench, "nack")
    by_a_purge(bench)


def by_cursors_set_anew(bench: QueueBench) -> None:
    for group in [each.group for each in bench.engine.stats("q").groups]:
        bench.engine.groups.reset("q", group, LATEST, partition=None, now=bench.now)


def by_deleting_the_group_that_needs_them(bench: QueueBench) -> None:
    groups = [each.group for each in bench.engine.stats("q").groups]
    other = bench.consumer("other", group="other")
    bench.turn()
    for delivery in other.take():
        other.ack(delivery)
    bench.turn()
    for group in groups:
        bench.engine.groups.delete("q", group, bench.now)


def by_their_time(bench: QueueBench) -> None:
    bench.advance(120)


def by_a_lower_limit(bench: QueueBench) -> None:
    bench.engine.update_queue("q", {"max_depth": 1, "overflow": "drop_oldest"}, bench.now)
    for number in range(10):
        bench.publish(f"another {number}")
        bench.turn()


WAYS: dict[str, Way] = {
    "ack": partial(_consume, verb="ack"),
    "reject": partial(_consume, verb="reject"),
    **{
        way.__name__: way
        for way in (
            by_ranges,
            by_a_purge,
            by_a_purge_of_what_waits,
            by_cursors_set_anew,
            by_deleting_the_group_that_needs_them,
            by_their_time,
            by_a_lower_limit,
        )
    },
}


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.FSYNC])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_segments_are_freed_at_once(way: str, groups: int, durability: Durability) -> None:
    disk = MemoryDisk()
    bench = QueueBench(
        disk,
        durability=durability,
        segment_bytes=_SEGMENT_BYTES,
        message_ttl_s=60,
        retry={"initial_backoff_s": 600, "max_retries": 9},
    )
    for number in range(groups):
        bench.consumer("c", group=f"g{number}", room=0).leave()
    for number in range(_MANY):
        bench.publish(f"message {number}")
        bench.turn()
    bench.advance(2)
    before = _segments(disk)
    assert before > 5
    WAYS[way](bench)
    bench.advance(2)
    assert _segments(disk) <= 3
    bench.restart()
    bench.turn()
    assert _segments(disk) <= 3


def test_what_was_known_of_freed_messages_is_forgotten() -> None:
    """Their priorities, times and sizes."""
    bench = QueueBench(MemoryDisk(), segment_bytes=4_000, max_bytes=10**9)
    consumer = bench.consumer(room=10**9)
    used = []
    for _ in range(8):
        for number in range(100):
            named = (("priority", ("high", "low")[number % 2]), ("ttl", f"{number + 1}h"))
            bench.publish(str(number), user_properties=named)
        bench.turn()
        for delivery in consumer.take():
            consumer.ack(delivery)
        bench.advance(2)
        partition = bench.engine._queues["q"].partitions[0]
        used.append([len(pickle.dumps(known)) for known in (partition.lanes, partition.expiry, partition.sizes)])
    assert all(last < 2 * first for first, last in zip(used[0], used[-1], strict=True)), used


def _segments(disk: MemoryDisk) -> int:
    return sum(name.endswith(".seg") for name in disk.list(_FOLDER))


@pytest.mark.parametrize(
    "limit",
    [
        {"max_depth": 5, "overflow": "drop_oldest"},
        {"max_bytes": 600, "overflow": "drop_oldest"},
        {"message_ttl_s": 2},
        {"retention": {"max_messages": 5, "past_groups": True}},
    ],
    ids=str,
)
def test_what_an_absent_group_does_not_get_any_more_takes_no_disk(limit: dict[str, object]) -> None:
    """However long it stays away, and whatever takes its messages."""
    disk = MemoryDisk()
    bench = QueueBench(disk, segment_bytes=_SEGMENT_BYTES, **limit)
    bench.consumer("c", group="g", room=0).leave()
    most = []
    for number in range(300):
        bench.publish(f"message {number}")
        bench.turn()
        bench.advance(0.1)
        most.append(_segments(disk))
    assert max(most) < 40  # of 75
