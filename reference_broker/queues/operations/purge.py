"""Purging a queue: what is ready, or waits for a retry, is taken away; what consumers hold stays theirs to settle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.jobs.confirms import JointConfirm
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import PendingEntry
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.queue.queue import DurableQueue

Purged = Callable[[int | QueueError], None]
"""Told how many messages were taken away, or what failed."""


def purge(queue: DurableQueue, agenda: Agenda, on_done: Purged) -> None:
    """Purge what is published so far; ``on_done`` is called once, when no restart can bring it back.

    What was purged is remembered by offset, and no log may lose offsets that it once told: so everything is synced
    first. Messages of open transactions, and those that wait for their time, stay.
    """
    queue.write_unwritten()

    def synced(error: QueueError | None) -> None:
        if error is not None:
            on_done(error)
        else:
            Purge(queue, agenda, on_done).begin()

    joint = JointConfirm(synced)
    if not queue.volatile:
        for partition in queue.partitions:
            part = joint.part()
            if partition.when_synced(part):
                agenda.awaited_syncs[partition] = None
            else:
                part(None)
    joint.close()


class Purge:
    """What is taken away of one queue, a portion a turn. Implements :class:`Wakeable`."""

    def __init__(self, queue: DurableQueue, agenda: Agenda, on_done: Purged) -> None:
        self.wake_at = float("inf")
        self._queue = queue
        self._agenda = agenda
        self._on_done = on_done
        self._place = queue.partitions[0]
        self._waiting: list[tuple[ConsumerGroup, PendingEntry]] = []
        """What waits for a retry; the first one last."""
        self._count = 0

    def begin(self) -> None:
        """What is ready now goes as soon as that is written down."""
        queue = self._queue
        ends = {
            partition.index: partition.visible_end
            if queue.volatile
            else min(partition.visible_end, partition.log.durable_offset)
            for partition in queue.partitions
        }
        queue.remember_purge(ends, partial(self._take_away, ends))

    def _take_away(self, ends: dict[int, int], error: QueueError | None) -> None:
        """No restart brings it back."""
        queue = self._queue
        if error is not None or self._place not in self._agenda.owners:
            text = "the queue was deleted while it was purged"
            self._on_done(error or QueueError(QueueErrorCode.UNKNOWN_QUEUE, text))
            return
        before = queue.contents.depth
        for group in queue.groups.values():
            for place in group.every_place:
                if place.index not in ends:
                    continue  # its partition was added meanwhile
                if place.waiting:
                    self._waiting += [(group, entry) for entry in place.pending.values() if _waits(entry)]
                group.counts.purged += queue.pass_over(group, place, ends[place.index])
        self._waiting.reverse()
        queue.limits.purge(ends)
        self._count = before - queue.contents.depth
        self.pass_time(self._agenda.now)

    def pass_time(self, now: float) -> None:
        """See :class:`Wakeable`."""
        queue, agenda = self._queue, self._agenda
        if self._place not in agenda.owners:
            text = "the queue was deleted while it was purged"
            self._on_done(QueueError(QueueErrorCode.UNKNOWN_QUEUE, text))
            return
        before = queue.contents.depth
        while self._waiting and agenda.room > 0:
            group, entry = self._waiting.pop()
            if _waits(entry) and queue.groups.get(group.group_id) is group:
                agenda.work += 1
                group.counts.purged += 1
                group.discard(entry, "purged")
        self._count += before - queue.contents.depth
        if self._waiting:
            agenda.wake(self, now)
        else:
            self._end()

    def _end(self) -> None:
        queue = self._queue

        def written(error: QueueError | None) -> None:
            self._on_done(self._count if error is None else error)

        joint = JointConfirm(written)
        for group in queue.groups.values():
            group.confirm_when_written(joint.part())
        queue.trim()
        joint.close()


def _waits(entry: PendingEntry) -> bool:
    return entry.state is EntryState.WAITING
