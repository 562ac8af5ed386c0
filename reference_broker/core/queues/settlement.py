"""Settling deliveries, by a consumer's word or by the clock."""

from __future__ import annotations

from collections.abc import Iterable

from reference_broker.core.queues.address import Verb, message_id_of, parse_message_id
from reference_broker.core.queues.confirms import Confirm
from reference_broker.core.queues.errors import QueueError, QueueErrorCode
from reference_broker.core.queues.group import ConsumerGroup
from reference_broker.core.queues.pending import EntryState, PendingEntry
from reference_broker.core.queues.retry import backoff_s
from reference_broker.trace.schema import TraceKind


def place_of(queue: str, message_id: str | None, partition: int | None, offset: int | None) -> tuple[int, int]:
    """Partition and offset that a settlement names, by message id or by both numbers. Raises :class:`QueueError`."""
    if message_id is not None:
        named, id_partition, id_offset = parse_message_id(message_id)
        if named != queue:
            text = f"the message id {message_id[:80]!r} is of another queue than {queue!r}"
            raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
        if (partition is not None and partition != id_partition) or (offset is not None and offset != id_offset):
            text = f"the message id {message_id[:80]!r} contradicts the partition or offset beside it"
            raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
        return id_partition, id_offset
    if partition is None or offset is None:
        text = "a settlement must name its delivery: message-id, or partition and offset"
        raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
    return partition, offset


def find_entry(
    groups: Iterable[ConsumerGroup], queue: str, partition: int, offset: int, consumer_id: str | None
) -> tuple[ConsumerGroup, PendingEntry]:
    """The one delivery at a place that the consumer holds (any consumer when None).

    Raises :class:`QueueError`: NOT_PENDING, AMBIGUOUS, or STORAGE_FAILED when its group cannot write.
    """
    found: tuple[ConsumerGroup, PendingEntry] | None = None
    for group in groups:
        entry = group.pending_entry(partition, offset)
        if entry is None or (consumer_id is not None and not _holds(entry, consumer_id)):
            continue
        if found is not None:
            text = (
                f"{message_id_of(queue, partition, offset)} is pending in several groups, {found[0].group_id!r} and "
                f"{group.group_id!r} among them: name one by group-id"
            )
            raise QueueError(QueueErrorCode.AMBIGUOUS, text)
        found = (group, entry)
    if found is None:
        text = (
            f"{message_id_of(queue, partition, offset)} is not pending for this consumer: it is settled, timed out, or "
            "was never delivered to it"
        )
        raise QueueError(QueueErrorCode.NOT_PENDING, text)
    group = found[0]
    if group.failure is not None:
        raise group.failure
    if group.agenda.now < group.stalled_until:
        text = f"the disk refused to write the state of group {group.group_id!r}; try again later"
        raise QueueError(QueueErrorCode.STORAGE_FAILED, text)
    return found


def _holds(entry: PendingEntry, consumer_id: str) -> bool:
    return entry.consumer is not None and entry.consumer.consumer_id == consumer_id


def settle(
    group: ConsumerGroup, entry: PendingEntry, verb: Verb, reason: str, now: float, on_done: Confirm | None
) -> None:
    """Apply a settlement to a delivered entry."""
    if verb is Verb.ACK:
        group.counts.acked += 1
        if group.tracer is not None:
            group.trace(TraceKind.ACKED, entry)
        group.remove(entry, on_done)
    elif verb is Verb.NACK:
        group.counts.nacked += 1
        group.trace(TraceKind.NACKED, entry)
        retry = group.config.retry
        wait_s = 0.0 if retry.nack_immediately else backoff_s(retry, entry.delivery_count)
        group.retry(entry, now + wait_s, now, "nacked")
        group.confirm_when_written(on_done)
    else:
        group.counts.rejected += 1
        group.trace(TraceKind.REJECTED, entry, reason)
        group.dead_letter(entry, reason, now, on_done)


def pass_time(group: ConsumerGroup, now: float) -> None:
    """Do what has become due: delivery timeouts, retries, dead letters to try again, a rest after a failed write."""
    for entry in group.due_timeouts(now):
        group.counts.timed_out += 1
        group.trace(TraceKind.TIMED_OUT, entry)
        group.retry(entry, now + backoff_s(group.config.retry, entry.delivery_count), now, "delivery timeout")
    for entry, reason in group.due_dead_letters(now):
        if entry.state is EntryState.DEAD_LETTERING:
            group.owner.dead_letter(group, entry, reason, now, None)
    group.rebalance.pass_time(now)
    if group.stalled_until <= now:
        group.agenda.groups_to_write[group] = None
        group.agenda.groups_to_serve[group] = None
    group.rearm(now)
