"""Settling deliveries, one or many, by a consumer's word or by the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from assay.reference_broker.queues.delivery.settle_request import Outcome, SettleRequest, format_ranges
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import DELIVERED, Consumer, EntryState, PendingEntry
from assay.reference_broker.queues.groups.retry import backoff_s
from assay.reference_broker.queues.jobs.confirms import Confirm, JointConfirm, ignore
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import message_id_of, parse_message_id, parse_receipt
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.routing.properties import MAX_ANNOTATIONS_BYTES, decode_table, encode_table, merged
from assay.reference_broker.trace.schema import TraceKind

_ACCEPT = Outcome.ACCEPT
_GIVES_BACK = frozenset((Outcome.FAIL, Outcome.RELEASE, Outcome.REJECT))
_NONE_PENDING: dict[int, PendingEntry] = {}
_NAMES_NOTHING = "a settlement must name its delivery: message-id, receipt, or partition and offset"
REJECTED = "rejected by consumer"
"""Reason of a rejection that gives none."""


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
        raise QueueError(QueueErrorCode.BAD_ADDRESS, _NAMES_NOTHING)
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
        if entry is None or (consumer_id is not None and not holds(entry, consumer_id)):
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
    _writable(*found)
    return found


def _writable(group: ConsumerGroup, entry: PendingEntry) -> PendingEntry:
    """Raises :class:`QueueError` (STORAGE_FAILED) when the group cannot write what happens to its entries."""
    if group.failure is not None:
        raise group.failure
    if group.agenda.now < group.stalled_until:
        text = f"the disk refused to write the state of group {group.group_id!r}; try again later"
        raise QueueError(QueueErrorCode.STORAGE_FAILED, text)
    return entry


def held_entries(group: ConsumerGroup, places: Iterable[tuple[int, int]], consumer_id: str) -> list[PendingEntry]:
    """The deliveries at these places, up to the first that the consumer does not hold, or that is named again."""
    found: dict[PendingEntry, None] = {}
    holder: Consumer | None = None
    index, pending = -1, _NONE_PENDING
    for partition, offset in places:
        # Mostly it stands where the one before it does, in one of its partition's lanes perhaps.
        entry = pending.get(offset) if partition == index else None
        if entry is None:
            entry = group.pending_entry(partition, offset)
            if entry is None:
                break
            index, pending = partition, entry.place.pending
        if entry.state is not DELIVERED or entry in found:
            break
        if entry.consumer is not holder or holder is None:
            if not holds(entry, consumer_id):
                break
            holder = entry.consumer
        found[entry] = None
    return list(found)


def held_range(group: ConsumerGroup, partition: int, first: int, end: int, consumer_id: str) -> list[PendingEntry]:
    """What :func:`find_entry` finds at offsets in a row, up to the first that it must judge."""
    found: list[PendingEntry] = []
    if partition >= len(group.places) or group.failure is not None or group.agenda.now < group.stalled_until:
        return found
    pending = group.places[partition].pending
    holder: Consumer | None = None
    for offset in range(first, end):
        entry = pending.get(offset)
        if entry is None or entry.state is not DELIVERED:
            break
        if entry.consumer is not holder or holder is None:
            if not holds(entry, consumer_id):
                break
            holder = entry.consumer
        found.append(entry)
    return found


def holds(entry: PendingEntry, consumer_id: str) -> bool:
    """Whether this consumer has the entry now, and so may settle it."""
    holder = entry.consumer
    # One that left holds nothing any more, even if it has not all been taken back yet.
    return holder is not None and holder.consumer_id == consumer_id and holder.active


def find_by_receipt(groups: Iterable[ConsumerGroup], queue: str, receipt: str) -> tuple[ConsumerGroup, PendingEntry]:
    """The delivery that a receipt was given with, whoever holds it.

    Raises :class:`QueueError`: BAD_ADDRESS, NOT_PENDING, STALE_RECEIPT, or STORAGE_FAILED.
    """
    named, partition, offset, delivery_count, nonce = parse_receipt(receipt)
    if named != queue:
        raise QueueError(QueueErrorCode.BAD_ADDRESS, f"the receipt {receipt[:80]!r} is of another queue than {queue!r}")
    stale = False
    for group in groups:
        entry = group.unsettled_entry(partition, offset)
        if entry is None:
            continue
        if entry.nonce == nonce and entry.delivery_count == delivery_count and entry.state is DELIVERED:
            return group, _writable(group, entry)
        stale = True
    if stale:
        text = f"the receipt {receipt[:80]!r} is of an earlier delivery, which timed out or was given back"
        raise QueueError(QueueErrorCode.STALE_RECEIPT, text)
    text = f"nothing is pending under the receipt {receipt[:80]!r}: it is settled, or was never given"
    raise QueueError(QueueErrorCode.NOT_PENDING, text)


_Found = dict[PendingEntry, ConsumerGroup]
Hold = Callable[[TransactionKey, Mapping[PendingEntry, ConsumerGroup]], None]
"""Acknowledges deliveries in a transaction."""
_Missing = dict[int, list[int]]
"""Partition -> offsets."""
_GONE = frozenset((QueueErrorCode.NOT_PENDING, QueueErrorCode.STALE_RECEIPT))


def settle_request(
    groups: Sequence[ConsumerGroup],
    queue: str,
    request: SettleRequest,
    consumer_id: str | None,
    now: float,
    on_done: Confirm | None,
    hold: Hold,
) -> None:
    """Settle all deliveries that a request names, or acknowledge them in a transaction by ``hold``.

    What is not pending is reported and keeps nothing else from being settled: ``on_done`` then gets NOT_PENDING with
    ``not-pending`` among its details. Raises :class:`QueueError`, with nothing done, when nothing at all is pending and
    for every other problem.
    """
    ids = request.message_ids
    special = request.annotations or request.delay_s is not None or request.extend_s is not None
    if len(ids) == 1 and not special and request.within is None:
        # What nearly every settlement is.
        offset = request.ranges[0][0] if request.ranges else None
        partition, at = place_of(queue, ids[0], request.partition, offset)
        group, entry = find_entry(groups, queue, partition, at, consumer_id)
        settle(group, entry, request.outcome, request.reason or REJECTED, now, on_done)
        return
    if not ids and not request.receipts and not request.ranges:
        raise QueueError(QueueErrorCode.BAD_ADDRESS, _NAMES_NOTHING)
    found: _Found = {}
    missing: _Missing = {}
    problem: QueueError | None = None
    for receipt in request.receipts:
        try:
            group, entry = find_by_receipt(groups, queue, receipt)
        except QueueError as error:
            if error.code not in _GONE:
                raise
            problem = error.bare()
            _, partition, offset, _, _ = parse_receipt(receipt)
            missing.setdefault(partition, []).append(offset)
        else:
            found[entry] = group
    first_group = groups[0] if groups else None
    if consumer_id is not None and len(groups) > 1:
        groups = [group for group in groups if _may_hold(group, consumer_id)]
    alone = groups[0] if len(groups) == 1 and consumer_id is not None else None
    for partition, first, end in named_ranges(queue, request):
        held = 0
        if end - first > 8 and first_group is not None:
            first_group.agenda.cost += (end - first) >> 3
        pending = _pending_of(alone, partition) if groups else {}
        if alone is not None and consumer_id is not None and end - first > 1:
            entries = held_range(alone, partition, first, end, consumer_id)
            held = len(entries)
            found.update(dict.fromkeys(entries, alone))
        for offset in range(first + held, end):
            if pending is not None and problem is not None and offset not in pending:
                # What is to be said of one that is not there is known.
                missing.setdefault(partition, []).append(offset)
                continue
            try:
                group, entry = find_entry(groups, queue, partition, offset, consumer_id)
            except QueueError as error:
                if error.code not in _GONE:
                    raise
                problem = error.bare()
                missing.setdefault(partition, []).append(offset)
            else:
                found[entry] = group
    if not found and problem is not None:
        if sum(map(len, missing.values())) == 1:
            raise problem
        raise _not_pending(queue, 0, missing)
    notes = _notes(found, request) if request.annotations else {}
    joint = JointConfirm(on_done or ignore)
    for entry, noted in notes.items():
        found[entry].annotate(entry, noted)
    if request.within is None:
        apply(found, request, now, joint)
    else:
        hold(request.within, found)
    if missing:
        joint.part()(_not_pending(queue, len(found), missing))
    joint.close()


def _notes(found: _Found, request: SettleRequest) -> dict[PendingEntry, bytes]:
    """What is noted on each from now on. Raises :class:`QueueError` (BAD_OPTION)."""
    if request.outcome not in _GIVES_BACK:
        text = f"nothing can be noted on what is settled by {request.outcome.value}"
        raise QueueError(QueueErrorCode.BAD_OPTION, text)
    notes: dict[PendingEntry, bytes] = {}
    known: dict[bytes, bytes] = {}
    for entry in found:
        after = known.get(entry.annotations)
        if after is None:
            after = encode_table(merged(decode_table(entry.annotations), request.annotations))
            if len(after) > MAX_ANNOTATIONS_BYTES:
                text = f"with what was noted before these are {len(after)} bytes; the limit is {MAX_ANNOTATIONS_BYTES}"
                raise QueueError(QueueErrorCode.BAD_OPTION, text)
            known[entry.annotations] = after
        notes[entry] = after
    return notes


def _may_hold(group: ConsumerGroup, consumer_id: str) -> bool:
    consumer = group.consumers.get(consumer_id)
    return consumer is not None and consumer.in_flight > 0


def _pending_of(group: ConsumerGroup | None, partition: int) -> dict[int, PendingEntry] | None:
    """All entries that a group has in a partition, where they are in one place."""
    if group is None or partition >= len(group.places) or group.places[partition].lanes is not None:
        return None
    return group.places[partition].pending


def named_ranges(queue: str, request: SettleRequest) -> Iterator[tuple[int, int, int]]:
    """Partition, first offset, and the end of each range that is named by message id or offsets."""
    if request.message_ids:
        offset = request.ranges[0][0] if request.ranges else None
        for message_id in request.message_ids:
            partition, at = place_of(queue, message_id, request.partition, offset)
            yield partition, at, at + 1
    elif not request.receipts:
        for first, end in request.ranges:
            partition, _ = place_of(queue, None, request.partition, first)
            yield partition, first, end


def _not_pending(queue: str, settled: int, missing: _Missing) -> QueueError:
    details = [("settled", str(settled))]
    for partition, offsets in missing.items():
        details.append(("not-pending", f"{queue}:{partition}:{format_ranges(sorted(set(offsets)))}"))
    gone = ", ".join(value for _, value in details[1:])
    text = f"{settled} settled; not pending for this consumer: {gone}"
    return QueueError(QueueErrorCode.NOT_PENDING, text, tuple(details))


def apply(found: _Found, request: SettleRequest, now: float, joint: JointConfirm) -> None:
    """Do to each entry what the request says, once all were found."""
    outcome = request.outcome
    if outcome is _ACCEPT and len(found) > 1:
        by_group: dict[ConsumerGroup, list[PendingEntry]] = {}
        for entry, group in found.items():
            by_group.setdefault(group, []).append(entry)
        for group, entries in by_group.items():
            ack_many(group, entries, joint.part())
        return
    for entry, group in found.items():
        if outcome is Outcome.EXTEND:
            extend(group, entry, request.extend_s, now)
        elif outcome is Outcome.FAIL:
            nack(group, entry, now, joint.part(), request.delay_s)
        else:
            settle(group, entry, outcome, request.reason or REJECTED, now, joint.part())


def ack_many(group: ConsumerGroup, entries: Sequence[PendingEntry], on_done: Confirm) -> None:
    """Acknowledge deliveries of one group. One log in one order: what covers the last of them covers all."""
    group.counts.acked += len(entries)
    if group.has_trace:
        group.trace_run(TraceKind.ACKED, entries)
    group.remove_many(entries)
    group.confirm_when_written(on_done)


def extend(group: ConsumerGroup, entry: PendingEntry, extend_s: float | None, now: float) -> None:
    """Keep a delivery until ``extend_s`` from now, which may also be earlier than before.

    The queue's delivery timeout when it is None. A queue whose deliveries never time out keeps it that way.
    """
    timeout_s = group.config.delivery_timeout_s
    if timeout_s <= 0:
        return
    group.extend(entry, now + (timeout_s if extend_s is None else extend_s))


def nack(
    group: ConsumerGroup, entry: PendingEntry, now: float, on_done: Confirm | None, delay_s: float | None = None
) -> None:
    """Give a delivery back; it is redelivered after ``delay_s``, or when the queue's retry policy says."""
    group.counts.nacked += 1
    group.trace(TraceKind.NACKED, entry)
    retry = group.config.retry
    if delay_s is None:
        delay_s = 0.0 if retry.nack_immediately else backoff_s(retry, entry.delivery_count)
    group.retry(entry, now + delay_s, now, "nacked", on_done)


