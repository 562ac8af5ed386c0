"""Messages for one queue that are enqueued together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.queues.jobs.store import NewRecord
    from assay.reference_broker.queues.messages.stored_message import StoredMessage


Times = tuple[float, float]
"""When messages are enqueued, and when they expire."""


class Columns(NamedTuple):
    """What a queue makes of messages."""

    largest: int
    beside: list[int]
    """Bytes beside the size of each, beyond what all have; empty = none of any."""
    beside_of_all: int
    records: list[NewRecord]
    """Empty where logs keep messages."""
    stored: list[StoredMessage]


class MessageBatch(NamedTuple):
    """Messages, and by column what they have: nothing else than this, and no user property that is an option."""

    messages: Sequence[Message]
    payloads: Sequence[bytes]
    properties: Sequence[tuple[tuple[str, str], ...]] | None
    """The user properties of each; None = nobody has any."""
    origins: Origin | Sequence[Origin]
    """Of all of them, or of each."""
    shared: dict[Times, Columns] | None = None
    """What the queues of a fan-out that keep messages have made of it, for those that come next."""


def batch_of(messages: Sequence[Message], routing_key: str) -> MessageBatch:
    """Of some messages for one routing key."""
    topics = [message.topic for message in messages]
    publishers = [message.publisher for message in messages]
    properties = [message.user_properties for message in messages]
    count = len(messages)
    origins: Origin | list[Origin]
    if topics.count(topics[0]) == publishers.count(publishers[0]) == count:
        origins = Origin(topics[0], publishers[0], routing_key)
    else:
        origins = [Origin(topic, publisher, routing_key) for topic, publisher in zip(topics, publishers, strict=True)]
    payloads = [message.payload for message in messages]
    return MessageBatch(messages, payloads, properties if any(properties) else None, origins)
