"""A consumer group: its members, what becomes of their deliveries, and its deadlines."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Protocol

from assay.reference_broker.config import EventKind, QueueConfig
from assay.reference_broker.queues.groups import group_recovery
from assay.reference_broker.queues.groups.group_state import WRITE_RETRY_S, GroupState, Trimmer
from assay.reference_broker.queues.groups.membership import Membership
from assay.reference_broker.queues.groups.pending import (
    DELIVERED,
    SETTLED,
    Consumer,
    Deliver,
    EntryState,
    GroupPartition,
    Notify,
    PendingEntry,
)
from assay.reference_broker.queues.groups.rebalance import Rebalance
from assay.reference_broker.queues.groups.retry import backoff_s, exhausted_reason
from assay.reference_broker.queues.groups.slow_consumers import SlowConsumers
from assay.reference_broker.queues.groups.subscribe_options import DEFAULT_OPTIONS, SubscribeOptions
from assay.reference_broker.queues.jobs.agenda import MAX_WORK, Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import PendingLog
from assay.reference_broker.queues.messages.address import is_dead_letter, message_id_of
from assay.reference_broker.queues.messages.lanes import scheduler_of
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.trace.schema import TraceKind, Tracer

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from assay.reference_broker.queues.messages.stored_message import StoredMessage


STALE_TIMEOUTS = 1_024


class GroupOwner(Trimmer, Protocol):
    """What a group needs of its queue."""

    groups: dict[str, ConsumerGroup]

    def dead_letter(
        self, group: ConsumerGroup, entry: PendingEntry, reason: str, now: float, on_done: Confirm | None
    ) -> None:
        """Move the entry's message to the dead-letter queue, or give it up where there is none."""

    def serve(self, group: ConsumerGroup, now: float) -> None:
        """Deliver what the group's consumers have room for."""

    def expire_next(self, group: ConsumerGroup, place: GroupPartition, stored: StoredMessage, now: float) -> None:
        """The message at the cursor has expired: pass it, and count it unless that was done."""

    def pass_over(self, group: ConsumerGroup, place: GroupPartition, end: int) -> int:
        """The group does not get what is in front of an offset; returns how many messages of the lane that are, without
        those that had left before."""

    def expire_entry(self, group: ConsumerGroup, entry: PendingEntry, stored: StoredMessage, now: float) -> None:
        """A message that waited for redelivery has expired."""

    def waits(self, group: ConsumerGroup, entry: PendingEntry, now: float) -> None:
        """A message waits for its next delivery, and may expire before that."""

    def left(self, partition: QueuePartition, offset: int) -> None:
        """Limits or time took a message that was never delivered."""

    def pass_time(self, group: ConsumerGroup, now: float) -> None:
        """Do what has become due in the group."""


