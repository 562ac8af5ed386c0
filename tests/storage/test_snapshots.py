"""Snapshots: GoQueue's bytes, no flipped bit passes, and a crash at any disk operation leaves a sound one."""

from __future__ import annotations

import errno
import random
import struct
import zlib
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.snapshots import (
    Snapshot,
    SnapshotEntry,
    SnapshotError,
    SnapshotKind,
    SnapshotProblem,
    SnapshotStore,
    decode_snapshot,
    encode_snapshot,
    parse_snapshot_name,
)
from assay.sim.disk import DiskProfile, Persistence, SimDisk

FOLDER = "coordinator/snapshots"
ENTRIES = (SnapshotEntry(1, b"group:topic:0", b"42"), SnapshotEntry(2, b"", b""), SnapshotEntry(255, b"k", b"v" * 30))
_Result = TypeVar("_Result")


def no_note(place: str, problem: str) -> None:
    raise AssertionError(f"{place}: {problem}")


def store(disk: Disk, note: Callable[[str, str], None] = no_note) -> SnapshotStore:
    return SnapshotStore(disk, FOLDER, SnapshotKind.GROUPS, note=note)


def entries(number: int) -> list[SnapshotEntry]:
    return [SnapshotEntry(1, b"key %d" % key, b"%d" % number) for key in range(5)]


def golden(kind: int, last_offset: int, timestamp_ms: int, given_entries: tuple[SnapshotEntry, ...]) -> bytes:
    body = b""
    for entry_kind, key, value in given_entries:
        body += bytes([entry_kind]) + len(key).to_bytes(2, "big") + key + len(value).to_bytes(4, "big") + value
    header = bytearray(32)
    header[0:4] = bytes.fromhex("47515350")
    header[4:6] = bytes([1, kind])
    header[6:10] = zlib.crc32(body).to_bytes(4, "big")
    header[10:18] = last_offset.to_bytes(8, "big")
    header[18:26] = timestamp_ms.to_bytes(8, "big")
    header[26:30] = len(given_entries).to_bytes(4, "big")
    return bytes(header) + body


def test_the_bytes_are_those_of_the_table() -> None:
    snapshot = Snapshot(kind=2, last_offset=9_999, timestamp_ms=1_700_000_000_123, entries=ENTRIES)
    encoded = encode_snapshot(snapshot)
    assert encoded == golden(2, 9_999, 1_700_000_000_123, ENTRIES)
    assert decode_snapshot(encoded) == snapshot


@settings(max_examples=150, deadline=None)
@given(
    kind=st.integers(0, 255),
    last_offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(0, 2**63 - 1),
    found=st.lists(
        st.builds(SnapshotEntry, st.integers(0, 255), st.binary(max_size=9), st.binary(max_size=9)), max_size=6
    ).map(tuple),
)
def test_every_snapshot_comes_back(
    kind: int, last_offset: int, timestamp_ms: int, found: tuple[SnapshotEntry, ...]
) -> None:
    snapshot = Snapshot(kind=kind, last_offset=last_offset, timestamp_ms=timestamp_ms, entries=found)
    encoded = encode_snapshot(snapshot)
    assert encoded == golden(kind, last_offset, timestamp_ms, found)
    assert decode_snapshot(encoded) == snapshot
    name = f"snapshot-{kind}-{last_offset}-{timestamp_ms}.bin"
    parsed = parse_snapshot_name(name)
    assert parsed == (kind, last_offset, timestamp_ms)
    assert decode_snapshot(encoded, parsed) == snapshot


@pytest.mark.parametrize(
    "name",
    ["snapshot-1-2.bin", "snapshot-1-2-3.bin.tmp", "snapshot-01-2-3.bin", "snapshot-256-2-3.bin", "x-1-2-3.bin",
     "snapshot-1--1-3.bin", "snapshot-1-9999999999999999999-3.bin"],
)  # fmt: skip
def test_other_names_are_no_snapshots(name: str) -> None:
    assert parse_snapshot_name(name) is None


def test_no_flipped_bit_and_no_prefix_passes() -> None:
    encoded = encode_snapshot(Snapshot(kind=1, last_offset=9, timestamp_ms=77, entries=ENTRIES))
    name = parse_snapshot_name("snapshot-1-9-77.bin")
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotError):
            decode_snapshot(bytes(damaged), name)
    for length in range(len(encoded)):
        with pytest.raises(SnapshotError):
            decode_snapshot(encoded[:length], name)
    with pytest.raises(SnapshotError):
        decode_snapshot(encoded + b"\x00", name)


def with_checksum(encoded: bytes) -> bytes:
    return encoded[:6] + zlib.crc32(encoded[32:]).to_bytes(4, "big") + encoded[10:]


