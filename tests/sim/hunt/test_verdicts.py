"""What the hunt makes of runs that prove nothing."""

from __future__ import annotations

import msgspec
import pytest

from assay.faults.fault_kinds import Fault, FaultKind
from assay.faults.scenario import QueueWorkload, Scenario, ScenarioWorld, Topology
from assay.reference_broker.queues.jobs.store import RecoveryNote
from assay.reference_broker.storage.queue_store import REFUSED
from assay.reference_broker.trace.results import Verdict
from assay.sim.hunt import explore
from assay.sim.hunt.explore import run_schedule
from assay.sim.hunt.schedule import from_file
from assay.sim.runner import SimOutcome, simulate

POWER = Fault(at_s=0.3, kind=FaultKind.POWER_LOSS, for_s=0.05)
LIES = Fault(at_s=0.0, kind=FaultKind.LYING_SYNC, for_s=0.5)
SCENARIO = Scenario(
    name="small",
    worlds=(ScenarioWorld.SIM,),
    topology=Topology(broker={"queues": {"defaults": {"partitions": 2}}}),
    workload=(QueueWorkload(queue="tasks", messages_per_producer=30, rate_per_s=60.0),),
    drain_timeout_s=5.0,
    drain_quiet_s=1.0,
)


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[SimOutcome]:
    """Of the simulations that the hunt makes."""
    made: list[SimOutcome] = []

    def noted(*arguments: object, **named: object) -> SimOutcome:
        made.append(simulate(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(explore, "simulate", noted)
    return made


def test_a_queue_that_is_set_aside_after_a_lie_is_not_stuck(outcomes: list[SimOutcome]) -> None:
    scenario = msgspec.structs.replace(SCENARIO, faults=(LIES, POWER))
    for seed in range(1, 60):
        found, _ = run_schedule(from_file(scenario, seed))
        assert found.verdict is Verdict.PASS, (seed, found.message)
        if outcomes[-1].verdict is Verdict.UNKNOWN:
            break
    else:
        pytest.fail("no lie took what says what the queue is")
    assert found.excused
    assert not found.classes


@pytest.mark.parametrize(("faults", "says"), [((LIES, POWER), False), ((POWER,), True)])
def test_a_queue_is_stuck_without_a_lie_or_without_a_word(
    monkeypatch: pytest.MonkeyPatch, faults: tuple[Fault, ...], says: bool
) -> None:
    def undrained(*arguments: object, **named: object) -> SimOutcome:
        outcome = simulate(*arguments, **named)
        note = msgspec.convert({"queue": "tasks", "place": "", "problem": f"gone; {REFUSED}"}, RecoveryNote)
        run = msgspec.structs.replace(outcome.run, storage_notes=[note] if says else [])
        judgement = msgspec.structs.replace(
            outcome.judgement, verdict=Verdict.UNKNOWN, reasons=["queue 'tasks' was not drained by group 'workers'"]
        )
        return msgspec.structs.replace(outcome, run=run, judgement=judgement, verdict=Verdict.UNKNOWN)

    monkeypatch.setattr(explore, "simulate", undrained)
    found, _ = run_schedule(from_file(msgspec.structs.replace(SCENARIO, faults=faults), 1))
    assert found.verdict is Verdict.UNKNOWN
    assert {each.anomaly for each in found.classes} == {"F8"}


def test_a_run_in_which_nothing_happened_is_no_smaller_form_of_a_stuck_queue() -> None:
    idle = msgspec.structs.replace(SCENARIO.workload[0], messages_per_producer=1, publish_timeout_s=0.001)
    scenario = msgspec.structs.replace(SCENARIO, workload=(idle,))
    found, _ = run_schedule(from_file(scenario, 1))
    assert found.verdict is Verdict.UNKNOWN
    assert "F8" not in {each.anomaly for each in found.classes}
    found, _ = run_schedule(from_file(msgspec.structs.replace(scenario, faults=(POWER,)), 1))
    assert found.verdict is Verdict.PASS, "faults may last as long as the workload"