class ConsumerGroup(GroupState):
    """Every group gets every message; one consumer of the group gets it."""

    owner: GroupOwner

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
        transient: bool = False,
    ) -> None:
        super().__init__(
            config, group_id, log, partitions, agenda, confirm_when_synced=confirm_when_synced, volatile=volatile
        )
        self.owner = owner
        self.pattern = pattern
        self.transient = transient
        """It goes with its consumer."""
        self.tracer = tracer
        self.has_trace = tracer is not None or agenda.tracing is not None
        self.rng = rng
        """Draws the nonces of receipts."""
        self.leaving = 0
        """Messages never delivered that go to the dead-letter queue; they do not count against the depth."""
        self.timeouts: deque[tuple[float, PendingEntry]] = deque()
        """Deliveries in order of their deadline; settled ones stay until pruned."""
        self._extensions: list[tuple[float, int, PendingEntry]] = []
        """A heap of the deadlines that consumers asked for; those that count no more stay until pruned."""
        self._extension_count = 0
        self._retry_times: list[float] = []
        self._dead_letter_retries: list[tuple[float, int, int, int, PendingEntry, str]] = []
        """A heap. A number tells two entries of one place apart: a reset leaves that of before it here."""
        self._dead_letter_retry_count = 0
        self.slow = SlowConsumers.for_group(self)
        self._has_left_some = False
        """A consumer left that held some."""
        self._left_behind: list[PendingEntry] = []
        """What consumers held that left; the first one last."""
        self.keeps_exhausted = is_dead_letter(config.name)
        self.rebalance = Rebalance(self)
        self.shared_limit = config.group.max_in_flight
        """Most deliveries with all consumers together; 0 = no limit."""
        self.in_flight = 0
        """Deliveries with consumers; only counted under a shared limit."""
        self._max_pending = config.group.max_pending
        self._moves = self.rebalance.moves
        self.membership = Membership(self)

    def reconfigure(self, config: QueueConfig) -> None:
        """Other settings hold from now on; deliveries that are out keep their deadlines."""
        if config.delivery_timeout_s != self.config.delivery_timeout_s:
            # Deadlines would not come in the order of the deliveries any more.
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
            self.scheduler = scheduler_of(config.priority, self.agenda.now)
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

    def recover(self, now: float) -> None:
        """Take up the log's state; see :func:`group_recovery.recover`. Raises :class:`LogError`."""
        group_recovery.recover(self, now, volatile=self._volatile)

    def serve(self, now: float) -> None:
        """See :class:`Served`."""
        if not self.is_new:
            self.owner.serve(self, now)

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
        if consumer_id not in self.consumers and len(self.consumers) >= self.config.group.max_consumers:
            text = f"the group {self.group_id!r} has {len(self.consumers)} consumers, which is the limit"
            raise QueueError(QueueErrorCode.LIMIT, text)
        previous = self.consumers.get(consumer_id)
        if previous is not None:
            self.detach(previous, now)
        consumer = Consumer(self.config.name, self.group_id, consumer_id, deliver, options, notify)
        consumer.limit = min(options.prefetch or self.config.max_in_flight, self.config.max_in_flight)
        self.consumers[consumer_id] = consumer
        self.rebalance.request()
        return consumer

    def leave(self, consumer: Consumer, now: float) -> None:
        """Remove a consumer; what it held is ready at once. One that left or was replaced is ignored."""
        if consumer.active:
            self.detach(consumer, now)
            self.rebalance.request()
            if not self.consumers:
                queue = self.config.name
                self.agenda.tell(EventKind.GROUP_EMPTY, queue, {"queue": queue, "group": self.group_id})

    def detach(self, consumer: Consumer, now: float) -> None:
        consumer.end()
        self.membership.left(consumer)
        del self.consumers[consumer.consumer_id]
        if consumer.in_flight:
            self._has_left_some = True
            if self.agenda.room > consumer.in_flight + (self.unsettled >> 4):
                self.take_back(now)
            else:
                self.agenda.groups_to_serve[self] = None

    def take_back(self, now: float) -> bool:
        """Have what consumers held that left wait again, as much as the turn has room for; False when there is more.

        Until all of it waits the group delivers nothing, so that nothing comes out of its order.
        """
        if self._has_left_some:
            self._has_left_some = False
            self.agenda.work += self.unsettled >> 4
            self._left_behind = [
                entry for place in self.every_place for entry in place.pending.values() if _is_left_behind(entry)
            ][::-1]
        while self._left_behind:
            if self.agenda.room <= 0:
                self.agenda.groups_to_serve[self] = None
                return False
            entry = self._left_behind.pop()
            if _is_left_behind(entry):
                self.agenda.work += 1
                self.retry(entry, now, now, "consumer left")
        return True

    @property
    def generation(self) -> int:
        """Grows with every consumer that joins or leaves."""
        return self.rebalance.generation

    @property
    def delivered_count(self) -> int:
        """Entries with consumers, those included that a transaction has acknowledged."""
        return self.unsettled - self.waiting_count - self.moving_count

    @property
    def is_committing(self) -> bool:
        """A transaction that has not ended has acknowledged deliveries of it."""
        entries = (entry for place in self.every_place for entry in place.pending.values())
        return any(entry.state is EntryState.COMMITTING for entry in entries)

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
        return entry if entry is not None and entry.state is DELIVERED else None

    def unsettled_entry(self, partition: int, offset: int) -> PendingEntry | None:
        """The entry at a place in any state but settled; None when there is none."""
        if partition >= len(self.places):
            return None
        place = self.places[partition]
        entry = place.pending.get(offset)
        if entry is None and place.lanes is not None:
            lanes, stored = place.lanes, place.partition.cached.get(offset)
            if stored is not None and stored.lane < len(lanes):
                # Where it is nearly always found: there may be hundreds of lanes.
                entry = lanes[stored.lane].pending.get(offset)
            if entry is None:
                entry = next((lane.pending[offset] for lane in lanes if offset in lane.pending), None)
        return entry

    @property
    def room_for_new(self) -> int:
        """First deliveries that the group's bound on unsettled messages still allows."""
        return self._max_pending - self.unsettled

    def room_for(self, most: int) -> int:
        """Of so many ready messages, those that consumers wait for and have room for."""
        room = 0
        for consumer in self.consumers.values():
            if not consumer.blocked and consumer.room > 0 and consumer.options.waits:
                room += consumer.room
                if room >= most:
                    return most
        return room

    def release(self, entry: PendingEntry) -> None:
        """Its consumer does not hold it any more, and was the last one."""
        consumer = entry.consumer
        if consumer is not None:
            entry.consumer = None
            entry.last_consumer = consumer.consumer_id
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

    def hold(self, entry: PendingEntry) -> None:
        """A transaction settles it: until that ends nobody gets it, whatever it waited for."""
        self.release(entry)
        self._holds_back_no_more(entry)
        entry.state = EntryState.COMMITTING

    def forget(self, entry: PendingEntry) -> None:
        """Nothing becomes of it: where the group stands is set anew."""
        self.release(entry)
        self._leaves_no_more(entry)
        self._holds_back_no_more(entry)
        if entry.state is EntryState.DEAD_LETTERING:
            self.moving_count -= 1
        entry.state = SETTLED
        del entry.place.pending[entry.offset]
        self.unsettled -= 1
        self.log.ack(entry.place.number, entry.offset)

    def remove(self, entry: PendingEntry, on_done: Confirm | None) -> None:
        """Settle for good; ``on_done`` is called when that is as durable as the queue promises."""
        self.release(entry)
        self._holds_back_no_more(entry)
        if entry.state is EntryState.DEAD_LETTERING:
            self.moving_count -= 1
        entry.state = SETTLED
        if self._counts_bytes:
            size = self.bytes_of(entry)
            self.held_bytes -= size
            self.out_bytes -= size
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

    def remove_many(self, entries: Sequence[PendingEntry]) -> None:
        """As :meth:`remove` for each; :meth:`confirm_when_written` follows."""
        if self._counts_bytes or self._moves or self.shared_limit or self.slow is not None:
            for entry in entries:
                self.remove(entry, None)
            return
        wants_more = self.unsettled >= self._max_pending > self.unsettled - len(entries)
        place: GroupPartition | None = None
        offsets: list[int] = []
        for entry in entries:
            consumer = entry.consumer
            if consumer is not None:
                entry.consumer = None
                if consumer.in_flight >= consumer.limit:
                    wants_more = True
                consumer.in_flight -= 1
            elif entry.state is EntryState.WAITING:
                self.stops_waiting(entry)
            entry.state = SETTLED
            if entry.place is not place:
                if place is not None:
                    self.log.ack_all(place.number, offsets)
                place, offsets = entry.place, []
            del place.pending[entry.offset]
            offsets.append(entry.offset)
        if place is not None:
            self.log.ack_all(place.number, offsets)
        if wants_more:
            self.agenda.groups_to_serve[self] = None
        self.unsettled -= len(entries)
        self._settled_since_trim += len(entries)
        self.agenda.groups_to_write[self] = None

    def retry(self, entry: PendingEntry, due: float, now: float, cause: str, on_done: Confirm | None = None) -> None:
        """A delivery failed: wait for the next, or dead-letter when it was the last."""
        self.release(entry)
        reason = exhausted_reason(self.config.retry, entry.delivery_count, now - entry.enqueued_at)
        if reason is not None and not self.keeps_exhausted:
            self.dead_letter(entry, reason, now, on_done)
            return
        entry.deadline = due if due > now else self.ready_since(due)
        self.log.expire(entry.place.number, entry.offset, int(due * 1000))
        self.confirm_when_written(on_done)
        self.trace(TraceKind.RETRY_SCHEDULED, entry, cause)
        self._wait(entry, now)

    def gives_up(self, entry: PendingEntry, stored: StoredMessage, now: float) -> bool:
        """What waits becomes a dead letter when its last delivery had failed for good; that happens after a restart."""
        age_s = entry.lost_at - stored.enqueued_at if entry.lost_at else 0.0
        reason = exhausted_reason(self.config.retry, entry.delivery_count - entry.released, age_s)
        if reason is not None and not self.keeps_exhausted:
            self.dead_letter(entry, reason, now, None)
            return True
        if entry.lost_at:
            # The next start knows that it failed now, not then.
            self.log.expire(entry.place.number, entry.offset, int(entry.lost_at * 1000))
            self.agenda.groups_to_write[self] = None
            entry.lost_at = 0.0
        return False

    def give_back(self, entry: PendingEntry, now: float, on_done: Confirm | None) -> None:
        """Its consumer has not tried it: it is ready at once, and its next delivery has the number of this one.

        Over a restart before that, the first delivery counts after all.
        """
        self.release(entry)
        entry.released = True
        entry.deadline = self.ready_since(now)
        if entry.delivery_count > 1:
            count = entry.logged_count
            self.log.claim(entry.place.number, entry.offset, entry.last_consumer, int(now * 1000), count)
        self.log.expire(entry.place.number, entry.offset, int(now * 1000))
        self.confirm_when_written(on_done)
        self.trace(TraceKind.RETRY_SCHEDULED, entry, "released")
        self._wait(entry, now)

    def annotate(self, entry: PendingEntry, annotations: bytes) -> None:
        """All that consumers have noted on it so far; what becomes of it now follows."""
        entry.annotations = annotations
        self.log.annotate(entry.place.number, entry.offset, annotations)

    def wait_again(self, entry: PendingEntry, now: float) -> None:
        """An entry that is with nobody waits for its next delivery."""
        self._wait(entry, now)

    def _wait(self, entry: PendingEntry, now: float) -> None:
        self.starts_waiting(entry)
        if entry.deadline <= now:
            self.agenda.groups_to_serve[self] = None
        else:
            heapq.heappush(self._retry_times, entry.deadline)
            self.agenda.wake(self, entry.deadline)
        self.owner.waits(self, entry, now)

    def dead_letter(self, entry: PendingEntry, reason: str, now: float, on_done: Confirm | None) -> None:
        """Give the message to the dead-letter queue; it stays pending until that has it."""
        self.release(entry)
        self._holds_back_no_more(entry)
        entry.state = EntryState.DEAD_LETTERING
        self.moving_count += 1
        self.owner.dead_letter(self, entry, reason, now, on_done)

    def _holds_back_no_more(self, entry: PendingEntry) -> None:
        """What waited behind a message that waited for its retry may come, if that goes without one."""
        if entry.state is EntryState.WAITING:
            self.stops_waiting(entry)
            self.agenda.groups_to_serve[self] = None

    def dead_lettered(self, entry: PendingEntry, reason: str, on_done: Confirm | None) -> None:
        """The dead-letter queue has it."""
        if entry.state is not EntryState.DEAD_LETTERING:
            # The group was reset meanwhile.
            self.confirm_when_written(on_done)
            return
        self.counts.dead_lettered += 1
        self._leaves_no_more(entry)
        self.trace(TraceKind.DEAD_LETTERED, entry, reason)
        self.remove(entry, on_done)
        if not entry.delivery_count:
            self.owner.left(entry.place.partition, entry.offset)

    def dead_letter_failed(self, entry: PendingEntry, reason: str) -> None:
        """The dead-letter queue refused it; try again later."""
        due = self.agenda.now + max(WRITE_RETRY_S, backoff_s(self.config.retry, 1))
        self._dead_letter_retry_count += 1
        at = due, entry.place.index, entry.offset, self._dead_letter_retry_count
        heapq.heappush(self._dead_letter_retries, (*at, entry, reason))
        self.agenda.wake(self, due)

    def discard(self, entry: PendingEntry, detail: str, on_done: Confirm | None = None) -> None:
        """Give a message up, visibly."""
        self.trace(TraceKind.DISCARDED, entry, detail)
        self._leaves_no_more(entry)
        self.remove(entry, on_done)

    def _leaves_no_more(self, entry: PendingEntry) -> None:
        """However it ends: if it was given to the dead-letter queue undelivered, it is not on its way any more."""
        if entry.state is EntryState.DEAD_LETTERING and not entry.delivery_count and not self.keeps_exhausted:
            self.leaving -= 1

    def trace_run(self, kind: TraceKind, entries: Sequence[PendingEntry], detail: str = "") -> None:
        """As :meth:`trace` of each."""
        if self.tracer is None:
            entries = [each for each in entries if (noted := each.place.partition.traced) and each.offset in noted]
        for entry in entries:
            self.trace(kind, entry, detail)

    def trace(self, kind: TraceKind, entry: PendingEntry, detail: str = "") -> None:
        """Tell the trace, if there is one, what became of a message."""
        place = entry.place.partition
        if place.traced and (traced := place.traced.get(entry.offset)) is not None:
            consumer = entry.last_consumer if entry.consumer is None else entry.consumer.consumer_id
            told = self.group_id, consumer, entry.delivery_count, detail
            place.happened(kind, traced, *told, len(self.owner.groups))
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

    def extend(self, entry: PendingEntry, deadline: float) -> None:
        """A delivery times out at another time than it would have."""
        entry.deadline = deadline
        self._extension_count += 1
        heapq.heappush(self._extensions, (deadline, self._extension_count, entry))
        self.agenda.wake(self, deadline)
        if len(self._extensions) > 2 * self.unsettled + STALE_TIMEOUTS:
            live = {item[2]: item for item in self._extensions if _is_live(item[0], item[2])}
            self._extensions = sorted(live.values())

    # -- time ----------------------------------------------------------------------------------------------------

    def due_timeouts(self, now: float) -> list[PendingEntry]:
        """Deliveries whose time is over, as many as there is room for."""
        # Given back and delivered again at one time, an entry has two timeouts with one deadline.
        due: dict[PendingEntry, None] = {}
        # Each of them takes as much as two deliveries.
        room = max(1, self.agenda.room >> 1)
        timeouts = self.timeouts
        while timeouts and timeouts[0][0] <= now and len(due) < room:
            deadline, entry = timeouts.popleft()
            if entry.state is DELIVERED and entry.deadline == deadline:
                due[entry] = None
        extensions = self._extensions
        while extensions and extensions[0][0] <= now and len(due) < room:
            deadline, _, entry = heapq.heappop(extensions)
            if _is_live(deadline, entry):
                due[entry] = None
        self.agenda.work += 2 * len(due)
        return list(due)

    def due_dead_letters(self, now: float) -> list[tuple[PendingEntry, str]]:
        """Entries whose move to the dead-letter queue is to be tried again, with the reason, likewise."""
        due: list[tuple[PendingEntry, str]] = []
        room = self.agenda.room
        while self._dead_letter_retries and self._dead_letter_retries[0][0] <= now and len(due) < room:
            *_, entry, reason = heapq.heappop(self._dead_letter_retries)
            due.append((entry, reason))
        return due

    def pass_time(self, now: float) -> None:
        """See :class:`Wakeable`."""
        self.owner.pass_time(self, now)

    def rearm(self, now: float) -> None:
        """Ask to be woken for whatever comes first."""
        retries = self._retry_times
        for _ in range(MAX_WORK):
            if not retries or retries[0] > now:
                break
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
        if self.stalled_until > now:
            self.agenda.wake(self, self.stalled_until)
        self.membership.rearm()

    def prune_timeouts(self) -> None:
        """Forget settled deliveries: those in front, and all once they are the most."""
        timeouts = self.timeouts
        while timeouts:
            # As _is_live, without the call: this is done for every delivery.
            deadline, entry = timeouts[0]
            if entry.state is DELIVERED and entry.deadline == deadline:
                break
            timeouts.popleft()
        if len(timeouts) > 2 * self.unsettled + STALE_TIMEOUTS:
            self.timeouts = deque(pair for pair in timeouts if _is_live(*pair))


def _is_left_behind(entry: PendingEntry) -> bool:
    consumer = entry.consumer
    return consumer is not None and not consumer.active and entry.state is DELIVERED


def _is_live(deadline: float, entry: PendingEntry) -> bool:
    return entry.state is DELIVERED and entry.deadline == deadline
