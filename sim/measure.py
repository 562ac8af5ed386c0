"""Figures of a simulated run, in simulated time, from its history: latencies, rates, backlog, fault bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from conformance.checkers import Tables
from faults.workload import intended_ns
from reference_broker.trace.results import Band, Percentiles, Series
from reference_broker.trace.schema import HistoryEvent, LatencyOperation, OpKind, OpType

_BUCKETS: Final = 60
_LEAST_BUCKET_S: Final = 0.1
Samples = dict[LatencyOperation, list[tuple[int, int]]]
"""(completion, latency) in nanoseconds, by operation."""


def latencies(events: Sequence[HistoryEvent], tables: Tables) -> Samples:
    """Latencies of what succeeded. A publish counts from when the open-loop schedule wanted it."""
    samples: Samples = {
        LatencyOperation.PUBLISH_TO_ACK: [],
        LatencyOperation.PUBLISH_TO_DELIVER: [],
        LatencyOperation.DELIVER_TO_SETTLE: [],
    }
    intended = {
        event.value: intended_ns(event) for event in events if event.f is OpKind.PUBLISH and event.type is OpType.INVOKE
    }
    for send in tables.sends.values():
        if send.status is OpType.OK:
            start = intended[send.value]
            samples[LatencyOperation.PUBLISH_TO_ACK].append((send.cpl_ns, send.cpl_ns - start))
    for subject, deliveries in tables.main.items():
        first = deliveries[0]
        if first.value in intended:
            taken = first.time_ns - intended[first.value]
            samples[LatencyOperation.PUBLISH_TO_DELIVER].append((first.time_ns, taken))
        for row in tables.settlements.get(subject, ()):
            before = [event.time_ns for event in deliveries if event.index < row.inv_idx]
            if row.status is OpType.OK and before:
                samples[LatencyOperation.DELIVER_TO_SETTLE].append((row.cpl_ns, row.cpl_ns - before[-1]))
    return samples


def percentiles(samples: Samples) -> list[Percentiles]:
    """Exact percentiles (nearest rank) per operation that has samples."""
    rows = []
    for operation, pairs in samples.items():
        if pairs:
            sorted_us = sorted(latency / 1e3 for _, latency in pairs)
            rows.append(
                Percentiles(
                    name=operation.value,
                    count=len(sorted_us),
                    p50_us=nearest_rank(sorted_us, 0.5),
                    p90_us=nearest_rank(sorted_us, 0.9),
                    p99_us=nearest_rank(sorted_us, 0.99),
                    p999_us=nearest_rank(sorted_us, 0.999),
                    max_us=sorted_us[-1],
                )
            )
    return rows


def nearest_rank(ascending: Sequence[float], share: float) -> float:
    """The least value that at least this share of all values does not exceed."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def bands(tables: Tables, end_s: float) -> list[Band]:
    """A band per fault, cut at the end of the run."""
    return [
        Band(label=span.detail, from_s=span.from_ns / 1e9, to_s=min(span.to_ns / 1e9, end_s)) for span in tables.faults
    ]


def series(events: Sequence[HistoryEvent], samples: Samples, duration_s: float) -> list[Series]:
    """Rates, backlog and latency over time, in about sixty buckets."""
    width_s = max(_LEAST_BUCKET_S, duration_s / _BUCKETS)
    count = max(1, math.ceil(duration_s / width_s))
    x_s = [round((number + 0.5) * width_s, 6) for number in range(count)]

    def bucket(time_ns: int) -> int:
        return min(count - 1, int(time_ns / 1e9 / width_s))

    confirmed = [0.0] * count
    delivered = [0.0] * count
    for event in events:
        if event.type is OpType.OK and event.f is OpKind.PUBLISH:
            confirmed[bucket(event.time_ns)] += 1
        elif event.f is OpKind.DELIVER:
            delivered[bucket(event.time_ns)] += 1
    rates = [
        Series(name=name, unit="1/s", group="rates", x_s=x_s, y=[value / width_s for value in values])
        for name, values in (("confirmed", confirmed), ("delivered", delivered))
    ]
    return [*rates, _backlog(events, x_s, width_s), *_latency_series(samples, x_s, bucket_of=bucket)]


def _backlog(events: Sequence[HistoryEvent], x_s: list[float], width_s: float) -> Series:
    """Values confirmed and not yet delivered to anybody, at the end of each bucket."""
    open_values: set[str] = set()
    seen: set[str] = set()
    y: list[float | None] = []
    position = 0
    for middle in x_s:
        end_ns = (middle + width_s / 2) * 1e9
        while position < len(events) and events[position].time_ns <= end_ns:
            event = events[position]
            position += 1
            if event.f is OpKind.DELIVER:
                seen.add(event.value)
                open_values.discard(event.value)
            elif event.f is OpKind.PUBLISH and event.type is OpType.OK and event.value not in seen:
                open_values.add(event.value)
        y.append(float(len(open_values)))
    return Series(name="confirmed, not yet delivered", unit="messages", group="backlog", x_s=x_s, y=y)


def _latency_series(samples: Samples, x_s: list[float], *, bucket_of: Callable[[int], int]) -> list[Series]:
    rows = []
    for operation, pairs in samples.items():
        buckets: list[list[float]] = [[] for _ in x_s]
        for completed_ns, latency_ns in pairs:
            buckets[bucket_of(completed_ns)].append(latency_ns / 1e6)
        y = [nearest_rank(sorted(values), 0.99) if values else None for values in buckets]
        rows.append(Series(name=f"{operation.value} p99", unit="ms", group="latency", x_s=x_s, y=y))
    return rows


def longest_publish_gap_s(events: Sequence[HistoryEvent]) -> float:
    """The longest time without any confirmed publish, between the first and the last one."""
    times = [event.time_ns for event in events if event.f is OpKind.PUBLISH and event.type is OpType.OK]
    return max((later - earlier for earlier, later in pairwise(times)), default=0) / 1e9
