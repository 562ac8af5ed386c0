"""Runs a scenario on real processes: broker, proxies, clients, nemesis; judges the history, writes the result."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from assay.conformance.checkers import CheckOutcome, build_tables, check_history
from assay.conformance.checkers.chances import CHANCES, chances
from assay.conformance.stall import StallWatch
from assay.faults.fault_kinds import DISK_FAULTS, describe, why_only_simulated
from assay.faults.measure import check_targets, measure, unknown_metrics
from assay.faults.nemesis import OWN_TOXICS, PROXIES, Nemesis, NemesisError
from assay.faults.process import BrokerProcess, BrokerRestartError, BrokerStartError
from assay.faults.pump import Clock, Pump
from assay.faults.scenario import Scenario, ScenarioWorld, names_a_client
from assay.faults.toxiproxy import Endpoint, ToxiproxyClient, ToxiproxyError, toxiproxy_endpoint
from assay.faults.workload import ClientRole, HistoryRecorder, WorkloadClient, WorkloadPlan, client_names
from assay.reference_broker.trace.files import HistoryWriter
from assay.reference_broker.trace.results import (
    Check,
    Finding,
    Machine,
    RunKind,
    RunResult,
    Severity,
    Verdict,
    worst,
    write_result,
)
from assay.reference_broker.trace.schema import HistoryEvent, HistoryHeader

HISTORY_FILE: Final = "history.jsonl"
_WATCHDOG_SLACK_S: Final = 30.0
_MAX_MESSAGE_CHARS: Final = 1_000
_STALL_S: Final = 0.25
"""The bench held up for so long has shared its machine with others, and so has the broker."""

Progress = Callable[[str, int], None]
"""Called with the phase and the number of history events, several times a second."""
_PROGRESS_EVERY_S: Final = 0.2


class RunError(Exception):
    """The harness failed, so the run says nothing of the broker; the text says what to do."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a scenario."""

    out: Path
    seed: int
    mutants: tuple[str, ...] = ()
    toxiproxy_url: str | None = None
    command: str = ""
    attempts: int = 3
    """Runs that may be made until one, or all together, saw enough."""


def check_runnable(scenario: Scenario) -> list[str]:
    """Reasons why this scenario cannot run on real processes; empty when it can."""
    problems = []
    if ScenarioWorld.REAL not in scenario.worlds:
        problems.append(f"it is for {', '.join(scenario.worlds)} only; use `assay sim run`")
    reasons = ((describe(fault), why_only_simulated(fault)) for fault in scenario.faults)
    problems += [f"{what}: {why}" for what, why in reasons if why]
    known = client_names(scenario)
    alone = [fault for fault in scenario.faults if names_a_client(fault) and fault.target not in known]
    problems += [f"{describe(fault)}: there is no such client" for fault in alone]
    unjudged = sorted(set(scenario.enough) - set(CHANCES))
    if unjudged:
        problems.append(f"enough for {', '.join(unjudged)}: chances are counted for {', '.join(CHANCES)}")
    unknown = unknown_metrics(scenario.targets)
    if unknown:
        problems.append(f"targets for figures that no run has: {', '.join(unknown)}")
    reserved = {"data_dir", "listeners"} & set(scenario.topology.broker)
    if reserved:
        problems.append(f"topology.broker.{', '.join(sorted(reserved))}: set by the runner itself")
    return problems


