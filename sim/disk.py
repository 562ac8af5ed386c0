"""A simulated disk: what was written and what is durable are two things, and power loss shows the difference.

Implements :class:`assay.reference_broker.storage.disk.Disk`. Every file has *durable* bytes and a list of *pending*
operations since its last sync; every folder has durable entries and pending ones (create, rename, remove, make folder)
since its last folder sync. A process crash loses nothing. Power loss keeps, by chance and independently per file, none,
a prefix, a subset or all of the pending operations, the last one possibly torn, or the new size without the data; and
per folder a prefix of its pending entries. So a file whose folder was not synced may be gone although its data was.
:mod:`assay.sim.power_cuts` goes through such losses one by one instead of drawing them.

A *deferred* sync models the time a sync takes: within :meth:`SimDisk.deferred` a job does all it has to do, and its
sync calls only note what they cover; :meth:`SimDisk.finish` makes that durable, later. A crash or a power loss before
that finds the job in any of its sync calls: what was covered before is durable, and what comes behind has not happened.
Injected errors: a disk that is full, syncs that fail (and, as on Linux, leave the lost pages marked clean, so that the
next sync says yes), syncs that lie.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, Self

import msgspec

from assay.reference_broker.storage.disk import DirectoryInUseError
from assay.sim.inodes import (
    SECTOR_BYTES,
    Entry,
    EntryKind,
    Flush,
    Folder,
    Inode,
    Truncate,
    Write,
    apply,
    change_entries,
    resize,
    without_last_sector,
)


class Persistence(StrEnum):
    """Which pending operations of one file survive a power loss."""

    NONE = "none"
    PREFIX = "prefix"
    TORN = "torn"
    """A prefix whose last write is cut at any byte or at a sector."""
    SUBSET = "subset"
    """Any of them, in their order: the disk may write out of order."""
    SIZE_ONLY = "size_only"
    """The file has its new size, and zeros where the data should be."""
    ALL_BUT_ONE = "all_but_one"
    TORN_SECTOR = "torn_sector"
    """All but the last sector that was written."""
    ALL = "all"


_DRAWN: Final = (
    Persistence.NONE,
    Persistence.PREFIX,
    Persistence.TORN,
    Persistence.SUBSET,
    Persistence.SIZE_ONLY,
    Persistence.ALL,
)
"""What a power loss draws from unless told otherwise; the other modes are special cases of these."""


class DiskProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How the disk behaves."""

    sync_s: tuple[float, float] = (0.0005, 0.003)
    """A sync takes a time drawn uniformly from here."""
    stall_rate: float = 0.002
    """Share of syncs that stall."""
    stall_s: float = 0.2
    capacity_bytes: int = 0
    """Writes beyond it fail with ENOSPC; 0 = no limit."""
    failing_syncs: tuple[int, ...] = ()
    """Which syncs fail with EIO, counted from 1 over the life of the disk."""
    lying_sync: bool = False
    """Syncs say yes and do nothing."""


class SimFile:
    """An open file of a :class:`SimDisk`. Useless after a crash of its process."""

    def __init__(self, disk: SimDisk, inode: Inode, path: str) -> None:
        self.path = path
        """Under which it was opened."""
        self._disk = disk
        self._inode = inode
        self._boot = disk.boot
        self._open = True

    def _check(self) -> Inode:
        if not self._open or self._boot != self._disk.boot:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._inode

    @property
    def size(self) -> int:
        return len(self._check().content)

    def append(self, data: bytes) -> int:
        """See :meth:`DiskFile.append`."""
        position = len(self._check().content)
        self.write_at(position, data)
        return position

    def write_at(self, position: int, data: bytes) -> None:
        """See :meth:`DiskFile.write_at`. What fits of a write that a full disk refuses is written."""
        inode, disk = self._check(), self._disk
        growth = max(0, position + len(data) - len(inode.content))
        lacking = max(0, growth - max(0, disk.free_bytes())) if disk.profile.capacity_bytes else 0
        written = bytes(data[: len(data) - lacking])
        if written:
            disk.claim(growth - lacking)
            operation = Write(disk.next_number(), position, written)
            apply(inode.content, operation)
            inode.pending.append(operation)
        if lacking:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read_at(self, position: int, length: int) -> bytes:
        """See :meth:`DiskFile.read_at`."""
        return bytes(memoryview(self._check().content)[position : position + length])

    def truncate(self, size: int) -> None:
        """See :meth:`DiskFile.truncate`."""
        inode = self._check()
        self._disk.claim(size - len(inode.content))
        operation = Truncate(self._disk.next_number(), size)
        apply(inode.content, operation)
        inode.pending.append(operation)

    def sync(self) -> None:
        """See :meth:`DiskFile.sync`; deferred inside :meth:`SimDisk.deferred`."""
        self._disk.sync_inode(self._check(), self.path)

    def close(self) -> None:
        self._open = False


