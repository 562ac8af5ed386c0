"""How a log is written: buffer, rolling by age, the durable mark, room kept for settlements, retention."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import NewRecord, RetentionPolicy
from assay.reference_broker.storage import log as log_module
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.durable_mark import MARK_NAME, DurableMark, DurableMarkFile, decode_mark
from assay.reference_broker.storage.file_names import segment_name
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile
from assay.sim.disk import DiskProfile, Persistence, SimDisk
from tests.support.watched_disk import WatchedDisk

FOLDER = "log"
HOUR_MS = 3_600_000


def open_log(disk: Disk, notes: list[str] | None = None, *, volatile: bool = False, **options: int) -> SegmentedLog:
    kept = notes if notes is not None else []
    return SegmentedLog(
        disk,
        FOLDER,
        options=LogOptions(**options),
        encoder=BatchEncoder(Compression.NONE),
        volatile=volatile,
        note=lambda place, problem: kept.append(f"{place}: {problem}"),
    )


def record(value: str, timestamp_ms: int = 0) -> NewRecord:
    return NewRecord(timestamp_ms, b"", value.encode(), ())


def values(log: SegmentedLog) -> list[str]:
    return [(found.value or b"").decode() for found in log.read(0, 100_000)]


def sync(log: SegmentedLog) -> None:
    while (task := log.start_sync()) is not None:
        task.run()
        log.finish_sync(None)


def size(disk: Disk, base: int = 0) -> int:
    return disk.open(f"{FOLDER}/{segment_name(base)}").size


def test_a_segment_is_as_long_as_its_indexes_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions and offsets are numbers of 32 bits there: the last of them is used, and no more."""
    log = open_log(MemoryDisk())
    log.append([record("one"), record("two")])
    filled = log.segments[-1].size
    monkeypatch.setattr(log_module, "_MAX_POSITION", filled + 100)
    assert [log.is_full(more, 0) for more in (99, 100, 101)] == [False, False, True]
    for most, is_full in ((1, True), (2, False), (3, False)):
        monkeypatch.setattr(log_module, "_MAX_RELATIVE_OFFSET", most)
        assert log.is_full(1, 0) == is_full


# -- write buffer --------------------------------------------------------------------------------------------------


def test_appends_collect_until_the_buffer_is_full() -> None:
    disk = MemoryDisk()
    log = open_log(disk, write_buffer_bytes=500)
    for number in range(5):
        assert log.append([record(f"value {number}")]) == number
    assert size(disk) == 0
    assert log.next_offset == 5
    assert log.stored_bytes > 200
    for number in range(5, 12):
        log.append([record(f"value {number}")])
    assert 0 < size(disk) < log.stored_bytes


@pytest.mark.parametrize("buffer_bytes", [0, 200])
def test_in_memory_all_that_is_written_counts_as_durable(buffer_bytes: int) -> None:
    log = open_log(MemoryDisk(), volatile=True, write_buffer_bytes=buffer_bytes)
    for number in range(10):
        log.append([record("v" * 50)])
        # The buffer holds one of them and is written with the next.
        waiting = 1 if buffer_bytes and number % 2 == 0 else 0
        assert log.durable_offset == log.next_offset - waiting
    log.flush()
    assert log.durable_offset == 10
    assert not log.needs_sync


@pytest.mark.parametrize("how", ["flush", "read", "sync", "roll", "close", "get", "time"])
def test_what_is_buffered_is_written_when_it_matters(how: str) -> None:
    disk = MemoryDisk()
    log = open_log(disk, write_buffer_bytes=10_000)
    log.append([record("a")])
    log.append([record("b")])
    actions: dict[str, Callable[[], object]] = {
        "flush": log.flush,
        "read": lambda: log.read(0, 1),
        "sync": lambda: sync(log),
        "roll": log.roll,
        "close": log.close,
        "get": lambda: log.get(1),
        "time": lambda: log.offset_at(0),
    }
    actions[how]()
    assert size(disk) > 44
    assert values(open_log(disk)) == ["a", "b"]


def test_a_full_disk_keeps_the_buffer_and_refuses_what_does_not_fit() -> None:
    disk = SimDisk(random.Random(1), DiskProfile(capacity_bytes=400))
    log = open_log(disk, write_buffer_bytes=300)
    accepted = []
    for number in range(40):
        try:
            log.append([record(f"value {number}")])
        except LogError as error:
            assert not error.sticky
            break
        accepted.append(f"value {number}")
    assert log.next_offset == len(accepted)
    disk.profile = DiskProfile()
    log.append([record("later")])
    assert values(log) == [*accepted, "later"]


