"""Planted bugs of the storage engine are caught, each by the check named here; legal variations pass every check.

The checks are small editions of the ones that the engine itself is held to: crash points, bit flips, a full disk, a
failing sync. :func:`test_a_check_passes_without_bugs` shows that each of them can pass.
"""

from __future__ import annotations

import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.conformance.mutants import all_mutants, applied
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage import offset_index, pending_log, pending_snapshot
from assay.reference_broker.storage.compaction import Compactor
from assay.reference_broker.storage.disk import Disk, RealDisk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.notes import Notes
from assay.reference_broker.storage.snapshots import SnapshotEntry, SnapshotStore
from assay.sim.disk import DiskProfile, SimDisk
from assay.sim.group_life import FOLDERS, GroupLife, examine_group
from assay.sim.log_life import (
    FOLDER,
    POLICY,
    TOMBSTONE_AGE_MS,
    Found,
    LogLife,
    encoder,
    examine,
    open_log,
    read_all,
    sync,
    time_disagreements,
)
from assay.sim.power_cuts import WatchedDisk, power_cuts
from tests.storage import test_missing_segments as missing
from tests.storage import test_sparse_log

SEGMENT = f"{FOLDER}/{0:020d}.seg"
OPTIONS = LogOptions(segment_bytes=700, segment_age_ms=0)
LARGE = LogOptions(segment_bytes=10**6, segment_age_ms=0)
Complaints = Iterator[str]
Recovery = Callable[[WatchedDisk], object]


@pytest.fixture(autouse=True)
def small_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_index, "INDEX_INTERVAL_BYTES", 100)
    monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 12)
    monkeypatch.setattr(pending_snapshot, "ENTRIES_PER_STEP", 2)


def new_disk(files: dict[str, bytes] | None = None) -> SimDisk:
    return SimDisk.holding(files or {}, {"", FOLDER})


def files_of(disk: SimDisk) -> dict[str, bytes]:
    return {
        f"{FOLDER}/{name}": (file := disk.open(f"{FOLDER}/{name}")).read_at(0, file.size) for name in disk.list(FOLDER)
    }


def one(value: str, *, timestamp_ms: int = 0) -> list[NewRecord]:
    return [NewRecord(timestamp_ms, None, value.encode(), ())]


class FoundError(Exception):
    """Something is wrong, which ends a check."""


def expect(complaints: Complaints, where: str) -> None:
    for complaint in complaints:
        message = f"{where}: {complaint}"
        raise FoundError(message)


def watch(disk: WatchedDisk, every: int, recover: Recovery, judge: Callable[[Any], Complaints]) -> None:
    """Judge every state that a power loss may leave, before every so many disk operations.

    Each different state is recovered once, and judged each time: what must be in it changes.
    """
    point = 0
    seen: dict[bytes, object] = {}

    def look() -> None:
        nonlocal point
        point += 1
        if point % every == 0:
            for cut in power_cuts(disk, f"{point}"):
                digest = cut.digest
                if digest not in seen:
                    seen[digest] = recover(cut.boot())
                expect(judge(seen[digest]), f"power lost before operation {point}, leaving {cut.what}")

    disk.before = look


def recovered(disk: Disk) -> Found:
    """Of the logs that lose power."""
    return examine(disk, options=OPTIONS)


# -- checks: each raises when something is wrong -----------------------------------------------------------------


def crash_points() -> None:
    """Lose power in every way, in two lives of a log."""
    for seed, every in ((3, 7), (11, 8)):
        disk = WatchedDisk(random.Random(0))
        life = LogLife(disk, seed, options=OPTIONS)
        watch(disk, every, recovered, life.model.complaints)
        life.live(170)


def crash_points_of_compaction() -> None:
    """Lose power in every way while one compaction follows another."""
    disk = WatchedDisk(random.Random(0))
    life = LogLife(disk, 2, options=OPTIONS, steps=("append", "append", "sync", "roll", "compact"))
    watch(disk, 3, recovered, life.model.complaints)
    life.live(70)


def crash_points_of_removal() -> None:
    """Lose power in every way while segments come and go."""
    disk = WatchedDisk(random.Random(0))
    life = LogLife(disk, 4, options=OPTIONS, steps=("append", "append", "sync", "roll", "drop", "retain", "kill"))
    watch(disk, 2, recovered, life.model.complaints)
    life.live(110)


def crash_points_of_expiry() -> None:
    """Lose power in every way while all that there is becomes too old."""
    disk = WatchedDisk(random.Random(0))
    life = LogLife(disk, 4, options=OPTIONS, steps=("append", "append", "sync", "expire", "kill"))
    watch(disk, 1, recovered, life.model.complaints)
    life.live(40)


