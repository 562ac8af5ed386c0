"""Broken sessions of MQTT 5.0: expiry, takeover, and what is sent again."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.batches.runs import AlikeRun, MixedRun
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Outgoing, Released, Session, SessionConnection
from assay.reference_broker.mqtt.wire.packets import Acknowledgement, Disconnect
from assay.reference_broker.queues import Delivery
from assay.reference_broker.routing.message import Message

Attach: TypeAlias = Callable[[MqttBroker, SessionConnection, ConnectRequest, float], tuple[Session, bool]]
Resume: TypeAlias = Callable[[Session, float], None]
_PUBREC_START = b"\x50\x02"


def _before_connect(patch: Patch, change: Callable[[MqttBroker, ConnectRequest, float], ConnectRequest]) -> None:
    """Do something, and perhaps change the request, before a connection is attached to its session."""

    def make(original: Attach) -> Attach:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            return original(self, connection, change(self, request, now), now)

        return connect

    patch.wrap(MqttBroker, "connect", make)


def _before_detach(patch: Patch, change: Callable[[MqttBroker, Session, float, bool], None]) -> None:
    """Do something to a session whose connection has ended."""
    original = MqttBroker.detach

    def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
        change(self, session, now, publish_will)
        original(self, session, now, publish_will=publish_will)

    patch.replace(MqttBroker, "detach", detach)


def _before_resume(patch: Patch, change: Callable[[Session, float], None]) -> None:
    """Do something to a session before what is open in it is sent again."""

    def make(original: Resume) -> Resume:
        def resume(self: Session, now: float) -> None:
            change(self, now)
            original(self, now)

        return resume

    patch.wrap(Session, "resume", make)


@mutant("v5-clean-start-ignored", "Clean Start 1 resumes the session")
def clean_start_ignored(patch: Patch) -> None:
    _before_connect(patch, lambda _broker, request, _now: msgspec.structs.replace(request, clean_start=False))


@mutant("v5-session-present-always-0", "Session Present is 0 although the session is resumed")
def session_present_0(patch: Patch) -> None:
    def make(original: Attach) -> Attach:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            return original(self, connection, request, now)[0], False

        return connect

    patch.wrap(MqttBroker, "connect", make)


@mutant("v5-offline-messages-dropped", "nothing is kept for a client that is away")
def offline_dropped(patch: Patch) -> None:
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
        if self.connection is not None:
            original(self, message, qos, retain, identifiers, delivery, share)

    patch.replace(Session, "deliver", deliver)


@mutant("v5-offline-messages-reversed", "what waited for a client is sent newest first")
def offline_reversed(patch: Patch) -> None:
    _before_resume(patch, lambda session, _now: session.queued.reverse())


@mutant("v5-subscriptions-lost-on-resume", "a resumed session has lost its subscriptions")
def subscriptions_lost(patch: Patch) -> None:
    def forget(broker: MqttBroker, request: ConnectRequest, _now: float) -> ConnectRequest:
        session = broker.sessions.get(request.client_id)
        if session is not None:
            for subscription in session.subscriptions.values():
                broker.tree.remove(session, subscription)
            session.subscriptions.clear()
        return request

    _before_connect(patch, forget)


@mutant("v5-expiry-0-session-kept", "a session without expiry outlives its connection by a minute")
def expiry_0_kept(patch: Patch) -> None:
    def keep(_broker: MqttBroker, session: Session, _now: float, _publish_will: bool) -> None:
        session.expiry_s = session.expiry_s or 60.0

    _before_detach(patch, keep)


@mutant("v5-session-never-expires", "a session with an expiry is kept for ever")
def never_expires(patch: Patch) -> None:
    def keep(_broker: MqttBroker, session: Session, _now: float, _publish_will: bool) -> None:
        session.expiry_s = inf if session.expiry_s else 0.0

    _before_detach(patch, keep)


@mutant("v5-session-expires-as-it-was-to-before", "that a client is back does not put off the end of its session")
def expires_as_before(patch: Patch) -> None:
    renewed = "if session.expiry_timer is not None:"
    patch.rewrite(MqttBroker, "connect", renewed, "if session.expiry_timer is not None and not present:")


@mutant("v5-one-more-is-sent-again-at-a-time", "of what is sent again one more is under way than the client takes")
def one_more_again(patch: Patch) -> None:
    def make(original: Callable[[Session, float], None]) -> Callable[[Session, float], None]:
        def send_queued(self: Session, now: float) -> None:
            is_waiting = bool(self.unsent)
            original(self, now)
            if is_waiting and self.unsent and self.connection is not None:
                self.resend(self.connection, *self.unsent.popitem(last=False))
                self.open_window()

        return send_queued

    patch.wrap(Session, "send_queued", make)


def _change_disconnect(patch: Patch, change: Callable[[MqttConnection, Disconnect], Disconnect]) -> None:
    original = handlers.on_disconnect

    def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
        original(connection, change(connection, packet), now)

    patch.replace(handlers, "on_disconnect", on_disconnect)


@mutant("v5-disconnect-expiry-ignored", "the Session Expiry Interval of DISCONNECT is ignored")
def disconnect_expiry(patch: Patch) -> None:
    _change_disconnect(
        patch,
        lambda _connection, packet: msgspec.structs.replace(
            packet, properties=msgspec.structs.replace(packet.properties, session_expiry_interval=None)
        ),
    )


@mutant("v5-disconnect-revives-session", "DISCONNECT may give an expiry to a session that had none")
def disconnect_revives(patch: Patch) -> None:
    def change(connection: MqttConnection, packet: Disconnect) -> Disconnect:
        connection.session_expiry_asked_s = 1
        return packet

    _change_disconnect(patch, change)


@mutant("v5-takeover-leaves-both", "both connections of a client identifier stay open")
def takeover_leaves_both(patch: Patch) -> None:
    patch.replace(MqttConnection, "close_for_takeover", lambda _self, _now: None)


@mutant("v5-takeover-starts-clean", "taking a session over throws it away")
def takeover_clean(patch: Patch) -> None:
    def change(broker: MqttBroker, request: ConnectRequest, _now: float) -> ConnectRequest:
        session = broker.sessions.get(request.client_id)
        taken_over = session is not None and session.connection is not None
        return msgspec.structs.replace(request, clean_start=request.clean_start or taken_over)

    _before_connect(patch, change)


@mutant("v5-takeover-drops-the-will", "the will of a connection that is taken over is dropped")
def takeover_drops_will(patch: Patch) -> None:
    def change(broker: MqttBroker, request: ConnectRequest, _now: float) -> ConnectRequest:
        session = broker.sessions.get(request.client_id)
        if session is not None and session.connection is not None:
            session.will = None
        return request

    _before_connect(patch, change)


@mutant("v5-unacknowledged-forgotten", "messages that were not acknowledged are not sent again")
def unacknowledged_forgotten(patch: Patch) -> None:
    def forget(session: Session, _now: float) -> None:
        session.in_flight = {key: value for key, value in session.in_flight.items() if isinstance(value, Released)}

    _before_resume(patch, forget)


@mutant("v5-owed-pubrel-forgotten", "PUBREL is not sent again")
def pubrel_forgotten(patch: Patch) -> None:
    def forget(session: Session, _now: float) -> None:
        session.in_flight = {key: value for key, value in session.in_flight.items() if not isinstance(value, Released)}

    _before_resume(patch, forget)


@mutant("v5-refusals-ignored", "PUBACK and PUBREC with a failure code are not taken for an acknowledgement")
def refusals_ignored(patch: Patch) -> None:
    original = Outbound.on_acknowledgement

    def on_acknowledgement(self: Outbound, packet: Acknowledgement, now: float) -> None:
        if packet.reason < 0x80:
            original(self, packet, now)

    patch.replace(Outbound, "on_acknowledgement", on_acknowledgement)


@mutant("v5-resends-while-connected", "an unacknowledged message is sent again after a second")
def resends(patch: Patch) -> None:
    original = Outbound.send_publish

    def send_publish(
        self: Outbound,
        packet_id: int,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
    ) -> bool:
        def again(_now: float) -> None:
            session = self._connection.session
            if session is not None and packet_id in session.in_flight:
                original(self, packet_id, message, qos, retain, True, identifiers)

        if qos and not dup:
            self._broker.timers.schedule(self._broker.now + 1.0, again)
        return original(self, packet_id, message, qos, retain, dup, identifiers)

    patch.replace(Outbound, "send_publish", send_publish)


@mutant("v5-received-qos2-forgotten", "which QoS 2 messages were received is forgotten with the connection")
def received_qos2_forgotten(patch: Patch) -> None:
    _before_detach(patch, lambda _broker, session, _now, _publish_will: session.inbound_qos2.clear())


@mutant("v5-received-qos2-message-lost", "a QoS 2 message is held until PUBREL, and lost with the connection")
def received_qos2_lost(patch: Patch) -> None:
    held: WeakKeyDictionary[Inbound, dict[int, Message]] = WeakKeyDictionary()
    publish = Inbound.publish_confirmed
    release = Inbound.on_pubrel

    def publish_confirmed(self: Inbound, message: Message, packet_id: int, now: float) -> None:
        if message.qos < 2:
            publish(self, message, packet_id, now)
            return
        held.setdefault(self, {})[packet_id] = message
        self._connection.active_session.inbound_qos2[packet_id] = True
        self.acknowledge(_PUBREC_START + packet_id.to_bytes(2, "big"))

    def on_pubrel(self: Inbound, packet_id: int) -> None:
        message = held.get(self, {}).pop(packet_id, None)
        if message is not None:
            self._broker.publish(message, self._connection.session, self._broker.now)
        release(self, packet_id)

    def on_pubrel_run(self: Inbound, ids: bytes) -> None:
        for high, low in zip(ids[0::2], ids[1::2], strict=True):
            on_pubrel(self, high << 8 | low)

    patch.replace(Inbound, "publish_confirmed", publish_confirmed)
    patch.replace(Inbound, "on_pubrel", on_pubrel)
    patch.replace(Inbound, "on_pubrel_run", on_pubrel_run)


@mutant("v5-identifiers-restart-on-resume", "packet identifiers begin at 1 again on resuming, in use or not")
def identifiers_restart(patch: Patch) -> None:
    def allocate(self: Session) -> int:
        packet_id = self._next_packet_id
        self._next_packet_id = packet_id % 65_535 + 1
        return packet_id

    def restart(session: Session, _now: float) -> None:
        session._next_packet_id = 1

    patch.replace(Session, "allocate_packet_id", allocate)
    _before_resume(patch, restart)


@mutant("v5-expiry-drops-begun-deliveries", "on resuming, deliveries whose message has expired are dropped")
def expiry_drops_begun(patch: Patch) -> None:
    expires_at: WeakKeyDictionary[Session, dict[int, float]] = WeakKeyDictionary()
    original = Session.send

    def send(self: Session, connection: SessionConnection, outgoing: Outgoing) -> None:
        original(self, connection, outgoing)
        expires_at.setdefault(self, {})[next(reversed(self.in_flight))] = outgoing.message.expires_at

    def drop(session: Session, now: float) -> None:
        for packet_id in list(session.in_flight):
            if 0 < expires_at.get(session, {}).get(packet_id, 0.0) <= now:
                del session.in_flight[packet_id]

    patch.replace(Session, "send", send)
    _before_resume(patch, drop)


@mutant("v5-resent-without-properties", "a message that is sent again has lost its properties")
def resent_without_properties(patch: Patch) -> None:
    def strip(session: Session, _now: float) -> None:
        for outgoing in session.in_flight.values():
            if isinstance(outgoing, Outgoing):
                old = outgoing.message
                outgoing.message = Message(topic=old.topic, payload=old.payload, qos=old.qos, publisher=old.publisher)

    _before_resume(patch, strip)


@mutant(
    "v5-a-burst-is-sent-again-as-its-first", "of messages that were forwarded together the first is sent again for each"
)
def burst_as_its_first(patch: Patch) -> None:
    def make(original: Callable[..., Message]) -> Callable[..., Message]:
        return lambda self, _index, qos, publisher: original(self, 0, qos, publisher)

    for kind in (AlikeRun, MixedRun):
        patch.wrap(kind, "message", make)
