"""What clients of all protocols share in workloads: connection, handshake, operations, keep-alive, absences.

Sans-IO: a driver (asyncio sockets, or the simulator) moves bytes and time:

* ``start(now)`` once; then, whenever ``wants_connection(now)``, dial, and report ``connection_made(now)`` or, for a
  failed attempt as for an ended connection, ``connection_lost(now)``;
* ``receive(data, now)`` for what arrives; ``take_output()`` after every call, to send; when ``closing`` is true, close
  the transport after sending and report ``connection_lost(now)``;
* ``tick(now)`` when ``next_deadline()`` is reached.
"""

from __future__ import annotations

import math
import random
from enum import Enum, StrEnum
from typing import ClassVar

import msgspec

from assay.conformance.wire import Properties, Publish
from assay.faults.scenario import Fault, names_a_client
from assay.faults.workload.history import EventFields, HistoryRecorder
from assay.faults.workload_kinds import Absences, Workload
from assay.reference_broker.trace.schema import OpKind, OpType


class ClientRole(StrEnum):
    """Which side of the queue a client is on; faults may target one side."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


_SIDES = {"producers": ClientRole.PRODUCER, "consumers": ClientRole.CONSUMER}


class ClientPhase(Enum):
    """Where a client's connection stands."""

    IDLE = "idle"
    WAITING = "waiting"
    """Disconnected; will want a connection at the phase's deadline."""
    WANTED = "wanted"
    """The driver must dial, or is dialling."""
    CONNECTING = "connecting"
    """CONNECT sent."""
    SUBSCRIBING = "subscribing"
    """SUBSCRIBE sent."""
    READY = "ready"
    STOPPED = "stopped"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of a client, in seconds."""

    operation_timeout_s: float
    reconnect_after_s: float
    handshake_timeout_s: float
    keep_alive_s: int

    @classmethod
    def of(cls, workload: Workload) -> Timing:
        """As a workload has it."""
        return cls(
            operation_timeout_s=workload.publish_timeout_s,
            reconnect_after_s=workload.reconnect_after_s,
            handshake_timeout_s=workload.handshake_timeout_s,
            keep_alive_s=workload.keep_alive_s,
        )


class Coming(msgspec.Struct, frozen=True, kw_only=True):
    """How a client comes and goes, and the stream of chance that decides when."""

    absences: Absences
    rng: random.Random

    def stay_s(self) -> float:
        """How long it stays this time."""
        return self.rng.uniform(*self.absences.stay_s)

    def away_s(self) -> float:
        """How long it is away this time."""
        return self.rng.uniform(*self.absences.away_s)

    def choose(self) -> Exit:
        """How it goes this time."""
        weights = (self.absences.leave, self.absences.drop, self.absences.take_over)
        return self.rng.choices(tuple(Exit), weights)[0]


class Exit(Enum):
    """How a client goes."""

    LEAVE = "leaves"
    DROP = "drops"
    TAKE_OVER = "is taken over"


class Operation(msgspec.Struct, kw_only=True):
    """An invoked operation that awaits its completion."""

    f: OpKind | None
    """None: a request that the history does not tell of."""
    process: str
    index: int
    deadline: float
    fields: EventFields
    packet: Publish | None = None
    """What was sent for it, if a packet with an identifier was."""
    released: bool = False
    """QoS 2: PUBREC has come."""
    answer: Properties = Properties()
    """Of the packet that completed it."""


class WorkloadClient:
    """Base of the clients of a workload. ``history`` receives every operation and its one completion."""

    role: ClientRole
    protocol: ClassVar[str]
    """As the broker's listeners name it."""

    def __init__(
        self,
        client_id: str,
        timing: Timing,
        history: HistoryRecorder,
        max_in_flight: int,
        *,
        coming: Coming | None = None,
    ) -> None:
        self.client_id = client_id
        self.resumes = False
        """What is in flight is kept when a connection ends, and sent again in the next one of the session."""
        self.timing = timing
        self.history = history
        self.phase = ClientPhase.IDLE
        self.closing = False
        """The driver must close the transport after sending what ``take_output`` gives."""
        self._max_in_flight = max_in_flight
        self._incarnation = 0
        self._phase_deadline: float | None = None
        self._output = bytearray()
        self._coming = coming
        self._move_at: float | None = None
        self._absent_until = 0.0
        self._heard_at = 0.0
        self._in_flight: dict[int, Operation] = {}
        self._abandoned: set[int] = set()
        """Numbers of publishes that became ``info``: not free before the broker's answer or the end."""
        self._receive_maximum = 0
        """What the broker takes unanswered."""
        self._handshake: Operation | None = None
        self._has_session = False
        self._end_detail = ""
        self._ping_after_s = timing.keep_alive_s / 2
        self._ping_at: float | None = None
        self._ping_deadline: float | None = None

    # What the driver calls

    def start(self, now: float) -> None:
        """Begin: the client wants a connection from now on."""
        self.phase = ClientPhase.WANTED

    def wants_connection(self, now: float) -> bool:
        """Whether the driver must dial, unless it does already."""
        return self.phase is ClientPhase.WANTED

    def connection_made(self, now: float) -> None:
        """The transport is open: the handshake begins."""
        if self.phase is not ClientPhase.WANTED:
            self.closing = True
            return
        self._output.clear()
        self.closing = False
        self._end_detail = ""
        self._heard_at = now
        self._greet(now)

    def connection_lost(self, now: float) -> None:
        """The transport ended, or could not be opened: whatever was in flight may or may not have happened."""
        had_session, self._has_session = self._has_session, False
        unknown: list[Operation] = []
        if not self.resumes or self.phase is ClientPhase.STOPPED:
            unknown += self._in_flight.values()
            self._in_flight.clear()
        if self._handshake is not None:
            unknown.append(self._handshake)
        self._handshake = None
        self._abandoned.clear()
        self._receive_maximum = 0
        self._ping_at = self._ping_deadline = None
        self._output.clear()
        process = self.process
        for operation in unknown:
            self._complete(operation, OpType.INFO, now, self._end_detail or "connection lost")
        if had_session:
            detail = self._end_detail or "connection lost"
            silent_ns = max(0, round((now - self._heard_at) * 1e9))
            self.history.record(now, process, OpKind.SESSION_END, OpType.OK, detail=detail, delay_ns=silent_ns)
        if unknown or had_session:
            self._retire()
        self.closing = False
        if self.phase is not ClientPhase.STOPPED:
            self.phase = ClientPhase.WAITING
            self._phase_deadline = max(now + self.timing.reconnect_after_s, self._absent_until)
        self._session_ended(now)

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the broker. A protocol error ends the connection; it never raises."""
        if self.closing:
            return
        self._heard_at = now
        self._ping_deadline = None
        self._ping_at = now + self._ping_after_s
        self._read(data, now)

    def take_output(self) -> bytes:
        """Bytes to send now; may be empty."""
        if not self._output:
            return b""
        data = bytes(self._output)
        self._output.clear()
        return data

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next, in Unix seconds; None = only bytes can change anything."""
        if self.closing or self.phase is ClientPhase.IDLE or self.phase is ClientPhase.STOPPED:
            return None
        due = math.inf
        if self._phase_deadline is not None:
            due = self._phase_deadline
        if self._move_at is not None and self._move_at < due:
            due = self._move_at
        if self._in_flight and (self._has_session or not self.resumes):
            # One timeout for all, so the oldest operation is the first to expire; a dict keeps that order.
            due = min(due, next(iter(self._in_flight.values())).deadline)
        if self._ping_deadline is not None:
            due = min(due, self._ping_deadline)
        elif self._has_session and self._ping_at is not None and self._ping_at < due:
            due = self._ping_at
        if self.phase is ClientPhase.READY:
            work_at = self._work_deadline()
            if work_at is not None and work_at < due:
                due = work_at
        return None if due == math.inf else due

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.closing or self.phase in (ClientPhase.IDLE, ClientPhase.STOPPED):
            return
        if self._phase_deadline is not None and now >= self._phase_deadline:
            self._phase_deadline = None
            if self.phase is ClientPhase.WAITING:
                self.phase = ClientPhase.WANTED
            else:
                self._abort("no answer to the handshake")
                return
        self._expire_operations(now)
        if not self.closing and self._move_at is not None and now >= self._move_at:
            self._move(now)
        if not self.closing:
            self._keep_alive(now)
        if not self.closing and self.ready:
            self._work(now)

    def stop(self, now: float) -> None:
        """Leave in good order: DISCONNECT, then close."""
        if self.phase in (ClientPhase.SUBSCRIBING, ClientPhase.READY):
            self._say_goodbye()
        if self.phase not in (ClientPhase.IDLE, ClientPhase.WAITING, ClientPhase.STOPPED):
            self._abort("disconnect")
        self.phase = ClientPhase.STOPPED
        self._phase_deadline = None

    # What the plan calls

    def begin(self, now: float) -> None:
        """Publishing begins: from now on the client may come and go."""
        if self._coming is not None:
            self._move_at = now + self._coming.stay_s()

    def drain(self, now: float) -> None:
        """Publishing is over: come back, and stay."""
        self._move_at = None
        self._absent_until = now
        if self.phase is ClientPhase.WAITING:
            self.phase, self._phase_deadline = ClientPhase.WANTED, None

    @property
    def prepared(self) -> bool:
        """Publishing may begin, as far as this client is concerned."""
        return self.ready

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, so that silence proves something."""
        return self.ready

    # What producers and consumers build on

    @property
    def ready(self) -> bool:
        """Connected, and subscribed where the role needs it."""
        return self.phase is ClientPhase.READY

    @property
    def stopped(self) -> bool:
        """The client wants nothing more."""
        return self.phase is ClientPhase.STOPPED

    @property
    def unanswered(self) -> int:
        """Operations in flight."""
        return len(self._in_flight)

    @property
    def process(self) -> str:
        """Name of the logical process; a new one after every unknown outcome and every session."""
        return f"{self.client_id}.{self._incarnation}"

    # What a protocol does

    def _greet(self, now: float) -> None:
        """The transport is open: the first bytes, and the handshake's beginning."""
        raise NotImplementedError

    def _read(self, data: bytes, now: float) -> None:
        """Bytes from the broker."""
        raise NotImplementedError

    def _say_goodbye(self) -> None:
        """What ends a session in good order."""
        raise NotImplementedError

    def _ping(self) -> None:
        """A sign of life that the broker answers."""
        raise NotImplementedError

    def _connected(self, now: float) -> None:
        """The broker said yes. A consumer subscribes here; a producer is ready."""
        self._become_ready(now)

    def _move(self, now: float) -> None:
        """It is time to go: how, and for how long, is drawn."""
        assert self._coming is not None
        chosen, pause_s = self._coming.choose(), self._coming.away_s()
        self._move_at = now + pause_s + self._coming.stay_s()
        if self.ready:
            self._go(chosen, now, pause_s)

    def _go(self, how: Exit, now: float, pause_s: float) -> None:
        self._absent_until = now + pause_s
        if how is Exit.LEAVE:
            self._say_goodbye()
        self._abort(how.value)

    def _work(self, now: float) -> None:
        """Send whatever is due; called when ready."""

    def _on_completed(self, operation: Operation, type_: OpType, now: float) -> None:
        """An operation got its one completion, which is in the history by now."""

    def _on_timeout(self, now: float) -> None:
        """At least one operation just became unknown on a living connection."""

    def _session_ended(self, now: float) -> None:
        """The connection is gone."""

    def _work_deadline(self) -> float | None:
        """When ``_work`` is due next, while ready."""
        return None

    def _window(self) -> int:
        """Publishes that may be sent now without overrunning the broker's Receive Maximum or our own bound."""
        allowed = min(self._receive_maximum, self._max_in_flight)
        return allowed - len(self._in_flight) - len(self._abandoned)

    def _begin_handshake(self, phase: ClientPhase, f: OpKind, now: float, fields: EventFields) -> None:
        self.phase = phase
        deadline = self._phase_deadline = now + self.timing.handshake_timeout_s
        index = self.history.record(now, self.process, f, OpType.INVOKE, **fields)
        self._handshake = Operation(f=f, process=self.process, index=index, deadline=deadline, fields=fields)

    def _end_handshake(self, type_: OpType, now: float, detail: str = "") -> None:
        operation, self._handshake = self._handshake, None
        self._phase_deadline = None
        if operation is not None:
            self._complete(operation, type_, now, detail)

    def _become_ready(self, now: float) -> None:
        self.phase = ClientPhase.READY
        self._phase_deadline = None
        self._work(now)

    def _abort(self, detail: str) -> None:
        """Ask the driver to close the connection; ``detail`` goes into the history."""
        self.closing = True
        self._end_detail = self._end_detail or detail

    # Inside

    def _complete(self, operation: Operation, type_: OpType, now: float, detail: str) -> None:
        if operation.f is not None and self._is_complete(operation, type_):
            self._record_completion(operation, type_, now, detail)
        self._on_completed(operation, type_, now)

    def _is_complete(self, operation: Operation, type_: OpType) -> bool:
        """Whether the answer completes the operation; in a transaction, only that does."""
        return True

    def _record_completion(self, operation: Operation, type_: OpType, now: float, detail: str) -> None:
        assert operation.f is not None
        fields = operation.fields.copy()
        fields["op"] = operation.index
        fields["detail"] = detail
        self.history.record(now, operation.process, operation.f, type_, **fields)

    def _expire_operations(self, now: float) -> None:
        if self.resumes and not self._has_session:
            return
        expired = [packet_id for packet_id, operation in self._in_flight.items() if now >= operation.deadline]
        if not expired:
            return
        if self.resumes:
            self._abort(f"no answer for {self.timing.operation_timeout_s:g} s")
            return
        for packet_id in expired:
            operation = self._in_flight.pop(packet_id)
            self._abandoned.add(packet_id)
            self._complete(operation, OpType.INFO, now, f"no confirm for {self.timing.operation_timeout_s:g} s")
        self._on_timeout(now)

    def _keep_alive(self, now: float) -> None:
        if self._ping_deadline is not None:
            if now >= self._ping_deadline:
                self._abort(f"no answer to a ping for {self._ping_after_s:g} s")
        elif self._has_session and self._ping_at is not None and now >= self._ping_at:
            self._ping()
            self._ping_deadline = now + self._ping_after_s

    def _retire(self) -> None:
        """The process had an unknown outcome: its name must not be used again."""
        self._incarnation += 1


def is_hit(fault: Fault, client: WorkloadClient) -> bool:
    """Whether a fault of the network concerns the client: it names it, its side, or all."""
    if names_a_client(fault):
        return fault.target == client.client_id
    return _SIDES.get(fault.target, client.role) is client.role
