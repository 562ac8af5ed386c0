"""The one schema of verdicts: what each run leaves behind for people, CI and ``assay report``.

A run's folder holds ``result.json`` (a :class:`RunResult`) beside its artefacts (history, trace, samples, transcripts).
Conformance runs leave ``report.jsonl`` (lines of ``assay.conformance.report``) and a ``result.json`` that sums it up.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.schema import Record

RESULT_SCHEMA: Literal["assay.result/1"] = "assay.result/1"


class RunKind(StrEnum):
    CONFORMANCE = "conformance"
    SELF_CHECK = "self_check"
    SIM = "sim"
    FAULTS = "faults"
    LOAD = "load"
    BENCH = "bench"
    SPARK = "spark"
    MODEL = "model"


class Verdict(StrEnum):
    """Order of gravity: fail > error > unknown > pass. No data is never green."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    UNKNOWN = "unknown"
    """No claim is possible: nothing succeeded, or the drain did not finish."""
    ERROR = "error"
    """The harness failed, not the broker."""


GRAVITY = (Verdict.PASS, Verdict.UNKNOWN, Verdict.ERROR, Verdict.FAIL)


def worst(verdicts: list[Verdict]) -> Verdict:
    """The gravest verdict; ``unknown`` for an empty list."""
    return max(verdicts, key=GRAVITY.index, default=Verdict.UNKNOWN)


class Severity(StrEnum):
    SAFETY = "safety"
    """The run is invalid."""
    QUALITY = "quality"
    """Reported, never failing."""


class Finding(Record, frozen=True, kw_only=True):
    """One anomaly, with the least evidence that shows it."""

    checker: str
    """``lost``, ``phantom``, ``duplicate``, ``redelivery_without_cause``, ``order``, ``dlq_loss``."""
    anomaly: str
    """Catalogue id, e.g. ``A1``."""
    severity: Severity
    message: str
    values: list[str] = []
    evidence: list[dict[str, str | int | float | bool]] = []
    """History events around the finding, as plain objects."""


class Check(Record, frozen=True, kw_only=True):
    """A measured figure against its target."""

    name: str
    value: float | None
    unit: str
    bound: float | None = None
    relation: Literal["<", "<=", ">", ">=", "==", ""] = ""
    verdict: Verdict = Verdict.UNKNOWN
    source: str = ""
    """Where the bound comes from."""
    subject: str = ""
    """What was judged, where the name does not say it: the workload, queue and protocol of the samples."""
    reason: str = ""
    """Why it is ``unknown``: not measured, or measured too loosely to say."""

    @property
    def background(self) -> str:
        """What stands behind the figure: why it was not judged, of what it is, where the bound comes from."""
        why = f"not judged: {self.reason}" if self.reason else ""
        return "; ".join(part for part in (why, self.subject, self.source) if part)


class Series(Record, frozen=True, kw_only=True):
    """A line of a chart: ``y[i]`` at ``x_s[i]`` seconds since the start of the run."""

    name: str
    unit: str
    x_s: list[float]
    y: list[float | None]
    group: str = ""
    """Series of one group share a chart."""


class Band(Record, frozen=True, kw_only=True):
    """A period to shade in charts, usually a fault."""

    label: str
    from_s: float
    to_s: float


class Percentiles(Record, frozen=True, kw_only=True):
    """Latency percentiles of one operation in microseconds, from exact samples or an HdrHistogram."""

    name: str
    count: int
    """Samples that were answered: the percentiles are theirs."""
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float
    missing: int = 0
    """Samples that were due and never answered. They have no latency, yet count as the worst when a bound is judged."""


class Machine(Record, frozen=True, kw_only=True):
    """Where a figure was measured."""

    platform: str
    python: str
    cpus: int


class RunResult(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Outcome of one run of any kind."""

    schema: str = RESULT_SCHEMA
    kind: RunKind
    name: str
    verdict: Verdict
    summary: str
    """One sentence for people."""
    target: str = "reference"
    world: str = ""
    seed: int | None = None
    started_at: str = ""
    """ISO 8601, UTC."""
    duration_s: float = 0.0
    command: str = ""
    """What to type to run it again."""
    findings: list[Finding] = []
    checks: list[Check] = []
    metrics: dict[str, float | int | str] = {}
    percentiles: list[Percentiles] = []
    series: list[Series] = []
    x_axis: str = ""
    """What ``x_s`` of the series is, where it is not seconds since the start: a rate, a number of nodes."""
    bands: list[Band] = []
    artefacts: dict[str, str] = {}
    """Name to path, relative to the folder of ``result.json``."""
    machine: Machine | None = None


def write_result(folder: Path, result: RunResult) -> Path:
    """Write ``result.json`` whole or not at all; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    temporary = folder / ".result.json.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    os.replace(temporary, path)
    return path


def read_result(path: Path) -> RunResult:
    """Read a ``result.json``. Raises :class:`msgspec.ValidationError` with the path of the offending key."""
    return msgspec.json.decode(path.read_bytes(), type=described(RunResult))
