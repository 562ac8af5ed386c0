"""A disk in memory, for queues that end with the process."""

from __future__ import annotations

_FREE_BYTES = 2**62


class MemoryFile:
    """An open file of a :class:`MemoryDisk`; all who open one path share its bytes."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def append(self, data: bytes) -> int:
        position = len(self._content)
        self._content += data
        return position

    def write_at(self, position: int, data: bytes) -> None:
        if not data:
            return
        gap = position - len(self._content)
        if gap > 0:
            self._content += bytes(gap)
        self._content[position : position + len(data)] = data

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(memoryview(self._content)[position : position + length])

    def truncate(self, size: int) -> None:
        if size < len(self._content):
            del self._content[size:]
        else:
            self._content += bytes(size - len(self._content))

    def sync(self) -> None:
        """Memory survives nothing, so there is nothing to do."""

    def close(self) -> None:
        """Nothing is held."""


class MemoryDisk:
    """A :class:`assay.reference_broker.storage.disk.Disk` whose files are byte arrays."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._folders: dict[str, set[str]] = {"": set()}

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        content = self._files.get(path)
        if content is None:
            folder, _, name = path.rpartition("/")
            if not create or folder not in self._folders:
                raise FileNotFoundError(2, "no such file", path)
            content = self._files[path] = bytearray()
            self._folders[folder].add(name)
        return MemoryFile(content)

    def list(self, path: str) -> list[str]:
        return sorted(self._folders.get(path, ()))

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._folders

    def make_folder(self, path: str) -> None:
        parent = ""
        for name in path.split("/"):
            self._folders[parent].add(name)
            parent = f"{parent}/{name}" if parent else name
            self._folders.setdefault(parent, set())

    def rename(self, source: str, destination: str) -> None:
        content = self._files.get(source)
        folder, _, name = destination.rpartition("/")
        if content is None or folder not in self._folders:
            raise FileNotFoundError(2, "no such file", source)
        self.remove(source)
        self._files[destination] = content
        self._folders[folder].add(name)

    def remove(self, path: str) -> None:
        if self._files.pop(path, None) is None:
            raise FileNotFoundError(2, "no such file", path)
        folder, _, name = path.rpartition("/")
        self._folders[folder].discard(name)

    def remove_folder(self, path: str) -> None:
        if self._folders.get(path):
            raise OSError(39, "the folder is not empty", path)
        if self._folders.pop(path, None) is None:
            raise FileNotFoundError(2, "no such folder", path)
        folder, _, name = path.rpartition("/")
        self._folders[folder].discard(name)

    def sync_folder(self, path: str) -> None:
        """As :meth:`MemoryFile.sync`."""

    def free_bytes(self) -> int:
        """Queues bound what they hold, not the disk."""
        return _FREE_BYTES

    def lock(self) -> None:
        """Nobody else can see it."""

    def unlock(self) -> None:
        """As :meth:`lock`."""
