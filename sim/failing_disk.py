"""A disk of which any call may fail with any error, for tests of what a broker makes of that.

Wraps another :class:`assay.reference_broker.storage.disk.Disk` and counts the calls of each kind. What the protocols
``Disk`` and ``DiskFile`` name is what is wrapped: a call that is added to them is there without being mentioned here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from assay.reference_broker.storage.disk import Disk, DiskFile

NEVER_FAIL = frozenset({"size", "close", "lock", "unlock"})
"""No system call that writes or reads: a size is remembered, closing reports nothing that a sync has not, and locks are
for the start."""


def calls_of(protocol: type) -> frozenset[str]:
    """Names of the methods and properties that a protocol asks for."""
    return frozenset(name for name in vars(protocol) if not name.startswith("_"))


SEAM = (calls_of(Disk) | calls_of(DiskFile)) - NEVER_FAIL
"""Every call that may fail."""


class Fault(NamedTuple):
    """From the ``first`` call of a kind on, counted from 1, so many fail."""

    call: str
    first: int
    number: int
    """What ``errno`` says."""
    times: int = 1

    def hits(self, call: str, count: int) -> bool:
        return call == self.call and self.first <= count < self.first + self.times


class FailingFile:
    """An open file of a :class:`FailingDisk`."""

    def __init__(self, disk: FailingDisk, file: DiskFile, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._file, name)
        return self._disk.guarded(name, self._path, member) if name in SEAM else member


class FailingDisk:
    """Implements ``Disk``; ``fault`` may be set at any time."""

    def __init__(self, disk: Disk, fault: Fault | None = None) -> None:
        self.disk = disk
        self.fault = fault
        self.counts: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []
        """Calls that failed, each with its path."""

    def open(self, path: str, *, create: bool = False) -> FailingFile:
        """See :meth:`Disk.open`."""
        return FailingFile(self, self.guarded("open", path, self.disk.open)(path, create=create), path)

    def guarded(self, name: str, path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted, which fails when it is its turn."""

        def guarded(*arguments: Any, **named: Any) -> Any:
            self.counts[name] += 1
            if self.fault is not None and self.fault.hits(name, self.counts[name]):
                self.failed.append((name, path or str(arguments[0] if arguments else "")))
                raise OSError(self.fault.number, os.strerror(self.fault.number))
            return call(*arguments, **named)

        return guarded

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.disk, name)
        return self.guarded(name, "", member) if name in SEAM else member
