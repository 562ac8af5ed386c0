"""Broken subscriptions, retained messages and shares of MQTT 5.0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt5_support import change_sent, no_fast_lane
from assay.reference_broker.core.clients import Client
from assay.reference_broker.core.routing import RouteEntry, RouteNode, SharedGroup, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import Outgoing, Session, SharedOutgoing
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import Acknowledgement, Suback, Subscribe, SubscriptionRequest, Unsuback
from assay.reference_broker.queues.engine import Asked
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import TopicError, has_wildcard, matches, split_shared, validate_filter

Unsubscription: TypeAlias = Callable[[MqttBroker, Session, str, float], bool]


@mutant("v5-suback-codes-reversed", "the codes of SUBACK stand in the reverse order")
def suback_reversed(patch: Patch) -> None:
    change_sent(
        patch, Suback, lambda _connection, packet: msgspec.structs.replace(packet, reasons=packet.reasons[::-1])
    )


@mutant("v5-unsuback-codes-reversed", "the codes of UNSUBACK stand in the reverse order")
def unsuback_reversed(patch: Patch) -> None:
    change_sent(
        patch, Unsuback, lambda _connection, packet: msgspec.structs.replace(packet, reasons=packet.reasons[::-1])
    )


@mutant("v5-many-filters-only-first-added", "of the filters in a SUBSCRIBE only the first is subscribed to")
def only_first(patch: Patch) -> None:
    original = handlers.on_subscribe

    def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
        original(connection, msgspec.structs.replace(packet, requests=packet.requests[:1]), now)

    patch.replace(handlers, "on_subscribe", on_subscribe)


def _change_request(patch: Patch, change: Callable[[SubscriptionRequest], SubscriptionRequest]) -> None:
    original = codec.subscription_request

    def request(topic_filter: str, options: int, version: int) -> SubscriptionRequest:
        return change(original(topic_filter, options, version))

    patch.replace(codec, "subscription_request", request)


def _mask_options(patch: Patch, mask: Callable[[int], int]) -> None:
    original = codec.subscription_request
    patch.replace(
        codec, "subscription_request", lambda filter_, options, version: original(filter_, mask(options), version)
    )


@mutant("v5-reserved-option-bits-accepted", "reserved bits of the subscription options are ignored")
def reserved_options(patch: Patch) -> None:
    _mask_options(patch, lambda options: options & 0x3F)


@mutant("v5-subscribe-qos-3-accepted", "a subscription at QoS 3 is taken for QoS 2")
def subscribe_qos_3(patch: Patch) -> None:
    _mask_options(patch, lambda options: options & ~0x01 if options & 0x03 == 0x03 else options)


@mutant("v5-retain-handling-3-accepted", "retain handling 3 is taken for 2")
def retain_handling_3(patch: Patch) -> None:
    _mask_options(patch, lambda options: options & ~0x10 if options & 0x30 == 0x30 else options)


@mutant("v5-no-local-on-share-accepted", "No Local on a shared subscription is ignored")
def no_local_on_share(patch: Patch) -> None:
    def change(request: SubscriptionRequest) -> SubscriptionRequest:
        shared = request.topic_filter.startswith("$share/")
        return msgspec.structs.replace(request, no_local=request.no_local and not shared)

    _change_request(patch, change)


def _handle_retained(patch: Patch, asked: int, served: int) -> None:
    def change(request: SubscriptionRequest) -> SubscriptionRequest:
        handling = served if request.retain_handling == asked else request.retain_handling
        return msgspec.structs.replace(request, retain_handling=handling)

    _change_request(patch, change)


@mutant("v5-retained-only-at-first-subscribe", "retain handling 0 is taken for 1")
def handling_0_as_1(patch: Patch) -> None:
    _handle_retained(patch, 0, 1)


@mutant("v5-retain-handling-1-always-sends", "retain handling 1 is taken for 0")
def handling_1_as_0(patch: Patch) -> None:
    _handle_retained(patch, 1, 0)


@mutant("v5-retain-handling-2-sends", "retain handling 2 is taken for 0")
def handling_2_as_0(patch: Patch) -> None:
    _handle_retained(patch, 2, 0)


def _change_entry(patch: Patch, change: Callable[[RouteEntry, list[Subscription]], None]) -> None:
    """Change how a session's matching subscriptions are merged."""
    original = RouteEntry.__init__

    def init(self: RouteEntry, session: Session, subscriptions: list[Subscription]) -> None:
        original(self, session, subscriptions)
        change(self, subscriptions)

    patch.replace(RouteEntry, "__init__", init)


