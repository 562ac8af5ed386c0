"""Quirks of subscriptions and of the retained messages that they bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import msgspec

from assay.reference_broker.core.routing import Route, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.packets import (
    V5,
    Packet,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from assay.reference_broker.quirks.model import Quirk, takes_as
from assay.reference_broker.routing.topics import SHARE_PREFIX, TopicError, has_wildcard, matches, validate_filter

NOBODYS = "\ue000"
"""A private character in place of what may not stand in a filter: clients have no reason to use it themselves."""


def with_requests(packet: Packet, change: Callable[[SubscriptionRequest], SubscriptionRequest]) -> Packet:
    """SUBSCRIBE that asks for something else; anything else as it is."""
    if not isinstance(packet, Subscribe):
        return packet
    return msgspec.structs.replace(packet, requests=tuple(map(change, packet.requests)))


def with_filters(packet: Packet, change: Callable[[str], str]) -> Packet:
    """SUBSCRIBE or UNSUBSCRIBE with other filters; anything else as it is."""
    if isinstance(packet, Unsubscribe):
        return msgspec.structs.replace(packet, topic_filters=tuple(map(change, packet.topic_filters)))
    return with_requests(packet, lambda each: msgspec.structs.replace(each, topic_filter=change(each.topic_filter)))


def _share_made_whole(topic_filter: str) -> str:
    """An empty share name is one like others; a share without a filter matches nothing."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return topic_filter
    name, _, rest = topic_filter.removeprefix(SHARE_PREFIX).partition("/")
    return f"{SHARE_PREFIX}{name or NOBODYS}/{rest or NOBODYS}"


def _without_no_local(request: SubscriptionRequest) -> SubscriptionRequest:
    shared = request.topic_filter.startswith(SHARE_PREFIX)
    return msgspec.structs.replace(request, no_local=request.no_local and not shared)


def _wildcards_made_plain(topic_filter: str) -> str:
    """A filter with a wildcard inside a level is taken, and matches nothing."""
    try:
        validate_filter(topic_filter, max_levels=len(topic_filter) + 1)
    except TopicError:
        return topic_filter.replace("+", NOBODYS).replace("#", NOBODYS)
    return topic_filter


class _QosThreeGranted(MqttConnection):
    _granted_as_three: tuple[int, ...] = ()
    """Which filters of the SUBSCRIBE at hand asked for QoS 3."""

    def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
        options = list(_option_bytes(data, body, end, self.version)) if header == 0x82 else []
        self._granted_as_three = tuple(index for index, at in enumerate(options) if data[at] & 3 == 3)
        if self._granted_as_three:
            changed = bytearray(data)
            for index in self._granted_as_three:
                changed[options[index]] -= 1
            data = bytes(changed)
        super().on_packet(header, data, body, end, now)

    def send_packet(self, packet: Packet) -> None:
        if isinstance(packet, Suback) and self._granted_as_three:
            chosen = self._granted_as_three
            reasons = tuple(3 if index in chosen else reason for index, reason in enumerate(packet.reasons))
            packet = msgspec.structs.replace(packet, reasons=reasons)
        super().send_packet(packet)


def _option_bytes(data: bytes, body: int, end: int, version: int) -> Iterator[int]:
    """Where the options of each filter stand in a SUBSCRIBE without long properties."""
    at = body + 2
    if version == V5 and at < end:
        if data[at] >= 0x80:
            return
        at += 1 + data[at]
    while at + 2 <= end:
        at += 2 + (data[at] << 8 | data[at + 1])
        if at >= end:
            return
        yield at
        at += 1