def test_a_sync_does_not_vouch_for_what_could_not_be_written() -> None:
    disk = SimDisk(random.Random(1), DiskProfile(capacity_bytes=250))
    log = open_log(disk, write_buffer_bytes=300)
    log.append([record("a" * 100)])
    sync(log)
    assert log.durable_offset == 1
    log.append([record("b" * 100)])
    task = log.start_sync()
    assert task is not None
    task.run()
    log.finish_sync(None)
    assert log.durable_offset == 1
    disk.profile = DiskProfile()
    sync(log)
    assert log.durable_offset == 2


# -- rolling by age ------------------------------------------------------------------------------------------------


def test_a_segment_is_sealed_when_its_first_record_is_an_hour_old() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for timestamp_ms in (10, 10 + HOUR_MS - 1, 10 + HOUR_MS, 10 + HOUR_MS + 1):
        log.append([record("x", timestamp_ms)])
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    sync(log)
    log.close()
    again = open_log(disk)
    again.append([record("x", 10 + 2 * HOUR_MS)])
    assert [segment.base_offset for segment in again.segments] == [0, 2, 4]


def test_a_clock_that_steps_back_seals_nothing() -> None:
    log = open_log(MemoryDisk(), segment_age_ms=1_000)
    for timestamp_ms in (5_000, 4_000, 100, 5_999):
        log.append([record("x", timestamp_ms)])
    assert len(log.segments) == 1


# -- the durable mark ----------------------------------------------------------------------------------------------


def test_the_mark_says_what_was_synced() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.append([record("a"), record("b")])
    sync(log)
    end = size(disk)
    log.append([record("c")])
    assert DurableMarkFile(disk, FOLDER).read() == DurableMark(2, 0, end)


def test_marks_alternate_so_that_a_torn_one_leaves_the_other() -> None:
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    marks = DurableMarkFile(disk, FOLDER)
    marks.write(DurableMark(1, 0, 100))
    marks.write(DurableMark(2, 0, 200))
    file = disk.open(f"{FOLDER}/{MARK_NAME}")
    data = file.read_at(0, file.size)
    assert decode_mark(data) == DurableMark(2, 0, 200)
    newest = data[:512].ljust(512, b"\0")
    for cut in range(32):
        assert decode_mark(newest[:cut] + bytes(512 - cut) + data[512:]) == DurableMark(1, 0, 100)


def damaged_durable_tail(disk: MemoryDisk, *, torn: bool) -> None:
    """Three synced records and an unsynced one; then the third is damaged, or cut, and the fourth torn."""
    log = open_log(disk)
    for value in ("a", "b"):
        log.append([record(value)])
    sync(log)
    start = size(disk)
    log.append([record("c")])
    sync(log)
    file = disk.open(f"{FOLDER}/{segment_name(0)}")
    if torn:
        file.truncate(start + 10)
    else:
        file.write_at(start + 46, b"\xff")


@pytest.mark.parametrize("torn", [False, True])
def test_a_damaged_end_that_was_synced_is_never_cut(torn: bool) -> None:
    disk = MemoryDisk()
    damaged_durable_tail(disk, torn=torn)
    before = size(disk)
    notes: list[str] = []
    log = open_log(disk, notes)
    assert any("had been synced" in note for note in notes)
    assert size(disk) == before, "what is left stays as evidence"
    assert values(log) == ["a", "b"]
    assert log.append([record("d")]) == 3, "the offset of a confirmed record is not used again"
    assert [found.offset for found in log.read(0, 10)] == [0, 1, 3]
    sync(log)
    log.close()
    again = open_log(disk)
    assert values(again) == ["a", "b", "d"]
    assert again.next_offset == 4


def test_without_the_mark_a_damaged_end_is_a_torn_tail() -> None:
    disk = MemoryDisk()
    damaged_durable_tail(disk, torn=False)
    disk.remove(f"{FOLDER}/{MARK_NAME}")
    log = open_log(disk)
    assert log.next_offset == 2


def test_a_torn_write_behind_the_mark_is_cut() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.append([record("a")])
    sync(log)
    end = size(disk)
    log.append([record("torn")])
    disk.open(f"{FOLDER}/{segment_name(0)}").truncate(end + 20)
    notes: list[str] = []
    assert open_log(disk, notes).next_offset == 1
    assert "torn tail" in notes[0]
    assert size(disk) == end


def test_offsets_go_on_when_the_last_segment_is_gone() -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=60)
    for number in range(4):
        log.append([record(f"{number}")])
    sync(log)
    log.close()
    disk.remove(log.segments[-1].path)
    notes: list[str] = []
    again = open_log(disk, notes, segment_bytes=60)
    assert any("missing" in note for note in notes)
    assert again.append([record("next")]) == 4


