"""``python -m mutation``: which mechanical bugs of the broker does nobody notice."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.reference_broker.trace.stopping import terminated_as_interrupted
from assay.reference_broker.trace.terminal import WholeConsole
from mutation.campaign import (
    DEFAULT_MODULES,
    CampaignError,
    Journal,
    Judged,
    draw,
    judge_all,
    plan_of,
    read_plan,
)
from mutation.judges import all_judges
from mutation.reach import cache_folder
from mutation.report import print_report, write_report

USAGE = 2
INTERRUPTED = 130
console = WholeConsole()
errors = WholeConsole(stderr=True)


def main(
    modules: Annotated[
        list[str] | None,
        typer.Argument(help="Modules or folders of reference_broker; default: all but server and tools."),
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="How many mutants to draw by chance; 0 = all.")] = 300,
    seed: Annotated[int | None, typer.Option(help="Seed of the draw; default: a new one, which is shown.")] = None,
    judges: Annotated[
        str, typer.Option(help="Only these judges, in this order, separated by commas; default: all.")
    ] = "",
    only: Annotated[str, typer.Option(help="Only mutants whose name holds this text.")] = "",
    budget_s: Annotated[float, typer.Option("--budget-s", min=1, help="Seconds of unit tests for a mutant.")] = 20.0,
    rest_s: Annotated[
        float, typer.Option("--rest-s", min=0, help="Seconds more of unit tests for one that everybody let live.")
    ] = 120.0,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Mutants at the same time.")] = 2,
    until_killed: Annotated[
        bool, typer.Option("--until-killed", help="Ask no more judges than it takes: faster, without rates per judge.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for mutants.jsonl and result.json.")] = Path("out/mutate"),
    maps: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps which check reaches what; default: $ASSAY_CACHE/mutation."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this mutants.jsonl of an interrupted run.")] = None,
) -> None:
    """Plant small mechanical bugs in copies of the broker, and list those that no judge notices.

    Exit status: 0 done, whatever survived; 2 wrong usage; 130 interrupted (go on with --resume).

    Example: python -m mutation --sample 60 --seed 7 reference_broker/core
    """
    began = time.monotonic()
    try:
        if resume is not None:
            plan = read_plan(resume)
        else:
            plan = plan_of(modules or DEFAULT_MODULES, sample, secrets.randbits(32) if seed is None else seed)
        journal = Journal(resume or out / "mutants.jsonl", plan, resume=resume is not None)
        known = {judge.name: judge for judge in all_judges()}
        wanted = [name.strip() for name in judges.split(",")] if judges else [*known]
        if unknown := set(wanted) - known.keys():
            message = f"unknown judges {sorted(unknown)}: use {', '.join(known)}"
            raise CampaignError(message)
    except CampaignError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(USAGE) from error
    console.print(f"seed {plan.seed}", highlight=False)
    mutants = [mutant for mutant in draw(plan.modules, plan.sample, plan.seed) if only in mutant.key]
    chosen = [known[name] for name in wanted]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=errors, transient=True) as progress:
            task = progress.add_task("mutants", total=len(mutants), completed=len(journal.done))

            def show(judged: Judged) -> None:
                state = "equivalent" if judged.equivalent else "killed" if judged.killed else "survives"
                progress.update(task, advance=1, description=f"{state} {judged.mutant.module}:{judged.mutant.line}")

            def tell(text: str) -> None:
                progress.update(task, description=text)
                if text.startswith("cannot"):
                    progress.console.print(escape(text), highlight=False, soft_wrap=True)

            judged = judge_all(
                mutants,
                chosen,
                journal,
                maps or cache_folder(),
                jobs=jobs,
                budget_s=budget_s,
                rest_s=rest_s,
                until_killed=until_killed,
                report=tell,
                on_judged=show,
            )
    except KeyboardInterrupt as error:
        errors.print(f"interrupted after {len(journal.done)} mutants; go on with --resume {journal.path}")
        raise typer.Exit(INTERRUPTED) from error
    print_report(console, judged, chosen)
    write_report(
        out,
        judged,
        chosen,
        seed=plan.seed,
        command=f"python -m mutation {shlex.join(sys.argv[1:])}",
        duration_s=time.monotonic() - began,
    )


if __name__ == "__main__":
    with terminated_as_interrupted():
        typer.run(main)
