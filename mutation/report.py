"""What a campaign found: a table of kill rates per judge, and each survivor as a diff."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from assay.reference_broker.trace.results import Check, Finding, RunKind, RunResult, Severity, Verdict, write_result
from assay.reference_broker.trace.terminal import WholeTable
from mutation.campaign import Judged
from mutation.judges import KILLS, Judge, Outcome
from mutation.operators import Mutant
from mutation.tree import ROOT


def diff(mutant: Mutant) -> str:
    """The changed lines of a mutant."""
    source = (ROOT / mutant.module).read_text(encoding="utf-8")
    lines = difflib.unified_diff(source.splitlines(), mutant.apply(source).splitlines(), n=1, lineterm="")
    return "\n".join(list(lines)[2:])


class Rate:
    """How many of the mutants that are not equivalent some judges killed."""

    def __init__(self, name: str, judged: Sequence[Judged], judges: Sequence[str]) -> None:
        alive = [one for one in judged if not one.equivalent]
        opinions = [[opinion for opinion in one.opinions if opinion.judge in judges] for one in alive]
        self.name = name
        self.of = len(alive)
        self.killed = sum(any(opinion.outcome in KILLS for opinion in each) for each in opinions)
        self.timeouts = sum(any(opinion.outcome is Outcome.TIMEOUT for opinion in each) for each in opinions)
        self.not_reached = sum(all(opinion.outcome is Outcome.NOT_REACHED for opinion in each) for each in opinions)
        self.not_whole = sum(
            not any(opinion.outcome in KILLS for opinion in each) and any(opinion.left_out for opinion in each)
            for each in opinions
        )
        """Those that live though not all was asked, for want of time: the rate may be higher by so many."""
        self.spent_s = sum(opinion.duration_s for each in opinions for opinion in each)

    @property
    def percent(self) -> float:
        return 100.0 * self.killed / self.of if self.of else 0.0


def _state(one: Judged) -> str:
    return "not reached" if one.not_reached else "not judged whole" if one.not_whole else "survives"


def rates(judged: Sequence[Judged], judges: Sequence[Judge]) -> list[Rate]:
    """Of each judge, of the black-box judges together, of all."""
    names = [judge.name for judge in judges]
    found = [Rate(name, judged, [name]) for name in names]
    found.append(Rate("all black-box judges", judged, [judge.name for judge in judges if judge.black_box]))
    found.append(Rate("all judges", judged, names))
    return found


def print_report(console: Console, judged: Sequence[Judged], judges: Sequence[Judge]) -> None:
    """For people."""
    for one in judged:
        if one.killed or one.equivalent:
            continue
        mutant = one.mutant
        place = f"{mutant.module}:{mutant.line}"
        console.print(
            f"[bold red]{_state(one)}[/] {place} [dim]{mutant.function} ({mutant.operator.value})[/]",
            highlight=False,
            soft_wrap=True,
        )
        console.print(escape(diff(mutant)), highlight=False, soft_wrap=True)
    table = WholeTable("judge", "killed", "of", "rate", "by time limit", "not reached", "not judged whole", "seconds")
    for rate in rates(judged, judges):
        table.add_row(
            rate.name,
            str(rate.killed),
            str(rate.of),
            f"{rate.percent:.0f} %",
            str(rate.timeouts),
            str(rate.not_reached),
            str(rate.not_whole),
            f"{rate.spent_s:.0f}",
        )
    console.print(table)
    equivalent = sum(bool(one.equivalent) for one in judged)
    console.print(f"{len(judged)} mutants, {equivalent} of them known to be equivalent", highlight=False)


def write_report(
    folder: Path, judged: Sequence[Judged], judges: Sequence[Judge], *, seed: int, command: str, duration_s: float
) -> Path:
    """``result.json``: a check per judge, a finding per survivor."""
    every = rates(judged, judges)
    survivors = [one for one in judged if not one.killed and not one.equivalent]
    return write_result(
        folder,
        RunResult(
            kind=RunKind.SELF_CHECK,
            name="mutation by machine",
            verdict=Verdict.PASS if judged else Verdict.UNKNOWN,
            summary=f"{every[-1].killed} of {every[-1].of} mechanical mutants killed",
            seed=seed,
            duration_s=round(duration_s, 3),
            command=command,
            findings=[
                Finding(
                    checker="mutation",
                    anomaly=_state(one),
                    severity=Severity.QUALITY,
                    message=f"{one.mutant.module}:{one.mutant.line} {one.mutant.key}",
                )
                for one in survivors
            ],
            checks=[
                Check(
                    name=f"killed by {rate.name}",
                    value=round(rate.percent, 1),
                    unit="%",
                    verdict=Verdict.PASS,
                    source=f"{rate.killed} of {rate.of}, {rate.not_reached} not reached, "
                    f"{rate.not_whole} not judged whole, {rate.spent_s:.0f} s",
                )
                for rate in every
            ],
        ),
    )
