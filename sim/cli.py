"""``assay sim``: run scenarios in simulated time; the hunt over many schedules is :mod:`assay.sim.hunt.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from assay.conformance.mutants import all_mutants
from assay.faults.scenario import find_scenario, shipped_scenarios
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.terminal import WholeTable
from assay.sim.hunt.cli import coverage, explore, replay, shrink
from assay.sim.hunt.explore import schedule_of
from assay.sim.hunt.schedule import ScheduleStyle
from assay.sim.models.cli import app as model_app
from assay.sim.runner import run_scenario
from assay.sim.terminal import (
    FOUND,
    PASSED,
    MutantOption,
    ScenarioArgument,
    command_line,
    console,
    errors,
    errors_explained,
    print_result,
)

QUEUE_MUTANTS: Final = ("assay.conformance.mutants.queue", "assay.conformance.mutants.queue_windows")

app = typer.Typer(
    name="sim",
    no_args_is_help=True,
    help="""Run a scenario in simulated time: the real broker code on a simulated network, disk and clock.

    The same seed gives the same run, down to the trace hash. Exit status: 0 nothing found, 1 a finding or no claim
    possible, 2 wrong usage, 4 the simulation itself failed.""",
)
app.add_typer(model_app)


@app.command()
def run(
    scenario: ScenarioArgument,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the run, or number of the drawn schedule; default: the scenario's own.")
    ] = None,
    schedule: Annotated[
        ScheduleStyle, typer.Option(help="The file's own faults, or those that `explore` draws for this seed.")
    ] = ScheduleStyle.FILE,
    out: Annotated[
        Path | None, typer.Option(help="Folder for history.jsonl and result.json; default: write nothing.")
    ] = None,
    mutant: MutantOption = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --out: write the broker's own trace.jsonl, too.")
    ] = False,
) -> None:
    """Run one scenario once, and say what its history proves.

    Example: assay sim run crash-restart --seed 7 --out runs/crash-7
    """
    with errors_explained():
        loaded = find_scenario(scenario)
        mutants = tuple(mutant or ())
        used_seed = loaded.seed if seed is None else seed
        drawn = schedule_of(loaded, used_seed, schedule, mutants)
        again = ["--seed", str(used_seed), *(() if schedule is ScheduleStyle.FILE else ("--schedule", schedule.value))]
        with Progress(
            TextColumn("{task.description}"), TimeElapsedColumn(), console=errors, transient=True
        ) as progress:
            task = progress.add_task(f"{loaded.name}, seed {used_seed}")

            def show(simulated_s: float) -> None:
                progress.update(task, description=f"{loaded.name}, seed {used_seed}: {simulated_s:.1f} s simulated")

            result = run_scenario(
                drawn.scenario,
                out=out,
                mutants=(*mutants, *drawn.variations),
                trace=trace,
                command=command_line("run", scenario, *again, mutants=mutants),
                on_progress=show,
            )
    print_result(result, out)
    raise typer.Exit(PASSED if result.verdict is Verdict.PASS else FOUND)


app.command()(explore)
app.command()(shrink)
app.command()(replay)
app.command()(coverage)


@app.command(name="list")
def list_command() -> None:
    """List the scenarios that come with Assay, and the bugs that can be planted."""
    table = WholeTable("scenario", "worlds", "faults", "what it is about", box=None, pad_edge=False)
    for name in shipped_scenarios():
        with errors_explained():
            scenario = find_scenario(name)
        faults = ", ".join(fault.kind.value for fault in scenario.faults) or "none"
        table.add_row(name, ", ".join(scenario.worlds), faults, scenario.description.strip())
    console.print(table)
    bugs = WholeTable("mutant", "bug or legal variation", "what is different", box=None, pad_edge=False)
    for name, mutant in all_mutants().items():
        if mutant.apply.__module__ in QUEUE_MUTANTS:
            bugs.add_row(name, "variation" if mutant.legal else "bug", mutant.what)
    console.print()
    console.print(bugs)
