"""``assay conformance``: list, run, peers, show, explain, self-check."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.case import Case, load_cases
from conformance.engine import DEFAULT_CONCURRENCY, Outcome, RunOptions
from conformance.peers_cli import peers
from conformance.pytest_runner import run_with_pytest
from conformance.registry import SPECS, coverage, home_of, load_statements
from conformance.report import ExitCode, missing_required, read_transcript
from conformance.run import DEFAULT_RESTARTS, Run, RunPlan, select
from conformance.self_check import Check, check_mutants, print_table, write_self_check
from conformance.targets import Target, TargetError, hosted_target, load_target, shipped_targets
from reference_broker.trace.conformance import CaseResult, CaseVerdict, read_report
from reference_broker.trace.integrity import READ_ERRORS, why
from reference_broker.trace.terminal import WholeConsole, WholeTable

app = typer.Typer(
    no_args_is_help=True,
    help="Judge any MQTT broker by its bytes: one case per rule, the statement it tests, the packets as evidence.",
)
app.command()(peers)
console = WholeConsole()
errors = WholeConsole(stderr=True)

STYLES = {
    CaseVerdict.PASS: "green",
    CaseVerdict.FAIL: "bold red",
    CaseVerdict.BLOCKED: "cyan",
    CaseVerdict.NON_STRICT: "yellow",
    CaseVerdict.UNSUPPORTED: "dim",
    CaseVerdict.XFAIL: "magenta",
    CaseVerdict.XPASS: "bold magenta",
    CaseVerdict.ERROR: "bold red",
    CaseVerdict.NOT_RUN: "dim",
}
_ORDER = list(STYLES)

SpecOption = Annotated[str, typer.Option("--spec", help="Only one specification: mqtt311, mqtt5 or queue.")]
AreaOption = Annotated[str, typer.Option("--area", help="Only one area, e.g. connect, publish, session.")]
FilterOption = Annotated[str, typer.Option("-k", help="Only ids that hold this text; several separated by commas.")]


def _stop(text: str, code: ExitCode) -> typer.Exit:
    errors.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    return typer.Exit(int(code))


def _selected(spec: str, area: str, text: str) -> list[Case]:
    if spec and spec not in SPECS:
        raise _stop(f"unknown specification {spec!r}: use {', '.join(SPECS)}", ExitCode.USAGE)
    cases = load_cases()
    areas = sorted({case.area for case in cases.values()})
    if area and area not in areas:
        raise _stop(f"unknown area {area!r}: use {', '.join(areas)}", ExitCode.USAGE)
    return select(cases.values(), text=text, spec=spec, area=area)


@app.command("list")
def list_cases(
    spec: SpecOption = "",
    area: AreaOption = "",
    text: FilterOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the cases and the statements they test."""
    cases = _selected(spec, area, text)
    if as_json:
        for case in cases:
            row = {name: getattr(case, name) for name in ("id", "title", "clauses", "level", "requires", "mutant")}
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        return
    for case in cases:
        console.print(f"[bold]{case.id}[/]  [dim]{' '.join(case.clauses)}[/]", highlight=False, soft_wrap=True)
        console.print(f"    {case.title}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(cases)} cases; more about one: assay conformance show CASE")
    for name in SPECS if not (spec or area or text) else ():
        covered = coverage(cases, name)
        console.print(
            f"{name}: cases for {covered.server_tested} of {covered.server} statements that a client can see a server "
            f"violate, {covered.client_tested} of {covered.client} duties of the client that a server reacts to; "
            f"{covered.untestable} cannot be tested from outside",
            soft_wrap=True,
        )
    console.print(f"targets: {', '.join(shipped_targets())}, or the path of a target file")


def _results_table(results: list[CaseResult]) -> Table:
    counts: dict[str, dict[CaseVerdict, int]] = {}
    for result in sorted(results, key=lambda result: result.case):
        row = counts.setdefault(f"{result.spec}/{result.area}", {})
        row[result.verdict] = row.get(result.verdict, 0) + 1
    used = [verdict for verdict in _ORDER if any(verdict in row for row in counts.values())]
    table = WholeTable("area", *(f"[{STYLES[verdict]}]{verdict.value}[/]" for verdict in used))
    for name, row in counts.items():
        table.add_row(name, *(str(row.get(verdict, "")) for verdict in used))
    table.add_section()
    table.add_row("all", *(str(sum(row.get(verdict, 0) for row in counts.values())) for verdict in used))
    return table


