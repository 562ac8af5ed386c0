"""Work that must not be done in a turn: syncs that confirms wait for, and whatever else takes long."""

from __future__ import annotations

from typing import Protocol

from reference_broker.core.queues.confirms import Confirm
from reference_broker.core.queues.errors import QueueError
from reference_broker.core.queues.store import SyncTask


class JobPoint(Protocol):
    """Where a job reports to."""

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """The job ended; returns what to call now, and with what."""


class SyncJob:
    """One blocking task. Run it in any thread or charge it to a simulated disk, then tell the engine."""

    __slots__ = ("_task", "point")

    def __init__(self, point: JobPoint, task: SyncTask) -> None:
        self.point = point
        self._task = task

    def run(self) -> None:
        """Blocks until it is done. Raises :class:`OSError`."""
        self._task.run()

    def failure(self) -> OSError | None:
        """Run it, here and now; the error that it ended with, if it did."""
        try:
            self._task.run()
        except OSError as error:
            return error
        return None
