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
from tests.queues.group_bench import join

FOLDER = "queues/q/consumers/g"


def opened(disk: MemoryDisk) -> tuple[LogQueueStore, LogQueueFiles]:
    disk.unlock()
    store = LogQueueStore(disk)
    return store, store.open_queue(QueueConfig(name="q"))


def begun(files: LogQueueFiles) -> None:
    """A group, whole on disk."""
    log = files.open_group("g", "")
    log.move_cursor(0, 0)
    log.flush()
    assert sync_now(log) is None
    log.close()


def groups(files: LogQueueFiles) -> list[str]:
    return [group.group for group in files.groups()]


@pytest.mark.parametrize("removals", range(4))
def test_a_group_whose_removal_was_cut_short_is_whole_or_gone(removals: int) -> None:
    """However far it came: there is its log, or there is no such group. Nobody is told of a loss, and the next removal
    ends it."""
    disk = MemoryDisk()
    _, files = opened(disk)
    begun(files)
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
    """Its folder has no mark: that it was deleted cannot be told from a lost log until one it opened is synced."""
    disk = MemoryDisk()
    _, files = opened(disk)
    begun(files)
    disk.remove(f"{FOLDER}/g.group")
    _, files = opened(disk)
    assert groups(files) == ["g"]
    begun(files)
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


def test_a_log_that_was_never_whole_on_disk_is_of_no_group() -> None:
    """Its first sync failed, and power was lost: where the group was to begin is lost, and nobody was told of it."""
    disk = MemoryDisk()
    _, files = opened(disk)
    files.open_group("g", "").close()
    disk.open(f"{FOLDER}/g.pel.log").truncate(7)
    store, files = opened(disk)
    assert groups(files) == []
    assert [note.problem.partition(":")[0] for note in store.recovery_notes()] == ["it was never whole on disk"]
    begun(files)
    store, files = opened(disk)
    assert groups(files) == ["g"]
    assert not store.recovery_notes()


@pytest.mark.parametrize("kept", [".group", ".cur", ".pel"])
def test_a_damaged_log_is_of_its_group_where_anything_says_that_it_began(kept: str) -> None:
    disk = MemoryDisk()
    _, files = opened(disk)
    begun(files)
    disk.remove(f"{FOLDER}/g.group")
    disk.open(f"{FOLDER}/g{kept}", create=True).close()
    disk.open(f"{FOLDER}/g.pel.log").write_at(0, b"no header")
    store, files = opened(disk)
    assert groups(files) == ["g"]
    assert [note.problem.partition(";")[0] for note in store.recovery_notes()] == ["its header is damaged"]


@pytest.mark.parametrize("durability", ["interval", "fsync"])
def test_every_loss_of_power_leaves_where_a_group_begins_or_no_group(durability: str) -> None:
    """One that is to begin at the latest message never gets an older one (Q-CURSOR-02)."""
    disk = WatchedDisk(random.Random(6))
    bench = QueueBench(disk, durability=durability)
    cuts = 0

    def before() -> None:
        nonlocal cuts
        for cut in power_cuts(disk, "beginning"):
            after = QueueBench(cut.boot(), durability=durability)
            if "q" in after.engine.queues():
                cuts += 1
                consumer = join(after, group="new", asks={"cursor": "latest"})
                after.turn()
                assert consumer.values == []

    bench.consumer(room=0)
    for value in "ab":
        bench.publish(value)
    bench.turn()
    bench.advance(5)
    disk.before = before
    join(bench, group="new", asks={"cursor": "latest"})
    bench.turn()
    bench.advance(5)
    assert cuts > 20
