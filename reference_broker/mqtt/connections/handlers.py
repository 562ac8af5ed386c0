"""Control packets other than CONNECT and the publish flow: SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.connections import asking, enhanced_auth
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.sessions.mqtt_broker import NEVER_EXPIRES_S, SubscribeOutcome
from assay.reference_broker.mqtt.wire.codec import encode_acknowledgement
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    Acknowledgement,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from assay.reference_broker.queues import Consumer, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm, JointConfirm
from assay.reference_broker.routing.topics import (
    TooManyLevelsError,
    TopicError,
    has_wildcard,
    split_shared,
    validate_filter,
)

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.connections.connection import MqttConnection
    from assay.reference_broker.mqtt.sessions.session import Session

_ACK_STARTS = {1: b"\x40\x02", 2: b"\x50\x02"}
"""First two bytes of a successful PUBACK and PUBREC in their short form."""
PUBLISH_REASONS = {
    QueueErrorCode.BAD_ADDRESS: Reason.TOPIC_NAME_INVALID,
    QueueErrorCode.BAD_OPTION: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.UNKNOWN_QUEUE: Reason.TOPIC_NAME_INVALID,
    QueueErrorCode.EXISTS: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.TOO_LARGE: Reason.QUOTA_EXCEEDED,
    QueueErrorCode.MISFIT: Reason.PAYLOAD_FORMAT_INVALID,
    QueueErrorCode.FULL: Reason.QUOTA_EXCEEDED,
    QueueErrorCode.LIMIT: Reason.QUOTA_EXCEEDED,
    QueueErrorCode.QUOTA: Reason.QUOTA_EXCEEDED,
    QueueErrorCode.NOT_ALLOWED: Reason.NOT_AUTHORIZED,
    QueueErrorCode.STALE_GENERATION: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.BAD_CURSOR: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.NOT_IDLE: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.FENCED: Reason.NOT_AUTHORIZED,
    QueueErrorCode.UNKNOWN_PRODUCER: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.OUT_OF_SEQUENCE: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.UNKNOWN_TRANSACTION: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.TRANSACTION_STATE: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
}
"""Reason codes that PUBACK and PUBREC may carry (5.0 section 3.4.2.1); others are 0x80."""
_NAMED_ERRORS = frozenset(
    (
        QueueErrorCode.FENCED,
        QueueErrorCode.UNKNOWN_PRODUCER,
        QueueErrorCode.OUT_OF_SEQUENCE,
        QueueErrorCode.UNKNOWN_TRANSACTION,
        QueueErrorCode.TRANSACTION_STATE,
    )
)
"""What a producer must tell apart, though MQTT has no reason codes for it: a user property names them."""
_SUBSCRIBE_REASONS = {
    QueueErrorCode.BAD_ADDRESS: Reason.TOPIC_FILTER_INVALID,
    QueueErrorCode.BAD_OPTION: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    QueueErrorCode.UNKNOWN_QUEUE: Reason.TOPIC_FILTER_INVALID,
    QueueErrorCode.LIMIT: Reason.QUOTA_EXCEEDED,
    QueueErrorCode.QUOTA: Reason.QUOTA_EXCEEDED,
    QueueErrorCode.NOT_ALLOWED: Reason.NOT_AUTHORIZED,
}


STEP_FILTERS = 64
"""Of a packet, handled before the turn is looked at."""


def _work_of(topic_filter: str) -> int:
    """What a filter takes: more where it may have many levels."""
    return 1 + (len(topic_filter) >> 5)


def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
    """Act on a packet of a connected client. Raises :class:`ProtocolError`."""
    match packet:
        case Subscribe():
            on_subscribe(connection, packet, now)
        case Unsubscribe():
            on_unsubscribe(connection, packet, now)
        case Pingreq():
            connection.send_packet(Pingresp())
        case Disconnect():
            on_disconnect(connection, packet, now)
        case Auth():
            enhanced_auth.on_auth_while_connected(connection, packet, now)
        case Connect():
            raise ProtocolError("a client must not send CONNECT twice", "MQTT-3.1.0-2")
        case _:
            statement = "MQTT-4.13.1-1" if connection.version == V5 else "MQTT-4.8.0-1"
            raise ProtocolError(f"a client must not send {type(packet).__name__.upper()}", statement)


def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
    identifiers = packet.properties.subscription_identifier
    identifier = identifiers[0] if identifiers else 0
    config = connection.broker.config.mqtt
    if identifier and not config.subscription_identifier_available:
        raise _not_offered("subscription identifiers", Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED)
    connection.work_through(_subscribe(connection, packet, identifier, now))


def _subscribe(connection: MqttConnection, packet: Subscribe, identifier: int, now: float) -> Iterator[None]:
    group = next((value for key, value in packet.properties.user_property if key == "consumer-group"), None)
    reasons: list[int] = []
    retained: list[Subscription] = []
    broker, session = connection.broker, connection.active_session
    most = broker.config.mqtt.max_subscriptions_per_client
    session.asked = packet.properties.user_property
    joint = JointConfirm(lambda _: _subscribed(connection, session, packet.packet_id, reasons, retained))
    for asked in packet.requests:
        request = asked
        broker.work += _work_of(request.topic_filter)
        if len(reasons) % STEP_FILTERS == STEP_FILTERS - 1:
            yield
        if len(retained) + (session.retained.count if session.retained is not None else 0) >= most:
            # It asks for retained messages faster than it takes them.
            reasons.append(Reason.QUOTA_EXCEEDED)
            continue
        if broker.hooks is not None:
            decided = yield from asking.subscription(connection, broker.hooks, asked)
            if decided is None:
                reasons.append(Reason.NOT_AUTHORIZED)
                continue
            request, now = decided, broker.now
        reason, outcome, subscription = subscribe_one(connection, request, identifier, group, now)
        reasons.append(reason)
        if outcome is None or subscription is None or outcome.qos < 0:
            continue
        if (consumer := session.consumers.get(request.topic_filter)) is not None:
            broker.engine.when_begun(consumer, _begun(connection, session, consumer, reasons, request, joint.part()))
            continue
        wanted = request.retain_handling == 0 or (request.retain_handling == 1 and not outcome.existed)
        if wanted and subscription.share_name is None and not is_queue_topic(request.topic_filter):
            retained.append(subscription)
    reasons += [Reason.QUOTA_EXCEEDED] * packet.beyond
    session.asked = ()
    # An answer that comes later waits for what this turn writes, too.
    connection.rouse()
    joint.close()


def _begun(
    connection: MqttConnection,
    session: Session,
    consumer: Consumer,
    reasons: list[int],
    request: SubscriptionRequest,
    decided: Confirm,
) -> Confirm:
    """Told whether the group is there for good that the last of the filters so far consumes in."""
    index = len(reasons) - 1

    def begun(error: QueueError | None) -> None:
        if error is not None:
            reasons[index] = _SUBSCRIBE_REASONS.get(error.code, Reason.UNSPECIFIED_ERROR)
            if session.consumers.get(request.topic_filter) is consumer:
                connection.broker.unsubscribe(session, request.topic_filter, connection.broker.now)
        decided(None)

    return begun


def _subscribed(
    connection: MqttConnection, session: Session, packet_id: int, reasons: list[int], retained: list[Subscription]
) -> None:
    """Answer a SUBSCRIBE: all that it asks for is decided."""
    broker = connection.broker
    if session.connection is not connection:
        return
    if connection.version != V5:
        reasons = [reason if reason < 0x80 else 0x80 for reason in reasons]
    try:
        connection.send_packet(Suback(packet_id=packet_id, reasons=tuple(reasons)))
    except ProtocolError as error:
        connection.fail(error, broker.now)
        return
    for subscription in retained:
        if connection.may_read(subscription.topic_filter):  # another turn may have taken the right away
            broker.send_retained(session, subscription, broker.now)


def end_in_311(connection: MqttConnection, error: TopicError) -> None:
    """3.1.1 has no code for a malformed filter: it ends the connection (4.8.0-1). A limit of ours is no violation."""
    if connection.version != V5 and not isinstance(error, TooManyLevelsError):
        raise ProtocolError(str(error), error.statement_311, Reason.TOPIC_FILTER_INVALID) from error


def _not_offered(what: str, reason: Reason) -> ProtocolError:
    """CONNACK has said that this kind of subscription is not available (5.0 sections 3.2.2.3.11 to 3.2.2.3.13)."""
    return ProtocolError(f"{what} are not supported here", "MQTT-4.13.1-1", reason)


def subscribe_one(
    connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
    """(SUBACK code, outcome, subscription); the last two are None for a filter refused unseen."""
    config = connection.broker.config.mqtt
    try:
        share_name, topic_filter = split_shared(request.topic_filter)
    except TopicError:
        return Reason.TOPIC_FILTER_INVALID, None, None
    try:
        validate_filter(topic_filter, max_levels=config.max_topic_levels)
    except TopicError as error:
        end_in_311(connection, error)
        return Reason.TOPIC_FILTER_INVALID, None, None
    if share_name is not None:
        if request.no_local:
            raise ProtocolError("No Local on a shared subscription", "MQTT-3.8.3-4")
        if not config.shared_subscription_available:
            if connection.version == V5:
                raise _not_offered("shared subscriptions", Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, None, None
        if is_queue_topic(topic_filter):
            return Reason.TOPIC_FILTER_INVALID, None, None
    if not connection.may_read(topic_filter):
        return Reason.NOT_AUTHORIZED, None, None
    queue = is_queue_topic(topic_filter)
    if has_wildcard(topic_filter) and not queue and not config.wildcard_subscription_available:
        if connection.version == V5:
            raise _not_offered("wildcard subscriptions", Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)
        return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, None, None
    qos = min(request.qos, config.maximum_qos)
    if queue:
        if connection.version != V5 and qos == 0:
            # Without PUBACK a 3.1.1 consumer could settle nothing: every message would end as a dead letter.
            return Reason.UNSPECIFIED_ERROR, None, None
        qos = min(qos, 1)
    subscription = Subscription(
        topic_filter=topic_filter,
        qos=qos,
        no_local=request.no_local,
        retain_as_published=request.retain_as_published,
        retain_handling=request.retain_handling,
        identifier=identifier,
        share_name=share_name,
    )
    session = connection.session
    assert session is not None
    if not queue and session.kept is not None and connection.broker.has_no_room:
        # A consumer of a queue makes room; others would be sent retained messages, which are written down for them.
        is_new = request.topic_filter not in session.subscriptions
        if is_new or connection.broker.room_is_scarce:
            return Reason.QUOTA_EXCEEDED, None, None
    outcome = connection.broker.subscribe(session, request.topic_filter, subscription, group, now)
    if outcome.error is not None:
        return _SUBSCRIBE_REASONS.get(outcome.error.code, Reason.UNSPECIFIED_ERROR), outcome, None
    return outcome.qos, outcome, subscription


def on_unsubscribe(connection: MqttConnection, packet: Unsubscribe, now: float) -> None:
    connection.work_through(_unsubscribe(connection, packet, now))


def _unsubscribe(connection: MqttConnection, packet: Unsubscribe, now: float) -> Iterator[None]:
    broker, session = connection.broker, connection.active_session
    max_levels = broker.config.mqtt.max_topic_levels
    reasons: list[int] = []
    for topic_filter in packet.topic_filters:
        broker.work += _work_of(topic_filter)
        if len(reasons) % STEP_FILTERS == STEP_FILTERS - 1:
            yield
        try:
            # In 3.1.1, which has no shares, a malformed one is a filter like others.
            plain = topic_filter if connection.version != V5 else split_shared(topic_filter)[1]
            validate_filter(plain, max_levels=max_levels)
        except TooManyLevelsError:
            pass  # then there is no such subscription
        except TopicError as error:
            end_in_311(connection, error)
            reasons.append(Reason.TOPIC_FILTER_INVALID)
            continue
        existed = broker.unsubscribe(session, topic_filter, now)
        reasons.append(Reason.SUCCESS if existed else Reason.NO_SUBSCRIPTION_EXISTED)
    broker.leave_shares(session, now)
    connection.send_packet(Unsuback(packet_id=packet.packet_id, reasons=tuple(reasons)))


def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
    session = connection.session
    assert session is not None
    if packet.properties.server_reference is not None:
        raise ProtocolError("a client must not send a server reference", "MQTT-4.13.1-1")
    expiry = packet.properties.session_expiry_interval
    if expiry is not None:
        if connection.session_expiry_asked_s == 0 and expiry:
            # 3.14.2.2.2: what CONNECT said counts, not what was granted.
            raise ProtocolError("DISCONNECT must not give an expiry to a session that had none", "MQTT-4.13.1-1")
        expiry = min(expiry, connection.broker.config.mqtt.max_session_expiry_s)
        session.expiry_s = inf if expiry == NEVER_EXPIRES_S else float(expiry)
    connection.close_now(now, publish_will=packet.reason != Reason.SUCCESS)


def acknowledgement(
    connection: MqttConnection,
    qos: int,
    packet_id: int,
    error: QueueError | None,
    *,
    matched: bool,
    told: tuple[tuple[str, str], ...] = (),
) -> bytes | None:
    """PUBACK or PUBREC; None when the version cannot say what went wrong and the connection must close instead.

    ``told``: user properties of a success, for version 5 and clients that take them (5.0 3.1.2-29).
    """
    if not (connection.version == V5 and connection.problem_information):
        told = ()
    if error is None and not told and (matched or connection.version != V5):
        return _ACK_STARTS[qos] + packet_id.to_bytes(2, "big")
    kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
    if connection.version != V5:
        if error is not None and error.code is not QueueErrorCode.NOT_PENDING:
            return None
        return encode_acknowledgement(Acknowledgement(type=kind, packet_id=packet_id), connection.version)
    properties = Properties(user_property=told) if told and error is None else NO_PROPERTIES
    reason = Reason.SUCCESS if matched else Reason.NO_MATCHING_SUBSCRIBERS
    if error is not None:
        reason = PUBLISH_REASONS.get(error.code, Reason.UNSPECIFIED_ERROR)
        if connection.problem_information:
            if connection.session is not None and connection.session.tenant is not None:
                error = connection.session.tenant.error_out(error)
            details = error.details
            if error.code in _NAMED_ERRORS:
                details = (("error", error.code.value), *details)
            properties = Properties(reason_string=str(error)[:200], user_property=details)
    packet = Acknowledgement(type=kind, packet_id=packet_id, reason=reason, properties=properties)
    data = encode_acknowledgement(packet, V5)
    if error is not None and error.details and len(data) > connection.max_packet_out:
        shorter = Properties(reason_string=str(error)[:200])
        packet = Acknowledgement(type=kind, packet_id=packet_id, reason=reason, properties=shorter)
        data = encode_acknowledgement(packet, V5)
    if len(data) > connection.max_packet_out:
        data = encode_acknowledgement(Acknowledgement(type=kind, packet_id=packet_id, reason=reason), V5)
    return data
