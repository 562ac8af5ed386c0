"""What a simulated disk is made of: files and folders that know their durable content and what is pending since.

Operations are numbered over the whole disk, so that a sync covers what came before it and a power loss may keep any of
the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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

    def undo(self, undone: Sequence[range]) -> None:
        """These operations were never done."""
        kept = [operation for operation in self.pending if not _among(operation.number, undone)]
        if len(kept) < len(self.pending):
            self.pending = kept
            self.content[:] = self.durable
            for operation in kept:
                apply(self.content, operation)


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

    def undo(self, undone: Sequence[range]) -> None:
        """These changes were never made."""
        kept = [entry for entry in self.pending if not _among(entry.number, undone)]
        if len(kept) < len(self.pending):
            self.pending = kept
            self.entries = dict(self.durable)
            for entry in kept:
                change_entries(self.entries, entry)


def _among(number: int, spans: Sequence[range]) -> bool:
    return any(number in span for span in spans)


def change_entries(entries: dict[str, Inode | None], entry: Entry) -> None:
    if entry.kind is EntryKind.UNLINK:
        entries.pop(entry.name, None)
        return
    if entry.unlinked:
        entries.pop(entry.unlinked, None)
    entries[entry.name] = entry.inode


class Flush:
    """What the sync calls of one job cover, in their order: all that was done to a file or folder before each.

    Nothing of it is durable before :meth:`commit`. A job goes on when a sync has come back, so what it did behind a
    call is there only where all that the call covers is durable: :meth:`interrupt`.
    """

    def __init__(self, begun: int = 0) -> None:
        """``begun``: number of the last operation before the job."""
        self._covers: list[tuple[Inode | Folder, int]] = []
        self.paths: list[str] = []
        """What the calls are for."""
        self.operations = range(begun + 1, begun + 1)
        """Numbers of what the job did."""
        self._came_back = 0
        """At least so many calls."""

    def cover(self, what: Inode | Folder, up_to: int, path: str) -> None:
        self._covers.append((what, up_to))
        self.paths.append(path)

    def end_job(self, number: int) -> None:
        """That was its last operation."""
        self.operations = range(self.operations.start, number + 1)

    def commit(self, calls: int | None = None) -> None:
        """The device has it; of the first so many calls, or of all."""
        for what, up_to in self._covers[:calls]:
            what.sync(up_to)

    def come_to(self, other: Flush, calls: int | None) -> None:
        """So many sync calls of another job have come back. What they cover of this one's operations it had done."""
        covered = [
            operation.number
            for what, up_to in other._covers[:calls]
            for operation in what.pending
            if operation.number <= up_to and operation.number in self.operations
        ]
        if covered:
            self._came_back = sum(up_to < max(covered) for _, up_to in self._covers)
            self.commit(self._came_back)

    def interrupt(self, rng: random.Random | None) -> tuple[int, range]:
        """The job ends in one of its sync calls, the first that it can be, or behind the last.

        Returns how many had come back, and the operations that were not done yet.
        """
        calls = self._came_back if rng is None else rng.randint(self._came_back, len(self._covers))
        last = self._covers[calls][1] if calls < len(self._covers) else self.operations.stop
        return calls, range(last + 1, self.operations.stop)
