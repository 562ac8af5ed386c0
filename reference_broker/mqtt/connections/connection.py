"""One MQTT connection, server side, sans-IO: bytes and ``now`` in, bytes out.

``receive`` takes any chunk and handles every whole packet in it. Output collects until the driver takes it, once a
turn. This module frames packets and ends connections; what a client publishes is in ``inbound``, what it is sent in
``outbound``, the rest in ``handshake`` and ``handlers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.timers import Timer
from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.connections import administration, asking, enhanced_auth, handlers, handshake, login
from assay.reference_broker.mqtt.connections.error_packets import explain, reference_reason
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.connections.throttle import Throttle, throttle_for
from assay.reference_broker.mqtt.queue_topics.admin_topics import reaches_admin
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.codec import decode_filters, decode_packet, encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason, malformed, rule_id
from assay.reference_broker.mqtt.wire.packets import V5, V311, Acknowledgement, Connect, Disconnect, Packet, PacketType
from assay.reference_broker.mqtt.wire.wire_types import Reader
from assay.reference_broker.queues import Delivery
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.routing.message import Message
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from assay.reference_broker.auth import Authenticator, LoginCheck
    from assay.reference_broker.config import ServerReferenceConfig, UserConfig
    from assay.reference_broker.core.access import Grants

_PUBLISH = PacketType.PUBLISH.value
_ACKNOWLEDGEMENTS = {
    0x40: PacketType.PUBACK,
    0x50: PacketType.PUBREC,
    0x62: PacketType.PUBREL,
    0x70: PacketType.PUBCOMP,
}
"""First byte -> type of the packets that have a 4-byte short form."""
MAX_PACKETS = 1_024
"""Packets, or runs of them, of one connection that a turn handles; the rest waits for the next turn."""
PACKETS = range(MAX_PACKETS)
SMALL_BYTES = 4_096
"""Input that is handled at once even while others wait for the next turn."""
_FILTERS = {0x82: PacketType.SUBSCRIBE, 0xA2: PacketType.UNSUBSCRIBE}
MANY_FILTERS_BYTES = 8_192
"""A SUBSCRIBE or UNSUBSCRIBE of more bytes, properties aside, is read in steps."""


def opens_with_connect(opening: bytes) -> bool | None:
    """Whether the first bytes of a connection are those of a CONNECT, as :class:`WireProtocol` asks."""
    return opening[0] == 0x10 if opening else None


class MqttConnection(Connection):
    """Server side of one connection. ``wake`` is called when output appears after a quiet turn."""

    inbound_class: ClassVar[type[Inbound]] = Inbound
    outbound_class: ClassVar[type[Outbound]] = Outbound
    broker: MqttBroker
    # More attributes than instances of a class can share the keys of: without slots each would have a dict of its own.
    __slots__ = (
        "__weakref__",
        "_at",
        "_journal",
        "_last_received",
        "_limit",
        "_lost",
        "_needed",
        "_partial",
        "_partial_counted",
        "_partial_seen",
        "_postponed",
        "_rest",
        "_throttle",
        "_timer",
        "_todo",
        "_waits",
        "authentication_method",
        "authenticator",
        "certificate_name",
        "exchange",
        "grants",
        "inbound",
        "keep_alive_s",
        "login",
        "loopback",
        "max_packet_out",
        "outbound",
        "password_check",
        "phase",
        "problem_information",
        "session",
        "session_expiry_asked_s",
        "username",
        "version",
    )

    def __init__(
        self,
        broker: MqttBroker,
        authenticator: Authenticator,
        wake: Callable[[Connection], None],
        *,
        peer: str,
        loopback: bool,
        now: float,
        certificate_name: str | None = None,
    ) -> None:
        super().__init__(broker, wake, peer, now)
        self.authenticator = authenticator
        self.loopback = loopback
        self.certificate_name = certificate_name
        """The user, as the client's verified certificate names it; None where passwords decide."""
        self.username: str | None = None
        """The user, once verified; a name that nobody verified does not count."""
        self.login: UserConfig | None = None
        """What was configured of the user when it logged in; once that changes, the login holds no more."""
        self.grants: Grants | None = None
        """What the access rules let this client do; None = everything."""
        self.authentication_method = ""
        """As CONNECT names it; empty = none."""
        self.exchange: enhanced_auth.Exchange | None = None
        """The enhanced authentication under way."""
        self.password_check: LoginCheck | None = None
        """The check of its password under way."""
        self.phase = Phase.WAIT_CONNECT
        self.version = V311
        self.session: Session | None = None
        self.keep_alive_s = 0
        self.max_packet_out = 0xFFFFFFFF
        """Largest packet the client accepts, in bytes (its Maximum Packet Size)."""
        self.problem_information = True
        self.session_expiry_asked_s = 0
        """As asked for in CONNECT, not as granted; 0 forbids DISCONNECT to raise it."""
        self.inbound = self.inbound_class(self)
        self.outbound = self.outbound_class(self)
        self._throttle: Throttle | None = throttle_for(self, broker.config.limits, now)
        self._journal = broker.journal
        self._partial = bytearray()
        self._needed = 2
        self._rest: bytes | None = None
        """Input that waits for the next turn, from ``_at`` on; what comes behind it collects in ``_partial``."""
        self._at = 0
        self._todo: Iterator[None] | None = None
        """What is left to do of the packet before."""
        self._postponed = False
        self._waits = False
        """What is left to do waits for :meth:`resume`."""
        self._lost = False
        """Its transport has ended; what came before is handled first."""
        self._last_received = now
        """When the last whole packet came."""
        self._partial_seen = 0
        """Bytes there were of an unfinished packet when the keep alive was last looked at."""
        self._partial_counted = 0
        """Those that are counted among the bytes of all connections' unfinished packets."""
        self._limit = broker.config.mqtt.max_packet_bytes
        self._timer: Timer = broker.timers.schedule(now + broker.config.mqtt.connect_timeout_s, self._connect_timed_out)

    def forward(self, run: bytes, count: int) -> None:
        """Send ``count`` QoS 0 packets that are ready on the wire; a client too slow for them loses them."""
        size = self.out_bytes + len(run)
        if size > self.sure_room_bytes and not self.has_room_for(size):
            self.outbound.drop(count)
            return
        # As send() does, without the call: this is done for every delivery.
        self._out.append(run)
        self.out_bytes = size
        if not self._dirty:
            self._dirty = True
            self._wake(self)

    def on_full(self) -> None:
        session = self.session
        if session is not None and session.connection is self:
            session.window = 0

    def on_room(self) -> None:
        session = self.session
        if session is not None and session.connection is self:
            session.open_window()
            self.broker.sending.wake(session)

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.CLOSED

    # -- packets -----------------------------------------------------------------------------------------------------

    def send_packet(self, packet: Packet) -> None:
        """Raises :class:`ProtocolError` for a packet larger than the client takes: it ends the connection.

        Once CONNACK has fitted, only answers that grow with the client's requests can be too large.
        """
        self.send(self.check_size(packet))

    def check_size(self, packet: Packet) -> bytes:
        """The packet's bytes. Raises :class:`ProtocolError` for more than the client takes."""
        data = encode_packet(packet, self.version)
        if len(data) > self.max_packet_out:
            message = f"{type(packet).__name__.upper()} would take {len(data)} bytes, more than the client accepts"
            raise ProtocolError(message, "MQTT-3.1.2-24", Reason.PACKET_TOO_LARGE)
        return data

    def abandon_output(self, problem: Exception, now: float) -> None:
        """What it would send is not true, since a write failed. Nothing is sent; the connection closes."""
        broken = rule_id(self.version, "MQTT-4.8.0-2", "MQTT-4.13.2-1")
        self.error = ProtocolError(f"the disk failed: {problem}", broken, Reason.UNSPECIFIED_ERROR)
        self._drop_output()
        if not self.closing:
            self.close_now(now)
        else:
            self.rouse()

    @property
    def wants_pause(self) -> bool:
        """Read no more for now: input waits for the next turn, too many publishes wait for the disk, the client is
        over its publish rate, it does not read what it is answered, or its password is being checked."""
        if self._rest is not None or self.phase is Phase.VERIFYING or self.out_bytes > self.qos0_room_bytes:
            return True
        if self._throttle is not None and self._throttle.waiting:
            return True
        return self.inbound.must_wait or self.inbound.unconfirmed > 4 * self.broker.config.mqtt.receive_maximum

    # -- input ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Handle a chunk. Never raises for bad input: the connection answers and closes itself."""
        phase = self.phase
        if phase is Phase.CLOSED:
            return
        journal = self._journal
        if journal is not None:
            touches = journal.touches
        self._traffic.bytes_received += len(data)
        if self._throttle is not None:
            data = self._throttle.admit(data, now)
        if self._partial or self._rest is not None or phase is Phase.VERIFYING:
            data = self._collect(data)
        if data:
            if self.broker.unfinished and len(data) > SMALL_BYTES:
                self._postpone(data, 0)
            else:
                self._handle(data, now)
        if journal is not None and journal.touches != touches:
            self._awaited_turn = journal.turn
        if self._partial or self._partial_counted:
            self._count_partial(now)

    def _count_partial(self, now: float) -> None:
        size = len(self._partial)
        progressed = self._last_received == now
        self._partial_counted = size
        self.broker.partial_packets.set(self, size, now, progressed=progressed)

    def give_up_packet(self, now: float) -> None:
        """As :class:`Holder`."""
        text = "packets that have begun take too much memory, and this one has been coming for the longest time"
        self._send_off(text, Reason.QUOTA_EXCEEDED, now)

    def give_way(self, now: float) -> None:
        """As :class:`Newcomer`."""
        self.cut = self.phase is not Phase.AUTHENTICATING
        if self.closing:
            self.rouse()
        else:
            text = "too many connections wait for CONNECT, and this one for the longest time"
            self._send_off(text, Reason.QUOTA_EXCEEDED, now)

    def _collect(self, data: bytes) -> bytes:
        """Put it behind what there is already. Returns all of that once it may be handled, nothing before."""
        partial = self._partial
        partial += data
        if self._rest is not None or len(partial) < self._needed or self.phase is Phase.VERIFYING:
            return b""
        self._partial = bytearray()
        return bytes(partial)

    def _postpone(self, data: bytes, at: int) -> None:
        """What is in ``data`` from ``at`` on waits for its turn, behind the others that do."""
        self._rest, self._at = data, at
        self._traffic.waiting_bytes += len(data) - at
        if not self._waits:
            self.broker.unfinished.append(self)
        # Also for what it has sent: that may have to be held back until a write of this turn is on disk.
        self.rouse()

    def _handle(self, data: bytes, now: float, todo: Iterator[None] | None = None) -> None:
        """Handle whole packets, as many as a turn has room for, and keep the rest. ``todo``: what is left to do of the
        packet before them."""
        self.broker.work = 0
        try:
            if todo is None:
                consumed = self.handle_packets(data, now)
            else:
                self.work_through(todo)
                consumed = self._at
                if not self._postponed:
                    if consumed < len(data):
                        consumed = self.handle_packets(data, now)
                    else:
                        self._at = 0
        except ProtocolError as error:
            self.fail(error, now)
            return
        if self.closing:
            return
        if consumed:
            self._last_received = now
        if self._postponed:
            self._postponed = False
            self._postpone(data, consumed)
            return
        if self.inbound.refused:
            # Nobody asks about this chunk again, and it is not to be kept.
            self.inbound.refused = b""
        if consumed < len(data):
            self._partial = bytearray(data[consumed:])

    def work_through(self, steps: Iterator[None]) -> None:
        """Do what a packet asks for: as many steps as this turn has room for, the rest in the next ones.

        Until then no other packet of the client is handled. A step adds to :attr:`Broker.work` what it did.
        """
        broker = self.broker
        for _ in steps:
            if broker.work >= MAX_WORK:
                self._todo = steps
                self._postponed = True
                return

    def wait(self) -> None:
        """In a step: neither the next one nor another packet until :meth:`resume`."""
        self._waits = True
        self.broker.work = MAX_WORK

    def resume(self) -> None:
        """Go on in the next turn."""
        self._waits = False
        if self._rest is not None:
            self.broker.unfinished.append(self)

    def go_on(self, now: float) -> None:
        """Handle more of what an earlier turn had no room for."""
        rest = self._rest
        self._forget_rest()
        try:
            if rest is not None:
                self._go_on_with(rest, now)
        except Exception:
            # As its transport does when it raises over input: this connection ends, and nobody else's.
            self.close_now(now)
            raise
        if self._lost and self._rest is None:
            if self.phase is not Phase.CLOSED:
                self.close_now(now)
            self._let_go()

    def _forget_rest(self) -> None:
        if self._rest is not None:
            self._traffic.waiting_bytes -= len(self._rest) - self._at
            self._rest = None

    def _go_on_with(self, rest: bytes, now: float) -> None:
        later, self._partial = self._partial, bytearray()
        touches = self._journal.touches if self._journal is not None else 0
        todo, self._todo = self._todo, None
        self._handle(rest, now, todo)
        if self._journal is not None and self._journal.touches != touches:
            self._awaited_turn = self._journal.turn
        if self.closing:
            return
        whole = not self._partial or len(self._partial) + len(later) >= self._needed
        self._partial += later
        if later and whole and self._rest is None:
            data, self._partial = bytes(self._partial), bytearray()
            self._postpone(data, 0)
        if self._partial or self._partial_counted:
            self._count_partial(now)
        self.rouse()

    def handle_packets(self, data: bytes, now: float) -> int:
        """Handle the whole packets of ``data`` that have not been, of which there is some; returns where they end."""
        position, size, hooks = self._at, len(data), self.broker.hooks
        if position:
            self._at = 0
        for _ in PACKETS:
            header = data[position]
            connected = self.phase is Phase.CONNECTED
            if not connected:
                self._check_opening(header)
            body = position + 2
            if size < body:
                self._needed = 2
                break
            length = data[position + 1]
            if length >= 0x80:
                body, length = self.long_length(data, position)
                if body < 0:
                    break
            end = body + length
            if end - position > self._limit:
                raise self._too_large(end - position)
            if end > size:
                self._needed = end - position
                break
            if connected and header >> 4 == _PUBLISH:
                if hooks is None:
                    position = self.inbound.on_bytes(header, data, position, body, end, now)
                else:
                    asking.on_publish(self, hooks, header, data, body, end, now)
                    position = end
            elif connected and length == 2 and header in _ACKNOWLEDGEMENTS:
                position = self._on_short_acknowledgements(header, data, position, now)
            else:
                self.on_packet(header, data, body, end, now)
                position = end
                if self.phase is Phase.VERIFYING:
                    self._needed = 2
                    break
            if self.closing:
                return size
            if position >= size:
                return position
            if self.broker.work >= MAX_WORK:
                self._postponed = True
                break
        else:
            self._postponed = True
        return position

    def go_on_connecting(self, packet: Connect, allowed: bool | None) -> None:
        """The password has been checked: answer CONNECT, then take what came meanwhile."""
        self.password_check = None
        self.go_on_with_connect(lambda now: handshake.on_password_checked(self, packet, allowed, now))

    def go_on_with_connect(self, step: Callable[[float], None]) -> None:
        """What CONNECT waited for is there: take that step, then what came meanwhile."""
        now = self.broker.now
        self.phase = Phase.WAIT_CONNECT
        touches = self._journal.touches if self._journal is not None else 0
        step(now)
        if self._journal is not None and self._journal.touches != touches:
            self._awaited_turn = self._journal.turn
        waiting = bytes(self._partial)
        self._partial = bytearray()
        if not self.closing:
            self.receive(waiting, now)
        self.rouse()

    def _check_opening(self, header: int) -> None:
        if self.phase is Phase.AUTHENTICATING:
            enhanced_auth.check_opening(header)
        elif header >> 4 != PacketType.CONNECT:
            raise ProtocolError("the first packet must be CONNECT", "MQTT-3.1.0-1")

    def long_length(self, data: bytes, position: int) -> tuple[int, int]:
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

    def _too_large(self, frame_bytes: int) -> ProtocolError:
        broken = rule_id(self.version, "MQTT-4.8.0-2", "MQTT-3.2.2-15")
        message = f"a packet of {frame_bytes} bytes is over the limit of {self._limit}"
        return ProtocolError(message, broken, Reason.PACKET_TOO_LARGE)

    def _on_short_acknowledgements(self, header: int, data: bytes, position: int, now: float) -> int:
        ids = runs.acknowledgement_run(data, position)
        size = len(ids)
        if size > 2:
            self.broker.work += size >> 2
        kind = _ACKNOWLEDGEMENTS[header]
        if kind is PacketType.PUBREL:
            self.inbound.on_pubrel_run(ids)
        else:
            self.outbound.on_run(kind, ids, now)
        return position + 2 * size

    def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
        if self.phase is Phase.WAIT_CONNECT:
            handshake.on_connect_bytes(self, header, data, body, end, now)
            return
        if end - body > MANY_FILTERS_BYTES and header in _FILTERS and self.phase is Phase.CONNECTED:
            self.work_through(self._read_in_steps(_FILTERS[header], Reader(data, body, end, self.version)))
            return
        try:
            packet = decode_packet(header, data, body, end, self.version)
        except ProtocolError as error:
            if error.reason is Reason.UNSUPPORTED_PROTOCOL_VERSION:
                # DISCONNECT does not have this code, which only the answer to a first CONNECT needs.
                error.reason = Reason.PROTOCOL_ERROR
            raise
        if self.phase is Phase.AUTHENTICATING:
            handshake.on_packet_before_connack(self, packet, now)
            return
        if not isinstance(packet, Acknowledgement):
            self.handle(packet, now)
        elif packet.type is PacketType.PUBREL:
            self.inbound.on_pubrel(packet.packet_id)
        else:
            self.outbound.on_acknowledgement(packet, now)

    def _read_in_steps(self, kind: PacketType, reader: Reader) -> Iterator[None]:
        most = self.broker.config.mqtt.max_subscriptions_per_client
        steps = decode_filters(kind, reader, self.version, most)
        packet: Packet | None = None
        while packet is None:
            try:
                # Reading a filter is a small part of what a packet takes.
                self.broker.work += next(steps) >> 3
            except StopIteration as end:
                packet = end.value
            yield
        self.handle(packet, self.broker.now)

    def handle(self, packet: Packet, now: float) -> None:
        """Act on a packet outside the publish flow. Raises :class:`ProtocolError`."""
        handlers.handle(self, packet, now)

    # -- the session's view (SessionConnection) --------------------------------------------------------------------

    @property
    def active_session(self) -> Session:
        """The session while connected."""
        assert self.session is not None, "packets other than CONNECT are handled only while connected"
        return self.session

    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        return self.outbound.send_publish(packet_id, message, qos, retain, dup, identifiers)

    def send_delivery(self, packet_id: int, delivery: Delivery) -> bool | None:
        return self.outbound.send_delivery(packet_id, delivery)

    def send_delivery_run(self, first_id: int, run: DeliveryRun) -> bool:
        return self.outbound.send_delivery_run(first_id, run)

    def has_turn(self) -> bool:
        sending = self.broker.sending
        if sending.turn_is_over:
            sending.wake(self.active_session)
            return False
        return True

    def send_pubrel(self, packet_id: int) -> None:
        self.outbound.send_pubrel(packet_id)

    def close_as_slow(self, now: float) -> None:
        self._send_off("the client settles none of its deliveries", Reason.QUOTA_EXCEEDED, now)

    def close_as_moved(self, now: float) -> None:
        self._send_off("the client belongs to another tenant now", Reason.ADMINISTRATIVE_ACTION, now)

    def may_read(self, topic_filter: str) -> bool:
        if self.grants is not None and not self.grants.may_subscribe(topic_filter):
            return False
        return not reaches_admin(topic_filter) or administration.may_subscribe(self, topic_filter)

    def ask_again(self, now: float) -> bool:
        if not login.may_stay(self):
            self._send_off("the client may not be connected any more", Reason.NOT_AUTHORIZED, now)
            return False
        access = self.broker.access
        self.grants = None if access is None else access.grants(self.username, self.client_id)
        self.active_session.may_administer = administration.is_operator(self)
        return True

    def _send_off(self, text: str, reason: Reason, now: float) -> None:
        """It did nothing wrong, but may not go on."""
        broken = rule_id(self.version, "MQTT-4.8.0-2", "MQTT-4.13.2-1")
        self.fail(ProtocolError(text, broken, reason), now)

    def go_on_publishing(self) -> None:
        self.inbound.must_wait = False
        self.rouse()

    def close_for_takeover(self, now: float) -> None:
        if self.version == V5:
            self.send_packet(Disconnect(reason=Reason.SESSION_TAKEN_OVER))
        self.end()

    # -- the end -------------------------------------------------------------------------------------------------

    def fail(self, error: ProtocolError, now: float) -> None:
        """The peer broke a rule: say so where the version can, then close. The will is published."""
        self.error = error
        if self.broker.tracer is not None:
            self.broker.tracer(TraceKind.PROTOCOL_ERROR, {"client_id": self.client_id, "detail": str(error)})
        if self.phase is Phase.AUTHENTICATING:
            handshake.refuse(self, error)
        elif self.version == V5 and self.phase is Phase.CONNECTED:
            explain(self, Disconnect, error)
        self.close_now(now)

    def close_now(self, now: float, *, publish_will: bool = True) -> None:
        """Close after the output is sent; the session hears of it."""
        session = self.session
        self.end()
        if session is not None:
            self.broker.disconnect(session, self, now, publish_will=publish_will)

    def connection_lost(self, now: float) -> None:
        """The transport ended without a word."""
        if self._rest is not None:
            self._lost = True
            return
        if self.phase is not Phase.CLOSED:
            self.close_now(now)
        self._let_go()

    def _let_go(self) -> None:
        """It is over, and its transport gone."""
        self._lost = False
        self._forget_unread()
        # Nobody asks it anything any more. Without cycles it is gone at once, and no garbage collector stops the
        # broker to find it.
        self.inbound.let_go()
        del self.inbound, self.outbound
        self._throttle = self.exchange = self.password_check = None
        if isinstance(self.error, ProtocolError):
            self.error.forget_frames()

    def shut_down(self, now: float) -> None:
        """The broker stops."""
        reference = self.broker.config.server_reference
        if reference is not None and reference.at_shutdown:
            self._send_to(reference, now)
            return
        if self.phase is Phase.CONNECTED and self.version == V5:
            self.send_packet(Disconnect(reason=Reason.SERVER_SHUTTING_DOWN))
        self.close_now(now)

    def send_away(self, reference: ServerReferenceConfig, now: float) -> bool:
        """As :meth:`Connection.send_away` (5.0 section 4.11). The will is published; 3.1.1 cannot say why."""
        if self.phase is not Phase.CONNECTED:
            return False
        self._send_to(reference, now)
        return True

    def _send_to(self, reference: ServerReferenceConfig, now: float) -> None:
        if self.phase is Phase.CONNECTED and self.version == V5:
            error = ProtocolError("clients are served elsewhere", "MQTT-4.13.2-1", reference_reason(reference))
            explain(self, Disconnect, error, reference.address)
        self.close_now(now)

    def interrupt_login(self, now: float) -> None:
        """Users changed while the client was still proving who it is: it must begin anew."""
        if self.phase in (Phase.VERIFYING, Phase.AUTHENTICATING):
            handshake.give_up(self, "the users changed while the client logged in", now)

    def transport_stalled(self, now: float) -> None:
        """The client has taken nothing of what it was sent for too long."""
        if self.phase is Phase.CONNECTED:
            self._send_off("the client does not read", Reason.QUOTA_EXCEEDED, now)

    def end(self) -> None:
        """Let go of everything the connection holds; it takes and gives nothing any more."""
        self.phase = Phase.CLOSED
        self._timer.cancel()
        self.end_output()
        self._partial = bytearray()
        if self._partial_counted:
            self._count_partial(self.broker.now)
        self._forget_rest()
        self._todo = None
        self.inbound.end()
        if self.exchange is not None:
            self.exchange.cancel()
        if self.password_check is not None:
            self.password_check.cancel()
        if self._throttle is not None:
            self._throttle.end()
        self.rouse()

    # -- time ----------------------------------------------------------------------------------------------------

    def start_keep_alive(self, now: float) -> None:
        """From CONNACK on: 1.5 times the keep alive without a packet ends the connection (3.1.2-24; 5.0 3.1.2-22).

        A client may begin a packet in time and need long to send it, so one that is arriving counts as well while
        enough more of it arrives (``mqtt.keep_alive_progress_bytes``). Bytes that make no packet feed nothing.
        """
        self._timer.cancel()
        self._last_received = now
        if self.keep_alive_s:
            self._timer = self.broker.timers.schedule(now + 1.5 * self.keep_alive_s, self.check_keep_alive)

    def check_keep_alive(self, now: float) -> None:
        progress_bytes = self.broker.config.mqtt.keep_alive_progress_bytes
        seen, self._partial_seen = self._partial_seen, len(self._partial)
        if self.wants_pause:
            # The client may be sending; it is the broker that does not read.
            self._last_received = now
        elif progress_bytes and self._partial_seen - seen >= progress_bytes:
            self._last_received = now
        deadline = self._last_received + 1.5 * self.keep_alive_s
        if now < deadline:
            self._timer = self.broker.timers.schedule(deadline, self.check_keep_alive)
        elif self.phase is Phase.CONNECTED:
            broken = rule_id(self.version, "MQTT-3.1.2-24", "MQTT-3.1.2-22")
            error = ProtocolError("no packet within 1.5 times the keep alive", broken, Reason.KEEP_ALIVE_TIMEOUT)
            self.fail(error, now)

    def _connect_timed_out(self, now: float) -> None:
        if self.phase is Phase.WAIT_CONNECT:
            self.fail(ProtocolError("no CONNECT within the time allowed", "MQTT-3.1.0-1"), now)
        elif self.phase is Phase.VERIFYING:
            handshake.give_up(self, "the password could not be checked in time", now)
        elif self.phase is Phase.AUTHENTICATING:
            self.fail(enhanced_auth.timed_out("MQTT-4.12.0-4"), now)
