"""Figures that are measured in rounds, one after the other: what is measured, what is aimed at, and the verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec
from rich.table import Table

from assay.loadtests.bench.report import MARKS
from assay.loadtests.machine import this_machine
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Verdict, worst
from assay.reference_broker.trace.terminal import WholeTable


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, and the bound that it should keep; ``bound`` None: it only informs."""

    name: str
    title: str
    unit: str
    measure: Callable[[], float]
    bound: float | None = None
    at_least: bool = True
    share_of: str = ""
    """``bound`` is on the ratio to this other line."""
    once: bool = False
    """The same in every round."""


class LinesRun(msgspec.Struct, frozen=True, kw_only=True):
    """The values of every line, by round."""

    lines: list[Line]
    values: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])


def run_lines(lines: list[Line], rounds: int, progress: Callable[[str, float], None]) -> LinesRun:
    """Measure every line in every round. ``progress`` gets what is measured, and the share that is done."""
    values: dict[str, list[float]] = {line.name: [] for line in lines}
    done = 0
    for number in range(rounds):
        for line in lines:
            progress(f"round {number + 1} of {rounds}: {line.title}", done / (rounds * len(lines)))
            done += 1
            if number == 0 or not line.once:
                values[line.name].append(line.measure())
    return LinesRun(lines=lines, values=values)


def checks(run: LinesRun) -> dict[str, Check]:
    """The verdict on every line that has a bound."""
    found = {}
    for line in run.lines:
        if line.bound is None:
            continue
        value, unit = run.median(line.name), line.unit
        if line.share_of:
            value, unit = value / run.median(line.share_of), "x"
        met = value >= line.bound if line.at_least else value <= line.bound
        found[line.name] = Check(
            name=f"{line.title}{' against the first' if line.share_of else ''}",
            value=value,
            unit=unit,
            bound=line.bound,
            relation=">=" if line.at_least else "<=",
            verdict=Verdict.PASS if met else Verdict.FAIL,
            source="ratio in the same run" if line.share_of else "absolute",
        )
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def table(run: LinesRun, title: str) -> Table:
    """A row for each line."""
    found = WholeTable(title=title, title_justify="left")
    found.add_column("figure", no_wrap=True)
    for name in ("median", "range", "unit"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("aim")
    judged = checks(run)
    for line in run.lines:
        check = judged.get(line.name)
        values = run.values[line.name]
        aim = "" if check is None else f"{MARKS[check.verdict]} {check.relation} {check.bound:,g} {check.unit}"
        spread = f"{_number(min(values))} - {_number(max(values))}"
        found.add_row(line.title, _number(run.median(line.name)), spread, line.unit, aim)
    return found


def lines_result(run: LinesRun, *, name: str, target: str, command: str, judge: bool) -> RunResult:
    """The run in the schema of all verdicts; without ``judge`` nothing is judged."""
    judged = list(checks(run).values()) if judge else []
    met = sum(check.verdict is Verdict.PASS for check in judged)
    return RunResult(
        kind=RunKind.BENCH,
        name=name,
        verdict=worst([check.verdict for check in judged]),
        summary=f"{target}: {met} of {len(judged)} aims met" if judge else f"{target}: not judged",
        target=target,
        world="real",
        command=command,
        checks=judged,
        metrics={f"{line.name}.{line.unit.replace('/', '_per_')}": run.median(line.name) for line in run.lines},
        machine=this_machine(),
    )
