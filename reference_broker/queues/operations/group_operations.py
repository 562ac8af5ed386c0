"""What can be done with the groups of the engine's queues, beside consuming and settling single deliveries."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.queues.delivery import claims, settlement
from assay.reference_broker.queues.groups import cursors
from assay.reference_broker.queues.groups.group_details import (
    GroupDetails,
    PendingDetails,
    details_of,
    pending_details,
)
from assay.reference_broker.queues.groups.subscribe_options import CursorPosition
from assay.reference_broker.queues.jobs.confirms import ignore
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import MARK_GROUP

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import AssignmentEvent, Consumer
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.jobs.confirms import Confirm
    from assay.reference_broker.queues.queue.queue import DurableQueue

MAX_LISTED: Final = 1_000
"""Pending messages in one call."""
MAX_CLAIMS: Final = 1_000
DEFAULT_CLAIMS: Final = 100


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer wants to take over."""

    place: tuple[int, int] | None = None
    """Partition and offset; None = the first ``limit`` that are idle for long enough."""
    min_idle_s: float = 0.0
    limit: int = DEFAULT_CLAIMS


class GroupOperations:
    """Every operation raises :class:`QueueError` when it refuses, and then never calls ``on_done``."""

    def __init__(self, queues: dict[str, DurableQueue], agenda: Agenda, check_open: Callable[[], None]) -> None:
        """``check_open`` raises when the engine is closed."""
        self._queues = queues
        self._agenda = agenda
        self._check_open = check_open

    def _queue(self, name: str) -> DurableQueue:
        found = self._queues.get(name)
        if found is None:
            raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"there is no queue {name[:80]!r}")
        return found

    def _find(self, queue: str, group: str) -> tuple[DurableQueue, ConsumerGroup]:
        """Raises :class:`QueueError`: CLOSED, UNKNOWN_QUEUE, UNKNOWN_GROUP."""
        self._check_open()
        found = self._queue(queue)
        named = None if group == MARK_GROUP else found.groups.get(group)
        if named is None:
            raise QueueError(QueueErrorCode.UNKNOWN_GROUP, f"the queue {queue!r} has no group {group[:80]!r}")
        return found, named

    def _find_writable(self, queue: str, group: str, now: float) -> tuple[DurableQueue, ConsumerGroup]:
        """Raises :class:`QueueError`, also STORAGE_FAILED while the group cannot write what is done."""
        self._agenda.now = now
        found, named = self._find(queue, group)
        if named.failure is not None:
            raise named.failure
        if now < named.stalled_until:
            text = f"the disk refused to write the state of group {group!r}; try again later"
            raise QueueError(QueueErrorCode.STORAGE_FAILED, text)
        return found, named

    def only_group_of(self, queue: str, consumer_id: str | None) -> str:
        """The group that a consumer of one group of a queue means. Raises :class:`QueueError`."""
        found = self._queues.get(queue)
        groups = [] if found is None else [name for name, one in found.groups.items() if consumer_id in one.consumers]
        if len(groups) == 1:
            return groups[0]
        if groups:
            raise QueueError(QueueErrorCode.AMBIGUOUS, "it consumes in several groups: name one by group-id")
        raise QueueError(QueueErrorCode.UNKNOWN_MEMBER, f"it consumes from no group of the queue {queue[:80]!r}")

    def partition_count(self, queue: str) -> int:
        """0 where there is no such queue."""
        found = self._queues.get(queue)
        return 0 if found is None else len(found.partitions)

    # -- members -------------------------------------------------------------------------------------------------

    def heartbeat(self, queue: str, group: str, consumer_id: str, generation: int, now: float) -> AssignmentEvent:
        """A member that is bound to no connection is alive; returns its assignment.

        Raises :class:`QueueError`: UNKNOWN_MEMBER when it has to join again, STALE_GENERATION when its assignment has
        changed: it is told the new one by its ``notify``.
        """
        self._agenda.now = now
        _, named = self._find(queue, group)
        consumer = named.membership.heartbeat(consumer_id, generation, now)
        return named.rebalance.event(consumer)

    def keep_alive(self, queue: str, group: str, consumer_id: str, now: float) -> None:
        """As :meth:`heartbeat`, whatever generation the member knows. Raises :class:`QueueError` (UNKNOWN_MEMBER)."""
        self._agenda.now = now
        _, named = self._find(queue, group)
        named.membership.heartbeat(consumer_id, named.generation, now)

    def generation(self, queue: str, group: str) -> int:
        """Assignments made so far. Raises :class:`QueueError` (UNKNOWN_QUEUE, UNKNOWN_GROUP)."""
        return self._find(queue, group)[1].generation

    def check_generation(self, queue: str, group: str, consumer_id: str, generation: int) -> None:
        """Refuse an operation of a consumer that names an old generation, or that is none. Raises QueueError."""
        self._find(queue, group)[1].membership.check(consumer_id, generation)

    def received(self, consumer: Consumer, partition: int, offset: int, now: float) -> None:
        """A consumer with automatic commit has a delivery; without, nothing happens."""
        queue = self._queues.get(consumer.queue)
        if consumer.received is not None and consumer.active and queue is not None:
            self._agenda.now = now
            queue.groups[consumer.group].membership.received(consumer, partition, offset, now)

    # -- what is pending -----------------------------------------------------------------------------------------

    def pending(self, queue: str, group: str, *, limit: int, after: tuple[int, int] = (-1, -1)) -> list[PendingDetails]:
        """Messages that a group has got and not settled, by partition and offset, from behind a place on.

        Raises :class:`QueueError` (UNKNOWN_QUEUE, UNKNOWN_GROUP, LIMIT).
        """
        if not 0 <= limit <= MAX_LISTED:
            raise QueueError(QueueErrorCode.LIMIT, f"0 to {MAX_LISTED} are listed in one call, not {limit}")
        _, named = self._find(queue, group)
        entries = (
            entry
            for place in named.places[max(0, after[0]) :]
            for lane in place.lanes or (place,)
            for entry in lane.pending.values()
            if (place.index, entry.offset) > after
        )
        if named.scheduler is not None:
            # The lanes of a partition stand behind each other.
            chosen = nsmallest(limit, entries, key=lambda entry: (entry.place.index, entry.offset))
        else:
            chosen = list(islice(entries, limit))
        return [pending_details(queue, entry, self._agenda.now) for entry in chosen]

    def entry(self, queue: str, group: str, partition: int, offset: int) -> PendingDetails | None:
        """One of them; None when it is settled. Raises :class:`QueueError`."""
        found = self._find(queue, group)[1].unsettled_entry(partition, offset)
        return None if found is None else pending_details(queue, found, self._agenda.now)

    def by_receipt(self, queue: str, receipt: str) -> tuple[str, PendingDetails]:
        """The group and the delivery that a receipt was given with.

        Raises :class:`QueueError` (BAD_ADDRESS, UNKNOWN_QUEUE, NOT_PENDING, STALE_RECEIPT, STORAGE_FAILED).
        """
        self._check_open()
        found = self._queue(queue)
        group, entry = settlement.find_by_receipt(found.groups.values(), queue, receipt)
        return group.group_id, pending_details(queue, entry, self._agenda.now)

    def committed(self, queue: str, group: str) -> list[int]:
        """By partition, the offset below which everything is settled. Raises :class:`QueueError`."""
        _, named = self._find(queue, group)
        return [named.low(place.index) for place in named.places]

    def held_by(self, queue: str, group: str, consumer_id: str) -> int:
        """Deliveries that a consumer has not settled; 0 when there is none of that id."""
        consumer = self._find(queue, group)[1].consumers.get(consumer_id)
        return 0 if consumer is None else consumer.in_flight

    # -- cursors -------------------------------------------------------------------------------------------------

    def commit(
        self,
        queue: str,
        group: str,
        partition: int,
        offset: int,
        *,
        consumer_id: str | None,
        now: float,
        on_done: Confirm | None = None,
    ) -> int:
        """Settle everything that was delivered of a partition below an offset; returns how much that was.

        ``consumer_id`` None stands for an administrator; a consumer must be the one that the partition is assigned to.
        Raises :class:`QueueError`: UNKNOWN_GROUP, UNKNOWN_MEMBER, NOT_ALLOWED, BAD_CURSOR, ...
        """
        _, named = self._find_writable(queue, group, now)
        if partition >= len(named.places):
            text = f"the queue {queue!r} has {len(named.places)} partitions; there is no partition {partition}"
            raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
        if consumer_id is not None:
            consumer = named.membership.member(consumer_id)
            if not named.rebalance.serves(consumer, partition, now):
                text = f"partition {partition} of {queue!r} is not assigned to {consumer_id!r}"
                raise QueueError(QueueErrorCode.NOT_ALLOWED, text)
        return cursors.commit(named, partition, offset, now, on_done)

    def reset(
        self,
        queue: str,
        group: str,
        position: CursorPosition,
        *,
        partition: int | None,
        now: float,
        on_done: Confirm | None = None,
    ) -> dict[int, int]:
        """Let a group go on from a place in one partition, or in all of them; returns the new cursors.

        What is in flight becomes stale. Raises :class:`QueueError`.
        """
        found, named = self._find_writable(queue, group, now)
        if partition is not None and partition >= len(named.places):
            raise QueueError(QueueErrorCode.BAD_ADDRESS, f"the queue {queue!r} has no partition {partition}")
        found.write_unwritten()
        places = named.places if partition is None else named.places[partition : partition + 1]
        cursors.reset(named, position, places, on_done)
        # What comes back may have expired meanwhile.
        found.limits.arm(now)
        found.recount()
        found.trim()
        return {place.index: place.cursor for place in places}

    # -- claims --------------------------------------------------------------------------------------------------

    def claim(
        self, queue: str, group: str, wanted: Claim, *, consumer_id: str, now: float, on_done: Confirm | None = None
    ) -> int:
        """Deliver to a consumer what others of its group, or it, have held for long; see :func:`claims.claim`."""
        found, named = self._find_writable(queue, group, now)
        consumer = named.membership.member(consumer_id)
        taken = claims.claim(
            named,
            found.dispatcher(named),
            consumer,
            place=wanted.place,
            min_idle_s=wanted.min_idle_s,
            limit=wanted.limit,
            now=now,
        )
        named.confirm_when_written(on_done)
        return taken

    # -- groups --------------------------------------------------------------------------------------------------

    def details(self, queue: str, group: str) -> GroupDetails:
        """Members, cursors and lag. Raises :class:`QueueError`: UNKNOWN_QUEUE, UNKNOWN_GROUP."""
        return details_of(self._find(queue, group)[1], self._agenda.now)

    def all_details(self, queue: str) -> list[GroupDetails]:
        """Of every group of a queue, by id. Raises :class:`QueueError` (UNKNOWN_QUEUE)."""
        found = self._queue(queue)
        groups = found.contents.named_groups
        return [details_of(groups[group], self._agenda.now) for group in sorted(groups)]

    def delete(self, queue: str, group: str, now: float, on_done: Confirm = ignore) -> None:
        """Delete a group without consumers: what it has not settled it never gets. ``on_done`` is called once that is
        durable, or with the error.

        Raises :class:`QueueError`: IN_USE while it has consumers, a sync, messages on their way to the dead-letter
        queue, or deliveries that an open transaction acknowledged; LIMIT; STORAGE_FAILED.
        """
        found, named = self._find_writable(queue, group, now)
        if named.consumers:
            text = f"group {group!r} has {len(named.consumers)} consumers; it can be deleted once they have left"
            raise QueueError(QueueErrorCode.IN_USE, text)
        if named.is_committing:
            text = f"a transaction is open in group {group!r}: try again when it has ended"
            raise QueueError(QueueErrorCode.IN_USE, text)
        if named.is_syncing or named.moving_count:
            raise QueueError(QueueErrorCode.IN_USE, f"group {group!r} is being written; try again")
        try:
            found.check_changes()
            found.delete_group(named, on_done)
        except LogError as error:
            failure = QueueError(QueueErrorCode.STORAGE_FAILED, str(error))
            named.abandon(failure)
            raise failure from error
