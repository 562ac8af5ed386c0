"""A simulated disk that goes wrong as a scenario says: errors, lies, writes that go astray, nodes that die in a call.

A :class:`Trouble` is one fault that is active; every call that it may hit asks for it. Worlds whose scenario has no
such fault use :class:`assay.sim.disk.SimDisk` itself.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Final

import msgspec

from assay.faults.fault_kinds import DiskCall, Fault, FaultKind
from assay.reference_broker.trace.file_kinds import FileKind, file_kind
from assay.sim.disk import DiskProfile, SimDisk, SimFile
from assay.sim.inodes import SECTOR_BYTES, Flush, Inode, Write

_CALL_OF: Final = {
    FaultKind.WRITE_ERROR: DiskCall.WRITE,
    FaultKind.LOST_WRITE: DiskCall.WRITE,
    FaultKind.MISDIRECTED_WRITE: DiskCall.WRITE,
    FaultKind.TORN_WRITE: DiskCall.WRITE,
    FaultKind.SYNC_ERROR: DiskCall.SYNC,
    FaultKind.READ_ERROR: DiskCall.READ,
    FaultKind.RESTART_STORM: DiskCall.CHANGE,
}
_PROFILED: Final = frozenset({FaultKind.DISK_FULL, FaultKind.LYING_SYNC, FaultKind.SLOW_DISK})
"""Faults that change what the disk is like, and not single calls."""
_ERRING: Final = frozenset({FaultKind.DISK_FULL, FaultKind.WRITE_ERROR, FaultKind.READ_ERROR, FaultKind.SYNC_ERROR})
_BIT: Final = 8


class NodeGoneError(BaseException):
    """The process ended within a call to the disk. No error: broker code cannot handle its own end."""


class Trouble:
    """One fault that is active. ``down``: what ends the node that is to end in the call, None where none is."""

    def __init__(self, fault: Fault, rng: random.Random, down: Callable[[], None] | None = None) -> None:
        self.fault = fault
        self.rng = rng
        self.down = down
        self.hits = 0
        """Calls that went wrong."""
        self._call = _CALL_OF.get(fault.kind, fault.call)
        self._calls = 0

    def is_hit(self, call: DiskCall, paths: tuple[str, ...]) -> bool:
        """Count a call that concerns these files; whether it is one of those that go wrong."""
        fault = self.fault
        if call is not self._call and (self._call is not DiskCall.CHANGE or call is DiskCall.READ):
            return False
        if fault.files is not FileKind.ALL and all(file_kind(path) is not fault.files for path in paths):
            return False
        self._calls += 1
        times = 1 if self.down is not None else fault.times
        hit = fault.nth <= self._calls < fault.nth + times
        self.hits += hit
        return hit


class TroubledFile(SimFile):
    """An open file of a :class:`TroubledDisk`."""

    def __init__(self, disk: TroubledDisk, inode: Inode, path: str) -> None:
        super().__init__(disk, inode, path)
        self._troubled = disk

    def write_at(self, position: int, data: bytes) -> None:
        """See :meth:`DiskFile.write_at`."""
        write = super().write_at
        hit = self._troubled.hit(DiskCall.WRITE, self.path) if data else None
        if hit is None:
            write(position, data)
            return
        kind, rng, pending = hit.fault.kind, hit.rng, self._inode.pending
        if kind is FaultKind.WRITE_ERROR:
            write(position, data[: rng.randrange(len(data) + 1) if rng.random() < 0.5 else 0])
            raise input_output_error()
        if kind is FaultKind.LOST_WRITE:
            write(position, data)
            pending.pop()
        elif kind is FaultKind.MISDIRECTED_WRITE:
            write(position, data)
            operation = pending.pop()
            assert isinstance(operation, Write)
            sectors = len(self._inode.content) // SECTOR_BYTES + 1
            pending.append(Write(operation.number, rng.randrange(sectors) * SECTOR_BYTES, operation.data))
        else:
            if kind is FaultKind.TORN_WRITE:
                write(position, data[: rng.randrange(1, len(data) + 1)])
            elif rng.random() < 0.5:
                write(position, data)
            self._troubled.end_node(hit)

    def read_at(self, position: int, length: int) -> bytes:
        """See :meth:`DiskFile.read_at`."""
        if self._troubled.hit(DiskCall.READ, self.path) is not None:
            raise input_output_error()
        return super().read_at(position, length)

    def truncate(self, size: int) -> None:
        """See :meth:`DiskFile.truncate`."""
        truncate = super().truncate
        self._troubled.change(DiskCall.TRUNCATE, self.path, lambda: truncate(size))


class TroubledDisk(SimDisk):
    """See the module."""

    def __init__(self, rng: random.Random, profile: DiskProfile | None = None) -> None:
        super().__init__(rng, profile)
        self._usual = self.profile
        self._troubles: list[Trouble] = []
        self.nobody = False
        """The process that used it has ended, and nothing of what it still does counts."""

    # -- faults --------------------------------------------------------------------------------------------------

    def begin(self, trouble: Trouble) -> None:
        """A fault begins."""
        self._troubles.append(trouble)
        if trouble.fault.kind in _PROFILED:
            self._change_profile()

    def end(self, trouble: Trouble) -> None:
        """A fault ends; twice is fine."""
        if trouble in self._troubles:
            self._troubles.remove(trouble)
            if trouble.fault.kind in _PROFILED:
                self._change_profile()

    @property
    def is_erring(self) -> bool:
        """It refuses calls now, so that a broker may refuse to start."""
        return any(trouble.fault.kind in _ERRING for trouble in self._troubles)

    def _change_profile(self) -> None:
        profile = self._usual
        for fault in (trouble.fault for trouble in self._troubles):
            if fault.kind is FaultKind.LYING_SYNC:
                profile = msgspec.structs.replace(profile, lying_sync=True)
            elif fault.kind is FaultKind.SLOW_DISK:
                low, high = ((fault.latency_ms + side * fault.jitter_ms) / 1e3 for side in (-1, 1))
                times_s = (profile.sync_s[0] + low, profile.sync_s[1] + high)
                profile = msgspec.structs.replace(profile, sync_s=times_s)
            elif fault.kind is FaultKind.DISK_FULL:
                capacity_bytes = min(self.used_bytes + fault.free_bytes, profile.capacity_bytes or 2**62)
                profile = msgspec.structs.replace(profile, capacity_bytes=max(1, capacity_bytes))
        self.profile = profile

    def rot(self, fault: Fault, rng: random.Random) -> list[str]:
        """Flip bits that the disk holds, each somewhere in the files of the fault's kind; says where."""
        found = []
        for _ in range(fault.times):
            files = [
                (path, inode)
                for path, inode in sorted(self._durable_files(), key=_path_of)
                if inode.durable and (fault.files is FileKind.ALL or file_kind(path) is fault.files)
            ]
            if not files:
                break
            path, inode = rng.choices(files, [len(inode.durable) for _, inode in files])[0]
            at, bit = rng.randrange(len(inode.durable)), 1 << rng.randrange(_BIT)
            inode.durable[at] ^= bit
            if at < len(inode.content):
                inode.content[at] ^= bit
            found.append(f"{path} {at}")
        return found

    def hit(self, call: DiskCall, *paths: str, syncs_end: bool = False) -> Trouble | None:
        """The fault that a call runs into. Raises :class:`OSError` for a process that has ended.

        A sync begins and ends: errors are met as it begins, and ends of nodes as it ends.
        """
        if self.nobody:
            raise input_output_error()
        troubles = self._troubles
        if call is DiskCall.SYNC:
            troubles = [trouble for trouble in troubles if (trouble.down is not None) is syncs_end]
        found = [trouble for trouble in troubles if trouble.is_hit(call, paths)]
        return found[0] if found else None

    def end_node(self, trouble: Trouble) -> None:
        """Raises :class:`NodeGoneError`."""
        self.end(trouble)
        assert trouble.down is not None
        trouble.down()
        raise NodeGoneError

    def change(self, call: DiskCall, path: str, do: Callable[[], None]) -> None:
        """Carry a call out; a node that is to end in it ends before or after it."""
        hit = self.hit(call, path)
        if hit is None:
            do()
            return
        if hit.rng.random() < 0.5:
            do()
        self.end_node(hit)

    # -- Disk ----------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """See :meth:`SimDisk.crash`."""
        super().crash()
        self.nobody = True

    def lock(self) -> None:
        """See :meth:`Disk.lock`."""
        super().lock()
        self.nobody = False

    def open(self, path: str, *, create: bool = False) -> TroubledFile:
        """See :meth:`Disk.open`."""
        if self.nobody:
            raise input_output_error()
        if create and not self.exists(path):
            open_it = super().open
            self.change(DiskCall.CREATE, path, lambda: open_it(path, create=True).close())
        super().open(path, create=create).close()
        folder, name = self._locate(path)
        inode = folder.entries[name]
        assert inode is not None
        return TroubledFile(self, inode, path)

    def rename(self, source: str, destination: str) -> None:
        """See :meth:`Disk.rename`."""
        rename = super().rename
        self.change(DiskCall.RENAME, destination, lambda: rename(source, destination))

    def remove(self, path: str) -> None:
        """See :meth:`Disk.remove`."""
        remove = super().remove
        self.change(DiskCall.REMOVE, path, lambda: remove(path))

    def _sync_fails(self, path: str) -> bool:
        return self.hit(DiskCall.SYNC, path) is not None or super()._sync_fails(path)

    def finish(self, flush: Flush) -> None:
        """See :meth:`SimDisk.finish`. Raises :class:`NodeGoneError`."""
        finish = super().finish
        hit = self.hit(DiskCall.SYNC, *flush.paths, syncs_end=True) if flush.paths else None
        if hit is None:
            finish(flush)
            return
        if hit.rng.random() < 0.5:
            finish(flush)
        self.end_node(hit)


def input_output_error() -> OSError:
    """EIO."""
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _path_of(item: tuple[str, Inode]) -> str:
    return item[0]
