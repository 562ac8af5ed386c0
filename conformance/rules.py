"""What every case relies on: the steps that it may not be about, each with the statements that it rests on.

A step that fails is booked on its own rule, once: a case that is about something else is ``blocked`` by it
(:mod:`assay.conformance.booking`). A case is about a rule when it cites one of its statements.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum

import msgspec

from assay.conformance.outcome import CaseFailureError
from assay.conformance.wire import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from assay.conformance.wire.amqp091 import AMQP_091
from assay.conformance.wire.http import GRPC, HTTP_11

_V5 = 5
FACES = {"http": HTTP_11, "grpc": GRPC}
"""Specifications of requests and answers."""
VERSIONS = {"mqtt311": 4, "mqtt5": 5, "queue": 5, "amqp091": AMQP_091, **FACES}
"""Protocol version of the cases of a specification."""


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """Statements on which a step rests: of both versions of MQTT (without ``MQTT-``), or of one other protocol."""

    what: str
    in_311: tuple[str, ...] = ()
    in_5: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    """In another protocol, whose cases have this version."""
    version: int = AMQP_091
    judges: tuple[str, ...] | None = None
    """``<area>/<slug>`` of the cases that are about it, or statements they cite; None = one of the statements above."""
    shaped: bool = False
    """Whether it fails may depend on what was asked: only a request that was as plain explains another's failure."""


def _shaped(what: str, *, in_311: tuple[str, ...], in_5: tuple[str, ...]) -> Basis:
    return Basis(what=what, in_311=in_311, in_5=in_5, shaped=True)


def _soft(what: str, *, in_311: tuple[str, ...], in_5: tuple[str, ...]) -> Basis:
    """Of what many a case may well be about: only the plainest one explains its failures (:class:`Incident`)."""
    return Basis(what=what, in_311=in_311, in_5=in_5, judges=(), shaped=True)


def _websocket(what: str, *statements: str, judge: str) -> Basis:
    in_both = tuple(f"RFC6455-{name}" for name in statements)
    return Basis(what=what, in_311=in_both, in_5=in_both, judges=(f"websocket/{judge}",))


def _amqp(what: str, *statements: str, judges: tuple[str, ...] | None = None) -> Basis:
    return Basis(what=what, elsewhere=statements, judges=judges, shaped=True)


def _http(what: str, statement: str, *judges: str) -> Basis:
    return Basis(what=what, elsewhere=(statement,), version=HTTP_11, judges=judges, shaped=True)


def _grpc(what: str, statement: str, *judges: str) -> Basis:
    return Basis(what=what, elsewhere=(statement,), version=GRPC, judges=judges, shaped=True)


def full_id(statement: str) -> str:
    """The id of a statement that stands without ``MQTT-`` here."""
    return f"MQTT-{statement}" if statement[:1].isdigit() else statement


