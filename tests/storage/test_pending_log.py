"""The state of a group on disk: operations, torn tails, damage, older versions, snapshots, failing disks."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.pending_codec import decode_header, encode_header
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


HEADER = encode_header("g", "images/#")


def content(disk: Disk, path: str = PATH) -> bytes:
    file = disk.open(path)
    return file.read_at(0, file.size)


def disk_with(log: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_folder("queues/q/consumers/g")
    disk.open(PATH, create=True).append(log)
    return disk


def take_snapshot(log: PendingLogFile, cursors: dict[int, CursorRecord], entries: list[PendingRecord]) -> None:
    """Through all of its steps."""
    log.begin_snapshot(cursors, entries, 1_234)
    while log.continue_snapshot():
        pass
    while log.needs_sync:
        sync(log)


def test_operations_replay() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.add(0, 5, "c-1", 1_000, 1)
    log.add(0, 6, "c-1", 1_001, 1)
    log.add(2, 9, "ü", 1_002, 70_000)
    log.ack(0, 5)
    log.expire(0, 6, 5_000)
    log.flush()
    assert open_log(disk).recovered[0] == PendingRecord(0, 6, "c-1", 1_001, 5_000, 1)
    log.claim(0, 6, "c-2", 6_000, 2)
    log.move_cursor(1, 44)
    log.claim(0, 999, "nobody", 6_000, 4)
    log.expire(0, 999, 6_000)
    log.ack(0, 999)
    log.flush()
    again = open_log(disk)
    assert again.recovered == [PendingRecord(0, 6, "c-2", 6_000, 0, 2), PendingRecord(2, 9, "ü", 1_002, 0, 65_535)]
    assert again.recovered_cursors == {0: 7, 1: 44, 2: 10}


def test_the_bytes_are_these() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.add(3, 258, "c", 1, 2)
    log.ack(3, 258)
    log.claim(3, 259, "d", 2, 3)
    log.expire(3, 259, 4)
    log.move_cursor(3, 260)
    log.flush()
    found = content(disk)
    assert HEADER[:12].hex() == "4650454c030000000d000000"
    assert HEADER[16:] == b"\x01g\x08images/#\0\0"
    assert HEADER[12:16] == struct.pack("<I", crc32c(HEADER[:12] + HEADER[16:]))
    frame = found[len(HEADER) :]
    payload = bytes.fromhex(
        "01"
        "0201000000000000"
        "03000000"
        "0163"
        "0100000000000000"
        "0200"
        "02"
        "0201000000000000"
        "03000000"
        "03"
        "0301000000000000"
        "03000000"
        "0164"
        "0200000000000000"
        "0300"
        "04"
        "0301000000000000"
        "03000000"
        "0400000000000000"
        "05"
        "0401000000000000"
        "03000000"
    )
    assert frame == struct.pack("<II", len(payload), crc32c(payload)) + payload


def test_runs_and_ranges_are_one_operation() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for offset in range(100, 200):
        log.add(1, offset, "c", 7, 1)
    log.flush()
    start = len(HEADER)
    assert content(disk)[start + 8 :].hex() == ("0864000000000000000100000001630700000000000000010064")
    start = disk.open(PATH).size
    for offset in (*range(100, 150), 153, *range(150, 153), 199, 180, 180):
        log.ack(1, offset)
    log.flush()
    assert content(disk)[start + 8 :].hex() == "066400000000000000010000000300361a011201"
    assert [entry.offset for entry in open_log(disk).recovered] == [*range(154, 180), *range(181, 199)]


def test_batch_acks() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for offset in range(20):
        log.add(offset % 2, offset, "c", 7, 1)
    log.ack_many(0, [(10, 2**64 - 1), (3, 3)])
    log.ack_many(1, [(6, 8), (0, 2), (1, 4)])
    log.ack_many(1, [])
    log.flush()
    assert [entry.offset for entry in open_log(disk).recovered] == [0, 2, 4, 6, 8, 5, 9, 11, 13, 15, 17, 19]
    for impossible in ([(-1, 2)], [(5, 2**64)]):
        with pytest.raises(ValueError, match="between 0 and"):
            log.ack_many(1, impossible)
    assert not log.has_unflushed


def test_many_ranges_take_several_operations() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for offset in range(30_000):
        log.add(0, offset, "c", 7, 1)
    for offset in range(0, 30_000, 3):
        log.ack(0, offset)
    log.flush()
    assert len(open_log(disk).recovered) == 20_000


def test_the_order_of_operations_is_kept() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    log.ack(0, 0)
    log.add(0, 0, "c", 1, 1)
    log.add(0, 1, "c", 1, 1)
    log.ack(0, 1)
    log.add(0, 2, "c", 1, 1)
    log.move_cursor(0, 9)
    log.flush()
    assert [entry.offset for entry in open_log(disk).recovered] == [0, 2]
    assert open_log(disk).recovered_cursors == {0: 9}


def test_names_that_make_a_frame_too_large_go_to_frames_of_their_own() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for offset in range(300):
        log.add(0, offset, "c" * 65_000 + str(offset), 1, 1)
    log.flush()
    assert len(open_log(disk).recovered) == 300


def test_a_header_tells_group_and_pattern() -> None:
    header = encode_header("gruppe/ü", "a/+", sequence=300, previous_bytes=2**40)
    sound = decode_header(header + b"more")
    assert sound is not None
    assert (sound.group, sound.pattern) == ("gruppe/ü", "a/+")
    for cut in range(len(header)):
        assert decode_header(header[:cut]) is None
    for bit in range(8 * len(header)):
        damaged = bytearray(header)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_header(bytes(damaged)) is None


def test_an_unknown_version_is_a_clear_error_and_nothing_is_touched() -> None:
    start = struct.pack("<IHHI", 0x4C455046, 4, 0, 4)
    log = start + struct.pack("<I", crc32c(start + b"\x01g\0\0")) + b"\x01g\0\0" + b"more"
    disk = disk_with(log)
    with pytest.raises(LogError, match=r"g\.pel\.log.*version 4.*versions 1 to 3"):
        open_log(disk)
    assert content(disk) == log


def test_a_tail_torn_at_any_byte_loses_only_the_last_flush() -> None:
    whole = MemoryDisk()
    log = open_log(whole)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    before = whole.open(PATH).size
    log.ack(0, 0)
    log.flush()
    written = content(whole)
    for cut in range(before, len(written)):
        disk = disk_with(written[:cut])
        notes: list[str] = []
        recovered = open_log(disk, notes)
        assert [entry.offset for entry in recovered.recovered] == [0]
        assert bool(notes) == (cut > before)
        assert not disk.exists(PATH + ".corrupt")
        recovered.ack(0, 0)
        recovered.flush()
        assert open_log(disk).recovered == []


def test_a_file_cut_within_its_header_starts_anew() -> None:
    for start in (*(HEADER[:cut] for cut in range(len(HEADER))), bytes(500)):
        disk = disk_with(start)
        notes: list[str] = []
        log = open_log(disk, notes)
        log.add(0, 0, "c", 1, 1)
        log.flush()
        assert len(open_log(disk).recovered) == 1
        assert not notes


def damaged_in_the_middle(position: int) -> tuple[MemoryDisk, int]:
    """A log whose second of three frames has a wrong byte at a position; also where that frame starts."""
    disk = MemoryDisk()
    log = open_log(disk)
    log.add(0, 0, "c", 1, 1)
    log.flush()
    start = disk.open(PATH).size
    log.ack(0, 0)
    log.flush()
    log.add(0, 1, "c", 1, 1)
    log.flush()
    disk.open(PATH).write_at(start + position, bytes([content(disk)[start + position] ^ 0xFF]))
    return disk, start


@pytest.mark.parametrize("position", [0, 2, 3, 5, 10])
def test_damage_in_the_middle_is_kept_and_what_it_settled_comes_again(position: int) -> None:
    disk, start = damaged_in_the_middle(position)
    damaged = content(disk)
    notes: list[str] = []
    recovered = open_log(disk, notes)
    assert [entry.offset for entry in recovered.recovered] == [0]
    assert recovered.recovered_cursors == {0: 1}, "offset 1 is not passed over"
    assert content(disk, PATH + ".corrupt") == damaged[start:]
    assert "sound frames follow" in notes[0]
    assert open_log(disk).recovered == recovered.recovered


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
    log._operations.append(b"\x63" + bytes(12))
    log.flush()
    notes: list[str] = []
    assert open_log(disk, notes).recovered == []
    assert "unknown operation 99" in notes[0]


# -- version 1 ---------------------------------------------------------------------------------------------------


def version_1_log() -> bytes:
    """As this broker wrote it before: a claim meant one delivery more, the checksum left the first bytes out."""
    names = b"\x01g\x08images/#"
    header = struct.pack("<IHHII", 0x4C455046, 1, 0, len(names), crc32c(names)) + names
    frames = b""
    for payload in (
        struct.pack("<BQI2sQH", 1, 5, 0, b"\x01c", 10, 1) + struct.pack("<BQI2sQH", 1, 6, 0, b"\x01c", 10, 2),
        struct.pack("<BQIQ", 4, 6, 0, 99) + struct.pack("<BQI2sQ", 3, 6, 0, b"\x01d", 20),
        struct.pack("<BQI", 2, 5, 0) + struct.pack("<BQI", 5, 8, 3),
    ):
        frames += struct.pack("<II", len(payload), crc32c(payload)) + payload
    return header + frames


def test_a_log_of_version_1_goes_on_in_todays() -> None:
    disk = disk_with(version_1_log() + b"torn")
    disk.open(PATH + ".tmp", create=True).append(b"unfinished")
    log = open_log(disk)
    entry = PendingRecord(0, 6, "d", 20, 0, 3)
    assert log.recovered == [entry]
    assert log.recovered_cursors == {0: 7, 3: 8}
    assert not disk.exists(PATH + ".tmp")
    log.claim(0, 6, "e", 30, 4)
    log.flush()
    sync(log)
    assert content(disk) == version_1_log(), "its format cannot take the new operation"
    log = open_log(disk)
    assert log.recovered == [entry._replace(consumer="e", claimed_at_ms=30, delivery_count=4)]
    sync(log)
    assert log.wants_snapshot(1), "to be rid of it"
    take_snapshot(log, {0: CursorRecord(7, 6), 3: CursorRecord(8, 8)}, log.recovered)
    assert content(disk)[4:6] == b"\3\0"
    assert not disk.exists(PATH + ".next")
    assert not log.wants_snapshot(1)
    again = open_log(disk)
    assert (again.recovered, again.recovered_cursors) == (log.recovered, log.recovered_cursors)


# -- failing disks -----------------------------------------------------------------------------------------------


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
        log.ack(0, 0)
        log.add(0, room + 1, "c", 1, 1)
    lossy_disk.space_left = None
    log.flush()
    assert not log.has_unflushed
    assert [entry.offset for entry in open_log(lossy_disk).recovered] == [1, 4, 21]


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


def test_a_disk_that_cannot_be_read_says_which_file(lossy_disk: LossyDisk) -> None:
    open_log(lossy_disk).close()
    lossy_disk.fail_reads = True
    with pytest.raises(LogError, match=r"cannot open .*g\.pel\.log"):
        open_log(lossy_disk)


def test_a_closed_log_refuses_work() -> None:
    log = open_log(MemoryDisk())
    log.close()
    log.close()
    log.add(0, 0, "c", 1, 1)
    with pytest.raises(LogError, match="closed"):
        log.flush()
