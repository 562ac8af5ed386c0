"""Tables of a result for people: what the notebook shows."""

from __future__ import annotations

import pandas as pd

from assay.reference_broker.trace.results import RunResult


def show_in_full() -> None:
    """Let pandas print whole sentences and three decimals, in this process."""
    pd.options.display.max_colwidth = None
    pd.options.display.precision = 3


def checks(result: RunResult) -> pd.DataFrame:
    """Figures against their bounds, with the reason where a figure was not judged."""
    rows = [
        {
            "figure": check.name,
            "value": check.value,
            "unit": check.unit,
            "bound": "" if check.bound is None else f"{check.relation} {check.bound:g}",
            "verdict": str(check.verdict),
            "of": check.subject,
            "not judged because": check.reason,
            "source": check.source,
        }
        for check in result.checks
    ]
    return pd.DataFrame(
        rows, columns=["figure", "value", "unit", "bound", "verdict", "of", "not judged because", "source"]
    )


def percentiles(result: RunResult) -> pd.DataFrame:
    """Latency percentiles in milliseconds."""
    rows = [
        {
            "operation": row.name,
            "count": row.count,
            "missing": row.missing,
            "p50 ms": row.p50_us / 1000,
            "p90 ms": row.p90_us / 1000,
            "p99 ms": row.p99_us / 1000,
            "p99.9 ms": row.p999_us / 1000,
            "max ms": row.max_us / 1000,
        }
        for row in result.percentiles
    ]
    return pd.DataFrame(
        rows, columns=["operation", "count", "missing", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms"]
    )


def findings(result: RunResult) -> pd.DataFrame:
    """Broken rules, gravest first, with the first of the messages concerned."""
    rows = [
        {
            "severity": str(finding.severity),
            "anomaly": finding.anomaly,
            "what": finding.message,
            "messages": ", ".join(finding.values[:10]),
        }
        for finding in result.findings
    ]
    return pd.DataFrame(rows, columns=["severity", "anomaly", "what", "messages"])
