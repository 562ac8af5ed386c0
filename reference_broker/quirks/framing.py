"""Quirks in taking packets apart: what should be refused and is let through."""

from __future__ import annotations

from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.mqtt.wire.packets import V311, PacketType, Pingresp, Publish
from assay.reference_broker.quirks.model import Quirk, answers, ignores_flags

_MOSQUITTO = "docs/findings/mqtt.md#eclipse-mosquitto-2011-debian-12"
_SERVERS_ONLY = frozenset((PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP))
_QOS_0_AS_DUPLICATE = 0x38


def _is_reserved(connection: MqttConnection, header: int, _content: bytes, _now: float) -> bool:
    return connection.phase is Phase.CONNECTED and (header >> 4 == 0 or connection.version == V311)


def _is_connected(connection: MqttConnection, _header: int, _content: bytes, _now: float) -> bool:
    return connection.phase is Phase.CONNECTED


class _PingreqBodyIgnored(MqttConnection):
    __slots__ = ()

    def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
        super().on_packet(header, data, body, body if header >> 4 == PacketType.PINGREQ else end, now)


class _QosZeroDuplicateTaken(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        if header & _QOS_0_AS_DUPLICATE != _QOS_0_AS_DUPLICATE or header & 0x06:
            return super().on_bytes(header, data, start, body, end, now)
        packet = decode_packet(header & 0xF7, data, body, end, self._connection.version)
        assert isinstance(packet, Publish)
        self.on_publish(packet, now)
        return end


class _PingreqBeforeConnect(MqttConnection):
    __slots__ = ()

    def _check_opening(self, header: int) -> None:
        if header != PacketType.PINGREQ << 4:
            super()._check_opening(header)

    def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
        if self.phase is Phase.WAIT_CONNECT and header == PacketType.PINGREQ << 4:
            self.send_packet(Pingresp())
        else:
            super().on_packet(header, data, body, end, now)


QUIRKS = (
    Quirk(
        name="pingreq-flags-ignored",
        what="A PINGREQ with reserved header bits set is answered.",
        statements=("3.1.1 MQTT-2.2.2-2", "5.0 MQTT-2.1.3-1"),
        citation=_MOSQUITTO,
        fails=("mqtt311/malformed/pingreq-flags-are-reserved", "mqtt5/malformed/reserved-bits-of-pingreq-refused"),
        connection=ignores_flags(PacketType.PINGREQ),
    ),
    Quirk(
        name="pingreq-body-ignored",
        what="A PINGREQ with a body is answered.",
        statements=("3.1.1 MQTT-4.8.0-1", "5.0 MQTT-4.13.1-1"),
        citation=_MOSQUITTO,
        fails=("mqtt5/malformed/pingreq-with-body-refused",),
        connection=_PingreqBodyIgnored,
    ),
    Quirk(
        name="server-packets-ignored",
        what="SUBACK, UNSUBACK and PINGRESP from a client are ignored in place of ending the connection.",
        statements=("3.1.1 MQTT-4.8.0-1", "5.0 MQTT-4.13.1-1"),
        citation=_MOSQUITTO,
        fails=("mqtt311/malformed/packets-only-a-server-sends", "mqtt5/malformed/packets-of-the-server-refused"),
        connection=answers(_SERVERS_ONLY, _is_connected),
    ),
    Quirk(
        name="acknowledgement-flags-ignored",
        what="PUBACK, PUBREC and PUBCOMP with reserved header bits set are taken.",
        statements=("3.1.1 MQTT-2.2.2-2", "5.0 MQTT-2.1.3-1"),
        citation=_MOSQUITTO,
        fails=(
            "mqtt311/malformed/acknowledgement-flags-are-reserved",
            "mqtt5/malformed/reserved-bits-of-acknowledgements-refused",
        ),
        connection=ignores_flags(PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP),
    ),
    Quirk(
        name="connack-ignored",
        what="CONNACK from a client is ignored in place of ending the connection.",
        statements=("3.1.1 MQTT-4.8.0-1", "5.0 MQTT-4.13.1-1"),
        fails=("mqtt311/malformed/packets-only-a-server-sends", "mqtt5/malformed/packets-of-the-server-refused"),
        connection=answers((PacketType.CONNACK,), _is_connected),
    ),
    Quirk(
        name="reserved-types-ignored",
        what="Packets of the reserved types 0 and, in 3.1.1, 15 are ignored.",
        statements=("3.1.1 MQTT-4.8.0-1", "5.0 MQTT-4.13.1-1"),
        fails=(
            "mqtt311/malformed/reserved-packet-types-end-the-connection",
            "mqtt5/malformed/reserved-packet-type-refused",
        ),
        connection=answers((0, PacketType.AUTH), _is_reserved),
    ),
    Quirk(
        name="connect-header-flags-ignored",
        what="CONNECT with reserved header bits set is accepted.",
        statements=("3.1.1 MQTT-2.2.2-2", "5.0 MQTT-2.1.3-1"),
        fails=(
            "mqtt311/malformed/connect-flags-of-the-header-are-reserved",
            "mqtt5/malformed/reserved-bits-of-connect-refused",
        ),
        connection=ignores_flags(PacketType.CONNECT),
    ),
    Quirk(
        name="disconnect-flags-ignored",
        what="DISCONNECT with reserved header bits set is taken for a normal one and deletes the will.",
        statements=("3.1.1 MQTT-3.14.1-1", "5.0 MQTT-3.14.1-1"),
        fails=("mqtt311/malformed/disconnect-flags-are-reserved", "mqtt5/disconnect/reserved-bits-refused"),
        connection=ignores_flags(PacketType.DISCONNECT),
    ),
    Quirk(
        name="qos-0-dup-taken",
        what="A QoS 0 PUBLISH with the DUP flag is passed on.",
        statements=("3.1.1 MQTT-3.3.1-2", "5.0 MQTT-3.3.1-2"),
        citation=_MOSQUITTO,
        reports=("mqtt311/malformed/qos-0-publish-with-dup",),
        inbound=_QosZeroDuplicateTaken,
    ),
    Quirk(
        name="pingreq-before-connect-answered",
        what="A PINGREQ before CONNECT is answered.",
        statements=("3.1.1 MQTT-3.1.0-1", "5.0 MQTT-3.1.0-1"),
        citation="https://github.com/halfgaar/FlashMQ/issues/104",
        fails=("mqtt311/connect/first-packet-must-be-connect", "mqtt5/connect/first-packet-must-be-connect"),
        connection=_PingreqBeforeConnect,
    ),
)