@pytest.mark.parametrize(
    ("position", "replacement"),
    [
        (26, b"\xff\xff\xff\xff"),
        (26, b"\x00\x00\x00\x02"),
        (26, bytes(4)),
        (33, b"\xff\xff"),
        (48, b"\xff\xff\xff\xff"),
    ],
)
def test_counts_and_lengths_are_never_trusted(position: int, replacement: bytes) -> None:
    encoded = bytearray(encode_snapshot(Snapshot(kind=1, last_offset=9, timestamp_ms=77, entries=ENTRIES)))
    encoded[position : position + len(replacement)] = replacement
    with pytest.raises(SnapshotError) as caught:
        decode_snapshot(with_checksum(bytes(encoded)))
    assert caught.value.problem is SnapshotProblem.BAD_ENTRIES


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=120))
def test_random_bytes_are_refused(data: bytes) -> None:
    head = struct.pack(">4sBBI", b"GQSP", 1, 1, zlib.crc32(data[22:]))
    for candidate in (data, head + data):
        try:
            decode_snapshot(candidate)
        except SnapshotError:
            continue
        assert candidate == head + data


def test_what_does_not_fit_is_refused() -> None:
    def snapshot(**changed: int) -> Snapshot:
        fields = {"kind": 1, "last_offset": 1, "timestamp_ms": 1} | changed
        return Snapshot(**fields, entries=())

    for bad in (snapshot(kind=256), snapshot(last_offset=-1), snapshot(last_offset=2**63), snapshot(timestamp_ms=-1)):
        with pytest.raises(SnapshotError):
            encode_snapshot(bad)
    for entry in (SnapshotEntry(1, bytes(65_536), b""), SnapshotEntry(1, b"", bytes(16 * 2**20 + 1))):
        with pytest.raises(SnapshotError, match="limit"):
            encode_snapshot(Snapshot(kind=1, last_offset=1, timestamp_ms=1, entries=(entry,)))


def test_the_newest_three_of_one_kind_are_kept() -> None:
    disk = MemoryDisk()
    first, other = store(disk), SnapshotStore(disk, FOLDER, SnapshotKind.TRANSACTIONS, note=no_note)
    assert first.load() is None
    other.write(entries(0), 1, 1)
    for number in range(5):
        first.write(entries(number), 10 * number, 1_000 + number)
    assert [name.last_offset for name in first.names()] == [40, 30, 20]
    assert first.oldest_kept_offset == 20
    assert [name.last_offset for name in other.names()] == [1]
    loaded = store(disk).load()
    assert loaded is not None
    assert (loaded.last_offset, loaded.timestamp_ms, list(loaded.entries)) == (40, 1_004, entries(4))
    assert len(disk.list(FOLDER)) == 4


def test_when_a_snapshot_is_due() -> None:
    disk = MemoryDisk()
    first = store(disk)
    assert not first.due(9_999, 1_000.0)
    assert first.due(10_000, 1_000.0)
    assert not first.due(1, 1_299.9)
    assert first.due(1, 1_300.0)
    assert not first.due(0, 9_999.0)
    first.write(entries(0), 3, 2_000_000)
    assert not first.due(1, 2_299.0)
    assert first.due(1, 2_300.0)
    again = store(disk)
    again.load()
    assert not again.due(1, 2_299.0)
    assert again.due(1, 2_300.0)
    assert not again.due(1, 100.0), "a clock that was set back starts the interval anew"
    assert again.due(1, 400.0)


def flip(disk: Disk, path: str, position: int) -> None:
    file = disk.open(path)
    byte = file.read_at(position, 1)[0]
    file.write_at(position, bytes([byte ^ 1]))
    file.close()


def test_a_damaged_snapshot_is_noted_and_the_one_before_it_used() -> None:
    disk = MemoryDisk()
    writer = store(disk)
    for number in range(3):
        writer.write(entries(number), number, number)
    flip(disk, f"{FOLDER}/snapshot-1-2-2.bin", 40)
    flip(disk, f"{FOLDER}/snapshot-1-1-1.bin", 17)  # the last offset: covered by no checksum
    notes: list[tuple[str, str]] = []
    reader = store(disk, lambda place, problem: notes.append((place, problem)))
    loaded = reader.load()
    assert loaded is not None
    assert (loaded.last_offset, list(loaded.entries)) == (0, entries(0))
    assert [place for place, _ in notes] == [f"{FOLDER}/snapshot-1-2-2.bin", f"{FOLDER}/snapshot-1-1-1.bin"]
    assert all("damaged snapshot" in problem for _, problem in notes)
    assert reader.oldest_kept_offset == 0
    # The damaged ones do not push the sound one out, and go once there is a newer one.
    reader.write(entries(3), 3, 3)
    assert [name.last_offset for name in reader.names()] == [3, 0]