class _OverlapTakesFirst(SubscriptionTree):
    ranks: ClassVar[dict[str, int]] = {"+": 1, "#": 2}
    """The order in which the broker comes upon the levels of filters; 0 for names."""

    def match(self, topic: str) -> Route:
        route = super().match(topic)
        for entry in route.entries:
            session = entry.subscriber
            if not isinstance(session, Session) or _speaks_5(session):
                continue
            found = [each for each in _plain(session) if matches(each.topic_filter, topic)]
            if len(found) > 1:
                entry.qos = min(found, key=self._rank).qos
        return route

    def _rank(self, subscription: Subscription) -> list[int]:
        return [self.ranks.get(level, 0) for level in subscription.topic_filter.split("/")]


class _OverlapTakesHashFirst(_OverlapTakesFirst):
    ranks: ClassVar[dict[str, int]] = {"+": 1, "#": -1}


def _plain(session: Session) -> Iterator[Subscription]:
    return (each for each in session.subscriptions.values() if each.share_name is None)


def _speaks_5(session: Session) -> bool:
    return isinstance(session.connection, MqttConnection) and session.connection.version == V5


class _SharedOutlivesUnsubscribe(MqttBroker):
    def unsubscribe(self, session: Session, topic_filter: str, now: float) -> bool:
        if topic_filter.startswith(SHARE_PREFIX):
            return topic_filter in session.subscriptions
        return super().unsubscribe(session, topic_filter, now)


def _only_when_new(request: SubscriptionRequest) -> SubscriptionRequest:
    return msgspec.structs.replace(request, retain_handling=max(1, request.retain_handling))


class _RetainedWithoutIdentifier(MqttBroker):
    def send_retained(self, session: Session, subscription: Subscription, now: float) -> None:
        super().send_retained(session, msgspec.structs.replace(subscription, identifier=0), now)


class _RetainedNotForWildcards(MqttBroker):
    def send_retained(self, session: Session, subscription: Subscription, now: float) -> None:
        if not has_wildcard(subscription.topic_filter):
            super().send_retained(session, subscription, now)


class _RetainedAtQosZero(MqttBroker):
    def send_retained(self, session: Session, subscription: Subscription, now: float) -> None:
        super().send_retained(session, msgspec.structs.replace(subscription, qos=0), now)


class _RetainedThoughRefused(MqttConnection):
    __slots__ = ()

    def handle(self, packet: Packet, now: float) -> None:
        super().handle(packet, now)
        if not isinstance(packet, Subscribe) or self.grants is None or self.closing:
            return
        for request in packet.requests:
            shared = request.topic_filter.startswith(SHARE_PREFIX)
            if not shared and not self.grants.may_subscribe(request.topic_filter):
                subscription = Subscription(topic_filter=request.topic_filter, qos=request.qos)
                self.broker.send_retained(self.active_session, subscription, now)


