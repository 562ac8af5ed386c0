"""One fuzzed broker and its clients of AMQP 0.9.1: what each is sent is checked with the suite's own codec."""

from __future__ import annotations

from typing import Any, Final

from assay.conformance.wire.amqp091 import (
    FRAME_MIN_BYTES,
    METHODS,
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    Frame,
    MalformedFrameError,
    Method,
    ProtocolHeader,
    describe_bytes,
    encode_content,
    encode_method,
)
from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.trace.schema import TraceKind
from assay.sim.fuzz import amqp_inspection as inspection
from assay.sim.fuzz.actions import Probe, Sync
from assay.sim.fuzz.driver import DrivenWorld, Transport, broker_code
from assay.sim.fuzz.failure import FuzzFailureError
from assay.sim.fuzz.setups import AMQP_SETUPS, PASSWORD, USER
from assay.sim.fuzz.steps import counted

CONTROL_QUEUE: Final = "control-3f1c9d72a6"
_MAX_INBOX: Final = 400
_NO_FAULT: Final = ("CONNECTION_FORCED", "RESOURCE_ERROR", "INTERNAL_ERROR")
"""Refusals that may come without a rule: the client broke none."""
_PROBE_PATIENCE: Final = 200
_COUNTED_EVERY: Final = 8
"""Of so many lives one has its steps counted."""
_LONGEST_WAIT_S: Final = 3 * 65_535.0
_FROM_CLIENTS: Final = """
connection.start-ok connection.secure-ok connection.tune-ok connection.open connection.update-secret channel.open
exchange.declare exchange.delete exchange.bind exchange.unbind queue.declare queue.bind queue.unbind queue.purge
queue.delete basic.qos basic.consume basic.publish basic.get basic.reject basic.recover basic.recover-async
confirm.select tx.select tx.commit tx.rollback
"""
FROM_SERVERS: Final = METHODS.keys() - set(_FROM_CLIENTS.split())


class _SeenChannel:
    """What was said on an open channel."""

    __slots__ = ("confirmed", "floor", "is_closed", "last_delivery")

    def __init__(self) -> None:
        self.is_closed = False
        """``close`` was sent: ``close-ok`` alone may follow."""
        self.last_delivery = 0
        self.floor = 0
        """Publishes up to it are confirmed."""
        self.confirmed: set[int] = set()

    def problem_of(self, said: Arrival) -> str | None:
        """What a method breaks, in words."""
        if self.is_closed and said.name not in ("channel.close-ok", "channel.open-ok"):
            return "behind channel.close"
        if said.name in ("basic.deliver", "basic.get-ok"):
            self.last_delivery += 1
            if said.tag != self.last_delivery:
                return f"delivery tag {said.tag} where {self.last_delivery} is next"
        elif said.name in ("basic.ack", "basic.nack"):
            tag = said.tag
            if tag <= self.floor or tag in self.confirmed:
                return f"publish {tag} is confirmed twice"
            if said["multiple"]:
                self.floor = tag
                self.confirmed = {each for each in self.confirmed if each > tag}
            else:
                self.confirmed.add(tag)
        return None


class AmqpSlot(Transport[AmqpConnection]):
    """One client's transport."""

    def __init__(self, connection: AmqpConnection) -> None:
        super().__init__(connection)
        self.assembler = Assembler()
        self.channels: dict[int, _SeenChannel] = {}
        self.said_close = False
        self.has_spoken = False
        self.inbox: list[Arrival] = []
        """What the broker said since the client looked last."""


