"""What the hunt makes of runs that prove nothing."""

from __future__ import annotations

import msgspec
import pytest

from assay.faults.fault_kinds import Fault, FaultKind
from assay.faults.scenario import (
    Absences,
    AmqpWorkload,
    MqttWorkload,
    QueueWorkload,
    Scenario,
    ScenarioWorld,
    Topology,
    Wills,
)
from assay.reference_broker.queues.jobs.store import RecoveryNote
from assay.reference_broker.storage.queue_store import REFUSED, LogQueueStore
from assay.reference_broker.trace.file_kinds import FileKind
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.schema import Contract
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
    for seed in range(25, 85):
        found, _ = run_schedule(from_file(scenario, seed))
        assert found.verdict is Verdict.PASS, (seed, found.message)
        if outcomes[-1].verdict is Verdict.UNKNOWN:
            break
    else:
        pytest.fail("no lie took what says what the queue is")
    assert found.excused
    assert not found.classes


def test_queues_that_are_set_aside_beside_another_are_stuck(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[SimOutcome]
) -> None:
    """A planted bug: where one queue is refused all are, and only of the one it is said."""
    others = msgspec.structs.replace(SCENARIO.workload[0], queue="others")
    scenario = msgspec.structs.replace(SCENARIO, workload=(*SCENARIO.workload, others), faults=(LIES, POWER))
    set_aside = LogQueueStore.set_folder_aside

    def all_aside(self: LogQueueStore, folder: str, problem: str) -> None:
        set_aside(self, folder, problem)
        for name in ("tasks", "others"):
            self._unusable.setdefault(name, problem)

    for seed in range(10, 60):
        found, _ = run_schedule(from_file(scenario, seed))
        assert found.verdict is Verdict.PASS, (seed, found.message)
        if found.excused and "not drained" in "".join(outcomes[-1].judgement.reasons):
            break
    refused = {note.queue for note in outcomes[-1].run.storage_notes if note.problem.endswith(REFUSED)}
    (well,) = {"tasks", "others"} - refused
    monkeypatch.setattr(LogQueueStore, "set_folder_aside", all_aside)
    found, _ = run_schedule(from_file(scenario, seed))
    assert found.verdict is Verdict.UNKNOWN
    assert found.message.startswith(f"queue '{well}' was not drained")
    assert {each.anomaly for each in found.classes} == {"F8"}


ROT = Fault(at_s=0.2, kind=FaultKind.BIT_ROT)
LATE_ROT = Fault(at_s=0.45, kind=FaultKind.BIT_ROT)


@pytest.mark.parametrize(
    ("faults", "refused", "undrained", "stuck"),
    [
        ((LIES, POWER), "tasks", ("tasks", "$dlq/tasks"), []),
        ((LIES, POWER), "$dlq/tasks", ("tasks", "$dlq/tasks"), []),
        ((LIES, POWER), "tasks", ("tasks", "others"), ["others"]),
        ((LIES, POWER), "others", ("tasks",), ["tasks"]),
        ((LIES, POWER), "shop.q0", ("shop", "$dlq/shop", "shop.moved"), []),
        ((LIES, POWER), "shop.q0", ("shopping",), ["shopping"]),
        ((LIES, POWER), "", ("tasks",), ["tasks"]),
        ((LIES, POWER), "tasks", ("tasks",), []),
        ((ROT, POWER), "tasks", ("tasks",), []),
        ((POWER, LATE_ROT), "tasks", ("tasks",), ["tasks"]),
        ((POWER,), "tasks", ("tasks",), ["tasks"]),
    ],
)
def test_a_queue_is_stuck_unless_it_was_refused_with_a_word_and_a_reason(
    monkeypatch: pytest.MonkeyPatch,
    faults: tuple[Fault, ...],
    refused: str,
    undrained: tuple[str, ...],
    stuck: list[str],
) -> None:
    def undrained_run(*arguments: object, **named: object) -> SimOutcome:
        outcome = simulate(*arguments, **named)
        note = msgspec.convert({"queue": refused, "place": "", "problem": f"gone; {REFUSED}"}, RecoveryNote)
        run = msgspec.structs.replace(outcome.run, storage_notes=[note] if refused else [])
        judgement = msgspec.structs.replace(
            outcome.judgement,
            verdict=Verdict.UNKNOWN,
            reasons=["nothing was delivered", *undrained],
            undrained={queue: queue for queue in undrained},
        )
        return msgspec.structs.replace(outcome, run=run, judgement=judgement, verdict=Verdict.UNKNOWN, findings=[])

    monkeypatch.setattr(explore, "simulate", undrained_run)
    others = (QueueWorkload(queue=queue, messages_per_producer=1) for queue in ("others", "shopping"))
    workload = (*SCENARIO.workload, *others, AmqpWorkload(name="shop", messages_per_publisher=1))
    found, _ = run_schedule(from_file(msgspec.structs.replace(SCENARIO, workload=workload, faults=faults), 1))
    assert found.verdict is (Verdict.UNKNOWN if stuck else Verdict.PASS)
    assert found.message == "; ".join(stuck)
    assert {each.anomaly for each in found.classes} == ({"F8"} if stuck else set())
    assert found.excused == (len(stuck) < len(undrained))


def test_a_run_in_which_nothing_happened_is_no_smaller_form_of_a_stuck_queue() -> None:
    idle = msgspec.structs.replace(SCENARIO.workload[0], messages_per_producer=1, publish_timeout_s=0.001)
    scenario = msgspec.structs.replace(SCENARIO, workload=(idle,))
    found, _ = run_schedule(from_file(scenario, 1))
    assert found.verdict is Verdict.UNKNOWN
    assert "F8" not in {each.anomaly for each in found.classes}
    found, _ = run_schedule(from_file(msgspec.structs.replace(scenario, faults=(POWER,)), 1))
    assert found.verdict is Verdict.PASS, "faults may last as long as the workload"


WILLS = Scenario(
    name="wills",
    worlds=(ScenarioWorld.SIM,),
    workload=(
        MqttWorkload(
            name="meters",
            publishers=1,
            messages_per_publisher=100,
            rate_per_s=15,
            sessions=1,
            retained=None,
            absences=None,
            wills=Wills(clients=1, absences=Absences(stay_s=(0.1, 0.3), away_s=(0.1, 0.3), leave=0.0, drop=1.0)),
        ),
    ),
    drain_timeout_s=30.0,
    drain_quiet_s=5.5,
    contract=Contract(dead_letters=False),
)


@pytest.mark.parametrize(
    ("trouble", "hides"),
    [
        (Fault(at_s=0.1, kind=FaultKind.DISK_FULL, for_s=0.1), False),
        (Fault(at_s=0.1, kind=FaultKind.WRITE_ERROR, for_s=6.5, files=FileKind.SEGMENTS, times=30), False),
        (Fault(at_s=0.1, kind=FaultKind.DISK_FULL, for_s=6.5), True),
    ],
)
def test_a_broker_that_forgets_wills_hides_behind_no_trouble_of_the_disk_that_cannot_reach_them(
    trouble: Fault, hides: bool
) -> None:
    scenario = msgspec.structs.replace(WILLS, faults=(trouble,))
    found, _ = run_schedule(from_file(scenario, 1), ("v3-will-not-published", "v5-will-not-published"))
    assert [(each.checker, each.anomaly) for each in found.classes] == ([] if hides else [("wills", "W1")])
    found, _ = run_schedule(from_file(scenario, 1))
    assert found.verdict is Verdict.PASS, found.message