def group_crash_points() -> None:
    """Lose power in every way in the life of a group."""
    disk = WatchedDisk.holding({}, FOLDERS)
    life = GroupLife(disk, 5)
    watch(disk, 3, examine_group, life.model.complaints)
    life.live(200)


def snapshot_crash_points() -> None:
    """Lose power in every way while snapshots are written: the last finished one is there."""
    disk = WatchedDisk.holding({}, ("", "snapshots"))
    finished = -1

    def load(disk: Disk) -> tuple[int, list[str]]:
        notes: list[str] = []
        store = SnapshotStore(disk, "snapshots", 1, note=lambda place, problem: notes.append(problem))
        found = store.load()
        return found.last_offset if found is not None else -1, notes

    def judge(found: tuple[int, list[str]]) -> Complaints:
        last_offset, notes = found
        if last_offset < finished:
            yield f"snapshot {finished} is lost: {notes}"
        if notes:
            yield f"a snapshot that has its name is damaged: {notes}"

    store = SnapshotStore(disk, "snapshots", 1, note=lambda place, problem: None)
    watch(disk, 1, load, judge)
    for offset in range(6):
        store.write([SnapshotEntry(1, b"key", b"%d" % offset * 200)], offset, 1_000 + offset)
        finished = offset


def alive() -> None:
    """Long lives without a power loss, each kind of reading compared at the end."""
    for seed in range(6):
        life = LogLife(SimDisk(random.Random(0)), seed, options=OPTIONS)
        life.live(250)
        sync(life.log)
        life.log.close()
        expect(iter(examine(life.disk, options=OPTIONS).problems), f"seed {seed}")


def written() -> tuple[SimDisk, list[LogRecord], list[int]]:
    """A log of one segment with five batches, the records, and where the batches end."""
    disk = new_disk()
    log = open_log(disk, options=LARGE)
    ends = []
    for number in range(5):
        log.append(one(f"value {number}", timestamp_ms=number))
        ends.append(disk.open(SEGMENT).size)
    sync(log)
    records = read_all(log)
    log.close()
    return disk, records, ends


def segment_flips() -> None:
    """Each byte of a segment changed: that batch is missing, the others are not."""
    disk, records, ends = written()
    data = files_of(disk)[SEGMENT]
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]
        found = read_all(open_log(new_disk({SEGMENT: flipped}), options=LARGE))
        damaged = next(number for number, end in enumerate(ends) if position < end)
        assert found == [record for record in records if record.offset != damaged], f"byte {position}"


def durable_damage() -> None:
    """Each byte of the last, durable batch changed: its bytes stay, and its offset is not given out again."""
    disk, _, ends = written()
    files = {path: data for path, data in files_of(disk).items() if not path.endswith(("idx", "tix"))}
    for position in range(ends[-2], ends[-1]):
        flipped = bytearray(files[SEGMENT])
        flipped[position] ^= 1
        broken = new_disk(files | {SEGMENT: bytes(flipped)})
        log = open_log(broken, options=LARGE)
        assert log.append(one("more")) == 5, f"byte {position}"
        assert files_of(broken)[SEGMENT] == flipped


def torn_tails() -> None:
    """A segment that ends at any byte is cut to whole batches, and goes on there."""
    disk, records, ends = written()
    data = files_of(disk)[SEGMENT]
    for size in range(len(data)):
        torn = new_disk({SEGMENT: data[:size]})
        log = open_log(torn, options=LARGE)
        whole = sum(end <= size for end in ends)
        assert read_all(log) == records[:whole], f"{size} bytes"
        assert torn.open(SEGMENT).size == max((end for end in ends if end <= size), default=0), f"{size} bytes"


def indexed(options: LogOptions) -> tuple[dict[str, bytes], list[LogRecord]]:
    disk = new_disk()
    log = open_log(disk, options=options)
    time_ms = 10_000
    for number in range(40):
        time_ms += (0, 700, 700, -600, 450, 1_900)[number % 6]
        log.append(one(f"value {number}", timestamp_ms=time_ms))
    sync(log)
    records = read_all(log)
    log.close()
    return files_of(disk), records


def index_flips() -> None:
    """Each byte of index files changed in three ways: every question has the same answer."""
    files, records = indexed(OPTIONS)
    for path in [path for path in files if path.endswith(("idx", "tix"))][:2]:
        for position in range(len(files[path])):
            for bit in (0, 2, 5):
                flipped = bytearray(files[path])
                flipped[position] ^= 1 << bit
                log = open_log(new_disk(files | {path: bytes(flipped)}), options=OPTIONS)
                where = f"bit {bit} of byte {position} of {path}"
                expect(time_disagreements(log, records, samples=40), where)
                for before in range(0, 40, 3):
                    assert log.get(before) == records[before], where


