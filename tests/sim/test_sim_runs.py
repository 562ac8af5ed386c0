"""Whole runs of the real broker code: reproducible, judged, written, harmed by faults only as the contract allows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from narrow_pipe import output_of

from assay.conformance.checkers import build_tables, check_history
from assay.conformance.checkers.chances import chances
from assay.faults.scenario import (
    Fault,
    FaultKind,
    QueueWorkload,
    Scenario,
    ScenarioError,
    ScenarioWorld,
    Settlement,
    Topology,
    find_scenario,
    shipped_scenarios,
)
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.trace.files import read_history, read_trace
from assay.reference_broker.trace.results import Verdict, read_result
from assay.reference_broker.trace.schema import Contract, OpKind, TraceKind
from assay.sim.disk import DiskProfile
from assay.sim.guard import NondeterminismError
from assay.sim.node import SOCKET_BYTES, _Session
from assay.sim.runner import run_scenario, simulate
from assay.sim.world import WorldProfile

SMALL = Scenario(
    name="small",
    worlds=(ScenarioWorld.SIM,),
    topology=Topology(
        broker={
            "queues": {
                "defaults": {
                    "partitions": 2,
                    "delivery_timeout_s": 1.0,
                    "retry": {"max_retries": 2, "initial_backoff_s": 0.1, "max_backoff_s": 0.2},
                }
            }
        }
    ),
    workload=(
        QueueWorkload(
            queue="tasks",
            messages_per_producer=60,
            rate_per_s=60.0,
            consumers_per_group=2,
            settlement=Settlement(ack=0.9, nack=0.05, reject=0.05),
        ),
    ),
    faults=(
        Fault(at_s=0.3, kind=FaultKind.POWER_LOSS, for_s=0.2),
        Fault(at_s=0.7, kind=FaultKind.CRASH, for_s=0.1),
    ),
    drain_timeout_s=20.0,
    drain_quiet_s=2.0,
    contract=Contract(delivery_timeout_s=1.0, max_deliveries=3),
)

HASH_OF_A_RUN = """
import sys
from assay.faults.scenario import find_scenario
from assay.sim.runner import simulate
{plant}
print(simulate(find_scenario(sys.argv[1]), int(sys.argv[2])).run.trace_hash)
"""
PLANT_HASH_ORDER = """
from assay.reference_broker.queues.messages.partitioner import Partitioner
Partitioner.choose = lambda self, key, partitions: hash(key) % partitions
"""


def hash_in_new_process(scenario: str, seed: int, hash_seed: int, plant: str = "") -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    code = HASH_OF_A_RUN.format(plant=plant)
    command = [sys.executable, "-c", code, scenario, str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_one_seed_is_one_run_in_any_process() -> None:
    here = simulate(find_scenario("power-loss"), 5).run.trace_hash
    assert hash_in_new_process("power-loss", 5, hash_seed=1) == here
    assert hash_in_new_process("power-loss", 5, hash_seed=4242) == here
    here = simulate(find_scenario("mqtt-sessions"), 5).run.trace_hash
    assert hash_in_new_process("mqtt-sessions", 5, hash_seed=7) == here


def test_the_comparison_would_show_a_broker_that_depends_on_hash_order() -> None:
    """Negative control: the same comparison with a planted dependence on PYTHONHASHSEED."""
    hashes = {
        hash_in_new_process("slow-consumer", 1, hash_seed=hash_seed, plant=PLANT_HASH_ORDER) for hash_seed in (1, 2)
    }
    assert len(hashes) == 2


def test_another_seed_is_another_run() -> None:
    runs = [simulate(SMALL, seed).run for seed in (1, 2, 3, 1)]
    assert runs[0].trace_hash == runs[3].trace_hash
    assert runs[0].events == runs[3].events
    assert len({run.trace_hash for run in runs}) == 3


def test_removing_a_fault_does_not_shift_what_came_before_it() -> None:
    """Streams of chance are separate, so a shrunk schedule behaves like the original up to the fault removed."""
    whole = simulate(SMALL, 4).run.events
    without_crash = simulate(msgspec.structs.replace(SMALL, faults=SMALL.faults[:1]), 4).run.events
    crash = next(event.index for event in whole if event.f is OpKind.FAULT and event.detail.startswith("crash"))
    sent = [(event.value, event.key) for event in whole if event.f is OpKind.PUBLISH and event.index < crash]
    sent_without = [(event.value, event.key) for event in without_crash if event.f is OpKind.PUBLISH]
    assert len(sent) > 20
    assert sent == sent_without[: len(sent)]


@pytest.mark.parametrize("name", shipped_scenarios())
@pytest.mark.parametrize("seed", [2, 3])
def test_the_reference_broker_keeps_its_contract(name: str, seed: int) -> None:
    scenario = find_scenario(name)
    outcome = simulate(scenario, seed)
    assert outcome.verdict is Verdict.PASS, [*outcome.findings, *outcome.judgement.reasons]
    counts = outcome.judgement.counts
    assert counts["sends_ok"] > 100
    assert counts["faults"] == len(scenario.faults)
    assert counts["session_ends"] > 0
    rejecting = any(isinstance(each, QueueWorkload) and each.settlement.reject for each in scenario.workload)
    if rejecting and name != "flaky-network":
        assert counts["dead_lettered"] > 0
    had = chances(build_tables(outcome.run.events), scenario.contract)
    assert {name: had[name] for name, least in scenario.enough.items() if had[name] < least} == {}


def test_faults_really_happen() -> None:
    outcome = simulate(SMALL, 1)
    faults = [event for event in outcome.run.events if event.f is OpKind.FAULT]
    assert [event.detail for event in faults] == ["power_loss broker"] * 2 + ["crash broker"] * 2
    assert outcome.run.metrics["broker_starts"] == 3
    calm = simulate(msgspec.structs.replace(SMALL, faults=()), 1)
    assert calm.run.metrics["broker_starts"] == 1
    assert calm.judgement.counts["sends_ok"] == 60
    assert calm.judgement.counts["sends_info"] == 0
    assert any(simulate(SMALL, seed).judgement.counts["sends_info"] for seed in range(1, 6))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (FaultKind.LATENCY, {"latency_ms": 80.0, "jitter_ms": 20.0, "target": "clients"}),
        (FaultKind.LOSS, {"rate": 0.5, "target": "clients"}),
        (FaultKind.PARTITION, {"target": "producers"}),
        (FaultKind.BANDWIDTH, {"rate": 2.0, "target": "producers"}),
        (FaultKind.PAUSE, {}),
    ],
)
def test_a_network_fault_shows_in_the_latency_of_its_time(kind: FaultKind, fields: dict[str, Any]) -> None:
    fault = Fault(at_s=0.2, kind=kind, for_s=0.5, **fields)
    calm = simulate(msgspec.structs.replace(SMALL, faults=()), 1)
    slowed = simulate(msgspec.structs.replace(SMALL, faults=(fault,)), 1)
    assert slowed.verdict is Verdict.PASS, slowed.findings
    assert worst_confirm_s(slowed.run.events) > worst_confirm_s(calm.run.events) + 0.05


def test_deliveries_wait_for_consumers_on_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated network pushes back: what a broker may leave unread is bounded, and everything arrives."""
    high_water, payload = 20_000, 20_000
    most: list[int] = [0]
    full: list[bool] = []
    original = _Session.flush

    def flush(self: _Session) -> None:
        original(self)
        most[0] = max(most[0], self.link.to_client.in_flight_bytes)
        full.append(self.connection.is_full)

    monkeypatch.setattr(_Session, "flush", flush)
    (workload,) = SMALL.workload
    assert isinstance(workload, QueueWorkload)
    slow = msgspec.structs.replace(
        SMALL,
        topology=Topology(broker={"mqtt": {"unread_high_water_bytes": high_water}}),
        workload=(msgspec.structs.replace(workload, payload_bytes=payload, settlement=Settlement()),),
        faults=(Fault(at_s=0.1, kind=FaultKind.BANDWIDTH, rate=300.0, for_s=3.0, target="consumers"),),
    )
    result = simulate(slow, 1)
    assert result.verdict is Verdict.PASS, result.findings
    assert any(full), "they had to wait"
    assert SOCKET_BYTES < most[0] <= SOCKET_BYTES + high_water + 2 * payload


