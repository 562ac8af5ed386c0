"""A figure is green only when it was measured under its conditions and met."""

from __future__ import annotations

import msgspec
import pytest

from assay.reference_broker.trace.results import Verdict
from assay.spark_analysis.targets import (
    Measured,
    OperationFigures,
    Selection,
    Target,
    TargetsError,
    judge,
    judge_all,
    load_targets,
    parse_targets,
)

TARGETS = load_targets()
BY_NAME = {target.name: target for target in TARGETS.targets}
PUBLISH = BY_NAME["Publish p99 (GoQueue)"]
WRITE = BY_NAME["Write throughput, one node (GoQueue)"]
LOSS = BY_NAME["Message loss (GoQueue)"]

GOOD = OperationFigures(
    operation="publish_to_ack",
    run_id="load/smoke",
    workload="tasks",
    queue="q",
    protocol="mqtt5",
    count=5_000,
    p99_us=2_000.0,
    p99_low_us=2_000.0,
    p99_high_us=2_000.0,
    late_us=100.0,
    offered_per_s=200_000.0,
    completed_per_s=150_000.0,
)


def measured(target: Target, *changes: dict[str, float | None]) -> Measured:
    figures = [msgspec.structs.replace(GOOD, **change) for change in changes]
    return Measured(figures={target.judges: figures}, generator_ceiling_per_s=500_000.0)


def p99(value_us: float) -> dict[str, float | None]:
    return {"p99_us": value_us, "p99_low_us": value_us, "p99_high_us": value_us}


def test_the_seeds_figures_are_there_with_source_and_bound() -> None:
    bounds = {(target.metric, str(target.operation), target.relation, target.bound) for target in TARGETS.targets}
    assert {
        ("latency_p99_ms", "publish_to_ack", "<", 10.0),
        ("latency_p99_ms", "publish_to_deliver", "<", 5.0),
        ("latency_p99_ms", "publish_to_deliver", "<", 10.0),
        ("throughput_per_s", "publish_to_ack", ">=", 100_000.0),
        ("throughput_per_s", "publish_to_ack", ">=", 10_000.0),
        ("throughput_per_s", "publish_to_deliver", ">=", 10_000.0),
        ("messages_lost", "None", "==", 0.0),
    } <= bounds
    assert all(target.source for target in TARGETS.targets)


def test_nothing_measured_is_nothing_green() -> None:
    checks = judge_all(TARGETS, Measured())
    assert {check.verdict for check in checks} == {Verdict.UNKNOWN}
    assert all(check.reason for check in checks)
    assert all("not judged" in check.background for check in checks)


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, Verdict.PASS, ""),
        (p99(10_100.0), Verdict.FAIL, ""),
        (p99(10_099.0), Verdict.UNKNOWN, "generator itself was 0.1 ms late"),
        (p99(9_999.0), Verdict.PASS, ""),
        ({"count": 999}, Verdict.UNKNOWN, "999 of 999 due were answered, 1000 needed"),
        ({"p99_us": None, "count": 0, "missing": 7}, Verdict.UNKNOWN, "0 of 7 due were answered"),
        ({"missing": 60, "p99_high_us": None}, Verdict.UNKNOWN, "5,000 of 5,060 due were answered"),
        ({"missing": 60, "p99_low_us": 11_000.0, "p99_high_us": None}, Verdict.FAIL, ""),
        ({**p99(12_000.0), "late_us": 3_000.0}, Verdict.UNKNOWN, "generator itself was 3 ms late"),
        ({**p99(300_000.0), "late_us": 54_000.0}, Verdict.FAIL, ""),
        ({**p99(5_000.0), "late_us": 3_000.0}, Verdict.PASS, ""),
    ],
)
def test_latency(changes: dict[str, float | None], verdict: Verdict, reason: str) -> None:
    check = judge(PUBLISH, measured(PUBLISH, changes))
    assert check.verdict is verdict
    assert reason in check.reason
    assert (check.reason == "") == (verdict is not Verdict.UNKNOWN)
    assert check.subject == "workload tasks, queue q, mqtt5 [load/smoke]"


@pytest.mark.parametrize(
    ("null_us", "verdict"), [(4_900.0, Verdict.FAIL), (21_000.0, Verdict.UNKNOWN), (100.0, Verdict.FAIL)]
)
def test_a_machine_on_which_nobody_is_faster_excuses_a_miss(null_us: float, verdict: Verdict) -> None:
    slow = measured(PUBLISH, p99(30_000.0))
    null = {("load/smoke", "tasks", "publish_to_ack"): null_us, ("load/smoke", "other", "publish_to_ack"): 1e6}
    check = judge(PUBLISH, msgspec.structs.replace(slow, null_p99_us=null))
    assert check.verdict is verdict
    assert ("a broker that does nothing needed 21 ms" in check.reason) == (verdict is Verdict.UNKNOWN)


