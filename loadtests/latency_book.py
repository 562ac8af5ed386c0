"""Latencies by operation, counted as they come: microsecond HdrHistograms, percentiles as text and JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
from hdrh.histogram import HdrHistogram

from assay.loadtests.histograms import HIGHEST_US, LOWEST_US, SIGNIFICANT_DIGITS
from assay.loadtests.locust_samples import Page
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.results import Percentiles


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one operation. ``histogram`` is an HdrHistogram V2 (compressed, base64) in microseconds."""

    percentiles: Percentiles
    failures: int
    histogram: str


class LatencyBook:
    """Latencies of successful operations, and how many failed."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._histograms: dict[str, HdrHistogram] = {}
        self._failures: dict[str, int] = {}

    def add(self, name: str, latency_us: float, *, failed: bool) -> None:
        """Count one operation; the latency of a failed one is not a latency."""
        if failed:
            self._failures[name] = self._failures.get(name, 0) + 1
            return
        if name not in self._histograms:
            self._histograms[name] = HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
        self._histograms[name].record_value(min(max(round(latency_us), LOWEST_US), HIGHEST_US))

    def add_pages(self, pages: list[Page]) -> None:
        """Count every sample."""
        for page in pages:
            name = page.subject.name
            for started_ns, completed_ns, ok in zip(page.started_ns, page.completed_ns, page.ok, strict=True):
                self.add(name, (completed_ns - started_ns) / 1_000, failed=not ok)

    def operations(self) -> list[Operation]:
        """By name; operations that only failed have a count of 0."""
        found = []
        for name in sorted({*self._histograms, *self._failures}):
            histogram = self._histograms.get(name) or HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
            p50, p90, p99, p999, highest = (
                float(histogram.get_value_at_percentile(percent)) for percent in (50, 90, 99, 99.9, 100)
            )
            failures = self._failures.get(name, 0)
            figures = Percentiles(
                name=name,
                count=int(histogram.get_total_count()),
                p50_us=p50,
                p90_us=p90,
                p99_us=p99,
                p999_us=p999,
                max_us=highest,
                missing=failures,
            )
            encoded = histogram.encode().decode("ascii")
            found.append(Operation(percentiles=figures, failures=failures, histogram=encoded))
        return found

    def text(self) -> str:
        """A table for a terminal, in milliseconds."""
        lines = [f"{'latency in ms':<34}{'count':>8}{'failed':>8}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"]
        for operation in self.operations():
            row = operation.percentiles
            values = "".join(f"{value / 1_000:>10.3f}" for value in (row.p50_us, row.p90_us, row.p99_us, row.max_us))
            lines.append(f"{row.name:<34}{row.count:>8}{operation.failures:>8}{values}")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write the operations as JSON; :func:`read_latencies` reads them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self.operations()), indent=1))


def read_latencies(path: Path) -> list[Operation]:
    """Read what :meth:`LatencyBook.write` wrote. Raises :class:`msgspec.ValidationError`."""
    return msgspec.json.decode(path.read_bytes(), type=described(list[Operation]))