@mutant("v5-no-local-ignored", "No Local is ignored")
def no_local_ignored(patch: Patch) -> None:
    _change_entry(patch, lambda entry, _subscriptions: setattr(entry, "own", entry))


@mutant("v5-retain-as-published-ignored", "Retain As Published is ignored")
def retain_as_published(patch: Patch) -> None:
    _change_entry(patch, lambda entry, _subscriptions: setattr(entry, "retain_as_published", False))


def _with_wildcards(name: str, value: Callable[[RouteEntry], object]) -> Callable[[Patch], None]:
    def change(entry: RouteEntry, subscriptions: list[Subscription]) -> None:
        if any(has_wildcard(subscription.topic_filter) for subscription in subscriptions):
            setattr(entry, name, value(entry))

    return lambda patch: _change_entry(patch, change)


mutant("v5-retain-as-published-ignored-with-wildcards", "Retain As Published is ignored where a filter has wildcards")(
    _with_wildcards("retain_as_published", lambda _entry: False)
)
mutant("v5-no-local-ignored-with-wildcards", "No Local is ignored where a filter has wildcards")(
    _with_wildcards("own", lambda entry: entry)
)


@mutant("v5-overlap-takes-lowest-qos", "of overlapping subscriptions the one with the lowest QoS counts")
def lowest_qos(patch: Patch) -> None:
    def change(entry: RouteEntry, subscriptions: list[Subscription]) -> None:
        entry.qos = min(subscription.qos for subscription in subscriptions)

    _change_entry(patch, change)


@mutant("v5-subscription-identifier-dropped", "messages do not carry Subscription Identifiers")
def identifier_dropped(patch: Patch) -> None:
    _change_entry(patch, lambda entry, _subscriptions: setattr(entry, "identifiers", ()))


@mutant("v5-only-one-subscription-identifier", "a message carries one Subscription Identifier at most")
def only_one_identifier(patch: Patch) -> None:
    _change_entry(patch, lambda entry, _subscriptions: setattr(entry, "identifiers", entry.identifiers[:1]))


@mutant("v5-retained-without-subscription-identifier", "retained messages do not carry Subscription Identifiers")
def retained_without_identifier(patch: Patch) -> None:
    original = MqttBroker.send_retained

    def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
        original(self, session, msgspec.structs.replace(subscription, identifier=0), now)

    patch.replace(MqttBroker, "send_retained", send_retained)


@mutant("v5-resubscribe-keeps-old", "subscribing again to the same filter changes nothing")
def resubscribe_keeps_old(patch: Patch) -> None:
    original = MqttBroker.subscribe

    def subscribe(
        self: MqttBroker,
        session: Session,
        topic_filter: str,
        subscription: Subscription,
        group: str | None,
        now: float,
    ) -> SubscribeOutcome:
        if topic_filter in session.subscriptions:
            return SubscribeOutcome(qos=subscription.qos, existed=True)
        return original(self, session, topic_filter, subscription, group, now)

    patch.replace(MqttBroker, "subscribe", subscribe)


@mutant("v5-resubscribe-drops-waiting", "subscribing again to the same filter drops what waits for the client")
def resubscribe_drops(patch: Patch) -> None:
    original = MqttBroker.subscribe

    def subscribe(
        self: MqttBroker,
        session: Session,
        topic_filter: str,
        subscription: Subscription,
        group: str | None,
        now: float,
    ) -> SubscribeOutcome:
        if topic_filter in session.subscriptions:
            session.queued.clear()
        return original(self, session, topic_filter, subscription, group, now)

    patch.replace(MqttBroker, "subscribe", subscribe)


