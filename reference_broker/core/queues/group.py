"""A consumer group: its members, its view of every partition, and its log of pending entries."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Protocol

from reference_broker.config import Ordering, QueueConfig
from reference_broker.core.queues import group_recovery
from reference_broker.core.queues.address import is_dead_letter, message_id_of
from reference_broker.core.queues.agenda import Agenda
from reference_broker.core.queues.confirms import Confirm, SyncPoint, call_all
from reference_broker.core.queues.consumer import Consumer, Deliver, Notify
from reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode
from reference_broker.core.queues.group_counts import GroupCounts
from reference_broker.core.queues.lanes import LaneScheduler
from reference_broker.core.queues.membership import Membership
from reference_broker.core.queues.partition import QueuePartition
from reference_broker.core.queues.pending import EntryState, GroupPartition, PendingEntry
from reference_broker.core.queues.rebalance import Rebalance
from reference_broker.core.queues.retry import exhausted_reason
from reference_broker.core.queues.slow_consumers import SlowConsumers
from reference_broker.core.queues.store import CursorRecord, PendingLog, PendingRecord
from reference_broker.core.queues.subscribe_options import DEFAULT_OPTIONS, SubscribeOptions
from reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    Tracer = Callable[[TraceKind, dict[str, str | int]], None]

MAX_CONSUMERS = 10_000
WRITE_RETRY_S = 1.0
"""After a failed write the group rests this long before it tries again."""
_STALE_TIMEOUTS = 1_024
_SETTLED_PER_TRIM = 1_024
_TRIM_INTERVAL_S = 1.0


class GroupOwner(Protocol):
    """What a group needs of its queue."""

    def dead_letter(
        self, group: ConsumerGroup, entry: PendingEntry, reason: str, now: float, on_done: Confirm | None
    ) -> None:
        """Move the entry's message to the dead-letter queue, or give it up where there is none."""

    def serve(self, group: ConsumerGroup, now: float) -> None:
        """Deliver what the group's consumers have room for."""

    def expire_next(self, group: ConsumerGroup, place: GroupPartition, now: float) -> None:
        """The message at the cursor has expired: pass it, and count it unless that was done."""

    def expire_entry(self, group: ConsumerGroup, entry: PendingEntry, now: float) -> None:
        """A message that waited for redelivery has expired."""

    def trim(self) -> None:
        """Free log space that no group needs."""

    def pass_time(self, group: ConsumerGroup, now: float) -> None:
        """Do what has become due in the group."""