def test_the_mark_itself_is_on_disk_after_a_few_syncs() -> None:
    """It is synced after its first write, so that one of its slots is always readable."""
    for mode in Persistence:
        disk = SimDisk(random.Random(4))
        log = open_log(disk)
        for number in range(5):
            log.append([record(f"{number}")])
            sync(log)
        disk.power_loss((mode,))
        mark = DurableMarkFile(disk, FOLDER).read()
        assert mark is not None, mode
        assert 1 <= mark.offset <= 5


def test_a_segment_that_was_synced_before_it_was_sealed_gets_its_indexes_too() -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=60)
    for number in range(6):
        log.append([record(f"{number}")])
        sync(log)
    for segment in log.segments[:-1]:
        assert disk.exists(f"{FOLDER}/{segment_name(segment.base_offset, '.idx')}")
        assert disk.exists(f"{FOLDER}/{segment_name(segment.base_offset, '.tix')}")


@pytest.mark.parametrize("buffer_bytes", [0, 150])
def test_segments_end_by_size_and_by_age_whether_writes_are_buffered_or_not(buffer_bytes: int) -> None:
    log = open_log(MemoryDisk(), segment_bytes=500, segment_age_ms=10_000, write_buffer_bytes=buffer_bytes)
    for number in range(40):
        log.append([record(f"{number:030}", timestamp_ms=1)])
    log.flush()
    by_size = [segment.size for segment in log.segments]
    assert len(by_size) >= 4
    largest_write_bytes = buffer_bytes + 150
    assert all(500 <= size < 500 + largest_write_bytes for size in by_size[:-1])
    # The age of a segment is counted from its first record.
    began = log.segments[-1].base_offset
    log.append([record("young", timestamp_ms=10_000)])
    assert log.segments[-1].base_offset == began
    log.append([record("old", timestamp_ms=10_001)])
    assert [segment.base_offset for segment in log.segments[-2:]] == [began, 41]
    assert values(log) == [f"{number:030}" for number in range(40)] + ["young", "old"]


# -- a killed broker -----------------------------------------------------------------------------------------------


def test_after_a_kill_the_next_sync_covers_every_segment_that_nobody_vouches_for() -> None:
    """A sealed segment may never have been synced when the broker was killed; power loss comes later."""
    disk = SimDisk(random.Random(5))
    log = open_log(disk, segment_bytes=60)
    for number in range(6):
        log.append([record(f"{number}")])
    disk.crash()
    again = open_log(disk, segment_bytes=60)
    sync(again)
    disk.power_loss((Persistence.NONE,))
    assert values(open_log(disk, segment_bytes=60)) == [f"{number}" for number in range(6)]


def test_the_sync_after_a_kill_holds_few_files_open() -> None:
    """However many segments nobody vouches for, one is open at a time."""
    disk = SimDisk(random.Random(5))
    log = open_log(disk, segment_bytes=60)
    for number in range(200):
        log.append([record(f"{number}")])
    disk.crash()
    again = open_log(disk, segment_bytes=60)
    task = again.start_sync()
    assert task is not None
    assert sum(segment.is_open for segment in again.segments) == 0
    task.run()
    again.finish_sync(None)
    assert again.durable_offset == 200


# -- room ----------------------------------------------------------------------------------------------------------


def test_appends_stop_before_the_disk_is_full() -> None:
    disk = SimDisk(random.Random(1), DiskProfile(capacity_bytes=3_000_000))
    log = open_log(disk, reserve_bytes=1_000_000)
    big = [NewRecord(0, b"", bytes(100_000), ())]
    for _ in range(10):
        log.append(big)
    with pytest.raises(LogError, match="nearly full") as refused:
        _append_for_ever(log, big)
    assert not refused.value.sticky
    assert disk.free_bytes() > 0
    written = log.next_offset
    assert len(log.read(0, written)) == written
    disk.profile = DiskProfile(capacity_bytes=6_000_000)
    assert log.append([record("room again")]) == written


def _append_for_ever(log: SegmentedLog, records: list[NewRecord]) -> None:
    for _ in range(1_000):
        log.append(records)


# -- retention -----------------------------------------------------------------------------------------------------


def rolled_log(disk: Disk, count: int = 10) -> SegmentedLog:
    """One record of about 150 bytes in each segment, one second apart."""
    log = open_log(disk, segment_bytes=100)
    for number in range(count):
        log.append([record(f"{number}".ljust(100), number * 1_000)])
    sync(log)
    return log


def test_size_age_and_count_delete_whole_segments_oldest_first() -> None:
    one = rolled_log(MemoryDisk()).segments[0].size
    by_size = rolled_log(MemoryDisk())
    by_size.retain(RetentionPolicy(max_bytes=one * 4), now_ms=0, needed_from=None)
    assert by_size.start_offset == 6
    assert by_size.stored_bytes <= one * 4, "a limit is a limit"
    by_age = rolled_log(MemoryDisk())
    by_age.retain(RetentionPolicy(max_age_ms=3_500), now_ms=9_000, needed_from=None)
    assert by_age.start_offset == 6
    by_count = rolled_log(MemoryDisk())
    by_count.retain(RetentionPolicy(max_records=3), now_ms=0, needed_from=None)
    assert by_count.start_offset == 7


