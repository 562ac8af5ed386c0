"""Where a group stands in every partition and lane, and how its log learns of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from assay.reference_broker.config import Ordering, QueueConfig
from assay.reference_broker.queues.groups.group_counts import GroupCounts
from assay.reference_broker.queues.groups.pending import Consumer, EntryState, GroupPartition, PendingEntry
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint, call_all, ignore
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingLog, PendingRecord
from assay.reference_broker.queues.messages.lanes import LaneScheduler, scheduler_of
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.trace.schema import TraceKind, Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WRITE_RETRY_S = 1.0
"""After a failed write the group rests this long before it tries again."""
SETTLED_PER_TRIM = 1_024
_TRIM_INTERVAL_S = 1.0


class Trimmer(Protocol):
    """Who frees what groups need no more, and holds back what they write until there is a place for it."""

    is_new: bool
    """It is not made yet."""

    def trim(self) -> None:
        """Free log space that no group needs."""

    def holds(self, group: Any) -> bool:
        """Nothing of a group is to be written now: it will be, later, unless it goes."""


class GroupState(SyncPoint, ABC):
    """Where a group stands: its log, the places that the log speaks of, and its consumers.

    It is what the parts of a group know of it: what they make it do is abstract here.
    """

    owner: Trimmer
    tracer: Tracer | None
    """Takes every step of every message."""
    has_trace: bool
    """Somebody is told what becomes of messages, of some at least."""

    def __init__(
        self,
        config: QueueConfig,
        group_id: str,
        log: PendingLog,
        partitions: Sequence[QueuePartition],
        agenda: Agenda,
        *,
        confirm_when_synced: bool,
        volatile: bool,
    ) -> None:
        super().__init__(log)
        self.config = config
        self.group_id = group_id
        self.log = log
        self.agenda = agenda
        self.ordered = config.ordering in (Ordering.PARTITION, Ordering.STRICT)
        self._keeps_places = config.ordering is Ordering.PLACE
        self.consumers: dict[str, Consumer] = {}
        self.counts = GroupCounts()
        self.unsettled = 0
        """Pending entries of all partitions."""
        self.waiting_count = 0
        """Those among them that wait for a delivery."""
        self.untried_count = 0
        """Of them, those that wait for their first delivery; see ``groups.take_up``."""
        self.moving_count = 0
        """Entries on their way to the dead-letter queue."""
        self.held_bytes = 0
        """Bytes of what it has not settled, where the queue limits its bytes."""
        self.out_bytes = 0
        """Those among them that are not ready."""
        self.back_bytes = 0
        """Those among them that are ready again: somebody was given them before."""
        self.cursor_total = 0
        """Sum of the cursors of all partitions."""
        self.wake_at = float("inf")
        self.stalled_until = 0.0
        self.moved: dict[GroupPartition, None] = {}
        """Partitions whose cursor moved without a delivery."""
        self._confirms: list[Confirm] = []
        self._is_gone = False
        """It was deleted: what is still told of it holds."""
        self.is_leaving = False
        """It is being deleted."""
        self.is_new = False
        """A loss of power may yet undo where it begins: until a sync has covered that, nobody is told that it is there,
        and nothing is delivered from it."""
        self._told_when_begun: list[Confirm] = []
        self._confirm_when_synced = confirm_when_synced
        self._volatile = volatile
        self._settled_since_trim = 0
        self._trim_at = 0.0
        self._counts_bytes = config.max_bytes > 0
        self.places = [GroupPartition(partition, cursor=0, ordered=self.ordered) for partition in partitions]
        self.scheduler: LaneScheduler | None = None
        """Once a partition has lanes."""
        for place in self.places:
            if place.partition.lanes is not None:
                self.open_lanes(place)

    def ready_since(self, now: float) -> float:
        """What counts as the time at which what comes back at once was ready: that decides who is delivered first."""
        return 0.0 if self._keeps_places else now

    @abstractmethod
    def pass_time(self, now: float) -> None:
        """See :class:`Wakeable`."""

    @abstractmethod
    def serve(self, now: float) -> None:
        """Deliver what the group's consumers have room for."""

    @property
    @abstractmethod
    def generation(self) -> int:
        """Grows with every consumer that joins or leaves."""

    @abstractmethod
    def leave(self, consumer: Consumer, now: float) -> None:
        """Remove a consumer; what it held is ready at once. One that left or was replaced is ignored."""

    @abstractmethod
    def pending_entry(self, partition: int, offset: int) -> PendingEntry | None:
        """The entry with a consumer at a place; None when there is none."""

    @abstractmethod
    def remove_many(self, entries: Sequence[PendingEntry]) -> None:
        """Settle for good."""

    @abstractmethod
    def retry(self, entry: PendingEntry, due: float, now: float, cause: str, on_done: Confirm | None = None) -> None:
        """A delivery failed: wait for the next, or dead-letter when it was the last."""

    @abstractmethod
    def wait_again(self, entry: PendingEntry, now: float) -> None:
        """An entry that is with nobody waits for its next delivery."""

    @abstractmethod
    def trace_run(self, kind: TraceKind, entries: Sequence[PendingEntry], detail: str = "") -> None:
        """Something happened to entries."""

    # -- places --------------------------------------------------------------------------------------------------

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
            self.scheduler = scheduler_of(self.config.priority, self.agenda.now)

    def low(self, partition: int) -> int:
        """The lowest offset of a partition that is not settled; at most the end of what is delivered or may be."""
        place = self.places[partition]
        if place.lanes is None:
            return place.committed
        return min(lane.needed_from for lane in place.lanes)

    def needs(self, partition: int, offset: int) -> bool:
        """Whether a message is not settled by the group, or is still to come."""
        return any(place.needs(offset) for place in self.places[partition].lanes or (self.places[partition],))

    def start_at(self, cursors: Sequence[int]) -> None:
        """A new group: where it begins in each partition."""
        for place, cursor in zip(self.places, cursors, strict=True):
            for lane in place.lanes or (place,):
                lane.cursor = cursor
                if cursor or not lane.number:  # a start takes a log that says nothing for one of before its beginning
                    self.log.move_cursor(lane.number, cursor)
        self.cursor_total = sum(cursors)
        self.count_what_is_there()
        self.agenda.groups_to_write[self] = None

    def recount(self) -> None:
        """Cursors were set anew: count again what depends on them."""
        self.cursor_total = sum(place.passed for place in self.places)
        self.held_bytes = 0
        self.count_what_is_there()

    def count_what_is_there(self) -> None:
        """Take out what has expired before its turn, and sum up the bytes."""
        for place in self.every_place:
            self.cursor_total += place.gone_count
        if self._counts_bytes:
            self._sum_bytes()

    def _sum_bytes(self) -> None:
        """Of what is not settled."""
        self.held_bytes = sum(place.partition.unwritten_bytes for place in self.places)
        self.held_bytes += sum(place.unsettled_bytes() for place in self.every_place)
        given = [entry for place in self.every_place for entry in place.pending.values()]
        self.back_bytes = sum(self.bytes_of(entry) for entry in given if entry.state is EntryState.WAITING)
        self.out_bytes = sum(map(self.bytes_of, given)) - self.back_bytes

    # -- what waits ----------------------------------------------------------------------------------------------

    def bytes_of(self, entry: PendingEntry) -> int:
        """What it has of :attr:`held_bytes`: nothing where nobody was given it."""
        sizes = entry.place.partition.sizes if self._counts_bytes and entry.delivery_count else None
        return 0 if sizes is None else sizes.of(entry.offset)

    def starts_waiting(self, entry: PendingEntry) -> None:
        """It is ready, or will be."""
        if entry.state is EntryState.DEAD_LETTERING:
            self.moving_count -= 1
        entry.state = EntryState.WAITING
        entry.place.push_waiting(entry)
        self.waiting_count += 1
        if not entry.delivery_count:
            self.untried_count += 1
        if self._counts_bytes:
            size = self.bytes_of(entry)
            self.out_bytes -= size
            self.back_bytes += size

    def stops_waiting(self, entry: PendingEntry) -> None:
        """It waited until now."""
        self.waiting_count -= 1
        if not entry.delivery_count:
            self.untried_count -= 1
        if self._counts_bytes:
            size = self.bytes_of(entry)
            self.out_bytes += size
            self.back_bytes -= size

    # -- beginning -----------------------------------------------------------------------------------------------

    def begin(self, *, waits: bool) -> None:
        """It was made just now. ``waits``: whatever its queue promises. What is not written goes with the broker."""
        self.is_new = waits or not self._volatile
        self.when_begun(ignore)

    def when_begun(self, confirm: Confirm) -> None:
        """Call it once no loss of power can undo the group, as far as the queue promises that, or with the error."""
        if not self.is_new:
            confirm(None)
            return
        if len(self._told_when_begun) > self.config.group.max_consumers:
            text = f"too many wait for the group {self.group_id!r} to begin"
            confirm(QueueError(QueueErrorCode.LIMIT, text))
            return
        self._told_when_begun.append(confirm)
        if len(self._told_when_begun) == 1:
            self.confirm_when_written(self._begun)

    def _begun(self, error: QueueError | None) -> None:
        told, self._told_when_begun = self._told_when_begun, []
        if error is None:
            self.is_new = False
            self.agenda.groups_to_serve[self] = None
        call_all(told, error)

    # -- writing -------------------------------------------------------------------------------------------------

    def confirm_when_written(self, on_done: Confirm | None) -> None:
        """Call it once what the log was told so far is as durable as the queue promises."""
        if on_done is not None:
            if self.failure is not None or self._is_gone:
                on_done(self.failure)
                return
            self._confirms.append(on_done)
        self.agenda.groups_to_write[self] = None

    def end(self) -> None:
        """It was deleted. Messages of it may still be on their way to the dead letters: what they have to do then goes
        to an agenda that nobody looks at, and whoever waits for a settlement is told that it holds."""
        self._is_gone = True
        self.agenda.forget(self)
        nowhere = Agenda()
        nowhere.now = self.agenda.now
        self.agenda = nowhere
        confirms, self._confirms = self._confirms, []
        self.confirm_waiting()
        call_all(confirms, None)

    def abandon(self, error: QueueError) -> None:
        """See :meth:`SyncPoint.abandon`; what was to be written never is."""
        confirms, self._confirms = self._confirms, []
        super().abandon(error)
        call_all(confirms, error)

    def passed_over(self, place: GroupPartition, count: int) -> None:
        """Its cursor went over so many messages that are settled by that."""
        self.moved[place] = None
        self._settled_since_trim += count
        self.agenda.groups_to_write[self] = None

    def write(self, now: float) -> None:
        """Write what happened since the last time; settlements are confirmed then, or by the sync that covers them."""
        if (self.owner.is_new or self.is_leaving) and self.owner.holds(self):
            return
        if not self._volatile:
            # Where a group in memory stands nobody will ever read.
            for place in self.moved:
                self.log.move_cursor(place.number, place.cursor)
        self.moved.clear()
        if self.is_new and not self._told_when_begun and self.failure is None:
            # The first try failed, and its consumers wait.
            self._told_when_begun.append(ignore)
            self._confirms.append(self._begun)
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
        elif confirms:
            call_all(confirms, None)
        if self.log.wants_snapshot(self.unsettled):
            self._begin_snapshot(now)
        if self.log.continue_snapshot():
            self.agenda.groups_to_write[self] = None
        if self._settled_since_trim >= SETTLED_PER_TRIM or (self._settled_since_trim and now >= self._trim_at):
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
        self.log.begin_snapshot(cursors, pending_records(entries), int(now * 1000))


def pending_records(entries: Sequence[PendingEntry]) -> Iterator[PendingRecord]:
    """The entries that are still pending when it is their turn, as they are then."""
    for entry in entries:
        if entry.state is not EntryState.SETTLED:
            yield PendingRecord(
                entry.place.number,
                entry.offset,
                entry.consumer.consumer_id if entry.consumer is not None else entry.last_consumer,
                int(entry.claimed_at * 1000),
                # What is ready may have 0 for a deadline, which means here that a consumer has it.
                max(1, int(entry.deadline * 1000)) if entry.state is EntryState.WAITING and not entry.lost_at else 0,
                entry.logged_count,
                entry.annotations,
            )
