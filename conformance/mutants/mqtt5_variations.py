"""Legal variations of the reference broker: what MQTT 5.0 leaves to a server, used the other way."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from assay.conformance.mutants import Patch, variation
from assay.conformance.mutants.mqtt5_support import no_fast_lane
from assay.reference_broker.core.clients import Subscriber
from assay.reference_broker.core.routing import Route, RouteEntry, SharedGroup, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.connections import error_packets as farewell
from assay.reference_broker.mqtt.connections import handlers, handshake
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker, SubscribeOutcome
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import Session, SharedOutgoing
from assay.reference_broker.mqtt.wire.codec import encode_acknowledgement, encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import (
    V5,
    Acknowledgement,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
)
from assay.reference_broker.mqtt.wire.wire_types import encode_string, encode_variable_integer
from assay.reference_broker.queues import QueueError
from assay.reference_broker.routing.message import Message
from assay.reference_broker.server import running

_PUBCOMP_START = b"\x70\x02"
_FEW = 40
_ROOMY_BYTES = 200
_TEXT = "an explanation for people"


@variation("v5-closes-silently", "the connection is closed without a DISCONNECT or CONNACK that says why")
def closes_silently(patch: Patch) -> None:
    def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
        self.error = error
        self.close_now(now)

    patch.replace(MqttConnection, "fail", fail)
    patch.replace(MqttConnection, "close_for_takeover", lambda self, _now: self.end())
    patch.replace(handshake, "refuse", lambda _connection, _error: None)


@variation("v5-disconnect-is-answered", "a DISCONNECT of the client is answered by DISCONNECT 0x00")
def disconnect_is_answered(patch: Patch) -> None:
    original = handlers.on_disconnect

    def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
        if connection.version == V5:
            connection.send_packet(Disconnect())
        original(connection, packet, now)

    patch.replace(handlers, "on_disconnect", on_disconnect)


@variation(
    "v5-complains-of-what-follows-disconnect", "who sends more after DISCONNECT is told DISCONNECT 0x83 (Artemis)"
)
def complains(patch: Patch) -> None:
    original = handlers.on_disconnect
    more: WeakSet[MqttConnection] = WeakSet()

    def make(receive: Callable[[MqttConnection, bytes, float], None]) -> Callable[[MqttConnection, bytes, float], None]:
        def note(self: MqttConnection, data: bytes, now: float) -> None:
            if b"\xe0\x00" in data[:-2]:
                more.add(self)
            receive(self, data, now)

        return note

    def on_disconnect(connection: MqttConnection, packet: Disconnect, now: float) -> None:
        if connection in more:
            connection.send_packet(Disconnect(reason=Reason.IMPLEMENTATION_SPECIFIC_ERROR))
        original(connection, packet, now)

    patch.wrap(MqttConnection, "receive", make)
    patch.replace(handlers, "on_disconnect", on_disconnect)


@variation(
    "v5-client-closes-after-disconnect", "after DISCONNECT the server waits for the client to close the connection"
)
def client_closes(patch: Patch) -> None:
    on_disconnect, handle, lost = handlers.on_disconnect, handlers.handle, MqttConnection.connection_lost
    gone: WeakKeyDictionary[MqttConnection, Disconnect] = WeakKeyDictionary()

    def later(connection: MqttConnection, packet: Disconnect, _now: float) -> None:
        gone[connection] = packet

    async def ready(*_address: object, **_settings: object) -> None:
        """The broker's own first client waits for the end of its connection."""

    def ignore(connection: MqttConnection, packet: Packet, now: float) -> None:
        if connection not in gone:
            handle(connection, packet, now)

    def closed(self: MqttConnection, now: float) -> None:
        if self in gone:
            on_disconnect(self, gone.pop(self), now)
        lost(self, now)

    patch.replace(handlers, "on_disconnect", later)
    patch.replace(handlers, "handle", ignore)
    patch.replace(MqttConnection, "connection_lost", closed)
    patch.replace(running, "check_handshake", ready)


@variation("v5-pubrel-after-refusal", "PUBREC with a failure code is answered by PUBREL, like any other")
def pubrel_after_refusal(patch: Patch) -> None:
    original = Outbound.on_acknowledgement

    def on_acknowledgement(self: Outbound, packet: Acknowledgement, now: float) -> None:
        if packet.type is PacketType.PUBREC:
            packet = msgspec.structs.replace(packet, reason=0)
        original(self, packet, now)

    patch.replace(Outbound, "on_acknowledgement", on_acknowledgement)


@variation("v5-connack-says-more", "CONNACK states every default, and has a reason string and user properties")
def connack_says_more(patch: Patch) -> None:
    original = handshake.connack_properties

    def offer(connection: MqttConnection) -> Properties:
        if connection.max_packet_out < _ROOMY_BYTES:
            return original(connection)
        return msgspec.structs.replace(
            original(connection),
            retain_available=1,
            wildcard_subscription_available=1,
            subscription_identifier_available=1,
            shared_subscription_available=1,
            reason_string=_TEXT,
            user_property=(("region", "here"), ("region", "there")),
        )

    patch.replace(handshake, "connack_properties", offer)


