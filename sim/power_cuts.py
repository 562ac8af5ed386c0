"""Every state in which a power loss may leave a simulated disk, one by one.

:class:`WatchedDisk` stops before each of its operations, so that a workload is run once and its disk looked at after
every step. :func:`power_cuts` then goes through what a power loss at that point may keep of the pending operations:
nothing, all, prefixes, all but one, a torn last write, only one file, and some subsets. Writes of a file and entries of
a folder may be lost independently and out of order, which is harsher than what file systems with a journal do.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from assay.sim.disk import DiskProfile, SimDisk
from assay.sim.inodes import Entry, Folder, Inode, Truncate, Write, apply, change_entries, without_last_sector

_RECENT: Final = 4
"""So many of the newest pending operations are lost one by one, and only files with one of so many of the newest are
treated by themselves: what is older was new at an earlier point."""
_RECENT_ENTRIES: Final = 6
"""As above, for entries of folders alone: one removal of a segment is three of them."""
_SUBSETS: Final = 2

Operation = Write | Truncate | Entry


class PowerCut(NamedTuple):
    """What a power loss left."""

    what: str
    """What was kept, in words."""
    files: dict[str, bytes]
    folders: frozenset[str]

    @property
    def digest(self) -> bytes:
        """The same for the same content."""
        state = hashlib.blake2b(repr(sorted(self.folders)).encode(), digest_size=16)
        for path, data in sorted(self.files.items()):
            state.update(b"%d %d %s" % (len(path), len(data), path.encode()))
            state.update(data)
        return state.digest()

    def boot(self) -> WatchedDisk:
        """The disk of the machine that starts again."""
        return WatchedDisk.holding(self.files, self.folders)


class WatchedDisk(SimDisk):
    """Calls :attr:`before` ahead of each operation that changes what a power loss would leave."""

    def __init__(self, rng: random.Random, profile: DiskProfile | None = None) -> None:
        super().__init__(rng, profile)
        self.before: Callable[[], None] | None = None

    def _stop(self) -> None:
        if self.before is not None:
            self.before()

    def next_number(self) -> int:
        """See :meth:`SimDisk.next_number`."""
        self._stop()
        return super().next_number()

    def sync_inode(self, inode: Inode, path: str) -> None:
        """See :meth:`SimDisk.sync_inode`."""
        self._stop()
        super().sync_inode(inode, path)

    def sync_folder(self, path: str) -> None:
        """See :meth:`SimDisk.sync_folder`."""
        self._stop()
        super().sync_folder(path)


def power_cuts(disk: SimDisk, seed: str) -> Iterator[PowerCut]:
    """What a power loss now may leave on a disk, which stays as it is. Some states may come twice.

    ``seed`` decides about the subsets.
    """
    places = _pending(disk)
    numbers = [operation.number for _, operation in places]
    every = frozenset(numbers)
    yield _cut(disk, "nothing", frozenset())
    if not places:
        return
    yield _cut(disk, "everything", every)
    rng = random.Random(seed)
    counts = {len(numbers) - 1, rng.randrange(len(numbers))} - {0}
    for count in sorted(counts):
        yield _cut(disk, f"the first {count} of {len(numbers)} operations", frozenset(numbers[:count]))
    for place, operation in places[-_RECENT:]:
        yield _cut(disk, f"all but operation {operation.number} on {place}", every - {operation.number})
    yield from _torn_cuts(disk, places[-_RECENT:], every)
    yield from _single_cuts(disk, places)
    for _ in range(_SUBSETS):
        kept = frozenset(number for number in numbers if rng.random() < 0.5)
        yield _cut(disk, f"operations {sorted(kept)[-_RECENT:]} and so on", kept)


def _torn_cuts(disk: SimDisk, places: list[tuple[str, Operation]], every: frozenset[int]) -> Iterator[PowerCut]:
    """The last write of a file is there in part: without its last sector, half of it, all but a byte, size only."""
    last = {place: operation for place, operation in places if isinstance(operation, Write)}
    for place, write in last.items():
        cut = without_last_sector(write)
        assert isinstance(cut, Write)
        sizes = {len(cut.data), len(write.data) // 2, len(write.data) - 1}
        for size in sorted(sizes):
            torn = Write(write.number, write.position, write.data[:size])
            yield _cut(disk, f"{size} bytes of the last write to {place}", every, torn)
        empty = Write(write.number, write.position, bytes(len(write.data)))
        yield _cut(disk, f"zeros instead of the last write to {place}", every, empty)


def _single_cuts(disk: SimDisk, places: list[tuple[str, Operation]]) -> Iterator[PowerCut]:
    """Of one file or folder everything, of the others nothing; and the other way round."""
    of: dict[str, set[int]] = {}
    for place, operation in places:
        of.setdefault(place, set()).add(operation.number)
    every = frozenset().union(*of.values())
    entries = frozenset(operation.number for _, operation in places if isinstance(operation, Entry))
    for place in {place: None for place, _ in places[-_RECENT:]}:
        numbers = of[place]
        yield _cut(disk, f"only {place}", entries | numbers)
        yield _cut(disk, f"all but {place}", every - numbers)
    yield _cut(disk, "only the folders", entries)
    for number in sorted(entries)[-_RECENT_ENTRIES:]:
        yield _cut(disk, f"only the folders, without operation {number}", entries - {number})
    yield _cut(disk, "only the files", every - entries)


def _pending(disk: SimDisk) -> list[tuple[str, Operation]]:
    """(where, what), in the order in which it was done."""
    found: list[tuple[str, Operation]] = []
    seen: set[int] = set()
    for path, folder in disk.folders.items():
        found += [(f"folder {path}", entry) for entry in folder.pending]
        inodes = [(name, inode) for name, inode in folder.durable.items() if inode is not None]
        inodes += [(entry.name, entry.inode) for entry in folder.pending if entry.inode is not None]
        for name, inode in inodes:
            if id(inode) not in seen:
                seen.add(id(inode))
                found += [(f"{path}/{name}", operation) for operation in inode.pending]
    return sorted(found, key=_number)


def _number(place: tuple[str, Operation]) -> int:
    return place[1].number


def _cut(disk: SimDisk, what: str, kept: frozenset[int], torn: Write | None = None) -> PowerCut:
    """The state with these operations; ``torn`` takes the place of the one with its number."""
    files: dict[str, bytes] = {}
    folders = {""}
    for path, folder in disk.folders.items():
        if path not in folders:
            # A folder comes after its parent. Its own entry was lost, and everything in it with it.
            continue
        for name, inode in _entries(folder, kept).items():
            place = f"{path}/{name}" if path else name
            if inode is None:
                folders.add(place)
            else:
                files[place] = _content(inode, kept, torn)
    return PowerCut(what, files, frozenset(folders))


def _entries(folder: Folder, kept: frozenset[int]) -> dict[str, Inode | None]:
    if not folder.pending:
        return folder.durable
    entries = dict(folder.durable)
    for entry in folder.pending:
        if entry.number in kept:
            change_entries(entries, entry)
    return entries


def _content(inode: Inode, kept: frozenset[int], torn: Write | None) -> bytes:
    if not inode.pending:
        return bytes(inode.durable)
    content = bytearray(inode.durable)
    for operation in inode.pending:
        if torn is not None and operation.number == torn.number:
            apply(content, torn)
        elif operation.number in kept:
            apply(content, operation)
    return bytes(content)