@mutant("v5-misplaced-wildcards-granted", "where a wildcard stands in a filter is not checked")
def misplaced_wildcards(patch: Patch) -> None:
    def lenient(topic_filter: str, *, max_levels: int = 128) -> None:
        validate_filter(topic_filter.replace("+", "x").replace("#", "x"), max_levels=max_levels)

    patch.replace(handlers, "validate_filter", lenient)


@mutant("v5-empty-filter-granted", "a filter may be empty")
def empty_filter(patch: Patch) -> None:
    patch.replace(
        handlers,
        "validate_filter",
        lambda filter_, *, max_levels: validate_filter(filter_ or "x", max_levels=max_levels),
    )


@mutant("v5-malformed-share-names-granted", "a filter that only begins like a shared one is made one")
def malformed_share(patch: Patch) -> None:
    def lenient(topic_filter: str) -> tuple[str | None, str]:
        try:
            return split_shared(topic_filter)
        except TopicError:
            # Not below $share, which access rules for ordinary topics would refuse anyway.
            return "any", topic_filter.removeprefix("$share/").replace("+", "x").replace("#", "x").strip("/")

    patch.replace(handlers, "split_shared", lenient)


def _change_unsubscribe(patch: Patch, make: Callable[[Unsubscription], Unsubscription]) -> None:
    patch.replace(MqttBroker, "unsubscribe", make(MqttBroker.unsubscribe))


@mutant("v5-unsubscribe-ignored", "UNSUBSCRIBE is answered and not acted upon")
def unsubscribe_ignored(patch: Patch) -> None:
    _change_unsubscribe(
        patch, lambda _original: lambda _self, session, topic_filter, _now: topic_filter in session.subscriptions
    )


@mutant("v5-unsubscribe-matches-wildcards", "UNSUBSCRIBE also removes filters that its wildcards match")
def unsubscribe_matches(patch: Patch) -> None:
    def make(original: Unsubscription) -> Unsubscription:
        def unsubscribe(self: MqttBroker, session: Session, topic_filter: str, now: float) -> bool:
            meant = [known for known in session.subscriptions if matches(topic_filter, known)]
            return sum(original(self, session, known, now) for known in meant) > 0

        return unsubscribe

    _change_unsubscribe(patch, make)


@mutant("v5-unsubscribe-drops-begun-deliveries", "UNSUBSCRIBE drops deliveries that have begun")
def unsubscribe_drops(patch: Patch) -> None:
    def make(original: Unsubscription) -> Unsubscription:
        def unsubscribe(self: MqttBroker, session: Session, topic_filter: str, now: float) -> bool:
            session.in_flight.clear()
            return original(self, session, topic_filter, now)

        return unsubscribe

    _change_unsubscribe(patch, make)


# Retained messages


@mutant("v5-retained-not-replaced", "a topic keeps its first retained message")
def not_replaced(patch: Patch) -> None:
    original = RetainedStore.store

    def store(self: RetainedStore, message: Message) -> bool:
        return bool(message.payload and self.get(message.topic)) or original(self, message)

    patch.replace(RetainedStore, "store", store)


@mutant("v5-empty-retained-ignored", "an empty retained message does not delete the stored one")
def empty_ignored(patch: Patch) -> None:
    original = RetainedStore.store
    patch.replace(RetainedStore, "store", lambda self, message: not message.payload or original(self, message))


@mutant("v5-plain-message-replaces-retained", "a message without RETAIN replaces the stored one")
def plain_replaces(patch: Patch) -> None:
    original = MqttBroker.publish

    def publish(self: MqttBroker, message: Message, publisher: Session | None, now: float) -> bool:
        if self.retained.get(message.topic):
            self.retained.store(message)
        return original(self, message, publisher, now)

    no_fast_lane(patch)
    patch.replace(MqttBroker, "publish", publish)


