"""The one schema of what happened: history events, broker trace events, latency samples.

Every driver (conformance, simulation, faults, load) writes these records and every judge (in-memory checkers, Spark,
reports) reads them. A file is JSON lines, optionally zstd-compressed; its first line is the header.

Status rule, never broken: a timeout or a lost connection is ``info`` (it may or may not have happened, for ever);
only an explicit refusal by the broker is ``fail``. A message published in a transaction completes as that does: ``ok``
when its commit was confirmed, ``info`` when the commit was asked for and nothing is known, ``fail`` when the
transaction was aborted, or abandoned without a commit: then nobody may ever see it.

Every value sent is unique within a run: ``"<producer>-<sequence>"``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal

import msgspec

HISTORY_SCHEMA: Literal["assay.history/1"] = "assay.history/1"
TRACE_SCHEMA: Literal["assay.trace/1"] = "assay.trace/1"


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """Base of all records: immutable; fields at their default are left out of the file."""


class OpKind(StrEnum):
    """What an operation does."""

    CONNECT = "connect"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PUBLISH = "publish"
    WILL = "will"
    """A will is left with the broker (``invoke``); its connection then ends without DISCONNECT (``ok``: the will is
    due), with one (``fail``), or was never accepted (``info``)."""
    COMMIT = "commit"
    ABORT = "abort"
    CANCEL = "cancel"
    """A delayed message is taken back before its time."""
    READ = "read"
    """A new subscription asks for retained messages (``invoke``); one ``ok`` for each topic, without a value where
    there was none."""
    DELETE = "delete"
    """A consumer group is deleted; over AMQP what ``key`` names, ``exchange/<name>`` or ``queue/<name>``."""
    DECLARE = "declare"
    """Over AMQP: what ``key`` names is declared, durable."""
    LOOK = "look"
    """A client asks whether what ``key`` names is there: ``ok`` if it is, ``fail`` if not."""
    DELIVER = "deliver"
    """The broker pushed a message to a consumer; one event of type ``ok``, without invocation."""
    IGNORE = "ignore"
    """A message of QoS 2 came under a packet identifier that the client still has in use for another one, whose DELIVER
    ``op`` is: MQTT has it answer, and not deliver it (4.3.3)."""
    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    SESSION_END = "session_end"
    """A client's connection ended; whatever it had unsettled may be redelivered."""
    FAULT = "fault"
    """A fault begins (``invoke``) or ends (``ok``); ``detail`` names its kind and targets."""
    DRAIN = "drain"
    """Final read: ``ok`` says that the queue was read until empty, ``info`` that it could not be, ``fail`` that the
    group or session came to its end before, so that nothing is owed to it any more."""


