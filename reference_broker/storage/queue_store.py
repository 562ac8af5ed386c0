"""Where queues live on a disk, and how to find them again.

``queues/<queue>/queue.json``, ``queues/<queue>/partitions/<id>/<20 digits>.seg`` and
``queues/<queue>/consumers/<group>/<group>.pel.log``, queue and group encoded by :func:`encode_name`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from assay.reference_broker.config import Compression, Durability, QueueConfig
from assay.reference_broker.queues.jobs.errors import LogError, is_passing, may_pass, raise_if_not_tried, reason_of
from assay.reference_broker.queues.jobs.store import RecoveryNote, StoredGroup, StoredQueue
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.description import (
    DESCRIPTION,
    ROOT,
    DescriptionFile,
    QueueDescription,
    read_content,
    replace_description,
)
from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.disk_room import DiskRoom
from assay.reference_broker.storage.file_names import decode_name, encode_name
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.log_opening import Note
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.memory_log import MemoryLog
from assay.reference_broker.storage.notes import Notes
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.pending_codec import LogFrame, LogHeader, decode_header, walk_frames
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.pending_snapshot import LOG_SUFFIX, MARK_SUFFIX
from assay.reference_broker.storage.removed_mark import removed_path
from assay.reference_broker.storage.sparse_log import SparseLog
from assay.reference_broker.storage.state_log import StateLog
from assay.reference_broker.trace.described import described

_LogT = TypeVar("_LogT", bound=SegmentedLog)

DELAYS, DELAYS_DONE = "delays", "delays_done"
"""Folders of a queue: messages that wait for their time, and which of them fired or were cancelled."""
DEPARTURES = "departures"
"""Folder of a queue: which of its messages nobody gets any more."""
_DELAYS_BATCH_RECORDS = 8
"""They are read back in the order of their due times, so one by one at worst."""
DONE_SEGMENT_BYTES = 256 * 1024
DEPARTURES_SEGMENT_BYTES = 64 * 1024
MEMORY_SEGMENT_BYTES = 1024 * 1024
_MAX_GROUP_HEADER_BYTES = 256 * 1024
STATE_SNAPSHOT_RECORDS = 2_000
REFUSED: Final = "the queue is refused and its files are left as they are; the others go on"
"""Ends the note about a queue that is set aside."""


class LogQueueStore:
    """Implements :class:`assay.reference_broker.queues.jobs.store.QueueStore`.

    ``disk`` None keeps everything in memory; queues of durability ``memory`` are kept there in any case.
    """

    def __init__(self, disk: Disk | None, *, options: LogOptions | None = None) -> None:
        """``options``: how partition logs are written. Takes the disk's lock.

        Raises :class:`assay.reference_broker.storage.disk.DirectoryInUseError`.
        """
        self._disk = disk
        self._options = options or LogOptions()
        self._memory_options = msgspec.structs.replace(
            self._options, segment_bytes=min(self._options.segment_bytes, MEMORY_SEGMENT_BYTES), reserve_bytes=0
        )
        self.open_files = OpenFiles()
        self._memory = MemoryDisk()
        self.notes = Notes()
        self.on_full: Callable[[], None] = lambda: None
        self._rooted: set[Disk] = set()
        """Where the folder of queues has been synced since the start."""
        self._unusable: dict[str, str] = {}
        """Folder of a queue -> why nothing is done with it."""
        self._unread: list[str] = []
        self.room = None if disk is None else DiskRoom(disk, self._options.reserve_bytes, self._refused)
        """For everything but settlements, and what queues keep in memory."""
        self._encoders = {compression: BatchEncoder(compression) for compression in Compression}
        if disk is not None:
            disk.lock()

    def _refused(self, place: str, problem: str) -> None:
        self.note("", place, problem)
        self.on_full()

    def stored_queues(self) -> list[StoredQueue]:
        """See :meth:`QueueStore.stored_queues`. A folder without a readable description is noted and left alone."""
        if self._disk is None:
            return []
        found: list[StoredQueue] = []
        for folder in self._disk.list(ROOT):
            try:
                queue = self._stored(self._disk, folder)
            except LogError as error:
                raise_if_not_tried(error)
                self.set_folder_aside(folder, str(error))
                if may_pass(error) and encode_name(decode_name(folder)) == folder:
                    self._unread.append(decode_name(folder))
            else:
                found += () if queue is None else (queue,)
        return sorted(found, key=lambda queue: queue.name)

    def stored_queue(self, name: str) -> StoredQueue | None:
        return None if self._disk is None else self._stored(self._disk, encode_name(name))

    def unread_queues(self) -> list[str]:
        return list(self._unread)

    def _stored(self, disk: Disk, folder: str) -> StoredQueue | None:
        """The queue of a folder; what was deleted is removed. Raises :class:`LogError`."""
        description = self._describe(f"{ROOT}/{folder}")
        if description is None:
            return None
        if description.deleted:
            try:
                _remove_rest(disk, f"{ROOT}/{folder}")
            except OSError as error:
                raise LogError(f"it was deleted, and its files stay: {reason_of(error)}") from error
            return None
        if encode_name(description.name) != folder:
            raise LogError("the folder does not belong to the queue it describes")
        return StoredQueue(name=description.name, partitions=description.partitions, settings=description.settings)

    def set_aside(self, name: str, problem: str) -> None:
        self.set_folder_aside(encode_name(name), problem)

    def set_folder_aside(self, folder: str, problem: str) -> None:
        """Refuse a queue whose files cannot be used, and leave them as they are."""
        self._unusable[folder] = problem
        self.note(decode_name(folder), f"{ROOT}/{folder}", f"{problem}; {REFUSED}")

    def take_back(self, name: str) -> None:
        self._unusable.pop(encode_name(name), None)

    def unusable(self, name: str) -> str | None:
        return self._unusable.get(encode_name(name)) if self._unusable else None

    def unusable_queues(self) -> list[str]:
        return sorted(map(decode_name, self._unusable))

    def _describe(self, folder: str) -> QueueDescription | None:
        assert self._disk is not None
        path = f"{folder}/{DESCRIPTION}"
        try:
            data = read_content(self._disk, path)
        except OSError as error:
            raise LogError(f"cannot open {path}: {reason_of(error)}") from error
        if data is None:
            if _holds_messages(self._disk, folder):
                raise LogError(f"{path} is missing; restore it, or move {folder} away to give the queue up")
            # The queue was being created when the broker stopped, or was deleted: there is nothing in it.
            return None
        try:
            description = msgspec.json.decode(data, type=described(QueueDescription))
        except (ValueError, RecursionError) as error:
            message = f"{path} is damaged ({error}); restore it, or move {folder} away to give the queue up"
            raise LogError(message) from error
        if description.version != 1:
            raise LogError(f"{path} has version {description.version}; this broker reads version 1")
        return description

    def open_queue(
        self, config: QueueConfig, settings: Mapping[str, Any] | None = None, *, later: bool = False
    ) -> LogQueueFiles:
        in_memory = self._disk is None or config.durability is Durability.MEMORY
        disk = self._memory if self._disk is None or in_memory else self._disk
        folder = f"{ROOT}/{encode_name(config.name)}"
        try:
            if not disk.exists(f"{folder}/{DESCRIPTION}") and not _holds_messages(disk, folder):
                # What a broker left that was killed before it had made the queue: of that nothing counts.
                for name in disk.list(folder):
                    remove_tree(disk, f"{folder}/{name}")
            description = DescriptionFile(
                disk,
                folder,
                config.name,
                config.partitions,
                settings,
                rooted=self._rooted,
                note=partial(self.note, config.name),
                later=later and not in_memory,
            )
        except OSError as error:
            raise self.refusal(config.name, folder, "created", error) from error
        options = self._memory_options
        if not in_memory:
            options = msgspec.structs.replace(self._options, unsynced_counts=config.durability is not Durability.FSYNC)
        if config.retention.segment_bytes:
            options = msgspec.structs.replace(options, segment_bytes=config.retention.segment_bytes)
        return LogQueueFiles(
            self,
            disk,
            folder,
            description=description,
            options=options,
            encoder=self._encoders[config.compression],
            volatile=in_memory,
        )

    def open_state(self, name: str, *, create: bool) -> StateLog | None:
        disk = self._memory if self._disk is None else self._disk
        try:
            if not create and not disk.list(name):
                return None
        except OSError as error:
            raise self.refusal("", name, "read", error) from error
        return StateLog(
            disk,
            name,
            encoder=self._encoders[Compression.NONE],
            note=lambda place, problem: self.note("", place, problem),
            interval_records=STATE_SNAPSHOT_RECORDS,
        )

    def note(self, queue: str, place: str, problem: str) -> None:
        self.notes.add(queue, place, problem)

    @property
    def on_note(self) -> Callable[[RecoveryNote], None] | None:
        return self.notes.on_note

    @on_note.setter
    def on_note(self, told: Callable[[RecoveryNote], None] | None) -> None:
        self.notes.on_note = told

    def refusal(self, queue: str, path: str, what: str, error: OSError) -> LogError:
        """The disk refused something, which leaves everything as it was; people are told, too."""
        text = f"cannot be {what}: {reason_of(error)}"
        self.note(queue, path, f"{text}; whoever asked for it is refused, and may try again")
        return LogError(f"{path} {text}")

    def recovery_notes(self) -> list[RecoveryNote]:
        return list(self.notes.recovery)

    def close(self) -> None:
        """Give the disk's lock back."""
        if self._disk is not None:
            self._disk.unlock()