@mutant("v5-wildcards-bring-one-retained", "a filter with wildcards brings one retained message only")
def one_retained(patch: Patch) -> None:
    original = RetainedStore.walk

    def walk(
        self: RetainedStore, topic_filter: str, clock: Callable[[], float], newest: int
    ) -> Iterator[Message | None]:
        found = filter(None, original(self, topic_filter, clock, newest))
        return islice(found, 1 if has_wildcard(topic_filter) else None)

    patch.replace(RetainedStore, "walk", walk)


@mutant("v5-retained-properties-dropped", "retained messages are stored without their properties")
def retained_properties(patch: Patch) -> None:
    original = RetainedStore.store

    def store(self: RetainedStore, message: Message) -> bool:
        plain = Message(topic=message.topic, payload=message.payload, qos=message.qos, retain=True)
        return original(self, plain)

    patch.replace(RetainedStore, "store", store)


@mutant("v5-retained-never-expires", "retained messages do not expire")
def retained_never_expires(patch: Patch) -> None:
    original = RetainedStore.walk
    patch.replace(
        RetainedStore, "walk", lambda self, topic_filter, _clock, newest: original(self, topic_filter, float, newest)
    )


@mutant("v5-retained-ends-with-session", "the end of a session deletes what its client has retained")
def retained_ends(patch: Patch) -> None:
    original = MqttBroker.end_session

    def end_session(self: MqttBroker, session: Session, now: float) -> None:
        for message in list(self.retained.match("#", now)):
            if message.publisher == session.client_id:
                self.retained.store(Message(topic=message.topic, payload=b""))
        original(self, session, now)

    patch.replace(MqttBroker, "end_session", end_session)


# Shared subscriptions and matching


@mutant("v5-shared-goes-to-all", "a shared message goes to every member")
def shared_to_all(patch: Patch) -> None:
    original = MqttBroker.fan_out

    def fan_out(self: MqttBroker, message: Message, publisher: Client | None, asked: Asked = None) -> bool:
        for group in self.tree.route(message.topic).groups:
            for member, subscription in group.members.items():
                member.deliver(message, min(message.qos, subscription.qos), False)
        return original(self, message, publisher, asked)

    patch.replace(MqttBroker, "fan_out", fan_out)


def _change_added(patch: Patch, change: Callable[[Subscription], Subscription]) -> None:
    original = SubscriptionTree.add

    def add(self: SubscriptionTree, session: Session, subscription: Subscription) -> None:
        original(self, session, subscription if subscription.share_name is None else change(subscription))

    patch.replace(SubscriptionTree, "add", add)


@mutant("v5-share-names-mixed-up", "all shares of a filter are one")
def share_names(patch: Patch) -> None:
    _change_added(patch, lambda subscription: msgspec.structs.replace(subscription, share_name="all"))


@mutant("v5-shared-at-published-qos", "shared messages are delivered at the QoS of their publisher")
def shared_qos(patch: Patch) -> None:
    _change_added(patch, lambda subscription: msgspec.structs.replace(subscription, qos=2))


@mutant("v5-share-survives-unsubscribe", "UNSUBSCRIBE from a shared filter leaves the client in the share")
def share_survives(patch: Patch) -> None:
    original = SubscriptionTree.remove

    def remove(self: SubscriptionTree, session: Session, subscription: Subscription) -> None:
        if subscription.share_name is None:
            original(self, session, subscription)

    patch.replace(SubscriptionTree, "remove", remove)


def _pass_on(group: SharedGroup, session: Session, message: Message, qos: int) -> None:
    """Give a message to another member."""
    for member in group.members:
        if member is not session:
            member.deliver(message, qos, False)
            return


@mutant("v5-refused-shared-message-sent-on", "a shared message that one member refused goes to another")
def refused_sent_on(patch: Patch) -> None:
    original = Outbound.on_acknowledgement

    def on_acknowledgement(self: Outbound, packet: Acknowledgement, now: float) -> None:
        session = self._connection.active_session
        outgoing = session.in_flight.get(packet.packet_id)
        original(self, packet, now)
        if packet.reason >= 0x80 and isinstance(outgoing, Outgoing):
            for group in self._broker.tree.route(outgoing.message.topic).groups:
                _pass_on(group, session, outgoing.message, outgoing.qos)

    patch.replace(Outbound, "on_acknowledgement", on_acknowledgement)


