"""``assay sim``: run scenarios in simulated time, many seeds if wanted, and shrink what fails."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.conformance.mutants import UnknownMutantError, all_mutants
from assay.faults.scenario import Scenario, ScenarioError, find_scenario, shipped_scenarios
from assay.reference_broker.config import ConfigError
from assay.reference_broker.trace.results import RunResult, Verdict
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable
from assay.sim.explore import MAX_SEEDS, Exploration, SeedOutcome, explore
from assay.sim.guard import NondeterminismError
from assay.sim.models.cli import app as model_app
from assay.sim.runner import require_sim, run_scenario
from assay.sim.shrink import Shrunk, shrink, write_scenario
from assay.sim.world import WorldError

PASSED: Final = 0
FOUND: Final = 1
"""A finding, or no claim possible."""
USAGE: Final = 2
HARNESS: Final = 4
QUEUE_MUTANTS: Final = "assay.conformance.mutants.queue"

app = typer.Typer(
    name="sim",
    no_args_is_help=True,
    help="""Run a scenario in simulated time: the real broker code on a simulated network, disk and clock.

    The same seed gives the same run, down to the trace hash. Exit status: 0 nothing found, 1 a finding or no claim
    possible, 2 wrong usage, 4 the simulation itself failed.""",
)
app.add_typer(model_app)
console = WholeConsole()
errors = WholeConsole(stderr=True)

ScenarioArgument = Annotated[
    str, typer.Argument(help="A scenario file, or the name of one that comes with Assay (see `assay sim list`).")
]
MutantOption = Annotated[
    list[str] | None,
    typer.Option("--mutant", help="Break the broker on purpose; may be repeated (see `assay sim list`)."),
]


@app.command()
def run(
    scenario: ScenarioArgument,
    seed: Annotated[int | None, typer.Option(help="Seed of the run; default: the scenario's own.")] = None,
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
    with _errors_explained():
        loaded = find_scenario(scenario)
        mutants = tuple(mutant or ())
        used_seed = loaded.seed if seed is None else seed
        with Progress(
            TextColumn("{task.description}"), TimeElapsedColumn(), console=errors, transient=True
        ) as progress:
            task = progress.add_task(f"{loaded.name}, seed {used_seed}")

            def show(simulated_s: float) -> None:
                progress.update(task, description=f"{loaded.name}, seed {used_seed}: {simulated_s:.1f} s simulated")

            result = run_scenario(
                loaded,
                seed=seed,
                out=out,
                mutants=mutants,
                trace=trace,
                command=_command("run", scenario, used_seed, mutants),
                on_progress=show,
            )
    _print_result(result, out)
    raise typer.Exit(PASSED if result.verdict is Verdict.PASS else FOUND)


@app.command(name="explore")
def explore_command(
    scenario: ScenarioArgument,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="How many seeds to run.")] = 100,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes.")] = len(os.sched_getaffinity(0)),
    stop_after: Annotated[int, typer.Option(min=0, help="Stop after this many failing seeds; 0 = run all.")] = 1,
    mutant: MutantOption = None,
    out: Annotated[Path, typer.Option(help="Folder for the shrunk scenario.")] = Path("."),
    shrink_for_s: Annotated[
        float, typer.Option(min=0, help="Time for shrinking the first finding; 0 = do not.")
    ] = 60.0,
) -> None:
    """Run many seeds of a scenario; shrink the first that fails to a small scenario file.

    Example: assay sim explore crash-restart --seeds 1000 --stop-after 0
    """
    with _errors_explained():
        loaded = find_scenario(scenario)
        require_sim(loaded)
        mutants = tuple(mutant or ())
        found = _explore(loaded, first_seed, seeds, mutants, jobs, stop_after)
        _print_exploration(found)
        failing = found.having(Verdict.FAIL)
        if failing and shrink_for_s > 0:
            small = _shrink(loaded, failing[0], mutants, shrink_for_s)
            path = out / f"{small.scenario.name}.yaml"
            again = _command("run", str(path), small.scenario.seed, mutants)
            write_scenario(path, small.scenario, f"Shrunk from {loaded.name} in {small.runs} runs. Run it: {again}")
            console.print(
                f"Shrunk to {len(small.scenario.faults)} faults and "
                f"{sum(w.producers * w.messages_per_producer for w in small.scenario.workload)} messages: {path}\n"
                f"Run it again: [bold]{again}[/bold]"
            )
    if found.having(Verdict.ERROR):
        raise typer.Exit(HARNESS)
    raise typer.Exit(FOUND if found.having(Verdict.FAIL, Verdict.UNKNOWN) else PASSED)


@app.command(name="list")
def list_command() -> None:
    """List the scenarios that come with Assay, and the bugs that can be planted."""
    table = WholeTable("scenario", "worlds", "faults", "what it is about", box=None, pad_edge=False)
    for name in shipped_scenarios():
        with _errors_explained():
            scenario = find_scenario(name)
        faults = ", ".join(fault.kind.value for fault in scenario.faults) or "none"
        table.add_row(name, ", ".join(scenario.worlds), faults, scenario.description.strip())
    console.print(table)
    bugs = WholeTable("mutant", "bug or legal variation", "what is different", box=None, pad_edge=False)
    for name, mutant in all_mutants().items():
        if mutant.apply.__module__ == QUEUE_MUTANTS:
            bugs.add_row(name, "variation" if mutant.legal else "bug", mutant.what)
    console.print()
    console.print(bugs)


@contextmanager
def _errors_explained() -> Iterator[None]:
    """Turn errors of usage and of the harness into a line for people and the right exit status."""
    try:
        yield
    except (ScenarioError, ConfigError, UnknownMutantError, ValueError) as error:
        errors.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(USAGE) from error
    except (WorldError, NondeterminismError, OSError) as error:
        errors.print(f"[red]the simulation failed:[/red] {error}", highlight=False)
        raise typer.Exit(HARNESS) from error


def _command(verb: str, scenario: str, seed: int, mutants: tuple[str, ...]) -> str:
    words = ["assay", "sim", verb, scenario, "--seed", str(seed)]
    for mutant in mutants:
        words += ["--mutant", mutant]
    return shlex.join(words)


def _explore(
    scenario: Scenario, first_seed: int, seeds: int, mutants: tuple[str, ...], jobs: int, stop_after: int
) -> Exploration:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(scenario.name, total=seeds)

        def show(outcome: SeedOutcome) -> None:
            progress.advance(task)
            if outcome.verdict is not Verdict.PASS:
                progress.console.print(f"seed {outcome.seed}: {outcome.verdict.value}: {outcome.message}")

        return explore(
            scenario,
            first_seed=first_seed,
            seeds=seeds,
            mutants=mutants,
            jobs=jobs,
            stop_after=stop_after,
            on_outcome=show,
        )


def _shrink(scenario: Scenario, failing: SeedOutcome, mutants: tuple[str, ...], budget_s: float) -> Shrunk:
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=errors, transient=True) as progress:
        task = progress.add_task(f"shrinking seed {failing.seed}")

        def show(smaller: Scenario, runs: int) -> None:
            messages = sum(workload.producers * workload.messages_per_producer for workload in smaller.workload)
            text = f"shrinking: {len(smaller.faults)} faults, {messages} messages after {runs} runs"
            progress.update(task, description=text)

        return shrink(scenario, failing.seed, failing.signature, mutants=mutants, budget_s=budget_s, on_step=show)


def _print_result(result: RunResult, out: Path | None) -> None:
    colour = {Verdict.PASS: "green", Verdict.FAIL: "red"}.get(result.verdict, "yellow")
    console.print(f"[{colour} bold]{result.verdict.value}[/] {result.summary}", highlight=False)
    for finding in result.findings:
        names = ", ".join(finding.values[:5])
        console.print(
            f"  {finding.severity.value} {finding.anomaly} {finding.message} {names}".rstrip(), highlight=False
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


def _print_exploration(found: Exploration) -> None:
    counts = {verdict: len(found.having(verdict)) for verdict in Verdict}
    text = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    console.print(
        f"{len(found.outcomes)} seeds in {found.wall_s:.1f} s: {text}; {found.seeds_per_hour:.0f} seeds/h, "
        f"{found.sim_real_ratio:.0f} simulated seconds per second",
        highlight=False,
    )
    kinds: dict[str, list[int]] = {}
    for outcome in found.having(Verdict.FAIL):
        for checker, anomaly in sorted(outcome.signature):
            kinds.setdefault(f"{anomaly} {checker}", []).append(outcome.seed)
    for kind, seeds in sorted(kinds.items()):
        console.print(f"  {kind}: {len(seeds)} seeds, first {seeds[0]}", highlight=False)
