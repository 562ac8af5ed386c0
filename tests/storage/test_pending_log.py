"""The pending-entry log of a group: replay, torn tails, damage, snapshots, failing disks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.core.queues.errors import LogError
from reference_broker.core.queues.store import PendingRecord
from reference_broker.storage import pending_log
from reference_broker.storage.disk import Disk
from reference_broker.storage.memory_disk import MemoryDisk
from reference_broker.storage.pending_log import PendingLogFile, encode_header, read_header

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


def test_operations_replay() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.add(0, 5, "c-1", 1_000, 1)
    log.add(0, 6, "c-1", 1_001, 1)
    log.add(2, 9, "ü", 1_002, 70_000)
    log.ack(0, 5)
    log.expire(0, 6, 5_000)
    log.flush()
    log.claim(0, 6, "c-2", 6_000)
    log.move_cursor(1, 44)
    log.claim(0, 999, "nobody", 6_000)
    log.ack(0, 999)
    log.flush()
    again = open_log(disk)
    assert again.recovered == [
        PendingRecord(0, 6, "c-2", 6_000, 5_000, 2),
        PendingRecord(2, 9, "ü", 1_002, 0, 65_535),
    ]
    assert again.recovered_cursors == {0: 7, 1: 44, 2: 10}


def test_the_bytes_are_these() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.add(3, 258, "c", 1, 2)
    log.ack(3, 258)
    log.flush()
    content = disk.open(PATH).read_at(0, 1_000)
    header = encode_header("g", "images/#")
    assert header[:8].hex() == "4650454c01000000"
    assert header[16:] == b"\x01g\x08images/#"
    frame = content[len(header) :]
    assert frame[:4] == (38).to_bytes(4, "little")
    assert frame[8:].hex() == (
        "01" + "0201000000000000" + "03000000" + "0163" + "0100000000000000" + "0200"
        "02" + "0201000000000000" + "03000000"
    )


def test_a_header_tells_group_and_pattern() -> None:
    header = encode_header("gruppe/ü", "a/+")
    assert read_header(header + b"more") == ("gruppe/ü", "a/+")
    for cut in range(len(header)):
        assert read_header(header[:cut]) is None
    for position in range(len(header)):
        if position not in (6, 7):
            damaged = bytearray(header)
            damaged[position] ^= 1
            assert read_header(bytes(damaged)) is None


def test_a_tail_torn_at_any_byte_loses_only_the_last_flush() -> None:
    whole = MemoryDisk()
    log = open_log(whole)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    before = whole.open(PATH).size
    log.ack(0, 0)
    log.flush()
    content = whole.open(PATH).read_at(0, 10_000)
    for cut in range(before, len(content)):
        disk = MemoryDisk()
        disk.make_folder("queues/q/consumers/g")
        disk.open(PATH, create=True).append(content[:cut])
        notes: list[str] = []
        recovered = open_log(disk, notes)
        assert [entry.offset for entry in recovered.recovered] == [0]
        assert bool(notes) == (cut > before)
        recovered.ack(0, 0)
        recovered.flush()
        assert open_log(disk).recovered == []


def test_a_file_cut_within_its_header_starts_anew() -> None:
    for cut in range(len(encode_header("g", "images/#"))):
        disk = MemoryDisk()
        disk.make_folder("queues/q/consumers/g")
        disk.open(PATH, create=True).append(encode_header("g", "images/#")[:cut])
        log = open_log(disk)
        log.add(0, 0, "c", 1, 1)
        log.flush()
        assert len(open_log(disk).recovered) == 1


def test_damage_in_the_middle_is_kept_and_what_it_settled_comes_again() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    start = disk.open(PATH).size
    log.ack(0, 0)
    log.flush()
    log.add(0, 1, "c", 1, 1)
    log.flush()
    content = disk.open(PATH).read_at(0, 10_000)
    disk.open(PATH).write_at(start + 10, b"\xff")
    notes: list[str] = []
    recovered = open_log(disk, notes)
    assert [entry.offset for entry in recovered.recovered] == [0]
    assert recovered.recovered_cursors == {0: 1}, "offset 1 is not passed over"
    kept = disk.open(PATH + ".corrupt")
    assert kept.size == len(content) - start
    assert "corrupt" in notes[0]


def test_a_damaged_header_is_kept_beside_a_new_log() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    disk.open(PATH).write_at(20, b"\xff\xff")
    notes: list[str] = []
    assert open_log(disk, notes).recovered == []
    assert disk.exists(PATH + ".corrupt")
    assert "header" in notes[0]


def test_an_unknown_operation_is_damage_not_a_crash() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log._operations.append(b"\x09" + bytes(12))
    log.flush()
    notes: list[str] = []
    assert open_log(disk, notes).recovered == []
    assert "unknown operation 9" in notes[0]


def test_a_full_disk_keeps_the_operations_for_the_next_flush(lossy_disk: LossyDisk) -> None:
    log = open_log(lossy_disk)
    log.add(0, 0, "c", 1, 1)
    size = lossy_disk.open(PATH).size
    for room in (0, 3, 20):
        lossy_disk.space_left = room
        with pytest.raises(LogError, match="No space left") as caught:
            log.flush()
        assert not caught.value.sticky
        assert lossy_disk.open(PATH).size == size
        assert log.has_unflushed
    lossy_disk.space_left = None
    log.flush()
    assert not log.has_unflushed
    assert len(open_log(lossy_disk).recovered) == 1


def test_a_failed_sync_is_for_good(lossy_disk: LossyDisk) -> None:
    log = open_log(lossy_disk)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    lossy_disk.fail_syncs = True
    sync(log)
    lossy_disk.fail_syncs = False
    log.ack(0, 0)
    with pytest.raises(LogError, match="restart") as caught:
        log.flush()
    assert caught.value.sticky
    assert log.start_sync() is None


def test_a_snapshot_replaces_the_log_and_keeps_what_is_pending(
    lossy_disk: LossyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_log, "_MIN_COMPACT_BYTES", 2_000)
    prepare(lossy_disk)
    log = open_log(lossy_disk)
    entries = [PendingRecord(1, 7, "c", 10, 0, 3), PendingRecord(1, 8, "", 10, 99, 4)]
    while not log.wants_snapshot:
        log.add(0, 0, "c", 1, 1)
        log.ack(0, 0)
        log.flush()
    before = lossy_disk.open(PATH).size
    log.write_snapshot({0: 1, 1: 9, 2: 3}, entries)
    assert lossy_disk.open(PATH).size < before / 5
    assert not log.wants_snapshot
    log.ack(1, 7)
    log.flush()
    sync(log)
    recovered = open_log(lossy_disk.after_power_loss(random.Random(1)))
    assert recovered.recovered == [entries[1]]
    assert recovered.recovered_cursors == {0: 1, 1: 9, 2: 3}


@pytest.mark.parametrize("room", [0, 10, 60])
def test_a_snapshot_that_fails_leaves_the_old_log(lossy_disk: LossyDisk, room: int) -> None:
    log = open_log(lossy_disk)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    lossy_disk.space_left = room
    with pytest.raises(LogError):
        log.write_snapshot({0: 1}, [PendingRecord(0, 0, "c" * 100, 1, 0, 1)])
    lossy_disk.space_left = None
    log.add(0, 1, "c", 1, 1)
    log.flush()
    assert [entry.offset for entry in open_log(lossy_disk).recovered] == [0, 1]
    assert not lossy_disk.exists(PATH + ".tmp"), "the leftover is cleaned up at opening"


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "ack", "claim", "expire"]), st.integers(0, 2), st.integers(0, 5)), max_size=30
)


@given(OPERATIONS, st.integers(0, 2**31), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_power_loss_keeps_every_synced_operation(
    lossy_disks: type[LossyDisk], operations: list[tuple[str, int, int]], seed: int, synced: int
) -> None:
    """Whatever survives is the state after some prefix of the flushes that holds at least the synced ones."""
    disk = lossy_disks()
    prepare(disk)
    log = open_log(disk)
    sync(log)
    states = [[]]
    model: dict[tuple[int, int], int] = {}
    for number, (operation, partition, offset) in enumerate(operations):
        place = (partition, offset)
        if operation == "add":
            log.add(partition, offset, "c", 1, 1)
            model[place] = 1
        elif operation == "ack":
            log.ack(partition, offset)
            model.pop(place, None)
        elif operation == "claim":
            log.claim(partition, offset, "d", 2)
            if place in model:
                model[place] += 1
        else:
            log.expire(partition, offset, 3)
        log.flush()
        if number < synced:
            sync(log)
        states.append(sorted((*key, count) for key, count in model.items()))
    found = open_log(disk.after_power_loss(random.Random(seed))).recovered
    survived = [(entry.partition, entry.offset, entry.delivery_count) for entry in found]
    assert survived in states[min(synced, len(operations)) :]
