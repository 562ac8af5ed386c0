"""Bounds how many segment files are open at once, however many logs there are."""

from __future__ import annotations

from typing import Protocol

DEFAULT_LIMIT = 256
_MOST_TRIED = 16
"""Files looked at for one that is opened."""


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

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._holders: dict[Closable, None] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def opened(self, holder: Closable) -> None:
        """Note it, and close others when there are too many."""
        self._holders[holder] = None
        for _ in range(_MOST_TRIED):
            if len(self._holders) <= self._limit:
                return
            oldest = next(iter(self._holders))
            if oldest is not holder and oldest.may_close:
                oldest.close()
            else:
                # Later again; those behind it may close.
                self._holders[oldest] = self._holders.pop(oldest)

    def closed(self, holder: Closable) -> None:
        self._holders.pop(holder, None)
