"""One fuzzed broker: carries actions out, and checks what every client is sent with the suite's own codec."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assay.conformance.wire import (
    Connect,
    Decoder,
    Disconnect,
    MalformedPacketError,
    Packet,
    PacketType,
    Puback,
    Publish,
    Subscribe,
    Subscription,
    decode_packet,
    describe,
    encode,
)
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind
from assay.sim.fuzz import inspection
from assay.sim.fuzz.actions import Action, Advance, Drain, Lose, Open, Probe, Restart, Send, Sync
from assay.sim.fuzz.failure import FuzzFailureError, escaped
from assay.sim.fuzz.grammar import CLIENT_IDS
from assay.sim.fuzz.server_packets import check_server_packet
from assay.sim.fuzz.setups import SETUPS, Setup

START = 1_700_000_000.0
CONTROL_ID = "control-3f1c9d72a6"
CONTROL_TOPIC = "control/3f1c9d72a6"
_CONTROL_VERSION = 5
_LONGEST_PACKET = 64 * 1024 * 1024
_MAX_BACKLOG_BYTES = 256 * 1024
_MAX_INBOX = 400
_MAX_TURNS = 200
_FULL_CHECK_EVERY = 32
_PROBE_PATIENCE = 200
_LONGEST_WAIT_S = 1.5 * 65_535 + 60


class Slot:
    """One client's transport."""

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection, MqttConnection)
        self.connection = connection
        self.decoder: Decoder | None = None
        self.first = True
        """Nothing was sent yet: the next packet must be the answer to CONNECT."""
        self.connected = False
        """A CONNACK said yes."""
        self.inherited: int | None = None
        """QoS 2 messages that its session had not released when it connected; None = it has not."""
        self.finished = False
        """The broker closed: nothing may follow."""
        self.backlog: list[bytes] = []
        """What the broker does not read for now."""
        self.inbox: list[Packet] = []
        """What it sent since the client looked last."""


