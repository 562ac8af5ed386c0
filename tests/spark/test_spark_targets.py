"""A figure is green only when it was measured under its conditions and met."""

from __future__ import annotations

import msgspec
import pytest

from reference_broker.trace.results import Verdict
from spark_analysis.targets import (
    Measured,
    OperationFigures,
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
    count=5_000, p99_us=2_000.0, lateness_p99_ms=0.1, offered_per_s=200_000.0, completed_per_s=150_000.0
)


def measured(operation: str = "publish_to_ack", **changes: float | None) -> Measured:
    figures = msgspec.structs.replace(GOOD, **changes)
    return Measured(operations={operation: figures}, generator_ceiling_per_s=500_000.0)


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
    assert all("not judged" in check.source for check in checks)


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, Verdict.PASS, ""),
        ({"p99_us": 10_000.0}, Verdict.FAIL, ""),
        ({"p99_us": 9_999.0}, Verdict.PASS, ""),
        ({"count": 999}, Verdict.UNKNOWN, "999 samples, 1000 needed"),
        ({"p99_us": None}, Verdict.UNKNOWN, "no publish_to_ack samples"),
        ({"unfinished": 60}, Verdict.UNKNOWN, "60 of 5060 samples never completed"),
        ({"p99_us": 20_000.0, "lateness_p99_ms": 3.0}, Verdict.UNKNOWN, "generator itself was 3.0 ms late"),
        ({"p99_us": 5_000.0, "lateness_p99_ms": 3.0}, Verdict.PASS, ""),
    ],
)
def test_latency(changes: dict[str, float | None], verdict: Verdict, reason: str) -> None:
    check = judge(PUBLISH, measured(**changes))
    assert check.verdict is verdict
    assert reason in check.source


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
    given = msgspec.structs.replace(measured(**changes), generator_ceiling_per_s=ceiling)
    check = judge(WRITE, given)
    assert check.verdict is verdict
    assert reason in check.source


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
    ],
)
def test_a_wrong_file_names_the_place(change: tuple[str, str], problem: str) -> None:
    parse_targets(GOOD_FILE, where="mine.yaml")
    with pytest.raises(TargetsError, match=rf"mine\.yaml(.|\n)*{problem}"):
        parse_targets(GOOD_FILE.replace(*change), where="mine.yaml")


def test_a_name_must_not_repeat() -> None:
    with pytest.raises(TargetsError, match="'a' occurs twice"):
        parse_targets(GOOD_FILE + GOOD_FILE.splitlines()[3], where="mine.yaml")
