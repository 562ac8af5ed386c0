"""Run Locust with our users in a process of its own. Locust is never imported here: that would patch this process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import msgspec
from rich.console import Console

from conformance.targets import Endpoint
from loadtests.exit_status import ExitStatus

OUT_VARIABLE = "ASSAY_LOCUST_OUT"
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
    if plan.seconds is not None:
        command += ["--headless", "--run-time", f"{plan.seconds:g}s", "--only-summary", "--loglevel", "WARNING"]
        command += ["--json-file", str(folder / "locust"), "--csv", str(folder / "locust")]
    else:
        command += ["--web-host", "127.0.0.1", "--web-port", str(plan.web_port), "--class-picker"]
    return command + list(plan.user_classes)


def run_locust(plan: LocustPlan, endpoint: Endpoint, *, folder: Path, console: Console) -> int:
    """Run to the end; returns the exit status: 0, or 1 when a request failed. Ctrl-C ends Locust, then this."""
    if find_spec("locust") is None:
        console.print("[red]error:[/] Locust is not installed: pip install 'assay-mq[load]'", highlight=False)
        return ExitStatus.USAGE
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, OUT_VARIABLE: str(folder)}
    with as_file(files("loadtests").joinpath("locustfile.py")) as locustfile:
        command = locust_command(plan, endpoint, locustfile=locustfile, folder=folder)
        timeout_s = None if plan.seconds is None else plan.seconds + GRACE_S
        try:
            done = subprocess.run(command, env=environment, check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            console.print(f"[red]error:[/] Locust did not end within {timeout_s:g} s and was killed", highlight=False)
            return ExitStatus.HARNESS
        except KeyboardInterrupt:
            return ExitStatus.PASS
    if plan.seconds is not None:
        console.print(f"wrote {folder / 'latencies.json'} and Locust's own locust_stats.csv", highlight=False)
    return done.returncode
