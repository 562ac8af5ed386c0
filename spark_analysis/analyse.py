"""From the folder of a run to its Spark verdict: ``spark/result.json`` and the tables behind it.

``analyse`` reads every history, trace and sample file below the folder in one session. The judgement is a fold over
what was found: a safety finding or a missed target fails; damage, an unfinished drain, or nothing to judge is
``unknown``; only what was measured and met is ``pass``.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from assay.reference_broker.trace.integrity import READ_ERRORS
from assay.reference_broker.trace.results import (
    Band,
    Check,
    Finding,
    Machine,
    Percentiles,
    RunKind,
    RunResult,
    Series,
    Severity,
    Verdict,
    read_result,
    worst,
    write_result,
)
from assay.spark_analysis import delivery, hops, latency
from assay.spark_analysis.checkers import anomalies, findings_by_run
from assay.spark_analysis.session import SHORT_JOB, SessionConfig, open_session, together
from assay.spark_analysis.sources import (
    SPARK_FOLDER,
    SourceFiles,
    SourceReport,
    damaged_results,
    find_sources,
    load_histories,
    load_samples,
    load_traces,
)
from assay.spark_analysis.tables import Tables
from assay.spark_analysis.targets import (
    Measured,
    OperationFigures,
    Selection,
    Targets,
    judge_all,
    load_targets,
    selections,
)

TABLES_FOLDER: Final = "tables"
SHORT_JOB_MAX_BYTES: Final = 20_000_000
"""Above this much input the session is tuned for throughput instead of a quick start."""
CHARTED_RUNS_MAX: Final = 8
"""Runs whose lines a result carries; the tables hold all."""
RESULT_FINDINGS_MAX: Final = 200
DAMAGED_NAMED_MAX: Final = 50
"""Damaged files that a result names; it counts the others."""
GENERATOR_CEILING: Final = "generator.ceiling_messages_per_s"
"""Metric of a load run's result: messages per second against a broker that does nothing."""

Progress = Callable[[str], None]


def _silent(step: str) -> None:
    del step


class Outcome(msgspec.Struct, kw_only=True):
    """What the parts of the analysis add up to, before it is a result."""

    reports: list[SourceReport] = []
    findings: dict[str, list[Finding]] = {}
    reasons: dict[str, list[str]] = {}
    counts: dict[str, delivery.RunCounts] = {}
    bands: dict[str, list[Band]] = {}
    percentiles: list[Percentiles] = []
    series: list[Series] = []
    measured: Measured = Measured()
    samples: int = 0
    lost: int | None = None
    metrics: dict[str, float | int | str] = {}
    artefacts: dict[str, str] = {}


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """The session and the folders of one analysis."""

    spark: SparkSession
    scratch: Path
    out: Path
    progress: Progress
    name_runs: bool
    """Whether lines and rows must say which run they are of."""

    def publish(self, outcome: Outcome, name: str, table: DataFrame) -> DataFrame:
        """Write a table of the result as Parquet; returns it as read back, so that nothing is computed twice."""
        folder = self.out / TABLES_FOLDER / f"{name}.parquet"
        table.coalesce(1).write.mode("overwrite").parquet(str(folder))
        outcome.artefacts[name] = folder.relative_to(self.out).as_posix()
        return self.spark.read.schema(table.schema).parquet(str(folder))


def analyse(
    run_folder: Path,
    *,
    out: Path | None = None,
    targets: Targets | None = None,
    command: str = "",
    progress: Progress = _silent,
) -> RunResult:
    """Analyse everything below ``run_folder``; writes ``result.json`` and tables to ``out`` (``RUN_FOLDER/spark``).

    Raises :class:`FileNotFoundError` for a folder that is not there, :class:`SparkUnavailableError` without Java, and
    :class:`~assay.spark_analysis.targets.TargetsError`. Damaged input raises nothing: it is counted, and the verdict
    says so.
    """
    began, started_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    wanted = targets or load_targets()
    sources = find_sources(run_folder)
    folder = out or run_folder / SPARK_FOLDER
    outcome = Outcome(reports=damaged_results(sources))
    if not sources.empty:
        progress("starting Spark")
        config = SHORT_JOB if _input_bytes(sources) <= SHORT_JOB_MAX_BYTES else SessionConfig()
        with open_session(config) as spark, tempfile.TemporaryDirectory(prefix="assay-spark-") as scratch:
            work = _Work(spark=spark, scratch=Path(scratch), out=folder, progress=progress, name_runs=sources.several)
            if sources.histories:
                _analyse_histories(work, sources, outcome)
            if sources.traces:
                _analyse_traces(work, sources, outcome)
            if sources.samples:
                _analyse_samples(work, sources, outcome, selections(wanted))
    outcome.measured = msgspec.structs.replace(
        outcome.measured,
        generator_ceiling_per_s=_generator_ceiling(sources, outcome.measured),
        null_p99_us=null_figures(sources, outcome.measured),
        messages_lost=outcome.lost,
        histories_drained=bool(outcome.counts) and not outcome.reasons and not _damaged(outcome, "history"),
    )
    checks = judge_all(wanted, outcome.measured)
    result = _result(run_folder, outcome, checks, sources)
    result = msgspec.structs.replace(
        result,
        started_at=started_at,
        duration_s=round(time.monotonic() - began, 3),
        command=command or f"assay spark analyse {run_folder}",
    )
    write_result(folder, result)
    return result