QUIRKS = (
    Quirk(
        name="malformed-share-granted",
        what="A shared subscription with an empty name, or without a filter, is granted.",
        statements=("5.0 MQTT-4.8.2-1", "5.0 MQTT-4.8.2-2"),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3706",
        fails=("mqtt5/shared/malformed-share-names-not-granted",),
        connection=takes_as(lambda packet: with_filters(packet, _share_made_whole)),
    ),
    Quirk(
        name="shared-no-local-granted",
        what="No Local on a shared subscription is granted.",
        statements=("5.0 MQTT-3.8.3-4",),
        citation="docs/findings/mqtt.md#eclipse-mosquitto-2011-debian-12",
        fails=("mqtt5/shared/no-local-is-a-protocol-error",),
        connection=takes_as(lambda packet: with_requests(packet, _without_no_local)),
    ),
    Quirk(
        name="misplaced-wildcards-granted",
        what="A filter with a wildcard inside a level, as in a+/b, is granted.",
        statements=("3.1.1 MQTT-4.7.1-3", "5.0 MQTT-4.7.1-2"),
        citation="https://github.com/vernemq/vernemq/issues/11",
        fails=("mqtt311/subscribe/wildcards-stand-alone", "mqtt5/subscribe/misplaced-wildcards-not-granted"),
        connection=takes_as(lambda packet: with_filters(packet, _wildcards_made_plain)),
    ),
    Quirk(
        name="qos-3-granted",
        what="A subscription at QoS 3 is granted, with 3 in SUBACK.",
        statements=("3.1.1 MQTT-3.8.3-4", "5.0 MQTT-4.13.1-1", "5.0 MQTT-3.9.3-2"),
        citation="https://github.com/nanomq/nanomq/issues/2314",
        fails=("mqtt311/subscribe/options-must-be-a-qos", "mqtt5/subscribe/qos-3-refused"),
        connection=_QosThreeGranted,
    ),
    Quirk(
        name="overlap-takes-first-filter",
        what="In 3.1.1 a message that matches several filters comes at the QoS of the first: exact, then +, then #.",
        statements=("3.1.1 MQTT-3.3.5-1",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3319",
        fails=("mqtt311/subscribe/overlapping-filters-keep-the-highest-qos",),
        tree=_OverlapTakesFirst,
    ),
    Quirk(
        name="overlap-takes-hash-first",
        what="In 3.1.1 a message that matches several filters comes at the QoS of the first: #, then exact, then +.",
        statements=("3.1.1 MQTT-3.3.5-1",),
        fails=("mqtt311/subscribe/overlapping-filters-keep-the-highest-qos",),
        tree=_OverlapTakesHashFirst,
    ),
    Quirk(
        name="shared-outlives-unsubscribe",
        what="UNSUBSCRIBE from a shared subscription is confirmed, and deliveries go on.",
        statements=("5.0 MQTT-3.10.4-2",),
        citation="https://github.com/mochi-mqtt/server/issues/242",
        fails=("mqtt5/shared/unsubscribe-leaves-the-share",),
        state=_SharedOutlivesUnsubscribe,
    ),
    Quirk(
        name="retained-only-once",
        what="Subscribing again to the same filter does not bring the retained messages again.",
        statements=("3.1.1 MQTT-3.8.4-3", "5.0 MQTT-3.8.4-4"),
        citation="https://github.com/emqx/emqx/issues/1314",
        fails=(
            "mqtt311/subscribe/same-filter-again-sends-retained-again",
            "mqtt5/retained/handling-0-sends-at-every-subscribe",
        ),
        connection=takes_as(lambda packet: with_requests(packet, _only_when_new)),
    ),
    Quirk(
        name="retained-without-identifier",
        what="Retained messages come without the Subscription Identifier of the subscription that brings them.",
        statements=("5.0 MQTT-3.3.4-3",),
        citation="https://github.com/vernemq/vernemq/issues/1287",
        fails=("mqtt5/subscribe/identifier-comes-with-retained-messages",),
        state=_RetainedWithoutIdentifier,
    ),
    Quirk(
        name="retained-not-for-wildcards",
        what="A subscription with a wildcard brings no retained messages.",
        statements=("3.1.1 MQTT-3.3.1-6", "5.0 MQTT-3.3.1-9"),
        citation="https://github.com/rabbitmq/rabbitmq-server/issues/8824",
        fails=("mqtt311/retained/wildcard-filters-get-every-match", "mqtt5/retained/wildcards-bring-all"),
        state=_RetainedNotForWildcards,
    ),
    Quirk(
        name="retained-at-qos-0",
        what="Retained messages are delivered at QoS 0, whatever they were published at.",
        statements=("3.1.1 MQTT-3.3.1-5",),
        citation="https://github.com/wolfSSL/wolfMQTT/issues/520",
        fails=("mqtt311/retained/keeps-its-qos",),
        state=_RetainedAtQosZero,
    ),
    Quirk(
        name="retained-though-refused",
        what="A subscription that the access rules refuse brings its retained messages nevertheless.",
        statements=("3.1.1 MQTT-3.8.4-5", "5.0 MQTT-3.8.4-7"),
        citation="https://github.com/moscajs/aedes/issues/719",
        connection=_RetainedThoughRefused,
    ),
)
