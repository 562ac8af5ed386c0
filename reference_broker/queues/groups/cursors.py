"""Where groups stand: named places in a queue, commits, and setting a group back or forth."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING

from assay.reference_broker.config import GroupStart
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST, LATEST, CursorKind, CursorPosition
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.contents import QueueContents
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import GroupPartition
    from assay.reference_broker.queues.jobs.confirms import Confirm
    from assay.reference_broker.queues.partitions.partition import QueuePartition


def resolve(position: CursorPosition, partition: QueuePartition, committed: int) -> int:
    """The offset of a named place in a partition; an offset or time beyond what is kept means the nearest.

    A time means the first message that is not earlier. Raises :class:`QueueError` (STORAGE_FAILED).
    """
    head, end = partition.head, partition.log.next_offset
    if position.kind is CursorKind.EARLIEST:
        return head
    if position.kind is CursorKind.LATEST:
        return end
    if position.kind is CursorKind.LAST:
        return max(head, end - 1)
    if position.kind is CursorKind.COMMITTED:
        return committed
    wanted = position.value
    if position.kind is CursorKind.TIME:
        try:
            wanted = partition.log.offset_at(position.value)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
    return min(max(wanted, head), end)


def starting_cursors(contents: QueueContents, position: CursorPosition | None) -> list[int]:
    """Where a new group begins, per partition.

    Messages that every group has settled may still be in the log. For a group that begins at the earliest message they
    count only as far as ``max_depth`` allows, or its arrival would close the queue to publishers.
    """
    if position is None or position.kind is CursorKind.COMMITTED:
        position = LATEST if contents.config.group.start is GroupStart.LATEST else EARLIEST
    starts = [resolve(position, partition, partition.head) for partition in contents.partitions]
    if not contents.has_lasting_groups or position.kind is not CursorKind.EARLIEST:
        return starts
    ends = [partition.log.next_offset for partition in contents.partitions]
    total = sum(ends) - sum(starts)
    if total <= contents.config.max_depth:
        return starts
    share = contents.config.max_depth / total
    kept = [end - int((end - start) * share) for start, end in zip(starts, ends, strict=True)]
    return [min(start, low) for start, low in zip(kept, contents.low_watermarks(), strict=True)]


def commit(group: ConsumerGroup, partition: int, offset: int, now: float, on_done: Confirm | None) -> int:
    """Settle what was delivered of a partition below an offset; returns how many messages that were.

    What is on its way to the dead-letter queue goes there nevertheless. Raises :class:`QueueError` (BAD_CURSOR).
    """
    place = group.places[partition]
    lanes = place.lanes or (place,)
    committed = group.low(partition)
    cursor = max(lane.cursor for lane in lanes)
    if not committed <= offset <= cursor:
        text = (
            f"offset {offset} of partition {partition} cannot be committed by group {group.group_id!r}: "
            f"{committed} is committed, and deliveries have come to {cursor}"
        )
        raise QueueError(QueueErrorCode.BAD_CURSOR, text)
    settled = [
        entry
        for lane in lanes
        for entry in takewhile(lambda entry: entry.offset < offset, lane.pending.values())
        if entry.state is not EntryState.DEAD_LETTERING
    ]
    if group.has_trace:
        group.trace_run(TraceKind.ACKED, settled, "commit")
    group.remove_many(settled)
    group.agenda.groups_to_serve[group] = None  # some of it may have waited, and held back others
    group.agenda.cost += len(settled) >> 3
    group.counts.acked += len(settled)
    group.confirm_when_written(on_done)
    return len(settled)


def reset(
    group: ConsumerGroup, position: CursorPosition, places: Iterable[GroupPartition], on_done: Confirm | None
) -> None:
    """Let a group go on from a named place. What is in flight or waits for a retry is stale: it cannot be settled.

    Raises :class:`QueueError` (STORAGE_FAILED), and then nothing is changed.
    """
    offsets = {place: resolve(position, place.partition, group.low(place.index)) for place in places}
    before = group.unsettled - group.cursor_total
    for place, offset in offsets.items():
        for lane in place.lanes or (place,):
            # In the log the cursor comes first: cut in between, what was in flight comes again, and none is lost.
            group.log.move_cursor(lane.number, offset)
            for entry in list(lane.pending.values()):
                group.forget(entry)
            lane.cursor = offset
            lane.waiting = ()
            group.moved.pop(lane, None)
    group.recount()
    more = group.unsettled - group.cursor_total - before
    if more > 0:
        group.counts.rewound += more
    else:
        group.counts.skipped -= more
    group.agenda.groups_to_serve[group] = None
    group.confirm_when_written(on_done)