def _input_bytes(sources: SourceFiles) -> int:
    total = 0
    for path in (*sources.histories.values(), *sources.traces.values(), *sources.samples.values()):
        files = path.rglob("*") if path.is_dir() else (path,)
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total


def _analyse_histories(work: _Work, sources: SourceFiles, outcome: Outcome) -> None:
    work.progress(f"reading {len(sources.histories)} histories")
    loaded = load_histories(work.spark, sources.histories, work.scratch)
    outcome.reports += loaded.reports
    if not loaded.headers:
        return
    tables = Tables(work.spark, loaded.frame, loaded.headers, work.scratch)
    loaded.release()
    work.progress("judging deliveries")
    rows = work.publish(outcome, "anomalies", anomalies(tables))
    outcome.findings = findings_by_run(tables, rows)
    outcome.lost = _lost_messages(rows, {report.run_id for report in _damaged(outcome, "history")})
    counts = work.publish(outcome, "counts", tables.query(delivery.COUNTS))
    outcome.counts = delivery.counts_by_run(counts)
    outcome.reasons = delivery.missing_claims(tables, loaded.headers, outcome.counts)
    work.progress("measuring histories")
    samples = tables.stored("history_samples", partial(tables.query, delivery.SAMPLES))
    _measure_history(work, tables, samples, counts, outcome)


def _lost_messages(rows: DataFrame, damaged: set[str]) -> int:
    """Messages that are nowhere: never delivered, vanished unsettled, or lost on the way to the dead-letter queue.

    Damaged histories are left out: what they seem to lack may be what could not be read.
    """
    lost = rows.where(sf.col("anomaly").isin("A1", "F6", "A11") & (sf.col("severity") == "safety"))
    if damaged:
        lost = lost.where(~sf.col("run_id").isin(sorted(damaged)))
    return lost.select("run_id", "value").distinct().count()


def _measure_history(work: _Work, tables: Tables, samples: DataFrame, counts: DataFrame, outcome: Outcome) -> None:
    exact = _is_exact(latency.count_samples(samples).rows)
    table = work.publish(outcome, "history_percentiles", latency.percentile_table(samples, exact=exact))
    outcome.percentiles += latency.as_percentiles(table, name_runs=work.name_runs)
    if tables.fault_spans:
        recovery = work.publish(outcome, "recovery", tables.query(delivery.RECOVERY, counts=counts))
        outcome.bands = delivery.fault_bands(recovery)
        work.publish(outcome, "fault_latency", latency.fault_window_table(samples, recovery, exact=exact))
        for row in recovery.selectExpr("max(silence_s) AS silence_s", "max(recovered_after_s) AS after_s").collect():
            if row["silence_s"] is not None:
                outcome.metrics["longest_silence_in_fault_s"] = round(row["silence_s"], 3)
            if row["after_s"] is not None:
                outcome.metrics["slowest_recovery_s"] = round(row["after_s"], 3)
    width_s = latency.bucket_width_s(latency.span_s(samples))
    seconds = work.publish(outcome, "history_seconds", latency.per_second(samples, width_s=width_s, exact=exact))
    backlog = work.publish(outcome, "backlog", tables.query(delivery.BACKLOG))
    if len(outcome.counts) <= CHARTED_RUNS_MAX:
        outcome.series += latency.as_series(seconds, name_runs=work.name_runs)
        outcome.series += delivery.backlog_series(backlog, name_runs=work.name_runs)


def _analyse_traces(work: _Work, sources: SourceFiles, outcome: Outcome) -> None:
    work.progress(f"reading {len(sources.traces)} broker traces")
    loaded = load_traces(work.spark, sources.traces, work.scratch)
    outcome.reports += loaded.reports
    if loaded.headers:
        rows = sum(report.rows for report in loaded.reports)
        work.publish(outcome, "hops", hops.hop_table(work.spark, loaded.frame, exact=_is_exact(rows)))
        loaded.release()


