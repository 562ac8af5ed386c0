"""Bugs that brokers were reported to have, or that a too eager repair of them would bring."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt311_publish import _defer_qos_2
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.connections import handlers, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.session import Session, Will
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import SubscriptionRequest, WillFields

_FIRST_FAILURE = 0x80


@mutant("will-retain-always-refused", "a CONNECT with Will Retain is refused, with a will too")
def will_retain_refused(patch: Patch) -> None:
    def make(original: Callable[[MqttConnection, WillFields | None, str], Will | None]) -> Callable[..., Will | None]:
        def will(connection: MqttConnection, fields: WillFields | None, client_id: str) -> Will | None:
            if fields is not None and fields.retain:
                message = "Will Retain"
                raise ProtocolError(message, "MQTT-3.1.2-15")
            return original(connection, fields, client_id)

        return will

    patch.wrap(handshake, "will_of", make)


@mutant("retained-for-refused-filters", "retained messages are sent for filters that are refused")
def retained_for_refused(patch: Patch) -> None:
    original = handlers.subscribe_one

    def subscribe_one(
        connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        found = original(connection, request, identifier, group, now)
        if found[0] >= _FIRST_FAILURE:
            subscription = Subscription(topic_filter=request.topic_filter, qos=request.qos)
            connection.broker.send_retained(connection.active_session, subscription, now)
        return found

    patch.replace(handlers, "subscribe_one", subscribe_one)


@mutant("v3-released-on-resume-at-qos-0", "a QoS 2 message that is released on another connection arrives at QoS 0")
def released_at_qos_0(patch: Patch) -> None:
    waiting = _defer_qos_2(patch)

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
            messages = waiting.get(session.client_id, {})
            for packet_id, message in messages.items():
                messages[packet_id] = msgspec.structs.replace(message, qos=0)
            original(self, session, now, publish_will=publish_will)

        return detach

    patch.wrap(MqttBroker, "detach", make)


@mutant("v5-no-expiry-behind-a-full-window", "messages that wait for room in the window are sent though they expired")
def no_expiry_behind_window(patch: Patch) -> None:
    original = Session.send_queued

    def send_queued(self: Session, now: float) -> None:
        original(self, 0.0)

    patch.replace(Session, "send_queued", send_queued)


@mutant("v5-retained-with-the-first-identifier", "retained messages carry the identifier that a filter had first")
def retained_first_identifier(patch: Patch) -> None:
    first: dict[tuple[str, str], int] = {}
    original = MqttBroker.send_retained

    def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
        key = (session.client_id, subscription.topic_filter)
        identifier = first.setdefault(key, subscription.identifier)
        original(self, session, msgspec.structs.replace(subscription, identifier=identifier), now)

    patch.replace(MqttBroker, "send_retained", send_retained)
