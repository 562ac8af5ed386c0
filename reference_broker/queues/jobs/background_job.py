"""Work that must not be done in a turn: syncs that confirms wait for, and whatever else takes long."""

from __future__ import annotations

from typing import Protocol

from assay.reference_broker.queues.jobs.confirms import Confirm, run_now
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.jobs.store import SyncTask


class JobPoint(Protocol):
    """Where a job reports to."""

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """The job ended; returns what to call now, and with what."""


class BackgroundJob:
    """One blocking task. Run it in any thread or charge it to a simulated disk, then tell the engine."""

    __slots__ = ("_task", "point", "retry_at", "tries")

    def __init__(self, point: JobPoint, task: SyncTask) -> None:
        self.point = point
        self.tries = 0
        """How often the system had no means for it."""
        self.retry_at = 0.0
        """When it is run again."""
        self._task = task

    @property
    def runs_again(self) -> bool:
        """It may be run again as it is when the system had no means for it."""
        return bool(getattr(self._task, "runs_again", True))

    @property
    def place(self) -> str:
        """The file or folder that it is about, where the task tells."""
        return str(getattr(self._task, "place", ""))

    def run(self) -> None:
        """Blocks until it is done. Raises :class:`OSError`."""
        self._task.run()

    def failure(self) -> OSError | None:
        """Run it, here and now; the error that it ended with, if it did."""
        return run_now(self._task)
