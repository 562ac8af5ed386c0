"""Sessions as consumers of queues: deliveries, news of the assignment, what is consumed again after a reconnect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.mqtt.queue_topics import tenant_names
from assay.reference_broker.mqtt.queue_topics.subscribe_properties import lasting_properties, parse_subscribe_options
from assay.reference_broker.mqtt.sessions.session import LARGE_BYTES
from assay.reference_broker.queues import Consumer, Delivery, QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.queues.groups.pending import AssignmentEvent, Notify
from assay.reference_broker.queues.groups.subscribe_options import AckMode
from assay.reference_broker.queues.messages.address import topic_of
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.core.routing import Subscription
    from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
    from assay.reference_broker.mqtt.sessions.session import Session

Asked = tuple[tuple[str, str], ...]
"""User properties of a SUBSCRIBE."""
ASSIGNMENT_LEVEL = "$assignment"


def consume(
    broker: MqttBroker,
    session: Session,
    topic_filter: str,
    group: str,
    subscription: Subscription,
    asked: Asked,
    now: float,
) -> None:
    """Let a connected session consume from the queue that a filter addresses. Raises :class:`QueueError`."""
    engine = broker.engine
    tenant = session.tenant
    topic = broker.topics.read(topic_filter, tenant)
    if topic.verb is not None:
        raise QueueError(QueueErrorCode.BAD_ADDRESS, "settlement topics cannot be subscribed to")
    address = topic.address
    if broker.tenants is not None:
        # Before what it has is given up.
        broker.tenants.check_consumer(session, address, group)
    options = parse_subscribe_options(asked)
    leave(broker, session, topic_filter, now)
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    qos = min(subscription.qos, 1)
    plain = qos == 1 and not identifiers and tenant is None
    # At QoS 0 nothing says that a delivery arrived, so with automatic commit it counts as received when it is sent.
    received_when_sent = qos == 0 and options.ack_mode is AckMode.AUTO

    def deliver(delivery: Delivery) -> bool:
        connection = session.connection
        if connection is None or not session.can_take(delivery.message):
            session.stalled_consumers.append(consumer)
            return False
        if plain and session.hand_over(connection, delivery):
            return True
        message = broker.delivery_message(delivery)
        if tenant is not None:
            if broker.must_wait(consumer, tenant, len(message.payload)):
                return False
            message = tenant_names.message_out(tenant, message, delivery.queue)
        session.deliver(message, qos, False, identifiers, delivery)
        if received_when_sent:
            engine.groups.received(consumer, delivery.partition, delivery.offset, broker.now)
        return True

    def deliver_run(run: DeliveryRun) -> int:
        connection = session.connection
        if connection is None or (len(run.stored[0].message.payload) >= LARGE_BYTES and not connection.has_turn()):
            return 0
        return session.hand_over_run(connection, run)

    consumer: Consumer = broker.consume(
        session,
        address,
        group,
        deliver,
        now,
        options=options,
        notify=_notifier(session, identifiers) if options.notify else None,
        on_end=lambda: broker.admin.queue_ended(session, topic_filter, "deleted"),
        on_slow=lambda: broker.disconnect_slow(session),
        deliver_run=deliver_run if plain else None,
    )
    session.consumers[topic_filter] = consumer
    session.consumer_groups[topic_filter] = group
    if options.ack_mode is AckMode.AUTO:
        session.auto_consumers[consumer.queue, consumer.group] = consumer
    lasting = lasting_properties(asked)
    if lasting:
        session.consumer_options[topic_filter] = lasting
    else:
        session.consumer_options.pop(topic_filter, None)


def leave(broker: MqttBroker, session: Session, topic_filter: str, now: float) -> bool:
    """Stop consuming; False when the session did not."""
    consumer = session.consumers.pop(topic_filter, None)
    if consumer is None:
        return False
    session.auto_consumers.pop((consumer.queue, consumer.group), None)
    broker.engine.unsubscribe(consumer, now)
    return True


def _notifier(session: Session, identifiers: tuple[int, ...]) -> Notify:
    """Sends each assignment, as JSON, at QoS 0, to ``$queue/<queue>/$assignment``, to this session alone."""

    def notify(event: AssignmentEvent) -> None:
        if session.tenant is not None:
            event = msgspec.structs.replace(event, queue=session.tenant.name_out(event.queue))
        message = Message(
            topic=f"{topic_of(event.queue, '')}/{ASSIGNMENT_LEVEL}",
            payload=msgspec.json.encode(event),
            content_type="application/json",
        )
        session.deliver(message, 0, False, identifiers)

    return notify