class SimDisk:
    """A disk of one node. ``rng`` decides about latencies, errors and what a power loss keeps."""

    def __init__(self, rng: random.Random, profile: DiskProfile | None = None) -> None:
        self.profile = profile or DiskProfile()
        self.boot = 0
        """Grows with every crash; files opened before are useless after."""
        self.used_bytes = 0
        self.sync_count = 0
        self.sync_failures = 0
        self._rng = rng
        self._number = 0
        self.folders: dict[str, Folder] = {"": Folder()}
        self._flush: Flush | None = None
        self._deferring = False
        self._flying: list[Flush] = []
        """Of jobs that have not come back."""
        self._blocked_s = 0.0
        self._locked = False

    # -- Disk ----------------------------------------------------------------------------------------------------

    @classmethod
    def holding(cls, files: Mapping[str, bytes], folders: Iterable[str]) -> Self:
        """A disk with that content, all of it durable; ``folders`` holds every folder, its parents too."""
        disk = cls(random.Random(0))
        for path in sorted(folders):
            disk.make_folder(path)
        for path, data in files.items():
            folder, _, name = path.rpartition("/")
            inode = Inode()
            inode.content += data
            inode.durable += data
            disk.folders[folder].entries[name] = inode
            disk.used_bytes += len(data)
        for made in disk.folders.values():
            made.durable = dict(made.entries)
            made.pending = []
        return disk

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """See :meth:`Disk.open`."""
        folder, name = self._locate(path)
        inode = folder.entries.get(name)
        if inode is None:
            if name in folder.entries:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = Inode()
            folder.change(Entry(number=self.next_number(), kind=EntryKind.LINK, name=name, inode=inode))
        return SimFile(self, inode, path)

    def list(self, path: str) -> list[str]:
        """See :meth:`Disk.list`."""
        folder = self.folders.get(path)
        return [] if folder is None else sorted(folder.entries)

    def exists(self, path: str) -> bool:
        """See :meth:`Disk.exists`."""
        parent, _, name = path.rpartition("/")
        folder = self.folders.get(parent)
        return path in self.folders or (folder is not None and name in folder.entries)

    def make_folder(self, path: str) -> None:
        """See :meth:`Disk.make_folder`."""
        parent = ""
        for name in path.split("/"):
            here = f"{parent}/{name}" if parent else name
            if here not in self.folders:
                entry = Entry(number=self.next_number(), kind=EntryKind.FOLDER, name=name)
                self.folders[parent].change(entry)
                self.folders[here] = Folder()
            parent = here

    def rename(self, source: str, destination: str) -> None:
        """See :meth:`Disk.rename`. Only within one folder is it atomic under power loss."""
        old_folder, old_name = self._locate(source)
        new_folder, new_name = self._locate(destination)
        inode = old_folder.entries.get(old_name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        replaced = new_folder.entries.get(new_name)
        if replaced is not None:
            self.used_bytes -= len(replaced.content)
        number = self.next_number()
        freed = old_name if new_folder is old_folder and old_name != new_name else ""
        entry = Entry(number=number, kind=EntryKind.LINK, name=new_name, inode=inode, unlinked=freed)
        new_folder.change(entry)
        if new_folder is not old_folder:
            old_folder.change(Entry(number=number, kind=EntryKind.UNLINK, name=old_name))

    def remove(self, path: str) -> None:
        """See :meth:`Disk.remove`."""
        folder, name = self._locate(path)
        inode = folder.entries.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.used_bytes -= len(inode.content)
        folder.change(Entry(number=self.next_number(), kind=EntryKind.UNLINK, name=name))

    def remove_folder(self, path: str) -> None:
        """See :meth:`Disk.remove_folder`. An empty folder stays, as if the power went before it was gone for good."""
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def sync_folder(self, path: str) -> None:
        """See :meth:`Disk.sync_folder`; deferred inside :meth:`deferred`."""
        folder = self.folders.get(path)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._sync(folder, path)

    def free_bytes(self) -> int:
        """See :meth:`Disk.free_bytes`."""
        return self.profile.capacity_bytes - self.used_bytes if self.profile.capacity_bytes else 2**62

    def lock(self) -> None:
        """See :meth:`Disk.lock`."""
        if self._locked:
            raise DirectoryInUseError(errno.EWOULDBLOCK, "another broker uses the simulated disk")
        self._locked = True

    def unlock(self) -> None:
        """See :meth:`Disk.unlock`."""
        self._locked = False

    # -- time ----------------------------------------------------------------------------------------------------

    def sync_latency_s(self) -> float:
        """How long the next sync takes."""
        low, high = self.profile.sync_s
        latency = self._rng.uniform(low, high)
        return latency + self.profile.stall_s if self._rng.random() < self.profile.stall_rate else latency

    def take_blocked_s(self) -> float:
        """Time that syncs outside :meth:`deferred` cost their caller since the last call."""
        blocked, self._blocked_s = self._blocked_s, 0.0
        return blocked

    @contextmanager
    def deferred(self) -> Iterator[Flush]:
        """Within the block, syncs return at once and only note what they cover; nested use is an error."""
        if self._deferring:
            message = "deferred syncs do not nest"
            raise RuntimeError(message)
        flush = self._flush = Flush(self._number)
        self._deferring = True
        try:
            yield flush
        finally:
            flush.end_job(self._number)
            if self._flush is flush:
                self._flying.append(flush)
            self._deferring = False
            self._flush = None

    def finish(self, flush: Flush) -> None:
        """The time of deferred syncs is over: what they cover is durable."""
        if flush in self._flying:
            self._flying.remove(flush)
        self._commit(flush)

    def _commit(self, flush: Flush, calls: int | None = None) -> None:
        """What so many calls of a job cover, None: all, is durable, unless the disk lies."""
        if self.profile.lying_sync:
            return
        for job in self._flying:
            if job is not flush and job.operations:
                job.come_to(flush, calls)
        flush.commit(calls)

    # -- faults --------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The process is gone; the operating system keeps everything that was done."""
        self._end_jobs()
        self.boot += 1
        self._locked = False

    def _end_jobs(self, *, at_once: bool = False) -> None:
        """Jobs come no further than to one of their sync calls, or to their ends; ``at_once``: to the first call."""
        undone = []
        if self._flush is not None:
            # It ends within the job, and the calls before that had come back.
            self._commit(self._flush)
        for flush in reversed(self._flying):  # what an older one did a newer one may cover
            calls, not_done = flush.interrupt(None if at_once else self._rng)
            undone.append(not_done)
            self._commit(flush, calls)
        self._flush = None
        self._deferring = False
        self._flying = []
        if any(undone):
            for folder in self.folders.values():
                inodes = [*folder.durable.values(), *(entry.inode for entry in folder.pending)]
                for inode in inodes:
                    if inode is not None:
                        inode.undo(undone)
                folder.undo(undone)
            self._tidy()

    def _tidy(self) -> None:
        """A folder whose own entry is gone is gone with everything in it."""
        for path in sorted(self.folders):
            parent, _, name = path.rpartition("/")
            if path and (parent not in self.folders or name not in self.folders[parent].entries):
                del self.folders[path]
        files = [inode for folder in self.folders.values() for inode in folder.entries.values() if inode is not None]
        self.used_bytes = sum(len(inode.content) for inode in files)

    def power_loss(self, modes: tuple[Persistence, ...] = _DRAWN) -> dict[str, str]:
        """The machine is gone. Each file draws one of ``modes``; returns what happened to files with pending data."""
        self._end_jobs(at_once=modes == (Persistence.NONE,))
        self.crash()
        outcome: dict[str, str] = {}
        for path in sorted(self.folders):
            folder = self.folders[path]
            kept = self._rng.randrange(len(folder.pending) + 1) if folder.pending else 0
            if modes == (Persistence.NONE,):
                kept = 0
            for entry in folder.pending[:kept]:
                change_entries(folder.durable, entry)
            folder.entries = dict(folder.durable)
            folder.pending = []
        self._tidy()
        for path, inode in sorted(self._durable_files()):
            if inode.pending:
                mode = self._rng.choice(modes)
                self._persist(inode, mode)
                outcome[path] = mode.value
        for _, inode in self._durable_files():
            inode.content = bytearray(inode.durable)
            inode.pending = []
        self.used_bytes = sum(len(inode.content) for _, inode in self._durable_files())
        return outcome

    def _persist(self, inode: Inode, mode: Persistence) -> None:
        pending = inode.pending
        rng = self._rng
        if mode is Persistence.NONE:
            return
        if mode is Persistence.SIZE_ONLY:
            resize(inode.durable, len(inode.content))
            return
        chosen = pending
        if mode is Persistence.SUBSET:
            chosen = [operation for operation in pending if rng.random() < 0.5]
        elif mode in (Persistence.PREFIX, Persistence.TORN):
            chosen = pending[: rng.randrange(len(pending) + 1)]
        elif mode is Persistence.ALL_BUT_ONE:
            missing = rng.choice(pending)
            chosen = [operation for operation in pending if operation is not missing]
        for operation in chosen[:-1]:
            apply(inode.durable, operation)
        if chosen:
            last = chosen[-1]
            if mode is Persistence.TORN:
                last = self._torn(last)
            elif mode is Persistence.TORN_SECTOR:
                last = without_last_sector(last)
            apply(inode.durable, last)

    def _torn(self, operation: Write | Truncate) -> Write | Truncate:
        if isinstance(operation, Truncate):
            return operation
        cut = self._rng.randrange(len(operation.data) + 1)
        if self._rng.random() < 0.5:
            cut -= (operation.position + cut) % SECTOR_BYTES
        return Write(operation.number, operation.position, operation.data[: max(0, cut)])

    def _durable_files(self) -> Sequence[tuple[str, Inode]]:
        return [
            (f"{path}/{name}" if path else name, inode)
            for path, folder in self.folders.items()
            for name, inode in folder.durable.items()
            if inode is not None
        ]

    # -- for open files ------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Numbers all operations of the disk in order."""
        self._number += 1
        return self._number

    def claim(self, growth: int) -> None:
        """Account for a file that grows or shrinks. Raises :class:`OSError` (ENOSPC)."""
        if growth > 0 and 0 < self.profile.capacity_bytes < self.used_bytes + growth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.used_bytes += growth

    def sync_inode(self, inode: Inode, path: str) -> None:
        """Carry out :meth:`SimFile.sync`."""
        self._sync(inode, path)

    def _sync(self, what: Inode | Folder, path: str) -> None:
        """Outside :meth:`deferred` a sync call is carried out at once, and costs its caller time."""
        self.sync_count += 1
        if not self._deferring:
            self._blocked_s += self.sync_latency_s()
        if self._sync_fails(path):
            self.sync_failures += 1
            if isinstance(what, Inode):
                what.drop(self._number)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush = Flush() if self._flush is None else self._flush
        flush.cover(what, self._number, path)
        if not self._deferring:
            self.finish(flush)

    def _sync_fails(self, path: str) -> bool:
        return self.sync_count in self.profile.failing_syncs

    def _locate(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rpartition("/")
        folder = self.folders.get(parent)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return folder, name