def test_one_queue_is_judged_at_a_time_and_the_worst_decides() -> None:
    slow = {**p99(30_000.0), "queue": "slow"}
    check = judge(PUBLISH, measured(PUBLISH, {}, slow, p99(1.0)))
    assert (check.verdict, check.value) == (Verdict.FAIL, 30.0)
    assert check.subject.startswith("worst of 3: workload tasks, queue slow")
    few = judge(PUBLISH, measured(PUBLISH, {}, {"count": 10}))
    assert few.verdict is Verdict.UNKNOWN, "one queue of which little is known is not green"
    enqueue = BY_NAME["Enqueue throughput, one queue (FluxMQ)"]
    halves = [{"completed_per_s": 9_000.0, "offered_per_s": 9_000.0}] * 2
    assert judge(enqueue, measured(enqueue, *halves)).verdict is not Verdict.PASS, "two queues are not one"


def test_figures_of_queues_are_judged_by_samples_of_queues() -> None:
    """Both seeds promise figures of durable queues; plain publish and subscribe neither meets nor misses them."""
    for target in TARGETS.targets:
        if target.operation is not None:
            assert target.judges.samples == "queue"
            check = judge(target, Measured(figures={Selection(samples="pubsub"): [GOOD]}))
            assert (check.verdict, check.value) == (Verdict.UNKNOWN, None)
            assert check.reason == f"no {target.operation} samples of a queue in a steady phase"


@pytest.mark.parametrize(
    ("changes", "ceiling", "verdict", "reason"),
    [
        ({}, 500_000.0, Verdict.PASS, ""),
        ({"offered_per_s": 500.0, "completed_per_s": 500.0}, 500_000.0, Verdict.UNKNOWN, "offered only 500/s"),
        ({"offered_per_s": 150_000.0, "completed_per_s": 60_000.0}, 500_000.0, Verdict.FAIL, ""),
        ({"offered_per_s": 20_000.0, "completed_per_s": 9_000.0}, 500_000.0, Verdict.FAIL, ""),
        ({"offered_per_s": 150_000.0, "completed_per_s": 60_000.0}, 70_000.0, Verdict.UNKNOWN, "is 70000/s"),
        ({"offered_per_s": 150_000.0, "completed_per_s": 60_000.0}, None, Verdict.UNKNOWN, "generator is unknown"),
    ],
)
def test_throughput(changes: dict[str, float | None], ceiling: float | None, verdict: Verdict, reason: str) -> None:
    given = msgspec.structs.replace(measured(WRITE, changes), generator_ceiling_per_s=ceiling)
    check = judge(WRITE, given)
    assert check.verdict is verdict
    assert reason in check.reason


@pytest.mark.parametrize(
    ("lost", "drained", "verdict"),
    [
        (0, True, Verdict.PASS),
        (3, True, Verdict.FAIL),
        (3, False, Verdict.FAIL),
        (0, False, Verdict.UNKNOWN),
        (None, False, Verdict.UNKNOWN),
    ],
)
def test_loss(lost: int | None, drained: bool, verdict: Verdict) -> None:
    assert judge(LOSS, Measured(messages_lost=lost, histories_drained=drained)).verdict is verdict


GOOD_FILE = """
schema: assay.targets/1
targets:
  - {name: a, metric: latency_p99_ms, operation: publish_to_ack, relation: "<", bound: 1, unit: ms, source: me}
"""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("bound: 1", "bound: fast"), r"targets\[0\]\.bound"),
        (("unit: ms", "units: ms"), "units"),
        (('relation: "<"', 'relation: "!"'), r"targets\[0\]\.relation"),
        (("operation: publish_to_ack, ", ""), "needs an operation"),
        (("assay.targets/1", "assay.targets/9"), "schema"),
        (("name: a", "name: [a"), "line"),
        (("name: a", "judges: {per: run}, name: a"), "a mix of workloads"),
        (("name: a", "judges: {per: queue, samples: pubsub}, name: a"), "no queue"),
        (("name: a", "judges: {workload: [w]}, name: a"), "workload"),
    ],
)
def test_a_wrong_file_names_the_place(change: tuple[str, str], problem: str) -> None:
    parse_targets(GOOD_FILE, where="mine.yaml")
    with pytest.raises(TargetsError, match=rf"mine\.yaml(.|\n)*{problem}"):
        parse_targets(GOOD_FILE.replace(*change), where="mine.yaml")


def test_a_name_must_not_repeat() -> None:
    with pytest.raises(TargetsError, match="'a' occurs twice"):
        parse_targets(GOOD_FILE + GOOD_FILE.splitlines()[3], where="mine.yaml")
