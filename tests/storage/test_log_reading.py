"""Reading a log by offset, time and from its end; and that indexes only ever change how fast that is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage import log_reader
from assay.reference_broker.storage.batch import BatchEncoder, Wanted
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.durable_mark import MARK_NAME
from assay.reference_broker.storage.file_names import segment_name
from assay.reference_broker.storage.index_files import decode_offset_index, encode_offset_index
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile

FOLDER = "log"
ENCODER = BatchEncoder(Compression.NONE)


def open_log(disk: Disk, *, segment_bytes: int = 20_000, notes: list[str] | None = None) -> SegmentedLog:
    kept = notes if notes is not None else []
    return SegmentedLog(
        disk,
        FOLDER,
        options=LogOptions(segment_bytes=segment_bytes, segment_age_ms=0),
        encoder=ENCODER,
        volatile=False,
        note=lambda place, problem: kept.append(f"{place}: {problem}"),
    )


def sync(log: SegmentedLog) -> None:
    while (task := log.start_sync()) is not None:
        task.run()
        log.finish_sync(None)


def fill(log: SegmentedLog, times_ms: list[int], rng: random.Random) -> list[LogRecord]:
    """Batches of 1 to 3 records with these times; returns what a reader should see."""
    written: list[LogRecord] = []
    rest = list(times_ms)
    while rest:
        group, rest = rest[: (count := rng.randint(1, 3))], rest[count:]
        new = [
            NewRecord(time_ms, b"k%d" % time_ms, rng.randbytes(rng.randint(0, 900)), ((b"h", b"v"),))
            for time_ms in group
        ]
        base = log.append(new)
        written += [LogRecord(offset, *record) for offset, record in enumerate(new, base)]
    return written


def closed_log(seed: int, count: int = 150, *, backward: bool = True) -> tuple[MemoryDisk, list[LogRecord]]:
    """A cleanly closed log of several segments with index files."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    log = open_log(disk)
    now_ms, times_ms = 1_000_000, []
    for _ in range(count):
        now_ms += rng.randint(-3_000 if backward else 0, 4_000)
        times_ms.append(now_ms)
    written = fill(log, times_ms, rng)
    sync(log)
    log.close()
    return disk, written


def first_at(written: list[LogRecord], time_ms: int) -> int:
    return next((record.offset for record in written if record.timestamp_ms >= time_ms), written[-1].offset + 1)


def answers(log: SegmentedLog, written: list[LogRecord]) -> None:
    """Every way of reading agrees with the list."""
    end = len(written)
    everything: list[LogRecord] = []
    while batch := log.read(everything[-1].offset + 1 if everything else 0, 10):
        everything += batch
    assert everything == written
    for offset in range(0, end, 7):
        assert log.get(offset) == written[offset]
        assert log.read(offset, 1)[0] == written[offset]
        assert list(log.read_range(offset, offset + 9)) == written[offset : offset + 9]
    times = sorted({record.timestamp_ms for record in written})
    for time_ms in (times[0] - 1, *times[::5], times[-1] + 1):
        assert log.offset_at(time_ms) == first_at(written, time_ms), time_ms
        assert log.offset_at(time_ms + 1) == first_at(written, time_ms + 1), time_ms


@pytest.mark.parametrize("seed", range(3))
def test_a_log_answers_the_same_written_and_reopened(seed: int) -> None:
    rng = random.Random(seed)
    disk = MemoryDisk()
    log = open_log(disk)
    written = fill(log, [1_000 * number + rng.randint(-5_000, 5_000) for number in range(120)], rng)
    assert len(log.segments) > 2
    answers(log, written)
    sync(log)
    answers(log, written)
    log.close()
    for base in (segment.base_offset for segment in log.segments):
        assert disk.exists(f"{FOLDER}/{segment_name(base, '.idx')}")
        assert disk.exists(f"{FOLDER}/{segment_name(base, '.tix')}")
    answers(open_log(disk), written)


def test_equal_times_find_the_first_of_them() -> None:
    log = open_log(MemoryDisk())
    written = fill(log, [5] * 40 + [9] * 40 + [5] * 40, random.Random(1))
    assert [log.offset_at(time_ms) for time_ms in (0, 5, 6, 9, 10)] == [0, 0, 40, 40, 120]
    assert log.read(log.offset_at(9), 1)[0] == written[40]


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=60), st.integers(0, 61_000), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_offset_at_is_the_first_record_not_earlier(times_ms: list[int], wanted_ms: int, seed: int) -> None:
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=1_500)
    written = fill(log, times_ms, random.Random(seed))
    assert log.offset_at(wanted_ms) == first_at(written, wanted_ms)
    sync(log)
    log.close()
    assert open_log(disk, segment_bytes=1_500).offset_at(wanted_ms) == first_at(written, wanted_ms)