def worst_confirm_s(events: list[Any]) -> float:
    sent = {event.index: event.time_ns for event in events if event.f is OpKind.PUBLISH and event.type == "invoke"}
    taken = [event.time_ns - sent[event.op] for event in events if event.f is OpKind.PUBLISH and event.op in sent]
    return max(taken) / 1e9


def test_a_lying_disk_loses_what_was_confirmed() -> None:
    """The simulated disk matters: with syncs that do nothing, power loss must be found out.

    Where it took the file that says what the queue is, the queue is set aside and cannot be drained: then nothing can
    be said of what was lost, which is not green either.
    """
    lying = WorldProfile(disk=DiskProfile(lying_sync=True))
    found = [simulate(find_scenario("power-loss"), seed, profile=lying) for seed in (1, 6, 8)]
    assert {result.verdict for result in found} <= {Verdict.FAIL, Verdict.UNKNOWN}
    assert any("lost" in {checker for checker, _ in result.signature} for result in found)


@pytest.mark.parametrize("number", [9, 12, 15, 18, 21, 24])
def test_a_failed_sync_confirms_nothing_that_is_lost(number: int) -> None:
    """The queue refuses work after it; the crash that follows restarts it.

    What was refused because the sync of a folder failed may be there all the same: no fault of this history says so.
    """
    failing = WorldProfile(disk=DiskProfile(failing_syncs=(number,)))
    outcome = simulate(SMALL, 1, profile=failing)
    assert outcome.run.metrics["disk_sync_failures"] == 1
    assert outcome.signature <= {("phantom", "A10")}, outcome.findings
    assert not outcome.judgement.reasons
    assert outcome.judgement.counts["sends_ok"] > 20


