"""What tells a group that was deleted from one whose files are lost."""

from __future__ import annotations

import errno
import random
from unittest import mock

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.jobs.confirms import sync_now
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueFiles, LogQueueStore
from assay.sim.power_cuts import WatchedDisk, power_cuts
from tests.queues.conftest import Outcome, QueueBench

FOLDER = "queues/q/consumers/g"


def opened(disk: MemoryDisk) -> tuple[LogQueueStore, LogQueueFiles]:
    disk.unlock()
    store = LogQueueStore(disk)
    return store, store.open_queue(QueueConfig(name="q"))


def groups(files: LogQueueFiles) -> list[str]:
    return [group.group for group in files.groups()]


@pytest.mark.parametrize("removals", range(4))
def test_a_group_whose_removal_was_cut_short_is_whole_or_gone(removals: int) -> None:
    """However far it came: there is its log, or there is no such group. Nobody is told of a loss, and the next removal
    ends it."""
    disk = MemoryDisk()
    _, files = opened(disk)
    files.open_group("g", "").close()
    disk.open(f"{FOLDER}/g.cur", create=True).close()
    done: list[str] = []

    def remove(path: str) -> None:
        if len(done) == removals:
            raise OSError(errno.EIO, "no more")
        done.append(path)
        MemoryDisk.remove(disk, path)

    with mock.patch.object(disk, "remove", remove):
        sync_now(files.remove_group("g"))
    store, files = opened(disk)
    has_log = disk.exists(f"{FOLDER}/g.pel.log")
    assert has_log == (removals < 2)
    assert groups(files) == ["g"] * has_log
    assert not [note for note in store.recovery_notes() if "missing; what" in note.problem]
    assert sync_now(files.remove_group("g")) is None
    assert disk.list(FOLDER) == []
    store, files = opened(disk)
    assert not groups(files)
    assert not store.recovery_notes()


def test_a_group_of_an_older_broker_is_known_from_its_next_start_on() -> None:
    """Its folder has no mark: that it was deleted cannot be told from a lost log until the group was opened once."""
    disk = MemoryDisk()
    _, files = opened(disk)
    files.open_group("g", "").close()
    disk.remove(f"{FOLDER}/g.group")
    _, files = opened(disk)
    assert groups(files) == ["g"]
    files.open_group("g", "").close()
    disk.remove(f"{FOLDER}/g.pel.log")
    store, files = opened(disk)
    assert groups(files) == ["g"]
    assert [note.problem.partition(";")[0] for note in store.recovery_notes()] == ["it is missing"]


def test_every_loss_of_power_leaves_the_whole_group_or_none() -> None:
    """Whatever of its three syncs the disk has seen, what the group had settled stays so until it is gone."""
    disk = WatchedDisk(random.Random(5))
    bench = QueueBench(disk, durability="fsync")
    settled, deleted = Outcome(), Outcome()
    asked = False
    outcomes: set[tuple[str, ...]] = set()

    def before() -> None:
        for cut in power_cuts(disk, "deletion"):
            after = QueueBench(cut.boot(), durability="fsync")
            if "q" not in after.engine.queues():
                continue
            known = {group.group for group in after.engine.stats("q").groups}
            consumer = after.consumer()
            after.turn()
            if settled.confirmed:
                outcomes.add(tuple(consumer.values) if "g" in known else ())
                assert ("g" in known) <= (consumer.values == ["b"])
                assert "g" in known or asked
            assert not deleted.confirmed or "g" not in known

    consumer = bench.consumer()
    other = bench.consumer("other", group="other", room=0)
    for value in "ab":
        bench.publish(value)
    bench.turn()
    disk.before = before
    settled = consumer.ack(consumer.got[0])
    consumer.leave()
    bench.turn()
    asked = True
    bench.engine.groups.delete("q", "g", bench.now, deleted)
    bench.turn()
    before()
    assert deleted.confirmed
    assert other.values == []
    assert outcomes == {("b",), ()}
