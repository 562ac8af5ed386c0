"""Purging a queue: what is ready, or waits for a retry, is taken away; what consumers hold stays theirs to settle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reference_broker.core.queues.confirms import JointConfirm
from reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode
from reference_broker.core.queues.pending import EntryState

if TYPE_CHECKING:
    from reference_broker.core.queues.agenda import Agenda
    from reference_broker.core.queues.group import ConsumerGroup
    from reference_broker.core.queues.queue import DurableQueue

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
            _purge_synced(queue, on_done)

    joint = JointConfirm(synced)
    if not queue.volatile:
        for partition in queue.partitions:
            if partition.log.needs_sync or partition.is_syncing:
                partition.waiting.append(joint.part())
                agenda.awaited_syncs[partition] = None
    joint.close()


def _purge_synced(queue: DurableQueue, on_done: Purged) -> None:
    ends = {
        partition.index: partition.visible_end
        if queue.volatile
        else min(partition.visible_end, partition.log.durable_offset)
        for partition in queue.partitions
    }
    before = queue.depth
    try:
        queue.remember_purge(ends)
    except LogError as error:
        on_done(QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))
        return

    def written(error: QueueError | None) -> None:
        on_done(count if error is None else error)

    joint = JointConfirm(written)
    for group in queue.groups.values():
        _purge_group(queue, group, ends, joint)
    queue.limits.purge(ends)
    count = before - queue.depth
    queue.trim()
    joint.close()


def _purge_group(queue: DurableQueue, group: ConsumerGroup, ends: dict[int, int], joint: JointConfirm) -> None:
    for place in group.every_place:
        for entry in list(place.pending.values()):
            if entry.state is EntryState.WAITING:
                group.counts.purged += 1
                group.discard(entry, "purged")
        group.counts.purged += queue.limits.pass_purged(group, place, ends[place.index])
    group.confirm_when_written(joint.part())
