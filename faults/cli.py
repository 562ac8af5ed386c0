"""``assay faults``: list, show, run, proxy."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer
import yaml
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from assay.conformance.mutants import UnknownMutantError, all_mutants, find
from assay.faults.failover.cli import failover
from assay.faults.fault_kinds import describe, why_only_simulated
from assay.faults.runner import RunError, RunOptions, run_scenario
from assay.faults.scenario import Delays, Scenario, ScenarioError, ScenarioWorld, find_scenario, shipped_scenarios
from assay.faults.toxiproxy import DEFAULT_PORT, ToxiproxyServer
from assay.reference_broker.trace.results import RunResult, Severity, Verdict
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable

PASSED: Final = 0
FOUND: Final = 1
USAGE: Final = 2
HARNESS: Final = 4
EXIT_STATUS: Final = {Verdict.PASS: PASSED, Verdict.FAIL: FOUND, Verdict.UNKNOWN: FOUND, Verdict.ERROR: HARNESS}
"""No claim is possible counts as a finding: no data is never green."""
_STYLES: Final = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.UNKNOWN: "bold yellow",
    Verdict.ERROR: "bold magenta",
}
_MAX_VALUES_SHOWN: Final = 8

app = typer.Typer(
    name="faults",
    no_args_is_help=True,
    help="""Run a scenario on real processes: the broker is killed, paused and cut off while clients record a history.

    The history is then judged: nothing confirmed may be lost, nothing delivered again without a cause, order and dead
    letters must be right. Exit status: 0 the contract held, 1 a finding or no claim possible, 2 wrong usage, 4 the
    harness failed.""",
)
app.command()(failover)
console = WholeConsole()
errors = WholeConsole(stderr=True)

ScenarioArgument = Annotated[
    str, typer.Argument(help="Name of a scenario that comes with Assay (`assay faults list`), or a YAML file.")
]


def _stop(text: str, status: int) -> typer.Exit:
    errors.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    return typer.Exit(status)


def _scenario(name: str) -> Scenario:
    try:
        return find_scenario(name)
    except ScenarioError as error:
        raise _stop(str(error), USAGE) from error


@app.command("list")
def list_scenarios() -> None:
    """List the scenarios that come with Assay, and the bugs that can be planted."""
    table = WholeTable("scenario", "worlds", "faults", "what it is about", box=None, pad_edge=False)
    for name in shipped_scenarios():
        scenario = _scenario(name)
        faults = ", ".join(fault.kind.value for fault in scenario.faults) or "none"
        table.add_row(name, ", ".join(scenario.worlds), faults, scenario.description)
    console.print(table)
    bugs = WholeTable("mutant of the queues", "what it breaks", box=None, pad_edge=False)
    for mutant in all_mutants().values():
        if mutant.apply.__module__ == "assay.conformance.mutants.queue" and not mutant.legal:
            bugs.add_row(mutant.name, mutant.what)
    if bugs.row_count:
        console.print()
        console.print(bugs)


@app.command()
def show(scenario: ScenarioArgument) -> None:
    """Print a scenario with all its defaults filled in, as YAML that `run` takes."""
    data = msgspec.to_builtins(_scenario(scenario))
    sys.stdout.write(yaml.safe_dump(data, sort_keys=False, width=120))


OutOption = Annotated[
    Path | None, typer.Option(help="Folder for the artefacts. Default: out/faults/<scenario>-<seed>.")
]
SeedOption = Annotated[int | None, typer.Option(help="Seed of workload and proxy. Default: the scenario's own.")]
MutantOption = Annotated[
    list[str] | None, typer.Option(help="Break the broker on purpose (repeatable); see `assay faults list`.")
]
AttemptsOption = Annotated[
    int, typer.Option(min=1, max=20, help="Runs until one sees enough for a verdict; a busy machine shows little.")
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        envvar="TOXIPROXY_URL",
        help="A running toxiproxy server. Default: toxiproxy-server from the PATH, else the embedded one.",
    ),
]


@app.command()
def run(
    scenario: ScenarioArgument,
    out: OutOption = None,
    seed: SeedOption = None,
    mutant: MutantOption = None,
    attempts: AttemptsOption = 3,
    url: UrlOption = None,
) -> None:
    """Run a scenario and judge what happened.

    A run that saw too little to prove anything (its queues were not drained, or a rule had fewer chances to be broken
    than the scenario's `enough`) is repeated; if all of them did, the verdict is unknown and the exit status 1.
    """
    _execute(_scenario(scenario), _command("run", scenario, seed, mutant), out, seed, mutant, attempts, url)


@app.command()
def replay(
    scenario: ScenarioArgument,
    out: OutOption = None,
    seed: SeedOption = None,
    mutant: MutantOption = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Go on without the faults that cannot be made on real processes.")
    ] = False,
    attempts: AttemptsOption = 3,
    url: UrlOption = None,
) -> None:
    """Play on real processes what was found in simulation: the same file and seed, whatever its worlds.

    Faults that cannot be made there are named, with the reason, and refused unless they are to be left out. So are
    other delays and whims of the simulated machine, which no real one has.

    Example: assay faults replay out/explore/crash-restart-shrunk.yaml --seed 7 --leave-out
    """
    loaded = _scenario(scenario)
    reasons = {fault: why for fault in loaded.faults if (why := why_only_simulated(fault))}
    for fault, why in reasons.items():
        word = "left out" if leave_out else "cannot be made"
        errors.print(f"{escape(describe(fault))} at {fault.at_s:g} s {word}: {escape(why)}", soft_wrap=True)
    if reasons and not leave_out:
        raise _stop(f"{loaded.name} has faults that only the simulator can make; --leave-out goes on without", USAGE)
    real = msgspec.structs.replace(
        loaded,
        worlds=(ScenarioWorld.REAL,),
        faults=tuple(fault for fault in loaded.faults if fault not in reasons),
        delays=Delays(),
        buggify=False,
    )
    _execute(real, _command("replay", scenario, seed, mutant, leave_out), out, seed, mutant, attempts, url)


def _execute(
    loaded: Scenario,
    command: str,
    out: Path | None,
    seed: int | None,
    mutant: list[str] | None,
    attempts: int,
    url: str | None,
) -> NoReturn:
    """Run a scenario, print what came of it, and exit."""
    mutants = tuple(mutant or ())
    try:
        for name in mutants:
            find(name)
    except UnknownMutantError as error:
        raise _stop(str(error), USAGE) from error
    used_seed = loaded.seed if seed is None else seed
    folder = out or Path("out") / "faults" / f"{loaded.name}-{used_seed}"
    options = RunOptions(
        out=folder,
        seed=used_seed,
        mutants=mutants,
        toxiproxy_url=url,
        command=command,
        attempts=attempts,
    )
    try:
        result = _run(loaded, options)
    except RunError as error:
        raise _stop(str(error), USAGE) from error
    except Exception as error:
        # A defect of ours must not look like a finding: Python itself would end with status 1.
        errors.print_exception()
        raise _stop(f"the harness failed: {error!r}", HARNESS) from error
    _print(result, folder)
    raise typer.Exit(EXIT_STATUS[result.verdict])


def _command(name: str, scenario: str, seed: int | None, mutant: list[str] | None, leave_out: bool = False) -> str:
    words = ["assay", "faults", name, scenario, "--seed", str(_scenario(scenario).seed if seed is None else seed)]
    words += ["--leave-out"] if leave_out else []
    return shlex.join(words + [word for each in mutant or () for word in ("--mutant", each)])


def _run(scenario: Scenario, options: RunOptions) -> RunResult:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(scenario.name, total=None, what="starting the broker")
        return run_scenario(scenario, options, lambda phase, events: bar.update(task, what=f"{phase}, {events} events"))


def _print(result: RunResult, folder: Path) -> None:
    console.print(f"[{_STYLES[result.verdict]}]{result.verdict.value.upper()}[/]  {escape(result.summary)}")
    for finding in result.findings:
        mark = "red" if finding.severity is Severity.SAFETY else "yellow"
        values = ", ".join(finding.values[:_MAX_VALUES_SHOWN])
        more = " ..." if len(finding.values) > _MAX_VALUES_SHOWN else ""
        console.print(
            f"  [{mark}]{finding.anomaly} {finding.checker}[/] {escape(finding.message)}: {escape(values)}{more}"
        )
    for check in result.checks:
        value = "none" if check.value is None else f"{check.value:g}"
        what = f"{check.name} = {value} {check.unit}, target {check.relation} {check.bound:g}"
        console.print(f"  [{_STYLES[check.verdict]}]{check.verdict.value}[/] {what}")
    for summary in result.percentiles:
        console.print(
            f"  {summary.name}: p50 {summary.p50_us / 1e3:.2f} ms, p99 {summary.p99_us / 1e3:.2f} ms, "
            f"max {summary.max_us / 1e3:.1f} ms over {summary.count}"
        )
    console.print(f"  artefacts in {folder}", soft_wrap=True)


@app.command()
def proxy(
    port: Annotated[int, typer.Option(help="Port of the API on 127.0.0.1; 0 = any free one.")] = DEFAULT_PORT,
    seed: Annotated[int, typer.Option(help="Seed of every chance the proxy takes.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log connections that fail.")] = False,
) -> None:
    """Run the embedded toxiproxy server for anybody's use, until Ctrl-C.

    It speaks the HTTP API of toxiproxy 2.12, so its clients and `toxiproxy-cli` work with it. Two toxics are its own:
    loss_retx (lost segments arrive a retransmission later) and blackhole (a partition that loses nothing).
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(message)s")
    try:
        asyncio.run(_serve(port, seed))
    except OSError as error:
        raise _stop(f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}", USAGE) from error


async def _serve(port: int, seed: int) -> None:
    server = ToxiproxyServer(seed=seed)
    await server.start(port)
    console.print(f"toxiproxy API on {server.url} (Ctrl-C ends it)")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        await server.stop()


__all__ = ["EXIT_STATUS", "ScenarioWorld", "app"]
