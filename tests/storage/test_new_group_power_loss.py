"""A group that begins at the latest message, through a loss of power before each operation of the disk."""

from __future__ import annotations

import random

from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.groups.subscribe_options import LATEST
from assay.sim.power_cuts import PowerCut, WatchedDisk, power_cuts
from tests.queues.conftest import BenchConsumer, QueueBench


class Promises:
    begun = False
    published = False


def late(bench: QueueBench) -> BenchConsumer:
    return bench.consumer("late", group="late", cursor=LATEST)


def live(disk: WatchedDisk, told: Promises) -> None:
    bench = QueueBench(disk, durability="fsync")
    bench.consumer("first", group="first")
    bench.publish("old")
    bench.turn()

    def begun(error: QueueError | None) -> None:
        told.begun = error is None

    handle = late(bench).handle
    assert handle is not None
    bench.engine.when_begun(handle, begun)
    bench.turn()
    bench.publish("new")
    bench.turn()
    told.published = True


def check(cut: PowerCut, told: Promises) -> None:
    """Once it is told that it is there, a group goes on where it began."""
    if not told.begun:
        return
    bench = QueueBench(cut.boot(), durability="fsync")
    consumer = late(bench)
    bench.turn()
    assert "old" not in consumer.values
    assert not told.published or consumer.values == ["new"]


def test_no_loss_of_power_undoes_a_group_that_somebody_was_told_of() -> None:
    disk, told = WatchedDisk(random.Random(1)), Promises()
    seen: set[bytes] = set()

    def look() -> None:
        disk.before = None
        for cut in power_cuts(disk, ""):
            if cut.digest not in seen:
                seen.add(cut.digest)
                check(cut, told)
        disk.before = look

    disk.before = look
    live(disk, told)
    look()
    assert told.published
    assert len(seen) > 20
