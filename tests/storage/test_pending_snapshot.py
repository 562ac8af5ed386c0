"""Snapshots of a group's state: when they are taken, and what a group's files lead to when one of them is damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.pending_codec import encode_header
from assay.reference_broker.storage.pending_log import PendingLogFile

if TYPE_CHECKING:
    from tests.storage.conftest import LossyDisk

PATH = "queues/q/consumers/g/g.pel.log"


def open_log(disk: Disk, notes: list[str] | None = None) -> PendingLogFile:
    disk.make_folder("queues/q/consumers/g")
    kept = notes if notes is not None else []
    return PendingLogFile(
        disk,
        PATH,
        group="g",
        pattern="images/#",
        volatile=False,
        note=lambda place, problem: kept.append(f"{place}: {problem}"),
    )


def prepare(disk: LossyDisk) -> None:
    """What creating the queue makes durable."""
    disk.make_folder("queues/q/consumers/g")
    for folder in ("", "queues", "queues/q"):
        disk.sync_folder(folder)


def sync(log: PendingLogFile) -> None:
    task = log.start_sync()
    assert task is not None
    try:
        task.run()
    except OSError as error:
        log.finish_sync(error)
    else:
        log.finish_sync(None)


def content(disk: Disk, path: str = PATH) -> bytes:
    file = disk.open(path)
    return file.read_at(0, file.size)


def take_snapshot(log: PendingLogFile, cursors: dict[int, CursorRecord], entries: list[PendingRecord]) -> None:
    """Through all of its steps."""
    log.begin_snapshot(cursors, entries, 1_234)
    while log.continue_snapshot():
        pass
    while log.needs_sync:
        sync(log)


PEL, CUR = "queues/q/consumers/g/g.pel", "queues/q/consumers/g/g.cur"


@pytest.fixture
def snapshot() -> MemoryDisk:
    """A snapshot of two entries, and three operations behind it: one entry and an ack of partition 1, one skip."""
    disk = MemoryDisk()
    log = open_log(disk)
    sync(log)
    for offset in range(10):
        log.add(1, offset, "c", 10, 3)
    log.ack_many(1, [(0, 6), (9, 10)])
    log.move_cursor(2, 30)
    log.expire(1, 8, 99)
    log.ack(1, 7)
    log.flush()
    entries = [PendingRecord(1, 6, "c", 10, 0, 3), PendingRecord(1, 8, "", 10, 99, 3)]
    take_snapshot(log, {1: CursorRecord(10, 6), 2: CursorRecord(30, 30)}, entries)
    log.add(1, 10, "d", 20, 1)
    log.ack(1, 6)
    log.move_cursor(2, 31)
    log.flush()
    return disk


AFTER = [PendingRecord(1, 8, "", 10, 99, 3), PendingRecord(1, 10, "d", 20, 0, 1)]


def test_a_snapshot_and_the_log_after_it_are_the_state(snapshot: MemoryDisk) -> None:
    assert snapshot.list("queues/q/consumers/g") == ["g.cur", "g.group", "g.pel", "g.pel.log"]
    notes: list[str] = []
    log = open_log(snapshot, notes)
    assert log.recovered == AFTER
    assert log.recovered_cursors == {1: 11, 2: 31}
    assert not notes
    sync(log)
    assert not log.wants_snapshot(2)


def test_a_snapshot_follows_ten_thousand_operations_and_two_per_entry() -> None:
    log = open_log(MemoryDisk())
    for count, wanted in ((9_999, False), (1, True)):
        log.ack_many(0, [(0, count)])
        log.flush()
        assert not log.wants_snapshot(0) or wanted
        if log.needs_sync:
            sync(log)
        assert log.wants_snapshot(0) == wanted
    assert log.wants_snapshot(5_000)
    assert not log.wants_snapshot(5_001)


def test_operations_are_counted_exactly_also_by_who_reads_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and ranges by their offsets, whatever the flushes; a snapshot follows as many of them, and no fewer."""
    disk = MemoryDisk()
    log = open_log(disk)
    steps: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: log.add(0, 0, "c", 7, 1)),
        (5, lambda: log.add_run(0, 1, 6, "c", 7)),
        (1, lambda: log.ack(0, 3)),
        (4, lambda: log.ack_all(0, (0, 1, 2, 4))),
        (2, lambda: log.ack_all(1, (10, 1_000))),
        (7, lambda: log.ack_many(0, ((20, 25), (30, 32)))),
        (1, lambda: log.claim(0, 5, "d", 8, 2)),
        (1, lambda: log.expire(0, 5, 9)),
        (1, lambda: log.move_cursor(1, 2_000)),
    ]
    total = 0
    for flushes in (True, False):
        for count, step in steps:
            step()
            total += count
            if flushes:
                log.flush()
        log.flush()
        for again in (log, open_log(disk)):
            while again.needs_sync:
                sync(again)
            for most, wants in ((total, True), (total + 1, False)):
                monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", most)
                assert again.wants_snapshot(0) == wants
                assert not again.wants_snapshot(total)


