"""What a load run says: loss, repetition, order, rate, latency targets, and whether the generator may judge at all.

The generator and the machine are judged too: a miss that the generator's own lateness or too little headroom may
explain, or a machine on which a broker that does nothing is as slow, is ``unknown``; a larger miss stands, and so does
a met bound, since latency counts from the intended time and includes all delay. What was due and never answered counts
as the worst (:mod:`assay.reference_broker.trace.judgement`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from assay.loadtests.generator import Recording, lateness_us
from assay.loadtests.ledger import Irregularities
from assay.loadtests.profile import LatencyTarget, Load, Phases, Profile, PubSubLoad
from assay.loadtests.recorder import LOST, OK, REFUSED, UNSENT, Key, Samples, answered, in_phase, percentiles
from assay.loadtests.schedule import NS_PER_S
from assay.reference_broker.trace.judgement import (
    Bounds,
    exactly,
    explain,
    machine_delay,
    quantile_bounds,
    quantile_ranks,
    verdict_within,
    without_delay,
)
from assay.reference_broker.trace.results import Check, Finding, Percentiles, Series, Severity, Verdict
from assay.reference_broker.trace.schema import LatencyOperation

LATENESS_P99_MS = 1.0
"""A generator later than this (99th percentile) may be the limit itself."""
HEADROOM_MIN = 2.0
"""The generator must be able to run this many times the asked rate."""
RATE_SHARE_MIN = 0.99
RATE_TOLERANCE = 2.0
"""Standard deviations of a Poisson count."""
RATE_SHARE_LEAST = 0.5
RATE_MESSAGES_MIN = 4
"""With fewer messages due, what is under way at the ends of the phase says more than the broker."""
P99 = 0.99

OPERATIONS = {
    LatencyOperation.CONNECT: "connect",
    LatencyOperation.SUBSCRIBE: "subscribe",
    LatencyOperation.PUBLISH_TO_ACK: "publish to ack",
    LatencyOperation.PUBLISH_TO_DELIVER: "publish to deliver",
    LatencyOperation.DELIVER_TO_SETTLE: "deliver to settle",
}


class GeneratorState(msgspec.Struct, frozen=True, kw_only=True):
    """Can the generator be trusted? ``headroom`` is its ceiling over the asked rate; None without a baseline."""

    lateness_p99_ms: float
    late_starts: int
    """Messages handed out more than ``LATENESS_P99_MS`` late."""
    headroom: float | None

    @property
    def trusted(self) -> bool:
        return self.lateness_p99_ms < LATENESS_P99_MS and (self.headroom is None or self.headroom >= HEADROOM_MIN)


def generator_state(recording: Recording, phases: Phases, headroom: float | None) -> GeneratorState:
    """Its lateness in the steady phase, like all that is judged."""
    late_us = lateness_us(recording.ledger, phases)
    return GeneratorState(
        lateness_p99_ms=round(_percentile(late_us, 99) / 1_000, 3) if len(late_us) else 0.0,
        late_starts=int((late_us > LATENESS_P99_MS * 1_000).sum()),
        headroom=headroom,
    )


def _percentile(values: npt.NDArray[np.float64], percent: float) -> float:
    return float(np.percentile(values, percent, method="inverted_cdf"))


def key_name(key: Key) -> str:
    """``qos1: publish to ack``."""
    workload, operation, _ = key
    return f"{workload}: {OPERATIONS[operation]}"


def steady_percentiles(groups: dict[Key, Samples], phases: Phases) -> dict[Key, Percentiles]:
    """Exact percentiles of the steady phase of every workload and operation that was answered there."""
    found = {}
    for key, group in groups.items():
        due = in_phase(group, phases, "steady")
        steady = answered(due)
        if len(steady.seq):
            missing = len(due.seq) - len(steady.seq)
            found[key] = percentiles(key_name(key), steady.latency_us, missing=missing)
    return found


class SteadyP99(msgspec.Struct, frozen=True, kw_only=True):
    """The 99th percentile of what was due in the steady phase, as far as it is known, in milliseconds."""

    bounds: Bounds
    count: int
    missing: int
    delay_ms: float
    """The generator's own delay of these very samples, 99th percentile."""


def steady_p99(group: Samples, phases: Phases, machine_ms: float = 0.0) -> SteadyP99:
    """Of one workload and operation; with nothing answered it lies anywhere. The machine explains ``machine_ms``."""
    due = in_phase(group, phases, "steady")
    known = answered(due)
    late_us = due.lateness_us[due.status != UNSENT]
    missing = len(due.seq) - len(known.seq)
    delay_ms = max(0.0, _percentile(late_us, 99) / 1_000) if len(late_us) else 0.0
    measured = quantile_bounds(np.sort(known.latency_us / 1_000).tolist(), missing, P99)
    bounds = without_delay(measured, max(delay_ms, machine_ms))
    return SteadyP99(bounds=bounds, count=len(known.seq), missing=missing, delay_ms=delay_ms)


