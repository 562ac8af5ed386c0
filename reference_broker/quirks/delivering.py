"""Quirks in sending messages to clients: windows, sizes, expiry, and what is sent again."""

from __future__ import annotations

from assay.reference_broker.config import MqttConfig
from assay.reference_broker.core.budget import MessageBudget
from assay.reference_broker.core.traffic import Traffic
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.sending import PORTION
from assay.reference_broker.mqtt.sessions.session import Outgoing, OutgoingState, Session
from assay.reference_broker.mqtt.wire.packets import Acknowledgement, PacketType
from assay.reference_broker.mqtt.wire.wire_types import MAX_VARIABLE_INTEGER, encode_variable_integer
from assay.reference_broker.queues import Delivery
from assay.reference_broker.quirks.model import Quirk
from assay.reference_broker.routing.message import Message

_MOSQUITTO = "docs/findings/mqtt.md#eclipse-mosquitto-2011-debian-12"


class _FixedHeaderNotCounted(Outbound):
    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        connection = self._connection
        maximum = connection.max_packet_out
        if maximum <= MAX_VARIABLE_INTEGER:
            connection.max_packet_out = 1 + len(encode_variable_integer(maximum)) + maximum
        try:
            return super().send_publish(packet_id, message, qos, retain, dup, identifiers)
        finally:
            connection.max_packet_out = maximum


class _TooLargeHoldsQuota(Outbound):
    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        sent = super().send_publish(packet_id, message, qos, retain, dup, identifiers)
        # What counts as sent waits for an acknowledgement that cannot come.
        return sent or qos > 0


class _PubackBringsTwo(Outbound):
    """Each PUBACK counts twice for the quota, which is otherwise bounded by the client's Receive Maximum."""

    _pubacks = 0
    """Taken in one go."""

    def on_run(self, kind: PacketType, ids: bytes, now: float) -> None:
        self._pubacks = len(ids) // 2 if kind is PacketType.PUBACK else 0
        super().on_run(kind, ids, now)

    def on_acknowledgement(self, packet: Acknowledgement, now: float) -> None:
        self._pubacks = int(packet.type is PacketType.PUBACK)
        super().on_acknowledgement(packet, now)

    def go_on(self, now: float) -> None:
        session = self._connection.active_session
        window = session.window
        if self._pubacks:
            session.window = max(window, len(session.in_flight) + min(2 * self._pubacks, window))
        try:
            super().go_on(now)
            self._broker.sending.send_retained(session, PORTION)
        finally:
            session.window = window


class _ForgetsExpired(Session):
    """Takes expiry as a reason to end exchanges of QoS 2 that have begun."""

    def __init__(
        self,
        client_id: str,
        limits: MqttConfig | None = None,
        traffic: Traffic | None = None,
        budget: MessageBudget | None = None,
    ) -> None:
        super().__init__(client_id, limits, traffic, budget)
        self.released_until: dict[int, float] = {}
        """Packet id of a released message -> when it would have expired."""

    def resume(self, now: float) -> None:
        for packet_id, outgoing in list(self.in_flight.items()):
            if isinstance(outgoing, Outgoing):
                expires_at = outgoing.message.expires_at if outgoing.qos == 2 else 0.0
            else:
                expires_at = self.released_until.get(packet_id, 0.0)
            if expires_at and expires_at <= now:
                self.finish(packet_id)
        self.released_until = {key: when for key, when in self.released_until.items() if key in self.in_flight}
        super().resume(now)


class _NotesExpiry(Outbound):
    def on_pubrec(self, packet_id: int) -> None:
        session = self._connection.active_session
        outgoing = session.in_flight.get(packet_id)
        if isinstance(session, _ForgetsExpired):
            session.released_until.pop(packet_id, None)
            if isinstance(outgoing, Outgoing) and outgoing.state is OutgoingState.WAIT_PUBREC:
                session.released_until[packet_id] = outgoing.message.expires_at
        super().on_pubrec(packet_id)


class _OwedPubrelForgotten(Session):
    def resume(self, now: float) -> None:
        for packet_id, outgoing in list(self.in_flight.items()):
            if outgoing.state is OutgoingState.WAIT_PUBCOMP:
                self.finish(packet_id)
        super().resume(now)


class _OfflineMessagesLost(Session):
    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        delivery: Delivery | None = None,
        share: str = "",
    ) -> None:
        if self.connection is not None:
            super().deliver(message, qos, retain, identifiers, delivery, share)


QUIRKS = (
    Quirk(
        name="fixed-header-not-counted",
        what="The client's Maximum Packet Size is compared without the fixed header: PUBLISH may be larger by that.",
        statements=("5.0 MQTT-3.1.2-24",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3503",
        fails=("mqtt5/flow-control/client-maximum-packet-size-is-exact",),
        outbound=_FixedHeaderNotCounted,
    ),
    Quirk(
        name="too-large-holds-quota",
        what="A message over the client's Maximum Packet Size keeps its place in the Receive Maximum window.",
        statements=("5.0 MQTT-3.1.2-25",),
        citation=_MOSQUITTO,
        fails=("mqtt5/flow-control/dropped-message-counts-as-delivered",),
        outbound=_TooLargeHoldsQuota,
    ),
    Quirk(
        name="puback-brings-two",
        what="A PUBACK brings two waiting messages in place of one, over the client's Receive Maximum.",
        statements=("5.0 MQTT-3.3.4-9",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/2301",
        fails=(
            "mqtt5/flow-control/client-receive-maximum-respected-at-qos1",
            "mqtt5/flow-control/qos1-and-qos2-share-the-quota",
            "mqtt5/flow-control/retained-messages-respect-the-quota",
        ),
        outbound=_PubackBringsTwo,
    ),
    Quirk(
        name="expiry-ends-begun-qos-2",
        what="A message that expires takes its QoS 2 exchange along, though PUBLISH or even PUBREL has been sent.",
        statements=("5.0 MQTT-4.3.3-7", "5.0 MQTT-4.4.0-1"),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3744",
        fails=(
            "mqtt5/publish/expiry-does-not-touch-begun-deliveries",
            "mqtt5/publish/expiry-does-not-touch-owed-pubrel",
            "mqtt5/real-bugs/expiry-drops-what-waits-and-spares-what-has-begun",
        ),
        session=_ForgetsExpired,
        outbound=_NotesExpiry,
    ),
    Quirk(
        name="owed-pubrel-forgotten",
        what="A PUBREL that waits for its PUBCOMP is not sent again when the session resumes.",
        statements=("3.1.1 MQTT-4.4.0-1", "5.0 MQTT-4.4.0-1"),
        citation="https://github.com/rmqtt/rmqtt/issues/456",
        fails=("mqtt311/session/owed-pubrel-is-sent-again", "mqtt5/session/owed-pubrel-is-sent-again"),
        session=_OwedPubrelForgotten,
    ),
    Quirk(
        name="offline-messages-lost",
        what="Nothing is kept for a session while its client is away.",
        statements=("3.1.1 MQTT-3.1.2-5", "5.0 MQTT-4.1.0-1"),
        citation="https://github.com/nats-io/nats-server/issues/4849",
        fails=("mqtt311/session/keeps-subscriptions-and-messages", "mqtt5/session/keeps-messages-while-away"),
        session=_OfflineMessagesLost,
    ),
)
