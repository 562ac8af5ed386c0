"""``assay conformance explore``: lives that nobody wrote, held to a model of what the standards allow."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assay.conformance.explore.amqp.life import REPLAY_SCHEMA as AMQP_SCHEMA
from assay.conformance.explore.amqp.life import AmqpReplay
from assay.conformance.explore.http.life import REPLAY_SCHEMA as HTTP_SCHEMA
from assay.conformance.explore.http.life import HttpReplay
from assay.conformance.explore.life import Replay
from assay.conformance.explore.queues.life import REPLAY_SCHEMA as QUEUE_SCHEMA
from assay.conformance.explore.queues.life import QueueReplay
from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.registry import load_statements
from assay.conformance.report import ExitCode, this_machine, utc_now, write_transcript
from assay.conformance.signals import stopped_by_signals
from assay.conformance.targets import ProbeError, Target, TargetError, TargetStartError, hosted_target, load_target
from assay.conformance.wire.amqp091 import AMQP_091
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.integrity import READ_ERRORS, why
from assay.reference_broker.trace.results import Check, Finding, RunKind, RunResult, Severity, Verdict, write_result
from assay.reference_broker.trace.terminal import WholeConsole

if TYPE_CHECKING:
    from assay.conformance.explore.campaign import Finding as Found
    from assay.conformance.explore.games import AnyReplay

console = WholeConsole()
errors = WholeConsole(stderr=True)
_SPEC_OF_VERSION = {4: "mqtt311", 5: "mqtt5", AMQP_091: "amqp091"}


def _stop(text: str, code: ExitCode) -> typer.Exit:
    errors.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
    return typer.Exit(int(code))


def _game_of(target: Target, recorded: AnyReplay | None, *, queues: bool, amqp: bool, http: bool) -> str:
    """What the lives are about."""
    said = target.capabilities
    only = said.get("amqp091", False) and not any(said.get(name, True) for name in ("mqtt311", "mqtt5"))
    if amqp or isinstance(recorded, AmqpReplay) or (recorded is None and only):
        return "amqp091"
    if http or isinstance(recorded, HttpReplay):
        return "http"
    return "queues" if queues or isinstance(recorded, QueueReplay) else "mqtt"


class _Header(msgspec.Struct):
    schema: str = ""


def _replay_of(path: Path) -> AnyReplay:
    """The life of a file, of whichever kind."""
    kinds: dict[str, type[AnyReplay]] = {QUEUE_SCHEMA: QueueReplay, HTTP_SCHEMA: HttpReplay, AMQP_SCHEMA: AmqpReplay}
    try:
        data = path.read_bytes()
        kind = kinds.get(msgspec.json.decode(data, type=described(_Header)).schema, Replay)
        return msgspec.json.decode(data, type=described(kind))
    except READ_ERRORS as error:
        raise _stop(f"{path} is no replay file: {why(error)}", ExitCode.USAGE) from error


def explore(
    target: Annotated[str, typer.Option("--target", help="Shipped target or path of a target file.")] = "reference",
    host: Annotated[str, typer.Option("--host", help="Host of a running broker, in place of --target.")] = "",
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port of that broker.")] = 1883,
    examples: Annotated[int, typer.Option("--examples", min=1, help="How many lives are played.")] = 1_000,
    seed: Annotated[int, typer.Option("--seed", help="Which lives.")] = 0,
    most: Annotated[int, typer.Option("--max-findings", min=1, max=100, help="Stop after so many.")] = 10,
    limit_s: Annotated[
        float | None, typer.Option("--time-limit", min=1.0, help="Stop after so many seconds, with what there is.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", min=1, max=64, help="Play on so many brokers at once, each with a process of its own."),
    ] = 1,
    queues: Annotated[bool, typer.Option("--queues", help="Lives of durable queues over MQTT 5.0.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Lives of durable queues over HTTP.")] = False,
    amqp: Annotated[
        bool, typer.Option("--amqp091", help="Lives of AMQP 0.9.1; also where a target speaks nothing else.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Play the life of this file, and nothing else.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for result.json and the findings.")] = None,
) -> None:
    """Play whole lives of several clients on a broker, and say where it leaves what the standards allow.

    Lives have all QoS, retained messages, wills, sessions that resume, shared and overlapping subscriptions, limits and
    takeovers; on a target that can be killed or whose clock moves, that too. A finding is shrunk to its shortest form.

    With --queues: producers, groups of consumers, settlements of all kinds, retries, dead letters, delays, limits and
    transactions, on a broker that has such queues (docs/spec). With --http the same over HTTP, as far as that goes:
    batches, long polls, consumers that come back or leave.

    Exit status: 0 nothing was found, 1 something was, 2 wrong usage, 3 the broker cannot be reached, 6 stopped by
    Ctrl-C or SIGTERM (what was seen until then is told all the same).

    With --amqp091, and where a target speaks nothing else: connections, channels, exchanges, bindings and queues of
    AMQP 0.9.1, with confirms, transactions, errors on purpose and what the broker says that it has of extensions.

    For example: assay conformance explore --target mosquitto --examples 500 --out out/explore
    """
    from assay.conformance.explore.campaign import Campaign
    from assay.conformance.explore.team import Team

    recorded = _replay_of(replay) if replay is not None else None
    try:
        judged = hosted_target(host, port) if host else load_target(target)
    except TargetError as error:
        raise _stop(str(error), ExitCode.USAGE) from error
    if jobs > 1 and judged.start is None:
        raise _stop("--jobs needs a broker for each, and this one is not ours to start", ExitCode.USAGE)
    if amqp + queues + http > 1:
        raise _stop("--queues, --http and --amqp091 are different lives", ExitCode.USAGE)
    game = _game_of(judged, recorded, queues=queues, amqp=amqp, http=http)
    if game == "http" and not judged.capabilities.get("http_url"):
        raise _stop(f"the target {judged.name} does not say where it speaks HTTP (http_url)", ExitCode.USAGE)
    if game == "queues" and not host and not judged.capabilities.get("queues", False):
        raise _stop(
            f"the target {judged.name} does not say that it has such queues (capability queues)", ExitCode.USAGE
        )
    started_at = utc_now()
    files: list[Path] = []

    def keep(finding: Found) -> None:
        """At once: a run may be cut."""
        if out is not None:
            files.append(_write(out, judged, len(files) + 1, finding))

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    cut, why_cut = ExitCode.OK, ""
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("lives", total=1 if recorded is not None else examples)

        def report(lives: int, what: str) -> None:
            progress.update(task, completed=lives, description=what)

        alone = jobs == 1 or recorded is not None
        kind: Any = Campaign if alone else partial(Team, jobs=jobs)
        campaign: Campaign | Team = kind(judged, game=game, report=report)
        campaign.seed = seed if recorded is None else recorded.seed
        try:
            with stopped_by_signals(campaign.interrupt), campaign:
                if recorded is not None and isinstance(campaign, Campaign):
                    campaign.replay(recorded.life, recorded.seed, keep)
                else:
                    campaign.explore(
                        examples, seed, max_findings=most, limit_s=limit_s or float("inf"), on_finding=keep
                    )
        except KeyboardInterrupt as error:
            cut, why_cut = ExitCode.STOPPED, f"stopped{f' by {error}' if str(error) else ''} before its end"
        except (TargetStartError, ProbeError, TargetUnreachableError) as error:
            cut, why_cut = ExitCode.UNREACHABLE, f"target {judged.name} cannot be reached: {error}"
    found = campaign.so_far()
    counting = [finding for finding in found.findings if finding.counts]
    for number, finding in enumerate(found.findings, 1):
        _print_finding(number, finding.replay, files[number - 1] if files else None, counts=finding.counts)
    rate = f", {found.lives / found.duration_s:.0f} a second" if found.duration_s else ""
    code = ExitCode.FAILED if counting else cut
    judgement = Verdict.FAIL if counting else Verdict.UNKNOWN if cut else Verdict.PASS
    verdict = "[bold green]PASS[/]" if code is ExitCode.OK else f"[bold red]{code.name}[/]"
    version = f" {found.version}" if found.version else ""
    console.print(
        f"{verdict}  {judged.name}{version}: {len(counting)} finding(s) in {found.lives} lives of {found.steps} steps"
        f"{rate}, seed {found.seed}",
        soft_wrap=True,
    )
    if why_cut:
        errors.print(f"[bold red]error:[/] {escape(why_cut)}", soft_wrap=True)
    if out is not None:
        result = RunResult(
            kind=RunKind.CONFORMANCE,
            name="conformance explore",
            verdict=judgement,
            summary=f"{len(counting)} finding(s) in {found.lives} lives" + (f"; {why_cut}" if why_cut else ""),
            target=judged.name,
            seed=found.seed,
            started_at=started_at,
            duration_s=round(found.duration_s, 3),
            command=f"assay {shlex.join(sys.argv[1:])}",
            findings=[
                Finding(
                    checker="explore",
                    anomaly=finding.replay.rule,
                    severity=Severity.SAFETY,
                    message=finding.replay.text,
                    values=list(finding.replay.clauses),
                )
                for finding in counting
            ],
            checks=[
                Check(
                    name="findings",
                    value=float(len(counting)),
                    unit="findings",
                    bound=0.0,
                    relation="==",
                    verdict=judgement,
                    source="nothing lies outside of what the standards allow",
                )
            ],
            metrics={"lives": found.lives, "steps": found.steps},
            artefacts={f"finding {number}": path.name for number, path in enumerate(files, 1)},
            machine=this_machine(),
        )
        console.print(f"result: {write_result(out, result)}", soft_wrap=True)
    raise typer.Exit(int(code))


def _write(out: Path, target: Target, number: int, finding: Found) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{target.name.replace(':', '-')}-{number}-{finding.replay.rule}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(finding.replay), indent=1))
    write_transcript(path.with_suffix(".jsonl"), finding.transcript)
    return path


def _print_finding(number: int, replay: AnyReplay, path: Path | None, *, counts: bool) -> None:
    remark = "" if counts else "  [yellow]seen once, not again: it does not count[/]"
    from assay.conformance.explore.games import story

    console.print(f"[bold red]{number}. {replay.rule}[/]  [dim]{' '.join(replay.clauses)}[/]{remark}")
    console.print(f"    {replay.text}", highlight=False, markup=False, soft_wrap=True)
    is_of_queues = isinstance(replay, QueueReplay | HttpReplay)
    statements = load_statements("queue" if is_of_queues else _SPEC_OF_VERSION[replay.version])
    if isinstance(replay, HttpReplay):
        statements = {**statements, **load_statements("http")}
    for clause in replay.clauses:
        sentence = statements[clause].sentence if clause in statements else "a section without a numbered statement"
        console.print(f"    {clause}  {sentence}", highlight=False, markup=False, soft_wrap=True)
    for line in story(replay):
        console.print(f"      {line}", highlight=False, markup=False, soft_wrap=True)
    if path is not None:
        console.print(f"    repeat: assay conformance explore --replay {shlex.quote(str(path))}", soft_wrap=True)