def settle(
    group: ConsumerGroup, entry: PendingEntry, outcome: Outcome, reason: str, now: float, on_done: Confirm | None
) -> None:
    """Apply a settlement to a delivered entry."""
    if outcome is _ACCEPT:
        group.counts.acked += 1
        if group.has_trace and (group.tracer is not None or entry.offset in (entry.place.partition.traced or ())):
            group.trace(TraceKind.ACKED, entry)
        group.remove(entry, on_done)
    elif outcome is Outcome.FAIL:
        nack(group, entry, now, on_done)
    elif outcome is Outcome.RELEASE:
        group.counts.released += 1
        group.give_back(entry, now, on_done)
    elif outcome is Outcome.EXTEND:
        extend(group, entry, None, now)
        if on_done is not None:
            on_done(None)
    else:
        group.counts.rejected += 1
        group.trace(TraceKind.REJECTED, entry, reason)
        group.dead_letter(entry, reason, now, on_done)


def pass_time(group: ConsumerGroup, now: float) -> None:
    """Do what has become due: delivery timeouts, retries, dead letters to try again, a rest after a failed write."""
    slow = group.slow
    if slow is not None:
        slow.is_taking_back = True
    for entry in group.due_timeouts(now):
        group.counts.timed_out += 1
        group.trace(TraceKind.TIMED_OUT, entry)
        group.retry(entry, now + backoff_s(group.config.retry, entry.delivery_count), now, "delivery timeout")
    if slow is not None:
        slow.is_taking_back = False
        slow.pass_time(now)
    for entry, reason in group.due_dead_letters(now):
        if entry.state is EntryState.DEAD_LETTERING:
            group.owner.dead_letter(group, entry, reason, now, None)
    group.rebalance.pass_time(now)
    group.membership.pass_time(now)
    if group.stalled_until <= now:
        group.agenda.groups_to_write[group] = None
        group.agenda.groups_to_serve[group] = None
    group.rearm(now)
