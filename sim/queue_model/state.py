"""What the oracle remembers: messages, every group's copies of them, and what may be true of each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, NamedTuple

_FNV_BASIS: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
COUNTED: Final = ("delivered", "redelivered", "acked", "nacked", "rejected", "released", "timed_out")
"""What the oracle counts, too."""
BUCKETS: Final = ("lag", "retrying", "in_flight", "dead_lettering")
"""Where a message is as long as a group is not through with it."""
ENDS: Final = ("acked", "dead_lettered", "expired", "discarded", "dropped", "unreadable", "unmatched")
"""How a group gets through with a message."""


class ViolationError(AssertionError):
    """The engine did what no specification allows."""


class Kind(Enum):
    READY = "ready"
    """To be delivered from a time on, for the first time when its count is 0."""
    FLIGHT = "in flight"
    HELD = "acknowledged in a transaction that has not ended"
    MOVING = "on its way to the dead letters"
    DEAD = "dead-lettered"
    DONE = "settled, given up or expired"
    NONE = "not there: never stored, lost in a crash before it was safe, or not kept for a new group"


class Spot(NamedTuple):
    """Something that may be true of a copy."""

    kind: Kind
    deliveries: int = 0
    """So far."""
    at: float = 0.0
    """Ready: due. In flight: when it times out."""
    holder: str = ""
    """In flight: the consumer."""
    released: bool = False
    """Ready: it was given back untried, so that the next delivery has the number of the last one."""


NEW: Final = Spot(Kind.READY)
DEAD: Final = Spot(Kind.DEAD)
DONE: Final = Spot(Kind.DONE)
NONE: Final = Spot(Kind.NONE)
THROUGH: Final = {DEAD, DONE, NONE}
_THROUGH_ONLY: Final = {"through"}


class Rules(NamedTuple):
    """What the oracle needs to know of a queue's configuration."""

    durability: str
    ordered: bool
    partitions: int
    timeout_s: float
    max_retries: float
    """Infinite for a dead-letter queue."""
    backoff_s: Callable[[int], float]
    nack_waits: bool
    dead_letters: str | None
    max_depth: int
    ttl_s: float
    max_in_flight: int
    group_limit: float
    """Unsettled deliveries of a group."""
    drops_oldest: bool
    """A full queue gives up its oldest messages that nobody was given."""
    cooperative: bool


class Sent:
    """One message of a queue."""

    def __init__(self, label: str, number: int, key: str | None, routing_key: str, expires_at: float) -> None:
        self.label = label
        self.number = number
        """The step at which it was published."""
        self.transaction: Transaction | None = None
        self.is_safe = False
        """Nothing loses it: its transaction is known to be committed."""
        self.key = key
        self.routing_key = routing_key
        self.expires_at = expires_at
        self.confirmed = False
        self.lane = 2
        """Its priority; order holds within a lane."""
        self.is_delayed = False
        """It was published when its time had come, which nobody saw."""
        self.is_late = False
        """Its time has come, but it may have to wait for room."""
        self.is_orphan = False
        """Its publisher was gone before it was told anything."""
        self.unsure = False
        """A crash may have lost it."""
        self.may_be_hole = False
        """A loss of power may have taken its record, and left what was written behind it."""
        self.is_hole = False
        """Nobody gets it: it counts until it is its turn, if it is there at all."""
        self.unneeded = False
        """At some time no group needed it any more, so a group to come need not get it."""
        self.source: Copy | None = None
        """A dead letter's."""
        self.place: tuple[int, int] | None = None
        """Partition and offset, once a delivery showed them."""


def bucket_of(spot: Spot) -> str:
    """Where the engine's figures count it."""
    if spot.kind is Kind.READY:
        return "retrying" if spot.deliveries or spot.released else "lag"
    return {Kind.FLIGHT: "in_flight", Kind.HELD: "in_flight", Kind.MOVING: "dead_lettering"}.get(spot.kind, "through")


