"""A load run on the terminal: checks and latencies."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.reference_broker.trace.results import Check, RunResult, Verdict
from assay.reference_broker.trace.terminal import WholeTable

COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.UNKNOWN: "yellow", Verdict.ERROR: "red"}


def _number(value: float | None) -> str:
    """At most three decimals, yet what is not zero is never shown as zero."""
    if value is None:
        return "-"
    return f"{value:.2g}" if 0 < abs(value) < 0.0005 else f"{value:,.3f}".rstrip("0").rstrip(".")


def _measured(check: Check) -> str:
    return "not measured" if check.value is None else f"{_number(check.value)} {check.unit}"


def _checks(checks: list[Check]) -> Table:
    table = WholeTable(title="Checks", title_justify="left")
    table.add_column("verdict")
    table.add_column("check")
    table.add_column("measured", justify="right")
    table.add_column("bound", justify="right")
    table.add_column("not judged because")
    for check in checks:
        colour = COLOURS[check.verdict]
        bound = "" if check.bound is None else f"{check.relation} {_number(check.bound)} {check.unit}"
        table.add_row(f"[{colour}]{check.verdict}[/]", check.name, _measured(check), bound, escape(check.reason))
    return table


def _latencies(result: RunResult) -> Table:
    table = WholeTable(title="Latency in the steady phase, from the intended time, in ms", title_justify="left")
    table.add_column("operation")
    for name in ("answered", "missing", "p50", "p90", "p99", "p99.9", "max"):
        table.add_column(name, justify="right")
    for row in result.percentiles:
        values = (row.p50_us, row.p90_us, row.p99_us, row.p999_us, row.max_us)
        table.add_row(row.name, f"{row.count:,}", f"{row.missing:,}", *(f"{value / 1_000:,.3f}" for value in values))
    return table


def show(console: Console, result: RunResult) -> None:
    """Print a finished run. Passed counts of nothing (no loss and the like) are left out: they are in the file."""
    console.print(_latencies(result))
    console.print(_checks([check for check in result.checks if check.verdict is not Verdict.PASS or check.value]))
    for finding in result.findings:
        shown = ", ".join(finding.values[:5])
        console.print(
            f"[bold]{finding.severity}[/] {finding.checker}: {escape(finding.message)} ({escape(shown)})",
            highlight=False,
        )
    colour = COLOURS[result.verdict]
    console.print(f"[{colour}]{result.verdict}[/] {escape(result.summary)}", highlight=False)
