"""A real disk that goes wrong on request: full, errors of writes, reads and syncs, slow syncs.

For the adapter: ``--disk-faults '{"seed": 1, "disk_faults": [...]}'`` puts it between the broker and its data folder,
and each such line on its standard input says anew what is wrong. A fault is ``{"kind": "write_error", "files":
"segments", "nth": 1, "times": 1}``; kinds are ``disk_full`` (``free_bytes``), ``write_error``, ``read_error``,
``sync_error`` and ``slow_disk`` (``latency_ms``, ``jitter_ms``).
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from typing import Any, Final

import msgspec

from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.file_kinds import FileKind, file_kind

_CALLS: Final = {"write_error": "write", "read_error": "read", "sync_error": "sync", "slow_disk": "sync"}


class DiskFault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong; what else a scenario says of it is not the disk's affair."""

    kind: str
    files: FileKind = FileKind.ALL
    nth: int = 1
    times: int = 1
    free_bytes: int = 0
    latency_ms: float = 0.0
    jitter_ms: float = 0.0


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    disk_faults: list[DiskFault] = []
    seed: int = 0


class Troubles:
    """What is wrong now. Safe to be asked from several threads."""

    def __init__(self, request: str | bytes) -> None:
        """Raises :class:`ValueError` for what is no request."""
        self._lock = threading.Lock()
        self._rng = random.Random(0)
        self._active: dict[DiskFault, int] = {}
        """Each fault with the calls that it has seen."""
        self._left_bytes: int | None = None
        self.take(request)
        self._rng.seed(msgspec.json.decode(request, type=described(_Request)).seed)

    def take(self, request: str | bytes) -> None:
        """From now on that is wrong; faults that were there before go on counting. Raises :class:`ValueError`."""
        faults = msgspec.json.decode(request, type=described(_Request)).disk_faults
        with self._lock:
            full = [fault for fault in faults if fault.kind == "disk_full"]
            if not full:
                self._left_bytes = None
            elif any(fault not in self._active for fault in full):
                self._left_bytes = min(fault.free_bytes for fault in full)
            self._active = {fault: self._active.get(fault, 0) for fault in faults}

    def hit(self, call: str, path: str) -> DiskFault | None:
        """The fault that a call runs into."""
        with self._lock:
            for fault, calls in self._active.items():
                if _CALLS.get(fault.kind) != call or fault.files not in (FileKind.ALL, file_kind(path)):
                    continue
                self._active[fault] = calls + 1
                if fault.kind == "slow_disk" or fault.nth <= calls + 1 < fault.nth + fault.times:
                    return fault
        return None

    def part_of(self, size: int) -> int:
        """How much of a write that fails is done."""
        with self._lock:
            return self._rng.randrange(size + 1) if self._rng.random() < 0.5 else 0

    def delay_s(self, fault: DiskFault) -> float:
        """What a slow disk adds to a sync."""
        with self._lock:
            return (fault.latency_ms + self._rng.uniform(-fault.jitter_ms, fault.jitter_ms)) / 1e3

    def room_for(self, growth: int) -> int:
        """Take as many bytes as there are, negative ones are given back; returns how many were taken."""
        with self._lock:
            if self._left_bytes is None:
                return growth
            taken = min(growth, max(0, self._left_bytes))
            self._left_bytes -= taken
            return taken

    def free_bytes(self, really: int) -> int:
        """What is left of so many bytes."""
        with self._lock:
            return really if self._left_bytes is None else min(really, self._left_bytes)


class FaultyFile:
    """An open file of a :class:`FaultyDisk`."""

    def __init__(self, file: Any, path: str, troubles: Troubles) -> None:
        self._file = file
        self._path = path
        self._troubles = troubles

    @property
    def size(self) -> int:
        return int(self._file.size)

    def append(self, data: bytes) -> int:
        """As the file's; raises :class:`OSError` when its turn has come."""
        position = self.size
        self.write_at(position, data)
        return position

    def write_at(self, position: int, data: bytes) -> None:
        """As :meth:`append`."""
        if data and self._troubles.hit("write", self._path) is not None:
            self._file.write_at(position, data[: self._troubles.part_of(len(data))])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        growth = max(0, position + len(data) - self.size)
        lacking = growth - self._troubles.room_for(growth)
        self._file.write_at(position, data[: len(data) - lacking])
        if lacking:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read_at(self, position: int, length: int) -> bytes:
        """As :meth:`append`."""
        if self._troubles.hit("read", self._path) is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self._file.read_at(position, length))

    def truncate(self, size: int) -> None:
        before = self.size
        self._file.truncate(size)
        self._troubles.room_for(size - before)

    def sync(self) -> None:
        """As :meth:`append`, or after a while."""
        fault = self._troubles.hit("sync", self._path)
        if fault is not None and fault.kind == "sync_error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if fault is not None:
            time.sleep(self._troubles.delay_s(fault))
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class FaultyDisk:
    """Wraps a disk of the broker; see the module."""

    def __init__(self, disk: Any, troubles: Troubles) -> None:
        self._disk = disk
        self._troubles = troubles

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        return FaultyFile(self._disk.open(path, create=create), path, self._troubles)

    def remove(self, path: str) -> None:
        file = self._disk.open(path)
        size = file.size
        file.close()
        self._disk.remove(path)
        self._troubles.room_for(-size)

    def free_bytes(self) -> int:
        return self._troubles.free_bytes(int(self._disk.free_bytes()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)
