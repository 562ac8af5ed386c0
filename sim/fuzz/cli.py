"""``assay fuzz``: damaged and valid packets against the broker's code, in memory."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.reference_broker.trace.terminal import WholeConsole
from assay.sim.fuzz.actions import ReplayError, load_replay, save_replay
from assay.sim.fuzz.campaign import Outcome, run
from assay.sim.fuzz.setups import AMQP_SETUPS, SETUPS
from assay.sim.fuzz.shrink import repeat

PASSED: Final = 0
FOUND: Final = 1
USAGE: Final = 2
MAX_PACKETS: Final = 1_000_000_000

app = typer.Typer(
    name="fuzz",
    no_args_is_help=True,
    help="""Fuzz the broker's own code in memory: valid sessions, damaged packets, lost connections, jumps in time.

    The same seed sends the same packets. Exit status: 0 nothing found, 1 a bug (its replay file is written), 2 wrong
    usage.""",
)
console = WholeConsole()
errors = WholeConsole(stderr=True)


Packets = Annotated[int, typer.Option(min=1, max=MAX_PACKETS, help="How many packets, or frames, to send at least.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the campaign; default: a new one, which is printed.")]
ReplayFile = Annotated[Path | None, typer.Option("--replay", help="Repeat a failure from its file instead.")]
Out = Annotated[Path, typer.Option(help="Folder for the replay file of a failure.")]
ShrinkFor = Annotated[float, typer.Option(min=0, help="Time for making the replay of a failure short.")]


@app.command()
def mqtt(
    packets: Packets = 100_000,
    seed: Seed = None,
    replay: ReplayFile = None,
    out: Out = Path("out/fuzz"),
    shrink_for_s: ShrinkFor = 30.0,
) -> None:
    """Send MQTT packets of both versions, valid and damaged, and check what the broker does with them.

    Checked after each step: nothing raises, whatever is sent back is a legal packet to a codec that is not the
    broker's, closed connections stay closed, a control client is still served, buffers and queues keep their bounds,
    and nothing is left when all clients have gone.

    Example: assay fuzz mqtt --packets 1000000 --seed 1
    """
    _fuzz("mqtt", packets, seed, replay, out, shrink_for_s)


@app.command()
def amqp091(
    packets: Packets = 100_000,
    seed: Seed = None,
    replay: ReplayFile = None,
    out: Out = Path("out/fuzz"),
    shrink_for_s: ShrinkFor = 30.0,
) -> None:
    """Send frames of AMQP 0.9.1, valid and damaged, and check what the broker does with them.

    As with MQTT; also that the control client's messages come once each and are confirmed, that delivery tags and
    confirms count as they should, and that no turn takes more steps than it may.

    Example: assay fuzz amqp091 --packets 1000000 --seed 1
    """
    _fuzz("amqp091", packets, seed, replay, out, shrink_for_s)


def _fuzz(protocol: str, packets: int, seed: int | None, replay: Path | None, out: Path, shrink_for_s: float) -> None:
    if replay is not None:
        _repeat(replay)
        return
    used_seed = secrets.randbits(32) if seed is None else seed
    console.print(f"seed {used_seed}", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("fuzzing", total=packets)

        seen: Outcome | None = None

        def show(outcome: Outcome) -> None:
            nonlocal seen
            seen = outcome
            text = f"{outcome.features} features, {outcome.packets_per_s:.0f} packets/s"
            progress.update(task, completed=outcome.packets, description=text)

        try:
            outcome = run(used_seed, packets, shrink_for_s=shrink_for_s, on_progress=show, protocol=protocol)
        except KeyboardInterrupt:
            if seen is not None:
                _print(seen)
            raise
    _print(outcome)
    if outcome.failure is None:
        raise typer.Exit(PASSED)
    console.print(f"[red bold]found[/] {escape(str(outcome.failure))}", highlight=False, soft_wrap=True)
    if outcome.replay is not None:
        path = out / f"replay-{used_seed}.json"
        save_replay(path, outcome.replay)
        console.print(
            f"Shrunk to {len(outcome.replay.actions)} actions: {path}\n"
            f"Run it again: [bold]assay fuzz {protocol} --replay {path}[/bold]",
            soft_wrap=True,
        )
    raise typer.Exit(FOUND)


def _repeat(path: Path) -> None:
    try:
        replay = load_replay(path)
    except (ReplayError, OSError) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(USAGE) from error
    known = SETUPS | AMQP_SETUPS
    if replay.setup not in known:
        errors.print(f"[red]error:[/red] there is no setup {replay.setup!r}; there are {', '.join(known)}")
        raise typer.Exit(USAGE)
    failure = repeat(replay)
    if failure is None:
        console.print(
            f"[green]{len(replay.actions)} actions, nothing found[/]; it was written for: {escape(replay.failure)}"
        )
        raise typer.Exit(PASSED)
    console.print(f"[red bold]found[/] {escape(str(failure))}", highlight=False, soft_wrap=True)
    raise typer.Exit(FOUND)


def _print(outcome: Outcome) -> None:
    console.print(
        f"{outcome.packets} packets in {outcome.lives} lives, {outcome.wall_s:.1f} s: "
        f"{outcome.packets_per_s:.0f} packets/s; {outcome.features} features, {outcome.scripts} scripts in the corpus, "
        f"{outcome.arcs} arcs seen in {outcome.traced_lives} traced lives; "
        f"memory grew by {outcome.growth_bytes / 2**20:.1f} MiB",
        highlight=False,
        soft_wrap=True,
    )
