"""What is damaged is counted and named, never dropped in silence; what is fine is read whole."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import spark_histories as histories
from pyspark.sql import SparkSession

from assay.reference_broker.config import TracingConfig
from assay.reference_broker.server.span_export import start_exports
from assay.reference_broker.trace.files import TraceWriter, read_history
from assay.reference_broker.trace.schema import HistoryEvent, HistoryHeader, TraceEvent, TraceHeader, TraceKind
from assay.reference_broker.trace.tracing import Tracing
from assay.spark_analysis.hops import hop_table
from assay.spark_analysis.sources import Loaded, find_sources, load_histories, load_samples, load_traces

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

STORY = histories.clean(40)
BAD_LINES = [
    b'{"index": 3, "time_ns": 1, "proc',
    b"not json at all",
    b'{"index":"four","time_ns":1,"process":"p","f":"publish","type":"ok"}',
    b'{"time_ns":1,"process":"p","f":"publish","type":"ok"}',
    b'{"index":900,"time_ns":1,"process":"p","f":"teleport","type":"ok"}',
    b"\xff\xfe\x00",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with whole and damaged files; its own name has characters that Hadoop reads as a pattern."""
    folder = tmp_path_factory.mktemp("runs") / "run [1] {a,b}*? ä+%20"
    events = STORY.events
    histories.write(folder / "plain" / "history.jsonl", events)
    histories.write(folder / "compressed" / "history.jsonl.zst", events)
    histories.write(folder / "empty" / "history.jsonl", [])
    cut = histories.write(folder / "cut" / "history.jsonl.zst", histories.clean(4_000).events)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    bad = histories.write(folder / "bad" / "history.jsonl", events)
    lines = bad.read_bytes().splitlines(keepends=True)
    bad.write_bytes(b"".join([*lines[:5], *(line + b"\n" for line in BAD_LINES), b"\n", *lines[5:]]))
    missing = histories.write(folder / "missing" / "history.jsonl", events)
    lines = missing.read_bytes().splitlines(keepends=True)
    # Two invocations go, one event comes twice.
    kept = [line for line in lines if b'"index":1,' not in line and b'"index":6,' not in line]
    missing.write_bytes(b"".join([*kept, lines[1]]))
    doubled = histories.write(folder / "doubled" / "history.jsonl", events[:10])
    other = histories.write(folder / "scratch" / "other.jsonl", [])
    doubled.write_bytes(doubled.read_bytes() + other.read_bytes())
    headless = folder / "headless" / "history.jsonl"
    headless.parent.mkdir()
    headless.write_bytes(b"".join(lines[1:]))
    (folder / "spark").mkdir()
    histories.write(folder / "spark" / "history.jsonl", events)
    return folder


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded[HistoryHeader]:
    return load_histories(spark, find_sources(folder).histories, tmp_path_factory.mktemp("scratch"))


def test_files_are_found_by_folder_and_the_analysis_is_not_its_own_source(folder: Path) -> None:
    found = find_sources(folder).histories
    assert set(found) == {"plain", "compressed", "empty", "cut", "bad", "missing", "doubled", "headless"}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        find_sources(tmp_path / "nowhere")


def test_whole_files_are_read_as_the_reader_of_trace_reads_them(loaded: Loaded[HistoryHeader], folder: Path) -> None:
    reports = {report.run_id: report for report in loaded.reports}
    for run_id in ("plain", "compressed"):
        header, events = read_history(find_sources(folder).histories[run_id])
        assert loaded.headers[run_id] == header
        rows = loaded.frame.where(f"run_id = '{run_id}'").orderBy("index").drop("run_id").collect()
        assert [msgspec.convert(row.asDict(), HistoryEvent) for row in rows] == list(events)
        assert reports[run_id].whole
        assert reports[run_id].rows == len(STORY.events)
    assert reports["empty"].whole
    assert reports["empty"].rows == 0


