"""Broken QoS exchanges, quotas and packet sizes of MQTT 5.0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt5_support import change_connect, change_sent
from assay.conformance.mutants.mqtt311_publish import always_identifier_one
from assay.reference_broker.core.clients import Client
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.connections.throttle import Throttle
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Outgoing, Session, SessionConnection
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import Connect, Properties, Publish, Suback, Unsuback
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.engine import Asked
from assay.reference_broker.routing.message import Message

_PUBACK_START = b"\x40\x02"
_PUBCOMP_START = b"\x70\x02"
_UNLIMITED_BYTES = 0xFFFFFFFF
_LONG_TEXT = "a reason that takes more room than a small client has to offer for a whole packet"


def _change_acknowledgement(patch: Patch, change: Callable[[int, int], tuple[int, int]]) -> None:
    """``change(qos, packet_id)`` decides what a PUBLISH is acknowledged as."""
    original = handlers.acknowledgement

    def acknowledgement(
        connection: MqttConnection, qos: int, packet_id: int, error: QueueError | None, *, matched: bool
    ) -> bytes | None:
        qos, packet_id = change(qos, packet_id)
        return original(connection, qos, packet_id, error, matched=matched)

    patch.replace(handlers, "acknowledgement", acknowledgement)


@mutant("v5-puback-identifier-wrong", "the packet identifier of PUBACK has its bytes swapped")
def puback_identifier(patch: Patch) -> None:
    _change_acknowledgement(patch, lambda qos, packet_id: (qos, (packet_id & 0xFF) << 8 | packet_id >> 8))


@mutant("v5-qos2-acknowledged-as-qos1", "a QoS 2 PUBLISH is answered by PUBACK")
def qos2_as_qos1(patch: Patch) -> None:
    _change_acknowledgement(patch, lambda _qos, packet_id: (1, packet_id))


@mutant("v5-qos2-repeat-delivered", "a repeated QoS 2 PUBLISH is delivered again")
def repeat_delivered(patch: Patch) -> None:
    patch.replace(Inbound, "is_repeated", lambda _self, _packet_id: False)


@mutant("v5-qos2-third-repeat-refused", "the second repetition of a QoS 2 PUBLISH is a protocol error")
def third_repeat_refused(patch: Patch) -> None:
    repeats: WeakKeyDictionary[Inbound, Counter[int]] = WeakKeyDictionary()
    original = Inbound.is_repeated

    def is_repeated(self: Inbound, packet_id: int) -> bool:
        asked = repeats.setdefault(self, Counter())
        asked[packet_id] += 1
        if asked[packet_id] == 3:
            raise ProtocolError("repeated too often", "MQTT-4.3.3-10")
        return original(self, packet_id)

    patch.replace(Inbound, "is_repeated", is_repeated)


@mutant("v5-qos2-identifier-never-freed", "PUBREL does not give a received packet identifier back")
def never_freed(patch: Patch) -> None:
    def on_pubrel(self: Inbound, packet_id: int) -> None:
        self.acknowledge(_PUBCOMP_START + packet_id.to_bytes(2, "big"))

    _one_pubrel_at_a_time(patch, on_pubrel)


def _one_pubrel_at_a_time(patch: Patch, on_pubrel: Callable[[Inbound, int], None]) -> None:
    def on_pubrel_run(self: Inbound, ids: bytes) -> None:
        for high, low in zip(ids[0::2], ids[1::2], strict=True):
            on_pubrel(self, high << 8 | low)

    patch.replace(Inbound, "on_pubrel", on_pubrel)
    patch.replace(Inbound, "on_pubrel_run", on_pubrel_run)


@mutant("v5-unknown-pubrel-ignored", "a PUBREL for an unknown packet identifier is not answered")
def unknown_pubrel(patch: Patch) -> None:
    original = Inbound.on_pubrel

    def on_pubrel(self: Inbound, packet_id: int) -> None:
        if packet_id in self._connection.active_session.inbound_qos2:
            original(self, packet_id)

    _one_pubrel_at_a_time(patch, on_pubrel)


@mutant("v5-expiry-breaks-received-qos2", "a received QoS 2 message that expires is forgotten before its PUBREL")
def expiry_breaks_received(patch: Patch) -> None:
    expires_at: WeakKeyDictionary[Inbound, dict[int, float]] = WeakKeyDictionary()
    publish, release = Inbound.publish_confirmed, Inbound.on_pubrel

    def publish_confirmed(self: Inbound, message: Message, packet_id: int, now: float) -> None:
        expires_at.setdefault(self, {})[packet_id] = message.expires_at
        publish(self, message, packet_id, now)

    def on_pubrel(self: Inbound, packet_id: int) -> None:
        if 0 < expires_at.get(self, {}).get(packet_id, 0.0) <= self._broker.now:
            self._connection.active_session.inbound_qos2.pop(packet_id, None)
        release(self, packet_id)

    patch.replace(Inbound, "publish_confirmed", publish_confirmed)
    _one_pubrel_at_a_time(patch, on_pubrel)


@mutant("v5-qos1-repeat-swallowed", "a QoS 1 PUBLISH with DUP is acknowledged and dropped")
def repeat_swallowed(patch: Patch) -> None:
    original = Inbound.on_publish

    def on_publish(self: Inbound, packet: Publish, now: float) -> None:
        if packet.dup and packet.qos == 1:
            self.acknowledge(_PUBACK_START + packet.packet_id.to_bytes(2, "big"))
        else:
            original(self, packet, now)

    patch.replace(Inbound, "on_publish", on_publish)


@mutant("v5-delivery-identifiers-collide", "every delivery has packet identifier 1")
def identifiers_collide(patch: Patch) -> None:
    always_identifier_one(patch)


@mutant("v5-pubrel-identifier-wrong", "PUBREL has the packet identifier of the oldest open delivery")
def pubrel_identifier(patch: Patch) -> None:
    original = Outbound.send_pubrel

    def send_pubrel(self: Outbound, packet_id: int) -> None:
        original(self, next(iter(self._connection.active_session.in_flight), packet_id))

    patch.replace(Outbound, "send_pubrel", send_pubrel)


def _close_everybody(broker: MqttBroker, now: float) -> None:
    for session in list(broker.sessions.values()):
        if isinstance(session.connection, MqttConnection):
            session.connection.close_now(now)


@mutant("v5-stray-acknowledgement-closes-everybody", "an unexpected acknowledgement ends all connections")
def stray_closes_everybody(patch: Patch) -> None:
    original = Outbound.check_packet_id

    def check(self: Outbound, packet_id: int) -> None:
        original(self, packet_id)
        _close_everybody(self._broker, self._broker.now)

    patch.replace(Outbound, "check_packet_id", check)


@mutant("v5-error-closes-everybody", "a protocol error ends all connections")
def error_closes_everybody(patch: Patch) -> None:
    original = MqttConnection.fail

    def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
        original(self, error, now)
        _close_everybody(self.broker, now)

    patch.replace(MqttConnection, "fail", fail)


def _change_window(patch: Patch, change: Callable[[MqttBroker, ConnectRequest], int]) -> None:
    original = MqttBroker.connect

    def connect(
        self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
    ) -> tuple[Session, bool]:
        request = msgspec.structs.replace(request, window=change(self, request))
        return original(self, connection, request, now)

    patch.replace(MqttBroker, "connect", connect)


@mutant("v5-client-receive-maximum-ignored", "the client's Receive Maximum is ignored")
def receive_maximum_ignored(patch: Patch) -> None:
    _change_window(patch, lambda _broker, _request: 65_535)


@mutant("v5-receive-maximum-kept-from-first-connect", "a session keeps the Receive Maximum of its first connection")
def receive_maximum_kept(patch: Patch) -> None:
    def change(broker: MqttBroker, request: ConnectRequest) -> int:
        session = broker.sessions.get(request.client_id)
        return request.window if session is None else session.receive_maximum

    _change_window(patch, change)


@mutant("v5-quota-freed-by-pubrec", "PUBREC gives the client's quota back, not PUBCOMP")
def freed_by_pubrec(patch: Patch) -> None:
    original = Outbound.on_pubrec

    def on_pubrec(self: Outbound, packet_id: int) -> None:
        original(self, packet_id)
        self._connection.active_session.in_flight.pop(packet_id, None)

    patch.replace(Outbound, "on_pubrec", on_pubrec)


@mutant("v5-exhausted-quota-delays-acks", "while the client's quota is used up, its publishes are not acknowledged")
def delays_acks(patch: Patch) -> None:
    held: WeakKeyDictionary[MqttConnection, list[bytes]] = WeakKeyDictionary()
    acknowledge, go_on = Inbound.acknowledge, Outbound.go_on

    def hold(self: Inbound, data: bytes, qos1: int = 0) -> None:
        if self._connection.active_session.has_room:
            acknowledge(self, data, qos1)
        else:
            held.setdefault(self._connection, []).append(data)

    def release(self: Outbound, now: float) -> None:
        for data in held.pop(self._connection, []):
            self._connection.send(data)
        go_on(self, now)

    patch.replace(Inbound, "acknowledge", hold)
    patch.replace(Outbound, "go_on", release)


@mutant("v5-overrun-tolerated", "nobody counts what a client leaves unfinished")
def overrun_tolerated(patch: Patch) -> None:
    patch.replace(Inbound, "check_receive_maximum", lambda _self, _session: None)


@mutant("v5-resent-messages-do-not-count", "what is sent again on resuming takes nothing of the client's quota")
def resent_do_not_count(patch: Patch) -> None:
    original = Session.resume

    def resume(self: Session, now: float) -> None:
        self.receive_maximum += len(self.in_flight)
        original(self, now)

    patch.replace(Session, "resume", resume)


def _change_packet_limit(patch: Patch, change: Callable[[int], int]) -> None:
    def limit(connection: MqttConnection, packet: Connect) -> Connect:
        connection.max_packet_out = change(connection.max_packet_out)
        return packet

    change_connect(patch, limit)


@mutant("v5-client-packet-size-ignored", "the client's Maximum Packet Size is ignored")
def packet_size_ignored(patch: Patch) -> None:
    _change_packet_limit(patch, lambda _limit: _UNLIMITED_BYTES)


@mutant("v5-client-packet-size-off-by-one", "packets may be one byte larger than the client's Maximum Packet Size")
def packet_size_off_by_one(patch: Patch) -> None:
    _change_packet_limit(patch, lambda limit: limit + 1)


@mutant("v5-too-large-message-holds-quota", "a message that was too large for the client stays in its quota")
def too_large_holds_quota(patch: Patch) -> None:
    def send(self: Session, connection: SessionConnection, outgoing: Outgoing) -> None:
        packet_id = self.allocate_packet_id()
        self.in_flight[packet_id] = outgoing
        connection.send_publish(packet_id, outgoing.message, outgoing.qos, outgoing.retain, False, outgoing.identifiers)

    patch.replace(Session, "send", send)


@mutant("v5-too-large-for-one-drops-for-all", "a message that is too large for one subscriber reaches none")
def too_large_for_all(patch: Patch) -> None:
    original = MqttBroker.fan_out

    def fan_out(self: MqttBroker, message: Message, publisher: Client | None, asked: Asked = None) -> bool:
        for entry in self.tree.route(message.topic).entries:
            connection = entry.subscriber.connection
            if isinstance(connection, MqttConnection) and connection.max_packet_out < len(message.payload):
                return False
        return original(self, message, publisher, asked)

    patch.replace(MqttBroker, "fan_out", fan_out)


@mutant("v5-server-packet-size-not-enforced", "the broker takes packets above the maximum that it announces")
def server_packet_size(patch: Patch) -> None:
    original = MqttConnection.start_keep_alive

    def start_keep_alive(self: MqttConnection, now: float) -> None:
        self._limit = _UNLIMITED_BYTES
        original(self, now)

    patch.replace(MqttConnection, "start_keep_alive", start_keep_alive)


def _with_text(properties: Properties) -> Properties:
    return msgspec.structs.replace(properties, reason_string=_LONG_TEXT)


def _explain(patch: Patch, wanted: Callable[[MqttConnection], bool]) -> None:
    """SUBACK and UNSUBACK carry a Reason String where ``wanted``."""

    def suback(connection: MqttConnection, packet: Suback) -> Suback:
        if not wanted(connection):
            return packet
        return msgspec.structs.replace(packet, properties=_with_text(packet.properties))

    def unsuback(connection: MqttConnection, packet: Unsuback) -> Unsuback:
        if not wanted(connection):
            return packet
        return msgspec.structs.replace(packet, properties=_with_text(packet.properties))

    change_sent(patch, Suback, suback)
    change_sent(patch, Unsuback, unsuback)


@mutant("v5-reason-texts-ignore-packet-size", "reason strings are sent whatever the client's Maximum Packet Size")
def texts_ignore_size(patch: Patch) -> None:
    _explain(patch, lambda connection: connection.problem_information)
    _change_packet_limit(patch, lambda _limit: _UNLIMITED_BYTES)


@mutant("v5-problem-information-unasked", "reason strings are sent to clients that declined them")
def problem_information(patch: Patch) -> None:
    _explain(patch, lambda connection: connection.max_packet_out > 1_000)


@mutant("v5-what-waits-for-the-rate-is-lost", "what a client sends beyond its publish rate is dropped")
def what_waits_is_lost(patch: Patch) -> None:
    def make(original: Callable[[Throttle, bytes, float], bytes]) -> Callable[[Throttle, bytes, float], bytes]:
        def admit(self: Throttle, data: bytes, now: float) -> bytes:
            admitted = original(self, data, now)
            if self.waiting:
                self.end()
            return admitted

        return admit

    patch.wrap(Throttle, "admit", make)


@mutant("v5-what-waited-for-the-rate-comes-twice", "what was let through after a wait is heard again with the next")
def what_waited_comes_twice(patch: Patch) -> None:
    def make(original: Callable[[Throttle, bytes, float], bytes]) -> Callable[[Throttle, bytes, float], bytes]:
        def admit(self: Throttle, data: bytes, now: float) -> bytes:
            admitted = original(self, data, now)
            return admitted if data else admitted + admitted

        return admit

    patch.wrap(Throttle, "admit", make)
