"""``assay spark``: judge what runs left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from assay.reference_broker.trace.results import RunResult, Severity, Verdict
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable
from assay.spark_analysis.exit_status import OF_VERDICT, ExitStatus
from assay.spark_analysis.targets import TargetsError, load_targets

app = typer.Typer(
    no_args_is_help=True,
    help="Judge histories, traces and latency samples of runs in Spark SQL, against the figures the seeds promise.",
)

RunFolder = Annotated[Path, typer.Argument(help="Folder of one run or of many; everything below it is read.")]
Out = Annotated[Path | None, typer.Option(help="Where result.json and the tables go; RUN_FOLDER/spark by default.")]
TargetsFile = Annotated[Path | None, typer.Option(help="A YAML file of targets instead of the seeds' figures.")]
_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.UNKNOWN: "yellow", Verdict.ERROR: "magenta"}


def _stop(console: Console, error: Exception, status: ExitStatus) -> typer.Exit:
    console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, markup=True)
    return typer.Exit(status)


def _analyse(console: Console, run_folder: Path, out: Path | None, targets_file: Path | None) -> RunResult:
    # Importing Spark takes a second: only when it is needed, so that --help and `checks` stay quick.
    from assay.spark_analysis.analyse import analyse
    from assay.spark_analysis.session import SparkUnavailableError

    try:
        with console.status("reading") as status:
            return analyse(run_folder, out=out, targets=load_targets(targets_file), progress=status.update)
    except (FileNotFoundError, TargetsError) as error:
        raise _stop(console, error, ExitStatus.USAGE) from error
    except SparkUnavailableError as error:
        raise _stop(console, error, ExitStatus.UNAVAILABLE) from error


def _show(console: Console, result: RunResult) -> None:
    table = WholeTable("figure", "value", "bound", "verdict", "of what, and where the bound is from", title=result.name)
    for check in result.checks:
        value = "-" if check.value is None else f"{check.value:,.4g} {check.unit}"
        bound = "" if check.bound is None else f"{check.relation} {check.bound:,g}"
        colour = _COLOURS[check.verdict]
        table.add_row(check.name, value, bound, f"[{colour}]{check.verdict}[/]", escape(check.background))
    console.print(table)
    for check in result.checks:
        if check.name == "Damaged sources" and check.value:
            for line in check.source.split("; "):
                console.print(f"[yellow]damaged:[/] {escape(line)}", highlight=False)
    for finding in result.findings[:20]:
        colour = "red" if finding.severity is Severity.SAFETY else "yellow"
        values = ", ".join(finding.values[:5])
        console.print(f"[{colour}]{finding.anomaly}[/] {escape(finding.message)}: {escape(values)}", highlight=False)
    if len(result.findings) > 20:
        console.print(f"... and {len(result.findings) - 20} more findings")
    console.print(f"[{_COLOURS[result.verdict]}]{result.verdict.upper()}[/] {escape(result.summary)}", highlight=False)


@app.command("analyse")
def analyse_command(run_folder: RunFolder, out: Out = None, targets: TargetsFile = None) -> None:
    """Analyse a run: percentiles, delivery checks, fault windows and targets.

    Reads every history*.jsonl(.zst), trace*.jsonl(.zst) and samples*.parquet below RUN_FOLDER, writes result.json and
    Parquet tables, and prints the verdict. Exit status: 0 pass, 1 fail, 2 usage, 3 no Java, 5 no claim possible.
    """
    console = WholeConsole(stderr=False)
    result = _analyse(console, run_folder, out, targets)
    _show(console, result)
    raise typer.Exit(OF_VERDICT[result.verdict])


@app.command("notebook")
def notebook_command(
    run_folder: RunFolder,
    timeout_s: Annotated[int, typer.Option(min=1, help="Longest time for one cell.")] = 300,
    clusters: Annotated[
        bool, typer.Option("--clusters", help="Explain models instead: which cluster, and what when a node dies.")
    ] = False,
) -> None:
    """Explain a run with charts: executes the report notebook to RUN_FOLDER/spark/report.html and report.ipynb.

    Analyses the run first when that has not been done. With --clusters, RUN_FOLDER holds what models left
    (assay sim model run cluster planning nats rabbitmq rebalance --out RUN_FOLDER); the page is cluster/clusters.html.
    """
    from assay.spark_analysis.notebook import Kind, NotebookError, execute_notebook
    from assay.spark_analysis.sources import SPARK_FOLDER

    console = WholeConsole()
    if not clusters and not (run_folder / SPARK_FOLDER / "result.json").exists():
        _analyse(console, run_folder, None, None)
    try:
        with console.status("executing the notebook"):
            kind = Kind.CLUSTERS if clusters else Kind.REPORT
            executed = execute_notebook(run_folder, kind=kind, timeout_s=timeout_s)
    except FileNotFoundError as error:
        raise _stop(console, error, ExitStatus.USAGE) from error
    except (NotebookError, ValueError, OSError) as error:  # a damaged result of the analysis, too
        raise _stop(console, error, ExitStatus.HARNESS) from error
    console.print(f"open {executed.html}", highlight=False, soft_wrap=True)


@app.command("checks")
def checks_command(targets: TargetsFile = None) -> None:
    """List what is judged: the delivery rules with their catalogue ids, and the targets with their conditions."""
    from assay.spark_analysis.checkers import RULES

    console = WholeConsole()
    rules = WholeTable("anomaly", "checker", "meaning", title="Delivery rules")
    for rule in RULES:
        for anomaly, meaning in rule.anomalies.items():
            rules.add_row(anomaly, ", ".join(rule.checkers), meaning)
    console.print(rules)
    try:
        wanted = load_targets(targets)
    except TargetsError as error:
        raise _stop(console, error, ExitStatus.USAGE) from error
    figures = WholeTable("target", "bound", "of", "source", "judged when", title="Targets")
    for target in wanted.targets:
        conditions = target.conditions
        of = " ".join(part for part in (str(target.operation or ""), target.judges.describe()) if part)
        of += f", each {target.judges.per}" if target.operation is not None else ""
        when = [f"{conditions.samples_min} samples or more"] if conditions.samples_min > 1 else []
        when += ["the load saturates the broker"] if conditions.load == "saturating" else []
        when += ["every history is whole and drained"] if conditions.drained else []
        bound = f"{target.relation} {target.bound:,g} {target.unit}"
        figures.add_row(target.name, bound, of, target.source, "; ".join(when) or target.note)
    console.print(figures)
