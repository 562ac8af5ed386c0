"""What the model knows of connections and sessions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from assay.conformance.explore.claims import Claim, Message, Subscription, Via
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.explore.topics import is_shared
from assay.conformance.wire import Connect, Packet, Publish, Subscribe, Unsubscribe


@dataclass(eq=False)
class Flight:
    """A delivery at QoS 1 or 2 that the client has not acknowledged to the end."""

    packet: Publish
    topic: str
    link: Link
    """Where it was seen last."""
    sent_on: Link | None = None
    """Where its PUBLISH came last."""
    received: bool = False
    """QoS 2: the client has sent PUBREC."""
    released: bool = False
    """PUBREL has been seen on ``link``."""


@dataclass(eq=False)
class Outgoing:
    """A publish of a client at QoS 1 or 2 that the server has not acknowledged to the end."""

    message: Message
    link: Link
    awaits: type[Packet] | None
    received: bool = False
    """QoS 2: the client has seen PUBREC."""


@dataclass(eq=False)
class Session:
    """What the server keeps of one client."""

    client: int
    version: int
    link: Link | None = None
    expires_at: float = float("inf")
    """While there is no connection."""
    bounded_at: float = float("inf")
    """3.1.1: from then on an administrator may have ended it, which nobody is told (4.1)."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    former: set[str] = field(default_factory=set)
    claims: list[Claim] = field(default_factory=list)
    flights: dict[int, Flight] = field(default_factory=dict)
    outgoing: dict[int, Outgoing] = field(default_factory=dict)
    order: dict[tuple[int, str, int, int], int] = field(default_factory=dict)
    """Publisher, topic, QoS published and delivered, to the number of the last message."""
    will: Message | None = None
    """One that waits for its delay."""
    will_due_at: float = 0.0

    def copy_too_many(self, packet: Publish, topic: str, claims: Iterable[Claim]) -> Rule:
        """The rule that one breaks: what is not acknowledged is sent again under its own packet identifier."""
        others = [one for one in self.flights.values() if one.packet is not packet and one.topic == topic]
        if packet.dup and any(one.packet.payload == packet.payload for one in others):
            return Rule.RESENT_OTHERWISE
        return Rule.SHARE_TWICE if any(claim.via is Via.SHARE for claim in claims) else Rule.DUPLICATE

    def alternatives(self, topic_filter: str) -> tuple[Subscription, ...]:
        """The subscription, and what it may still be."""
        entry = self.subscriptions.get(topic_filter)
        return () if entry is None else (entry, *entry.earlier)

    def begin_retained_anew(self) -> None:
        """A restart: a subscription that has not brought all retained messages yet may begin anew, as it is by now."""
        claims = [claim for claim in self.claims if claim.via is Via.RETAINED]
        begun = {self._asked(claim) for claim in claims if not claim.satisfied} & self.subscriptions.keys()
        for claim in [claim for claim in claims if self._asked(claim) in begun]:
            members: dict[int, tuple[Subscription, ...]] = {self.client: (self.subscriptions[self._asked(claim)],)}
            if not claim.satisfied:
                claim.members[self.client] += members[self.client]
            else:
                again = Claim(message=claim.message, via=Via.RETAINED, members=members, must=False, others=claim.others)
                self.claims.append(again)
                claim.message.add(again)

    def _asked(self, claim: Claim) -> str:
        """The filter that asked for a retained message."""
        return claim.members[self.client][0].filter

    def replace_retained(self, message: Message) -> None:
        """A retained message that a slow session has not been sent yet may be skipped for the one that replaces it."""
        waiting = [claim for claim in self.claims if claim.via is Via.RETAINED and not claim.satisfied]
        for claim in waiting:
            if claim.message.topic != message.topic or claim.message is message:
                continue
            claim.must = False
            known = (one for one in self.claims if one.message is message and one.via is Via.RETAINED)
            if message.payload and not any(one.members == claim.members for one in known):
                newer = Claim(message=message, via=Via.RETAINED, members=claim.members, must=False, others=claim.others)
                self.claims.append(newer)
                message.add(newer)


def race(message: Message, sessions: Iterable[Session]) -> None:
    """Publishes of others to its topic that are still under way may be handled before it, or after it."""
    for session in sessions:
        for outgoing in session.outgoing.values():
            other = outgoing.message
            is_other = other.publisher != message.publisher and other.topic == message.topic
            if is_other and outgoing.awaits is not None:
                other.is_unordered = message.is_unordered = True


@dataclass(eq=False)
class Link:
    """One network connection of a client."""

    name: str
    client: int
    connect: Connect
    session: Session | None = None
    """From CONNACK on."""
    over: bool = False
    superseded: bool = False
    may_be_refused: bool = False
    """It took over what had just been taken over."""
    goodbye: bool = False
    """DISCONNECT was sent or seen: the end of the connection surprises nobody."""
    excused: bool = False
    """The client published to a ``$`` topic: a server may end its connection."""
    doubtful: list[Message] = field(default_factory=list)
    """What it published since."""
    must_close: Rule | None = None
    kept_s: float = 0.0
    most_kept_s: float = float("inf")
    """What the server grants, where it told that in CONNACK: a DISCONNECT that asks for more is not answered."""
    keep_alive_s: float = 0.0
    last_sent_at: float = 0.0
    moved: tuple[float, float] = (0.0, 0.0)
    """When the broker's clock was moved last, and until when by the new clock a delivery comes that was under way."""
    will: Message | None = None
    will_delay_s: float = 0.0
    subscribing: dict[int, Subscribe] = field(default_factory=dict)
    unsubscribing: dict[int, Unsubscribe] = field(default_factory=dict)
    beside: dict[int, list[Message]] = field(default_factory=dict)
    """Publishes of anybody that were under way as a SUBSCRIBE or UNSUBSCRIBE was sent, by its packet identifier."""
    pings: int = 0
    aliases: dict[int, str] = field(default_factory=dict)
    """Of the server."""
    own_aliases: dict[int, str] = field(default_factory=dict)

    def sent_before(self, now: float) -> float | None:
        """When the clock was moved, if what comes now may have been sent by then: PINGRESP may overtake it."""
        return self.moved[0] if now < self.moved[1] else None

    @property
    def may_be_ended(self) -> bool:
        """For a ``$`` topic, or a filter of such that has no SUBACK: some servers answer a bad filter so; or for a
        takeover too many."""
        asked = (entry.filter for request in self.subscribing.values() for entry in request.subscriptions)
        refused = self.may_be_refused and self.session is None
        return refused or self.excused or any(each.startswith("$") and not is_shared(each) for each in asked)

    @property
    def version(self) -> int:
        return self.connect.version

    @property
    def receive_maximum(self) -> int:
        return self.connect.properties.receive_maximum or 65_535

    @property
    def most_bytes(self) -> float:
        """What is larger is not sent to this client."""
        return self.connect.properties.maximum_packet_size or float("inf")

    def topic_of(self, packet: Publish) -> str:
        """Of a PUBLISH of the server, aliases resolved. Raises :class:`ViolationError`."""
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        highest = self.connect.properties.topic_alias_maximum or 0
        if not 0 < alias <= highest:
            text = f"{self.name}: topic alias {alias}, and the client takes {highest}"
            raise ViolationError(Rule.ALIAS, self.version, text)
        if packet.topic:
            self.aliases[alias] = packet.topic
        elif alias not in self.aliases:
            text = f"{self.name}: topic alias {alias} was not given a topic on this connection"
            raise ViolationError(Rule.ALIAS, self.version, text)
        return self.aliases[alias]