def drift(group: Samples, phases: Phases) -> float | None:
    """Median latency of the last third of the steady phase over that of its first third.

    Near 1 when the run was steady; well above 1 when a backlog grew. None when a third has no sample.
    """
    steady = answered(in_phase(group, phases, "steady"))
    since_s = steady.intended_ns / NS_PER_S - phases.warmup_s
    thirds = (since_s < phases.steady_s / 3, since_s >= phases.steady_s * 2 / 3)
    first, last = (steady.latency_us[chosen] for chosen in thirds)
    return float(np.median(last) / np.median(first)) if len(first) and len(last) else None


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one workload over the whole run, all phases."""

    workload: str
    sent: int
    acknowledged: int
    refused: int
    delivered: int
    expected: int
    """Deliveries that a broker without loss makes."""
    lost: int
    """Acknowledged (at QoS 0: sent) and not delivered to somebody who should have it."""
    unacknowledged: int
    unsettled: int
    duplicates: int
    disorder: int
    lost_examples: list[str]


def tally(load: Load, samples: list[Samples], recording: Recording) -> Tally:
    """Count one workload."""
    logs = [log for log in recording.ledger.logs if log.workload == load.name]
    mine = [part for part in samples if part.workload == load.name]
    acks = [part for part in mine if part.operation is LatencyOperation.PUBLISH_TO_ACK]
    deliveries = [part for part in mine if part.operation is LatencyOperation.PUBLISH_TO_DELIVER]
    settlements = [part for part in mine if part.operation is LatencyOperation.DELIVER_TO_SETTLE]
    acked = {part.client: part.status == OK for part in acks}
    lost, examples = 0, []
    for part in deliveries:
        missing = part.status == LOST
        if load.qos:
            missing &= acked[part.client]
        lost += int(missing.sum())
        examples += [f"{part.client}-{seq}" for seq in part.seq[missing][:5].tolist()]
    return Tally(
        workload=load.name,
        sent=sum(int(np.count_nonzero(log.sent_ns)) for log in logs),
        acknowledged=sum(int(column.sum()) for column in acked.values()),
        refused=sum(len(log.refused) for log in logs),
        delivered=sum(int((part.status == OK).sum()) for part in deliveries),
        expected=sum(int((part.status != REFUSED).sum()) for part in deliveries),
        lost=lost,
        unacknowledged=sum(int((part.status == LOST).sum()) for part in acks),
        unsettled=sum(int((part.status == LOST).sum()) for part in settlements),
        duplicates=sum(log.duplicates.count for log in logs),
        disorder=sum(log.disorder.count for log in logs),
        lost_examples=examples[:20],
    )


def _finding(
    checker: str, anomaly: str, severity: Severity, workload: str, count: int, text: str, values: list[str]
) -> Finding:
    return Finding(
        checker=checker,
        anomaly=anomaly,
        severity=severity,
        message=f"{workload}: {count} {text}",
        values=values,
    )


def findings(profile: Profile, tallies: list[Tally], recording: Recording) -> list[Finding]:
    """Loss, repetition and disorder. At QoS 0 loss is allowed and at QoS 1 repetition is: reported, not judged."""
    found = []
    for load, counts in zip(profile.workloads, tallies, strict=True):
        logs = [log for log in recording.ledger.logs if log.workload == load.name]
        if counts.lost:
            severity = Severity.SAFETY if load.qos else Severity.QUALITY
            text = "messages acknowledged by the broker never arrived" if load.qos else "messages sent never arrived"
            found.append(_finding("lost", "A1", severity, load.name, counts.lost, text, counts.lost_examples))
        if counts.duplicates:
            severity = Severity.QUALITY if load.qos == 1 else Severity.SAFETY
            examples = [value for log in logs for value in log.duplicates.examples]
            text = "deliveries of a message that had been delivered before"
            found.append(_finding("duplicate", "B2", severity, load.name, counts.duplicates, text, examples[:20]))
        if counts.disorder:
            examples = [value for log in logs for value in log.disorder.examples]
            text = "deliveries overtaken by a later message of the same publisher"
            found.append(_finding("order", "D8", Severity.SAFETY, load.name, counts.disorder, text, examples[:20]))
    return found + _foreign(recording.ledger.foreign)


def _foreign(foreign: Irregularities) -> list[Finding]:
    if not foreign.count:
        return []
    text = "deliveries of messages that this run did not send"
    return [_finding("phantom", "A5", Severity.SAFETY, "all", foreign.count, text, foreign.examples)]


def subject_of(load: Load, samples: list[Samples]) -> str:
    """``workload tasks, queue load-1f..-tasks, mqtt5``."""
    named = next((part for part in samples if part.workload == load.name), None)
    parts = [f"workload {load.name}"]
    if named is not None:
        parts += [f"queue {named.queue}" if named.queue else "no queue", named.protocol]
    return ", ".join(part for part in parts if part)


def _counts(load: Load, counts: Tally) -> list[Check]:
    def none_of(name: str, value: int, among: int, *, allowed: bool = False) -> Check:
        # Where a repetition or loss is allowed, no bound is shown: the figure is only told.
        tolerated = allowed and value > 0
        judged = Verdict.PASS if value == 0 or allowed else Verdict.FAIL
        nothing = among == 0 and value == 0
        return Check(
            name=f"{load.name}: {name}",
            value=float(value),
            unit="messages",
            bound=None if tolerated else 0.0,
            relation="" if tolerated else "==",
            verdict=Verdict.UNKNOWN if nothing else judged,
            source=f"QoS {load.qos} allows it" if tolerated else f"QoS {load.qos}",
            reason="there were no messages of which it could be said" if nothing else "",
        )

    found = [
        none_of("lost", counts.lost, counts.acknowledged if load.qos else counts.sent, allowed=load.qos == 0),
        none_of("duplicates", counts.duplicates, counts.delivered, allowed=load.qos == 1),
        none_of("out of order", counts.disorder, counts.delivered),
    ]
    if load.qos:
        found.append(none_of("refused or unacknowledged", counts.refused + counts.unacknowledged, counts.sent))
    if not isinstance(load, PubSubLoad):
        found.append(none_of("unsettled", counts.unsettled, counts.delivered))
    return found


def _within(times_ns: npt.NDArray[np.int64], phases: Phases) -> npt.NDArray[np.bool_]:
    seconds = times_ns / NS_PER_S
    return np.asarray((seconds >= phases.warmup_s) & (seconds < phases.warmup_s + phases.steady_s))


def _rate(load: Load, samples: list[Samples], profile: Profile, state: GeneratorState) -> Check:
    """Deliveries completed within the steady phase, against those intended in it.

    The most favourable explanation of a miss adds what only the generator's own delay moved out of the phase, and what
    a generator with too little headroom may not have reached itself.
    """
    phases = profile.phases
    intended = completed = in_time = 0
    for part in samples:
        if part.workload == load.name and part.operation is LatencyOperation.PUBLISH_TO_DELIVER:
            known = answered(part)
            here = _within(known.completed_ns, phases)
            own_delay_ns = known.offered_ns - known.intended_ns
            intended += int(_within(part.intended_ns, phases).sum())
            completed += int(here.sum())
            in_time += int((here | _within(known.completed_ns - own_delay_ns, phases)).sum())
    asked, achieved = intended / phases.steady_s, completed / phases.steady_s
    # What is under way at either end of the phase blurs short runs: allow for its scatter.
    scatter = 1 - RATE_TOLERANCE / math.sqrt(max(intended, 1))
    needed = asked * min(RATE_SHARE_MIN, max(RATE_SHARE_LEAST, scatter))
    unreached = 0.0 if state.headroom is None else asked * max(0.0, 1 - state.headroom / HEADROOM_MIN)
    high = in_time / phases.steady_s + unreached
    verdict = verdict_within(">=", needed, Bounds(low=achieved, high=max(achieved, high)))
    reason = ""
    if intended < RATE_MESSAGES_MIN:
        verdict, reason = Verdict.UNKNOWN, f"only {intended} messages were due"
    elif verdict is Verdict.UNKNOWN:
        reason = f"without the generator's own limits it may have been {high:.1f} messages/s"
    return Check(
        name=f"{load.name}: deliveries per second",
        value=round(achieved, 1),
        unit="messages/s",
        bound=round(needed, 1),
        relation=">=",
        verdict=verdict,
        source=f"asked: {asked:.1f} messages/s, seeded schedule",
        subject=subject_of(load, samples),
        reason=reason,
    )


def latency_check(
    target: LatencyTarget, load: Load, groups: dict[Key, Samples], phases: Phases, null_ms: Mapping[Key, float]
) -> Check | None:
    """One target against one workload; None where it does not apply. ``null_ms``: what a null broker needed, p99."""
    key = (load.name, target.operation, load.qos)
    applies = not target.workloads or load.name in target.workloads
    if not applies or (target.operation is LatencyOperation.PUBLISH_TO_ACK and load.qos == 0):
        return None
    if target.operation is LatencyOperation.DELIVER_TO_SETTLE and isinstance(load, PubSubLoad):
        return None
    group = groups.get(key)
    p99 = SteadyP99(bounds=exactly(math.nan), count=0, missing=0, delay_ms=0.0)
    value = None
    if group is not None:
        p99 = steady_p99(group, phases, machine_delay(null_ms.get(key, 0.0), target.p99_ms))
        known = answered(in_phase(group, phases, "steady")).latency_us
        value = round(_percentile(known, 99) / 1_000, 3) if len(known) else None
    verdict = verdict_within("<", target.p99_ms, p99.bounds) if p99.count else Verdict.UNKNOWN
    reason = ""
    if not p99.count:
        reason = f"none of {p99.missing:,} due in the steady phase was answered" if p99.missing else "nothing was due"
    elif verdict is Verdict.UNKNOWN:
        delays = {"delay": p99.delay_ms, "null": null_ms.get(key, 0.0)}
        reason = explain(p99.bounds, "ms", count=p99.count, missing=p99.missing, **delays)
    return Check(
        name=f"{key_name(key)}, p99",
        value=value,
        unit="ms",
        bound=target.p99_ms,
        relation="<",
        verdict=verdict,
        source=target.source,
        subject="" if group is None else subject_of(load, [group]),
        reason=reason,
    )


def checks(
    profile: Profile,
    tallies: list[Tally],
    samples: list[Samples],
    groups: dict[Key, Samples],
    state: GeneratorState,
    null_ms: Mapping[Key, float] = MappingProxyType({}),
) -> list[Check]:
    """Every check of the broker, workload by workload. ``null_ms``: p99 of a broker that does nothing, in this run."""
    found = []
    for load, counts in zip(profile.workloads, tallies, strict=True):
        found += _counts(load, counts)
        found.append(_rate(load, samples, profile, state))
        for target in profile.targets:
            check = latency_check(target, load, groups, profile.phases, null_ms)
            if check is not None:
                found.append(check)
    return found


def generator_checks(state: GeneratorState) -> list[Check]:
    """Checks of the generator; they do not judge the broker."""
    found = [
        Check(
            name="generator: lateness, p99",
            value=state.lateness_p99_ms,
            unit="ms",
            bound=LATENESS_P99_MS,
            relation="<",
            verdict=Verdict.PASS if state.lateness_p99_ms < LATENESS_P99_MS else Verdict.UNKNOWN,
            source="handed out later than intended; the broker has no part in it",
            reason="" if state.lateness_p99_ms < LATENESS_P99_MS else "it widens every latency by as much",
        )
    ]
    if state.headroom is not None:
        enough = state.headroom >= HEADROOM_MIN
        found.append(
            Check(
                name="generator: headroom",
                value=round(state.headroom, 2),
                unit="x",
                bound=HEADROOM_MIN,
                relation=">=",
                verdict=Verdict.PASS if enough else Verdict.UNKNOWN,
                source="ceiling against the null broker over the asked rate",
                reason="" if enough else "a missed rate may be the generator's",
            )
        )
    return found


def per_second(profile: Profile, groups: dict[Key, Samples]) -> list[Series]:
    """Of every workload and operation: completions by the second in which they came, so that a stall shows as one;
    p50 and p99 by the second in which the message was due, and how many of those were never answered.

    The second in which the run ended is no whole one, so it has no rate.
    """
    done = [group.completed_ns for group in map(answered, groups.values())]
    end_s = max([profile.phases.total_s, *(float(column.max()) / NS_PER_S for column in done if len(column))])
    seconds = int(np.ceil(end_s))
    x_s = [float(second) for second in range(seconds)]
    found = []
    for key, whole in groups.items():
        group = answered(whole)
        name, latency_ms = key_name(key), group.latency_us / 1_000
        due_at, known_at, done_at = (
            column // NS_PER_S for column in (whole.intended_ns, group.intended_ns, group.completed_ns)
        )
        rate = [float((done_at == second).sum()) if second + 1 <= end_s else None for second in range(seconds)]
        found.append(Series(name=name, unit="messages/s", x_s=x_s, y=rate, group="rate"))
        chosen = [np.sort(latency_ms[known_at == second]) for second in range(seconds)]
        missing = [int((due_at == second).sum()) - len(values) for second, values in enumerate(chosen)]
        for label, quantile in (("p50", 0.5), ("p99", P99)):
            y = [_of_all_due(values, lost, quantile) for values, lost in zip(chosen, missing, strict=True)]
            found.append(Series(name=f"{name}, {label}", unit="ms", x_s=x_s, y=y, group=f"latency {label}"))
        if any(missing):
            lost_y: list[float | None] = [float(count) for count in missing]
            found.append(Series(name=name, unit="messages", x_s=x_s, y=lost_y, group="due and never answered"))
    return found


def _of_all_due(ordered: npt.NDArray[np.float64], missing: int, quantile: float) -> float | None:
    """The percentile with the missing as the slowest; None where it would be one of them, or nothing was due."""
    rank = quantile_ranks(quantile, len(ordered), missing).high if len(ordered) else None
    return None if rank is None else round(float(ordered[rank - 1]), 3)
