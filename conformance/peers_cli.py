"""``assay conformance peers``: the matrix of all brokers that this machine has."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.conformance.case import load_cases
from assay.conformance.engine import DEFAULT_CONCURRENCY, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.peers import PEERS, PeerOutcome, PeerPlan, PeerState, judge_peer, overall
from assay.conformance.report import ExitCode
from assay.conformance.selection import Selection, SelectionError, check_target, select, split
from assay.conformance.signals import stopped_by_signals
from assay.conformance.targets import Target, TargetError, load_target
from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable

_SHOWN = tuple(CaseVerdict)

console = WholeConsole()
errors = WholeConsole(stderr=True)


def _usage(text: str) -> typer.Exit:
    errors.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    return typer.Exit(int(ExitCode.USAGE))


def _targets(only: str) -> list[Target]:
    names = [name.strip() for name in only.split(",") if name.strip()] or list(PEERS)
    try:
        return [load_target(name) for name in dict.fromkeys(names)]
    except TargetError as error:
        raise _usage(str(error)) from error


def _judge_all(targets: Sequence[Target], plan: PeerPlan, at_once: int) -> list[PeerOutcome]:
    """Judge the peers, some at the same time, with a line of progress for each."""
    stop = threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        tasks = {target.name: progress.add_task(target.name, total=len(plan.cases), start=False) for target in targets}

        def judge(target: Target) -> PeerOutcome:
            task = tasks[target.name]
            progress.start_task(task)

            def advance(_outcome: Outcome) -> None:
                progress.update(task, advance=1)

            outcome = judge_peer(target, plan, advance=advance, stop=stop)
            took_s = progress.tasks[task].elapsed or 0.0
            progress.update(task, description=f"{target.name}: {outcome.state.value}")
            progress.stop_task(task)
            return msgspec.structs.replace(outcome, duration_s=took_s)

        pool = ThreadPoolExecutor(at_once, thread_name_prefix="peer")
        with stopped_by_signals(lambda _name: stop.set()), pool:
            return list(pool.map(judge, targets))


def _print(outcomes: Sequence[PeerOutcome], out: Path) -> None:
    used = [verdict for verdict in _SHOWN if any(verdict in outcome.counts for outcome in outcomes)]
    # Narrow enough for eighty columns, which is what a log has.
    table = WholeTable(
        "broker", "version", *(verdict.value for verdict in used), "s", "", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for outcome in outcomes:
        counts = (str(outcome.counts.get(verdict, "")) for verdict in used)
        judged = outcome.state is PeerState.JUDGED
        remark = "" if judged else f"[yellow]{outcome.state.value}[/]"
        table.add_row(outcome.name, outcome.version, *counts, f"{outcome.duration_s:.0f}" if judged else "", remark)
    console.print(table)
    for outcome in outcomes:
        if outcome.message:
            console.print(f"[yellow]{outcome.state.value}[/] {escape(outcome.message)}", soft_wrap=True)
    console.print(
        "fail: a MUST is broken; non_strict: a SHOULD is missed, or a debated reaction; xfail: known and explained"
    )
    console.print(f"matrix: assay report {shlex.quote(str(out))}", soft_wrap=True)


def peers(
    out: Annotated[Path, typer.Option("--out", help="Folder that gets one folder for each peer.")] = Path("out/peers"),
    only: Annotated[
        str, typer.Option("--only", help=f"Some target names, separated by commas. Default: {', '.join(PEERS)}.")
    ] = "",
    text: Annotated[
        list[str] | None, typer.Option("-k", help="Only case ids that hold this text; several by commas.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="Not these case ids; in the same forms as -k.")
    ] = None,
    spec: Annotated[
        list[str] | None,
        typer.Option("--spec", help="Only mqtt311, mqtt5, queue, amqp091, http or grpc; may be given again."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Order of the cases and what they vary by chance.")] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=256, help="Cases that run at the same time on a peer.")
    ] = DEFAULT_CONCURRENCY,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=8, help="Peers that are judged at the same time.")
    ] = 2,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install missing packages of npm and Maven in the cache.")
    ] = True,
) -> None:
    """Start every peer broker on loopback, run the cases on it, and keep what the matrix is drawn from.

    A peer that is not installed is reported, with what to do, and holds up no other. Packages of npm and Maven go
    below $ASSAY_CACHE, by default ~/.cache/assay.

    Exit status: 0 every installed peer was judged, whatever the verdicts; 2 wrong usage; 3 a peer does not start, or
    none is installed; 4 the bench failed on a case; 5 no case was selected; 6 it was stopped by Ctrl-C or SIGTERM (the
    reports are closed, and the brokers ended).

    For example: assay conformance peers --only mosquitto,nats && assay report out/peers --open
    """
    targets = _targets(only)
    try:
        selection = Selection(specs=split(*spec or ()), names=split(*text or ()), exclude=split(*exclude or ()))
        cases = select(load_cases(), selection)
        for target in targets:
            check_target(target, load_cases())
    except SelectionError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(int(error.code)) from error
    plan = PeerPlan(
        cases=tuple(cases),
        out=out,
        options=RunOptions(seed=seed, concurrency=jobs),
        install=install,
        command=f"assay {shlex.join(sys.argv[1:])}",
    )
    outcomes = _judge_all(targets, plan, at_once)
    _print(outcomes, out)
    raise typer.Exit(int(overall(outcomes)))
