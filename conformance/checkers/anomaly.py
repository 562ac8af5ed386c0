"""What a checker returns: flat rows, and their summary as findings with evidence.

The rows are the definition: a checker in another form (SQL) must return the same set of
``(checker, anomaly, severity, queue, group, value, index)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from assay.reference_broker.trace.results import Finding, Severity
from assay.reference_broker.trace.schema import HistoryEvent, OpKind

MAX_VALUES = 50
"""Values named in one finding; the message gives the full count."""
MAX_EVIDENCE_VALUES = 3
MAX_EVIDENCE_EVENTS = 40


class Anomaly(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One row: one message (as one group sees it) that broke one rule."""

    checker: str
    anomaly: str
    severity: Severity
    queue: str
    group: str
    value: str
    index: int
    """Index of the event that shows it; -1 for an absence."""
    detail: str = ""
    """For people: the part that differs between rows, e.g. ``middle``. Not part of the definition."""


def row_of(
    checker: str, anomaly: str, event: HistoryEvent, detail: str, severity: Severity = Severity.SAFETY
) -> Anomaly:
    """The row of a delivery that breaks a rule."""
    return Anomaly(
        checker=checker,
        anomaly=anomaly,
        severity=severity,
        queue=event.queue,
        group=event.group,
        value=event.value,
        index=event.index,
        detail=detail,
    )


def quality_if(excused: bool) -> Severity:
    """How grave a row is that something may excuse."""
    return Severity.QUALITY if excused else Severity.SAFETY


def to_findings(rows: Iterable[Anomaly], events: Sequence[HistoryEvent]) -> list[Finding]:
    """One finding per (checker, anomaly, severity, queue, group), gravest first, with the events of some values."""
    grouped: defaultdict[tuple[str, str, str, str, str], list[Anomaly]] = defaultdict(list)
    for row in rows:
        grouped[row.severity.value, row.checker, row.anomaly, row.queue, row.group].append(row)
    findings = []
    order = {Severity.SAFETY.value: 0, Severity.QUALITY.value: 1}
    for identity in sorted(grouped, key=lambda item: (order[item[0]], item[1:])):
        members = sorted(grouped[identity], key=lambda row: (row.index, row.value))
        findings.append(_finding(members, events))
    return findings


def _finding(rows: list[Anomaly], events: Sequence[HistoryEvent]) -> Finding:
    first = rows[0]
    details: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        details[row.detail] += 1
    spread = ", ".join(f"{count} {detail}" for detail, count in sorted(details.items()) if detail)
    scope = f"queue {first.queue!r}" + (f", group {first.group!r}" if first.group else "")
    message = f"{len(rows)} x {first.checker} in {scope}" + (f": {spread}" if spread else "")
    values = list(dict.fromkeys(row.value for row in rows))
    return Finding(
        checker=first.checker,
        anomaly=first.anomaly,
        severity=first.severity,
        message=message,
        values=values[:MAX_VALUES],
        evidence=_evidence(set(values[:MAX_EVIDENCE_VALUES]), events),
    )


def _evidence(values: set[str], events: Sequence[HistoryEvent]) -> list[dict[str, str | int | float | bool]]:
    """What happened to the values, and the faults and drains around them."""
    chosen = [
        event
        for event in events
        if (event.value in values and event.value) or event.f is OpKind.FAULT or event.f is OpKind.DRAIN
    ]
    if len(chosen) > MAX_EVIDENCE_EVENTS:
        chosen = [event for event in chosen if event.value in values and event.value]
    return [msgspec.to_builtins(event) for event in chosen[:MAX_EVIDENCE_EVENTS]]
