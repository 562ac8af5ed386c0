"""What clients do in a scenario: one struct for each kind of workload, told apart by ``kind`` in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal

import msgspec

LANES: Final = ("critical", "high", "normal", "low", "background")
"""Priorities of queues, the most urgent first."""
MAX_SESSION_EXPIRY_S: Final = 4_294_967_295
MAX_RECEIVE: Final = 256
"""Deliveries in flight that a client takes unless it says fewer."""
LONGEST_DELAY_S: Final = 3_600.0
Range = tuple[float, float]
"""The least and the most; what is drawn lies evenly between them."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Settlement(_Part, frozen=True, kw_only=True):
    """What a consumer does with a delivery: weights, drawn from the workload's random stream."""

    ack: float = 1.0
    nack: float = 0.0
    reject: float = 0.0
    ignore: float = 0.0
    """Never settled: the delivery timeout must bring it back."""


class Absences(_Part, frozen=True, kw_only=True):
    """How clients come and go while messages are published; at the end all come back. ``leave`` to ``take_over`` are
    weights.
    """

    stay_s: Range = (0.4, 1.2)
    away_s: Range = (0.1, 0.6)
    leave: float = 1.0
    """In good order: DISCONNECT."""
    drop: float = 1.0
    """Without a word."""
    take_over: float = 0.0
    """A second connection under the same client id, while the first is open. Sessions of plain MQTT only."""


class Transactions(_Part, frozen=True, kw_only=True):
    """Producers put messages into transactions; ``commit``, ``abort`` and ``abandon`` are weights of their ends."""

    share: float = 0.8
    """Of the runs of messages; the others go outside of any transaction."""
    messages: tuple[int, int] = (1, 6)
    """In one transaction, or in a run outside."""
    commit: float = 0.7
    abort: float = 0.15
    abandon: float = 0.15
    """Nothing ends it but its timeout, or the producer's next one."""
    timeout_s: float = 1.0


class Delaying(_Part, frozen=True, kw_only=True):
    """Producers ask for messages to be delivered later."""

    share: float = 0.5
    delay_s: Range = (0.05, 1.0)
    deliver_at: float = 0.5
    """Of the delayed ones: those that name a moment in place of a time from now."""
    cancel: float = 0.1
    """Of the delayed ones: those that are to be taken back, at some moment of their delay."""


class PassingGroup(_Part, frozen=True, kw_only=True):
    """A group of one consumer that comes late, and may be deleted and come again."""

    name: str
    at_s: float = 0.5
    """Since publishing began."""
    cursor: Literal["earliest", "latest"] = "latest"
    stay_s: float = 0.0
    """Then the group is deleted; 0 = it stays."""
    away_s: float = 0.3
    """From the deletion until it comes again."""


class _Clients(_Part, frozen=True, kw_only=True):
    """What the clients of all kinds have."""

    publish_timeout_s: float = 2.0
    """Without a confirm for this long, a publish is ``info`` and is not retried; the producer goes on. A publisher
    with a session gives its connection up instead, and resumes."""
    reconnect_after_s: float = 0.1
    """Pause between the end of a connection and the next attempt."""
    handshake_timeout_s: float = 2.0
    """Without CONNACK or SUBACK for this long, the client gives the connection up."""
    keep_alive_s: int = 4
    """A client pings after half of this in silence and gives the connection up after another half without answer."""
    max_unconfirmed: int = 64
    """Publishes in flight per producer; more wait for their turn, and their latency counts from the intended time."""
    payload_bytes: int = 100
    absences: Absences | None = None
    """Of consumers, and of subscribers."""


class _MqttClients(_Clients, frozen=True, kw_only=True):
    """What the clients over MQTT have."""

    receive_maximum: int = MAX_RECEIVE
    """Deliveries that consumers and subscribers of MQTT 5.0 take at a time without having answered one."""


