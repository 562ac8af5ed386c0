"""One MQTT connection, server side, sans-IO: bytes and ``now`` in, bytes out.

``receive`` takes any chunk and handles every whole packet in it. Output collects until the driver takes it, once a
turn. PUBLISH at QoS 0 has a fast lane: a run of packets that start with the same bytes (header, length, topic, no
properties) is forwarded as one slice to subscribers who may get it byte for byte.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from reference_broker.core.broker_state import BrokerState, is_queue_topic
from reference_broker.core.message import Message
from reference_broker.core.queues import QueueError, QueueErrorCode
from reference_broker.core.session import OutgoingState, Session
from reference_broker.core.timers import Timer
from reference_broker.core.topics import TopicError, validate_topic
from reference_broker.mqtt import handlers, handshake
from reference_broker.mqtt.codec import decode_packet, encode_acknowledgement, encode_packet
from reference_broker.mqtt.errors import ProtocolError, Reason, malformed
from reference_broker.mqtt.outgoing import PublishEncoder, message_from
from reference_broker.mqtt.packets import (
    V5,
    V311,
    Acknowledgement,
    Disconnect,
    Packet,
    PacketType,
    Properties,
    Publish,
)
from reference_broker.mqtt.phase import Phase
from reference_broker.mqtt.wire_types import decode_string
from reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from reference_broker.auth import Authenticator

_MAX_PLANS = 1_024
_PUBACK = b"\x40\x02"
_PUBREC = b"\x50\x02"
_PUBREL = b"\x62\x02"
_PUBCOMP = b"\x70\x02"


class _Plan:
    """How PUBLISH packets with one prefix are served. ``targets`` is None where they must go the general way."""

    __slots__ = ("epoch", "targets", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.epoch = -1
        self.targets: list[MqttConnection] | None = None


class _PendingAck:
    """The place of an acknowledgement that waits for the disk; later ones stay behind it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data


