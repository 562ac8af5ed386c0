"""Taking deliveries over from a consumer that has had them for long (work stealing)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.groups.retry import exhausted_reason
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import message_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import Consumer, PendingEntry


def claim(
    group: ConsumerGroup,
    dispatcher: Dispatcher,
    consumer: Consumer,
    *,
    place: tuple[int, int] | None,
    min_idle_s: float,
    limit: int,
    now: float,
) -> int:
    """Deliver to ``consumer`` what anybody of the group, itself included, has held for ``min_idle_s``.

    ``place``: the one delivery meant, by partition and offset; None = up to ``limit``, by partition and offset. Each
    counts as one more delivery; who held it cannot settle it any more. One that has used up its deliveries goes to
    the dead-letter queue instead. Returns how many were delivered. Raises :class:`QueueError`: NOT_PENDING, NOT_IDLE,
    LIMIT when the consumer has no room, STORAGE_FAILED.
    """
    if place is None:
        wanted = list(islice(idle_entries(group, now - min_idle_s), limit))
        if not wanted:
            text = f"no consumer of group {group.group_id!r} has held a delivery for {min_idle_s:g} s"
            raise QueueError(QueueErrorCode.NOT_PENDING, text)
    else:
        wanted = [_named(group, *place, now - min_idle_s)]
    taken = 0
    for entry in wanted:
        if not _has_room(consumer, entry):
            break
        # A delivery may have been settled within the delivery call of another.
        if entry.state is EntryState.DELIVERED and _take(group, dispatcher, consumer, entry, now):
            taken += 1
    if not taken:
        if not _has_room(consumer, wanted[0]):
            raise QueueError(QueueErrorCode.LIMIT, f"{consumer.consumer_id!r} has no room for more deliveries")
        raise QueueError(QueueErrorCode.NOT_PENDING, "what was to be claimed has used up its deliveries or is gone")
    return taken


def idle_entries(group: ConsumerGroup, since: float) -> Iterator[PendingEntry]:
    """Deliveries that nobody settled since ``since``, which may be claimed."""
    for place in group.every_place:
        for entry in place.pending.values():
            if entry.state is EntryState.DELIVERED and entry.claimed_at <= since:
                yield entry


def _named(group: ConsumerGroup, partition: int, offset: int, since: float) -> PendingEntry:
    entry = group.pending_entry(partition, offset)
    message_id = message_id_of(group.config.name, partition, offset)
    if entry is None:
        text = f"{message_id} is with no consumer of group {group.group_id!r}: it is settled, or will come by itself"
        raise QueueError(QueueErrorCode.NOT_PENDING, text)
    if entry.claimed_at > since:
        raise QueueError(QueueErrorCode.NOT_IDLE, f"{message_id} was delivered more recently than the claim asks for")
    return entry


def _has_room(consumer: Consumer, entry: PendingEntry) -> bool:
    """What it holds itself takes no more room than before."""
    has_room = consumer.room > 0 or (entry.consumer is consumer and consumer.credit > 0)
    return consumer.active and not consumer.blocked and has_room


def _take(group: ConsumerGroup, dispatcher: Dispatcher, consumer: Consumer, entry: PendingEntry, now: float) -> bool:
    reason = exhausted_reason(group.config.retry, entry.delivery_count, now - entry.enqueued_at)
    if reason is not None and not group.keeps_exhausted:
        group.dead_letter(entry, reason, now, None)
        return False
    try:
        return dispatcher.take_over(entry, consumer, now)
    except LogError as error:
        raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
