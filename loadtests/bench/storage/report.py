"""A run of the storage bench as a table for people and as a :class:`RunResult`."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from assay.loadtests.bench.storage.filesystem import is_in_memory
from assay.loadtests.bench.storage.measurement import MeasuredRow
from assay.loadtests.bench.storage.run import StorageRun
from assay.loadtests.bench.storage.targets import Target, judge, target_of
from assay.loadtests.machine import this_machine
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Verdict, worst
from assay.reference_broker.trace.terminal import WholeTable

_SECTIONS = {
    "append": "appending in batches, to a real file",
    "single": "appending one record a call, synced by interval",
    "group_commit": "confirmed by fsync",
    "read": "reading, from the page cache",
    "scan": "opening, from the page cache",
    "queued": "queued messages, in a process of their own, measured once",
    "delivery": "why there is no sendfile path",
}
"""First part of a row's key -> heading of the section that it opens."""
_VERDICTS = {
    Verdict.PASS: "[green]met[/]",
    Verdict.FAIL: "[red]missed[/]",
    Verdict.UNKNOWN: "[yellow]unjudged[/]",
    Verdict.ERROR: "[red]error[/]",
}


BUSY_LOAD = 0.5


def _number(value: float) -> str:
    """Three digits, with a k or M where a rate has more."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{_three_digits(value / size)}{letter}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def _bound(target: Target) -> str:
    of = {"": "", "raw": "x raw"}.get(target.of, f"x {target.of}")
    return f"{target.relation} {_number(target.bound)}{of}"


def table(run: StorageRun) -> Table:
    """A line per row: median, extremes, the raw calls on the same bytes, their ratio, the target."""
    verdicts = {check.name.partition(" / ")[0]: check.verdict for check in checks(run)}
    found = WholeTable(
        title=f"Storage on {run.filesystem}, median of {run.plan.rounds} interleaved rounds",
        title_justify="left",
        caption="raw: os.pwrite, os.pread or os.fsync of the same bytes in the same round; ratio: figure / raw",
        caption_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    found.add_column("what", min_width=24)
    for name in ("median", "unit", "range", "raw", "ratio", "target", ""):
        found.add_column(name, justify="left" if name in ("unit", "") else "right", no_wrap=True)
    headings = dict(_SECTIONS)
    for key, row in run.rows.items():
        if (heading := headings.pop(key.partition(".")[0], None)) is not None:
            found.add_section()
            found.add_row(f"[bold]{heading}[/]")
        found.add_row(*_cells(row, verdicts.get(key)))
    return found


def _cells(row: MeasuredRow, verdict: Verdict | None) -> list[str]:
    target = target_of(row.spec.key)
    ratio, raw = row.ratio, row.raw_median
    spread = f"{_number(min(row.values))}-{_number(max(row.values))}" if len(row.values) > 1 else "-"
    return [
        row.spec.title,
        _number(row.median),
        row.spec.unit,
        spread,
        "-" if raw is None else _number(raw),
        "-" if ratio is None else f"{_number(ratio)}x",
        "-" if target is None else _bound(target),
        "" if verdict is None else _VERDICTS[verdict],
    ]


def checks(run: StorageRun) -> list[Check]:
    """Every target that the run can be compared with."""
    return judge(run.rows, filesystem=run.filesystem, is_judged=run.plan.is_judged)


def notes(run: StorageRun) -> list[str]:
    """What a reader must know beside the figures."""
    found = [run.decision]
    if is_in_memory(run.filesystem):
        found.append(
            f"{run.filesystem} is memory: a sync does nothing there, so figures of syncs are not real. "
            "Use --directory with a folder on a disk."
        )
    if run.load_before > BUSY_LOAD:
        found.append(
            f"the machine was busy before the run (load {run.load_before:.1f} on {this_machine().cpus} processors): "
            "rates are lower and high percentiles far higher than on a quiet one"
        )
    if not run.plan.is_judged:
        found.append("a quick run shows that the bench works, not how fast storage is")
    return found


def result(run: StorageRun, *, command: str) -> RunResult:
    """The run in the schema of all verdicts. Metrics are named ``<row>`` (medians), ``.min``, ``.max``, ``.raw``."""
    metrics: dict[str, float | int | str] = {
        "filesystem": run.filesystem,
        "rounds": run.plan.rounds,
        "load_before": round(run.load_before, 2),
        "sendfile": run.decision,
    }
    for key, row in run.rows.items():
        metrics[key] = _rounded(row.median)
        metrics[f"{key}.unit"] = row.spec.unit
        metrics[f"{key}.min"] = _rounded(min(row.values))
        metrics[f"{key}.max"] = _rounded(max(row.values))
        if row.raw_median is not None:
            metrics[f"{key}.raw"] = _rounded(row.raw_median)
    judged = checks(run)
    missed = [check.name for check in judged if check.verdict is Verdict.FAIL]
    met = sum(check.verdict is Verdict.PASS for check in judged)
    return RunResult(
        kind=RunKind.BENCH,
        name="bench storage",
        verdict=worst([check.verdict for check in judged]),
        summary=f"{met} of {len(judged)} targets met" + (f"; missed: {', '.join(missed)}" if missed else ""),
        target="reference",
        world="real",
        started_at=run.started_at,
        duration_s=round(run.duration_s, 3),
        command=command,
        checks=judged,
        metrics=metrics,
        machine=this_machine(),
    )


def _rounded(value: float) -> float:
    """Six significant digits are more than any of it is good for."""
    return float(f"{value:.6g}")
