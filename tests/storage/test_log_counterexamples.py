"""What crash points, the model and reading the code have found in the log, one by one, so that it stays found."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.compaction import CompactionTask, Compactor
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.sim.disk import Persistence, SimDisk
from assay.sim.log_life import FOLDER, POLICY, TOMBSTONE_AGE_MS, encoder, open_log, read_all, sync

LARGE = LogOptions(segment_bytes=10**6, segment_age_ms=0)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(0))


def one(value: str | None, *, key: bytes | None = None, timestamp_ms: int = 0) -> list[NewRecord]:
    return [NewRecord(timestamp_ms, key, None if value is None else value.encode(), ())]


def values(log: SegmentedLog) -> list[bytes | None]:
    return [record.value for record in read_all(log)]


def test_what_a_killed_broker_wrote_to_an_indexed_segment_is_synced_too(disk: SimDisk) -> None:
    """Its old index vouched for the segment, so that the tail behind it was confirmed without any sync."""
    log = open_log(disk, options=LARGE)
    log.append(one("a"))
    sync(log)
    log.close()
    log = open_log(disk, options=LARGE)
    log.append(one("b"))
    log.roll()
    disk.crash()
    log = open_log(disk, options=LARGE)
    log.append(one("c"))
    sync(log)
    assert log.durable_offset == 3
    disk.power_loss((Persistence.NONE,))
    assert values(open_log(disk, options=LARGE)) == [b"a", b"b", b"c"]


def test_index_files_of_two_lives_never_mix(disk: SimDisk) -> None:
    """A new .idx beside an old .tix hid the times in between, so a segment with them was passed over."""
    log = open_log(disk, options=LARGE)
    log.append(one("a", timestamp_ms=1_000))
    sync(log)
    log.close()
    old = disk.open(f"{FOLDER}/{0:020d}.tix").read_at(0, 1_000)
    log = open_log(disk, options=LARGE)
    for number in range(200):
        log.append(one("b" * 30, timestamp_ms=10_000 + 1_000 * number))
    assert not disk.exists(f"{FOLDER}/{0:020d}.tix"), "an index that is behind goes before the segment grows"
    log.roll()
    sync(log)
    assert disk.open(f"{FOLDER}/{0:020d}.tix").size > len(old)
    assert log.offset_at(150_000) == 141


def test_removed_segments_get_no_index_files(disk: SimDisk) -> None:
    """A segment sealed after its last sync waited for its index files even when it was removed meanwhile."""
    log = open_log(disk, options=LARGE)
    log.append(one("a"))
    sync(log)
    log.roll()
    log.append(one("b"))
    log.roll()
    sync(log)
    log.append(one("c"))
    log.drop_before(2)
    sync(log)
    assert sorted({name.partition(".")[0] for name in disk.list(FOLDER)} - {"durable"}) == [f"{2:020d}"]


def test_a_removal_waits_for_the_name_of_the_segment_that_stays(disk: SimDisk) -> None:
    """With the removal on disk and that name not, the log would have begun at offset 0 again."""
    log = open_log(disk, options=LARGE)
    log.append(one("a"))
    sync(log)
    log.roll()
    log.drop_before(1)
    assert log.start_offset == 0
    sync(log)
    log.drop_before(1)
    assert log.start_offset == 1


def compaction(disk: SimDisk, log: SegmentedLog, now_ms: int) -> tuple[Compactor, CompactionTask]:
    log.roll()
    sync(log)
    compactor = Compactor(disk, FOLDER, log, encoder(), POLICY)
    task = compactor.start(now_ms)
    assert task is not None
    task.run()
    return compactor, task


def test_what_a_compaction_left_out_does_not_count_as_clean(disk: SimDisk) -> None:
    """Retention took one of its sources, so the copy was thrown away; later a deletion marker went, its value not."""
    log = open_log(disk, options=LogOptions(segment_bytes=40, segment_age_ms=0))
    for key, value in ((b"x", "1"), (b"a", "old"), (b"a", None), (b"x", "2")):
        log.append(one(value, key=key))
    compactor, task = compaction(disk, log, 0)
    log.drop_before(1)
    assert log.start_offset > 0
    compactor.finish(task, None)
    assert compactor.clean_until == 0
    log.append(one("3", key=b"x"))
    compactor, task = compaction(disk, log, 2 * TOMBSTONE_AGE_MS)
    compactor.finish(task, None)
    assert b"old" not in values(log)


def test_a_full_disk_at_the_end_of_a_compaction_costs_only_the_indexes(disk: SimDisk) -> None:
    """The log went on with the segments that the copy had replaced, at places that no longer fitted the file."""
    log = open_log(disk, options=LogOptions(segment_bytes=200, segment_age_ms=0))
    for number in range(20):
        log.append(one(f"value {number}", key=b"%d" % (number % 3)))
    compactor, task = compaction(disk, log, 0)

    def without_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.reference_broker.storage.segment_indexes.SegmentIndexFiles.write", without_room)
        compactor.finish(task, None)
    assert values(log) == [b"value 17", b"value 18", b"value 19"]
    assert values(open_log(disk, options=LARGE)) == [b"value 17", b"value 18", b"value 19"]


def test_a_mark_that_is_behind_accuses_no_compaction(disk: SimDisk) -> None:
    """It names a byte position that the segment had before it was compacted."""
    log = open_log(disk, options=LogOptions(segment_bytes=200, segment_age_ms=0))
    for number in range(3):
        log.append(one(f"value {number}", key=b"k"))
        sync(log)
    mark = disk.open(f"{FOLDER}/durable.mark").read_at(0, 2_000)
    compactor, task = compaction(disk, log, 0)
    compactor.finish(task, None)
    log.close()
    files = {
        f"{FOLDER}/{name}": disk.open(f"{FOLDER}/{name}").read_at(0, 10_000)
        for name in disk.list(FOLDER)
        if not name.endswith(("idx", "tix"))
    }
    notes: list[str] = []
    older = SimDisk.holding(files | {f"{FOLDER}/durable.mark": mark}, {"", FOLDER})
    assert values(open_log(older, options=LARGE, notes=notes)) == [b"value 2"]
    assert notes == []


def test_reopening_spares_the_newest_slot_of_the_mark(disk: SimDisk) -> None:
    """Were its write torn, only an older mark would be left."""
    for number in range(4):
        log = open_log(disk, options=LARGE)
        before = disk.open(f"{FOLDER}/durable.mark").read_at(0, 2_000) if number else bytes(552)
        log.append(one("a"))
        sync(log)
        log.close()
        after = disk.open(f"{FOLDER}/durable.mark").read_at(0, 2_000)
        changed = [start for start in (0, 512) if before[start : start + 40] != after[start : start + 40]]
        assert changed == [(0, 512)[(number + 1) % 2]]
