"""The blocking part of a sync, for any thread."""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker.storage.disk import Disk, DiskFile


class FileSync:
    """Syncs files, then the folders whose entries changed."""

    __slots__ = ("_disk", "_files", "_folders")

    def __init__(self, disk: Disk, files: Sequence[DiskFile], folders: Sequence[str]) -> None:
        self._disk = disk
        self._files = tuple(files)
        self._folders = tuple(folders)

    def run(self) -> None:
        """Raises :class:`OSError`."""
        for file in self._files:
            file.sync()
        for folder in self._folders:
            self._disk.sync_folder(folder)
