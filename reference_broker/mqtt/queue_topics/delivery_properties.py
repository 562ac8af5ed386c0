"""What MQTT consumers are told of a delivery: user properties of its PUBLISH."""

from __future__ import annotations

from assay.reference_broker.mqtt.queue_topics.publish_properties import PRIORITY
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.messages.lanes import NORMAL
from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.routing.carried import user_properties_of

BROKER_PROPERTIES = frozenset(
    (
        "message-id",
        "group-id",
        "queue",
        "partition",
        "partition-id",
        "offset",
        "delivery-count",
        "redelivered",
        "receipt",
    )
)


def delivery_properties(delivery: Delivery) -> tuple[tuple[str, str], ...]:
    """The queue's own, then the publisher's whose names do not clash with them.

    Whatever it adds to some deliveries only must make :attr:`Delivery.is_plain` False.
    """
    partition = str(delivery.partition)
    own: tuple[tuple[str, str], ...] = (
        ("message-id", delivery.message_id),
        ("group-id", delivery.group),
        ("queue", delivery.queue),
        ("partition", partition),
        ("partition-id", partition),
        ("offset", str(delivery.offset)),
        ("delivery-count", str(delivery.delivery_count)),
    )
    if delivery.redelivered:
        own += (("redelivered", "true"),)
    if delivery.receipt:
        own += (("receipt", delivery.receipt),)
    message = delivery.message
    theirs = message.user_properties
    if message.properties is not None:
        theirs += user_properties_of(message.properties)
    if delivery.lane != NORMAL:
        own += ((PRIORITY, Priority(delivery.lane).name.lower()),)
        theirs = tuple(pair for pair in theirs if pair[0] != PRIORITY)
    if not theirs:
        return own
    return own + publisher_properties(theirs)


def publisher_properties(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Those whose names do not clash with the queue's own."""
    return tuple(pair for pair in pairs if pair[0] not in BROKER_PROPERTIES)
