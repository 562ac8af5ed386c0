"""A folder through the Disk interface that can only be read: nothing here creates, changes or locks a file."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path, PurePosixPath
from typing import NoReturn

LOCK_NAME = ".lock"


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, f"{path} is open for reading only")


class ReadOnlyFile:
    """A :class:`assay.reference_broker.storage.disk.DiskFile` that refuses every write.

    Its size is that of the moment it was opened, so that a broker which appends meanwhile shows at most a moving tail.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    def read_at(self, position: int, length: int) -> bytes:
        return os.pread(self._descriptor, min(length, max(0, self._size - position)), position)

    def append(self, data: bytes) -> int:
        _refuse(f"{self._path} (append of {len(data)} bytes)")

    def write_at(self, position: int, data: bytes) -> None:
        _refuse(f"{self._path} (write of {len(data)} bytes at {position})")

    def truncate(self, size: int) -> None:
        _refuse(f"{self._path} (truncate to {size})")

    def sync(self) -> None:
        _refuse(str(self._path))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ReadOnlyDisk:
    """A :class:`assay.reference_broker.storage.disk.Disk` on an existing folder. Paths are relative and use ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, path: str, *, create: bool = False) -> ReadOnlyFile:
        if create:
            _refuse(path)
        return ReadOnlyFile(self.root / path)

    def read(self, path: str, limit: int) -> bytes:
        """The first ``limit`` bytes of a file. Raises :class:`OSError`."""
        with (self.root / path).open("rb") as file:
            return file.read(limit)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def is_folder(self, path: str) -> bool:
        return (self.root / path).is_dir()

    def size(self, path: str) -> int:
        """Bytes of a file; 0 when it is gone."""
        try:
            return (self.root / path).stat().st_size
        except FileNotFoundError:
            return 0

    def free_bytes(self) -> int:
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def make_folder(self, path: str) -> None:
        _refuse(path)

    def rename(self, source: str, destination: str) -> None:
        _refuse(f"{source} (rename to {destination})")

    def remove(self, path: str) -> None:
        _refuse(path)

    def remove_folder(self, path: str) -> None:
        _refuse(path)

    def sync_folder(self, path: str) -> None:
        _refuse(path)

    def lock(self) -> None:
        _refuse(LOCK_NAME)

    def unlock(self) -> None: ...

    def is_in_use(self) -> bool:
        """Whether a broker holds the directory's lock.

        Asked by taking the lock shared, without waiting, and giving it back at once: nothing is written, and a broker
        that starts within these microseconds would have to be started again.
        """
        try:
            descriptor = os.open(self.root / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def join(*parts: str) -> str:
    """Join path parts of which some may be empty."""
    return str(PurePosixPath(*parts)) if any(parts) else ""
