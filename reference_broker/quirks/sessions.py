"""Quirks of sessions and redelivery."""

from __future__ import annotations

import random
from math import inf
from typing import ClassVar

import msgspec

from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.core.clients import Client
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.mqtt.wire.packets import Publish
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.queues.engine import Asked
from assay.reference_broker.quirks.model import Quirk
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.trace.schema import Tracer

_MOST_REMEMBERED = 10_000


class _NeedsSubscriptions(MqttBroker):
    def detach(self, session: Session, now: float, *, publish_will: bool) -> None:
        if not session.subscriptions:
            session.expiry_s = 0.0
        super().detach(session, now, publish_will=publish_will)


class _NeedsQosOne(MqttBroker):
    def detach(self, session: Session, now: float, *, publish_will: bool) -> None:
        if not any(subscription.qos for subscription in session.subscriptions.values()):
            session.expiry_s = 0.0
        super().detach(session, now, publish_will=publish_will)


class _IdentifiersOutliveSession(MqttBroker):
    def __init__(
        self, config: BrokerConfig, engine: QueueEngine, rng: random.Random, tracer: Tracer | None = None
    ) -> None:
        super().__init__(config, engine, rng, tracer)
        self._left_open: dict[str, dict[int, bool]] = {}
        """Client id -> QoS 2 identifiers of its last session that were not released."""

    def end_session(self, session: Session, now: float) -> None:
        if session.inbound_qos2 and len(self._left_open) < _MOST_REMEMBERED:
            self._left_open[session.client_id] = dict(session.inbound_qos2)
        super().end_session(session, now)

    def new_session(self, client_id: str) -> Session:
        session = super().new_session(client_id)
        session.inbound_qos2.update(self._left_open.pop(client_id, {}))
        return session


class _CleanSessionKept(MqttBroker):
    def connect(self, connection: SessionConnection, request: ConnectRequest, now: float) -> tuple[Session, bool]:
        kept = msgspec.structs.replace(request, clean_start=False, expiry_s=inf)
        return super().connect(connection, kept, now)


class _ResentWithoutDup(Outbound):
    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        return super().send_publish(packet_id, message, qos, retain, False, identifiers)


class _InFlightLost(Session):
    def resume(self, now: float) -> None:
        for packet_id in list(self.in_flight):
            self.finish(packet_id)
        super().resume(now)


class _PassesDuplicates(MqttBroker):
    duplicate_at_hand = False
    """Whether the PUBLISH that is being handled has the DUP flag."""


