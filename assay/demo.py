"""``assay demo``: the main job. Every part of the bench judges the reference broker, and one report tells the result.

Each step is a command of its own, run as a process, so that what the demo does can be repeated by hand; its output goes
to ``<step>.log`` in the run folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from assay.console_picture import add_picture
from assay.reference_broker.trace.integrity import READ_ERRORS
from assay.reference_broker.trace.results import RunResult, Verdict, read_result
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable

STEP_TIMEOUT_S = 240.0
_END_TIMEOUT_S = 20.0
"""For a step that is told to end, and ends what it has started."""
ATTEMPTS = 3
_NEEDED = ("pytest", "simpy", "toxiproxy", "locust", "pyspark", "jinja2")
"""One module of each extra: steps are processes, and would fail one by one."""
_STYLES = {
    Verdict.PASS: "[green]✔ pass[/]",
    Verdict.FAIL: "[red]✘ fail[/]",
    Verdict.UNKNOWN: "[yellow]? unknown[/]",
    Verdict.ERROR: "[red]! error[/]",
}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One command of the demo."""

    name: str
    title: str
    arguments: tuple[str, ...]
    folder: str
    """Where it leaves its ``result.json``, below the run folder; empty: it leaves none, its exit status says all."""
    decides: bool = True
    """Its verdict counts for the exit status. Other brokers are measured, not judged, by this demo."""
    beside: bool = False
    """It runs beside the step before it: neither measures how fast anything is, and a processor is enough for each."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a step."""

    step: Step
    verdict: Verdict
    summary: str
    duration_s: float
    only_latencies_open: bool = False
    """All else passed; how fast it was cannot be told on a machine as busy as this."""

    @property
    def is_well(self) -> bool:
        return self.verdict is Verdict.PASS or self.only_latencies_open


def only_latencies_are_open(result: RunResult) -> bool:
    """Whether everything was judged and passed but latencies, and what is said of the generator."""
    unknown = [check for check in result.checks if check.verdict is Verdict.UNKNOWN]
    return (
        result.verdict is Verdict.UNKNOWN
        and any(check.verdict is Verdict.PASS for check in result.checks)
        and bool(unknown)
        and all(check.unit == "ms" or check.name.startswith("generator: ") for check in unknown)
    )


def steps(out: Path, seed: int) -> list[Step]:
    """The commands, in order."""

    def folder(name: str) -> str:
        return str(out / name)

    seeded = ("--seed", str(seed))
    found = [
        Step(
            name="conformance",
            title="MQTT, AMQP 0.9.1 and queue suites on the reference broker",
            arguments=(
                "conformance",
                "run",
                "--target",
                "reference",
                *seeded,
                "--out",
                folder("conformance/reference"),
            ),
            folder="conformance/reference",
        ),
        Step(
            name="sim",
            title="Scenario crash-restart in simulation",
            arguments=("sim", "run", "crash-restart", *seeded, "--out", folder("sim/crash-restart")),
            folder="sim/crash-restart",
        ),
        Step(
            name="faults",
            title="The same scenario on real processes, with kill -9",
            arguments=("faults", "run", "crash-restart", *seeded, "--out", folder("faults/crash-restart")),
            folder="faults/crash-restart",
        ),
        Step(
            name="load",
            title="Open-loop load: QoS 0, 1, 2 and a durable queue",
            arguments=("load", "run", "smoke", "--target", "reference", *seeded, "--out", folder("load/smoke")),
            folder="load/smoke",
        ),
        Step(
            name="spark",
            title="Spark: percentiles, deliveries and targets",
            arguments=("spark", "analyse", str(out), "--out", folder("spark")),
            folder="spark",
        ),
        Step(
            name="notebook",
            title="The Spark analysis explained, as an executed notebook",
            arguments=("spark", "notebook", str(out)),
            folder="",
        ),
        # After Spark, which would take what a model says for what was measured.
        Step(
            name="models",
            title="Models: a cluster of three nodes whose leader dies, failover of NATS and RabbitMQ",
            arguments=("sim", "model", "run", "cluster", "nats", "rabbitmq", *seeded, "--out", folder("models")),
            folder="models/cluster",
            beside=True,
        ),
        Step(
            name="clusters",
            title="Which cluster, and what happens when a node dies, as an executed notebook",
            arguments=("spark", "notebook", "--clusters", folder("models")),
            folder="",
        ),
    ]
    if shutil.which("mosquitto") or Path("/usr/sbin/mosquitto").exists():
        peer = Step(
            name="mosquitto",
            title="The suites on Mosquitto, for comparison",
            arguments=(
                "conformance",
                "run",
                "--target",
                "mosquitto",
                *seeded,
                "--out",
                folder("conformance/mosquitto"),
            ),
            folder="conformance/mosquitto",
            decides=False,
            beside=True,
        )
        found.insert(1, peer)
    return found


class Processes:
    """Those of the steps that run, so that none outlives the demo."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: list[str], log: BinaryIO, environment: dict[str, str]) -> int:
        """Its exit status. Raises :class:`subprocess.TimeoutExpired`, and after :meth:`stop` :class:`StoppedError`."""
        with self._lock:
            if self._stopped:
                raise StoppedError
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            self._running.add(process)
        try:
            return process.wait(STEP_TIMEOUT_S)
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        """End all, and start no more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.terminate()


class StoppedError(Exception):
    """The demo ends, and starts nothing more."""


