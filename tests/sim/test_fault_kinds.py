"""Every kind of fault does what docs/scenarios.md says of it, and the broker keeps its contract under it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from assay.conformance.mutants.tiny_insides import TINY, usual_size
from assay.faults.fault_kinds import Direction, DiskCall, Fault, FaultKind
from assay.faults.scenario import QueueWorkload, Scenario, ScenarioError, ScenarioWorld, Settlement, Topology
from assay.reference_broker.trace.file_kinds import FileKind
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpKind, OpType
from assay.sim.buggify import other_sizes
from assay.sim.disk import DiskProfile
from assay.sim.runner import SimOutcome, simulate
from assay.sim.world import WorldProfile

SMALL = Scenario(
    name="small",
    worlds=(ScenarioWorld.SIM,),
    topology=Topology(
        broker={
            "queues": {
                "defaults": {
                    "partitions": 2,
                    "delivery_timeout_s": 0.5,
                    "retry": {"max_retries": 3, "initial_backoff_s": 0.1, "max_backoff_s": 0.2},
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
            keep_alive_s=20,
        ),
    ),
    drain_timeout_s=20.0,
    drain_quiet_s=2.0,
    contract=Contract(delivery_timeout_s=0.5, max_deliveries=4),
)
PROFILE = WorldProfile(disk=DiskProfile(stall_rate=0.0))


def run(*faults: Fault, seed: int = 1, verdict: Verdict = Verdict.PASS, mutants: tuple[str, ...] = ()) -> SimOutcome:
    scenario = msgspec.structs.replace(SMALL, faults=faults)
    outcome = simulate(scenario, seed, profile=PROFILE, mutants=mutants)
    assert outcome.verdict is verdict, [*outcome.findings, *outcome.judgement.reasons]
    return outcome


def waits_s(events: list[HistoryEvent], f: OpKind = OpKind.PUBLISH) -> list[float]:
    """From each invocation to its confirm."""
    begun = {event.index: event.time_ns for event in events if event.f is f and event.type is OpType.INVOKE}
    return [(event.time_ns - begun[event.op]) / 1e9 for event in events if event.f is f and event.type is OpType.OK]


def refused(outcome: SimOutcome) -> int:
    return outcome.judgement.counts["sends_fail"]


def connects(outcome: SimOutcome) -> Counter[str]:
    made = (event for event in outcome.run.events if event.f is OpKind.CONNECT and event.type is OpType.OK)
    return Counter(event.process.partition(".")[0] for event in made)


def test_a_stop_ends_in_order_and_loses_nothing_of_what_is_not_synced() -> None:
    outcome = run(Fault(at_s=0.4, kind=FaultKind.STOP, for_s=0.1), seed=2)
    assert outcome.run.metrics["broker_starts"] == 2
    ended = [event.detail for event in outcome.run.events if event.f is OpKind.SESSION_END]
    assert any("0x8b" in detail for detail in ended), "the broker said that it is shutting down"


def test_a_storm_kills_starts_in_the_middle() -> None:
    outcome = run(Fault(at_s=0.4, kind=FaultKind.RESTART_STORM, times=3, for_s=0.1))
    assert outcome.run.metrics["broker_starts"] == 5
    assert outcome.judgement.counts["faults"] == 4, "each kill is one"


@pytest.mark.parametrize("call", [call for call in DiskCall if call not in (DiskCall.ANY_TIME, DiskCall.READ)])
@pytest.mark.parametrize("kind", [FaultKind.CRASH, FaultKind.POWER_LOSS])
def test_a_node_goes_down_within_a_call(kind: FaultKind, call: DiskCall) -> None:
    fault = Fault(at_s=0.2, kind=kind, call=call, nth=2, for_s=0.05)
    outcome = run(fault)
    assert outcome.run.metrics["broker_starts"] == 2
    begun, ended = [event.time_ns / 1e9 for event in outcome.run.events if event.f is OpKind.FAULT]
    assert ended == pytest.approx(begun + 0.05)
    assert 0.2 <= begun <= fault.ends_s - 0.049
    if call in (DiskCall.WRITE, DiskCall.SYNC, DiskCall.CHANGE):
        assert begun < 0.4, "it did not have to wait for long"


def test_a_torn_write_leaves_a_tail_to_cut() -> None:
    torn = [run(Fault(at_s=0.2, kind=FaultKind.TORN_WRITE, nth=3, for_s=0.05), seed=seed) for seed in range(1, 7)]
    assert any("torn tail" in note.problem for outcome in torn for note in outcome.run.storage_notes)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (FaultKind.SLOW_NODE, {"factor": 100.0}),
        (FaultKind.SLOW_DISK, {"latency_ms": 80.0, "jitter_ms": 20.0}),
        (FaultKind.CLOG, {"target": "producers"}),
        (FaultKind.CLOG, {"target": "producers", "direction": Direction.TO_BROKER}),
        (FaultKind.PARTITION, {"target": "producers", "direction": Direction.TO_CLIENTS}),
        (FaultKind.LATENCY, {"target": "producers", "direction": Direction.TO_CLIENTS, "latency_ms": 60.0}),
    ],
)
def test_what_slows_shows_in_the_time_of_confirms(kind: FaultKind, fields: dict[str, Any]) -> None:
    calm = max(waits_s(run().run.events))
    slowed = run(Fault(at_s=0.2, kind=kind, for_s=0.5, **fields))
    assert max(waits_s(slowed.run.events)) > calm + 0.02
    assert set(connects(slowed).values()) == {1}, "nobody lost a connection"


def test_one_way_is_one_way() -> None:
    """Towards the clients nothing comes: what they send is taken all the same, and confirmed in the end."""
    fault = Fault(at_s=0.2, kind=FaultKind.CLOG, for_s=0.6, target="clients", direction=Direction.TO_CLIENTS)
    outcome = run(fault)
    during = [event for event in outcome.run.events if 0.25e9 < event.time_ns < 0.75e9 and event.f is not OpKind.FAULT]
    assert {event.type for event in during} == {OpType.INVOKE}
    at_once = [event for event in outcome.run.events if 0.79e9 < event.time_ns < 0.81e9 and event.type is OpType.OK]
    assert len(at_once) > 10, "what piled up comes all at once"


def test_a_takeover_brings_the_bytes_of_two_connections_together() -> None:
    outcome = run(Fault(at_s=0.2, kind=FaultKind.TAKEOVER, for_s=0.2, target="clients"))
    assert set(connects(outcome).values()) == {2}
    assert outcome.judgement.counts["sends_info"] > 0


def test_a_full_disk_refuses_and_frees_again() -> None:
    outcome = run(Fault(at_s=0.2, kind=FaultKind.DISK_FULL, for_s=0.3, free_bytes=200))
    assert 0 < refused(outcome) < 40
    last = [event for event in outcome.run.events if event.f is OpKind.PUBLISH][-1]
    assert last.type is OpType.OK
    assert any("ENOSPC" in note.problem or "full" in note.problem for note in outcome.run.storage_notes)


@pytest.mark.parametrize("kind", [FaultKind.WRITE_ERROR, FaultKind.SYNC_ERROR])
def test_errors_of_the_disk_refuse_what_they_hit(kind: FaultKind) -> None:
    outcome = run(
        Fault(at_s=0.2, kind=kind, for_s=0.2, files=FileKind.SEGMENTS, times=2),
        Fault(at_s=0.6, kind=FaultKind.STOP, for_s=0.05),
    )
    assert refused(outcome) > 0
    assert any("EIO" in note.problem for note in outcome.run.storage_notes)


def test_an_error_of_a_read_is_told_and_costs_nothing() -> None:
    outcome = run(
        Fault(at_s=0.3, kind=FaultKind.CRASH, for_s=0.1),
        Fault(at_s=0.35, kind=FaultKind.READ_ERROR, for_s=0.2, times=1_000),
        Fault(at_s=0.8, kind=FaultKind.CRASH, for_s=0.1),
    )
    assert outcome.judgement.counts["lost"] == 0


def test_a_sync_that_lied_may_cost_what_was_confirmed() -> None:
    def lost(*faults: Fault) -> int:
        slow = msgspec.structs.replace(SMALL.workload[0], process_s=(0.2, 0.4))
        scenario = msgspec.structs.replace(SMALL, faults=faults, workload=(slow,))
        outcomes = [simulate(scenario, seed, profile=PROFILE) for seed in range(1, 6)]
        assert {outcome.verdict for outcome in outcomes} == {Verdict.PASS}
        return sum(outcome.judgement.counts["lost"] for outcome in outcomes)

    power = Fault(at_s=0.5, kind=FaultKind.POWER_LOSS, for_s=0.1)
    assert lost(Fault(at_s=0.1, kind=FaultKind.LYING_SYNC, for_s=0.5), power) > 0
    assert lost(power) == 0


@pytest.mark.parametrize("kind", [FaultKind.LOST_WRITE, FaultKind.MISDIRECTED_WRITE, FaultKind.BIT_ROT])
def test_damage_of_the_disk_is_told_and_nothing_wrong_is_delivered(kind: FaultKind) -> None:
    notes = 0
    for seed in range(1, 7):
        for_s = 0.0 if kind is FaultKind.BIT_ROT else 0.3
        damage = Fault(at_s=0.2, kind=kind, for_s=for_s, files=FileKind.SEGMENTS)
        outcome = run(damage, Fault(at_s=0.6, kind=FaultKind.POWER_LOSS, for_s=0.1), seed=seed)
        assert outcome.judgement.counts["phantom"] == 0
        notes += len(outcome.run.storage_notes)
    assert notes > 0


def test_damage_that_is_kept_quiet_is_a_finding() -> None:
    """Negative control: the broker says nothing of what it finds."""
    damage = Fault(at_s=0.4, kind=FaultKind.BIT_ROT, files=FileKind.SEGMENTS, times=12)
    power = Fault(at_s=0.6, kind=FaultKind.CRASH, for_s=0.1)
    slow = msgspec.structs.replace(SMALL.workload[0], process_s=(0.2, 0.4))
    scenario = msgspec.structs.replace(SMALL, faults=(damage, power), workload=(slow,))
    loud = [simulate(scenario, seed, profile=PROFILE) for seed in range(1, 5)]
    quiet = [simulate(scenario, seed, profile=PROFILE, mutants=("hunt-says-nothing",)) for seed in range(1, 5)]
    assert any(outcome.judgement.counts["lost"] for outcome in loud)
    assert not any("said nothing" in finding.message for outcome in loud for finding in outcome.findings)
    assert any("said nothing" in finding.message for outcome in quiet for finding in outcome.findings)


def redelivered_after_s(*faults: Fault) -> float:
    """How long a consumer that forgets what it gets waits for the second delivery, by the true clock."""
    forgetful = msgspec.structs.replace(
        SMALL.workload[0], settlement=Settlement(ack=0.0, ignore=1.0), messages_per_producer=1, consumers_per_group=1
    )
    faults += (Fault(at_s=3.0, kind=FaultKind.RESET, target="producers"),)  # until then nobody drains
    outcome = simulate(msgspec.structs.replace(SMALL, faults=faults, workload=(forgetful,)), 1, profile=PROFILE)
    times = [event.time_ns / 1e9 for event in outcome.run.events if event.f is OpKind.DELIVER and event.value == "p0-0"]
    return times[1] - times[0]


def test_a_fast_clock_shortens_timeouts_and_a_slow_one_lengthens_them() -> None:
    right = redelivered_after_s()
    fast = redelivered_after_s(Fault(at_s=0.0, kind=FaultKind.CLOCK_RATE, factor=2.0, for_s=5.0))
    slow = redelivered_after_s(Fault(at_s=0.0, kind=FaultKind.CLOCK_RATE, factor=0.5, for_s=5.0))
    assert fast == pytest.approx(right / 2, rel=0.1)
    assert slow == pytest.approx(right * 2, rel=0.1)


@pytest.mark.parametrize("by_s", [-3_600.0, 3_600.0])
def test_a_jump_of_the_clock_moves_no_timer_of_a_broker_that_runs(by_s: float) -> None:
    jump = Fault(at_s=0.1, kind=FaultKind.CLOCK_JUMP, by_s=by_s)
    assert redelivered_after_s(jump) == pytest.approx(redelivered_after_s(), abs=0.01)
    run(jump, Fault(at_s=0.4, kind=FaultKind.CRASH, for_s=0.1))


ALL_KINDS = """
import sys, msgspec
sys.path.insert(0, {folder!r})
from test_fault_kinds import EVERYTHING, SMALL
from assay.sim.runner import simulate
print(simulate(msgspec.structs.replace(SMALL, faults=EVERYTHING), 3).run.trace_hash)
"""
EVERYTHING = (
    Fault(at_s=0.05, kind=FaultKind.CLOCK_RATE, factor=1.25, for_s=1.0),
    Fault(at_s=0.1, kind=FaultKind.TAKEOVER, for_s=0.05, target="consumers"),
    Fault(at_s=0.15, kind=FaultKind.WRITE_ERROR, for_s=0.3, nth=5, times=3),
    Fault(at_s=0.2, kind=FaultKind.CLOG, for_s=0.1, target="clients", direction=Direction.TO_BROKER),
    Fault(at_s=0.3, kind=FaultKind.MISDIRECTED_WRITE, for_s=0.2),
    Fault(at_s=0.35, kind=FaultKind.SLOW_NODE, factor=40.0, for_s=0.3),
    Fault(at_s=0.5, kind=FaultKind.BIT_ROT, times=5),
    Fault(at_s=0.6, kind=FaultKind.TORN_WRITE, nth=2, for_s=0.05),
    Fault(at_s=1.1, kind=FaultKind.RESTART_STORM, times=2, for_s=0.05),
)


def test_one_seed_is_one_run_in_any_process_with_the_new_faults_too() -> None:
    here = simulate(msgspec.structs.replace(SMALL, faults=EVERYTHING), 3).run.trace_hash
    code = ALL_KINDS.format(folder=os.path.dirname(__file__))
    for hash_seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == here


def test_whims_of_a_run_come_from_its_seed_and_are_lawful() -> None:
    whimsical = msgspec.structs.replace(SMALL, buggify=True, faults=(Fault(at_s=0.4, kind=FaultKind.CRASH, for_s=0.1),))
    runs = {seed: simulate(whimsical, seed, profile=PROFILE) for seed in range(1, 9)}
    assert {outcome.verdict for outcome in runs.values()} == {Verdict.PASS}, [o.findings for o in runs.values()]
    assert simulate(whimsical, 3, profile=PROFILE).run.trace_hash == runs[3].run.trace_hash
    usual = [simulate(msgspec.structs.replace(whimsical, buggify=False), seed, profile=PROFILE) for seed in runs]
    differ = [one.run.trace_hash != other.run.trace_hash for one, other in zip(usual, runs.values(), strict=True)]
    assert sum(differ) >= 2, "not each of them matters in so short a run"


def test_sizes_are_drawn_for_a_run_and_put_back() -> None:
    def sizes() -> list[int]:
        return [usual_size(place, name) for place, constants in TINY.items() for name in constants]

    usual = sizes()
    least = [value for constants in TINY.values() for value in constants.values()]
    changed = 0
    for seed in range(20):
        with other_sizes(seed):
            drawn = sizes()
        assert all(low <= size <= most for low, size, most in zip(least, drawn, usual, strict=True))
        changed += sum(size != most for size, most in zip(drawn, usual, strict=True))
    assert sizes() == usual
    assert 0.15 < changed / (20 * len(usual)) < 0.3


def test_a_fault_changes_nothing_before_its_time() -> None:
    """Whatever it is made of (another disk, another clock), so that hunting may add it at a moment that it saw."""
    calm = simulate(SMALL, 5).run.events
    makers: list[Callable[[float], Fault]] = [
        lambda at_s: Fault(at_s=at_s, kind=FaultKind.SYNC_ERROR, for_s=0.1),
        lambda at_s: Fault(at_s=at_s, kind=FaultKind.CLOCK_RATE, factor=2.0, for_s=0.1),
        lambda at_s: Fault(at_s=at_s, kind=FaultKind.RESET, target="clients"),
    ]
    for make in makers:
        later = simulate(msgspec.structs.replace(SMALL, faults=(make(0.7),)), 5).run.events
        before = [event for event in calm if event.time_ns < 0.7e9]
        assert len(before) > 100
        assert later[: len(before)] == before


def test_one_client_alone_is_hit() -> None:
    outcome = run(Fault(at_s=0.3, kind=FaultKind.RESET, target="c0"))
    assert connects(outcome) == {"p0": 1, "c0": 2, "c1": 1, "d0": 1}
    for target, others in (("p0", set()), ("c0", {"p0", "c1"})):
        away = run(Fault(at_s=0.2, kind=FaultKind.PARTITION, for_s=0.6, target=target))
        heard = {
            event.process.partition(".")[0]
            for event in away.run.events
            if 0.21e9 < event.time_ns < 0.79e9 and event.f is not OpKind.FAULT and event.type is OpType.OK
        }
        assert heard >= others
        assert target not in heard


def test_a_fault_for_a_client_that_is_not_there_is_refused() -> None:
    with pytest.raises(ScenarioError, match="the client 'c2'; there are c0, c1, d0, p0"):
        run(Fault(at_s=0.3, kind=FaultKind.RESET, target="c2"))
