"""``assay faults failover``: how long a real cluster takes no messages when its leader dies or freezes."""

from __future__ import annotations

import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.faults.failover.measure import MAX_ROUNDS, FailoverError, Failovers, LeaderFault, ReplicatedBroker, measure
from assay.faults.failover.nats import nats_cluster
from assay.faults.failover.rabbitmq import rabbitmq_cluster
from assay.reference_broker.trace.results import RunKind, RunResult, Series, Verdict, write_result
from assay.reference_broker.trace.terminal import WholeConsole

UNAVAILABLE = 3
HARNESS = 4


class _Cluster(ReplicatedBroker, Protocol):
    version: str


class Broker(StrEnum):
    NATS = "nats"
    RABBITMQ = "rabbitmq"


_CLUSTERS: dict[Broker, Callable[[Path], AbstractContextManager[_Cluster]]] = {
    Broker.NATS: nats_cluster,
    Broker.RABBITMQ: rabbitmq_cluster,
}


def result(broker: str, version: str, found: list[Failovers], *, seed: int, duration_s: float) -> RunResult:
    """The gaps as series, one of each fault; verdict fail when less was stored than confirmed."""
    metrics: dict[str, float | int | str] = {"version": version}
    for each in found:
        metrics |= {
            f"{each.fault}.median_s": round(statistics.median(each.gaps_s), 3),
            f"{each.fault}.longest_s": round(max(each.gaps_s), 3),
            f"{each.fault}.rounds": len(each.gaps_s),
            f"{each.fault}.confirmed": each.confirmed,
            f"{each.fault}.stored": each.stored,
        }
    short = [each for each in found if each.stored < each.confirmed]
    told = [f"{each.fault}: median {statistics.median(each.gaps_s):.2f} s of {len(each.gaps_s)}" for each in found]
    lost = "".join(f"; {each.confirmed - each.stored} confirmed are gone after {each.fault}" for each in short)
    return RunResult(
        kind=RunKind.FAULTS,
        name=f"failover {broker}",
        verdict=Verdict.FAIL if short else Verdict.PASS,
        summary="; ".join(told) + lost,
        target=broker,
        world="real",
        seed=seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=round(duration_s, 1),
        command=shlex.join(["assay", *sys.argv[1:]]),
        metrics=metrics,
        series=[
            Series(
                name=each.fault.value,
                unit="s",
                x_s=[float(number) for number in range(1, len(each.gaps_s) + 1)],
                y=[round(gap_s, 4) for gap_s in each.gaps_s],
                group="time without a confirm",
            )
            for each in found
        ],
        x_axis="round",
    )


def failover(
    broker: Annotated[Broker, typer.Argument(help="Whose cluster of three nodes.")],
    fault: Annotated[
        list[LeaderFault] | None, typer.Option(help="kill or pause the leader; default: both, one after the other.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="Of each fault.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the moments of the faults.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for result.json.")] = Path("out/failover"),
) -> None:
    """Measure failover of a real cluster on this machine: kill or pause the leader of a replicated queue, and publish.

    Three nodes on loopback, a queue on all of them, a publisher at a node that does not lead. A gap reaches from the
    last confirm before the fault to the first one after it. Takes about 20 s a round. Then:
    assay sim model compare nats --measured out/failover/result.json

    Exit status: 0 measured, 1 fewer stored than confirmed, 2 usage, 3 the broker is not installed or does not start,
    4 the cluster did not come back.
    """
    console, errors = WholeConsole(), WholeConsole(stderr=True)
    begun = time.monotonic()
    rng = random.Random(seed)
    found: list[Failovers] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_up = False
    try:
        with (
            tempfile.TemporaryDirectory(prefix="assay-failover-") as folder,
            Progress(*columns, console=errors, transient=True) as progress,
            _CLUSTERS[broker](Path(folder)) as cluster,
        ):
            is_up = True
            for chosen in fault or list(LeaderFault):
                task = progress.add_task(f"{broker}, {chosen}", total=rounds)

                def show(done: int, gap_s: float | None, task: object = task, chosen: LeaderFault = chosen) -> None:
                    text = f"{broker}, {chosen}" + ("" if gap_s is None else f": {gap_s:.2f} s")
                    progress.update(task, completed=done, description=text)  # type: ignore[arg-type]

                found.append(measure(cluster, chosen, rounds, rng, show))
            version = cluster.version
    except (FailoverError, OSError) as error:
        errors.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(HARNESS if is_up else UNAVAILABLE) from error
    told = result(broker.value, version, found, seed=seed, duration_s=time.monotonic() - begun)
    for each in found:
        console.print(f"{each.fault}: " + " ".join(f"{gap_s:.2f}" for gap_s in sorted(each.gaps_s)), highlight=False)
    console.print(f"{escape(told.summary)}; wrote {write_result(out, told)}", highlight=False)
    raise typer.Exit(0 if told.verdict is Verdict.PASS else 1)