class AmqpWorld(DrivenWorld[AmqpSlot]):
    """A node and its clients of AMQP 0.9.1."""

    def __init__(self, setup_name: str, seed: int) -> None:
        self._probes = 0
        self._counts_steps = seed % _COUNTED_EVERY == 0
        super().__init__(AMQP_SETUPS[setup_name], seed)

    def _accept(self, peer: str) -> AmqpSlot:
        connection = self.node.accept(peer, self.now, protocol="amqp091")
        assert isinstance(connection, AmqpConnection)
        return AmqpSlot(connection)

    def _feed(self, slot: AmqpSlot, chunk: bytes) -> None:
        with counted(self._counts_steps, len(chunk)):
            super()._feed(slot, chunk)

    def _check_slot(self, slot: AmqpSlot) -> None:
        inspection.check_connection(slot.connection, is_settled=self._is_settled)

    def _check_node(self) -> None:
        inspection.check_node(self.node, self._open_connections(), is_settled=self._is_settled)

    @property
    def _is_settled(self) -> bool:
        """Nothing waits for the disk, or for another turn."""
        return not self._jobs and not self.node.state.unfinished

    def _on_trace(self, kind: TraceKind, fields: dict[str, str | int]) -> None:
        super()._on_trace(kind, fields)
        if kind is TraceKind.PROTOCOL_ERROR and "client_id" in fields:
            text = str(fields["detail"])
            if not text.endswith(")") and not text.startswith(_NO_FAULT):
                raise FuzzFailureError("a refusal names no rule", text)

    def _late_bytes(self) -> bytes:
        return encode_method(1, Method("basic.get", queue="q1"))

    # -- output --------------------------------------------------------------------------------------------------------

    def _check_output(self, slot: AmqpSlot, data: bytes) -> None:
        try:
            for frame in slot.assembler.frames(data):
                self._check_frame(slot, frame)
                said = slot.assembler.take(frame)
                if isinstance(said, Arrival):
                    self._check_method(slot, said)
        except MalformedFrameError as error:
            raise FuzzFailureError(f"malformed output: {error}", describe_bytes(data[:400])) from error
        if slot.assembler.pending:
            raise FuzzFailureError("partial output", "a turn's output does not end with a frame")

    def _check_frame(self, slot: AmqpSlot, frame: Frame | ProtocolHeader) -> None:
        if isinstance(frame, ProtocolHeader):
            if slot.has_spoken:
                raise FuzzFailureError("a protocol header in the middle", frame.data.hex())
        else:
            most = max(slot.connection.frame_max_bytes, FRAME_MIN_BYTES)
            if frame.size_bytes > most:
                raise FuzzFailureError("larger than frame-max", f"{frame.size_bytes} bytes, {most} are agreed")
        slot.has_spoken = True

    def _check_method(self, slot: AmqpSlot, said: Arrival) -> None:
        name = said.name
        problem: str | None = None
        if name not in FROM_SERVERS:
            problem = "is a client's"
        elif slot.said_close and name != "connection.close-ok":
            problem = "behind connection.close"
        elif said.channel == 0:
            slot.said_close = slot.said_close or name == "connection.close"
            if not name.startswith("connection."):
                problem = "on channel 0"
        elif name == "channel.open-ok":
            if said.channel in slot.channels and not slot.channels[said.channel].is_closed:
                problem = "twice"
            slot.channels[said.channel] = _SeenChannel()
        else:
            channel = slot.channels.get(said.channel)
            if channel is None:
                problem = "on a channel that is not open"
            else:
                problem = channel.problem_of(said)
                if name == "channel.close":
                    channel.is_closed = True
                elif name == "channel.close-ok":
                    del slot.channels[said.channel]
        if problem is not None:
            raise FuzzFailureError(f"{name}: {problem}", f"channel {said.channel}: {said.method}")
        if len(slot.inbox) < _MAX_INBOX:
            slot.inbox.append(said)

    # -- the control client --------------------------------------------------------------------------------------------

    def _connect_control(self) -> AmqpSlot:
        with broker_code():
            slot = self.control = self._accept("control")
        self._say(slot, PROTOCOL_HEADER)
        user, password = (USER, PASSWORD) if self.setup.config.auth.users else ("guest", "guest")
        login = f"\0{user}\0{password}".encode()
        self._call(slot, 0, "connection.start-ok", "connection.tune", mechanism="PLAIN", response=login, locale="en_US")
        frame_max = self.setup.config.amqp091.frame_max_bytes
        self._tell(slot, 0, "connection.tune-ok", channel_max=6, frame_max=frame_max)
        self._call(slot, 0, "connection.open", "connection.open-ok", virtual_host="/")
        self._call(slot, 1, "channel.open", "channel.open-ok")
        self._call(slot, 1, "confirm.select", "confirm.select-ok")
        self._call(slot, 1, "queue.declare", "queue.declare-ok", queue=CONTROL_QUEUE, durable=True)
        # What a probe left before a restart.
        self._call(slot, 1, "queue.purge", "queue.purge-ok", queue=CONTROL_QUEUE)
        self._call(slot, 1, "basic.consume", "basic.consume-ok", queue=CONTROL_QUEUE, consumer_tag="control")
        slot.inbox.clear()
        return slot

    def _tell(self, slot: AmqpSlot, channel: int, method: str, **values: Any) -> None:
        self._say(slot, encode_method(channel, Method(method, **values)))

    def _call(self, slot: AmqpSlot, channel: int, method: str, answer: str, **values: Any) -> Arrival:
        slot.inbox.clear()
        self._tell(slot, channel, method, **values)
        for _ in range(_PROBE_PATIENCE):
            found = next((said for said in slot.inbox if said.name == answer), None)
            if found is not None:
                return found
            if slot.connection.closing or not self._wait():
                break
        heard = [f"{said.name} {said.method.values}" for said in slot.inbox]
        raise FuzzFailureError("control not served", f"{method} is answered by {heard}")

    def _wait(self) -> bool:
        """Let the disk, or time, go on; False when there is nothing to wait for."""
        if self._jobs:
            self._settle_disk()
            return True
        deadline = self.node.next_deadline()
        if deadline is None:
            return False
        self.now = max(self.now, deadline)
        self._tick()
        return True

    def _probe(self, action: Probe) -> None:
        """A message from the control client to itself arrives once and is confirmed, whatever the others did."""
        if self.disk_failed:
            return
        control = self.control
        self._probes += 1
        body = b"probe %d" % self._probes
        control.inbox.clear()
        method = Method("basic.publish", routing_key=CONTROL_QUEUE, mandatory=True)
        self._say(control, encode_content(1, method, body, {"delivery_mode": 2}))
        for _ in range(_PROBE_PATIENCE):
            given = [said for said in control.inbox if said.name == "basic.deliver"]
            others = {said.name for said in control.inbox} - {"basic.deliver", "basic.ack"}
            if len(given) > 1 or (given and given[0].body != body) or others:
                text = f"probe {self._probes}: {[said.body for said in given]} {others}"
                raise FuzzFailureError("control served wrongly", text)
            if given and any(said.name == "basic.ack" for said in control.inbox):
                self._tell(control, 1, "basic.ack", delivery_tag=given[0].tag)
                control.inbox.clear()
                return
            if control.connection.closing or not self._wait():
                break
        raise FuzzFailureError("control not served", f"probe {self._probes} did not come back")

    def _sync(self, action: Sync) -> None:
        """Where there is no disk a commit's decision is in memory, which does not fail."""
        super()._sync(Sync(fails=action.fails and self.setup.with_disk))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _take_apart(self) -> None:
        inspection.check_idle(self.node)
        vhost = self.node.amqp091.topology.vhost("/")
        for queue in [*vhost.queues]:
            if queue != CONTROL_QUEUE and queue in vhost.queues:
                self._call(self.control, 1, "queue.delete", "queue.delete-ok", queue=queue)
        for exchange in [*vhost.exchanges]:
            if exchange and not exchange.startswith("amq.") and exchange in vhost.exchanges:
                self._call(self.control, 1, "exchange.delete", "exchange.delete-ok", exchange=exchange)
        inspection.unbind_predeclared(vhost)
        self._call(self.control, 1, "queue.delete", "queue.delete-ok", queue=CONTROL_QUEUE)
        self._end(self.control)

    def _check_empty(self) -> None:
        inspection.check_empty(self.node)

    def _expect_timeouts(self) -> None:
        """Silent clients are cut, unless they asked for no heartbeats."""
        for _ in range(3):
            self.now += _LONGEST_WAIT_S
            self._settle_disk()
            self._tick()
        for slot in self.slots.values():
            connection = slot.connection
            if not connection.is_over and (connection.has_heartbeats or not connection.is_running):
                raise FuzzFailureError("stuck connection", f"{connection.phase}")
