"""Bugs of strictness: bytes count as packets, what is no filter is acknowledged, a limit becomes a violation."""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.connections import handlers, handshake, inbound
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import Disconnect
from assay.reference_broker.routing.topics import TooManyLevelsError

_Receive = Callable[[MqttConnection, bytes, float], None]


@mutant("keep-alive-fed-by-bytes", "any byte of a client counts as a packet for the keep alive")
def fed_by_bytes(patch: Patch) -> None:
    def make(original: _Receive) -> _Receive:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            original(self, data, now)
            self._last_received = now

        return receive

    patch.wrap(MqttConnection, "receive", make)


@mutant("v3-unsubscribe-filters-unchecked", "UNSUBSCRIBE of what is no filter is acknowledged")
def unsubscribe_unchecked(patch: Patch) -> None:
    patch.replace(handlers, "end_in_311", lambda _connection, _error: None)


@mutant("deep-filters-end-the-connection", "a filter of many levels is taken for a violation")
def deep_filters(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def validate_filter(topic_filter: str, *, max_levels: int) -> None:
            try:
                original(topic_filter, max_levels=max_levels)
            except TooManyLevelsError as error:
                raise ProtocolError(str(error), error.statement) from error

        return validate_filter

    patch.wrap(handlers, "validate_filter", make)


@mutant("v5-will-response-topic-unchecked", "the response topic of a will may hold wildcards")
def will_response_topic(patch: Patch) -> None:
    patch.replace(handshake, "check_response_topic", lambda _properties: None)


@mutant("v5-response-topic-unchecked", "a response topic may hold wildcards")
def response_topic(patch: Patch) -> None:
    patch.replace(inbound, "check_response_topic", lambda _properties: None)


@mutant("v5-disconnect-judged-by-the-grant", "DISCONNECT may give no expiry to a session that was granted none")
def judged_by_the_grant(patch: Patch) -> None:
    original = handlers.on_disconnect

    def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
        if not connection.active_session.expiry_s:
            connection.session_expiry_asked_s = 0
        original(connection, packet, now)

    patch.replace(handlers, "on_disconnect", on_disconnect)
