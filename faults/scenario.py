"""The scenario file: topology, workload, fault schedule, contract, targets. One file, run in simulation and for real.

Pure data: this module imports only the schema of ``trace``, so that ``sim`` and ``faults`` read the very same thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from assay.faults.fault_kinds import CLIENT_TARGETS as CLIENT_TARGETS
from assay.faults.fault_kinds import NODE_FAULTS as NODE_FAULTS
from assay.faults.fault_kinds import Fault as Fault
from assay.faults.fault_kinds import FaultKind as FaultKind
from assay.faults.fault_kinds import fault_problems
from assay.faults.fault_kinds import names_a_client as names_a_client
from assay.faults.workload_kinds import Absences as Absences
from assay.faults.workload_kinds import AmqpWorkload as AmqpWorkload
from assay.faults.workload_kinds import MqttWorkload as MqttWorkload
from assay.faults.workload_kinds import QueueWorkload as QueueWorkload
from assay.faults.workload_kinds import Retained as Retained
from assay.faults.workload_kinds import Settlement as Settlement
from assay.faults.workload_kinds import Wills as Wills
from assay.faults.workload_kinds import Workload as Workload
from assay.faults.workload_kinds import workload_problems
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.schema import Contract
from assay.reference_broker.trace.yaml_text import YamlError, read_yaml

SCENARIO_SCHEMA: Literal["assay.scenario/1"] = "assay.scenario/1"


class ScenarioError(ValueError):
    """A scenario file is wrong; the text names the file, the key's path and what was expected."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ScenarioWorld(StrEnum):
    SIM = "sim"
    REAL = "real"


class Topology(_Part, frozen=True, kw_only=True):
    """Which brokers run. One node for now; the broker section is the broker's own configuration (config.py)."""

    nodes: tuple[str, ...] = ("broker",)
    broker: dict[str, Any] = {}


class Delays(_Part, frozen=True, kw_only=True):
    """Simulation only: delays in place of those of the simulated machine, as shrinking leaves them. None = its own."""

    network_s: tuple[float, float] | None = None
    """One way, between these; chunks then arrive in one piece."""
    sync_s: tuple[float, float] | None = None
    stall_rate: float | None = None
    """Share of syncs that stall."""


class Target(_Part, frozen=True, kw_only=True):
    """A figure that the run must reach, e.g. ``publish_to_ack_p99_ms <= 50``."""

    metric: str
    relation: Literal["<", "<=", ">", ">=", "=="] = "<="
    bound: float
    source: str = ""


class Scenario(_Part, frozen=True, kw_only=True):
    """A whole scenario."""

    schema: Literal["assay.scenario/1"] = SCENARIO_SCHEMA
    name: str
    description: str = ""
    seed: int = 1
    worlds: tuple[ScenarioWorld, ...] = (ScenarioWorld.SIM, ScenarioWorld.REAL)
    """Where the fault schedule can be executed as written; a runner refuses the others."""
    topology: Topology = Topology()
    workload: tuple[Workload, ...]
    faults: tuple[Fault, ...] = ()
    delays: Delays = Delays()
    buggify: bool = False
    """Simulation only: the seed draws sizes of the broker's insides, and orders that are nobody's business."""
    drain_timeout_s: float = 30.0
    """After the workload, consumers go on until the queue is empty or this long (``DRAIN`` event)."""
    drain_quiet_s: float = 0.0
    """Silence that proves a queue empty; must exceed whatever may delay a redelivery. 0 = delivery timeout + 1 s."""
    contract: Contract = Contract()
    targets: tuple[Target, ...] = ()
    enough: dict[str, int] = {}
    """Chances (:mod:`assay.conformance.checkers.chances`) that a run on real processes must give a checker, by its
    name, before the silence of that proves anything."""

    @property
    def quiet_s(self) -> float:
        """Seconds without any delivery to willing consumers after which a queue counts as empty."""
        return self.drain_quiet_s or self.contract.delivery_timeout_s + 1.0

    @property
    def longest_wait_s(self) -> float:
        """How long the broker may have to keep a message back, deliveries aside: one that waits for a time of day waits
        longer by as much as the clock is set back."""
        back_s = sum(max(0.0, -fault.by_s) for fault in self.faults)
        waits_s = (
            workload.longest_wait_s + (back_s if isinstance(workload, QueueWorkload) and workload.delays else 0.0)
            for workload in self.workload
        )
        return max(waits_s, default=0.0)

    @property
    def production_limit_s(self) -> float:
        """Seconds after which producers give up: twice the schedule, the faults and the drain timeout."""
        schedules = (workload.schedule_s for workload in self.workload)
        return 2 * max(schedules) + self.faults_end_s + self.drain_timeout_s

    @property
    def faults_end_s(self) -> float:
        """When the last fault is over."""
        return max((fault.ends_s for fault in self.faults), default=0.0)


