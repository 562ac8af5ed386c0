"""A file that makes room for others: it is closed when nobody needs it open, and opened again when it is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing

from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.open_files import OpenFiles


class FileOnDemand(ABC):
    """Implements :class:`Closable`, but for when it may be closed."""

    def __init__(self, disk: Disk, path: str, open_files: OpenFiles | None) -> None:
        self.path = path
        """Whoever renames it says so."""
        self._disk = disk
        self._open_files = open_files
        self._file: DiskFile | None = None

    @property
    @abstractmethod
    def may_close(self) -> bool:
        """See :class:`Closable`."""

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def file(self, *, create: bool = False) -> DiskFile:
        """It, open. Raises :class:`OSError`."""
        if self._file is None:
            if self._open_files is None:
                self._file = self._disk.open(self.path, create=create)
            else:
                self._file = self._open_files.open(self._disk, self.path, create=create)
                self._open_files.opened(self)
        return self._file

    def close(self) -> None:
        """Twice is fine."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            if self._open_files is not None:
                self._open_files.closed(self)


class ReopenedFile(FileOnDemand):
    """Implements :class:`DiskFile` for who writes to it and says when it is synced."""

    def __init__(self, disk: Disk, path: str, open_files: OpenFiles | None, *, create: bool = False) -> None:
        """Open it. Raises :class:`OSError`."""
        super().__init__(disk, path, open_files)
        self._is_unsynced = False
        self._is_syncing = False
        self._size = self.file(create=create).size

    @property
    def size(self) -> int:
        return self._size if self._file is None else self._file.size

    def append(self, data: bytes) -> int:
        file = self._file or self.file()
        self._is_unsynced = True
        return file.append(data)

    def write_at(self, position: int, data: bytes) -> None:
        file = self.file()
        self._is_unsynced = True
        file.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        return self.file().read_at(position, length)

    def truncate(self, size: int) -> None:
        file = self.file()
        self._is_unsynced = True
        file.truncate(size)

    def begin_sync(self) -> None:
        """A sync of all that was written is about to run: until it has, the file stays open, if it is."""
        self._is_syncing, self._is_unsynced = True, False

    def sync(self) -> None:
        """Between :meth:`begin_sync` and :meth:`end_sync`, in any thread."""
        file = self._file
        if file is not None:
            file.sync()
            return
        with closing(self._disk.open(self.path)) as file:
            file.sync()

    def end_sync(self, *, synced: bool) -> None:
        """It has run."""
        self._is_syncing = False
        self._is_unsynced |= not synced

    @property
    def may_close(self) -> bool:
        """See :class:`FileOnDemand`."""
        return not (self._is_unsynced or self._is_syncing)

    def close(self) -> None:
        self._size = self.size
        super().close()