@mutant("v5-begun-shared-delivery-moved", "a shared delivery that was not finished goes to another member")
def begun_moved(patch: Patch) -> None:
    original = MqttBroker.detach

    def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
        for outgoing in list(session.in_flight.values()):
            if isinstance(outgoing, Outgoing):
                for group in self.tree.route(outgoing.message.topic).groups:
                    _pass_on(group, session, outgoing.message, outgoing.qos)
        original(self, session, now, publish_will=publish_will)

    patch.replace(MqttBroker, "detach", detach)


@mutant(
    "v5-shared-messages-end-with-their-member", "what a member of a share leaves behind is deleted with its session"
)
def shared_messages_end(patch: Patch) -> None:
    def pass_on(_self: MqttBroker, _left: Sequence[SharedOutgoing], _now: float) -> None:
        return

    patch.replace(MqttBroker, "pass_on", pass_on)


@mutant(
    "v5-unsent-shared-messages-end-with-their-member", "only what has QoS 1 outlives the member of a share that had it"
)
def unsent_shared_messages_end(patch: Patch) -> None:
    original = MqttBroker.pass_on

    def pass_on(self: MqttBroker, left: Sequence[SharedOutgoing], now: float) -> None:
        original(self, [outgoing for outgoing in left if outgoing.qos == 1], now)

    patch.replace(MqttBroker, "pass_on", pass_on)


@mutant("v5-expired-shared-messages-move", "what has expired with a member of a share goes to another one all the same")
def expired_shared_messages_move(patch: Patch) -> None:
    patch.rewrite(
        MqttBroker, "pass_on", "if message.expires_at and message.expires_at <= now:", "if not message.topic:"
    )


def _change_walk(patch: Patch, change: Callable[[SubscriptionTree, str, list[RouteNode]], list[RouteNode]]) -> None:
    original = SubscriptionTree.walk

    def walk(self: SubscriptionTree, topic: str) -> Iterator[RouteNode]:
        return iter(change(self, topic, list(original(self, topic))))

    patch.replace(SubscriptionTree, "walk", walk)


@mutant("v5-hash-misses-parent", "a filter that ends in # does not match the level above it")
def hash_misses_parent(patch: Patch) -> None:
    def change(_tree: SubscriptionTree, _topic: str, found: list[RouteNode]) -> list[RouteNode]:
        below = {id(node.children["#"]) for node in found if "#" in node.children}
        return [node for node in found if id(node) not in below]

    _change_walk(patch, change)


@mutant("v5-wildcards-match-dollar-topics", "the filter # matches topics that begin with $")
def dollar_topics(patch: Patch) -> None:
    def change(tree: SubscriptionTree, topic: str, found: list[RouteNode]) -> list[RouteNode]:
        everything = tree._root.children.get("#")
        return [*found, everything] if everything is not None and topic.startswith("$") else found

    _change_walk(patch, change)


@mutant("v5-unsubscribe-takes-from-all-shares", "who leaves a share loses what waits for it in others")
def unsubscribe_takes_from_all_shares(patch: Patch) -> None:
    patch.rewrite(Session, "take_queued", "if each.share not in shares)", "if not each.share)")


@mutant("v5-subscribe-beside-an-open-delivery-refused", "a SUBSCRIBE beside an open delivery is refused")
def refused_beside_a_delivery(patch: Patch) -> None:
    original = handlers.on_subscribe

    def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
        if not connection.active_session.in_flight:
            original(connection, packet, now)
            return
        reasons = tuple(Reason.PACKET_IDENTIFIER_IN_USE for _ in packet.requests)
        connection.send_packet(Suback(packet_id=packet.packet_id, reasons=reasons))

    patch.replace(handlers, "on_subscribe", on_subscribe)