class FuzzWorld:
    """A node, its clients and its clock."""

    def __init__(self, setup_name: str, seed: int) -> None:
        self.setup: Setup = SETUPS[setup_name]
        self.now = START
        self.slots: dict[int, Slot] = {}
        self.steps = 0
        self.trace_detail = ""
        """The last protocol error that the broker traced, where it does."""
        self._rng = random.Random(seed)
        self._disk = MemoryDisk() if self.setup.with_disk else None
        self.disk_failed = False
        """A sync failed: until the broker restarts, whoever would need the disk may lose its connection."""
        self._jobs: list[BackgroundJob] = []
        self._probes = 0
        self._dollar_levels: set[str] = {"$data"}
        self._handlers: dict[type[Action], Callable[..., None]] = {
            Open: self._open,
            Send: self._send,
            Lose: self._lose,
            Advance: self._advance,
            Sync: self._sync,
            Probe: self._probe,
            Restart: self._restart,
            Drain: self._drain,
        }
        self.node = self._start()
        self.control = self._connect_control()

    # -- doing -----------------------------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        """Carry an action out. Raises :class:`FuzzFailureError`. What makes no sense any more (after shrinking) is
        passed over.
        """
        self.now += 0.001
        self.steps += 1
        self._handlers[type(action)](action)
        if self.steps % _FULL_CHECK_EVERY == 0 and not isinstance(action, Drain):
            inspection.check_node(self.node, self._open_connections())

    def _start(self) -> BrokerNode:
        tracer = self._on_trace if self.setup.traced else None
        with _broker_code():
            return BrokerNode(self.setup.config, self._disk, self._rng, self.now, tracer)

    def _on_trace(self, kind: TraceKind, fields: dict[str, str | int]) -> None:
        if kind is TraceKind.PUBLISHED:
            topic = str(fields.get("topic", ""))
            if topic.startswith("$") and len(self._dollar_levels) < 10_000:
                self._dollar_levels.add(topic.partition("/")[0])
        elif kind is TraceKind.PROTOCOL_ERROR:
            self.trace_detail = str(fields.get("detail", ""))

    def _open_connections(self) -> int:
        return len(self.slots) + 1

    def _open(self, action: Open) -> None:
        if action.slot not in self.slots:
            with _broker_code():
                connection = self.node.accept(f"slot {action.slot}", self.now)
            self.slots[action.slot] = Slot(connection)

    def _send(self, action: Send) -> None:
        slot = self.slots.get(action.slot)
        if slot is None:
            return
        for chunk in action.chunks:
            self._feed(slot, chunk)
        inspection.check_connection(slot.connection, inherited=slot.inherited or 0)

    def _feed(self, slot: Slot, chunk: bytes) -> None:
        if slot.backlog or slot.connection.wants_pause:
            # The driver would have stopped to read.
            if sum(map(len, slot.backlog)) < _MAX_BACKLOG_BYTES:
                slot.backlog.append(chunk)
            return
        with _broker_code():
            self.node.receive(slot.connection, chunk, self.now)
        if slot.inherited is None and slot.connection.session is not None:
            slot.inherited = inspection.unreleased_by(slot.connection)
        self._turn()

    def _lose(self, action: Lose) -> None:
        slot = self.slots.pop(action.slot, None)
        if slot is not None:
            self._end(slot)

    def _end(self, slot: Slot) -> None:
        with _broker_code():
            self.node.connection_lost(slot.connection, self.now)
        self._turn()
        slot.connection.take_output()
        with _broker_code():
            # Late news of a transport that is gone must change nothing.
            self.node.receive(slot.connection, encode(Connect(client_id=CLIENT_IDS[0]), 4), self.now)
        if slot.connection.take_output():
            raise FuzzFailureError("output after the end", "a connection that was lost answered")

    def _advance(self, action: Advance) -> None:
        end = self.now + action.seconds
        if not action.jump:
            for _ in range(_MAX_TURNS):
                deadline = self.node.next_deadline()
                if deadline is None or deadline > end:
                    break
                self.now = max(self.now, deadline)
                self._tick()
        self.now = max(self.now, end)
        self._tick()
        deadline = self.node.next_deadline()
        if deadline is not None and action.jump and deadline <= self.now:
            raise FuzzFailureError("timer not fired", f"a deadline {self.now - deadline} s ago is still waiting")

    def _tick(self) -> None:
        with _broker_code():
            self.node.tick(self.now)
        self._turn()

    def _sync(self, action: Sync) -> None:
        jobs, self._jobs = self._jobs, []
        self.disk_failed |= action.fails and bool(jobs) and self.setup.with_disk
        for job in jobs:
            error: OSError | None = OSError(5, "the disk failed") if action.fails else None
            with _broker_code():
                if error is None:
                    job.run()
                self.node.job_done(job, error, self.now)
        self._turn()

    def _settle_disk(self) -> None:
        """Syncs until none is wanted."""
        for _ in range(_MAX_TURNS):
            if not self._jobs:
                return
            self._sync(Sync())
        raise FuzzFailureError("endless syncs", f"the broker wants a sync after {_MAX_TURNS} of them")

    def _restart(self, action: Restart) -> None:
        if action.clean:
            with _broker_code():
                self.node.close(self.now)
                for slot in self._all_slots():
                    slot.connection.take_output()
        self._jobs.clear()
        self.slots.clear()
        self.disk_failed = False
        self.node = self._start()
        self.control = self._connect_control()

    # -- a turn ------------------------------------------------------------------------------------------------------

    def _all_slots(self) -> Iterator[Slot]:
        yield from self.slots.values()
        yield self.control

    def _turn(self) -> None:
        """What a driver does at the end of its turn, until nothing is left to do."""
        for _ in range(_MAX_TURNS):
            with _broker_code():
                dirty = self.node.take_dirty(self.now)
                self._jobs += self.node.take_jobs(self.now)
            by_connection: dict[Connection, Slot] = {}
            if dirty:
                by_connection.update({slot.connection: slot for slot in self._all_slots()})
            for connection in dirty:
                slot = by_connection.get(connection)
                if slot is not None:
                    self._flush(slot)
                else:
                    connection.take_output()
            if not dirty and not self._resume_reading() and not self.node.state.sending.woken:
                return
        raise FuzzFailureError("endless turn", f"the broker still has output after {_MAX_TURNS} turns")

    def _resume_reading(self) -> bool:
        resumed = False
        for slot in self.slots.values():
            if slot.backlog and not slot.connection.wants_pause:
                resumed = True
                waiting = b"".join(slot.backlog)
                slot.backlog.clear()
                with _broker_code():
                    self.node.receive(slot.connection, waiting, self.now)
        return resumed

    def _flush(self, slot: Slot) -> None:
        connection = slot.connection
        data = connection.take_output()
        if connection.noted_unread_bytes:
            connection.note_backlog(0, len(data), self.now)
        if slot.finished and data:
            raise FuzzFailureError("output after the end", f"{len(data)} bytes after the connection was closed")
        if data:
            self._check_output(slot, data)
        slot.finished = connection.may_close

    def _check_output(self, slot: Slot, data: bytes) -> None:
        connection = slot.connection
        if slot.decoder is None:
            slot.decoder = Decoder(connection.version, max_packet_bytes=_LONGEST_PACKET)
        try:
            frames = slot.decoder.feed_frames(data)
            packets = [decode_packet(frame, slot.decoder.version) for frame in frames]
        except MalformedPacketError as error:
            raise FuzzFailureError(f"malformed output: {error}", data[:400].hex()) from error
        if slot.decoder.pending:
            raise FuzzFailureError("partial output", "a turn's output does not end with a packet")
        for frame, packet in zip(frames, packets, strict=True):
            last = packet is packets[-1] and connection.may_close
            problem = check_server_packet(packet, slot.decoder.version, first=slot.first, last=last)
            if problem is None and len(frame) > connection.max_packet_out:
                problem = "larger than the client's Maximum Packet Size"
            if problem is None and packet.type is PacketType.CONNACK and slot.connected:
                problem = "a second CONNACK"
            if problem is not None:
                raise FuzzFailureError(f"{packet.type.name}: {problem}", describe(packet))
            slot.first = False
            if packet.type is PacketType.CONNACK:
                slot.connected = True
            if not slot.connected and packet.type is not PacketType.AUTH:
                raise FuzzFailureError(f"{packet.type.name} before CONNACK", describe(packet))
        if len(slot.inbox) < _MAX_INBOX:
            slot.inbox += packets

    # -- the control client ------------------------------------------------------------------------------------------

    def _connect_control(self) -> Slot:
        with _broker_code():
            slot = Slot(self.node.accept("control", self.now))
        self.control = slot
        qos = min(1, self.setup.config.mqtt.maximum_qos)
        self._say(slot, encode(Connect(client_id=CONTROL_ID, version=_CONTROL_VERSION, keep_alive_s=0), 5))
        subscription = Subscription(filter=CONTROL_TOPIC, qos=qos)
        self._say(slot, encode(Subscribe(packet_id=1, subscriptions=(subscription,)), 5))
        self._settle_disk()
        if not any(packet.type is PacketType.SUBACK for packet in slot.inbox):
            raise FuzzFailureError("control not served", "the control client could not subscribe")
        slot.inbox.clear()
        return slot

    def _say(self, slot: Slot, data: bytes) -> None:
        with _broker_code():
            self.node.receive(slot.connection, data, self.now)
        self._turn()

    def _probe(self, action: Probe) -> None:
        """A message from the control client to itself must arrive, whatever the others did."""
        if self.disk_failed:
            return
        if self.control.connection.closing and self.control.connection.keep_alive_s:
            # The broker imposed a keep alive, and time has jumped.
            self._end(self.control)
            self.control = self._connect_control()
        control = self.control
        self._probes += 1
        qos = min(1, self.setup.config.mqtt.maximum_qos)
        payload = b"probe %d" % self._probes
        packet_id = self._probes % 65_535 + 1
        self._say(
            control,
            encode(Publish(topic=CONTROL_TOPIC, payload=payload, qos=qos, packet_id=packet_id if qos else 0), 5),
        )
        for _ in range(_PROBE_PATIENCE):
            for packet in [packet for packet in control.inbox if isinstance(packet, Publish) and packet.qos]:
                self._say(control, encode(Puback(packet_id=packet.packet_id), 5))
            if any(isinstance(packet, Publish) and packet.payload == payload for packet in control.inbox):
                control.inbox.clear()
                return
            if self._jobs:
                self._settle_disk()
                continue
            # Over a publish rate the broker takes its time.
            deadline = self.node.next_deadline()
            if control.connection.closing or not control.connection.wants_pause or deadline is None:
                break
            self.now = max(self.now, deadline)
            self._tick()
        raise FuzzFailureError("control not served", f"probe {self._probes} did not come back")

    # -- the end -------------------------------------------------------------------------------------------------------

    def _drain(self, action: Drain) -> None:
        if self.disk_failed:
            self._restart(Restart(clean=False))
        self._settle_disk()
        self._expect_timeouts()
        for number in sorted(self.slots):
            self._lose(Lose(slot=number))
        self._settle_disk()
        self._say(self.control, encode(Disconnect(), 5))
        self._end(self.control)
        # Longer than any finite session expiry and will delay.
        self.now += 2.0**33
        self._tick()
        for client_id in sorted(self.node.state.sessions):
            self._end_session(client_id)
        self._settle_disk()
        self._clear_retained()
        self._settle_disk()
        inspection.check_empty(self.node)
        with _broker_code():
            self.node.close(self.now)
        if self.setup.with_disk:
            # What is gone stays gone.
            self.node = self._start()
            inspection.check_empty(self.node)
            with _broker_code():
                self.node.close(self.now)

    def _expect_timeouts(self) -> None:
        """Silent clients must be cut, unless they asked for no keep alive."""
        self.now += _LONGEST_WAIT_S
        for _ in range(3):
            self._settle_disk()
            self._tick()
            self.now += _LONGEST_WAIT_S
        if self.control.connection.closing and self.control.connection.keep_alive_s:
            self._end(self.control)
            self.control = self._connect_control()
        for slot in self.slots.values():
            connection = slot.connection
            if not connection.closing and not (slot.connected and connection.keep_alive_s == 0):
                raise FuzzFailureError("stuck connection", f"{connection.phase}, keep alive {connection.keep_alive_s}")

    def _clear_retained(self) -> None:
        if not self.setup.config.mqtt.retain_available:
            return
        for filter_ in ("#", *(f"{level}/#" for level in sorted(self._dollar_levels))):
            for message in list(self.node.state.retained.match(filter_, self.now)):
                self.node.state.publish(inspection.without_payload(message), None, self.now)
        self._turn()

    def _end_session(self, client_id: str) -> None:
        """A session that never expires ends with a clean start under its name."""
        with _broker_code():
            slot = Slot(self.node.accept("cleaner", self.now))
        self.slots[-1] = slot
        self._say(slot, encode(Connect(client_id=client_id, version=4, clean=True), 4))
        self._settle_disk()
        if not slot.connected:
            raise FuzzFailureError("session not ended", f"no clean start for {client_id!r}")
        self._say(slot, encode(Disconnect(), 4))
        self._lose(Lose(slot=-1))


@contextmanager
def _broker_code() -> Iterator[None]:
    """Whatever the broker raises here is a failure."""
    try:
        yield
    except FuzzFailureError:
        raise
    except Exception as error:
        raise escaped(error) from error
