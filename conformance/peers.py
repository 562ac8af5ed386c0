"""Judge every peer that this machine has: install what is of npm or Maven, run the cases, keep one folder for each.

A peer is a foreign broker with a target file of ours. One that is not installed leaves a ``result.json`` that says so
and what to do about it, so that no report of the peers passes over it in silence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from enum import StrEnum
from pathlib import Path

import msgspec

from assay.conformance.case import Case
from assay.conformance.engine import RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.report import ExitCode, this_machine, utc_now
from assay.conformance.run import Run, RunPlan
from assay.conformance.selection import SelectionError, for_target, left_out
from assay.conformance.targets import (
    ProbeError,
    Target,
    TargetStartError,
    installed_version,
    packages_folder,
    search_path,
)
from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.results import RunKind, RunResult, Verdict, write_result

PEERS = (
    "reference",
    "mosquitto",
    "rabbitmq",
    "rabbitmq-amqp091",
    "nats",
    "amqtt",
    "aedes",
    "mochi",
    "fluxmq-v3",
    "fluxmq-v5",
    "rumqttd-v4",
    "rumqttd-v5",
    "hivemq",
    "artemis",
    "moquette",
)
"""Target files that make the matrix; the reference broker is the control."""

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>assay</groupId><artifactId>peer</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
_INSTALL_TIMEOUT_S = 300.0
_POLL_S = 0.25
_MESSAGE_CHARACTERS = 600


class PeerState(StrEnum):
    """How far a peer came."""

    MISSING = "missing"
    """Not installed."""
    FAILED_TO_START = "failed to start"
    NOTHING_TO_ASK = "nothing to ask"
    """All that was selected is about queues that it does not have."""
    STOPPED = "stopped"
    """The user stopped it before its end."""
    JUDGED = "judged"


class PeerOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one peer."""

    name: str
    state: PeerState
    version: str = ""
    counts: dict[CaseVerdict, int] = {}
    message: str = ""
    """What is wrong and what to do, unless it was judged."""
    code: ExitCode = ExitCode.UNREACHABLE
    duration_s: float = 0.0


class PeerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to judge the peers."""

    cases: tuple[Case, ...]
    out: Path
    """Gets one folder for each peer."""
    options: RunOptions = RunOptions()
    install: bool = True
    """Whether packages of npm and Maven may be installed into the cache folder."""
    command: str = ""


def _installed(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run the command of a package manager; returns what went wrong, empty if nothing did."""
    name, *arguments = command
    program = shutil.which(name, path=environment.get("PATH"))
    if program is None:
        return f"{name} is not on the PATH"
    try:
        done = subprocess.run(
            [program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            env=dict(environment),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name} failed: {error}"
    said = (done.stderr or done.stdout).strip()
    return "" if done.returncode == 0 else f"{name} failed: {said[-_MESSAGE_CHARACTERS:]}"


def npm_install(target: Target, folder: Path, environment: Mapping[str, str]) -> str:
    """Install the target's npm packages below ``folder``; returns what went wrong, empty if nothing did."""
    assert target.start is not None
    folder.mkdir(parents=True, exist_ok=True)
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder))
    return _installed(("npm", "install", *options, *target.start.npm), environment)


def maven_install(target: Target, folder: Path, environment: Mapping[str, str]) -> str:
    """Copy the target's Maven artifacts, and all that they need, to ``folder/lib``; returns what went wrong."""
    assert target.start is not None
    if shutil.which("javac", path=environment.get("PATH")) is None:
        return "javac is not on the PATH"
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in (coordinates.split(":") for coordinates in target.start.maven)
    )
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    # Renamed when it is whole, so that a copy that was cut is not taken for an installed broker.
    whole, part = folder / "lib", folder / "lib.part"
    for old in (whole, part):
        shutil.rmtree(old, ignore_errors=True)
    goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={part}")
    problem = _installed(("mvn", "--batch-mode", "--quiet", "--file", str(folder / "pom.xml"), *goal), environment)
    if not problem:
        part.rename(whole)
    return problem


