"""A snapshot of a group's state on its way to the disk, and the blocking work of a group's syncs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice

from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.group_files import MAX_FILE_BYTES, PendingFileEncoder, encode_cursor_file
from assay.reference_broker.storage.reopened_file import ReopenedFile
from assay.reference_broker.storage.whole_file import write_whole

LOG_SUFFIX = ".pel.log"
MARK_SUFFIX = ".group"
"""Of an empty file beside a group's log, made once that is whole on disk and there as long as the group is. Without it,
a group whose log is missing could not be told from one that was deleted, nor one whose log is damaged from one that has
not begun: nobody was told that it is there, and where it was to begin is lost."""
ENTRIES_PER_STEP = 1_000
"""Taken in per turn: about three milliseconds' work."""
_MAX_CHARACTERS = MAX_FILE_BYTES // 4


class GroupPaths:
    """Names of a group's files."""

    def __init__(self, log: str) -> None:
        base = log.removesuffix(LOG_SUFFIX)
        self.log = log
        self.next_log = f"{log}.next"
        """The log that continues :attr:`log` while a snapshot is under way."""
        self.pending = f"{base}.pel"
        self.cursors = f"{base}.cur"
        self.mark = f"{base}{MARK_SUFFIX}"
        self.folder = log.rpartition("/")[0]
        self.parent_folder = self.folder.rpartition("/")[0]

    @property
    def temporary(self) -> tuple[str, ...]:
        """Unfinished files, to be removed whenever they are found."""
        return tuple(f"{path}.tmp" for path in (self.pending, self.cursors, self.log))


class SnapshotPhase(Enum):
    """What was done for a snapshot. Steps that need a sync before the next one wait for it."""

    NONE = "none"
    CAPTURING = "capturing"
    """Entries are taken in, some each turn."""
    CAPTURED = "captured"
    """The next sync writes it to temporary files and syncs them."""
    WRITING = "writing"
    PLACED = "placed"
    """Renamed to its place; once the folder is synced, the log before it can go."""
    SWAPPED = "swapped"
    """The new log took the old one's name; once the folder is synced, the next snapshot may begin."""


class Snapshot:
    """The content of ``.pel`` and ``.cur``, taken in piece by piece."""

    def __init__(
        self,
        group: str,
        cursors: Mapping[int, CursorRecord],
        entries: Iterable[PendingRecord],
        now_ms: int,
    ) -> None:
        self._entries = iter(entries)
        self._encoder = PendingFileEncoder(group)
        self._cursor_file = encode_cursor_file(group, cursors, now_ms)
        self._now_ms = now_ms

    def take_some(self) -> bool:
        """Take entries in, a bounded number; False when there are no more."""
        return self._encoder.add(islice(self._entries, ENTRIES_PER_STEP)) == ENTRIES_PER_STEP

    @property
    def too_large(self) -> bool:
        """Larger than what is read back."""
        return self._encoder.encoded_characters > _MAX_CHARACTERS

    def write(self, disk: Disk, paths: GroupPaths) -> None:
        """Write and sync the temporary files. Blocking; raises :class:`OSError`."""
        for path, content in (
            (paths.cursors, self._cursor_file),
            (paths.pending, self._encoder.encode(self._now_ms)),
        ):
            write_whole(disk, f"{path}.tmp", content)


class PendingSync:
    """Implements ``SyncTask``: logs, folders, then the snapshot's files."""

    def __init__(
        self,
        disk: Disk,
        paths: GroupPaths,
        files: Sequence[ReopenedFile],
        folders: Sequence[str],
        snapshot: Snapshot | None,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self.files = tuple(files)
        self.place = paths.log
        self.folders = tuple(folders)
        self.snapshot = snapshot
        self.snapshot_error: OSError | None = None
        """The snapshot's files could not be written. That harms nobody: the logs hold everything."""

    def run(self) -> None:
        """Blocking. Raises :class:`OSError` when a log or its name cannot be synced."""
        for file in self.files:
            file.sync()
        for folder in self.folders:
            self._disk.sync_folder(folder)
        if self.snapshot is not None:
            try:
                self.snapshot.write(self._disk, self._paths)
            except OSError as error:
                self.snapshot_error = error
