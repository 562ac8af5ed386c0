"""Quirks in taking PUBLISH from clients."""

from __future__ import annotations

import msgspec

from reference_broker.core.message import Message
from reference_broker.core.session import Session
from reference_broker.mqtt import runs
from reference_broker.mqtt.codec import decode_packet, encode_acknowledgement
from reference_broker.mqtt.connection import MqttConnection
from reference_broker.mqtt.errors import ProtocolError, Reason, rule_id
from reference_broker.mqtt.inbound import Inbound
from reference_broker.mqtt.packets import V5, Acknowledgement, PacketType, Publish
from reference_broker.quirks.model import Quirk


class _IdentifierIgnored(Inbound):
    def _on_publish(self, packet: Publish, now: float) -> None:
        if packet.properties.subscription_identifier:
            properties = msgspec.structs.replace(packet.properties, subscription_identifier=())
            packet = msgspec.structs.replace(packet, properties=properties)
        super()._on_publish(packet, now)


class _OverrunRefusedByPubrec(Inbound):
    def _publish_confirmed(self, message: Message, packet_id: int, now: float) -> None:
        try:
            super()._publish_confirmed(message, packet_id, now)
        except ProtocolError as error:
            if error.reason is not Reason.RECEIVE_MAXIMUM_EXCEEDED:
                raise
            kind = PacketType.PUBREC if message.qos == 2 else PacketType.PUBACK
            refused = Acknowledgement(type=kind, packet_id=packet_id, reason=Reason.QUOTA_EXCEEDED)
            self.acknowledge(encode_acknowledgement(refused, V5))


class _OverrunTolerated(Inbound):
    def _check_receive_maximum(self, session: Session) -> None:
        """There is no maximum."""


class _SecondRepetitionRefused(Inbound):
    def __init__(self, connection: MqttConnection) -> None:
        super().__init__(connection)
        self._repeated: set[int] = set()
        """Packet ids of QoS 2 that came twice."""

    def _is_repeated(self, packet_id: int) -> bool:
        if packet_id in self._connection.active_session.inbound_qos2:
            if packet_id in self._repeated:
                broken = rule_id(self._connection.version, "MQTT-4.3.3-2", "MQTT-4.3.3-10")
                raise ProtocolError("a QoS 2 PUBLISH was repeated twice", broken)
            self._repeated.add(packet_id)
        else:
            self._repeated.discard(packet_id)
        return super()._is_repeated(packet_id)

    def on_pubrel(self, packet_id: int) -> None:
        self._repeated.discard(packet_id)
        super().on_pubrel(packet_id)

    def on_pubrel_run(self, ids: bytes) -> None:
        self._repeated.difference_update(runs.numbers(ids))
        super().on_pubrel_run(ids)


class _EmptyTopicTaken(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        if data[body : body + 2] == b"\0\0":
            packet = decode_packet(header, data, body, end, self._connection.version)
            assert isinstance(packet, Publish)
            if packet.properties.topic_alias is None:
                self._acknowledge_unseen(packet)
                return end
        return super().on_bytes(header, data, start, body, end, now)

    def _acknowledge_unseen(self, packet: Publish) -> None:
        """No filter matches the empty topic, so that nobody is to get the message."""
        if packet.qos:
            if packet.qos == 2:
                self._connection.active_session.inbound_qos2[packet.packet_id] = True
            kind = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
            taken = Acknowledgement(type=kind, packet_id=packet.packet_id)
            self.acknowledge(encode_acknowledgement(taken, self._connection.version))


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
        name="empty-topic-taken",
        what="A PUBLISH with an empty topic and no alias is taken.",
        statements=("3.1.1 MQTT-4.7.3-1", "5.0 MQTT-4.7.3-1"),
        citation="https://github.com/vernemq/vernemq/issues/12",
        fails=("mqtt311/publish/topic-name-is-not-empty", "mqtt5/publish/empty-topic-without-alias-refused"),
        inbound=_EmptyTopicTaken,
    ),
)
