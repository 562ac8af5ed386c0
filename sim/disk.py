"""A simulated disk: what was written and what is durable are two things, and power loss shows the difference.

Implements :class:`reference_broker.storage.disk.Disk`. Every file has *durable* bytes and a list of *pending*
operations since its last sync; every folder has durable entries and pending ones (create, rename, remove, make folder)
since its last folder sync. A process crash loses nothing. Power loss keeps, by chance and independently per file, none,
a prefix, a subset or all of the pending operations, the last one possibly torn, or the new size without the data; and
per folder a prefix of its pending entries. So a file whose folder was not synced may be gone although its data was.

A *deferred* sync models the time a sync takes: within :meth:`SimDisk.deferred` the calls only note what they cover;
:meth:`Flush.commit` makes that durable, later. Injected errors: a disk that is full, syncs that fail (and, as on Linux,
leave the lost pages marked clean, so that the next sync says yes), syncs that lie.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, StrEnum
from typing import Final

import msgspec

from reference_broker.storage.disk import DirectoryInUseError

SECTOR_BYTES: Final = 512


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
    ALL = "all"


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


class _Write(msgspec.Struct, frozen=True, gc=False):
    number: int
    position: int
    data: bytes


class _Truncate(msgspec.Struct, frozen=True, gc=False):
    number: int
    size: int


class _Inode:
    """A file's content, whatever its name."""

    __slots__ = ("content", "durable", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        """What the operating system shows."""
        self.durable = bytearray()
        self.pending: list[_Write | _Truncate] = []

    def sync(self, up_to: int) -> None:
        """Make every pending operation up to this number durable."""
        kept = []
        for operation in self.pending:
            if operation.number <= up_to:
                _apply(self.durable, operation)
            else:
                kept.append(operation)
        self.pending = kept

    def drop(self, up_to: int) -> None:
        """A failed sync: these operations are no longer pending, and not durable either."""
        self.pending = [operation for operation in self.pending if operation.number > up_to]


def _apply(content: bytearray, operation: _Write | _Truncate) -> None:
    if isinstance(operation, _Truncate):
        _resize(content, operation.size)
        return
    if operation.position > len(content):
        _resize(content, operation.position)
    content[operation.position : operation.position + len(operation.data)] = operation.data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))


class _EntryKind(Enum):
    LINK = "link"
    UNLINK = "unlink"
    FOLDER = "folder"


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A pending change of a folder. A rename is one entry that links and unlinks at once."""

    number: int
    kind: _EntryKind
    name: str
    inode: _Inode | None = None
    unlinked: str = ""
    """Name that a rename within the folder frees."""


class _Folder:
    """Entries of a folder; names map to files, or to None for folders."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | None] = {}
        self.durable: dict[str, _Inode | None] = {}
        self.pending: list[_Entry] = []

    def change(self, entry: _Entry) -> None:
        _change(self.entries, entry)
        self.pending.append(entry)

    def sync(self, up_to: int) -> None:
        kept = []
        for entry in self.pending:
            if entry.number <= up_to:
                _change(self.durable, entry)
            else:
                kept.append(entry)
        self.pending = kept


def _change(entries: dict[str, _Inode | None], entry: _Entry) -> None:
    if entry.kind is _EntryKind.UNLINK:
        entries.pop(entry.name, None)
        return
    if entry.unlinked:
        entries.pop(entry.unlinked, None)
    entries[entry.name] = entry.inode


class Flush:
    """What deferred sync calls cover: all that was done before each. Nothing of it is durable before :meth:`commit`."""

    def __init__(self) -> None:
        self._inodes: list[tuple[_Inode, int]] = []
        self._folders: list[tuple[_Folder, int]] = []

    def cover_file(self, inode: _Inode, up_to: int) -> None:
        self._inodes.append((inode, up_to))

    def cover_folder(self, folder: _Folder, up_to: int) -> None:
        self._folders.append((folder, up_to))

    def commit(self) -> None:
        """The device has it."""
        for inode, up_to in self._inodes:
            inode.sync(up_to)
        for folder, up_to in self._folders:
            folder.sync(up_to)

    def fail(self) -> None:
        """The device refused it, and the operating system forgot that it was unwritten."""
        for inode, up_to in self._inodes:
            inode.drop(up_to)


