"""Compaction: the last value of each key stays, whatever happens while it runs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.compaction import CompactionPolicy, CompactionTask, Compactor
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.sim.disk import DiskProfile, SimDisk

FOLDER = "log"
DAY_MS = 86_400_000
ENCODER = BatchEncoder(Compression.NONE)


class CompactedLog:
    """A log with small segments, and its compactor."""

    def __init__(self, disk: Disk, *, segment_bytes: int = 300, policy: CompactionPolicy | None = None) -> None:
        self.disk = disk
        self.notes: list[str] = []
        self.log = SegmentedLog(
            disk,
            FOLDER,
            options=LogOptions(segment_bytes=segment_bytes, segment_age_ms=0),
            encoder=ENCODER,
            volatile=False,
            note=lambda place, problem: self.notes.append(f"{place}: {problem}"),
        )
        self.compactor = Compactor(disk, FOLDER, self.log, ENCODER, policy or CompactionPolicy(min_dirty_ratio=0))

    def put(self, key: str, value: str | None, timestamp_ms: int = 0) -> int:
        encoded = None if value is None else value.encode()
        return self.log.append([NewRecord(timestamp_ms, key.encode(), encoded, ())])

    def sync(self) -> None:
        task = self.log.start_sync()
        if task is not None:
            task.run()
            self.log.finish_sync(None)

    def compact(self, now_ms: int = 0) -> CompactionTask | None:
        """Seal everything, then compact it."""
        self.log.roll()
        self.sync()
        task = self.compactor.start(now_ms)
        if task is not None:
            task.run()
            self.compactor.finish(task, None)
        return task

    def records(self) -> list[LogRecord]:
        found: list[LogRecord] = []
        while batch := self.log.read(found[-1].offset + 1 if found else 0, 5):
            found += batch
        return found

    def pairs(self) -> list[tuple[str, str | None]]:
        return [
            ((record.key or b"").decode(), None if record.value is None else record.value.decode())
            for record in self.records()
        ]


def test_the_last_value_of_each_key_stays_with_its_offset() -> None:
    kept = CompactedLog(MemoryDisk())
    for round_number in range(10):
        for key in "abc":
            kept.put(key, f"{key}{round_number}")
    kept.compact()
    assert [(record.offset, record.value) for record in kept.records()] == [(27, b"a9"), (28, b"b9"), (29, b"c9")]
    assert kept.log.next_offset == 30
    assert kept.put("a", "new") == 30


def test_offsets_between_survivors_read_the_next_one_and_a_reopened_log_agrees() -> None:
    disk = MemoryDisk()
    kept = CompactedLog(disk)
    for number in range(40):
        kept.put("a" if number % 4 else f"only-{number}", str(number))
    kept.compact()
    before = kept.records()
    assert kept.log.read(1, 1)[0].offset == 4
    assert kept.log.get(1) is None
    kept.log.close()
    again = CompactedLog(disk)
    assert again.records() == before
    assert again.log.next_offset == 40
    assert again.notes == []


def test_small_compacted_segments_are_merged() -> None:
    disk = MemoryDisk()
    kept = CompactedLog(disk)
    for number in range(60):
        kept.put("same", str(number))
    sealed = len(kept.log.segments)
    kept.compact()
    assert len(kept.log.segments) < sealed / 3
    assert not [name for name in disk.list(FOLDER) if name.endswith((".swap", ".compacting"))]


def test_tombstones_stay_for_a_day_and_take_older_values_with_them() -> None:
    kept = CompactedLog(MemoryDisk())
    kept.put("a", "1", 1_000)
    kept.put("a", None, 2_000)
    kept.put("b", "1", 3_000)
    kept.compact(now_ms=2_000 + DAY_MS - 1)
    assert kept.pairs() == [("a", None), ("b", "1")]
    kept.put("c", "1", 4_000)
    kept.compact(now_ms=2_000 + DAY_MS)
    assert kept.pairs() == [("b", "1"), ("c", "1")]


def test_records_without_a_key_are_never_removed() -> None:
    kept = CompactedLog(MemoryDisk())
    for number in range(20):
        kept.log.append([NewRecord(0, None if number % 2 else b"", str(number).encode(), ())])
    kept.compact()
    assert len(kept.records()) == 20


def test_the_dirty_ratio_decides() -> None:
    policy = CompactionPolicy(min_dirty_ratio=0.5)
    kept = CompactedLog(MemoryDisk(), policy=policy)
    for number in range(40):
        kept.put(f"key-{number}", "x" * 50)
    assert kept.compact() is not None
    kept.put("key-1", "y")
    assert kept.compact() is None, "one new record is far less than half of the log"
    for number in range(40):
        kept.put(f"key-{number}", "z" * 60)
    assert kept.compact() is not None
    assert {value for _, value in kept.pairs()} == {"z" * 60}


def test_the_active_segment_is_left_alone() -> None:
    kept = CompactedLog(MemoryDisk(), segment_bytes=100_000)
    kept.put("a", "1")
    kept.put("a", "2")
    kept.sync()
    assert kept.compactor.start(0) is None
    assert kept.pairs() == [("a", "1"), ("a", "2")]


def test_more_keys_than_may_be_remembered_are_compacted_piece_by_piece() -> None:
    kept = CompactedLog(MemoryDisk(), policy=CompactionPolicy(min_dirty_ratio=0, max_keys=5))
    for round_number in range(3):
        for number in range(20):
            kept.put(f"key-{number}", f"{round_number}")
    while kept.compact() is not None:
        pass
    assert kept.pairs() == [(f"key-{number}", "2") for number in range(20)]


def damaged_log(disk: MemoryDisk, *, torn: bool) -> CompactedLog:
    """Four sealed segments of one key; the second is damaged in its middle, or lacks its last bytes."""
    kept = CompactedLog(disk)
    for number in range(24):
        kept.put("a", str(number))
    kept.log.roll()
    kept.sync()
    file = disk.open(kept.log.segments[1].path)
    if torn:
        file.truncate(file.size - 3)
    else:
        file.write_at(60, b"\xff")
    return kept


@pytest.mark.parametrize("torn", [False, True])
def test_a_damaged_segment_stays_as_it_is_and_the_others_are_compacted(torn: bool) -> None:
    disk = MemoryDisk()
    kept = damaged_log(disk, torn=torn)
    path = kept.log.segments[1].path
    before = disk.open(path).read_at(0, 10_000)
    assert kept.compact() is not None
    assert disk.open(path).read_at(0, 10_000) == before
    assert any(path in note and "not compacted" in note for note in kept.notes)
    found = kept.records()
    assert found[-1].value == b"23"
    others = [record for record in found if not 6 <= record.offset < 12]
    assert [record.offset for record in others] == [23]
    kept.log.close()
    assert CompactedLog(disk).records() == found


def test_while_a_segment_is_damaged_no_deletion_is_forgotten() -> None:
    """It may hold the value that was deleted."""
    disk = MemoryDisk()
    kept = damaged_log(disk, torn=False)
    kept.put("a", None)
    kept.compact(now_ms=10 * DAY_MS)
    assert kept.pairs()[-1] == ("a", None)


def test_only_one_compaction_runs_at_a_time() -> None:
    kept = CompactedLog(MemoryDisk())
    for number in range(40):
        kept.put("a", str(number))
    kept.log.roll()
    kept.sync()
    task = kept.compactor.start(0)
    assert task is not None
    assert kept.compactor.start(0) is None
    assert kept.compactor.start(0, at_once=True) is None, "not even for one who waits for it"
    task.run()
    kept.compactor.finish(task, None)
    kept.put("a", "last")
    kept.log.roll()
    kept.sync()
    assert kept.compactor.start(0) is not None, "the next one has its turn"


def test_retention_during_a_compaction_wins() -> None:
    kept = CompactedLog(MemoryDisk())
    for number in range(40):
        kept.put("a" if number % 2 else f"key-{number}", str(number))
    kept.log.roll()
    kept.sync()
    task = kept.compactor.start(0)
    assert task is not None
    task.run()
    kept.log.drop_before(kept.log.segments[1].base_offset)
    start = kept.log.start_offset
    kept.compactor.finish(task, None)
    assert kept.log.start_offset == start
    assert min(record.offset for record in kept.records()) >= start


KEYS = st.sampled_from(["a", "b", "c", "d"])
WRITES = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.text("xyz", max_size=4))), min_size=1, max_size=60)


@given(WRITES, st.integers(80, 400), st.lists(st.integers(1, 60), max_size=3))
@settings(max_examples=60, deadline=None)
def test_the_last_value_per_key_is_that_of_a_dict(
    writes: list[tuple[str, str | None]], segment_bytes: int, compact_after: list[int]
) -> None:
    kept = CompactedLog(MemoryDisk(), segment_bytes=segment_bytes)
    model: dict[str, str | None] = {}
    for number, (key, value) in enumerate(writes, 1):
        kept.put(key, value)
        model[key] = value
        if number in compact_after:
            kept.compact()
    kept.compact()
    found = kept.pairs()
    assert dict(found) == model
    assert len(found) == len(model)


class StepsOverError(Exception):
    """Enough disk operations were done."""


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_at_any_point_of_a_compaction_loses_no_last_value(seed: int) -> None:
    """Each disk operation of a compaction is a crash point; recovery and the next compaction agree with a dict."""
    step = 0
    while True:
        disk = SimDisk(random.Random(f"{seed}-{step}"), DiskProfile())
        kept = CompactedLog(disk)
        model = {}
        for number in range(30):
            key = f"key-{number % 7}"
            kept.put(key, str(number))
            model[key] = str(number)
        kept.log.roll()
        kept.sync()
        finished = _compact_with_power_loss(kept, disk, step)
        recovered = CompactedLog(disk)
        assert dict(recovered.pairs()) == model, f"seed {seed}, power loss before disk operation {step}"
        assert recovered.log.next_offset == 30
        assert recovered.notes == []
        recovered.compact()
        assert sorted(recovered.pairs()) == sorted(model.items())
        assert not [name for name in disk.list(FOLDER) if name.endswith((".swap", ".compacting"))]
        if finished:
            return
        step += 1


def _compact_with_power_loss(kept: CompactedLog, disk: SimDisk, step: int) -> bool:
    """True when the compaction came to its end before that many operations were done."""
    original = disk.next_number
    done = 0

    def count() -> int:
        nonlocal done
        if done >= step:
            raise StepsOverError
        done += 1
        return original()

    disk.next_number = count  # type: ignore[method-assign]
    try:
        task = kept.compactor.start(0)
        assert task is not None
        task.run()
        kept.compactor.finish(task, None)
    except StepsOverError:
        return False
    else:
        return True
    finally:
        disk.next_number = original  # type: ignore[method-assign]
        disk.power_loss()
