"""Figures of a history: latencies, availability, recovery from each fault, and the series that reports draw.

Latency counts from the time the open-loop schedule meant to send, so a stalled broker cannot hide its stall.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from faults.scenario import Target
from faults.workload.history import intended_ns
from reference_broker.trace.results import Band, Check, Percentiles, Series, Verdict
from reference_broker.trace.schema import HistoryEvent, OpKind, OpType

BUCKET_S: Final = 0.25
_NS_PER_S: Final = 1e9
_NS_PER_US: Final = 1e3
_DLQ_PREFIX: Final = "$dlq/"
_SETTLEMENTS: Final = frozenset({OpKind.ACK, OpKind.NACK, OpKind.REJECT})

LATENCY_METRICS: Final = ("p50", "p90", "p99", "p999", "max")
METRIC_UNITS: Final[dict[str, str]] = {
    **dict.fromkeys(("sends_ok", "sends_fail", "sends_info", "recovered", "deliveries", "redeliveries"), "messages"),
    **dict.fromkeys(("dead_lettered", "acks_ok", "nacks_ok", "rejects_ok", "session_ends", "faults"), "1"),
    **dict.fromkeys(("settlements_failed", "settlements_unknown", "sessions", "publish_ok_ratio"), "1"),
    **{f"publish_to_ack_{name}_ms": "ms" for name in LATENCY_METRICS},
    **{f"publish_to_deliver_{name}_ms": "ms" for name in LATENCY_METRICS},
    "publish_gap_max_s": "s",
    "recovery_max_s": "s",
}
"""What a scenario may set targets for: counts of the checkers, and what is measured here."""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured in one run."""

    metrics: dict[str, float | int | str]
    percentiles: list[Percentiles]
    series: list[Series]
    bands: list[Band]


class _Latencies:
    """Samples in nanoseconds with the time at which each was complete."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples: list[tuple[int, int]] = []

    def add(self, at_ns: int, latency_ns: int) -> None:
        self.samples.append((at_ns, latency_ns))

    def percentiles(self) -> Percentiles:
        values = sorted(latency for _, latency in self.samples)
        p50, p90, p99, p999 = (percentile(values, q) / _NS_PER_US for q in (0.5, 0.9, 0.99, 0.999))
        return Percentiles(
            name=self.name,
            count=len(values),
            p50_us=p50,
            p90_us=p90,
            p99_us=p99,
            p999_us=p999,
            max_us=values[-1] / _NS_PER_US,
        )


def percentile(ordered: Sequence[int], q: float) -> int:
    """The smallest sample that at least the share ``q`` of all samples does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


class _Reading:
    """One pass over the history."""

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.count = dict.fromkeys(("settlements_failed", "settlements_unknown", "sessions"), 0)
        self.publishes = 0
        self.to_ack = _Latencies("publish_to_ack")
        self.to_deliver = _Latencies("publish_to_deliver")
        self.publish_ok: list[tuple[int, int]] = []
        """(completed, invoked) of each confirmed publish, in nanoseconds."""
        self.acks_ok: list[int] = []
        self.first_publish_ns = -1
        self.last_publish_ns = -1
        self.end_ns = 0
        self.faults: dict[int, tuple[str, int, int]] = {}
        """Index of the invocation -> label, from, to (-1 while it lasts)."""
        self._invoked: dict[int, HistoryEvent] = {}
        self._intended: dict[str, int] = {}
        self._seen: set[tuple[str, str, str]] = set()
        for event in events:
            self._read(event)

    def _read(self, event: HistoryEvent) -> None:
        self.end_ns = event.time_ns
        match event.f:
            case OpKind.PUBLISH:
                self._publish(event)
            case OpKind.DELIVER:
                self._deliver(event)
            case OpKind.FAULT if event.type is OpType.INVOKE:
                self.faults[event.index] = (event.detail, event.time_ns, -1)
            case OpKind.FAULT if event.op in self.faults:
                label, from_ns, _ = self.faults[event.op]
                self.faults[event.op] = (label, from_ns, event.time_ns)
            case OpKind.CONNECT if event.type is OpType.OK:
                self.count["sessions"] += 1
            case f if f in _SETTLEMENTS and event.type is not OpType.INVOKE and not event.queue.startswith(_DLQ_PREFIX):
                self._settlement(event)

    def _publish(self, event: HistoryEvent) -> None:
        self.last_publish_ns = event.time_ns
        if event.type is OpType.INVOKE:
            if self.first_publish_ns < 0:
                self.first_publish_ns = event.time_ns
            self.publishes += 1
            self._invoked[event.index] = event
            self._intended[event.value] = intended_ns(event)
            return
        invoked = self._invoked.pop(event.op, None)
        if event.type is OpType.OK and invoked is not None:
            self.publish_ok.append((event.time_ns, invoked.time_ns))
            self.to_ack.add(event.time_ns, event.time_ns - intended_ns(invoked))

    def _deliver(self, event: HistoryEvent) -> None:
        subject = (event.queue, event.group, event.value)
        if event.queue.startswith(_DLQ_PREFIX) or subject in self._seen:
            return
        self._seen.add(subject)
        intended = self._intended.get(event.value)
        if intended is not None:
            self.to_deliver.add(event.time_ns, event.time_ns - intended)

    def _settlement(self, event: HistoryEvent) -> None:
        if event.type is OpType.FAIL:
            self.count["settlements_failed"] += 1
        elif event.type is OpType.INFO:
            self.count["settlements_unknown"] += 1
        elif event.f is OpKind.ACK:
            self.acks_ok.append(event.time_ns)

    def publish_gap_max_s(self) -> float | None:
        """Longest time without any confirmed publish while publishes were made."""
        if self.first_publish_ns < 0:
            return None
        times = [self.first_publish_ns, *(completed for completed, _ in self.publish_ok), self.last_publish_ns]
        return max(after - before for before, after in pairwise(times)) / _NS_PER_S

    def recovery_s(self, healed_ns: int) -> float | None:
        """From the end of a fault to the first confirm of a publish sent after it; None if none was sent by then."""
        after = (completed for completed, invoked in self.publish_ok if invoked >= healed_ns)
        first = next(after, None)
        return None if first is None else (first - healed_ns) / _NS_PER_S


