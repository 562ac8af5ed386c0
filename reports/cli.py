"""``assay report``: make the static site, JUnit, Markdown summary and badge of a run folder."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.terminal import WholeConsole
from assay.reports.collect import ReportError
from assay.reports.site import ReportSummary, build_report
from assay.reports.verdicts import KIND_LABELS, RUN_LOOKS

EXIT_NOT_PASS = 1
EXIT_NOTHING_TO_REPORT = 2
_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.ERROR: "yellow", Verdict.UNKNOWN: "dim"}

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def report(
    run_folder: Annotated[
        Path, typer.Argument(help="Folder with runs: every result.json and report.jsonl below it is reported.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the site. Default: RUN_FOLDER/report.", show_default=False)
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            help="Only runs of this target decide the verdict, others are shown for comparison; may be repeated. "
            "Default: every run decides.",
            show_default=False,
            metavar="TARGET",
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with status 1 unless the overall verdict is pass.")
    ] = False,
) -> None:
    """Write a static report of all runs below a folder; it opens from a file, without server or network.

    The site holds index.html, junit.xml, summary.md (for a CI job summary), badge.json (shields.io endpoint) and
    assay-report.json. A former report in the same place is replaced.

    Exit status: 0 written; 1 with --check when the overall verdict is not pass; 2 when there is nothing to report or
    the report cannot be written.
    """
    site = out if out is not None else run_folder / "report"
    errors = WholeConsole(stderr=True, highlight=False)
    try:
        with errors.status("Writing the report"):
            summary = build_report(run_folder, site, judge or ())
    except ReportError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(EXIT_NOTHING_TO_REPORT) from error
    _tell(summary, site, errors)
    if open_browser:
        webbrowser.open((site / "index.html").resolve().as_uri())
    if check and summary.verdict is not Verdict.PASS:
        raise typer.Exit(EXIT_NOT_PASS)


def _tell(summary: ReportSummary, site: Path, errors: Console) -> None:
    console = WholeConsole(highlight=False, soft_wrap=True)
    for problem in summary.problems:
        errors.print(f"cannot read {problem}", style="yellow", markup=False)
    for run in summary.runs:
        look = RUN_LOOKS[run.verdict]
        line = f"{look.glyph} {look.label:<8}{KIND_LABELS[run.kind]:<16}{run.name} ({run.target})"
        aside = "" if run.decides else ", for comparison"
        for note in run.notes:
            errors.print(f"{run.place}: {note}", style="yellow", markup=False)
        console.print(line + aside, style=_STYLES[run.verdict] if run.decides else "dim", markup=False)
    look = RUN_LOOKS[summary.verdict]
    console.print(f"{look.glyph} {look.label}: {summary.headline}", style=_STYLES[summary.verdict], markup=False)
    console.print(f"Report: {site / 'index.html'}", markup=False)


def main() -> None:
    """Entry point of ``python -m assay.reports.cli``."""
    app()


if __name__ == "__main__":
    main()
