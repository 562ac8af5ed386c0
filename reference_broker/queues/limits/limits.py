"""The limits of one queue: depth and bytes, time to live, retention. What is over them is refused, dropped or moved."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.reference_broker.config import EventKind, LimitScope, Overflow, QueueConfig
from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import RetentionPolicy
from assay.reference_broker.queues.limits.time_to_live import STEPS, TimeToLive

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.reference_broker.queues.dead_letters.undelivered import UndeliveredLetters
    from assay.reference_broker.queues.groups.contents import QueueContents
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import GroupPartition, PendingEntry
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.partitions.partition import QueuePartition

QUEUE_FULL = "QUEUE_FULL"
TRIM_INTERVAL_S = 1.0
"""How often the depth may cause groups to be looked at, and how soon freeing is tried again."""
LOOKED_AT = 4_096
"""Places of groups in partitions that one trim looks at."""
_FREEING_S = 5.0
"""So long after somebody was refused for want of room, what is settled is freed."""
MORE_DROPS = 8
"""Messages that one new one may drop beside the one whose room it takes."""


class QueueLimits(TimeToLive):
    """Looks after one queue's limits."""

    def __init__(
        self,
        contents: QueueContents,
        letters: UndeliveredLetters,
        agenda: Agenda,
        *,
        write_unwritten: Callable[[], bool],
        free_delays: Callable[[], None],
        volatile: bool,
    ) -> None:
        """``write_unwritten`` gives offsets to what this turn has published, and tells whether that was anything;
        ``free_delays`` frees what the delayed messages of the queue need no more."""
        super().__init__(contents, letters, agenda)
        self._write_unwritten = write_unwritten
        self._free_delays = free_delays
        self._volatile = volatile
        self._trimmed_at = float("-inf")
        self._trim_turn = 0
        """The partition that was looked at last."""
        self._to_trim = 0
        """How many still are to be."""
        self._drop_at = NEVER
        """When to look whether more is ready than may be."""
        self._free_at = NEVER
        self._frees_until = float("-inf")
        self._retain_turn = 0
        """The first partition that has not had its turn in this round of retention."""
        self.dropped = 0
        """Messages given up for newer ones while the queue had no group."""
        self.purged = 0
        """Likewise, purged."""
        self._retention = _retention_policy(contents.config)

    def reconfigure(self) -> None:
        """Other limits hold from now on."""
        self._retention = _retention_policy(self._contents.config)

    # -- depth and bytes -----------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of what the slowest group has not settled, or of everything while there is no group."""
        groups = self._contents.groups
        return max((group.held_bytes for group in groups.values()), default=self.loose_bytes)

    def _counted_bytes_of(self, group: ConsumerGroup) -> int:
        """What the limit on the bytes counts."""
        if self._contents.config.limits_count is LimitScope.UNSETTLED:
            return group.held_bytes
        ready = self._contents.ready_of(group)
        return 0 if group.room_for(ready) >= ready else group.held_bytes - group.out_bytes

    @property
    def _counted_bytes(self) -> int:
        return max(map(self._counted_bytes_of, self._contents.groups.values()), default=self.loose_bytes)

    def add_bytes(self, size: int) -> None:
        """A message was enqueued, or could not be written (negative)."""
        self.loose_bytes += size
        for group in self._contents.groups.values():
            group.held_bytes += size

    def make_room(self, now: float) -> None:
        """For one message. Raises :class:`QueueError` (FULL) when there is none."""
        limit = self._contents.config.max_depth
        self._agenda.cost += len(self._contents.partitions) * max(1, len(self._contents.groups)) >> 4
        if self._contents.staying >= limit and now - self._trimmed_at >= TRIM_INTERVAL_S:
            self._trimmed_at = now
            # What it takes is not the turn's but the publisher's.
            agenda = self._agenda
            earlier, agenda.work = agenda.work, 0
            self._pass_expired(now)
            agenda.cost += agenda.work
            agenda.work = earlier
        if not limit and self._contents.config.overflow.drops:
            # It is dropped unless somebody has room for it.
            self.trim_ready(now)
        elif self._contents.staying >= limit and not self.drop_oldest(now, None):
            raise self._refuse(f"the queue {self._contents.name!r} holds {limit} messages, which is its limit")
        for _ in range(MORE_DROPS):
            # The limit was higher once, or a loss of power brought some back.
            if self._contents.staying < max(1, limit) or not self.drop_oldest(now, None):
                break

    @property
    def drops_what_comes(self) -> bool:
        """A message that is too much by itself is dropped unless somebody has room for it, as the oldest in the end."""
        config = self._contents.config
        return config.limits_count is LimitScope.READY and config.overflow.drops

    def make_byte_room(self, size: int, now: float) -> None:
        """For a message of so many bytes. Raises :class:`QueueError` (FULL) when there is none."""
        limit = self._contents.config.max_bytes
        if size > limit and self.drops_what_comes:
            self.trim_ready(now)
            return
        is_worth_it = False
        while limit and self._counted_bytes + size > limit:
            is_worth_it = is_worth_it or self._can_free(size)
            if not is_worth_it or not self.drop_oldest(now, size):
                name = self._contents.name
                text = f"the queue {name!r} holds {self._counted_bytes} of {limit} bytes, too many for {size} more"
                raise self._refuse(text)

    def _can_free(self, size: int) -> bool:
        """Whether a message of so many bytes fits once all is given up that may be: else none is for nothing."""
        if not self._contents.config.overflow.drops:
            return False
        groups, limit = self._contents.groups.values(), self._contents.config.max_bytes
        kept = sum(map(self._bytes_of_open_transactions, self._contents.partitions))
        if self._contents.config.limits_count is LimitScope.UNSETTLED:
            kept += max((group.out_bytes + group.back_bytes for group in groups), default=0)
        return kept + size <= limit

    def _bytes_of_open_transactions(self, partition: QueuePartition) -> int:
        """And of what is behind them."""
        end = settled_end(partition)
        self._agenda.cost += partition.log.next_offset - end >> 6
        return 0 if partition.sizes is None else partition.sizes.total(end)

    def _refuse(self, text: str) -> QueueError:
        self._contents.refused += 1
        name = self._contents.name
        self._agenda.tell(EventKind.QUEUE_FULL, name, {"queue": name, "reason": text})
        return QueueError(QueueErrorCode.FULL, text)

    def trim_ready(self, now: float) -> None:
        """Something is ready again, which may be too much."""
        if self._contents.config.overflow.drops:
            self._drop_at = min(self._drop_at, now)
            self._agenda.wake(self, now)

    def check_ready(self, group: ConsumerGroup, now: float) -> None:
        """Consumers have taken what they take: some of what they had room for may be left, which is too much then."""
        contents, limits = self._contents, self._contents.config
        too_long = contents.ready_of(group) > limits.max_depth < contents.staying_of(group)
        if too_long or (limits.max_bytes and self._counted_bytes_of(group) > limits.max_bytes):
            self.trim_ready(now)

    def drop_due(self, now: float) -> None:
        """Give up what is too much, if anything may be: before those who only ask have their turn."""
        if now >= self._drop_at:
            self._drop_ready(now)

    def _drop_ready(self, now: float) -> None:
        """Give up what is too much, as much of it as the turn has room for."""
        agenda, limit = self._agenda, self._contents.config.max_bytes
        self._drop_at = NEVER
        while self.drop_oldest(now, None, 0) or (limit and self._counted_bytes > limit and self.drop_oldest(now, 0)):
            agenda.work += 1
            if agenda.room <= 0:
                self.trim_ready(now)
                return

    def drop_oldest(self, now: float, size: int | None, coming: int = 1) -> bool:
        """Give up the oldest message that nobody has, in every group that is over a limit; False = none can go.

        ``size``: bytes of the message to come, which may have none; None when it is the depth that counts. ``coming``:
        how many messages come.
        """
        if not self._contents.config.overflow.drops:
            return False
        contents, limits = self._contents, self._contents.config
        if not contents.groups:
            is_over = contents.staying + coming > limits.max_depth
            if size is not None:
                is_over = self.loose_bytes + size > limits.max_bytes
            return is_over and self._drop_loose(now)
        over = [
            group
            for group in contents.groups.values()
            if (
                self._counted_bytes_of(group) + size > limits.max_bytes
                if size is not None
                else contents.staying_of(group) + coming > limits.max_depth
            )
        ]
        if not over:
            return False
        # A message that is refused in the end must not have cost any group another one.
        if not all(self.can_drop(group) for group in over):
            return False
        for group in over:
            self.drop_one(group, now)
        return True

    def can_drop(self, group: ConsumerGroup) -> bool:
        """Whether the oldest message of the group may be dropped to make room."""
        config = self._contents.config
        most = STEPS if config.limits_count is LimitScope.READY else min(config.max_depth, STEPS)
        if self._drops_to_dead_letters and group.leaving >= most:
            # The dead-letter queue does not take them, so that nothing would become less.
            return False
        if self._first_back(group) is not None or self._oldest(group) is not None:
            return True
        return self._write_unwritten() and self._oldest(group) is not None

    def drop_one(self, group: ConsumerGroup, now: float) -> None:
        """Drop the oldest message of the group, or make a dead letter of it."""
        if (entry := self._first_back(group)) is not None:
            if self._drops_to_dead_letters:
                group.dead_letter(entry, QUEUE_FULL, now, None)
            else:
                group.counts.dropped += 1
                group.discard(entry, "dropped for a newer message")
            return
        place = self._oldest(group)
        if place is None:
            return
        if self._drops_to_dead_letters:
            self.dead_letter_next(group, place, QUEUE_FULL, now)
        else:
            offset = place.cursor
            self.trace_discarded(group, place, offset, "dropped for a newer message")
            group.counts.dropped += self.pass_over(group, place, offset + 1)
            self._contents.left(place.partition, offset)

    @property
    def _drops_to_dead_letters(self) -> bool:
        return self._contents.config.overflow is Overflow.DEAD_LETTER_OLDEST and self._contents.config.dead_letters

    def _first_back(self, group: ConsumerGroup) -> PendingEntry | None:
        """Where the limits count what is ready: what came back from a consumer, and is older than what nobody had."""
        if self._contents.config.limits_count is LimitScope.UNSETTLED or not group.waiting_count:
            return None
        first = [entry for place in group.every_place if (entry := place.first_waiting()) is not None]
        return min(first, key=lambda entry: entry.offset, default=None)

    def _oldest(self, group: ConsumerGroup) -> GroupPartition | None:
        """The place whose next message is the oldest that nobody of the group was given."""
        oldest: tuple[float, GroupPartition] | None = None
        for place in group.every_place:
            stored = self._first(place, settled_end(place.partition))
            if stored is not None and (oldest is None or stored.enqueued_at < oldest[0]):
                oldest = (stored.enqueued_at, place)
        return oldest[1] if oldest is not None else None

    def _drop_loose(self, now: float) -> bool:
        self._write_unwritten()
        found = [
            (stored.enqueued_at, partition.index, offset, stored)
            for partition in self._contents.partitions
            for offset, stored in [self._load(partition, partition.head, settled_end(partition)) or (-1, None)]
            if stored is not None
        ]
        if not found:
            return False
        _, index, offset, stored = min(found, key=lambda each: each[:2])
        partition = self._contents.partitions[index]
        if self._contents.config.overflow is Overflow.DEAD_LETTER_OLDEST and self._contents.config.dead_letters:
            if self._letters.waiting >= min(self._contents.config.max_depth, STEPS):
                return False
            self._letters.move(partition, offset, stored, QUEUE_FULL, now)
        else:
            self.trace_discarded(None, partition, offset, "dropped for a newer message")
        self.dropped += 1
        self.leave_loose(partition, offset)
        self._contents.move_head(partition, offset + 1)
        return True

    # -- purging -------------------------------------------------------------------------------------------------

    def purge(self, ends: Mapping[int, int]) -> None:
        """Nobody gets what is in front of these offsets, by partition; partitions that are newer are spared."""
        contents = self._contents
        for partition in contents.partitions:
            end = ends.get(partition.index, 0)
            if end > partition.head:
                if not contents.groups:
                    gone = partition.expiry.gone(partition.head, end) if partition.expiry is not None else []
                    self.purged += end - partition.head - len(gone)
                    if partition.sizes is not None:
                        lost = set(gone)
                        sizes = partition.sizes
                        self.loose_bytes -= sum(
                            sizes.of(offset) for offset in range(partition.head, end) if offset not in lost
                        )
                partition.head = end
                if not contents.groups:
                    partition.drop_before(contents.departures.free_to(partition))

    # -- retention -----------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Free whole segments that every group has settled. Without groups nothing is freed: a first may come. What
        readers without a group have settled stays for it, too, as far as the limits on depth and bytes go."""
        contents = self._contents
        if contents.groups:
            self._to_trim = len(contents.partitions)
            self.trim_some()

    def free_settled(self, now: float) -> None:
        """Somebody is refused for want of room: free also what was written last, where nobody needs any of it. A
        segment that nothing is appended to would never be sealed. It goes once what follows it is on disk.
        """
        self._frees_until = now + _FREEING_S
        self._free_at = now
        self._agenda.wake(self, now)

    def _seal(self, partition: QueuePartition) -> None:
        with suppress(LogError):  # which the log has told of
            partition.log.roll()
        if partition.log.needs_sync and not self._volatile:
            self._agenda.unsynced[partition] = None

    def trim_some(self) -> None:
        """Of very many places some; the others have their turn at once after others have had theirs."""
        contents = self._contents
        if contents.config.retention.keep_settled:
            self._to_trim = 0
            return
        is_freeing = self._agenda.now <= self._frees_until
        groups, partitions = list(contents.groups.values()), contents.partitions
        spares = bool(groups) and not contents.has_lasting_groups
        count = min(self._to_trim, max(1, LOOKED_AT // max(1, len(groups))))
        self._to_trim -= count
        for _ in range(count if groups or is_freeing else 0):
            self._trim_turn = (self._trim_turn + 1) % len(partitions)
            partition = partitions[self._trim_turn]
            low = min((group.low(partition.index) for group in groups), default=contents.departures.free_to(partition))
            if spares:
                partition.retain(_limits_as_retention(contents.config), needed_from=low)
                partition.forget_before(partition.log.start_offset)
            else:
                if is_freeing and low >= partition.log.next_offset > partition.log.start_offset:
                    self._seal(partition)
                partition.drop_before(low)
            partition.head = max(partition.head, partition.log.start_offset)
            if partition.lanes is not None:
                self._follow(partition)
        if self._to_trim:
            self._agenda.wake(self, self._agenda.now)

    def pass_time(self, now: float) -> None:
        """See :class:`Wakeable`."""
        if now >= self._free_at:
            self._to_trim = len(self._contents.partitions)
            self._free_at = now + TRIM_INTERVAL_S if now < self._frees_until else NEVER
            self._free_delays()
        if now >= self._trim_at:
            self._to_trim, self._trim_at = len(self._contents.partitions), NEVER
        if self._to_trim:
            self.trim_some()
        self.drop_due(now)
        super().pass_time(now)
        self._agenda.wake(self, min(self._free_at, self._trim_at, self._drop_at))

    def _follow(self, partition: QueuePartition) -> None:
        """Lanes forgot what the log does not keep: a cursor left before it would take it for messages of its lane."""
        start = partition.log.start_offset
        for group in self._contents.groups.values():
            for lane in group.places[partition.index].lanes or ():
                if lane.cursor < start:
                    lane.cursor = start
                    group.moved[lane] = None
                    self._agenda.groups_to_write[group] = None

    def retain(self, now: float) -> bool:
        """Apply the retention limits; where the disk fails, later again. False: there are more partitions."""
        contents, policy = self._contents, self._retention
        keeps = contents.has_lasting_groups and not contents.config.retention.past_groups
        first, most = self._retain_turn, max(1, LOOKED_AT // (1 + len(contents.groups)))
        self._retain_turn = first + most if first + most < len(contents.partitions) else 0
        for partition in contents.partitions[first : first + most]:
            low = contents.low_watermark(partition.index) if keeps else None
            if not partition.retain(policy, needed_from=low, now_ms=int(now * 1000)):
                continue
            if partition.log.needs_sync and not self._volatile:
                # What is too old as a whole goes once the segment that follows it is on disk.
                self._agenda.unsynced[partition] = None
            start = partition.log.start_offset
            if start > partition.head:
                if partition.sizes is not None and not contents.groups:
                    self.loose_bytes -= sum(partition.sizes.of(offset) for offset in range(partition.head, start))
                partition.head = start
            for group in contents.groups.values():
                place = group.places[partition.index]
                for lane in place.lanes or (place,):
                    # A group cannot be given what is not kept any more.
                    group.counts.expired += self.pass_over(group, lane, partition.head)
            partition.forget_before(partition.head)
        return not self._retain_turn


def _retention_policy(config: QueueConfig) -> RetentionPolicy:
    limits = config.retention
    return RetentionPolicy(
        max_bytes=limits.max_bytes, max_age_ms=int(limits.max_age_s * 1000), max_records=limits.max_messages
    )


def settled_end(partition: QueuePartition) -> int:
    """Where what may be dropped ends: messages of an open transaction, and those behind it, stay till it is decided.

    A queue that is full of them refuses what is newer (Q-LIMIT-21), for as long as a transaction may be open at most.
    To drop what is behind instead would give up confirmed messages in favour of some that may yet be aborted, and to
    grow would make the limit none.
    """
    end = partition.log.next_offset
    return end if partition.produced is None else partition.produced.stable_end(end)


def _limits_as_retention(config: QueueConfig) -> RetentionPolicy:
    """What readers without a group have settled is kept as far as these go, in each partition."""
    return RetentionPolicy(max_bytes=config.max_bytes, max_records=max(1, config.max_depth))