@variation("v5-writes-in-pieces", "output leaves in small pieces, each with a write of its own")
def writes_in_pieces(patch: Patch) -> None:
    original = MqttConnection.take_output

    def take_output(self: MqttConnection) -> bytes:
        data = original(self)
        piece = 1 if len(data) <= 64 else len(data) // 8 + 1
        if self.closing or len(data) <= piece:
            return data
        self.send(data[piece:])
        # A due timer makes the driver run another turn.
        self.broker.timers.schedule(self.broker.now, lambda _now: None)
        return data[:piece]

    patch.replace(MqttConnection, "take_output", take_output)


@variation("v5-grants-at-most-qos-1", "subscriptions are granted QoS 1 at most")
def grants_qos_1(patch: Patch) -> None:
    original = handlers.subscribe_one

    def subscribe_one(
        connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        lower = msgspec.structs.replace(request, qos=min(1, request.qos))
        return original(connection, lower, identifier, group, now)

    patch.replace(handlers, "subscribe_one", subscribe_one)


@variation("few-subscriptions-for-each-client", "a client may have forty subscriptions, and is refused more")
def few_subscriptions(patch: Patch) -> None:
    original = handlers.subscribe_one

    def subscribe_one(
        connection: MqttConnection, request: SubscriptionRequest, identifier: int, group: str | None, now: float
    ) -> tuple[int, SubscribeOutcome | None, Subscription | None]:
        if len(connection.active_session.subscriptions) >= _FEW:
            return Reason.QUOTA_EXCEEDED, None, None
        return original(connection, request, identifier, group, now)

    patch.replace(handlers, "subscribe_one", subscribe_one)


@variation("taken-over-once-a-second", "who takes over a session that was taken over a second ago is refused")
def flapping(patch: Patch) -> None:
    taken_at: dict[str, float] = {}

    def make(original: Callable[..., tuple[Session, bool]]) -> Callable[..., tuple[Session, bool]]:
        def connect(
            self: MqttBroker, connection: MqttConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            session = self.sessions.get(request.client_id)
            if session is not None and session.connection is not None:
                if now - taken_at.get(request.client_id, 0.0) < 1.0:
                    raise ProtocolError("taken over again", "MQTT-5.4.9", Reason.CONNECTION_RATE_EXCEEDED)
                taken_at[request.client_id] = now
            return original(self, connection, request, now)

        return connect

    patch.wrap(MqttBroker, "connect", make)


@variation("v5-repeats-on-the-same-connection-refused", "an identifier that comes again on its connection is in use")
def repeats_refused(patch: Patch) -> None:
    begun: WeakKeyDictionary[Inbound, set[int]] = WeakKeyDictionary()
    original = Inbound.on_publish

    def on_publish(self: Inbound, packet: Publish, now: float) -> None:
        here = begun.setdefault(self, set())
        if packet.qos == 2 and packet.packet_id in here & self._connection.active_session.inbound_qos2.keys():
            refusal = Acknowledgement(
                type=PacketType.PUBREC, packet_id=packet.packet_id, reason=Reason.PACKET_IDENTIFIER_IN_USE
            )
            self.acknowledge(encode_acknowledgement(refusal, V5))
            return
        here.add(packet.packet_id)
        original(self, packet, now)

    patch.replace(Inbound, "on_publish", on_publish)
    no_fast_lane(patch)


@variation(
    "pubrec-said-again-to-who-is-back", "PUBREC of an open exchange comes once more, right behind CONNACK (mochi)"
)
def pubrec_again(patch: Patch) -> None:
    def make(original: Callable[[MqttBroker, Session, float], None]) -> Callable[[MqttBroker, Session, float], None]:
        def resume(self: MqttBroker, session: Session, now: float) -> None:
            if isinstance(session.connection, MqttConnection):
                for packet_id in session.inbound_qos2:
                    session.connection.send(bytes((0x50, 2)) + packet_id.to_bytes(2, "big"))
            original(self, session, now)

        return resume

    patch.wrap(MqttBroker, "resume", make)


@variation("v5-one-copy-per-subscription", "overlapping subscriptions get a copy of the message each")
def one_copy_each(patch: Patch) -> None:
    def match(self: SubscriptionTree, topic: str) -> Route:
        nodes = list(self.walk(topic))
        entries = [
            RouteEntry(session, [subscription]) for node in nodes for session, subscription in node.subscribers.items()
        ]
        return Route(entries, [group for node in nodes for group in node.groups.values()])

    patch.replace(SubscriptionTree, "match", match)


@variation("v5-puback-0x00-without-subscribers", "a message that nobody gets is acknowledged with 0x00, not 0x10")
def plain_puback(patch: Patch) -> None:
    original = handlers.acknowledgement

    def acknowledgement(
        connection: MqttConnection, qos: int, packet_id: int, error: QueueError | None, *, matched: bool
    ) -> bytes | None:
        return original(connection, qos, packet_id, error, matched=True)

    patch.replace(handlers, "acknowledgement", acknowledgement)


@variation("v5-pubcomp-0x00-for-unknown", "an unknown PUBREL is answered by PUBCOMP 0x00, not 0x92")
def plain_pubcomp(patch: Patch) -> None:
    def on_pubrel(self: Inbound, packet_id: int) -> None:
        self._connection.active_session.inbound_qos2.pop(packet_id, None)
        self.acknowledge(_PUBCOMP_START + packet_id.to_bytes(2, "big"))

    patch.replace(Inbound, "on_pubrel", on_pubrel)


@variation("v5-retained-before-suback", "retained messages are sent before the SUBACK of their subscription")
def retained_first(patch: Patch) -> None:
    original = handlers.on_subscribe

    def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
        already = len(connection._out)
        original(connection, packet, now)
        suback, *messages = connection._out[already:]
        connection._out[already:] = [*messages, suback]

    patch.replace(handlers, "on_subscribe", on_subscribe)


@variation("v5-shared-goes-to-first", "all messages of a share go to its first connected member")
def shared_to_first(patch: Patch) -> None:
    def choose(self: SharedGroup) -> tuple[Subscriber, Subscription] | None:
        members = list(self.members.items())
        return next((member for member in members if member[0].connection is not None), members[0] if members else None)

    patch.replace(SharedGroup, "choose", choose)


@variation("v5-shared-moved-at-once", "what a member did not acknowledge at QoS 1 moves as soon as its connection ends")
def shared_moved_at_once(patch: Patch) -> None:
    original = MqttBroker.detach

    def detach(self: MqttBroker, session: Session, now: float, *, publish_will: bool) -> None:
        original(self, session, now, publish_will=publish_will)
        if session.ended:
            return
        begun = [
            (packet_id, outgoing)
            for packet_id, outgoing in session.in_flight.items()
            if isinstance(outgoing, SharedOutgoing) and outgoing.qos == 1
        ]
        for packet_id, _ in begun:
            session.finish(packet_id)
        self.pass_on([outgoing for _, outgoing in begun], now)

    patch.replace(MqttBroker, "detach", detach)


@variation("v5-no-reason-texts", "reason strings are never sent")
def no_texts(patch: Patch) -> None:
    def encode(packet: Packet, version: int) -> bytes:
        if isinstance(packet, Connack | Disconnect):
            plain = msgspec.structs.replace(packet.properties, reason_string=None)
            packet = msgspec.structs.replace(packet, properties=plain)
        return encode_packet(packet, version)

    patch.replace(farewell, "encode_packet", encode)


@variation("v5-reason-texts-everywhere", "SUBACK and UNSUBACK have a reason string if the client allows it and it fits")
def texts_everywhere(patch: Patch) -> None:
    original = MqttConnection.send_packet

    def send_packet(self: MqttConnection, packet: Packet) -> None:
        if isinstance(packet, Suback | Unsuback) and self.problem_information:
            explained = msgspec.structs.replace(packet, properties=Properties(reason_string=_TEXT))
            if len(encode_packet(explained, self.version)) <= self.max_packet_out:
                packet = explained
        original(self, packet)

    patch.replace(MqttConnection, "send_packet", send_packet)


@variation("v5-server-uses-aliases", "topic aliases are used towards clients that allow them")
def uses_aliases(patch: Patch) -> None:
    allowed: WeakKeyDictionary[MqttConnection, int] = WeakKeyDictionary()
    known: WeakKeyDictionary[MqttConnection, dict[str, int]] = WeakKeyDictionary()
    accept, send = handshake.accept, Outbound.send_publish

    def remember(connection: MqttConnection, packet: Connect, now: float) -> None:
        allowed[connection] = packet.properties.topic_alias_maximum or 0
        accept(connection, packet, now)

    def send_publish(
        self: Outbound,
        packet_id: int,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
    ) -> bool:
        aliases = known.setdefault(self._connection, {})
        alias = aliases.get(message.topic)
        if (
            qos
            or identifiers
            or message.user_properties
            or (alias is None and len(aliases) >= allowed[self._connection])
        ):
            return send(self, packet_id, message, qos, retain, dup, identifiers)
        topic = encode_string("" if alias is not None else message.topic)
        alias = aliases.setdefault(message.topic, len(aliases) + 1)
        body = topic + b"\x03\x23" + alias.to_bytes(2, "big") + message.payload
        self._connection.send(bytes((0x30 | retain,)) + encode_variable_integer(len(body)) + body)
        return True

    no_fast_lane(patch)
    patch.replace(handshake, "accept", remember)
    patch.replace(Outbound, "send_publish", send_publish)


@variation(
    "v5-retained-qos-0-not-kept",
    "a retained message of QoS 0 is forgotten at once",
    freedom="3.3.1.3 of both versions: a server may discard a retained message of QoS 0 at any time",
)
def retained_qos_0(patch: Patch) -> None:
    original = RetainedStore.store

    def store(self: RetainedStore, message: Message) -> bool:
        if message.qos == 0 and message.payload:
            self.delete(message.topic)
            return True
        return original(self, message)

    patch.replace(RetainedStore, "store", store)
