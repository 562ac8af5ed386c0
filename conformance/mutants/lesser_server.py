"""Broken servers that offer less than the standards describe: the reference broker with capabilities switched off."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.connections import handlers, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import (
    V311,
    Connect,
    Properties,
    Suback,
    Subscribe,
    SubscriptionRequest,
    WillFields,
)

_NO_LIMIT_BYTES = 0xFFFFFFFF
_FILTER_CODES = (Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)


@mutant("lesser-maximum-qos-not-announced", "CONNACK says nothing of a Maximum QoS below 2")
def not_announced(patch: Patch) -> None:
    original = handshake.connack_properties

    def offer(connection: MqttConnection) -> Properties:
        return msgspec.structs.replace(original(connection), maximum_qos=None)

    patch.replace(handshake, "connack_properties", offer)


def _check_less(patch: Patch, change: Callable[[int, bool], tuple[int, bool]]) -> None:
    """What a PUBLISH asks for is checked as if it asked for ``change(qos, retain)``."""
    original = Inbound.check_flags

    def check_flags(self: Inbound, qos: int, *, retain: bool) -> None:
        qos, retain = change(qos, retain)
        original(self, qos, retain=retain)

    patch.replace(Inbound, "check_flags", check_flags)


@mutant("lesser-qos-above-maximum-taken", "a PUBLISH above the announced Maximum QoS is taken")
def qos_taken(patch: Patch) -> None:
    _check_less(patch, lambda _qos, retain: (0, retain))


@mutant("lesser-retained-publish-taken", "a PUBLISH with RETAIN is taken though Retain Available is 0")
def retain_taken(patch: Patch) -> None:
    _check_less(patch, lambda qos, _retain: (qos, False))


def _change_will(patch: Patch, change: Callable[[WillFields], WillFields]) -> None:
    original = handshake.will_of

    def will(connection: MqttConnection, fields: WillFields | None, client_id: str) -> object:
        return original(connection, None if fields is None else change(fields), client_id)

    patch.replace(handshake, "will_of", will)


@mutant("lesser-will-above-maximum-qos-taken", "a will above the announced Maximum QoS is lowered in place of refused")
def will_qos_taken(patch: Patch) -> None:
    _change_will(patch, lambda fields: msgspec.structs.replace(fields, qos=min(fields.qos, 1)))


@mutant("lesser-retained-will-taken", "a retained will is taken as one that is not, though Retain Available is 0")
def will_retain_taken(patch: Patch) -> None:
    _change_will(patch, lambda fields: msgspec.structs.replace(fields, retain=False))


def _subscribe_as_if(patch: Patch, **available: bool) -> None:
    """SUBSCRIBE is handled as if these capabilities were there."""
    original = handlers.on_subscribe

    def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
        state: MqttBroker = connection.broker
        stated = state.config
        state.config = msgspec.structs.replace(stated, mqtt=msgspec.structs.replace(stated.mqtt, **available))
        try:
            original(connection, packet, now)
        finally:
            state.config = stated

    patch.replace(handlers, "on_subscribe", on_subscribe)


@mutant("lesser-wildcards-granted", "wildcard filters are granted by a server that does not do wildcards")
def wildcards_granted(patch: Patch) -> None:
    _subscribe_as_if(patch, wildcard_subscription_available=True)


@mutant("lesser-shared-granted", "shared subscriptions are granted though CONNACK says that there are none")
def shared_granted(patch: Patch) -> None:
    _subscribe_as_if(patch, shared_subscription_available=True)


@mutant("lesser-subscription-identifiers-taken", "subscription identifiers are taken though CONNACK says otherwise")
def identifiers_taken(patch: Patch) -> None:
    _subscribe_as_if(patch, subscription_identifier_available=True)


@mutant("v3-maximum-qos-ignored-by-suback", "SUBACK grants the QoS that was asked for, above the server's highest")
def suback_ignores_maximum(patch: Patch) -> None:
    original = handlers.on_subscribe

    def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
        sent = len(connection._out)
        original(connection, packet, now)
        asked = Suback(packet_id=packet.packet_id, reasons=tuple(request.qos for request in packet.requests))
        del connection._out[sent:]
        connection.send_packet(asked)

    patch.replace(handlers, "on_subscribe", on_subscribe)


@mutant("lesser-topic-aliases-taken", "topic aliases are taken though CONNACK allows none")
def aliases_taken(patch: Patch) -> None:
    original = Inbound.resolve_topic
    patch.replace(
        Inbound, "resolve_topic", lambda self, packet: packet.topic if packet.topic else original(self, packet)
    )


@mutant("lesser-packet-size-unchecked", "packets above the announced Maximum Packet Size are taken")
def packet_size_unchecked(patch: Patch) -> None:
    original = MqttConnection.handle_packets

    def consume(self: MqttConnection, data: bytes, now: float) -> int:
        self._limit = _NO_LIMIT_BYTES
        return original(self, data, now)

    patch.replace(MqttConnection, "handle_packets", consume)


@mutant("lesser-server-keep-alive-not-applied", "the client's keep alive stays in force in place of the server's")
def server_keep_alive_not_applied(patch: Patch) -> None:
    original = handshake.establish

    def establish(connection: MqttConnection, packet: Connect, data: bytes | None, now: float) -> None:
        original(connection, packet, data, now)
        connection.keep_alive_s = packet.keep_alive_s
        connection._timer.cancel()
        connection.start_keep_alive(now)

    patch.replace(handshake, "establish", establish)


@mutant("lesser-client-id-refused-with-code-5", "a refused client identifier gets CONNACK code 5")
def wrong_code(patch: Patch) -> None:
    patch.item(handshake.RETURN_CODES_311, Reason.CLIENT_IDENTIFIER_NOT_VALID, 5)


@variation("lesser-filters-refused-by-suback", "filters that the server does not do are refused by SUBACK")
def refused_by_suback(patch: Patch) -> None:
    original = handlers.on_subscribe

    def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
        try:
            original(connection, packet, now)
        except ProtocolError as error:
            if error.reason not in _FILTER_CODES:
                raise
            reasons = (error.reason,) * len(packet.requests)
            connection.send_packet(Suback(packet_id=packet.packet_id, reasons=reasons))

    patch.replace(handlers, "on_subscribe", on_subscribe)


@variation("lesser-bad-filter-ends-the-connection", "a filter that the server does not do ends a 3.1.1 connection")
def ends_connection(patch: Patch) -> None:
    original = handlers.subscribe_one

    def subscribe_one(
        connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        result = original(connection, request, identifier, group, now)
        if connection.version == V311 and result[0] in _FILTER_CODES:
            raise ProtocolError("wildcards are not supported here", "MQTT-3.8.3-2")
        return result

    patch.replace(handlers, "subscribe_one", subscribe_one)
