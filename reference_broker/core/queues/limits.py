"""The limits of one queue: depth and bytes, time to live, retention. What is over them is refused, dropped or moved.

Messages leave a group in three ways here, all bounded work: the cursor passes those at the front, messages behind a
live one are marked as gone (:class:`PartitionExpiry`), and those that wait for a retry are discarded. A message in
flight is never taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reference_broker.config import Overflow, QueueConfig
from reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode
from reference_broker.core.queues.pending import EntryState, PendingEntry
from reference_broker.core.queues.store import RetentionPolicy
from reference_broker.core.queues.stored_message import HIDDEN
from reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from reference_broker.core.queues.agenda import Agenda
    from reference_broker.core.queues.group import ConsumerGroup
    from reference_broker.core.queues.partition import QueuePartition
    from reference_broker.core.queues.pending import GroupPartition
    from reference_broker.core.queues.queue import DurableQueue
    from reference_broker.core.queues.stored_message import StoredMessage

TTL_EXPIRED = "TTL_EXPIRED"
QUEUE_FULL = "QUEUE_FULL"
_STEPS = 4_096
"""Messages looked at in one go."""
_SWEEP_INTERVAL_S = 0.1
"""Expired messages nobody asks for are let go of this often at most."""
_TRIM_INTERVAL_S = 1.0
_NEVER = float("inf")


class QueueLimits:
    """Looks after one queue's limits."""

    def __init__(self, queue: DurableQueue, agenda: Agenda, *, volatile: bool) -> None:
        self._queue = queue
        self._config = queue.config
        self._agenda = agenda
        self._volatile = volatile
        self._trimmed_at = float("-inf")
        self.wake_at = _NEVER
        """See :class:`Wakeable`: when something expires."""
        self.dropped = 0
        """Messages given up for newer ones while the queue had no group."""
        self.expired = 0
        """Likewise, expired."""
        self.purged = 0
        """Likewise, purged."""
        self.loose_bytes = 0
        """Bytes held while there is no group. Only counted with ``max_bytes``, as the groups' are."""
        self._retention = _retention_policy(queue.config)

    def reconfigure(self, config: QueueConfig) -> None:
        """Other limits hold from now on."""
        self._config = config
        self._retention = _retention_policy(config)

    # -- depth and bytes -----------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of what the slowest group has not settled, or of everything while there is no group."""
        groups = self._queue.groups
        return max((group.held_bytes for group in groups.values()), default=self.loose_bytes)

    def add_bytes(self, size: int) -> None:
        """A message was enqueued, or could not be written (negative)."""
        self.loose_bytes += size
        for group in self._queue.groups.values():
            group.held_bytes += size

    def make_room(self, now: float) -> None:
        """For one message. Raises :class:`QueueError` (FULL) when there is none."""
        limit = self._config.max_depth
        if self._queue.staying >= limit and now - self._trimmed_at >= _TRIM_INTERVAL_S:
            self._trimmed_at = now
            self._pass_expired(now)
        if self._queue.staying >= limit and not self._drop_oldest(now, 0):
            raise self._refuse(f"the queue {self._queue.name!r} holds {limit} messages, which is its limit")

    def make_byte_room(self, size: int, now: float) -> None:
        """For a message of so many bytes. Raises :class:`QueueError` (FULL) when there is none."""
        limit = self._config.max_bytes
        while limit and self.held_bytes + size > limit:
            if size > limit or not self._drop_oldest(now, size):
                text = (
                    f"the queue {self._queue.name!r} holds {self.held_bytes} of {limit} bytes, too many for {size} more"
                )
                raise self._refuse(text)

    def _refuse(self, text: str) -> QueueError:
        self._queue.refused += 1
        return QueueError(QueueErrorCode.FULL, text)

    def _drop_oldest(self, now: float, size: int) -> bool:
        """Give up the oldest message that nobody was given, in every group that is over a limit; False = none can go.

        ``size``: bytes of the message to come, or 0 when it is the depth that counts.
        """
        if self._config.overflow is Overflow.REJECT:
            return False
        queue, limits = self._queue, self._config
        if not queue.groups:
            return self._drop_loose(now)
        over = [
            group
            for group in queue.groups.values()
            if (group.held_bytes + size > limits.max_bytes if size else queue.staying_of(group) >= limits.max_depth)
        ]
        # A message that is refused in the end must not have cost any group another one.
        if not all(self._can_drop(group) for group in over):
            return False
        for group in over:
            self._drop_one(group, now)
        return True

    def _can_drop(self, group: ConsumerGroup) -> bool:
        if self._drops_to_dead_letters and group.leaving >= min(self._config.max_depth, _STEPS):
            # The dead-letter queue does not take them, so that nothing would become less.
            return False
        return self._oldest(group) is not None or (self._queue.write_unwritten() and self._oldest(group) is not None)

    def _drop_one(self, group: ConsumerGroup, now: float) -> None:
        place = self._oldest(group)
        if place is None:
            return
        if self._drops_to_dead_letters:
            self.dead_letter_next(group, place, QUEUE_FULL, now)
        else:
            self.trace_discarded(group, place, place.cursor, "dropped for a newer message")
            group.counts.dropped += self._pass(group, place, place.cursor + 1)

    @property
    def _drops_to_dead_letters(self) -> bool:
        return self._config.overflow is Overflow.DEAD_LETTER_OLDEST and self._config.dead_letters

    def _oldest(self, group: ConsumerGroup) -> GroupPartition | None:
        """The place whose next message is the oldest that nobody of the group was given."""
        oldest: tuple[float, GroupPartition] | None = None
        for place in group.every_place:
            partition = place.partition
            end = partition.log.next_offset
            # Messages of an open transaction, and those behind it, stay until it is decided.
            stored = self._first(place, end if partition.produced is None else partition.produced.stable_end(end))
            if stored is not None and (oldest is None or stored.enqueued_at < oldest[0]):
                oldest = (stored.enqueued_at, place)
        return oldest[1] if oldest is not None else None

    def _drop_loose(self, now: float) -> bool:
        self._queue.write_unwritten()
        found = [
            (stored.enqueued_at, partition.index, offset, stored)
            for partition in self._queue.partitions
            for offset, stored in [self._load(partition, partition.head) or (-1, None)]
            if stored is not None
        ]
        if not found:
            return False
        _, index, offset, stored = min(found, key=lambda each: each[:2])
        partition = self._queue.partitions[index]
        if self._config.overflow is Overflow.DEAD_LETTER_OLDEST and self._config.dead_letters:
            if self._queue.loose_letters.waiting >= min(self._config.max_depth, _STEPS):
                return False
            self._queue.loose_letters.move(partition, offset, stored, QUEUE_FULL, now)
        else:
            self.trace_discarded(None, partition, offset, "dropped for a newer message")
        self.dropped += 1
        self._leave_loose(partition, offset)
        partition.head = offset + 1
        return True

    def _load(self, partition: QueuePartition, offset: int) -> tuple[int, StoredMessage] | None:
        """The first message from an offset on that is there and not gone; None also where the disk fails."""
        while offset < partition.visible_end:
            stored = partition.cached.get(offset)
            try:
                found = partition.load(offset) if stored is None else (offset, stored)
            except LogError:
                return None
            if found is None:
                return None
            offset = found[0]
            if partition.expiry is None or not partition.expiry.is_gone(offset):
                return found
            offset += 1
        return None

    def _first(self, place: GroupPartition, end: int) -> StoredMessage | None:
        """The next message of a place below ``end``, if it can be read; the cursor moves to it over what is gone."""
        partition, lanes = place.partition, place.partition.lanes
        while True:
            offset = place.cursor if lanes is None else lanes.next_in(place.lane, place.cursor)
            if offset >= end:
                return None
            if partition.expiry is None or not partition.expiry.is_gone(offset):
                break
            place.cursor = offset + 1
        place.cursor = offset
        try:
            return partition.get(offset)
        except LogError:
            return None

    # -- time to live --------------------------------------------------------------------------------------------

    def arm(self, at: float) -> None:
        """Something expires then."""
        self._agenda.wake(self, at)

    def pass_time(self, now: float) -> None:
        """Let go of what has expired, also while nobody consumes."""
        self._queue.loose_letters.retry(now)
        next_at = min(self._pass_expired(now), self._expire_within(now), self._expire_waiting(now))
        if next_at != _NEVER:
            self.arm(max(next_at, now + _SWEEP_INTERVAL_S))

    def _pass_expired(self, now: float) -> float:
        """Pass what is expired at the front; returns when the next will be, or ``now`` when there is more to do."""
        steps, next_at = _STEPS, _NEVER
        groups = self._queue.groups
        for group in groups.values():
            for place in group.every_place:
                while (
                    stored := self._first(place, place.partition.visible_end)
                ) is not None and stored.expires_at <= now:
                    if steps <= 0:
                        return now
                    steps -= 1
                    self.expire_next(group, place, now)
                if stored is not None:
                    next_at = min(next_at, stored.expires_at)
        for partition in self._queue.partitions if not groups else ():
            while (found := self._load(partition, partition.head)) is not None and found[1].expires_at <= now:
                if steps <= 0:
                    return now
                steps -= 1
                self._expire_loose(partition, *found, now)
                partition.head = found[0] + 1
            if found is not None:
                next_at = min(next_at, found[1].expires_at)
            partition.drop_before(partition.head)
        return next_at

    def _expire_within(self, now: float) -> float:
        """Mark what expired behind messages that live longer."""
        next_at = _NEVER
        for partition in self._queue.partitions:
            expiry = partition.expiry
            if expiry is None:
                continue
            groups = self._queue.groups.values()
            low = min((group.low(partition.index) for group in groups), default=partition.head)
            for offset in expiry.pop_due(now, _STEPS):
                if offset < low:
                    # Settled by everybody long ago.
                    continue
                if offset >= partition.visible_end and offset < partition.log.next_offset:
                    # Not durable yet: nobody was told that it exists.
                    expiry.add(offset, now + _SWEEP_INTERVAL_S)
                    continue
                try:
                    stored = partition.get(offset)
                except LogError:
                    expiry.add(offset, now + _TRIM_INTERVAL_S)
                    continue
                if stored is not None:
                    self._expire_one(partition, offset, stored, now)
            next_at = min(next_at, expiry.next_at)
        return next_at

    def _expire_one(self, partition: QueuePartition, offset: int, stored: StoredMessage, now: float) -> None:
        expiry = partition.expiry
        assert expiry is not None
        if stored is HIDDEN:
            return
        groups = self._queue.groups.values()
        # It comes back for the sake of a group that had it in flight; the others have counted it.
        was_gone = expiry.is_gone(offset)
        if not groups and offset >= partition.head:
            self._expire_loose(partition, offset, stored, now)
            expiry.mark_gone(offset)
        for group in groups:
            home = group.places[partition.index]
            place = home.lanes[stored.lane] if home.lanes is not None else home
            if offset < place.cursor:
                entry = place.pending.get(offset)
                if entry is not None and entry.state is EntryState.DELIVERED and entry.deadline != _NEVER:
                    expiry.add(offset, max(entry.deadline, now + _SWEEP_INTERVAL_S))
                continue
            if was_gone:
                continue
            if self._to_dead_letters:
                self._queue.loose_letters.move(partition, offset, stored, TTL_EXPIRED, now, group.group_id)
                group.counts.dead_lettered += 1
            else:
                self.trace_discarded(group, place, offset, "expired")
                group.counts.expired += 1
            group.cursor_total += 1
            if partition.sizes is not None:
                group.held_bytes -= partition.sizes.of(offset)
            expiry.mark_gone(offset)

    def _expire_waiting(self, now: float) -> float:
        """Discard what waits for a retry that it will not live to see."""
        for group in self._queue.groups.values():
            for place in group.every_place:
                if not place.waiting:
                    continue
                waiting = [entry for _, _, entry in place.waiting[:_STEPS] if entry.state is EntryState.WAITING]
                for entry in waiting:
                    try:
                        stored = place.partition.get(entry.offset)
                    except LogError:
                        break
                    if stored is not None and stored.expires_at <= now:
                        self.expire_entry(group, entry, now)
        return _NEVER

    @property
    def _to_dead_letters(self) -> bool:
        return self._config.expired_to_dead_letters and self._config.dead_letters

    def expire_entry(self, group: ConsumerGroup, entry: PendingEntry, now: float) -> None:
        """A message that waited for its next delivery has expired."""
        if self._to_dead_letters:
            group.dead_letter(entry, TTL_EXPIRED, now, None)
            return
        group.counts.expired += 1
        group.discard(entry, "expired")

    def expire_next(self, group: ConsumerGroup, place: GroupPartition, now: float) -> None:
        """The message at a cursor has expired: pass it, or give it to the dead-letter queue."""
        expiry = place.partition.expiry
        hidden = place.partition.cached.get(place.cursor) is HIDDEN
        if expiry is not None and expiry.is_gone(place.cursor):
            place.cursor += 1
        elif hidden:
            # A record of another broker's transaction, which nobody counted out.
            self._pass(group, place, place.cursor + 1)
        elif self._to_dead_letters:
            self.dead_letter_next(group, place, TTL_EXPIRED, now)
            return
        else:
            self.trace_discarded(group, place, place.cursor, "expired")
            group.counts.expired += self._pass(group, place, place.cursor + 1)
        group.moved[place] = None
        self._agenda.groups_to_write[group] = None

    def dead_letter_next(self, group: ConsumerGroup, place: GroupPartition, reason: str, now: float) -> None:
        """Give the message at a cursor to the dead-letter queue without a delivery; pending until that has it."""
        offset = place.cursor
        entry = PendingEntry(place, offset, 0)
        place.pending[offset] = entry
        place.cursor = offset + 1
        group.cursor_total += 1
        group.unsettled += 1
        group.leaving += 1
        if place.partition.sizes is not None:
            group.held_bytes -= place.partition.sizes.of(offset)
        now_ms = int(now * 1000)
        # After a crash it waits for a delivery, finds itself expired, and goes the same way.
        group.log.add(place.number, offset, "", now_ms, 1)
        group.log.expire(place.number, offset, now_ms)
        self._agenda.groups_to_write[group] = None
        group.dead_letter(entry, reason, now, None)

    def _expire_loose(self, partition: QueuePartition, offset: int, stored: StoredMessage, now: float) -> None:
        """A message of a queue without groups has expired."""
        if stored is HIDDEN:
            return
        if self._to_dead_letters:
            self._queue.loose_letters.move(partition, offset, stored, TTL_EXPIRED, now)
        else:
            self.trace_discarded(None, partition, offset, "expired")
        self.expired += 1
        self._leave_loose(partition, offset)

    def _leave_loose(self, partition: QueuePartition, offset: int) -> None:
        if partition.sizes is not None:
            self.loose_bytes -= partition.sizes.of(offset)

    # -- passing -------------------------------------------------------------------------------------------------

    def _pass(self, group: ConsumerGroup, place: GroupPartition, offset: int) -> int:
        """Move a cursor; returns how many messages of its lane that passes, those that are gone not counted."""
        start = place.cursor
        if offset <= start:
            return 0
        partition = place.partition
        lanes, expiry, sizes = partition.lanes, partition.expiry, partition.sizes
        passed = offset - start if lanes is None else lanes.count(place.lane, start, offset)
        gone = expiry.gone(start, offset) if expiry is not None else []
        if lanes is not None:
            gone = [each for each in gone if lanes.count(place.lane, each, each + 1)]
        if sizes is not None:
            mine = (each for each in range(start, offset) if lanes is None or lanes.count(place.lane, each, each + 1))
            group.held_bytes -= sum(sizes.of(each) for each in mine if each not in gone)
        place.cursor = offset
        passed -= len(gone)
        group.cursor_total += passed
        group.moved[place] = None
        self._agenda.groups_to_write[group] = None
        return passed

    def trace_discarded(
        self, group: ConsumerGroup | None, place: GroupPartition | QueuePartition, offset: int, detail: str
    ) -> None:
        """A message was given up without ever having been delivered."""
        self._queue.trace_place(
            TraceKind.DISCARDED, place.index, offset, group.group_id if group is not None else "", detail
        )

    # -- purging -------------------------------------------------------------------------------------------------

    def pass_purged(self, group: ConsumerGroup, place: GroupPartition, end: int) -> int:
        """A group does not get what is in front of an offset; returns how many messages of its lane that are."""
        return self._pass(group, place, end)

    def purge(self, ends: Mapping[int, int]) -> None:
        """Nobody gets what is in front of these offsets, by partition."""
        queue = self._queue
        for partition in queue.partitions:
            end = ends[partition.index]
            if end > partition.head:
                if not queue.groups:
                    gone = partition.expiry.gone(partition.head, end) if partition.expiry is not None else []
                    self.purged += end - partition.head - len(gone)
                    if partition.sizes is not None:
                        lost = set(gone)
                        sizes = partition.sizes
                        self.loose_bytes -= sum(
                            sizes.of(offset) for offset in range(partition.head, end) if offset not in lost
                        )
                partition.head = end
                if not queue.groups:
                    partition.drop_before(end)

    # -- retention -----------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Free whole segments that every group has settled. Without groups nothing is freed: a first may come."""
        queue = self._queue
        if queue.groups:
            for partition, low in zip(queue.partitions, queue.low_watermarks(), strict=True):
                partition.drop_before(low)
                partition.head = max(partition.head, partition.log.start_offset)
                if partition.lanes is not None:
                    self._follow(partition)

    def _follow(self, partition: QueuePartition) -> None:
        """Lanes forgot what the log does not keep: a cursor left before it would take it for messages of its lane."""
        start = partition.log.start_offset
        for group in self._queue.groups.values():
            for lane in group.places[partition.index].lanes or ():
                if lane.cursor < start:
                    lane.cursor = start
                    group.moved[lane] = None
                    self._agenda.groups_to_write[group] = None

    def retain(self, now: float) -> None:
        """Apply the retention limits; where the disk fails, later again."""
        queue, policy = self._queue, self._retention
        past_groups = self._config.retention.past_groups
        lows = [None] * len(queue.partitions) if past_groups or not queue.groups else queue.low_watermarks()
        for partition, low in zip(queue.partitions, lows, strict=True):
            needed_from = partition.kept_from(low)
            try:
                partition.log.retain(policy, now_ms=int(now * 1000), needed_from=needed_from)
            except LogError:
                continue
            if partition.log.needs_sync and not self._volatile:
                # What is too old as a whole goes once the segment that follows it is on disk.
                self._agenda.unsynced[partition] = None
            start = partition.log.start_offset
            if start > partition.head:
                if partition.sizes is not None and not queue.groups:
                    self.loose_bytes -= sum(partition.sizes.of(offset) for offset in range(partition.head, start))
                partition.head = start
            for group in queue.groups.values():
                place = group.places[partition.index]
                for lane in place.lanes or (place,):
                    # A group cannot be given what is not kept any more.
                    group.counts.expired += self._pass(group, lane, partition.head)
            partition.forget_before(partition.head)


def _retention_policy(config: QueueConfig) -> RetentionPolicy:
    limits = config.retention
    return RetentionPolicy(
        max_bytes=limits.max_bytes, max_age_ms=int(limits.max_age_s * 1000), max_records=limits.max_messages
    )
