"""Messages that failed for good: what the dead-letter queue gets, and when the source lets go of them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from assay.reference_broker.config import GroupStart, Overflow, PriorityConfig, QueueConfig, SchemaCheckConfig
from assay.reference_broker.queues.dead_letters.alerts import DeadLetterAlert
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.queues.messages.address import dead_letter_name, message_id_of, topic_of
from assay.reference_broker.queues.messages.lanes import named
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.routing.message import Message, annotated

PROPERTY_PREFIX = "_dlq_"
ORIGINAL_QUEUE = "_dlq_original_queue"
ORIGINAL_TOPIC = "_dlq_original_topic"
ORIGINAL_PARTITION = "_dlq_original_partition"
ORIGINAL_OFFSET = "_dlq_original_offset"
ORIGINAL_ID = "_dlq_original_id"
GROUP = "_dlq_group"
DELIVERY_COUNT = "_dlq_delivery_count"
CONSUMER = "_dlq_consumer"
FIRST_DELIVERED_AT = "_dlq_first_delivered_at"
REASON = "_dlq_reason"
ENQUEUED_AT = "_dlq_enqueued_at"
LAST_DELIVERED_AT = "_dlq_last_delivered_at"
MOVED_AT = "_dlq_moved_at"
PRIORITY = "_dlq_priority"
_MAX_REASON_CHARACTERS = 1_024


def dead_letter_config(origin: QueueConfig) -> QueueConfig:
    """A dead-letter queue is as durable as its origin; it keeps order, has no time to live, and does not chain."""
    return msgspec.structs.replace(
        origin,
        group=msgspec.structs.replace(origin.group, start=GroupStart.EARLIEST),
        name=dead_letter_name(origin.name),
        partitions=1,
        dead_letters=False,
        message_ttl_s=0.0,
        max_bytes=0,
        overflow=Overflow.REJECT,
        priority=PriorityConfig(enabled=False),
        schema=SchemaCheckConfig(),
    )


def dead_letter_message(
    queue: str, group: str, entry: PendingEntry, stored: StoredMessage, reason: str, now: float
) -> Message:
    """The message as the dead-letter queue keeps it: the original, and where it came from and why."""
    message = annotated(stored.message, entry.annotations) if entry.annotations else stored.message
    partition = entry.place.index
    history = (
        (ORIGINAL_QUEUE, queue),
        (ORIGINAL_TOPIC, message.topic),
        (ORIGINAL_PARTITION, str(partition)),
        (ORIGINAL_OFFSET, str(entry.offset)),
        (ORIGINAL_ID, message_id_of(queue, partition, entry.offset)),
        (GROUP, group),
        (DELIVERY_COUNT, str(entry.delivery_count)),
        (CONSUMER, carried(entry.last_consumer)),
        (REASON, carried(reason)),
        (ENQUEUED_AT, rfc3339(stored.enqueued_at)),
        (FIRST_DELIVERED_AT, rfc3339(entry.first_delivered_at) if entry.first_delivered_at else ""),
        (LAST_DELIVERED_AT, rfc3339(entry.claimed_at) if entry.claimed_at else ""),
        (MOVED_AT, rfc3339(now)),
        (PRIORITY, named(stored.lane).name.lower()),
    )
    return _letter(queue, stored.routing_key, message, history)


def refused_letter(queue: str, routing_key: str, message: Message, reason: str, now: float) -> Message:
    """Likewise, of a message that the queue never took."""
    history = (
        (ORIGINAL_QUEUE, queue),
        (ORIGINAL_TOPIC, message.topic),
        (DELIVERY_COUNT, "0"),
        (REASON, carried(reason)),
        (MOVED_AT, rfc3339(now)),
    )
    return _letter(queue, routing_key, message, history)


def carried(text: str) -> str:
    """What others have written, as a text that consumers of every protocol may be sent."""
    return text[:_MAX_REASON_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}")


def _letter(queue: str, routing_key: str, message: Message, history: tuple[tuple[str, str], ...]) -> Message:
    own = tuple(pair for pair in message.user_properties if not pair[0].startswith(PROPERTY_PREFIX))
    return Message(
        topic=topic_of(dead_letter_name(queue), routing_key),
        payload=message.payload,
        publisher=message.publisher,
        payload_format=message.payload_format,
        content_type=message.content_type,
        response_topic=message.response_topic,
        correlation_data=message.correlation_data,
        properties=message.properties,
        user_properties=own + history,
    )


def replayed_message(letter: Message) -> Message:
    """The message of a dead letter as it was published: on its own topic, without the history of its failure."""
    topic = letter.user_property(ORIGINAL_TOPIC) or letter.topic
    own = tuple(pair for pair in letter.user_properties if not pair[0].startswith(PROPERTY_PREFIX))
    return msgspec.structs.replace(letter, topic=topic, user_properties=own)


def alert_of(queue: str, entry: PendingEntry, stored: StoredMessage, reason: str, now: float) -> DeadLetterAlert:
    """What a web hook is told of a dead letter."""
    return DeadLetterAlert(
        queue_name=queue,
        dlq_topic=dead_letter_name(queue),
        message_id=message_id_of(queue, entry.place.index, entry.offset),
        failure_reason=reason[:_MAX_REASON_CHARACTERS],
        retry_count=max(0, entry.delivery_count - 1),
        first_attempt=rfc3339(entry.first_delivered_at) if entry.first_delivered_at else None,
        moved_to_dlq_at=rfc3339(now),
        total_duration=max(0, int((now - stored.enqueued_at) * 1000)) * 1_000_000,
    )


def rfc3339(time_s: float) -> str:
    """UTC, milliseconds: ``2026-01-31T12:00:00.000Z``."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