def test_what_a_group_needs_stays() -> None:
    log = rolled_log(MemoryDisk())
    log.retain(RetentionPolicy(max_records=1), now_ms=0, needed_from=4)
    assert log.start_offset == 4
    log.retain(RetentionPolicy(max_records=1), now_ms=0, needed_from=None)
    assert log.start_offset == 9


def test_without_limits_and_groups_nothing_is_deleted() -> None:
    """With no group to wait for, the tail is not what may be deleted up to."""
    log = rolled_log(MemoryDisk())
    log.retain(RetentionPolicy(), now_ms=10**12, needed_from=None)
    assert (log.start_offset, len(log.segments)) == (0, 10)


def test_a_log_that_is_too_old_as_a_whole_is_emptied_and_keeps_its_offsets() -> None:
    disk = MemoryDisk()
    log = rolled_log(disk)
    policy = RetentionPolicy(max_age_ms=1_000)
    log.retain(policy, now_ms=10**9, needed_from=None)
    sync(log)
    log.retain(policy, now_ms=10**9, needed_from=None)
    assert (log.start_offset, log.next_offset) == (10, 10)
    assert log.read(0, 10) == []
    log.close()
    again = open_log(disk, segment_bytes=100)
    assert again.append([record("next")]) == 10


def test_retention_syncs_nothing_itself() -> None:
    """It runs between the messages of a turn: what is too old as a whole goes once the log's next sync has named what
    follows it."""
    disk = WatchedDisk()
    log = rolled_log(disk)
    disk.synced.clear()
    policy = RetentionPolicy(max_age_ms=1_000)
    for _ in range(2):
        log.retain(policy, now_ms=10**9, needed_from=None)
        assert (disk.synced, log.start_offset, log.needs_sync) == ([], 9, True)
    sync(log)
    log.retain(policy, now_ms=10**9, needed_from=None)
    assert log.start_offset == 10


def test_nothing_is_deleted_before_it_is_synced() -> None:
    log = open_log(MemoryDisk(), segment_bytes=100)
    for number in range(5):
        log.append([record(f"{number}".ljust(100))])
    log.retain(RetentionPolicy(max_records=1), now_ms=0, needed_from=None)
    assert log.start_offset == 0
    sync(log)
    log.retain(RetentionPolicy(max_records=1), now_ms=0, needed_from=None)
    assert log.start_offset == 4


def test_deleting_a_segment_deletes_its_indexes() -> None:
    disk = MemoryDisk()
    log = rolled_log(disk)
    assert disk.exists(f"{FOLDER}/{segment_name(0, '.idx')}")
    log.drop_before(5)
    assert not [name for name in disk.list(FOLDER) if name.startswith(f"{0:020d}")]


class StubbornFile(MemoryFile):
    """Takes half of what is written while ``full``, and cannot be cut while ``uncut``."""

    full = uncut = False

    def append(self, data: bytes) -> int:
        if StubbornFile.full:
            super().append(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "full")
        return super().append(data)

    def truncate(self, size: int) -> None:
        if StubbornFile.uncut:
            raise OSError(errno.EIO, "broken")
        super().truncate(size)


class StubbornDisk(MemoryDisk):
    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        return StubbornFile(super().open(path, create=create)._content)


@pytest.mark.parametrize("before", [0, 1, 5])
def test_half_a_write_that_could_not_be_cut_off_is_cut_before_the_next(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The disk is full, refuses even to make a file shorter, and gets well again: no byte of it stays in between."""
    disk = StubbornDisk()
    log = open_log(disk)
    kept = [f"before {number}" for number in range(before)]
    for value in kept:
        log.append([record(value), record(value)])
    kept = [value for value in kept for _ in range(2)]
    for full, uncut in ((True, True), (True, True), (False, True), (True, False)):
        monkeypatch.setattr(StubbornFile, "full", full)
        monkeypatch.setattr(StubbornFile, "uncut", uncut)
        with pytest.raises(LogError):
            log.append([record("never" * 20)])
        assert log.next_offset == len(kept)
        assert values(log) == kept
    monkeypatch.setattr(StubbornFile, "full", False)
    for number in range(3):
        assert log.append([record(f"after {number}")]) == len(kept)
        kept.append(f"after {number}")
        assert values(log) == kept
    notes: list[str] = []
    sync(log)
    log.close()
    assert values(open_log(disk, notes)) == kept
    assert not notes