def _analyse_samples(work: _Work, sources: SourceFiles, outcome: Outcome, wanted: list[Selection]) -> None:
    work.progress(f"reading {len(sources.samples)} sample files")
    samples, reports = load_samples(work.spark, sources.samples)
    outcome.reports += reports
    counted = latency.count_samples(samples)
    outcome.samples = counted.rows
    if not counted.rows:
        return
    outcome.metrics["samples_not_ok"] = counted.failed
    outcome.metrics["samples_completed_before_due"] = counted.backwards
    work.progress(f"measuring {counted.rows} samples")
    exact = _is_exact(counted.rows)
    outcome.metrics["percentile_method"] = "exact" if exact else "log buckets of 1 %"
    table = work.publish(outcome, "percentiles", latency.percentile_table(samples, exact=exact))
    # Warm-up and cool-down are in the table; the result names what may be judged.
    steady = table.where(sf.col("phase").isin(latency.STEADY, latency.CLOSED_LOOP))
    outcome.percentiles = latency.as_percentiles(steady, name_runs=work.name_runs) + outcome.percentiles
    subjects = work.publish(outcome, "figures", latency.figures_table(samples, latency.SUBJECT, exact=exact))
    figures = together([partial(_figures, samples, subjects, selection, exact) for selection in wanted])
    outcome.measured = Measured(figures=dict(zip(wanted, figures, strict=True)))
    width_s = latency.bucket_width_s(latency.span_s(samples))
    seconds = work.publish(outcome, "seconds", latency.per_second(samples, width_s=width_s, exact=exact))
    if len(sources.samples) <= CHARTED_RUNS_MAX:
        outcome.series = latency.as_series(seconds, name_runs=work.name_runs) + outcome.series


def _is_exact(rows: int) -> bool:
    return rows <= latency.EXACT_ROWS_MAX


_GROUPED_BY: Final = {
    "workload": latency.SUBJECT,
    "queue": ["run_id", "queue", "operation"],
    "run": ["run_id", "operation"],
}


def _figures(samples: DataFrame, subjects: DataFrame, selection: Selection, exact: bool) -> list[OperationFigures]:
    """What a target judges; ``subjects`` are the figures by workload, which need not be computed again."""

    def chosen(frame: DataFrame) -> DataFrame:
        if selection.samples != "any" or selection.per == "queue":
            frame = frame.where((sf.col("queue") == "") if selection.samples == "pubsub" else (sf.col("queue") != ""))
        named = (("workload", selection.workloads), ("queue", selection.queues), ("protocol", selection.protocols))
        for column, values in named:
            frame = frame.where(sf.col(column).isin(*values)) if values else frame
        return frame

    by = _GROUPED_BY[selection.per]
    table = chosen(subjects) if by == latency.SUBJECT else latency.figures_table(chosen(samples), by, exact=exact)
    return [msgspec.convert(row.asDict(), OperationFigures) for row in table.collect()]


def _metric_of(sources: SourceFiles, run_id: str, name: str) -> object:
    """What a run says of itself in its ``result.json``; None where it says nothing."""
    path = sources.results.get(run_id)
    try:
        return read_result(path).metrics.get(name) if path is not None else None
    except READ_ERRORS:
        return None


def null_figures(sources: SourceFiles, measured: Measured) -> dict[tuple[str, str, str], float]:
    """What the same load needed with a broker that does nothing, by run, workload and operation."""
    found = {}
    for one in (one for figures in measured.figures.values() for one in figures):
        name = f"null broker, {one.workload}: {one.operation.replace('_', ' ')}, p99_us"
        value = _metric_of(sources, one.run_id, name)
        if isinstance(value, int | float):
            found[one.run_id, one.workload, one.operation] = float(value)
    return found


def _generator_ceiling(sources: SourceFiles, measured: Measured) -> float | None:
    """The least ceiling of the load runs that are judged; ``None`` when one of them measured none."""
    ceilings = []
    for run_id in sorted({one.run_id for figures in measured.figures.values() for one in figures}):
        ceiling = _metric_of(sources, run_id, GENERATOR_CEILING)
        if not isinstance(ceiling, int | float):
            return None
        ceilings.append(float(ceiling))
    return min(ceilings, default=None)


def _damaged(outcome: Outcome, *kinds: str) -> list[SourceReport]:
    return [report for report in outcome.reports if not report.whole and (not kinds or report.kind in kinds)]


def verdict_of(outcome: Outcome, checks: Iterable[Check]) -> Verdict:
    """The gravest of what was judged. A check that was not measured neither helps nor harms."""
    damaged = {report.run_id for report in _damaged(outcome, "history")}
    verdicts: list[Verdict] = []
    verdicts += [check.verdict for check in checks if check.verdict is not Verdict.UNKNOWN]
    for run_id in outcome.counts:
        if run_id in damaged:
            # What a damaged history seems to lack may be what could not be read: nobody is accused by it.
            verdicts.append(Verdict.UNKNOWN)
        elif any(finding.severity is Severity.SAFETY for finding in outcome.findings.get(run_id, [])):
            verdicts.append(Verdict.FAIL)
        else:
            verdicts.append(Verdict.UNKNOWN if outcome.reasons.get(run_id) else Verdict.PASS)
    if _damaged(outcome):
        verdicts.append(Verdict.UNKNOWN)
    return worst(verdicts)