def make_ready(target: Target, *, install: bool) -> tuple[str, str]:
    """Version of an installed peer, or empty and what is missing. Installs its packages first where that may be done.

    A target without a version command is taken as installed, with the version ``?``.
    """
    hook = target.start
    if hook is None or not (hook.version or hook.maven):
        return "?", ""
    version = installed_version(target)
    problem = ""
    if not version and (hook.npm or hook.maven) and install:
        get = npm_install if hook.npm else maven_install
        problem = get(target, packages_folder(target.name), {**os.environ, "PATH": search_path()})
        version = "" if problem else installed_version(target)
    if version:
        return version, ""
    parts = [f"{target.name} is not installed", problem, f"to have it judged: {hook.advice}" if hook.advice else ""]
    return "", "; ".join(part for part in parts if part)


def _leave_message(folder: Path, target: Target, message: str, command: str) -> None:
    """The result of a peer that was not judged, in the place of a former one."""
    (folder / "report.jsonl").unlink(missing_ok=True)
    result = RunResult(
        kind=RunKind.CONFORMANCE,
        name=f"conformance of {target.name}",
        verdict=Verdict.UNKNOWN,
        summary=message[:_MESSAGE_CHARACTERS],
        target=target.name,
        started_at=utc_now(),
        command=command,
        machine=this_machine(),
    )
    write_result(folder, result)


def _remove_results(folder: Path) -> None:
    """A run that is cut leaves no result; a former one must not stand for it."""
    for name in ("result.json", "report.jsonl"):
        (folder / name).unlink(missing_ok=True)


def judge_peer(
    target: Target,
    plan: PeerPlan,
    *,
    advance: Callable[[Outcome], None] = lambda _outcome: None,
    stop: threading.Event | None = None,
) -> PeerOutcome:
    """Run the cases against one peer. Never raises for what the peer does; ends soon after ``stop`` is set."""
    folder = plan.out / target.name
    if stop is not None and stop.is_set():
        _remove_results(folder)
        return PeerOutcome(name=target.name, state=PeerState.STOPPED, message=f"{target.name} was not begun")
    version, missing = make_ready(target, install=plan.install)
    if missing:
        _leave_message(folder, target, missing, plan.command)
        return PeerOutcome(name=target.name, state=PeerState.MISSING, message=missing)
    try:
        cases = for_target(plan.cases, target)
    except SelectionError as error:
        _leave_message(folder, target, str(error), plan.command)
        return PeerOutcome(name=target.name, state=PeerState.NOTHING_TO_ASK, version=version, message=str(error))
    _remove_results(folder)
    run_plan = RunPlan(
        target=target,
        options=plan.options,
        report=folder / "report.jsonl",
        folder=folder,
        command=plan.command,
        left_out=left_out(plan.cases, target),
    )
    run = Run(run_plan, on_outcome=advance)
    try:
        with run:
            if not _wait(list(run.submit_all(cases).values()), stop or threading.Event()):
                run.stop("stopped by the user")
            code = run.finish()
    except (TargetStartError, ProbeError) as error:
        message = f"{target.name} does not start: {error}"
        _leave_message(folder, target, message, plan.command)
        return PeerOutcome(name=target.name, state=PeerState.FAILED_TO_START, version=version, message=message)
    return PeerOutcome(
        name=target.name,
        state=PeerState.STOPPED if run.stopped else PeerState.JUDGED,
        version=run.header.target_version or version,
        counts=dict(Counter(result.verdict for result in run.results)),
        code=code,
    )


def _wait(pending: Sequence[Future[Outcome]], stop: threading.Event) -> bool:
    """Whether all futures ended before ``stop``."""
    left = set(pending)
    while left:
        if stop.is_set():
            return False
        done, left = wait(left, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()
    return True


def overall(outcomes: Sequence[PeerOutcome]) -> ExitCode:
    """Exit status of a run over peers: what their verdicts say is for the report, not for the status.

    OK when each installed peer was judged to the end, HARNESS when a case of one ended in an error of the bench,
    UNREACHABLE when one does not start or none is installed.
    """
    if any(outcome.state is PeerState.STOPPED for outcome in outcomes):
        return ExitCode.STOPPED
    if any(
        outcome.state is PeerState.FAILED_TO_START or outcome.counts.get(CaseVerdict.NOT_RUN) for outcome in outcomes
    ):
        return ExitCode.UNREACHABLE
    if any(outcome.counts.get(CaseVerdict.ERROR) for outcome in outcomes):
        return ExitCode.HARNESS
    if any(outcome.state is PeerState.JUDGED for outcome in outcomes):
        return ExitCode.OK
    nothing = any(outcome.state is PeerState.NOTHING_TO_ASK for outcome in outcomes)
    return ExitCode.NOTHING_SELECTED if nothing else ExitCode.UNREACHABLE
