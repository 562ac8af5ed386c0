"""Quirks in taking PUBLISH from clients."""

from __future__ import annotations

import msgspec

from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_acknowledgement
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason, rule_id
from assay.reference_broker.mqtt.wire.packets import V5, Acknowledgement, PacketType, Publish, SubscriptionRequest
from assay.reference_broker.quirks.model import Quirk, takes_as
from assay.reference_broker.quirks.subscribing import with_requests
from assay.reference_broker.routing.message import Message

_MOST_BEGUN = 20
"""Mosquitto's ``max_inflight_messages``."""


class _IdentifierIgnored(Inbound):
    def on_publish(self, packet: Publish, now: float) -> None:
        if packet.properties.subscription_identifier:
            properties = msgspec.structs.replace(packet.properties, subscription_identifier=())
            packet = msgspec.structs.replace(packet, properties=properties)
        super().on_publish(packet, now)


class _OverrunRefusedByPubrec(Inbound):
    def publish_confirmed(self, message: Message, packet_id: int, now: float) -> None:
        try:
            super().publish_confirmed(message, packet_id, now)
        except ProtocolError as error:
            if error.reason is not Reason.RECEIVE_MAXIMUM_EXCEEDED:
                raise
            kind = PacketType.PUBREC if message.qos == 2 else PacketType.PUBACK
            refused = Acknowledgement(type=kind, packet_id=packet_id, reason=Reason.QUOTA_EXCEEDED)
            self.acknowledge(encode_acknowledgement(refused, V5))


class _OverrunTolerated(Inbound):
    def check_receive_maximum(self, session: Session) -> None:
        """There is no maximum."""


class _SecondRepetitionRefused(Inbound):
    def __init__(self, connection: MqttConnection) -> None:
        super().__init__(connection)
        self._repeated: set[int] = set()
        """Packet ids of QoS 2 that came twice."""

    def is_repeated(self, packet_id: int) -> bool:
        if packet_id in self._connection.active_session.inbound_qos2:
            if packet_id in self._repeated:
                broken = rule_id(self._connection.version, "MQTT-4.3.3-2", "MQTT-4.3.3-10")
                raise ProtocolError("a QoS 2 PUBLISH was repeated twice", broken)
            self._repeated.add(packet_id)
        else:
            self._repeated.discard(packet_id)
        return super().is_repeated(packet_id)

    def on_pubrel(self, packet_id: int) -> None:
        self._repeated.discard(packet_id)
        super().on_pubrel(packet_id)

    def on_pubrel_run(self, ids: bytes) -> None:
        self._repeated.difference_update(runs.numbers(ids))
        super().on_pubrel_run(ids)


