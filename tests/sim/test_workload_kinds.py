"""All kinds of workload in one scenario: what their clients do is in the history, and is drawn apart from each
other.
"""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from assay.faults.scenario import Fault, FaultKind, MqttWorkload, QueueWorkload, Scenario, ScenarioWorld, Topology
from assay.faults.workload_kinds import Absences, Delaying, PassingGroup, Retained, Transactions, Wills
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.schema import AckedMeans, Contract, HistoryEvent, OpKind, OpType
from assay.sim.runner import simulate

MIXED = Scenario(
    name="mixed",
    worlds=(ScenarioWorld.SIM,),
    topology=Topology(broker={"queues": {"defaults": {"partitions": 2, "delivery_timeout_s": 1.0}}}),
    workload=(
        QueueWorkload(
            queue="tasks",
            messages_per_producer=80,
            rate_per_s=60.0,
            transactions=Transactions(share=0.5, timeout_s=0.5),
            delays=Delaying(share=0.5, delay_s=(0.0, 0.3), cancel=0.5),
            priorities={"critical": 1, "low": 1},
            absences=Absences(stay_s=(0.2, 0.4), away_s=(0.05, 0.2)),
            passing_groups=(PassingGroup(name="audit", at_s=0.2, stay_s=0.3, away_s=0.1),),
        ),
        MqttWorkload(
            name="devices",
            messages_per_publisher=60,
            sessions=1,
            session_expiry_s=1,
            share_members=2,
            absences=Absences(stay_s=(0.1, 0.3), away_s=(0.05, 0.2), take_over=1.0),
            retained=Retained(writes_per_writer=40, read_s=0.1),
            wills=Wills(absences=Absences(stay_s=(0.1, 0.3), away_s=(0.05, 0.1))),
        ),
    ),
    drain_timeout_s=30.0,
    drain_quiet_s=6.5,
    contract=Contract(delivery_timeout_s=1.0),
)


@cache
def history() -> list[HistoryEvent]:
    """Of one run, which nothing is wrong with."""
    outcome = simulate(MIXED, 1)
    assert outcome.verdict is Verdict.PASS, [*outcome.findings, *outcome.judgement.reasons]
    return outcome.run.events


def test_everything_that_was_asked_for_happens() -> None:
    done = {(event.f, event.type) for event in history()}
    wanted = {
        (f, OpType.OK)
        for f in (
            OpKind.COMMIT,
            OpKind.ABORT,
            OpKind.CANCEL,
            OpKind.DELETE,
            OpKind.UNSUBSCRIBE,
            OpKind.READ,
            OpKind.WILL,
        )
    }
    assert wanted <= done
    sent = [event for event in history() if event.f is OpKind.PUBLISH and event.type is OpType.INVOKE]
    assert {event.qos for event in sent if event.queue.startswith("$")} == {0, 1, 2}
    assert {event.lane for event in sent if event.queue == "tasks"} == {0, 3}
    assert any(event.delay_ns > 0 for event in sent)
    assert any(event.reason == "removes" for event in sent)
    groups = {event.group for event in history() if event.f is OpKind.DELIVER}
    assert {"workers", "audit", "audit~2", "s0", "n0", "n0~2", "$share/devices-members"} <= groups


def test_an_operation_completes_once_and_every_completion_was_invoked() -> None:
    invoked = {event.index: event for event in history() if event.type is OpType.INVOKE}
    completed: set[int] = set()
    for event in history():
        if event.op >= 0 and event.f is not OpKind.READ:
            assert event.op not in completed, event
            assert invoked[event.op].f is event.f
            completed.add(event.op)
    unanswered = [event for event in invoked.values() if event.index not in completed and event.f is not OpKind.READ]
    assert {(event.f, event.qos) for event in unanswered} <= {(OpKind.PUBLISH, 0), (OpKind.PUBLISH, 1)}


def test_messages_of_a_transaction_complete_with_it() -> None:
    ends: dict[str, OpType] = {}
    for event in history():
        if event.f in (OpKind.COMMIT, OpKind.ABORT) and event.type is not OpType.INVOKE:
            ends[event.txn] = event.type if event.f is OpKind.COMMIT else OpType.FAIL
    members = [e for e in history() if e.f is OpKind.PUBLISH and e.txn and e.type is not OpType.INVOKE]
    assert members
    assert all(event.type is ends.get(event.txn, OpType.FAIL) for event in members)


def test_leaving_out_a_part_does_not_shift_what_others_draw() -> None:
    def sent(scenario: Scenario) -> list[tuple[str, str]]:
        events = simulate(scenario, 1).run.events
        return [(e.value, e.key) for e in events if e.f is OpKind.PUBLISH and e.process.startswith("p1.")]

    queue, plain = MIXED.workload
    fewer = msgspec.structs.replace(plain, wills=None, retained=None, absences=None)
    without = msgspec.structs.replace(MIXED, workload=(queue, fewer))
    first = dict.fromkeys(sent(MIXED))
    assert len(first) > 40
    assert first == dict.fromkeys(sent(without))


@pytest.mark.parametrize("acked_means", [AckedMeans.MEMORY, AckedMeans.DISK])
def test_an_id_is_used_over_a_restart_only_where_the_broker_knows_it_then(acked_means: AckedMeans) -> None:
    """Swarm seed 10011 of delays-priorities: who took back what a crash had taken took back another message."""
    durability = "memory" if acked_means is AckedMeans.MEMORY else "fsync"
    workload = QueueWorkload(
        queue="tasks",
        messages_per_producer=60,
        rate_per_s=60.0,
        delays=Delaying(share=0.8, delay_s=(0.2, 0.8), cancel=0.8),
    )
    scenario = msgspec.structs.replace(
        MIXED,
        topology=Topology(broker={"queues": {"defaults": {"durability": durability}}}),
        workload=(workload,),
        faults=(Fault(at_s=0.5, kind=FaultKind.CRASH, for_s=0.05),),
        contract=Contract(acked_means=acked_means),
    )
    outcome = simulate(scenario, 1)
    assert outcome.verdict is Verdict.PASS, [*outcome.findings, *outcome.judgement.reasons]
    events = outcome.run.events
    (crashed,) = (event.index for event in events if event.f is OpKind.FAULT and event.type is OpType.INVOKE)
    before = {event.value for event in events if event.f is OpKind.PUBLISH and event.index < crashed}
    taken_back = {event.value for event in events if event.f is OpKind.CANCEL and event.index > crashed}
    assert bool(before & taken_back) is (acked_means is AckedMeans.DISK)
    assert taken_back - before
