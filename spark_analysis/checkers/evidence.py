"""From rows of anomalies to findings: what to tell a person of each kind, and the events that show it."""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import DataFrame, Row

from assay.reference_broker.trace.results import Finding, Severity
from assay.reference_broker.trace.schema import HistoryEvent
from assay.spark_analysis.tables import Tables

VALUES_MAX: Final = 50
"""Values named in one finding; the message gives the full count."""
EVIDENCE_VALUES_MAX: Final = 3
EVIDENCE_EVENTS_MAX: Final = 40
FINDINGS_MAX: Final = 2_000
"""Findings of all runs together; the table of anomalies is complete."""

_HEADS: Final = """
WITH firsts AS (
    SELECT run_id, severity, checker, anomaly, queue, consumer_group, value, min(idx) AS idx
    FROM {rows} GROUP BY run_id, severity, checker, anomaly, queue, consumer_group, value
),
placed AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, severity, checker, anomaly, queue, consumer_group
                                 ORDER BY idx, value) AS place
    FROM firsts
),
named AS (
    SELECT run_id, severity, checker, anomaly, queue, consumer_group,
           transform(array_sort(collect_list(struct(place, value))), one -> one.value) AS values
    FROM placed WHERE place <= :values_max GROUP BY run_id, severity, checker, anomaly, queue, consumer_group
),
counted AS (
    SELECT run_id, severity, checker, anomaly, queue, consumer_group, detail, count(*) AS members
    FROM {rows} GROUP BY run_id, severity, checker, anomaly, queue, consumer_group, detail
),
spread AS (
    SELECT run_id, severity, checker, anomaly, queue, consumer_group, sum(members) AS total,
           array_join(transform(array_sort(collect_list(CASE WHEN detail <> '' THEN struct(detail, members) END)),
                                one -> concat(one.members, ' ', one.detail)), ', ') AS spread
    FROM counted GROUP BY run_id, severity, checker, anomaly, queue, consumer_group
)
SELECT n.*, s.total, s.spread
FROM named n JOIN spread s USING (run_id, severity, checker, anomaly, queue, consumer_group)
ORDER BY run_id, severity = 'quality', checker, anomaly, queue, consumer_group
LIMIT :findings_max
"""

_EVIDENCE: Final = """
WITH told AS (
    SELECT e.*, TRUE AS is_told FROM {events} e
    JOIN {shown} s ON s.run_id = e.run_id AND s.value = e.value AND e.value <> ''
    UNION ALL
    SELECT e.*, FALSE FROM {events} e JOIN (SELECT DISTINCT run_id FROM {shown}) s ON s.run_id = e.run_id
    WHERE e.f IN ('fault', 'drain') AND e.value = ''
),
placed AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, is_told, value ORDER BY idx) AS place FROM told
)
SELECT * FROM placed WHERE place <= :events_max ORDER BY run_id, idx
"""


def findings_by_run(tables: Tables, rows: DataFrame) -> dict[str, list[Finding]]:
    """Findings of each run, gravest first: one per checker, anomaly, severity, queue and group.

    ``rows`` is a frame of anomalies; it is read several times, so persist it.
    """
    heads = tables.query(_HEADS, {"values_max": VALUES_MAX, "findings_max": FINDINGS_MAX}, rows=rows).collect()
    events = _events(tables, heads)
    found: dict[str, list[Finding]] = {}
    for head in heads:
        found.setdefault(head["run_id"], []).append(_finding(head, events.get(head["run_id"], [])))
    return found


def _finding(head: Row, events: list[HistoryEvent]) -> Finding:
    scope = f"queue {head['queue']!r}" + (f", group {head['consumer_group']!r}" if head["consumer_group"] else "")
    spread = f": {head['spread']}" if head["spread"] else ""
    told = set(head["values"][:EVIDENCE_VALUES_MAX])
    chosen = [event for event in events if event.value in told or not event.value]
    if len(chosen) > EVIDENCE_EVENTS_MAX:
        chosen = [event for event in chosen if event.value]
    return Finding(
        checker=head["checker"],
        anomaly=head["anomaly"],
        severity=Severity(head["severity"]),
        message=f"{head['total']} x {head['checker']} in {scope}{spread}",
        values=head["values"],
        evidence=[msgspec.to_builtins(event) for event in chosen[:EVIDENCE_EVENTS_MAX]],
    )


def _events(tables: Tables, heads: list[Row]) -> dict[str, list[HistoryEvent]]:
    """Events of the values that findings show, and the faults and drains of their runs; bounded per value and run."""
    shown = sorted({(head["run_id"], value) for head in heads for value in head["values"][:EVIDENCE_VALUES_MAX]})
    if not shown:
        return {}
    found: dict[str, list[HistoryEvent]] = {}
    named = tables.small(shown, "run_id", "value")
    # One more than is shown, so that it can be told whether there were too many.
    told = tables.query(_EVIDENCE, {"events_max": EVIDENCE_EVENTS_MAX + 1}, shown=named)
    for row in told.toLocalIterator():
        plain = row.asDict()
        plain["index"] = plain.pop("idx")
        plain["group"] = plain.pop("consumer_group")
        found.setdefault(row["run_id"], []).append(msgspec.convert(plain, HistoryEvent))
    return found
