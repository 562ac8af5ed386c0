"""What the page of a run shows beyond the plain record: gauges, evidence tables, figures, worlds side by side."""

from __future__ import annotations

import math

import msgspec

from assay.reference_broker.trace.results import Check, Finding, RunKind, RunResult
from assay.reports.bench import bench_cases
from assay.reports.collect import Run, slugify
from assay.reports.humanise import duration_us, metric, words

MAX_EVIDENCE_ROWS = 60
MAX_EVIDENCE_COLUMNS = 12
_GAUGE_SCALE = 2.0
"""A gauge ends at this many times the bound."""
_CHECKERS = (
    "lost",
    "phantom",
    "duplicate",
    "redelivery_without_cause",
    "concurrent_delivery",
    "resurrection",
    "order",
    "dlq_loss",
    "dlq_without_cause",
    "delivery_count",
)
"""Metrics that count what a checker of histories found."""
_QUANTILES = ("p50", "p90", "p99", "p999", "max")
_EVIDENCE_FIRST = ("index", "time_ns", "process", "f", "type", "queue", "value")


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """A figure drawn against its bound, both as shares of the gauge's length from 0 to 1."""

    value: float
    bound: float
    overflow: bool
    """The figure lies beyond the end of the gauge."""


def check_gauge(check: Check) -> Gauge | None:
    """The picture of a check; ``None`` where a length would say nothing (no figure, no bound, or a bound of 0)."""
    if check.value is None or check.bound is None or check.bound <= 0 or check.relation in {"", "=="}:
        return None
    if not math.isfinite(check.value) or check.value < 0:
        return None
    share = check.value / check.bound / _GAUGE_SCALE
    return Gauge(value=min(share, 1.0), bound=1 / _GAUGE_SCALE, overflow=share > 1)


class EvidenceTable(msgspec.Struct, frozen=True, kw_only=True):
    head: list[str]
    rows: list[list[str]]
    left_out: int
    """Rows beyond ``MAX_EVIDENCE_ROWS``."""


def evidence_table(finding: Finding) -> EvidenceTable:
    """The events of a finding as a table: well-known columns first, times in milliseconds."""
    shown = finding.evidence[:MAX_EVIDENCE_ROWS]
    keys = dict.fromkeys(key for event in shown for key in event)
    ordered = [key for key in _EVIDENCE_FIRST if key in keys] + [key for key in keys if key not in _EVIDENCE_FIRST]
    head = ordered[:MAX_EVIDENCE_COLUMNS]
    return EvidenceTable(
        head=["time" if key == "time_ns" else key for key in head],
        rows=[[_evidence_cell(key, event.get(key, "")) for key in head] for event in shown],
        left_out=len(finding.evidence) - len(shown),
    )


def scenario_pairs(runs: list[Run]) -> dict[str, list[Run]]:
    """Scenarios that ran both in simulation and on real processes, with their runs, simulation first."""
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        if run.result.kind in {RunKind.SIM, RunKind.FAULTS} and run.result.name:
            by_name.setdefault(run.result.name, []).append(run)
    pairs: dict[str, list[Run]] = {}
    slugs: set[str] = set()
    for name, group in by_name.items():
        if {run.result.kind for run in group} == {RunKind.SIM, RunKind.FAULTS} and slugify(name) not in slugs:
            slugs.add(slugify(name))
            pairs[name] = group
    return pairs


def checker_counts(result: RunResult) -> list[tuple[str, int]]:
    """What the checkers looked for and how often they found it; empty where the run does not say."""
    counts = [(key, result.metrics[key]) for key in _CHECKERS if key in result.metrics]
    return [(words(key), count) for key, count in counts if isinstance(count, int)]


def plain_metrics(result: RunResult) -> dict[str, float | int | str]:
    """The metrics that no other part of the page shows."""
    cases = bench_cases(result)
    brokers = {row.broker for case in cases for row in case.rows}
    return {
        key: value
        for key, value in _told_once(result).items()
        if key not in _CHECKERS and not any(key.startswith(f"{broker}.") for broker in brokers)
    }


def _told_once(result: RunResult) -> dict[str, float | int | str]:
    """Metrics without those that repeat a percentile of the latency table."""
    repeated = {
        f"{row.name}_{quantile}_{unit}"
        for row in result.percentiles
        for quantile in _QUANTILES
        for unit in ("us", "ms")
    }
    return {key: value for key, value in result.metrics.items() if key not in repeated}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of several runs, one column each."""

    rows: list[tuple[str, list[str]]]


def compare_runs(runs: list[Run]) -> Comparison:
    """Every figure that at least one of the runs has, so that worlds can be read against each other."""
    rows: list[tuple[str, list[str]]] = [
        ("seed", ["" if run.result.seed is None else str(run.result.seed) for run in runs]),
        ("took", [duration_us(run.result.duration_s * 1e6) if run.result.duration_s else "" for run in runs]),
        ("findings", [str(len(run.result.findings)) for run in runs]),
    ]
    operations = dict.fromkeys(row.name for run in runs for row in run.result.percentiles)
    for name in operations:
        for label, quantile in (("p50", "p50_us"), ("p99", "p99_us"), ("max", "max_us")):
            rows.append((f"{words(name)} {label}", [_percentile(run.result, name, quantile) for run in runs]))
    for key in dict.fromkeys(key for run in runs for key in _told_once(run.result)):
        values = [run.result.metrics.get(key) for run in runs]
        texts = ["" if value is None else metric(key, value)[1] for value in values]
        rows.append((metric(key, next(value for value in values if value is not None))[0], texts))
    return Comparison(rows=rows)


def _percentile(result: RunResult, name: str, quantile: str) -> str:
    found = next((row for row in result.percentiles if row.name == name and row.count), None)
    return "" if found is None else duration_us(float(getattr(found, quantile)))


def _evidence_cell(key: str, value: str | float | bool) -> str:
    if key == "time_ns" and isinstance(value, int | float):
        return f"{value / 1e6:,.3f} ms"
    return "yes" if value is True else "no" if value is False else str(value)
