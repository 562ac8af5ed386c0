"""The log of sessions and retained messages: one record per key that changed, compacted as it grows.

``sessions/`` holds it as segments, like a partition. :mod:`assay.reference_broker.mqtt.sessions.session_records` says
what the records hold; here they are only keys and values. A record without a value deletes its key.

What a turn changed must be found as a whole or not at all. Records that fit one batch are: it has a checksum. Larger
turns begin with a record that says where they end; one that is found unfinished is undone at the next start, by writing
the values from before it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from assay.reference_broker.config import Compression, Durability, SessionsConfig
from assay.reference_broker.queues.jobs.background_job import BackgroundJob
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint, run_now
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, reason_of
from assay.reference_broker.queues.jobs.store import NewRecord, RecoveryNote, SyncTask
from assay.reference_broker.storage import batching
from assay.reference_broker.storage.batch import MAX_BATCH_RECORDS, BatchEncoder
from assay.reference_broker.storage.compaction import CompactionPolicy, CompactionTask, Compactor
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.disk_room import DiskRoom
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.notes import Notes
from assay.reference_broker.trace.described import described

FOLDER = "sessions"
HERE = "sessions.mark"
"""An empty file that says that there is such a folder, so that a start misses it."""
LOST = "sessions.lost"
"""An empty file that says that a start did miss it: a check tells so until a repair takes note of it."""
_GROUP_KEY = b"t"
"""Key of the record that a turn of several batches begins with."""
_RETRY_S = 1.0
_ROOM_INTERVAL_S = 5.0
"""While the disk is nearly full, all that there is is looked through for what is not needed that often at most."""
_POLICY = CompactionPolicy(min_dirty_ratio=0.5, tombstone_age_ms=0)


class _Group(NamedTuple):
    """A turn of several batches."""

    start_offset: int
    """If it is not whole, this and all behind it does not count."""
    end_offset: int


class _CompactionRun:
    """A compaction as a job; what it could not copy is no fault of the disk."""

    runs_again = False

    def __init__(self, task: CompactionTask) -> None:
        self.task = task
        self.error: LogError | None = None

    def run(self) -> None:
        """Raises :class:`OSError`."""
        try:
            self.task.run()
        except LogError as error:
            self.error = error


class _CompactionPoint:
    """Where a compaction reports to; nobody waits for it."""

    def __init__(self, log: SegmentedLog, compactor: Compactor, run: _CompactionRun) -> None:
        self._log = log
        self._compactor = compactor
        self._run = run

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """See :class:`JobPoint`."""
        try:
            self._compactor.finish(self._run.task, error or self._run.error)
        except LogError as problem:
            self._log.note(FOLDER, str(problem))
        return []


def set_sessions_aside(disk: Disk) -> str:
    """Keep the folder under another name, which is returned, so that the broker can start without it. Durable.

    Raises :class:`OSError`.
    """
    names = disk.list("")
    place = next(name for number in count(1) if (name := f"{FOLDER}.damaged-{number}") not in names)
    if HERE in names:
        # Nobody shall miss it.
        disk.remove(HERE)
    disk.rename(FOLDER, place)
    disk.sync_folder("")
    return place


class SessionStore(SyncPoint):
    """Writes records, syncs and compacts them. Jobs go through the queue engine like those of the queues."""

    def __init__(
        self, disk: Disk, config: SessionsConfig, notes: Notes | None = None, room: DiskRoom | None = None
    ) -> None:
        """Open and recover. Raises :class:`LogError`.

        ``notes``: where people are told of problems; ``room``: is told what is written, and refuses none of it.
        """
        self._config = config
        self._notes = notes or Notes()
        try:
            if disk.exists(HERE) and not disk.exists(FOLDER):
                self._note(FOLDER, "the folder is missing, with all sessions and retained messages; a new one begins")
                disk.open(LOST, create=True).close()
            disk.make_folder(FOLDER)
            disk.sync_folder("")
            if not disk.exists(HERE):
                disk.open(HERE, create=True).close()
        except OSError as error:
            raise LogError(f"cannot create {FOLDER}: {reason_of(error)}") from error
        self._log = SegmentedLog(
            disk,
            FOLDER,
            # Other turns may tell of what a write holds before it is synced.
            options=LogOptions(segment_bytes=config.segment_bytes, segment_age_ms=0, unsynced_counts=True),
            encoder=BatchEncoder(Compression.NONE),
            volatile=False,
            note=self._note,
            room=room,
        )
        super().__init__(self._log)
        if self._log.start_offset:
            # Compaction leaves the first segment in its place.
            lost = f"offsets 0 to {self._log.start_offset - 1} are missing: its first segments are gone"
            self._note(FOLDER, f"{lost}, with sessions and retained messages")
        self._compactor = Compactor(disk, FOLDER, self._log, BatchEncoder(Compression.NONE), _POLICY)
        self._unwritten: dict[bytes, NewRecord] = {}
        """What a failed write left behind, by key; it is written again with the next."""
        self.retry_at: float | None = None
        """A write failed: when to try again, though nothing new comes."""
        self._sync_due_at: float | None = None
        self._may_compact = True
        """Segments were sealed or synced since a compaction was last thought of."""
        self._wants_room_at: float | None = None
        self._room_made_at = -_ROOM_INTERVAL_S
        self._room_made_to = -1
        self._is_making_room = False

    def _note(self, place: str, problem: str) -> None:
        self._notes.add("", place, problem)

    def recovery_notes(self) -> list[RecoveryNote]:
        """What opening found: damage that was cut or passed over."""
        return list(self._notes.recovery)

    def note(self, problem: str) -> None:
        """Remember something that could not be restored."""
        self._note(FOLDER, problem)

    @property
    def stored_bytes(self) -> int:
        return self._log.stored_bytes

    def read_all(self) -> dict[bytes, bytes]:
        """The last value of every key, in the order of the last change. Raises :class:`LogError`.

        A turn that was not written as a whole is undone first.
        """
        found, group, _ = self._read(self._log.next_offset)
        if group is None or group.end_offset <= self._log.next_offset:
            return found
        before, _, _ = self._read(group.start_offset)
        _, _, touched = self._read(self._log.next_offset, group.start_offset)
        self._note(FOLDER, f"what one turn changed was written in part only; {len(touched)} changes are undone")
        undoing = [NewRecord(0, key, before.get(key), ()) for key in touched]
        self._log.append([group_record(group.start_offset, self._log.next_offset, undoing), *undoing])
        self._sync_due_at = 0.0
        return before

    def _read(self, end_offset: int, start_offset: int = 0) -> tuple[dict[bytes, bytes], _Group | None, list[bytes]]:
        """The values that records set, the last group among them, and their keys. Raises :class:`LogError`."""
        found: dict[bytes, bytes] = {}
        touched: dict[bytes, None] = {}
        group: _Group | None = None
        for record in self._log.read_range(max(start_offset, self._log.start_offset), end_offset):
            key, value = record.key, record.value
            if key == _GROUP_KEY and value is not None:
                try:
                    group = msgspec.msgpack.decode(value, type=described(_Group))
                except msgspec.DecodeError as error:
                    message = f"{FOLDER}: the record at offset {record.offset} is not understood: {error}"
                    raise LogError(message) from error
            elif key is not None:
                touched[key] = None
                found.pop(key, None)
                if value is not None:
                    found[key] = value
        return found, group, list(touched)

    # -- writing -------------------------------------------------------------------------------------------------

    def owes(self) -> bool:
        """A write failed, so that whoever is to be told of what it was about waits for the next one."""
        return bool(self._unwritten) or self.failure is not None

    def owes_record(self, key: bytes) -> bool:
        """Whether what a key was set to last could not be written yet."""
        return key in self._unwritten

    def write(self, records: Sequence[NewRecord], now: float) -> bool:
        """Write the changes of a turn; whether there are any. After an error they are tried again later, with those of
        later turns.

        Raises :class:`LogError`: nothing that depends on them may leave the broker.
        """
        if self._unwritten:
            records = self._with_unwritten(records)
        if not records:
            if self.failure is not None:
                raise LogError(self.failure.text, sticky=True)
            return False
        whole = records
        if len(records) > MAX_BATCH_RECORDS // 2 or batching.bound_of(records) > batching.TARGET_BATCH_BYTES:
            whole = [group_record(self._log.next_offset, self._log.next_offset, records), *records]
        try:
            self._log.append(whole)
        except LogError:
            self._unwritten = {}
            self._with_unwritten(records)
            self.retry_at = None if self.failure is not None else now + _RETRY_S
            raise
        self._unwritten = {}
        self.retry_at = None
        if self._sync_due_at is None:
            wait_s = 0.0 if self._config.durability is Durability.FSYNC else self._config.sync_interval_s
            self._sync_due_at = now + wait_s
        return True

    def _with_unwritten(self, records: Sequence[NewRecord]) -> list[NewRecord]:
        """One record a key, the last one, in the order of the last change."""
        merged = self._unwritten
        for record in records:
            assert record.key is not None
            merged.pop(record.key, None)
            merged[record.key] = record
        return list(merged.values())

    def next_deadline(self) -> float | None:
        """When :meth:`take_jobs` or, after a failed write, :meth:`write` is due."""
        if self.retry_at is not None:
            return self.retry_at
        if self.is_syncing:
            return None
        times = (self._sync_due_at, self._wants_room_at)
        return min((time for time in times if time is not None), default=None)

    def make_room(self, now: float, *, is_low: bool) -> None:
        """Each turn. On a disk that is nearly full: copy what is needed away from the rest, though little was written.

        A few acknowledgements may have freed all that there is, and while messages are refused little more is written.
        """
        if not is_low or self.failure is not None or self._log.next_offset == self._room_made_to:
            self._wants_room_at = None
            return
        due_at = self._room_made_at + _ROOM_INTERVAL_S
        if now < due_at or self.is_syncing:
            self._wants_room_at = due_at
            return
        self._wants_room_at = None
        self._room_made_at, self._room_made_to = now, self._log.next_offset
        try:
            self._log.roll()
        except LogError:
            # It has told why, and is asked again.
            return
        self._is_making_room = True
        self._sync_due_at = now

    # -- syncing -------------------------------------------------------------------------------------------------

    def take_jobs(self, now: float) -> list[BackgroundJob]:
        """The sync, and the compaction, that are due."""
        jobs: list[BackgroundJob] = []
        if self._sync_due_at is not None and now >= self._sync_due_at and not self.is_syncing:
            # Also where there is nothing to sync, as after a failure: a time that has passed would be due for ever.
            self._sync_due_at = None
            task = self.start_sync()
            if task is not None:
                jobs.append(BackgroundJob(self, task))
        is_early = self._is_making_room and self.is_syncing
        if self._may_compact and self.failure is None and not is_early:
            self._may_compact = False
            compaction = self._compactor.start(int(now * 1000), at_once=self._is_making_room)
            if compaction is not None:
                self._is_making_room = False
                run = _CompactionRun(compaction)
                jobs.append(BackgroundJob(_CompactionPoint(self._log, self._compactor, run), run))
        return jobs

    def when_synced(self, confirm: Confirm) -> bool:
        """See :meth:`SyncPoint.when_synced`; the sync is among the next jobs."""
        if self._sync_due_at is None and self._log.needs_sync:
            # A write that failed may have left a segment behind, for which no sync was due.
            self._sync_due_at = 0.0
        return super().when_synced(confirm)

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        self._may_compact = True
        return super().finish_sync(error)

    def close(self) -> None:
        """Sync what is left; blocking. Report running jobs before. Twice is fine."""
        task: SyncTask | None = self.start_sync()
        if task is not None:
            for confirm, problem in self.finish_sync(run_now(task)):
                confirm(problem)
        self._log.close()


def group_record(start_offset: int, next_offset: int, records: Sequence[NewRecord]) -> NewRecord:
    """What a group of records begins with. ``start_offset``: from where on nothing counts unless it is whole."""
    value = msgspec.msgpack.encode(_Group(start_offset, next_offset + 1 + len(records)))
    return NewRecord(records[0].timestamp_ms if records else 0, _GROUP_KEY, value, ())
