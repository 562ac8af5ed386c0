"""A disk in memory that notes its syncs."""

from __future__ import annotations

from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile


class WatchedFile(MemoryFile):
    def __init__(self, disk: WatchedDisk, path: str, content: bytearray) -> None:
        super().__init__(content)
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        self._disk.sync_folder(self._path)


class WatchedDisk(MemoryDisk):
    """Notes what is synced, and refuses it when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.fails = False

    def open(self, path: str, *, create: bool = False) -> WatchedFile:
        super().open(path, create=create)
        return WatchedFile(self, path, self._files[path])

    def sync_folder(self, path: str) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        self.synced.append(path)