class _Run:
    """One run and what it leaves behind."""

    def __init__(self, scenario: Scenario, options: RunOptions, endpoint: Endpoint) -> None:
        self.scenario = scenario
        self.options = options
        self.endpoint = endpoint
        self.events: list[HistoryEvent] = []
        self.broker = BrokerProcess(
            options.out,
            {**scenario.topology.broker, "listeners": [{"port": 0, "protocols": ["mqtt", "amqp091"]}]},
            options.mutants,
            disk_goes_wrong=any(fault.kind in DISK_FAULTS for fault in scenario.faults),
            seed=options.seed,
        )
        # The broker's clock can only be set ahead: what moves back moves from there.
        self.broker.clock_ahead_s = -sum(min(0.0, fault.by_s) for fault in scenario.faults)
        self.header = HistoryHeader(
            run_id=f"{scenario.name}-{options.seed}",
            scenario=scenario.name,
            world=ScenarioWorld.REAL.value,
            seed=options.seed,
            contract=scenario.contract,
        )
        self.stall_s = 0.0
        """How long the bench itself was held up at a time: what it measured then says nothing of the broker."""
        self.broker_failure = ""
        """Why the broker process itself is to blame; empty when it is not."""

    async def execute(self, progress: Progress | None) -> None:
        """Drive everything until the final read is over."""
        proxies = ToxiproxyClient(self.endpoint.url)
        alone = sorted({fault.target for fault in self.scenario.faults if names_a_client(fault)})
        names = {proxy: f"assay-{os.getpid()}-{proxy}" for proxy in (*PROXIES, *alone)}
        await self.broker.start()
        try:
            addresses = {
                proxy: await asyncio.to_thread(proxies.create, name, f"{self.broker.host}:{self.broker.port}")
                for proxy, name in names.items()
            }
            with HistoryWriter(self.options.out / HISTORY_FILE, self.header) as writer:
                await self._drive(proxies, names, addresses, writer, progress)
        finally:
            for name in names.values():
                await asyncio.to_thread(proxies.destroy, name)
            await self.broker.stop()

    async def _drive(
        self,
        proxies: ToxiproxyClient,
        names: dict[str, str],
        addresses: dict[str, tuple[str, int]],
        writer: HistoryWriter,
        progress: Progress | None,
    ) -> None:
        def sink(event: HistoryEvent) -> None:
            self.events.append(event)
            writer.write(event)

        clock = Clock(asyncio.get_running_loop())
        started_at = clock.now()
        history = HistoryRecorder(sink, started_at)
        plan = WorkloadPlan(self.scenario, history, self.options.seed)
        sides = {
            client.client_id: "producers" if client.role is ClientRole.PRODUCER else "consumers"
            for client in plan.clients
        }

        def address_of(client: WorkloadClient) -> tuple[str, int]:
            return addresses.get(client.client_id) or addresses[sides[client.client_id]]

        nemesis = Nemesis(self.scenario, self.broker, proxies, names, sides, history, clock, self.options.seed)
        limit_s = self.scenario.production_limit_s + self.scenario.drain_timeout_s + _WATCHDOG_SLACK_S
        try:
            async with asyncio.timeout(limit_s), self._watched(), asyncio.TaskGroup() as group:
                ticker = group.create_task(self._report(plan, progress))
                group.create_task(nemesis.run(started_at))
                await Pump(plan, clock, address_of).run()
                ticker.cancel()
        except TimeoutError as error:
            message = f"the run did not end within {limit_s:g} s, which is a defect of the runner"
            raise RunError(message) from error
        if not self.broker.running:
            self.broker_failure = (
                f"the broker ended by itself, status {self.broker.exit_status}: {self.broker.log_tail()}"
            )

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        began = asyncio.get_running_loop().time()
        with StallWatch() as watch:
            yield
            self.stall_s = watch.longest_since(began)

    async def _report(self, plan: WorkloadPlan, progress: Progress | None) -> None:
        while progress is not None:
            progress(plan.phase.value, len(self.events))
            await asyncio.sleep(_PROGRESS_EVERY_S)


def run_scenario(scenario: Scenario, options: RunOptions, progress: Progress | None = None) -> RunResult:
    """Run a scenario and write ``history.jsonl``, ``broker.log`` and ``result.json`` into ``options.out``.

    A run from which nothing follows is repeated, ``options.attempts`` times at most; the chances that the scenario asks
    for may come from all of them. The files are those of the last. Returns the result; a harness failure is a result
    with verdict ``error``. Raises :class:`RunError` only for a scenario that cannot be run at all.
    """
    problems = check_runnable(scenario)
    if problems:
        message = f"{scenario.name} cannot run on real processes: {'; '.join(problems)}"
        raise RunError(message)
    seen: Counter[str] = Counter()
    for attempt in range(1, options.attempts + 1):
        result, had = _run_once(scenario, options, progress)
        seen.update(had)
        result = _if_enough(scenario, result, seen, attempt)
        if result.verdict is not Verdict.UNKNOWN:
            break
    write_result(options.out, result)
    return result


def _if_enough(scenario: Scenario, result: RunResult, seen: Mapping[str, int], attempts: int) -> RunResult:
    """The result, which is ``unknown`` in place of ``pass`` when the checkers had too little to see."""
    known = {f"chances_{name}": seen.get(name, 0) for name in scenario.enough}
    result = msgspec.structs.replace(result, metrics={**result.metrics, **known, "attempts": attempts})
    few = [
        f"{name} had {seen.get(name, 0)} of {least} chances"
        for name, least in scenario.enough.items()
        if seen.get(name, 0) < least
    ]
    if not few or result.verdict is not Verdict.PASS:
        return result
    summary = f"No claim is possible: {', '.join(few)} to see its rule broken in {attempts} run(s). {result.summary}"
    return msgspec.structs.replace(result, verdict=Verdict.UNKNOWN, summary=summary)


