"""Keyed state that survives: a log of changes, snapshots of the whole, and a replay that needs only the newest of both.

``<folder>/log/`` holds one record per change (a null value deletes the key), ``<folder>/snapshots/`` the newest three
snapshots. All blocking work but the appends is in the sync task: it makes the log durable first, then, when one is due,
writes a snapshot of just that state. The log is dropped behind the oldest snapshot kept, so that a damaged one costs
time and no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from assay.reference_broker.queues.jobs.errors import LogError, reason_of
from assay.reference_broker.queues.jobs.store import NewRecord, SyncTask
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.snapshots import (
    ENTRY_OVERHEAD_BYTES,
    HEADER_BYTES,
    MAX_KEY_BYTES,
    MAX_SNAPSHOT_BYTES,
    MAX_VALUE_BYTES,
    SNAPSHOT_INTERVAL_S,
    SNAPSHOT_RECORDS,
    Note,
    SnapshotEntry,
    SnapshotError,
    SnapshotKind,
    SnapshotStore,
)
from assay.reference_broker.storage.whole_file import sync_up

SEGMENT_BYTES = 4 * 1024 * 1024
"""Small, since the log is dropped by whole segments."""
_ENTRY_KIND = 0
READ_RECORDS = 1_000
_RETRY_S = 60.0


class StateSync:
    """One blocking sync, with the snapshot that was due. Implements the store's ``SyncTask``."""

    def __init__(self, log_task: SyncTask | None, store: SnapshotStore) -> None:
        self.log_task = log_task
        self.snapshot_error: OSError | SnapshotError | None = None
        self.has_snapshot = False
        self.last_offset = -1
        self.taken_at_s = 0.0
        self._store = store
        self._entries: Sequence[tuple[bytes, bytes]] = ()
        self.place = str(getattr(log_task, "place", ""))

    def take_snapshot(self, entries: Sequence[tuple[bytes, bytes]], last_offset: int, now_s: float) -> None:
        """Add a snapshot of this state to the task."""
        self.has_snapshot = True
        self.last_offset = last_offset
        self.taken_at_s = now_s
        self._entries = entries

    def run(self) -> None:
        """Raises :class:`OSError` when the log cannot be synced. A failed snapshot is only remembered."""
        if self.log_task is not None:
            self.log_task.run()
        if not self.has_snapshot:
            return
        entries = (SnapshotEntry(_ENTRY_KIND, key, value) for key, value in self._entries)
        try:
            # Only now: a snapshot ahead of the durable log would hide the records that come next at its offsets.
            self._store.write(entries, self.last_offset, int(self.taken_at_s * 1000))
        except (OSError, SnapshotError) as error:
            self.snapshot_error = error


