"""``assay load``: open-loop load runs, and Locust."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from assay.conformance.targets import ProbeError, RunningTarget, Target, TargetError, TargetStartError, running
from assay.loadtests import generator
from assay.loadtests.capabilities import UnsupportedError, supported, users_lack
from assay.loadtests.client import LoadClientError
from assay.loadtests.endpoint import find_target, has_queues
from assay.loadtests.exit_status import OF_VERDICT, ExitStatus
from assay.loadtests.locust_command import LocustPlan, run_locust
from assay.loadtests.profile import Profile, ProfileError, load_profile, shipped_profiles
from assay.loadtests.report import show
from assay.loadtests.runner import asked_rate_per_s, nothing_to_run, run_load
from assay.reference_broker.trace.results import RunResult, write_result
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable

app = typer.Typer(no_args_is_help=True, help="Open-loop load with honest latencies, and Locust users.")


def _fail(console: Console, error: Exception, status: ExitStatus, label: str = "error") -> typer.Exit:
    console.print(f"[red]{label}:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    return typer.Exit(status)


class _Bars:
    """Progress of the stages of a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last: TaskID | None = None

    def stage(self, name: str) -> generator.Progress:
        """A bar for the stage that begins; the clock of the one before stops."""
        if self._last is not None:
            self._progress.stop_task(self._last)
        task = self._last = self._progress.add_task(name, total=None)

        def update(elapsed_s: float, sent: int, total: int) -> None:
            self._progress.update(task, completed=sent, total=total)

        return update


def execute(profile: Profile, broker: RunningTarget, *, folder: Path, seed: int, console: Console) -> RunResult:
    """Run with progress bars; leaves out the workloads that need a capability which the target lacks."""
    target = broker.target
    command = f"assay load run {profile.name} --target {target.name} --seed {seed}"
    chosen, left_out = supported(profile, target, broker.endpoint)
    for name, said in left_out.items():
        console.print(
            f"[yellow]unsupported[/] workload {escape(name)} is left out, {escape(target.name)} lacks "
            + "; ".join(map(escape, said)),
            highlight=False,
        )
    if not chosen.workloads:
        result = nothing_to_run(profile, left_out, target=target.name, seed=seed, command=command)
        write_result(folder, result)
        return result
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        return run_load(
            chosen,
            broker.endpoint,
            target=target.name,
            folder=folder,
            seed=seed,
            command=command,
            stage=_Bars(progress).stage,
            left_out=left_out,
        )


@app.command()
def run(
    profile: Annotated[str, typer.Argument(help="Name of a shipped profile (assay load profiles) or a .yaml file.")],
    target: Annotated[
        str,
        typer.Option(help="reference, mosquitto, null, a target file, or mqtt://[user[:password]@]host[:port]."),
    ] = "reference",
    out: Annotated[Path, typer.Option(help="Folder for result.json, samples.parquet, histograms.jsonl.")] = Path(
        "out/load"
    ),
    seed: Annotated[int | None, typer.Option(help="Replaces the profile's: another schedule.")] = None,
    queues: Annotated[bool, typer.Option(help="A broker given by URL has $queue topics.")] = False,
    rate_times: Annotated[float, typer.Option(min=0.001, max=1_000, help="Multiplies every rate of the profile.")] = 1,
) -> None:
    """Run a load profile: arrivals on a seeded schedule, latency from when each message was due.

    First the same load runs against the null broker, which shows the generator's ceiling and its own latency. Exit
    status: 0 pass, 1 fail (loss, disorder, missed bound), 2 usage, 3 broker cannot be reached, or refuses CONNECT,
    5 unknown: too little was answered, the generator may have been the limit, or the broker supports nothing of it.
    A workload that needs a capability which the broker lacks is left out and named.
    """
    console = WholeConsole()
    try:
        chosen = load_profile(profile)
        chosen = chosen if rate_times == 1 else chosen.faster(rate_times)
        wanted: Target = find_target(target, queues=queues)
    except (ProfileError, TargetError) as error:
        raise _fail(console, error, ExitStatus.USAGE) from error
    seed = chosen.seed if seed is None else seed
    try:
        with running(wanted) as broker:
            result = execute(chosen, broker, folder=out, seed=seed, console=console)
    except UnsupportedError as error:
        raise _fail(console, error, ExitStatus.UNKNOWN, "unsupported") from error
    except (TargetStartError, ProbeError, LoadClientError, OSError) as error:
        raise _fail(console, error, ExitStatus.UNREACHABLE) from error
    show(console, result)
    console.print(f"wrote {out / 'result.json'}", highlight=False)
    raise typer.Exit(OF_VERDICT[result.verdict])