class ConsumerGroup(SyncPoint):
    """Every group gets every message; one consumer of the group gets it."""

    def __init__(
        self,
        owner: GroupOwner,
        config: QueueConfig,
        group_id: str,
        pattern: str,
        log: PendingLog,
        partitions: Sequence[QueuePartition],
        agenda: Agenda,
        tracer: Tracer | None,
        *,
        rng: random.Random,
        confirm_when_synced: bool,
        volatile: bool,
    ) -> None:
        super().__init__(log)
        self.owner = owner
        self.config = config
        self.group_id = group_id
        self.pattern = pattern
        self.log = log
        self.agenda = agenda
        self.tracer = tracer
        self.rng = rng
        """Draws the nonces of receipts."""
        self.ordered = config.ordering is not Ordering.NONE
        self.consumers: dict[str, Consumer] = {}
        self.counts = GroupCounts()
        self.unsettled = 0
        """Pending entries of all partitions."""
        self.held_bytes = 0
        """Bytes of what it has not settled, where the queue limits its bytes."""
        self.leaving = 0
        """Messages never delivered that go to the dead-letter queue; they do not count against the depth."""
        self.cursor_total = 0
        """Sum of the cursors of all partitions."""
        self.wake_at = float("inf")
        self.stalled_until = 0.0
        self.timeouts: deque[tuple[float, PendingEntry]] = deque()
        """Deliveries in order of their deadline; settled ones stay until pruned."""
        self.moved: dict[GroupPartition, None] = {}
        """Partitions whose cursor moved without a delivery."""
        self._extensions: list[tuple[float, int, PendingEntry]] = []
        """A heap of the deadlines that consumers asked for; those that count no more stay until pruned."""
        self._extension_count = 0
        self._retry_times: list[float] = []
        self._dead_letter_retries: list[tuple[float, int, int, PendingEntry, str]] = []
        self._confirms: list[Confirm] = []
        self._confirm_when_synced = confirm_when_synced
        self._volatile = volatile
        self._settled_since_trim = 0
        self._trim_at = 0.0
        self._counts_bytes = config.max_bytes > 0
        self.slow = SlowConsumers.for_group(self)
        self.keeps_exhausted = is_dead_letter(config.name)
        self.places = [GroupPartition(partition, cursor=0, ordered=self.ordered) for partition in partitions]
        self.rebalance = Rebalance(self)
        self.shared_limit = config.group.max_in_flight
        """Most deliveries with all consumers together; 0 = no limit."""
        self.in_flight = 0
        """Deliveries with consumers; only counted under a shared limit."""
        self._max_pending = config.group.max_pending
        self._moves = self.rebalance.moves
        self.membership = Membership(self)
        self.scheduler: LaneScheduler | None = None
        """Once a partition has lanes."""
        for place in self.places:
            if place.partition.lanes is not None:
                self.open_lanes(place)

    @property
    def every_place(self) -> Sequence[GroupPartition]:
        """The places of all partitions and lanes."""
        if self.scheduler is None:
            return self.places
        return [lane for place in self.places for lane in place.lanes or (place,)]

    def open_lanes(self, place: GroupPartition) -> None:
        """The partition has lanes now."""
        place.open_lanes()
        if self.scheduler is None:
            priority = self.config.priority
            self.scheduler = LaneScheduler(priority.weights, priority.starvation_s, self.agenda.now)

    def reconfigure(self, config: QueueConfig) -> None:
        """Other settings hold from now on; deliveries that are out keep their deadlines."""
        # With another timeout, deadlines would not come in the order of the deliveries any more.
        for deadline, entry in self.timeouts:
            if _is_live(deadline, entry):
                self._extension_count += 1
                heapq.heappush(self._extensions, (deadline, self._extension_count, entry))
        self.timeouts.clear()
        self.config = config
        self.shared_limit = config.group.max_in_flight
        self._max_pending = config.group.max_pending
        self.in_flight = sum(consumer.in_flight for consumer in self.consumers.values())
        for consumer in self.consumers.values():
            consumer.limit = min(consumer.options.prefetch or config.max_in_flight, config.max_in_flight)
        self.rebalance.reconfigure(config.group)
        self.slow = SlowConsumers.for_group(self)
        if self.scheduler is not None:
            self.scheduler = LaneScheduler(config.priority.weights, config.priority.starvation_s, self.agenda.now)
        self.agenda.groups_to_serve[self] = None

    def add_partitions(self, partitions: Sequence[QueuePartition], config: QueueConfig) -> None:
        """The queue has these, too, from now on."""
        self.config = config
        for partition in partitions:
            place = GroupPartition(partition, cursor=partition.head, ordered=self.ordered)
            self.cursor_total += place.cursor
            self.places.append(place)
            if partition.lanes is not None:
                self.open_lanes(place)
        self.rebalance.request()

    def low(self, partition: int) -> int:
        """The lowest offset of a partition that is not settled; at most the end of what is delivered or may be."""
        place = self.places[partition]
        if place.lanes is None:
            return place.committed
        return min(lane.needed_from for lane in place.lanes)

    # -- opening -------------------------------------------------------------------------------------------------

    def start_at(self, cursors: Sequence[int]) -> None:
        """A new group: where it begins in each partition."""
        for place, cursor in zip(self.places, cursors, strict=True):
            for lane in place.lanes or (place,):
                lane.cursor = cursor
                if cursor:
                    self.log.move_cursor(lane.number, cursor)
        self.cursor_total = sum(cursors)
        self.count_what_is_there()
        self.agenda.groups_to_write[self] = None

    def recover(self, now: float) -> None:
        """Take up the log's state; see :func:`group_recovery.recover`. Raises :class:`LogError`."""
        group_recovery.recover(self, now, volatile=self._volatile)

    def recount(self) -> None:
        """Cursors were set anew: count again what depends on them."""
        self.cursor_total = sum(place.passed for place in self.places)
        self.held_bytes = 0
        self.count_what_is_there()

    def count_what_is_there(self) -> None:
        """Take out what has expired before its turn, and sum up the bytes."""
        for place in self.every_place:
            self.cursor_total += len(group_recovery.gone_of(place))
        if self._counts_bytes:
            self.count_bytes()

    def count_bytes(self) -> None:
        """The queue limits its bytes from now on: sum up what is not settled."""
        self._counts_bytes = True
        self.held_bytes = group_recovery.unsettled_bytes(self)

    # -- members -------------------------------------------------------------------------------------------------

    def join(
        self,
        consumer_id: str,
        deliver: Deliver,
        now: float,
        options: SubscribeOptions = DEFAULT_OPTIONS,
        notify: Notify | None = None,
    ) -> Consumer:
        """Add a consumer; one of the same id is replaced. Raises :class:`QueueError` (LIMIT)."""
        if consumer_id not in self.consumers and len(self.consumers) >= MAX_CONSUMERS:
            text = f"the group {self.group_id!r} has {MAX_CONSUMERS} consumers, which is the limit"
            raise QueueError(QueueErrorCode.LIMIT, text)
        previous = self.consumers.get(consumer_id)
        if previous is not None:
            self._detach(previous, now)
        consumer = Consumer(self.config.name, self.group_id, consumer_id, deliver, options, notify)
        consumer.limit = min(options.prefetch or self.config.max_in_flight, self.config.max_in_flight)
        self.consumers[consumer_id] = consumer
        self.rebalance.request()
        return consumer

    def leave(self, consumer: Consumer, now: float) -> None:
        """Remove a consumer; what it held is ready at once. One that left or was replaced is ignored."""
        if consumer.active:
            self._detach(consumer, now)
            self.rebalance.request()

    def _detach(self, consumer: Consumer, now: float) -> None:
        consumer.active = False
        self.membership.left(consumer)
        del self.consumers[consumer.consumer_id]
        held = [entry for place in self.every_place for entry in place.pending.values() if entry.consumer is consumer]
        for entry in held:
            self.retry(entry, now, now, "consumer left")

    @property
    def generation(self) -> int:
        """Grows with every consumer that joins or leaves."""
        return self.rebalance.generation

    def entry_states(self) -> tuple[int, int, int]:
        """Numbers of entries delivered, waiting, and on their way to the dead-letter queue."""
        states = [entry.state for place in self.every_place for entry in place.pending.values()]
        waiting, moving = states.count(EntryState.WAITING), states.count(EntryState.DEAD_LETTERING)
        return len(states) - waiting - moving, waiting, moving

    # -- entries -------------------------------------------------------------------------------------------------

    def pending_entry(self, partition: int, offset: int) -> PendingEntry | None:
        """The entry with a consumer at a place; None when there is none."""
        # As unsettled_entry: one call less for each settlement.
        if partition >= len(self.places):
            return None
        place = self.places[partition]
        entry = place.pending.get(offset)
        if entry is None and place.lanes is not None:
            entry = self.unsettled_entry(partition, offset)
        return entry if entry is not None and entry.state is EntryState.DELIVERED else None

    def unsettled_entry(self, partition: int, offset: int) -> PendingEntry | None:
        """The entry at a place in any state but settled; None when there is none."""
        if partition >= len(self.places):
            return None
        place = self.places[partition]
        entry = place.pending.get(offset)
        if entry is None and place.lanes is not None:
            entry = next((lane.pending[offset] for lane in place.lanes if offset in lane.pending), None)
        return entry

    @property
    def room_for_new(self) -> int:
        """First deliveries that the group's bound on unsettled messages still allows."""
        return self._max_pending - self.unsettled

    def release(self, entry: PendingEntry) -> None:
        """Its consumer does not hold it any more."""
        consumer = entry.consumer
        if consumer is not None:
            entry.consumer = None
            self.let_go(consumer, entry.place)

    def let_go(self, consumer: Consumer, place: GroupPartition) -> None:
        """A consumer holds one delivery less."""
        if self.shared_limit:
            self.in_flight -= 1
            self.agenda.groups_to_serve[self] = None
        elif consumer.in_flight >= consumer.limit:
            self.agenda.groups_to_serve[self] = None
        consumer.in_flight -= 1
        if self.slow is not None:
            self.slow.settled(consumer)
        if self._moves:
            self.rebalance.released(consumer, place)

    def forget(self, entry: PendingEntry) -> None:
        """Nothing becomes of it: where the group stands is set anew."""
        self.release(entry)
        entry.state = EntryState.SETTLED
        del entry.place.pending[entry.offset]
        self.unsettled -= 1
        self.log.ack(entry.place.number, entry.offset)

    def remove(self, entry: PendingEntry, on_done: Confirm | None) -> None:
        """Settle for good; ``on_done`` is called when that is as durable as the queue promises."""
        self.release(entry)
        entry.state = EntryState.SETTLED
        if self._counts_bytes and entry.delivery_count:
            sizes = entry.place.partition.sizes
            self.held_bytes -= sizes.of(entry.offset) if sizes is not None else 0
        del entry.place.pending[entry.offset]
        if self.unsettled == self._max_pending:
            self.agenda.groups_to_serve[self] = None
        self.unsettled -= 1
        self._settled_since_trim += 1
        self.log.ack(entry.place.number, entry.offset)
        if on_done is None:
            self.agenda.groups_to_write[self] = None
        else:
            self.confirm_when_written(on_done)

    def confirm_when_written(self, on_done: Confirm | None) -> None:
        """Call it once what the log was told so far is as durable as the queue promises."""
        if on_done is not None:
            if self.failure is not None:
                on_done(self.failure)
                return
            self._confirms.append(on_done)
        self.agenda.groups_to_write[self] = None

    def retry(self, entry: PendingEntry, due: float, now: float, cause: str, on_done: Confirm | None = None) -> None:
        """A delivery failed: wait for the next, or dead-letter when it was the last."""
        if entry.consumer is not None:
            entry.last_consumer = entry.consumer.consumer_id
        self.release(entry)
        reason = exhausted_reason(self.config.retry, entry.delivery_count, now - entry.enqueued_at)
        if reason is not None and not self.keeps_exhausted:
            self.dead_letter(entry, reason, now, on_done)
            return
        entry.deadline = due
        self.log.expire(entry.place.number, entry.offset, int(due * 1000))
        self.confirm_when_written(on_done)
        self.trace(TraceKind.RETRY_SCHEDULED, entry, cause)
        self._wait(entry, now)

    def wait_again(self, entry: PendingEntry, now: float) -> None:
        """An entry that is with nobody waits for its next delivery."""
        self._wait(entry, now)

    def _wait(self, entry: PendingEntry, now: float) -> None:
        entry.state = EntryState.WAITING
        entry.place.push_waiting(entry)
        if entry.deadline <= now:
            self.agenda.groups_to_serve[self] = None
        else:
            heapq.heappush(self._retry_times, entry.deadline)
            self.agenda.wake(self, entry.deadline)

    def dead_letter(self, entry: PendingEntry, reason: str, now: float, on_done: Confirm | None) -> None:
        """Give the message to the dead-letter queue; it stays pending until that has it."""
        if entry.consumer is not None:
            entry.last_consumer = entry.consumer.consumer_id
        self.release(entry)
        entry.state = EntryState.DEAD_LETTERING
        self.owner.dead_letter(self, entry, reason, now, on_done)

    def dead_lettered(self, entry: PendingEntry, reason: str, on_done: Confirm | None) -> None:
        """The dead-letter queue has it."""
        if entry.state is not EntryState.DEAD_LETTERING:
            # The group was reset meanwhile.
            self.confirm_when_written(on_done)
            return
        self.counts.dead_lettered += 1
        self.leaving -= not entry.delivery_count
        self.trace(TraceKind.DEAD_LETTERED, entry, reason)
        self.remove(entry, on_done)

    def dead_letter_failed(self, entry: PendingEntry, reason: str) -> None:
        """The dead-letter queue refused it; try again later."""
        due = self.agenda.now + max(WRITE_RETRY_S, self.config.retry.initial_backoff_s)
        heapq.heappush(self._dead_letter_retries, (due, entry.place.index, entry.offset, entry, reason))
        self.agenda.wake(self, due)

    def discard(self, entry: PendingEntry, detail: str, on_done: Confirm | None = None) -> None:
        """Give a message up, visibly."""
        self.trace(TraceKind.DISCARDED, entry, detail)
        self.remove(entry, on_done)

    def trace(self, kind: TraceKind, entry: PendingEntry, detail: str = "") -> None:
        if self.tracer is not None:
            partition = entry.place.index
            fields: dict[str, str | int] = {
                "queue": self.config.name,
                "partition": partition,
                "offset": entry.offset,
                "message_id": message_id_of(self.config.name, partition, entry.offset),
                "group": self.group_id,
                "delivery_count": entry.delivery_count,
            }
            if entry.consumer is not None:
                fields["client_id"] = entry.consumer.consumer_id
            if detail:
                fields["detail"] = detail
            self.tracer(kind, fields)

    # -- log -----------------------------------------------------------------------------------------------------

    def write(self, now: float) -> None:
        """Write what happened since the last time; settlements are confirmed then, or by the sync that covers them."""
        for place in self.moved:
            self.log.move_cursor(place.number, place.cursor)
        self.moved.clear()
        confirms, self._confirms = self._confirms, []
        try:
            self.log.flush()
        except LogError as error:
            if error.sticky:
                self.fail(str(error))
            else:
                self.stall(now)
            call_all(confirms, QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))
            return
        if not self._volatile:
            self.agenda.unsynced[self] = None
        if self._confirm_when_synced and confirms and (self.log.needs_sync or self.is_syncing):
            self.waiting += confirms
            self.agenda.awaited_syncs[self] = None
        else:
            call_all(confirms, None)
        if self.log.wants_snapshot(self.unsettled):
            self._begin_snapshot(now)
        if self.log.continue_snapshot():
            self.agenda.groups_to_write[self] = None
        if self._settled_since_trim >= _SETTLED_PER_TRIM or (self._settled_since_trim and now >= self._trim_at):
            self._settled_since_trim = 0
            self._trim_at = now + _TRIM_INTERVAL_S
            self.owner.trim()

    def stall(self, now: float) -> None:
        """The disk refused something that may work later: rest, then try again."""
        self.stalled_until = now + WRITE_RETRY_S
        self.agenda.wake(self, self.stalled_until)

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """See :meth:`SyncPoint.finish_sync`. A snapshot may need another sync even when nothing is written."""
        finished = super().finish_sync(error)
        if self.log.needs_sync:
            self.agenda.unsynced[self] = None
        elif self.waiting and error is None:
            # They changed nothing that this sync did not cover.
            finished += [(confirm, self.failure) for confirm in self.waiting]
            self.waiting = []
        return finished

    def _begin_snapshot(self, now: float) -> None:
        """Replace the log by what is pending now. Entries are only listed here; each turn describes some of them."""
        cursors = {place.number: CursorRecord(place.cursor, place.committed) for place in self.every_place}
        entries = [entry for place in self.every_place for entry in place.pending.values()]
        self.log.begin_snapshot(cursors, _described(entries), int(now * 1000))

    def extend(self, entry: PendingEntry, deadline: float) -> None:
        """A delivery times out at another time than it would have."""
        entry.deadline = deadline
        self._extension_count += 1
        heapq.heappush(self._extensions, (deadline, self._extension_count, entry))
        self.agenda.wake(self, deadline)
        if len(self._extensions) > 2 * self.unsettled + _STALE_TIMEOUTS:
            live = {item[2]: item for item in self._extensions if _is_live(item[0], item[2])}
            self._extensions = sorted(live.values())

    # -- time ----------------------------------------------------------------------------------------------------

    def due_timeouts(self, now: float) -> list[PendingEntry]:
        """Deliveries whose time is over."""
        # Given back and delivered again at one time, an entry has two timeouts with one deadline.
        due: dict[PendingEntry, None] = {}
        timeouts = self.timeouts
        while timeouts and timeouts[0][0] <= now:
            deadline, entry = timeouts.popleft()
            if entry.state is EntryState.DELIVERED and entry.deadline == deadline:
                due[entry] = None
        extensions = self._extensions
        while extensions and extensions[0][0] <= now:
            deadline, _, entry = heapq.heappop(extensions)
            if _is_live(deadline, entry):
                due[entry] = None
        return list(due)

    def due_dead_letters(self, now: float) -> list[tuple[PendingEntry, str]]:
        """Entries whose move to the dead-letter queue is to be tried again, with the reason."""
        due: list[tuple[PendingEntry, str]] = []
        while self._dead_letter_retries and self._dead_letter_retries[0][0] <= now:
            _, _, _, entry, reason = heapq.heappop(self._dead_letter_retries)
            due.append((entry, reason))
        return due

    def pass_time(self, now: float) -> None:
        """See :class:`Wakeable`."""
        self.owner.pass_time(self, now)

    def rearm(self, now: float) -> None:
        """Ask to be woken for whatever comes first."""
        retries = self._retry_times
        while retries and retries[0] <= now:
            heapq.heappop(retries)
        self.prune_timeouts()
        if self.timeouts:
            self.agenda.wake(self, self.timeouts[0][0])
        if retries:
            self.agenda.wake(self, retries[0])
        extensions = self._extensions
        while extensions and not _is_live(extensions[0][0], extensions[0][2]):
            heapq.heappop(extensions)
        if extensions:
            self.agenda.wake(self, extensions[0][0])
        if self._dead_letter_retries:
            self.agenda.wake(self, self._dead_letter_retries[0][0])
        if self._moves:
            self.agenda.wake(self, self.rebalance.deadline)
        self.membership.rearm()

    def prune_timeouts(self) -> None:
        """Forget settled deliveries: those in front, and all once they are the most."""
        timeouts = self.timeouts
        while timeouts and not _is_live(*timeouts[0]):
            timeouts.popleft()
        if len(timeouts) > 2 * self.unsettled + _STALE_TIMEOUTS:
            self.timeouts = deque(pair for pair in timeouts if _is_live(*pair))


def _described(entries: Sequence[PendingEntry]) -> Iterator[PendingRecord]:
    """The entries that are still pending when it is their turn, as they are then."""
    for entry in entries:
        if entry.state is not EntryState.SETTLED:
            yield PendingRecord(
                entry.place.number,
                entry.offset,
                entry.consumer.consumer_id if entry.consumer is not None else "",
                int(entry.claimed_at * 1000),
                int(entry.deadline * 1000) if entry.state is EntryState.WAITING else 0,
                entry.delivery_count,
            )


def _is_live(deadline: float, entry: PendingEntry) -> bool:
    return entry.state is EntryState.DELIVERED and entry.deadline == deadline
