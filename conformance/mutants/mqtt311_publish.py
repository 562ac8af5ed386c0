"""Bugs in the publish flow and in retained messages (MQTT 3.1.1)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.mqtt311_ways import close_fast_ways
from assay.reference_broker.core.routing import Route, RouteEntry, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import Outgoing, Session, SessionConnection
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.packets import Packet, PacketType, Publish
from assay.reference_broker.mqtt.wire.wire_types import Reader
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import has_wildcard

_FanOut = Callable[..., bool]
_Entry = Callable[[RouteEntry, Session, list[Subscription]], None]
_Store = Callable[[RetainedStore, Message], bool]
_DUP = 0x08


def _on_fan_out(patch: Patch, make: Callable[[_FanOut], _FanOut]) -> None:
    close_fast_ways(patch)
    patch.wrap(MqttBroker, "fan_out", make)


def _after_entry(patch: Patch, change: Callable[[RouteEntry, list[Subscription]], None]) -> None:
    """Change each subscriber of a route after it was made."""

    def make(original: _Entry) -> _Entry:
        def init(self: RouteEntry, session: Session, subscriptions: list[Subscription]) -> None:
            original(self, session, subscriptions)
            change(self, subscriptions)

        return init

    patch.wrap(RouteEntry, "__init__", make)


@mutant("v3-empty-payload-not-routed", "a message without payload is not delivered")
def empty_payload_not_routed(patch: Patch) -> None:
    def make(original: _FanOut) -> _FanOut:
        return lambda self, message, *rest: bool(message.payload) and original(self, message, *rest)

    _on_fan_out(patch, make)


@mutant("v3-delivered-at-subscription-qos", "deliveries have the QoS of the subscription, whatever was published")
def delivered_at_subscription_qos(patch: Patch) -> None:
    def make(original: _FanOut) -> _FanOut:
        return lambda self, message, *rest: original(self, msgspec.structs.replace(message, qos=2), *rest)

    _on_fan_out(patch, make)


@mutant("v3-everything-retained", "messages are retained whether or not RETAIN is set")
def everything_retained(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def publish(self: MqttBroker, message: Message, publisher: Session | None, now: float) -> bool:
            return original(self, msgspec.structs.replace(message, retain=True), publisher, now)

        return publish

    close_fast_ways(patch)
    patch.wrap(MqttBroker, "publish", make)


@mutant("v3-puback-identifier-cut", "only the low byte of the packet identifier is acknowledged")
def puback_identifier_cut(patch: Patch) -> None:
    def make(original: Callable[..., bytes | None]) -> Callable[..., bytes | None]:
        def acknowledgement(connection: object, qos: int, packet_id: int, *rest: object, **named: object) -> Any:
            return original(connection, qos, packet_id & 0xFF if qos == 1 else packet_id, *rest, **named)

        return acknowledgement

    patch.wrap(handlers, "acknowledgement", make)


@mutant("v3-pubcomp-not-sent", "PUBREL is taken without a PUBCOMP")
def pubcomp_not_sent(patch: Patch) -> None:
    def on_pubrel_run(self: Inbound, ids: bytes) -> None:
        for packet_id in runs.numbers(ids):
            self._connection.active_session.inbound_qos2.pop(packet_id, None)

    patch.replace(Inbound, "on_pubrel_run", on_pubrel_run)


@mutant("v3-qos-2-repeat-delivered", "a repeated QoS 2 PUBLISH is delivered again")
def qos_2_repeat_delivered(patch: Patch) -> None:
    patch.replace(Inbound, "is_repeated", lambda _self, _packet_id: False)


@mutant("v3-qos-2-identifier-never-freed", "PUBREL does not free the packet identifier")
def qos_2_identifier_never_freed(patch: Patch) -> None:
    def on_pubrel_run(self: Inbound, ids: bytes) -> None:
        self.acknowledge(runs.acknowledgements(b"\x70\x02", ids))

    patch.replace(Inbound, "on_pubrel_run", on_pubrel_run)


@mutant("v3-unknown-pubrel-ignored", "PUBREL for an unknown identifier is not answered")
def unknown_pubrel_ignored(patch: Patch) -> None:
    def make(original: Callable[[Inbound, int], None]) -> Callable[[Inbound, int], None]:
        def on_pubrel(self: Inbound, packet_id: int) -> None:
            if packet_id in self._connection.active_session.inbound_qos2:
                original(self, packet_id)

        return on_pubrel

    patch.wrap(Inbound, "on_pubrel", make)


def _pass_dup_on(patch: Patch) -> None:
    """Deliveries made while a PUBLISH is handled have its DUP."""
    state = {"dup": False}

    def make_receive(original: Callable[[Inbound, Publish, float], None]) -> Callable[[Inbound, Publish, float], None]:
        def on_publish(self: Inbound, packet: Publish, now: float) -> None:
            state["dup"] = packet.dup
            try:
                original(self, packet, now)
            finally:
                state["dup"] = False

        return on_publish

    def make_send(original: Callable[..., bool]) -> Callable[..., bool]:
        def send_publish(
            self: Outbound, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, ids: tuple[int, ...]
        ) -> bool:
            return original(self, packet_id, message, qos, retain, dup or state["dup"], ids)

        return send_publish

    patch.wrap(Inbound, "on_publish", make_receive)
    patch.wrap(Outbound, "send_publish", make_send)


@mutant("v3-dup-passed-on", "DUP of a received PUBLISH is copied to its deliveries")
def dup_passed_on(patch: Patch) -> None:
    _pass_dup_on(patch)


@mutant("v3-dup-at-qos-0-delivered-with-dup", "DUP at QoS 0 is accepted and passed on")
def dup_at_qos_0(patch: Patch) -> None:
    original = codec.DECODERS[PacketType.PUBLISH]

    def decode(header: int, reader: Reader, version: int) -> Packet:
        packet = original(header if header & 0x06 else header & ~_DUP, reader, version)
        return msgspec.structs.replace(packet, dup=bool(header & _DUP))

    patch.item(codec.DECODERS, PacketType.PUBLISH, decode)
    _pass_dup_on(patch)


@mutant("v3-publish-qos-3-accepted", "a PUBLISH with both QoS bits set is taken for QoS 2")
def publish_qos_3_accepted(patch: Patch) -> None:
    original = codec.DECODERS[PacketType.PUBLISH]

    def decode(header: int, reader: Reader, version: int) -> Packet:
        return original(header & ~0x02 if header & 0x06 == 0x06 else header, reader, version)

    patch.item(codec.DECODERS, PacketType.PUBLISH, decode)


@mutant("v3-packet-identifier-0-accepted", "packet identifier 0 is accepted")
def packet_identifier_0_accepted(patch: Patch) -> None:
    patch.replace(codec, "read_packet_id", lambda reader, _version: reader.two_bytes())


def _skip_topic_check(patch: Patch, skip: Callable[[str], bool]) -> None:
    def make(original: Callable[[Inbound, str], None]) -> Callable[[Inbound, str], None]:
        def check_topic(self: Inbound, topic: str) -> None:
            if not skip(topic):
                original(self, topic)

        return check_topic

    close_fast_ways(patch)
    patch.wrap(Inbound, "check_topic", make)


@mutant("v3-wildcards-in-topic-names", "topic names with wildcards are published to")
def wildcards_in_topic_names(patch: Patch) -> None:
    _skip_topic_check(patch, has_wildcard)


@mutant("v3-empty-topic-name", "an empty topic name is published to")
def empty_topic_name(patch: Patch) -> None:
    _skip_topic_check(patch, lambda topic: not topic)


def always_identifier_one(patch: Patch) -> None:
    """Every delivery of a session gets the packet identifier 1, free or not."""

    def make(original: Callable[[Session, SessionConnection, Outgoing], None]) -> Callable[..., None]:
        def send(self: Session, connection: SessionConnection, outgoing: Outgoing) -> None:
            self._next_packet_id = 1
            original(self, connection, outgoing)

        return send

    patch.replace(Session, "allocate_packet_id", lambda _self: 1)
    patch.wrap(Session, "send", make)


@mutant("v3-delivery-identifier-reused", "every delivery has packet identifier 1")
def delivery_identifier_reused(patch: Patch) -> None:
    always_identifier_one(patch)


@mutant("v3-own-messages-withheld", "clients do not get what they publish themselves")
def own_messages_withheld(patch: Patch) -> None:
    def change(entry: RouteEntry, _subscriptions: list[Subscription]) -> None:
        entry.own = None

    _after_entry(patch, change)


@mutant("v3-last-subscriber-forgotten", "of several subscribers the last one gets nothing")
def last_subscriber_forgotten(patch: Patch) -> None:
    def make(original: Callable[[SubscriptionTree, str], Route]) -> Callable[[SubscriptionTree, str], Route]:
        def match(self: SubscriptionTree, topic: str) -> Route:
            route = original(self, topic)
            if len(route.entries) > 1:
                route.entries.pop()
            return route

        return match

    patch.wrap(SubscriptionTree, "match", make)


@mutant("v3-overlap-takes-the-lowest-qos", "overlapping subscriptions deliver at the lowest QoS of them")
def overlap_takes_the_lowest_qos(patch: Patch) -> None:
    def change(entry: RouteEntry, subscriptions: list[Subscription]) -> None:
        entry.qos = min(subscription.qos for subscription in subscriptions)

    _after_entry(patch, change)


@variation("v3-one-copy-per-subscription", "overlapping subscriptions get a copy each")
def one_copy_per_subscription(patch: Patch) -> None:
    def match(self: SubscriptionTree, topic: str) -> Route:
        entries = [
            RouteEntry(session, [subscription])
            for node in self.walk(topic)
            for session, subscription in node.subscribers.items()
        ]
        return Route(entries, [])

    patch.replace(SubscriptionTree, "match", match)


@mutant(
    "v3-qos-2-beyond-twenty-forgotten", "of QoS 2 messages that are not released yet no more than twenty are forwarded"
)
def forgotten_beyond_twenty(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def publish(self: MqttBroker, message: Message, publisher: object, *rest: Any) -> bool:
            if message.qos == 2 and isinstance(publisher, Session) and len(publisher.inbound_qos2) > 20:
                return True
            return original(self, message, publisher, *rest)

        return publish

    close_fast_ways(patch)
    patch.wrap(MqttBroker, "publish", make)


@variation("v3-one-packet-at-a-time", "packets are handled one at a time, without the fast ways")
def one_packet_at_a_time(patch: Patch) -> None:
    close_fast_ways(patch)


def _defer_qos_2(patch: Patch) -> dict[str, dict[int, Message]]:
    """Publish a QoS 2 message when its PUBREL comes (5.0 figure 4.3 allows both); returns what waits, by client."""
    waiting: dict[str, dict[int, Message]] = {}
    close_fast_ways(patch)

    def make_publish(original: Callable[..., None]) -> Callable[..., None]:
        def publish_confirmed(self: Inbound, message: Message, packet_id: int, now: float) -> None:
            if message.qos != 2 or is_queue_topic(message.topic):
                original(self, message, packet_id, now)
                return
            session = self._connection.active_session
            session.inbound_qos2[packet_id] = True
            waiting.setdefault(session.client_id, {})[packet_id] = message
            self.acknowledge(b"\x50\x02" + packet_id.to_bytes(2, "big"))

        return publish_confirmed

    def make_release(original: Callable[[Inbound, bytes], None]) -> Callable[[Inbound, bytes], None]:
        def on_pubrel_run(self: Inbound, ids: bytes) -> None:
            session = self._connection.active_session
            for packet_id in runs.numbers(ids):
                message = waiting.get(session.client_id, {}).pop(packet_id, None)
                if message is not None:
                    self._broker.publish(message, session, self._broker.now)
            original(self, ids)

        return on_pubrel_run

    patch.wrap(Inbound, "publish_confirmed", make_publish)
    patch.wrap(Inbound, "on_pubrel_run", make_release)
    return waiting


@variation("v3-qos-2-published-at-pubrel", "a QoS 2 message is delivered when its PUBREL comes")
def qos_2_published_at_pubrel(patch: Patch) -> None:
    _defer_qos_2(patch)


@mutant("v3-message-lost-with-publisher-connection", "QoS 2 messages not yet released are lost with their connection")
def message_lost_with_publisher_connection(patch: Patch) -> None:
    waiting = _defer_qos_2(patch)

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
            waiting.pop(session.client_id, None)
            original(self, session, now, publish_will=publish_will)

        return detach

    patch.wrap(MqttBroker, "detach", make)


# Retained messages.


@mutant("v3-retained-flag-not-set", "retained messages reach new subscribers with RETAIN 0")
def retained_flag_not_set(patch: Patch) -> None:
    def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
        for message in self.retained.match(subscription.topic_filter, now):
            session.deliver(message, min(message.qos, subscription.qos), False)

    patch.replace(MqttBroker, "send_retained", send_retained)


@mutant("v3-retained-flag-passed-on", "existing subscribers get RETAIN as it was published")
def retained_flag_passed_on(patch: Patch) -> None:
    def change(entry: RouteEntry, _subscriptions: list[Subscription]) -> None:
        entry.retain_as_published = True

    _after_entry(patch, change)


def _on_store(patch: Patch, make: Callable[[_Store], _Store]) -> None:
    patch.wrap(RetainedStore, "store", make)


@mutant("v3-retained-first-stays", "a retained message is not replaced by a newer one")
def retained_first_stays(patch: Patch) -> None:
    def make(original: _Store) -> _Store:
        return lambda self, message: bool(message.payload and self.get(message.topic)) or original(self, message)

    _on_store(patch, make)


@mutant("v3-empty-retained-kept", "an empty retained message does not remove the one before")
def empty_retained_kept(patch: Patch) -> None:
    _on_store(patch, lambda original: lambda self, message: not message.payload or original(self, message))


@mutant("v3-retained-qos-lost", "retained messages are stored at QoS 0")
def retained_qos_lost(patch: Patch) -> None:
    _on_store(patch, lambda original: lambda self, message: original(self, msgspec.structs.replace(message, qos=0)))


@variation("v3-retained-qos-0-not-kept", "a retained message at QoS 0 removes the one before and is not kept")
def retained_qos_0_not_kept(patch: Patch) -> None:
    def make(original: _Store) -> _Store:
        def store(self: RetainedStore, message: Message) -> bool:
            return original(self, message if message.qos else msgspec.structs.replace(message, payload=b""))

        return store

    _on_store(patch, make)


@mutant("v3-retained-not-for-wildcards", "wildcard subscriptions get no retained messages")
def retained_not_for_wildcards(patch: Patch) -> None:
    original = RetainedStore.walk

    def walk(
        self: RetainedStore, topic_filter: str, clock: Callable[[], float], newest: int
    ) -> Iterator[Message | None]:
        return iter(()) if has_wildcard(topic_filter) else original(self, topic_filter, clock, newest)

    patch.replace(RetainedStore, "walk", walk)


@mutant("v3-retained-dies-with-the-session", "retained messages go with the session of their publisher")
def retained_dies_with_the_session(patch: Patch) -> None:
    def make(original: Callable[[MqttBroker, Session, float], None]) -> Callable[[MqttBroker, Session, float], None]:
        def end_session(self: MqttBroker, session: Session, now: float) -> None:
            for message in list(self.retained.match("#", now)):
                if message.publisher == session.client_id:
                    self.retained.delete(message.topic)
            original(self, session, now)

        return end_session

    patch.wrap(MqttBroker, "end_session", make)


_SendRetained = Callable[[MqttBroker, Session, Subscription, float], None]


@mutant("v3-retained-once-per-client", "a repeated subscription does not get the retained message again")
def retained_once_per_client(patch: Patch) -> None:
    sent: weakref.WeakKeyDictionary[Session, set[str]] = weakref.WeakKeyDictionary()

    def make(original: _SendRetained) -> _SendRetained:
        def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
            filters = sent.setdefault(session, set())
            if subscription.topic_filter not in filters:
                filters.add(subscription.topic_filter)
                original(self, session, subscription, now)

        return send_retained

    patch.wrap(MqttBroker, "send_retained", make)


@mutant("v3-retained-sent-twice", "a new subscriber gets each retained message twice")
def retained_sent_twice(patch: Patch) -> None:
    def make(original: _SendRetained) -> _SendRetained:
        def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
            original(self, session, subscription, now)
            original(self, session, subscription, now)

        return send_retained

    patch.wrap(MqttBroker, "send_retained", make)


# Order.


@mutant("v3-deliveries-swapped", "deliveries of a connection leave in pairs, the second first")
def deliveries_swapped(patch: Patch) -> None:
    held: weakref.WeakKeyDictionary[Outbound, tuple[object, ...]] = weakref.WeakKeyDictionary()

    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def send_publish(self: Outbound, *arguments: object) -> bool:
            earlier = held.pop(self, None)
            if earlier is None:
                held[self] = arguments
                return True
            return original(self, *arguments) and original(self, *earlier)

        return send_publish

    close_fast_ways(patch)
    patch.wrap(Outbound, "send_publish", make)


@mutant("v3-acknowledgements-swapped", "acknowledgements of a run of packets are sent in reverse")
def acknowledgements_swapped(patch: Patch) -> None:
    def make(original: Callable[[bytes, bytes], bytes]) -> Callable[[bytes, bytes], bytes]:
        def acknowledgements(start: bytes, ids: bytes) -> bytes:
            swapped = b"".join(ids[index : index + 2] for index in range(len(ids) - 2, -1, -2))
            return original(start, swapped)

        return acknowledgements

    patch.wrap(runs, "acknowledgements", make)


@mutant("v3-pubrels-reversed", "PUBRELs are sent in the reverse order of the PUBRECs")
def pubrels_reversed(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_run(self: Outbound, kind: PacketType, ids: bytes, now: float) -> None:
            swapped = b"".join(ids[index : index + 2] for index in range(len(ids) - 2, -1, -2))
            original(self, kind, swapped if kind is PacketType.PUBREC else ids, now)

        return on_run

    patch.wrap(Outbound, "on_run", make)