class Rule(Enum):
    """The steps."""

    ACCEPT = _shaped("a CONNECT is accepted", in_311=("3.1.4-4",), in_5=("3.1.4-5",))
    FIRST = Basis(what="CONNACK is the first packet", in_311=("3.2.0-1",), in_5=("3.2.0-1",))
    SUBACK = _shaped("SUBSCRIBE is answered", in_311=("3.8.4-1", "3.8.4-2"), in_5=("3.8.4-1", "3.8.4-2"))
    UNSUBACK = _shaped("UNSUBSCRIBE is answered", in_311=("3.10.4-4", "3.10.4-5"), in_5=("3.10.4-4", "3.10.4-5"))
    PUBACK = _shaped("QoS 1 is acknowledged", in_311=("3.3.4-1", "4.3.2-2"), in_5=("3.3.4-1", "4.3.2-4"))
    PUBREC = _shaped("QoS 2 is answered by PUBREC", in_311=("3.3.4-1", "4.3.3-2"), in_5=("3.3.4-1", "4.3.3-8"))
    PUBREL = Basis(what="PUBREC is answered by PUBREL", in_311=("4.3.3-1",), in_5=("4.3.3-4", "4.3.3-5"))
    PUBREL_AGAIN = Basis(
        what="a PUBREL that is owed to a client that is back is sent again", in_311=("4.4.0-1",), in_5=("4.4.0-1",)
    )
    PUBCOMP = Basis(what="PUBREL is answered by PUBCOMP", in_311=("4.3.3-2",), in_5=("4.3.3-11",))
    PINGRESP = Basis(what="PINGREQ is answered", in_311=("3.12.4-1",), in_5=("3.12.4-1",))
    DELIVERY = Basis(
        what="a message reaches its subscriber", in_311=("4.5.0-1",), in_5=("4.5.0-1",), judges=(), shaped=True
    )
    CONTENT = _soft("a message comes as it was published", in_311=("3.3.2-1",), in_5=("3.3.2-1",))
    COPIES = _soft(
        "a message comes once to who subscribes once",
        in_311=("4.3.1-1", "4.3.2-1", "4.3.3-1"),
        in_5=("4.3.1-1", "4.3.2-1", "4.3.3-1", "4.4.0-1"),
    )
    STAYS_OPEN = _soft(
        "a connection that breaks no rule is served",
        in_311=("3.1.4-4", "3.8.4-1", "3.12.4-1"),
        in_5=("3.1.4-5", "3.8.4-1", "3.12.4-1"),
    )
    FORM = Basis(
        what="what the broker sends is well-formed", in_311=("2.2.2-1",), in_5=("2.1.3-1",), judges=(), shaped=True
    )
    TEXT = Basis(
        what="text that the broker sends is UTF-8 without U+0000",
        in_311=("1.5.3-1", "1.5.3-2"),
        in_5=("1.5.4-1", "1.5.4-2"),
    )
    SESSION_KEPT = Basis(what="a session is kept, and said so", in_311=("3.2.2-2",), in_5=("3.2.2-3",))
    SESSION_SURVIVES = Basis(
        what="a session outlives a restart",
        in_311=("3.1.2-4", "4.1.0-1"),
        in_5=("3.1.2-5", "3.1.2-23"),
        judges=("restart/sessions-without-anything",),
    )
    STARTS_AGAIN = _soft("a broker starts again on what it has stored", in_311=("4.1.0-1",), in_5=("3.1.2-23",))
    SUBSCRIPTION_SURVIVES = _soft("a subscription outlives a restart", in_311=("3.1.2-4",), in_5=("3.1.2-23",))
    SHARE_SURVIVES = _soft("a shared subscription outlives a restart", in_311=(), in_5=("3.1.2-23",))
    MESSAGE_SURVIVES = _soft("a message that waits outlives a restart", in_311=("3.1.2-5",), in_5=("3.1.2-23",))
    RETAINED_SURVIVES = _soft("a retained message outlives a restart", in_311=("3.3.1-5",), in_5=("3.3.1-5",))
    SESSION_NEW = Basis(what="a new session is said to be new", in_311=("3.2.2-1", "3.2.2-3"), in_5=("3.2.2-2",))
    RETAIN_SET = Basis(
        what="RETAIN is 1 on a retained message",
        in_311=("3.3.1-8",),
        in_5=("3.3.1-9",),
        judges=("retained/new-subscriber-gets-the-last-one", "retained/sent-to-a-new-subscriber", "MQTT-3.3.1-13"),
    )
    RETAIN_CLEAR = Basis(
        what="RETAIN is 0 on a live message",
        in_311=("3.3.1-9",),
        in_5=("3.3.1-12",),
        judges=("retained/flag-is-clear-for-existing-subscribers", "MQTT-3.3.1-13"),
    )
    DUP_SET = Basis(what="DUP is 1 on what is sent again", in_311=("3.3.1-1",), in_5=("3.3.1-1",))
    DUP_CLEAR = Basis(what="DUP is 0 on what is sent first", in_311=("3.3.1-2", "3.3.1-3"), in_5=("3.3.1-2", "3.3.1-3"))
    ORDER = Basis(what="messages of a topic come in order", in_311=("4.6.0-5", "4.6.0-6"), in_5=("4.6.0-5", "4.6.0-6"))
    PACKET_SIZE = Basis(what="no packet is larger than the client takes", in_311=(), in_5=("3.1.2-24",))
    TAKEN_OVER = Basis(what="a takeover ends the older connection", in_311=("3.1.4-2",), in_5=("3.1.4-3",))
    PUNISHED = Basis(what="an error ends the connection", in_311=("4.8.0-1",), in_5=("4.13.1-1",))
    SILENCE = Basis(what="silence beyond the keep alive ends the connection", in_311=("3.1.2-24",), in_5=("3.1.2-22",))
    QOS = Basis(
        what="a message comes at the lower of its own QoS and that of the subscription",
        in_311=("3.8.4-6",),
        in_5=("3.8.4-8",),
    )
    EMPTY_SUBSCRIBE = Basis(
        what="SUBSCRIBE without a filter ends the connection", in_311=("3.8.3-3",), in_5=("3.8.3-2",)
    )
    RESERVED_FLAG = Basis(what="CONNECT with its reserved flag is refused", in_311=("3.1.2-3",), in_5=("3.1.2-3",))
    UNKNOWN_METHOD = Basis(
        what="an unknown authentication method is refused",
        in_311=(),
        in_5=("4.12.0-1",),
        judges=("auth/unknown-method-refused",),
    )
    ONCE = Basis(what="a request is answered once", in_311=("3.8.4-2",), in_5=("3.8.4-2",), judges=(), shaped=True)
    FOREIGN = Basis(what="only who subscribes gets messages", in_311=("3.3.2-3",), in_5=("3.3.2-3",))

    UPGRADE = _websocket("a WebSocket handshake is answered", "4.2.2-1", judge="server-selects-the-sub-protocol-mqtt")
    FRAMES = _websocket(
        "what the broker sends is WebSocket",
        *("5.1-2", "5.2-1", "5.2-2", "5.4-1", "5.5-1"),
        judge="frames-of-the-server-are-well-formed",
    )
    PONG = _websocket("a WebSocket ping is answered", "5.5.2-1", judge="pings-are-answered")
    BINARY = Basis(
        what="MQTT travels in binary frames",
        in_311=("6.0.0-1",),
        in_5=("6.0.0-1",),
        judges=("websocket/packets-travel-in-binary-frames",),
    )

    AMQP_OPEN = _amqp("a connection is opened", "sync.connection.open")
    AMQP_CLOSE = _amqp("Close of a connection is answered", "sync.connection.close")
    AMQP_CHANNEL_OPEN = _amqp("a channel is opened", "sync.channel.open")
    AMQP_CHANNEL_CLOSE = _amqp("Close of a channel is answered", "sync.channel.close")
    AMQP_FLOW = _amqp("Flow is answered", "sync.channel.flow")
    AMQP_EXCHANGE_DECLARE = _amqp("an exchange is declared", "sync.exchange.declare")
    AMQP_EXCHANGE_DELETE = _amqp("an exchange is deleted", "sync.exchange.delete")
    AMQP_EXCHANGE_BIND = _amqp("exchanges are bound", "sync.exchange.bind")
    AMQP_EXCHANGE_UNBIND = _amqp("exchanges are unbound", "sync.exchange.unbind")
    AMQP_QUEUE_DECLARE = _amqp("a queue is declared", "sync.queue.declare")
    AMQP_QUEUE_BIND = _amqp("a queue is bound", "sync.queue.bind")
    AMQP_QUEUE_UNBIND = _amqp("a queue is unbound", "sync.queue.unbind")
    AMQP_QUEUE_PURGE = _amqp("a queue is purged", "sync.queue.purge")
    AMQP_QUEUE_DELETE = _amqp("a queue is deleted", "sync.queue.delete")
    AMQP_QOS = _amqp("Qos is answered", "sync.basic.qos")
    AMQP_CONSUME = _amqp("a consumer is taken", "sync.basic.consume")
    AMQP_CANCEL = _amqp("a consumer is cancelled", "sync.basic.cancel")
    AMQP_GET = _amqp("Get is answered", "sync.basic.get")
    AMQP_RECOVER = _amqp("Recover is answered", "basic.recover.01")
    AMQP_SELECT = _amqp("transactions begin", "sync.tx.select")
    AMQP_COMMIT = _amqp("a transaction is committed", "sync.tx.commit")
    AMQP_ROLLBACK = _amqp("a transaction is rolled back", "sync.tx.rollback")
    AMQP_CONFIRM_SELECT = _amqp("confirms begin", "sync.confirm.select")
    AMQP_CONFIRM = _amqp("a publish is confirmed", "confirm.all-messages-acknowledged")
    AMQP_DELIVERY = _amqp("a message reaches its queue, and from there its consumer", "sec.3.1.3.1.auto-bind")
    AMQP_BODY = _amqp("a message comes as it was published", "sec.3.1.1.body-unmodified")
    AMQP_FORM = _amqp("what the broker sends is well-formed", "sec.4.2.3.frame-end-value", judges=())
    AMQP_LEVEL = _amqp(
        "a Close has a code of its level, and names what failed", "sec.2.3.6.exceptions", "sec.4.8.2.reply-code"
    )

    HTTP_QUEUE = _http("a queue is created", "H-QUEUE-1", "queues/created-is-listed-and-shown")
    HTTP_PUBLISH = _http("a publish is taken", "H-PUB-1", "publish/taken-is-200-and-has-a-place")
    HTTP_CONSUME = _http("a consumer is answered", "H-CONS-1", "consume/once-in-a-group-and-in-every-group")
    HTTP_DELIVERY = _http("a message reaches its group", "H-CONS-1", "consume/once-in-a-group-and-in-every-group")
    HTTP_CONTENT = _http("a payload comes as it was sent", "H-PUB-6", "publish/any-payload-and-headers-come-back")
    HTTP_SETTLE = _http("a settlement is taken", "H-SETTLE-1", "consume/accepted-is-gone")
    HTTP_ACCEPTED = _http("what is accepted does not come again", "H-SETTLE-1", "consume/accepted-is-gone")
    HTTP_STATS = _http("the figures of a queue are told", "H-QUEUE-9", "queues/stats-count-what-is-there")
    HTTP_TOPIC = _http("a topic is created", "H-TOPIC-1", "topics/created-is-201-and-shown")
    HTTP_TOPIC_PUBLISH = _http("a topic takes messages", "H-TPUB-1", "topics/results-tell-place-and-priority")
    HTTP_JOIN = _http("a member joins", "H-GROUP-1", "groups/joining-tells-the-assignment")
    HTTP_POLL = _http("a member polls", "H-GROUP-5", "groups/poll-tells-messages-and-handles")
    HTTP_ACK = _http("a handle is settled", "H-ACK-1", "groups/ack-tells-the-committed-offset")
    HTTP_PRODUCER = _http("a producer is known", "H-TXN-1", "transactions/a-second-producer-fences-the-first")
    HTTP_SCHEMA = _http("a schema is registered", "H-SCHEMA-1", "schemas/registered-has-an-id-and-versions")
    HTTP_BRIDGE = _http("the bridge takes a message", "H-BRIDGE-1", "crossing/bridge-reaches-subscribers")
    HTTP_PROBLEM = _http("a refusal is told as a problem", "H-ERR-1", "queues/a-second-of-its-name-is-409")
    HTTP_ERROR = _http("GoQueue's routes tell an error", "H-ERR-2", "topics/a-second-of-its-name-is-409")
    HTTP_NUMBER = _http("the registry numbers its errors", "H-SCHEMA-7", "schemas/unknown-has-its-number")
    HTTP_NOBODY = _http("who says nothing is nobody", "H-AUTH-1", "access/who-is-nobody-is-401")

    GRPC_QUEUE = _grpc("a queue is created", "G-QUEUE-1", "queues/created-shown-listed-deleted")
    GRPC_APPEND = _grpc("an append is taken", "G-APPEND-1", "append/told-where-and-read-as-sent")
    GRPC_CONSUME = _grpc("a consumer gets messages", "G-CONS-1", "consume/once-acknowledged-and-again")
    GRPC_ACK = _grpc("an acknowledgement is taken", "G-CONS-3", "consume/once-acknowledged-and-again")
    GRPC_PUBLISH = _grpc("a topic takes messages", "G-PUB-1", "publish/told-where-and-consumed-as-sent")
    GRPC_SUBSCRIBE = _grpc("a subscriber gets what is its own", "G-SUB-1", "groups/subscribers-are-told")
    GRPC_HANDLE = _grpc("a handle is settled", "G-ACK-1", "acks/settled-by-handle")

    def clauses(self, version: int) -> tuple[str, ...]:
        """Ids of the statements, for reports."""
        if version >= AMQP_091:
            return self.value.elsewhere if version == self.value.version else ()
        return tuple(map(full_id, self.value.in_5 if version >= _V5 else self.value.in_311))

    def is_subject_of(self, case_id: str, clauses: Collection[str]) -> bool:
        """Whether a case with this id, which cites ``clauses``, is about this rule."""
        spec, _, slug = case_id.partition("/")
        judges = self.clauses(VERSIONS[spec]) if self.value.judges is None else self.value.judges
        return not {slug, *clauses}.isdisjoint(judges)