def times() -> None:
    """The first record at or after each time, clocks that stand still and step back included."""
    files, records = indexed(LARGE)
    log = open_log(new_disk(files), options=LARGE)
    expect(time_disagreements(log, records, samples=40), "times")


def failed_syncs() -> None:
    """After a sync that failed nothing is confirmed any more, so power may be lost without breaking a promise."""
    disk = SimDisk(random.Random(0), DiskProfile(failing_syncs=(2,)))
    log = open_log(disk, options=LARGE)
    log.append(one("never durable"))
    for _ in range(3):
        try:
            sync(log)
        except OSError:
            continue
    confirmed = log.durable_offset
    state = next(power_cuts(disk, ""))
    assert open_log(state.boot(), options=LARGE).next_offset >= confirmed, f"{confirmed} records had been confirmed"


def full_disk() -> None:
    """What a full disk refuses leaves nothing behind, however much of it fitted."""
    for room in range(70):
        disk = SimDisk(random.Random(0))
        log = open_log(disk, options=LARGE)
        log.append(one("before"))
        disk.profile = msgspec.structs.replace(disk.profile, capacity_bytes=disk.used_bytes + room)
        with pytest.raises(LogError):
            log.append(one("refused" * 5))
        disk.profile = DiskProfile()
        log.append(one("after"))
        notes: list[str] = []
        again = open_log(disk, options=LARGE, notes=notes)
        assert [record.value for record in read_all(again)] == [b"before", b"after"], f"room for {room} bytes"
        assert notes == [], f"room for {room} bytes"


def segment_age() -> None:
    """A record an hour later goes to a new segment, also when the log was opened in between."""
    disk = new_disk()
    options = LogOptions(segment_age_ms=3_600_000)
    log = open_log(disk, options=options)
    log.append(one("first", timestamp_ms=1_000))
    log.append(one("second", timestamp_ms=3_600_999))
    log.append(one("third", timestamp_ms=3_601_000))
    sync(log)
    log.close()
    log = open_log(disk, options=options)
    log.append(one("fourth", timestamp_ms=7_201_000))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]


def claimed_lengths() -> None:
    """A header that claims 60 MB costs no memory."""
    disk, _, ends = written()
    data = bytearray(files_of(disk)[SEGMENT])
    data[16:20] = (60_000_000).to_bytes(4, "little")
    disk = new_disk({SEGMENT: bytes(data)})
    tracemalloc.start()
    try:
        assert len(read_all(open_log(disk, options=LARGE))) == len(ends) - 1
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def compacted(log: SegmentedLog, disk: SimDisk, now_ms: int) -> None:
    log.roll()
    sync(log)
    compactor = Compactor(disk, FOLDER, log, encoder(), POLICY)
    task = compactor.start(now_ms)
    if task is not None:
        task.run()
        compactor.finish(task, None)


def last_values() -> None:
    """After compactions the log says the same of each key as a dict, deleted keys included."""
    for seed in range(30):
        rng = random.Random(seed)
        disk = new_disk()
        log = open_log(disk, options=OPTIONS)
        model: dict[bytes | None, bytes | None] = {}
        for now_ms in range(0, 60 * TOMBSTONE_AGE_MS // 20, TOMBSTONE_AGE_MS // 20):
            key = rng.choice((b"a", b"b", b"c", b"d", b"e", b"f"))
            value = rng.choice((None, b"%d" % now_ms))
            log.append([NewRecord(now_ms, key, value, ())])
            model[key] = value
            if rng.random() < 0.1:
                compacted(log, disk, now_ms)
        compacted(log, disk, now_ms + 2 * TOMBSTONE_AGE_MS)
        kept = read_all(log)
        state = {record.key: record.value for record in kept}
        for key, value in model.items():
            assert state.get(key) == value, f"seed {seed}, key {key!r}: {state.get(key)!r} instead of {value!r}"


def sparse_segments() -> None:
    """Thin a log out to a few records."""
    test_sparse_log.test_one_wanted_record_keeps_nothing_else()


def sparse_damage() -> None:
    """Thin a log out of which a part is damaged."""
    test_sparse_log.test_segments_with_damage_stay_as_they_are()


def in_folder(check: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder))


def missing_front() -> None:
    """The first segment of a partition is deleted."""
    in_folder(lambda path: missing.test_of_a_partition(path, missing.deleted, 0, 0))


def legal_removal() -> None:
    """Segments that were dropped on purpose are missed by nobody."""
    in_folder(lambda path: missing.test_of_a_partition(path, missing.deleted, 1, 15))


def missing_amid() -> None:
    """One of the segments that a compaction left is deleted."""
    in_folder(lambda path: missing.test_of_compacted_sessions(path, missing.deleted, 1))


