"""Legal variations that every case must pass, whatever it is about: the self-check runs the whole suite on each.

A variation here uses a freedom that the standards leave to any server at any time, and names the clause that gives it.
Section numbers are those of MQTT 5.0; 3.1.1 says the same in its own section 4 unless the text names another place.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from inspect import getattr_static
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from assay.conformance.explore.topics import is_shared, matches, pattern
from assay.conformance.mutants import Patch, variation
from assay.conformance.mutants.mqtt5_support import no_fast_lane
from assay.conformance.mutants.output_order import FIRST_S, is_kept, send_by_lanes, topic_of
from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.config_mqtt import MqttConfig
from assay.reference_broker.core.routing import SharedGroup, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.connections import connection as connection_module
from assay.reference_broker.mqtt.connections import error_packets as farewell
from assay.reference_broker.mqtt.connections import handlers, handshake, publish_acks
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.sending import Sending
from assay.reference_broker.mqtt.sessions.session import MAX_PACKET_ID, Session
from assay.reference_broker.mqtt.wire.codec import encode_acknowledgement, encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import (
    V5,
    Acknowledgement,
    Connect,
    Packet,
    PacketType,
    Properties,
    Unsuback,
)
from assay.reference_broker.queues import QueueError
from assay.reference_broker.routing.message import Message

_SLOW_S = (0.03, 0.15)
_OVERTAKEN_S = 0.05
_LAGS_S = 0.25
_LATE_ACK_S = 0.2
_LATE_WILL_S = 3.0
_LATE_RETAINED_S = 0.15
_LATE_RESUME_S = 1.0
_LATE_CLOSE_S = 1.0
_A_MOMENT_S = 0.3
_FORWARDED_S = 0.05
_UP_TO_S = 0.1
_RUN_IDS = 1_000
_LONG_ID_BYTES = 200
_ROOMY_BYTES = 2_000
_SMALL = {
    "receive_maximum": 1,
    "max_packet_bytes": 5_000,
    "topic_alias_maximum": 0,
    "max_session_expiry_s": 100,
    "max_keep_alive_s": 20,
}
"""Of a server's configuration, what takes the place of its defaults."""
_ACKS = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP)
_ANSWERS = (*_ACKS, PacketType.SUBACK, PacketType.UNSUBACK)
_LENIENT = {Reason.NO_SUBSCRIPTION_EXISTED, Reason.NO_MATCHING_SUBSCRIBERS, Reason.PACKET_IDENTIFIER_NOT_FOUND}


