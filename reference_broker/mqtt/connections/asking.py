"""Publishes, subscriptions and wills that hooks decide about: the client's next packets wait for the answer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.config import HookKind
from assay.reference_broker.core.hooks import Change, OnVerdict, Verdict
from assay.reference_broker.core.protocols import MQTT
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.queue_topics.served_topics import REQUEST_PREFIXES
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.mqtt.wire.packets import Publish, SubscriptionRequest, WillFields
from assay.reference_broker.queues import QueueError
from assay.reference_broker.routing.topics import TopicError, is_sys_topic, split_shared

if TYPE_CHECKING:
    from assay.reference_broker.core.hooks import Hooks
    from assay.reference_broker.mqtt.connections.connection import MqttConnection

_OF_PUBLISH: Final = frozenset(("topic", "payload", "retain", "properties"))
_OF_SUBSCRIBE: Final = frozenset(("qos",))


def on_publish(
    connection: MqttConnection, hooks: Hooks, header: int, data: bytes, body: int, end: int, now: float
) -> None:
    """A PUBLISH: taken, or asked about. Raises :class:`ProtocolError`."""
    packet = decode_packet(header, data, body, end, connection.version)
    assert isinstance(packet, Publish)
    inbound = connection.inbound
    topic = inbound.resolve_topic(packet)
    is_known = packet.qos == 2 and packet.packet_id in connection.active_session.inbound_qos2
    if is_known or not (hooks.asks(HookKind.PUBLISH, topic) and _is_message(connection, topic)):
        inbound.on_publish(packet, now)
        return
    inbound.check_flags(packet.qos, retain=packet.retain)
    connection.work_through(_publish(connection, hooks, packet, topic))


def _is_message(connection: MqttConnection, topic: str) -> bool:
    """Not a request or a settlement, and not refused anyway."""
    grants = connection.grants
    if topic.startswith(REQUEST_PREFIXES) or is_sys_topic(topic):
        return False
    if grants is not None and not grants.may_publish(topic):
        return False
    if not is_queue_topic(topic):
        return True
    try:
        return connection.broker.topics.read(topic, connection.active_session.tenant).verb is None
    except QueueError:
        return False


def _publish(connection: MqttConnection, hooks: Hooks, packet: Publish, topic: str) -> Iterator[None]:
    properties = packet.properties

    def ask(on_verdict: OnVerdict) -> Verdict | None:
        return hooks.ask(
            HookKind.PUBLISH,
            connection,
            MQTT,
            topic,
            on_verdict,
            payload=packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            properties=properties.user_property,
            may_change=_OF_PUBLISH,
        )

    verdict = yield from _decided(connection, ask)
    inbound = connection.inbound
    if verdict.error is None:
        inbound.on_publish(_changed(connection, packet, verdict.change), connection.broker.now)
        return
    connection.broker.traffic.publishes_received += 1
    connection.broker.traffic.payload_bytes_received += len(packet.payload)
    if packet.qos:
        inbound.refuse(packet.qos, packet.packet_id, verdict.error)


def _changed(connection: MqttConnection, packet: Publish, change: Change) -> Publish:
    properties = packet.properties
    if change.topic is not None:
        properties = msgspec.structs.replace(properties, topic_alias=None)
    if change.properties is not None:
        properties = msgspec.structs.replace(properties, user_property=change.properties)
    retain = packet.retain if change.retain is None else change.retain
    return msgspec.structs.replace(
        packet,
        topic=packet.topic if change.topic is None else change.topic,
        payload=packet.payload if change.payload is None else change.payload,
        retain=retain and connection.broker.config.mqtt.retain_available,
        properties=properties,
    )


def subscription(
    connection: MqttConnection, hooks: Hooks, request: SubscriptionRequest
) -> Generator[None, None, SubscriptionRequest | None]:
    """What is subscribed to after all; None: it is refused."""
    try:
        _, topic_filter = split_shared(request.topic_filter)
    except TopicError:
        return request  # refused by others
    if not connection.may_read(topic_filter):
        return request

    def ask(on_verdict: OnVerdict) -> Verdict | None:
        return hooks.ask(
            HookKind.SUBSCRIBE, connection, MQTT, topic_filter, on_verdict, qos=request.qos, may_change=_OF_SUBSCRIBE
        )

    verdict = yield from _decided(connection, ask)
    if verdict.error is not None:
        return None
    qos = verdict.change.qos
    return request if qos is None else msgspec.structs.replace(request, qos=min(qos, request.qos))


def ask_about_will(connection: MqttConnection, hooks: Hooks, will: WillFields, on_verdict: OnVerdict) -> Verdict | None:
    """As :meth:`Hooks.ask`."""
    return hooks.ask(
        HookKind.PUBLISH,
        connection,
        MQTT,
        will.topic,
        on_verdict,
        payload=will.payload,
        qos=will.qos,
        retain=will.retain,
        properties=will.properties.user_property,
    )


def _decided(connection: MqttConnection, ask: Callable[[OnVerdict], Verdict | None]) -> Generator[None, None, Verdict]:
    """Ask, and let the connection wait for the answer."""
    told: list[Verdict] = []

    def decide(verdict: Verdict) -> None:
        told.append(verdict)
        connection.resume()

    verdict = ask(decide)
    if verdict is not None:
        return verdict
    while not told:
        connection.wait()
        yield
    return told[0]
