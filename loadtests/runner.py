"""A load run from profile to ``result.json``: baseline against the null broker, run, samples, histograms, verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from assay.conformance.targets import Endpoint, running
from assay.loadtests import null_broker
from assay.loadtests.capabilities import left_out_checks
from assay.loadtests.generator import Progress, Recording, run_generator
from assay.loadtests.histograms import write_histograms
from assay.loadtests.machine import this_machine
from assay.loadtests.profile import Phases, Profile
from assay.loadtests.recorder import Key, Samples, collect, collect_connects, merged, write_parquet
from assay.loadtests.schedule import NS_PER_S, Arrivals, Shape
from assay.loadtests.verdict import (
    GeneratorState,
    Tally,
    checks,
    drift,
    findings,
    generator_checks,
    generator_state,
    per_second,
    steady_percentiles,
    tally,
)
from assay.reference_broker.trace.results import (
    Band,
    Check,
    Percentiles,
    RunKind,
    RunResult,
    Severity,
    Verdict,
    worst,
    write_result,
)
from assay.reference_broker.trace.schema import LatencyOperation

BASELINE_WARM_UP_S = 0.3
CEILING_TIMEOUT_S = 10.0

Stage = Callable[[str], Progress | None]
"""Called with the name of each stage; returns what is told about its progress."""


class BaselineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the generator does without a broker in the way."""

    ceiling_per_s: float
    """Messages per second when all are due at once."""
    percentiles: dict[Key, Percentiles]


def _silent(stage: str) -> Progress | None:
    return None


def _at_once(profile: Profile) -> Profile:
    """The same mix, every message due at the first moment."""
    phases = Phases(warmup_s=0.0, steady_s=1.0, cooldown_s=0.0)
    total = asked_rate_per_s(profile)
    loads = tuple(
        msgspec.structs.replace(
            load,
            arrivals=Arrivals(
                shape=Shape.BURST,
                rate_per_s=profile.baseline.ceiling_messages * _mean_rate(load.arrivals, profile.phases) / total,
            ),
        )
        for load in profile.workloads
    )
    return msgspec.structs.replace(profile, phases=phases, workloads=loads, drain_timeout_s=CEILING_TIMEOUT_S)


def _mean_rate(arrivals: Arrivals, phases: Phases) -> float:
    return arrivals.expected_messages(phases.total_s) / phases.total_s


def asked_rate_per_s(profile: Profile) -> float:
    """Messages per second that the profile publishes, all workloads together."""
    return sum(_mean_rate(load.arrivals, profile.phases) for load in profile.workloads)


def measure_baseline(profile: Profile, *, seed: int, stage: Stage = _silent) -> BaselineFigures | None:
    """The profile's mix against the null broker; None when the profile asks for no baseline."""
    if profile.baseline.steady_s <= 0:
        return None
    phases = Phases(warmup_s=BASELINE_WARM_UP_S, steady_s=profile.baseline.steady_s, cooldown_s=0.0)
    paced = msgspec.structs.replace(profile, phases=phases)
    with running(null_broker.target()) as broker:
        recording = run_generator(paced, broker.endpoint, seed=seed, progress=stage("baseline: null broker"))
        groups = merged(collect(recording.ledger, ended_ns=recording.ended_ns))
        burst = run_generator(_at_once(profile), broker.endpoint, seed=seed, progress=stage("baseline: ceiling"))
    finished_ns = max(
        int(part.completed_ns.max()) for part in collect(burst.ledger, ended_ns=burst.ended_ns) if len(part.seq)
    )
    return BaselineFigures(
        ceiling_per_s=burst.messages / (finished_ns / NS_PER_S), percentiles=steady_percentiles(groups, phases)
    )


class LoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run, before it is written."""

    profile: Profile
    seed: int
    recording: Recording
    samples: list[Samples]
    baseline: BaselineFigures | None
    state: GeneratorState
    tallies: list[Tally]
    groups: dict[Key, Samples]
    figures: dict[Key, Percentiles]


def run_profile(profile: Profile, endpoint: Endpoint, *, seed: int, stage: Stage = _silent) -> LoadRun:
    """Baseline and run. Raises what :func:`assay.loadtests.generator.drive` raises."""
    baseline = measure_baseline(profile, seed=seed, stage=stage)
    recording = run_generator(profile, endpoint, seed=seed, progress=stage("load"))
    samples = collect(recording.ledger, ended_ns=recording.ended_ns) + collect_connects(recording.connects)
    headroom = None if baseline is None else baseline.ceiling_per_s / asked_rate_per_s(profile)
    groups = merged(samples)
    return LoadRun(
        profile=profile,
        seed=seed,
        recording=recording,
        samples=samples,
        baseline=baseline,
        state=generator_state(recording, profile.phases, headroom),
        tallies=[tally(load, samples, recording) for load in profile.workloads],
        groups=groups,
        figures=steady_percentiles(groups, profile.phases),
    )


def _metrics(run: LoadRun) -> dict[str, float | int | str]:
    recording, profile = run.recording, run.profile
    wall_s = recording.ended_ns / NS_PER_S
    metrics: dict[str, float | int | str] = {
        "messages": recording.messages,
        "connections": len(recording.connects),
        "asked_messages_per_s": round(asked_rate_per_s(profile), 1),
        "drained": str(recording.drained).lower(),
        "generator.lateness_p99_ms": run.state.lateness_p99_ms,
        "generator.late_starts": run.state.late_starts,
        "generator.cpu_share": round(recording.cpu_s / wall_s, 3) if wall_s > 0 else 0.0,
        "generator.gc_pause_max_ms": round(max(recording.gc_pauses_ms, default=0.0), 3),
        "connect_p99_ms": round(
            float(
                np.percentile(
                    [(c.completed_ns - c.started_ns) / 1e6 for c in recording.connects], 99, method="inverted_cdf"
                )
            ),
            3,
        ),
        "settlements_refused": recording.ledger.refused_settlements.count,
    }
    if run.baseline is not None:
        metrics["generator.ceiling_messages_per_s"] = round(run.baseline.ceiling_per_s, 1)
        metrics["generator.headroom"] = round(run.state.headroom or 0.0, 2)
        for figure in run.baseline.percentiles.values():
            metrics[f"null broker, {figure.name}, p50_us"] = figure.p50_us
            metrics[f"null broker, {figure.name}, p99_us"] = figure.p99_us
    for (workload, operation, _), group in run.groups.items():
        ratio = drift(group, profile.phases)
        if operation is LatencyOperation.PUBLISH_TO_DELIVER and ratio is not None:
            metrics[f"{workload}.p50_drift"] = round(ratio, 2)
    for counts in run.tallies:
        for field in ("sent", "acknowledged", "delivered", "expected", "lost", "duplicates", "disorder"):
            metrics[f"{counts.workload}.{field}"] = getattr(counts, field)
    return metrics


def _summary(run: LoadRun, verdict: Verdict, judged: list[Check]) -> str:
    delivered, expected = (sum(getattr(counts, name) for counts in run.tallies) for name in ("delivered", "expected"))
    text = f"{delivered} of {expected} deliveries at {asked_rate_per_s(run.profile):,.0f} messages/s"
    if run.recording.ledger.failures:
        return f"{text}; a connection was lost: {run.recording.ledger.failures[0]}"
    slowest = max(run.figures.values(), key=lambda figure: figure.p99_us, default=None)
    if slowest is not None:
        text += f"; slowest p99 {slowest.p99_us / 1_000:.2f} ms ({slowest.name})"
    if verdict is Verdict.UNKNOWN:
        text += f"; no claim: {_first_reason(judged)}"
    return text


def _first_reason(judged: list[Check]) -> str:
    """Of the first check that could not be judged."""
    unknown = next(check for check in judged if check.verdict is Verdict.UNKNOWN)
    return f"{unknown.name}: {unknown.reason}"


def nothing_to_run(
    profile: Profile, left_out: dict[str, list[str]], *, target: str, seed: int, command: str
) -> RunResult:
    """The result of a profile of which the broker supports nothing: no claim."""
    return RunResult(
        kind=RunKind.LOAD,
        name=profile.name,
        verdict=Verdict.UNKNOWN,
        summary=f"Nothing was run: {_left_out_text(left_out)}",
        target=target,
        world="real",
        seed=seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        checks=left_out_checks(left_out),
        machine=this_machine(),
    )


def _left_out_text(left_out: dict[str, list[str]]) -> str:
    return "; ".join(f"{name} is unsupported, it needs {said[0]}" for name, said in left_out.items())


def result_of(
    run: LoadRun,
    *,
    target: str,
    started_at: str,
    duration_s: float,
    command: str,
    left_out: dict[str, list[str]] | None = None,
) -> RunResult:
    """The verdict of a run. Artefacts are named, not written. What was ``left_out`` neither helps nor harms."""
    found = findings(run.profile, run.tallies, run.recording)
    null = {} if run.baseline is None else run.baseline.percentiles
    null_ms = {key: figure.p99_us / 1_000 for key, figure in null.items()}
    judged = checks(run.profile, run.tallies, run.samples, run.groups, run.state, null_ms)
    verdicts = [check.verdict for check in judged]
    if any(finding.severity is Severity.SAFETY for finding in found) or run.recording.ledger.failures:
        verdicts.append(Verdict.FAIL)
    verdict = worst(verdicts)
    phases = run.profile.phases
    return RunResult(
        kind=RunKind.LOAD,
        name=run.profile.name,
        verdict=verdict,
        summary=_summary(run, verdict, judged) + (f"; left out: {', '.join(left_out)}" if left_out else ""),
        target=target,
        world="real",
        seed=run.seed,
        started_at=started_at,
        duration_s=round(duration_s, 3),
        command=command,
        findings=found,
        checks=judged + left_out_checks(left_out or {}) + generator_checks(run.state),
        metrics=_metrics(run),
        percentiles=list(run.figures.values()),
        series=per_second(run.profile, run.groups),
        bands=[
            Band(label="warm-up", from_s=0.0, to_s=phases.warmup_s),
            Band(label="cool-down", from_s=phases.warmup_s + phases.steady_s, to_s=phases.total_s),
        ],
        artefacts={"samples": "samples.parquet", "histograms": "histograms.jsonl"},
        machine=this_machine(),
    )


def run_load(
    profile: Profile,
    endpoint: Endpoint,
    *,
    target: str,
    folder: Path,
    seed: int | None = None,
    command: str = "",
    stage: Stage = _silent,
    left_out: dict[str, list[str]] | None = None,
) -> RunResult:
    """Run a profile and write ``result.json``, ``samples.parquet`` and ``histograms.jsonl`` into ``folder``.

    ``seed`` replaces the profile's. Raises :class:`assay.loadtests.client.LoadClientError` or :class:`OSError` when the
    broker cannot be reached; a connection lost later is a failed run, not an exception.
    """
    began, started_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    run = run_profile(profile, endpoint, seed=profile.seed if seed is None else seed, stage=stage)
    folder.mkdir(parents=True, exist_ok=True)
    run_id = run.recording.ledger.run_id.hex()
    write_parquet(folder / "samples.parquet", run.samples, run_id=run_id, phases=profile.phases)
    write_histograms(folder / "histograms.jsonl", run.samples, phases=profile.phases)
    outcome = result_of(
        run,
        target=target,
        started_at=started_at,
        duration_s=time.monotonic() - began,
        command=command,
        left_out=left_out,
    )
    write_result(folder, outcome)
    return outcome
