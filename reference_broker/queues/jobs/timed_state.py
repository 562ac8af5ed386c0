"""Keyed state that syncs by the engine's clock."""

from __future__ import annotations

from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.store import KeyedState, SyncTask


class TimedState:
    """A :class:`SyncedLog`: what a :class:`SyncPoint` needs of keyed state."""

    def __init__(self, state: KeyedState, agenda: Agenda) -> None:
        self._state = state
        self._agenda = agenda
        self._syncing_to = 0
        self.is_unverified = state.next_offset > 0
        """A broker that was killed may have left changes to the operating system: the first sync covers them."""

    @property
    def needs_sync(self) -> bool:
        if self.is_unverified and not self._syncing_to:
            return True
        return self._state.next_offset > max(self._state.durable_offset, self._syncing_to)

    def start_sync(self) -> SyncTask | None:
        end = self._state.next_offset
        task = self._state.start_sync(self._agenda.now)
        if task is not None:
            self._syncing_to = end
        return task

    def finish_sync(self, error: OSError | None) -> None:
        self._state.finish_sync(error)
        self.is_unverified = False
        self._syncing_to = 0

    def close(self) -> None:
        self._state.close()
