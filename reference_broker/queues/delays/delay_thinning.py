"""Frees what is done with amid the log of delayed messages, so that one long delay keeps nothing else on disk."""

from __future__ import annotations

from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.jobs.store import SparseLog, SyncTask, WantedOffsets

_INTERVAL_S = 1.0
"""What is stored is looked at that often."""


class DelayThinning(SyncPoint):
    """A job of its own beside the syncs of the log. Nobody waits for it."""

    def __init__(self, log: SparseLog, wanted: WantedOffsets, agenda: Agenda) -> None:
        super().__init__(log)
        self._log = log
        self._wanted = wanted
        self._agenda = agenda
        self._look_at = 0.0

    def ask(self, now: float) -> None:
        """See whether there is something to free, with the next jobs that are taken."""
        if now >= self._look_at and not self.is_syncing and self.failure is None:
            self._look_at = now + _INTERVAL_S
            self._agenda.awaited_syncs[self] = None

    def start_sync(self) -> SyncTask | None:
        """The job; None when there is nothing to do, or it is running."""
        if self.is_syncing:
            return None
        task = self._log.start_thinning(self._wanted)
        self.is_syncing = task is not None
        return task

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """It ended; where it freed something there may be more."""
        self.is_syncing = False
        self._log.finish_thinning(error)
        if error is None and self.failure is None:
            self._agenda.awaited_syncs[self] = None
        return []

    def close_log(self) -> None:
        """Whoever syncs the log closes it."""
