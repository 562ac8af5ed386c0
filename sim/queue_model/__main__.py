"""``python -m assay.sim.queue_model``: many examples of the model, with figures at the end."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.reference_broker.trace.stopping import terminated_as_interrupted
from assay.reference_broker.trace.terminal import WholeConsole
from assay.sim.queue_model.campaign import Campaign, campaign
from assay.sim.queue_model.machine import STEPS

console = WholeConsole()
errors = WholeConsole(stderr=True)


def main(
    examples: Annotated[int, typer.Option(min=1, max=100_000_000, help="How many examples to run.")] = 1_000,
    seed: Annotated[int | None, typer.Option(help="Seed of the campaign; default: a new one, which is shown.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the examples.")] = 1,
    steps: Annotated[int, typer.Option(min=1, max=1_000, help="Steps of an example at most.")] = STEPS,
    mutant: Annotated[list[str] | None, typer.Option(help="Break the engine on purpose; may be repeated.")] = None,
) -> None:
    """Let Hypothesis choose what happens to the queue engine, and hold it to its oracle.

    Exit status: 0 nothing found, 1 the engine did what it may not do (the shortest example is shown), 6 stopped
    before the end (what was seen until then is told).

    Example: python -m assay.sim.queue_model --examples 20000 --seed 1 --workers 2
    """
    used_seed = secrets.randbits(32) if seed is None else seed
    console.print(f"seed {used_seed}", highlight=False)
    told, total, stopped = 0, Campaign(), False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("examples", total=examples)

        def show(so_far: Campaign) -> None:
            nonlocal told, total
            total = so_far
            # At once: a campaign may be stopped before its end.
            for chunk in so_far.failures[told:]:
                console.print(
                    f"[red bold]found[/] with seed {chunk.seed}:\n{escape(chunk.failure)}",
                    highlight=False,
                    soft_wrap=True,
                )
            told = len(so_far.failures)
            text = f"{so_far.steps} steps, {len(so_far.failures)} failures"
            progress.update(task, completed=so_far.examples, description=text)

        try:
            campaign(examples, seed=used_seed, workers=workers, steps=steps, mutants=tuple(mutant or ()), on_chunk=show)
        except KeyboardInterrupt:
            stopped = True
    rules = ", ".join(f"{rule} {count}" for rule, count in total.covered.most_common())
    ends = ", ".join(f"{end} {count}" for end, count in total.ends.most_common())
    console.print(
        f"{total.examples} examples, {total.steps} steps, {len(total.failures)} failures, {total.wall_s:.1f} s "
        f"({total.wall_s / max(1, total.steps) * 1e6:.0f} us a step)\n{len(total.covered)} rules covered: {rules}\n"
        f"transactions: {ends}",
        highlight=False,
        soft_wrap=True,
    )
    raise typer.Exit(1 if total.failures else 6 if stopped else 0)


if __name__ == "__main__":
    with terminated_as_interrupted():
        typer.run(main)
