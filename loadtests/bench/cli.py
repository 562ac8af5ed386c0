"""``assay bench``: throughput beside other brokers, and storage beside raw system calls, each in one run."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn

from assay.conformance.targets import ProbeError, TargetError, TargetStartError
from assay.loadtests.bench.cases import AMQP, COMPARED, QUEUES, Case
from assay.loadtests.bench.engine.figures import EnginePlan, engine_lines, quick_engine_plan
from assay.loadtests.bench.figures import BenchRun
from assay.loadtests.bench.lines import Line, LinesRun, lines_result, run_lines
from assay.loadtests.bench.lines import table as lines_table
from assay.loadtests.bench.mqtt import run_bench
from assay.loadtests.bench.peers import KNOWN, KNOWN_AMQP091, Peer, peers, rabbitmq_queues, reference_queues
from assay.loadtests.bench.report import MARKS, notes, result, table
from assay.loadtests.bench.storage import report as storage_report
from assay.loadtests.bench.storage.log_files import LogNoteError
from assay.loadtests.bench.storage.plan import StoragePlan, quick_plan
from assay.loadtests.bench.storage.queued import QueuedMessagesError
from assay.loadtests.bench.storage.run import StorageRun, run_storage_bench
from assay.loadtests.bench.workload import BenchError, BenchPlan
from assay.loadtests.exit_status import ExitStatus
from assay.reference_broker.trace.results import RunResult, Verdict, write_result
from assay.reference_broker.trace.terminal import WholeConsole

app = typer.Typer(no_args_is_help=True, help="Measure throughput against other brokers, and storage, in one run.")

_WIDTH = 140
"""Columns of tables in a file or a pipe."""


def _wide_console() -> Console:
    """Wide enough for the tables where nobody sees its width."""
    console = WholeConsole()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    return console


def _compare(
    console: Console,
    names: list[str],
    known: Mapping[str, Callable[[], Peer]],
    plan: BenchPlan,
    out: Path | None,
    name: str,
) -> None:
    """Measure these brokers, and report; ends the program where that is no success."""
    try:
        brokers = peers(names, known)
    except TargetError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(ExitStatus.USAGE) from error
    if _report(console, _run(console, brokers, plan), out, name).verdict is Verdict.FAIL:
        raise typer.Exit(ExitStatus.FAIL)


def _run(console: Console, brokers: list[Peer], plan: BenchPlan) -> BenchRun:
    with console.status("starting the brokers") as status:
        try:
            return run_bench(brokers, plan, progress=status.update)
        except (TargetStartError, ProbeError) as error:
            console.print(f"[red]error:[/] {escape(str(error))}", highlight=False)
            raise typer.Exit(ExitStatus.UNREACHABLE) from error
        except BenchError as error:
            console.print(f"[red]error:[/] {escape(str(error))}: the figures of this run are void", highlight=False)
            raise typer.Exit(ExitStatus.HARNESS) from error


def _report(console: Console, bench: BenchRun, folder: Path | None, name: str) -> RunResult:
    console.print(table(bench))
    for name, reason in bench.skipped.items():
        console.print(f"[yellow]skipped[/] {name}: {escape(reason)}", highlight=False)
    for note in notes(bench):
        console.print(f"[yellow]missing[/] {note}", highlight=False)
    found = result(bench, name=name, command=shlex.join(["assay", *sys.argv[1:]]))
    for check in found.checks:
        if check.verdict is not Verdict.PASS:
            console.print(f"{MARKS[check.verdict]} {check.name}: {check.value:,.2f} {check.unit}", highlight=False)
    console.print(f"{escape(found.summary)}, in {bench.duration_s:.0f} s", highlight=False)
    if folder is not None:
        console.print(f"wrote {write_result(folder, found)}", highlight=False)
    return found


@app.command()
def mqtt(
    case: Annotated[
        list[Case] | None, typer.Option(help="Repeat for several; default all. See the list above.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="reference, mosquitto, nats, rabbitmq, amqtt, or a target file; repeat for several, default all five. "
            "The first is judged against the others."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds; the median counts.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="Length of one measurement.")] = 0.8,
    messages: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Messages per measurement, in place of time.")
    ] = 0,
    payload_bytes: Annotated[int, typer.Option(min=8, max=65_536)] = 100,
    window: Annotated[int, typer.Option(min=8, max=60_000, help="QoS 0 messages under way.")] = 1_000,
    in_flight: Annotated[int, typer.Option(min=8, max=60_000, help="QoS 1 and 2 messages under way.")] = 500,
    crowd: Annotated[
        int, typer.Option(min=1, max=10_000, help="Subscribers of the fan-out, publishers of the fan-in.")
    ] = 1_000,
    filters: Annotated[int, typer.Option(min=10, max=100_000, help="The most filters of the subscriptions.")] = 100_000,
    idle: Annotated[int, typer.Option(min=10, max=60_000, help="Idle connections.")] = 10_000,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
) -> None:
    """Measure brokers side by side: the same client, the same run, rounds interleaved, every message checked.

    \b
    qos0 qos1 qos2  one publisher to one subscriber, pipelined
    mixed           payloads of 10 to 1 000 bytes over 1 000 topics, and every topic new
    fan-out         one publisher to 1 000 subscribers
    fan-in          1 000 publishers to one subscriber
    subscriptions   publishes beside 10, 1 000, 100 000 wildcard filters: known topics,
                    topics never seen before, and while other subscriptions come and go
    open-loop       latency from when a message was due to its delivery, 10 000 a second
    idle            memory of the broker for each of 10 000 idle connections
    storm           CONNECTs a second at most, and CONNACK latency at 2 000 a second

    Each broker gets the best honest configuration we know, MQTT 3.1.1 and the same window. A peer that is not installed
    is skipped and named. "client" is the share of a core that the client used, and "null" the same client against a
    broker that only forwards: where the client may be the limit, an aim that is missed is unknown. On a busy machine
    "per CPU s" (per second of the broker's own processor time) is steadier than the rate.

    All cases and brokers take about 7 minutes. One case: assay bench mqtt --case fan-out --peer reference --peer nats

    Exit status: 0 measured, 1 an aim missed, 2 usage, 3 a broker cannot be started, 4 messages lost or out of order.
    """
    console = _wide_console()
    cases = tuple(dict.fromkeys(case or COMPARED))
    for others, command in ((QUEUES, "queue"), (AMQP, "amqp091")):
        if set(cases) & set(others):
            console.print(f"[red]error:[/] these are measured by: assay bench {command}", highlight=False)
            raise typer.Exit(ExitStatus.USAGE)
    plan = BenchPlan(
        rounds=rounds,
        seconds=seconds,
        messages=messages,
        cases=cases,
        payload_bytes=payload_bytes,
        window=window,
        in_flight=in_flight,
        crowd=crowd,
        filters=filters,
        idle=idle,
    )
    _compare(console, peer or list(KNOWN), KNOWN, plan, out, "bench mqtt")


@app.command()
def amqp091(
    case: Annotated[
        list[Case] | None, typer.Option(help="Repeat for several; default all. See the list above.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="reference, rabbitmq, or a target file; repeat for several, default both. The first is judged."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds; the median counts.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="Length of one measurement.")] = 1.0,
    messages: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Messages per measurement, in place of time.")
    ] = 0,
    payload_bytes: Annotated[int, typer.Option(min=8, max=65_536)] = 100,
    window: Annotated[int, typer.Option(min=8, max=60_000, help="Transient messages under way.")] = 1_000,
    in_flight: Annotated[int, typer.Option(min=8, max=60_000, help="Persistent messages under way.")] = 500,
    crowd: Annotated[int, typer.Option(min=1, max=2_000, help="Consumers of the fan-out.")] = 100,
    bindings: Annotated[int, typer.Option(min=1, max=100_000, help="Of the topic exchange.")] = 10_000,
    idle: Annotated[int, typer.Option(min=10, max=60_000, help="Idle connections.")] = 1_000,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
) -> None:
    """AMQP 0.9.1 side by side with RabbitMQ: the same client, the same run, rounds interleaved, every byte checked.

    \b
    transient      one publisher to one consumer, no acknowledgements; alike, and mixed
    persistent     durable queue, confirms, prefetch 500, an ack each or for several; mixed
    fanout         one publisher to 100 consumers with a queue each
    topic          a topic exchange with 10,000 patterns, one of which matches
    get            basic.get, 50 under way
    connects       connections that open a channel and go, 32 at once
    idle-channels  memory of the broker for a connection with a channel

    Mixed: bodies of 10 B to 10 KB, 50 routing keys, a quarter each without properties, with those of a kind, with
    headers, with ids and times of their own. What is confirmed is on disk with both brokers. "per CPU s" (per second of
    the broker's own processor time) is steadier than the rate on a busy machine. RabbitMQ is skipped, and named, where
    it is not installed. About 2 minutes.

    Exit status: 0 measured, 1 an aim missed, 2 usage, 3 a broker cannot be started, 4 messages lost or out of order.
    """
    console = _wide_console()
    cases = tuple(dict.fromkeys(case or AMQP))
    if set(cases) - set(AMQP):
        console.print(f"[red]error:[/] cases of AMQP 0.9.1 are: {', '.join(AMQP)}", highlight=False)
        raise typer.Exit(ExitStatus.USAGE)
    plan = BenchPlan(
        rounds=rounds,
        seconds=seconds,
        messages=messages,
        cases=cases,
        payload_bytes=payload_bytes,
        window=window,
        in_flight=in_flight,
        amqp_crowd=crowd,
        bindings=bindings,
        idle=idle,
    )
    _compare(console, peer or list(KNOWN_AMQP091), KNOWN_AMQP091, plan, out, "bench amqp091")


@app.command()
def queue(
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds; the median counts.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="Length of one measurement over sockets.")] = 1.0,
    messages: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Messages per measurement over sockets, in place of time.")
    ] = 0,
    in_flight: Annotated[int, typer.Option(min=8, max=60_000, help="Messages under way.")] = 500,
    quick: Annotated[bool, typer.Option("--quick", help="Small numbers: shows that it works; no verdicts.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the results, result.json each.")] = None,
) -> None:
    """Durable queues: the engine by itself, and over sockets beside RabbitMQ's durable queues in the same run.

    \b
    engine   enqueue in batches and singly, the whole life of a message,
             p99 at 10 000/s, cost with 10 to 1 000 000 queued, rebalance,
             memory of a consumer, a partition and a million delayed messages
    sockets  one queue, one publisher, one consumer: MQTT 5.0 at QoS 1, $ack
             for each message or for a turn's together, at durabilities
             interval, fsync and memory; RabbitMQ over AMQP 0.9.1 with
             persistent messages, confirms and manual acks
    keys     the same with a partition-key each: 100 keys in turn over 10
             partitions, $ack each, in order per key. RabbitMQ's queue has no
             partitions: its messages carry the key as a header of that size

    A message counts once its publish is confirmed and its settlement is confirmed (RabbitMQ: sent).
    "client us" is the client's own processor time for a message: one process for both protocols, which reads 16 KB at a
    time so that client and broker work at once.
    RabbitMQ is skipped, and named, where it is not installed. About 2 minutes.
    Exit status: 0 measured, 1 an aim missed, 2 usage, 3 a broker cannot be started, 4 messages lost or repeated.
    """
    console = _wide_console()
    engine = quick_engine_plan() if quick else EnginePlan(rounds=rounds)
    engine_run = _measure_lines(engine_lines(engine), engine.rounds)
    console.print(lines_table(engine_run, "The queue engine in one process, messages of 100 bytes in memory"))
    command = shlex.join(["assay", *sys.argv[1:]])
    found = lines_result(
        engine_run, name="bench queue engine", target="reference engine", command=command, judge=not quick
    )
    if out is not None:
        console.print(f"wrote {write_result(out / 'engine', found)}", highlight=False)
    plan = BenchPlan(
        rounds=1 if quick else rounds,
        seconds=seconds,
        messages=messages or (2_000 if quick else 0),
        cases=QUEUES,
        in_flight=in_flight,
    )
    brokers = [reference_queues(durability) for durability in ("interval", "fsync", "memory")]
    compared = _report(
        console,
        _run(console, [*brokers, rabbitmq_queues()], plan),
        None if out is None else out / "sockets",
        "bench queue",
    )
    if not quick and Verdict.FAIL in (found.verdict, compared.verdict):
        raise typer.Exit(ExitStatus.FAIL)


@app.command()
def sim(
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds; the median counts.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes that run seeds.")] = len(os.sched_getaffinity(0)),
    quick: Annotated[bool, typer.Option("--quick", help="Small numbers: shows that it works; no verdicts.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
) -> None:
    """The simulator: its kernel beside bare SimPy, the checkers of histories, and seeds an hour, all in one run.

    \b
    kernel    calls a second through the simulator's queue of events, a hundred
              of them waiting, beside SimPy's own timeouts
    checkers  events a second of histories of durable queues and of plain MQTT,
              all checkers together, and the memory that they hold for an event
    seeds     runs an hour of crash-restart (480 messages, two crashes), each
              simulated and judged, on all processors

    About a minute. Exit status: 0 measured, 1 an aim missed, 2 usage.
    """
    # It needs the extra `sim`, and no other bench does.
    from assay.loadtests.bench.simulation import SimPlan, quick_sim_plan, sim_lines

    console = _wide_console()
    plan = quick_sim_plan(jobs) if quick else SimPlan(rounds=rounds, jobs=jobs)
    run = _measure_lines(sim_lines(plan), plan.rounds)
    console.print(lines_table(run, f"The simulator on {jobs} processors"))
    command = shlex.join(["assay", *sys.argv[1:]])
    found = lines_result(run, name="bench sim", target="simulator", command=command, judge=not quick)
    console.print(escape(found.summary), highlight=False)
    if out is not None:
        console.print(f"wrote {write_result(out, found)}", highlight=False)
    if found.verdict is Verdict.FAIL:
        raise typer.Exit(ExitStatus.FAIL)


@app.command()
def faces(
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds; the median counts.")] = 3,
    messages: Annotated[int, typer.Option(min=10, max=500_000, help="Messages of a figure.")] = 20_000,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
) -> None:
    """The same queue over MQTT, HTTP and gRPC: messages a second of the broker's processor time.

    A queue in memory, payloads of 100 bytes, one client at a time; published once confirmed, consumed once settled.
    Needs the extras http and grpc. Exit status: 0 measured, 2 usage.
    """
    from assay.loadtests.bench.faces import FacesPlan, faces_lines, serve_faces  # it needs extras, and no other does

    console = _wide_console()
    plan = FacesPlan(rounds=rounds, messages=messages)
    with serve_faces() as broker:
        run = _measure_lines(faces_lines(broker, plan), plan.rounds)
    console.print(lines_table(run, "One queue over its faces, messages of 100 bytes in memory"))
    command = shlex.join(["assay", *sys.argv[1:]])
    found = lines_result(run, name="bench faces", target="reference", command=command, judge=False)
    if out is not None:
        console.print(f"wrote {write_result(out, found)}", highlight=False)


def _measure_lines(lines: list[Line], rounds: int) -> LinesRun:
    console = WholeConsole(stderr=True)
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=1.0)
        return run_lines(lines, rounds, lambda text, share: bar.update(task, description=text, completed=share))


def _measure_storage(plan: StoragePlan, directory: Path) -> StorageRun:
    console = WholeConsole(stderr=True)
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("preparing", total=1.0)
        try:
            return run_storage_bench(
                plan, directory, lambda text, share: bar.update(task, description=text, completed=share)
            )
        except OSError as error:
            console.print(f"[red]error:[/] {escape(str(error))}", highlight=False)
            raise typer.Exit(ExitStatus.USAGE) from error
        except (QueuedMessagesError, LogNoteError) as error:
            console.print(f"[red]error:[/] {escape(str(error))}: the figures of this run are void", highlight=False)
            raise typer.Exit(ExitStatus.HARNESS) from error


@app.command()
def storage(
    directory: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            exists=True,
            writable=True,
            help="Where to write, on a real disk; default: temporary files.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds; the median counts.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="One small round: shows that it works; no verdicts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON in place of the table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
) -> None:
    """Records per second of the log, beside raw system calls on the same bytes in the same round.

    Appending in batches and singly, group commit, sequential and random reads, recovery, and the memory that a million
    queued messages take. A full run needs about 4 GB of disk, which it removes, and takes a few minutes. Reads and
    opening are measured from the page cache. On a file system in memory (tmpfs), figures of syncs are not judged.
    Exit status: 0 measured, 1 a target missed, 2 usage or disk error, 4 the figures are void.
    """
    plan = quick_plan() if quick else StoragePlan(rounds=rounds)
    where = directory or Path(tempfile.gettempdir())
    run = _measure_storage(plan, where)
    found = storage_report.result(run, command="assay bench storage")
    console = _wide_console()
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    else:
        console.print(storage_report.table(run))
        for note in storage_report.notes(run):
            console.print(note, highlight=False)
    if out is not None:
        written = write_result(out, found)
        if not as_json:
            console.print(f"wrote {written}", highlight=False)
    if found.verdict is Verdict.FAIL:
        raise typer.Exit(ExitStatus.FAIL)