def measure(events: Iterable[HistoryEvent]) -> Measures:
    """Figures, percentiles, series per quarter second, and a band per fault."""
    reading = _Reading(events)
    metrics: dict[str, float | int | str] = dict(reading.count)
    if reading.publishes:
        metrics["publish_ok_ratio"] = len(reading.publish_ok) / reading.publishes
    percentiles = []
    for latencies in (reading.to_ack, reading.to_deliver):
        if latencies.samples:
            summary = latencies.percentiles()
            percentiles.append(summary)
            for name in LATENCY_METRICS:
                metrics[f"{latencies.name}_{name}_ms"] = getattr(summary, f"{name}_us") / 1_000
    gap_s = reading.publish_gap_max_s()
    if gap_s is not None:
        metrics["publish_gap_max_s"] = gap_s
    _add_recoveries(reading, metrics)
    return Measures(metrics=metrics, percentiles=percentiles, series=_series(reading), bands=_bands(reading))


def _add_recoveries(reading: _Reading, metrics: dict[str, float | int | str]) -> None:
    found = []
    for number, (label, _, healed_ns) in enumerate(reading.faults.values(), 1):
        recovery_s = reading.recovery_s(healed_ns) if healed_ns >= 0 else None
        if recovery_s is not None:
            found.append(recovery_s)
            metrics[f"recovery_{number}_{label.partition(' ')[0]}_s"] = recovery_s
    if found:
        metrics["recovery_max_s"] = max(found)


def _bands(reading: _Reading) -> list[Band]:
    return [
        Band(
            label=label,
            from_s=from_ns / _NS_PER_S,
            to_s=(to_ns if to_ns >= 0 else reading.end_ns) / _NS_PER_S,
        )
        for label, from_ns, to_ns in reading.faults.values()
    ]


def _series(reading: _Reading) -> list[Series]:
    buckets = int(reading.end_ns / _NS_PER_S / BUCKET_S) + 1
    x_s = [index * BUCKET_S for index in range(buckets)]
    rates = {
        "publishes confirmed": [completed for completed, _ in reading.publish_ok],
        "acks confirmed": reading.acks_ok,
    }
    series = [
        Series(name=name, unit="1/s", group="throughput", x_s=x_s, y=_rate(times, x_s)) for name, times in rates.items()
    ]
    for latencies, name in ((reading.to_ack, "publish to ack p99"), (reading.to_deliver, "publish to deliver p99")):
        series.append(Series(name=name, unit="ms", group="latency", x_s=x_s, y=_p99(latencies, x_s)))
    return series


def _rate(times_ns: list[int], x_s: list[float]) -> list[float | None]:
    edges = [round(x * _NS_PER_S) for x in (*x_s, x_s[-1] + BUCKET_S)]
    counts = [bisect_left(times_ns, edge) for edge in edges]
    return [(after - before) / BUCKET_S for before, after in pairwise(counts)]


def _p99(latencies: _Latencies, x_s: list[float]) -> list[float | None]:
    values: list[list[int]] = [[] for _ in x_s]
    edges = [round(x * _NS_PER_S) for x in x_s]
    for at_ns, latency_ns in latencies.samples:
        values[bisect_right(edges, at_ns) - 1].append(latency_ns)
    return [percentile(sorted(bucket), 0.99) / 1e6 if bucket else None for bucket in values]


def check_targets(targets: Iterable[Target], metrics: dict[str, float | int | str]) -> list[Check]:
    """Each target against its figure; a figure that the run did not produce is ``unknown``."""
    return [_check(target, metrics.get(target.metric)) for target in targets]


def _check(target: Target, found: float | int | str | None) -> Check:
    value = float(found) if isinstance(found, int | float) else None
    verdict = Verdict.UNKNOWN
    if value is not None:
        bound = target.bound
        reached = {
            "<": value < bound,
            "<=": value <= bound,
            ">": value > bound,
            ">=": value >= bound,
            "==": value == bound,
        }[target.relation]
        verdict = Verdict.PASS if reached else Verdict.FAIL
    return Check(
        name=target.metric,
        value=value,
        unit=METRIC_UNITS.get(target.metric, ""),
        bound=target.bound,
        relation=target.relation,
        verdict=verdict,
        source=target.source,
    )


def unknown_metrics(targets: Iterable[Target]) -> list[str]:
    """Target names that no run can produce."""
    return [target.metric for target in targets if target.metric not in METRIC_UNITS]