class OpType(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class HistoryEvent(Record, frozen=True, kw_only=True):
    """One line of a history. ``index`` is the total order; the clock only measures."""

    index: int
    time_ns: int
    """Nanoseconds since the start of the run, on one monotonic clock (simulated or real)."""
    process: str
    """Logical process. A process with an ``info`` operation is retired; its successor has a new name."""
    f: OpKind
    type: OpType
    op: int = -1
    """Ties a completion to its invocation: the ``index`` of the invocation; -1 where there is none."""
    queue: str = ""
    """Queue; deliveries from a dead-letter queue carry the DLQ's own name (``$dlq/<queue>``). Plain MQTT: ``$mqtt/``
    and the name of its topic space, or ``$retained/`` and it for retained messages; ``key`` is then the topic, and
    ``:`` and the QoS of the publish."""
    key: str = ""
    """Partition key; empty when the publisher gave none."""
    value: str = ""
    producer: str = ""
    seq: int = -1
    """Position of the value in its producer's stream, from 0."""
    group: str = ""
    """Consumer group, or MQTT session. Each life of either has a name of its own."""
    message_id: str = ""
    partition: int = -1
    offset: int = -1
    delivery_count: int = 0
    """Deliveries of this message to this group, this one included, as the broker states it; 0 when it does not."""
    redelivered: bool = False
    """The broker says that it delivered this message before (DUP flag or a count above 1)."""
    reason: str = ""
    """Dead-letter or reject reason; of a CONNECT what became of the session, of a retained publish that it removes."""
    detail: str = ""
    txn: str = ""
    """The transaction that the operation is part of."""
    qos: int = -1
    """MQTT Quality of Service of a publish, delivery or subscription; -1 where it does not matter."""
    delay_ns: int = -1
    """PUBLISH: not to be delivered before this long after the invocation. WILL: so long after the end of its
    connection. CONNECT: Session Expiry Interval. SESSION_END: since the last sign of life from the broker. -1: none."""
    lane: int = -1
    """Priority of a publish to a queue: 0 is the most urgent of 5; -1 where the publisher gave none, which is 2."""


class DeliveryGuarantee(StrEnum):
    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class OrderGuarantee(StrEnum):
    NONE = "none"
    PER_PRODUCER_KEY = "per_producer_key"
    """First deliveries of one producer's values of one key reach one group in the order sent."""


class AckedMeans(StrEnum):
    """Where an acknowledged message is, so which faults it survives."""

    MEMORY = "memory"
    OS = "os"
    """In the operating system's cache: survives kill -9, not power loss."""
    DISK = "disk"
    """Survives power loss."""


class Contract(Record, frozen=True, kw_only=True):
    """What the broker under test promises; checkers read severities from it."""

    delivery: DeliveryGuarantee = DeliveryGuarantee.AT_LEAST_ONCE
    order: OrderGuarantee = OrderGuarantee.PER_PRODUCER_KEY
    acked_means: AckedMeans = AckedMeans.DISK
    dead_letters: bool = True
    max_deliveries: int = 0
    """Deliveries after which a message must be dead-lettered; 0 = no limit."""
    delivery_timeout_s: float = 30.0
    """An unsettled delivery may be redelivered after this long."""
    redelivery_may_reorder: bool = True
    lane_shares: str = "50 25 15 7 3"
    """Of each hundred deliveries while all lanes have messages, the most urgent lane first; empty: nothing is
    promised of priorities."""


class HistoryHeader(Record, frozen=True, kw_only=True):
    """First line of a history file."""

    schema: str = HISTORY_SCHEMA
    run_id: str = ""
    scenario: str = ""
    world: str = ""
    """``sim``, ``real`` or the name of a target."""
    seed: int = 0
    contract: Contract = msgspec.field(default_factory=Contract)


class TraceKind(StrEnum):
    """What the broker did, as it tells it itself (white box)."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    PROTOCOL_ERROR = "protocol_error"
    SUBSCRIBED = "subscribed"
    PUBLISHED = "published"
    ENQUEUED = "enqueued"
    CONFIRMED = "confirmed"
    DELIVERED = "delivered"
    ACKED = "acked"
    NACKED = "nacked"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    RETRY_SCHEDULED = "retry_scheduled"
    DELAYED = "delayed"
    """A message waits for its time, or its time has come; ``detail`` says which."""
    DEAD_LETTERED = "dead_lettered"
    DISCARDED = "discarded"
    """A queue gave a message up; ``detail`` says why: expired, unreadable, or exhausted without dead letters."""
    RECOVERED = "recovered"


Tracer = Callable[[TraceKind, dict[str, str | int]], None]
"""Is told what the broker did, with the fields of :class:`TraceEvent`."""


class TraceEvent(Record, frozen=True, kw_only=True):
    """One step of a message through a broker node. ``seq`` has no gaps per node: a gap means lost trace.

    With a ``trace_id`` it is a span of W3C Trace Context, which ended at ``time_ns``: docs/tracing.md.
    """

    seq: int
    time_ns: int
    node: str
    kind: TraceKind
    client_id: str = ""
    topic: str = ""
    queue: str = ""
    partition: int = -1
    offset: int = -1
    message_id: str = ""
    group: str = ""
    delivery_count: int = 0
    detail: str = ""
    trace_id: str = ""
    """32 hexadecimal digits."""
    span_id: str = ""
    """16 hexadecimal digits."""
    parent_id: str = ""
    """The span that caused it; of the first one in this broker the publisher's, if that named one."""
    trace_state: str = ""
    """What the publisher sent beside it, for other vendors."""
    duration_ns: int = 0
    """Since the step that it waited for."""


class TraceHeader(Record, frozen=True, kw_only=True):
    schema: str = TRACE_SCHEMA
    run_id: str = ""
    node: str = ""


class LatencyOperation(StrEnum):
    CONNECT = "connect"
    SUBSCRIBE = "subscribe"
    PUBLISH_TO_ACK = "publish_to_ack"
    PUBLISH_TO_DELIVER = "publish_to_deliver"
    DELIVER_TO_SETTLE = "deliver_to_settle"


class LatencySample(Record, frozen=True, kw_only=True):
    """One raw sample of a load run, a row of ``samples.parquet``.

    Latency is ``completed_ns - intended_ns`` (coordinated-omission safe); service time is ``completed_ns - sent_ns``.
    Every row was due: one that was never answered has another status than ``ok``, and counts.
    """

    run_id: str
    phase: str
    """``warmup``, ``steady`` or ``cooldown``; only ``steady`` is judged. ``closed_loop``: nothing was due, each request
    waited for the answer to the one before, so the figures leave out what a stall kept from being sent."""
    operation: LatencyOperation
    qos: int
    client: str
    seq: int
    intended_ns: int
    sent_ns: int
    completed_ns: int
    status: str = "ok"
    workload: str = ""
    """Name of the workload in its profile."""
    queue: str = ""
    """The durable queue that the message went through; empty for plain publish and subscribe."""
    protocol: str = ""
    """``mqtt311`` or ``mqtt5``."""
    offered_ns: int = -1
    """When the generator handed the message to its client: ``offered_ns - intended_ns`` is the generator's own delay,
    what comes later until ``sent_ns`` the broker's, which had no room. -1: not known, ``sent_ns`` stands for it."""