class _NotesDuplicate(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        state = self._broker
        if isinstance(state, _PassesDuplicates):
            state.duplicate_at_hand = bool(header & 0x08)
        try:
            return super().on_bytes(header, data, start, body, end, now)
        finally:
            if isinstance(state, _PassesDuplicates):
                state.duplicate_at_hand = False


class _SendsDuplicate(Outbound):
    lowest_qos: ClassVar[int] = 1

    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        state = self._broker
        dup = dup or (qos >= self.lowest_qos and isinstance(state, _PassesDuplicates) and state.duplicate_at_hand)
        return super().send_publish(packet_id, message, qos, retain, dup, identifiers)


class _SendsDuplicateAtAnyQos(_SendsDuplicate):
    lowest_qos: ClassVar[int] = 0


class _AtGrantedQos(MqttBroker):
    _will_at_hand = False

    def send_will(self, session: Session, now: float) -> None:
        self._will_at_hand = True
        super().send_will(session, now)
        self._will_at_hand = False

    def fan_out(self, message: Message, publisher: Client | None, asked: Asked = None) -> bool:
        if not self._will_at_hand:
            message = changed(message, qos=2)
        return super().fan_out(message, publisher, asked)


class _OneByOne(Inbound):
    """Takes no fast way, where packets would pass on as they are."""

    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        packet = decode_packet(header, data, body, end, self._connection.version)
        assert isinstance(packet, Publish)
        self.on_publish(packet, now)
        return end


QUIRKS = (
    Quirk(
        name="session-needs-subscriptions",
        what="A session without subscriptions ends with its connection.",
        statements=("3.1.1 MQTT-3.1.2-4", "5.0 MQTT-3.1.2-23"),
        fails=("mqtt311/session/kept-without-subscriptions",),
        state=_NeedsSubscriptions,
    ),
    Quirk(
        name="session-needs-qos-1",
        what="A session whose subscriptions are all at QoS 0, or that has none, ends with its connection.",
        statements=("3.1.1 MQTT-3.1.2-4", "5.0 MQTT-3.1.2-23"),
        fails=("mqtt311/session/kept-without-subscriptions", "mqtt311/session/keeps-subscriptions-at-qos-0"),
        state=_NeedsQosOne,
    ),
    Quirk(
        name="identifiers-outlive-session",
        what="QoS 2 identifiers that were not released stay taken in the client's next session, even a clean one.",
        statements=("3.1.1 MQTT-3.1.2-6", "5.0 MQTT-3.1.2-4"),
        fails=("mqtt311/resume/qos2-publish-without-pubrec", "mqtt311/resume/qos2-publish-with-pubrec-read"),
        state=_IdentifiersOutliveSession,
    ),
    Quirk(
        name="clean-session-kept",
        what="A clean session is neither new nor ends with its connection.",
        statements=("3.1.1 MQTT-3.1.2-6", "5.0 MQTT-3.1.2-4"),
        fails=(
            "mqtt311/session/clean-session-discards-the-old-one",
            "mqtt311/session/clean-session-ends-with-its-connection",
            "mqtt5/connack/clean-start-reports-no-session",
        ),
        state=_CleanSessionKept,
    ),
    Quirk(
        name="resent-without-dup",
        what="What is sent again when a session resumes does not have the DUP flag.",
        statements=("3.1.1 MQTT-3.3.1-1", "5.0 MQTT-3.3.1-1"),
        fails=(
            "mqtt311/session/unacknowledged-qos-1-is-sent-again",
            "mqtt311/session/unreceived-qos-2-is-sent-again",
            "mqtt5/session/qos1-unacknowledged-is-sent-again",
            "mqtt5/session/qos2-without-pubrec-is-sent-again",
        ),
        outbound=_ResentWithoutDup,
    ),
    Quirk(
        name="in-flight-lost",
        what="What was sent and not acknowledged is not sent again when the session resumes.",
        statements=("3.1.1 MQTT-4.4.0-1", "5.0 MQTT-4.4.0-1"),
        fails=(
            "mqtt311/session/unacknowledged-qos-1-is-sent-again",
            "mqtt311/session/unreceived-qos-2-is-sent-again",
            "mqtt311/session/owed-pubrel-is-sent-again",
            "mqtt5/session/qos1-unacknowledged-is-sent-again",
            "mqtt5/session/qos2-without-pubrec-is-sent-again",
            "mqtt5/session/owed-pubrel-is-sent-again",
        ),
        session=_InFlightLost,
    ),
    Quirk(
        name="dup-passed-on",
        what="The DUP flag of a publisher's PUBLISH is passed on to subscribers.",
        statements=("3.1.1 MQTT-3.3.1-3", "5.0 MQTT-3.3.1-3"),
        fails=("mqtt311/publish/dup-is-not-passed-on", "mqtt5/publish/dup-is-not-passed-on"),
        state=_PassesDuplicates,
        inbound=_NotesDuplicate,
        outbound=_SendsDuplicate,
    ),
    Quirk(
        name="dup-passed-on-at-qos-0",
        what="The DUP flag of a publisher's PUBLISH is passed on even to subscribers at QoS 0.",
        statements=("3.1.1 MQTT-3.3.1-2", "3.1.1 MQTT-3.3.1-3", "5.0 MQTT-3.3.1-2", "5.0 MQTT-3.3.1-3"),
        fails=("mqtt311/publish/dup-is-not-passed-on", "mqtt311/resume/qos1-publish-without-puback"),
        state=_PassesDuplicates,
        inbound=_NotesDuplicate,
        outbound=_SendsDuplicateAtAnyQos,
    ),
    Quirk(
        name="delivered-at-granted-qos",
        what="Messages, but not wills, come at the QoS that was granted, even if they were published at a lower one.",
        statements=("3.1.1 MQTT-3.8.4-6", "5.0 MQTT-3.8.4-8"),
        fails=("mqtt311/publish/delivered-at-the-lower-qos", "mqtt5/qos/delivered-at-the-lower-qos"),
        state=_AtGrantedQos,
        inbound=_OneByOne,
    ),
)
