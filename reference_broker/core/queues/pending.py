"""Pending entries: what a group was given and has not settled, partition by partition."""

from __future__ import annotations

import heapq
from enum import Enum

import msgspec

from assay.reference_broker.core.queues.consumer import Consumer
from assay.reference_broker.core.queues.lanes import LANES, NORMAL, place_number
from assay.reference_broker.core.queues.partition import QueuePartition


class EntryState(Enum):
    """Where an unsettled message stands."""

    DELIVERED = "delivered"
    """With a consumer; only then can it be settled."""
    WAITING = "waiting"
    """Failed or given back; redelivered once due."""
    COMMITTING = "committing"
    """Settled as soon as the transaction is committed that it was acknowledged in; given back when that is aborted."""
    DEAD_LETTERING = "dead_lettering"
    """Settled as soon as the dead-letter queue has it durably."""
    SETTLED = "settled"


DELIVERED, SETTLED = EntryState.DELIVERED, EntryState.SETTLED
"""For what is done per message: to look up a member in its enumeration takes longer than a call."""


class PendingEntry(msgspec.Struct, eq=False):
    """One message that a group has not settled. Times are Unix seconds."""

    place: GroupPartition
    offset: int
    delivery_count: int
    consumer: Consumer | None = None
    state: EntryState = EntryState.WAITING
    deadline: float = 0.0
    """Delivered: when it times out. Waiting: when it is due."""
    claimed_at: float = 0.0
    """Last delivery."""
    first_delivered_at: float = 0.0
    """0 = it never was. After a restart, the last delivery before it."""
    last_consumer: str = ""
    """Who had it before its delivery ended."""
    enqueued_at: float = float("inf")
    """Unknown after a restart until the message is read."""
    nonce: int = -1
    """Of the receipt of its last delivery; -1 = it has none."""


class GroupPartition:
    """A group's view of one partition, or of one lane of it."""

    __slots__ = ("_home", "_ordered", "cursor", "index", "lane", "lanes", "number", "partition", "pending", "waiting")

    def __init__(self, partition: QueuePartition, *, cursor: int, ordered: bool, lane: int = NORMAL) -> None:
        self.partition = partition
        self.index = partition.index
        self.lane = lane
        self.number = place_number(partition.index, lane)
        """What the group log calls it."""
        self.lanes: tuple[GroupPartition, ...] | None = None
        """In the normal lane, once the partition has others: the places of all lanes."""
        self._home: GroupPartition | None = None
        self.cursor = cursor
        """Next offset to deliver for the first time."""
        self.pending: dict[int, PendingEntry] = {}
        """By offset, ascending, since entries are added in order of first delivery."""
        self._ordered = ordered
        self.waiting: list[tuple[float, int, PendingEntry]] | tuple[()] = ()
        """A heap; it may hold entries that do not wait any more. Most places have none."""

    @property
    def committed(self) -> int:
        """Everything below it is settled."""
        return next(iter(self.pending), self.cursor)

    @property
    def needed_from(self) -> int:
        """The lowest offset of this lane that is not settled; of a lane without more messages, a very high one."""
        if self.pending:
            return next(iter(self.pending))
        lanes = self.partition.lanes
        return self.cursor if lanes is None else lanes.next_in(self.lane, self.cursor)

    @property
    def home(self) -> GroupPartition:
        """The place of the normal lane, which stands for the partition when consumers share out partitions."""
        return self._home or self

    @property
    def passed(self) -> int:
        """The partition's cursor as if it had no lanes: how many of its messages, from offset 0, are not ready."""
        lanes, end = self.partition.lanes, self.partition.log.next_offset
        if lanes is None or self.lanes is None:
            return self.cursor
        return end - sum(lanes.count(place.lane, place.cursor, end) for place in self.lanes)

    def open_lanes(self) -> tuple[GroupPartition, ...]:
        """The places of all lanes of this partition, this one among them; the others are new and unread."""
        if self.lanes is None:
            self.lanes = tuple(
                self if lane == NORMAL else GroupPartition(self.partition, cursor=0, ordered=self._ordered, lane=lane)
                for lane in range(LANES)
            )
            for place in self.lanes:
                if place is not self:
                    place._home = self
        return self.lanes

    def push_waiting(self, entry: PendingEntry) -> None:
        """The entry waits: by offset where the order counts, by due time where it does not."""
        waiting = self.waiting
        if not isinstance(waiting, list):
            waiting = self.waiting = []
        heapq.heappush(waiting, (0.0 if self._ordered else entry.deadline, entry.offset, entry))

    def first_waiting(self) -> PendingEntry | None:
        """The entry to redeliver next, due or not."""
        waiting = self.waiting
        while waiting:
            entry = waiting[0][2]
            if entry.state is EntryState.WAITING:
                return entry
            self.pop_waiting()
        return None

    def pop_waiting(self) -> None:
        """Take out what :meth:`first_waiting` returned."""
        assert isinstance(self.waiting, list)
        heapq.heappop(self.waiting)

    @property
    def holds_back(self) -> bool:
        """A waiting entry keeps later messages from being delivered."""
        return self._ordered and bool(self.waiting) and self.first_waiting() is not None
