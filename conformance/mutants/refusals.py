"""Broken refusals: what a server does about what a client is not allowed to do, and how it reads a CONNECT."""

from __future__ import annotations

from weakref import WeakSet

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.mqtt5_support import change_sent
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.mqtt.connections import handlers, handshake, inbound
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire import codec
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import (
    NO_PROPERTIES,
    V5,
    V311,
    Connack,
    Connect,
    Packet,
    PacketType,
    Suback,
    SubscriptionRequest,
)
from assay.reference_broker.mqtt.wire.properties import read_properties
from assay.reference_broker.mqtt.wire.wire_types import Reader
from assay.reference_broker.queues import QueueError, QueueErrorCode

_NO_SUCH_CODE = 6
"""The return codes of 3.1.1 end at 5."""


@mutant("connect-fields-in-any-order", "a CONNECT that makes no sense is read again, user name before will")
def any_order(patch: Patch) -> None:
    original = codec.DECODERS[PacketType.CONNECT]

    def decode(header: int, reader: Reader, version: int) -> Packet:
        start = reader._position
        try:
            return original(header, reader, version)
        except ProtocolError:
            reader._position = start
        reader.binary()
        reader.version = reader.byte()
        flags = reader.byte()
        keep_alive_s = reader.two_bytes()
        properties = read_properties(reader, PacketType.CONNECT) if reader.version == V5 else NO_PROPERTIES
        client_id = reader.string()
        if flags & 0x80:
            reader.string()
        will = codec.read_will(reader, flags, reader.version) if flags & 0x04 else None
        return Connect(
            version=reader.version,
            client_id=client_id,
            clean_start=bool(flags & 0x02),
            keep_alive_s=keep_alive_s,
            will=will,
            properties=properties,
        )

    patch.item(codec.DECODERS, PacketType.CONNECT, decode)


@mutant("v3-refusal-code-outside-the-table", "a refusal that no return code fits gets the code 6")
def code_outside_the_table(patch: Patch) -> None:
    original = handshake.refuse

    def refuse(connection: MqttConnection, error: ProtocolError) -> None:
        original(connection, error)
        if connection.version == V311 and error.reason not in handshake.RETURN_CODES_311:
            connection.send_packet(Connack(reason=_NO_SUCH_CODE))

    patch.replace(handshake, "refuse", refuse)


def _refused_user_stays(patch: Patch) -> None:
    original = MqttConnection.close_now
    refused: WeakSet[MqttConnection] = WeakSet()

    def close_now(self: MqttConnection, now: float, *, publish_will: bool = True) -> None:
        # What follows the refused CONNECT is an error of its own.
        if isinstance(self.error, ProtocolError) and self.error.reason is Reason.BAD_USER_NAME_OR_PASSWORD:
            refused.add(self)
        if self not in refused:
            original(self, now, publish_will=publish_will)

    patch.replace(MqttConnection, "close_now", close_now)


@mutant("v3-refused-user-stays-connected", "after CONNACK 4 the connection is left open")
def refused_user_311(patch: Patch) -> None:
    _refused_user_stays(patch)


@mutant("v5-refused-user-stays-connected", "after CONNACK 0x86 the connection is left open")
def refused_user_5(patch: Patch) -> None:
    _refused_user_stays(patch)


@variation("v3-user-refused-with-code-5", "a user is refused by CONNACK 5 in place of 4")
def code_5(patch: Patch) -> None:
    patch.item(handshake.RETURN_CODES_311, Reason.BAD_USER_NAME_OR_PASSWORD, 5)


@mutant("v3-forbidden-publish-unanswered", "a PUBLISH that is not allowed is dropped without an answer")
def unanswered(patch: Patch) -> None:
    original = handlers.acknowledgement

    def acknowledgement(
        connection: MqttConnection, qos: int, packet_id: int, error: QueueError | None, *, matched: bool
    ) -> bytes | None:
        if error is not None and connection.version == V311:
            return b""
        return original(connection, qos, packet_id, error, matched=matched)

    patch.replace(handlers, "acknowledgement", acknowledgement)


@variation("v3-forbidden-publish-acknowledged", "a PUBLISH that is not allowed is dropped, yet acknowledged")
def acknowledged(patch: Patch) -> None:
    original = handlers.acknowledgement

    def acknowledgement(
        connection: MqttConnection, qos: int, packet_id: int, error: QueueError | None, *, matched: bool
    ) -> bytes | None:
        told = None if connection.version == V311 else error
        return original(connection, qos, packet_id, told, matched=matched)

    patch.replace(handlers, "acknowledgement", acknowledgement)


@mutant("refused-filters-left-out-of-suback", "SUBACK has no code for a filter that was refused")
def left_out(patch: Patch) -> None:
    def change(_connection: MqttConnection, packet: Suback) -> Suback:
        return msgspec.structs.replace(packet, reasons=tuple(code for code in packet.reasons if code < 0x80))

    change_sent(patch, Suback, change)


@mutant("v3-clean-sessions-swept-while-connected", "when a client leaves, all clean sessions lose their QoS 2 state")
def swept(patch: Patch) -> None:
    original = MqttBroker.detach

    def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
        original(self, session, now, publish_will=publish_will)
        for other in self.sessions.values():
            if other.expiry_s <= 0:
                other.inbound_qos2.clear()

    patch.replace(MqttBroker, "detach", detach)


@mutant("v3-vendor-prefix-needed", "only client identifiers with the vendor's prefix may subscribe")
def vendor_prefix(patch: Patch) -> None:
    original = handlers.subscribe_one

    def subscribe_one(
        connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        if not connection.client_id.startswith("vendor-"):
            return Reason.UNSPECIFIED_ERROR, None, None
        return original(connection, request, identifier, group, now)

    patch.replace(handlers, "subscribe_one", subscribe_one)


@mutant("v5-refused-identifier-kept", "the identifier of a refused QoS 2 PUBLISH is remembered as if it were taken")
def identifier_kept(patch: Patch) -> None:
    def settle(session: Session, packet_id: int, _error: QueueError | None) -> None:
        session.inbound_qos2[packet_id] = True

    patch.replace(inbound, "settle_inbound", settle)


@mutant("v5-forbidden-publish-refused-with-0x95", "a PUBLISH that is not allowed gets a code that PUBACK does not have")
def wrong_puback(patch: Patch) -> None:
    patch.item(handlers.PUBLISH_REASONS, QueueErrorCode.NOT_ALLOWED, Reason.PACKET_TOO_LARGE)