ANSWERS: dict[type[Packet], Rule] = {
    Connack: Rule.ACCEPT,
    Suback: Rule.SUBACK,
    Unsuback: Rule.UNSUBACK,
    Puback: Rule.PUBACK,
    Pubrec: Rule.PUBREC,
    Pubrel: Rule.PUBREL,
    Pubcomp: Rule.PUBCOMP,
    Pingresp: Rule.PINGRESP,
    Publish: Rule.DELIVERY,
}
"""The rule that is broken when a packet of this type does not come."""

ANSWERED_ONCE: dict[type[Packet], tuple[type[Packet], ...]] = {
    Subscribe: (Suback,),
    Unsubscribe: (Unsuback,),
    Publish: (Puback, Pubrec),
    Pubrel: (Pubcomp,),
    Pingreq: (Pingresp,),
}
"""Requests with what may come once for each, and tells nothing new when it comes again."""

_REQUESTS: dict[Rule, type[Packet]] = {
    Rule.ACCEPT: Connect,
    Rule.SUBACK: Subscribe,
    Rule.UNSUBACK: Unsubscribe,
    Rule.PUBACK: Publish,
    Rule.PUBREC: Publish,
    Rule.PUBREL: Pubrec,
    Rule.PUBCOMP: Pubrel,
    Rule.PINGRESP: Pingreq,
}


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was seen broken in a case that may be about something else."""

    rule: Rule
    shape: frozenset[str] = frozenset()
    """What was special about the request; a broker that fails a plain one fails every other, too."""
    text: str
    statements: tuple[str, ...] = ()
    """Of the rule, those that it breaks, where that is known; without ``MQTT-``."""
    soft: bool = False
    """The case may well be about it, and fails unless one that is about nothing else fails, too."""


class StepFailureError(CaseFailureError):
    """A step of a case failed; whether the case is about that step is for the engine to say."""

    def __init__(self, incident: Incident) -> None:
        super().__init__(incident.text)
        self.incident = incident


def no_marker(text: str, qos: int, *, cut: bool = False) -> StepFailureError:
    """A marker, a message like any other, did not come; ``cut``: as its client lost the connection by no fault."""
    if cut:
        return StepFailureError(Incident(rule=Rule.STAYS_OPEN, text=text))
    return StepFailureError(Incident(rule=Rule.DELIVERY, shape=frozenset({f"qos {qos}"} if qos else ()), text=text))


_CODES = {
    "CONNACK": ("3.2.2-6", "3.2.2-8"),
    "SUBACK": ("3.9.3-2", "3.9.3-2"),
    "UNSUBACK": ("", "3.11.3-2"),
    "PUBACK": ("", "3.4.2-1"),
    "PUBREC": ("", "3.5.2-1"),
    "PUBREL": ("", "3.6.2-1"),
    "PUBCOMP": ("", "3.7.2-1"),
    "DISCONNECT": ("", "3.14.2-1"),
}
"""What says which codes a packet may have, in 3.1.1 and 5.0."""


def malformed(fault: str, version: int, text: str) -> Incident:
    """The broker sent a packet with this fault (its type, a colon, and what is wrong with it)."""
    kind, _, what = fault.partition(": ")
    if what == "DUP is set at QoS 0":
        return Incident(rule=Rule.DUP_CLEAR, text=text)
    if what.endswith("contains U+0000") or "is not well-formed UTF-8" in what:
        return Incident(rule=Rule.TEXT, text=text)  # it is, perhaps, what another case has sent
    statement = _CODES.get(kind, ("", ""))[version >= _V5] if what.endswith("is not one of this packet") else ""
    statements = (statement,) if statement else ()
    return Incident(rule=Rule.FORM, shape=frozenset({fault}), statements=statements, text=text)


_PLAIN_TOPIC = re.compile(r"[A-Za-z0-9/$_-]*")
_LARGE_BYTES = 1_000
_NAMES = frozenset({"topic", "payload", "client_id", "packet_id", "version", "username", "password", "filter"})
"""Fields that differ from packet to packet and make none special."""


def longest_name_bytes(packet: Packet | None) -> int:
    """Of the topic of a message, or the filters of a SUBSCRIBE."""
    names = [packet.topic] if isinstance(packet, Publish) else []
    if isinstance(packet, Subscribe):
        names = [entry.filter for entry in packet.subscriptions]
    return max((len(name.encode()) for name in names), default=0)


def shape(record: msgspec.Struct) -> frozenset[str]:
    """What is special about a packet: the names of all fields that are not at their defaults, with small values."""
    found: set[str] = set()
    for field in msgspec.structs.fields(type(record)):
        value = getattr(record, field.name)
        if field.name in ("topic", "filter") and not _PLAIN_TOPIC.fullmatch(value):
            found.add(f"unusual {field.name}")
        if field.name == "payload" and len(value) > _LARGE_BYTES:
            found.add("large payload")
        if field.name in _NAMES or value == field.default:
            continue
        if isinstance(value, Properties):
            found |= {name for name in value.__struct_fields__ if getattr(value, name) not in (None, ())}
        elif isinstance(value, msgspec.Struct):
            found |= {field.name} | {f"{field.name} {part}" for part in shape(value)}
        elif field.name == "subscriptions":
            found |= {part for entry in value for part in shape(entry)} | ({"many"} if len(value) > 1 else set())
        elif field.name == "filters":
            found |= {"many"} if len(value) > 1 else set()
        else:
            found.add(f"{field.name} {value}")
    return frozenset(found)


def rule_of_missing(kind: type[Packet], sent: Mapping[type[Packet], Packet], seen: Packet | None) -> Rule | None:
    """The rule that is broken where a packet of this type was due, and ``seen`` came, or nothing."""
    if kind is Connack and seen is not None:
        return Rule.FIRST
    return Rule.PUBREL_AGAIN if kind is Pubrel and Pubrec not in sent else ANSWERS.get(kind)


def was_asked(rule: Rule, sent: Mapping[type[Packet], Packet]) -> bool:
    """Whether what a rule demands would be an answer: what comes unasked, as on resuming, is the case's own affair."""
    return rule not in _REQUESTS or _REQUESTS[rule] in sent


def asked_by(rule: Rule | None, sent: Mapping[type[Packet], Packet]) -> Packet | None:
    """The request whose answer a rule demands; ``sent`` are the last packets of each type."""
    return None if rule is None else sent.get(_REQUESTS.get(rule, Packet))


def request_shape(rule: Rule, sent: Mapping[type[Packet], Packet]) -> frozenset[str]:
    """The shape of the request whose answer is missing; ``sent`` are the last packets of each type."""
    packet = asked_by(rule, sent)
    return frozenset() if packet is None else shape(packet)
