"""The Spark SQL checkers say of every history what the in-memory checkers say."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import spark_histories as histories
from pyspark.sql import SparkSession

from assay.conformance.checkers import anomalies as anomalies_in_memory
from assay.conformance.checkers import build_tables, check_history
from assay.conformance.checkers.planting import PLANTERS, plant
from assay.conformance.checkers.planting_workloads import PLANTERS as WORKLOAD_PLANTERS
from assay.conformance.checkers.planting_workloads import plant as plant_workload
from assay.conformance.checkers.specimens import CONTRACT as MODEL_CONTRACT
from assay.conformance.checkers.specimens import right_history
from assay.faults.scenario import find_scenario
from assay.reference_broker.trace.files import HistoryWriter
from assay.reference_broker.trace.results import Finding
from assay.reference_broker.trace.schema import HistoryEvent, HistoryHeader
from assay.sim.runner import simulate
from assay.spark_analysis.checkers import RULES, anomalies, findings_by_run
from assay.spark_analysis.delivery import COUNTS, RunCounts, counts_by_run, missing_claims
from assay.spark_analysis.sources import load_histories
from assay.spark_analysis.tables import Tables

# Generous: starting Java and its first queries take most of it, more so on a machine that is busy.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

IN_SQL = {(checker, name) for rule in RULES for checker in rule.checkers for name in rule.anomalies}
"""The others are judged in memory alone: priorities, and what AMQP declares and removes."""
Runs = dict[str, tuple[HistoryHeader, list[HistoryEvent]]]
Row = tuple[str, str, str, str, str, str, str, int]


def rows_in_memory(runs: Runs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for run_id, (header, events) in runs.items():
        for row in anomalies_in_memory(build_tables(events), header.contract):
            if (row.checker, row.anomaly) not in IN_SQL:
                continue
            key = (
                run_id,
                row.checker,
                row.anomaly,
                row.severity.value,
                row.queue,
                row.group,
                row.value,
                row.index,
            )
            found[key] += 1
    return found


class Judged(NamedTuple):
    """What Spark says of some runs."""

    rows: Counter[Row]
    findings: dict[str, list[Finding]]
    reasons: dict[str, list[str]]
    counts: dict[str, RunCounts]


def in_spark(spark: SparkSession, runs: Runs, folder: Path) -> Judged:
    files = {}
    for run_id, (header, events) in runs.items():
        files[run_id] = folder / run_id / "history.jsonl"
        with HistoryWriter(files[run_id], header) as writer:
            for event in events:
                writer.write(event)
    loaded = load_histories(spark, files, folder)
    tables = Tables(spark, loaded.frame, loaded.headers, folder / "scratch")
    loaded.release()
    table = anomalies(tables)
    rows = Counter(
        (r.run_id, r.checker, r.anomaly, r.severity, r.queue, r.consumer_group, r.value, r.idx) for r in table.collect()
    )
    counts = counts_by_run(tables.query(COUNTS))
    reasons = missing_claims(tables, loaded.headers, counts)
    # There is a limit to how many findings are told of.
    shown = table.where("NOT startswith(run_id, 'chaos-') AND NOT startswith(run_id, 'mqtt-')")
    return Judged(rows, findings_by_run(tables, shown), reasons, counts)


def told(finding: Finding) -> tuple[object, ...]:
    """What two checkers must say alike; the sentence for people is each one's own."""
    return finding.checker, finding.anomaly, finding.severity, finding.values, finding.evidence


def difference(expected: Counter[Row], found: Counter[Row]) -> str:
    missing, extra = expected - found, found - expected
    return f"only in memory: {sorted(missing)[:5]}\nonly in Spark: {sorted(extra)[:5]}"


