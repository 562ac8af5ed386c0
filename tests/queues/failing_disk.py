"""A disk that refuses some operations."""

from __future__ import annotations

import errno
import os

from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile

NO_ROOM = errno.ENOSPC


class FailingDisk(MemoryDisk):
    """Refuses syncs, writes or reads of files whose path contains some text."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_sync = ""
        self.fail_write = ""
        self.fail_read = ""

    def open(self, path: str, *, create: bool = False) -> FailingFile:
        super().open(path, create=create)
        return FailingFile(self, path, self._files[path])


class FailingFile(MemoryFile):
    def __init__(self, disk: FailingDisk, path: str, content: bytearray) -> None:
        super().__init__(content)
        self._disk = disk
        self.path = path

    def append(self, data: bytes) -> int:
        if self._disk.fail_write and self._disk.fail_write in self.path:
            raise OSError(NO_ROOM, os.strerror(NO_ROOM))
        return super().append(data)

    def sync(self) -> None:
        if self._disk.fail_sync and self._disk.fail_sync in self.path:
            raise OSError(5, "Input/output error")

    def read_at(self, position: int, length: int) -> bytes:
        if self._disk.fail_read and self._disk.fail_read in self.path:
            raise OSError(5, "Input/output error")
        return super().read_at(position, length)