class StateLog:
    """A durable mapping from keys to values, both bytes. Changes show at once; a crash may take back unsynced ones.

    A change is confirmed when :attr:`durable_offset` is greater than the offset that it returned.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        encoder: BatchEncoder,
        note: Note,
        options: LogOptions | None = None,
        kind: int = SnapshotKind.KEYED_STATE,
        interval_records: int = SNAPSHOT_RECORDS,
        interval_s: float = SNAPSHOT_INTERVAL_S,
    ) -> None:
        """Open and recover: the newest sound snapshot, then the log behind it. Raises :class:`LogError`."""
        self._folder = folder
        self._note = note
        self._syncing: StateSync | None = None
        self._retry_at_s = 0.0
        self._state: dict[bytes, bytes] = {}
        self._state_bytes = HEADER_BYTES
        self._snapshots = SnapshotStore(
            disk,
            f"{folder}/snapshots",
            kind,
            note=note,
            interval_records=interval_records,
            interval_s=interval_s,
        )
        try:
            disk.make_folder(f"{folder}/log")
            sync_up(disk, folder)
            snapshot = self._snapshots.load()
        except OSError as error:
            note(folder, f"cannot be opened: {reason_of(error)}")
            raise LogError(f"cannot open {folder}: {reason_of(error)}") from error
        self._snapshot_end = 0
        if snapshot is not None:
            self._snapshot_end = snapshot.last_offset + 1
            for entry in snapshot.entries:
                self._set(entry.key, entry.value)
        self._log = SegmentedLog(
            disk,
            f"{folder}/log",
            options=options or LogOptions(segment_bytes=SEGMENT_BYTES),
            encoder=encoder,
            volatile=False,
            note=note,
        )
        self._check_coverage()
        self._replay()

    def _check_coverage(self) -> None:
        """Raises :class:`LogError` when snapshot and log do not meet: state built from them would be wrong."""
        start, end = self._log.start_offset, self._log.next_offset
        problem = ""
        if start > self._snapshot_end:
            problem = (
                f"the log starts at offset {start}, but the newest sound snapshot ends before {self._snapshot_end}"
            )
        elif end < self._snapshot_end:
            problem = (
                f"the log ends before offset {end}, but the snapshot contains offsets up to {self._snapshot_end - 1}"
            )
        if problem:
            self._log.close()
            message = f"{self._folder} is incomplete: {problem}; restore it, or move it away to start without its state"
            raise LogError(message)

    def _replay(self) -> None:
        """Apply the records behind the snapshot. Raises :class:`LogError`."""
        offset, end = self._snapshot_end, self._log.next_offset
        while offset < end:
            records = self._log.read(offset, READ_RECORDS)
            for record in records:
                if record.offset > offset:
                    self._note_gap(offset, record.offset)
                if record.key is None:
                    self._note(f"{self._folder}/log", f"the record at offset {record.offset} has no key; skipped")
                else:
                    self._set(record.key, record.value)
                offset = record.offset + 1
            if not records:
                self._note_gap(offset, end)
                return

    def _note_gap(self, start: int, end: int) -> None:
        self._note(
            f"{self._folder}/log", f"offsets {start} to {end - 1} are lost; keys changed there may be out of date"
        )

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Mapping[bytes, bytes]:
        """A view of all keys and values, unsynced changes included."""
        return MappingProxyType(self._state)

    @property
    def next_offset(self) -> int:
        """Offset of the next change."""
        return self._log.next_offset

    @property
    def durable_offset(self) -> int:
        """Changes below it survive power loss."""
        return self._log.durable_offset

    @property
    def records_since_snapshot(self) -> int:
        return self._log.next_offset - self._snapshot_end

    def _set(self, key: bytes, value: bytes | None) -> None:
        before = self._state.pop(key, None)
        self._state_bytes -= _entry_bytes(key, before)
        if value is not None:
            self._state[key] = value
            self._state_bytes += _entry_bytes(key, value)

    # -- changes -------------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[tuple[bytes, bytes | None]], now_s: float) -> int:
        """Make changes in order, None deletes; returns the offset of the last one.

        Written together, but a crash before the sync may keep the first of them only. Raises :class:`LogError` with
        nothing changed.
        """
        if not changes:
            return self._log.next_offset - 1
        self._check_size(changes)
        timestamp_ms = int(now_s * 1000)
        self._log.append([NewRecord(timestamp_ms, key, value, ()) for key, value in changes])
        for key, value in changes:
            self._set(key, value)
        return self._log.next_offset - 1

    def _check_size(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Raises :class:`LogError`: what does not fit into a snapshot must not get into the log."""
        size = self._state_bytes
        changed: dict[bytes, bytes | None] = {}
        for key, value in changes:
            if len(key) > MAX_KEY_BYTES or len(value or b"") > MAX_VALUE_BYTES:
                raise LogError(
                    f"a key of {len(key)} bytes with a value of {len(value or b'')} is too large; "
                    f"the limits are {MAX_KEY_BYTES} and {MAX_VALUE_BYTES}"
                )
            before = changed[key] if key in changed else self._state.get(key)
            size += _entry_bytes(key, value) - _entry_bytes(key, before)
            changed[key] = value
        if size > MAX_SNAPSHOT_BYTES and size > self._state_bytes:
            raise LogError(f"the state of {self._folder} would grow to {size} bytes; the limit is {MAX_SNAPSHOT_BYTES}")

    # -- syncing -------------------------------------------------------------------------------------------------

    def start_sync(self, now_s: float) -> StateSync | None:
        """A sync of all changes so far, with a snapshot when one is due; None when there is nothing to do.

        At most one runs at a time. Run it in any thread, then call :meth:`finish_sync`.
        """
        if self._syncing is not None:
            return None
        entries: Sequence[tuple[bytes, bytes]] | None = None
        last_offset = self._log.next_offset - 1
        if now_s >= self._retry_at_s and self._snapshots.due(self.records_since_snapshot, now_s):
            try:
                self._log.flush()
            except LogError as error:
                self._note(f"{self._folder}/log", str(error))
            else:
                entries = list(self._state.items())
        task = StateSync(self._log.start_sync(), self._snapshots)
        if entries is not None and (task.log_task is not None or self._log.durable_offset > last_offset):
            task.take_snapshot(entries, last_offset, now_s)
        if task.log_task is None and not task.has_snapshot:
            return None
        self._syncing = task
        return task

    def finish_sync(self, error: OSError | None) -> None:
        """The task ended. After an error every change is refused until the state is opened again."""
        task, self._syncing = self._syncing, None
        if task is None:
            return
        if task.log_task is not None:
            self._log.finish_sync(error)
        if error is not None or not task.has_snapshot:
            return
        if task.snapshot_error is not None:
            self._retry_at_s = task.taken_at_s + _RETRY_S
            self._note(f"{self._folder}/snapshots", f"no snapshot could be written: {task.snapshot_error}")
            return
        self._snapshot_end = task.last_offset + 1
        try:
            self._log.drop_before(self._snapshots.oldest_kept_offset + 1)
        except OSError as problem:
            self._note(f"{self._folder}/snapshots", f"cannot be listed: {problem.strerror or problem}")

    def close(self) -> None:
        """Close the files, without syncing them. Twice is fine."""
        self._log.close()


def _entry_bytes(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else ENTRY_OVERHEAD_BYTES + len(key) + len(value)