class MqttConnection:
    """Server side of one connection. ``wake`` is called when output appears after a quiet turn."""

    def __init__(
        self,
        broker: BrokerState,
        authenticator: Authenticator,
        wake: Callable[[MqttConnection], None],
        *,
        peer: str,
        loopback: bool,
        now: float,
    ) -> None:
        self.broker = broker
        self.authenticator = authenticator
        self.peer = peer
        self.loopback = loopback
        self.phase = Phase.WAIT_CONNECT
        self.version = V311
        self.session: Session | None = None
        self.client_id = ""
        self.keep_alive_s = 0
        self.max_packet_out = 0xFFFFFFFF
        """Largest packet the client accepts, in bytes (its Maximum Packet Size)."""
        self.problem_information = True
        self.session_expiry_s = 0.0
        """As asked for in CONNECT; 0 forbids DISCONNECT to raise it."""
        self.closing = False
        """Close the transport once the output is sent."""
        self.error: ProtocolError | None = None
        """The violation that ended the connection, for the log."""
        self.backlog_bytes = 0
        """Bytes the transport has not sent yet, as the driver saw it last."""
        self.dropped = 0
        """QoS 0 messages this client was too slow for."""
        self.received_messages = 0
        self.last_received = now
        self.encoder = PublishEncoder(V311)
        self.topic_aliases: dict[int, str] = {}
        self._wake = wake
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._dirty = False
        self._partial = bytearray()
        self._needed = 2
        self._plans: dict[bytes, _Plan] = {}
        self._pending_acks: deque[_PendingAck] = deque()
        self._limit = broker.config.mqtt.max_packet_bytes
        self._max_unread = broker.config.mqtt.max_unread_bytes
        self._timer: Timer = broker.timers.schedule(now + broker.config.mqtt.connect_timeout_s, self._connect_timed_out)

    # -- output --------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Add bytes to this turn's output."""
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._dirty:
            self._dirty = True
            self._wake(self)

    def send_packet(self, packet: Packet) -> None:
        self.send(encode_packet(packet, self.version))

    def take_output(self) -> bytes:
        """This turn's output in one piece."""
        out = self._out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        self._dirty = False
        return data

    @property
    def wants_pause(self) -> bool:
        """Too many publishes wait for the disk: read no more until some are confirmed."""
        return len(self._pending_acks) > 4 * self.broker.config.mqtt.receive_maximum

    # -- input ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Handle a chunk. Never raises for bad input: the connection answers and closes itself."""
        if self.phase is Phase.CLOSED:
            return
        self.last_received = now
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._needed:
                return
            data = bytes(partial)
            self._partial = bytearray()
        try:
            consumed = self._consume(data, now)
        except ProtocolError as error:
            self.fail(error, now)
            return
        if consumed < len(data) and self.phase is not Phase.CLOSED:
            self._partial = bytearray(data[consumed:])

    def _consume(self, data: bytes, now: float) -> int:
        """Handle the whole packets at the start of ``data``; returns how many bytes they take."""
        position, size = 0, len(data)
        while position < size:
            header = data[position]
            if self.phase is Phase.WAIT_CONNECT and header >> 4 != PacketType.CONNECT:
                raise ProtocolError("the first packet must be CONNECT", "MQTT-3.1.0-1")
            body = position + 2
            if size < body:
                self._needed = 2
                break
            length = data[position + 1]
            if length >= 0x80:
                body, length = self._long_length(data, position)
                if body < 0:
                    break
            end = body + length
            if end - position > self._limit:
                message = f"a packet of {end - position} bytes is over the limit of {self._limit}"
                statement = "MQTT-3.2.2-15" if self.version == V5 else "MQTT-4.8.0-1"
                raise ProtocolError(message, statement, Reason.PACKET_TOO_LARGE)
            if end > size:
                self._needed = end - position
                break
            kind = header >> 4
            if kind == 3 and self.phase is Phase.CONNECTED:
                position = self._on_publish_bytes(header, data, position, body, end, now)
            elif header == 0x40 and length == 2 and self.phase is Phase.CONNECTED:
                self._on_puback(data[body] << 8 | data[body + 1], now)
                position = end
            else:
                self._on_packet(header, data, body, end, now)
                position = end
            if self.phase is Phase.CLOSED:
                return size
        return position

    def _long_length(self, data: bytes, position: int) -> tuple[int, int]:
        """Start of the body and remaining length where it takes more than one byte; (-1, 0) when cut off."""
        value = 0
        for index in range(4):
            at = position + 1 + index
            if at >= len(data):
                self._needed = index + 2
                return -1, 0
            digit = data[at]
            value |= (digit & 0x7F) << (7 * index)
            if digit < 0x80:
                if not digit and self.version == V5 and self.phase is Phase.CONNECTED:
                    raise malformed("the remaining length uses more bytes than it needs", V5, "", "MQTT-1.5.5-1")
                return at + 1, value
        raise malformed("the remaining length is longer than 4 bytes", self.version, "MQTT-4.8.0-1", "MQTT-4.13.1-1")

    def _on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
        if self.phase is Phase.WAIT_CONNECT:
            handshake.on_connect_bytes(self, header, data, body, end, now)
            return
        packet = decode_packet(header, data, body, end, self.version)
        if isinstance(packet, Acknowledgement):
            self._on_acknowledgement(packet, now)
        else:
            handlers.handle(self, packet, now)

    # -- incoming PUBLISH ----------------------------------------------------------------------------------------

    def _on_publish_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        """Handle the PUBLISH at ``start`` and, in the fast lane, its like behind it; returns where they end."""
        topic_end = body + 2 + (data[body] << 8 | data[body + 1]) if end - body >= 2 else end + 1
        qos = header & 0x06
        five = self.version == V5
        payload_at = topic_end + (2 if qos else 0) + (1 if five else 0)
        if header not in (0x30, 0x32) or payload_at > end or (five and data[payload_at - 1]):
            packet = decode_packet(header, data, body, end, self.version)
            assert isinstance(packet, Publish)
            self._on_publish(packet, now)
            return end
        # From here on: QoS 0 or 1, no DUP, no RETAIN, no properties.
        prefix = data[start:payload_at] if not qos else data[start:topic_end]
        plan = self._plans.get(prefix)
        if plan is None:
            plan = self._new_plan(prefix, data[body + 2 : topic_end], header)
        if qos:
            self._on_plain_qos1(plan.topic, data, topic_end, payload_at, end, now)
            return end
        if plan.epoch != self.broker.tree.epoch:
            self._renew(plan, end - start)
        targets = plan.targets
        if targets is None:
            self.received_messages += 1
            message = Message(topic=plan.topic, payload=data[payload_at:end], publisher=self.client_id)
            self._publish_qos0(message, now)
            return end
        stride = end - start
        last = len(data) - stride
        count = 1
        while end <= last and data.startswith(prefix, end):
            end += stride
            count += 1
        self.received_messages += count
        self.broker.published += count
        if targets:
            run = data[start:end] if count > 1 or end < len(data) or start else data
            for target in targets:
                target.forward(run, count)
        return end

    def _new_plan(self, prefix: bytes, topic_bytes: bytes, header: int) -> _Plan:
        topic = decode_string(topic_bytes, self.version)
        self.check_topic(topic)
        self._check_publish_flags((header >> 1) & 3, retain=False)
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = self._plans[prefix] = _Plan(topic)
        return plan

    def _renew(self, plan: _Plan, frame_bytes: int) -> None:
        """Find out whether packets of this plan may be forwarded as they are, and to whom."""
        tree = self.broker.tree
        plan.epoch = tree.epoch
        plan.targets = None
        if self.broker.tracer is not None or is_queue_topic(plan.topic):
            return
        route = tree.route(plan.topic)
        targets: list[MqttConnection] = []
        if route.groups:
            return
        for entry in route.entries:
            connection = entry.session.connection
            if (entry.local_excluded and entry.session is self.session) or connection is None:
                continue
            if not isinstance(connection, MqttConnection) or entry.identifiers:
                return
            if connection.version != self.version or connection.max_packet_out < frame_bytes:
                return
            targets.append(connection)
        plan.targets = targets

    def forward(self, run: bytes, count: int) -> None:
        """Send ``count`` QoS 0 packets that are ready on the wire; a client too slow for them loses them."""
        if self.backlog_bytes + self._out_bytes + len(run) > self._max_unread:
            self.dropped += count
            return
        self.send(run)

    def _on_plain_qos1(self, topic: str, data: bytes, topic_end: int, payload_at: int, end: int, now: float) -> None:
        packet_id_bytes = data[topic_end : topic_end + 2]
        if packet_id_bytes == b"\0\0":
            statement = "MQTT-2.2.1-3" if self.version == V5 else "MQTT-2.3.1-1"
            raise ProtocolError("packet identifier 0 is not allowed", statement)
        self.received_messages += 1
        message = Message(topic=topic, payload=data[payload_at:end], qos=1, publisher=self.client_id)
        if topic[0] == "$":
            self._publish_confirmed(message, int.from_bytes(packet_id_bytes, "big"), now)
            return
        matched = self.broker.publish(message, self.session, now)
        if matched or self.version != V5:
            self.acknowledge(_PUBACK + packet_id_bytes)
        else:
            self.acknowledge(b"\x40\x03" + packet_id_bytes + b"\x10")

    def _on_publish(self, packet: Publish, now: float) -> None:
        """The general way."""
        self.received_messages += 1
        topic = self._resolve_topic(packet)
        properties = packet.properties
        self._check_publish_flags(packet.qos, retain=packet.retain)
        if properties.subscription_identifier:
            raise ProtocolError("a client must not send subscription identifiers", "MQTT-3.3.4-6")
        if properties.response_topic is not None and not _is_topic(properties.response_topic):
            raise ProtocolError("a response topic must not contain wildcards", "MQTT-3.3.2-14")
        session = self._session()
        if packet.qos == 2 and packet.packet_id in session.inbound_qos2:
            # Received before: the message is not published again (4.3.3-10 in 5.0, 4.3.3-2 in 3.1.1).
            if session.inbound_qos2[packet.packet_id]:
                self.acknowledge(_PUBREC + packet.packet_id.to_bytes(2, "big"))
            return
        message = message_from(topic, packet.payload, packet.qos, packet.retain, properties, self.client_id, now)
        if packet.qos == 0:
            self._publish_qos0(message, now)
        else:
            self._publish_confirmed(message, packet.packet_id, now)

    def _check_publish_flags(self, qos: int, *, retain: bool) -> None:
        config = self.broker.config.mqtt
        if qos > config.maximum_qos:
            raise ProtocolError(f"QoS {qos} is not supported here", "MQTT-3.2.2-11", Reason.QOS_NOT_SUPPORTED)
        if retain and not config.retain_available:
            raise ProtocolError(
                "retained messages are not supported here", "MQTT-3.2.2-14", Reason.RETAIN_NOT_SUPPORTED
            )

    def check_topic(self, topic: str) -> None:
        """Raises :class:`ProtocolError` for a topic name that may not be published to."""
        try:
            validate_topic(topic, max_levels=self.broker.config.mqtt.max_topic_levels)
        except TopicError as error:
            raise ProtocolError(str(error), error.statement, Reason.TOPIC_NAME_INVALID) from error

    def _resolve_topic(self, packet: Publish) -> str:
        alias = packet.properties.topic_alias
        if alias is not None:
            if not 0 < alias <= self.broker.config.mqtt.topic_alias_maximum:
                statement = "MQTT-3.3.2-8" if alias == 0 else "MQTT-3.3.2-9"
                raise ProtocolError(f"topic alias {alias} is not allowed", statement, Reason.TOPIC_ALIAS_INVALID)
            if packet.topic:
                self.check_topic(packet.topic)
                self.topic_aliases[alias] = packet.topic
            elif alias not in self.topic_aliases:
                raise ProtocolError(f"topic alias {alias} was never set", "MQTT-3.3.2-7", Reason.PROTOCOL_ERROR)
            return self.topic_aliases[alias]
        self.check_topic(packet.topic)
        return packet.topic

    def _publish_confirmed(self, message: Message, packet_id: int, now: float) -> None:
        """Publish at QoS 1 or 2; the acknowledgement leaves when the broker has taken responsibility."""
        session = self._session()
        self._check_receive_maximum(session, message.qos)
        if message.qos == 2:
            session.inbound_qos2[packet_id] = False
        if is_queue_topic(message.topic):
            self._publish_to_queue(session, message, packet_id, now)
            return
        error: QueueError | None = None
        matched = False
        try:
            if message.topic.startswith("$SYS"):
                raise QueueError(QueueErrorCode.NOT_ALLOWED, "clients may not publish to $SYS topics")
            matched = self.broker.publish(message, session, now)
        except QueueError as refused:
            error = refused
        self._settle_inbound(session, message.qos, packet_id, error)
        data = handlers.acknowledgement(self, message.qos, packet_id, error, matched=matched)
        if data is None:
            self.close_now(now)
        else:
            self.acknowledge(data)

    def _check_receive_maximum(self, session: Session, qos: int) -> None:
        if self.version != V5 or (qos == 1 and not self._pending_acks):
            return
        limit = self.broker.config.mqtt.receive_maximum
        if len(session.inbound_qos2) + len(self._pending_acks) >= limit:
            message = f"more than {limit} unfinished publishes"
            raise ProtocolError(message, "MQTT-3.3.4-7", Reason.RECEIVE_MAXIMUM_EXCEEDED)

    def _settle_inbound(self, session: Session, qos: int, packet_id: int, error: QueueError | None) -> None:
        if qos == 2:
            if error is None:
                session.inbound_qos2[packet_id] = True
            else:
                session.inbound_qos2.pop(packet_id, None)

    def _publish_to_queue(self, session: Session, message: Message, packet_id: int, now: float) -> None:
        slot = _PendingAck()
        self._pending_acks.append(slot)
        qos = message.qos

        def confirmed(error: QueueError | None) -> None:
            self._settle_inbound(session, qos, packet_id, error)
            if session.connection is not self:
                return
            slot.data = handlers.acknowledgement(self, qos, packet_id, error, matched=True)
            if slot.data is None:
                self.close_now(self.broker.now)
            elif self._pending_acks[0] is slot:
                self._release_acks()

        self.broker.publish_to_queue(message, session, now, confirmed)

    def acknowledge(self, data: bytes) -> None:
        """Send an acknowledgement, in order behind those that wait for the disk."""
        if self._pending_acks:
            self._pending_acks.append(_PendingAck(data))
        else:
            self.send(data)

    def _release_acks(self) -> None:
        pending = self._pending_acks
        while pending and (data := pending[0].data) is not None:
            pending.popleft()
            self.send(data)

    def _publish_qos0(self, message: Message, now: float) -> None:
        if not message.topic.startswith("$SYS"):
            # At most once: a retained message over the limit is simply not kept.
            with contextlib.suppress(QueueError):
                self.broker.publish(message, self.session, now)

    # -- acknowledgements from the client ------------------------------------------------------------------------

    def _on_puback(self, packet_id: int, now: float) -> None:
        session = self._session()
        outgoing = session.in_flight.get(packet_id)
        if outgoing is None:
            if packet_id == 0:
                statement = "MQTT-2.2.1-3" if self.version == V5 else "MQTT-2.3.1-1"
                raise ProtocolError("packet identifier 0 is not allowed", statement)
            return
        if outgoing.state is not OutgoingState.WAIT_PUBACK:
            raise ProtocolError("PUBACK for a QoS 2 delivery", "MQTT-4.3.3-4" if self.version == V5 else "MQTT-4.3.3-1")
        del session.in_flight[packet_id]
        if outgoing.delivery is not None and self.version != V5:
            # 3.1.1 has no properties to settle with, so the acknowledgement settles (decisions: settlement).
            self.broker.settle_delivery(session, outgoing.delivery, now)
        if session.queued or session.stalled_consumers:
            self.broker.room_appeared(session, now)

    def _on_acknowledgement(self, packet: Acknowledgement, now: float) -> None:
        if packet.type is PacketType.PUBACK:
            self._on_puback(packet.packet_id, now)
        elif packet.type is PacketType.PUBREC:
            self._on_pubrec(packet, now)
        elif packet.type is PacketType.PUBREL:
            self._on_pubrel(packet.packet_id)
        else:
            self._on_pubcomp(packet.packet_id, now)

    def _on_pubrec(self, packet: Acknowledgement, now: float) -> None:
        session = self._session()
        outgoing = session.in_flight.get(packet.packet_id)
        if outgoing is None:
            reason = Reason.PACKET_IDENTIFIER_NOT_FOUND if self.version == V5 else Reason.SUCCESS
            self.send_packet(Acknowledgement(type=PacketType.PUBREL, packet_id=packet.packet_id, reason=reason))
            return
        if outgoing.state is OutgoingState.WAIT_PUBACK:
            raise ProtocolError("PUBREC for a QoS 1 delivery", "MQTT-4.3.2-3" if self.version == V5 else "MQTT-4.3.2-1")
        if packet.reason >= 0x80:
            session.finish(packet.packet_id)
            self.broker.room_appeared(session, now)
            return
        outgoing.state = OutgoingState.WAIT_PUBCOMP
        self.send_pubrel(packet.packet_id)

    def _on_pubrel(self, packet_id: int) -> None:
        known = self._session().inbound_qos2.pop(packet_id, None)
        if known is None and self.version == V5:
            unknown = Acknowledgement(
                type=PacketType.PUBCOMP, packet_id=packet_id, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND
            )
            self.acknowledge(encode_acknowledgement(unknown, V5))
        else:
            self.acknowledge(_PUBCOMP + packet_id.to_bytes(2, "big"))

    def _on_pubcomp(self, packet_id: int, now: float) -> None:
        session = self._session()
        outgoing = session.in_flight.get(packet_id)
        if outgoing is None:
            return
        if outgoing.state is not OutgoingState.WAIT_PUBCOMP:
            statement = "MQTT-4.3.3-4" if self.version == V5 else "MQTT-4.3.3-1"
            raise ProtocolError("PUBCOMP before PUBREL", statement)
        session.finish(packet_id)
        if session.queued or session.stalled_consumers:
            self.broker.room_appeared(session, now)

    # -- the session's view (SessionConnection) --------------------------------------------------------------------

    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        if qos == 0 and self.backlog_bytes + self._out_bytes + len(message.payload) > self._max_unread:
            self.dropped += 1
            return False
        header = 0x30 | qos << 1
        if retain:
            header |= 0x01
        if dup:
            header |= 0x08
        data = self.encoder.encode(packet_id, message, header, identifiers, self.broker.now)
        if len(data) > self.max_packet_out:
            return False
        self.send(data)
        return True

    def send_pubrel(self, packet_id: int) -> None:
        self.send(_PUBREL + packet_id.to_bytes(2, "big"))

    def close_for_takeover(self, now: float) -> None:
        if self.version == V5:
            self.send_packet(Disconnect(reason=Reason.SESSION_TAKEN_OVER))
        self._end()

    # -- the end -------------------------------------------------------------------------------------------------

    def fail(self, error: ProtocolError, now: float) -> None:
        """The peer broke a rule: say so where the version can, then close. The will is published."""
        self.error = error
        if self.broker.tracer is not None:
            detail = {"client_id": self.client_id, "detail": str(error)}
            self.broker.tracer(TraceKind.PROTOCOL_ERROR, detail)
        if self.version == V5 and self.phase is Phase.CONNECTED:
            packet = Disconnect(reason=error.reason, properties=Properties(reason_string=str(error)[:200]))
            data = encode_packet(packet, V5)
            self.send(data if len(data) <= self.max_packet_out else encode_packet(Disconnect(reason=error.reason), V5))
        self.close_now(now)

    def close_now(self, now: float, *, publish_will: bool = True) -> None:
        """Close after the output is sent; the session hears of it."""
        session = self.session
        self._end()
        if session is not None:
            self.broker.disconnect(session, self, now, publish_will=publish_will)

    def connection_lost(self, now: float) -> None:
        """The transport ended without a word."""
        if self.phase is not Phase.CLOSED:
            self.close_now(now)

    def shut_down(self, now: float) -> None:
        """The broker stops."""
        if self.phase is Phase.CONNECTED and self.version == V5:
            self.send_packet(Disconnect(reason=Reason.SERVER_SHUTTING_DOWN))
        self.close_now(now)

    def transport_stalled(self, now: float) -> None:
        """The client left more unread than allowed."""
        if self.phase is Phase.CONNECTED:
            self.fail(ProtocolError("the client does not read", "MQTT-4.13.1-1", Reason.QUOTA_EXCEEDED), now)

    def _end(self) -> None:
        self.phase = Phase.CLOSED
        self.closing = True
        self._timer.cancel()
        self._partial = bytearray()
        self._plans.clear()
        self._pending_acks.clear()
        if not self._dirty:
            self._dirty = True
            self._wake(self)

    def _session(self) -> Session:
        assert self.session is not None, "packets other than CONNECT are handled only while connected"
        return self.session

    # -- time ----------------------------------------------------------------------------------------------------

    def start_keep_alive(self, now: float) -> None:
        """From CONNACK on: one and a half times the keep alive without a packet ends the connection (3.1.2-24/-22)."""
        self._timer.cancel()
        if self.keep_alive_s:
            self._timer = self.broker.timers.schedule(now + 1.5 * self.keep_alive_s, self._check_keep_alive)

    def _check_keep_alive(self, now: float) -> None:
        deadline = self.last_received + 1.5 * self.keep_alive_s
        if now < deadline:
            self._timer = self.broker.timers.schedule(deadline, self._check_keep_alive)
        elif self.phase is Phase.CONNECTED:
            statement = "MQTT-3.1.2-22" if self.version == V5 else "MQTT-3.1.2-24"
            error = ProtocolError("no packet within 1.5 times the keep alive", statement, Reason.KEEP_ALIVE_TIMEOUT)
            self.fail(error, now)

    def _connect_timed_out(self, now: float) -> None:
        if self.phase is Phase.WAIT_CONNECT:
            self.fail(ProtocolError("no CONNECT within the time allowed", "MQTT-3.1.4-1"), now)


def _is_topic(text: str) -> bool:
    try:
        validate_topic(text)
    except TopicError:
        return False
    return True
