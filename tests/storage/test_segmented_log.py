"""The partition log: appending, reading, rolling, recovery, and what a failing disk does to it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import Disk, RealDisk
from assay.reference_broker.storage.file_names import segment_name
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.storage.conftest import LossyDisk

FOLDER = "queues/q/partitions/0"


def open_log(
    disk: Disk, *, segment_bytes: int = 1_000_000, notes: list[str] | None = None, volatile: bool = False
) -> SegmentedLog:
    kept = notes if notes is not None else []
    return SegmentedLog(
        disk,
        FOLDER,
        options=LogOptions(segment_bytes=segment_bytes),
        encoder=BatchEncoder(Compression.NONE),
        volatile=volatile,
        note=lambda place, problem: kept.append(f"{place}: {problem}"),
    )


def records(*values: str) -> list[NewRecord]:
    return [NewRecord(1_000, b"", value.encode(), ()) for value in values]


def values(found: list[LogRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in found]


def read_all(log: SegmentedLog, offset: int = 0) -> list[LogRecord]:
    found: list[LogRecord] = []
    while batch := log.read(found[-1].offset + 1 if found else offset, 7):
        found += batch
    return found


def sync(log: SegmentedLog) -> None:
    task = log.start_sync()
    assert task is not None
    try:
        task.run()
    except OSError as error:
        log.finish_sync(error)
    else:
        log.finish_sync(None)


@pytest.fixture(params=["memory", "real", "lossy"])
def disk(request: pytest.FixtureRequest) -> Disk:
    if request.param == "memory":
        return MemoryDisk()
    if request.param == "real":
        return RealDisk(request.getfixturevalue("tmp_path"))
    return request.getfixturevalue("lossy_disk")


def test_append_read_reopen(disk: Disk) -> None:
    log = open_log(disk)
    assert (log.start_offset, log.next_offset) == (0, 0)
    assert log.read(0, 10) == []
    assert log.append(records("a", "b")) == 0
    assert log.append(records("c")) == 2
    assert [(record.offset, record.value) for record in log.read(1, 10)] == [(1, b"b"), (2, b"c")]
    sync(log)
    log.close()
    again = open_log(disk)
    assert (again.next_offset, again.durable_offset) == (3, 3)
    assert values(read_all(again)) == ["a", "b", "c"]
    assert again.append(records("d")) == 3
    again.close()


def test_segments_roll_by_size_and_are_named_by_offset(disk: Disk) -> None:
    log = open_log(disk, segment_bytes=120)
    for index in range(9):
        log.append(records(f"value-{index}"))
    names = disk.list(FOLDER)
    assert names == [segment_name(offset) for offset in (0, 3, 6)]
    assert names[1] == "00000000000000000003.seg"
    assert values(read_all(log)) == [f"value-{index}" for index in range(9)]
    sync(log)
    log.close()
    assert values(read_all(open_log(disk, segment_bytes=120), 4)) == [f"value-{index}" for index in range(4, 9)]


def test_only_whole_settled_segments_are_dropped(disk: Disk) -> None:
    log = open_log(disk, segment_bytes=120)
    for index in range(9):
        log.append(records(f"value-{index}"))
    log.drop_before(9)
    assert log.start_offset == 0, "nothing is dropped before it is synced"
    sync(log)
    log.drop_before(5)
    assert log.start_offset == 3
    log.drop_before(100)
    assert log.start_offset == 6, "the active segment stays"
    assert values(log.read(0, 10)) == ["value-6", "value-7", "value-8"]
    log.close()


def test_large_appends_become_several_batches() -> None:
    log = open_log(MemoryDisk())
    big = [NewRecord(0, b"", bytes(100_000), ()) for _ in range(7)]
    log.append(big)
    assert [record.offset for record in read_all(log)] == list(range(7))
    assert len(log.read(3, 1)) < 4, "a read does not decode the whole append"


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537])
def test_an_append_may_be_longer_than_a_batch_can_count(count: int) -> None:
    """R15: a count of 16 bits overflowed in silence."""
    disk = MemoryDisk()
    log = open_log(disk)
    log.append([NewRecord(0, b"", b"", ())] * count)
    log.append(records("after"))
    assert log.next_offset == count + 1
    assert [record.offset for record in read_all(log)] == list(range(count + 1))
    log.close()
    assert open_log(disk).next_offset == count + 1


@pytest.mark.parametrize("last", [1, 3])
def test_a_tail_torn_at_any_byte_is_cut_at_the_last_whole_batch(lossy_disks: type[LossyDisk], last: int) -> None:
    whole = MemoryDisk()
    log = open_log(whole)
    log.append(records("a", "b"))
    before = whole.open(f"{FOLDER}/{segment_name(0)}").size
    log.append(records(*(f"torn-{index}" for index in range(last))))
    path = f"{FOLDER}/{segment_name(0)}"
    content = whole.open(path).read_at(0, 10_000)
    for cut in range(before, len(content) + 1):
        disk = lossy_disks()
        disk.make_folder(FOLDER)
        disk.open(path, create=True).append(content[:cut])
        notes: list[str] = []
        recovered = open_log(disk, notes=notes)
        complete = cut == len(content)
        assert recovered.next_offset == (2 + last if complete else 2)
        assert bool(notes) == (cut not in (before, len(content)))
        assert disk.open(path).size == (cut if complete else before)
        recovered.append(records("next"))
        assert values(read_all(recovered))[-1] == "next"


def corrupted_middle(disk: Disk, position_in_batch: int) -> tuple[str, int]:
    """Three batches, the second with one bad byte; returns the path and the size."""
    log = open_log(disk)
    log.append(records("a", "b"))
    start = disk.open(f"{FOLDER}/{segment_name(0)}").size
    log.append(records("lost-1", "lost-2"))
    end = disk.open(f"{FOLDER}/{segment_name(0)}").size
    log.append(records("c"))
    log.close()
    path = f"{FOLDER}/{segment_name(0)}"
    file = disk.open(path)
    at = start + position_in_batch % (end - start)
    file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 0x40]))
    return path, file.size


@pytest.mark.parametrize("position", range(0, 70, 3))
def test_damage_in_the_middle_is_reported_kept_and_skipped(position: int) -> None:
    disk = MemoryDisk()
    path, size = corrupted_middle(disk, position)
    notes: list[str] = []
    log = open_log(disk, notes=notes)
    assert len(notes) == 1
    assert "corrupt" in notes[0]
    assert disk.open(path).size == size, "nothing is cut"
    assert [(record.offset, record.value) for record in read_all(log)] == [(0, b"a"), (1, b"b"), (4, b"c")]
    assert log.append(records("d")) == 5
    assert values(read_all(log, 2)) == ["c", "d"]


def test_a_batch_inside_a_payload_is_never_taken_for_one() -> None:
    """A publisher can send the bytes of a batch; damage around them must not bring them to life."""
    forged = BatchEncoder(Compression.NONE).encode(1, records("forged"))
    disk = MemoryDisk()
    log = open_log(disk)
    log.append(records("a"))
    start = disk.open(f"{FOLDER}/{segment_name(0)}").size
    log.append([NewRecord(0, b"", forged, ())])
    log.append(records("b"))
    log.close()
    file = disk.open(f"{FOLDER}/{segment_name(0)}")
    file.write_at(start + 46, b"\xff")
    assert values(read_all(open_log(disk))) == ["a", "b"]
    file.truncate(file.size - 1)
    assert values(read_all(open_log(disk))) == ["a"]


def test_a_damaged_end_of_an_older_segment_is_not_cut() -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=60)
    for value in ("a", "b", "c"):
        log.append(records(value))
    log.close()
    path = f"{FOLDER}/{segment_name(0)}"
    file = disk.open(path)
    size = file.size
    assert len(disk.list(FOLDER)) == 2
    file.write_at(size - 1, b"\xee")
    notes: list[str] = []
    recovered = open_log(disk, segment_bytes=60, notes=notes)
    assert disk.open(path).size == size
    assert any("missing" in note for note in notes)
    assert values(read_all(recovered)) == ["a", "c"]


def test_damage_that_comes_while_the_log_is_open_is_skipped_too() -> None:
    disk = MemoryDisk()
    notes: list[str] = []
    log = open_log(disk, notes=notes)
    for value in ("a", "b", "c"):
        log.append(records(value))
    size = disk.open(f"{FOLDER}/{segment_name(0)}").size // 3
    disk.open(f"{FOLDER}/{segment_name(0)}").write_at(size + 48, b"\xff")
    assert values(read_all(log)) == ["a", "c"]
    assert "unreadable" in notes[0]


def test_overlapping_segments_are_refused() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.append(records("a", "b", "c"))
    stray = disk.open(f"{FOLDER}/{segment_name(1)}", create=True)
    stray.append(BatchEncoder(Compression.NONE).encode(1, records("x")))
    with pytest.raises(LogError, match="overlaps"):
        open_log(disk)


def test_a_full_disk_refuses_the_append_and_leaves_no_part_of_it(lossy_disk: LossyDisk) -> None:
    log = open_log(lossy_disk)
    log.append(records("a"))
    size = lossy_disk.open(f"{FOLDER}/{segment_name(0)}").size
    for room in (0, 1, 43, 44, 49):
        lossy_disk.space_left = room
        with pytest.raises(LogError, match="No space left") as caught:
            log.append(records("b"))
        assert not caught.value.sticky
        assert lossy_disk.open(f"{FOLDER}/{segment_name(0)}").size == size
    lossy_disk.space_left = None
    assert log.append(records("b")) == 1
    assert values(read_all(open_log(lossy_disk))) == ["a", "b"]


def test_a_failed_sync_is_for_good_and_takes_the_unsynced_records_back(lossy_disk: LossyDisk) -> None:
    log = open_log(lossy_disk, segment_bytes=60)
    log.append(records("synced"))
    sync(log)
    for value in ("x", "y", "z"):
        log.append(records(value))
    lossy_disk.fail_syncs = True
    sync(log)
    lossy_disk.fail_syncs = False
    assert log.durable_offset == 1
    for _ in range(2):
        with pytest.raises(LogError, match="restart") as caught:
            log.append(records("later"))
        assert caught.value.sticky
    assert log.start_sync() is None
    assert values(read_all(open_log(lossy_disk, segment_bytes=60))) == ["synced"]


def test_a_sync_covers_what_was_written_before_it_started(lossy_disk: LossyDisk) -> None:
    log = open_log(lossy_disk)
    log.append(records("a"))
    task = log.start_sync()
    assert task is not None
    log.append(records("b"))
    assert log.start_sync() is None, "one at a time"
    task.run()
    log.finish_sync(None)
    assert log.durable_offset == 1
    sync(log)
    assert log.durable_offset == 2
    assert log.start_sync() is None, "nothing left"


def test_an_unreadable_disk_is_an_error_not_an_empty_log(lossy_disk: LossyDisk) -> None:
    log = open_log(lossy_disk)
    log.append(records("a"))
    lossy_disk.fail_reads = True
    with pytest.raises(LogError, match="cannot read"):
        log.read(0, 1)
    with pytest.raises(LogError, match="cannot read"):
        open_log(lossy_disk)


def test_a_closed_log_refuses() -> None:
    log = open_log(MemoryDisk())
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.append(records("a"))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("full"), st.integers(0, 80)),
        st.tuples(st.just("drop"), st.integers(0, 30)),
        st.tuples(st.just("kill"), st.just(0)),
        st.tuples(st.just("power"), st.integers(0, 2**31)),
    ),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_the_log_is_a_list_that_survives(lossy_disks: type[LossyDisk], steps: list[tuple[str, int]]) -> None:
    """Model: what was written, and which of it this process saw synced. Power loss may take any of the rest."""
    disk = lossy_disks()
    disk.make_folder("queues/q/partitions")
    for folder in ("", "queues", "queues/q"):
        disk.sync_folder(folder)
    log = open_log(disk, segment_bytes=150)
    model: dict[int, str] = {}
    fresh: set[int] = set()
    sure: set[int] = set()
    for number, (step, argument) in enumerate(steps):
        if step in ("append", "full"):
            new = [f"{number}.{index}" for index in range(argument if step == "append" else 1)]
            disk.space_left = argument if step == "full" else None
            base = log.next_offset
            try:
                assert log.append(records(*new)) == base
                model |= dict(enumerate(new, base))
                fresh |= set(range(base, base + len(new)))
            except LogError as error:
                assert step == "full"
                assert not error.sticky
            disk.space_left = None
        elif step == "sync":
            task = log.start_sync()
            if task is not None:
                task.run()
                log.finish_sync(None)
            assert log.durable_offset == log.next_offset
            sure |= fresh
        elif step == "drop":
            log.drop_before(argument)
            gone = set(range(log.start_offset))
            assert all(offset < argument for offset in gone & set(model)), "more was dropped than asked"
            model = {offset: value for offset, value in model.items() if offset not in gone}
            sure -= gone
        elif step == "kill":
            log = open_log(disk, segment_bytes=150)
            fresh = set()
        else:
            disk = disk.after_power_loss(random.Random(argument))
            log = open_log(disk, segment_bytes=150)
            survivors = {record.offset: (record.value or b"").decode() for record in read_all(log)}
            fresh = set()
            for offset in sure:
                assert survivors.get(offset) == model[offset], "a synced record is lost"
            # A removed segment may be back, since a removal needs no sync.
            model |= {offset: value for offset, value in survivors.items() if offset not in model}
            assert all(model[offset] == value for offset, value in survivors.items())
            model = survivors
        assert {record.offset: (record.value or b"").decode() for record in read_all(log)} == model
