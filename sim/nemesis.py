"""Carries out the faults of a scenario in simulated time. Each is a SimPy process; its begin and end are recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

import msgspec
from simpy import Event

from assay.faults.fault_kinds import CALL_PATIENCE_S, DiskCall, Fault, FaultKind, describe
from assay.faults.workload import HistoryRecorder, is_hit
from assay.reference_broker.trace.schema import OpKind, OpType
from assay.sim.clients import SimClient
from assay.sim.disk import SimDisk
from assay.sim.kernel import Kernel
from assay.sim.machine_clock import MachineClock
from assay.sim.network import Conditions, Impairment
from assay.sim.node import SimNode
from assay.sim.troubled_disk import Trouble, TroubledDisk

FAULT_PROCESS: Final = "faults"
"""Who records the faults."""
_STARTING_CALLS: Final = 24
"""A storm ends a start within one of so many first calls to the disk."""
_Steps = Generator[Event, None, None]


class SimNemesis:
    """Use one per world. ``machine`` is there where a fault of the clock is, a :class:`TroubledDisk` likewise."""

    def __init__(
        self,
        kernel: Kernel,
        node: SimNode,
        disk: SimDisk,
        clients: Sequence[SimClient],
        conditions: Conditions,
        history: HistoryRecorder,
        machine: MachineClock | None,
        on_begin: Callable[[Fault], None],
    ) -> None:
        """``on_begin`` is told of each fault just before it happens."""
        self._kernel = kernel
        self._node = node
        self._disk = disk
        self._clients = clients
        self._conditions = conditions
        self._history = history
        self._machine = machine
        self._on_begin = on_begin

    def plan(self, fault: Fault) -> None:
        """It happens at its time. Until then the world is the same as without it."""
        kernel = self._kernel
        ties = kernel.stream(f"fault/{fault.kind.value}/{fault.at_s}/tie")
        kernel.at(kernel.now + fault.at_s, partial(self._begin_process, fault), ties)

    def _begin_process(self, fault: Fault) -> None:
        self._kernel.env.process(self._carry_out(fault))

    def _carry_out(self, fault: Fault) -> _Steps:
        """Begin, wait, end."""
        self._on_begin(fault)
        if fault.kind is FaultKind.RESTART_STORM:
            yield from self._storm(fault)
            return
        if fault.kind is FaultKind.TORN_WRITE or fault.call is not DiskCall.ANY_TIME:
            op = yield from self._within_a_call(fault)
            end: Callable[[], None] = self._node.start
        else:
            op = self._record_begin(fault)
            end = self._begin(fault)
        yield self._kernel.env.timeout(fault.for_s)
        end()
        self._record_end(fault, op)

    def _record_begin(self, fault: Fault) -> int:
        return self._history.record(
            self._kernel.now, FAULT_PROCESS, OpKind.FAULT, OpType.INVOKE, detail=describe(fault)
        )

    def _record_end(self, fault: Fault, op: int) -> None:
        now, detail = self._kernel.now, describe(fault)
        self._history.record(now, FAULT_PROCESS, OpKind.FAULT, OpType.OK, op=op, detail=detail)

    def _begin(self, fault: Fault) -> Callable[[], None]:
        """Start a fault; returns what ends it."""
        node = self._node
        match fault.kind:
            case FaultKind.CRASH | FaultKind.POWER_LOSS:
                self._take_down(fault)
                return node.start
            case FaultKind.STOP:
                node.stop()
                return node.start
            case FaultKind.PAUSE:
                node.pause()
                return node.resume
            case FaultKind.SLOW_NODE:
                node.slowness += fault.factor
                return lambda: self._speed_up(fault)
            case FaultKind.RESET:
                for client in self._hit(fault):
                    client.reset()
                return _nothing
            case FaultKind.TAKEOVER:
                hit = self._hit(fault)
                for client in hit:
                    client.stick()
                return lambda: _take_over(hit)
            case FaultKind.CLOCK_JUMP:
                self._clock.jump(fault.by_s)
                node.clock_changed()
                return _nothing
            case FaultKind.CLOCK_RATE:
                self._run_clock_at(self._clock.rate * fault.factor)
                return lambda: self._run_clock_at(self._clock.rate / fault.factor)
            case FaultKind.LATENCY | FaultKind.LOSS | FaultKind.PARTITION | FaultKind.CLOG | FaultKind.BANDWIDTH:
                names = [client.client.client_id for client in self._hit(fault)]
                handle = self._conditions.add(names, _impairment(fault))
                return lambda: self._conditions.remove(handle)
            case FaultKind.BIT_ROT:
                self._kernel.trace(f"rot {self._troubled.rot(fault, self._stream(fault))}")
                return _nothing
            case _:
                trouble = Trouble(fault, self._stream(fault))
                self._troubled.begin(trouble)
                return lambda: self._troubled.end(trouble)

    # -- nodes that end ------------------------------------------------------------------------------------------

    def _take_down(self, fault: Fault) -> None:
        if fault.kind in (FaultKind.POWER_LOSS, FaultKind.TORN_WRITE):
            self._node.lose_power()
        else:
            self._node.crash()

    def _within_a_call(self, fault: Fault) -> Generator[Event, None, int]:
        """Have the node end in a call to the disk, or some time later if none comes: then the fault begins."""
        gone = self._kernel.env.event()
        begun: list[int] = []

        def down() -> None:
            begun.append(self._record_begin(fault))
            self._take_down(fault)
            gone.succeed()

        trouble = Trouble(fault, self._stream(fault), down)
        self._troubled.begin(trouble)
        yield gone | self._kernel.env.timeout(CALL_PATIENCE_S)
        if not begun:
            self._troubled.end(trouble)
            down()
        return begun[0]

    def _storm(self, fault: Fault) -> _Steps:
        """Kill the node, and again each time while it starts: every kill is a fault of the history."""
        rng = self._stream(fault)
        for number in range(fault.times + 1):
            op = self._record_begin(fault)
            self._node.crash()
            is_last = number == fault.times
            yield self._kernel.env.timeout(fault.for_s if is_last else rng.uniform(0, 0.001))
            early = msgspec.structs.replace(fault, nth=rng.randint(1, _STARTING_CALLS))
            trouble = Trouble(early, rng, self._node.crash)
            if not is_last:
                self._troubled.begin(trouble)
            self._node.start()
            self._troubled.end(trouble)
            self._record_end(fault, op)

    # -- what faults are made of -----------------------------------------------------------------------------------

    @property
    def _troubled(self) -> TroubledDisk:
        assert isinstance(self._disk, TroubledDisk)
        return self._disk

    @property
    def _clock(self) -> MachineClock:
        assert self._machine is not None
        return self._machine

    def _stream(self, fault: Fault) -> random.Random:
        """Of its own, so that a fault that is taken away does not shift what the others do."""
        return self._kernel.stream(f"fault/{fault.kind.value}/{fault.at_s}")

    def _speed_up(self, fault: Fault) -> None:
        self._node.slowness -= fault.factor

    def _run_clock_at(self, rate: float) -> None:
        self._clock.run_at(rate)
        self._node.clock_changed()

    def _hit(self, fault: Fault) -> list[SimClient]:
        return [client for client in self._clients if is_hit(fault, client.client)]


def _impairment(fault: Fault) -> Impairment:
    kind = fault.kind
    return Impairment(
        latency_s=fault.latency_ms / 1e3,
        jitter_s=fault.jitter_ms / 1e3,
        loss_rate=fault.rate if kind is FaultKind.LOSS else 0.0,
        bytes_per_s=fault.rate * 1_000 if kind is FaultKind.BANDWIDTH else 0.0,
        partitioned=kind is FaultKind.PARTITION,
        clogged=kind is FaultKind.CLOG,
        direction=fault.direction,
    )


def _take_over(clients: Sequence[SimClient]) -> None:
    for client in clients:
        client.leave()


def _nothing() -> None:
    """The end of a fault that is over at once."""
