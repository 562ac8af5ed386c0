"""Brokers that lose, or keep too much of, the state of a QoS exchange at one particular end of a connection."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import inf
from typing import TypeAlias
from weakref import WeakKeyDictionary

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import InFlight, Outgoing, Released, Session, SessionConnection
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import Disconnect, PacketType, Publish
from assay.reference_broker.server.tcp import SocketProtocol

Connect: TypeAlias = Callable[[MqttBroker, SessionConnection, ConnectRequest, float], tuple[Session, bool]]
OnRun: TypeAlias = Callable[[Outbound, PacketType, bytes, float], None]


def _around_connect(patch: Patch, make: Callable[[Connect], Connect]) -> None:
    patch.wrap(MqttBroker, "connect", make)


def _at_the_end(patch: Patch, change: Callable[[Session, bool], None]) -> None:
    """Do something to a session whose connection ends; the flag tells whether its client sent DISCONNECT 0x00."""
    original = MqttBroker.detach

    def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
        change(session, not publish_will)
        original(self, session, now, publish_will=publish_will)

    patch.replace(MqttBroker, "detach", detach)


@mutant("takeover-forgets-open-deliveries", "whoever takes a session over gets none of its unacknowledged messages")
def takeover_forgets(patch: Patch) -> None:
    def make(original: Connect) -> Connect:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            session = self.sessions.get(request.client_id)
            if session is not None and session.connection is not None:
                session.in_flight.clear()
            return original(self, connection, request, now)

        return connect

    _around_connect(patch, make)


def _restore_at_disconnect(patch: Patch, restored: PacketType) -> None:
    """What was finished by ``restored`` packets is in flight again after DISCONNECT."""
    finished: WeakKeyDictionary[Session, dict[int, InFlight]] = WeakKeyDictionary()

    def make(original: OnRun) -> OnRun:
        def on_run(self: Outbound, kind: PacketType, ids: bytes, now: float) -> None:
            session = self._connection.active_session
            if kind is restored:
                for packet_id in runs.numbers(ids):
                    if packet_id in session.in_flight:
                        finished.setdefault(session, {})[packet_id] = session.in_flight[packet_id]
            original(self, kind, ids, now)

        return on_run

    def restore(session: Session, disconnected: bool) -> None:
        if disconnected:
            for packet_id, entry in finished.get(session, {}).items():
                session.in_flight[packet_id] = entry

    patch.wrap(Outbound, "on_run", make)
    _at_the_end(patch, restore)


@mutant("acknowledged-before-disconnect-comes-again", "after DISCONNECT, PUBACKs of the connection are forgotten")
def acknowledged_again(patch: Patch) -> None:
    _restore_at_disconnect(patch, PacketType.PUBACK)


@mutant("completed-before-disconnect-is-owed-again", "after DISCONNECT, PUBCOMPs of the connection are forgotten")
def completed_again(patch: Patch) -> None:
    _restore_at_disconnect(patch, PacketType.PUBCOMP)


@mutant("disconnect-forgets-unanswered-qos2", "DISCONNECT drops QoS 2 messages without PUBREC")
def disconnect_forgets(patch: Patch) -> None:
    def forget(session: Session, disconnected: bool) -> None:
        for packet_id, entry in list(session.in_flight.items()):
            if disconnected and not isinstance(entry, Released) and entry.qos == 2:
                del session.in_flight[packet_id]

    _at_the_end(patch, forget)


@mutant("publish-again-after-pubrec", "on resuming, PUBLISH is sent again although PUBREC has come")
def publish_after_pubrec(patch: Patch) -> None:
    answered: WeakKeyDictionary[Session, dict[int, Outgoing]] = WeakKeyDictionary()

    def make_on_pubrec(original: Callable[[Outbound, int], None]) -> Callable[[Outbound, int], None]:
        def on_pubrec(self: Outbound, packet_id: int) -> None:
            session = self._connection.active_session
            entry = session.in_flight.get(packet_id)
            if isinstance(entry, Outgoing):
                answered.setdefault(session, {})[packet_id] = entry
            original(self, packet_id)

        return on_pubrec

    def make_resume(original: Callable[[Session, float], None]) -> Callable[[Session, float], None]:
        def resume(self: Session, now: float) -> None:
            for packet_id, entry in answered.get(self, {}).items():
                if packet_id in self.in_flight:
                    self.in_flight[packet_id] = entry
            original(self, now)

        return resume

    patch.wrap(Outbound, "on_pubrec", make_on_pubrec)
    patch.wrap(Session, "resume", make_resume)


def _as_it_is(session: Session) -> Session:
    """A picture of a session, since one that ends is emptied."""
    picture = copy.copy(session)
    picture.in_flight, picture.inbound_qos2 = dict(session.in_flight), dict(session.inbound_qos2)
    return picture


def _after_clean_start(patch: Patch, take_over: Callable[[Session, Session], None]) -> None:
    """Carry something from a session that Clean Start 1 (or Clean Session 1) ends to the one that follows."""

    def make(original: Connect) -> Connect:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            ending = self.sessions.get(request.client_id) if request.clean_start else None
            old = _as_it_is(ending) if ending is not None else None
            session, present = original(self, connection, request, now)
            if old is not None:
                take_over(old, session)
            return session, present

        return connect

    _around_connect(patch, make)


@mutant("owed-pubrel-survives-clean-start", "PUBRELs that an old session owed are sent in a clean one")
def pubrel_survives(patch: Patch) -> None:
    def take_over(old: Session, new: Session) -> None:
        new.in_flight.update({key: entry for key, entry in old.in_flight.items() if isinstance(entry, Released)})

    _after_clean_start(patch, take_over)


@mutant("received-qos2-survives-clean-start", "a clean session still knows the QoS 2 identifiers of the one before")
def received_survives(patch: Patch) -> None:
    _after_clean_start(patch, lambda old, new: new.inbound_qos2.update(old.inbound_qos2))


def _after_expiry(patch: Patch, take_over: Callable[[Session, Session], None]) -> None:
    """Carry something from a session that has ended to one of the same client that Clean Start 0 finds missing."""
    ended: dict[str, Session] = {}

    def make_end(
        original: Callable[[MqttBroker, Session, float], None],
    ) -> Callable[[MqttBroker, Session, float], None]:
        def end_session(self: MqttBroker, session: Session, now: float) -> None:
            ended[session.client_id] = _as_it_is(session)
            original(self, session, now)

        return end_session

    def make_connect(original: Connect) -> Connect:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            session, present = original(self, connection, request, now)
            old = ended.get(request.client_id)
            if old is not None and not present and not request.clean_start:
                take_over(old, session)
            return session, present

        return connect

    patch.wrap(MqttBroker, "end_session", make_end)
    _around_connect(patch, make_connect)


@mutant("received-qos2-survives-expiry", "the QoS 2 identifiers of a session that expired are known to its successor")
def received_survives_expiry(patch: Patch) -> None:
    _after_expiry(patch, lambda old, new: new.inbound_qos2.update(old.inbound_qos2))


@mutant("open-deliveries-survive-expiry", "what a session that expired had in flight is sent again in its successor")
def deliveries_survive_expiry(patch: Patch) -> None:
    _after_expiry(patch, lambda old, new: new.in_flight.update(old.in_flight))


@mutant("received-qos2-kept-only-by-disconnect", "received QoS 2 identifiers are forgotten when a connection breaks")
def received_kept_by_disconnect(patch: Patch) -> None:
    def forget(session: Session, disconnected: bool) -> None:
        if not disconnected:
            session.inbound_qos2.clear()

    _at_the_end(patch, forget)


@mutant("repeated-qos1-publish-unanswered", "a QoS 1 PUBLISH with DUP 1 is taken for known and not answered")
def repeated_unanswered(patch: Patch) -> None:
    def make(original: Callable[[Inbound, Publish, float], None]) -> Callable[[Inbound, Publish, float], None]:
        def on_publish(self: Inbound, packet: Publish, now: float) -> None:
            if not (packet.dup and packet.qos == 1):
                original(self, packet, now)

        return on_publish

    patch.wrap(Inbound, "on_publish", make)


@mutant("unknown-pubrel-ends-the-connection", "a PUBREL for an unknown identifier is taken for a protocol error")
def unknown_pubrel_ends(patch: Patch) -> None:
    def make(original: Callable[[Inbound, bytes], None]) -> Callable[[Inbound, bytes], None]:
        def on_pubrel_run(self: Inbound, ids: bytes) -> None:
            for packet_id in runs.numbers(ids):
                if packet_id not in self._connection.active_session.inbound_qos2:
                    message = "PUBREL for an unknown packet identifier"
                    raise ProtocolError(message, "MQTT-4.13.1-1")
            original(self, ids)

        return on_pubrel_run

    patch.wrap(Inbound, "on_pubrel_run", make)


@variation("takeover-goes-on-without-expiry", "taking over with Clean Start 0 goes on with a session without expiry")
def takeover_goes_on(patch: Patch) -> None:
    def make(original: Connect) -> Connect:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            session = self.sessions.get(request.client_id)
            if session is not None and session.connection is not None and not request.clean_start:
                session.expiry_s = session.expiry_s or inf
            return original(self, connection, request, now)

        return connect

    _around_connect(patch, make)


@variation(
    "last-acknowledgements-lost-with-the-connection",
    "acknowledgements in the last segment before a connection breaks count as not received",
)
def last_acknowledgements_lost(patch: Patch) -> None:
    before: WeakKeyDictionary[Session, dict[int, InFlight]] = WeakKeyDictionary()

    def make_receive(
        original: Callable[[MqttConnection, bytes, float], None],
    ) -> Callable[[MqttConnection, bytes, float], None]:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            if self.session is not None:
                before[self.session] = dict(self.session.in_flight)
            original(self, data, now)

        return receive

    def make_disconnect(
        original: Callable[[MqttConnection, Disconnect, float], None],
    ) -> Callable[[MqttConnection, Disconnect, float], None]:
        def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
            before.pop(connection.active_session, None)
            original(connection, packet, now)

        return on_disconnect

    patch.wrap(MqttConnection, "receive", make_receive)
    patch.wrap(handlers, "on_disconnect", make_disconnect)
    _at_the_end(patch, lambda session, _disconnected: session.in_flight.update(before.pop(session, {})))


@variation(
    "half-closed-connections-go-on",
    "a client that has ended its half of a connection is served on, until it comes back",
)
def half_closed_go_on(patch: Patch) -> None:
    patch.replace(SocketProtocol, "eof_received", lambda _protocol: True)
