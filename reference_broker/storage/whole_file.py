"""Files that are only ever written as a whole, and folders whose names must outlive a loss of power."""

from __future__ import annotations

from contextlib import closing

from assay.reference_broker.storage.disk import Disk


def write_whole(disk: Disk, path: str, content: bytes) -> None:
    """Write a file, whatever was there, and sync it. Raises :class:`OSError`."""
    with closing(disk.open(path, create=True)) as file:
        file.truncate(0)
        file.append(content)
        file.sync()


def replace_whole(disk: Disk, path: str, content: bytes) -> None:
    """Write a file beside the one that is there, and give it that one's name. The caller syncs the folder.

    Raises :class:`OSError`.
    """
    temporary = f"{path}.tmp"
    write_whole(disk, temporary, content)
    disk.rename(temporary, path)


def sync_up(disk: Disk, folder: str) -> None:
    """Sync a folder and all above it. Raises :class:`OSError`."""
    while folder:
        disk.sync_folder(folder)
        folder = folder.rpartition("/")[0]
    disk.sync_folder("")