@app.command()
def profiles() -> None:
    """List the shipped profiles."""
    table = WholeTable()
    for name in ("profile", "what", "messages/s", "seconds"):
        table.add_column(name)
    for name in shipped_profiles():
        profile = load_profile(name)
        table.add_row(name, profile.description, f"{asked_rate_per_s(profile):,.0f}", f"{profile.phases.total_s:g}")
    WholeConsole().print(table)


@app.command()
def locust(
    target: Annotated[str, typer.Option(help="As for run.")] = "reference",
    users: Annotated[int, typer.Option(min=1, max=500)] = 10,
    spawn_rate: Annotated[float, typer.Option(min=0.1, max=500, help="Users started per second.")] = 10,
    seconds: Annotated[float, typer.Option(min=1, max=3_600, help="Length of a headless run.")] = 20,
    user: Annotated[
        list[str] | None, typer.Option(help="MqttUser or QueueUser; repeat. Default: what the target can.")
    ] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Locust's web page in place of a headless run; Ctrl-C ends.")
    ] = False,
    web_port: Annotated[int, typer.Option(min=0, max=65_535, help="0 = any free port.")] = 0,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="More than one: as many workers, whose figures a master adds up.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="Folder for Locust's and our files.")] = Path("out/locust"),
    queues: Annotated[bool, typer.Option(help="A broker given by URL has $queue topics.")] = False,
) -> None:
    """Run Locust users against a broker, in a process of its own, headless or with Locust's web page.

    Locust rounds latencies to whole milliseconds; our own microsecond figures are printed and written beside its own,
    of the same requests of all workers: result.json for `assay report`, samples.parquet for `assay spark analyse`.
    Locust's users wait for answers (closed loop): for latencies under a stated load use `assay load run`. Exit status:
    0 all answered, 1 a request failed, 2 usage, 3 broker cannot be reached, 4 Locust failed, 5 nothing was measured.
    """
    console = WholeConsole()
    try:
        wanted = find_target(target, queues=queues)
    except TargetError as error:
        raise _fail(console, error, ExitStatus.USAGE) from error
    plan = LocustPlan(
        users=users,
        spawn_rate=spawn_rate,
        seconds=None if ui else seconds,
        user_classes=tuple(user or (("MqttUser", "QueueUser") if has_queues(wanted) else ("MqttUser",))),
        web_port=web_port,
        processes=processes,
    )
    words = ["assay", "load", "locust", "--target", target, "--users", str(users), "--seconds", f"{seconds:g}"]
    command = shlex.join([*words, "--processes", str(processes)])
    try:
        with running(wanted) as broker:
            if said := users_lack(plan.user_classes, broker.target, broker.endpoint):
                raise UnsupportedError(f"{wanted.name} lacks {'; '.join(said)}")
            status = run_locust(plan, broker.endpoint, folder=out, console=console, target=wanted.name, command=command)
    except UnsupportedError as error:
        raise _fail(console, error, ExitStatus.UNKNOWN, "unsupported") from error
    except (TargetStartError, ProbeError, OSError) as error:
        raise _fail(console, error, ExitStatus.UNREACHABLE) from error
    raise typer.Exit(status)
