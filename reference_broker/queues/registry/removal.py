"""Queues that go: consumers are told, whoever waits is answered, then the storage is removed.

At once the queue is gone for everybody. Its logs are closed when no sync of them is running, and a job of its own takes
the files away. Until that is done there is no new queue of that name, so one that is created later starts empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.background_job import BackgroundJob
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.pending import Consumer
    from assay.reference_broker.queues.queue.queue import DurableQueue

_AGENDA_NAMES: Final = ("agenda", "_agenda")


def check_removable(queue: DurableQueue) -> None:
    """A transaction that wrote to the queue, or acknowledged in it, must end first.

    Raises :class:`QueueError` (NOT_ALLOWED).
    """
    written = any(
        partition.produced is not None
        and partition.produced.stable_end(partition.log.next_offset) < partition.log.next_offset
        for partition in queue.partitions
    )
    if written or any(group.is_committing for group in queue.groups.values()):
        text = f"a transaction is open in the queue {queue.name[:80]!r}: try again when it has ended"
        raise QueueError(QueueErrorCode.NOT_ALLOWED, text)


def leave_to_nobody(queue: DurableQueue, agenda: Agenda) -> None:
    """Whatever the queue's parts have still to do goes to an agenda that nobody looks at."""
    store, points = queue.delays.store, queue.points
    parts: list[object] = [queue, queue.limits, queue.undelivered, queue.delays, queue.departures, *points]
    if store is not None:
        parts.append(store)
    agenda.forget_all(points, parts)
    nowhere = Agenda()
    nowhere.now = agenda.now
    for part in parts:
        for name in _AGENDA_NAMES:
            if hasattr(part, name):
                setattr(part, name, nowhere)


class Removal:
    """Implements :class:`assay.reference_broker.queues.jobs.background_job.JobPoint`: the end of one queue."""

    def __init__(self, queue: DurableQueue, on_done: Confirm | None) -> None:
        """``on_done`` is called once nothing of it is left, or with the error."""
        self.queue = queue
        self.on_removed: Callable[[], None] = _nothing
        """Called as soon as the files are gone, before ``on_done``."""
        self.waiting: list[Confirm] = [] if on_done is None else [on_done]
        """Who is told of the end."""
        self.failure: QueueError | None = None
        """Why there is none, before a restart or another try."""
        self.started = False
        self._points: tuple[SyncPoint, ...] = queue.points
        self.consumers: list[Consumer] = [
            consumer for group in queue.groups.values() for consumer in group.consumers.values()
        ]

    def cut_off(self, agenda: Agenda) -> None:
        """Nobody finds the queue any more; whoever waits for something of it is told."""
        queue = self.queue
        gone = QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"the queue {queue.name[:80]!r} was deleted")
        for consumer in self.consumers:
            consumer.active = False
        for group in queue.groups.values():
            if group in agenda.groups_to_write:
                # So that nobody waits for a write that never comes.
                group.write(agenda.now)
            group.consumers.clear()
        leave_to_nobody(queue, agenda)
        for point in self._points:
            point.failure = point.failure or gone
            point.abandon(point.failure)

    @property
    def is_ready(self) -> bool:
        """Nothing is running in its logs, and nothing was begun."""
        return not self.started and not any(point.is_syncing for point in self._points)

    def start(self) -> BackgroundJob:
        """Close the logs; the job removes the files."""
        self.started = True
        for point in self._points:
            point.close_log()
        return BackgroundJob(self, self.queue.removal())

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """See :class:`JobPoint`."""
        if error is None:
            self.on_removed()
            self._take_apart()
        else:
            text = (
                f"the files of {self.queue.name[:80]!r} cannot be removed: {error.strerror or error}; "
                "delete it again once the disk is repaired"
            )
            self.failure = QueueError(QueueErrorCode.STORAGE_FAILED, text)
        told, self.waiting = self.waiting, []
        return [(each, self.failure) for each in told]

    def when_done(self, confirm: Confirm) -> None:
        """Call it once nothing is left, or with the error. One that failed is tried again for whoever asks."""
        self.waiting.append(confirm)
        if self.failure is not None:
            self.failure, self.started, self._points = None, False, ()

    def _take_apart(self) -> None:
        """Nobody asks the queue anything any more: without cycles it is gone at once, however much it held."""
        for group in self.queue.groups.values():
            for place in group.every_place:
                place.pending.clear()
            vars(group).clear()
        for part in (
            self.queue,
            self.queue.contents,
            self.queue.limits,
            self.queue.undelivered,
            self.queue.delays,
            *self.queue.partitions,
        ):
            getattr(part, "__dict__", {}).clear()
        self._points = ()
        self.consumers.clear()
        self.on_removed = _nothing


def _nothing() -> None:
    """What is called unless somebody asked for more."""
