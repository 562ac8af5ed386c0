"""What the oracle remembers: messages, each group's copies of them, and everything that may be true of each copy.

A copy has a set of *spots*. What clients do moves them on; what the broker shows must be possible for one of them, and
rules the others out. Times are intervals: no clock of a client's is the broker's.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from assay.conformance.explore.queues.life import GroupPlan, QueuePlan
from assay.conformance.explore.topics import matches
from assay.conformance.wire import Properties

NEVER = float("inf")
NORMAL_LANE = 2
SLACK_S = 5.0
"""Room for the time between what happens and what is seen; lives use times that differ by more."""
_DEFAULT_BACKOFF_S = 5.0
_LETTERS_TIMEOUT_S = 30.0
_MAX_LETTER_WAIT_S = 300.0
_LATE_TIMES = 4


class Kind(Enum):
    READY = "ready"
    FLIGHT = "in flight"
    HELD = "acknowledged in an open transaction"
    DEAD = "a dead letter"
    GONE = "settled, given up, or not there"

    def __init__(self, _label: str) -> None:
        self.bit = 1 << len(type(self).__members__)
        """Of sets of them, which are asked about very often."""


class Spot(NamedTuple):
    """Something that may be true of a copy."""

    kind: Kind
    deliveries: int = 0
    """So far."""
    at: float = 0.0
    """Ready: when at the earliest. In flight: when it times out at the earliest."""
    by: float = 0.0
    """At the latest."""
    holder: object = None
    """Ready: the member that has claimed it, and will read it."""
    released: bool = False
    """Ready: given back untried, so that the next delivery has the number of the last."""

    @property
    def next_count(self) -> int:
        """Of its next delivery."""
        return self.deliveries + (not self.released)


GONE = Spot(Kind.GONE)


class Fate(Enum):
    OPEN = "open"
    EITHER = "committed or aborted as a whole"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    def __init__(self, ends_at: float, ends_by: float) -> None:
        self.ends_at, self.ends_by = ends_at, ends_by
        """When it times out."""
        self.fate = Fate.OPEN
        self.is_old = False
        """The broker was killed since it began."""
        self.messages: list[Message] = []
        self.held: list[Copy] = []


class Message:
    """One message of a queue, a dead letter included."""

    def __init__(self, queue: Queue, number: int, serial: int) -> None:
        self.queue, self.number = queue, number
        self.since = self.until = float(serial)
        """It came into its partition between these events."""
        self.burst = self.client = -1
        """Which publishes it was sent with, and by whom."""
        self.round = 0
        """The step since which it may be delivered."""
        self.size = (0, 0)
        """Bytes that count against limits, at least and at most."""
        self.most_bytes = 0
        """Likewise, against that on one message: at most."""
        self.of_partitions = 1
        """How many its queue had as it came; 0: nobody knows."""
        self.topic = self.route = self.key = ""
        self.partition = -1
        self.lane = NORMAL_LANE
        self.payload = b""
        self.kept = Properties()
        """What it comes with, as it was published; user properties behind its number."""
        self.delay_s = 0
        self.at = self.by = 0.0
        """When it is due."""
        self.expires_at = self.expires_by = NEVER
        self.expiry_s = 0
        self.published_at = 0.0
        self.sure = False
        """Its publish was confirmed, or it was seen."""
        self.confirmed = False
        self.ended: tuple[str, ...] = ()
        """Why nobody may get it, if so: requirements."""
        self.why = ""
        self.expired_unsettled = self.left = self.left_by_limit = False
        """Some group had not settled it when it expired; it is a dead letter by itself."""
        self.unneeded = False
        """At some time no group needed it any more, so that a group to come need not get it."""
        self.place: tuple[int, int] | None = None
        """Partition and offset, once they were told."""
        self.transaction: Transaction | None = None
        self.source: Copy | None = None
        """Of a dead letter."""
        self.counts_before: frozenset[int] = frozenset()
        """Of a dead letter that may be there though its message is back: a kill came between the two."""
        self.delay_id = ""
        self.is_due = False
        self.is_replayed = False
        """A dead letter once, it came again."""
        self.cancelled: bool | None = False
        """None: perhaps."""

    @property
    def is_there(self) -> bool:
        """For certain, if it is not ended."""
        if self.source is not None and not self.sure:
            return self.source.must(Kind.DEAD) and self.source.letter is self
        return self.sure

    @property
    def is_shown(self) -> bool:
        """Its transaction, if any, has been committed."""
        return self.transaction is None or self.transaction.fate is Fate.COMMITTED

    @property
    def partition_known(self) -> int | None:
        if self.of_partitions == 1:
            return 0
        return self.place[0] if self.place else (self.partition if self.partition >= 0 else None)

    def shares_partition(self, other: Message) -> bool:
        """For certain."""
        mine, others = self.partition_known, other.partition_known
        if mine is None or others is None:
            is_alike = self.key == other.key and self.of_partitions == other.of_partitions > 0
            return bool(self.key) and is_alike and self.partition == other.partition
        return mine == others

    def may_share_partition(self, other: Message) -> bool:
        mine, others = self.partition_known, other.partition_known
        return mine is None or others is None or mine == others

    def is_before(self, other: Message) -> bool:
        """It came into the partition before the other, if it is the same."""
        if self.place is not None and other.place is not None and self.place[0] == other.place[0]:
            return self.place[1] < other.place[1]
        if self.burst == other.burst and self.client != other.client:
            return False  # of two publishers that did not wait for each other
        if self.delay_s and other.delay_s and not self.queue.is_limited:
            return self.number < other.number and self.delay_s <= other.delay_s
        return self.until < other.since

    def shares_lane(self, other: Message) -> bool:
        return self.lane == other.lane or self.queue.is_strict


class Copy:
    """A message as one group sees it."""

    def __init__(self, group: Group, message: Message, *spots: Spot) -> None:
        self.group, self.message = group, message
        self.put(spots)
        self.clauses: tuple[str, ...] = ()
        """Why it is not to come any more."""
        self.letter: Message | None = None
        self.failed_round = 0
        """The step at which its last delivery failed."""
        self.overtaken: tuple[object, int] | None = None
        """By a delivery to this consumer, in this step."""
        self.crashed = False
        """It was there, unsettled, when the broker was killed."""
        self.last_holder = self.reason = ""
        """Client id of its last consumer, and why that rejected it."""
        self.is_safe = False
        """That it became a dead letter was confirmed."""
        self.may_be_back = False
        """It became one, and a death of the broker may have made it one once more."""
        self.in_time_at = -NEVER
        """It may have been sent at this time, before the clock was moved."""
        self.stale: set[tuple[object, int]] = set()
        """To whom, and by what count, it may come and mean nothing: its group was reset since, or it was settled."""
        self.delivered_at = (0.0, 0.0)
        """When its last delivery was sent, at the earliest and latest."""
        self.receipts: list[str] = []
        """Of its deliveries that were read, by count."""
        self.lingers = False
        """It has expired, and may count for the limits of its queue until that shows otherwise."""

    def put(self, spots: Iterable[Spot]) -> None:
        """All that may be true of it from now on."""
        self.spots = frozenset(spots)
        self._kinds = 0
        for spot in self.spots:
            self._kinds |= spot.kind.bit
        self.is_open = not self.must(Kind.GONE, Kind.DEAD)
        """It is not settled, or a dead letter, for certain."""

    def may(self, kind: Kind) -> bool:
        return bool(self._kinds & kind.bit)

    def must(self, *kinds: Kind) -> bool:
        left = self._kinds
        for kind in kinds:
            left &= ~kind.bit
        return not left

    def is_held_by(self, holder: object) -> bool:
        return all(spot.kind is Kind.FLIGHT and spot.holder is holder for spot in self.spots)

    def may_be_held_by(self, holder: object) -> bool:
        return any(spot.kind is Kind.FLIGHT and spot.holder is holder for spot in self.spots)

    @property
    def may_be_leaving(self) -> bool:
        """It has failed for good, and may not be a dead letter yet."""
        is_seen = self.letter is not None and self.letter.place is not None and not self.may_be_back
        return self.may(Kind.DEAD) and not self.is_safe and not is_seen

    @property
    def is_retry(self) -> bool:
        return self.must(Kind.READY) and all(spot.deliveries for spot in self.spots)


class Member:
    """A consumer's connection, from SUBSCRIBE on."""

    def __init__(self, group: Group, name: str, client_id: str, prefetch: int, receive_maximum: int, when: int) -> None:
        self.group, self.name, self.client_id, self._prefetch = group, name, client_id, prefetch
        self.receive_maximum = receive_maximum or 65_535
        self.joined = when
        self.left: int | None = None
        self.unacknowledged: set[int] = set()
        self.withholds = False
        self.set_limits()

    def set_limits(self) -> None:
        """By the settings of its queue as they are now."""
        is_dead, plan = self.group.is_dead, self.group.queue.plan
        limits = [each for each in (self._prefetch, 0 if is_dead else plan.max_in_flight) if each]
        self.limit = min(limits, default=10**6)
        self.certain_limit = self.limit if self._prefetch or not is_dead else 10**6

    @property
    def window(self) -> int:
        """How many PUBLISH packets it may be sent."""
        return self.receive_maximum - len(self.unacknowledged)


