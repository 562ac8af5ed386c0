"""What a simulated disk is made of: files and folders that know their durable content and what is pending since.

Operations are numbered over the whole disk, so that a sync covers what came before it and a power loss may keep any of
the others.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

SECTOR_BYTES: Final = 512


class Write(msgspec.Struct, frozen=True, gc=False):
    number: int
    position: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, gc=False):
    number: int
    size: int


class Inode:
    """A file's content, whatever its name."""

    __slots__ = ("content", "durable", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        """What the operating system shows."""
        self.durable = bytearray()
        self.pending: list[Write | Truncate] = []

    def sync(self, up_to: int) -> None:
        """Make every pending operation up to this number durable."""
        if not self.pending:
            return
        kept = []
        for operation in self.pending:
            if operation.number <= up_to:
                apply(self.durable, operation)
            else:
                kept.append(operation)
        self.pending = kept

    def drop(self, up_to: int) -> None:
        """A failed sync: these operations are no longer pending, and not durable either."""
        self.pending = [operation for operation in self.pending if operation.number > up_to]


def apply(content: bytearray, operation: Write | Truncate) -> None:
    if isinstance(operation, Truncate):
        resize(content, operation.size)
        return
    position, data, size = operation.position, operation.data, len(content)
    if position == size:
        content += data
        return
    if position > size:
        resize(content, position)
    content[position : position + len(data)] = data


def without_last_sector(operation: Write | Truncate) -> Write | Truncate:
    """A write that the power loss cut at its last sector boundary; nothing of one within a sector."""
    if isinstance(operation, Truncate):
        return operation
    end = operation.position + len(operation.data)
    boundary = (end - 1) // SECTOR_BYTES * SECTOR_BYTES
    return Write(operation.number, operation.position, operation.data[: max(0, boundary - operation.position)])


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))


class EntryKind(Enum):
    LINK = "link"
    UNLINK = "unlink"
    FOLDER = "folder"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A pending change of a folder. A rename is one entry that links and unlinks at once."""

    number: int
    kind: EntryKind
    name: str
    inode: Inode | None = None
    unlinked: str = ""
    """Name that a rename within the folder frees."""


class Folder:
    """Entries of a folder; names map to files, or to None for folders."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | None] = {}
        self.durable: dict[str, Inode | None] = {}
        self.pending: list[Entry] = []

    def change(self, entry: Entry) -> None:
        change_entries(self.entries, entry)
        self.pending.append(entry)

    def sync(self, up_to: int) -> None:
        kept = []
        for entry in self.pending:
            if entry.number <= up_to:
                change_entries(self.durable, entry)
            else:
                kept.append(entry)
        self.pending = kept


def change_entries(entries: dict[str, Inode | None], entry: Entry) -> None:
    if entry.kind is EntryKind.UNLINK:
        entries.pop(entry.name, None)
        return
    if entry.unlinked:
        entries.pop(entry.unlinked, None)
    entries[entry.name] = entry.inode


class Flush:
    """What deferred sync calls cover: all that was done before each. Nothing of it is durable before :meth:`commit`."""

    def __init__(self) -> None:
        self._inodes: list[tuple[Inode, int]] = []
        self._folders: list[tuple[Folder, int]] = []

    def cover_file(self, inode: Inode, up_to: int) -> None:
        self._inodes.append((inode, up_to))

    def cover_folder(self, folder: Folder, up_to: int) -> None:
        self._folders.append((folder, up_to))

    def commit(self) -> None:
        """The device has it."""
        for inode, up_to in self._inodes:
            inode.sync(up_to)
        for folder, up_to in self._folders:
            folder.sync(up_to)

    def fail(self) -> None:
        """The device refused it, and the operating system forgot that it was unwritten."""
        for inode, up_to in self._inodes:
            inode.drop(up_to)