class _BeyondTwentyForgotten(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        begun = self._connection.active_session.inbound_qos2
        if header & 0x06 == 0x04 and len(begun) >= _MOST_BEGUN and self._connection.version != V5:
            packet = decode_packet(header, data, body, end, self._connection.version)
            assert isinstance(packet, Publish)
            if packet.packet_id not in begun:
                _acknowledge_unseen(self, packet, self._connection)
                return end
        return super().on_bytes(header, data, start, body, end, now)


class _EmptyTopicTaken(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        if data[body : body + 2] == b"\0\0" and header & 0x06 != 0x06:
            packet = decode_packet(header, data, body, end, self._connection.version)
            assert isinstance(packet, Publish)
            if packet.properties.topic_alias is None:
                _acknowledge_unseen(self, packet, self._connection)
                return end
        return super().on_bytes(header, data, start, body, end, now)


class _WildcardTopicTaken(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        topic = data[body + 2 : min(end, body + 2 + int.from_bytes(data[body : body + 2], "big"))]
        if (b"+" in topic or b"#" in topic) and header & 0x06 != 0x06:
            packet = decode_packet(header, data, body, end, self._connection.version)
            assert isinstance(packet, Publish)
            _acknowledge_unseen(self, packet, self._connection)
            return end
        return super().on_bytes(header, data, start, body, end, now)


class _QosTwoTakenAsOne(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        if header & 0x06 != 0x04:
            return super().on_bytes(header, data, start, body, end, now)
        packet = decode_packet(header & ~0x06 | 0x02, data, body, end, self._connection.version)
        assert isinstance(packet, Publish)
        self.on_publish(packet, now)
        return end


def _at_most_at_1(request: SubscriptionRequest) -> SubscriptionRequest:
    return msgspec.structs.replace(request, qos=min(request.qos, 1))


def _acknowledge_unseen(inbound: Inbound, packet: Publish, connection: MqttConnection) -> None:
    """Nobody is to get the message."""
    if packet.qos:
        if packet.qos == 2:
            connection.active_session.inbound_qos2[packet.packet_id] = True
        kind = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
        taken = Acknowledgement(type=kind, packet_id=packet.packet_id)
        inbound.acknowledge(encode_acknowledgement(taken, connection.version))


QUIRKS = (
    Quirk(
        name="subscription-identifier-ignored",
        what="A Subscription Identifier in a client's PUBLISH is ignored.",
        statements=("5.0 MQTT-3.3.4-6",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3319",
        fails=("mqtt5/publish/subscription-identifier-from-client-refused",),
        inbound=_IdentifierIgnored,
    ),
    Quirk(
        name="overrun-refused-by-pubrec",
        what="A client over the Receive Maximum gets PUBREC 0x97 in place of DISCONNECT 0x93.",
        statements=("5.0 MQTT-3.3.4-7", "5.0 MQTT-4.13.1-1"),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3588",
        fails=("mqtt5/flow-control/overrun-ends-the-connection",),
        inbound=_OverrunRefusedByPubrec,
    ),
    Quirk(
        name="overrun-tolerated",
        what="The announced Receive Maximum is not enforced.",
        statements=("5.0 MQTT-3.3.4-7", "5.0 MQTT-4.13.1-1"),
        citation="https://github.com/emqx/emqx/issues/12922",
        fails=("mqtt5/flow-control/overrun-ends-the-connection",),
        inbound=_OverrunTolerated,
    ),
    Quirk(
        name="second-repetition-refused",
        what="The second repetition of a QoS 2 PUBLISH ends the connection.",
        statements=("5.0 MQTT-4.3.3-10",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3602",
        fails=("mqtt5/qos/qos2-repeats-without-end-are-acknowledged",),
        inbound=_SecondRepetitionRefused,
    ),
    Quirk(
        name="qos-2-beyond-twenty-forgotten",
        what="Of the QoS 2 messages that a client has begun and not released those beyond twenty reach nobody.",
        statements=("3.1.1 MQTT-4.3.3-2",),
        fails=("mqtt311/publish/many-open-qos-2-exchanges-all-arrive",),
        inbound=_BeyondTwentyForgotten,
    ),
    Quirk(
        name="empty-topic-taken",
        what="A PUBLISH with an empty topic and no alias is taken.",
        statements=("3.1.1 MQTT-4.7.3-1", "5.0 MQTT-4.7.3-1"),
        citation="https://github.com/vernemq/vernemq/issues/12",
        fails=("mqtt311/publish/topic-name-is-not-empty", "mqtt5/publish/empty-topic-without-alias-refused"),
        inbound=_EmptyTopicTaken,
    ),
    Quirk(
        name="wildcard-topic-taken",
        what="A PUBLISH to a topic with a wildcard is taken, and reaches nobody.",
        statements=("3.1.1 MQTT-3.3.2-2", "5.0 MQTT-3.3.2-2"),
        fails=("mqtt311/publish/topic-name-has-no-wildcards", "mqtt5/publish/topic-with-wildcard-refused"),
        inbound=_WildcardTopicTaken,
    ),
    Quirk(
        name="qos-2-taken-as-1",
        what="A QoS 2 PUBLISH is answered by PUBACK and passed on at QoS 1, without being announced.",
        statements=("3.1.1 MQTT-4.3.3-2", "5.0 MQTT-4.3.3-8"),
        fails=("mqtt311/publish/qos-2-is-not-acknowledged-like-qos-1", "mqtt5/qos/qos2-publish-runs-to-pubcomp"),
        connection=takes_as(lambda packet: with_requests(packet, _at_most_at_1)),
        inbound=_QosTwoTakenAsOne,
    ),
)
