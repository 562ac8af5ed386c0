"""Connections whose client has not said yet who it is: only so many, and those who hold many of them give way first."""

from __future__ import annotations

from typing import Protocol


class Newcomer(Protocol):
    """A connection that waits for CONNECT, or for the end of a TLS handshake."""

    def give_way(self, now: float) -> None:
        """Close it: there are too many."""


class Newcomers:
    """Bounds them. Over the limit the one that has waited longest goes, of those whose address has most of them: who
    opens many and says nothing loses his own, and keeps nobody out who does what he came for."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._source_of: dict[Newcomer, str] = {}
        self._of_source: dict[str, dict[Newcomer, None]] = {}
        """By address, the one first that has waited longest."""
        self._levels: list[dict[str, None]] = []
        """The addresses that have one, those that have two, and so on. The last is never empty."""

    @property
    def count(self) -> int:
        return len(self._source_of)

    def add(self, newcomer: Newcomer, source: str, now: float) -> None:
        """Somebody has come from an address; another one may have to go."""
        self._source_of[newcomer] = source
        theirs = self._of_source.setdefault(source, {})
        theirs[newcomer] = None
        self._move(source, len(theirs) - 1, len(theirs))
        while len(self._source_of) > self.limit:
            self.make_room(now)

    def remove(self, newcomer: Newcomer) -> None:
        """It is connected, or gone. Twice is fine."""
        source = self._source_of.pop(newcomer, None)
        if source is not None:
            theirs = self._of_source[source]
            del theirs[newcomer]
            self._move(source, len(theirs) + 1, len(theirs))
            if not theirs:
                del self._of_source[source]

    def make_room(self, now: float) -> bool:
        """Have one of them give way; False where there is none."""
        if not self._source_of:
            return False
        oldest = next(iter(self._of_source[next(iter(self._levels[-1]))]))
        self.remove(oldest)
        oldest.give_way(now)
        return True

    def _move(self, source: str, before: int, count: int) -> None:
        levels = self._levels
        if count > len(levels):
            levels.append({})
        if count:
            levels[count - 1][source] = None
        if before:
            del levels[before - 1][source]
        if levels and not levels[-1]:
            levels.pop()