def _end(process: subprocess.Popen[bytes]) -> None:
    """In order, so that it ends what it has started itself; at once where it takes too long."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_step(step: Step, out: Path, processes: Processes | None = None) -> Outcome:
    """Run one command to its end, or until its time is up."""
    processes = processes or Processes()
    started = time.monotonic()
    path = out / f"{step.name}.log"
    command = [sys.executable, "-m", "assay.cli", *step.arguments]
    environment = {**os.environ, "COLUMNS": "140", "PYTHONUNBUFFERED": "1"}
    with path.open("wb") as log:
        try:
            code = processes.run(command, log, environment)
            problem = f"ended with exit code {code}; see {path}"
        except subprocess.TimeoutExpired:
            code = -1
            problem = f"took longer than {STEP_TIMEOUT_S:.0f} s; see {path}"
    duration_s = time.monotonic() - started
    if not step.folder:
        verdict = Verdict.PASS if code == 0 else Verdict.ERROR
        return Outcome(step=step, verdict=verdict, summary="done" if code == 0 else problem, duration_s=duration_s)
    try:
        result: RunResult = read_result(out / step.folder / "result.json")
    except READ_ERRORS:
        return Outcome(step=step, verdict=Verdict.ERROR, summary=f"left no result: {problem}", duration_s=duration_s)
    if code != 0 and result.verdict is Verdict.PASS:
        # It says that it passed and ends as if it had not: then nothing is proved.
        return Outcome(step=step, verdict=Verdict.ERROR, summary=problem, duration_s=duration_s)
    open_only = only_latencies_are_open(result)
    return Outcome(
        step=step,
        verdict=result.verdict,
        summary=result.summary,
        duration_s=duration_s,
        only_latencies_open=open_only,
    )


def run_patiently(step: Step, out: Path, run: Callable[[Step, Path], Outcome] = run_step) -> Outcome:
    """Run a step again, a few times, while it can say nothing: a busy machine, a port taken meanwhile.

    A run that failed is never repeated: a verdict stands.
    """
    outcome = run(step, out)
    for _ in range(ATTEMPTS - 1):
        if not step.decides or outcome.verdict in (Verdict.PASS, Verdict.FAIL):
            break
        again = run(step, out)
        outcome = msgspec.structs.replace(again, duration_s=outcome.duration_s + again.duration_s)
    return outcome


def run_all(
    plan: list[Step], run: Callable[[Step], Outcome], stop: Callable[[], None] = lambda: None
) -> Iterator[Outcome]:
    """Run the steps and yield what became of each, in order; each waits for those before, or runs beside the last.
    ``stop`` is called where that is interrupted, and ends those that run."""
    with ThreadPoolExecutor() as pool:
        running: list[Future[Outcome]] = []
        try:
            for index, step in enumerate(plan):
                running.append(pool.submit(run, step))
                if index + 1 == len(plan) or not plan[index + 1].beside:
                    yield from (future.result() for future in running)
                    running.clear()
        except BaseException:
            stop()
            raise


def _verdict_table(outcomes: list[Outcome]) -> Table:
    table = WholeTable(title="Assay: the verdicts", title_justify="left")
    for heading in ("run", "verdict", "what was found", "time"):
        table.add_column(heading, justify="right" if heading == "time" else "left")
    for outcome in outcomes:
        note = "" if outcome.step.decides else " [dim](not counted)[/]"
        note += " [dim](busy machine: latencies not judged)[/]" if outcome.only_latencies_open else ""
        table.add_row(
            outcome.step.name + note, _STYLES[outcome.verdict], outcome.summary, f"{outcome.duration_s:.0f} s"
        )
    return table


def demo(
    out: Annotated[Path, typer.Option(help="Run folder; its earlier contents are replaced.")] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of every schedule and random choice.")] = 1,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Assess the reference broker with everything there is, and write the report.

    Conformance suites, one fault scenario in simulation and on real processes, a load run, the Spark analysis, models
    of clusters. Takes about two minutes on two cores; needs no network and no root. Exit status: 0 all passed
    (latencies that nobody can judge on a busy machine are told, and left open), 1 otherwise, 2 usage.
    """
    for module in _NEEDED:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
    console = WholeConsole()
    prepare(out)
    outcomes: list[Outcome] = []
    plan = steps(out, seed)
    processes = Processes()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task("", total=len(plan) + 2)

        def run(step: Step) -> Outcome:
            progress.update(task, description=step.title)
            return run_patiently(step, out, partial(run_step, processes=processes))

        for outcome in run_all(plan, run, processes.stop):
            step = outcome.step
            outcomes.append(outcome)
            note = "" if step.decides else " (not counted)"
            progress.console.print(
                f"{_STYLES[outcome.verdict]}  {step.title}[dim]{note}  {outcome.duration_s:.0f} s[/]"
            )
            progress.advance(task)
        progress.update(task, description="Picture of the console")
        progress.console.print(f"[dim]{add_picture(out / 'faults' / 'crash-restart')}[/]")
        progress.advance(task)
        progress.update(task, description="Report")
        reported = subprocess.run(
            [
                sys.executable,
                "-m",
                "assay.cli",
                "report",
                str(out),
                "--out",
                str(out / "report"),
                "--judge",
                "reference",
            ],
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        progress.advance(task)
    console.print(_verdict_table(outcomes))
    index = out / "report" / "index.html"
    if not index.exists():
        console.print(f"[red]the report could not be written:[/] {reported.stdout}{reported.stderr}")
        raise typer.Exit(1)
    console.print(f"report: {index.resolve()}", soft_wrap=True)
    if open_report:
        webbrowser.open(index.resolve().as_uri())
    raise typer.Exit(0 if all(outcome.is_well for outcome in outcomes if outcome.step.decides) else 1)


MARK = ".assay-run"


def prepare(out: Path) -> None:
    """Make an empty run folder. A folder with something in it is emptied only when an earlier run made it."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).exists():
            message = f"{out} is not empty and was not made by assay: choose another folder with --out"
            raise typer.BadParameter(message)
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("made by assay demo; replaced by the next run\n", encoding="utf-8")
