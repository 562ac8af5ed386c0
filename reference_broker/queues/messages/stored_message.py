"""Messages as log records and back.

The record's value is the payload, its key the partition key (empty when there is none), its headers the user
properties, after broker headers whose names start with one ``_`` (``_properties`` among them: see
:mod:`assay.reference_broker.routing.properties`). A user property whose own name starts with ``_`` gets
a second one, so that no publisher can pose as the broker. QoS and retain are of the transport, and not stored.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from assay.reference_broker.config import MAX_PRIORITY_LEVELS
from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.store import Headers, LogRecord, NewRecord
from assay.reference_broker.queues.messages.address import topic_of
from assay.reference_broker.queues.messages.control_records import (
    PRODUCER_HEADER,
    TRANSACTION_HEADER,
    is_control_header,
)
from assay.reference_broker.queues.messages.lanes import NORMAL
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY
from assay.reference_broker.routing.message import PROPERTY_BYTES, Message, memory_bytes, text_bytes
from assay.reference_broker.routing.properties import decode_properties, encode_properties, properties_bytes
from assay.reference_broker.routing.remembered import Known, SharedMemory

PRIORITY_HEADER = b"_priority"
_PROPERTIES = b"_properties"
DELAY_HEADER = b"_delay"
"""Of a message that was delayed: its number among the delayed ones, so that a start sees that it fired."""
CACHE_LIMIT = 1_024
_ENTRY_BYTES = 1_024
"""What the headers of a plain message take that are remembered, with what they stand for."""
_CHARACTER_BYTES = 16
"""Of a topic and a publisher: each stands there a few times, as text and as bytes."""
_PROPERTY_BYTES = 448
"""Of a user property, beside its characters."""


PROPERTIES_BYTES = 192
"""An object of properties without any."""
SHORT_NAMES = 64
"""Characters that have room in what is counted of each message."""


class StoredMessage(msgspec.Struct, eq=False, gc=False):
    """A message in a queue. Times are Unix seconds. Treat as immutable."""

    message: Message
    topic: str
    """The topic to deliver on; empty = see :meth:`topic_in`: the queues of a fan-out have one and the same message."""
    routing_key: str
    enqueued_at: float
    expires_at: float
    """Nobody gets it from then on; ``inf`` = never, below zero = a record that is not delivered (:data:`HIDDEN`)."""
    size: int
    """Bytes of payload and user properties."""
    lane: int = NORMAL
    """Its :class:`Priority`, as the queue took it, or the lane of its exact level."""

    def record(self) -> NewRecord:
        """As :class:`assay.reference_broker.queues.jobs.store.Kept`."""
        message = self.message
        own = _describe(message.user_properties)
        headers = _headers(message, self.topic or None, self.routing_key, self.lane) + own.headers
        return NewRecord(round(self.enqueued_at * 1_000), own.key_bytes, message.payload, headers)

    def topic_in(self, queue: str) -> str:
        """The topic to deliver on in its queue."""
        return self.topic or topic_of(queue, self.routing_key)


AT_ONCE_S = 0.001_5
"""What is to live for no time at all lives shorter than that, by the milliseconds that are stored."""


def is_at_once(stored: StoredMessage) -> bool:
    """Whether it is for whoever waits when it comes, and for nobody who comes later."""
    return 0.0 <= stored.expires_at - stored.enqueued_at < AT_ONCE_S


HIDDEN = StoredMessage(Message(topic="", payload=b""), "", "", 0.0, float("-inf"), 0)
"""Takes the place of a record that nobody may get: a control record, or one of an aborted transaction. It has always
expired, so that the path of a delivery need not look for it."""


def message_bytes(message: Message) -> int:
    """What counts against ``max_message_bytes``: the payload and the user properties."""
    size = len(message.payload)
    for name, value in message.user_properties:
        size += len(name.encode()) + len(value.encode())
    return size if message.properties is None else size + properties_bytes(message.properties)


def is_plain(message: Message) -> bool:
    """It has a topic, a payload and a publisher, and nothing else that is stored."""
    return not (
        message.user_properties
        or message.expires_at
        or message.content_type is not None
        or message.response_topic is not None
        or message.correlation_data is not None
        or message.payload_format is not None
        or message.properties is not None
    )


def is_plain_but_for_user_properties(message: Message) -> bool:
    """As :func:`is_plain`, whatever user properties it has."""
    return not (
        message.expires_at
        or message.content_type is not None
        or message.response_topic is not None
        or message.correlation_data is not None
        or message.payload_format is not None
        or message.properties is not None
    )


class Head(NamedTuple):
    """What messages of one origin have alike, but for payload and user properties."""

    headers: Headers
    """Of records; none where logs keep messages."""
    topic: str
    """As of :class:`StoredMessage`; empty where logs keep messages that have all that they have in common."""
    routing_key: str
    size: int
    """Beside the payload, as in :func:`message_bytes`."""
    lane: int
    """It follows from the others."""
    beside_bytes: int


class Described(NamedTuple):
    """What the user properties of a message mean to a record."""

    headers: Headers
    size: int
    """In bytes, as in :func:`message_bytes`."""
    key: str | None
    key_bytes: bytes
    beside_bytes: int
    """As of :func:`beside_bytes`."""


class MessageCodec:
    """Turns the messages of one queue into record headers and back. Remembers the headers of plain messages."""

    def __init__(self, queue: str, ttl_s: float, memory: SharedMemory) -> None:
        self._queue = queue
        self._base = topic_of(queue, "")
        self.ttl_s = ttl_s
        self._plain: Known[tuple[str, str, str], tuple[Headers, str]] = Known(memory, CACHE_LIMIT)
        self._decoded: Known[Headers, tuple[str, str, str, str, int]] = Known(memory, CACHE_LIMIT)
        """Headers of plain messages -> topic, publisher, delivery topic, routing key, bytes of headers."""
        self._described: Known[tuple[tuple[str, str], ...], Described] = Known(memory, CACHE_LIMIT)
        self._alike: Known[Origin, Head] = Known(memory, 4 * CACHE_LIMIT)
        self.known_origins = self._alike.answers
        """See :meth:`alike`."""
        self._plain_known = self._plain.answers
        self._decoded_known = self._decoded.answers
        self._described_known = self._described.answers

    def let_go(self) -> None:
        """The queue is no more: remember nothing."""
        for cache in (self._plain, self._alike, self._decoded, self._described):
            cache.let_go()

    def expiry(self, enqueued_at: float, message_expires_at: float) -> float:
        """The earlier of the message's own expiry and the queue's time to live."""
        expires_at = message_expires_at or NEVER
        return min(expires_at, enqueued_at + self.ttl_s) if self.ttl_s > 0 else expires_at

    def headers(self, message: Message, routing_key: str, lane: int = NORMAL, *, plain: bool) -> tuple[Headers, str]:
        """Record headers, and the topic to deliver on. ``plain``: as :func:`is_plain` says of the message."""
        if lane != NORMAL or not plain:
            return self._encode(message, routing_key, lane)
        key = (message.topic, message.publisher, routing_key)
        known = self._plain_known.get(key)
        if known is None:
            known = self._encode(message, routing_key, lane)
            length = len(message.topic) + len(message.publisher)
            size = _ENTRY_BYTES + _CHARACTER_BYTES * length
            self._plain.remember(key, known, length, size)
        return known

    def topic(self, routing_key: str) -> str:
        """The topic to deliver on."""
        return f"{self._base}/{routing_key}" if routing_key else self._base

    def alike(self, origin: Origin, like: Message, lane: int, *, is_kept: bool = False) -> Head:
        """Of all messages that have what this one of their origin has. Remembered by origin if that is common."""
        routing_key = origin.routing_key
        headers, topic = ((), "") if is_kept else self._encode(like, routing_key, lane)
        size = message_bytes(like) - len(like.payload)
        found = Head(headers, topic, routing_key, size, lane, beside_bytes(like, topic, routing_key))
        if origin.is_common:
            taken = _ENTRY_BYTES + memory_bytes(like) + sum([len(value) for _, value in headers])
            self._alike.remember(origin, found, len(routing_key), taken)
        return found

    def describe(self, properties: tuple[tuple[str, str], ...]) -> Described:
        """User properties, which follow the headers of a message that has nothing else."""
        known = self._described_known.get(properties)
        if known is None:
            known = _describe(properties)
            taken = _ENTRY_BYTES + _PROPERTY_BYTES * len(properties) + _CHARACTER_BYTES * known.size
            self._described.remember(properties, known, known.size, taken)
        return known

    def _encode(self, message: Message, routing_key: str, lane: int) -> tuple[Headers, str]:
        topic = self.topic(routing_key)
        return _headers(message, topic, routing_key, lane) + self.describe(message.user_properties).headers, topic

    def decode(self, record: LogRecord) -> StoredMessage:
        """The message of a record; that of a transaction has its expiry negated, since it counts only if committed.

        A control record gives :data:`HIDDEN`. Raises :class:`ValueError` when a header is not what the broker writes.
        """
        headers = record.headers
        payload = record.value or b""
        enqueued_at = record.timestamp_ms / 1000
        known = self._decoded_known.get(headers)
        if known is None:
            stored = self.decode_record(record)
            message = stored.message
            if stored.expires_at >= 0.0 and is_plain(message):
                size = stored.size - len(payload)
                described = message.topic, message.publisher, stored.topic, stored.routing_key, size
                length = len(message.topic) + len(message.publisher)
                taken = _ENTRY_BYTES + _CHARACTER_BYTES * length
                self._decoded.remember(headers, described, length, taken)
            return stored
        own_topic, publisher, topic, routing_key, size = known
        message = Message(topic=own_topic, payload=payload, publisher=publisher)
        expires_at = self.expiry(enqueued_at, 0.0)
        return StoredMessage(message, topic, routing_key, enqueued_at, expires_at, size + len(payload))

    def decode_record(self, record: LogRecord) -> StoredMessage:
        """As :meth:`decode`, for headers that are not remembered."""
        topic: str | None = None
        routing_key: str | None = None
        in_transaction = False
        message = Message(topic="", payload=record.value or b"")
        properties: list[tuple[str, str]] = []
        lane = NORMAL
        for name, value in record.headers:
            if not name.startswith(b"_"):
                properties.append((name.decode(), value.decode()))
            elif name == b"_topic":
                topic = value.decode()
            elif name == b"_routing_key":
                routing_key = value.decode()
            elif name == PRIORITY_HEADER:
                lane = lane_in(value)
            elif name == TRANSACTION_HEADER:
                in_transaction = True
            elif is_control_header(name, value):
                return HIDDEN
            elif name != PRODUCER_HEADER and not _set_field(message, name, value):
                properties.append((name.removeprefix(b"_" if name.startswith(b"__") else b"").decode(), value.decode()))
        base = topic_of(self._queue, "")
        if routing_key is None:
            routing_key = topic[len(base) + 1 :] if topic is not None and topic.startswith(f"{base}/") else ""
        delivery_topic = topic_of(self._queue, routing_key)
        message.topic = topic if topic is not None else delivery_topic
        message.user_properties = tuple(properties)
        enqueued_at = record.timestamp_ms / 1000
        expires_at = self.expiry(enqueued_at, message.expires_at)
        return StoredMessage(
            message,
            delivery_topic,
            routing_key,
            enqueued_at,
            -expires_at if in_transaction else expires_at,
            message_bytes(message),
            lane,
        )


def _describe(properties: tuple[tuple[str, str], ...]) -> Described:
    headers: list[tuple[bytes, bytes]] = []
    size, key, key_bytes = 0, None, b""
    for name, value in properties:
        raw, content = name.encode(), value.encode()
        size += len(raw) + len(content)
        headers.append((b"_" + raw if raw.startswith(b"_") else raw, content))
        if key is None and name == PARTITION_KEY:
            key, key_bytes = value, content
    return Described(tuple(headers), size, key, key_bytes, PROPERTY_BYTES * len(properties))


def _headers(message: Message, topic: str | None, routing_key: str, lane: int) -> Headers:
    """Record headers, but for user properties. ``topic``: to deliver on; None = that of its queue and its key."""
    headers = [(b"_topic", message.topic.encode())]
    if topic != message.topic:
        headers.append((b"_routing_key", routing_key.encode()))
    if message.publisher:
        headers.append((b"_publisher", message.publisher.encode()))
    if lane != NORMAL:
        headers.append((PRIORITY_HEADER, b"%d" % lane))
    if message.expires_at:
        headers.append((b"_expires_at", b"%d" % int(message.expires_at * 1000)))
    if message.payload_format is not None:
        headers.append((b"_payload_format", b"%d" % message.payload_format))
    if message.content_type is not None:
        headers.append((b"_content_type", message.content_type.encode()))
    if message.response_topic is not None:
        headers.append((b"_response_topic", message.response_topic.encode()))
    if message.correlation_data is not None:
        headers.append((b"_correlation_data", message.correlation_data))
    if message.properties is not None:
        headers.append((_PROPERTIES, encode_properties(message.properties)))
    return tuple(headers)


def beside_bytes(message: Message, topic: str, routing_key: str) -> int:
    """What a message takes in memory beside its size, which is what limits of queues count, and the objects that each
    has: names that are not short, and properties. ``topic``: that it is delivered on."""
    size = len(message.topic) + len(topic) + len(routing_key)
    size = 0 if size <= SHORT_NAMES else text_bytes(message.topic) + text_bytes(topic) + text_bytes(routing_key)
    size += PROPERTY_BYTES * len(message.user_properties) + PROPERTIES_BYTES * (message.properties is not None)
    for text in (message.response_topic, message.content_type):
        if text is not None:
            size += text_bytes(text)
    return size if message.correlation_data is None else size + len(message.correlation_data)


def delay_number(record: LogRecord) -> int | None:
    """The number that a message had while it was delayed; None for one that was not."""
    headers = record.headers
    return int(headers[-1][1]) if headers and headers[-1][0] == DELAY_HEADER and headers[-1][1].isdigit() else None


def lane_in(value: bytes) -> int:
    """The lane that a priority header names. Raises :class:`ValueError`."""
    lane = int(value)
    if not 0 <= lane < MAX_PRIORITY_LEVELS:
        raise ValueError(f"there is no priority {lane}")
    return lane


def _set_field(message: Message, name: bytes, value: bytes) -> bool:
    """Set the field of a broker header; False when the name is none of them."""
    if name == b"_publisher":
        message.publisher = value.decode()
    elif name == b"_expires_at":
        message.expires_at = int(value) / 1000
    elif name == b"_payload_format":
        message.payload_format = int(value)
    elif name == b"_content_type":
        message.content_type = value.decode()
    elif name == b"_response_topic":
        message.response_topic = value.decode()
    elif name == b"_correlation_data":
        message.correlation_data = value
    elif name == _PROPERTIES:
        message.properties = decode_properties(value)
    else:
        return name == DELAY_HEADER
    return True
