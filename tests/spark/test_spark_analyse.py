"""A whole run folder, from files to verdict, tables, command line and executed notebook."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import spark_histories as histories
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from assay.reference_broker.trace.files import TraceWriter
from assay.reference_broker.trace.results import (
    Check,
    Finding,
    RunKind,
    RunResult,
    Severity,
    Verdict,
    read_result,
    write_result,
)
from assay.reference_broker.trace.schema import LatencySample, OpKind, OpType, TraceEvent, TraceHeader, TraceKind
from assay.spark_analysis import analyse as analysis_module
from assay.spark_analysis.analyse import GENERATOR_CEILING, Outcome, analyse, null_figures, verdict_of
from assay.spark_analysis.charts import open_analysis
from assay.spark_analysis.cli import app
from assay.spark_analysis.delivery import RunCounts
from assay.spark_analysis.exit_status import ExitStatus
from assay.spark_analysis.notebook import NotebookError, execute_notebook, notebook_text, with_parameters
from assay.spark_analysis.sources import SourceFiles, SourceReport
from assay.spark_analysis.targets import Measured, OperationFigures, Selection

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MS = 1_000_000
SAMPLES = 2_000


def write_samples(path: Path, *, deliver_ms: int, queue: str = "q") -> None:
    """Two operations of a load run that offers 1000/s: publishes take 2 ms, deliveries ``deliver_ms``."""
    rows = []
    for n in range(SAMPLES):
        for operation, latency_ns in (("publish_to_ack", 2 * MS), ("publish_to_deliver", deliver_ms * MS)):
            life = (n * MS, n * MS, n * MS + latency_ns)
            rows.append(("load", "steady", operation, 1, "c", n, *life, "ok", "tasks", queue, "mqtt5", n * MS))
    names = list(LatencySample.__struct_fields__)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), path)


def faulty_story() -> histories.Story:
    """A crash of half a second in which nothing is confirmed, and one message that is lost."""
    story = histories.Story()
    story.subscribe("c1")
    for seq in range(30):
        story.consume(story.publish("p", seq))
    begun = story.event(OpKind.FAULT, OpType.INVOKE, "nemesis", detail="crash broker")
    story.now_ns += 500 * MS
    story.event(OpKind.FAULT, OpType.OK, "nemesis", op=begun.index, detail="crash broker")
    story.now_ns += 250 * MS
    story.publish("p", 30)
    for seq in range(31, 60):
        story.consume(story.publish("p", seq))
    story.drain()
    return story


def write_trace(path: Path) -> None:
    with TraceWriter(path, TraceHeader(run_id="t", node="broker")) as writer:
        kinds = [
            (TraceKind.PUBLISHED, "", 0),
            (TraceKind.ENQUEUED, "", 1 * MS),
            (TraceKind.CONFIRMED, "", 3 * MS),
            (TraceKind.DELIVERED, "workers", 6 * MS),
            (TraceKind.ACKED, "workers", 10 * MS),
        ]
        for seq, (kind, group, time_ns) in enumerate(kinds):
            event = TraceEvent(seq=seq, time_ns=time_ns, node="broker", kind=kind, message_id="m", group=group)
            writer.write(event)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_samples(folder / "load" / "samples.parquet", deliver_ms=20)
    load = RunResult(
        kind=RunKind.LOAD, name="smoke", verdict=Verdict.PASS, summary="", metrics={GENERATOR_CEILING: 50_000.0}
    )
    write_result(folder / "load", load)
    histories.write(folder / "faults" / "history.jsonl.zst", faulty_story().events)
    histories.write(folder / "sim" / "history.jsonl", histories.clean().events)
    write_trace(folder / "sim" / "trace.jsonl")
    return folder


@pytest.fixture(scope="module")
def result(spark: SparkSession, folder: Path) -> RunResult:
    del spark  # analyse borrows the open session
    return analyse(folder)


def test_what_a_null_broker_needed_is_read_where_the_load_run_says_it(tmp_path: Path) -> None:
    figures = "null broker, tasks: publish to ack, p99_us"
    write_result(
        tmp_path, RunResult(kind=RunKind.LOAD, name="n", verdict=Verdict.PASS, summary="", metrics={figures: 700.0})
    )
    one = OperationFigures(
        operation="publish_to_ack",
        run_id="load",
        workload="tasks",
        count=1,
        p99_us=1.0,
        offered_per_s=None,
        completed_per_s=None,
    )
    other = msgspec.structs.replace(one, operation="publish_to_deliver")
    seen = Measured(figures={Selection(): [one, other]})
    sources = SourceFiles(folder=tmp_path, results={"load": tmp_path / "result.json"})
    assert null_figures(sources, seen) == {("load", "tasks", "publish_to_ack"): 700.0}


def test_the_result_is_written_and_fails_for_what_was_planted(result: RunResult, folder: Path) -> None:
    assert read_result(folder / "spark" / "result.json") == result
    assert result.kind is RunKind.SPARK
    assert result.verdict is Verdict.FAIL
    assert [(finding.anomaly, finding.values) for finding in result.findings] == [("A1", ["p-30"])]
    assert "[faults]" in result.findings[0].message
    assert {event["f"] for event in result.findings[0].evidence} >= {"publish", "fault", "drain"}
    assert result.metrics["histories"] == 2
    assert result.metrics["samples"] == 2 * SAMPLES


def test_checks_tell_met_missed_and_not_measured(result: RunResult) -> None:
    verdicts = {check.name: check.verdict for check in result.checks}
    assert verdicts["Publish p99 (GoQueue)"] is Verdict.PASS
    assert verdicts["Consume p99 (GoQueue)"] is Verdict.FAIL
    assert verdicts["Queue latency p99 (FluxMQ)"] is Verdict.FAIL
    assert verdicts["Message loss (GoQueue)"] is Verdict.FAIL
    assert verdicts["Write throughput, one node (GoQueue)"] is Verdict.UNKNOWN
    assert verdicts["Leader failover (GoQueue)"] is Verdict.UNKNOWN
    assert verdicts["Damaged sources"] is Verdict.PASS
    values = {check.name: check.value for check in result.checks}
    assert values["Publish p99 (GoQueue)"] == pytest.approx(2.0)
    assert values["Message loss (GoQueue)"] == 1.0
    assert values["Enqueue throughput, one queue (FluxMQ)"] == pytest.approx(1_000, rel=0.01)


def test_bands_series_and_percentiles_are_there(result: RunResult, folder: Path) -> None:
    assert result.bands == [], "the charts are of several runs, and not all of them had the fault"
    analysis = open_analysis(folder)
    (band,) = analysis.bands("latency p99 [faults]")
    assert band.label == "crash broker"
    assert band.to_s - band.from_s == pytest.approx(0.501, abs=0.002)
    assert analysis.bands("latency p99 [sim]") == []
    by_name = {row.name: row for row in result.percentiles}
    assert by_name["tasks: publish_to_ack qos1 [load]"].count == SAMPLES
    assert by_name["tasks: publish_to_deliver qos1 [load]"].p99_us == 20_000.0
    assert by_name["orders: publish_to_ack history [faults]"].count == 60
    groups = {line.group for line in result.series}
    assert {"latency p99 [load]", "throughput [load]", "latency p50 [faults]", "backlog [faults]"} <= groups
    backlog = next(line for line in result.series if line.group == "backlog [faults]")
    assert backlog.y[-1] == 1.0, "the lost message is waited for to the end"


def test_tables_are_parquet_and_tell_the_cost_of_the_fault(result: RunResult, folder: Path) -> None:
    analysis = open_analysis(folder)
    recovery = analysis.table("recovery")
    assert recovery is not None
    assert recovery["silence_s"].tolist() == [pytest.approx(0.757, abs=0.01)]
    assert recovery["recovered_after_s"].tolist() == [pytest.approx(0.252, abs=0.01)]
    fault_latency = analysis.table("fault_latency")
    assert fault_latency is not None
    assert set(fault_latency["place"]) == {"outside"}, "nothing was under way when the broker crashed"
    hops = analysis.table("hops")
    assert hops is not None
    assert dict(zip(hops["operation"], hops["p50_us"], strict=True)) == {
        "published to enqueued": 1_000.0,
        "enqueued to confirmed": 2_000.0,
        "enqueued to delivered": 5_000.0,
        "delivered to acked": 4_000.0,
    }
    for place in result.artefacts.values():
        assert (folder / "spark" / place).exists()


def test_the_notebook_executes_and_explains(result: RunResult, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    executed = execute_notebook(run)
    page = executed.html.read_text(encoding="utf-8")
    assert result.summary.split(";")[0] in page
    assert "plotly" in page
    assert 'src="http' not in page, "the page must open without a network"
    notebook = nbformat.read(executed.ipynb, as_version=4)
    assert "consistent" in json.dumps(notebook.cells[-1].outputs)
    listed = read_result(executed.html.parent / "result.json").artefacts
    assert (executed.html.parent / listed["notebook"]) == executed.html
    assert set(result.artefacts) < set(listed), "what the analysis left is still listed"


def test_the_notebook_fails_when_verdict_and_findings_disagree(result: RunResult, tmp_path: Path) -> None:
    write_result(tmp_path / "spark", msgspec.structs.replace(result, verdict=Verdict.PASS, artefacts={}))
    with pytest.raises(NotebookError, match="cannot pass"):
        execute_notebook(tmp_path)


def test_a_notebook_needs_an_analysis_and_a_parameter_cell(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="assay spark analyse"):
        execute_notebook(tmp_path)
    with pytest.raises(FileNotFoundError, match="assay spark analyse"):
        open_analysis(tmp_path)
    with pytest.raises(ValueError, match="no cell tagged"):
        with_parameters("# %%\nprint(1)\n", {"run_folder": "x"})
    assert "parameters" in notebook_text()


def history_outcome(*, lost: bool = False, damaged: bool = False, drained: bool = True) -> Outcome:
    sizes = RunCounts(**dict.fromkeys(RunCounts.__struct_fields__, 1) | {"run_id": "r"})
    finding = Finding(checker="lost", anomaly="A1", severity=Severity.SAFETY, message="1 x lost")
    report = SourceReport(path="r/history.jsonl", run_id="r", kind="history", rows=9, unreadable=int(damaged))
    return Outcome(
        reports=[report],
        counts={"r": sizes},
        findings={"r": [finding]} if lost else {},
        reasons={} if drained else {"r": ["queue 'orders' was not drained by group 'workers'"]},
    )


def check(verdict: Verdict) -> Check:
    return Check(name="figure", value=1.0, unit="ms", verdict=verdict)


@pytest.mark.parametrize(
    ("outcome", "checks", "verdict"),
    [
        (Outcome(), [], Verdict.UNKNOWN),
        (Outcome(), [Verdict.UNKNOWN], Verdict.UNKNOWN),
        (Outcome(), [Verdict.PASS, Verdict.UNKNOWN], Verdict.PASS),
        (Outcome(), [Verdict.PASS, Verdict.FAIL], Verdict.FAIL),
        (history_outcome(), [], Verdict.PASS),
        (history_outcome(lost=True), [Verdict.PASS], Verdict.FAIL),
        (history_outcome(drained=False), [Verdict.PASS], Verdict.UNKNOWN),
        (history_outcome(drained=False, lost=True), [], Verdict.FAIL),
        (history_outcome(damaged=True), [Verdict.PASS], Verdict.UNKNOWN),
        # What a damaged history seems to lack may be what could not be read.
        (history_outcome(damaged=True, lost=True), [Verdict.PASS], Verdict.UNKNOWN),
    ],
)
def test_the_verdict_is_the_gravest_of_what_was_judged(
    outcome: Outcome, checks: list[Verdict], verdict: Verdict
) -> None:
    assert verdict_of(outcome, [check(one) for one in checks]) is verdict


def test_nothing_to_analyse_is_unknown_and_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis_module, "open_session", lambda config: pytest.fail("Spark was started for nothing"))
    result = analyse(tmp_path, out=tmp_path / "elsewhere")
    assert result.verdict is Verdict.UNKNOWN
    assert result.summary.startswith("Nothing to analyse")
    assert (tmp_path / "elsewhere" / "result.json").exists()


def test_command_line(spark: SparkSession, tmp_path: Path) -> None:
    del spark
    runner = CliRunner()
    clean = tmp_path / "clean"
    write_samples(clean / "samples.parquet", deliver_ms=3)
    answer = runner.invoke(app, ["analyse", str(clean)])
    assert answer.exit_code == ExitStatus.PASS, answer.output
    assert "PASS" in answer.output
    assert runner.invoke(app, ["analyse", str(tmp_path / "nowhere")]).exit_code == ExitStatus.USAGE
    wrong = tmp_path / "targets.yaml"
    wrong.write_text("schema: assay.targets/1\ntargets: 3\n")
    answer = runner.invoke(app, ["analyse", str(clean), "--targets", str(wrong)])
    assert answer.exit_code == ExitStatus.USAGE
    assert "targets" in answer.output
    listed = runner.invoke(app, ["checks"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    for expected in ("A1", "D8", "Message loss (GoQueue)", "the load saturates the broker"):
        assert expected in listed.output
