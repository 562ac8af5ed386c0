"""Wills that are published too early, too late or not as they should, at one particular end of a connection."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.connections import handlers, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection, Will
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import Disconnect, WillFields
from assay.reference_broker.routing.message import Message


def on_disconnect(patch: Patch, change: Callable[[Session, Disconnect], None]) -> None:
    """Do something to the session of a client that sends DISCONNECT, before the broker acts on it."""

    def make(
        original: Callable[[MqttConnection, Disconnect, float], None],
    ) -> Callable[[MqttConnection, Disconnect, float], None]:
        def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
            change(connection.active_session, packet)
            original(connection, packet, now)

        return on_disconnect

    patch.wrap(handlers, "on_disconnect", make)


def _on_connect(patch: Patch, change: Callable[[MqttBroker, Session, ConnectRequest, float], None]) -> None:
    """Do something to the session that a new connection finds, before the broker acts on it."""
    original = MqttBroker.connect

    def connect(
        self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
    ) -> tuple[Session, bool]:
        session = self.sessions.get(request.client_id)
        if session is not None:
            change(self, session, request, now)
        return original(self, connection, request, now)

    patch.replace(MqttBroker, "connect", connect)


def _without_delay(session: Session) -> None:
    if session.will is not None:
        session.will = msgspec.structs.replace(session.will, delay_s=0)


@mutant("v5-disconnect-with-will-ignores-delay", "DISCONNECT 0x04 publishes the will at once, whatever its delay")
def ignores_delay(patch: Patch) -> None:
    def change(session: Session, packet: Disconnect) -> None:
        if packet.reason == Reason.DISCONNECT_WITH_WILL:
            _without_delay(session)

    on_disconnect(patch, change)


@mutant(
    "v5-disconnect-expiry-0-leaves-the-will-waiting",
    "a will waits for its delay although DISCONNECT has set the session expiry to 0",
)
def leaves_waiting(patch: Patch) -> None:
    waiting: list[Will] = []

    def change(session: Session, packet: Disconnect) -> None:
        if packet.properties.session_expiry_interval == 0 and session.will is not None and session.will.delay_s:
            waiting.append(session.will)
            session.will = None

    on_disconnect(patch, change)


@mutant("v5-takeover-ignores-will-delay", "a takeover publishes the will at once, whatever its delay")
def takeover_ignores_delay(patch: Patch) -> None:
    def change(_broker: MqttBroker, session: Session, _request: ConnectRequest, _now: float) -> None:
        if session.connection is not None:
            _without_delay(session)

    _on_connect(patch, change)


@mutant("v5-coming-back-publishes-the-will", "a will that waits is published when its client comes back")
def coming_back_publishes(patch: Patch) -> None:
    def change(broker: MqttBroker, session: Session, _request: ConnectRequest, now: float) -> None:
        if session.will_timer is not None:
            session.will_timer.cancel()
            broker.send_will(session, now)

    _on_connect(patch, change)


@variation("v5-clean-start-cancels-the-will", "a client that is back in time has no will, with Clean Start 1 either")
def clean_start_cancels(patch: Patch) -> None:
    def change(_broker: MqttBroker, session: Session, _request: ConnectRequest, _now: float) -> None:
        if session.will_timer is not None:
            session.will_timer.cancel()
            session.will = session.will_timer = None

    _on_connect(patch, change)


def _change_message(patch: Patch, change: Callable[[MqttConnection, Message], Message]) -> None:
    """Change the message of every will on its way from CONNECT to the session."""
    original = handshake.will_of

    def will(connection: MqttConnection, fields: WillFields | None, client_id: str) -> Will | None:
        found = original(connection, fields, client_id)
        return None if found is None else msgspec.structs.replace(found, message=change(connection, found.message))

    patch.replace(handshake, "will_of", will)


@mutant("empty-retained-will-deletes-nothing", "an empty retained will leaves the retained message")
def deletes_nothing(patch: Patch) -> None:
    empty_wills: set[str] = set()
    original = RetainedStore.store

    def note(_connection: MqttConnection, message: Message) -> Message:
        if message.retain and not message.payload:
            empty_wills.add(message.topic)
        return message

    def store(self: RetainedStore, message: Message) -> bool:
        return (message.topic in empty_wills and not message.payload) or original(self, message)

    _change_message(patch, note)
    patch.replace(RetainedStore, "store", store)


@mutant("v5-will-expiry-counts-from-connect", "the message expiry of a will begins when it is deposited")
def expiry_from_connect(patch: Patch) -> None:
    deposited_at: dict[str, float] = {}
    original = MqttBroker.send_will

    def note(connection: MqttConnection, message: Message) -> Message:
        deposited_at[message.topic] = connection.broker.now
        return message

    def send_will(self: MqttBroker, session: Session, now: float) -> None:
        will = session.will
        if will is not None and will.message.expires_at:
            waited_s = now - deposited_at[will.message.topic]
            message = msgspec.structs.replace(will.message, expires_at=will.message.expires_at - waited_s)
            session.will = msgspec.structs.replace(will, message=message)
        original(self, session, now)

    _change_message(patch, note)
    patch.replace(MqttBroker, "send_will", send_will)


@mutant("v5-retained-will-never-expires", "a retained will is kept without its message expiry")
def retained_never_expires(patch: Patch) -> None:
    def change(_connection: MqttConnection, message: Message) -> Message:
        return msgspec.structs.replace(message, expires_at=0.0) if message.retain else message

    _change_message(patch, change)
