"""The hunt's commands, which :mod:`assay.sim.cli` offers: explore, shrink, replay, coverage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.faults.scenario import Scenario, find_scenario
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.terminal import WholeTable
from assay.sim.hunt.coverage import Coverage, cover, write_coverage
from assay.sim.hunt.explore import MAX_SEEDS, Exploration, SeedOutcome
from assay.sim.hunt.explore import explore as run_exploration
from assay.sim.hunt.findings import FindingClass
from assay.sim.hunt.leavings import SeedLines, record_path, summary, told, write_exploration
from assay.sim.hunt.record import FindingRecord, find_record, record_of, write_record, write_scenario
from assay.sim.hunt.repro import pytest_file
from assay.sim.hunt.schedule import ScheduleStyle
from assay.sim.hunt.shrink import Shrunk
from assay.sim.hunt.shrink import shrink as run_shrink
from assay.sim.hunt.workload_kinds import operations
from assay.sim.runner import require_sim, run_scenario
from assay.sim.space_time import SPACE_TIME_NAME, read_space_time
from assay.sim.terminal import (
    FOUND,
    HARNESS,
    PASSED,
    MutantOption,
    ScenarioArgument,
    command_line,
    console,
    errors,
    errors_explained,
    print_result,
)

_T = TypeVar("_T")
_MOST_GROUPS: Final = 30
_FEW: Final = 5
"""Kinds of faults that are named; of more their number is told."""
FileArgument = Annotated[
    str, typer.Argument(help="The record of a finding, a scenario file, or the name of a shipped scenario.")
]
SeedsOption = Annotated[int, typer.Option(min=1, max=MAX_SEEDS, help="How many schedules to run.")]
FirstSeedOption = Annotated[int, typer.Option(min=1, help="The number of the first of them.")]
ScheduleOption = Annotated[
    ScheduleStyle,
    typer.Option(
        help="Where the faults come from: the file, drawn with options of broker and clients (swarm), or both in turn."
    ),
]
JobsOption = Annotated[int, typer.Option(min=1, max=256, help="Processes.")]
_CPUS: Final = len(os.sched_getaffinity(0))


def explore(
    scenario: ScenarioArgument,
    seeds: SeedsOption = 100,
    first_seed: FirstSeedOption = 1,
    schedule: ScheduleOption = ScheduleStyle.BOTH,
    jobs: JobsOption = _CPUS,
    time_limit: Annotated[float, typer.Option(min=0, help="Seconds after which no new runs begin; 0 = none.")] = 0.0,
    stop_after: Annotated[int, typer.Option(min=0, help="Stop after this many failing runs; 0 = run all.")] = 1,
    mutant: MutantOption = None,
    out: Annotated[
        Path, typer.Option(help="Folder for result.json, seeds.jsonl, a record of each finding, and the shrunk one.")
    ] = Path("out/explore"),
    shrink_for_s: Annotated[
        float, typer.Option(min=0, help="Time for shrinking the first finding; 0 = do not.")
    ] = 60.0,
) -> None:
    """Run many schedules of a scenario; group what fails, and shrink the first to a small scenario file.

    Example: assay sim explore crash-restart --seeds 1000 --stop-after 0 --schedule swarm
    """
    with errors_explained():
        loaded = find_scenario(scenario)
        require_sim(loaded)
        mutants = tuple(mutant or ())
        with SeedLines(out) as lines:
            found = _with_progress(
                loaded.name,
                seeds,
                lambda show: run_exploration(
                    loaded,
                    first_seed=first_seed,
                    seeds=seeds,
                    style=schedule,
                    mutants=mutants,
                    jobs=jobs,
                    stop_after=stop_after,
                    time_limit_s=time_limit,
                    on_outcome=_both(show, lines.write),
                ),
            )
        again = ["--seeds", str(seeds), "--first-seed", str(first_seed), "--schedule", schedule.value]
        command = command_line("explore", scenario, *again, "--stop-after", str(stop_after), mutants=mutants)
        write_exploration(out, loaded, found, mutants=mutants, command=command)
        _print_exploration(found, out)
        groups = found.groups()
        if groups and shrink_for_s > 0 and (record := record_of(groups[0].outcomes[0], mutants)).trace_hash:
            _shrink_to(record, out, shrink_for_s)
    if found.having(Verdict.ERROR):
        raise typer.Exit(HARNESS)
    raise typer.Exit(FOUND if groups else PASSED)


def shrink(
    file: FileArgument,
    mutant: MutantOption = None,
    budget: Annotated[float, typer.Option("--for-s", min=0.1, help="Time for it, in seconds.")] = 60.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the run; default: the file's.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for what is left.")] = Path("out/shrunk"),
) -> None:
    """Make a failing run small, and write it as a scenario, as a test, and as a run to report.

    Faults go first, then operations, clients and settings, then durations; at last delays that chance drew become
    constants. What is left fails in the same way.

    Example: assay sim shrink out/explore/findings/01.yaml
    """
    with errors_explained():
        record = _loaded(file, mutant, seed)
        small = _shrink_to(record, out, budget)
    if small is None:
        console.print("That run finds nothing, so there is nothing to shrink.")
    raise typer.Exit(FOUND if small is None else PASSED)


def replay(
    file: FileArgument,
    mutant: MutantOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run; default: the file's.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print what happened, and write the broker's trace.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run's files; default with --trace: out/replay.")
    ] = None,
) -> None:
    """Make a recorded run again: same seed, same schedule, same hash; says so when the hash differs.

    Example: assay sim replay out/explore/findings/01.yaml --trace
    """
    with errors_explained():
        record = _loaded(file, mutant, seed)
        out = Path("out/replay") if trace and out is None else out
        result = run_scenario(
            record.scenario,
            out=out,
            mutants=record.applied,
            trace=trace,
            command=command_line("replay", file, mutants=tuple(mutant or ())),
        )
        if trace and out is not None:
            _print_story(out)
    print_result(result, out)
    if record.trace_hash:
        said = "the same run, down to its hash"
        if record.trace_hash != result.metrics["trace_hash"]:
            changed = "the code has changed since, or what it needs is not the same"
            said = f"[yellow]not the run that was recorded[/], whose hash was {record.trace_hash}: {changed}"
        console.print(f"  {said}", highlight=False)
    raise typer.Exit(PASSED if result.verdict is Verdict.PASS else FOUND)


def coverage(
    scenario: ScenarioArgument,
    seeds: SeedsOption = 200,
    first_seed: FirstSeedOption = 1,
    schedule: ScheduleOption = ScheduleStyle.SWARM,
    jobs: JobsOption = _CPUS,
    time_limit: Annotated[float, typer.Option(min=0, help="Seconds after which no new runs begin; 0 = none.")] = 0.0,
    mutant: MutantOption = None,
    out: Annotated[Path, typer.Option(help="Folder for coverage.json.")] = Path("out/coverage"),
) -> None:
    """Which rare states many schedules reach, which faults they combine, and what they never do.

    Exit status 1: a state was not reached although there were schedules enough for it.

    Example: assay sim coverage crash-restart --seeds 500
    """
    with errors_explained():
        loaded = find_scenario(scenario)
        require_sim(loaded)
        mutants = tuple(mutant or ())
        found = _with_progress(
            loaded.name,
            seeds,
            lambda show: cover(
                loaded,
                first_seed=first_seed,
                seeds=seeds,
                style=schedule,
                mutants=mutants,
                jobs=jobs,
                time_limit_s=time_limit,
                on_outcome=show,
            ),
        )
        path = write_coverage(out, found)
    _print_coverage(found)
    console.print(f"  written to {path}", highlight=False)
    raise typer.Exit(FOUND if found.overdue else PASSED)


def _loaded(file: str, mutant: list[str] | None, seed: int | None) -> FindingRecord:
    """The run of a file, with more mutants or another seed: then it is not the recorded one any more."""
    record = find_record(file)
    require_sim(record.scenario)
    if not mutant and seed is None:
        return record
    scenario = record.scenario
    used = scenario.seed if seed is None else seed
    return FindingRecord(
        scenario=msgspec.structs.replace(scenario, seed=used),
        mutants=(*record.mutants, *(mutant or ())),
        variations=record.variations,
    )


def _both(first: Callable[[SeedOutcome], None], second: Callable[[SeedOutcome], None]) -> Callable[[SeedOutcome], None]:
    def call(outcome: SeedOutcome) -> None:
        first(outcome)
        second(outcome)

    return call


def _with_progress(name: str, seeds: int, call: Callable[[Callable[[SeedOutcome], None]], _T]) -> _T:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(name, total=seeds)
        shown: set[FindingClass] = set()

        def show(outcome: SeedOutcome) -> None:
            progress.advance(task)
            if new := [each for each in outcome.classes if each not in shown]:
                shown.update(new)
                progress.console.print(f"seed {outcome.seed}: {outcome.verdict.value}: {escape(outcome.message)}")

        return call(show)


def _print_exploration(found: Exploration, out: Path) -> None:
    console.print(summary(found), highlight=False)
    groups = found.groups()
    for number, group in enumerate(groups[:_MOST_GROUPS], start=1):
        again = command_line("replay", str(record_path(out, number)))
        console.print(f"  {escape(told(group))}\n    [bold]{again}[/bold]", highlight=False)
    if len(groups) > _MOST_GROUPS:
        console.print(f"  and {len(groups) - _MOST_GROUPS} classes more in {out}", highlight=False)


def _shrink_to(record: FindingRecord, out: Path, budget_s: float) -> Shrunk | None:
    """Shrink, and write what is left: scenario, record, test, and the run itself."""
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=errors, transient=True) as progress:
        task = progress.add_task(f"shrinking {record.scenario.name}")

        def show(smaller: Scenario, runs: int) -> None:
            text = f"shrinking: {len(smaller.faults)} faults, {operations(smaller.workload)} messages after {runs} runs"
            progress.update(task, description=text)

        small = run_shrink(record, budget_s=budget_s, on_step=show)
    if small is None:
        return None
    name = small.scenario.name
    scenario_file, record_file, test_file = out / f"{name}.yaml", out / f"{name}.finding.yaml", out / f"test_{name}.py"
    again = command_line("replay", str(record_file), "--trace")
    write_scenario(scenario_file, small.scenario, f"{small.record.message}\nShrunk in {small.runs} runs.")
    write_record(record_file, small.record, f"Shrunk in {small.runs} runs. Make it again: {again}")
    test_file.write_text(pytest_file(small.record, small.operations), encoding="utf-8")
    run_scenario(small.scenario, out=out / name, mutants=small.record.applied, trace=True, command=again)
    console.print(
        f"Shrunk to {len(small.scenario.faults)} faults and {small.operations} operations in {small.runs} runs, "
        f"{small.took_s:.1f} s:\n  {scenario_file}\n  {test_file}\n  its space-time diagram: "
        f"assay report {out / name}\nRun it again: [bold]{again}[/bold]",
        highlight=False,
    )
    return small


def _print_story(out: Path) -> None:
    """What happened, in the order in which it did."""
    table = WholeTable("time", "who", "what", box=None, pad_edge=False)
    lines = read_space_time(out / SPACE_TIME_NAME)
    for line in lines:
        arrow = {"send": "→ ", "recv": "← "}.get(line.direction, "")
        table.add_row(f"{line.t_ns / 1e9:.6f}", line.connection, f"{arrow}{line.decoded}")
    console.print(table)


def _print_coverage(found: Coverage) -> None:
    console.print(
        f"{found.runs} runs in {found.wall_s:.1f} s: {found.distinct_states} distinct states", highlight=False
    )
    table = WholeTable("state", "runs", "first", "what it is", box=None, pad_edge=False)
    for row in found.states:
        first = str(row.first) if row.runs else "[red]never[/red]" if row.overdue else "never"
        table.add_row(row.name, str(row.runs), first, row.what)
    console.print(table)
    console.print()
    combined = WholeTable("fault", "runs", "at once with", "never with", box=None, pad_edge=False)
    for fault in found.faults:
        never = f"{len(fault.never)} of {len(found.faults)}" if len(fault.never) > _FEW else ", ".join(fault.never)
        combined.add_row(fault.kind, str(fault.runs), ", ".join(fault.together) or "none", never or "none")
    console.print(combined)