class QueueWorkload(_MqttClients, frozen=True, kw_only=True, tag_field="kind", tag="queue"):
    """Producers and consumers of one durable queue, over MQTT 5."""

    kind: ClassVar[str] = "queue"
    queue: str
    producers: int = 1
    messages_per_producer: int = 100
    rate_per_s: float = 100.0
    """Messages per second of each producer, open loop."""
    keys: int = 4
    groups: tuple[str, ...] = ("workers",)
    consumers_per_group: int = 1
    process_s: Range = (0.0, 0.005)
    """Uniform processing time between delivery and settlement."""
    settlement: Settlement = Settlement()
    transactions: Transactions | None = None
    delays: Delaying | None = None
    priorities: dict[str, float] = {}
    """Weights of lanes, by name; without any, no message names a priority."""
    passing_groups: tuple[PassingGroup, ...] = ()

    @property
    def space(self) -> str:
        """What no other workload may use."""
        return self.queue

    @property
    def operations(self) -> int:
        """Messages that are to be published."""
        return self.producers * self.messages_per_producer

    @property
    def schedule_s(self) -> float:
        """How long the publishers mean to publish."""
        return self.messages_per_producer / self.rate_per_s

    @property
    def longest_wait_s(self) -> float:
        """How long the broker may have to keep a message back, deliveries aside."""
        return max(
            self.delays.delay_s[1] if self.delays else 0.0, self.transactions.timeout_s if self.transactions else 0.0
        )


class Retained(_Part, frozen=True, kw_only=True):
    """Retained messages: writers replace and remove them, readers subscribe anew and see what is there."""

    writers: int = 1
    topics: int = 3
    writes_per_writer: int = 100
    rate_per_s: float = 40.0
    removal: float = 0.2
    """Of the writes: those that remove what is there."""
    readers: int = 1
    read_s: float = 0.3
    """How long a reader waits for retained messages before it concludes that there are no more."""
    pause_s: Range = (0.05, 0.3)


class Wills(_Part, frozen=True, kw_only=True):
    """Clients with a will each, which come and go."""

    clients: int = 1
    delay_s: tuple[int, int] = (0, 0)
    """Will Delay Interval, whole seconds; MQTT 5.0 only."""
    absences: Absences = Absences()


