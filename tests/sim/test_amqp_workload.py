"""AMQP 0.9.1 as a workload: a sound broker is not accused, and planted bugs are found in simulated runs."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from assay.faults.fault_kinds import Fault, FaultKind
from assay.faults.scenario import AmqpWorkload, Scenario, Settlement, find_scenario
from assay.faults.workload_kinds import AmqpTransactions, PassingQueues
from assay.reference_broker.trace.results import Severity, Verdict
from assay.reference_broker.trace.schema import OpKind, OpType
from assay.sim.runner import simulate

replace = msgspec.structs.replace
SETTLEMENTS = {OpKind.ACK, OpKind.NACK, OpKind.REJECT}


def small(seed: int, kind: FaultKind = FaultKind.CRASH, **changes: object) -> Scenario:
    """The shipped one with few messages and one fault."""
    shipped = find_scenario("amqp")
    (workload,) = shipped.workload
    assert isinstance(workload, AmqpWorkload)
    passing = PassingQueues(number=4, at_s=0.05, stay_s=(0.1, 0.2), linger_s=(0.2, 0.4), away_s=(0.1, 0.2))
    fewer = replace(workload, passing_queues=passing, messages_per_publisher=60, consumers_per_queue=1, **changes)
    fault = Fault(kind=kind, target="broker", at_s=0.6, for_s=0.1)
    return replace(shipped, workload=(fewer,), faults=(fault,), seed=seed, drain_quiet_s=4.5)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (FaultKind.CRASH, {"exchange": "direct", "queue_type": "quorum", "delivery_limit": 3}),
        (FaultKind.POWER_LOSS, {"exchange": "fanout", "priorities": {"critical": 0.2, "normal": 0.6, "low": 0.2}}),
        (FaultKind.RESET, {"settlement": Settlement(ack=0.5, nack=0.2, reject=0.2, ignore=0.1)}),
        (FaultKind.STOP, {"transactions": AmqpTransactions(share=1.0, commit=0.5, rollback=0.4), "movers": 1}),
    ],
)
def test_a_sound_broker_keeps_it_all(kind: FaultKind, changes: dict[str, object]) -> None:
    outcome = simulate(small(7, kind, **changes), 7)
    assert outcome.verdict is Verdict.PASS, (outcome.findings, outcome.judgement.reasons, outcome.run.died)
    assert outcome.judgement.counts["sends_ok"] > 60
    begun = (event for event in outcome.run.events if event.f in SETTLEMENTS and event.type is OpType.INVOKE)
    in_transactions = Counter((event.txn, event.value) for event in begun if event.txn)
    assert set(in_transactions.values()) <= {1}, (
        "a mover settles a delivery once in a transaction, in the drain as well"
    )


@pytest.mark.parametrize(
    ("mutant", "anomalies"),
    [
        ("amqp-acknowledgements-do-not-wait", "F6"),
        ("amqp-bindings-not-durable", "A1"),
        ("amqp-commit-forgets-acknowledgements", "A15"),
        ("amqp-never-redelivered", "B4"),
        ("amqp-publishes-do-not-wait", "A10"),
        ("amqp-reject-forgotten", "A11 A15"),
        ("amqp-unbound-is-remembered", "T1"),
    ],
)
def test_planted_bugs_are_found(mutant: str, anomalies: str) -> None:
    """As one of them at least."""
    found: set[str] = set()
    for seed in range(1, 5):
        outcome = simulate(small(seed), seed, mutants=(mutant,))
        found |= {each.anomaly for each in outcome.findings if each.severity is Severity.SAFETY}
        if found & set(anomalies.split()):
            return
    pytest.fail(f"{mutant}: found {sorted(found)} in four seeds")
