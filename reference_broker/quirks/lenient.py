"""Quirks of brokers that take, in MQTT 3.1.1, what they should refuse: fields of CONNECT, text, packet identifiers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_acknowledgement
from assay.reference_broker.mqtt.wire.packets import (
    V311,
    Acknowledgement,
    Connack,
    Connect,
    Packet,
    PacketType,
    Publish,
    Unsuback,
)
from assay.reference_broker.mqtt.wire.publish_encoder import message_from
from assay.reference_broker.mqtt.wire.wire_types import encode_variable_integer
from assay.reference_broker.queues import QueueError
from assay.reference_broker.quirks.model import Quirk, answers, ignores_flags, reads

_FLAGS_AT, _FIELDS_AT = 7, 10
"""Offsets in the body of a 3.1.1 CONNECT: its flags, and its first field."""
_MAX_FIELD_BYTES = 65_535


def _is_connect_311(connection: MqttConnection, header: int, content: bytes) -> bool:
    waits = connection.phase is Phase.WAIT_CONNECT and header == PacketType.CONNECT << 4
    return waits and content[:7] == b"\0\4MQTT\4" and len(content) > _FIELDS_AT


def _connect_311(change: Callable[[bytes], bytes]) -> type[MqttConnection]:
    """A 3.1.1 CONNECT is read as another."""

    return reads(
        (PacketType.CONNECT,),
        lambda connection, header, content: (
            change(content) if _is_connect_311(connection, header, content) else content
        ),
    )


def _is_311(connection: MqttConnection) -> bool:
    return connection.version == V311 and connection.phase is Phase.CONNECTED


def _skip(data: bytes, at: int, fields: int) -> int:
    """Where the length-prefixed fields from ``at`` on end; beyond the data when they are cut off."""
    for _ in range(fields):
        if at + 2 > len(data):
            return len(data) + 1
        at += 2 + (data[at] << 8 | data[at + 1])
    return at


def _with_flags(body: bytes, flags: int) -> bytes:
    return body[:_FLAGS_AT] + bytes((flags,)) + body[_FLAGS_AT + 1 :]


def _without_lone_password(body: bytes) -> bytes:
    flags = body[_FLAGS_AT]
    if flags & 0xC0 != 0x40:
        return body
    return _with_flags(body, flags & ~0x40)[: _skip(body, _FIELDS_AT, 3 if flags & 0x04 else 1)]


def _without_trailing_fields(body: bytes) -> bytes:
    flags = body[_FLAGS_AT]
    fields = 1 + (2 if flags & 0x04 else 0) + bool(flags & 0x80) + bool(flags & 0x40)
    return body[: _skip(body, _FIELDS_AT, fields)]


def _with_will_at_qos_2(body: bytes) -> bytes:
    flags = body[_FLAGS_AT]
    return _with_flags(body, flags & ~0x08) if flags & 0x1C == 0x1C else body


def _without_reserved_flag(body: bytes) -> bytes:
    return _with_flags(body, body[_FLAGS_AT] & ~0x01)


def _masked_options(connection: MqttConnection, _header: int, body: bytes) -> bytes:
    """The body of a 3.1.1 SUBSCRIBE with nothing but a QoS in its options."""
    if not _is_311(connection):
        return body
    out, at = bytearray(body), _skip(body, 2, 1)
    while at < len(out):
        out[at] &= 0x03
        at = _skip(body, at + 1, 1)
    return bytes(out)


class _SecondConnectAnswered(MqttConnection):
    __slots__ = ()

    def handle(self, packet: Packet, now: float) -> None:
        if isinstance(packet, Connect):
            self.send_packet(Connack())
        else:
            super().handle(packet, now)


def _end_unknown_level(connection: MqttConnection, _header: int, body: bytes, now: float) -> bool:
    named = body[:6] == b"\0\4MQTT" and len(body) > 6
    is_unknown = connection.phase is Phase.WAIT_CONNECT and named and body[6] not in (4, 5)
    if is_unknown:
        connection.close_now(now)
    return is_unknown


def _cleaned(text: bytes) -> bytes:
    """Well-formed UTF-8 without U+0000, with U+FFFD for what is not; as it is when that would be too long."""
    clean = text.decode(errors="replace").replace("\0", "\ufffd").encode()
    return clean if len(clean) <= _MAX_FIELD_BYTES else text


def _field(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _clean_connect(body: bytes, name_kind: str) -> bytes:
    """The body of CONNECT with well-formed text. ``name_kind`` ``t``: the user name is text as well."""
    flags = body[_FLAGS_AT]
    kinds = "t" + ("tb" if flags & 0x04 else "") + (name_kind if flags & 0x80 else "")
    out, at = body[:_FIELDS_AT], _FIELDS_AT
    for kind in kinds:
        after = _skip(body, at, 1)
        if after > len(body):
            break
        out += _field(_cleaned(body[at + 2 : after])) if kind == "t" else body[at:after]
        at = after
    return out + body[at:]


def _clean_text(name_kind: str) -> type[MqttConnection]:
    def changed(connection: MqttConnection, header: int, body: bytes) -> bytes:
        if _is_connect_311(connection, header, body):
            return _clean_connect(body, name_kind)
        return _clean_filters(body, options=header == 0x82) if _is_311(connection) and header in (0x82, 0xA2) else body

    return reads((PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE), changed)


def _clean_filters(body: bytes, *, options: bool) -> bytes:
    """The body of SUBSCRIBE (with a byte of options behind each filter) or UNSUBSCRIBE with well-formed filters."""
    out, at = body[:2], 2
    while at < len(body):
        after = _skip(body, at, 1)
        if after > len(body):
            break
        out += _field(_cleaned(body[at + 2 : after])) + (body[after : after + 1] if options else b"")
        at = after + options
    return out + body[at:]


class _IllFormedTopic(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        topic_end = _skip(data[:end], body, 1)
        if self._connection.version == V311 and topic_end <= end:
            topic = data[body + 2 : topic_end]
            clean = _cleaned(topic)
            if clean != topic:
                rest = _field(clean) + data[topic_end:end]
                length = encode_variable_integer(len(rest))
                super().on_bytes(
                    header, bytes((header,)) + length + rest, 0, 1 + len(length), 1 + len(length + rest), now
                )
                return end
        return super().on_bytes(header, data, start, body, end, now)


class _IdentifierZero(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        qos = header >> 1 & 3
        id_at = _skip(data[:end], body, 1)
        if qos not in (1, 2) or data[id_at : id_at + 2] != b"\0\0" or id_at + 2 > end:
            return super().on_bytes(header, data, start, body, end, now)
        numbered = data[body:id_at] + b"\0\1" + data[id_at + 2 : end]
        packet = decode_packet(header, numbered, 0, len(numbered), self._connection.version)
        assert isinstance(packet, Publish)
        self.check_topic(packet.topic)
        client_id = self._connection.client_id
        message = message_from(packet.topic, packet.payload, qos, packet.retain, packet.properties, client_id, now)
        with contextlib.suppress(QueueError):
            self._broker.publish(message, self._connection.session, now)
        kind = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
        self._acknowledge_zero(kind)
        return end

    def on_pubrel(self, packet_id: int) -> None:
        if packet_id:
            super().on_pubrel(packet_id)
        else:
            self._acknowledge_zero(PacketType.PUBCOMP)

    def _acknowledge_zero(self, kind: PacketType) -> None:
        answer = Acknowledgement(type=kind, packet_id=0)
        self.acknowledge(encode_acknowledgement(answer, self._connection.version))


class _QosThreeIgnored(Inbound):
    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        return end if header & 0x06 == 0x06 else super().on_bytes(header, data, start, body, end, now)


class _SilenceTolerated(MqttConnection):
    __slots__ = ()

    def start_keep_alive(self, now: float) -> None:
        self._timer.cancel()


class _OpeningIgnored(MqttConnection):
    __slots__ = ()

    def _check_opening(self, header: int) -> None:
        if self.phase is not Phase.WAIT_CONNECT:
            super()._check_opening(header)

    def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
        if self.phase is not Phase.WAIT_CONNECT or header >> 4 == PacketType.CONNECT:
            super().on_packet(header, data, body, end, now)


def _answer_for_nothing(connection: MqttConnection, header: int, body: bytes, _now: float) -> bool:
    is_of_nothing = _is_311(connection) and header == 0xA2 and len(body) == 2
    if is_of_nothing:
        connection.send_packet(Unsuback(packet_id=body[0] << 8 | body[1]))
    return is_of_nothing


QUIRKS = (
    Quirk(
        name="password-alone-taken",
        what="A 3.1.1 CONNECT with a password and no user name is accepted.",
        statements=("3.1.1 MQTT-3.1.2-22",),
        fails=("mqtt311/connect/password-needs-a-user-name",),
        connection=_connect_311(_without_lone_password),
    ),
    Quirk(
        name="trailing-fields-taken",
        what="A 3.1.1 CONNECT with fields behind those that its flags announce is accepted.",
        statements=("3.1.1 MQTT-3.1.2-18", "3.1.1 MQTT-3.1.2-20", "3.1.1 MQTT-3.1.4-1"),
        fails=("mqtt311/connect/fields-not-announced-must-not-be-there",),
        connection=_connect_311(_without_trailing_fields),
    ),
    Quirk(
        name="will-qos-3-taken",
        what="A 3.1.1 CONNECT with a will at QoS 3 is accepted.",
        statements=("3.1.1 MQTT-3.1.2-14",),
        fails=("mqtt311/connect/will-qos-3-ends-the-connection",),
        connection=_connect_311(_with_will_at_qos_2),
    ),
    Quirk(
        name="reserved-connect-flag-ignored",
        what="A 3.1.1 CONNECT with the reserved flag set is accepted.",
        statements=("3.1.1 MQTT-3.1.2-3",),
        fails=("mqtt311/connect/reserved-flag-ends-the-connection",),
        connection=_connect_311(_without_reserved_flag),
    ),
    Quirk(
        name="subscription-options-masked",
        what="Reserved bits beside the QoS of a 3.1.1 subscription are ignored.",
        statements=("3.1.1 MQTT-3.8.3-4",),
        fails=("mqtt311/subscribe/options-must-be-a-qos",),
        connection=reads((PacketType.SUBSCRIBE,), _masked_options),
    ),
    Quirk(
        name="second-connect-answered",
        what="A second CONNECT is answered by another CONNACK; the connection goes on.",
        statements=("3.1.1 MQTT-3.1.0-2", "5.0 MQTT-3.1.0-2"),
        fails=(
            "mqtt311/connect/second-connect-ends-the-connection",
            "mqtt5/connect/second-connect-ends-the-connection",
        ),
        connection=_SecondConnectAnswered,
    ),
    Quirk(
        name="unknown-level-unanswered",
        what="The connection of a client with an unknown protocol level ends without a CONNACK.",
        statements=("3.1.1 MQTT-3.1.2-2",),
        reports=("mqtt311/connect/unknown-level-is-refused-with-code-1",),
        connection=answers((PacketType.CONNECT,), _end_unknown_level),
    ),
    Quirk(
        name="ill-formed-text-taken",
        what="Ill-formed UTF-8 and U+0000 in 3.1.1 packets are taken, with replacement characters in their place.",
        statements=("3.1.1 MQTT-1.5.3-1", "3.1.1 MQTT-1.5.3-2"),
        fails=(
            "mqtt311/malformed/connect-text-must-be-utf-8",
            "mqtt311/malformed/text-has-no-null-character",
            "mqtt311/malformed/text-must-be-utf-8",
        ),
        connection=_clean_text("b"),
        inbound=_IllFormedTopic,
    ),
    Quirk(
        name="ill-formed-name-taken",
        what="Like ill-formed-text-taken, and the user name in CONNECT is taken as well.",
        statements=("3.1.1 MQTT-1.5.3-1", "3.1.1 MQTT-3.1.3-11"),
        fails=("mqtt311/malformed/connect-text-must-be-utf-8",),
        connection=_clean_text("t"),
    ),
    Quirk(
        name="identifier-0-taken",
        what="A PUBLISH with packet identifier 0 is passed on and acknowledged under it.",
        statements=("3.1.1 MQTT-2.3.1-1", "5.0 MQTT-2.2.1-3"),
        fails=("mqtt311/publish/identifier-0-ends-the-connection", "mqtt5/publish/packet-identifier-0-refused"),
        inbound=_IdentifierZero,
    ),
    Quirk(
        name="unsubscribe-from-nothing-answered",
        what="A 3.1.1 UNSUBSCRIBE without a filter is answered.",
        statements=("3.1.1 MQTT-3.10.3-2",),
        fails=("mqtt311/subscribe/needs-a-filter",),
        connection=answers((PacketType.UNSUBSCRIBE,), _answer_for_nothing),
    ),
    Quirk(
        name="subscribe-flags-ignored",
        what="A SUBSCRIBE with wrong header bits is served.",
        statements=("3.1.1 MQTT-3.8.1-1", "5.0 MQTT-3.8.1-1"),
        fails=("mqtt311/malformed/subscribe-flags-are-fixed", "mqtt5/malformed/reserved-bits-of-subscribe-refused"),
        connection=ignores_flags(PacketType.SUBSCRIBE, flags=2),
    ),
    Quirk(
        name="qos-3-publish-ignored",
        what="A PUBLISH at QoS 3 is ignored in place of ending the connection.",
        statements=("3.1.1 MQTT-3.3.1-4", "5.0 MQTT-3.3.1-4"),
        fails=("mqtt311/publish/qos-3-ends-the-connection", "mqtt5/publish/qos-3-refused"),
        inbound=_QosThreeIgnored,
    ),
    Quirk(
        name="silence-tolerated",
        what="Clients that are silent for longer than their keep alive stay connected.",
        statements=("3.1.1 MQTT-3.1.2-24", "5.0 MQTT-3.1.2-22"),
        fails=(
            "mqtt311/ping/silence-beyond-the-keep-alive-ends-the-connection",
            "mqtt311/will/published-when-the-keep-alive-passes",
            "mqtt5/connect/silent-client-is-dropped",
        ),
        connection=_SilenceTolerated,
    ),
    Quirk(
        name="opening-ignored",
        what="Packets before CONNECT are ignored; the connection stays open.",
        statements=("3.1.1 MQTT-3.1.0-1", "5.0 MQTT-3.1.0-1"),
        fails=("mqtt311/connect/first-packet-must-be-connect", "mqtt5/connect/first-packet-must-be-connect"),
        connection=_OpeningIgnored,
    ),
)
