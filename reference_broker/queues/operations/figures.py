"""The figures of a queue and its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from assay.reference_broker.queues.groups.delivery import GroupStats, QueueStats
from assay.reference_broker.queues.groups.group_counts import GroupCounts

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.queue.queue import DurableQueue

_COUNTED: Final = [name for name in GroupStats.__struct_fields__ if name in vars(GroupCounts())]


def queue_stats(queue: DurableQueue, dead_letters: int) -> QueueStats:
    """``dead_letters``: depth of its dead-letter queue."""
    groups = tuple(group_stats(queue, group) for group in queue.contents.named_groups.values())
    ready = max(map(queue.contents.ready_of, queue.groups.values()), default=queue.contents.staying)
    return QueueStats(
        queue=queue.name,
        partitions=len(queue.partitions),
        depth=queue.contents.depth,
        ready=ready,
        in_flight=sum(group.in_flight for group in groups),
        dead_letters=dead_letters,
        consumers=sum(group.consumers for group in groups),
        stored_bytes=sum(partition.log.stored_bytes for partition in queue.partitions),
        held_bytes=queue.limits.held_bytes,
        dropped=queue.limits.dropped,
        expired=queue.limits.expired,
        purged=queue.limits.purged,
        enqueued=queue.enqueued,
        aborted=queue.aborted,
        refused=queue.contents.refused,
        failed=is_failed(queue),
        groups=groups,
        delayed=len(queue.delays),
        captured=queue.captures.captured,
        capture_failures=queue.captures.failed,
        capture_dropped=queue.captures.dropped,
        delays=queue.delays.stats(),
        storage_notes=queue.note_count,
    )


def is_failed(queue: DurableQueue) -> bool:
    """A write or sync failed for good."""
    return (
        queue.delays.failed
        or any(partition.failure is not None for partition in queue.partitions)
        or any(group.failure is not None for group in queue.groups.values())
    )


def group_stats(queue: DurableQueue, group: ConsumerGroup) -> GroupStats:
    """One group of the queue."""
    untried = group.untried_count
    return GroupStats(
        group=group.group_id,
        consumers=len(group.consumers),
        lag=queue.contents.end_total - group.cursor_total + untried,
        in_flight=group.delivered_count,
        retrying=group.waiting_count - untried,
        dead_lettering=group.moving_count,
        ack_floors=tuple(map(group.low, range(len(group.places)))),
        generation=group.generation,
        **{name: getattr(group.counts, name) for name in _COUNTED},
    )
