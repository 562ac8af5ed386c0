"""A partition log that lives on a simulated disk, and a model that knows what may and what must be in it.

The model is plain: what was written at which offset, what of it must still be there, and what may be gone because it
was dropped or compacted. :func:`examine` recovers a log from a disk and looks at it in every way in which it can be
read; :meth:`LogModel.complaints` says what is wrong with what was found.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord, RetentionPolicy
from assay.reference_broker.storage.batch import BatchEncoder, decode_verified
from assay.reference_broker.storage.compaction import CompactionPolicy, Compactor
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.file_names import (
    COMPACTING_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_segment_name,
)
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.segment_scan import SoundBatch, walk_batches

FOLDER: Final = "log"
TOMBSTONE_AGE_MS: Final = 20_000
POLICY: Final = CompactionPolicy(min_dirty_ratio=0.0, tombstone_age_ms=TOMBSTONE_AGE_MS)
_ENCODERS: Final = {compression: BatchEncoder(compression) for compression in Compression}
_READ_RECORDS: Final = 7
_SAMPLES: Final = 5
"""So many offsets and times are looked up by themselves."""


def encoder(compression: Compression = Compression.NONE) -> BatchEncoder:
    """The one that all logs here share."""
    return _ENCODERS[compression]


def open_log(
    disk: Disk, *, options: LogOptions, compression: Compression = Compression.NONE, notes: list[str] | None = None
) -> SegmentedLog:
    """Open or create the log, which tells in ``notes`` of places in its folder. Raises :class:`LogError`."""

    def note(place: str, problem: str) -> None:
        assert place.startswith(FOLDER), (place, problem)
        if notes is not None:
            notes.append(f"{place}: {problem}")

    return SegmentedLog(
        disk,
        FOLDER,
        options=options,
        encoder=_ENCODERS[compression],
        volatile=False,
        note=note,
    )


def read_all(log: SegmentedLog, *, limit: int = _READ_RECORDS) -> list[LogRecord]:
    """Every record, read in small steps."""
    found: list[LogRecord] = []
    while records := log.read(found[-1].offset + 1 if found else 0, limit):
        found += records
    return found


def stored_records(disk: Disk) -> list[LogRecord]:
    """Every record in the segment files, found without index, mark or log."""
    found: list[LogRecord] = []
    bases = sorted(base for name in disk.list(FOLDER) if (base := parse_segment_name(name)) is not None)
    for number, base in enumerate(bases):
        limit = bases[number + 1] if number + 1 < len(bases) else None
        file = disk.open(f"{FOLDER}/{base:020d}.seg")
        for batch in walk_batches(file, base, end_offset=limit):
            if isinstance(batch, SoundBatch):
                found += decode_verified(batch.header, batch.data)
        file.close()
    return found


class Found(NamedTuple):
    """What a recovery found."""

    records: tuple[LogRecord, ...]
    next_offset: int
    problems: tuple[str, ...]
    """What is wrong whatever the log should hold: ways of reading that disagree, appends that do not work."""


def examine(disk: Disk, *, options: LogOptions) -> Found:
    """Recover a log and look at it from every side; then append to it, and find that again."""
    notes: list[str] = []
    try:
        log = open_log(disk, options=options, notes=notes)
        records = read_all(log)
        problems = [*_disagreements(log, records, stored_records(disk)), *_leftovers(disk)]
        problems += [note for note in notes if "had been synced" in note]
        next_offset = log.next_offset
        last_ms = records[-1].timestamp_ms if records else 0
        offset = log.append([NewRecord(last_ms, b"after", b"recovery", ())])
        sync(log)
        if offset != next_offset or log.durable_offset != next_offset + 1:
            problems.append(f"an append got offset {offset}, durable up to {log.durable_offset}; {next_offset} was due")
        log.close()
        again = open_log(disk, options=options)
        if read_all(again, limit=100) != [*records, LogRecord(offset, last_ms, b"after", b"recovery", ())]:
            problems.append("opened again, the log holds something else")
        again.close()
    except LogError as error:
        return Found((), 0, (f"the log cannot be used: {error}; notes: {notes}",))
    return Found(tuple(records), next_offset, tuple(problems))


def sync(log: SegmentedLog) -> None:
    """Sync a log. Raises :class:`OSError` when that fails; the log knows by then."""
    task = log.start_sync()
    if task is None:
        return
    try:
        task.run()
    except OSError as error:
        log.finish_sync(error)
        raise
    log.finish_sync(None)


def _leftovers(disk: Disk) -> Iterator[str]:
    names = disk.list(FOLDER)
    for name in names:
        stem, dot, _ = name.rpartition(".")
        is_orphan = name.endswith((OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)) and f"{stem}{dot}seg" not in names
        if is_orphan or name.endswith((COMPACTING_SUFFIX, SWAP_SUFFIX)):
            yield f"{name} is still there"


def _disagreements(log: SegmentedLog, records: Sequence[LogRecord], stored: Sequence[LogRecord]) -> Iterator[str]:
    """Whatever asks the indexes must say the same as a scan."""
    if list(records) != list(stored):
        yield f"read gives {_offsets(records)}, a scan {_offsets(stored)}"
    by_offset = {record.offset: record for record in records}
    span = max(1, log.next_offset - log.start_offset)
    for offset in {*range(log.start_offset, log.next_offset, max(1, span // _SAMPLES)), log.next_offset}:
        if log.get(offset) != by_offset.get(offset):
            yield f"get({offset}) gives {log.get(offset)}, not {by_offset.get(offset)}"
    yield from time_disagreements(log, records)


def time_disagreements(log: SegmentedLog, records: Sequence[LogRecord], *, samples: int = _SAMPLES) -> Iterator[str]:
    """What offset_at says that a look at every record does not."""
    times = sorted({record.timestamp_ms for record in records})
    chosen = times[:: max(1, len(times) // samples)] if times else []
    for time_ms in {*chosen, *times[-1:], *(time_ms + 1 for time_ms in times[-1:])}:
        expected = next((record.offset for record in records if record.timestamp_ms >= time_ms), log.next_offset)
        if log.offset_at(time_ms) != expected:
            yield f"offset_at({time_ms}) gives {log.offset_at(time_ms)}, not {expected}"


def _offsets(records: Sequence[LogRecord]) -> list[int]:
    return [record.offset for record in records]


class LogModel:
    """What was done to a log, and so what a recovery may and must find."""

    def __init__(self) -> None:
        self.written: dict[int, LogRecord] = {}
        """What was appended last at each offset."""
        self.ever: set[LogRecord] = set()
        """All that was ever appended. What was never confirmed may be lost, and its offset given out again."""
        self.sure: set[int] = set()
        """Offsets of records that were confirmed as durable, and neither dropped nor compacted since."""
        self.confirmed_end = 0
        """No confirmed record has an offset at or above it."""
        self.expired: dict[bytes, int] = {}
        """Key -> offset of a deletion marker that compaction may have taken, with all that is older."""

    def appending(self, offset: int, records: Sequence[NewRecord]) -> None:
        """An append begins; it gets that offset if it succeeds."""
        new = {number: LogRecord(number, *record) for number, record in enumerate(records, offset)}
        self.written |= new
        self.ever.update(new.values())

    def confirmed(self, end: int, since: int) -> None:
        """A sync ended: every record below ``end`` is durable; ``since``: those below it are known already."""
        self.sure |= {number for number in self.written if since <= number < end}
        self.confirmed_end = max(self.confirmed_end, end)

    def dropping(self, below: int) -> None:
        """What is older may be missing from now on, deletion markers before what they deleted."""
        self.sure = {number for number in self.sure if number >= below}
        self.expired = {key: marker for key, marker in self.expired.items() if marker >= below}

    def gone(self, offsets: set[int]) -> None:
        """These may be missing from now on."""
        self.sure -= offsets

    def may_go(self, below: int, now_ms: int) -> set[int]:
        """What a compaction of the records below an offset may remove."""
        latest: dict[bytes, int] = {}
        for number, record in sorted(self.written.items()):
            if number < below and record.key:
                latest[record.key] = number
        removed = set()
        for number, record in self.written.items():
            if number >= below or not record.key:
                continue
            is_expired = record.value is None and record.timestamp_ms + TOMBSTONE_AGE_MS <= now_ms
            if latest[record.key] != number or is_expired:
                removed.add(number)
            if is_expired and number in self.sure:
                self.expired[record.key] = max(number, self.expired.get(record.key, -1))
        return removed

    def complaints(self, found: Found) -> Iterator[str]:
        """What is wrong with what a recovery found after a power loss now."""
        yield from found.problems
        by_offset = {record.offset: record for record in found.records}
        for number in self.sure:
            if by_offset.get(number) != self.written[number]:
                yield f"confirmed record {number} is lost: {by_offset.get(number)} instead of {self.written[number]}"
        last = -1
        for record in found.records:
            if record.offset <= last:
                yield f"offset {record.offset} comes after {last}"
            last = record.offset
            if record not in self.ever:
                yield f"{record} was never written"
        if found.next_offset < max(self.confirmed_end, last + 1):
            yield f"offset {found.next_offset} is given out again; {self.confirmed_end} records had been confirmed"
        yield from self._resurrections(by_offset)

    def _resurrections(self, by_offset: dict[int, LogRecord]) -> Iterator[str]:
        """A deletion marker is gone and something that it deleted is there."""
        for key, marker in self.expired.items():
            alive = [number for number, record in by_offset.items() if record.key == key]
            if alive and max(alive) < marker:
                yield f"key {key!r} was deleted at {marker} and has the records {alive} again"


class LogLife:
    """Drives one log by a seed: appends, syncs that overlap with appends, rolls, drops, compactions, restarts."""

    STEPS: Final = (
        *("append",) * 30,
        *("sync",) * 8,
        *("overlapping sync",) * 4,
        *("roll",) * 2,
        *("drop",) * 2,
        "retain",
        "expire",
        *("compact",) * 2,
        "reopen",
        "kill",
    )

    def __init__(self, disk: Disk, seed: int, *, options: LogOptions, steps: Sequence[str] = STEPS) -> None:
        """``steps``: what is drawn from, the more often the likelier."""
        self.disk = disk
        self.steps = steps
        self.model = LogModel()
        self.options = options
        self._rng = random.Random(seed)
        self.now_ms = 1_000_000
        self.log = open_log(disk, options=options)
        self._compactor = Compactor(disk, FOLDER, self.log, encoder(), POLICY)
        self.counts: dict[str, int] = {}

    def live(self, steps: int) -> None:
        """Do so many steps. Raises :class:`AssertionError` when the log, alive and well, differs from the model."""
        for _ in range(steps):
            name = self._rng.choice(self.steps)
            self.counts[name] = self.counts.get(name, 0) + 1
            match name:
                case "append":
                    self._append()
                case "sync":
                    self._sync()
                case "overlapping sync":
                    self._sync(between=True)
                case "roll":
                    self.log.roll()
                case "drop":
                    self._drop()
                case "retain":
                    policies = (RetentionPolicy(max_records=20), RetentionPolicy(max_bytes=1_500))
                    low = self._rng.choice((None, max(self.log.start_offset, self.log.durable_offset - 15)))
                    self._retain(self._rng.choice(policies), needed_from=low)
                case "expire":
                    self._sync()
                    self._retain(RetentionPolicy(max_age_ms=1), needed_from=None)
                case "compact":
                    self._compact()
                case "reopen":
                    self._sync()
                    self.log.close()
                    self._open()
                case "kill":
                    self._open()

    def _open(self) -> None:
        self.log = open_log(self.disk, options=self.options)
        self._compactor = Compactor(self.disk, FOLDER, self.log, encoder(), POLICY)
        self._compare()

    def _append(self) -> None:
        rng = self._rng
        records = []
        for _ in range(rng.randint(1, 4)):
            self.now_ms += rng.choice((0, 0, 150, 700, 1_600, -400))
            key = rng.choice((b"a", b"b", b"c", b"d", b"e", None))
            value = None if key and rng.random() < 0.1 else b"%d" % rng.getrandbits(30) * rng.randint(0, 4)
            headers = ((b"h", b"%d" % rng.randrange(10)),) if rng.random() < 0.2 else ()
            records.append(NewRecord(self.now_ms, key, value, headers))
        self.model.appending(self.log.next_offset, records)
        self.log.append(records)

    def _sync(self, *, between: bool = False) -> None:
        since = max(self.model.confirmed_end, self.log.start_offset)
        task = self.log.start_sync()
        if between:
            self._append()
        if task is not None:
            task.run()
            self.log.finish_sync(None)
            self.model.confirmed(self.log.durable_offset, since)

    def _drop(self) -> None:
        """As a queue does: only what is durable."""
        log, model = self.log, self.model
        offset = self._rng.randint(log.start_offset, max(log.start_offset, log.durable_offset - 10))
        going = {number for number in model.sure if number < offset}
        model.dropping(offset)
        log.drop_before(offset)
        model.sure |= {number for number in going if number >= log.start_offset}
        self._compare()

    def _retain(self, policy: RetentionPolicy, *, needed_from: int | None) -> None:
        """Not past what a group still needs."""
        log, model = self.log, self.model
        end = log.next_offset if needed_from is None else needed_from
        before = {number for number in model.sure if number < end}
        model.dropping(end)
        log.retain(policy, now_ms=self.now_ms + 10_000, needed_from=needed_from)
        model.sure |= {number for number in before if number >= log.start_offset}
        self._compare()

    def _compact(self) -> None:
        log, model = self.log, self.model
        task = self._compactor.start(self.now_ms)
        if task is None:
            return
        removable = model.may_go(log.segments[-1].base_offset, self.now_ms)
        going = removable & model.sure
        model.gone(going)
        task.run()
        if self._rng.random() < 0.5:
            self._append()
        self._compactor.finish(task, None)
        kept = {record.offset for record in read_all(log)}
        model.sure |= going & kept
        self._compare()

    def _compare(self) -> None:
        """Without a power loss nothing at all is lost."""
        found = read_all(self.log)
        here = {record.offset for record in found}
        assert all(self.model.written.get(record.offset) == record for record in found)
        assert self.model.sure <= here, f"lost: {sorted(self.model.sure - here)}"
        assert list(_leftovers(self.disk)) == []
