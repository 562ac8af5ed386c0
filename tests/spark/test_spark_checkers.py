"""The Spark SQL checkers say of every history what the in-memory checkers say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import spark_histories as histories
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conformance.checkers import anomalies as anomalies_in_memory
from conformance.checkers import build_tables, check_history
from reference_broker.trace.files import HistoryWriter
from reference_broker.trace.results import Finding
from reference_broker.trace.schema import HistoryEvent, HistoryHeader
from spark_analysis.checkers import RULES, anomalies, findings_by_run
from spark_analysis.sources import load_histories
from spark_analysis.tables import Tables

pytestmark = pytest.mark.spark

Runs = dict[str, tuple[HistoryHeader, list[HistoryEvent]]]
Row = tuple[str, str, str, str, str, str, str, int]


def rows_in_memory(runs: Runs) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for run_id, (header, events) in runs.items():
        for row in anomalies_in_memory(build_tables(events), header.contract):
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


def in_spark(spark: SparkSession, runs: Runs, folder: Path) -> tuple[Counter[Row], dict[str, list[Finding]]]:
    files = {}
    for run_id, (header, events) in runs.items():
        files[run_id] = folder / run_id / "history.jsonl"
        with HistoryWriter(files[run_id], header) as writer:
            for event in events:
                writer.write(event)
    loaded = load_histories(spark, files, folder)
    tables = Tables(spark, loaded.frame, loaded.headers, folder / "scratch")
    rows = anomalies(tables)
    found = Counter(
        (r.run_id, r.checker, r.anomaly, r.severity, r.queue, r.consumer_group, r.value, r.idx) for r in rows.collect()
    )
    return found, findings_by_run(tables, rows)


def told(finding: Finding) -> tuple[object, ...]:
    """What two checkers must say alike; the sentence for people is each one's own."""
    return finding.checker, finding.anomaly, finding.severity, finding.values, finding.evidence


def difference(expected: Counter[Row], found: Counter[Row]) -> str:
    missing, extra = expected - found, found - expected
    return f"only in memory: {sorted(missing)[:5]}\nonly in Spark: {sorted(extra)[:5]}"


def test_each_planted_anomaly_is_found_by_both(spark: SparkSession, tmp_path: Path) -> None:
    runs = {
        name: (HistoryHeader(run_id=name, contract=histories.CONTRACT), histories.planted(name).events)
        for name in histories.PLANTED
    }
    runs["clean"] = (HistoryHeader(run_id="clean", contract=histories.CONTRACT), histories.clean().events)
    expected = rows_in_memory(runs)
    found, findings = in_spark(spark, runs, tmp_path)
    assert found == expected, difference(expected, found)
    for name in histories.PLANTED:
        assert name in {row[2] for row in found if row[0] == name}, f"{name} was planted and not found"
    assert "clean" not in findings
    for run_id, (header, events) in runs.items():
        expected_findings = check_history(header, events).findings
        assert [told(finding) for finding in findings.get(run_id, [])] == [
            told(finding) for finding in expected_findings
        ]


@settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(first=st.integers(0, 2**40))
def test_both_say_the_same_of_random_histories(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, first: int
) -> None:
    # One Spark job judges hundreds of histories; a failing seed is named in the message and needs no shrinking.
    runs = {f"chaos-{seed}": histories.chaos(seed) for seed in range(first, first + 300)}
    expected = rows_in_memory(runs)
    found, _ = in_spark(spark, runs, tmp_path_factory.mktemp("chaos"))
    assert found == expected, f"seeds from {first}\n{difference(expected, found)}"
    assert {row[1] for row in found} == {name for rule in RULES for name in rule.checkers}, (
        "a checker was never reached"
    )