class MqttWorkload(_MqttClients, frozen=True, kw_only=True, tag_field="kind", tag="mqtt"):
    """Plain MQTT: publishers, sessions, shared subscriptions, retained messages and wills in one topic space."""

    kind: ClassVar[str] = "mqtt"
    name: str
    """First level of every topic."""
    protocol: Literal["3.1.1", "5.0"] = "5.0"
    publishers: int = 1
    messages_per_publisher: int = 100
    rate_per_s: float = 50.0
    topics: int = 3
    qos: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Weights of QoS 0, 1 and 2."""
    sessions: int = 1
    """Subscribers whose session outlives their connection."""
    session_expiry_s: int = 3_600
    """MQTT 5.0 only: 3.1.1 keeps them for ever."""
    clean_sessions: int = 1
    """Subscribers whose session ends with their connection."""
    share_members: int = 0
    """Subscribers with a session that share one subscription."""
    retained: Retained | None = None
    wills: Wills | None = None

    @property
    def space(self) -> str:
        """What no other workload may use."""
        return self.name

    @property
    def operations(self) -> int:
        """Messages that are to be published."""
        retained = self.retained.writers * self.retained.writes_per_writer if self.retained else 0
        return self.publishers * self.messages_per_publisher + retained

    @property
    def schedule_s(self) -> float:
        """How long the publishers mean to publish."""
        writing_s = self.retained.writes_per_writer / self.retained.rate_per_s if self.retained else 0.0
        return max(self.messages_per_publisher / self.rate_per_s, writing_s)

    @property
    def longest_wait_s(self) -> float:
        """How long the broker may have to keep a message back, deliveries aside."""
        return self.wills.delay_s[1] + 1.5 * self.keep_alive_s if self.wills else 0.0


class AmqpTransactions(_Part, frozen=True, kw_only=True):
    """Publishers put runs of messages into transactions; ``commit``, ``rollback`` and ``abandon`` are weights."""

    share: float = 0.5
    """Of the runs of messages; the others go over the channel with confirms."""
    messages: tuple[int, int] = (1, 6)
    commit: float = 0.7
    rollback: float = 0.15
    abandon: float = 0.15
    """The connection ends before it."""


class PassingQueues(_Part, frozen=True, kw_only=True):
    """Queues with an exchange of their own, bound to that of the workload: declared while messages are published,
    unbound (at one end, at the other, or by deleting the exchange), deleted, and declared anew.
    """

    number: int = 1
    at_s: float = 0.3
    """Since publishing began."""
    stay_s: Range = (0.3, 0.8)
    """From the binding until it is removed, or the consumer is cancelled so that messages gather in the queue."""
    linger_s: Range = (0.1, 0.4)
    """From then until queue and exchange are deleted."""
    away_s: Range = (0.1, 0.4)
    """From the deletion until all is declared anew."""


class AmqpWorkload(_Clients, frozen=True, kw_only=True, tag_field="kind", tag="amqp091"):
    """AMQP 0.9.1: one exchange, queues that get every message of it, and one for what they give up.

    In a history the exchange is ``queue``, and a queue of the broker is a ``group``.
    """

    kind: ClassVar[str] = "amqp091"
    name: str
    """Of the exchange, and the first part of all other names."""
    exchange: Literal["direct", "fanout", "topic"] = "topic"
    publishers: int = 1
    """With confirms, one message for each."""
    messages_per_publisher: int = 100
    rate_per_s: float = 100.0
    keys: int = 4
    """Routing keys, each with a binding of its own."""
    queues: int = 1
    queue_type: Literal["classic", "quorum"] = "classic"
    consumers_per_queue: int = 1
    prefetch: int = 10
    multiple: float = 0.2
    """Of the acknowledgements: those that are for all deliveries before, too."""
    process_s: Range = (0.0, 0.005)
    settlement: Settlement = Settlement()
    """``nack`` puts the message back, ``reject`` sends it to the dead letters, ``ignore`` keeps it until the end."""
    transactions: AmqpTransactions | None = None
    """Of publishers."""
    movers: int = 0
    """Consumers of a further queue that put a copy of each message into another, with the acknowledgement of it in one
    transaction. ``transactions``, or its defaults, says how that ends."""
    priorities: dict[str, float] = {}
    """Weights of lanes, by name: priorities 4 to 0 of queues with ``x-max-priority`` 4."""
    delivery_limit: int = 0
    """``x-delivery-limit``; 0: none."""
    passing_queues: PassingQueues | None = None

    @property
    def space(self) -> str:
        """What no other workload may use."""
        return self.name

    @property
    def operations(self) -> int:
        """Messages that are to be published."""
        return self.publishers * self.messages_per_publisher

    @property
    def schedule_s(self) -> float:
        """How long the publishers mean to publish."""
        return self.messages_per_publisher / self.rate_per_s

    @property
    def longest_wait_s(self) -> float:
        """How long the broker may have to keep a message back, deliveries aside."""
        return 2.0 * self.keep_alive_s


Workload = QueueWorkload | MqttWorkload | AmqpWorkload

_MOST: Final = {"producers": 1_000, "consumers_per_group": 1_000, "keys": 100_000, "max_unconfirmed": 10_000}
_MOST_MQTT: Final = {"publishers": 1_000, "topics": 10_000, "max_unconfirmed": 10_000}
_MOST_READERS: Final = {"sessions": 1_000, "clean_sessions": 1_000, "share_members": 1_000}
_MOST_AMQP: Final = {
    "publishers": 1_000,
    "queues": 100,
    "consumers_per_queue": 1_000,
    "keys": 1_000,
    "prefetch": 65_535,
    "max_unconfirmed": 10_000,
}
_MAX_MESSAGES: Final = 10_000_000
_MAX_PAYLOAD_BYTES: Final = 1_048_576


def workload_problems(workload: Workload) -> Iterator[str]:
    """What is wrong with an entry, by key."""
    yield from _client_problems(workload)
    if isinstance(workload, QueueWorkload):
        yield from _queue_problems(workload)
    elif isinstance(workload, AmqpWorkload):
        yield from _amqp_problems(workload)
    else:
        yield from _mqtt_problems(workload)


def _client_problems(workload: Workload) -> Iterator[str]:
    if not 0 <= workload.payload_bytes <= _MAX_PAYLOAD_BYTES:
        yield f"payload_bytes: must be 0 to {_MAX_PAYLOAD_BYTES}"
    for name in ("rate_per_s", "publish_timeout_s", "reconnect_after_s", "handshake_timeout_s"):
        if not getattr(workload, name) > 0:
            yield f"{name}: must be above 0"
    if not 1 <= workload.keep_alive_s <= 65_535:
        yield "keep_alive_s: must be 1 to 65535"
    if isinstance(workload, _MqttClients) and not 1 <= workload.receive_maximum <= 65_535:
        yield "receive_maximum: must be 1 to 65535"
    if workload.absences is not None:
        yield from _absence_problems("absences", workload.absences, take_over=isinstance(workload, MqttWorkload))


def _absence_problems(name: str, absences: Absences, *, take_over: bool) -> Iterator[str]:
    yield from _range_problems(f"{name}.stay_s", absences.stay_s)
    yield from _range_problems(f"{name}.away_s", absences.away_s)
    yield from _weight_problems(name, (absences.leave, absences.drop, absences.take_over))
    if absences.take_over and not take_over:
        yield f"{name}.take_over: only sessions of subscribers of plain MQTT are taken over"


def _range_problems(name: str, values: Sequence[float], lowest: float = 0) -> Iterator[str]:
    if not lowest <= values[0] <= values[1]:
        yield f"{name}: needs two numbers from {lowest:g} on, the smaller first"


def _weight_problems(name: str, weights: Sequence[float]) -> Iterator[str]:
    if min(weights) < 0 or sum(weights) <= 0:
        yield f"{name}: weights must not be negative, and one must be above 0"


def _share_problems(part: msgspec.Struct, name: str, *fields: str) -> Iterator[str]:
    for field in fields:
        if not 0 <= getattr(part, field) <= 1:
            yield f"{name}{field}: must be 0 to 1"


def _lane_problems(priorities: dict[str, float]) -> Iterator[str]:
    if priorities:
        yield from _weight_problems("priorities", tuple(priorities.values()))
        unknown = [name for name in priorities if name not in LANES]
        if unknown:
            yield f"priorities.{unknown[0]}: is none of {', '.join(LANES)}"


def _number_problems(part: msgspec.Struct, most: dict[str, int], least: int = 1) -> Iterator[str]:
    for name, limit in most.items():
        if not least <= getattr(part, name) <= limit:
            yield f"{name}: must be {least} to {limit}"


def _topic_problems(name: str, topic: str) -> Iterator[str]:
    if not topic or any(level in ("", "#", "+") or level.startswith("$") for level in topic.split("/")):
        yield f"{name}: a topic path without wildcards, empty levels and levels that start with $"


def _queue_problems(workload: QueueWorkload) -> Iterator[str]:
    yield from _number_problems(workload, _MOST)
    if not 1 <= workload.producers * workload.messages_per_producer <= _MAX_MESSAGES:
        yield f"messages_per_producer: 1 to {_MAX_MESSAGES} messages in total"
    if not 0 <= workload.process_s[0] <= workload.process_s[1]:
        yield "process_s: needs two times, the shorter first"
    names = (*workload.groups, *(group.name for group in workload.passing_groups))
    if not workload.groups or len(set(names)) != len(names) or "~" in "".join(names):
        yield "groups: at least one name, each once, those of passing_groups included, and without ~"
    weights = workload.settlement
    yield from _weight_problems("settlement", (weights.ack, weights.nack, weights.reject, weights.ignore))
    yield from _topic_problems("queue", workload.queue)
    if workload.transactions is not None:
        part = workload.transactions
        yield from _share_problems(part, "transactions.", "share")
        yield from _range_problems("transactions.messages", part.messages, 1)
        yield from _weight_problems("transactions", (part.commit, part.abort, part.abandon))
        if part.timeout_s <= 0:
            yield "transactions.timeout_s: must be above 0"
    if workload.delays is not None:
        yield from _share_problems(workload.delays, "delays.", "share", "deliver_at", "cancel")
        yield from _range_problems("delays.delay_s", workload.delays.delay_s)
        if workload.delays.delay_s[1] > LONGEST_DELAY_S:
            yield f"delays.delay_s: at most {LONGEST_DELAY_S:g}"
    yield from _lane_problems(workload.priorities)
    for number, group in enumerate(workload.passing_groups):
        if min(group.at_s, group.stay_s, group.away_s) < 0:
            yield f"passing_groups[{number}]: times must not be negative"


def _mqtt_problems(workload: MqttWorkload) -> Iterator[str]:
    yield from _number_problems(workload, _MOST_MQTT)
    yield from _number_problems(workload, _MOST_READERS, least=0)
    if not 1 <= workload.publishers * workload.messages_per_publisher <= _MAX_MESSAGES:
        yield f"messages_per_publisher: 1 to {_MAX_MESSAGES} messages in total"
    if not workload.sessions + workload.clean_sessions + workload.share_members:
        yield "sessions: somebody must subscribe"
    if not 1 <= workload.session_expiry_s <= MAX_SESSION_EXPIRY_S:
        yield f"session_expiry_s: must be 1 to {MAX_SESSION_EXPIRY_S}"
    yield from _weight_problems("qos", workload.qos)
    yield from _topic_problems("name", workload.name)
    if " " in workload.name:
        yield "name: without spaces"
    if workload.retained is not None:
        part = workload.retained
        yield from _number_problems(part, {"writers": 100, "topics": 1_000, "writes_per_writer": _MAX_MESSAGES})
        yield from _number_problems(part, {"readers": 100}, least=0)
        yield from _share_problems(part, "retained.", "removal")
        yield from _range_problems("retained.pause_s", part.pause_s)
        if min(part.rate_per_s, part.read_s) <= 0:
            yield "retained.rate_per_s, read_s: must be above 0"
    if workload.wills is not None:
        yield from _number_problems(workload.wills, {"clients": 1_000})
        yield from _range_problems("wills.delay_s", workload.wills.delay_s)
        yield from _absence_problems("wills.absences", workload.wills.absences, take_over=False)
        if workload.wills.delay_s[1] and workload.protocol == "3.1.1":
            yield "wills.delay_s: MQTT 3.1.1 knows no delay of wills"


def _amqp_problems(workload: AmqpWorkload) -> Iterator[str]:
    yield from _number_problems(workload, _MOST_AMQP)
    yield from _number_problems(workload, {"movers": 100, "delivery_limit": 1_000}, least=0)
    if not 1 <= workload.publishers * workload.messages_per_publisher <= _MAX_MESSAGES:
        yield f"messages_per_publisher: 1 to {_MAX_MESSAGES} messages in total"
    if not workload.name or not workload.name.isascii() or not workload.name.replace("-", "").isalnum():
        yield "name: letters, digits and hyphens"
    yield from _range_problems("process_s", workload.process_s)
    yield from _share_problems(workload, "", "multiple")
    weights = workload.settlement
    yield from _weight_problems("settlement", (weights.ack, weights.nack, weights.reject, weights.ignore))
    yield from _lane_problems(workload.priorities)
    if (part := workload.transactions) is not None:
        yield from _share_problems(part, "transactions.", "share")
        yield from _range_problems("transactions.messages", part.messages, 1)
        yield from _weight_problems("transactions", (part.commit, part.rollback, part.abandon))
    if (passing := workload.passing_queues) is not None:
        yield from _number_problems(passing, {"number": 100})
        for name in ("stay_s", "linger_s", "away_s"):
            yield from _range_problems(f"passing_queues.{name}", getattr(passing, name))
    if workload.priorities and workload.queue_type == "quorum":
        yield "priorities: a quorum queue has none"