def _print_results(run: Run, code: ExitCode) -> None:
    results = sorted(run.results, key=lambda result: result.case)
    console.print(_results_table(results))
    for result in results:
        if result.verdict in (CaseVerdict.PASS, CaseVerdict.UNSUPPORTED, CaseVerdict.NOT_RUN):
            continue
        style = STYLES[result.verdict]
        console.print(f"[{style}]{result.verdict.value}[/] {result.case}  [dim]{' '.join(result.clauses)}[/]")
        console.print(f"    {result.title}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"    {result.detail}", highlight=False, markup=False, soft_wrap=True)
        if result.link:
            console.print(f"    see {result.link}", highlight=False, markup=False, soft_wrap=True)
        if result.verdict in (CaseVerdict.FAIL, CaseVerdict.XPASS, CaseVerdict.ERROR):
            console.print(f"    repeat: {result.reproduce}", highlight=False, markup=False, soft_wrap=True)
    for result in missing_required(results, run.plan.target.required, run.plan.target.optional):
        console.print(f"[bold red]required[/] {result.case}: {escape(result.detail)}", soft_wrap=True)
    for death in run.deaths:
        if not death.killers:
            text = f"{death.status} during {', '.join(death.during)}; none of them repeats that by itself {death.log}"
            console.print(f"[bold red]died[/] {escape(text.rstrip())}", soft_wrap=True)
    reasons = {result.detail for result in results if result.verdict is CaseVerdict.UNSUPPORTED}
    for reason in sorted(reasons):
        console.print(f"[dim]unsupported: {escape(reason)}[/]", soft_wrap=True)
    if run.plan.report is not None:
        console.print(f"report: {run.plan.report}   (assay conformance explain {run.plan.report} CASE)", soft_wrap=True)
    verdict = "[bold green]PASS[/]" if code is ExitCode.OK else f"[bold red]{code.name}[/]"
    version = f" {run.header.target_version}" if run.header.target_version else ""
    console.print(f"{verdict}  {run.header.target}{version}, seed {run.plan.options.seed}")


def _plan(
    target_name: str, host: str, port: int, seed: int, jobs: int, report: Path | None, out: Path | None
) -> RunPlan:
    try:
        target = hosted_target(host, port) if host else load_target(target_name)
    except TargetError as error:
        raise _stop(str(error), ExitCode.USAGE) from error
    argument = f"--host {shlex.quote(host)} --port {port}" if host else f"--target {shlex.quote(target_name)}"
    return RunPlan(
        target=target,
        target_argument=argument,
        options=RunOptions(seed=seed, concurrency=jobs),
        report=report or (out / "report.jsonl" if out is not None else None),
        folder=out,
        command=f"assay {shlex.join(sys.argv[1:])}",
    )


def _check_expectations(target: Target) -> None:
    unknown = [entry.case for entry in target.expect_fail if entry.case not in load_cases()]
    if unknown:
        raise _stop(f"target {target.name}: expect_fail names unknown cases: {', '.join(unknown)}", ExitCode.USAGE)


@app.command()
def run(
    target: Annotated[str, typer.Option("--target", help="Shipped target or path of a target file.")] = "reference",
    host: Annotated[str, typer.Option("--host", help="Host of a running broker, in place of --target.")] = "",
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port of that broker.")] = 1883,
    report: Annotated[Path | None, typer.Option("--json", help="Write the JSON-lines report to this file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for report, result.json and transcripts.")] = None,
    text: FilterOption = "",
    spec: SpecOption = "",
    area: AreaOption = "",
    seed: Annotated[int, typer.Option("--seed", help="Order of the cases and what they vary by chance.")] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=256, help="Cases that run at the same time.")
    ] = DEFAULT_CONCURRENCY,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, max=1_000, help="Times that a broker which dies is started again.")
    ] = DEFAULT_RESTARTS,
) -> None:
    """Run the cases against a broker and say which rules it breaks.

    Exit status: 0 all is well, 1 a rule is broken (or a case passes that the target file expects to fail), 2 wrong
    usage, 3 the broker cannot be reached, 4 the harness failed, 5 no case was selected.

    For example: assay conformance run --target mosquitto --spec mqtt311 --out out/mosquitto
    """
    plan = msgspec.structs.replace(_plan(target, host, port, seed, jobs, report, out), restarts=restarts)
    _check_expectations(plan.target)
    cases = _selected(spec, area, text)
    if not cases:
        raise _stop("no case is selected; see: assay conformance list", ExitCode.NOTHING_SELECTED)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(f"conformance of {plan.target.name}", total=len(cases))

        def advance(outcome: Outcome) -> None:
            progress.update(task, advance=1, description=outcome.result.case)

        current = Run(plan, on_outcome=advance)
        plugin = run_with_pytest(plan, current, cases)
    code = ExitCode.HARNESS if plugin.code is None else plugin.code
    if plugin.unreachable:
        raise _stop(f"target {plan.target.name} cannot be reached: {plugin.unreachable}", code)
    _print_results(current, code)
    raise typer.Exit(int(code))


def _find_case(case_id: str) -> Case:
    cases = load_cases()
    found = [case for case in cases.values() if case_id in case.id]
    if case_id in cases:
        return cases[case_id]
    if len(found) != 1:
        choices = f"it could be {', '.join(case.id for case in found[:10])}" if found else "see: assay conformance list"
        raise _stop(f"{case_id!r} does not name one case; {choices}", ExitCode.USAGE)
    return found[0]