def _holds_messages(disk: Disk, folder: str) -> bool:
    """Whether something is stored in a queue's partitions, or waits for its time. Their folders alone are what a queue
    that was deleted may leave. Raises :class:`OSError`."""
    partitions = f"{folder}/partitions"
    try:
        return any(disk.list(f"{partitions}/{name}") for name in disk.list(partitions)) or bool(
            disk.list(f"{folder}/{DELAYS}")
        )
    except NotADirectoryError:
        return True


def _remove_rest(disk: Disk, folder: str) -> None:
    """Take away the files of a queue that is marked as deleted, the mark last. Raises :class:`OSError`.

    What holds messages is gone for good before the mark is: without it, what is left would come back with the next
    queue of that name.
    """
    for name in disk.list(folder):
        if name != DESCRIPTION:
            remove_tree(disk, f"{folder}/{name}")
    disk.sync_folder(folder)
    disk.remove(f"{folder}/{DESCRIPTION}")
    disk.sync_folder(folder)
    with contextlib.suppress(OSError):
        # An empty folder does no harm.
        disk.remove_folder(folder)
        disk.sync_folder(ROOT)


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a file, or a folder with all that is in it, durably. Raises :class:`OSError`."""
    try:
        disk.remove(path)
    except (IsADirectoryError, PermissionError, FileNotFoundError):
        # Which of them depends on the system.
        for name in disk.list(path):
            remove_tree(disk, f"{path}/{name}")
        disk.sync_folder(path)
        with contextlib.suppress(OSError):
            disk.remove_folder(path)


class _Removal:
    """Removes a queue for good: implements :class:`assay.reference_broker.queues.jobs.store.SyncTask`."""

    def __init__(self, disk: Disk, folder: str, description: QueueDescription) -> None:
        self._disk = disk
        self._folder = folder
        self.place = folder
        self._marked = msgspec.structs.replace(description, deleted=True)

    def run(self) -> None:
        """Blocking. Raises :class:`OSError`."""
        path = f"{self._folder}/{DESCRIPTION}"
        if not self._disk.exists(path):
            # It was never made: without a description nothing counts.
            for name in self._disk.list(self._folder):
                remove_tree(self._disk, f"{self._folder}/{name}")
            return
        replace_description(self._disk, path, self._marked)
        self._disk.sync_folder(self._folder)
        _remove_rest(self._disk, self._folder)


class GroupRemoval:
    """Removes what is stored of a group: implements :class:`assay.reference_broker.queues.jobs.store.SyncedLog`, and is
    the task."""

    def __init__(self, disk: Disk, folder: str, name: str, note: Note) -> None:
        self._disk = disk
        self._name = name
        self._note = note
        self.place = folder
        self.needs_sync = True

    def start_sync(self) -> GroupRemoval | None:
        """The task, once."""
        if not self.needs_sync:
            return None
        self.needs_sync = False
        return self

    def run(self) -> None:
        """Blocking. Raises :class:`OSError`.

        Without log and mark a group does not exist, whatever else is left of it: first the mark goes, then the log,
        last of the two that a later group of that name might go on with, and everything else once that is durable.
        """
        files = self._disk.list(self.place)
        log = f"{self._name}{LOG_SUFFIX}"
        if (mark := f"{self._name}{MARK_SUFFIX}") in files:
            self._disk.remove(f"{self.place}/{mark}")
            self._disk.sync_folder(self.place)
        for file in (f"{log}.next", log):
            if file in files:
                self._disk.remove(f"{self.place}/{file}")
        self._disk.sync_folder(self.place)
        for file in self._disk.list(self.place):
            self._disk.remove(f"{self.place}/{file}")
        self._disk.sync_folder(self.place)

    def finish_sync(self, error: OSError | None) -> None:
        """It has run."""
        self.needs_sync = is_passing(error)
        if error is not None and not self.needs_sync:
            text = f"cannot be deleted: {reason_of(error)}; the group is refused until a restart finds what is left"
            self._note(self.place, text)

    def close(self) -> None:
        """Nothing is open."""


def _says_something(file: DiskFile, header: LogHeader) -> bool:
    """Whether a group's log has more than its header, or goes on from a snapshot."""
    return header.sequence > 0 or isinstance(next(walk_frames(file, header.size), None), LogFrame)


