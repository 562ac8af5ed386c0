"""``assay conformance``: list, run, peers, explore, show, explain, self-check."""

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

from assay.conformance.baseline import (
    Baseline,
    BaselineError,
    as_rows,
    difference,
    is_target,
    read_baseline,
    write_baseline,
)
from assay.conformance.case import Case, load_cases
from assay.conformance.engine import DEFAULT_CONCURRENCY, RunOptions
from assay.conformance.explore_cli import explore
from assay.conformance.judged import Outcome
from assay.conformance.peers_cli import peers
from assay.conformance.pytest_runner import run_with_pytest
from assay.conformance.registry import SPECS, coverage, home_of, load_statements
from assay.conformance.report import ExitCode, missing_required, read_transcript
from assay.conformance.run import DEFAULT_RESTARTS, Run, RunPlan
from assay.conformance.selection import (
    Selection,
    SelectionError,
    check_target,
    for_target,
    left_out,
    require,
    results_of,
    select,
    split,
    to_be_repeated,
)
from assay.conformance.self_check import JOBS, Check, check_mutants, print_table, work_of, write_self_check
from assay.conformance.signals import stopped_by_signals
from assay.conformance.targets import CAPABILITIES, Access, TargetError, choose_target, shipped_targets
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, read_report
from assay.reference_broker.trace.integrity import READ_ERRORS, why
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable

app = typer.Typer(
    no_args_is_help=True,
    help="Judge any MQTT or AMQP 0.9.1 broker by its bytes: one case per rule, what it tests, the packets as evidence.",
)
app.command()(peers)
app.command()(explore)
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

_ONLY, _WHERE, _SECRETS = "Which cases", "The broker", "TLS and credentials"

SpecOption = Annotated[
    list[str] | None,
    typer.Option(
        "--spec",
        help="Only one specification: mqtt311, mqtt5, queue, amqp091, http or grpc; may be given again.",
        rich_help_panel=_ONLY,
    ),
]
AreaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--area", help="Only one area, e.g. connect, publish, session; may be given again.", rich_help_panel=_ONLY
    ),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "-k",
        help="Only ids that hold this text, or match it (mqtt5/*/will-*); several separated by commas.",
        rich_help_panel=_ONLY,
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", help="Not these ids; in the same forms as -k.", rich_help_panel=_ONLY),
]


def _stop(text: str, code: ExitCode) -> typer.Exit:
    errors.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    return typer.Exit(int(code))


def _selected(
    spec: list[str] | None,
    area: list[str] | None,
    text: list[str] | None,
    exclude: list[str] | None = None,
    only: frozenset[str] | None = None,
) -> list[Case]:
    selection = Selection(
        specs=split(*spec or ()),
        areas=split(*area or ()),
        names=split(*text or ()),
        exclude=split(*exclude or ()),
        only=only,
    )
    try:
        return select(load_cases(), selection)
    except SelectionError as error:
        raise _stop(str(error), error.code) from error