def _print_case(case: Case) -> None:
    console.print(f"[bold]{case.id}[/]  ({case.level})")
    console.print(case.title, highlight=False, markup=False)
    console.print()
    console.print(case.expectation, highlight=False, markup=False)
    console.print()
    for clause in case.clauses:
        statement = load_statements(home_of(case, clause)).get(clause)
        sentence = "not in the registry" if statement is None else f"{statement.level}: {statement.sentence}"
        console.print(f"  {clause}  {sentence}", highlight=False, markup=False, soft_wrap=True)
    if case.requires:
        console.print(f"  needs      {', '.join(case.requires)}", highlight=False)
    console.print(f"  mutant     {case.mutant or 'none'}: the broken broker that this case must fail", highlight=False)
    if case.near_miss:
        console.print(f"  near miss  {case.near_miss}: an unusual, legal broker that it must pass", highlight=False)


@app.command()
def show(case: Annotated[str, typer.Argument(help="Case id, or a part of it that names one case.")]) -> None:
    """Show what a case expects, the statements behind it, and how the case itself is proved."""
    _print_case(_find_case(case))


@app.command()
def explain(
    report: Annotated[Path, typer.Argument(help="A report.jsonl of `run`.")],
    case: Annotated[str, typer.Argument(help="Case id, or a part of it that names one case.")],
) -> None:
    """Explain a result: what was expected, what was seen, and every packet both ways."""
    found = _find_case(case)
    results: list[CaseResult] = []
    problem = ""
    try:
        # What stands before a damaged line is still explained.
        results.extend(line for line in read_report(report) if isinstance(line, CaseResult) and line.case == found.id)
    except READ_ERRORS as error:
        problem = f"{report} is not a whole conformance report: {why(error)}"
    if not results:
        raise _stop(problem or f"{report} holds no result of {found.id}", ExitCode.USAGE)
    if problem:
        errors.print(f"[yellow]damaged:[/] {escape(problem)}", soft_wrap=True)
    if len(results) > 1:
        errors.print(f"[yellow]damaged:[/] {escape(str(report))} has {len(results)} results of it; the last is shown")
    result = results[-1]
    _print_case(found)
    console.print()
    console.print(f"[{STYLES[result.verdict]}]{result.verdict.value}[/] after {result.duration_ms:.1f} ms")
    if result.detail:
        console.print(result.detail, highlight=False, markup=False, soft_wrap=True)
    if result.link:
        console.print(f"see {result.link}", highlight=False, markup=False, soft_wrap=True)
    if result.transcript:
        _print_transcript(report.parent / result.transcript)
    console.print(f"repeat: {result.reproduce}", highlight=False, markup=False, soft_wrap=True)


def _print_transcript(path: Path) -> None:
    if not path.exists():
        console.print(f"[yellow]its transcript {path} is gone[/]", soft_wrap=True)
        return
    arrows = {"send": "[cyan]->[/]", "recv": "[green]<-[/]", "event": "[dim]--[/]"}
    console.print()
    lines, problem = read_transcript(path)
    if problem:
        errors.print(f"[yellow]damaged:[/] its transcript {escape(str(path))}: {escape(problem)}", soft_wrap=True)
    for line in lines:
        start = f"{line.t_ns / 1e6:9.3f} ms {escape(line.connection):>6} {arrows[line.direction]} "
        console.print(start + escape(line.decoded), highlight=False, soft_wrap=True)
        if line.hex:
            console.print(f"{'':23}[dim]{line.hex}[/]", highlight=False, soft_wrap=True)
    console.print()


@app.command("self-check")
def self_check(
    text: FilterOption = "",
    spec: SpecOption = "",
    area: AreaOption = "",
    mutant: Annotated[str, typer.Option("--mutant", help="Only this mutant or variation.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for result.json.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=16, help="Broken brokers that run at the same time.")] = 12,
) -> None:
    """Prove the suite: each case must fail a reference broker with the bug it names, and pass its near miss.

    Exit status: 0 every mutant is killed, 1 one survives, 3 the reference broker does not start, 5 nothing selected.
    """
    cases = [case for case in _selected(spec, area, text) if not mutant or mutant in (case.mutant, case.near_miss)]
    total = len({(case.judged_on, name) for case in cases for name in (case.mutant, case.near_miss) if name})
    if total == 0:
        raise _stop("no mutant is named by the selected cases", ExitCode.NOTHING_SELECTED)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("broken brokers", total=total)

        def advance(check: Check) -> None:
            progress.update(task, advance=1, description=check.mutant)

        result = check_mutants(cases, only=mutant, jobs=jobs, report=advance)
    print_table(console, result)
    if out is not None:
        path = write_self_check(out, result, command=f"assay {shlex.join(sys.argv[1:])}")
        console.print(f"result: {path}", soft_wrap=True)
    raise typer.Exit(int(result.exit_code))


if __name__ == "__main__":
    app()