class Copy:
    """A message as one group sees it."""

    def __init__(self, message: Sent, *spots: Spot) -> None:
        self.message = message
        self.group: Group | None = None
        self.spots = frozenset(spots)
        self.before: list[tuple[int, AbstractSet[Spot]]] = []
        """(step, what held until then), as far as a crash may bring it back."""
        self.delivered_at = 0.0
        """The last time."""
        self.is_claimed = False
        """A consumer takes it over at the moment, whatever comes before it."""
        self.letter: Sent | None = None
        """The dead letter that it became, or may have become."""

    @property
    def spots(self) -> AbstractSet[Spot]:
        return self._spots

    @spots.setter
    def spots(self, spots: AbstractSet[Spot]) -> None:
        self._spots = frozenset(spots)
        self.kinds = tuple({spot.kind for spot in spots})
        self.buckets = {bucket_of(spot) for spot in spots}
        """Where the engine's figures may count it."""
        if self.group is not None:
            self.group.changed(self)

    @property
    def is_open(self) -> bool:
        """The group may not be through with it."""
        return self.buckets != _THROUGH_ONLY

    @property
    def is_retried(self) -> bool:
        return "retrying" in self.buckets

    def may_be_given_up(self, rules: Rules) -> bool:
        """It may have failed for the last time, in a queue that keeps no dead letters."""
        return rules.dead_letters is None and any(spot.deliveries > rules.max_retries for spot in self.spots)

    def may(self, *kinds: Kind) -> bool:
        return any(kind in kinds for kind in self.kinds)


class Group:
    """A consumer group."""

    def __init__(self, wants: Callable[[str], bool], born: float) -> None:
        self.wants = wants
        """Whether it wants a routing key."""
        self.born = born
        """The step that created it; 0 once it is known to survive any crash."""
        self.copies: dict[Sent, Copy] = {}
        """Changed by :meth:`add` and :meth:`remove` only."""
        self.open: dict[Copy, None] = {}
        """Those that it may not be through with: usually few of many."""
        self.members: dict[str, bool] = {}
        """Consumer -> whether it takes what it is given."""
        self.counts = dict.fromkeys(COUNTED, 0)
        self.reached: dict[tuple[int, int], int] = {}
        """(Partition, lane) -> highest offset delivered."""
        self.total: int | None = None
        """What conservation must keep constant."""

    def add(self, copy: Copy) -> None:
        """It has that copy of a message, and no other."""
        self.copies[copy.message], copy.group = copy, self
        self.changed(copy)

    def remove(self, sent: Sent) -> Copy:
        """It has no copy of that message."""
        copy = self.copies.pop(sent)
        copy.group = None
        self.open.pop(copy, None)
        return copy

    def changed(self, copy: Copy) -> None:
        """The copy says that other things may be true of it."""
        if copy.is_open:
            self.open[copy] = None
        else:
            self.open.pop(copy, None)

    @property
    def in_flight(self) -> int:
        return sum(Kind.FLIGHT in copy.kinds for copy in self.open)

    def held_by(self, consumer: str) -> list[Copy]:
        return [copy for copy in self.open if any(spot.holder == consumer for spot in copy.spots)]

    def is_served(self, rules: Rules) -> bool:
        """Its consumers certainly have room for what is ready."""
        return (
            bool(self.members)
            and (any if not rules.ordered else all)(
                takes and len(self.held_by(consumer)) < rules.max_in_flight for consumer, takes in self.members.items()
            )
            # A partition that moves waits for what is in flight.
            and self.in_flight < (1 if rules.cooperative and rules.ordered else rules.group_limit)
        )


class Queue:
    """A queue."""

    def __init__(self, name: str, rules: Rules) -> None:
        self.name = name
        self.rules = rules
        self.messages: dict[Sent, None] = {}
        self.groups: dict[str, Group] = {}
        self.labels: dict[str, list[Sent]] = {}
        self.places: dict[tuple[int, int], Sent] = {}
        self.ghosts: list[Sent] = []
        """Records that are no messages: what was aborted, and the ends of transactions."""


class Fate(Enum):
    OPEN = "open"
    ENDING = "its commit was asked for, and is not answered yet"
    DOOMED = "aborted from the next turn on"
    EITHER = "committed or aborted as a whole: a crash came before the answer"
    COMMITTED = "committed"
    ABORTED = "aborted"


LIVE = (Fate.OPEN, Fate.ENDING, Fate.DOOMED)


class Transaction:
    """Its messages, and the deliveries that were acknowledged in it."""

    def __init__(self, ends_by: float) -> None:
        self.ends_by = ends_by
        self.fate = Fate.OPEN
        self.is_safe = False
        """Its producer knows that it is committed."""
        self.why = ""
        """What became of it by itself: for the figures."""
        self.marked = float("inf")
        """The step at which its end was written down in its partitions."""
        self.messages: list[tuple[Queue, Sent]] = []
        self.held: list[tuple[Queue, str, Copy, int]] = []
        """Queue, group, copy, and deliveries so far."""


def fnv1a_32(text: str) -> int:
    """The hash that spreads keys over partitions."""
    value = _FNV_BASIS
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value
