"""One fuzzed broker and its clients of MQTT: what each of them is sent is checked with the suite's own codec."""

from __future__ import annotations

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
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.trace.schema import TraceKind
from assay.sim.fuzz import inspection
from assay.sim.fuzz.actions import Lose, Probe
from assay.sim.fuzz.driver import DrivenWorld, Transport, broker_code
from assay.sim.fuzz.failure import FuzzFailureError
from assay.sim.fuzz.grammar import CLIENT_IDS
from assay.sim.fuzz.server_packets import check_server_packet
from assay.sim.fuzz.setups import SETUPS

CONTROL_ID = "control-3f1c9d72a6"
CONTROL_TOPIC = "control/3f1c9d72a6"
_CONTROL_VERSION = 5
_LONGEST_PACKET = 64 * 1024 * 1024
_MAX_INBOX = 400
_PROBE_PATIENCE = 200
_LONGEST_WAIT_S = 1.5 * 65_535 + 60


class Slot(Transport[MqttConnection]):
    """One client's transport."""

    def __init__(self, connection: MqttConnection) -> None:
        super().__init__(connection)
        self.decoder: Decoder | None = None
        self.first = True
        """Nothing was sent yet: the next packet must be the answer to CONNECT."""
        self.connected = False
        """A CONNACK said yes."""
        self.inherited: int | None = None
        """QoS 2 messages that its session had not released when it connected; None = it has not."""
        self.inbox: list[Packet] = []
        """What it sent since the client looked last."""


class FuzzWorld(DrivenWorld[Slot]):
    """A node and its clients of MQTT."""

    def __init__(self, setup_name: str, seed: int) -> None:
        self._probes = 0
        self._dollar_levels: set[str] = {"$data"}
        super().__init__(SETUPS[setup_name], seed)

    def _accept(self, peer: str) -> Slot:
        connection = self.node.accept(peer, self.now)
        assert isinstance(connection, MqttConnection)
        return Slot(connection)

    def _was_fed(self, slot: Slot) -> None:
        if slot.inherited is None and slot.connection.session is not None:
            slot.inherited = inspection.unreleased_by(slot.connection)

    def _check_slot(self, slot: Slot) -> None:
        inspection.check_connection(slot.connection, inherited=slot.inherited or 0)

    def _check_node(self) -> None:
        inspection.check_node(self.node, self._open_connections())

    def _late_bytes(self) -> bytes:
        return encode(Connect(client_id=CLIENT_IDS[0]), 4)

    def _on_trace(self, kind: TraceKind, fields: dict[str, str | int]) -> None:
        super()._on_trace(kind, fields)
        if kind is TraceKind.PUBLISHED:
            topic = str(fields.get("topic", ""))
            if topic.startswith("$") and len(self._dollar_levels) < 10_000:
                self._dollar_levels.add(topic.partition("/")[0])

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

    def _connect_control(self) -> Slot:
        with broker_code():
            slot = self._accept("control")
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

    def _take_apart(self) -> None:
        self._say(self.control, encode(Disconnect(), 5))
        self._end(self.control)
        # Longer than any finite session expiry and will delay.
        self.now += 2.0**33
        self._tick()
        for client_id in sorted(self.node.state.sessions):
            self._end_session(client_id)
        self._settle_disk()
        self._clear_retained()

    def _check_empty(self) -> None:
        inspection.check_empty(self.node)

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
        with broker_code():
            slot = self._accept("cleaner")
        self.slots[-1] = slot
        self._say(slot, encode(Connect(client_id=client_id, version=4, clean=True), 4))
        self._settle_disk()
        if not slot.connected:
            raise FuzzFailureError("session not ended", f"no clean start for {client_id!r}")
        self._say(slot, encode(Disconnect(), 4))
        self._lose(Lose(slot=-1))