def told_damage() -> None:
    """Damage that reading meets is told, once."""
    disk, _, ends = written()
    data = bytearray(files_of(disk)[SEGMENT])
    store_notes = Notes()
    log = SegmentedLog(
        broken := new_disk({SEGMENT: bytes(data)}),
        FOLDER,
        options=LARGE,
        encoder=encoder(),
        volatile=False,
        note=lambda place, problem: store_notes.add("q", place, problem),
    )
    broken.open(SEGMENT).write_at(ends[0] + 30, b"\0\0\0\0\xff")
    for _ in range(3):
        log.read(0, 100)
        log.get(1)
    assert len(store_notes.recovery) == 1, store_notes.recovery


def lost_name() -> None:
    """A file that somebody removed cannot be synced."""

    def check(path: Path) -> None:
        disk = RealDisk(path)
        file = disk.open("file", create=True)
        file.append(b"lost")
        disk.remove("file")
        with pytest.raises(OSError, match="removed the file"):
            file.sync()

    try:
        in_folder(check)
    except pytest.fail.Exception as error:
        raise FoundError(str(error)) from error


CAUGHT = {
    "storage-front-not-missed": missing_front,
    "storage-removal-not-told": legal_removal,
    "storage-compacted-not-missed": missing_amid,
    "storage-damage-not-told": told_damage,
    "storage-damage-told-each-time": told_damage,
    "storage-nameless-file-is-safe": lost_name,
    "storage-checksum-skips-header": segment_flips,
    "storage-length-not-bounded": claimed_lengths,
    "storage-long-batch-ends-the-log": segment_flips,
    "storage-middle-cut-like-a-tail": segment_flips,
    "storage-confirms-without-sync": crash_points,
    "storage-folder-not-synced": crash_points,
    "storage-sealed-not-synced": crash_points,
    "storage-sync-confirms-later-appends": crash_points,
    "storage-sync-error-forgotten": failed_syncs,
    "storage-mark-before-sync": crash_points,
    "storage-partial-write-stays": full_disk,
    "storage-tail-not-cut": torn_tails,
    "storage-tail-cut-too-far": torn_tails,
    "storage-durable-tail-cut": durable_damage,
    "storage-offsets-restart": crash_points_of_removal,
    "storage-swap-not-finished": crash_points_of_compaction,
    "storage-names-taken-for-durable": crash_points_of_expiry,
    "storage-index-off-by-one": alive,
    "storage-index-believed": index_flips,
    "storage-time-index-late": times,
    "storage-time-index-believed": index_flips,
    "storage-drops-one-too-many": alive,
    "storage-age-ignored": segment_age,
    "storage-compaction-drops-newest": last_values,
    "storage-tombstone-kills-newer": last_values,
    "storage-tombstone-goes-first": last_values,
    "storage-swap-without-folder-sync": crash_points_of_compaction,
    "storage-swap-order-not-kept": crash_points_of_compaction,
    "storage-thinning-takes-the-last": sparse_segments,
    "storage-thinning-drops-damage": sparse_damage,
    "storage-snapshot-renamed-before-sync": snapshot_crash_points,
    "storage-group-replay-stops-early": group_crash_points,
    "storage-batch-ack-one-too-many": group_crash_points,
}
"""Bug -> the check that must fail because of it."""
CHECKS = tuple(dict.fromkeys(CAUGHT.values()))
SLOW_CHECKS = (crash_points, crash_points_of_compaction)
"""Variations have enough in the other crash points."""


def storage_mutants(*, legal: bool) -> list[str]:
    return [
        name
        for name, mutant in all_mutants().items()
        if mutant.apply.__module__.startswith("assay.conformance.mutants.storage") and mutant.legal is legal
    ]


PAIRS = (
    ("storage-drops-late", "storage-no-index-files"),
    ("storage-every-batch-indexed", "storage-opening-verifies-everything"),
    ("storage-mark-synced", "storage-write-through"),
)
"""Legal variations, of which neither hides the other."""


def test_every_storage_bug_has_a_check() -> None:
    assert sorted(name for pair in PAIRS for name in pair) == sorted(storage_mutants(legal=True))
    assert sorted(CAUGHT) == storage_mutants(legal=False)
    assert len(CAUGHT) >= 15


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_passes_without_bugs(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_caught(name: str) -> None:
    with applied(name), pytest.raises((AssertionError, FoundError, LogError)) as caught:
        CAUGHT[name]()
    print(f"{CAUGHT[name].__name__}: {caught.value}"[:300])


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check not in SLOW_CHECKS], ids=lambda check: check.__name__
)
@pytest.mark.parametrize("names", PAIRS, ids="+".join)
def test_legal_variations_are_not_accused(names: tuple[str, ...], check: Callable[[], None]) -> None:
    """Two at once: each is legal whatever else varies."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(applied(name))
        check()
