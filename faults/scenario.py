"""The scenario file: topology, workload, fault schedule, contract, targets. One file, run in simulation and for real.

Pure data: this module imports only the schema of ``trace``, so that ``sim`` and ``faults`` read the very same thing.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from reference_broker.trace.schema import Contract

SCENARIO_SCHEMA: Literal["assay.scenario/1"] = "assay.scenario/1"


class ScenarioError(ValueError):
    """A scenario file is wrong; the text names the file, the key's path and what was expected."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class World(StrEnum):
    SIM = "sim"
    REAL = "real"


class Topology(_Part, frozen=True, kw_only=True):
    """Which brokers run. One node for now; the broker section is the broker's own configuration (config.py)."""

    nodes: tuple[str, ...] = ("broker",)
    broker: dict[str, Any] = {}


class Settlement(_Part, frozen=True, kw_only=True):
    """What a consumer does with a delivery: weights, drawn from the workload's random stream."""

    ack: float = 1.0
    nack: float = 0.0
    reject: float = 0.0
    ignore: float = 0.0
    """Never settled: the delivery timeout must bring it back."""


class QueueWorkload(_Part, frozen=True, kw_only=True):
    """Producers and consumers of one durable queue, over MQTT 5."""

    kind: Literal["queue"] = "queue"
    queue: str
    producers: int = 1
    messages_per_producer: int = 100
    rate_per_s: float = 100.0
    """Messages per second of each producer, open loop."""
    keys: int = 4
    payload_bytes: int = 100
    groups: tuple[str, ...] = ("workers",)
    consumers_per_group: int = 1
    process_s: tuple[float, float] = (0.0, 0.005)
    """Uniform processing time between delivery and settlement."""
    settlement: Settlement = Settlement()
    publish_timeout_s: float = 2.0
    """Without a confirm for this long, a publish is ``info`` and is not retried; the producer goes on."""
    reconnect_after_s: float = 0.1


class FaultKind(StrEnum):
    CRASH = "crash"
    """kill -9; the operating system keeps what was written. Restarts after ``for_s``."""
    POWER_LOSS = "power_loss"
    """Machine gone: unsynced data is lost. Simulation only."""
    PAUSE = "pause"
    """SIGSTOP for ``for_s``."""
    LATENCY = "latency"
    """Adds ``latency_ms`` +/- ``jitter_ms`` between clients and broker, each direction."""
    LOSS = "loss"
    """Segments lost with probability ``rate``; as on TCP they arrive a retransmission timeout later."""
    RESET = "reset"
    """Resets every client connection once."""
    PARTITION = "partition"
    """Nothing passes between clients and broker for ``for_s``; connections stay open (half-open)."""
    BANDWIDTH = "bandwidth"
    """At most ``rate`` kilobytes per second and connection."""


class Fault(_Part, frozen=True, kw_only=True):
    """One entry of the fault schedule."""

    at_s: float
    kind: FaultKind
    for_s: float = 0.0
    target: str = "broker"
    """A node, or ``clients`` (every connection), ``producers``, ``consumers``."""
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    rate: float = 0.0


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
    worlds: tuple[World, ...] = (World.SIM, World.REAL)
    """Where the fault schedule can be executed as written; a runner refuses the others."""
    topology: Topology = Topology()
    workload: tuple[QueueWorkload, ...]
    faults: tuple[Fault, ...] = ()
    drain_timeout_s: float = 30.0
    """After the workload, consumers go on until the queue is empty or this long (``DRAIN`` event)."""
    contract: Contract = Contract()
    targets: tuple[Target, ...] = ()


def parse_scenario(data: object, *, where: str = "scenario") -> Scenario:
    """Check plain data. Raises :class:`ScenarioError` naming the key."""
    try:
        scenario = msgspec.convert(data, Scenario)
    except msgspec.ValidationError as error:
        message = f"{where}: {error}"
        raise ScenarioError(message) from error
    problems = []
    if len(scenario.topology.nodes) != 1:
        problems.append("topology.nodes: exactly one node is supported")
    if not scenario.workload:
        problems.append("workload: at least one entry is needed")
    if World.REAL in scenario.worlds and any(fault.kind is FaultKind.POWER_LOSS for fault in scenario.faults):
        problems.append("faults: power_loss can only be simulated; set worlds: [sim]")
    if problems:
        message = f"{where}: " + "; ".join(problems)
        raise ScenarioError(message)
    return scenario


def load_scenario(path: Path) -> Scenario:
    """Read a YAML file. Raises :class:`ScenarioError`."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read the scenario {path}: {error.strerror}"
        raise ScenarioError(message) from error
    except yaml.YAMLError as error:
        message = f"{path} is not YAML: {error}"
        raise ScenarioError(message) from error
    return parse_scenario(data, where=str(path))