def test_an_unreadable_snapshot_is_skipped_but_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    writer = store(disk)
    for number in range(2):
        writer.write(entries(number), number, number)
    notes: list[str] = []
    reader = store(disk, lambda _, problem: notes.append(problem))
    real_open = disk.open

    def failing_open(path: str, *, create: bool = False) -> DiskFile:
        if "snapshot-1-1-" in path:
            raise OSError(errno.EIO, "Input/output error")
        return real_open(path, create=create)

    monkeypatch.setattr(disk, "open", failing_open)
    loaded = reader.load()
    assert loaded is not None
    assert loaded.last_offset == 0
    assert notes == ["unreadable (Input/output error); an older one is used, and more of the log read"]
    reader.write(entries(2), 2, 2)
    assert [name.last_offset for name in reader.names()] == [2, 1, 0]


def test_a_full_disk_leaves_the_old_snapshots_and_no_litter() -> None:
    disk = SimDisk(random.Random(1), DiskProfile(capacity_bytes=400))
    writer = store(disk)
    writer.write(entries(0), 0, 0)
    before = disk.list(FOLDER)
    with pytest.raises(OSError, match="No space"):
        writer.write([SnapshotEntry(1, b"big", bytes(500))], 1, 1)
    assert disk.list(FOLDER) == before
    writer.write(entries(1), 1, 1)
    loaded = writer.load()
    assert loaded is not None
    assert loaded.last_offset == 1


class PowerCutError(Exception):
    """The machine went off during an operation."""


class CuttingDisk:
    """Passes everything on to a simulated disk, until a given operation, which does not happen any more."""

    def __init__(self, disk: SimDisk, survives: int) -> None:
        self._disk = disk
        self._left = survives
        self.operations = 0

    def count(self, operation: Callable[[], _Result]) -> _Result:
        if self._left == 0:
            raise PowerCutError
        self._left -= 1
        self.operations += 1
        return operation()

    def open(self, path: str, *, create: bool = False) -> CuttingFile:
        return CuttingFile(self, self.count(lambda: self._disk.open(path, create=create)))

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def make_folder(self, path: str) -> None:
        self.count(lambda: self._disk.make_folder(path))

    def rename(self, source: str, destination: str) -> None:
        self.count(lambda: self._disk.rename(source, destination))

    def remove(self, path: str) -> None:
        self.count(lambda: self._disk.remove(path))

    def sync_folder(self, path: str) -> None:
        self.count(lambda: self._disk.sync_folder(path))

    def free_bytes(self) -> int:
        return 1 << 40

    def lock(self) -> None:
        self._disk.lock()

    def unlock(self) -> None:
        self._disk.unlock()


class CuttingFile:
    def __init__(self, disk: CuttingDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, data: bytes) -> int:
        return self._disk.count(lambda: self._file.append(data))

    def write_at(self, position: int, data: bytes) -> None:
        self._disk.count(lambda: self._file.write_at(position, data))

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def truncate(self, size: int) -> None:
        self._disk.count(lambda: self._file.truncate(size))

    def sync(self) -> None:
        self._disk.count(self._file.sync)

    def close(self) -> None:
        self._file.close()


def write_until_cut(disk: Disk, count: int) -> int:
    """Write snapshots until the power goes; returns the number of those that were finished."""
    writer = store(disk, lambda place, problem: None)
    for number in range(count):
        try:
            writer.write(entries(number), 10 * number, number)
        except PowerCutError:
            return number
    return count


@pytest.mark.parametrize("mode", list(Persistence))
def test_power_loss_at_every_operation_leaves_the_newest_finished_snapshot_or_the_next(mode: Persistence) -> None:
    rounds = 6
    complete = CuttingDisk(SimDisk(random.Random(0)), -1)
    assert write_until_cut(complete, rounds) == rounds
    seen: set[int] = set()
    for survives in range(complete.operations + 1):
        for seed in range(3):
            disk = SimDisk(random.Random(1_000 * seed + survives))
            finished = write_until_cut(CuttingDisk(disk, survives), rounds)
            disk.power_loss((mode,))
            loaded = store(disk, lambda place, problem: None).load()
            where = f"mode {mode}, after {survives} operations, seed {seed}"
            if loaded is None:
                assert finished == 0, where
                continue
            number = loaded.last_offset // 10
            assert number in (finished - 1, finished), where
            assert list(loaded.entries) == entries(number), where
            seen.add(number)
            # Life goes on: another snapshot, and the folder holds three sound ones at most.
            again = store(disk, lambda place, problem: None)
            again.load()
            again.write(entries(90), 900, 90)
            after = store(disk).load()
            assert after is not None, where
            assert after.last_offset == 900, where
            assert len(disk.list(FOLDER)) <= 3, where
    assert seen == set(range(rounds))
