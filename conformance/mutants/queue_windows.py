"""Planted bugs that show only when a fault falls into a window of 50 ms: what the hunt of the simulator is judged by.

Each is harmless at any other moment, so that no schedule which always crashes at the same times finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.storage.pending_log import PendingLogFile

WINDOW_S: Final = 0.05
_NTH: Final = 120
"""Which write, or publish, of a process's life opens the window."""


class _Windows:
    """When each log or queue of the running process is in its window."""

    def __init__(self, patch: Patch) -> None:
        self.now = 0.0
        self._counts: Counter[object] = Counter()
        self._until: dict[object, float] = {}

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def dispatch(engine: QueueEngine, now: float) -> None:
                self.now = now
                original(engine, now)

            return dispatch

        patch.wrap(QueueEngine, "dispatch", make)

    def open(self, owner: object, nth: int) -> bool:
        """Whether the window that the ``nth`` call opens is open; each call counts."""
        self._counts[owner] += 1
        if self._counts[owner] == nth:
            self._until[owner] = self.now + WINDOW_S
        return self.now < self._until.get(owner, 0.0)


def _withheld(patch: Patch, nth: int) -> None:
    """Settlements are confirmed and wait in memory while the window is open."""
    windows = _Windows(patch)

    def make(original: Callable[[PendingLogFile], None]) -> Callable[[PendingLogFile], None]:
        def flush(self: PendingLogFile) -> None:
            if not self.has_unflushed or not windows.open(self, nth):
                original(self)

        return flush

    patch.wrap(PendingLogFile, "flush", make)


@mutant("queue-window-settlements", "settlements are kept in memory for 50 ms, once in the life of a process")
def window_settlements(patch: Patch) -> None:
    _withheld(patch, _NTH)


@mutant("queue-window-after-start", "the first settlements since the start are kept in memory for 50 ms")
def window_after_start(patch: Patch) -> None:
    _withheld(patch, 1)


@mutant("queue-window-confirms", "publishes are confirmed before the sync for 50 ms, once in the life of a process")
def window_confirms(patch: Patch) -> None:
    windows = _Windows(patch)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: QueuePartition, *args: object, **kwargs: object) -> Any:
            waits = self._confirm_when_synced
            self._confirm_when_synced = waits and not windows.open(self, _NTH // 4)
            try:
                return original(self, *args, **kwargs)
            finally:
                self._confirm_when_synced = waits

        return write

    patch.wrap(QueuePartition, "write", make)
