"""Deleting, purging and changing queues through a loss of power before each operation of the disk."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from assay.reference_broker.storage.disk import Disk
from assay.sim.power_cuts import PowerCut, WatchedDisk, power_cuts
from tests.queues.conftest import QueueBench


class Promises:
    """What was confirmed so far."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.deleting = False
        self.deleted = False
        self.purging = False
        self.purged = False
        self.max_depth = 100_000
        self.may_be_depth = 100_000
        self.partitions = 2
        self.may_be_partitions = 2


def live(disk: Disk, now: Promises) -> None:
    bench = QueueBench(disk, partitions=2, durability="fsync")
    engine = bench.engine
    consumer = bench.consumer()
    for number in range(4):
        bench.publish(str(number))
        bench.turn()
        now.published.append(str(number))
    consumer.ack(consumer.got[0])
    bench.turn()
    now.may_be_depth = 50
    engine.update_queue("q", {"max_depth": 50}, bench.now, lambda error: setattr(now, "max_depth", 50))
    bench.turn()
    now.may_be_partitions = 3
    engine.add_partitions("q", 3, bench.now, lambda error: setattr(now, "partitions", 3))
    consumer.leave()
    bench.turn()
    assert (now.max_depth, now.partitions) == (50, 3)
    now.purging = True
    engine.purge_queue("q", bench.now, lambda result: setattr(now, "purged", result == 3))
    bench.turn()
    assert now.purged
    now.deleting = True
    engine.delete_queue("q", bench.now, lambda error: setattr(now, "deleted", error is None))
    bench.turn()
    assert now.deleted
    bench.publish("new")
    bench.turn()
    engine.close(bench.now)


def check(cut: PowerCut, promised: Promises) -> None:
    bench = QueueBench(cut.boot(), partitions=2, durability="fsync")
    there = bench.engine.queues() == ["q"]
    if there and not promised.deleted:
        config = bench.engine.queue_config("q")[0]
        assert config.max_depth in (promised.max_depth, promised.may_be_depth)
        assert config.partitions in (promised.partitions, promised.may_be_partitions)
    assert there or promised.deleting or not promised.published, "a queue is only gone when it was to be deleted"
    fresh = bench.consumer(group="fresh")
    bench.turn()
    values = sorted(fresh.values)
    if promised.deleted:
        assert set(values) <= {"new"}
    elif promised.deleting or promised.purged:
        assert values == []
    elif promised.purging:
        assert set(values) <= {"0", "1", "2", "3"}
    else:
        assert set(promised.published) <= set(values) <= {"0", "1", "2", "3"}
    bench.publish("later")
    bench.turn()
    assert fresh.values[-1] == "later"


@pytest.mark.slow
def test_every_loss_of_power_leaves_one_or_the_other() -> None:
    disk = WatchedDisk(random.Random(1))
    promised = Promises()
    seen: set[bytes] = set()
    step = 0

    def look() -> None:
        nonlocal step
        step += 1
        disk.before = None
        for cut in power_cuts(disk, str(step)):
            if cut.digest not in seen:
                seen.add(cut.digest)
                check(cut, promised)
        disk.before = look

    before: Callable[[], None] = look
    disk.before = before
    live(disk, promised)
    assert step > 50
    assert len(seen) > 100
