"""Bugs in SUBSCRIBE, UNSUBSCRIBE and topic matching (MQTT 3.1.1)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.mqtt311_ways import replace_text_decoder, walk_with_flaws
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.errors import malformed
from assay.reference_broker.mqtt.wire.packets import (
    V5,
    Packet,
    PacketType,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from assay.reference_broker.mqtt.wire.wire_types import Reader, decode_string
from assay.reference_broker.routing.topics import TopicError, matches, validate_filter

_OnSubscribe = Callable[[MqttConnection, Subscribe, float], None]
_OnUnsubscribe = Callable[[MqttConnection, Unsubscribe, float], None]
_StateUnsubscribe = Callable[[MqttBroker, Session, str, float], bool]


@mutant("v3-suback-codes-reversed", "the return codes of SUBACK are in reverse order")
def suback_codes_reversed(patch: Patch) -> None:
    def reversed_suback(*, packet_id: int, reasons: tuple[int, ...]) -> Suback:
        return Suback(packet_id=packet_id, reasons=reasons[::-1])

    patch.replace(handlers, "Suback", reversed_suback)


@mutant("v3-only-first-filter-subscribed", "of several filters in one SUBSCRIBE only the first takes effect")
def only_first_filter_subscribed(patch: Patch) -> None:
    def make(original: _OnSubscribe) -> _OnSubscribe:
        def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
            original(connection, packet, now)
            for request in packet.requests[1:]:
                connection.broker.unsubscribe(connection.active_session, request.topic_filter, now)

        return on_subscribe

    patch.wrap(handlers, "on_subscribe", make)


@mutant("v3-first-subscription-stays", "subscribing again to a filter changes nothing, whatever SUBACK says")
def first_subscription_stays(patch: Patch) -> None:
    def make(original: Callable[..., SubscribeOutcome]) -> Callable[..., SubscribeOutcome]:
        def subscribe(
            self: MqttBroker, session: Session, topic_filter: str, wanted: Subscription, group: str | None, now: float
        ) -> SubscribeOutcome:
            known = session.subscriptions.get(topic_filter)
            if known is not None:
                return SubscribeOutcome(qos=wanted.qos, existed=True)
            return original(self, session, topic_filter, wanted, group, now)

        return subscribe

    patch.wrap(MqttBroker, "subscribe", make)


@mutant("v3-subscribe-qos-3", "a requested QoS of 3 and reserved option bits are accepted")
def subscribe_qos_3(patch: Patch) -> None:
    def make(original: Callable[..., SubscriptionRequest]) -> Callable[..., SubscriptionRequest]:
        def request(topic_filter: str, options: int, version: int) -> SubscriptionRequest:
            return original(topic_filter, options if version == V5 else min(options & 3, 2), version)

        return request

    patch.wrap(codec, "subscription_request", make)


@mutant("v3-no-filter-needed", "SUBSCRIBE and UNSUBSCRIBE without a filter are acknowledged")
def no_filter_needed(patch: Patch) -> None:
    subscribe, unsubscribe = codec.DECODERS[PacketType.SUBSCRIBE], codec.DECODERS[PacketType.UNSUBSCRIBE]

    def decode_subscribe(header: int, reader: Reader, version: int) -> Packet:
        if reader.remaining == 2:
            return Subscribe(packet_id=reader.two_bytes(), requests=())
        return subscribe(header, reader, version)

    def decode_unsubscribe(header: int, reader: Reader, version: int) -> Packet:
        if reader.remaining == 2:
            return Unsubscribe(packet_id=reader.two_bytes(), topic_filters=())
        return unsubscribe(header, reader, version)

    patch.item(codec.DECODERS, PacketType.SUBSCRIBE, decode_subscribe)
    patch.item(codec.DECODERS, PacketType.UNSUBSCRIBE, decode_unsubscribe)


def _on_validate_filter(patch: Patch, accepts: Callable[[str], bool]) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def validate_filter(topic_filter: str, *, max_levels: int) -> None:
            if not accepts(topic_filter):
                original(topic_filter, max_levels=max_levels)

        return validate_filter

    patch.wrap(handlers, "validate_filter", make)


@mutant("v3-empty-filter", "an empty topic filter is granted")
def empty_filter(patch: Patch) -> None:
    _on_validate_filter(patch, lambda topic_filter: not topic_filter)


@mutant("v3-any-filter-accepted", "wildcards may stand anywhere in a filter")
def any_filter_accepted(patch: Patch) -> None:
    _on_validate_filter(patch, bool)


@variation("v3-bad-filters-get-code-80", "a bad filter is answered with 0x80 in place of ending the connection")
def bad_filters_get_code_80(patch: Patch) -> None:
    subscribe_one = handlers.subscribe_one

    def one(
        connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        try:
            validate_filter(request.topic_filter)
        except TopicError:
            return 0x80, None, None
        return subscribe_one(connection, request, identifier, group, now)

    patch.replace(handlers, "subscribe_one", one)


@variation("v3-grants-at-most-qos-1", "subscriptions are granted QoS 1 at most")
def grants_at_most_qos_1(patch: Patch) -> None:
    subscribe_one = handlers.subscribe_one

    def one(
        connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        lower = msgspec.structs.replace(request, qos=min(request.qos, 1))
        return subscribe_one(connection, lower, identifier, group, now)

    patch.replace(handlers, "subscribe_one", one)


@mutant("v3-unsubscribe-keeps-delivering", "UNSUBSCRIBE is acknowledged and has no effect")
def unsubscribe_keeps_delivering(patch: Patch) -> None:
    patch.replace(MqttBroker, "unsubscribe", lambda _self, _session, _topic_filter, _now: True)


@mutant("v3-unsuback-only-for-known-filters", "UNSUBSCRIBE of unknown filters is not acknowledged")
def unsuback_only_for_known_filters(patch: Patch) -> None:
    def make(original: _OnUnsubscribe) -> _OnUnsubscribe:
        def on_unsubscribe(connection: MqttConnection, packet: Unsubscribe, now: float) -> None:
            if any(topic_filter in connection.active_session.subscriptions for topic_filter in packet.topic_filters):
                original(connection, packet, now)

        return on_unsubscribe

    patch.wrap(handlers, "on_unsubscribe", make)


@mutant("v3-unsubscribe-matches-wildcards", "UNSUBSCRIBE takes away every subscription that its filter matches")
def unsubscribe_matches_wildcards(patch: Patch) -> None:
    def make(original: _StateUnsubscribe) -> _StateUnsubscribe:
        def unsubscribe(self: MqttBroker, session: Session, topic_filter: str, now: float) -> bool:
            concerned = [known for known in session.subscriptions if matches(topic_filter, known)]
            for known in concerned:
                original(self, session, known, now)
            return bool(concerned)

        return unsubscribe

    patch.wrap(MqttBroker, "unsubscribe", make)


@mutant("v3-only-first-filter-unsubscribed", "of several filters in one UNSUBSCRIBE only the first takes effect")
def only_first_filter_unsubscribed(patch: Patch) -> None:
    def make(original: _OnUnsubscribe) -> _OnUnsubscribe:
        def on_unsubscribe(connection: MqttConnection, packet: Unsubscribe, now: float) -> None:
            original(connection, msgspec.structs.replace(packet, topic_filters=packet.topic_filters[:1]), now)

        return on_unsubscribe

    patch.wrap(handlers, "on_unsubscribe", make)


@mutant("v3-unsubscribe-drops-in-flight", "UNSUBSCRIBE forgets deliveries that have begun")
def unsubscribe_drops_in_flight(patch: Patch) -> None:
    def make_unsubscribe(original: _StateUnsubscribe) -> _StateUnsubscribe:
        def unsubscribe(self: MqttBroker, session: Session, topic_filter: str, now: float) -> bool:
            session.in_flight.clear()
            return original(self, session, topic_filter, now)

        return unsubscribe

    def make_pubrec(original: Callable[[Outbound, int], None]) -> Callable[[Outbound, int], None]:
        def on_pubrec(self: Outbound, packet_id: int) -> None:
            if packet_id in self._connection.active_session.in_flight:
                original(self, packet_id)

        return on_pubrec

    patch.wrap(MqttBroker, "unsubscribe", make_unsubscribe)
    patch.wrap(Outbound, "on_pubrec", make_pubrec)


# Topics.


@mutant("v3-plus-needs-a-character", "the wildcard + does not match an empty level")
def plus_needs_a_character(patch: Patch) -> None:
    walk_with_flaws(patch, plus_takes_empty=False)


@mutant("v3-hash-misses-the-parent", "the wildcard # does not match the level before it")
def hash_misses_the_parent(patch: Patch) -> None:
    walk_with_flaws(patch, hash_takes_parent=False)


@mutant("v3-wildcards-match-dollar-topics", "a leading wildcard matches topics that start with $")
def wildcards_match_dollar_topics(patch: Patch) -> None:
    walk_with_flaws(patch, dollar_is_special=False)


@mutant("v3-topic-names-normalised", "text is brought into Unicode normal form C")
def topic_names_normalised(patch: Patch) -> None:
    replace_text_decoder(patch, lambda data, version: unicodedata.normalize("NFC", decode_string(data, version)))


@mutant("v3-byte-order-mark-stripped", "U+FEFF at the start of a text is stripped")
def byte_order_mark_stripped(patch: Patch) -> None:
    replace_text_decoder(patch, lambda data, version: decode_string(data, version).lstrip("\ufeff"))


@mutant("v3-astral-characters-refused", "characters beyond the basic plane are refused")
def astral_characters_refused(patch: Patch) -> None:
    def decode(data: bytes, version: int) -> str:
        text = decode_string(data, version)
        if any(ord(character) > 0xFFFF for character in text):
            raise malformed("too large a character", version, "MQTT-1.5.3-1", "MQTT-1.5.4-1")
        return text

    replace_text_decoder(patch, decode)


@mutant("v3-surrogates-accepted", "ill-formed UTF-8 is accepted and repaired")
def surrogates_accepted(patch: Patch) -> None:
    replace_text_decoder(patch, lambda data, _version: data.decode(errors="replace"))


@mutant("v3-null-characters-accepted", "U+0000 in a text is accepted")
def null_characters_accepted(patch: Patch) -> None:
    replace_text_decoder(patch, lambda data, version: decode_string(data.replace(b"\x00", b"0"), version))
