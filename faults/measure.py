"""Figures of a history: latencies, availability, recovery from each fault, and the series that reports draw.

Latency counts from the time the open-loop schedule meant to send, so a stalled broker cannot hide its stall. Each queue
is measured by itself, and the worst stands for all: confirms of one queue must not end the silence of another. What was
published and never confirmed, or confirmed and never delivered, counts as the slowest when a target is judged.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from assay.faults.scenario import Target
from assay.faults.workload.history import intended_ns
from assay.reference_broker.trace.judgement import Bounds, exactly, quantile_bounds, verdict_within
from assay.reference_broker.trace.results import Band, Check, Percentiles, Series, Verdict
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

BUCKET_S: Final = 0.25
_NS_PER_S: Final = 1e9
_NS_PER_US: Final = 1e3
_DLQ_PREFIX: Final = "$dlq/"
_SETTLEMENTS: Final = frozenset({OpKind.ACK, OpKind.NACK, OpKind.REJECT})

_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
LATENCY_METRICS: Final = tuple(_QUANTILES)
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
    bounds: dict[str, Bounds]
    """What a latency metric may be, since some publishes and deliveries never came."""
    percentiles: list[Percentiles]
    series: list[Series]
    bands: list[Band]


class _Latencies:
    """Samples of one operation of one queue, in nanoseconds, with the time at which each was complete."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.samples: list[tuple[int, int]] = []
        self.missing = 0
        """Due, and never complete."""

    def add(self, at_ns: int, latency_ns: int) -> None:
        self.samples.append((at_ns, latency_ns))

    def bounds_ms(self) -> dict[str, Bounds]:
        """Of each of ``LATENCY_METRICS``, the missing included."""
        values = sorted(latency / 1e6 for _, latency in self.samples)
        return {name: quantile_bounds(values, self.missing, q) for name, q in _QUANTILES.items()}

    def percentiles(self, label: str) -> Percentiles:
        values = sorted(latency for _, latency in self.samples)
        p50, p90, p99, p999 = (percentile(values, q) / _NS_PER_US for q in (0.5, 0.9, 0.99, 0.999))
        return Percentiles(
            name=label,
            count=len(values),
            missing=self.missing,
            p50_us=p50,
            p90_us=p90,
            p99_us=p99,
            p999_us=p999,
            max_us=values[-1] / _NS_PER_US,
        )


