"""One AMQP 0.9.1 connection, server side, sans-IO: the handshake, frames, heartbeats, the end (sec.2.2.4, 4.2)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.login import USERS_CHANGED, Identity, Login, Step, refused
from assay.reference_broker.amqp091.names import AMQP091
from assay.reference_broker.amqp091.runs import ACK, GET, PUBLISH, PublishReader, count_alike, read_acks
from assay.reference_broker.amqp091.service import Amqp091, Peer
from assay.reference_broker.amqp091.topology import VirtualHost
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import (
    FRAME_MIN_BYTES,
    HEARTBEAT,
    HEARTBEAT_CHANNEL,
    OPENING,
    PROTOCOL_HEADER,
    Frame,
    FrameType,
    awaited_bytes,
    frame,
    read_frame,
)
from assay.reference_broker.amqp091.wire.methods import BY_NAME, Method, decode_method, encode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.config import EventKind, ServerReferenceConfig
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.protocols import Arrival, WireProtocol
from assay.reference_broker.core.timers import Timer
from assay.reference_broker.core.version import installed_version
from assay.reference_broker.queues.jobs.confirms import ignore
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from assay.reference_broker.config import UserConfig
    from assay.reference_broker.core.access import Grants
    from assay.reference_broker.core.tenant import Tenant

_CLOSE_TIMEOUT_S: Final = 10.0
"""For the answer to a close."""
MAX_UNCONFIRMED: Final = 4_096
"""Publishes of one connection that wait for the disk; it is read no more until there are fewer."""
MAX_WAITING_BYTES: Final = 262_144
"""Of frames that wait for the answer to another one, before it is read no more."""
MAX_FRAMES: Final = 1_024
"""Frames of one connection that a turn handles."""
MAX_GETS: Final = 64
"""Of one queue that are answered together."""
_METHOD: Final = bytes((FrameType.METHOD,))
_RUNS: Final = frozenset((PUBLISH.ids, ACK.ids, GET.ids))
_PRODUCT: Final = "Assay"
_NO_HOST: Final = "connection.open.virtual-host.security"


class Phase(Enum):
    """How far a connection is."""

    HEADER = "header"
    START = "start"
    """``start-ok`` is to come."""
    VERIFYING = "verifying"
    """A password is being checked."""
    SECURE = "secure"
    """The client is to answer a challenge."""
    TUNE = "tune"
    OPEN = "open"
    RUNNING = "running"
    CLOSING = "closing"
    """``close`` was sent, ``close-ok`` is to come; all else is passed over (connection.close.stability)."""
    OVER = "over"


_CONNECTION: Final = 10
_NEXT: Final = {
    Phase.START: "connection.start-ok",
    Phase.SECURE: "connection.secure-ok",
    Phase.TUNE: "connection.tune-ok",
    Phase.OPEN: "connection.open",
}
"""What must come next (sec.2.2.4)."""


def _flags(*names: str) -> Typed:
    pairs = [(Typed(Kind.TEXT, name), Typed(Kind.BOOL, True)) for name in names]
    return Typed(Kind.MAP, tuple([part for pair in pairs for part in pair]))


class AmqpConnection(Peer, Connection):
    """A client of the broker without a session; each of its consumers is one to the engine."""

    tenant: Tenant | None

    def __init__(self, service: Amqp091, arrival: Arrival) -> None:
        super().__init__(arrival.broker, arrival.wake, arrival.peer, arrival.now)
        self.service = service
        self.vhost: VirtualHost | None = None
        self.username: str | None = None
        """The user, once verified."""
        self.asserted_name = ""
        """What it says its name is; what ``user-id`` must be."""
        self.tenant = None
        self.login: UserConfig | None = None
        self.grants: Grants | None = None
        self.may_administer = False
        self.client_properties: Table = ()
        self.capabilities: frozenset[str] = frozenset()
        """What the client can do, as it says."""
        self.channels: dict[int, Channel] = {}
        self.behind: dict[int, Channel] = {}
        """Closed ones that have frames left from then, by their number: what comes on it waits behind these."""
        self.phase = Phase.HEADER
        self.config = arrival.broker.config.amqp091
        self.frame_max_bytes = FRAME_MIN_BYTES
        self.unconfirmed = 0
        self.transacted_count = self.transacted_bytes = 0
        """What its channels keep for commits to come: messages and acknowledgements, and bytes of messages."""
        self.is_pressed = False
        """Queues in memory hold too much: it is read no more until they have room."""
        self._channel_max = self.config.channel_max
        self._arrival = arrival
        self._buffer: bytes | bytearray = b""
        """As it came, where nothing was left of what came before: then it is read without a copy."""
        self._awaited_bytes = 0
        """Of the buffer: with fewer its first frame is not whole."""
        self._publishes = PublishReader(arrival.broker.engine.known)
        self._must_go_on = False
        """Input waits for the next turn."""
        self._waiting_bytes = 0
        """Of frames that wait for the answer to another."""
        self.content_bytes = 0
        """Of messages that have begun to come, on all channels."""
        self._counted_bytes = 0
        """What is counted among the bytes of all connections that are not whole yet."""
        self._login = Login(arrival)
        self._unflushed: dict[Channel, None] = {}
        """Channels whose confirms leave at the end of the turn."""
        self._received_at = self._sent_at = arrival.now
        self._heartbeat_s = 0.0
        self._is_blocked = False
        deadline = arrival.now + arrival.broker.config.mqtt.connect_timeout_s
        self._timer: Timer | None = self.broker.timers.schedule(deadline, self._handshake_timed_out)

    # -- as a client of the broker ---------------------------------------------------------------------------------

    @property
    def connection(self) -> object | None:
        return None if self.is_over else self

    # -- as a connection -------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.OVER

    @property
    def wants_pause(self) -> bool:
        if self._must_go_on or self.phase is Phase.VERIFYING or self.out_bytes > self.qos0_room_bytes:
            return True
        return self.is_pressed or self.unconfirmed > MAX_UNCONFIRMED or self._waiting_bytes > MAX_WAITING_BYTES

    @property
    def is_running(self) -> bool:
        """It is open, and not closing."""
        return self.phase is Phase.RUNNING

    @property
    def has_heartbeats(self) -> bool:
        """A silent peer is cut."""
        return self._heartbeat_s > 0

    def receive(self, data: bytes, now: float) -> None:
        if self.phase is Phase.OVER:
            return
        self._traffic.bytes_received += len(data)
        self._received_at = now
        if self._buffer:
            if isinstance(self._buffer, bytes):
                self._buffer = bytearray(self._buffer)
            self._buffer += data
        else:
            self._buffer = data
        if not self._must_go_on and self.phase is not Phase.VERIFYING:
            self._consume(now)
        self._count_partial(now)

    def _count_partial(self, now: float) -> None:
        """What has begun to come is bounded for all connections together."""
        size = len(self._buffer) + self.content_bytes + self._waiting_bytes
        if self.phase is not Phase.OVER and (size or self._counted_bytes):
            progressed = size < self._counted_bytes
            self._counted_bytes = size
            self.broker.partial_packets.set(self, size, now, progressed=progressed)

    def give_up_packet(self, now: float) -> None:
        """As :class:`assay.reference_broker.core.partial_packets.Holder`."""
        self.error = AmqpError(Reply.RESOURCE_ERROR, "what has begun to come takes too much memory, on all connections")
        self.cut = True
        self._end(now)

    def connection_lost(self, now: float) -> None:
        if self.phase is not Phase.OVER:
            self._end(now)
        self._forget_unread()

    def give_way(self, now: float) -> None:
        self.cut = True
        self._end(now)

    def interrupt_login(self, now: float) -> None:
        if self._login.is_under_way:
            self._login.drop()
            self.fail(refused(USERS_CHANGED), now)

    def rules_changed(self, now: float) -> None:
        """Who has another user or tenant now connects anew; a channel that reads what it may no more closes."""
        if self.phase is not Phase.RUNNING:
            return
        broker = self.broker
        tenant = None if broker.tenants is None else broker.tenants.of_client(self.username, self.client_id)
        if self._arrival.authenticator.user(self.username) != self.login or tenant is not self.tenant:
            self.fail(AmqpError(Reply.CONNECTION_FORCED, "what holds for this user has changed: connect anew"), now)
            return
        self.grants = None if broker.access is None else broker.access.grants(self.username, self.client_id)
        for channel in list(self.channels.values()):
            channel.rules_changed(now)

    def send_away(self, reference: ServerReferenceConfig, now: float) -> bool:
        if self.phase is not Phase.RUNNING:
            return False
        self.fail(AmqpError(Reply.CONNECTION_FORCED, f"go to {reference.address}"), now)
        return True

    def shut_down(self, now: float) -> None:
        if self.phase is Phase.RUNNING:
            self.send_method(0, "connection.close", int(Reply.CONNECTION_FORCED), "the broker stops", 0, 0)
        self._end(now)

    def abandon_output(self, problem: Exception, now: float) -> None:
        self.error = problem
        self._drop_output()
        self._end(now)

    def transport_stalled(self, now: float) -> None:
        self.error = AmqpError(Reply.CONNECTION_FORCED, "the client does not read")
        self.cut = True
        self._end(now)

    def on_room(self) -> None:
        for channel in self.channels.values():
            channel.consuming.resume()

    # -- input -----------------------------------------------------------------------------------------------------

    def go_on(self, now: float) -> None:
        """As :class:`Unfinished`: input that a turn had no room for."""
        self._must_go_on = False
        if self.phase is not Phase.OVER:
            self._consume(now)
            self._count_partial(now)
            self.rouse()

    def go_on_publishing(self) -> None:
        """Queues in memory have room again."""
        self.is_pressed = False
        if self._is_blocked and self.phase is Phase.RUNNING:
            self._is_blocked = False
            self.send_method(0, "connection.unblocked")
        self.rouse()

    @property
    def consumer_count(self) -> int:
        """On all channels, those that get one at a time included."""
        return sum([channel.consuming.count for channel in self.channels.values()])

    def take_back(self, number: int, kind: int, payload: bytes, now: float) -> None:
        """A frame of a channel that waited when it was closed: another may have begun since. Raises
        :class:`AmqpError`."""
        if self.phase in (Phase.RUNNING, Phase.CLOSING):
            self.on_frame(Frame(kind, number, payload), now)

    def count_waiting(self, size: int) -> None:
        """Frames wait, or do no more, for the answer to another one."""
        self._waiting_bytes += size
        if size < 0:
            self.rouse()

    def confirmed(self, count: int) -> None:
        """So many publishes are decided."""
        before = self.unconfirmed
        self.unconfirmed -= count
        if before > MAX_UNCONFIRMED >= self.unconfirmed:
            self.rouse()

    def press(self) -> None:
        """Queues in memory hold too much."""
        self.is_pressed = True
        self.broker.waiting_publishers[self] = None
        if not self._is_blocked and "connection.blocked" in self.capabilities:
            self._is_blocked = True
            self.send_method(0, "connection.blocked", "queues in memory hold too much")

    def _consume(self, now: float) -> None:
        """Handle whole frames, as many as a turn has room for."""
        broker = self.broker
        if len(self._buffer) < self._awaited_bytes:
            return
        broker.work = 0
        self._awaited_bytes = at = frames = 0
        data = bytes(self._buffer)
        try:
            if self.phase is Phase.HEADER:
                at = self.on_header(now)
            while frames < MAX_FRAMES:
                if at == len(data):
                    break
                if self.phase is Phase.RUNNING:
                    at, handled, awaited = self._on_run(data, at, MAX_FRAMES - frames, now)
                    frames += handled
                    if awaited:
                        self._awaited_bytes = awaited - at
                        break
                    if handled:
                        if broker.work >= MAX_WORK:
                            break
                        continue
                elif self.phase in (Phase.HEADER, Phase.OVER, Phase.VERIFYING):
                    break
                found = read_frame(data, at, self.frame_max_bytes)
                if found is None:
                    self._awaited_bytes = awaited_bytes(data, at)
                    break
                part, at = found
                frames += 1
                self.on_frame(part, now)
                if broker.work >= MAX_WORK:
                    break
            else:
                broker.work = MAX_WORK
        except AmqpError as error:
            self.fail(error, now)
            at = len(data)
        self._buffer = b"" if self.phase is Phase.OVER else data[at:]
        if broker.work >= MAX_WORK and self._buffer and not self._must_go_on:
            self._must_go_on = True
            broker.unfinished.append(self)

    def _on_run(self, data: bytes, at: int, most: int, now: float) -> tuple[int, int, int]:
        """Publishes, acknowledgements or gets that stand together, as one; where those end that are done with, how
        many frames they had, and where a publish ends whose body is to be waited for, if there is one. None is fine."""
        ids = data[at + 7 : at + 11]
        if data[at : at + 1] != _METHOD or ids not in _RUNS:
            return at, 0, 0
        channel = self.channels.get(data[at + 1] << 8 | data[at + 2])
        if channel is None or not channel.takes_runs:
            return at, 0, 0
        if ids == GET.ids:
            found = read_frame(data, at, self.frame_max_bytes)
            if found is None:
                return at, 0, 0
            part, end = found
            count = count_alike(data, at, end, min(most, MAX_GETS))
            channel.on_gets(part.payload, count, now)
            return at + count * (end - at), count, 0
        if ids == ACK.ids:
            acks, end = read_acks(data, at, most)
            if acks:
                channel.on_acks(acks, now)
            return end, len(acks), 0
        run = self._publishes.read(data, at, self.frame_max_bytes, self.config.max_message_bytes, most)
        if not run.bodies:
            return at, 0, run.awaited
        count = channel.on_publishes(run, now)
        return run.ends[count - 1], 3 * count, run.awaited if count == len(run.bodies) else 0

    def on_header(self, now: float) -> int:
        """The protocol header; how many bytes of it are done with."""
        header = bytes(self._buffer[: len(PROTOCOL_HEADER)])
        if header == PROTOCOL_HEADER:
            if self.over_rate:
                self.cut = True
                self._end(now)
                return 0
            self.phase = Phase.START
            mechanisms = b" ".join(self._login.mechanisms)
            self.send_method(0, "connection.start", 0, 9, self.server_properties(), mechanisms, b"en_US")
            return len(header)
        if len(header) == len(PROTOCOL_HEADER) or not PROTOCOL_HEADER.startswith(header[:4]):
            # connection.start.protocol-name: what is spoken here, and no more.
            self.send(PROTOCOL_HEADER)
            self._end(now)
        return 0

    def server_properties(self) -> Table:
        """What the broker says of itself."""
        node = self.broker.config.node
        texts = {
            "product": _PRODUCT,
            "version": installed_version(),
            "platform": "Python",
            "information": "reference message broker for tests; it speaks MQTT, too",
            "host": node,
            "cluster_name": node,
        }
        capabilities = _flags(
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "authentication_failure_close",
            "per_consumer_qos",
            "consumer_priorities",
            "direct_reply_to",
        )
        named = tuple([(name, Typed(Kind.TEXT, text)) for name, text in texts.items()])
        return (("capabilities", capabilities), *named)

    def on_frame(self, part: Frame, now: float) -> None:
        """One frame of the connection. Raises :class:`AmqpError`."""
        if self.phase is Phase.CLOSING:
            self.on_frame_while_closing(part, now)
            return
        kind, number, payload = part
        if number == 0:
            if kind == FrameType.METHOD:
                self.on_connection_method(*decode_method(payload), now)
            elif kind != FrameType.HEARTBEAT:
                raise AmqpError(Reply.UNEXPECTED_FRAME, "content on channel 0", rule="sec.4.2.6.1.channel-zero")
            elif payload:
                raise AmqpError(Reply.FRAME_ERROR, "a heartbeat with a payload", rule=HEARTBEAT_CHANNEL)
            return
        if self.phase is not Phase.RUNNING:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "the connection is not open yet", rule="sec.2.2.4.pre-open-error")
        channel = self.behind.get(number) or self.channels.get(number)
        if channel is not None:
            channel.on_frame(kind, payload, now)
            return
        if kind == FrameType.HEARTBEAT:
            raise AmqpError(Reply.FRAME_ERROR, f"a heartbeat on channel {number}", rule=HEARTBEAT_CHANNEL)
        self.on_new_channel(kind, number, payload, now)

    def on_new_channel(self, kind: int, number: int, payload: bytes, now: float) -> None:
        """A frame on a channel that is not open. Raises :class:`AmqpError` unless it opens it."""
        method: Method | None = None
        if kind == FrameType.METHOD:
            method, _ = decode_method(payload)
        if method is None or method.name != "channel.open":
            if method is not None and method.name == "channel.close-ok":
                return
            raise AmqpError(Reply.CHANNEL_ERROR, f"channel {number} is not open", rule="channel.open.state")
        if number > self._channel_max:
            text = f"channel {number}, where {self._channel_max} is the highest"
            raise AmqpError(Reply.CHANNEL_ERROR, text, rule="connection.tune-ok.channel-max.upper-limit")
        self.channels[number] = Channel(self, number)
        self.send_method(number, "channel.open-ok")

    def on_frame_while_closing(self, part: Frame, now: float) -> None:
        """What comes until ``close-ok`` is passed over."""
        if part.kind != FrameType.METHOD or part.channel:
            return
        try:
            method, _ = decode_method(part.payload)
        except AmqpError:
            return
        if method.name == "connection.close":
            self.send_method(0, "connection.close-ok")
        if method.name in ("connection.close", "connection.close-ok"):
            self._end(now)

    # -- methods of the connection -----------------------------------------------------------------------------------

    def on_connection_method(self, method: Method, values: list[Any], now: float) -> None:
        """A method on channel 0. Raises :class:`AmqpError`."""
        try:
            if method.class_id != _CONNECTION:
                raise AmqpError(
                    Reply.COMMAND_INVALID,
                    f"{method.name} on channel 0",
                    rule="sec.4.2.3.nonconnection-on-zero",
                    hard=True,
                )
            name = method.name
            if name == "connection.close":
                # Clients write what other channels have behind it.
                self.waits_for_peer = True
                self.send_method(0, "connection.close-ok")
                self._end(now)
            elif self.phase is Phase.RUNNING:
                self.on_running_method(name, values)
            elif name != _NEXT.get(self.phase):
                raise AmqpError(
                    Reply.COMMAND_INVALID, f"{name} while {self.phase.value}", rule="sec.2.2.4.pre-open-error"
                )
            elif self.phase is Phase.START:
                self.on_start_ok(*[*values, now])
            elif self.phase is Phase.SECURE:
                self._on_secure_ok(values[0], now)
            elif self.phase is Phase.TUNE:
                self.on_tune_ok(*[*values, now])
            else:
                self._on_open(values[0], now)
        except AmqpError as error:
            error.class_id, error.method_id = method.class_id, method.method_id
            raise

    def on_running_method(self, name: str, values: list[Any]) -> None:
        """A method of the class connection once it is open. Raises :class:`AmqpError`."""
        if name == "connection.update-secret":
            # Its user is who it was; what it may do is looked up when it connects.
            self.send_method(0, "connection.update-secret-ok")
        elif name not in ("connection.blocked", "connection.unblocked"):
            raise AmqpError(Reply.COMMAND_INVALID, f"{name} on an open connection", rule="grammar.connection")

    def on_start_ok(self, properties: Table, mechanism: str, response: bytes, _locale: str, now: float) -> None:
        """The client has chosen how it logs in. Raises :class:`AmqpError`."""
        self.client_properties = properties
        given = next((value for name, value in properties if name == "capabilities"), None)
        if given is not None and given.kind is Kind.MAP:
            pairs = zip(given.value[::2], given.value[1::2], strict=True)
            self.capabilities = frozenset(str(name.value) for name, value in pairs if value.value is True)
        try:
            self._on_step(self._login.begin(mechanism, response, self.broker.rng, self._checked))
        except AmqpError as error:
            self.refuse_login(error, now)

    def _on_secure_ok(self, response: bytes, now: float) -> None:
        try:
            self._on_step(self._login.answer(response))
        except AmqpError as error:
            self.refuse_login(error, now)

    def _on_step(self, step: Step) -> None:
        if step is None:
            self.phase = Phase.VERIFYING
        elif isinstance(step, Identity):
            self._logged_in(step)
        else:
            self.phase = Phase.SECURE
            self.send_method(0, "connection.secure", step)

    def _checked(self, decided: Identity | AmqpError) -> None:
        now = self.broker.now
        self.phase = Phase.START
        if isinstance(decided, Identity):
            self._logged_in(decided)
            self._consume(now)
        else:
            self.refuse_login(decided, now)
        self.rouse()

    def _logged_in(self, identity: Identity) -> None:
        broker, verified = self.broker, identity.verified
        self.username, self.asserted_name = identity
        self.client_id = f"amqp091:{broker.rng.randbytes(8).hex()}"
        self.login = self._arrival.authenticator.user(verified)
        if broker.access is not None:
            self.grants = broker.access.grants(verified, self.client_id)
        if broker.tenants is not None:
            self.tenant = broker.tenants.of_client(verified, self.client_id)
        self.phase = Phase.TUNE
        config = self.config
        self.send_method(0, "connection.tune", config.channel_max, config.frame_max_bytes, int(config.heartbeat_s))

    def refuse_login(self, error: AmqpError, now: float) -> None:
        """In words to a client that understands them, else without (connection.start-ok.mechanism.validity)."""
        if "authentication_failure_close" in self.capabilities:
            self.fail(error, now)
            return
        self.error = error
        self._end(now)

    def on_tune_ok(self, channel_max: int, frame_max: int, heartbeat_s: int, now: float) -> None:
        """The client says how large frames are, how many channels there are, and how often heartbeats come."""
        config = self.config
        # 0 is "no limit", which is more than what was offered.
        for asked, most, what in (
            (channel_max, config.channel_max, "channel-max"),
            (frame_max, config.frame_max_bytes, "frame-max"),
        ):
            if asked > most or (asked == 0 and most):
                text = f"{what} {asked}, where {most} was offered"
                self._end_at_once(text, f"connection.tune-ok.{what}.upper-limit", now)
                return
        if frame_max < FRAME_MIN_BYTES:
            self._end_at_once(f"frame-max {frame_max}", "connection.tune-ok.frame-max.minimum", now)
            return
        self._channel_max, self.frame_max_bytes = channel_max, frame_max
        self._heartbeat_s = float(heartbeat_s)
        self.phase = Phase.OPEN

    def _end_at_once(self, text: str, rule: str, now: float) -> None:
        """Without a word, as the standard says."""
        self.error = AmqpError(Reply.NOT_ALLOWED, text, rule=rule)
        self._end(now)

    def _on_open(self, name: str, now: float) -> None:
        vhost = self.service.vhost(name, self.tenant)
        if vhost is None:
            raise AmqpError(Reply.NOT_ALLOWED, f"there is no vhost '{name[:80]}' for this user", rule=_NO_HOST)
        if self.broker.tenants is not None:
            if self.broker.tenants.is_full(self.username, self.client_id, None):
                raise AmqpError(Reply.NOT_ALLOWED, "the tenant of this client has no connection left", rule=_NO_HOST)
            self.broker.tenants.connected(self)
        self.vhost = vhost
        self.phase = Phase.RUNNING
        self.broker.connecting.remove(self)
        self._cancel_timer()
        self._received_at = self._sent_at = now
        if self._heartbeat_s:
            self._timer = self.broker.timers.schedule(now + self._heartbeat_s / 2, self.beat)
        self.send_method(0, "connection.open-ok")
        self.broker.tell(EventKind.CONNECTED, self, AMQP091)

    # -- time --------------------------------------------------------------------------------------------------------

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handshake_timed_out(self, now: float) -> None:
        self._timer = None
        self.error = AmqpError(Reply.CONNECTION_FORCED, "the handshake takes too long")
        self.cut = True
        self._end(now)

    def beat(self, now: float) -> None:
        """Send a heartbeat if nothing else was, and end a silent peer (sec.4.2.7)."""
        self._timer = None
        if self.phase is Phase.OVER:
            return
        if now - self._received_at > 2 * self._heartbeat_s and not self.wants_pause:
            self.error = AmqpError(Reply.CONNECTION_FORCED, "no heartbeat came", rule="sec.4.2.7.heartbeat-miss")
            self.cut = True
            self._end(now)
            return
        if now - self._sent_at >= self._heartbeat_s / 2 and not self.out_bytes:
            self.send(HEARTBEAT)
        self._timer = self.broker.timers.schedule(now + self._heartbeat_s / 2, self.beat)

    # -- output ------------------------------------------------------------------------------------------------------

    def send_method(self, channel: int, name: str, *values: Any) -> None:
        self.send(frame(FrameType.METHOD, channel, encode_method(BY_NAME[name], *values)))

    def flush_later(self, channel: Channel) -> None:
        """It has confirms, which leave together at the end of the turn."""
        self._unflushed[channel] = None
        self.rouse()

    def take_output(self) -> bytes:
        # Whatever roused it may have done with what had begun to come: a login, an answer that frames waited for.
        self._count_partial(self.broker.now)
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, {}
            for channel in unflushed:
                channel.publishing.flush()
        data = super().take_output()
        if data:
            self._sent_at = self.broker.now
        return data

    def note_topology(self) -> None:
        """What it is told next depends on what was just declared, or on what was so already: by others, or when its
        own first try could not be written."""
        self.service.topology_changed()
        journal = self.service.journal
        if journal is not None:
            self.await_write(journal.turn)
            journal.asking[self] = None

    # -- the end -----------------------------------------------------------------------------------------------------

    def fail(self, error: AmqpError, now: float) -> None:
        """The client is told why, and the connection closes once it says that it knows."""
        self.error = error
        if self.broker.tracer is not None:
            self.broker.tracer(TraceKind.PROTOCOL_ERROR, {"client_id": self.client_id, "detail": str(error)})
        if self.phase in (Phase.HEADER, Phase.CLOSING, Phase.OVER):
            # It is told once.
            self._end(now)
            return
        self.send_method(0, "connection.close", int(error.code), error.reply_text, error.class_id, error.method_id)
        self._release(now)
        self.phase = Phase.CLOSING
        self._cancel_timer()
        self._timer = self.broker.timers.schedule(now + _CLOSE_TIMEOUT_S, self._handshake_timed_out)

    def _release(self, now: float) -> None:
        """Let go of all it holds: consumers, what they hold, exclusive queues."""
        channels, self.channels = self.channels, {}
        self.behind.clear()
        for channel in channels.values():
            channel.end(now)
        self._unflushed.clear()
        vhost = self.vhost
        if vhost is not None:
            for name in vhost.queues_of(self):
                record = vhost.queues.get(name)
                if record is not None:
                    self.service.delete(vhost, record, now, ignore)
            if self.tenant is not None:
                self.tenant.connections -= 1
            self.vhost = None

    def _end(self, now: float) -> None:
        if self.phase is Phase.OVER:
            return
        if self.vhost is not None:
            self.broker.tell(EventKind.DISCONNECTED, self, AMQP091)
        self.phase = Phase.OVER
        self._buffer = b""
        self._publishes.let_go()
        self.broker.partial_packets.set(self, 0, now, progressed=True)
        self._login.drop()
        self._cancel_timer()
        self._release(now)
        self.broker.waiting_publishers.pop(self, None)
        self.broker.connecting.remove(self)
        self.end_output()
        self.rouse()


def opens(opening: bytes) -> bool | None:
    """See :class:`WireProtocol`."""
    if len(opening) < len(OPENING) and OPENING.startswith(opening):
        return None
    return opening.startswith(OPENING)


def wire_protocol(service: Amqp091) -> WireProtocol:
    """What listeners need to speak it."""
    return WireProtocol(accept=lambda arrival: AmqpConnection(service, arrival), opens=opens)
