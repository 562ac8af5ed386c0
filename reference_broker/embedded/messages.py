"""Messages on their way in, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypedDict

import msgspec

from assay.reference_broker.mqtt.queue_topics.publish_properties import DELAY, DELIVER_AT, PARTITION, PRIORITY, TTL
from assay.reference_broker.queues.messages.address import DEAD_LETTER_PREFIX, QUEUE_PREFIX
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY
from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.routing.message import Message

ACK_POLICY = "ack-policy"
ACK_TIMEOUT = "ack-timeout"
PUBLISHER = "embedded"


class AckPolicy(StrEnum):
    """What the publisher wants of whoever gets the message by a subscription of this package."""

    NONE = "none"
    """It counts as acknowledged as soon as the subscriber takes it."""
    REQUIRED = "required"
    """It must be settled; if it is not, it comes again after the queue's delivery timeout."""
    TIMEOUT = "timeout"
    """As ``REQUIRED``, with a time of its own for each delivery."""


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published. Durations are seconds; options that are left out are the queue's."""

    payload: bytes
    key: str | None = None
    """Messages of one key go to one partition, in order."""
    partition: int | None = None
    priority: Priority = Priority.NORMAL
    ttl_s: float | None = None
    delay_s: float | None = None
    """Deliver no earlier than so long after the publish."""
    deliver_at: datetime | None = None
    """Deliver no earlier; with a time zone. Either this or ``delay_s``."""
    ack: AckPolicy = AckPolicy.REQUIRED
    ack_timeout_s: float | None = None
    """Of ``AckPolicy.TIMEOUT``: how long a subscriber has for each delivery."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()

    def to_message(self, topic: str, now: float) -> Message:
        """As the engine takes it. Raises :class:`ValueError` for options that contradict each other."""
        if (self.ack is AckPolicy.TIMEOUT) != (self.ack_timeout_s is not None):
            raise ValueError("ack_timeout_s belongs to AckPolicy.TIMEOUT, which needs it")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise ValueError("deliver_at needs a time zone: datetime.now(UTC) + timedelta(...)")
        options: list[tuple[str, str]] = []
        if self.key is not None:
            options.append((PARTITION_KEY, self.key))
        if self.partition is not None:
            options.append((PARTITION, str(self.partition)))
        if self.priority is not Priority.NORMAL:
            options.append((PRIORITY, self.priority.name.lower()))
        if self.ttl_s is not None:
            options.append((TTL, _duration(self.ttl_s)))
        if self.delay_s is not None:
            options.append((DELAY, _duration(self.delay_s)))
        if self.deliver_at is not None:
            options.append((DELIVER_AT, str(round(self.deliver_at.timestamp() * 1000))))
        if self.ack is not AckPolicy.REQUIRED:
            options.append((ACK_POLICY, self.ack.value))
        if self.ack_timeout_s is not None:
            options.append((ACK_TIMEOUT, _duration(self.ack_timeout_s)))
        return Message(
            topic=topic,
            payload=self.payload,
            qos=1,
            publisher=PUBLISHER,
            content_type=self.content_type,
            response_topic=self.response_topic,
            correlation_data=self.correlation_data,
            user_properties=(*options, *self.user_properties),
        )


class MessageOptions(TypedDict, total=False):
    """The fields of :class:`NewMessage` but the payload, as keyword arguments."""

    key: str | None
    partition: int | None
    priority: Priority
    ttl_s: float | None
    delay_s: float | None
    deliver_at: datetime | None
    ack: AckPolicy
    ack_timeout_s: float | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    user_properties: tuple[tuple[str, str], ...]


def new_message(message: bytes | NewMessage, options: MessageOptions) -> NewMessage:
    """A payload with options, or a message with some options replaced."""
    if isinstance(message, NewMessage):
        return msgspec.structs.replace(message, **options)
    return NewMessage(payload=message, **options)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What a message became."""

    kind: str
    """``message-id`` or, for a delayed message, ``delay-id``."""
    id: str


class StoredCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a queue holds it; reading it takes nothing out of the queue."""

    message_id: str
    payload: bytes
    topic: str
    enqueued_at: float
    """Unix seconds."""
    user_properties: tuple[tuple[str, str], ...]


def topic_of(queue: str) -> str:
    """The topic of a queue given by name, by name and routing key, or as ``$queue/...`` or ``$dlq/...``."""
    return queue if queue.startswith((QUEUE_PREFIX, DEAD_LETTER_PREFIX)) else QUEUE_PREFIX + queue


def _duration(seconds: float) -> str:
    """As options state it, whole milliseconds."""
    if seconds < 0:
        raise ValueError(f"a duration cannot be negative: {seconds:g} s")
    return f"{round(seconds * 1000)}ms"


def as_new(messages: Sequence[bytes | NewMessage]) -> list[NewMessage]:
    """Plain payloads are messages without options."""
    return [message if isinstance(message, NewMessage) else NewMessage(payload=message) for message in messages]
