"""A file that makes room for others: it is closed when nobody needs it open, and opened again when it is used."""

from __future__ import annotations

from contextlib import closing

from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.open_files import OpenFiles


class ReopenedFile:
    """Implements :class:`DiskFile` and :class:`Closable` for who writes to it and says when it is synced."""

    def __init__(self, disk: Disk, path: str, open_files: OpenFiles | None, *, create: bool = False) -> None:
        """Open it. Raises :class:`OSError`."""
        self.path = path
        """Whoever renames it says so."""
        self._disk = disk
        self._open_files = open_files
        self._is_unsynced = False
        self._is_syncing = False
        self._file: DiskFile | None = None
        self._size = self._opened(create=create).size

    def _opened(self, *, create: bool = False) -> DiskFile:
        file = self._file
        if file is None:
            if self._open_files is None:
                file = self._file = self._disk.open(self.path, create=create)
            else:
                file = self._file = self._open_files.open(self._disk, self.path, create=create)
                self._open_files.opened(self)
        return file

    @property
    def size(self) -> int:
        return self._size if self._file is None else self._file.size

    def append(self, data: bytes) -> int:
        file = self._file or self._opened()
        self._is_unsynced = True
        return file.append(data)

    def write_at(self, position: int, data: bytes) -> None:
        file = self._opened()
        self._is_unsynced = True
        file.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        return self._opened().read_at(position, length)

    def truncate(self, size: int) -> None:
        file = self._opened()
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
        """See :class:`Closable`."""
        return not (self._is_unsynced or self._is_syncing)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._size = file.size
            file.close()
            if self._open_files is not None:
                self._open_files.closed(self)
