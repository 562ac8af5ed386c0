"""A disk that loses what was not synced, and fails on demand."""

from __future__ import annotations

import errno
import random

import pytest


class _Inode:
    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.synced = bytes(content)


class LossyFile:
    def __init__(self, disk: LossyDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    @property
    def size(self) -> int:
        return len(self._inode.content)

    def append(self, data: bytes) -> int:
        position = self.size
        self.write_at(position, data)
        return position

    def write_at(self, position: int, data: bytes) -> None:
        room = self._disk.space_left
        written = data if room is None else data[:room]
        self._inode.content[position : position + len(written)] = written
        if room is not None:
            self._disk.space_left = room - len(written)
        if len(written) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def read_at(self, position: int, length: int) -> bytes:
        if self._disk.fail_reads:
            raise OSError(errno.EIO, "Input/output error")
        return bytes(self._inode.content[position : position + length])

    def truncate(self, size: int) -> None:
        del self._inode.content[size:]

    def sync(self) -> None:
        self._disk.syncs += 1
        if self._disk.fail_syncs:
            raise OSError(errno.EIO, "Input/output error")
        self._inode.synced = bytes(self._inode.content)

    def close(self) -> None:
        pass


class LossyDisk:
    """Contents survive a crash up to their last sync plus some part of what came after; names survive a folder sync."""

    def __init__(self) -> None:
        self.files: dict[str, _Inode] = {}
        self.folders: set[str] = {""}
        self.durable_files: dict[str, _Inode] = {}
        self.durable_folders: set[str] = {""}
        self.fail_syncs = False
        self.fail_reads = False
        self.space_left: int | None = None
        self.syncs = 0

    def open(self, path: str, *, create: bool = False) -> LossyFile:
        if path not in self.files:
            if not create or _folder(path) not in self.folders:
                raise FileNotFoundError(path)
            self.files[path] = _Inode()
        return LossyFile(self, self.files[path])

    def list(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        names = {
            name[len(prefix) :].partition("/")[0]
            for name in (*self.files, *self.folders)
            if name and name.startswith(prefix)
        }
        return sorted(names - {""})

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def make_folder(self, path: str) -> None:
        parts = path.split("/")
        self.folders.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))

    def rename(self, source: str, destination: str) -> None:
        self.files[destination] = self.files.pop(source)

    def remove(self, path: str) -> None:
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(path)

    def remove_folder(self, path: str) -> None:
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        self.folders.discard(path)

    def sync_folder(self, path: str) -> None:
        self.syncs += 1
        if self.fail_syncs:
            raise OSError(errno.EIO, "Input/output error")
        for name in [name for name in self.durable_files if _folder(name) == path]:
            del self.durable_files[name]
        self.durable_files |= {name: inode for name, inode in self.files.items() if _folder(name) == path}
        self.durable_folders |= {name for name in self.folders if _folder(name) == path}

    def free_bytes(self) -> int:
        return 2**62 if self.space_left is None else self.space_left

    def lock(self) -> None:
        pass

    def unlock(self) -> None:
        pass

    def after_power_loss(self, rng: random.Random) -> LossyDisk:
        """What a machine finds on its disk afterwards. A random part of what was not synced survives."""
        disk = LossyDisk()
        for folder in sorted(self.folders, key=len):
            parent_survives = folder == "" or _folder(folder) in disk.folders
            if parent_survives and (folder in self.durable_folders or rng.random() < 0.5):
                disk.folders.add(folder)
        names = {**self.durable_files}
        names |= {name: inode for name, inode in self.files.items() if rng.random() < 0.5}
        for name, inode in sorted(names.items()):
            if _folder(name) not in disk.folders:
                continue
            content = bytes(inode.content)
            if content.startswith(inode.synced):
                content = content[: rng.randint(len(inode.synced), len(content))]
            elif rng.random() < 0.5:
                content = inode.synced
            disk.files[name] = _Inode(content)
        disk.durable_files = dict(disk.files)
        disk.durable_folders = set(disk.folders)
        return disk


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


@pytest.fixture
def lossy_disk() -> LossyDisk:
    return LossyDisk()


@pytest.fixture(scope="session")
def lossy_disks() -> type[LossyDisk]:
    """The class, for tests that make many."""
    return LossyDisk
