"""``queue.json``: what is known of a queue beside its logs; only ever replaced as a whole."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from assay.reference_broker.queues.jobs.errors import is_passing, reason_of
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log_opening import Note
from assay.reference_broker.storage.whole_file import replace_whole
from assay.reference_broker.trace.described import described

ROOT = "queues"
DESCRIPTION = "queue.json"
_MAX_BYTES = 64 * 1024


class QueueDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the file holds."""

    version: int
    name: str
    partitions: int
    facts: tuple[str, ...] = ()
    """What was once true of the queue, sorted; a file without them is of an older broker."""
    settings: dict[str, Any] = {}
    """What was configured at run time, in the words of the configuration file."""
    purged: dict[int, int] = {}
    """Partition -> offset: what is below was purged, and nobody gets it any more."""
    deleted: bool = False
    """The queue is being removed: what is left of it does not count."""


_EMPTY = QueueDescription(version=1, name="", partitions=0)


class DescriptionFile:
    """The file of one open queue: it is synced as a log is, and is the task that does so.

    Implements :class:`assay.reference_broker.queues.jobs.store.SyncedDescription`.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        name: str,
        partitions: int,
        settings: Mapping[str, Any] | None,
        *,
        rooted: set[Disk],
        note: Note,
        later: bool,
    ) -> None:
        """Open it, or make the queue's folders and it: durably, or ``later``, by its first sync. Raises
        :class:`OSError`.

        ``rooted``: disks whose folder of queues is known to be durable.
        """
        self._disk = disk
        self._rooted = rooted
        self._note = note
        self.place = folder
        self._path = f"{folder}/{DESCRIPTION}"
        self._lock = threading.Lock()
        self._is_syncing = self._is_changed = False
        found = read_content(disk, self._path)
        wanted = msgspec.structs.replace(_known(found), name=name, partitions=partitions)
        if settings is not None:
            wanted = msgspec.structs.replace(wanted, settings=dict(settings))
        self.current = self._written = wanted
        self._is_made = found == msgspec.json.encode(wanted)
        if found is None and later:
            self._is_changed = True
            return
        if not self._is_made:
            self._make(wanted)
        # Also when it was there: a broker killed while it made the queue did not get this far.
        self._sync_folders()
        self._is_made = True

    @property
    def is_new(self) -> bool:
        """Nothing of the queue is on the disk for good: what is written before that counts for nothing."""
        return not self._is_made

    def _make(self, wanted: QueueDescription) -> None:
        for inner in ("partitions", "consumers"):
            self._disk.make_folder(f"{self.place}/{inner}")
        replace_description(self._disk, self._path, wanted)

    def _sync_folders(self) -> None:
        for changed in (self.place, ROOT) if self._disk in self._rooted else (self.place, ROOT, ""):
            self._disk.sync_folder(changed)
        self._rooted.add(self._disk)

    # -- changing ------------------------------------------------------------------------------------------------

    def change(self, **fields: Any) -> None:
        """It is durable once the next sync of it is done."""
        self.current = msgspec.structs.replace(self.current, **fields)
        self._is_changed = True

    # -- syncing -------------------------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """Something of it is not durable yet."""
        return self._is_changed

    def start_sync(self) -> DescriptionFile | None:
        """The task, unless it is running or there is none."""
        if self._is_syncing or not self.needs_sync:
            return None
        self._is_syncing, self._is_changed = True, False
        return self

    def run(self) -> None:
        """Write what is known by now. Raises :class:`OSError`."""
        with self._lock:
            wanted = self.current
            if self._is_made:
                replace_description(self._disk, self._path, wanted)
                self._disk.sync_folder(self.place)
            else:
                self._make(wanted)
                self._sync_folders()
            self._written, self._is_made = wanted, True

    def finish_sync(self, error: OSError | None) -> None:
        """It has run."""
        self._is_syncing = False
        if error is not None:
            if is_passing(error):
                self._is_changed = True
            else:
                self.current = self._written
                self._note(self._path, f"cannot be written: {reason_of(error)}; whoever asked for it is refused")

    def close(self) -> None:
        """Nothing is open between two writes."""


def replace_description(disk: Disk, path: str, description: QueueDescription) -> None:
    """The caller syncs the folder. Raises :class:`OSError`."""
    replace_whole(disk, path, msgspec.json.encode(description))


def read_content(disk: Disk, path: str) -> bytes | None:
    """None when there is no such file. Raises :class:`OSError`."""
    if not disk.exists(path):
        return None
    with contextlib.closing(disk.open(path)) as file:
        return file.read_at(0, _MAX_BYTES)


def _known(content: bytes | None) -> QueueDescription:
    """What a file says; nothing in one that a crash or a hand damaged: it is written anew."""
    try:
        return _EMPTY if content is None else msgspec.json.decode(content, type=described(QueueDescription))
    except ValueError:
        return _EMPTY
