"""Broken CONNECT and CONNACK of MQTT 5.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.mqtt5_support import change_connect, rewrite_frames
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.connections import handlers, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Packet,
    PacketType,
    Pingresp,
    Properties,
    Publish,
    SubscriptionRequest,
)
from assay.reference_broker.mqtt.wire.wire_types import Reader
from assay.reference_broker.routing.message import Message

_VERSION_AT = 6
"""Place of the protocol version in the body of a CONNECT whose protocol name has four characters."""
Attach: TypeAlias = Callable[[MqttBroker, SessionConnection, ConnectRequest, float], tuple[Session, bool]]


@mutant("v5-answers-before-connect", "PINGREQ is answered although no CONNECT came")
def answers_before_connect(patch: Patch) -> None:
    original = MqttConnection.receive

    def receive(self: MqttConnection, data: bytes, now: float) -> None:
        if self.phase is Phase.WAIT_CONNECT and data == b"\xc0\x00":
            self.send_packet(Pingresp())
        else:
            original(self, data, now)

    patch.replace(MqttConnection, "receive", receive)


@mutant("v5-disconnect-before-connack", "a client that was never accepted is sent DISCONNECT")
def disconnect_before_connack(patch: Patch) -> None:
    def make(
        original: Callable[[MqttConnection, ProtocolError, float], None],
    ) -> Callable[[MqttConnection, ProtocolError, float], None]:
        def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
            if self.phase is Phase.WAIT_CONNECT:
                self.send(b"\xe0\x01\x82")
            original(self, error, now)

        return fail

    patch.wrap(MqttConnection, "fail", make)


@mutant("v5-second-connect-accepted", "a second CONNECT is answered by another CONNACK")
def second_connect_accepted(patch: Patch) -> None:
    def make(
        original: Callable[[MqttConnection, Packet, float], None],
    ) -> Callable[[MqttConnection, Packet, float], None]:
        def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
            if isinstance(packet, Connect):
                connection.send_packet(Connack(session_present=True))
            else:
                original(connection, packet, now)

        return handle

    patch.wrap(handlers, "handle", make)


def _mask_flags(patch: Patch, mask: Callable[[int], int]) -> None:
    """The check of the connect flags sees ``mask(flags)``."""
    original = codec.check_connect_flags
    patch.replace(codec, "check_connect_flags", lambda flags, version: original(mask(flags), version))


@mutant("v5-reserved-connect-flag-accepted", "the reserved connect flag is not checked")
def reserved_flag(patch: Patch) -> None:
    _mask_flags(patch, lambda flags: flags & ~0x01)


@mutant("v5-will-bits-without-will-accepted", "will QoS and will retain are not checked when there is no will")
def will_bits(patch: Patch) -> None:
    _mask_flags(patch, lambda flags: flags if flags & 0x04 else flags & ~0x38)


@mutant("v5-will-qos-3-accepted", "will QoS 3 is taken for 1")
def will_qos_3(patch: Patch) -> None:
    def lower(flags: int) -> int:
        return flags & ~0x10 if flags & 0x1C == 0x1C else flags

    _mask_flags(patch, lower)
    original = codec.read_will
    patch.replace(codec, "read_will", lambda reader, flags, version: original(reader, lower(flags), version))


@mutant("v5-missing-fields-accepted", "a field missing at the end of a packet is read as empty")
def missing_fields(patch: Patch) -> None:
    original = Reader.binary
    patch.replace(Reader, "binary", lambda self: original(self) if self.remaining else b"")


@mutant("v5-trailing-connect-bytes-accepted", "bytes behind the last field of CONNECT are ignored")
def trailing_bytes(patch: Patch) -> None:
    original = codec.DECODERS[PacketType.CONNECT]

    def decode(header: int, reader: Reader, version: int) -> Packet:
        packet = original(header, reader, version)
        reader.rest()
        return packet

    patch.item(codec.DECODERS, PacketType.CONNECT, decode)


@mutant("v5-long-client-ids-refused", "client identifiers end at 22 characters, one less than all must be able to use")
def long_client_ids(patch: Patch) -> None:
    original = handshake.client_id_of

    def client_id(connection: MqttConnection, packet: Connect) -> tuple[str, bool]:
        if len(packet.client_id) > 22:
            raise ProtocolError("too long", "MQTT-3.1.3-8", Reason.CLIENT_IDENTIFIER_NOT_VALID)
        return original(connection, packet)

    patch.replace(handshake, "client_id_of", client_id)


@mutant("v5-client-id-case-folded", "client identifiers are compared without regard to case")
def case_folded(patch: Patch) -> None:
    change_connect(
        patch, lambda _connection, packet: msgspec.structs.replace(packet, client_id=packet.client_id.lower())
    )


@mutant("v5-any-protocol-version-accepted", "an unknown protocol version is served as 5")
def any_version(patch: Patch) -> None:
    def rewrite(header: int, data: bytes, body: int) -> tuple[int, bytes]:
        at = body + _VERSION_AT
        if header >> 4 == PacketType.CONNECT and data[at] not in (V311, V5):
            data = data[:at] + bytes((V5,)) + data[at + 1 :]
        return header, data

    rewrite_frames(patch, rewrite)


@mutant("v5-any-protocol-name-accepted", "the protocol name is not compared")
def any_name(patch: Patch) -> None:
    def rewrite(header: int, data: bytes, body: int) -> tuple[int, bytes]:
        if header >> 4 == PacketType.CONNECT and data[body : body + 2] == b"\x00\x04":
            data = data[: body + 2] + b"MQTT" + data[body + 6 :]
        return header, data

    rewrite_frames(patch, rewrite)


@mutant("v5-publish-behind-refused-connect-routed", "a PUBLISH behind a refused CONNECT is routed")
def pipelined_publish(patch: Patch) -> None:
    original = handshake.on_connect_bytes

    def on_connect(connection: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
        original(connection, header, data, body, end, now)
        if connection.closing and data[end : end + 1] == b"\x30":
            packet = decode_packet(0x30, data, end + 2, len(data), V5)
            assert isinstance(packet, Publish)
            connection.broker.publish(Message(topic=packet.topic, payload=packet.payload), None, now)

    patch.replace(handshake, "on_connect_bytes", on_connect)


@mutant("v5-missing-property-length-accepted", "a CONNECT that cannot be read is read again without property length")
def missing_property_length(patch: Patch) -> None:
    def decode(header: int, data: bytes, start: int, end: int, version: int) -> Packet:
        try:
            return decode_packet(header, data, start, end, version)
        except ProtocolError:
            at = start + _VERSION_AT
            packet = decode_packet(header, data[:at] + bytes((V311,)) + data[at + 1 :], start, end, version)
            assert isinstance(packet, Connect)
            return msgspec.structs.replace(packet, version=V5)

    patch.replace(handshake, "decode_packet", decode)


@mutant("v5-will-topic-unchecked", "the will topic may hold wildcards")
def will_topic(patch: Patch) -> None:
    patch.replace(handshake, "validate_topic", lambda _topic, *, max_levels: None)


@mutant("v5-keep-alive-ignored", "nobody waits for the keep alive")
def keep_alive_ignored(patch: Patch) -> None:
    patch.replace(MqttConnection, "start_keep_alive", lambda self, _now: self._timer.cancel())


@mutant("v5-keep-alive-counts-from-connect", "the keep alive runs out however often the client pings")
def keep_alive_from_connect(patch: Patch) -> None:
    original = MqttConnection.check_keep_alive

    def check(self: MqttConnection, now: float) -> None:
        self._last_received = 0.0
        original(self, now)

    patch.replace(MqttConnection, "check_keep_alive", check)


@mutant("v5-connack-sent-twice", "CONNACK is sent twice")
def connack_twice(patch: Patch) -> None:
    original = handshake.accept

    def accept(connection: MqttConnection, packet: Connect, now: float) -> None:
        original(connection, packet, now)
        connection.send_packet(Connack())

    patch.replace(handshake, "accept", accept)


@mutant("v5-connack-after-queued-messages", "what waits for a client is sent before its CONNACK")
def connack_late(patch: Patch) -> None:
    def make(original: Attach) -> Attach:
        def connect(
            self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            session, present = original(self, connection, request, now)
            session.send_queued(now)
            return session, present

        return connect

    patch.wrap(MqttBroker, "connect", make)


@mutant("v5-assigned-id-repeats", "every client without identifier is assigned the same one")
def assigned_id_repeats(patch: Patch) -> None:
    patch.replace(MqttBroker, "next_client_id", lambda _self: "auto")


@mutant("v5-assigned-id-not-used", "the session of an assigned identifier is kept under another one")
def assigned_id_not_used(patch: Patch) -> None:
    assigned: set[str] = set()
    choose, attach = MqttBroker.next_client_id, MqttBroker.connect

    def next_client_id(self: MqttBroker) -> str:
        client_id = choose(self)
        assigned.add(client_id)
        return client_id

    def connect(
        self: MqttBroker, connection: SessionConnection, request: ConnectRequest, now: float
    ) -> tuple[Session, bool]:
        if request.client_id in assigned:
            assigned.remove(request.client_id)
            request = msgspec.structs.replace(request, client_id=f"{request.client_id}-kept")
        return attach(self, connection, request, now)

    patch.replace(MqttBroker, "next_client_id", next_client_id)
    patch.replace(MqttBroker, "connect", connect)


@mutant("v5-refused-connection-stays-open", "after a refusing CONNACK the connection is left open")
def refused_stays_open(patch: Patch) -> None:
    original = MqttConnection.close_now

    def close_now(self: MqttConnection, now: float, *, publish_will: bool = True) -> None:
        if self.phase is not Phase.WAIT_CONNECT:
            original(self, now, publish_will=publish_will)

    patch.replace(MqttConnection, "close_now", close_now)


def _offer_more(patch: Patch, more: Properties) -> None:
    original = handshake.connack_properties
    fields = {name: value for name in more.__struct_fields__ if (value := getattr(more, name)) not in (None, ())}
    patch.replace(
        handshake, "connack_properties", lambda connection: msgspec.structs.replace(original(connection), **fields)
    )


@mutant("v5-connack-names-a-method", "CONNACK names an authentication method that nobody asked for")
def names_method(patch: Patch) -> None:
    _offer_more(patch, Properties(authentication_method="none"))


@mutant("v5-response-information-unasked", "CONNACK has Response Information that nobody asked for")
def response_information(patch: Patch) -> None:
    patch.replace(handshake, "response_information", lambda _connection, _packet: "assay/replies")


@mutant("v5-maximum-qos-refuses-subscriptions", "a subscription at QoS 2 is refused in place of being granted less")
def refuses_subscriptions(patch: Patch) -> None:
    original = handlers.subscribe_one

    def subscribe_one(
        connection: MqttConnection,
        request: SubscriptionRequest,
        identifier: int,
        group: str | None,
        now: float,
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        if request.qos == 2:
            return Reason.UNSPECIFIED_ERROR, None, None
        return original(connection, request, identifier, group, now)

    patch.replace(handlers, "subscribe_one", subscribe_one)


@mutant("v5-needs-whole-packets", "what is left of a chunk behind its last whole packet is thrown away")
def needs_whole_packets(patch: Patch) -> None:
    original = MqttConnection.receive

    def receive(self: MqttConnection, data: bytes, now: float) -> None:
        original(self, data, now)
        self._partial = bytearray()

    patch.replace(MqttConnection, "receive", receive)


@mutant("v5-unknown-method-accepted", "an authentication method is ignored")
def unknown_method(patch: Patch) -> None:
    def change(_connection: MqttConnection, packet: Connect) -> Connect:
        plain = msgspec.structs.replace(packet.properties, authentication_method=None, authentication_data=None)
        return msgspec.structs.replace(packet, properties=plain)

    change_connect(patch, change)


@mutant("v5-authentication-data-alone-accepted", "authentication data without a method are ignored")
def data_alone(patch: Patch) -> None:
    def change(_connection: MqttConnection, packet: Connect) -> Connect:
        if packet.properties.authentication_method is not None:
            return packet
        return msgspec.structs.replace(
            packet, properties=msgspec.structs.replace(packet.properties, authentication_data=None)
        )

    change_connect(patch, change)