def test_a_clean_log_opens_without_reading_its_segments() -> None:
    disk, written = closed_log(5)
    read: dict[str, int] = {}
    original = disk.open

    def counting(path: str, *, create: bool = False) -> object:
        file = original(path, create=create)
        real = file.read_at

        def read_at(position: int, length: int) -> bytes:
            data = real(position, length)
            read[path] = read.get(path, 0) + len(data)
            return data

        file.read_at = read_at  # type: ignore[method-assign]
        return file

    disk.open = counting  # type: ignore[method-assign,assignment]
    log = open_log(disk)
    total = sum(segment.size for segment in log.segments)
    assert sum(size for path, size in read.items() if path.endswith(".seg")) < total / 2
    disk.open = original  # type: ignore[method-assign]
    assert log.next_offset == len(written)


def test_without_a_durable_mark_every_segment_is_scanned() -> None:
    """A folder that another program wrote has indexes that nobody vouches for."""
    disk, written = closed_log(6)
    disk.remove(f"{FOLDER}/{MARK_NAME}")
    first = disk.open(f"{FOLDER}/{segment_name(0)}")
    first.write_at(first.size // 2, b"\x00\xff\x00")
    notes: list[str] = []
    log = open_log(disk, notes=notes)
    assert log.next_offset == len(written)
    assert any("corrupt" in note for note in notes)


Damager = Callable[[MemoryDisk, str, random.Random], None]


def flip_a_bit(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    file = disk.open(path)
    at = rng.randrange(file.size)
    file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1 << rng.randrange(8)]))


