"""Bugs in sessions and wills (MQTT 3.1.1)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt311_connect import with_request
from assay.reference_broker.mqtt.connections import handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Released, Session, SessionConnection, Will
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import WillFields
from assay.reference_broker.routing.message import Message

_Resume = Callable[[Session, float], None]
_MakeWill = Callable[[MqttConnection, WillFields | None, str], Will | None]


@mutant("v3-offline-messages-dropped", "messages for a client that is away are dropped")
def offline_messages_dropped(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def deliver(self: Session, *arguments: object, **named: object) -> None:
            if self.connection is not None:
                original(self, *arguments, **named)

        return deliver

    patch.wrap(Session, "deliver", make)


@mutant("v3-takeover-starts-afresh", "taking over a connection starts a new session")
def takeover_starts_afresh(patch: Patch) -> None:
    def make(
        original: Callable[[MqttBroker, SessionConnection, ConnectRequest, float], tuple[Session, bool]],
    ) -> Callable[[MqttBroker, SessionConnection, ConnectRequest, float], tuple[Session, bool]]:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            old = self.sessions.get(request.client_id)
            if old is not None and old.connection is not None:
                old.connection.close_for_takeover(now)
                old.connection = None
                self.end_session(old, now)
            return original(self, connection, request, now)

        return connect

    patch.wrap(MqttBroker, "connect", make)


def _before_resume(patch: Patch, change: Callable[[Session], None]) -> None:
    def make(original: _Resume) -> _Resume:
        def resume(self: Session, now: float) -> None:
            change(self)
            original(self, now)

        return resume

    patch.wrap(Session, "resume", make)


@mutant("v3-unacknowledged-not-resent", "unacknowledged deliveries are forgotten with the connection")
def unacknowledged_not_resent(patch: Patch) -> None:
    def change(session: Session) -> None:
        session.in_flight = {key: value for key, value in session.in_flight.items() if isinstance(value, Released)}

    _before_resume(patch, change)


@mutant("v3-owed-pubrel-not-resent", "PUBRELs without PUBCOMP are forgotten with the connection")
def owed_pubrel_not_resent(patch: Patch) -> None:
    def change(session: Session) -> None:
        session.in_flight = {key: value for key, value in session.in_flight.items() if not isinstance(value, Released)}

    _before_resume(patch, change)


@mutant("v3-resent-in-reverse", "unacknowledged deliveries are sent again in reverse order")
def resent_in_reverse(patch: Patch) -> None:
    def change(session: Session) -> None:
        session.in_flight = dict(reversed(session.in_flight.items()))

    _before_resume(patch, change)


@mutant("v3-received-qos-2-forgotten", "packet identifiers of received QoS 2 messages are forgotten on reconnect")
def received_qos_2_forgotten(patch: Patch) -> None:
    _before_resume(patch, lambda session: session.inbound_qos2.clear())


# Wills.


@mutant("v3-will-not-published", "wills are never published")
def will_not_published(patch: Patch) -> None:
    def send_will(self: MqttBroker, session: Session, now: float) -> None:
        session.will = session.will_timer = None

    patch.replace(MqttBroker, "send_will", send_will)


@mutant("v3-will-published-after-disconnect", "the will is published although the client sent DISCONNECT")
def will_published_after_disconnect(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def close_now(self: MqttConnection, now: float, *, publish_will: bool = True) -> None:
            original(self, now, publish_will=True)

        return close_now

    patch.wrap(MqttConnection, "close_now", make)


@mutant("v3-no-will-after-violation", "the will is discarded when the client breaks the protocol")
def no_will_after_violation(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
            if self.session is not None:
                self.session.will = None
            original(self, error, now)

        return fail

    patch.wrap(MqttConnection, "fail", make)


@mutant("v3-no-will-on-keep-alive", "the will is discarded when the keep alive passes")
def no_will_on_keep_alive(patch: Patch) -> None:
    def make(original: Callable[[MqttConnection, float], None]) -> Callable[[MqttConnection, float], None]:
        def check(self: MqttConnection, now: float) -> None:
            if self.session is not None and now >= self._last_received + 1.5 * self.keep_alive_s:
                self.session.will = None
            original(self, now)

        return check

    patch.wrap(MqttConnection, "check_keep_alive", make)


def _change_will(patch: Patch, change: Callable[[Message], Message]) -> None:
    def make(original: _MakeWill) -> _MakeWill:
        def make_will(connection: MqttConnection, fields: WillFields | None, client_id: str) -> Will | None:
            will = original(connection, fields, client_id)
            return None if will is None else msgspec.structs.replace(will, message=change(will.message))

        return make_will

    patch.wrap(handshake, "will_of", make)


@mutant("v3-will-qos-lost", "wills are published at QoS 0")
def will_qos_lost(patch: Patch) -> None:
    _change_will(patch, lambda message: msgspec.structs.replace(message, qos=0))


@mutant("v3-will-retain-lost", "Will Retain is ignored")
def will_retain_lost(patch: Patch) -> None:
    _change_will(patch, lambda message: msgspec.structs.replace(message, retain=False))


@mutant("v3-will-outlives-its-connection", "a client that connects without a will gets its former one")
def will_outlives_its_connection(patch: Patch) -> None:
    wills: dict[str, Will] = {}

    def change(_broker: MqttBroker, request: ConnectRequest) -> ConnectRequest:
        if request.will is not None:
            wills[request.client_id] = request.will
        return msgspec.structs.replace(request, will=request.will or wills.get(request.client_id))

    with_request(patch, change)
