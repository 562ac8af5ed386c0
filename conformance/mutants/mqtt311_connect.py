"""Bugs in the handling of CONNECT, pings and keep alive (MQTT 3.1.1)."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.connections import handlers, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, Connack, Connect, Packet, PacketType, Pingreq, Publish
from assay.reference_broker.mqtt.wire.wire_types import Reader
from assay.reference_broker.routing.message import Message

_CONNECT_PATIENCE_S = 1.0
_NAME_BYTES = 11
"""In which the protocol name must have come: the header of at most five bytes, the length of the name, the name."""
_ClientId = Callable[[MqttConnection, Connect], tuple[str, bool]]
_Consume = Callable[[MqttConnection, bytes, float], int]
_Handle = Callable[[MqttConnection, Packet, float], None]
_CheckFlags = Callable[[int, int], None]
_OnConnect = Callable[[MqttConnection, int, bytes, int, int, float], None]
_Connect = Callable[[MqttBroker, SessionConnection, ConnectRequest, float], tuple[Session, bool]]


def _first_frame_bytes(data: bytes) -> int:
    return 2 + data[1] if len(data) > 1 and data[1] < 0x80 else len(data)


@mutant("v3-ping-before-connect", "PINGREQ is answered before CONNECT")
def ping_before_connect(patch: Patch) -> None:
    def make(original: _Consume) -> _Consume:
        def consume(self: MqttConnection, data: bytes, now: float) -> int:
            if self.phase is Phase.WAIT_CONNECT and data[:2] == b"\xc0\x00":
                self.send(b"\xd0\x00")
                return len(data)
            return original(self, data, now)

        return consume

    patch.wrap(MqttConnection, "handle_packets", make)


@variation(
    "closes-late-without-connect",
    "what comes in place of a CONNECT of MQTT is passed over; the connection ends when it has waited long enough",
)
def closes_late_without_connect(patch: Patch) -> None:
    def end(connection: MqttConnection, now: float) -> None:
        if connection.phase is not Phase.CLOSED:
            connection.close_now(now)

    def make(original: _Consume) -> _Consume:
        def consume(self: MqttConnection, data: bytes, now: float) -> int:
            is_connect = data[:1] == b"\x10" and (len(data) < _NAME_BYTES or b"MQTT" in data[:_NAME_BYTES])
            if self.phase is not Phase.WAIT_CONNECT or is_connect:
                return original(self, data, now)
            self.broker.timers.schedule(now + _CONNECT_PATIENCE_S, lambda later: end(self, later))
            return len(data)

        return consume

    patch.wrap(MqttConnection, "handle_packets", make)


@mutant("v3-second-connect-ignored", "a second CONNECT on a connection is skipped")
def second_connect_ignored(patch: Patch) -> None:
    def make(original: _Handle) -> _Handle:
        def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
            if not isinstance(packet, Connect):
                original(connection, packet, now)

        return handle

    patch.wrap(handlers, "handle", make)


def _rewrite_connect(patch: Patch, rewrite: Callable[[bytes], bytes]) -> None:
    """Let the handshake see another CONNECT body than the one that came."""

    def make(original: _OnConnect) -> _OnConnect:
        def on_connect(connection: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
            seen = rewrite(data[body:end])
            original(connection, header, seen, 0, len(seen), now)

        return on_connect

    patch.wrap(handshake, "on_connect_bytes", make)


@mutant("v3-any-protocol-name", "the protocol name is not looked at")
def any_protocol_name(patch: Patch) -> None:
    def rewrite(body: bytes) -> bytes:
        return b"\x00\x04MQTT" + body[2 + int.from_bytes(body[:2], "big") :]

    _rewrite_connect(patch, rewrite)


@mutant("v3-any-protocol-level", "an unknown protocol level is served as 3.1.1")
def any_protocol_level(patch: Patch) -> None:
    def rewrite(body: bytes) -> bytes:
        return body if body[6] in (V311, V5) else body[:6] + bytes((V311,)) + body[7:]

    _rewrite_connect(patch, rewrite)


def _ignore_flags(patch: Patch, seen: Callable[[int], int]) -> None:
    def make(original: _CheckFlags) -> _CheckFlags:
        return lambda flags, version: original(seen(flags), version)

    patch.wrap(codec, "check_connect_flags", make)


@mutant("v3-reserved-connect-flag-ignored", "the reserved connect flag may be 1")
def reserved_connect_flag_ignored(patch: Patch) -> None:
    _ignore_flags(patch, lambda flags: flags & ~0x01)


@mutant("v3-will-bits-unchecked", "Will QoS and Will Retain may be set without the Will Flag")
def will_bits_unchecked(patch: Patch) -> None:
    _ignore_flags(patch, lambda flags: flags if flags & 0x04 else flags & ~0x38)


@mutant("v3-will-qos-3-accepted", "a will of QoS 3 is taken for one of QoS 2")
def will_qos_3_accepted(patch: Patch) -> None:
    def seen(flags: int) -> int:
        return flags & ~0x08 if flags & 0x1C == 0x1C else flags

    read_will = codec.read_will
    _ignore_flags(patch, seen)
    patch.replace(codec, "read_will", lambda reader, flags, version: read_will(reader, seen(flags), version))


@mutant("v3-password-without-user-name", "a password is accepted without a user name")
def password_without_user_name(patch: Patch) -> None:
    _ignore_flags(patch, lambda flags: flags | 0x80 if flags & 0x40 else flags)


@mutant("v3-missing-fields-read-as-empty", "a text field behind the end of its packet is read as empty")
def missing_fields_read_as_empty(patch: Patch) -> None:
    def make(original: Callable[[Reader], int]) -> Callable[[Reader], int]:
        return lambda self: original(self) if self.remaining else 0

    patch.wrap(Reader, "two_bytes", make)


@mutant("v3-bytes-behind-connect-ignored", "bytes behind the last field of CONNECT are ignored")
def bytes_behind_connect_ignored(patch: Patch) -> None:
    original = codec.DECODERS[PacketType.CONNECT]

    def decode(header: int, reader: Reader, version: int) -> Packet:
        packet = original(header, reader, version)
        reader.rest()
        return packet

    patch.item(codec.DECODERS, PacketType.CONNECT, decode)


@mutant("v3-empty-client-ids-shared", "all clients without identifier get the same one")
def empty_client_ids_shared(patch: Patch) -> None:
    patch.replace(MqttBroker, "next_client_id", lambda _self: "anonymous")


@mutant("v3-empty-client-id-kept-session", "an empty client identifier is accepted with Clean Session 0")
def empty_client_id_kept_session(patch: Patch) -> None:
    def client_id(connection: MqttConnection, packet: Connect) -> tuple[str, bool]:
        return packet.client_id or connection.broker.next_client_id(), not packet.client_id

    patch.replace(handshake, "client_id_of", client_id)


@mutant("v3-long-client-ids-refused", "client identifiers of more than 20 characters are refused")
def long_client_ids_refused(patch: Patch) -> None:
    def make(original: _ClientId) -> _ClientId:
        def client_id(connection: MqttConnection, packet: Connect) -> tuple[str, bool]:
            if len(packet.client_id) > 20:
                raise ProtocolError("too long", "MQTT-3.1.3-9", Reason.CLIENT_IDENTIFIER_NOT_VALID)
            return original(connection, packet)

        return client_id

    patch.wrap(handshake, "client_id_of", make)


@mutant("v3-client-ids-fold-case", "client identifiers are compared without regard to case")
def client_ids_fold_case(patch: Patch) -> None:
    def make(original: _ClientId) -> _ClientId:
        def client_id(connection: MqttConnection, packet: Connect) -> tuple[str, bool]:
            found, assigned = original(connection, packet)
            return found.lower(), assigned

        return client_id

    patch.wrap(handshake, "client_id_of", make)


@mutant("v3-takeover-leaves-both", "the older connection is left open when its client connects again")
def takeover_leaves_both(patch: Patch) -> None:
    patch.replace(MqttConnection, "close_for_takeover", lambda _self, _now: None)


@mutant("v3-bytes-behind-connect-packet-lost", "what comes in one chunk with CONNECT is lost")
def bytes_behind_connect_packet_lost(patch: Patch) -> None:
    def make(original: _Consume) -> _Consume:
        def consume(self: MqttConnection, data: bytes, now: float) -> int:
            if self.phase is not Phase.WAIT_CONNECT:
                return original(self, data, now)
            first = data[: _first_frame_bytes(data)]
            return len(data) if original(self, first, now) == len(first) else 0

        return consume

    patch.wrap(MqttConnection, "handle_packets", make)


@mutant("v3-publish-behind-refused-connect", "a PUBLISH behind a refused CONNECT is still published")
def publish_behind_refused_connect(patch: Patch) -> None:
    def make(original: _Consume) -> _Consume:
        def consume(self: MqttConnection, data: bytes, now: float) -> int:
            start = _first_frame_bytes(data)
            consumed = original(self, data, now)
            if self.session is None and self.closing and data[start : start + 1] == b"\x30":
                packet = codec.decode_packet(0x30, data, start + 2, len(data), V311)
                if isinstance(packet, Publish):
                    self.broker.publish(Message(topic=packet.topic, payload=packet.payload), None, now)
            return consumed

        return consume

    patch.wrap(MqttConnection, "handle_packets", make)


@mutant("v3-session-present-always", "Session Present is always 1")
def session_present_always(patch: Patch) -> None:
    def make(original: _Connect) -> _Connect:
        return lambda self, connection, request, now: (original(self, connection, request, now)[0], True)

    patch.wrap(MqttBroker, "connect", make)


@mutant("v3-every-second-ping-lost", "every second PINGREQ of a connection is not answered")
def every_second_ping_lost(patch: Patch) -> None:
    counts: weakref.WeakKeyDictionary[MqttConnection, int] = weakref.WeakKeyDictionary()

    def make(original: _Handle) -> _Handle:
        def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
            if isinstance(packet, Pingreq):
                counts[connection] = counts.get(connection, 0) + 1
                if counts[connection] % 2 == 0:
                    return
            original(connection, packet, now)

        return handle

    patch.wrap(handlers, "handle", make)


@mutant("v3-keep-alive-ignored", "silent clients are never disconnected")
def keep_alive_ignored(patch: Patch) -> None:
    patch.replace(MqttConnection, "start_keep_alive", lambda self, _now: self._timer.cancel())


@variation("v3-refuses-names-with-code-1", "a wrong protocol name is refused with CONNACK 1")
def refuses_names_with_code_1(patch: Patch) -> None:
    def refuse(connection: MqttConnection, error: ProtocolError) -> None:
        if error.statement == "MQTT-3.1.2-1" and connection.version != V5:
            connection.send_packet(Connack(reason=1))
        else:
            original(connection, error)

    original = handshake.refuse
    patch.replace(handshake, "refuse", refuse)


@variation("v3-late-keep-alive", "connections are ended a little later than the keep alive asks")
def late_keep_alive(patch: Patch) -> None:
    def make(original: Callable[[MqttConnection, float], None]) -> Callable[[MqttConnection, float], None]:
        def start(self: MqttConnection, now: float) -> None:
            original(self, now + 0.5)

        return start

    patch.wrap(MqttConnection, "start_keep_alive", make)


def with_request(patch: Patch, change: Callable[[MqttBroker, ConnectRequest], ConnectRequest]) -> None:
    """Let the broker see another request of a connecting client than the one made."""

    def make(original: _Connect) -> _Connect:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            return original(self, connection, change(self, request), now)

        return connect

    patch.wrap(MqttBroker, "connect", make)


@mutant("v3-clean-session-keeps-state", "Clean Session 1 goes on with the old session")
def clean_session_keeps_state(patch: Patch) -> None:
    with_request(patch, lambda _broker, request: msgspec.structs.replace(request, clean_start=False))


@mutant("v3-clean-session-outlives-connection", "a session with Clean Session 1 is kept after its connection")
def clean_session_outlives_connection(patch: Patch) -> None:
    with_request(patch, lambda _broker, request: msgspec.structs.replace(request, expiry_s=float("inf")))