def test_no_snapshot_before_names_are_durable_nor_while_one_is_under_way() -> None:
    log = open_log(MemoryDisk())
    log.ack_many(0, [(0, 20_000)])
    log.flush()
    assert not log.wants_snapshot(0), "the log's own name is not durable yet"
    sync(log)
    assert log.wants_snapshot(0)
    log.begin_snapshot({}, [], 1)
    for _ in range(3):
        assert not log.wants_snapshot(0)
        log.continue_snapshot()
        sync(log)
    log.ack(0, 1)
    log.flush()
    assert not log.wants_snapshot(0)


def test_what_is_not_flushed_is_in_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.storage.pending_snapshot.ENTRIES_PER_STEP", 1)
    disk = MemoryDisk()
    log = open_log(disk)
    sync(log)
    taken: list[int] = []

    def entries() -> Iterator[PendingRecord]:
        for offset in range(2):
            taken.append(offset)
            yield PendingRecord(0, offset, "c", 1, 0, 1)

    log.add(0, 0, "c", 1, 1)
    log.begin_snapshot({0: CursorRecord(1, 0)}, entries(), 1)
    assert not log.continue_snapshot(), "it did not begin"
    log.flush()
    log.begin_snapshot({0: CursorRecord(1, 0)}, entries(), 1)
    assert log.continue_snapshot()
    log.add(0, 1, "c", 1, 1)
    assert log.continue_snapshot()
    assert taken == [0]
    log.flush()
    assert log.continue_snapshot()
    assert not log.continue_snapshot()
    assert taken == [0, 1]


def test_a_damaged_pel_is_kept_and_what_cur_does_not_call_settled_comes_again(snapshot: MemoryDisk) -> None:
    snapshot.open(PEL).write_at(30, b"\0")
    notes: list[str] = []
    log = open_log(snapshot, notes)
    assert [(entry.partition, entry.offset) for entry in log.recovered] == [(1, 7), (1, 8), (1, 9), (1, 10)]
    assert log.recovered_cursors == {1: 11, 2: 31}
    assert snapshot.exists(PEL + ".corrupt")
    assert "g.pel: unusable" in notes[0]
    again = open_log(snapshot, notes)
    assert again.recovered == log.recovered, "also when it is only missing"
    sync(again)
    assert again.wants_snapshot(4)
    take_snapshot(again, {1: CursorRecord(11, 7), 2: CursorRecord(31, 31)}, again.recovered)
    del notes[:]
    assert open_log(snapshot, notes).recovered == log.recovered
    assert not notes


def test_a_damaged_cur_is_kept_and_cursors_are_no_higher_than_what_is_known(snapshot: MemoryDisk) -> None:
    snapshot.open(CUR).truncate(20)
    notes: list[str] = []
    log = open_log(snapshot, notes)
    assert log.recovered == AFTER
    assert log.recovered_cursors == {1: 11, 2: 31}
    assert snapshot.exists(CUR + ".corrupt")
    # Without the log, only what is pending tells how far deliveries went.
    snapshot.open(PATH).truncate(len(encode_header("g", "images/#", sequence=1, previous_bytes=400)))
    assert open_log(snapshot).recovered_cursors == {1: 9}


def test_without_any_snapshot_the_group_starts_anew(snapshot: MemoryDisk) -> None:
    whole = content(snapshot)
    snapshot.open(CUR).truncate(20)
    snapshot.open(PEL).truncate(20)
    notes: list[str] = []
    log = open_log(snapshot, notes)
    assert (log.recovered, log.recovered_cursors) == ([], {})
    assert content(snapshot, PATH + ".corrupt") == whole
    log.add(0, 0, "c", 1, 1)
    log.flush()
    assert len(open_log(snapshot).recovered) == 1


