"""Quirks in what filters are granted, and what they match."""

from __future__ import annotations

import msgspec

from assay.reference_broker.core.routing import Route, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.codec import frame
from assay.reference_broker.mqtt.wire.packets import V311, PacketType
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.quirks.model import Quirk, answers, takes_as
from assay.reference_broker.quirks.subscribing import NOBODYS, with_filters


def _grant_nothing(connection: MqttConnection, header: int, content: bytes, _now: float) -> bool:
    is_311 = connection.version == V311 and connection.phase is Phase.CONNECTED
    is_for_nothing = is_311 and header == 0x82 and len(content) == 2
    if is_for_nothing:
        connection.send(frame(PacketType.SUBACK << 4, content))
    return is_for_nothing


class _SpacesRefused(MqttBroker):
    def subscribe(
        self, session: Session, topic_filter: str, subscription: Subscription, group: str | None, now: float
    ) -> SubscribeOutcome:
        if " " in topic_filter:
            refused = QueueError(QueueErrorCode.BAD_ADDRESS, "a filter has no spaces here")
            return SubscribeOutcome(qos=-1, error=refused)
        return super().subscribe(session, topic_filter, subscription, group, now)


class _ResubscribeKeepsQos(MqttBroker):
    def subscribe(
        self, session: Session, topic_filter: str, subscription: Subscription, group: str | None, now: float
    ) -> SubscribeOutcome:
        known, asked = session.subscriptions.get(topic_filter), subscription.qos
        if known is not None:
            subscription = msgspec.structs.replace(subscription, qos=known.qos)
        outcome = super().subscribe(session, topic_filter, subscription, group, now)
        # To grant less than was asked for would be right.
        return outcome if outcome.error is not None else msgspec.structs.replace(outcome, qos=asked)


class _RetainAsPublishedKept(MqttBroker):
    def subscribe(
        self, session: Session, topic_filter: str, subscription: Subscription, group: str | None, now: float
    ) -> SubscribeOutcome:
        known = session.subscriptions.get(topic_filter)
        if known is not None:
            subscription = msgspec.structs.replace(subscription, retain_as_published=known.retain_as_published)
        return super().subscribe(session, topic_filter, subscription, group, now)


class _DollarTopicsShown(SubscriptionTree):
    def match(self, topic: str) -> Route:
        route = super().match(topic)
        if topic[:1] == "$":
            known = {entry.subscriber for entry in route.entries}
            # As any other first level, the name would be seen by a wildcard there.
            plain = super().match(NOBODYS + topic[1:])
            route.entries += [entry for entry in plain.entries if entry.subscriber not in known]
        return route


QUIRKS = (
    Quirk(
        name="empty-filter-granted",
        what="A subscription to the empty filter is granted.",
        statements=("3.1.1 MQTT-4.7.3-1", "5.0 MQTT-4.7.3-1"),
        fails=("mqtt311/subscribe/empty-filter-is-not-accepted", "mqtt5/topics/empty-filter-not-granted"),
        connection=takes_as(lambda packet: with_filters(packet, lambda topic_filter: topic_filter or NOBODYS)),
    ),
    Quirk(
        name="subscribe-to-nothing-answered",
        what="A 3.1.1 SUBSCRIBE without a filter is answered by a SUBACK without codes.",
        statements=("3.1.1 MQTT-3.8.3-3",),
        fails=("mqtt311/subscribe/needs-a-filter",),
        connection=answers((PacketType.SUBSCRIBE,), _grant_nothing),
    ),
    Quirk(
        name="spaces-refused",
        what="Filters with a space are refused.",
        statements=("3.1.1 MQTT-4.7.3-4", "5.0 MQTT-4.7.3-4"),
        fails=("mqtt311/topic/any-character-and-length",),
        state=_SpacesRefused,
    ),
    Quirk(
        name="resubscribe-keeps-qos",
        what="Subscribing again to the same filter does not change its QoS, whatever SUBACK says.",
        statements=("3.1.1 MQTT-3.8.4-3", "5.0 MQTT-3.8.4-3"),
        fails=("mqtt311/subscribe/same-filter-replaces-the-subscription", "mqtt5/subscribe/same-filter-replaces"),
        state=_ResubscribeKeepsQos,
    ),
    Quirk(
        name="retain-as-published-kept",
        what="Subscribing again to the same filter does not change its Retain As Published.",
        statements=("5.0 MQTT-3.8.4-3",),
        citation="docs/findings/mqtt.md#eclipse-mosquitto-2011-debian-12",
        fails=("mqtt5/subscribe/retain-as-published-is-replaced-too",),
        state=_RetainAsPublishedKept,
    ),
    Quirk(
        name="dollar-topics-shown",
        what="Filters that begin with a wildcard match topics that begin with $.",
        statements=("3.1.1 MQTT-4.7.2-1", "5.0 MQTT-4.7.2-1"),
        fails=("mqtt311/topic/dollar-topics-hide-from-leading-wildcards", "mqtt5/topics/wildcards-spare-dollar-topics"),
        tree=_DollarTopicsShown,
    ),
)
