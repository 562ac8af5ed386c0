"""Bugs and legal peculiarities that other brokers showed us (MQTT 3.1.1)."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.mqtt311_connect import with_request
from assay.conformance.mutants.mqtt311_ways import close_fast_ways
from assay.conformance.wire import Decoder
from assay.reference_broker.mqtt.connections import handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import V5, Connack
from assay.reference_broker.routing.message import Message

_SUBACK = b"\x90"
_PUBACK = b"\x40"
_USER_NAME_FLAG = 0x80
_PASSWORD_FLAG = 0x40
_WILL_FLAG = 0x04
_BAD_LOGIN = 4

_OnConnect = Callable[[MqttConnection, int, bytes, int, int, float], None]


@mutant("v3-qos-2-acknowledged-like-qos-1", "a QoS 2 PUBLISH is taken at QoS 1 and answered by PUBACK")
def qos_2_acknowledged_like_qos_1(patch: Patch) -> None:
    close_fast_ways(patch)

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish_confirmed(self: Inbound, message: Message, packet_id: int, now: float) -> None:
            lower = msgspec.structs.replace(message, qos=1) if message.qos == 2 else message
            original(self, lower, packet_id, now)

        return publish_confirmed

    patch.wrap(Inbound, "publish_confirmed", make)


def _forget_sessions(patch: Patch, forgotten: Callable[[Session], bool]) -> None:
    """A client whose stored session is ``forgotten`` starts anew."""

    def change(broker: MqttBroker, request: ConnectRequest) -> ConnectRequest:
        session = broker.sessions.get(request.client_id)
        if session is None or session.connection is not None or not forgotten(session):
            return request
        return msgspec.structs.replace(request, clean_start=True)

    with_request(patch, change)


@mutant("v3-sessions-without-subscriptions-forgotten", "a session that has no subscription is not kept")
def sessions_without_subscriptions_forgotten(patch: Patch) -> None:
    _forget_sessions(patch, lambda session: not session.subscriptions)


@mutant("v3-sessions-with-qos-0-alone-forgotten", "a session whose subscriptions are all at QoS 0 is not kept")
def sessions_with_qos_0_alone_forgotten(patch: Patch) -> None:
    _forget_sessions(patch, lambda session: all(entry.qos == 0 for entry in session.subscriptions.values()))


@mutant("v3-retained-for-every-client", "who connects gets the retained messages that others subscribed to")
def retained_for_every_client(patch: Patch) -> None:
    def make(original: Callable[[MqttBroker, Session, float], None]) -> Callable[[MqttBroker, Session, float], None]:
        def resume(self: MqttBroker, session: Session, now: float) -> None:
            original(self, session, now)
            for other in list(self.sessions.values()):
                for subscription in other.subscriptions.values():
                    self.send_retained(session, subscription, now)

        return resume

    patch.wrap(MqttBroker, "resume", make)


@variation("v3-malformed-login-gets-code-4", "a malformed user name or password is refused with CONNACK 4")
def malformed_login_gets_code_4(patch: Patch) -> None:
    bad_logins: WeakSet[MqttConnection] = WeakSet()

    def make_connect(original: _OnConnect) -> _OnConnect:
        def on_connect(connection: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
            flags = data[body + 7] if end - body > 7 else 0
            if flags & (_USER_NAME_FLAG | _PASSWORD_FLAG) and not flags & _WILL_FLAG:
                bad_logins.add(connection)
            try:
                original(connection, header, data, body, end, now)
            finally:
                bad_logins.discard(connection)

        return on_connect

    def make_refuse(
        original: Callable[[MqttConnection, ProtocolError], None],
    ) -> Callable[[MqttConnection, ProtocolError], None]:
        def refuse(connection: MqttConnection, error: ProtocolError) -> None:
            if connection in bad_logins and connection.version != V5:
                connection.send_packet(Connack(reason=_BAD_LOGIN))
            else:
                original(connection, error)

        return refuse

    patch.wrap(handshake, "on_connect_bytes", make_connect)
    patch.wrap(handshake, "refuse", make_refuse)


@variation("v3-suback-after-puback", "a PUBACK overtakes the SUBACK of the same turn")
def suback_after_puback(patch: Patch) -> None:
    def make(original: Callable[[MqttConnection], bytes]) -> Callable[[MqttConnection], bytes]:
        def take_output(self: MqttConnection) -> bytes:
            data = original(self)
            if self.version == V5 or _PUBACK not in data:
                return data
            frames = [bytes(frame) for frame in Decoder(4).feed_frames(data)]
            # Stable: everything else keeps its order.
            frames.sort(key=lambda frame: frame.startswith(_SUBACK))
            return b"".join(frames)

        return take_output

    patch.wrap(MqttConnection, "take_output", make)


@variation("v3-pubrec-repeated-on-return", "a publisher that comes back gets its PUBRECs once more, unasked")
def pubrec_repeated_on_return(patch: Patch) -> None:
    def make(original: Callable[[MqttBroker, Session, float], None]) -> Callable[[MqttBroker, Session, float], None]:
        def resume(self: MqttBroker, session: Session, now: float) -> None:
            original(self, session, now)
            if isinstance(session.connection, MqttConnection):
                for packet_id in session.inbound_qos2:
                    session.connection.send(b"\x50\x02" + packet_id.to_bytes(2, "big"))

        return resume

    patch.wrap(MqttBroker, "resume", make)


@variation("v3-dollar-topics-end-the-connection", "a client that publishes to a topic with a leading $ is disconnected")
def dollar_topics_end_the_connection(patch: Patch) -> None:
    close_fast_ways(patch)

    def make(original: Callable[[Inbound, str], None]) -> Callable[[Inbound, str], None]:
        def check_topic(self: Inbound, topic: str) -> None:
            if topic.startswith("$") and not topic.startswith("$admin/") and not is_queue_topic(topic):
                raise ProtocolError("clients keep away from such topics", "MQTT-4.7.2-1")
            original(self, topic)

        return check_topic

    patch.wrap(Inbound, "check_topic", make)
