"""The time to live of one queue's messages, and how messages leave groups that never had them.

Messages leave a group in three ways here, all bounded work: the cursor passes those at the front, messages behind a
live one are marked as gone (:class:`PartitionExpiry`), and those that wait for a retry are discarded. A message in
flight is never taken away.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from assay.reference_broker.queues.groups.pending import EntryState, PendingEntry
from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.messages.stored_message import HIDDEN, is_at_once
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.reference_broker.queues.dead_letters.undelivered import UndeliveredLetters
    from assay.reference_broker.queues.groups.contents import QueueContents
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import GroupPartition
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.messages.stored_message import StoredMessage
    from assay.reference_broker.queues.partitions.partition import QueuePartition

TTL_EXPIRED = "TTL_EXPIRED"
RETRY_S = 1.0
"""What could not be read is looked at again so much later."""
STEPS = 4_096
"""Messages that may be on their way to dead letters which do not take them, and copies of them looked at in one go."""
_SWEEP_INTERVAL_S = 0.1
"""Expired messages nobody asks for are let go of this often at most."""
FEW = 1_024
"""So many messages that wait for a retry are listed without a look at which of them wait no more."""


class TimeToLive:
    """Lets go of what has expired."""

    def __init__(self, contents: QueueContents, letters: UndeliveredLetters, agenda: Agenda) -> None:
        self._contents = contents
        self._letters = letters
        self._agenda = agenda
        self.wake_at = NEVER
        """See :class:`Wakeable`."""
        self.sweep_at = NEVER
        """When something expires."""
        self.expired = 0
        """Messages that expired while the queue had no group."""
        self._group_turn = 0
        """Which group is looked at first."""
        self._is_unread = False
        """The disk did not give a message that was to be looked at."""
        self._waiting: list[tuple[float, int, ConsumerGroup, PendingEntry]] = []
        """What waits for a retry and when it expires, a heap; some may not wait any more, or stand there twice."""
        self._unlooked: Iterator[tuple[ConsumerGroup, PendingEntry]] = iter(())
        """What waits and is to be looked at anew."""
        self._wait_count = 0
        self._most_waiting = FEW
        self._trim_at = NEVER
        """When segments are looked for that nobody needs any more."""
        self.loose_bytes = 0
        """Bytes held while there is no group. Only counted with ``max_bytes``, as the groups' are."""

    def arm(self, at: float) -> None:
        """Something expires then."""
        if at < self.sweep_at:
            self.sweep_at = at
            self._agenda.wake(self, at)

    def waits(self, group: ConsumerGroup, entry: PendingEntry, now: float) -> None:
        """See :class:`GroupOwner`; what is not in memory is looked at soon."""
        stored = entry.place.partition.cached.get(entry.offset)
        at = 0.0 if stored is None else stored.expires_at
        if at != NEVER:
            self._list_waiting(group, entry, at)
            self.arm(max(at, now + _SWEEP_INTERVAL_S))

    def look_anew(self) -> None:
        """Messages live for another time than before: all that wait for a retry are looked at again."""
        self._unlooked = self._all_waiting()

    def _all_waiting(self) -> Iterator[tuple[ConsumerGroup, PendingEntry]]:
        """What waits, place by place: of a place that is looked at later, what waits then."""
        for group in list(self._contents.groups.values()):
            self._agenda.work += len(group.places) >> 4
            for place in group.every_place:
                for _, _, entry in list(place.waiting):
                    yield group, entry

    def _list_waiting(self, group: ConsumerGroup, entry: PendingEntry, at: float) -> None:
        if len(self._waiting) >= self._most_waiting:
            self._agenda.work += len(self._waiting) >> 6
            self._waiting = list({id(each[3]): each for each in self._waiting if self._does_wait(*each[2:])}.values())
            heapq.heapify(self._waiting)
            self._most_waiting = 2 * len(self._waiting) + FEW
        self._wait_count += 1
        heapq.heappush(self._waiting, (at, self._wait_count, group, entry))

    def _does_wait(self, group: ConsumerGroup, entry: PendingEntry) -> bool:
        return entry.state is EntryState.WAITING and self._contents.groups.get(group.group_id) is group

    def trim_later(self) -> None:
        """Messages left without being settled: their segments go, too, if nobody publishes or settles any more."""
        at = self._agenda.now + _SWEEP_INTERVAL_S
        if at < self._trim_at:
            self._trim_at = at
            self._agenda.wake(self, at)

    def pass_time(self, now: float) -> None:
        """Let go of what has expired, also while nobody consumes; before that is due it costs nothing."""
        if now < self.sweep_at:
            self._agenda.wake(self, self.sweep_at)
            return
        self.sweep_at, self._is_unread = NEVER, False
        next_at = min(self._pass_expired(now), self._expire_within(now), self._expire_waiting(now))
        if self._is_unread:
            next_at = min(next_at, now + RETRY_S)
        if self._agenda.room <= 0:
            # There is more to do, for which this turn has no room.
            self.arm(now)
        elif next_at != NEVER:
            self.arm(max(next_at, now + _SWEEP_INTERVAL_S))

    def _pass_expired(self, now: float) -> float:
        """Pass what is expired at the front; returns when the next will be, or ``now`` when there is more to do."""
        next_at = NEVER
        groups, agenda = self._contents.groups, self._agenda
        for group in _from(list(groups.values()), self._group_turn):
            if agenda.room <= 0:
                return now
            places = group.every_place
            agenda.work += len(places) >> 4
            for place in places:
                while (
                    stored := self._first(place, place.partition.visible_end)
                ) is not None and stored.expires_at <= now:
                    if agenda.room <= 0 or (is_at_once(stored) and self._is_waited_for(group)):
                        return now
                    agenda.work += 1
                    self.expire_next(group, place, stored, now)
                if stored is not None:
                    next_at = min(next_at, stored.expires_at)
            # Where this ends early, the next time begins with who had no turn.
            self._group_turn += 1
        for partition in self._contents.partitions if not groups else ():
            while (found := self._load(partition, partition.head, partition.visible_end)) is not None and found[
                1
            ].expires_at <= now:
                if agenda.room <= 0:
                    return now
                agenda.work += 1
                self._expire_loose(partition, *found, now)
                self._contents.move_head(partition, found[0] + 1)
            if found is not None:
                next_at = min(next_at, found[1].expires_at)
        return next_at

    def _is_waited_for(self, group: ConsumerGroup) -> bool:
        """Whether consumers who wait have their turn yet."""
        return group in self._agenda.groups_to_serve and group.room_for(1) > 0

    def _expire_within(self, now: float) -> float:
        """Mark what expired behind messages that live longer."""
        next_at = NEVER
        for partition in self._contents.partitions:
            expiry = partition.expiry
            if expiry is None:
                continue
            groups = self._contents.groups.values()
            low = min((group.low(partition.index) for group in groups), default=partition.head)
            due = expiry.pop_due(now, max(0, self._agenda.room))
            self._agenda.work += len(due) * (1 + (len(groups) >> 2))
            for offset in due:
                if offset < low:
                    # Settled by everybody long ago, and no reset brings it back.
                    expiry.mark_gone(offset)
                    continue
                if offset >= partition.visible_end and offset < partition.log.next_offset:
                    # Not durable yet: nobody was told that it exists.
                    expiry.add(offset, now)
                    continue
                try:
                    stored = partition.get(offset)
                except LogError:
                    expiry.add(offset, now + RETRY_S)
                    continue
                if stored is None:
                    continue
                if is_at_once(stored) and any(map(self._is_waited_for, groups)):
                    expiry.add(offset, now)
                    continue
                self.expire_one(partition, offset, stored, now)
            next_at = min(next_at, expiry.next_at)
        return next_at

    def expire_one(self, partition: QueuePartition, offset: int, stored: StoredMessage, now: float) -> None:
        """The time of a message is up: it leaves every group that was not given it."""
        expiry = partition.expiry
        assert expiry is not None
        if stored is HIDDEN:
            return
        groups = self._contents.groups.values()
        # It comes back for the sake of a group that had it in flight; the others have counted it.
        was_gone, is_counted, is_held = expiry.is_gone(offset), False, False
        if not groups and offset >= partition.head and not was_gone:
            self._expire_loose(partition, offset, stored, now)
            is_counted = True
        letters: list[str] = []
        for group in groups:
            home = group.places[partition.index]
            place = home.lanes[stored.lane] if home.lanes is not None else home
            if offset < place.cursor:
                entry = place.pending.get(offset)
                is_held |= entry is not None and entry.state is not EntryState.WAITING
                if entry is not None and entry.state is EntryState.DELIVERED and entry.deadline != NEVER:
                    expiry.add(offset, max(entry.deadline, now + _SWEEP_INTERVAL_S))
                continue
            if was_gone:
                continue
            if self.to_dead_letters:
                letters.append(group.group_id)
                group.counts.dead_lettered += 1
            else:
                self.trace_discarded(group, place, offset, "expired")
                group.counts.expired += 1
            group.cursor_total += 1
            if partition.sizes is not None:
                group.held_bytes -= partition.sizes.of(offset)
            is_counted = True
            self.trim_later()
        if letters:
            self._letters.move(partition, offset, stored, TTL_EXPIRED, now, letters)
        if is_counted or not is_held:
            expiry.mark_gone(offset)
        if is_counted:
            self._contents.departures.add(partition, offset, offset + 1)

    def _expire_waiting(self, now: float) -> float:
        """Discard what waits for a retry that it will not live to see; returns when the next of them expires, or
        ``now`` when there is more to do."""
        while self._agenda.room > 0 and (found := next(self._unlooked, None)) is not None:
            self._agenda.work += 1
            if self._does_wait(*found):
                self._list_waiting(*found, 0.0)
        while self._waiting and self._waiting[0][0] <= now:
            if self._agenda.room <= 0:
                return now
            self._agenda.work += 1
            _, _, group, entry = heapq.heappop(self._waiting)
            if not self._does_wait(group, entry):
                continue
            try:
                stored = entry.place.partition.get(entry.offset)
            except LogError:
                self._list_waiting(group, entry, now + RETRY_S)
                continue
            if stored is not None and stored.expires_at <= now:
                self.expire_entry(group, entry, stored, now)
            elif stored is None or (entry.lost_at and group.gives_up(entry, stored, now)):
                continue
            elif stored.expires_at != NEVER:
                self._list_waiting(group, entry, stored.expires_at)
        return self._waiting[0][0] if self._waiting else NEVER

    @property
    def to_dead_letters(self) -> bool:
        return self._contents.config.expired_to_dead_letters and self._contents.config.dead_letters

    def expire_entry(self, group: ConsumerGroup, entry: PendingEntry, stored: StoredMessage, now: float) -> None:
        """A message that waited for its next delivery has expired."""
        if stored is HIDDEN:
            # On a disk that lost records it was something else when it was delivered.
            group.counts.unreadable += 1
            group.discard(entry, "unreadable")
            return
        if group.gives_up(entry, stored, now):
            return
        if self.to_dead_letters:
            group.dead_letter(entry, TTL_EXPIRED, now, None)
            return
        group.counts.expired += 1
        group.discard(entry, "expired")

    def expire_next(self, group: ConsumerGroup, place: GroupPartition, stored: StoredMessage, now: float) -> None:
        """The message at a cursor has expired: pass it, or give it to the dead-letter queue."""
        expiry = place.partition.expiry
        if expiry is not None and expiry.is_gone(place.cursor):
            place.cursor = expiry.first_kept(place.cursor)
        elif stored is HIDDEN:
            # A record of another broker's transaction, which nobody counted out.
            self.pass_over(group, place, place.cursor + 1)
        elif self.to_dead_letters:
            self.dead_letter_next(group, place, TTL_EXPIRED, now)
            return
        else:
            offset = place.cursor
            self.trace_discarded(group, place, offset, "expired")
            group.counts.expired += self.pass_over(group, place, offset + 1)
            self._contents.left(place.partition, offset)
        group.moved[place] = None
        self._agenda.groups_to_write[group] = None

    def dead_letter_next(self, group: ConsumerGroup, place: GroupPartition, reason: str, now: float) -> None:
        """Give the message at a cursor to the dead-letter queue without a delivery; pending until that has it."""
        offset = place.cursor
        entry = PendingEntry(place, offset, 0, state=EntryState.DEAD_LETTERING)
        place.pending[offset] = entry
        place.cursor = offset + 1
        group.cursor_total += 1
        group.unsettled += 1
        group.leaving += 1
        if place.partition.sizes is not None:
            group.held_bytes -= place.partition.sizes.of(offset)
        now_ms = int(now * 1000)
        # After a crash it waits for its first delivery, or finds itself expired, and goes the same way.
        group.log.add(place.number, offset, "", now_ms, 0)
        group.log.expire(place.number, offset, now_ms)
        self._agenda.groups_to_write[group] = None
        group.dead_letter(entry, reason, now, None)

    def _expire_loose(self, partition: QueuePartition, offset: int, stored: StoredMessage, now: float) -> None:
        """A message of a queue without groups has expired."""
        if stored is HIDDEN:
            return
        if self.to_dead_letters:
            self._letters.move(partition, offset, stored, TTL_EXPIRED, now)
        else:
            self.trace_discarded(None, partition, offset, "expired")
        self.expired += 1
        self.leave_loose(partition, offset)

    def leave_loose(self, partition: QueuePartition, offset: int) -> None:
        """A message left that no group needed: its bytes count no more."""
        if partition.sizes is not None:
            self.loose_bytes -= partition.sizes.of(offset)

    # -- reading -------------------------------------------------------------------------------------------------

    def _load(self, partition: QueuePartition, offset: int, end: int) -> tuple[int, StoredMessage] | None:
        """The first message from an offset to ``end`` that is there and not gone; None also where the disk fails."""
        while offset < end:
            stored = partition.cached.get(offset)
            try:
                found = partition.load(offset, end) if stored is None else (offset, stored)
            except LogError:
                self._is_unread = True
                return None
            if found is None:
                return None
            offset = found[0]
            if partition.expiry is None or (kept := partition.expiry.first_kept(offset)) == offset:
                return found
            offset = kept
        return None

    def _first(self, place: GroupPartition, end: int) -> StoredMessage | None:
        """The next message of a place below ``end``, if it can be read; the cursor moves to it over what is gone."""
        partition, lanes = place.partition, place.partition.lanes
        while True:
            offset = place.cursor if lanes is None else lanes.next_in(place.lane, place.cursor)
            if offset >= end:
                return None
            if partition.expiry is None or (kept := partition.expiry.first_kept(offset)) == offset:
                break
            place.cursor = kept
        place.cursor = offset
        try:
            return partition.get(offset, end)
        except LogError:
            self._is_unread = True
            return None

    # -- passing -------------------------------------------------------------------------------------------------

    def pass_over(self, group: ConsumerGroup, place: GroupPartition, offset: int) -> int:
        """Move a cursor: a group does not get what is in front of an offset. Returns how many messages of its lane that
        passes, those that are gone not counted."""
        start = place.cursor
        if offset <= start:
            return 0
        partition = place.partition
        lanes, expiry, sizes = partition.lanes, partition.expiry, partition.sizes
        passed = offset - start if lanes is None else lanes.count(place.lane, start, offset)
        gone = expiry.gone_between(start, offset) if expiry is not None else []
        if sizes is not None:
            lost = {each for part in gone for each in range(*part)}
            mine = (each for each in range(start, offset) if lanes is None or lanes.count(place.lane, each, each + 1))
            group.held_bytes -= sum(sizes.of(each) for each in mine if each not in lost)
        place.cursor = offset
        self.trim_later()
        passed -= sum(last - first if lanes is None else lanes.count(place.lane, first, last) for first, last in gone)
        group.cursor_total += passed
        group.moved[place] = None
        self._agenda.groups_to_write[group] = None
        return passed

    def trace_discarded(
        self, group: ConsumerGroup | None, place: GroupPartition | QueuePartition, offset: int, detail: str
    ) -> None:
        """A message was given up without ever having been delivered."""
        self._contents.trace_place(
            TraceKind.DISCARDED, place.index, offset, group.group_id if group is not None else "", detail
        )


def _from(groups: Sequence[ConsumerGroup], turn: int) -> Iterator[ConsumerGroup]:
    """All of them, beginning with the one whose turn it is."""
    at = turn % len(groups) if groups else 0
    yield from groups[at:]
    yield from groups[:at]
