"""Brokers that go wrong where two options or limits of MQTT 5.0 meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt5_support import no_fast_lane
from assay.reference_broker.core.routing import SharedGroup, Subscription
from assay.reference_broker.mqtt.connections import handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.session import Outgoing, Released, Session, SessionConnection
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import Connect, Publish
from assay.reference_broker.mqtt.wire.wire_types import encode_string, encode_variable_integer
from assay.reference_broker.queues import Delivery
from assay.reference_broker.routing.message import Message

_UNLIMITED_BYTES = 1 << 32


@mutant("v5-retained-flag-follows-retain-as-published", "retained messages have RETAIN 1 only with Retain As Published")
def flag_follows(patch: Patch) -> None:
    def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
        for message in self.retained.match(subscription.topic_filter, now):
            session.deliver(message, min(message.qos, subscription.qos), subscription.retain_as_published)

    patch.replace(MqttBroker, "send_retained", send_retained)


@mutant(
    "v5-resumed-subscriptions-count-as-new", "subscribing again counts as new on a connection that resumed a session"
)
def resumed_count_as_new(patch: Patch) -> None:
    made: WeakKeyDictionary[SessionConnection, set[str]] = WeakKeyDictionary()

    def make(original: Callable[..., SubscribeOutcome]) -> Callable[..., SubscribeOutcome]:
        def subscribe(
            self: MqttBroker,
            session: Session,
            topic_filter: str,
            subscription: Subscription,
            group: str | None,
            now: float,
        ) -> SubscribeOutcome:
            outcome = original(self, session, topic_filter, subscription, group, now)
            assert session.connection is not None
            here = made.setdefault(session.connection, set())
            existed = outcome.existed and topic_filter in here
            here.add(topic_filter)
            return msgspec.structs.replace(outcome, existed=existed)

        return subscribe

    patch.wrap(MqttBroker, "subscribe", make)


@mutant(
    "v5-another-qos-makes-a-subscription-new",
    "subscribing again counts as new where it asks for another QoS than the subscription had",
)
def another_qos_is_new(patch: Patch) -> None:
    def make(original: Callable[..., SubscribeOutcome]) -> Callable[..., SubscribeOutcome]:
        def subscribe(
            self: MqttBroker, session: Session, topic_filter: str, subscription: Subscription, *rest: Any
        ) -> SubscribeOutcome:
            before = session.subscriptions.get(topic_filter)
            outcome = original(self, session, topic_filter, subscription, *rest)
            existed = outcome.existed and before is not None and before.qos == subscription.qos
            return msgspec.structs.replace(outcome, existed=existed)

        return subscribe

    patch.wrap(MqttBroker, "subscribe", make)


@mutant("v5-resubscribe-keeps-retain-as-published", "subscribing again leaves Retain As Published as it was")
def keeps_as_published(patch: Patch) -> None:
    def make(original: Callable[..., SubscribeOutcome]) -> Callable[..., SubscribeOutcome]:
        def subscribe(
            self: MqttBroker,
            session: Session,
            topic_filter: str,
            subscription: Subscription,
            group: str | None,
            now: float,
        ) -> SubscribeOutcome:
            known = session.subscriptions.get(topic_filter)
            if known is not None:
                kept = known.retain_as_published
                subscription = msgspec.structs.replace(subscription, retain_as_published=kept)
            return original(self, session, topic_filter, subscription, group, now)

        return subscribe

    patch.wrap(MqttBroker, "subscribe", make)


@mutant("v5-quota-for-each-qos", "the client's Receive Maximum is applied to QoS 1 and to QoS 2 by themselves")
def quota_for_each_qos(patch: Patch) -> None:
    original = Session.deliver

    def deliver(
        self: Session,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        delivery: Delivery | None = None,
        share: str = "",
    ) -> None:
        taken = sum((2 if isinstance(entry, Released) else entry.qos) == qos for entry in self.in_flight.values())
        if self.connection is not None and qos and taken < self.window:
            self.send(self.connection, Outgoing(message, qos, retain, identifiers, delivery))
        else:
            original(self, message, qos, retain, identifiers, delivery, share)

    no_fast_lane(patch)
    patch.replace(Session, "deliver", deliver)


@mutant("v5-retained-messages-ignore-the-quota", "retained messages are sent whatever the client's Receive Maximum")
def retained_ignore_quota(patch: Patch) -> None:
    def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
        for message in self.retained.match(subscription.topic_filter, now):
            qos = min(message.qos, subscription.qos)
            if qos and session.connection is not None:
                session.send(session.connection, Outgoing(message, qos, retain=True))
            else:
                session.deliver(message, qos, True)

    patch.replace(MqttBroker, "send_retained", send_retained)


@mutant("v5-resent-messages-ignore-packet-size", "what is sent on resuming may exceed the client's Maximum Packet Size")
def resent_ignore_size(patch: Patch) -> None:
    def make(original: Callable[[Session, float], None]) -> Callable[[Session, float], None]:
        def resume(self: Session, now: float) -> None:
            connection = self.connection
            if not isinstance(connection, MqttConnection):
                original(self, now)
                return
            limit, connection.max_packet_out = connection.max_packet_out, _UNLIMITED_BYTES
            original(self, now)
            connection.max_packet_out = limit

        return resume

    patch.wrap(Session, "resume", make)


@mutant("v5-problem-information-0-strips-messages", "clients that decline problem information get no user properties")
def strips_messages(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def send_publish(self: Outbound, packet_id: int, message: Message, *options: object) -> bool:
            if not self._connection.problem_information:
                message = msgspec.structs.replace(message, user_properties=())
            return original(self, packet_id, message, *options)

        return send_publish

    no_fast_lane(patch)
    patch.wrap(Outbound, "send_publish", make)


@mutant("v5-shares-lose-their-identifier", "messages of shared subscriptions carry no subscription identifier")
def shares_lose_identifier(patch: Patch) -> None:
    def make(
        original: Callable[[SharedGroup], tuple[Session, Subscription] | None],
    ) -> Callable[[SharedGroup], tuple[Session, Subscription] | None]:
        def choose(self: SharedGroup) -> tuple[Session, Subscription] | None:
            chosen = original(self)
            return chosen and (chosen[0], msgspec.structs.replace(chosen[1], identifier=0))

        return choose

    patch.wrap(SharedGroup, "choose", make)


@mutant("v5-alias-only-at-qos-0", "a topic alias in place of the topic is accepted at QoS 0 only")
def alias_only_at_qos_0(patch: Patch) -> None:
    def make(original: Callable[[Inbound, Publish], str]) -> Callable[[Inbound, Publish], str]:
        def resolve(self: Inbound, packet: Publish) -> str:
            if packet.qos and not packet.topic:
                message = "a topic alias at this QoS"
                raise ProtocolError(message, "MQTT-3.3.2-12")
            return original(self, packet)

        return resolve

    patch.wrap(Inbound, "resolve_topic", make)


@mutant("v5-aliases-shared-by-all", "all clients share one table of topic aliases")
def aliases_shared(patch: Patch) -> None:
    table: dict[int, str] = {}

    def make(original: Callable[[Inbound, MqttConnection], None]) -> Callable[[Inbound, MqttConnection], None]:
        def init(self: Inbound, connection: MqttConnection) -> None:
            original(self, connection)
            self._aliases = table

        return init

    patch.wrap(Inbound, "__init__", make)


@mutant(
    "v5-server-aliases-outlive-the-connection", "the aliases that the server has set stay in use on the next connection"
)
def server_aliases_outlive(patch: Patch) -> None:
    allowed: WeakSet[MqttConnection] = WeakSet()
    known: defaultdict[str, dict[str, int]] = defaultdict(dict)
    accept, send = handshake.accept, Outbound.send_publish

    def remember(connection: MqttConnection, packet: Connect, now: float) -> None:
        if packet.properties.topic_alias_maximum:
            allowed.add(connection)
        accept(connection, packet, now)

    def send_publish(
        self: Outbound,
        packet_id: int,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
    ) -> bool:
        aliases = known[self._connection.client_id]
        if qos or self._connection not in allowed or (aliases and message.topic not in aliases):
            return send(self, packet_id, message, qos, retain, dup, identifiers)
        topic = encode_string("" if message.topic in aliases else message.topic)
        alias = aliases.setdefault(message.topic, 1)
        body = topic + b"\x03\x23" + alias.to_bytes(2, "big") + message.payload
        self._connection.send(bytes((0x30 | retain,)) + encode_variable_integer(len(body)) + body)
        return True

    no_fast_lane(patch)
    patch.replace(handshake, "accept", remember)
    patch.replace(Outbound, "send_publish", send_publish)