@app.command("list")
def list_cases(
    spec: SpecOption = None,
    area: AreaOption = None,
    text: FilterOption = None,
    exclude: ExcludeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the cases and the statements they test."""
    cases = _selected(spec, area, text, exclude)
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
        detail = result.detail.replace("\n", "\n    ")
        console.print(f"    {detail}", highlight=False, markup=False, soft_wrap=True)
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
    if run.stopped:
        left = sum(result.verdict is CaseVerdict.NOT_RUN for result in results)
        console.print(f"[yellow]stopped[/] {escape(run.stopped)}; {left} cases have no verdict", soft_wrap=True)
    for name, count in run.plan.left_out.items():
        console.print(f"[dim]left out: {count} cases that need {name} ({CAPABILITIES[name]})[/]", soft_wrap=True)
    reasons = {result.detail for result in results if result.verdict is CaseVerdict.UNSUPPORTED}
    for reason in sorted(reasons):
        console.print(f"[dim]unsupported: {escape(reason)}[/]", soft_wrap=True)
    if run.plan.report is not None:
        console.print(f"report: {run.plan.report}   (assay conformance explain {run.plan.report} CASE)", soft_wrap=True)
    verdict = "[bold green]PASS[/]" if code is ExitCode.OK else f"[bold red]{code.name}[/]"
    version = f" {run.header.target_version}" if run.header.target_version else ""
    console.print(f"{verdict}  {run.header.target}{version}, seed {run.plan.options.seed}")


def _check_folder(path: Path | None) -> None:
    """Find out now, and not when the broker runs, that nothing can be written there."""
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _stop(f"cannot write to {path}: {error.strerror}", ExitCode.USAGE) from error


def _run_cases(plan: RunPlan, cases: list[Case]) -> tuple[Run, ExitCode]:
    """Run with progress on standard error, until the end or a signal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task(f"conformance of {plan.target.name}", total=len(cases))

        def advance(outcome: Outcome) -> None:
            progress.update(task, advance=1, description=outcome.result.case)

        current = Run(plan, on_outcome=advance)

        def stop(signal_name: str) -> None:
            if not current.is_open:
                raise KeyboardInterrupt(signal_name)
            current.stop(f"the run was stopped by {signal_name}")
            progress.update(task, description=f"stopping after {signal_name}")

        try:
            with stopped_by_signals(stop):
                plugin = run_with_pytest(plan, current, cases)
        except KeyboardInterrupt as error:
            current.close_unbegun(cases, "the run was stopped before its broker was up", ExitCode.STOPPED)
            raise _stop("the run was stopped before its end", ExitCode.STOPPED) from error
    code = ExitCode.HARNESS if plugin.code is None else plugin.code
    if plugin.unreachable:
        raise _stop(f"target {plan.target.name} cannot be reached: {plugin.unreachable}", code)
    return current, code


@app.command()
def run(
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="Shipped target or path of a target file; reference unless a broker is named.",
            rich_help_panel=_WHERE,
        ),
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Host of a broker that runs already. With --target, it replaces the address in that file.",
            rich_help_panel=_WHERE,
        ),
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65_535, help="Port of that broker; 1883, or 8883 with TLS.", rich_help_panel=_WHERE
        ),
    ] = None,
    username: Annotated[
        str, typer.Option("--username", help="User name of every client.", rich_help_panel=_SECRETS)
    ] = "",
    password_env: Annotated[
        str,
        typer.Option("--password-env", help="Environment variable that holds the password.", rich_help_panel=_SECRETS),
    ] = "",
    password_file: Annotated[
        str,
        typer.Option("--password-file", help="File whose first line is the password.", rich_help_panel=_SECRETS),
    ] = "",
    tls: Annotated[
        bool, typer.Option("--tls", help="TLS, with the authorities of this system.", rich_help_panel=_SECRETS)
    ] = False,
    ca: Annotated[
        str, typer.Option("--ca", help="TLS, with the authorities in this file (PEM).", rich_help_panel=_SECRETS)
    ] = "",
    cert: Annotated[str, typer.Option("--cert", help="Client certificate (PEM).", rich_help_panel=_SECRETS)] = "",
    key: Annotated[str, typer.Option("--key", help="Key of that certificate (PEM).", rich_help_panel=_SECRETS)] = "",
    server_name: Annotated[
        str,
        typer.Option(
            "--server-name",
            help="Name that the broker's certificate must hold, in place of the host.",
            rich_help_panel=_SECRETS,
        ),
    ] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="TLS with any certificate: tests nothing.", rich_help_panel=_SECRETS)
    ] = False,
    report: Annotated[Path | None, typer.Option("--json", help="Write the JSON-lines report to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for report, result.json, transcripts and logs of dead brokers.")
    ] = None,
    text: FilterOption = None,
    spec: SpecOption = None,
    area: AreaOption = None,
    exclude: ExcludeOption = None,
    rerun_failed: Annotated[
        Path | None,
        typer.Option(
            "--rerun-failed",
            help="Only what failed, or got no verdict, in this report (or the folder of one).",
            rich_help_panel=_ONLY,
        ),
    ] = None,
    required: Annotated[
        list[str] | None,
        typer.Option(
            "--required",
            help="Pattern (mqtt5/*) of cases that may be neither unsupported nor left out.",
            rich_help_panel=_ONLY,
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="File of known failures, which are accepted.")
    ] = None,
    write_to: Annotated[
        Path | None,
        typer.Option(
            "--write-baseline", help="Write what fails to this file: a baseline, or a target file, which is added to."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Order of the cases and what they vary by chance.")] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=256, help="Cases that run at the same time.")
    ] = DEFAULT_CONCURRENCY,
    restarts: Annotated[
        int, typer.Option("--restarts", min=0, max=1_000, help="Times that a broker which dies is started again.")
    ] = DEFAULT_RESTARTS,
    time_limit_s: Annotated[
        float | None,
        typer.Option("--time-limit", min=0.1, help="Seconds after which the run ends with what it has."),
    ] = None,
) -> None:
    """Run the cases against a broker and say which rules it breaks.

    Exit status:
    0 all is well
    1 a rule is broken, a case passes that is expected to fail, or a required one was not run
    2 wrong usage
    3 the broker cannot be reached, or it died and no case is to blame
    4 the harness failed
    5 no case was selected
    6 stopped by Ctrl-C, SIGTERM or --time-limit before a failure was seen

    A run that is stopped closes its report, with not_run for the rest, and ends every process that it started.

    For example: assay conformance run --target mosquitto --spec mqtt311 --out out/mosquitto
    """
    access = Access(
        target=target,
        host=host,
        port=port,
        username=username,
        password_env=password_env,
        password_file=password_file,
        tls=tls,
        ca=ca,
        cert=cert,
        key=key,
        server_name=server_name,
        insecure=insecure,
    )
    known = Baseline()
    try:
        chosen = choose_target(access)
        check_target(chosen, load_cases())
        selected = _selected(spec, area, text, exclude, None if rerun_failed is None else to_be_repeated(rerun_failed))
        own, chosen = chosen, require(chosen, required or (), selected)
        cases = for_target(selected, chosen)
        if baseline is not None:
            known = read_baseline(baseline)
            chosen = known.accepted_by(chosen, str(baseline))
    except SelectionError as error:
        raise _stop(str(error), error.code) from error
    except (TargetError, BaselineError) as error:
        raise _stop(str(error), ExitCode.USAGE) from error
    report = report or (out / "report.jsonl" if out is not None else None)
    _check_folder(out)
    _check_folder(None if report is None else report.parent)
    plan = RunPlan(
        target=chosen,
        target_argument=access.arguments(),
        options=RunOptions(seed=seed, concurrency=jobs),
        report=report,
        folder=out,
        command=f"assay {shlex.join(sys.argv[1:])}",
        restarts=restarts,
        time_limit_s=time_limit_s,
        left_out=left_out(selected, chosen),
    )
    current, code = _run_cases(plan, cases)
    _print_results(current, code)
    results = {result.case: result for result in current.results}
    for entry in known.stale(results, load_cases()):
        console.print(f"[yellow]stale[/] in {escape(str(baseline))}: {escape(entry)}", soft_wrap=True)
    if write_to is not None:
        try:
            count = write_baseline(write_to, own, results)
        except BaselineError as error:
            raise _stop(str(error), ExitCode.USAGE) from error
        how = "--target" if is_target(write_to.read_text(encoding="utf-8")) else "--baseline"
        console.print(f"{write_to}: {count} known failure(s), accepted by {how} {write_to}", soft_wrap=True)
    raise typer.Exit(int(code))


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A report.jsonl of `run`, or the folder that holds it.")],
    after: Annotated[Path, typer.Argument(help="A later one.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Compare two reports: what fails newly, what is fixed, what else has changed.

    Exit status: 0 nothing fails newly; 1 something does; 2 a report cannot be read; 3 nothing fails newly, but cases
    that had a verdict before were run without getting one.
    """
    try:
        found = difference(results_of(before), results_of(after))
    except SelectionError as error:
        raise _stop(str(error), error.code) from error
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        raise typer.Exit(int(found.exit_code))
    for title, changes in as_rows(found):
        for change in changes:
            verdicts = " -> ".join(
                "absent" if verdict is None else verdict for verdict in (change.before, change.after)
            )
            console.print(f"[bold]{title}[/] {change.case}  [dim]{verdicts}[/]", highlight=False, soft_wrap=True)
            if change.detail and change.after is not CaseVerdict.PASS:
                console.print(f"    {change.detail}", highlight=False, markup=False, soft_wrap=True)
    counts = ", ".join(f"{len(changes)} {title}" for title, changes in as_rows(found))
    console.print(f"{counts}, {found.same} the same", soft_wrap=True)
    raise typer.Exit(int(found.exit_code))


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
    text: FilterOption = None,
    spec: SpecOption = None,
    area: AreaOption = None,
    mutant: Annotated[str, typer.Option("--mutant", help="Only this mutant or variation.")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for result.json.")] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=64, help="Broken brokers that run at the same time.")
    ] = JOBS,
) -> None:
    """Prove the suite: each case must fail a reference broker with the bug it names, and pass its near miss.

    Exit status: 0 every mutant is killed, 1 one survives, 3 the reference broker does not start, 5 nothing selected.
    """
    cases = _selected(spec, area, text)
    work = work_of(cases, mutant)
    total = len(work)
    if mutant:
        cases = [case for case in cases if any(case in concerned for concerned in work.values())]
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
