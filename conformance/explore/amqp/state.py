"""What the oracle knows: messages, the copies of them that queues may hold, channels and consumers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from assay.conformance.explore.amqp.life import QueuePlan
from assay.conformance.wire.amqp091 import Arrival

NEVER = float("inf")
Deaths = tuple[tuple[str, str, int], ...]
"""Queue, reason and count, the latest first."""


class Place(Enum):
    READY = "ready"
    OUT = "delivered, not settled"
    GONE = "gone"


@dataclass(eq=False)
class Message:
    """As it was published."""

    number: int
    exchange: str
    key: str
    keys: tuple[str, ...]
    """With those of CC and BCC."""
    properties: Mapping[str, Any]
    body: bytes
    publisher: object
    """Channel; of those of one channel the order is kept."""
    ttl_s: float = NEVER
    priority: int = 0
    persistent: bool = False

    @property
    def headers(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.properties.get("headers", {})
        return found


@dataclass(eq=False)
class Copy:
    """Of a message, in a queue."""

    message: Message
    queue: Queue
    order: int
    sent_at: int
    """Moments of the life: see :attr:`Oracle.moment`."""
    exchange: str
    key: str
    sure: bool = False
    """It must be there; otherwise it may."""
    likely: bool = True
    """It is sure as soon as its publish has been handled."""
    sure_at: float = NEVER
    may_be_refused: bool = False
    """Only its confirm tells whether a full queue took it."""
    is_there: bool = False
    """It was confirmed or committed, and has not been given to anybody: a get may not pass over it."""
    durable: bool = False
    """Its publisher was told that the broker has it."""
    free: bool = False
    """It has come back, or is a dead letter: it may stand anywhere."""
    place: Place = Place.READY
    redelivered: bool | None = False
    """The flag that its next delivery must have; None = any."""
    deaths: Deaths = ()
    tells: bool = True
    """x-death must say just that; otherwise it may have died of something else."""
    expires_at: float = NEVER
    """Not before that; and not later than this, which is later where nobody knows when it got there."""
    expires_by: float = NEVER
    least: int = 0
    most: int = 0
    """Deliveries that came back."""
    seen_at: float = NEVER
    consumer: Consumer | None = None
    """To which it was delivered last."""
    why_gone: str = ""
    letters: list[Copy] | None = None
    """What becomes of it, if it may have died."""
    source: Copy | None = None
    """What died, if it is a dead letter."""
    dying: str = ""
    """The reason that they tell."""

    @property
    def lane(self) -> int:
        most = self.queue.plan.max_priority
        return min(self.message.priority, most)

    def precedes(self, other: Copy) -> bool:
        """Whether it must come before the other one, which had not come back."""
        if self.free or self.lane != other.lane:
            return False
        same = self.message.publisher is other.message.publisher and self.exchange == other.exchange
        return self.order < other.order if same else self.sure_at < other.sent_at


@dataclass(eq=False)
class Queue:
    number: int
    name: str
    plan: QueuePlan
    owner: int = -1
    """Connection of an exclusive queue."""
    letters: str | None = None
    """Exchange of dead letters."""
    letter_key: str = ""
    copies: list[Copy] = field(default_factory=list)
    """Those that are not gone."""
    ghosts: list[Copy] = field(default_factory=list)
    """Those that are gone, and may be back after a kill."""
    seen: list[Copy] = field(default_factory=list)
    """Those that were delivered, and had not come back before."""
    consumers: dict[Consumer, None] = field(default_factory=dict)
    had_consumer: bool = False
    is_going: bool = False
    """With its connection: what expires meanwhile becomes a letter, or not."""
    left_at: float = -NEVER
    """When a connection went that read from it: what came about then may have gone to it."""
    was_read_greedily: bool = False
    """Without acknowledgements."""
    used_at: float = 0.0
    looked_at: float = 0.0
    is_electing: bool = False
    """Since a start nothing has shown that it has a leader: without one RabbitMQ refuses what is published to it."""

    @property
    def counts_late(self) -> bool:
        """RabbitMQ's quorum queues bring what they count up to date every few seconds."""
        return self.plan.delivery_limit >= 0

    @property
    def ttl_s(self) -> float:
        return self.plan.ttl_s if self.plan.ttl_s >= 0 else NEVER

    @property
    def ready(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.place is Place.READY]

    @property
    def is_read(self) -> bool:
        """Somebody may be given what is ready at any time."""
        return any(consumer.has_room for consumer in self.consumers)


@dataclass(eq=False)
class Consumer:
    tag: str
    link: Link
    queue: Queue
    no_ack: bool
    prefetch: int
    exclusive: bool = False
    held: dict[Copy, None] = field(default_factory=dict)
    told: bool = False
    """The server must say that it is cancelled."""
    ends: bool = False
    """The server may say so."""
    began: int = 0
    """The moment from which it may be given something."""

    @property
    def has_room(self) -> bool:
        link = self.link
        if not link.open or self.told:
            return False
        if self.no_ack:
            return True
        shared = sum(len(each.held) for each in link.consumers.values())
        return not (self.prefetch and len(self.held) >= self.prefetch) and not (link.shared and shared >= link.shared)


@dataclass(eq=False)
class Publication:
    """A publish, and what must be said about it."""

    message: Message
    tag: int = 0
    """For its confirm; 0 = none."""
    returns: bool | None = False
    """It must come back, must not, or may (None)."""
    has_returned: bool = False
    accepted: bool | None = True
    """The confirm must be ack, nack, or either."""
    copies: list[Copy] = field(default_factory=list)
    routed: frozenset[str] = frozenset()


@dataclass(eq=False)
class Link:
    """A channel of a connection."""

    number: int
    channel: int
    connection: int
    mode: str = ""
    prefetch: int = 0
    shared: int = 0
    open: bool = True
    answers: deque[Arrival] = field(default_factory=deque)
    closed_by: Arrival | None = None
    consumers: dict[str, Consumer] = field(default_factory=dict)
    unsettled: dict[int, Copy] = field(default_factory=dict)
    """By delivery tag, in the order of the tags."""
    given_back: list[tuple[int, Copy, str, bool]] = field(default_factory=list)
    """Settlements of the open transaction: tag, verb, requeue."""
    publications: list[Publication] = field(default_factory=list)
    """Of the open transaction."""
    settled: int = 0
    """A tag that is settled; 0 = none is known."""
    open_publishes: list[Publication] = field(default_factory=list)
    """Not confirmed, or not known to be handled."""
    published: int = 0
    last_tag: int = 0
    told: list[Copy] = field(default_factory=list)
    """First deliveries on this channel of what had not come back."""
    is_closing: bool = False
    """It has been asked for something that must fail, or to close: what comes unasked is not looked at any more."""
    touched: bool = False
    """Something was sent whose handling nothing has shown."""

    @property
    def holds_nothing(self) -> bool:
        return not self.unsettled and not self.given_back
