"""Every bit of every file of a small log, flipped: damage is seen, reported and skipped; hints stay hints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage import offset_index, time_index
from assay.reference_broker.storage.compaction import Compactor
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.segment_scan import SoundBatch, walk_batches
from assay.sim.disk import SimDisk
from assay.sim.log_life import FOLDER, POLICY, encoder, open_log, read_all, sync, time_disagreements

SEGMENT = f"{FOLDER}/{0:020d}.seg"
OPTIONS = LogOptions(segment_bytes=100_000, segment_age_ms=0)
SMALL = LogOptions(segment_bytes=600, segment_age_ms=0)


class Written(NamedTuple):
    """A log in one segment: its files, its records, and the batch of each offset as a byte range."""

    files: dict[str, bytes]
    records: list[LogRecord]
    ranges: list[tuple[int, int]]


def files_of(disk: SimDisk) -> dict[str, bytes]:
    files = {}
    for name in disk.list(FOLDER):
        file = disk.open(f"{FOLDER}/{name}")
        files[f"{FOLDER}/{name}"] = file.read_at(0, file.size)
        file.close()
    return files


def disk_with(files: dict[str, bytes]) -> SimDisk:
    return SimDisk.holding(files, {"", FOLDER})


def flips(files: dict[str, bytes], path: str) -> Iterator[tuple[int, dict[str, bytes]]]:
    """(byte position, the files with one bit of it flipped), for every bit."""
    data = files[path]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            yield position, files | {path: bytes(flipped)}


def write(compression: Compression) -> Written:
    disk = disk_with({})
    log = open_log(disk, options=OPTIONS, compression=compression)
    for number in range(5):
        value = b"batch %d " % number * (14 if compression is not Compression.NONE else 1)
        log.append([NewRecord(1_000 * number + 7 * n, b"k%d" % n, value, ((b"h", b"v"),)) for n in range(3)])
    sync(log)
    records = read_all(log)
    log.close()
    ranges: list[tuple[int, int]] = []
    for batch in walk_batches(disk.open(SEGMENT), 0):
        assert isinstance(batch, SoundBatch)
        assert bool(batch.header.flags & 1) == (compression is not Compression.NONE)
        ranges += [(batch.position, batch.position + len(batch.data))] * batch.header.record_count
    return Written(files_of(disk), records, ranges)


@pytest.fixture(scope="module", params=[Compression.NONE, Compression.ZSTD, Compression.S2])
def written(request: pytest.FixtureRequest) -> Written:
    return write(request.param)


def survivors(written: Written, position: int) -> list[LogRecord]:
    """The records whose batch does not hold that byte."""
    return [
        record
        for record, (start, end) in zip(written.records, written.ranges, strict=True)
        if not start <= position < end
    ]


def test_opening_finds_every_flip_and_what_is_sound_can_be_read(written: Written) -> None:
    """Nothing is known of the segment but its bytes. A flip in the last batch makes it a torn tail."""
    alone = {SEGMENT: written.files[SEGMENT]}
    count = 0
    for position, files in flips(alone, SEGMENT):
        notes: list[str] = []
        log = open_log(disk_with(files), options=OPTIONS, notes=notes)
        assert len(notes) == 1, f"byte {position} of {SEGMENT}: {notes}"
        assert "corrupt" in notes[0] or "torn tail" in notes[0]
        assert read_all(log) == survivors(written, position), f"byte {position}"
        count += 1
    assert count == 8 * len(written.files[SEGMENT])


def test_a_durable_batch_that_is_damaged_is_never_cut_off(written: Written) -> None:
    """With the mark: opening keeps the file as it is, and goes on behind the offsets that were confirmed."""
    files = {path: data for path, data in written.files.items() if not path.endswith(("idx", "tix"))}
    for position, flipped in flips(files, SEGMENT):
        disk = disk_with(flipped)
        notes: list[str] = []
        log = open_log(disk, options=OPTIONS, notes=notes)
        assert notes, f"byte {position}"
        assert log.next_offset == len(written.records), f"byte {position}"
        log.append([NewRecord(0, None, b"more", ())])
        assert disk.open(SEGMENT).read_at(0, 100_000)[: len(flipped[SEGMENT])] == flipped[SEGMENT]
        assert read_all(log)[:-1] == survivors(written, position), f"byte {position}"


def test_damage_that_comes_while_the_log_is_open_is_met_by_reading(written: Written) -> None:
    for position, flipped in flips(written.files, SEGMENT):
        disk = disk_with(written.files)
        notes: list[str] = []
        log = open_log(disk, options=OPTIONS, notes=notes)
        assert not notes
        disk.open(SEGMENT).write_at(position, flipped[SEGMENT][position : position + 1])
        expected = survivors(written, position)
        assert read_all(log) == expected, f"byte {position}"
        assert "unreadable" in notes[0], f"byte {position}"
        assert [record for offset in range(15) if (record := log.get(offset))] == expected, f"byte {position}"


@pytest.fixture
def dense_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_index, "INDEX_INTERVAL_BYTES", 80)
    monkeypatch.setattr(time_index, "TIME_INTERVAL_MS", 1_000)


def several_segments() -> tuple[dict[str, bytes], list[LogRecord]]:
    """Three segments with index files, times that stand still and step back, and a clean end."""
    disk = disk_with({})
    log = open_log(disk, options=SMALL)
    time_ms = 10_000
    for number in range(24):
        time_ms += (0, 700, 1_900, -600, 450, 0)[number % 6]
        log.append([NewRecord(time_ms, b"%d" % (number % 5), b"value %d" % number, ()) for _ in range(1 + number % 3)])
    sync(log)
    records = read_all(log)
    log.close()
    return files_of(disk), records


def assert_right(files: dict[str, bytes], records: list[LogRecord], where: str) -> SegmentedLog:
    log = open_log(disk_with(files), options=SMALL)
    assert list(time_disagreements(log, records, samples=len(records))) == [], where
    assert read_all(log, limit=1) == records, where
    assert [log.get(record.offset) for record in records] == records, where
    return log


@pytest.mark.parametrize("suffix", ["idx", "tix"])
@pytest.mark.usefixtures("dense_indexes")
def test_a_flip_in_an_index_changes_no_answer(suffix: str) -> None:
    files, records = several_segments()
    paths = [path for path in files if path.endswith(suffix)]
    assert len(paths) >= 3
    assert len(files[paths[0]]) > 70, "the index has several entries"
    for path in (paths[0], paths[-1]):
        for position, flipped in flips(files, path):
            assert_right(flipped, records, f"byte {position} of {path}")


@pytest.mark.usefixtures("dense_indexes")
def test_a_cut_index_changes_no_answer() -> None:
    files, records = several_segments()
    for path in [path for path in files if path.endswith(("idx", "tix"))][:4]:
        for size in range(len(files[path])):
            assert_right(files | {path: files[path][:size]}, records, f"{path} cut to {size} bytes")


@pytest.mark.usefixtures("dense_indexes")
def test_a_flip_in_the_mark_changes_no_answer() -> None:
    """Each bit of its two slots; what lies between them is never looked at."""
    files, records = several_segments()
    path = f"{FOLDER}/durable.mark"
    assert files[path][40:512] == bytes(472)
    assert len(files[path]) == 552
    for position, flipped in flips(files, path):
        if 40 <= position < 511:
            continue
        log = assert_right(flipped, records, f"byte {position} of the mark")
        assert log.next_offset == len(records)


def test_a_flip_in_the_cleaner_file_changes_no_answer_and_no_compaction() -> None:
    disk = disk_with({})
    log = open_log(disk, options=SMALL)
    for number in range(60):
        value = None if number % 11 == 10 else b"value %d" % number
        log.append([NewRecord(number, b"key %d" % (number % 7), value, ())])
        if number in (30, 50):
            compact(disk, log, now_ms=number)
    sync(log)
    records = read_all(log)
    log.close()
    files = files_of(disk)
    log = open_log(disk_with(files), options=SMALL)
    expected = compacted(files, now_ms=10**9)
    assert expected != records
    for position, flipped in flips(files, f"{FOLDER}/cleaner.json"):
        log = open_log(disk_with(flipped), options=SMALL)
        assert read_all(log) == records, f"byte {position}"
        assert state(compacted(flipped, now_ms=10**9)) == state(expected), f"byte {position}"


def compact(disk: SimDisk, log: SegmentedLog, *, now_ms: int) -> None:
    log.roll()
    sync(log)
    compactor = Compactor(disk, FOLDER, log, encoder(), POLICY)
    task = compactor.start(now_ms)
    assert task is not None
    task.run()
    compactor.finish(task, None)


def compacted(files: dict[str, bytes], *, now_ms: int) -> list[LogRecord]:
    disk = disk_with(files)
    log = open_log(disk, options=SMALL)
    compact(disk, log, now_ms=now_ms)
    return read_all(log)


def state(records: list[LogRecord]) -> dict[bytes | None, bytes]:
    """What the records say of each key."""
    values: dict[bytes | None, bytes] = {}
    for record in records:
        values.pop(record.key, None)
        if record.value is not None:
            values[record.key] = record.value
    return values