class SimFile:
    """An open file of a :class:`SimDisk`. Useless after a crash of its process."""

    def __init__(self, disk: SimDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._boot = disk.boot
        self._open = True

    def _check(self) -> _Inode:
        if not self._open or self._boot != self._disk.boot:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._inode

    @property
    def size(self) -> int:
        return len(self._check().content)

    def append(self, data: bytes) -> int:
        """See :meth:`DiskFile.append`."""
        position = self.size
        self.write_at(position, data)
        return position

    def write_at(self, position: int, data: bytes) -> None:
        """See :meth:`DiskFile.write_at`."""
        inode = self._check()
        if not data:
            return
        self._disk.claim(max(0, position + len(data) - len(inode.content)))
        operation = _Write(self._disk.next_number(), position, bytes(data))
        _apply(inode.content, operation)
        inode.pending.append(operation)

    def read_at(self, position: int, length: int) -> bytes:
        """See :meth:`DiskFile.read_at`."""
        return bytes(memoryview(self._check().content)[position : position + length])

    def truncate(self, size: int) -> None:
        """See :meth:`DiskFile.truncate`."""
        inode = self._check()
        self._disk.claim(size - len(inode.content))
        operation = _Truncate(self._disk.next_number(), size)
        _apply(inode.content, operation)
        inode.pending.append(operation)

    def sync(self) -> None:
        """See :meth:`DiskFile.sync`; deferred inside :meth:`SimDisk.deferred`."""
        self._disk.sync_inode(self._check())

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
        self._folders: dict[str, _Folder] = {"": _Folder()}
        self._flush: Flush | None = None
        self._deferring = False
        self._blocked_s = 0.0
        self._locked = False

    # -- Disk ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        """See :meth:`Disk.open`."""
        folder, name = self._locate(path)
        inode = folder.entries.get(name)
        if inode is None:
            if name in folder.entries:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = _Inode()
            folder.change(_Entry(number=self.next_number(), kind=_EntryKind.LINK, name=name, inode=inode))
        return SimFile(self, inode)

    def list(self, path: str) -> list[str]:
        """See :meth:`Disk.list`."""
        folder = self._folders.get(path)
        return [] if folder is None else sorted(folder.entries)

    def exists(self, path: str) -> bool:
        """See :meth:`Disk.exists`."""
        parent, _, name = path.rpartition("/")
        folder = self._folders.get(parent)
        return path in self._folders or (folder is not None and name in folder.entries)

    def make_folder(self, path: str) -> None:
        """See :meth:`Disk.make_folder`."""
        parent = ""
        for name in path.split("/"):
            here = f"{parent}/{name}" if parent else name
            if here not in self._folders:
                entry = _Entry(number=self.next_number(), kind=_EntryKind.FOLDER, name=name)
                self._folders[parent].change(entry)
                self._folders[here] = _Folder()
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
        entry = _Entry(number=number, kind=_EntryKind.LINK, name=new_name, inode=inode, unlinked=freed)
        new_folder.change(entry)
        if new_folder is not old_folder:
            old_folder.change(_Entry(number=number, kind=_EntryKind.UNLINK, name=old_name))

    def remove(self, path: str) -> None:
        """See :meth:`Disk.remove`."""
        folder, name = self._locate(path)
        inode = folder.entries.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.used_bytes -= len(inode.content)
        folder.change(_Entry(number=self.next_number(), kind=_EntryKind.UNLINK, name=name))

    def sync_folder(self, path: str) -> None:
        """See :meth:`Disk.sync_folder`; deferred inside :meth:`deferred`."""
        folder = self._folders.get(path)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._flush_of().cover_folder(folder, self._number)
        self._settle_flush()

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
        flush = self._flush = Flush()
        self._deferring = True
        try:
            yield flush
        finally:
            self._deferring = False
            self._flush = None

    def finish(self, flush: Flush) -> OSError | None:
        """The time of a deferred sync is over: it is durable, or failed."""
        self.sync_count += 1
        if self.sync_count in self.profile.failing_syncs:
            self.sync_failures += 1
            flush.fail()
            return OSError(errno.EIO, os.strerror(errno.EIO))
        if not self.profile.lying_sync:
            flush.commit()
        return None

    # -- faults --------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The process is gone; the operating system keeps everything."""
        self.boot += 1
        self._locked = False
        self._flush = None
        self._deferring = False

    def power_loss(self, modes: tuple[Persistence, ...] = tuple(Persistence)) -> dict[str, str]:
        """The machine is gone. Each file draws one of ``modes``; returns what happened to files with pending data."""
        self.crash()
        outcome: dict[str, str] = {}
        for path in sorted(self._folders):
            folder = self._folders[path]
            kept = self._rng.randrange(len(folder.pending) + 1) if folder.pending else 0
            if modes == (Persistence.NONE,):
                kept = 0
            for entry in folder.pending[:kept]:
                _change(folder.durable, entry)
        self._drop_unlinked_folders()
        for path, inode in sorted(self._durable_files()):
            if inode.pending:
                mode = self._rng.choice(modes)
                self._persist(inode, mode)
                outcome[path] = mode.value
        for folder in self._folders.values():
            folder.entries = dict(folder.durable)
            folder.pending = []
        for _, inode in self._durable_files():
            inode.content = bytearray(inode.durable)
            inode.pending = []
        self.used_bytes = sum(len(inode.content) for _, inode in self._durable_files())
        return outcome

    def _persist(self, inode: _Inode, mode: Persistence) -> None:
        pending = inode.pending
        rng = self._rng
        if mode is Persistence.NONE:
            return
        if mode is Persistence.SIZE_ONLY:
            _resize(inode.durable, len(inode.content))
            return
        chosen = pending
        if mode is Persistence.SUBSET:
            chosen = [operation for operation in pending if rng.random() < 0.5]
        elif mode in (Persistence.PREFIX, Persistence.TORN):
            chosen = pending[: rng.randrange(len(pending) + 1)]
        for operation in chosen[:-1]:
            _apply(inode.durable, operation)
        if chosen:
            _apply(inode.durable, self._torn(chosen[-1]) if mode is Persistence.TORN else chosen[-1])

    def _torn(self, operation: _Write | _Truncate) -> _Write | _Truncate:
        if isinstance(operation, _Truncate):
            return operation
        cut = self._rng.randrange(len(operation.data) + 1)
        if self._rng.random() < 0.5:
            cut -= (operation.position + cut) % SECTOR_BYTES
        return _Write(operation.number, operation.position, operation.data[: max(0, cut)])

    def _drop_unlinked_folders(self) -> None:
        """A folder whose own entry is not durable is gone with everything in it."""
        for path in sorted(self._folders):
            parent, _, name = path.rpartition("/")
            if path and (parent not in self._folders or name not in self._folders[parent].durable):
                del self._folders[path]

    def _durable_files(self) -> Sequence[tuple[str, _Inode]]:
        return [
            (f"{path}/{name}" if path else name, inode)
            for path, folder in self._folders.items()
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

    def sync_inode(self, inode: _Inode) -> None:
        """Carry out :meth:`SimFile.sync`."""
        self._flush_of().cover_file(inode, self._number)
        self._settle_flush()

    def _flush_of(self) -> Flush:
        self._flush = self._flush or Flush()
        return self._flush

    def _settle_flush(self) -> None:
        """End of a sync call: outside :meth:`deferred` it is carried out at once, and costs its caller time."""
        if self._deferring:
            return
        flush, self._flush = self._flush, None
        if flush is not None:
            self._blocked_s += self.sync_latency_s()
            error = self.finish(flush)
            if error is not None:
                raise error

    def _locate(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        folder = self._folders.get(parent)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return folder, name
