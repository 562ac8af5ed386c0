"""What consumers of a group hold: the consumers, and what each group was given and has not settled, by partition."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import Enum

import msgspec

from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.delivery_run import DeliverRun
from assay.reference_broker.queues.groups.subscribe_options import DEFAULT_OPTIONS, AckMode, SubscribeOptions
from assay.reference_broker.queues.messages.lanes import NORMAL, place_number
from assay.reference_broker.queues.partitions.partition import QueuePartition

Deliver = Callable[[Delivery], bool]
Drained = Callable[[int], None]
"""Is told how many of the granted deliveries were not used."""
UNLIMITED = 1 << 62
"""Credit of a consumer that is bounded by what it may hold alone."""


class AssignmentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer is told after each rebalance of its group."""

    queue: str
    group: str
    consumer: str
    generation: int
    """To be named by operations that are to be refused once this assignment is not the latest."""
    partitions: tuple[int, ...]
    """All that it serves now."""
    assigned: tuple[int, ...]
    """Those among them that are new."""
    revoked: tuple[int, ...]
    """Those that it served before. What it holds of them is to be settled soon, or goes to others."""


Notify = Callable[[AssignmentEvent], None]


class Consumer:
    """One subscription's end of a group. Protocols keep it to resume or unsubscribe; only the engine changes it."""

    __slots__ = (
        "active",
        "blocked",
        "consumer_id",
        "credit",
        "deliver",
        "deliver_run",
        "full_since",
        "group",
        "in_flight",
        "limit",
        "next_turn",
        "notify",
        "on_drained",
        "on_end",
        "on_left",
        "on_slow",
        "options",
        "places",
        "queue",
        "received",
        "served_at",
        "settles_at_once",
    )

    def __init__(
        self,
        queue: str,
        group: str,
        consumer_id: str,
        deliver: Deliver,
        options: SubscribeOptions = DEFAULT_OPTIONS,
        notify: Notify | None = None,
    ) -> None:
        self.queue = queue
        self.group = group
        """Effective group id."""
        self.consumer_id = consumer_id
        self.deliver = deliver
        """Takes a delivery; False = no room now, keep it until :meth:`QueueEngine.resume`."""
        self.deliver_run: DeliverRun | None = None
        """Takes many deliveries at once, where the protocol can."""
        self.settles_at_once = False
        """What it takes at once is acknowledged by that: nobody will say more of it."""
        self.in_flight = 0
        """Unsettled deliveries it holds."""
        self.limit = 0
        """Most unsettled deliveries it may hold; its group says."""
        self.credit = UNLIMITED
        """Deliveries that it still gets, whatever it settles; see :meth:`QueueEngine.grant`."""
        self.on_drained: Drained | None = None
        self.served_at = 0
        """Number of the last delivery to it, counted over its group, where deliveries go to consumers in turn."""
        self.full_since = float("inf")
        """Where the queue looks after slow consumers: since when it holds all that it may and has settled nothing."""
        self.on_slow: Callable[[], None] | None = None
        """Called when it is to be disconnected for that."""
        self.blocked = False
        """It said that it has no room."""
        self.on_end: Callable[[], None] | None = None
        """Called when the queue is deleted: the consumer gets nothing any more."""
        self.on_left: Callable[[], None] | None = None
        """Called when it is taken out, whyever: where somebody waits for what it gets."""
        self.active = True
        """False once unsubscribed or replaced by a newer subscription of the same id."""
        self.places: list[GroupPartition] = []
        """The partitions assigned to it."""
        self.options = options
        self.notify = notify
        """Told each new assignment, when the next turn delivers."""
        self.received: list[tuple[int, int]] | None = [] if options.ack_mode is AckMode.AUTO else None
        """Automatic commit: partition and offset of deliveries that it has and that are not committed yet."""
        self.next_turn = 0
        """Which of its partitions is served first next time."""

    @property
    def room(self) -> int:
        """Deliveries that it may get now."""
        room = self.limit - self.in_flight
        return room if room < self.credit else self.credit

    def end(self) -> None:
        """It gets nothing any more, and lets go of its protocol's side, which holds it."""
        self.active = False
        self.deliver = _take_nothing
        on_left = self.on_left
        self.deliver_run = self.notify = self.on_end = self.on_slow = self.on_left = self.on_drained = None
        if on_left is not None:
            on_left()


def _take_nothing(_delivery: Delivery) -> bool:
    return False


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
    """Unknown after a restart until the message is delivered."""
    nonce: int = -1
    """Of the receipt of its last delivery; -1 = it has none."""
    released: bool = False
    """Its consumer gave it back untried: the next delivery has the number of the last one."""
    lost_at: float = 0.0
    """A start found it with a consumer, then: its delivery failed by that, and nobody has looked yet whether it was the
    last. 0 = none did."""
    annotations: bytes = b""
    """What consumers noted on it as they gave it back: an encoded table."""

    @property
    def logged_count(self) -> int:
        """Deliveries that count over a restart: one that was given back untried does not, but for the first."""
        return self.delivery_count - (self.released and self.delivery_count > 1)


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
    def is_dry(self) -> bool:
        """Nothing of it waits, and nothing of it is new."""
        lanes = self.partition.lanes
        first = self.cursor if lanes is None else lanes.next_in(self.lane, self.cursor)
        return not self.waiting and first >= self.partition.visible_end

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
                for lane in range(len(self.partition.open_lanes()))
            )
            for place in self.lanes:
                if place is not self:
                    place._home = self
        return self.lanes

    def needs(self, offset: int) -> bool:
        """Whether a message is not settled here, or is still to come."""
        lanes = self.partition.lanes
        is_to_come = offset >= self.cursor and (lanes is None or bool(lanes.count(self.lane, offset, offset + 1)))
        return is_to_come or offset in self.pending

    def gone(self) -> set[int]:
        """Messages that left before their turn."""
        partition, lanes = self.partition, self.partition.lanes
        if partition.expiry is None:
            return set()
        gone = partition.expiry.gone(self.cursor, partition.log.next_offset)
        return {offset for offset in gone if lanes is None or lanes.count(self.lane, offset, offset + 1)}

    @property
    def gone_count(self) -> int:
        """How many those are."""
        partition, lanes = self.partition, self.partition.lanes
        if partition.expiry is None:
            return 0
        gone = partition.expiry.gone_between(self.cursor, partition.log.next_offset)
        return sum(last - first if lanes is None else lanes.count(self.lane, first, last) for first, last in gone)

    def unsettled_bytes(self) -> int:
        """Of what is written and not settled; 0 where sizes are not kept."""
        lanes, sizes = self.partition.lanes, self.partition.sizes
        if sizes is None:
            return 0
        gone = self.gone()
        total = sum(sizes.of(offset) for offset, entry in self.pending.items() if entry.delivery_count)
        for offset in range(self.cursor, self.partition.log.next_offset):
            if offset not in gone and (lanes is None or lanes.count(self.lane, offset, offset + 1)):
                total += sizes.of(offset)
        return total

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
