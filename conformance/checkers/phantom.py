"""``phantom``: deliveries of what was never sent, or not so.

Over all deliveries d, main and dead-lettered, with ``home(d)`` = d.queue without a leading ``$dlq/`` and ``s`` the send
of d.value::

    A5  = {d : there is no send of d.value}                        invented
    A9  = {d : s.inv_idx > d.idx}                                  read before it was sent
    A6  = {d : s.queue != home(d)}                                 misrouted
    A7  = {d : d.value begins with "corrupt:"}                     the client could not read the payload as one it sent
    A10 = {d : s.status = fail}                                    the broker refused it and delivered it all the same
    C1  = {d : an earlier main delivery of the same (queue, partition, offset), offset >= 0, has another value}

C1 is skipped for a position when a crash or power loss overlaps the interval from its first delivery, or the begin of a
session that took one of its deliveries, to its last delivery: a broker may give the offset of a message that it had not
acknowledged, and lost, to another one, and a delivery of before may have been on its way meanwhile.

Severity: ``safety``; of an A10 ``quality`` when a fault of an UNCERTAIN kind, which leaves a broker in doubt of what is
on its disk, overlaps (s.inv_idx, d.idx). A delivery counts under the first rule that matches, in the order A7, A5, A9,
A6, A10; C1 is independent.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.excuses import CRASHING, UNCERTAIN, active
from assay.conformance.checkers.tables import DLQ_PREFIX, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpType

CHECKER = "phantom"
CORRUPT_PREFIX = "corrupt:"
"""How a client names a payload that fails its checksum."""

_DETAILS = {
    "A5": "never sent",
    "A6": "sent to another queue",
    "A7": "payload differs from what was sent",
    "A9": "delivered before it was sent",
    "A10": "refused by the broker, yet delivered",
    "C1": "one offset, two values",
}


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All rows; ``index`` is the delivery's."""
    del contract  # no contract allows any of this
    rows = []
    sends, fail = tables.sends, OpType.FAIL
    for event in tables.deliveries:
        send = sends.get(event.value)
        if send is not None and send.queue == event.queue and send.inv_idx < event.index and send.status is not fail:
            continue  # nearly every delivery
        anomaly = _classify(tables, event)
        if anomaly:
            rows.append(_row(anomaly, event, _severity(tables, anomaly, event)))
    rows.extend(_check_positions(tables))
    return rows


def _classify(tables: Tables, event: HistoryEvent) -> str:
    send = tables.sends.get(event.value)
    if send is None:
        return "A7" if event.value.startswith(CORRUPT_PREFIX) else "A5"
    if send.inv_idx > event.index:
        return "A9"
    if send.queue != event.queue.removeprefix(DLQ_PREFIX):
        return "A6"
    return "A10" if send.status is OpType.FAIL else ""


def _severity(tables: Tables, anomaly: str, event: HistoryEvent) -> Severity:
    if anomaly == "A10" and active(tables, UNCERTAIN, tables.sends[event.value].inv_idx, event.index):
        return Severity.QUALITY
    return Severity.SAFETY


def _row(anomaly: str, event: HistoryEvent, severity: Severity = Severity.SAFETY) -> Anomaly:
    return Anomaly(
        checker=CHECKER,
        anomaly=anomaly,
        severity=severity,
        queue=event.queue,
        group=event.group,
        value=event.value,
        index=event.index,
        detail=_DETAILS[anomaly],
    )


def _has_conflicts(tables: Tables) -> bool:
    """Whether any position has two values at all."""
    values: dict[tuple[str, int, int], str] = {}
    for (queue, _, value), events in tables.main.items():
        for event in events:
            if event.offset >= 0 and values.setdefault((queue, event.partition, event.offset), value) != value:
                return True
    return False


def _check_positions(tables: Tables) -> list[Anomaly]:
    if not _has_conflicts(tables):
        return []
    first: dict[tuple[str, int, int], HistoryEvent] = {}
    conflicts: dict[tuple[str, int, int], list[HistoryEvent]] = {}
    for event in tables.deliveries:
        if event.offset < 0 or event.queue.startswith(DLQ_PREFIX):
            continue
        position = (event.queue, event.partition, event.offset)
        known = first.setdefault(position, event)
        if known.value != event.value or position in conflicts:
            conflicts.setdefault(position, []).append(event)
    rows = []
    for position, events in conflicts.items():
        since_idx = min(tables.started.get(event.process, event.index) for event in (first[position], *events))
        if active(tables, CRASHING, since_idx, events[-1].index):
            continue
        seen = {first[position].value}
        for event in events:
            if seen != {event.value}:
                rows.append(_row("C1", event))
            seen.add(event.value)
    return rows