def _result(run_folder: Path, outcome: Outcome, checks: list[Check], sources: SourceFiles) -> RunResult:
    origin = _origin(sources)
    return RunResult(
        kind=RunKind.SPARK,
        name=f"{origin.name if origin is not None else run_folder.resolve().name} (Spark)",
        verdict=verdict_of(outcome, checks),
        summary=_summary(outcome, checks, sources),
        target=origin.target if origin is not None else "",
        world=origin.world if origin is not None else "",
        seed=origin.seed if origin is not None else None,
        findings=_listed_findings(outcome, name_runs=sources.several),
        checks=[*checks, _damage_check(outcome)],
        metrics=_metrics(outcome),
        percentiles=outcome.percentiles,
        series=outcome.series,
        bands=_listed_bands(outcome, sources),
        artefacts=outcome.artefacts,
        machine=Machine(platform=platform.platform(), python=platform.python_version(), cpus=os.cpu_count() or 1),
    )


def _origin(sources: SourceFiles) -> RunResult | None:
    """The result of the run itself, when the folder holds exactly one."""
    if len(sources.results) != 1:
        return None
    try:
        return read_result(next(iter(sources.results.values())))
    except READ_ERRORS:
        return None


def _damage_check(outcome: Outcome) -> Check:
    damaged = _damaged(outcome)
    return Check(
        name="Damaged sources",
        value=float(len(damaged)) if outcome.reports else None,
        unit="files",
        bound=0.0,
        relation="==",
        verdict=Verdict.PASS if outcome.reports and not damaged else Verdict.UNKNOWN,
        source="; ".join(report.describe() for report in damaged[:DAMAGED_NAMED_MAX])
        or ("every record could be read" if outcome.reports else "nothing to read"),
    )


def _listed_findings(outcome: Outcome, *, name_runs: bool) -> list[Finding]:
    listed = [
        msgspec.structs.replace(finding, message=f"{finding.message} [{run_id}]") if name_runs else finding
        for run_id, found in outcome.findings.items()
        for finding in found
    ]
    listed.sort(key=lambda finding: finding.severity is not Severity.SAFETY)
    return listed[:RESULT_FINDINGS_MAX]


def _listed_bands(outcome: Outcome, sources: SourceFiles) -> list[Band]:
    """The faults, where all lines of the result are of one run: a chart must not show the faults of another."""
    return [] if sources.several else [band for bands in outcome.bands.values() for band in bands]


def _metrics(outcome: Outcome) -> dict[str, float | int | str]:
    metrics: dict[str, float | int | str] = {
        "rows": sum(report.rows for report in outcome.reports),
        "unreadable_rows": sum(report.unreadable for report in outcome.reports),
        "samples": outcome.samples,
        "histories": len(outcome.counts),
    }
    for field in ("events", "sends_ok", "sends_fail", "sends_info", "recovered", "deliveries", "redeliveries"):
        metrics[field] = sum(getattr(counts, field) for counts in outcome.counts.values())
    metrics["dead_lettered"] = sum(counts.dead_lettered for counts in outcome.counts.values())
    return metrics | outcome.metrics


def _summary(outcome: Outcome, checks: list[Check], sources: SourceFiles) -> str:
    if sources.empty and not outcome.reports:
        return "Nothing to analyse: the folder holds no history, trace or samples"
    parts = []
    safety = sum(f.severity is Severity.SAFETY for found in outcome.findings.values() for f in found)
    if outcome.counts:
        events = sum(counts.events for counts in outcome.counts.values())
        parts.append(f"{len(outcome.counts)} histories with {events} events: {safety or 'no'} safety findings")
    if outcome.samples:
        parts.append(f"{outcome.samples} latency samples")
    met, missed = (sum(check.verdict is verdict for check in checks) for verdict in (Verdict.PASS, Verdict.FAIL))
    parts.append(f"{met} targets met, {missed} missed, {len(checks) - met - missed} not measured")
    if damaged := _damaged(outcome):
        named = "; ".join(report.describe() for report in damaged[:DAMAGED_NAMED_MAX])
        left = len(damaged) - DAMAGED_NAMED_MAX
        parts.append(f"damaged: {named}" + (f"; and {left} more" if left > 0 else ""))
    if outcome.reasons:
        run_id, reasons = next(iter(outcome.reasons.items()))
        parts.append(f"no full claim on {run_id}: {reasons[0]}")
    return "; ".join(parts)
