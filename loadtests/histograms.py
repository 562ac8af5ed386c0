"""HdrHistograms of a run, one for each second, phase, workload, operation and QoS.

Histograms hold whole microseconds from 1 us to one hour at three significant digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from assay.loadtests.profile import Phases
from assay.loadtests.recorder import Samples, answered, merged, phase_names
from assay.loadtests.schedule import NS_PER_S
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.schema import LatencyOperation

LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS = 1, 3_600_000_000, 3


class HistogramLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``histograms.jsonl``: latencies intended within one second, in microseconds."""

    second: int
    phase: str
    workload: str
    operation: LatencyOperation
    qos: int
    count: int
    histogram: str
    """HdrHistogram V2, compressed, base64."""


def histogram_of(latency_us: npt.NDArray[np.float64]) -> HdrHistogram:
    """A histogram of latencies, rounded to whole microseconds and held within its range."""
    histogram = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
    whole = np.clip(np.rint(latency_us), LOWEST_US, HIGHEST_US).astype(np.int64)
    for value, count in zip(*np.unique(whole, return_counts=True), strict=True):
        histogram.record_value(int(value), int(count))
    return histogram


def write_histograms(path: Path, samples: Sequence[Samples], *, phases: Phases) -> int:
    """Write ``histograms.jsonl``, one line per (second, phase, workload, operation, QoS); returns their number."""
    lines = 0
    with path.open("wb") as sink:
        for (workload, operation, qos), whole in sorted(merged(samples).items()):
            group = answered(whole)
            seconds, names = group.intended_ns // NS_PER_S, phase_names(group.intended_ns, phases)
            latency_us = group.latency_us
            for second, phase in sorted(set(zip(seconds.tolist(), names.tolist(), strict=True))):
                chosen = latency_us[(seconds == second) & (names == phase)]
                line = HistogramLine(
                    second=second,
                    phase=phase,
                    workload=workload,
                    operation=operation,
                    qos=qos,
                    count=len(chosen),
                    histogram=histogram_of(chosen).encode().decode("ascii"),
                )
                sink.write(msgspec.json.encode(line) + b"\n")
                lines += 1
    return lines


def read_histograms(path: Path) -> list[tuple[HistogramLine, HdrHistogram]]:
    """The lines of a ``histograms.jsonl`` with their histograms decoded."""
    decoder = msgspec.json.Decoder(described(HistogramLine))
    with path.open("rb") as source:
        lines = [decoder.decode(line) for line in source if line.strip()]
    return [(line, HdrHistogram.decode(line.histogram)) for line in lines]
