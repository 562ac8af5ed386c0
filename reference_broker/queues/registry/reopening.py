"""Queues that the disk did not let be opened, for now: they are tried again, one a turn, ever more rarely."""

from __future__ import annotations

from typing import Final

from assay.reference_broker.config import QueueConfig

_FIRST_WAIT_S: Final = 1.0
_LAST_WAIT_S: Final = 60.0
"""Opening reads all that is not in an index: not more often than that."""


class Reopening:
    """Which queues are tried again, and when. At most as many as are stored or configured."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, float, QueueConfig]] = {}
        """By name: when it is due, how long it has waited for that, and how it is to be opened."""

    @property
    def due_at(self) -> float | None:
        """When to ask for the next; None = for none."""
        return min((due_at for due_at, _, _ in self._waiting.values()), default=None)

    def failed(self, config: QueueConfig, now: float) -> None:
        """It could not be opened, or not yet."""
        known = self._waiting.get(config.name)
        wait_s = _FIRST_WAIT_S if known is None else min(_LAST_WAIT_S, 2 * known[1])
        self._waiting[config.name] = now + wait_s, wait_s, config

    def next_due(self, now: float) -> QueueConfig | None:
        """The one that has been due for longest."""
        due_at, _, config = min(self._waiting.values(), key=lambda each: each[0], default=(now + 1, 0.0, None))
        return config if due_at <= now else None

    def ended(self, name: str) -> None:
        """It is open, or will never be."""
        self._waiting.pop(name, None)