class Group:
    def __init__(self, queue: Queue, name: str, plan: GroupPlan) -> None:
        self.queue, self.name, self.plan = queue, name, plan
        self.is_dead = plan.dead
        self.told = ""
        """The group id that its deliveries tell."""
        self.copies: dict[Message, Copy] = {}
        self.members: dict[int, Member] = {}
        """Consumer number to its connection."""
        self.served: dict[int, tuple[object, int, int]] = {}
        """Partition to who was given its messages last, in which step that was read, and how often it has changed since
        somebody came or left."""
        self.moved_at = -NEVER
        """When the clock was moved last, on the clock before it, if there were members."""

    def wants(self, message: Message) -> bool:
        if not self.plan.filter or self.is_dead:
            return True
        return matches(f"q/{self.plan.filter}", f"q/{message.route}" if message.route else "q")

    def open_copies(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.is_open and not copy.message.ended]

    def most_in_flight(self) -> int:
        return (
            self.queue.plan.group_max_in_flight if not self.is_dead and self.queue.plan.group_max_in_flight else 10**6
        )


class Queue:
    """A queue, or its dead letters."""

    def __init__(self, name: str, plan: QueuePlan, source: Queue | None = None) -> None:
        self.name, self.plan, self.source = name, plan, source
        self.owner = ""
        """What stands before its name for those who belong to no tenant."""
        self.messages: dict[Message, None] = {}
        self.by_number: dict[int, list[Message]] = {}
        self.groups: dict[str, Group] = {}
        self.places: dict[tuple[int, int], Message] = {}
        self.partitions = 1 if self.is_strict or source is not None else plan.partitions
        self.letters: Queue | None = Queue(f"$dlq/{name}", plan, self) if source is None else None
        self.unanswered = 0
        """Publishes that were sent, and may have been taken at the cost of others."""
        self.dropped = 0
        """Publishes that may have found room at the cost of another message."""
        self.forgotten: dict[int, Message] = {}
        """Messages that a restart emptied it of, by number."""
        self.deleted: set[int] = set()
        """Numbers of what was in a queue of its name that was deleted."""

    @property
    def is_letters(self) -> bool:
        return self.source is not None

    @property
    def is_strict(self) -> bool:
        return self.plan.ordering == "strict"

    @property
    def holds_back(self) -> bool:
        """A message that is to be retried holds back later ones."""
        return self.plan.ordering != "none" and not self.is_letters

    @property
    def is_limited(self) -> bool:
        return bool(self.plan.max_depth or self.plan.max_bytes)

    def timeout_s(self) -> tuple[float, float]:
        if self.is_letters:
            return min(_LETTERS_TIMEOUT_S, self.plan.timeout_s), max(_LETTERS_TIMEOUT_S, self.plan.timeout_s)
        return self.plan.timeout_s, self.plan.timeout_s

    def wait_s(self, failures: int) -> tuple[float, float]:
        """After a timeout, or a nack that waits: at least and at most."""
        first = self.plan.backoff_s or _DEFAULT_BACKOFF_S
        if self.is_letters:
            return 0.0, max(_MAX_LETTER_WAIT_S, first * 4)
        most = first * 4 if self.plan.backoff_s else _MAX_LETTER_WAIT_S
        # No requirement says how soon a retry begins whose wait is over.
        return min(first, most), _LATE_TIMES * min(first * 2 ** (failures - 1), most)
