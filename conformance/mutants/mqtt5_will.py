"""Broken wills of MQTT 5.0."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.connections import handlers, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection, Will
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import Disconnect, WillFields
from assay.reference_broker.routing.message import Message


def _change_will(patch: Patch, change: Callable[[Will], Will]) -> None:
    """Change every will on its way from CONNECT to the session."""
    original = handshake.will_of

    def will(connection: MqttConnection, fields: WillFields | None, client_id: str) -> Will | None:
        found = original(connection, fields, client_id)
        return None if found is None else change(found)

    patch.replace(handshake, "will_of", will)


def _change_message(patch: Patch, change: Callable[[Message], Message]) -> None:
    _change_will(patch, lambda will: msgspec.structs.replace(will, message=change(will.message)))


@mutant("v5-will-not-published", "a will is never published")
def not_published(patch: Patch) -> None:
    def send_will(_self: MqttBroker, session: Session, _now: float) -> None:
        session.will = None

    patch.replace(MqttBroker, "send_will", send_will)


@mutant("v5-will-published-after-disconnect", "DISCONNECT does not delete the will")
def after_disconnect(patch: Patch) -> None:
    original = MqttConnection.close_now
    patch.replace(MqttConnection, "close_now", lambda self, now, *, publish_will=True: original(self, now))


def _change_reason(patch: Patch, change: Callable[[int], int]) -> None:
    original = handlers.on_disconnect

    def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
        original(connection, msgspec.structs.replace(packet, reason=change(packet.reason)), now)

    patch.replace(handlers, "on_disconnect", on_disconnect)


@mutant("v5-disconnect-with-will-drops-it", "DISCONNECT 0x04 is taken for a normal disconnection")
def with_will_drops(patch: Patch) -> None:
    _change_reason(patch, lambda reason: Reason.SUCCESS if reason == Reason.DISCONNECT_WITH_WILL else reason)


@mutant("v5-any-disconnect-drops-the-will", "every DISCONNECT but 0x04 deletes the will")
def any_disconnect_drops(patch: Patch) -> None:
    patch.replace(codec, "check_reason", lambda _kind, _reason: None)
    _change_reason(patch, lambda reason: reason if reason == Reason.DISCONNECT_WITH_WILL else Reason.SUCCESS)


@mutant("v5-will-qos-lost", "wills are published at QoS 0")
def qos_lost(patch: Patch) -> None:
    _change_message(patch, lambda message: msgspec.structs.replace(message, qos=0))


@mutant("v5-will-retain-lost", "wills are never retained")
def retain_lost(patch: Patch) -> None:
    _change_message(patch, lambda message: msgspec.structs.replace(message, retain=False))


@mutant("v5-will-properties-dropped", "wills are published without their user properties")
def properties_dropped(patch: Patch) -> None:
    _change_message(patch, lambda message: msgspec.structs.replace(message, user_properties=()))


@mutant("v5-will-delay-ignored", "wills are published at once")
def delay_ignored(patch: Patch) -> None:
    _change_will(patch, lambda will: msgspec.structs.replace(will, delay_s=0))


@mutant("v5-will-delay-of-one-second-ignored", "a will whose delay is one second is published at once")
def delay_of_one_ignored(patch: Patch) -> None:
    def change(will: Will) -> Will:
        return msgspec.structs.replace(will, delay_s=0) if will.delay_s == 1 else will

    _change_will(patch, change)


@variation("v5-wills-by-the-clock", "delays of wills end as the clock's seconds change, up to a second early")
def by_the_clock(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
            if session.will is not None and session.will.delay_s:
                early_s = min(session.will.delay_s, now % 1.0)
                session.will = msgspec.structs.replace(session.will, delay_s=session.will.delay_s - early_s)
            original(self, session, now, publish_will=publish_will)

        return detach

    patch.wrap(MqttBroker, "detach", make)


@mutant("v5-will-delay-outlasts-session", "a will waits for its delay although its session has ended")
def delay_outlasts(patch: Patch) -> None:
    original = MqttBroker.detach

    def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
        will = session.will
        if publish_will and will is not None and will.delay_s >= session.expiry_s > -1 and will.delay_s:
            message = will.message
            session.will = None
            self.timers.schedule(now + will.delay_s, lambda later: _publish(self, message, later))
        original(self, session, now, publish_will=publish_will)

    patch.replace(MqttBroker, "detach", detach)


def _publish(broker: MqttBroker, message: Message, now: float) -> None:
    broker.publish(message, None, now)


@mutant("v5-reconnect-keeps-the-will", "a delayed will is published although its client came back in time")
def reconnect_keeps(patch: Patch) -> None:
    original = MqttBroker.connect

    def connect(
        self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
    ) -> tuple[Session, bool]:
        session = self.sessions.get(request.client_id)
        if session is not None and session.will_timer is not None and session.will is not None:
            message = session.will.message
            self.timers.schedule(session.will_timer.deadline, lambda later: _publish(self, message, later))
        return original(self, connection, request, now)

    patch.replace(MqttBroker, "connect", connect)


@mutant("v5-will-dropped-on-protocol-error", "a client that breaks a rule loses its will")
def dropped_on_error(patch: Patch) -> None:
    original = MqttConnection.fail

    def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
        if self.session is not None:
            self.session.will = None
        original(self, error, now)

    patch.replace(MqttConnection, "fail", fail)
