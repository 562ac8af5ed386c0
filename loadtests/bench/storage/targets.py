"""What the figures should reach, and whether they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from assay.loadtests.bench.storage.filesystem import is_in_memory
from assay.loadtests.bench.storage.measurement import MeasuredRow
from assay.reference_broker.trace.results import Check, Verdict

Relation = Literal[">=", "<=", "<"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A bound of a row's median, or of its ratio to another row or to the raw calls."""

    row: str
    relation: Relation
    bound: float
    of: str = ""
    """Key of the row that the median is divided by; ``raw`` for the raw calls of the row itself."""
    source: str


TARGETS = (
    Target(row="append", relation=">=", bound=812_000, source="FluxMQ's headline for enqueueing in memory"),
    Target(row="append.zstd", relation=">=", bound=0.75, of="append", source="within 25 % of the uncompressed"),
    Target(row="single.buffered", relation=">=", bound=200_000, source="one record a call, interval sync"),
    Target(row="single.through", relation=">=", bound=200_000, source="one record a call, interval sync"),
    Target(row="group_commit", relation=">=", bound=0.8, of="raw", source="within 20 % of syncs/s x average group"),
    Target(row="read", relation=">=", bound=1_000_000, source="sequential read and decode"),
    Target(row="random.p99", relation="<", bound=200, source="random read on a log of 1 GB"),
    Target(row="random.single.p99", relation="<", bound=200, source="random read on a log of 1 GB"),
    Target(row="scan", relation=">=", bound=300, source="recovery scan"),
    Target(row="scan.single", relation=">=", bound=300, source="recovery scan"),
    Target(row="open", relation="<", bound=1, source="open of a clean log of 1 GB"),
    Target(row="open.single", relation="<", bound=1, source="open of a clean log of 1 GB"),
    Target(row="queued.peak", relation="<", bound=200, source="1 000 000 queued messages of 1 KB; FluxMQ takes 1.5 GB"),
    Target(row="queued.disk", relation="<=", bound=1_100, source="1 000 000 queued messages of 1 KB, uncompressed"),
    Target(row="queued.open.peak", relation="<", bound=200, source="the same after a restart"),
)


def target_of(row: str) -> Target | None:
    """The target of a row; None when it has none."""
    return next((target for target in TARGETS if target.row == row), None)


def value_of(target: Target, rows: Mapping[str, MeasuredRow]) -> float | None:
    """What is compared with the bound; None when something for it was not measured."""
    row = rows.get(target.row)
    if row is None:
        return None
    if target.of == "raw":
        return row.ratio
    if target.of:
        other = rows.get(target.of)
        return None if other is None or not other.median else row.median / other.median
    return row.median


def meets(target: Target, value: float) -> bool:
    """Whether a value keeps to the bound."""
    if target.relation == ">=":
        return value >= target.bound
    return value < target.bound if target.relation == "<" else value <= target.bound


def judge(rows: Mapping[str, MeasuredRow], *, filesystem: str, is_judged: bool) -> list[Check]:
    """A check for each target whose row was measured.

    ``unknown`` when the run is too small to say anything, and for figures of syncs on a file system in memory.
    """
    checks = []
    for target in TARGETS:
        value = value_of(target, rows)
        if value is None:
            continue
        spec = rows[target.row].spec
        source = target.source
        if not is_judged:
            verdict, source = Verdict.UNKNOWN, f"{source}; a quick run says nothing about it"
        elif spec.needs_disk and is_in_memory(filesystem):
            verdict, source = Verdict.UNKNOWN, f"{source}; on {filesystem} a sync does nothing"
        else:
            verdict = Verdict.PASS if meets(target, value) else Verdict.FAIL
        checks.append(
            Check(
                name=target.row if target.of in ("", "raw") else f"{target.row} / {target.of}",
                value=value,
                unit="x" if target.of else spec.unit,
                bound=float(target.bound),
                relation=target.relation,
                verdict=verdict,
                source=source,
            )
        )
    return checks