class LogQueueFiles:
    """Implements :class:`assay.reference_broker.queues.jobs.store.QueueFiles`."""

    def __init__(
        self,
        store: LogQueueStore,
        disk: Disk,
        folder: str,
        *,
        description: DescriptionFile,
        options: LogOptions,
        encoder: BatchEncoder,
        volatile: bool,
    ) -> None:
        self._store = store
        self._disk = disk
        self._folder = folder
        self.description = description
        self._options = options
        self._encoder = encoder
        self._volatile = volatile

    @property
    def volatile(self) -> bool:
        return self._volatile

    @property
    def keeps_messages(self) -> bool:
        return self._volatile and not self._encoder.compresses

    @property
    def _description(self) -> QueueDescription:
        return self.description.current

    def _note(self, place: str, problem: str) -> None:
        self._store.note(self._description.name, place, problem)

    @property
    def facts(self) -> frozenset[str]:
        return frozenset(self._description.facts)

    def update_description(
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        partitions: int | None = None,
        purged: Mapping[int, int] | None = None,
        facts: Iterable[str] | None = None,
    ) -> None:
        fields: dict[str, Any] = {"partitions": partitions}
        fields["settings"] = None if settings is None else dict(settings)
        fields["purged"] = None if purged is None else dict(purged)
        fields["facts"] = None if facts is None else tuple(sorted(facts))
        self.description.change(**{name: value for name, value in fields.items() if value is not None})

    def write_description(self) -> None:
        try:
            self.description.run()
        except OSError as error:
            path = f"{self._folder}/{DESCRIPTION}"
            raise self._store.refusal(self._description.name, path, "written", error) from error

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._description.settings)

    @property
    def note_count(self) -> int:
        return self._store.notes.counts.get(self._description.name, 0)

    @property
    def purged(self) -> dict[int, int]:
        return dict(self._description.purged)

    def removal(self) -> _Removal:
        return _Removal(self._disk, self._folder, self._description)

    def open_partition(self, partition: int) -> SegmentedLog:
        kind = MemoryLog if self.keeps_messages else SegmentedLog
        return self._open_log(f"partitions/{partition}", self._options, kind)

    @property
    def has_delays(self) -> bool:
        return self._holds_files(DELAYS)

    def open_delays(self) -> SparseLog:
        options = msgspec.structs.replace(self._options, batch_records=_DELAYS_BATCH_RECORDS)
        return self._open_log(DELAYS, options, SparseLog)

    def open_delays_done(self) -> SegmentedLog:
        return self._open_restated(DELAYS_DONE, DONE_SEGMENT_BYTES)

    @property
    def has_departures(self) -> bool:
        return self._holds_files(DEPARTURES)

    def open_departures(self) -> SegmentedLog:
        return self._open_restated(DEPARTURES, DEPARTURES_SEGMENT_BYTES)

    def _open_restated(self, name: str, segment_bytes: int) -> SegmentedLog:
        """A log that is stated anew when it grows, so its segments are small.

        It needs no reserve, since it is what lets messages go.
        """
        segment_bytes = min(self._options.segment_bytes, segment_bytes)
        options = msgspec.structs.replace(self._options, segment_bytes=segment_bytes, reserve_bytes=0)
        return self._open_log(name, options, SegmentedLog)

    def _open_log(self, name: str, options: LogOptions, kind: type[_LogT]) -> _LogT:
        return kind(
            self._disk,
            f"{self._folder}/{name}",
            options=options,
            encoder=self._encoder,
            volatile=self._volatile,
            note=self._note,
            open_files=self._store.open_files,
            room=self._store.room,
            removed_path="" if self._volatile else removed_path(self._folder, name),
        )

    @contextlib.contextmanager
    def _reads(self, path: str) -> Iterator[None]:
        """Raises :class:`LogError` where the disk does not give what it has, and tells people."""
        try:
            yield
        except OSError as error:
            raise self._store.refusal(self._description.name, path, "read", error) from error

    def _holds_files(self, name: str) -> bool:
        path = f"{self._folder}/{name}"
        with self._reads(path):
            return bool(self._disk.list(path))

    def groups(self) -> list[StoredGroup]:
        """See :meth:`QueueFiles.groups`. A log that is missing, or whose header is unreadable, is noted.

        Where a group begins is written with its log before anybody is told of it. A log without that, without a mark
        and without a snapshot is what a loss of power, or a kill, left of one that did not come so far: it is of no
        group, and stays for the next of that name, which puts damaged bytes aside.
        """
        found: list[StoredGroup] = []
        with self._reads(f"{self._folder}/consumers"):
            names = self._disk.list(f"{self._folder}/consumers")
        for name in names:
            path = f"{self._folder}/consumers/{name}/{name}{LOG_SUFFIX}"
            with self._reads(path):
                stem = path.removesuffix(LOG_SUFFIX)
                has_snapshot = any(self._disk.exists(stem + suffix) for suffix in (".pel", ".cur"))
                is_begun = self._disk.exists(stem + MARK_SUFFIX)
                if self._disk.exists(path):
                    is_begun = is_begun or has_snapshot
                    with contextlib.closing(self._disk.open(path)) as file:
                        header = decode_header(file.read_at(0, _MAX_GROUP_HEADER_BYTES))
                        is_begun = is_begun or (header is not None and _says_something(file, header))
                    problem = "its header is damaged"
                elif is_begun:
                    header, problem = None, "it is missing"
                else:
                    if has_snapshot:
                        self._note(path, "it is missing: unless the group was being deleted, it begins anew")
                    continue
            if not is_begun:
                self._note(path, "it was never whole on disk: the group has not begun")
            elif header is None:
                self._note(path, f"{problem}; what the group settled since its last snapshot comes again")
                group = decode_name(name)
                if encode_name(group) == name:
                    # It must stay: what it has not settled is kept for it.
                    found.append(StoredGroup(group=group, pattern=group.partition("@")[2]))
            else:
                found.append(StoredGroup(group=header.group, pattern=header.pattern))
        return sorted(found, key=lambda group: group.group)

    def remove_group(self, group: str) -> GroupRemoval:
        name = encode_name(group)
        return GroupRemoval(self._disk, f"{self._folder}/consumers/{name}", name, self._note)

    def open_group(self, group: str, pattern: str, *, transient: bool = False) -> PendingLogFile:
        name = encode_name(group)
        folder = f"{self._folder}/consumers/{name}"
        disk = MemoryDisk() if transient else self._disk
        volatile = self._volatile or transient
        try:
            disk.make_folder(folder)
        except OSError as error:
            raise self._store.refusal(self._description.name, folder, "created", error) from error
        return PendingLogFile(
            disk,
            f"{folder}/{name}{LOG_SUFFIX}",
            group=group,
            pattern=pattern,
            volatile=volatile,
            note=self._note,
            open_files=None if transient else self._store.open_files,
        )
