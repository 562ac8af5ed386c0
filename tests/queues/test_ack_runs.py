"""Deliveries acknowledged together: the queue and its log end as if each had been acknowledged alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from assay.reference_broker.queues import QueueError
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.pending_log import PendingLogFile

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full consumer": {"max_in_flight": 20},
    "shared limit": {"group": {"max_in_flight": 15}},
    "pending limit": {"group": {"max_pending": 12}},
    "bytes": {"max_bytes": 10_000},
    "slow consumers": {"slow_consumer": {"action": "disconnect", "after_s": 5.0}, "max_in_flight": 20},
}


class Done:
    """The confirm of runs."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.calls: list[QueueError | None] = []

    def begin(self, count: int) -> Callable[[QueueError | None], None]:
        self.sizes.append(count)
        return self.calls.append


def _story(bench: QueueBench, *, together: bool) -> tuple[object, ...]:
    first, second = bench.consumer("c1"), bench.consumer("c2")
    for number in range(60):
        bench.publish(f"{number:05}", key=str(number % 7))
    bench.turn()
    for share in (3, 1, 100):
        for consumer in (first, second):
            taken = consumer.take()
            mine, rest = taken[: max(1, len(taken) // share)], taken[max(1, len(taken) // share) :]
            if together:
                done = Done()
                places = [(delivery.partition, delivery.offset) for delivery in mine]
                assert bench.engine.ack_run("q", "g", places, consumer.consumer_id, bench.now, done.begin) == len(mine)
                bench.turn()
                assert (done.sizes, done.calls) == (([len(mine)], [None]) if mine else ([], []))
            else:
                outcomes = [consumer.ack(delivery) for delivery in mine]
                bench.turn()
                assert all(outcome.confirmed for outcome in outcomes)
            consumer.got = rest + consumer.got
        bench.advance(1.0)
    group = bench.engine._queues["q"].groups["g"]
    return (
        bench.engine.stats("q"),
        group.held_bytes,
        [consumer.handle.in_flight for consumer in (first, second) if consumer.handle is not None],
        [consumer.values for consumer in (first, second)],
        [place.committed for place in group.places],
        sorted(map(repr, bench.trace)),
    )


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_together_and_alone_end_alike(bench_with: BenchWith, settings: dict[str, Any]) -> None:
    ends = []
    for together in (True, False):
        bench = bench_with(MemoryDisk(), partitions=3, durability="interval", **settings)
        ends.append(_story(bench, together=together))
        bench.advance(2.0)
        bench.restart()
        ends[-1] += (bench.engine.stats("q").depth,)
    assert ends[0] == ends[1]


def test_a_run_ends_before_what_is_not_to_be_acknowledged(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    mine, other = bench.consumer("c1"), bench.consumer("c2", group="g2")
    for number in range(6):
        bench.publish(str(number))
    bench.turn()
    done = Done()

    def ack(*offsets: int, consumer_id: str = "c1") -> int:
        places = [(0, offset) for offset in offsets]
        return bench.engine.ack_run("q", "g", places, consumer_id, bench.now, done.begin)

    assert ack(0, consumer_id="c2") == 0
    assert ack(7) == 0
    assert (ack(0, 1, 1, 2), ack(1, 2), ack(2, 9, 3), done.sizes) == (2, 0, 1, [2, 1])
    bench.turn()
    assert len(mine.got) == len(other.got) == 6
    assert bench.engine.stats("q").groups[0].ack_floors == (3,)


def test_acks_that_are_told_together_are_logged_as_those_told_alone() -> None:
    logged = []
    for together in (True, False):
        disk = MemoryDisk()
        disk.make_folder("g")
        log = PendingLogFile(disk, "g/g.pel.log", group="g", pattern="", volatile=False, note=lambda *_: None)
        log.add_run(1, 5, 15, "c", 1_000)
        for offsets in ([7, 5], [9], [14, 10, 11]):
            if together:
                log.ack_all(1, offsets)
            else:
                for offset in offsets:
                    log.ack(1, offset)
        log.add(1, 15, "c", 1_000, 1)
        log.flush()
        file = disk.open("g/g.pel.log")
        logged.append(file.read_at(0, file.size))
    assert logged[0] == logged[1]
    reopened = PendingLogFile(disk, "g/g.pel.log", group="g", pattern="", volatile=False, note=lambda *_: None)
    assert [entry.offset for entry in reopened.recovered] == [6, 8, 12, 13, 15]