@pytest.fixture(scope="module")
def specimens() -> Runs:
    """Every planted anomaly in a small history of its own, and the in-memory checkers' own specimens."""
    runs: Runs = {
        name: (HistoryHeader(run_id=name, contract=histories.CONTRACT), histories.planted(name).events)
        for name in histories.PLANTED
    }
    runs["clean"] = (HistoryHeader(run_id="clean", contract=histories.CONTRACT), histories.clean().events)
    runs["clean-held-up"] = (
        HistoryHeader(run_id="clean-held-up", contract=histories.CONTRACT),
        histories.held_up().events,
    )
    for seed in range(4):
        right = right_history(random.Random(seed), messages=60, groups=1 + seed % 2, consumers=1 + seed % 3)
        header = HistoryHeader(run_id=f"right-{seed}", contract=MODEL_CONTRACT)
        runs[f"right-{seed}"] = (header, right)
        for anomaly in PLANTERS:
            broken = plant(anomaly, random.Random(seed), right)
            if broken is not None:
                runs[f"{anomaly}-planted-{seed}"] = (header, broken)
    for name in ("transactions", "delays-priorities", "passing-groups", "mqtt-sessions"):
        scenario = find_scenario(name)
        header = HistoryHeader(run_id=f"right-{name}", contract=scenario.contract)
        right = simulate(scenario, 1).run.events
        runs[f"right-{name}"] = (header, right)
        for anomaly in ("E1", "E2", "D13", "A17", "F14", "A1", "B2", "S1", "R1", "W1"):
            if WORKLOAD_PLANTERS[anomaly][0] == name:
                broken = plant_workload(anomaly, random.Random(1), right)
                assert broken is not None, anomaly
                runs[f"{anomaly}-{name}"] = (header, broken)
    return runs


@pytest.fixture(scope="module")
def random_histories() -> Runs:
    """Others each time. A difference names its run, and with it the seed."""
    first = random.randrange(2**48)
    runs = {f"chaos-{seed}": histories.chaos(seed) for seed in range(first, first + 300)}
    return runs | {f"mqtt-{seed}": histories.mqtt_chaos(seed) for seed in range(first, first + 100)}


@pytest.fixture(scope="module")
def judged(
    spark: SparkSession, specimens: Runs, random_histories: Runs, tmp_path_factory: pytest.TempPathFactory
) -> Judged:
    """All of them by one job, which is what takes the time."""
    return in_spark(spark, specimens | random_histories, tmp_path_factory.mktemp("specimens"))


def test_both_say_the_same(specimens: Runs, random_histories: Runs, judged: Judged) -> None:
    expected = rows_in_memory(specimens | random_histories)
    assert judged.rows == expected, difference(expected, judged.rows)


def test_every_checker_speaks_of_random_histories(random_histories: Runs, judged: Judged) -> None:
    spoke = {row[1] for row in judged.rows if row[0] in random_histories}
    assert spoke == {name for rule in RULES for name in rule.checkers}


@pytest.mark.parametrize("anomaly", histories.PLANTED)
def test_a_planted_anomaly_is_found(judged: Judged, anomaly: str) -> None:
    assert anomaly in {row[2] for row in judged.rows if row[0] == anomaly}


def test_a_right_broker_is_never_accused(judged: Judged) -> None:
    accused = {row[0] for row in judged.rows if row[3] == "safety"}
    assert not {run_id for run_id in accused if run_id.startswith(("clean", "right"))}


def test_findings_and_their_evidence_are_the_same(specimens: Runs, judged: Judged) -> None:
    for run_id, (header, events) in specimens.items():
        expected = [f for f in check_history(header, events).findings if (f.checker, f.anomaly) in IN_SQL]
        found = judged.findings.get(run_id, [])
        assert [told(finding) for finding in found] == [told(finding) for finding in expected], run_id


def test_what_cannot_be_claimed_is_the_same(specimens: Runs, random_histories: Runs, judged: Judged) -> None:
    for run_id, (header, events) in (specimens | random_histories).items():
        outcome = check_history(header, events)
        assert sorted(judged.reasons.get(run_id, [])) == sorted(outcome.reasons), run_id
        sizes = judged.counts[run_id]
        for name in ("events", "sends_ok", "sends_info", "recovered", "deliveries", "redeliveries", "dead_lettered"):
            assert getattr(sizes, name) == outcome.counts[name], (run_id, name)
