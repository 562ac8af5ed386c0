"""Runs a scenario in simulation, judges its history, and writes ``history.jsonl`` and ``result.json``."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from assay.conformance.checkers import CheckOutcome, check_history
from assay.conformance.mutants import applied
from assay.faults.fault_kinds import FaultKind
from assay.faults.measure import check_targets, measure
from assay.faults.scenario import Scenario, ScenarioError, ScenarioWorld
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.fault_classes import DAMAGING, LYING
from assay.reference_broker.trace.files import HistoryWriter, TraceWriter
from assay.reference_broker.trace.results import (
    Finding,
    Machine,
    RunKind,
    RunResult,
    Severity,
    Verdict,
    worst,
    write_result,
)
from assay.reference_broker.trace.schema import (
    AckedMeans,
    Contract,
    HistoryHeader,
    OpKind,
    TraceEvent,
    TraceHeader,
    TraceKind,
    Tracer,
)
from assay.sim.buggify import other_sizes
from assay.sim.kernel import EPOCH_S, Kernel
from assay.sim.space_time import SPACE_TIME_NAME, write_space_time
from assay.sim.world import Watcher, World, WorldProfile, WorldRun

HISTORY_NAME: Final = "history.jsonl"
_LOSSES: Final = frozenset({"A1", "F6", "A11"})
TRACE_NAME: Final = "trace.jsonl"
_YOUNG_OBJECTS: Final = 100_000
"""So many more than before, and the collector looks at them: some ten megabytes."""


class SimOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its judgement."""

    header: HistoryHeader
    run: WorldRun
    judgement: CheckOutcome
    findings: list[Finding]
    """The checkers' findings, and the broker's death if it died."""
    verdict: Verdict
    wall_s: float
    """Real seconds that the simulation itself took."""

    @property
    def signature(self) -> frozenset[tuple[str, str]]:
        """What was found: (checker, anomaly) of the safety findings."""
        return frozenset(
            (finding.checker, finding.anomaly) for finding in self.findings if finding.severity is Severity.SAFETY
        )


