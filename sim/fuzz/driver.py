"""What drives a fuzzed broker, whatever its clients speak: actions, turns, time, syncs, restarts."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from assay.reference_broker.core.connection import Connection
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind
from assay.sim.fuzz.actions import Action, Advance, Drain, Lose, Open, Probe, Restart, Send, Sync
from assay.sim.fuzz.failure import FuzzFailureError, escaped
from assay.sim.fuzz.setups import Setup

START = 1_700_000_000.0
_MAX_BACKLOG_BYTES = 256 * 1024
_MAX_TURNS = 200
_MOST_FURTHER_TURNS = 8
"""At the same time: what a timer set off may need another turn at once, and what that did one more."""
_FULL_CHECK_EVERY = 32
ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Transport(Generic[ConnectionT]):
    """One client's transport."""

    def __init__(self, connection: ConnectionT) -> None:
        self.connection = connection
        self.finished = False
        """The broker closed: nothing may follow."""
        self.backlog: list[bytes] = []
        """What the broker does not read for now."""


SlotT = TypeVar("SlotT", bound=Transport)  # type: ignore[type-arg]


class DrivenWorld(ABC, Generic[SlotT]):
    """A node, its clients and its clock."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.now = START
        self.slots: dict[int, SlotT] = {}
        self.steps = 0
        self.trace_detail = ""
        """The last protocol error that the broker traced, where it does."""
        self._rng = random.Random(seed)
        self._disk = MemoryDisk() if self.setup.with_disk else None
        self.disk_failed = False
        """A sync failed: until the broker restarts, whoever would need the disk may lose its connection."""
        self._jobs: list[BackgroundJob] = []
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

    # -- what differs ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _accept(self, peer: str) -> SlotT:
        """A new transport."""

    @abstractmethod
    def _connect_control(self) -> SlotT:
        """A client that must be served, whatever the others do."""

    @abstractmethod
    def _probe(self, action: Probe) -> None:
        """It is. Raises :class:`FuzzFailureError`."""

    @abstractmethod
    def _expect_timeouts(self) -> None:
        """Silent clients are cut. Raises :class:`FuzzFailureError`."""

    @abstractmethod
    def _take_apart(self) -> None:
        """All clients but the control are gone: whatever is kept ends, and the control with it."""

    @abstractmethod
    def _check_empty(self) -> None:
        """Nothing is left. Raises :class:`FuzzFailureError`."""

    @abstractmethod
    def _check_output(self, slot: SlotT, data: bytes) -> None:
        """What a client is sent. Raises :class:`FuzzFailureError`."""

    @abstractmethod
    def _check_slot(self, slot: SlotT) -> None:
        """The bounds of a connection that was just sent something. Raises :class:`FuzzFailureError`."""

    @abstractmethod
    def _check_node(self) -> None:
        """The bounds of all. Raises :class:`FuzzFailureError`."""

    @abstractmethod
    def _late_bytes(self) -> bytes:
        """What comes of a transport that is gone, and must change nothing."""

    def _on_trace(self, kind: TraceKind, fields: dict[str, str | int]) -> None:
        if kind is TraceKind.PROTOCOL_ERROR:
            self.trace_detail = str(fields.get("detail", ""))

    def _was_fed(self, slot: SlotT) -> None:
        """The node has taken a chunk."""

    # -- doing -----------------------------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        """Carry an action out. Raises :class:`FuzzFailureError`. What makes no sense any more (after shrinking) is
        passed over.
        """
        self.now += 0.001
        self.steps += 1
        self._handlers[type(action)](action)
        if self.steps % _FULL_CHECK_EVERY == 0 and not isinstance(action, Drain):
            self._check_node()

    def _start(self) -> BrokerNode:
        tracer = self._on_trace if self.setup.traced else None
        with broker_code():
            return BrokerNode(self.setup.config, self._disk, self._rng, self.now, tracer)

    def _open_connections(self) -> int:
        return len(self.slots) + 1

    def _open(self, action: Open) -> None:
        if action.slot not in self.slots:
            with broker_code():
                self.slots[action.slot] = self._accept(f"slot {action.slot}")

    def _send(self, action: Send) -> None:
        slot = self.slots.get(action.slot)
        if slot is None:
            return
        for chunk in action.chunks:
            self._feed(slot, chunk)
        self._check_slot(slot)

    def _feed(self, slot: SlotT, chunk: bytes) -> None:
        if slot.backlog or slot.connection.wants_pause:
            # The driver would have stopped to read.
            if sum(map(len, slot.backlog)) < _MAX_BACKLOG_BYTES:
                slot.backlog.append(chunk)
            return
        with broker_code():
            self.node.receive(slot.connection, chunk, self.now)
        self._was_fed(slot)
        self._turn()

    def _lose(self, action: Lose) -> None:
        slot = self.slots.pop(action.slot, None)
        if slot is not None:
            self._end(slot)

    def _end(self, slot: SlotT) -> None:
        with broker_code():
            self.node.connection_lost(slot.connection, self.now)
        self._turn()
        slot.connection.take_output()
        with broker_code():
            # Late news of a transport that is gone must change nothing.
            self.node.receive(slot.connection, self._late_bytes(), self.now)
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
        for _ in range(_MOST_FURTHER_TURNS):
            deadline = self.node.next_deadline()
            if deadline is None or deadline > self.now:
                break
            self._tick()
        if deadline is not None and action.jump and deadline <= self.now:
            raise FuzzFailureError("timer not fired", f"a deadline {self.now - deadline} s ago is still waiting")

    def _tick(self) -> None:
        with broker_code():
            self.node.tick(self.now)
        self._turn()

    def _sync(self, action: Sync) -> None:
        jobs, self._jobs = self._jobs, []
        self.disk_failed |= action.fails and bool(jobs) and self.setup.with_disk
        for job in jobs:
            error: OSError | None = OSError(5, "the disk failed") if action.fails else None
            with broker_code():
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

    def _drain(self, _action: Drain) -> None:
        """See :class:`Drain`. Raises :class:`FuzzFailureError`."""
        if self.disk_failed:
            self._restart(Restart(clean=False))
        self._settle_disk()
        self._expect_timeouts()
        for number in sorted(self.slots):
            self._lose(Lose(slot=number))
        self._settle_disk()
        self._take_apart()
        self._settle_disk()
        self._check_empty()
        with broker_code():
            self.node.close(self.now)
        if self.setup.with_disk:
            # What is gone stays gone.
            self.node = self._start()
            self._check_empty()
            with broker_code():
                self.node.close(self.now)

    def _restart(self, action: Restart) -> None:
        if action.clean:
            with broker_code():
                self.node.close(self.now)
                for slot in self._all_slots():
                    slot.connection.take_output()
        self._jobs.clear()
        self.slots.clear()
        self.disk_failed = False
        self.node = self._start()
        self.control = self._connect_control()

    def _all_slots(self) -> Iterator[SlotT]:
        yield from self.slots.values()
        yield self.control

    def _turn(self) -> None:
        """What a driver does at the end of its turn, until nothing is left to do."""
        for _ in range(_MAX_TURNS):
            with broker_code():
                dirty = self.node.take_dirty(self.now)
                self._jobs += self.node.take_jobs(self.now)
            by_connection: dict[Connection, SlotT] = {}
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
                with broker_code():
                    self.node.receive(slot.connection, waiting, self.now)
        return resumed

    def _flush(self, slot: SlotT) -> None:
        connection = slot.connection
        data = connection.take_output()
        if connection.noted_unread_bytes:
            connection.note_backlog(0, len(data), self.now)
        if slot.finished and data:
            raise FuzzFailureError("output after the end", f"{len(data)} bytes after the connection was closed")
        if data:
            self._check_output(slot, data)
        slot.finished = connection.may_close

    def _say(self, slot: SlotT, data: bytes) -> None:
        with broker_code():
            self.node.receive(slot.connection, data, self.now)
        self._turn()


@contextmanager
def broker_code() -> Iterator[None]:
    """Whatever the broker raises here is a failure."""
    try:
        yield
    except FuzzFailureError:
        raise
    except Exception as error:
        raise escaped(error) from error
