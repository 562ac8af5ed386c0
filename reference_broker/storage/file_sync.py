"""The blocking part of a sync, for any thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from assay.reference_broker.storage.disk import Disk, DiskFile


class FileSync:
    """Syncs open files, then files that nobody has open, then the folders whose entries changed."""

    __slots__ = ("_disk", "_files", "_folders", "_paths", "place")

    def __init__(
        self, disk: Disk, files: Sequence[DiskFile], folders: Sequence[str], *, paths: Sequence[str] = ()
    ) -> None:
        """``paths``: files that nobody writes now, opened one by one however many they are."""
        self._disk = disk
        self._files = tuple(files)
        self._folders = tuple(folders)
        self._paths = tuple(paths)
        self.place = folders[0] if folders else ""
        """For people."""

    def run(self) -> None:
        """Raises :class:`OSError`; may be run again then."""
        for file in self._files:
            file.sync()
        for path in self._paths:
            with closing(self._disk.open(path)) as file:
                file.sync()
        for folder in self._folders:
            self._disk.sync_folder(folder)