@variation(
    "any-window-of-one",
    "a client has never more than one QoS 1 or 2 message that it has not acknowledged",
    freedom="4.9: Receive Maximum is an upper limit; no clause asks a server to use it",
    silences=(
        "mqtt311/order/pubrels-follow-the-pubrecs",
        "mqtt311/publish/deliveries-in-flight-have-distinct-identifiers",
        "mqtt311/restart/qos2-releases-in-their-order",
        "mqtt311/restart/qos2-releases-side-by-side",
        "mqtt311/session/new-identifiers-spare-open-exchanges",
        "mqtt311/session/unacknowledged-deliveries-come-in-order",
        "mqtt5/flow-control/open-exchanges-count-after-resume",
        "mqtt5/qos/delivery-at-qos1-uses-free-identifiers",
        "mqtt5/qos/delivery-at-qos2-runs-to-pubrel",
        "mqtt5/restart/qos2-releases-side-by-side",
        "mqtt5/session/new-identifiers-spare-open-exchanges",
    ),
)
def window_of_one(patch: Patch) -> None:
    def make(original: Callable[..., tuple[Session, bool]]) -> Callable[..., tuple[Session, bool]]:
        def connect(
            self: MqttBroker, connection: MqttConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            return original(self, connection, msgspec.structs.replace(request, window=1), now)

        return connect

    patch.wrap(MqttBroker, "connect", make)


@variation(
    "any-pingresp-first",
    "PINGRESP overtakes whatever else is under way to the client",
    freedom="4.6 orders messages of a topic and acknowledgements; 3.12 does not order PINGRESP against them",
)
def pingresp_first(patch: Patch) -> None:
    def lane(_connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        kind = frame[0] >> 4
        if kind == PacketType.PINGRESP:
            return kind, FIRST_S
        return "", 0.0 if kind == PacketType.CONNACK else _OVERTAKEN_S

    send_by_lanes(patch, lane)


@variation(
    "any-pingresp-last",
    "PINGRESP comes a quarter of a second after what was asked for later",
    freedom="4.6 and 3.12, as above; no clause gives PINGRESP a deadline",
)
def pingresp_last(patch: Patch) -> None:
    def lane(_connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        lags = frame[0] >> 4 == PacketType.PINGRESP
        return lags, _LAGS_S if lags else 0.0

    send_by_lanes(patch, lane)


@variation(
    "any-slow-answers",
    "everything that a client is sent is 30 to 150 milliseconds late",
    freedom="no clause gives a server's packets a deadline",
)
def slow_answers(patch: Patch) -> None:
    rng = random.Random(12)
    send_by_lanes(patch, lambda _connection, _frame: ("", rng.uniform(*_SLOW_S)))


@variation(
    "any-late-acknowledgements",
    "PUBACK, PUBREC and PUBCOMP come a fifth of a second after whatever their PUBLISH has caused",
    freedom="4.3.2 and 4.3.3 give acknowledgements no deadline; 4.6 orders those of clients among themselves",
)
def late_acknowledgements(patch: Patch) -> None:
    def lane(_connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        late = frame[0] >> 4 in _ACKS
        return late, _LATE_ACK_S if late else 0.0

    send_by_lanes(patch, lane)


@variation(
    "any-answers-in-any-order",
    "acknowledgements, SUBACKs and UNSUBACKs come in another order than what they answer, and PUBRELs of 5.0, too",
    freedom="4.6 orders what clients acknowledge; 3.1.1 adds a server's deliveries, with their PUBRELs, and no more",
)
def any_order(patch: Patch) -> None:
    rng = random.Random(12)

    def lane(connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        kind = frame[0] >> 4
        if kind in _ANSWERS or (kind == PacketType.PUBREL and connection.version == V5):
            return frame, rng.uniform(0.0, _UP_TO_S)
        return "", 0.0

    send_by_lanes(patch, lane)


@variation(
    "any-late-qos-0",
    "a server gets to messages of QoS 0 a tenth of a second later than to whatever else their client sends",
    freedom="4.3.1: nothing answers a PUBLISH of QoS 0, and no clause says when, or behind what, it is forwarded",
)
def late_qos_0(patch: Patch) -> None:
    def make(original: Callable[[Inbound, Message, float], None]) -> Callable[[Inbound, Message, float], None]:
        def publish(self: Inbound, message: Message, now: float) -> None:
            if message.topic.startswith("$"):
                original(self, message, now)
                return
            connection, broker, session = self._connection, self._broker, self._connection.session

            def get_to_it(later: float) -> None:
                if connection.phase is Phase.CLOSED:
                    broker.publish(message, session, later)
                else:
                    original(self, message, later)

            broker.timers.schedule(now + _UP_TO_S, get_to_it)

        return publish

    patch.wrap(Inbound, "publish_qos0", make)
    no_fast_lane(patch)


@variation(
    "any-late-qos-1-and-2",
    "a server gets to messages of QoS 1 and 2 a tenth of a second later than to whatever else their client sends",
    freedom="4.3.2 and 4.3.3: nothing says how soon a server takes what it has not acknowledged, or behind what; 4.6, "
    "as above; 4.4: what was not acknowledged before the connection ended is sent again",
)
def late_confirmed(patch: Patch) -> None:
    waiting: WeakKeyDictionary[MqttConnection, set[int]] = WeakKeyDictionary()
    """Packet ids at QoS 2."""

    def make(
        original: Callable[[Inbound, Message, int, float], None],
    ) -> Callable[[Inbound, Message, int, float], None]:
        def publish(self: Inbound, message: Message, packet_id: int, now: float) -> None:
            if message.topic.startswith("$"):
                original(self, message, packet_id, now)
                return
            connection, broker, session = self._connection, self._broker, self._connection.session
            begun = waiting.setdefault(connection, set())
            if packet_id in begun:
                return  # the same message once more

            def get_to_it(later: float) -> None:
                begun.discard(packet_id)
                if session is not None and session.connection is connection:
                    if broker.journal is not None:
                        connection.await_write(broker.journal.turn)
                    try:
                        original(self, message, packet_id, later)
                    except ProtocolError as error:
                        connection.fail(error, later)
                    connection.rouse()
                elif message.qos == 1:
                    broker.publish(message, session, later)

            if message.qos == 2:
                begun.add(packet_id)
            broker.timers.schedule(now + _UP_TO_S, get_to_it)

        return publish

    patch.wrap(Inbound, "publish_confirmed", make)
    no_fast_lane(patch)


@variation(
    "any-forwarded-later",
    "what comes at QoS 1 or 2 is acknowledged first, and retained and forwarded a moment later",
    freedom="4.3.2 and 4.3.3: an acknowledgement says that the server took ownership; it need not have delivered yet",
)
def forwarded_later(patch: Patch) -> None:
    acknowledging: list[Message] = []

    def make(
        original: Callable[[Inbound, Message, int, float], None],
    ) -> Callable[[Inbound, Message, int, float], None]:
        def publish_confirmed(self: Inbound, message: Message, packet_id: int, now: float) -> None:
            acknowledging.append(message)
            try:
                original(self, message, packet_id, now)
            finally:
                acknowledging.clear()

        return publish_confirmed

    def make_publish(original: Callable[..., bool]) -> Callable[..., bool]:
        def publish(self: MqttBroker, message: Message, publisher: Session | None, now: float, *asked: object) -> bool:
            # What is written down is there when it is acknowledged: a kill takes back nothing.
            if message not in acknowledging or message.topic.startswith("$") or self.journal is not None:
                return original(self, message, publisher, now, *asked)

            def get_to_it(later: float) -> None:
                with suppress(QueueError):
                    original(self, message, publisher, later, *asked)

            self.timers.schedule(now + _FORWARDED_S, get_to_it)
            return True

        return publish

    patch.wrap(Inbound, "publish_confirmed", make)
    patch.wrap(MqttBroker, "publish", make_publish)
    no_fast_lane(patch)


@variation(
    "any-back-pressure",
    "a publish is acknowledged only once no connected client has to be sent what its client published before",
    freedom="4.3.2 and 4.3.3: an acknowledgement says that the server took ownership, and may wait until it did",
)
def back_pressure(patch: Patch) -> None:
    def is_pressed(connection: MqttConnection) -> bool:
        return any(
            session.connection is not None
            and any(outgoing.message.publisher == connection.client_id for outgoing in session.queued)
            for session in connection.broker.sessions.values()
        )

    def lane(_connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        return frame[0] >> 4 in _ACKS, 0.0

    def is_held(connection: MqttConnection, frame: bytes) -> bool:
        return frame[0] >> 4 in _ACKS and not connection.closing and is_pressed(connection)

    send_by_lanes(patch, lane, is_held)


@variation(
    "any-qos-0-first",
    "messages of QoS 0 overtake those of QoS 1 and 2",
    freedom="4.6: the order of a topic is that of its messages of one QoS",
)
def qos_0_first(patch: Patch) -> None:
    def lane(_connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        kind = frame[0] >> 4
        waits = (kind == PacketType.PUBLISH and frame[0] & 0x06) or kind == PacketType.PUBREL
        return bool(waits), _OVERTAKEN_S if waits else 0.0

    send_by_lanes(patch, lane)


@variation(
    "any-topics-apart",
    "of the topics that come to a client, each second one overtakes the one before it",
    freedom="4.6: order is within a topic; 4.4 orders what is sent again, so sessions that are kept are left alone",
)
def topics_apart(patch: Patch) -> None:
    seen: WeakKeyDictionary[MqttConnection, dict[bytes, int]] = WeakKeyDictionary()

    def lane(connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        topic = topic_of(frame)
        if not topic or topic.startswith(b"$queue/") or (frame[0] & 0x06 and is_kept(connection)):
            # A queue has an order of its own, whatever the topics of its messages.
            return "", 0.0
        topics = seen.setdefault(connection, {})
        place = topics.setdefault(topic, len(topics))
        return topic, (1 - place & 1) * _OVERTAKEN_S

    send_by_lanes(patch, lane)


@variation(
    "any-qos-apart",
    "messages of QoS 2 overtake those of QoS 1",
    freedom="4.6, as above; 4.4 orders what is sent again, so sessions that are kept are left alone",
)
def qos_apart(patch: Patch) -> None:
    def lane(connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        is_first_level = frame[0] >> 4 == PacketType.PUBLISH and frame[0] & 0x06 == 0x02
        waits = is_first_level and not topic_of(frame).startswith(b"$queue/") and not is_kept(connection)
        return waits, _OVERTAKEN_S if waits else 0.0

    send_by_lanes(patch, lane)


@variation(
    "any-shares-in-any-order",
    "of the messages of a topic that come to a client for shares alone, every other one is overtaken by the next",
    freedom="4.6.0-6: the order of a topic is that of subscriptions that are not shared",
)
def shares_in_any_order(patch: Patch) -> None:
    counted: WeakKeyDictionary[MqttConnection, Counter[bytes]] = WeakKeyDictionary()

    def lane(connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        topic = topic_of(frame)
        if not topic or connection.session is None or (frame[0] & 0x06 and is_kept(connection)):
            return "", 0.0
        filters = [each for each in connection.session.subscriptions if matches(pattern(each), topic.decode())]
        if not filters or not all(map(is_shared, filters)):
            return "", 0.0
        counts = counted.setdefault(connection, Counter())
        counts[topic] += 1
        is_late = counts[topic] % 2 == 1
        return is_late, is_late * _OVERTAKEN_S

    send_by_lanes(patch, lane)


@variation(
    "any-retained-late",
    "retained messages come some time after their SUBACK",
    freedom="3.8.4: they are sent when a subscription is made; nothing says how soon",
)
def retained_late(patch: Patch) -> None:
    def lane(connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        topic = topic_of(frame)
        if not topic or (frame[0] & 0x06 and is_kept(connection)):
            return "", 0.0
        return topic, _LATE_RETAINED_S if frame[0] & 1 else 0.0

    send_by_lanes(patch, lane)


@variation(
    "any-retained-after-live",
    "retained messages are looked for some time after their SUBACK, and what is published meanwhile goes first",
    freedom="3.8.4 and 4.6.0-6, as above: the order is that of messages being processed, and of one QoS",
)
def retained_after_live(patch: Patch) -> None:
    late: WeakKeyDictionary[Session, tuple[MqttBroker, float]] = WeakKeyDictionary()

    def make(original: Callable[[Sending, Session, int], int]) -> Callable[[Sending, Session, int], int]:
        def send(self: Sending, session: Session, limit: int) -> int:
            broker, due = late.get(session, (None, 0.0))
            return original(self, session, limit) if broker is None or broker.now >= due else 1

        return send

    def make_due(
        original: Callable[[MqttBroker, Session, Subscription, float], None],
    ) -> Callable[[MqttBroker, Session, Subscription, float], None]:
        def send_retained(self: MqttBroker, session: Session, subscription: Subscription, now: float) -> None:
            due = now + _LATE_RETAINED_S
            late[session] = self, due
            self.timers.schedule(due, lambda _now: self.sending.wake(session))
            original(self, session, subscription, now)

        return send_retained

    patch.wrap(Sending, "send_retained", make)
    patch.wrap(MqttBroker, "send_retained", make_due)


@variation(
    "any-late-wills",
    "wills are published three seconds later than possible, and retained a third of a second after others have them",
    freedom="3.1.2.5: a will is published after the connection was closed; no clause says how soon, or in which order",
)
def late_wills(patch: Patch) -> None:
    publishing: list[MqttBroker] = []
    """Whose will is published."""

    def make_store(original: Callable[[RetainedStore, Message], bool]) -> Callable[[RetainedStore, Message], bool]:
        def store(self: RetainedStore, message: Message) -> bool:
            if not publishing:
                return original(self, message)

            before = self.get(message.topic)

            def later(_now: float) -> None:
                # What was retained meanwhile is the newer message.
                if self.get(message.topic) is before:
                    original(self, message)

            publishing[0].timers.schedule(publishing[0].now + _A_MOMENT_S, later)
            return True

        return store

    def make(original: Callable[[MqttBroker, Session, float], None]) -> Callable[[MqttBroker, Session, float], None]:
        def send_will(self: MqttBroker, session: Session, now: float) -> None:
            due, session.will, session.will_timer = session.will, None, None

            def send(later: float) -> None:
                kept = session.will, session.will_timer
                session.will = due
                publishing.append(self)
                original(self, session, later)
                publishing.clear()
                session.will, session.will_timer = kept

            if due is not None:
                self.timers.schedule(now + _LATE_WILL_S, send)

        return send_will

    patch.wrap(RetainedStore, "store", make_store)
    patch.wrap(MqttBroker, "send_will", make)


@variation(
    "any-plain-codes",
    "success is 0x00 where 0x10, 0x11 or 0x92 would say more",
    freedom="3.4.2.1, 3.5.2.1: 0x10 is a may; 3.11.3 and 3.7.2.1 leave the choice among their codes",
)
def plain_codes(patch: Patch) -> None:
    def encode(packet: Packet, version: int) -> bytes:
        if isinstance(packet, Unsuback):
            reasons = tuple(0 if reason in _LENIENT else reason for reason in packet.reasons)
            packet = msgspec.structs.replace(packet, reasons=reasons)
        return encode_packet(packet, version)

    def encode_ack(packet: Acknowledgement, version: int) -> bytes:
        if packet.reason in _LENIENT:
            packet = msgspec.structs.replace(packet, reason=Reason.SUCCESS)
        return encode_acknowledgement(packet, version)

    patch.replace(connection_module, "encode_packet", encode)
    for module in (handlers, publish_acks):
        patch.replace(module, "encode_acknowledgement", encode_ack)


@variation(
    "any-says-little",
    "no packet has a reason string or user properties of the server's own, and connections end without DISCONNECT",
    freedom="3.x.2.2: these properties are optional; 4.13: DISCONNECT before closing is a may, or a SHOULD",
)
def says_little(patch: Patch) -> None:
    def encode(packet: Packet, version: int) -> bytes:
        properties = getattr(packet, "properties", None)
        if properties is not None and (properties.reason_string is not None):
            plain = msgspec.structs.replace(properties, reason_string=None)
            packet = msgspec.structs.replace(packet, properties=plain)
        return encode_packet(packet, version)

    def encode_ack(packet: Acknowledgement, version: int) -> bytes:
        plain = msgspec.structs.replace(packet.properties, reason_string=None)
        return encode_acknowledgement(msgspec.structs.replace(packet, properties=plain), version)

    def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
        self.error = error
        self.close_now(now)

    for module in (connection_module, farewell):
        patch.replace(module, "encode_packet", encode)
    patch.replace(handlers, "encode_acknowledgement", encode_ack)
    patch.replace(MqttConnection, "fail", fail)
    patch.replace(MqttConnection, "close_for_takeover", lambda self, _now: self.end())


@variation(
    "any-packet-id",
    "packet identifiers are random",
    freedom="2.2.1: any identifier that is not in use",
)
def random_packet_ids(patch: Patch) -> None:
    rng = random.Random(12)

    def make(original: Callable[..., int]) -> Callable[..., int]:
        def allocate(self: Session, *arguments: int) -> int:
            self._next_packet_id = rng.randint(1, MAX_PACKET_ID - _RUN_IDS)
            return original(self, *arguments)

        return allocate

    patch.wrap(Session, "allocate_packet_id", make)
    patch.wrap(Session, "can_send_run", make)


@variation(
    "any-late-resumption",
    "a client that comes back is sent what waits for it only a second later",
    freedom="4.4: a server sends again when a client reconnects; no clause says how soon",
)
def late_resumption(patch: Patch) -> None:
    def make(original: Callable[[MqttBroker, Session, float], None]) -> Callable[[MqttBroker, Session, float], None]:
        def resume(self: MqttBroker, session: Session, now: float) -> None:
            connection = session.connection
            session.window = 0  # nothing new overtakes what is sent again

            def go_on(later: float) -> None:
                if session.connection is connection:
                    original(self, session, later)

            if session.in_flight or session.queued or session.retained is not None:
                self.timers.schedule(now + _LATE_RESUME_S, go_on)
            else:
                original(self, session, now)

        return resume

    patch.wrap(MqttBroker, "resume", make)


@variation(
    "any-late-end",
    "the connection of a client that broke a rule, or was taken over, ends a second later",
    freedom="4.13: the server closes the connection; no clause says how soon",
)
def late_end(patch: Patch) -> None:
    blamed: WeakKeyDictionary[MqttConnection, float] = WeakKeyDictionary()
    over: WeakSet[MqttConnection] = WeakSet()
    is_done = getattr_static(MqttConnection, "may_close").fget

    def may_close(self: MqttConnection) -> bool:
        return bool(is_done(self)) and self.broker.now >= blamed.get(self, 0.0)

    def make(end: Callable[[MqttConnection], None]) -> Callable[[MqttConnection], None]:
        def end_late(self: MqttConnection) -> None:
            was_closed = self.phase is Phase.CLOSED
            end(self)
            if not was_closed and self in over:
                due = blamed[self] = self.broker.now + _LATE_CLOSE_S
                self.broker.timers.schedule(due, lambda _now: self.rouse())

        return end_late

    def blame(change: Callable[..., None]) -> Callable[..., None]:
        def blamed_now(self: MqttConnection, *arguments: object) -> None:
            over.add(self)
            change(self, *arguments)

        return blamed_now

    patch.wrap(MqttConnection, "fail", blame)
    patch.wrap(MqttConnection, "close_for_takeover", blame)
    patch.wrap(MqttConnection, "end", make)
    patch.replace(MqttConnection, "may_close", property(may_close))


@variation(
    "any-late-forgetting",
    "a session that ends with its connection still gets messages for a third of a second, unless its client is back; "
    "what it gets alone as a member of a share is for the member that comes next",
    freedom="3.1.2.11.2 and 4.1: the session ends when its connection is closed; no clause says how soon others see it",
)
def late_forgetting(patch: Patch) -> None:
    leaving: WeakSet[Session] = WeakSet()
    waiting: list[tuple[str, Message]] = []

    def make_share(original: Callable[..., bool]) -> Callable[..., bool]:
        def share(self: MqttBroker, group: SharedGroup, message: Message) -> bool:
            if not group.members or not all(session in leaving for session in group.members):
                return original(self, group, message)
            waiting.append((group.share, message))
            return True

        return share

    def make_add(original: Callable[..., None]) -> Callable[..., None]:
        def add(self: SubscriptionTree, session: Session, subscription: Subscription) -> None:
            original(self, session, subscription)
            if subscription.share_name is None:
                return
            name = f"$share/{subscription.share_name}/{subscription.topic_filter}"
            identifiers = (subscription.identifier,) if subscription.identifier else ()
            for entry in [entry for entry in waiting if entry[0] == name]:
                waiting.remove(entry)
                session.deliver(entry[1], min(entry[1].qos, subscription.qos), False, identifiers, share=name)

        return add

    def make_disconnect(original: Callable[..., None]) -> Callable[..., None]:
        def disconnect(
            self: MqttBroker, session: Session, connection: MqttConnection, now: float, *, publish_will: bool
        ) -> None:
            if session.connection is connection and session.expiry_s <= 0:
                leaving.add(session)
                session.expiry_s = _A_MOMENT_S
            original(self, session, connection, now, publish_will=publish_will)
            if session in leaving and self.journal is not None:
                self.journal.forget(session)

        return disconnect

    def make_connect(original: Callable[..., tuple[Session, bool]]) -> Callable[..., tuple[Session, bool]]:
        def connect(
            self: MqttBroker, connection: MqttConnection, request: ConnectRequest, now: float
        ) -> tuple[Session, bool]:
            session = self.sessions.get(request.client_id)
            if session is not None and session in leaving:
                self.end_session(session, now)
            return original(self, connection, request, now)

        return connect

    patch.wrap(MqttBroker, "share", make_share)
    patch.wrap(SubscriptionTree, "add", make_add)
    patch.wrap(MqttBroker, "disconnect", make_disconnect)
    patch.wrap(MqttBroker, "connect", make_connect)


@variation(
    "any-small-server",
    "CONNACK has Receive Maximum 1, packets of 5 kB, no aliases, sessions of 100 s, keep alives of 20 s, an identifier "
    "of 200 bytes for who has none, and thirty user properties",
    freedom="3.2.2.3: a server may announce any of these; 3.1.3.1 sets no limit to the identifiers that it gives",
    silences=(
        "mqtt5/restart/intervals-go-on-over-restarts",
        "mqtt5/topic-alias/belongs-to-one-client",
        "mqtt5/topic-alias/ends-with-its-connection",
        "mqtt5/topic-alias/may-be-set-anew",
        "mqtt5/topic-alias/serves-every-qos-and-retained-messages",
        "mqtt5/topic-alias/stands-for-its-topic",
        "mqtt5/topic-alias/unknown-refused",
    ),
)
def small_server(patch: Patch) -> None:
    usual = MqttConfig()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: MqttBroker, config: BrokerConfig, *arguments: object) -> None:
            given = {
                name: value for name, value in _SMALL.items() if getattr(config.mqtt, name) == getattr(usual, name)
            }
            config = msgspec.structs.replace(config, mqtt=msgspec.structs.replace(config.mqtt, **given))
            original(self, config, *arguments)

        return init

    def make_id(original: Callable[..., tuple[str, bool]]) -> Callable[..., tuple[str, bool]]:
        def client_id(connection: MqttConnection, packet: Connect) -> tuple[str, bool]:
            found, assigned = original(connection, packet)
            return (found.ljust(_LONG_ID_BYTES, "x") if assigned else found), assigned

        return client_id

    def make_offer(original: Callable[[MqttConnection], Properties]) -> Callable[[MqttConnection], Properties]:
        def offer(connection: MqttConnection) -> Properties:
            if connection.max_packet_out < _ROOMY_BYTES:
                return original(connection)
            return msgspec.structs.replace(original(connection), user_property=(("region", "here"),) * 30)

        return offer

    patch.wrap(MqttBroker, "__init__", make)
    patch.wrap(handshake, "client_id_of", make_id)
    patch.wrap(handshake, "connack_properties", make_offer)
