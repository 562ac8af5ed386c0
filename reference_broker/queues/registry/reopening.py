"""Queues that the disk did not let be opened, for now: they are tried again, one a turn, ever more rarely."""

from __future__ import annotations

from typing import Final

_FIRST_WAIT_S: Final = 1.0
_LAST_WAIT_S: Final = 60.0
"""Opening reads all that is not in an index: not more often than that."""


class Reopening:
    """Which queues are tried again, and when. At most as many as are stored or configured."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, float]] = {}
        """By name: when it is due, and how long it has waited for that."""

    @property
    def due_at(self) -> float | None:
        """When to ask for the next; None = for none."""
        return min((due_at for due_at, _ in self._waiting.values()), default=None)

    def failed(self, name: str, now: float) -> None:
        """It could not be opened, or not yet."""
        known = self._waiting.get(name)
        wait_s = _FIRST_WAIT_S if known is None else min(_LAST_WAIT_S, 2 * known[1])
        self._waiting[name] = now + wait_s, wait_s

    def next_due(self, now: float) -> str | None:
        """The one that has been due for longest."""
        name = min(self._waiting, key=lambda each: self._waiting[each][0], default=None)
        return name if name is not None and self._waiting[name][0] <= now else None

    def tried(self, name: str, now: float) -> None:
        """It is open, or will never be, unless it :meth:`failed` again."""
        if name in self._waiting and self._waiting[name][0] <= now:
            del self._waiting[name]