def _run_once(scenario: Scenario, options: RunOptions, progress: Progress | None) -> tuple[RunResult, dict[str, int]]:
    """One run: its result, and the chances that the checkers had."""
    _clear(options.out)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    began = time.monotonic()
    had: dict[str, int] = {}
    own_toxics = any(fault.kind in OWN_TOXICS for fault in scenario.faults)
    try:
        with toxiproxy_endpoint(options.toxiproxy_url, seed=options.seed, own_toxics=own_toxics) as endpoint:
            run = _Run(scenario, options, endpoint)
            asyncio.run(_guarded(run, progress))
        result = _judge(run)
        had = chances(build_tables(run.events), scenario.contract)
    except (RunError, BrokerStartError, NemesisError, ToxiproxyError, OSError) as error:
        result = RunResult(
            kind=RunKind.FAULTS,
            name=scenario.name,
            verdict=Verdict.ERROR,
            summary=f"The harness failed: {error}",
        )
    completed = msgspec.structs.replace(
        result,
        target="reference" + "".join(f"+{mutant}" for mutant in options.mutants),
        world=ScenarioWorld.REAL.value,
        seed=options.seed,
        started_at=started_at,
        duration_s=round(time.monotonic() - began, 3),
        command=options.command,
        machine=Machine(platform=platform.platform(), python=platform.python_version(), cpus=os.cpu_count() or 1),
    )
    return completed, had


async def _guarded(run: _Run, progress: Progress | None) -> None:
    try:
        await run.execute(progress)
    except BaseExceptionGroup as errors:
        # One failure ends the run; the rest of the group are its cancellations.
        first = errors.exceptions[0]
        if not isinstance(first, BrokerRestartError):
            raise first from errors
        run.broker_failure = str(first)


def _clear(folder: Path) -> None:
    """A run begins with an empty broker: what an earlier run left in this folder must not be found by it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "data", ignore_errors=True)
    for name in (HISTORY_FILE, "result.json", "broker.log", "broker.yaml"):
        (folder / name).unlink(missing_ok=True)


def _judge(run: _Run) -> RunResult:
    outcome = check_history(run.header, run.events)
    measures = measure(run.events)
    metrics = {**outcome.counts, **measures.metrics}
    checks = check_targets(run.scenario.targets, metrics, measures.bounds)
    if run.broker_failure:
        finding = Finding(
            checker="process",
            anomaly="G-L7",
            severity=Severity.SAFETY,
            message=run.broker_failure[-_MAX_MESSAGE_CHARS:],
        )
        outcome = msgspec.structs.replace(outcome, verdict=Verdict.FAIL, findings=[finding, *outcome.findings])
    verdict = worst([outcome.verdict, *(check.verdict for check in checks)])
    summary = _summary(outcome, checks)
    timed = all(check.unit in ("s", "ms") for check in checks if check.verdict is Verdict.FAIL)
    if verdict is Verdict.FAIL and outcome.verdict is not Verdict.FAIL and timed and run.stall_s >= _STALL_S:
        verdict = Verdict.UNKNOWN
        summary = f"No claim is possible: the bench itself was held up for {run.stall_s:.2f} s. {summary}"
    return RunResult(
        kind=RunKind.FAULTS,
        name=run.scenario.name,
        verdict=verdict,
        summary=summary,
        findings=outcome.findings,
        checks=checks,
        metrics={
            **metrics,
            "history_events": len(run.events),
            "broker_starts": run.broker.starts,
            "bench_stall_max_s": round(run.stall_s, 3),
            "proxy": f"{run.endpoint.kind} {run.endpoint.version}",
        },
        percentiles=measures.percentiles,
        series=measures.series,
        bands=measures.bands,
        artefacts={"history": HISTORY_FILE, "broker log": run.broker.log_path.name},
    )


def _summary(outcome: CheckOutcome, checks: list[Check]) -> str:
    counts = outcome.counts
    sent = counts["sends_ok"] + counts["sends_fail"] + counts["sends_info"]
    facts = (
        f"{counts['sends_ok']} of {sent} publishes confirmed, {counts['deliveries']} deliveries, "
        f"{counts['dead_lettered']} dead letters, {counts['faults']} faults"
    )
    failed = [check.name for check in checks if check.verdict is Verdict.FAIL]
    if outcome.verdict is Verdict.FAIL:
        what = "; ".join(finding.message for finding in outcome.findings[:3])
        return f"The broker broke its contract: {what} ({facts})."
    if failed:
        return f"The history is sound, but targets were missed: {', '.join(failed)} ({facts})."
    if outcome.verdict is Verdict.UNKNOWN:
        return f"No claim is possible: {'; '.join(outcome.reasons)} ({facts})."
    return f"The contract held: {facts}."