def cut(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    file = disk.open(path)
    file.truncate(rng.randrange(file.size))


def zero_the_end(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    file = disk.open(path)
    start = rng.randrange(file.size)
    file.write_at(start, bytes(file.size - start))


def remove(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    disk.remove(path)


def swap_with_another_segment(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    suffix = path[-4:]
    others = [name for name in disk.list(FOLDER) if name.endswith(suffix)]
    other = disk.open(f"{FOLDER}/{rng.choice(others)}")
    data = other.read_at(0, other.size)
    file = disk.open(path)
    file.truncate(0)
    file.append(data)


@pytest.mark.parametrize("damage", [flip_a_bit, cut, zero_the_end, remove, swap_with_another_segment])
@pytest.mark.parametrize("suffix", [".idx", ".tix"])
def test_damaged_indexes_change_no_answer(damage: Damager, suffix: str) -> None:
    for seed in range(12):
        disk, written = closed_log(seed, 60)
        rng = random.Random(seed)
        names = [name for name in disk.list(FOLDER) if name.endswith(suffix)]
        damage(disk, f"{FOLDER}/{rng.choice(names)}", rng)
        answers(open_log(disk), written)


@pytest.mark.parametrize(("more_offset", "more_position"), [(1, 0), (0, 1), (0, -1), (-1, 0), (1, 1)])
def test_one_entry_of_an_index_that_is_wrong_changes_no_answer(more_offset: int, more_position: int) -> None:
    """Each entry in turn, with all others, and the ends of both indexes, as they should be."""
    disk, written = closed_log(1, 120)
    entries = 0
    for name in [name for name in disk.list(FOLDER) if name.endswith(".idx")]:
        file = disk.open(f"{FOLDER}/{name}")
        right = file.read_at(0, file.size)
        found = decode_offset_index(right)
        pairs = list(zip(found.offsets, found.positions, strict=True))
        for number, (offset, position) in enumerate(pairs):
            if offset + more_offset < 0 or position + more_position < 0:
                continue
            wrong = [*pairs[:number], (offset + more_offset, position + more_position), *pairs[number + 1 :]]
            file.truncate(0)
            file.append(encode_offset_index(found.base_offset, wrong))
            log = open_log(disk)
            for at in range(len(written)):
                assert log.get(at) == written[at], (name, number)
            answers(open_log(disk), written)
            entries += 1
        file.truncate(0)
        file.append(right)
    assert entries > 5


@pytest.mark.parametrize("suffixes", [(".idx",), (".tix",), (".idx", ".tix")])
def test_sound_indexes_of_another_log_change_no_answer(suffixes: tuple[str, ...]) -> None:
    """As a folder has that was copied together from two places: nothing in such a file is damaged."""
    for seed in range(12):
        disk, written = closed_log(seed, 60)
        others = closed_log(100 + seed, 60)[0]
        for name in set(disk.list(FOLDER)) & set(others.list(FOLDER)):
            if name.endswith(suffixes):
                theirs = others.open(f"{FOLDER}/{name}")
                file = disk.open(f"{FOLDER}/{name}")
                file.truncate(0)
                file.append(theirs.read_at(0, theirs.size))
        answers(open_log(disk), written)


class CountedFile(MemoryFile):
    """Says how much of it is read."""

    read_bytes = 0

    def read_at(self, position: int, length: int) -> bytes:
        data = super().read_at(position, length)
        CountedFile.read_bytes += len(data)
        return data


class CountedDisk(MemoryDisk):
    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        return CountedFile(super().open(path, create=create)._content)


def test_right_indexes_keep_every_reading_small() -> None:
    """No answer says whether an index was believed; what is read for it does."""
    rng = random.Random(5)
    disk = CountedDisk()
    log = open_log(disk, segment_bytes=10**7)
    written = fill(log, list(range(0, 20_000, 10)), rng)
    sync(log)
    log.close()
    whole_bytes = disk.open(f"{FOLDER}/{segment_name(0)}").size
    assert whole_bytes > 800_000
    for place in (1, len(written) // 2, len(written) - 2):
        for read in (
            lambda log, at: [log.get(at)],
            lambda log, at: log.read(at, 1)[:1],
            lambda log, at: log.read(log.offset_at(10 * at), 1)[:1],
        ):
            opened = open_log(disk, segment_bytes=10**7)
            CountedFile.read_bytes = 0
            assert read(opened, place) == written[place : place + 1]
            first_bytes, CountedFile.read_bytes = CountedFile.read_bytes, 0
            assert read(opened, place) == written[place : place + 1]
            assert first_bytes <= whole_bytes // 4, "the index files were read, and the end behind them"
            assert CountedFile.read_bytes <= whole_bytes // 8, "the index was there"


@pytest.mark.parametrize("number", [0, 1, 3])
def test_damage_is_told_whichever_way_it_is_met(number: int) -> None:
    """Forward, backward and by offset: what is missing from an answer is noted."""
    disk, written = closed_log(6, 150)
    names = [name for name in disk.list(FOLDER) if name.endswith(".seg")]
    file = disk.open(f"{FOLDER}/{names[number]}")
    file.write_at(file.size // 2, bytes(byte ^ 0xFF for byte in file.read_at(file.size // 2, 3)))
    sound = {record.offset for record in open_log(disk).read_range(0, len(written))}
    lost = sorted({record.offset for record in written} - sound)
    assert lost
    for read in (
        lambda log: list(log.read_range(0, len(written))),
        lambda log: [found for found in map(log.get, range(len(written))) if found is not None],
    ):
        notes: list[str] = []
        log = open_log(disk, notes=notes)
        opened = len(notes)
        assert read(log) == [record for record in written if record.offset in sound]
        assert len(notes) > opened or opened, "nobody is told"
        assert any(names[number] in note for note in notes)


def test_only_wanted_fields_are_read() -> None:
    disk, written = closed_log(7, 20)
    log = open_log(disk)
    keys = log.read(0, 1, Wanted.KEY)
    assert [(record.offset, record.key, record.value, record.headers) for record in keys[:1]] == [
        (0, written[0].key, None, ())
    ]
    values = log.read(0, 1, Wanted.VALUE)
    assert [(record.key, record.value) for record in values[:1]] == [(None, written[0].value)]


def test_reads_outside_the_log() -> None:
    disk, written = closed_log(8, 20)
    log = open_log(disk)
    assert log.read(20, 10) == []
    assert log.get(20) is None
    assert list(log.read_range(15, 1_000)) == written[15:]
    assert list(log.read_range(9, 9)) == []
    empty = open_log(MemoryDisk())
    assert (empty.read(0, 1), empty.get(0), empty.offset_at(0)) == ([], None, 0)


def test_only_some_sealed_indexes_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_MAX_INDEX_BYTES", 320)
    disk = MemoryDisk()
    log = open_log(disk, segment_bytes=200)
    written = fill(log, list(range(300)), random.Random(3))
    sync(log)
    assert list(log.read_range(0, len(written))) == written
    assert len(log.segments) > 100
    assert sum(segment.is_loaded for segment in log.segments) <= 18
    answers(log, written)