SCENARIO_FOLDER: Final = Path(__file__).parent / "scenarios"
"""Where the scenarios that come with Assay are."""


def shipped_scenarios() -> dict[str, Path]:
    """The scenarios that come with Assay, by name."""
    return {path.stem: path for path in sorted(SCENARIO_FOLDER.glob("*.yaml"))}


def find_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by its name, or any by the path of its file. Raises :class:`ScenarioError`."""
    shipped = shipped_scenarios()
    if name_or_path in shipped:
        return load_scenario(shipped[name_or_path])
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        message = f"unknown scenario {name_or_path!r}: use the path of a YAML file, or {', '.join(shipped)}"
        raise ScenarioError(message)
    return load_scenario(path)


def parse_scenario(data: object, *, where: str = "scenario") -> Scenario:
    """Check plain data. Raises :class:`ScenarioError` naming the key."""
    if isinstance(data, dict) and isinstance(data.get("workload"), list | tuple):
        # An entry that names no kind is one of queues.
        named = [{"kind": QueueWorkload.kind, **each} if isinstance(each, dict) else each for each in data["workload"]]
        data = {**data, "workload": named}
    try:
        scenario = msgspec.convert(data, described(Scenario))
    except msgspec.ValidationError as error:
        message = f"{where}: {error}"
        raise ScenarioError(message) from error
    problems = [*_scenario_problems(scenario)]
    for index, workload in enumerate(scenario.workload):
        problems += [f"workload[{index}].{problem}" for problem in workload_problems(workload)]
    for index, fault in enumerate(scenario.faults):
        found = fault_problems(fault, scenario.topology.nodes, real=ScenarioWorld.REAL in scenario.worlds)
        problems += [f"faults[{index}].{problem}" for problem in found]
    if problems:
        message = f"{where}: " + "; ".join(problems)
        raise ScenarioError(message)
    return scenario


def _scenario_problems(scenario: Scenario) -> Iterator[str]:
    if len(scenario.topology.nodes) != 1:
        yield "topology.nodes: exactly one node is supported"
    if not scenario.workload:
        yield "workload: at least one entry is needed"
    spaces = [workload.space for workload in scenario.workload]
    if len(set(spaces)) != len(spaces):
        yield "workload: each entry needs a queue or topic space of its own"
    if not scenario.worlds:
        yield "worlds: name sim, real or both"
    for name in ("network_s", "sync_s"):
        span_s = getattr(scenario.delays, name)
        if span_s is not None and not 0 < span_s[0] <= span_s[1]:
            yield f"delays.{name}: needs two times above 0, the shorter first"
    if not 0 <= (scenario.delays.stall_rate or 0) <= 1:
        yield "delays.stall_rate: must be 0 to 1"
    for name, least in scenario.enough.items():
        if least < 1:
            yield f"enough.{name}: must be at least 1"
    if scenario.drain_timeout_s <= scenario.quiet_s:
        yield (
            f"drain_timeout_s: must exceed the {scenario.quiet_s:g} s of silence that prove a queue empty "
            "(drain_quiet_s, or contract.delivery_timeout_s + 1)"
        )
    if scenario.quiet_s <= scenario.longest_wait_s:
        yield f"drain_quiet_s: must exceed the {scenario.longest_wait_s:g} s for which messages may be kept back"


def load_scenario(path: Path) -> Scenario:
    """Read a YAML file. Raises :class:`ScenarioError`."""
    try:
        data = read_yaml(path)
    except OSError as error:
        message = f"cannot read the scenario {path}: {error.strerror}"
        raise ScenarioError(message) from error
    except YamlError as error:
        message = f"{path} is not YAML: {error}"
        raise ScenarioError(message) from error
    return parse_scenario(data, where=str(path))
