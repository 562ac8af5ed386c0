"""The state of a consumer group: what was delivered and not settled, and where each partition's cursor is.

``<group>.pel`` and ``<group>.cur`` are a snapshot, ``<group>.pel.log`` holds the operations since (see
:mod:`assay.reference_broker.storage.pending_codec`). Once the log has grown well past what is pending, a new snapshot
replaces it, in steps of which only syncs block, and those run outside the engine's turn:

1. A new log, ``.pel.log.next``, takes the operations from here on. The log before it stays.
2. The pending entries are encoded, some each turn. The logs are replayed as a whole over the snapshot, so it does not
   matter that the entries are described at different moments.
3. The next sync covers both logs, so that nothing in the snapshot is newer than they are, then writes and syncs the
   snapshot's files under temporary names.
4. They are renamed to their places. The next sync covers the folder.
5. The new log is renamed over the old one. The next sync covers the folder; then another snapshot may begin.

Whatever is lost between two steps, the names that are left lead to the same state. No name that power loss may bring
back is used for anything else before the folder is synced.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from contextlib import suppress

from assay.reference_broker.queues.jobs.confirms import sync_now
from assay.reference_broker.queues.jobs.errors import LogError, is_passing, reason_of
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.pending_codec import encode_frames
from assay.reference_broker.storage.pending_operations import OperationCollector
from assay.reference_broker.storage.pending_recovery import GroupRecovery, Note, create_log
from assay.reference_broker.storage.pending_snapshot import GroupPaths, PendingSync, Snapshot, SnapshotPhase
from assay.reference_broker.storage.reopened_file import ReopenedFile

SNAPSHOT_OPERATIONS = 10_000
"""A snapshot follows after so many operations at least ..."""
SNAPSHOT_OPERATIONS_PER_ENTRY = 2
"""... and after so many per pending entry, so that a large pending set is not rewritten for a few operations."""


class PendingLogFile(OperationCollector):
    """Implements :class:`assay.reference_broker.queues.jobs.store.PendingLog`."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        group: str,
        pattern: str,
        volatile: bool,
        note: Note,
        open_files: OpenFiles | None = None,
    ) -> None:
        """Open and recover, or create; ``path`` ends in ``.pel.log``. Raises :class:`LogError`.

        ``open_files`` bounds the files that are open, together with those of other logs.
        """
        super().__init__()
        self._disk = disk
        self._paths = GroupPaths(path)
        self._group = group
        self._pattern = pattern
        self._volatile = volatile
        self._note = note
        self._failure = ""
        self._uncut: int | None = None
        """Where the last log ends, while a partial write behind that could not be cut off yet."""
        self._open_files = open_files
        self._unsynced: dict[ReopenedFile, None] = {}
        self._names_unsynced = self._parents_unsynced = not volatile
        self._mark_wanted = not volatile
        self._mark_unsynced = False
        self._syncing: PendingSync | None = None
        self._snapshot: Snapshot | None = None
        self._phase = SnapshotPhase.NONE if volatile else SnapshotPhase.SWAPPED
        self._snapshot_above = 0
        """After a failure, no snapshot before so many operations."""
        try:
            opened = GroupRecovery(
                disk, self._paths, group=group, pattern=pattern, note=note, open_files=open_files
            ).open()
        except OSError as error:
            note(path, f"cannot be opened: {reason_of(error)}; whoever wants the group is refused, and may try again")
            raise LogError(f"cannot open {path}: {reason_of(error)}") from error
        self._logs = opened.logs
        self._sequence = opened.sequence
        self._logged = opened.operations
        """Operations in each log, runs and ranges counted by their offsets."""
        self._snapshot_due = opened.snapshot_due
        self.recovered = opened.state.records()
        self.recovered_cursors = dict(sorted(opened.state.cursors.items()))
        if volatile:
            # Nobody will ever read them.
            for file in self._logs:
                file.close()
        else:
            # A broker that was killed may have left writes to the operating system; the next sync covers them.
            self._unsynced.update(dict.fromkeys(self._logs))

    # -- writing -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.has_unflushed:
            return
        if self._failure:
            raise LogError(self._failure, sticky=True)
        if self._volatile:
            # Nobody will ever read it.
            self._forget()
            return
        self._end_open()
        frames = encode_frames(self._operations)
        file = self._logs[-1]
        try:
            if self._uncut is not None:
                self._cut_rest()
            before = file.size
            try:
                file.append(frames)
            except OSError:
                self._uncut = before
                with suppress(OSError):
                    self._cut_rest()
                raise
        except OSError as error:
            text = f"cannot be written: {reason_of(error)}"
            self._note(self._paths.log, f"{text}; what it was to hold waits in memory, and is tried again")
            raise LogError(f"{self._paths.log} {text}") from error
        self._logged[-1] += self._collected
        self._forget()
        self._unsynced[file] = None

    def _cut_rest(self) -> None:
        """Cut a partial write off. Raises :class:`OSError`, and then nothing else may be written."""
        if self._uncut is not None:
            self._logs[-1].truncate(self._uncut)
            self._uncut = None

    def rewind(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self._collect_rewind(partition, offset)
        self.flush()

        def told(error: OSError) -> None:
            self._note(self._paths.log, f"a sync was not tried ({reason_of(error)}); tried again at once")

        failure = sync_now(self, told)
        if failure is not None:
            raise LogError(self._failure or f"cannot sync {self._paths.log}: {reason_of(failure)}") from failure

    # -- syncing -------------------------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        if self._failure or self._volatile:
            return False
        return bool(self._unsynced) or self._names_unsynced or self._phase is SnapshotPhase.CAPTURED

    def start_sync(self) -> PendingSync | None:
        if self._syncing is not None or not self.needs_sync:
            return None
        snapshot = None
        if self._phase is SnapshotPhase.CAPTURED:
            snapshot, self._phase = self._snapshot, SnapshotPhase.WRITING
        files, self._unsynced = list(self._unsynced), {}
        folders = [self._paths.folder] if self._names_unsynced or self._mark_unsynced else []
        if self._parents_unsynced:
            # A log that is found may be new, its creator killed before any sync.
            folders.append(self._paths.parent_folder)
        self._names_unsynced = self._parents_unsynced = self._mark_unsynced = False
        # Logs in their order: what a later one holds counts only with all of the earlier one.
        ordered = [file for file in self._logs if file in files]
        for file in ordered:
            file.begin_sync()
        self._syncing = PendingSync(self._disk, self._paths, ordered, folders, snapshot)
        return self._syncing

    def finish_sync(self, error: OSError | None) -> None:
        task, self._syncing = self._syncing, None
        if task is not None:
            for file in task.files:
                file.end_sync(synced=error is None)
        if is_passing(error) and task is not None:
            # It was not tried: the next one covers all that it was to cover.
            self._unsynced = dict.fromkeys((*task.files, *self._unsynced))
            self._names_unsynced = self._parents_unsynced = True
            if task.snapshot is not None:
                self._phase = SnapshotPhase.CAPTURED
            return
        if error is not None:
            self._snapshot = None
            self._failure = (
                f"a sync of {self._paths.log} failed ({reason_of(error)}); nobody knows what is on disk, "
                "so this group refuses work until the broker restarts"
            )
            self._note(self._paths.log, self._failure)
            return
        if task is None:
            return
        if self._mark_wanted:
            self._make_mark()
        if task.folders and self._phase is SnapshotPhase.PLACED:
            self._swap_logs()
        elif task.folders and self._phase is SnapshotPhase.SWAPPED:
            self._phase = SnapshotPhase.NONE
        if task.snapshot is not None:
            if task.snapshot_error is None:
                self._place_snapshot()
            else:
                self._give_up_snapshot(task.snapshot_error)

    def _make_mark(self) -> None:
        """The log is whole on disk. Some later sync covers the mark: until then, as little is lost as without it."""
        try:
            if not self._disk.exists(self._paths.mark):
                self._disk.open(self._paths.mark, create=True).close()
                self._mark_unsynced = True
        except OSError as error:
            self._note(self._paths.mark, f"it cannot be made: {reason_of(error)}; the next sync tries again")
        else:
            self._mark_wanted = False

    def close(self) -> None:
        """Close without syncing. Twice is fine."""
        self._failure = self._failure or "the log is closed"
        self._mark_wanted = False
        self._snapshot = None
        for file in self._logs:
            file.close()

    # -- snapshots -----------------------------------------------------------------------------------------------

    def wants_snapshot(self, pending: int) -> bool:
        if self._phase is not SnapshotPhase.NONE or self._volatile or self._failure:
            return False
        logged = sum(self._logged)
        enough = max(SNAPSHOT_OPERATIONS, SNAPSHOT_OPERATIONS_PER_ENTRY * pending)
        return logged >= self._snapshot_above and (self._snapshot_due or logged >= enough)

    def begin_snapshot(
        self, cursors: Mapping[int, CursorRecord], entries: Iterable[PendingRecord], now_ms: int
    ) -> None:
        if self._phase is not SnapshotPhase.NONE or self._failure or self.has_unflushed:
            return
        if len(self._logs) == 1:
            # Otherwise an earlier snapshot failed: both logs are still needed, and the second one goes on.
            try:
                self._start_next_log()
            except OSError as error:
                self._give_up_snapshot(error)
                return
        self._snapshot = Snapshot(self._group, cursors, entries, now_ms)
        self._phase = SnapshotPhase.CAPTURING

    def _start_next_log(self) -> None:
        file = create_log(
            self._disk,
            self._paths.next_log,
            self._open_files,
            self._group,
            self._pattern,
            self._sequence + 1,
            previous_bytes=self._logs[-1].size,
        )
        self._sequence += 1
        self._logs.append(file)
        self._logged.append(0)
        self._unsynced[file] = None
        self._names_unsynced = True

    def continue_snapshot(self) -> bool:
        if self._phase is not SnapshotPhase.CAPTURING or self._snapshot is None:
            return False
        if self.has_unflushed or self._snapshot.take_some():
            # What is taken in must be in the logs already: only so does a sync of them cover it.
            return True
        if self._snapshot.too_large:
            self._give_up_snapshot(OSError(errno.EFBIG, "more is pending than a snapshot may hold"))
        else:
            self._phase = SnapshotPhase.CAPTURED
        return False

    def _place_snapshot(self) -> None:
        """Its files are synced; give them their names. Entries come first: they may be newer than the cursors."""
        try:
            for path in (self._paths.pending, self._paths.cursors):
                self._disk.rename(f"{path}.tmp", path)
        except OSError as error:
            self._give_up_snapshot(error)
            return
        self._snapshot = None
        self._phase = SnapshotPhase.PLACED
        self._names_unsynced = True

    def _swap_logs(self) -> None:
        """The snapshot is durable under its names: nobody needs the operations before it any more."""
        try:
            self._disk.rename(self._paths.next_log, self._paths.log)
        except OSError as error:
            self._give_up_snapshot(error)
            return
        replaced = self._logs.pop(0)
        replaced.close()
        self._logs[0].path = self._paths.log
        self._unsynced.pop(replaced, None)
        self._logged.pop(0)
        self._snapshot_due = False
        self._snapshot_above = 0
        self._phase = SnapshotPhase.SWAPPED
        self._names_unsynced = True

    def _give_up_snapshot(self, error: OSError) -> None:
        """The logs hold everything, so go on with them; another attempt follows when they have doubled."""
        self._snapshot = None
        self._phase = SnapshotPhase.NONE
        self._snapshot_above = max(SNAPSHOT_OPERATIONS, 2 * sum(self._logged))
        self._note(
            self._paths.log,
            f"no snapshot ({reason_of(error)}); the log goes on, the next attempt is at "
            f"{self._snapshot_above} operations",
        )
        for path in self._paths.temporary:
            try:
                if self._disk.exists(path):
                    self._disk.remove(path)
            except OSError:
                # Opening the group removes it.
                continue