def percentile(ordered: Sequence[int], q: float) -> int:
    """The smallest sample that at least the share ``q`` of all samples does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


class _Queue:
    """What happened to one queue."""

    def __init__(self) -> None:
        self.to_ack = _Latencies("publish_to_ack")
        self.to_deliver = _Latencies("publish_to_deliver")
        self.published_ns: list[int] = []
        self.publish_ok: list[tuple[int, int]] = []
        """(completed, invoked) of each confirmed publish, in nanoseconds."""
        self.last_publish_ns = -1
        self.groups: dict[str, int] = {}
        """Since which event each group, or MQTT session, is subscribed; what was published before is not owed to it."""
        self.confirmed: dict[str, int] = {}
        """Of each confirmed publish, unless it was taken back: the index of its invocation."""
        self.delivered: set[tuple[str, str]] = set()
        """(group, value)"""

    def finish(self) -> None:
        """The history is over: what has not come is missing."""
        self.to_ack.missing = len(self.published_ns) - len(self.publish_ok)
        published = sorted(self.confirmed.values())
        owed = sum(len(published) - bisect_right(published, since) for since in self.groups.values())
        came = sum(
            self.confirmed.get(value, -1) > self.groups[group]
            for group, value in self.delivered
            if group in self.groups
        )
        self.to_deliver.missing = owed - came

    def gap_max_s(self) -> float:
        """Longest time without any confirmed publish while publishes were made."""
        times = [self.published_ns[0], *(completed for completed, _ in self.publish_ok), self.last_publish_ns]
        return max(after - before for before, after in pairwise(times)) / _NS_PER_S

    def recovery_s(self, healed_ns: int) -> float | None:
        """From the end of a fault to the first confirm of a publish sent after it; None if there was none."""
        after = (completed for completed, invoked in self.publish_ok if invoked >= healed_ns)
        first = next(after, None)
        return None if first is None else (first - healed_ns) / _NS_PER_S


class _Reading:
    """One pass over the history."""

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.count = dict.fromkeys(("settlements_failed", "settlements_unknown", "sessions"), 0)
        self.queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self.acks_ok: list[int] = []
        self.end_ns = 0
        self.faults: dict[int, tuple[str, int, int]] = {}
        """Index of the invocation -> label, from, to (-1 while it lasts)."""
        self._invoked: dict[int, HistoryEvent] = {}
        self._intended: dict[str, int] = {}
        for event in events:
            self._read(event)
        for queue in self.queues.values():
            queue.finish()

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
            case OpKind.SUBSCRIBE if event.type is OpType.OK and event.group:
                self.queues[event.queue].groups.setdefault(event.group, event.index)
            case OpKind.DRAIN if event.type is OpType.FAIL:
                self.queues[event.queue].groups.pop(event.group, None)
            case OpKind.CANCEL if event.type is OpType.INVOKE:
                self.queues[event.queue].confirmed.pop(event.value, None)
            case OpKind.CONNECT if event.type is OpType.OK:
                self.count["sessions"] += 1
            case f if f in _SETTLEMENTS and event.type is not OpType.INVOKE and not event.queue.startswith(_DLQ_PREFIX):
                self._settlement(event)

    def _publish(self, event: HistoryEvent) -> None:
        queue = self.queues[event.queue]
        queue.last_publish_ns = event.time_ns
        if event.type is OpType.INVOKE:
            if event.value in self._intended:
                return  # sent again, which is no message of its own
            if event.qos != 0:  # no answer is due to QoS 0
                queue.published_ns.append(event.time_ns)
            self._invoked[event.index] = event
            self._intended[event.value] = intended_ns(event) + max(0, event.delay_ns)
            return
        invoked = self._invoked.pop(event.op, None)
        if event.type is OpType.OK and invoked is not None:
            queue.publish_ok.append((event.time_ns, invoked.time_ns))
            if event.qos != 0:
                queue.confirmed[event.value] = invoked.index
            queue.to_ack.add(event.time_ns, event.time_ns - intended_ns(invoked))

    def _deliver(self, event: HistoryEvent) -> None:
        queue, subject = self.queues[event.queue], (event.group, event.value)
        if event.queue.startswith(_DLQ_PREFIX) or subject in queue.delivered:
            return
        queue.delivered.add(subject)
        intended = self._intended.get(event.value)
        if intended is not None:
            queue.to_deliver.add(event.time_ns, event.time_ns - intended)

    def _settlement(self, event: HistoryEvent) -> None:
        if event.type is OpType.FAIL:
            self.count["settlements_failed"] += 1
        elif event.type is OpType.INFO:
            self.count["settlements_unknown"] += 1
        elif event.f is OpKind.ACK:
            self.acks_ok.append(event.time_ns)

    @property
    def publishing(self) -> dict[str, _Queue]:
        """The queues to which something was published."""
        return {name: queue for name, queue in self.queues.items() if queue.published_ns}


def measure(events: Iterable[HistoryEvent]) -> Measures:
    """Figures, percentiles, series per quarter second, and a band per fault."""
    reading = _Reading(events)
    metrics: dict[str, float | int | str] = dict(reading.count)
    publishing = reading.publishing
    published = sum(len(queue.published_ns) for queue in publishing.values())
    if published:
        metrics["publish_ok_ratio"] = sum(len(queue.publish_ok) for queue in publishing.values()) / published
        metrics["publish_gap_max_s"] = max(queue.gap_max_s() for queue in publishing.values())
    percentiles = []
    bounds: dict[str, Bounds] = {}
    for operation in ("to_ack", "to_deliver"):
        measured: dict[str, _Latencies] = {name: getattr(queue, operation) for name, queue in publishing.items()}
        for name, latencies in measured.items():
            if latencies.samples:
                label = f"{latencies.name} {name}" if len(publishing) > 1 else latencies.name
                percentiles.append(latencies.percentiles(label))
        _add_latencies(list(measured.values()), metrics, bounds)
    _add_recoveries(reading, metrics)
    return Measures(
        metrics=metrics, bounds=bounds, percentiles=percentiles, series=_series(reading), bands=_bands(reading)
    )


def _add_latencies(
    measured: list[_Latencies], metrics: dict[str, float | int | str], bounds: dict[str, Bounds]
) -> None:
    """The worst of the queues, of what was complete and of what may be."""
    known = [latencies for latencies in measured if latencies.samples]
    if not known:
        return
    summaries = [latencies.percentiles("") for latencies in known]
    possible = [latencies.bounds_ms() for latencies in measured if latencies.samples or latencies.missing]
    for name in LATENCY_METRICS:
        metric = f"{known[0].name}_{name}_ms"
        metrics[metric] = max(getattr(summary, f"{name}_us") for summary in summaries) / 1_000
        ends = [one[name] for one in possible]
        bounds[metric] = Bounds(low=max(end.low for end in ends), high=max(end.high for end in ends))


def _add_recoveries(reading: _Reading, metrics: dict[str, float | int | str]) -> None:
    found = []
    for number, (label, _, healed_ns) in enumerate(reading.faults.values(), 1):
        queues = [queue for queue in reading.publishing.values() if queue.published_ns[-1] >= healed_ns >= 0]
        each = [queue.recovery_s(healed_ns) for queue in queues]
        if each and None not in each:
            recovery_s = max(one for one in each if one is not None)
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
    queues = reading.publishing
    rates = {"acks confirmed": reading.acks_ok}
    for name, queue in queues.items():
        rates[_of_queue("publishes confirmed", name, queues)] = [completed for completed, _ in queue.publish_ok]
    series = [
        Series(name=name, unit="1/s", group="throughput", x_s=x_s, y=_rate(times, x_s))
        for name, times in sorted(rates.items(), reverse=True)
    ]
    for operation, label in (("to_ack", "publish to ack p99"), ("to_deliver", "publish to deliver p99")):
        # Without any publish a line of gaps still names what was looked for.
        measured = {name: getattr(queue, operation) for name, queue in queues.items()} or {"": _Latencies("")}
        series += [
            Series(name=_of_queue(label, name, queues), unit="ms", group="latency", x_s=x_s, y=_p99(latencies, x_s))
            for name, latencies in measured.items()
        ]
    return series


def _of_queue(label: str, name: str, queues: dict[str, _Queue]) -> str:
    return f"{label}, {name}" if len(queues) > 1 else label


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


def check_targets(
    targets: Iterable[Target], metrics: dict[str, float | int | str], bounds: dict[str, Bounds] | None = None
) -> list[Check]:
    """Each target against its figure, or all that it may be; one that the run did not produce is ``unknown``."""
    return [_check(target, metrics.get(target.metric), (bounds or {}).get(target.metric)) for target in targets]


def _check(target: Target, found: float | int | str | None, possible: Bounds | None) -> Check:
    value = float(found) if isinstance(found, int | float) else None
    verdict, reason = Verdict.UNKNOWN, "the run did not produce this figure"
    if value is not None:
        figure = possible or exactly(value)
        verdict = verdict_within(target.relation, target.bound, figure)
        low, high = f"{figure.low:.4g}", "anything" if math.isinf(figure.high) else f"{figure.high:.4g}"
        reason = f"some never came: with them it lies between {low} and {high}"
    return Check(
        name=target.metric,
        value=value,
        unit=METRIC_UNITS.get(target.metric, ""),
        bound=target.bound,
        relation=target.relation,
        verdict=verdict,
        source=target.source,
        reason=reason if verdict is Verdict.UNKNOWN else "",
    )


def unknown_metrics(targets: Iterable[Target]) -> list[str]:
    """Target names that no run can produce."""
    return [target.metric for target in targets if target.metric not in METRIC_UNITS]
