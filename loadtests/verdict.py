"""What a load run says: loss, repetition, order, rate, latency targets, and whether the generator may judge at all.

A generator that was late itself, or has no headroom, cannot accuse a broker of latency: a missed bound is then
``unknown``. A met bound stands, since latency counts from the intended time and so includes the generator's delay.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from loadtests.generator import Recording, lateness_us
from loadtests.ledger import Irregularities
from loadtests.profile import LatencyTarget, Load, Phases, Profile, PubSubLoad
from loadtests.recorder import LOST, OK, REFUSED, Key, Samples, in_phase, percentiles
from loadtests.schedule import NS_PER_S
from reference_broker.trace.results import Check, Finding, Percentiles, Series, Severity, Verdict
from reference_broker.trace.schema import LatencyOperation

LATENESS_P99_MS = 1.0
"""A generator later than this (99th percentile) may be the limit itself."""
HEADROOM_MIN = 2.0
"""The generator must be able to run this many times the asked rate."""
RATE_SHARE_MIN = 0.99
RATE_TOLERANCE = 2.0
"""Standard deviations of a Poisson count."""

OPERATIONS = {
    LatencyOperation.CONNECT: "connect",
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


def generator_state(recording: Recording, headroom: float | None) -> GeneratorState:
    late_us = lateness_us(recording.ledger)
    return GeneratorState(
        lateness_p99_ms=round(float(np.percentile(late_us, 99)) / 1_000, 3) if len(late_us) else 0.0,
        late_starts=int((late_us > LATENESS_P99_MS * 1_000).sum()),
        headroom=headroom,
    )


def key_name(key: Key) -> str:
    """``qos1: publish to ack``."""
    workload, operation, _ = key
    return f"{workload}: {OPERATIONS[operation]}"


def steady_percentiles(groups: dict[Key, Samples], profile: Profile) -> dict[Key, Percentiles]:
    """Exact percentiles of the steady phase of every workload and operation that has samples there."""
    found = {}
    for key, group in groups.items():
        steady = in_phase(group, profile.phases, "steady")
        if len(steady.seq):
            found[key] = percentiles(key_name(key), steady.latency_us)
    return found


def drift(group: Samples, phases: Phases) -> float | None:
    """Median latency of the last third of the steady phase over that of its first third.

    Near 1 when the run was steady; well above 1 when a backlog grew. None when a third has no sample.
    """
    steady = in_phase(group, phases, "steady")
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


def _judged(met: bool, state: GeneratorState) -> Verdict:
    if met:
        return Verdict.PASS
    return Verdict.FAIL if state.trusted else Verdict.UNKNOWN


def _counts(load: Load, counts: Tally) -> list[Check]:
    def none_of(name: str, value: int, *, allowed: bool = False) -> Check:
        verdict = Verdict.PASS if value == 0 or allowed else Verdict.FAIL
        return Check(
            name=f"{load.name}: {name}",
            value=float(value),
            unit="messages",
            bound=0.0,
            relation="==",
            verdict=verdict,
            source=f"QoS {load.qos} allows it" if allowed and value else f"QoS {load.qos}",
        )

    found = [
        none_of("lost", counts.lost, allowed=load.qos == 0),
        none_of("duplicates", counts.duplicates, allowed=load.qos == 1),
        none_of("out of order", counts.disorder),
    ]
    if load.qos:
        found.append(none_of("refused or unacknowledged", counts.refused + counts.unacknowledged))
    if not isinstance(load, PubSubLoad):
        found.append(none_of("unsettled", counts.unsettled))
    return found


def _rate(load: Load, samples: list[Samples], profile: Profile, state: GeneratorState) -> Check:
    """Deliveries completed within the steady phase, against those intended in it."""
    begin_s, end_s = profile.phases.warmup_s, profile.phases.warmup_s + profile.phases.steady_s
    intended = completed = 0
    for part in samples:
        if part.workload == load.name and part.operation is LatencyOperation.PUBLISH_TO_DELIVER:
            for column, chosen in ((part.intended_ns, slice(None)), (part.completed_ns, part.status == OK)):
                seconds = column[chosen] / NS_PER_S
                within = int(((seconds >= begin_s) & (seconds < end_s)).sum())
                if column is part.intended_ns:
                    intended += within
                else:
                    completed += within
    asked, achieved = intended / profile.phases.steady_s, completed / profile.phases.steady_s
    # What is under way at either end of the phase blurs short runs: allow for its scatter.
    share = min(RATE_SHARE_MIN, 1 - RATE_TOLERANCE / math.sqrt(max(intended, 1)))
    met = completed > 0 and achieved >= asked * share
    return Check(
        name=f"{load.name}: deliveries per second",
        value=round(achieved, 1),
        unit="messages/s",
        bound=round(asked * share, 1),
        relation=">=",
        verdict=_judged(met, state) if completed or state.trusted else Verdict.UNKNOWN,
        source=f"asked: {asked:.1f} messages/s, seeded schedule",
    )


def _latency(target: LatencyTarget, load: Load, figures: dict[Key, Percentiles], state: GeneratorState) -> Check | None:
    key = (load.name, target.operation, load.qos)
    applies = not target.workloads or load.name in target.workloads
    if not applies or (target.operation is LatencyOperation.PUBLISH_TO_ACK and load.qos == 0):
        return None
    if target.operation is LatencyOperation.DELIVER_TO_SETTLE and isinstance(load, PubSubLoad):
        return None
    figure = figures.get(key)
    p99_ms = None if figure is None else round(figure.p99_us / 1_000, 3)
    verdict = Verdict.UNKNOWN if p99_ms is None else _judged(p99_ms < target.p99_ms, state)
    return Check(
        name=f"{key_name(key)}, p99",
        value=p99_ms,
        unit="ms",
        bound=target.p99_ms,
        relation="<",
        verdict=verdict,
        source=target.source,
    )


def checks(
    profile: Profile,
    tallies: list[Tally],
    samples: list[Samples],
    figures: dict[Key, Percentiles],
    state: GeneratorState,
) -> list[Check]:
    """Every check of the broker, workload by workload."""
    found = []
    for load, counts in zip(profile.workloads, tallies, strict=True):
        found += _counts(load, counts)
        found.append(_rate(load, samples, profile, state))
        for target in profile.targets:
            check = _latency(target, load, figures, state)
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
            )
        )
    return found


def per_second(profile: Profile, groups: dict[Key, Samples]) -> list[Series]:
    """Rate of completions, p50 and p99 of every workload and operation, by second of the intended time."""
    seconds = int(np.ceil(profile.phases.total_s))
    x_s = [float(second) for second in range(seconds)]
    found = []
    for key, group in groups.items():
        name, latency_ms = key_name(key), group.latency_us / 1_000
        at = group.intended_ns // NS_PER_S
        chosen = [latency_ms[at == second] for second in range(seconds)]
        rate: list[float | None] = [float(len(values)) for values in chosen]
        found.append(Series(name=name, unit="messages/s", x_s=x_s, y=rate, group="rate"))
        for label, percent in (("p50", 50), ("p99", 99)):
            y: list[float | None] = [
                round(float(np.percentile(values, percent, method="inverted_cdf")), 3) if len(values) else None
                for values in chosen
            ]
            found.append(Series(name=f"{name}, {label}", unit="ms", x_s=x_s, y=y, group=f"latency {label}"))
    return found
