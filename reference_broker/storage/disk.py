"""The Disk interface: the only way in which storage code touches files.

Two implementations exist: :class:`RealDisk` here and ``assay.sim.disk.SimDisk``, which keeps written and synced data
apart and loses the difference on power loss. All paths are relative to the data directory and use ``/``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from assay.reference_broker.storage.own_descriptors import disown, own

_LOCK = ".lock"


class DiskFile(Protocol):
    """An open file. Writes reach the operating system at once; only :meth:`sync` makes them survive power loss."""

    @property
    def size(self) -> int:
        """Bytes in the file, unsynced ones included."""

    def append(self, data: bytes) -> int:
        """Write at the end; returns the position of the first byte. Raises :class:`OSError` (ENOSPC, EIO)."""

    def write_at(self, position: int, data: bytes) -> None:
        """Overwrite in place. Raises :class:`OSError`."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def sync(self) -> None:
        """Return once everything written so far survives power loss. Safe to call from another thread."""

    def close(self) -> None:
        """Close without syncing. Closing twice is fine."""


class Disk(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. Raises :class:`FileNotFoundError` unless ``create``."""

    def list(self, path: str) -> list[str]:
        """Sorted names in a folder; empty when the folder does not exist."""

    def exists(self, path: str) -> bool: ...

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents; existing ones are fine."""

    def rename(self, source: str, destination: str) -> None:
        """Replace ``destination`` atomically."""

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove a folder. Raises :class:`OSError` when it is not empty."""

    def sync_folder(self, path: str) -> None:
        """Make creations, renames and removals in a folder survive power loss."""

    def free_bytes(self) -> int:
        """Room left for new data. Raises :class:`OSError`."""

    def lock(self) -> None:
        """Take single ownership of the tree. Raises :class:`DirectoryInUseError`."""

    def unlock(self) -> None: ...


class DirectoryInUseError(OSError):
    """Another process owns the data directory."""


class RealFile:
    """A :class:`DiskFile` on the file system."""

    def __init__(self, path: str, *, create: bool, check: Callable[[], None] | None = None) -> None:
        """``check`` raises :class:`OSError` when what is written now is not in the tree any more."""
        self._check = check
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._descriptor = -1
        self._descriptor = os.open(path, flags, 0o640)
        own(self._descriptor)
        try:
            self._size = os.fstat(self._descriptor).st_size
        except OSError:
            self.close()
            raise

    @property
    def size(self) -> int:
        return self._size

    def append(self, data: bytes) -> int:
        position = self._size
        written = os.pwrite(self._descriptor, data, position) if data else 0
        self._size = position + written
        if written < len(data):
            self.write_at(self._size, data[written:])
        return position

    def write_at(self, position: int, data: bytes) -> None:
        if not data:
            # As for the operating system: writing nothing past the end does not make the file longer.
            return
        view = memoryview(data)
        at = position
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view = view[written:]
            at += written
        self._size = max(self._size, at)

    def read_at(self, position: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        os.fsync(self._descriptor)
        # What has no name is not safe, though the disk has it.
        if self._check is not None:
            self._check()
        if not os.fstat(self._descriptor).st_nlink:
            raise OSError(errno.ESTALE, "somebody removed the file; restart the broker once its folder is put right")

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            disown(descriptor)
            # An error of what was written before is one that a sync reports; the descriptor is gone in any case.
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        # Of a broker that could not start.
        self.close()


class RealDisk:
    """A :class:`Disk` on a folder of the file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._prefix = f"{root}/"
        self._lock_descriptor = -1

    def open(self, path: str, *, create: bool = False) -> RealFile:
        return RealFile(self._prefix + path, create=create, check=self._check)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._prefix + path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        try:
            os.stat(self._prefix + path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_folder(self, path: str) -> None:
        os.makedirs(self._prefix + path, exist_ok=True)

    def rename(self, source: str, destination: str) -> None:
        os.replace(self._prefix + source, self._prefix + destination)

    def remove(self, path: str) -> None:
        os.unlink(self._prefix + path)

    def remove_folder(self, path: str) -> None:
        os.rmdir(self._prefix + path)

    def _check(self) -> None:
        """The folder may have been removed, replaced or unmounted since: then the lock in it is not ours.

        Raises :class:`OSError` (ESTALE).
        """
        if self._lock_descriptor < 0:
            return
        try:
            found = os.stat(self._prefix + _LOCK)
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found is None or not os.path.samestat(found, os.fstat(self._lock_descriptor)):
            text = f"the data directory {self.root} was removed or replaced; put it back and restart the broker"
            raise OSError(errno.ESTALE, text)

    def sync_folder(self, path: str) -> None:
        self._check()
        descriptor = os.open(self._prefix + path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        room = os.statvfs(self.root)
        return room.f_bavail * room.f_frsize

    def lock(self) -> None:
        descriptor = os.open(self._prefix + _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            message = f"another broker uses the data directory {self.root}; stop it or choose another data_dir"
            raise DirectoryInUseError(message) from error
        self._lock_descriptor = descriptor
        # A forked child would hold the lock for as long as it lives.
        own(descriptor)

    def unlock(self) -> None:
        if self._lock_descriptor >= 0:
            descriptor, self._lock_descriptor = self._lock_descriptor, -1
            disown(descriptor)
            os.close(descriptor)
