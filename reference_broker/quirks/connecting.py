"""Quirks of CONNECT, CONNACK and session takeover."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_connect
from assay.reference_broker.mqtt.wire.errors import MalformedPacketError, ProtocolError
from assay.reference_broker.mqtt.wire.packets import V5, V311, Connect, PacketType
from assay.reference_broker.quirks.model import Quirk, answers, reads

_FLAGS_AT = 7
"""Offset of the connect flags in the body, behind the name ``MQTT`` and the version."""
_CONNECT_HEADER = 0x10


def _level(connection: MqttConnection, header: int, content: bytes) -> int:
    """The protocol level of a CONNECT with the usual name, from a client that is not connected; else -1."""
    named = content[:6] == b"\0\4MQTT" and len(content) > _FLAGS_AT
    return content[6] if connection.phase is Phase.WAIT_CONNECT and header == _CONNECT_HEADER and named else -1


def _rewritten(content: bytes, change: Callable[[Connect], Connect]) -> bytes:
    """The body of CONNECT as if the client had sent it changed; as it is, when it is malformed."""
    try:
        packet = decode_packet(_CONNECT_HEADER, content, 0, len(content), V311)
    except ProtocolError:
        return content
    assert isinstance(packet, Connect)
    encoded = encode_connect(change(packet))
    start = next(index for index in range(1, 5) if encoded[index] < 0x80) + 1
    return encoded[start:]


def _authentication_data_alone(connection: MqttConnection, header: int, content: bytes) -> bytes:
    is_5 = _level(connection, header, content) == V5
    return _rewritten(content, _without_lone_data) if is_5 else content


def _without_lone_data(packet: Connect) -> Connect:
    properties = packet.properties
    if properties.authentication_method is not None or properties.authentication_data is None:
        return packet
    return msgspec.structs.replace(packet, properties=msgspec.structs.replace(properties, authentication_data=None))


def _with_id(connection: MqttConnection, header: int, content: bytes) -> bytes:
    def named(packet: Connect) -> Connect:
        if packet.client_id or packet.clean_start:
            return packet
        return msgspec.structs.replace(packet, client_id=connection.broker.next_client_id())

    return _rewritten(content, named) if _level(connection, header, content) == V311 else content


def _with_user_name(connection: MqttConnection, header: int, content: bytes) -> bytes:
    if _level(connection, header, content) < 0 or content[_FLAGS_AT] & 0xC0 != 0x80:
        return content
    try:
        decode_packet(_CONNECT_HEADER, content, 0, len(content), V311)
    except MalformedPacketError:
        # As if an empty name stood where none does.
        return content + b"\0\0"
    return content


def _without_lone_will_retain(connection: MqttConnection, header: int, content: bytes) -> bytes:
    flags = content[_FLAGS_AT] if _level(connection, header, content) >= 0 else 0
    if flags & 0x24 != 0x20:
        return content
    return content[:_FLAGS_AT] + bytes((flags & ~0x20,)) + content[_FLAGS_AT + 1 :]


def _answer_in_5(connection: MqttConnection, header: int, content: bytes, now: float) -> bool:
    is_unknown = _level(connection, header, content) not in (-1, V311, V5)
    if is_unknown:
        # Success, and then a code of 5.0: what 3.1.1 clients cannot read.
        connection.send(b"\x20\x03\x00\x84\x00")
        connection.close_now(now)
    return is_unknown


class _SessionPresentNever(MqttBroker):
    def connect(self, connection: SessionConnection, request: ConnectRequest, now: float) -> tuple[Session, bool]:
        return super().connect(connection, request, now)[0], False


class _TakeoverInSilence(MqttConnection):
    __slots__ = ()

    def close_for_takeover(self, now: float) -> None:
        self.end()


class _TakeoverKeepsBoth(MqttConnection):
    __slots__ = ()

    def close_for_takeover(self, now: float) -> None:
        """The old connection lives on beside the new one."""


QUIRKS = (
    Quirk(
        name="authentication-data-alone",
        what="CONNECT with Authentication Data but no Authentication Method is accepted.",
        statements=("5.0 MQTT-4.13.1-1",),
        citation="docs/findings/mqtt.md#eclipse-mosquitto-2011-debian-12",
        fails=("mqtt5/properties/authentication-data-needs-a-method",),
        connection=reads((PacketType.CONNECT,), _authentication_data_alone),
    ),
    Quirk(
        name="empty-id-keeps-session",
        what="A 3.1.1 client without an id is accepted with Clean Session 0.",
        statements=("3.1.1 MQTT-3.1.3-8",),
        citation="https://github.com/nanomq/nanomq/issues/2342",
        fails=("mqtt311/connect/empty-client-id-needs-clean-session",),
        connection=reads((PacketType.CONNECT,), _with_id),
    ),
    Quirk(
        name="missing-user-name-taken",
        what="CONNECT whose User Name flag is set and whose payload ends before the name is accepted.",
        statements=("3.1.1 MQTT-3.1.2-19", "3.1.1 MQTT-3.1.4-1", "5.0 MQTT-3.1.2-17", "5.0 MQTT-3.1.4-1"),
        citation="https://github.com/emqx/emqx/issues/13045",
        fails=("mqtt311/connect/announced-fields-must-be-there", "mqtt5/connect/missing-payload-fields-refused"),
        connection=reads((PacketType.CONNECT,), _with_user_name),
    ),
    Quirk(
        name="will-retain-alone-taken",
        what="CONNECT with Will Retain 1 and no will is accepted.",
        statements=("3.1.1 MQTT-3.1.2-15", "5.0 MQTT-3.1.2-13"),
        citation="https://github.com/halfgaar/FlashMQ/issues/103",
        fails=("mqtt311/connect/will-bits-need-the-will-flag", "mqtt5/connect/will-flags-without-will-refused"),
        connection=reads((PacketType.CONNECT,), _without_lone_will_retain),
    ),
    Quirk(
        name="unknown-level-answered-as-5",
        what="An unknown protocol level is answered by a CONNACK in the form of 5.0 with code 0x84.",
        statements=("3.1.1 MQTT-3.1.2-2",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3696",
        reports=("mqtt311/connect/unknown-level-is-refused-with-code-1",),
        connection=answers((PacketType.CONNECT,), _answer_in_5),
    ),
    Quirk(
        name="session-present-never",
        what="CONNACK says Session Present 0 although the session goes on.",
        statements=("3.1.1 MQTT-3.2.2-2", "5.0 MQTT-3.2.2-3"),
        citation="https://github.com/wolfSSL/wolfMQTT/issues/523",
        fails=("mqtt5/connack/session-present-tells-of-a-session",),
        state=_SessionPresentNever,
    ),
    Quirk(
        name="takeover-in-silence",
        what="A connection that is taken over ends without DISCONNECT 0x8E.",
        statements=("5.0 MQTT-3.1.4-3",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/2340",
        reports=("mqtt5/session/second-connection-takes-over",),
        connection=_TakeoverInSilence,
    ),
    Quirk(
        name="takeover-keeps-both",
        what="Two connections with one client id stay connected beside each other.",
        statements=("3.1.1 MQTT-3.1.4-2", "5.0 MQTT-3.1.4-3"),
        citation="https://github.com/nanomq/nanomq/issues/1927",
        fails=(
            "mqtt311/connect/second-connection-takes-over",
            "mqtt5/session/second-connection-takes-over",
            "mqtt5/will/takeover-publishes-a-will-without-delay",
        ),
        connection=_TakeoverKeepsBoth,
    ),
)