def test_too_much_that_may_be_unsettled_is_not_listed(snapshot: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.storage.pending_recovery._MAX_ASSUMED", 3)
    snapshot.remove(PEL)
    log = open_log(snapshot)
    assert (log.recovered, log.recovered_cursors) == ([], {}), "all of it comes again"


@pytest.mark.parametrize("path", [PEL, CUR])
def test_a_snapshot_of_an_unknown_version_is_a_clear_error(snapshot: MemoryDisk, path: str) -> None:
    newer = content(snapshot, path).replace(b'"version": 1', b'"version": 2')
    snapshot.open(path).write_at(0, newer)
    with pytest.raises(LogError, match=r"g\.(pel|cur): it has version 2"):
        open_log(snapshot)
    assert content(snapshot, path) == newer


def test_a_lost_log_leaves_the_snapshot(snapshot: MemoryDisk) -> None:
    snapshot.remove(PATH)
    log = open_log(snapshot)
    assert [entry.offset for entry in log.recovered] == [6, 8]
    assert log.recovered_cursors == {1: 10, 2: 30}
    log.ack(1, 8)
    log.flush()
    assert [entry.offset for entry in open_log(snapshot).recovered] == [6]


def test_the_next_log_is_put_aside_when_the_one_before_it_is_damaged() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    sync(log)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    place = disk.open(PATH).size
    log.add(0, 1, "c", 1, 1)
    log.flush()
    log.begin_snapshot({0: CursorRecord(2, 0)}, [], 1)
    log.add(0, 2, "c", 1, 1)
    log.flush()
    sync(log)
    assert [entry.offset for entry in open_log(disk).recovered] == [0, 1, 2]
    disk.open(PATH).write_at(place + 20, b"\xff")
    notes: list[str] = []
    recovered = open_log(disk, notes)
    assert [entry.offset for entry in recovered.recovered] == [0]
    assert recovered.recovered_cursors == {0: 1}, "no cursor passes over a delivery that is not known"
    assert disk.exists(PATH + ".next.corrupt")
    assert len(notes) == 2


def test_a_log_found_under_both_names_is_one_log() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    sync(log)
    log.begin_snapshot({}, [], 1)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    log.continue_snapshot()
    while log.needs_sync:
        sync(log)
    disk.open(PATH + ".next", create=True).append(content(disk))
    notes: list[str] = []
    assert len(open_log(disk, notes).recovered) == 1
    assert not disk.exists(PATH + ".next")
    assert not notes


def test_knowledge_of_offsets_that_are_given_out_again_is_dropped_durably(lossy_disk: LossyDisk) -> None:
    prepare(lossy_disk)
    log = open_log(lossy_disk)
    for offset in range(6):
        log.add(0, offset, "c", 1, 1)
        log.add(1, offset, "c", 1, 1)
    log.ack(0, 4)
    log.flush()
    log.rewind({0: 3, 7: 5})
    again = open_log(lossy_disk.after_power_loss(random.Random(1)))
    assert [entry.offset for entry in again.recovered if entry.partition == 0] == [0, 1, 2]
    assert again.recovered_cursors == {0: 3, 1: 6}
    lossy_disk.fail_syncs = True
    with pytest.raises(LogError, match="restart"):
        log.rewind({0: 2})


def test_memory_keeps_no_log() -> None:
    disk = MemoryDisk()
    disk.make_folder("queues/q/consumers/g")
    log = PendingLogFile(disk, PATH, group="g", pattern="", volatile=True, note=lambda place, problem: None)
    size = disk.open(PATH).size
    for offset in range(20_000):
        log.add(0, offset, "c", 1, 1)
        log.ack(0, offset)
    before = log.has_unflushed
    log.flush()
    assert (before, log.has_unflushed) == (True, False)
    assert disk.open(PATH).size == size
    assert not log.wants_snapshot(0)
    assert log.start_sync() is None


class RecordingDisk(MemoryDisk):
    """Remembers in which order names change."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def rename(self, source: str, destination: str) -> None:
        self.calls.append(f"rename to {destination.rpartition('/')[2]}")
        super().rename(source, destination)

    def sync_folder(self, path: str) -> None:
        self.calls.append("sync folder")
        super().sync_folder(path)


def test_entries_are_placed_before_cursors_and_both_before_the_new_log() -> None:
    """Newer cursors with older entries would pass over messages if the log were damaged as well."""
    disk = RecordingDisk()
    log = open_log(disk)
    while log.needs_sync:
        sync(log)
    del disk.calls[:]
    take_snapshot(log, {0: CursorRecord(1, 1)}, [])
    folder_of_the_next_log, *calls = disk.calls
    assert folder_of_the_next_log == "sync folder"
    assert calls == ["rename to g.pel", "rename to g.cur", "sync folder", "rename to g.pel.log", "sync folder"]


@pytest.mark.parametrize("header_is_whole", [True, False])
def test_an_unusable_next_log_is_put_away_durably_before_the_log_goes_on(header_is_whole: bool) -> None:
    """Otherwise it might come back when the log has grown to the size at which it would seem to continue it."""
    disk = RecordingDisk()
    log = open_log(disk)
    sync(log)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    log.begin_snapshot({0: CursorRecord(1, 0)}, [], 1)
    log.add(0, 1, "c", 1, 1)
    log.flush()
    position = disk.open(PATH).size - 1 if header_is_whole else 5
    disk.open(PATH).write_at(position, b"x")
    del disk.calls[:]
    notes: list[str] = []
    assert open_log(disk, notes).recovered == []
    assert disk.calls == ["rename to g.pel.log.next.corrupt", "sync folder"]
    assert ".next" in notes[0 if header_is_whole else 1]
