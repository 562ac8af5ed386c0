"""Broken enhanced authentication of MQTT 5.0."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.mqtt5_support import change_sent, rewrite_frames
from assay.reference_broker.auth import ScramError, ScramServer, ScramState
from assay.reference_broker.mqtt.connections import enhanced_auth, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import (
    V5,
    Auth,
    Connack,
    Connect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
)

_TEXT = "an explanation for people"
Send = Callable[[MqttConnection, Reason, bytes | None], None]


def _change_code(patch: Patch, old: Reason, new: Reason) -> None:
    """AUTH packets that should have the code ``old`` have ``new``."""

    def make(original: Send) -> Send:
        return lambda connection, reason, data: original(connection, new if reason is old else reason, data)

    patch.wrap(enhanced_auth, "send_auth", make)


@mutant("v5-auth-asks-with-0x00", "the server asks for more by AUTH 0x00")
def asks_with_success(patch: Patch) -> None:
    _change_code(patch, Reason.CONTINUE_AUTHENTICATION, Reason.SUCCESS)


@mutant("v5-reauthentication-ends-with-0x18", "a new exchange that succeeds ends with AUTH 0x18")
def ends_with_continue(patch: Patch) -> None:
    _change_code(patch, Reason.SUCCESS, Reason.CONTINUE_AUTHENTICATION)


@mutant("v5-connack-forgets-the-method", "CONNACK does not name the authentication method of the CONNECT")
def connack_without_method(patch: Patch) -> None:
    def change(_connection: MqttConnection, packet: Connack) -> Connack:
        plain = msgspec.structs.replace(packet.properties, authentication_method=None)
        return msgspec.structs.replace(packet, properties=plain)

    change_sent(patch, Connack, change)


def _skip_method_check(patch: Patch, *statements: str) -> None:
    original = enhanced_auth.check_method

    def check(connection: MqttConnection, packet: Auth, statement: str) -> None:
        if statement not in statements:
            original(connection, packet, statement)

    patch.replace(enhanced_auth, "check_method", check)


@mutant("v5-auth-method-unchecked", "the method of an AUTH before CONNACK is not looked at")
def method_unchecked(patch: Patch) -> None:
    _skip_method_check(patch, "MQTT-4.12.0-5")


@mutant("v5-reauthentication-method-unchecked", "the method of an AUTH after CONNACK is not looked at")
def later_method_unchecked(patch: Patch) -> None:
    _skip_method_check(patch, "MQTT-4.12.1-1")


@mutant("v5-auth-codes-unchecked", "an AUTH with an undefined code is taken for one with 0x18")
def codes_unchecked(patch: Patch) -> None:
    defined = (Reason.SUCCESS, Reason.CONTINUE_AUTHENTICATION, Reason.REAUTHENTICATE)

    def rewrite(header: int, data: bytes, body: int) -> tuple[int, bytes]:
        if header >> 4 == PacketType.AUTH and data[body] not in defined:
            data = data[:body] + bytes((Reason.CONTINUE_AUTHENTICATION,)) + data[body + 1 :]
        return header, data

    rewrite_frames(patch, rewrite)


@mutant("v5-scram-proof-unchecked", "whatever a client sends as its proof is believed")
def proof_unchecked(patch: Patch) -> None:
    original = ScramServer.on_client_final

    def on_client_final(self: ScramServer, message: bytes) -> bytes:
        try:
            return original(self, message)
        except ScramError:
            self.state = ScramState.DONE
            return b"v=AAAA"

    patch.replace(ScramServer, "on_client_final", on_client_final)


@mutant("v5-taken-over-before-authentication", "a session is taken over before the new client has proved anything")
def early_takeover(patch: Patch) -> None:
    original = enhanced_auth.begin

    def begin(connection: MqttConnection, packet: Connect) -> bytes | None:
        broker = connection.broker
        session = broker.sessions.get(packet.client_id)
        if session is not None and session.connection is not None:
            session.connection.close_for_takeover(broker.now)
        return original(connection, packet)

    patch.replace(enhanced_auth, "begin", begin)


@mutant("v5-served-while-authenticating", "PINGREQ is answered before CONNACK")
def served_early(patch: Patch) -> None:
    check = enhanced_auth.check_opening
    handle = handshake.on_packet_before_connack

    def check_opening(header: int) -> None:
        if header >> 4 != PacketType.PINGREQ:
            check(header)

    def on_packet(connection: MqttConnection, packet: Packet, now: float) -> None:
        if isinstance(packet, Pingreq):
            connection.send_packet(Pingresp())
        else:
            handle(connection, packet, now)

    patch.replace(enhanced_auth, "check_opening", check_opening)
    patch.replace(handshake, "on_packet_before_connack", on_packet)


@mutant("v5-auth-before-connect-answered", "AUTH as the first packet is answered by AUTH")
def auth_first(patch: Patch) -> None:
    original = MqttConnection.receive

    def receive(self: MqttConnection, data: bytes, now: float) -> None:
        if self.phase is Phase.WAIT_CONNECT and data[0] >> 4 == PacketType.AUTH:
            self.send(b"\xf0\x00")
        else:
            original(self, data, now)

    patch.replace(MqttConnection, "receive", receive)


def _change_later_auth(patch: Patch, handle: Callable[[MqttConnection, Auth, float], None]) -> None:
    patch.replace(enhanced_auth, "on_auth_while_connected", handle)


@mutant("v5-reauthentication-begins-with-any-code", "an AUTH with any code begins a new exchange")
def begins_with_any_code(patch: Patch) -> None:
    original = enhanced_auth.on_auth_while_connected

    def handle(connection: MqttConnection, packet: Auth, now: float) -> None:
        if connection.exchange is None:
            packet = msgspec.structs.replace(packet, reason=Reason.REAUTHENTICATE)
        original(connection, packet, now)

    _change_later_auth(patch, handle)


@mutant("v5-failed-reauthentication-forgiven", "a client that fails to authenticate anew stays connected")
def failure_forgiven(patch: Patch) -> None:
    original = enhanced_auth.on_auth_while_connected

    def handle(connection: MqttConnection, packet: Auth, now: float) -> None:
        try:
            original(connection, packet, now)
        except ProtocolError:
            if connection.exchange is None:
                raise
            connection.exchange.cancel()
            connection.exchange = None

    _change_later_auth(patch, handle)


def _say_more(patch: Patch, more: Properties, *, only_if_it_fits: bool) -> None:
    """AUTH packets carry ``more``."""

    def make(original: Send) -> Send:
        def send(connection: MqttConnection, reason: Reason, data: bytes | None) -> None:
            properties = msgspec.structs.replace(
                more, authentication_method=connection.authentication_method, authentication_data=data
            )
            encoded = encode_packet(Auth(reason=reason, properties=properties), V5)
            if only_if_it_fits and len(encoded) > connection.max_packet_out:
                original(connection, reason, data)
            else:
                connection.send(encoded)

        return send

    patch.wrap(enhanced_auth, "send_auth", make)


@mutant("v5-auth-reason-string-ignores-packet-size", "AUTH has a reason string, whether or not the client can take it")
def reason_string_too_large(patch: Patch) -> None:
    _say_more(patch, Properties(reason_string=_TEXT), only_if_it_fits=False)


@mutant("v5-auth-user-properties-ignore-packet-size", "AUTH has user properties, whether or not they fit")
def user_properties_too_large(patch: Patch) -> None:
    _say_more(patch, Properties(user_property=(("region", "here"),)), only_if_it_fits=False)


@variation("v5-auth-says-more", "AUTH has a reason string and user properties where they fit")
def auth_says_more(patch: Patch) -> None:
    _say_more(patch, Properties(reason_string=_TEXT, user_property=(("region", "here"),)), only_if_it_fits=True)


@mutant("v5-unreadable-auth-ignored", "an AUTH that cannot be read is passed over")
def unreadable_ignored(patch: Patch) -> None:
    original = MqttConnection.on_packet

    def on_packet(self: MqttConnection, header: int, data: bytes, body: int, end: int, now: float) -> None:
        try:
            original(self, header, data, body, end, now)
        except ProtocolError:
            if header >> 4 != PacketType.AUTH:
                raise

    patch.replace(MqttConnection, "on_packet", on_packet)
