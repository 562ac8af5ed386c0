"""Broken publishing of MQTT 5.0: what a message loses on its way, and topic aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt5_support import no_fast_lane, rewrite_frames
from assay.reference_broker.core.routing import RouteEntry, RouteNode, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.connections import inbound
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound, Plan
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire import publish_encoder as outgoing
from assay.reference_broker.mqtt.wire.codec import encode_publish
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import V5, PacketType, Properties, Publish
from assay.reference_broker.mqtt.wire.publish_encoder import PublishEncoder, message_from
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import validate_topic


def _change_received(patch: Patch, change: Callable[[Message], Message]) -> None:
    """Change every message that a client publishes with properties."""

    def changed(
        topic: str, payload: bytes, qos: int, retain: bool, properties: Properties, publisher: str, now: float
    ) -> Message:
        return change(message_from(topic, payload, qos, retain, properties, publisher, now))

    patch.replace(inbound, "message_from", changed)


@mutant("v5-payload-ends-at-nul", "a payload is a C string: it ends at its first NUL")
def payload_ends_at_nul(patch: Patch) -> None:
    original = PublishEncoder.encode

    def encode(
        self: PublishEncoder, packet_id: int, message: Message, header: int, identifiers: tuple[int, ...], now: float
    ) -> bytes:
        cut = msgspec.structs.replace(message, payload=message.payload.split(b"\0")[0])
        return original(self, packet_id, cut, header, identifiers, now)

    no_fast_lane(patch)
    patch.replace(PublishEncoder, "encode", encode)


@mutant("v5-user-properties-sorted", "user properties are forwarded in alphabetical order")
def user_properties_sorted(patch: Patch) -> None:
    def change(message: Message) -> Message:
        return msgspec.structs.replace(message, user_properties=tuple(sorted(message.user_properties)))

    _change_received(patch, change)


@mutant("v5-payload-format-dropped", "the Payload Format Indicator is not forwarded")
def payload_format_dropped(patch: Patch) -> None:
    _change_received(patch, lambda message: msgspec.structs.replace(message, payload_format=None))


@mutant("v5-content-type-lower-cased", "the Content Type is forwarded in lower case")
def content_type_lower(patch: Patch) -> None:
    def change(message: Message) -> Message:
        return msgspec.structs.replace(message, content_type=(message.content_type or "").lower())

    _change_received(patch, change)


@mutant("v5-correlation-data-dropped", "Correlation Data are not forwarded")
def correlation_dropped(patch: Patch) -> None:
    _change_received(patch, lambda message: msgspec.structs.replace(message, correlation_data=None))


@mutant("v5-expiry-not-counted-down", "the Message Expiry Interval is forwarded as it was published")
def expiry_not_counted(patch: Patch) -> None:
    published_at: dict[int, float] = {}
    original = outgoing.message_properties

    def message_properties(message: Message, identifiers: tuple[int, ...], now: float) -> bytes:
        return original(message, identifiers, published_at.setdefault(id(message), now))

    patch.replace(outgoing, "message_properties", message_properties)


@mutant("v5-expired-messages-delivered", "messages that expired while they waited are delivered")
def expired_delivered(patch: Patch) -> None:
    original = Session.send_queued
    patch.replace(Session, "send_queued", lambda self, _now: original(self, 0.0))


@mutant("v5-topic-wildcards-accepted", "wildcards in a topic name are ordinary characters")
def topic_wildcards(patch: Patch) -> None:
    def lenient(topic: str, *, max_levels: int = 128) -> None:
        validate_topic(topic.replace("+", "x").replace("#", "x"), max_levels=max_levels)

    patch.replace(inbound, "validate_topic", lenient)


@mutant("v5-empty-topic-accepted", "a topic name may be empty")
def empty_topic(patch: Patch) -> None:
    no_fast_lane(patch)
    patch.replace(inbound, "validate_topic", lambda topic, *, max_levels: validate_topic(topic or "x"))


@mutant("v5-qos-3-accepted", "QoS 3 is taken for QoS 1")
def qos_3(patch: Patch) -> None:
    def rewrite(header: int, data: bytes, _body: int) -> tuple[int, bytes]:
        both = header >> 4 == PacketType.PUBLISH and header & 0x06 == 0x06
        return header & ~0x04 if both else header, data

    rewrite_frames(patch, rewrite)


@mutant("v5-packet-identifier-0-accepted", "packet identifier 0 of a PUBLISH is taken for 1")
def identifier_0(patch: Patch) -> None:
    original = Inbound.on_plain

    def on_plain(
        self: Inbound, plan: Plan, qos: int, data: bytes, topic_end: int, payload_at: int, end: int, now: float
    ) -> None:
        if qos and not any(data[topic_end : topic_end + 2]):
            data = data[:topic_end] + b"\0\1" + data[topic_end + 2 :]
        original(self, plan, qos, data, topic_end, payload_at, end, now)

    patch.replace(Inbound, "on_plain", on_plain)


def _without_identifiers(packet: Publish) -> Publish:
    return msgspec.structs.replace(
        packet, properties=msgspec.structs.replace(packet.properties, subscription_identifier=())
    )


@mutant("v5-client-subscription-identifier-forwarded", "a publisher's Subscription Identifier reaches the subscribers")
def identifier_forwarded(patch: Patch) -> None:
    original = Inbound.on_publish

    def on_publish(self: Inbound, packet: Publish, now: float) -> None:
        identifiers = packet.properties.subscription_identifier
        if not identifiers:
            original(self, packet, now)
            return
        message = Message(topic=packet.topic, payload=packet.payload)
        for entry in self._broker.tree.route(packet.topic).entries:
            entry.subscriber.deliver(message, 0, False, identifiers)

    patch.replace(Inbound, "on_publish", on_publish)


@mutant("v5-dup-passed-on", "the DUP flag of the publisher reaches the subscribers")
def dup_passed_on(patch: Patch) -> None:
    repeated: set[bytes] = set()
    receive, send = Inbound.on_publish, Outbound.send_publish

    def on_publish(self: Inbound, packet: Publish, now: float) -> None:
        if packet.dup:
            repeated.add(packet.payload)
        receive(self, packet, now)

    def send_publish(
        self: Outbound,
        packet_id: int,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
    ) -> bool:
        return send(self, packet_id, message, qos, retain, dup or message.payload in repeated, identifiers)

    patch.replace(Inbound, "on_publish", on_publish)
    patch.replace(Outbound, "send_publish", send_publish)


@mutant("v5-filters-match-as-prefixes", "a filter also matches topics that only begin with its levels")
def prefixes(patch: Patch) -> None:
    original = SubscriptionTree.walk

    def walk(self: SubscriptionTree, topic: str) -> Iterator[RouteNode]:
        found = list(original(self, topic))
        levels = topic.split("/")
        for depth in range(1, len(levels)):
            found += original(self, "/".join(levels[:depth]))
        return iter({id(node): node for node in found}.values())

    patch.replace(SubscriptionTree, "walk", walk)


@mutant("v5-delivered-at-published-qos", "messages are delivered at the QoS of their publisher, whatever was granted")
def published_qos(patch: Patch) -> None:
    original = RouteEntry.__init__

    def init(self: RouteEntry, session: Session, subscriptions: list[Subscription]) -> None:
        original(self, session, subscriptions)
        self.qos = 2

    patch.replace(RouteEntry, "__init__", init)


@mutant("v5-deliveries-swapped", "every two messages for a client change places")
def deliveries_swapped(patch: Patch) -> None:
    waiting: WeakKeyDictionary[Session, Message] = WeakKeyDictionary()
    original = Session.deliver

    def deliver(
        self: Session, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...] = (), *, share: str = ""
    ) -> None:
        earlier = waiting.pop(self, None)
        if earlier is None:
            waiting[self] = message
        else:
            original(self, message, qos, retain, identifiers, share=share)
            original(self, earlier, qos, retain, identifiers, share=share)

    no_fast_lane(patch)
    patch.replace(Session, "deliver", deliver)


def _change_alias(patch: Patch, resolve: Callable[[Inbound, Publish, int], str | None]) -> None:
    """``resolve`` may answer for an alias in the place of the broker."""
    original = Inbound.resolve_topic

    def resolve_topic(self: Inbound, packet: Publish) -> str:
        alias = packet.properties.topic_alias
        topic = None if alias is None else resolve(self, packet, alias)
        return original(self, packet) if topic is None else topic

    patch.replace(Inbound, "resolve_topic", resolve_topic)


@mutant("v5-largest-alias-refused", "the largest topic alias that was announced is refused")
def largest_alias(patch: Patch) -> None:
    def resolve(self: Inbound, _packet: Publish, alias: int) -> str | None:
        if alias == self._config.topic_alias_maximum:
            raise ProtocolError("too large", "MQTT-3.3.2-9", Reason.TOPIC_ALIAS_INVALID)
        return None

    _change_alias(patch, resolve)


@mutant("v5-alias-never-changes", "a topic alias keeps the topic that it was first set to")
def alias_never_changes(patch: Patch) -> None:
    _change_alias(patch, lambda self, _packet, alias: self._aliases.get(alias))


@mutant("v5-alias-0-accepted", "topic alias 0 is ignored")
def alias_0(patch: Patch) -> None:
    _change_alias(patch, lambda _self, packet, alias: packet.topic if alias == 0 else None)


@mutant("v5-alias-above-maximum-accepted", "topic aliases above the maximum are ignored")
def alias_above(patch: Patch) -> None:
    def resolve(self: Inbound, packet: Publish, alias: int) -> str | None:
        return packet.topic if alias > self._config.topic_alias_maximum else None

    _change_alias(patch, resolve)


@mutant("v5-unknown-alias-ignored", "a PUBLISH with an unknown topic alias is dropped without a word")
def unknown_alias(patch: Patch) -> None:
    original = Inbound.on_publish

    def on_publish(self: Inbound, packet: Publish, now: float) -> None:
        if packet.topic or packet.properties.topic_alias in self._aliases:
            original(self, packet, now)

    patch.replace(Inbound, "on_publish", on_publish)


@mutant("v5-aliases-outlive-the-connection", "topic aliases are kept with the session")
def aliases_outlive(patch: Patch) -> None:
    kept: dict[str, dict[int, str]] = {}

    def resolve(self: Inbound, _packet: Publish, _alias: int) -> str | None:
        self._aliases = kept.setdefault(self._connection.client_id, self._aliases)
        return None

    _change_alias(patch, resolve)


@mutant(
    "v5-aliases-outlive-a-takeover", "a connection that takes a session over knows the topic aliases of the one before"
)
def aliases_outlive_a_takeover(patch: Patch) -> None:
    def make(original: Callable[..., tuple[Session, bool]]) -> Callable[..., tuple[Session, bool]]:
        def connect(
            self: MqttBroker, connection: MqttConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            session = self.sessions.get(request.client_id)
            if session is not None and isinstance(session.connection, MqttConnection):
                connection.inbound._aliases = dict(session.connection.inbound._aliases)
            return original(self, connection, request, now)

        return connect

    patch.wrap(MqttBroker, "connect", make)


@mutant("v5-server-aliases-unasked", "every PUBLISH to a client sets topic alias 7, allowed or not")
def aliases_unasked(patch: Patch) -> None:
    def encode(
        _self: PublishEncoder, packet_id: int, message: Message, header: int, _identifiers: tuple[int, ...], _now: float
    ) -> bytes:
        packet = Publish(
            topic=message.topic,
            payload=message.payload,
            qos=header >> 1 & 3,
            retain=bool(header & 1),
            dup=bool(header & 8),
            packet_id=packet_id,
            properties=Properties(topic_alias=7),
        )
        return encode_publish(packet, V5)

    no_fast_lane(patch)
    patch.replace(PublishEncoder, "encode", encode)
