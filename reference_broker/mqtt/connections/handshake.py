"""CONNECT and CONNACK (sections 3.1 and 3.2)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.auth import CheckQueueFullError
from assay.reference_broker.config import LARGEST_PACKET_BYTES
from assay.reference_broker.core.hooks import UNCHANGED, Verdict
from assay.reference_broker.mqtt.connections import administration, asking, enhanced_auth
from assay.reference_broker.mqtt.connections.error_packets import explain, reference_reason
from assay.reference_broker.mqtt.connections.login import log_in
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.queue_topics.served_topics import REQUEST_PREFIXES
from assay.reference_broker.mqtt.sessions.mqtt_broker import NEVER_EXPIRES_S, ConnectRequest
from assay.reference_broker.mqtt.sessions.session import MAX_PACKET_ID, Will, session_bytes
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason, rule_id
from assay.reference_broker.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V311,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    WillFields,
)
from assay.reference_broker.mqtt.wire.publish_encoder import check_response_topic, message_from
from assay.reference_broker.queues import QueueError
from assay.reference_broker.routing.message import memory_bytes
from assay.reference_broker.routing.topics import TooManyLevelsError, TopicError, is_sys_topic, validate_topic

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.connections.connection import MqttConnection

_SMALL_WILL_BYTES = 1_024
"""Written down for a session whatever room the disk has."""
RETURN_CODES_311 = {
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.USE_ANOTHER_SERVER: 3,
    Reason.SERVER_MOVED: 3,
    Reason.CONNECTION_RATE_EXCEEDED: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
}
"""What a 5.0 reason is in 3.1.1 (table 3.1); others close without a CONNACK."""


def on_connect_bytes(connection: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
    """The first packet. Raises nothing: a refused client gets its CONNACK and the connection closes."""
    five = data[body : body + 7] == b"\0\4MQTT\5"
    try:
        packet = decode_packet(header, data, body, end, V5 if five else V311)
        assert isinstance(packet, Connect)
        connection.version = packet.version
        connection.max_packet_out = packet.properties.maximum_packet_size or 0xFFFFFFFF
        connection.outbound.speak(packet.version)
        connection.problem_information = packet.properties.request_problem_information != 0
        if connection.over_rate:
            raise _refusal(connection, "this address connects too often", Reason.CONNECTION_RATE_EXCEEDED)
        reference = connection.broker.config.server_reference
        if reference is not None and reference.at_connect:
            raise _refusal(connection, "clients are served elsewhere", reference_reason(reference))
        accept(connection, packet, now)
    except ProtocolError as error:
        connection.error = error
        if five and error.reason is not Reason.UNSUPPORTED_PROTOCOL_VERSION:
            connection.version = V5
        refuse(connection, error)
        connection.close_now(now)


def refuse(connection: MqttConnection, error: ProtocolError) -> None:
    """Send the CONNACK that says why, where the version can say it. The caller closes the connection."""
    if connection.version == V5:
        reference = connection.broker.config.server_reference
        told = reference is not None and error.reason is reference_reason(reference)
        explain(connection, Connack, error, reference.address if reference is not None and told else "")
    elif error.statement != "MQTT-3.1.2-1" and error.reason in RETURN_CODES_311:
        connection.send_packet(Connack(reason=RETURN_CODES_311[error.reason]))


def _refusal(
    connection: MqttConnection, text: str, reason: Reason, in_5: str = "MQTT-3.1.4-2", in_311: str = ""
) -> ProtocolError:
    """A CONNECT that this broker does not want, though it is well-formed."""
    # 3.1.1 knows only that a CONNACK with such a code, or none at all, precedes the end.
    fallback = "MQTT-3.2.2-5" if reason in RETURN_CODES_311 else "MQTT-3.2.2-6"
    return ProtocolError(text, rule_id(connection.version, in_311 or fallback, in_5), reason)


def accept(connection: MqttConnection, packet: Connect, now: float) -> None:
    """Log a client in whose CONNECT may be served, or begin to. Raises :class:`ProtocolError`."""
    if packet.properties.authentication_method is not None:
        enhanced_auth.begin(connection, packet)
        connection.phase = Phase.AUTHENTICATING
        return
    if packet.properties.authentication_data is not None:
        raise ProtocolError("authentication data without a method", "MQTT-4.13.1-1")
    try:
        allowed = log_in(connection, packet)
    except CheckQueueFullError as error:
        raise _refusal(connection, "too many passwords wait to be checked", _busy(connection)) from error
    if allowed is not None:
        _log_in_done(connection, packet, allowed, now)


def _log_in_done(connection: MqttConnection, packet: Connect, allowed: bool, now: float) -> None:
    if not allowed:
        if packet.username is None:
            raise _refusal(connection, "anonymous clients are not allowed here", Reason.NOT_AUTHORIZED)
        raise _refusal(connection, "wrong user name or password", Reason.BAD_USER_NAME_OR_PASSWORD)
    establish(connection, packet, None, now)


def _busy(connection: MqttConnection) -> Reason:
    return Reason.SERVER_BUSY if connection.version == V5 else Reason.SERVER_UNAVAILABLE


def on_password_checked(connection: MqttConnection, packet: Connect, allowed: bool | None, now: float) -> None:
    """The answer to CONNECT, once the password has been looked at, or cannot be (None). Raises nothing."""
    if allowed is None:
        give_up(connection, "who the client is cannot be found out now", now)
        return
    try:
        if allowed:
            connection.username = packet.username
        _log_in_done(connection, packet, allowed, now)
    except ProtocolError as error:
        end(connection, error, now)


def give_up(connection: MqttConnection, why: str, now: float) -> None:
    """The client is neither let in nor refused: it should try again."""
    end(connection, _refusal(connection, why, _busy(connection)), now)


def end(connection: MqttConnection, error: ProtocolError, now: float) -> None:
    connection.error = error
    refuse(connection, error)
    connection.close_now(now)


def on_packet_before_connack(connection: MqttConnection, packet: Packet, now: float) -> None:
    """AUTH or DISCONNECT while CONNACK waits. Raises :class:`ProtocolError`."""
    if isinstance(packet, Disconnect):
        connection.close_now(now)
        return
    assert isinstance(packet, Auth)
    assert connection.exchange is not None
    connect = connection.exchange.connect
    final = enhanced_auth.on_auth_before_connack(connection, packet)
    if final is not None and connect is not None:
        connection.username = enhanced_auth.finish(connection)
        establish(connection, connect, final, now)


def establish(connection: MqttConnection, packet: Connect, authentication_data: bytes | None, now: float) -> None:
    """The client is who it says. Let it in, once nobody objects to its will. Raises :class:`ProtocolError`."""
    hooks, will = connection.broker.hooks, packet.will
    verdict: Verdict | None = UNCHANGED
    if hooks is not None and will is not None:
        connection.client_id = packet.client_id

        def decided(verdict: Verdict) -> None:
            if connection.phase is Phase.VERIFYING:
                connection.go_on_with_connect(lambda now: step(verdict, now))

        def step(verdict: Verdict, now: float) -> None:
            try:
                _let_in(connection, packet, authentication_data, verdict, now)
            except ProtocolError as error:
                end(connection, error, now)

        verdict = asking.ask_about_will(connection, hooks, will, decided)
    if verdict is None:
        connection.phase = Phase.VERIFYING
    else:
        _let_in(connection, packet, authentication_data, verdict, now)


def _let_in(
    connection: MqttConnection, packet: Connect, authentication_data: bytes | None, verdict: Verdict, now: float
) -> None:
    """Attach it to its session and answer, with the last data of its authentication."""
    if verdict.error is not None:
        raise _refusal(connection, f"will: {verdict.error.text}", Reason.NOT_AUTHORIZED)
    broker = connection.broker
    config = broker.config.mqtt
    five = packet.version == V5
    properties = packet.properties
    client_id, assigned = client_id_of(connection, packet)
    previous = broker.sessions.get(client_id)
    if previous is None and len(broker.sessions) >= config.max_sessions:
        reason = Reason.QUOTA_EXCEEDED if five else Reason.SERVER_UNAVAILABLE
        raise _refusal(connection, f"the broker remembers no more than {config.max_sessions} clients", reason)
    if broker.tenants is not None and broker.tenants.is_full(connection.username, client_id, previous):
        reason = Reason.QUOTA_EXCEEDED if five else Reason.SERVER_UNAVAILABLE
        raise _refusal(connection, "the tenant of this client has no connection left", reason)
    is_large = packet.will is not None and len(packet.will.payload) > _SMALL_WILL_BYTES
    if broker.room_is_scarce and (is_large or previous is None) and is_kept(packet):
        reason = Reason.QUOTA_EXCEEDED if five else Reason.SERVER_UNAVAILABLE
        raise _refusal(connection, "the disk is nearly full: no session is begun", reason)
    if broker.access is not None:
        connection.grants = broker.access.grants(connection.username, client_id)
    connection.login = connection.authenticator.user(connection.username)
    will = will_of(connection, packet.will, client_id)
    taken = session_bytes(client_id) + (0 if will is None else memory_bytes(will.message))
    if taken and not broker.held.admits(0 if previous is None else previous.held_bytes, taken):
        reason = Reason.QUOTA_EXCEEDED if five else Reason.SERVER_UNAVAILABLE
        raise _refusal(connection, "the broker keeps no more for its clients", reason)
    if five:
        asked = properties.session_expiry_interval or 0
        granted = min(asked, config.max_session_expiry_s)
    else:
        # An administrator may bound the life of any session (3.1.1 section 4.1), though 3.1.1 cannot tell the client.
        asked = granted = 0 if packet.clean_start else config.max_session_expiry_s
    expiry_s = inf if granted == NEVER_EXPIRES_S else float(granted)
    connection.session_expiry_asked_s = asked
    connection.client_id = client_id
    keep_alive_s = packet.keep_alive_s
    server_keep_alive = None
    if five and (keep_alive_s == 0 or keep_alive_s > config.max_keep_alive_s) and config.max_keep_alive_s < 65_535:
        server_keep_alive = keep_alive_s = config.max_keep_alive_s
    connection.keep_alive_s = keep_alive_s
    request = ConnectRequest(
        client_id=client_id,
        clean_start=packet.clean_start,
        expiry_s=expiry_s,
        window=min(properties.receive_maximum or MAX_PACKET_ID, config.max_inflight_out),
        will=will,
        username=connection.username,
        may_administer=administration.is_operator(connection),
    )
    answer = NO_PROPERTIES
    if five:
        answer = msgspec.structs.replace(
            connack_properties(connection),
            response_information=response_information(connection, packet),
            assigned_client_identifier=client_id if assigned else None,
            server_keep_alive=server_keep_alive,
            session_expiry_interval=granted if granted != asked else None,
            authentication_data=authentication_data,
        )
        if connection.authentication_method:
            answer = msgspec.structs.replace(answer, authentication_method=connection.authentication_method)
    # Before the session is touched: the size of a CONNACK does not depend on what it says of the session.
    connection.check_size(Connack(properties=answer))
    session, present = broker.connect(connection, request, now)
    connection.session = session
    connection.inbound.begin()
    connection.phase = Phase.CONNECTED
    broker.connecting.remove(connection)
    connection.send_packet(Connack(session_present=present, properties=answer))
    connection.start_keep_alive(now)
    broker.resume(session, now)


def is_kept(packet: Connect) -> bool:
    """Whether the client asks for a session that outlives its connection, which is then written down."""
    return bool(packet.properties.session_expiry_interval) if packet.version == V5 else not packet.clean_start


def client_id_of(connection: MqttConnection, packet: Connect) -> tuple[str, bool]:
    """The client id, and whether the broker chose it."""
    config = connection.broker.config.mqtt
    invalid = Reason.CLIENT_IDENTIFIER_NOT_VALID
    if packet.client_id:
        limit = config.max_client_id_bytes
        if limit and len(packet.client_id.encode()) > limit:
            text = f"a client id has at most {limit} bytes here"
            raise _refusal(connection, text, invalid, "MQTT-3.1.3-8", "MQTT-3.1.3-9")
        return packet.client_id, False
    if packet.version != V5 and not packet.clean_start:
        raise ProtocolError("an empty client id needs a clean session", "MQTT-3.1.3-8", invalid)
    if not config.empty_client_id_available:
        raise _refusal(connection, "a client needs an id here", invalid, "MQTT-3.1.3-8", "MQTT-3.1.3-9")
    return connection.broker.next_client_id(), True


def response_information(connection: MqttConnection, packet: Connect) -> str | None:
    """Only for those who ask (5.0 3.1.2-28)."""
    text = connection.broker.config.mqtt.response_information
    if packet.properties.request_response_information and text:
        return text.replace("%c", connection.client_id)
    return None


def will_of(connection: MqttConnection, fields: WillFields | None, client_id: str) -> Will | None:
    """The will of a CONNECT, as it is kept. Raises :class:`ProtocolError` where it may not be."""
    if fields is None:
        return None
    config = connection.broker.config.mqtt
    try:
        validate_topic(fields.topic, max_levels=config.max_topic_levels)
    except TooManyLevelsError as error:
        raise _refusal(connection, f"will topic: {error}", Reason.TOPIC_NAME_INVALID) from error
    except TopicError as error:
        raise ProtocolError(f"will topic: {error}", error.statement, Reason.TOPIC_NAME_INVALID) from error
    check_response_topic(fields.properties)
    if not _may_leave(connection, fields.topic, client_id):
        raise _refusal(connection, "the client may not publish to the will's topic", Reason.NOT_AUTHORIZED)
    if fields.qos > config.maximum_qos:
        raise _refusal(connection, "the will's QoS is not supported here", Reason.QOS_NOT_SUPPORTED, "MQTT-3.2.2-12")
    if fields.retain and not config.retain_available:
        text = "retained messages are not supported here"
        raise _refusal(connection, text, Reason.RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-13")
    limit = connection.broker.config.limits.max_payload_bytes
    if limit and len(fields.payload) > limit:
        raise _refusal(connection, f"a will has at most {limit} bytes of payload here", Reason.QUOTA_EXCEEDED)
    # Time 0: until the will is published, ``expires_at`` holds its lifetime.
    message = message_from(fields.topic, fields.payload, fields.qos, fields.retain, fields.properties, client_id, 0.0)
    return Will(message=message, delay_s=fields.properties.will_delay_interval or 0)


def _may_leave(connection: MqttConnection, topic: str, client_id: str) -> bool:
    """Whether a will may go to a topic. Nobody would be there to hear the answer to a request."""
    if is_sys_topic(topic) or topic.startswith(REQUEST_PREFIXES):
        return False
    if connection.grants is not None and not connection.grants.may_publish(topic):
        return False
    broker = connection.broker
    if broker.tenants is None or not is_queue_topic(topic) or administration.is_operator(connection):
        return True
    try:
        tenant = broker.tenants.of_client(connection.username, client_id)
        address = broker.topics.read(topic, tenant).address
        return broker.tenants.reaches(connection.username, client_id, address)
    except QueueError as error:
        raise _refusal(connection, f"will topic: {error}", Reason.TOPIC_NAME_INVALID) from error


def connack_properties(connection: MqttConnection) -> Properties:
    """CONNACK properties: what differs from the protocol's defaults."""
    config = connection.broker.config.mqtt
    return Properties(
        receive_maximum=config.receive_maximum if config.receive_maximum < MAX_PACKET_ID else None,
        maximum_packet_size=config.max_packet_bytes if config.max_packet_bytes < LARGEST_PACKET_BYTES else None,
        topic_alias_maximum=config.topic_alias_maximum or None,
        maximum_qos=config.maximum_qos if config.maximum_qos < 2 else None,
        retain_available=None if config.retain_available else 0,
        wildcard_subscription_available=None if config.wildcard_subscription_available else 0,
        subscription_identifier_available=None if config.subscription_identifier_available else 0,
        shared_subscription_available=None if config.shared_subscription_available else 0,
    )
