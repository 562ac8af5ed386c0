"""One run of a scenario in simulated time: broker, disk, network, clients and faults, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, Protocol

import msgspec
from simpy import Event

from assay.faults.fault_kinds import CLOCK_FAULTS, DISK_FAULTS, DiskCall, Fault
from assay.faults.scenario import Delays, Scenario
from assay.faults.workload import HistoryRecorder, WorkloadPlan
from assay.reference_broker.config import parse_config
from assay.reference_broker.queues.jobs.store import RecoveryNote
from assay.reference_broker.trace.schema import HistoryEvent, Tracer
from assay.sim.buggify import Whims
from assay.sim.clients import SimClient
from assay.sim.disk import DiskProfile, SimDisk
from assay.sim.guard import deterministic
from assay.sim.kernel import EPOCH_S, Alarm, Kernel
from assay.sim.machine_clock import MachineClock
from assay.sim.nemesis import SimNemesis
from assay.sim.network import Conditions, NetworkProfile
from assay.sim.node import BrokerDiedError, SimNode
from assay.sim.troubled_disk import TroubledDisk

replace = msgspec.structs.replace
_GOODBYE_S: Final = 0.5
"""After the plan has finished, for DISCONNECT packets to arrive."""
_PATIENCE_S: Final = 60.0
"""Beyond the scenario's own limits."""


class WorldError(RuntimeError):
    """The simulation itself went wrong, so that nothing is said of the broker."""


class WorldProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The healthy machine around the broker."""

    disk: DiskProfile = DiskProfile()
    network: NetworkProfile = NetworkProfile()


class WorldRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one run left behind."""

    events: list[HistoryEvent]
    trace_hash: str
    trace_count: int
    """Things that happened: chunks that arrived, syncs, history events, faults."""
    simulated_s: float
    died: str = ""
    """Why the broker's process ended by itself; empty when it did not."""
    storage_notes: list[RecoveryNote] = []
    """What the broker said of its disk."""
    metrics: dict[str, float | int | str] = {}


class Watcher(Protocol):
    """Looks at a world from outside, and changes nothing in it."""

    def fault_begins(self, world: World, fault: Fault) -> None:
        """Just before a fault happens."""


class World:
    """Use once: build, then :meth:`run`."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        profile: WorldProfile | None = None,
        tracer: Callable[[Kernel], Tracer] | None = None,
        on_progress: Callable[[float], None] | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        """Raises ``ConfigError`` when the scenario's broker section is wrong."""
        self.scenario = scenario
        self.events: list[HistoryEvent] = []
        self.kernel = Kernel(seed)
        self.conditions = Conditions()
        profile = _with_delays(profile or WorldProfile(), scenario.delays)
        # The folder is a name only: the simulated disk has no place in the file system.
        config = parse_config({**scenario.topology.broker, "data_dir": "simulated"}, where="topology.broker")
        kinds = {fault.kind for fault in scenario.faults}
        is_troubled = bool(kinds & DISK_FAULTS) or any(fault.call is not DiskCall.ANY_TIME for fault in scenario.faults)
        self.disk = (TroubledDisk if is_troubled else SimDisk)(self.kernel.stream("disk"), profile.disk)
        machine = MachineClock(self.kernel) if kinds & CLOCK_FAULTS else None
        trace = None if tracer is None else tracer(self.kernel)
        whims = Whims(self.kernel.stream("buggify/whims")) if scenario.buggify else None
        self.node = SimNode(scenario.topology.nodes[0], config, self.disk, self.kernel, trace, machine, whims)
        self.history = HistoryRecorder(self._record, EPOCH_S)
        self.plan = WorkloadPlan(scenario, self.history, seed)
        self.clients = [
            SimClient(client, self.node, self.kernel, self.conditions, profile.network, self._after_turn)
            for client in self.plan.clients
        ]
        self._nemesis = SimNemesis(
            self.kernel, self.node, self.disk, self.clients, self.conditions, self.history, machine, self._fault_begins
        )
        self._on_progress = on_progress
        self._watcher = watcher
        self._done: Event = self.kernel.env.event()
        self._leaving = False
        self._phase = self.plan.phase
        self._plan_alarm = Alarm(self.kernel, self._after_turn)

    def run(self) -> WorldRun:
        """Play the scenario to its end. Raises :class:`WorldError` when it does not end within its own limits."""
        died = ""
        with deterministic():
            try:
                self._play()
            except BrokerDiedError as error:
                died = str(error)
        self.node.take_notes()
        return WorldRun(
            events=self.events,
            trace_hash=self.kernel.trace_hash,
            trace_count=self.kernel.trace_count,
            simulated_s=self.kernel.elapsed_s,
            died=died,
            storage_notes=self.node.notes,
            metrics={
                "broker_starts": self.node.starts,
                "broker_turns": self.node.turns,
                "disk_syncs": self.disk.sync_count,
                "disk_sync_failures": self.disk.sync_failures,
                "disk_bytes": self.disk.used_bytes,
                "storage_notes": len(self.node.notes),
            },
        )

    def _play(self) -> None:
        env, kernel, scenario = self.kernel.env, self.kernel, self.scenario
        self.node.start()
        self.plan.start(kernel.now)
        for fault in scenario.faults:
            self._nemesis.plan(fault)
        if self._on_progress is not None:
            env.process(self._report_progress(self._on_progress))
        limit_s = scenario.production_limit_s + scenario.drain_timeout_s + _PATIENCE_S
        kernel.after(limit_s, self._give_up)
        for client in self.clients:
            client.pump()
        env.run(self._done)

    def _give_up(self) -> None:
        if not self._done.triggered:
            message = f"scenario {self.scenario.name!r} did not end after {self.kernel.elapsed_s:.0f} simulated seconds"
            self._done.fail(WorldError(message))

    def _record(self, event: HistoryEvent) -> None:
        self.events.append(event)
        self.kernel.trace(f"{event.process} {event.f} {event.type} {event.value}")

    def _fault_begins(self, fault: Fault) -> None:
        if self._watcher is not None:
            self._watcher.fault_begins(self, fault)

    def _after_turn(self) -> None:
        plan = self.plan
        plan.update(self.kernel.now)
        if not plan.finished:
            self._plan_alarm.set(plan.next_deadline())
        elif not self._leaving:
            self._leaving = True
            self.kernel.after(_GOODBYE_S, self._finish)
        if plan.phase is not self._phase:
            # The plan told every client something new.
            self._phase = plan.phase
            for client in self.clients:
                client.pump()

    def _finish(self) -> None:
        if not self._done.triggered:
            self._done.succeed()

    def _report_progress(self, report: Callable[[float], None]) -> Generator[Event, None, None]:
        while True:
            yield self.kernel.env.timeout(0.5)
            report(self.kernel.elapsed_s)


def _with_delays(profile: WorldProfile, delays: Delays) -> WorldProfile:
    """The machine with the scenario's own delays."""
    disk, network = profile.disk, profile.network
    if delays.sync_s is not None:
        disk = replace(disk, sync_s=delays.sync_s)
    if delays.stall_rate is not None:
        disk = replace(disk, stall_rate=delays.stall_rate)
    if delays.network_s is not None:
        network = replace(network, latency_s=delays.network_s, cut_rate=0.0)
    return WorldProfile(disk=disk, network=network)