def test_damage_is_counted(loaded: Loaded[HistoryHeader]) -> None:
    reports = {report.run_id: report for report in loaded.reports}
    bad = reports["bad"]
    assert (bad.unreadable, bad.rows) == (len(BAD_LINES), len(STORY.events))
    assert len(bad.examples) == 5
    assert "not json at all" in bad.examples
    assert "6 unreadable rows" in bad.describe()
    cut = reports["cut"]
    assert cut.truncated
    assert 0 < cut.rows < len(histories.clean(4_000).events)
    assert "cut short" in cut.describe()
    missing = reports["missing"]
    assert (missing.missing, missing.repeated) == (2, 1)
    assert reports["doubled"].headers == 2
    assert reports["headless"].headers == 0
    assert not any(reports[run_id].whole for run_id in ("bad", "cut", "missing", "doubled", "headless"))


def test_a_gap_in_a_trace_is_counted_per_node(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.zst"
    with TraceWriter(path, TraceHeader(run_id="r", node="a")) as writer:
        for node, numbers in (("a", (0, 1, 2)), ("b", (0, 1, 4, 4))):
            for seq in numbers:
                writer.write(TraceEvent(seq=seq, time_ns=seq, node=node, kind=TraceKind.ENQUEUED))
    report = load_traces(spark, {"r": path}, tmp_path).reports[0]
    assert (report.rows, report.missing, report.repeated, report.whole) == (7, 2, 1, False)


def test_the_spans_that_a_broker_exports_are_a_trace(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.zst"
    tracing = Tracing("a", random.Random(1), ratio=1.0, max_traces=9, max_spans=9, max_messages=9)
    (export,) = start_exports(TracingConfig(enabled=True, path=str(path)), tracing, "a")
    traced, place = tracing.begin(None, "q", "$queue/q", "ann", 1_000.0), {}
    tracing.written(traced, TraceKind.ENQUEUED, place, 0, 5, 1_001.0)
    tracing.confirmed(traced, 1_003.0, None)
    tracing.delivering(traced, "g", "bob", 1, 1_006.0)
    tracing.happened(TraceKind.DELIVERED, traced, 1_006.0, "g", "bob", 1, "")
    tracing.happened(TraceKind.ACKED, traced, 1_010.0, "g", "bob", 1, "")
    export.close()
    loaded = load_traces(spark, {"r": path}, tmp_path)
    assert loaded.reports[0].whole
    rows = {row["kind"]: row for row in loaded.frame.collect()}
    assert {row["trace_id"] for row in rows.values()} == {f"{traced.trace.trace_id:032x}"}
    assert rows["acked"]["parent_id"] == rows["delivered"]["span_id"]
    assert rows["acked"]["duration_ns"] == 4_000_000_000
    hops = {row["operation"]: row["p50_us"] for row in hop_table(spark, loaded.frame, exact=True).collect()}
    assert hops == {"enqueued to confirmed": 2e6, "enqueued to delivered": 5e6, "delivered to acked": 4e6}


def test_samples_with_strange_files_and_rows(spark: SparkSession, tmp_path: Path) -> None:
    columns = {
        "run_id": ["x", "x", "x"],
        "phase": ["steady"] * 3,
        "operation": pa.array(["publish_to_ack", "publish_to_mars", "publish_to_ack"]).dictionary_encode(),
        "qos": pa.array([1, 1, 1], pa.int32()),
        "client": ["c"] * 3,
        "seq": [0, 1, 2],
        "intended_ns": [0, 0, None],
        "sent_ns": [0, 0, 0],
        "completed_ns": [5, 5, 5],
    }
    pq.write_table(pa.table(columns), tmp_path / "good.parquet")
    pq.write_table(pa.table({"run_id": ["x"]}), tmp_path / "narrow.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:100])
    files = {name: tmp_path / f"{name}.parquet" for name in ("good", "narrow", "cut")}
    frame, reports = load_samples(spark, files)
    assert [(row["run_id"], row["status"], row["qos"]) for row in frame.collect()] == [("good", "ok", 1)]
    by_run = {report.run_id: report for report in reports}
    assert (by_run["good"].rows, by_run["good"].unreadable) == (1, 2)
    assert "lacks the columns phase, operation" in by_run["narrow"].error
    assert "not readable Parquet" in by_run["cut"].error
