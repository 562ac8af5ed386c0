"""What the commands of ``assay sim`` share: consoles, exit statuses, and how they say what a run showed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape

from assay.conformance.mutants import UnknownMutantError
from assay.faults.scenario import ScenarioError
from assay.reference_broker.config import ConfigError
from assay.reference_broker.trace.results import RunResult, Verdict
from assay.reference_broker.trace.terminal import WholeConsole
from assay.sim.guard import NondeterminismError
from assay.sim.world import WorldError

PASSED: Final = 0
FOUND: Final = 1
"""A finding, or no claim possible."""
USAGE: Final = 2
HARNESS: Final = 4

console = WholeConsole()
errors = WholeConsole(stderr=True)

ScenarioArgument = Annotated[
    str, typer.Argument(help="A scenario file, or the name of one that comes with Assay (see `assay sim list`).")
]
MutantOption = Annotated[
    list[str] | None,
    typer.Option("--mutant", help="Break the broker on purpose; may be repeated (see `assay sim list`)."),
]


@contextmanager
def errors_explained() -> Iterator[None]:
    """Turn errors of usage and of the harness into a line for people and the right exit status."""
    try:
        yield
    except (ScenarioError, ConfigError, UnknownMutantError, ValueError) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(USAGE) from error
    except (WorldError, NondeterminismError, OSError) as error:
        errors.print(f"[red]the simulation failed:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(HARNESS) from error


def command_line(verb: str, scenario: str, *more: str, mutants: Sequence[str] = ()) -> str:
    """What to type to do it again."""
    words = ["assay", "sim", verb, scenario, *more]
    for mutant in mutants:
        words += ["--mutant", mutant]
    return shlex.join(words)


def print_result(result: RunResult, out: Path | None) -> None:
    """The verdict of one run, what was found, and how to know it again."""
    colour = {Verdict.PASS: "green", Verdict.FAIL: "red"}.get(result.verdict, "yellow")
    console.print(f"[{colour} bold]{result.verdict.value}[/] {escape(result.summary)}", highlight=False)
    for finding in result.findings:
        names = ", ".join(finding.values[:5])
        console.print(
            f"  {finding.severity.value} {finding.anomaly} {finding.message} {names}".rstrip(),
            highlight=False,
            markup=False,
        )
    for check in result.checks:
        console.print(f"  {check.verdict.value} {check.name} = {check.value} (target {check.relation} {check.bound})")
    metrics = result.metrics
    console.print(
        f"  seed {result.seed}, trace hash {metrics['trace_hash']}, {metrics['simulated_s']} s simulated in "
        f"{metrics['wall_s']} s ({metrics['sim_real_ratio']}:1)",
        highlight=False,
    )
    if out is not None:
        console.print(f"  written to {out}", highlight=False)
