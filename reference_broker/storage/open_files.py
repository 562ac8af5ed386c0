"""Bounds how many segment files are open at once, however many logs there are, and what is kept free for them."""

from __future__ import annotations

import errno
import sys
from typing import Protocol

from assay.reference_broker.storage.disk import Disk, DiskFile

DEFAULT_LIMIT = 256
"""Less where the process may open few."""
SPARE_FILES = 256
"""Of the limit on open files, for everything that is not a connection: logs, listeners, the event loop's own."""
_LARGE_SPARE_FILES = 512
"""Where the limit is eight times as much."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_MOST_TRIED = 16
"""Files looked at for one that is opened."""


def file_limit() -> int | None:
    """How many files the process may have open; None = without limit."""
    if sys.platform == "win32":
        return None
    import resource  # only POSIX has it

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def reserve_of(limit: int) -> int:
    """How many of so many descriptors no connection may take."""
    return max(min(SPARE_FILES, limit // 2), min(_LARGE_SPARE_FILES, limit // 8))


def _default_limit() -> int:
    """Half the reserve: the other half is for what is open besides, and for short."""
    limit = file_limit()
    return DEFAULT_LIMIT if limit is None else max(1, min(DEFAULT_LIMIT, reserve_of(limit) // 2))


class Closable(Protocol):
    """Something that opens its file again when it needs it."""

    @property
    def may_close(self) -> bool:
        """All that was written to it is on disk, and no sync of it is running."""

    def close(self) -> None: ...


class OpenFiles:
    """Who has a file open, in the order of opening. The oldest that may close makes room; what may not stays open.

    A file with unsynced writes stays open until they are synced: an error of the disk is only sure to be reported to
    those who had the file open when it was written.
    """

    def __init__(self, limit: int | None = None) -> None:
        """``limit``: None = what the process may well open."""
        self._limit = _default_limit() if limit is None else limit
        self._holders: dict[Closable, None] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def open(self, disk: Disk, path: str, *, create: bool = False) -> DiskFile:
        """Open a file; where the system has no descriptor left, others make room. Raises :class:`OSError`."""
        try:
            return disk.open(path, create=create)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or not self.make_room():
                raise
        return disk.open(path, create=create)

    def opened(self, holder: Closable) -> None:
        """Note it, and close others when there are too many."""
        self._holders[holder] = None
        self._close_some(holder, self._limit)

    def make_room(self) -> bool:
        """The system has no descriptor left: close what may be closed. False when there is nothing."""
        before = len(self._holders)
        self._close_some(None, 0)
        return len(self._holders) < before

    def _close_some(self, holder: Closable | None, most: int) -> None:
        for _ in range(_MOST_TRIED):
            if len(self._holders) <= most:
                return
            oldest = next(iter(self._holders))
            if oldest is not holder and oldest.may_close:
                oldest.close()
            else:
                # Later again; those behind it may close.
                self._holders[oldest] = self._holders.pop(oldest)

    def closed(self, holder: Closable) -> None:
        self._holders.pop(holder, None)