def test_asking_for_the_time_inside_a_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., None] = DurableQueue.publish

    def publish(self: DurableQueue, *args: object) -> None:
        time.monotonic()
        original(self, *args)

    monkeypatch.setattr(DurableQueue, "publish", publish)
    with pytest.raises(NondeterminismError, match=r"time\.monotonic was called inside a simulated run"):
        simulate(SMALL, 1)


def test_a_broker_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., None] = QueueEngine.dispatch
    calls = 0

    def dispatch(self: QueueEngine, now: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 100:
            raise ZeroDivisionError
        original(self, now)

    monkeypatch.setattr(QueueEngine, "dispatch", dispatch)
    outcome = simulate(SMALL, 1)
    assert outcome.verdict is Verdict.FAIL
    assert ("broker_alive", "G-L7") in outcome.signature
    assert "ZeroDivisionError" in outcome.findings[0].message


def test_a_scenario_for_real_processes_only_is_refused() -> None:
    with pytest.raises(ScenarioError, match="cannot be simulated"):
        simulate(msgspec.structs.replace(SMALL, worlds=(ScenarioWorld.REAL,)), 1)


def test_a_run_leaves_history_trace_and_result(tmp_path: Path) -> None:
    result = run_scenario(SMALL, seed=3, out=tmp_path, trace=True, command="assay sim run small --seed 3")
    assert result.verdict is Verdict.PASS
    assert read_result(tmp_path / "result.json") == result
    assert (result.kind.value, result.world, result.seed) == ("sim", "sim", 3)
    header, history = read_history(tmp_path / result.artefacts["history"])
    events = list(history)
    assert header.contract == SMALL.contract
    judged = check_history(header, events)
    assert judged.verdict is Verdict.PASS
    assert {name: result.metrics[name] for name in judged.counts} == judged.counts
    steps = list(read_trace(tmp_path / result.artefacts["trace"])[1])
    assert [step.seq for step in steps] == list(range(len(steps)))
    assert {TraceKind.ENQUEUED, TraceKind.DELIVERED, TraceKind.ACKED} <= {step.kind for step in steps}
    assert [band.label for band in result.bands] == ["power_loss broker", "crash broker"]
    assert {row.name for row in result.percentiles} == {"publish_to_ack", "publish_to_deliver"}
    assert float(result.metrics["sim_real_ratio"]) > 0


def test_the_trace_does_not_change_the_run(tmp_path: Path) -> None:
    traced = run_scenario(SMALL, seed=3, out=tmp_path, trace=True)
    assert traced.metrics["trace_hash"] == simulate(SMALL, 3).run.trace_hash


def test_the_scenarios_are_all_named_in_a_narrow_pipe() -> None:
    listed = output_of("sim", "list")
    assert "crash-restart" in listed
    assert "…" not in listed
