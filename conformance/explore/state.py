"""What the model knows of connections and sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.conformance.explore.claims import Claim, Message, Subscription
from assay.conformance.explore.rules import Rule
from assay.conformance.explore.topics import is_shared
from assay.conformance.wire import Connect, Packet, Publish, Subscribe, Unsubscribe


@dataclass(eq=False)
class Flight:
    """A delivery at QoS 1 or 2 that the client has not acknowledged to the end."""

    packet: Publish
    topic: str
    link: Link
    """Where it was seen last."""
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
    goodbye: bool = False
    """DISCONNECT was sent or seen: the end of the connection surprises nobody."""
    excused: bool = False
    """The client published to a ``$`` topic: a server may end its connection."""
    doubtful: list[Message] = field(default_factory=list)
    """What it published since."""
    must_close: Rule | None = None
    kept_s: float = 0.0
    keep_alive_s: float = 0.0
    last_sent_at: float = 0.0
    will: Message | None = None
    will_delay_s: float = 0.0
    subscribing: dict[int, Subscribe] = field(default_factory=dict)
    unsubscribing: dict[int, Unsubscribe] = field(default_factory=dict)
    pings: int = 0
    aliases: dict[int, str] = field(default_factory=dict)
    """Of the server."""
    own_aliases: dict[int, str] = field(default_factory=dict)

    @property
    def may_be_ended(self) -> bool:
        """For a ``$`` topic, or a filter of such that has no SUBACK: some servers answer a bad filter so."""
        asked = (entry.filter for request in self.subscribing.values() for entry in request.subscriptions)
        return self.excused or any(each.startswith("$") and not is_shared(each) for each in asked)

    @property
    def version(self) -> int:
        return self.connect.version

    @property
    def most_bytes(self) -> float:
        """What is larger is not sent to this client."""
        return self.connect.properties.maximum_packet_size or float("inf")
