"""Run Locust with our users in a process of its own. Locust is never imported here: that would patch this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import msgspec
from rich.console import Console

from assay.conformance.targets import Endpoint
from assay.loadtests.exit_status import OF_VERDICT, ExitStatus
from assay.loadtests.latency_book import read_latencies
from assay.loadtests.machine import this_machine
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Verdict, worst, write_result

OUT_VARIABLE = "ASSAY_LOCUST_OUT"
LATENCIES_FILE = "latencies.json"
SAMPLES_FILE = "samples.parquet"
STOP_TIMEOUT_S = 10
GRACE_S = 30.0
"""Beyond the run time, for Locust to start and stop."""


class LocustPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A Locust run. ``seconds`` None = with the web page, until interrupted."""

    users: int
    spawn_rate: float
    seconds: float | None
    user_classes: tuple[str, ...]
    web_port: int = 0
    processes: int = 1
    """More than one: a master, which only adds up, and as many workers."""


def endpoint_url(endpoint: Endpoint) -> str:
    """The value of Locust's ``--host``."""
    login = ""
    if endpoint.username is not None:
        password = "" if endpoint.password is None else f":{quote(endpoint.password, safe='')}"
        login = f"{quote(endpoint.username, safe='')}{password}@"
    return f"mqtt://{login}{endpoint.host}:{endpoint.port}"


def locust_command(plan: LocustPlan, endpoint: Endpoint, *, locustfile: Path, folder: Path) -> list[str]:
    """The command line of Locust."""
    command = [sys.executable, "-m", "locust", "-f", str(locustfile), "--host", endpoint_url(endpoint)]
    command += ["--users", str(plan.users), "--spawn-rate", str(plan.spawn_rate)]
    command += ["--stop-timeout", str(STOP_TIMEOUT_S)]
    if plan.processes > 1:
        command += ["--processes", str(plan.processes)]
    if plan.seconds is not None:
        command += ["--headless", "--run-time", f"{plan.seconds:g}s", "--only-summary", "--loglevel", "WARNING"]
    else:
        command += ["--web-host", "127.0.0.1", "--web-port", str(plan.web_port), "--class-picker"]
    return command + list(plan.user_classes)


def run_locust(
    plan: LocustPlan, endpoint: Endpoint, *, folder: Path, console: Console, target: str = "", command: str = ""
) -> int:
    """Run to the end and write ``result.json``; returns the exit status: 0, 1 when a request failed, 5 when nothing was
    measured. Ctrl-C ends Locust, then this.
    """
    if find_spec("locust") is None:
        console.print(r"[red]error:[/] Locust is not installed: pip install 'assay-mq\[load]'", highlight=False)
        return ExitStatus.USAGE
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("result.json", LATENCIES_FILE, SAMPLES_FILE):
        (folder / name).unlink(missing_ok=True)  # what an earlier run left is no result of this one
    environment = {**os.environ, OUT_VARIABLE: str(folder)}
    began, started_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with as_file(files("assay.loadtests").joinpath("locustfile.py")) as locustfile:
        words = locust_command(plan, endpoint, locustfile=locustfile, folder=folder)
        timeout_s = None if plan.seconds is None else plan.seconds + GRACE_S
        try:
            done = subprocess.run(words, env=environment, check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            console.print(f"[red]error:[/] Locust did not end within {timeout_s:g} s and was killed", highlight=False)
            return ExitStatus.HARNESS
        except KeyboardInterrupt:
            if not (folder / LATENCIES_FILE).exists():
                return ExitStatus.PASS
            done = None
    result = locust_result(
        folder,
        plan,
        target=target,
        command=command,
        started_at=started_at,
        duration_s=time.monotonic() - began,
        status=0 if done is None else done.returncode,
    )
    write_result(folder, result)
    console.print(f"{result.verdict}: {result.summary}", highlight=False, markup=False)
    console.print(f"wrote {folder / 'result.json'}, {SAMPLES_FILE}, {LATENCIES_FILE} and Locust's own files")
    return OF_VERDICT[result.verdict]


def locust_result(
    folder: Path,
    plan: LocustPlan,
    *,
    target: str,
    command: str,
    started_at: str,
    duration_s: float,
    status: int,
) -> RunResult:
    """What a finished Locust run says. Its users are a closed loop, so no latency is held to a bound."""
    try:
        operations = read_latencies(folder / LATENCIES_FILE)
    except (OSError, msgspec.DecodeError):
        operations = []
    answered = sum(operation.percentiles.count for operation in operations)
    failed = sum(operation.failures for operation in operations)
    failures = Check(
        name="failed requests",
        value=float(failed) if operations else None,
        unit="requests",
        bound=0.0,
        relation="==",
        verdict=Verdict.FAIL if failed else Verdict.PASS if answered else Verdict.UNKNOWN,
        source="every request is answered",
        reason="" if answered or failed else f"Locust made no request; its exit status was {status}",
    )
    verdicts = [failures.verdict]
    if status and not failed:
        verdicts.append(Verdict.ERROR)
    summary = f"{answered} of {answered + failed} requests answered, {plan.users} users in {plan.processes} processes"
    if status and not failed:
        summary += f"; Locust ended with status {status}"
    return RunResult(
        kind=RunKind.LOAD,
        name="locust",
        verdict=worst(verdicts),
        summary=f"{summary}; latencies of a closed loop, not judged",
        target=target,
        world="real",
        started_at=started_at,
        duration_s=round(duration_s, 3),
        command=command,
        checks=[failures],
        metrics={
            "requests": answered + failed,
            "failed_requests": failed,
            "users": plan.users,
            "processes": plan.processes,
        },
        percentiles=[operation.percentiles for operation in operations if operation.percentiles.count],
        artefacts={
            name: path
            for name, path in (
                ("samples", SAMPLES_FILE),
                ("latencies", LATENCIES_FILE),
                ("Locust's requests", "locust_stats.csv"),
                ("Locust's failures", "locust_failures.csv"),
            )
            if (folder / path).is_file()
        },
        machine=this_machine(),
    )