def require_sim(scenario: Scenario) -> None:
    """Raises :class:`ScenarioError` for a scenario that is not meant for the simulated world."""
    if ScenarioWorld.SIM not in scenario.worlds:
        message = f"scenario {scenario.name!r} cannot be simulated: its worlds are {', '.join(scenario.worlds)}"
        raise ScenarioError(message)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles rarely: a run makes many objects that live as long as it does, and few cycles."""
    usual = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def simulate(
    scenario: Scenario,
    seed: int,
    *,
    mutants: tuple[str, ...] = (),
    profile: WorldProfile | None = None,
    tracer: Callable[[Kernel], Tracer] | None = None,
    on_progress: Callable[[float], None] | None = None,
    watcher: Watcher | None = None,
) -> SimOutcome:
    """Run once and judge. Raises ``ScenarioError``, ``ConfigError``, ``UnknownMutantError``, ``WorldError``."""
    require_sim(scenario)
    sizes = other_sizes(seed) if scenario.buggify else nullcontext()
    with rare_collections(), applied(*mutants) if mutants else nullcontext(), sizes:
        world = World(scenario, seed, profile=profile, tracer=tracer, on_progress=on_progress, watcher=watcher)
        started = time.perf_counter()
        run = world.run()
        wall_s = time.perf_counter() - started
    header = HistoryHeader(
        run_id=f"sim-{scenario.name}-{seed}",
        scenario=scenario.name,
        world=ScenarioWorld.SIM.value,
        seed=seed,
        contract=scenario.contract,
    )
    judgement = check_history(header, run.events)
    findings = judgement.findings
    verdict = judgement.verdict
    silent = _silent_losses(run, findings, scenario.contract)
    if silent or run.died:
        findings = [*([_death(run)] if run.died else []), *silent, *findings]
        verdict = Verdict.FAIL
    return SimOutcome(header=header, run=run, judgement=judgement, findings=findings, verdict=verdict, wall_s=wall_s)


def _silent_losses(run: WorldRun, findings: list[Finding], contract: Contract) -> list[Finding]:
    """Bits that flipped let a broker lose what it had confirmed, not keep quiet about it (Q-DURA-16, Q-DURA-17).

    Of a write that got nowhere nothing is left to notice, and of what is confirmed before it is on the disk neither.
    """
    began = {event.detail.split(maxsplit=1)[0] for event in run.events if event.f is OpKind.FAULT and event.detail}
    damage = began & (DAMAGING | LYING)
    if run.storage_notes or damage != {FaultKind.BIT_ROT} or contract.acked_means is not AckedMeans.DISK:
        return []
    lost = [finding for finding in findings if finding.anomaly in _LOSSES and finding.severity is Severity.QUALITY]
    text = "and the broker said nothing of its damaged disk"
    return [
        msgspec.structs.replace(finding, severity=Severity.SAFETY, message=f"{finding.message}, {text}")
        for finding in lost
    ]


def _death(run: WorldRun) -> Finding:
    return Finding(
        checker="broker_alive",
        anomaly="G-L7",
        severity=Severity.SAFETY,
        message=f"the broker's process ended by itself after {run.simulated_s:.3f} simulated seconds: {run.died}",
    )


def run_scenario(
    scenario: Scenario,
    *,
    seed: int | None = None,
    out: Path | None = None,
    mutants: tuple[str, ...] = (),
    profile: WorldProfile | None = None,
    trace: bool = False,
    command: str = "",
    on_progress: Callable[[float], None] | None = None,
) -> RunResult:
    """Run, judge and, with ``out``, write the run's folder; ``trace`` adds the broker's own ``trace.jsonl``.

    Raises as :func:`simulate`, and :class:`OSError` when the folder cannot be written.
    """
    used_seed = scenario.seed if seed is None else seed
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    writer: TraceWriter | None = None
    if trace and out is not None:
        node = scenario.topology.nodes[0]
        writer = TraceWriter(out / TRACE_NAME, TraceHeader(run_id=f"sim-{scenario.name}-{used_seed}", node=node))
    try:
        outcome = simulate(
            scenario,
            used_seed,
            mutants=mutants,
            profile=profile,
            tracer=None if writer is None else _tracer(writer, scenario.topology.nodes[0]),
            on_progress=on_progress,
        )
    finally:
        if writer is not None:
            writer.close()
    result = to_result(scenario, outcome, mutants=mutants, started_at=started_at, command=command)
    if out is not None:
        artefacts = {"history": HISTORY_NAME} | ({"trace": TRACE_NAME} if writer is not None else {})
        with HistoryWriter(out / HISTORY_NAME, outcome.header) as history:
            for event in outcome.run.events:
                history.write(event)
        if write_space_time(out / SPACE_TIME_NAME, outcome.run.events, outcome.findings):
            artefacts["space_time"] = SPACE_TIME_NAME
        result = msgspec.structs.replace(result, artefacts=artefacts)
        write_result(out, result)
    return result


def _tracer(writer: TraceWriter, node: str) -> Callable[[Kernel], Tracer]:
    def make(kernel: Kernel) -> Tracer:
        def record(kind: TraceKind, fields: dict[str, str | int]) -> None:
            data = {"seq": writer.count, "time_ns": round((kernel.now - EPOCH_S) * 1e9), "node": node, "kind": kind}
            writer.write(msgspec.convert(data | fields, described(TraceEvent)))

        return record

    return make


def to_result(
    scenario: Scenario, outcome: SimOutcome, *, mutants: tuple[str, ...], started_at: str, command: str
) -> RunResult:
    """The one schema of verdicts, with figures in simulated time."""
    run = outcome.run
    measures = measure(run.events)
    metrics: dict[str, float | int | str] = {
        **outcome.judgement.counts,
        **measures.metrics,
        **run.metrics,
        "trace_hash": run.trace_hash,
        "simulated_s": round(run.simulated_s, 3),
        "wall_s": round(outcome.wall_s, 3),
        "sim_real_ratio": round(run.simulated_s / outcome.wall_s, 1),
        "events_per_s": round(run.trace_count / outcome.wall_s),
    }
    checks = check_targets(scenario.targets, metrics, measures.bounds)
    return RunResult(
        kind=RunKind.SIM,
        name=scenario.name,
        verdict=worst([outcome.verdict, *(check.verdict for check in checks)]),
        summary=_summary(outcome, mutants),
        target="reference" + "".join(f"+{mutant}" for mutant in mutants),
        world=ScenarioWorld.SIM.value,
        seed=outcome.header.seed,
        started_at=started_at,
        duration_s=round(outcome.wall_s, 3),
        command=command,
        findings=outcome.findings,
        checks=checks,
        metrics=metrics,
        percentiles=measures.percentiles,
        series=measures.series,
        bands=measures.bands,
        machine=Machine(
            platform=platform.platform(), python=platform.python_version(), cpus=len(os.sched_getaffinity(0))
        ),
    )


def _summary(outcome: SimOutcome, mutants: tuple[str, ...]) -> str:
    counts = outcome.judgement.counts
    broker = f"Broken on purpose ({', '.join(mutants)}): " if mutants else ""
    said = {
        Verdict.PASS: "nothing was lost, invented, repeated without cause or reordered",
        Verdict.UNKNOWN: f"no claim is possible: {'; '.join(outcome.judgement.reasons)}",
        Verdict.FAIL: "; ".join(finding.message for finding in outcome.findings[:3]),
        Verdict.ERROR: "the simulation failed",
    }[outcome.verdict]
    return (
        f"{broker}{counts['sends_ok']} publishes confirmed, {counts['deliveries']} deliveries, "
        f"{counts['faults']} faults in {outcome.run.simulated_s:.1f} simulated seconds: {said}."
    )
