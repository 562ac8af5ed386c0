"""The few figures and the one sentence that stand for a run, or for the whole report, on its front page."""

from __future__ import annotations

import re

from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.results import RunKind, Verdict
from assay.reports.bench import BenchCase, bench_cases
from assay.reports.collect import Collection, Run
from assay.reports.humanise import metric, number, plural, quantity, words
from assay.reports.verdicts import CASE_LOOKS, RUN_LOOKS

_MAX_FIGURES = 4
_PREFERRED: dict[RunKind, tuple[str, ...]] = {
    RunKind.SELF_CHECK: ("killed", "mutant", "surviv"),
    RunKind.SIM: ("trace_hash", "ratio", "recovery_max", "gap"),
    RunKind.FAULTS: ("recovery_max", "recovery", "gap", "redeliver"),
    RunKind.LOAD: ("rate", "per_s", "lateness", "headroom"),
    RunKind.SPARK: ("rows", "events", "samples"),
}
"""Parts of metric keys that make good headlines, best first; any other metric may fill the remaining places."""


def headline(collection: Collection) -> str:
    """One sentence on the whole report."""
    runs = collection.deciding
    by_verdict = {verdict: sum(1 for run in runs if run.verdict is verdict) for verdict in RUN_LOOKS}
    compared = len(collection.runs) - len(runs)
    extra = f" {plural(len(collection.problems), 'file')} could not be read." if collection.problems else ""
    extra += f" {plural(compared, 'run')} of other brokers for comparison." if compared else ""
    if collection.verdict is Verdict.PASS:
        return ("The one run passed." if len(runs) == 1 else f"All {len(runs)} runs passed.") + extra
    told = {
        Verdict.FAIL: "failed",
        Verdict.ERROR: "ended in error",
        Verdict.UNKNOWN: "without a claim",
        Verdict.PASS: "passed",
    }
    parts = [f"{by_verdict[verdict]} {text}" for verdict, text in told.items() if by_verdict[verdict]]
    return f"{plural(len(runs), 'run')}: {', '.join(parts)}.{extra}" if parts else extra.strip()


def key_figures(run: Run) -> list[tuple[str, str]]:
    """At most four pairs of label and value, most telling first."""
    result = run.result
    figures: list[tuple[str, str]] = []
    if run.conformance is not None:
        counts = run.conformance.counts
        figures.append(("cases", quantity(sum(counts.values()))))
        figures += [
            (CASE_LOOKS[verdict].label.lower(), quantity(count))
            for verdict, count in counts.items()
            if verdict is not CaseVerdict.UNSUPPORTED
        ]
        return figures[:_MAX_FIGURES]
    cases = bench_cases(result)
    if cases:
        figures += [_bench_figure(case) for case in cases]
        return figures[:_MAX_FIGURES]
    if result.kind in {RunKind.LOAD, RunKind.FAULTS, RunKind.SIM}:
        figures += [
            (f"{words(row.name)} p99", quantity(row.p99_us, "µs")) for row in result.percentiles[:2] if row.count
        ]
    figures += [metric(key, result.metrics[key]) for key in _ranked(result.kind, list(result.metrics))]
    if not figures and result.checks:
        held = sum(1 for check in result.checks if check.verdict is Verdict.PASS)
        figures.append(("checks held", f"{held} of {len(result.checks)}"))
    return [(label, _short(value)) for label, value in figures[:_MAX_FIGURES]]


def _bench_figure(case: BenchCase) -> tuple[str, str]:
    """The ratio to the first other product; the rate itself where there is none."""
    if case.peers and case.peers[0].ratio is not None:
        return f"{words(case.name)} over {case.peers[0].broker}", f"{number(case.peers[0].ratio)}×"
    return f"{words(case.name)}, {case.rows[0].broker}", f"{number(case.rows[0].rate_per_s)} /s"


def _ranked(kind: RunKind, keys: list[str]) -> list[str]:
    wanted = _PREFERRED.get(kind, ())

    def rank(key: str) -> int:
        return next((place for place, part in enumerate(wanted) if part in key), len(wanted))

    return sorted(keys, key=rank)  # stable: equal ranks keep the run's own order


def _short(value: str) -> str:
    """A hash needs only its beginning to be compared by eye."""
    return f"{value[:8]}…" if re.fullmatch(r"[0-9a-f]{20,}", value) else value
