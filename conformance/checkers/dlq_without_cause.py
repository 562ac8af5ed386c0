"""``dlq_without_cause`` (A12): a message was dead-lettered although no group had rejected or exhausted it.

For every delivery d from ``$dlq/Q`` of a value v that has a send s, over all groups g of Q::

    rejected  = a REJECT of some (Q, g, v) was invoked, with any status
    most      = the greatest number of deliveries that some (Q, g, v) had, in all or as a delivery_count
    exhausted = contract.max_deliveries = 0, or most + t >= max_deliveries, where t is the number of delivery timeouts
                that fit into the time from s to d (:func:`assay.conformance.checkers.excuses.timeouts_within`):
                deliveries may have timed out before their consumer saw them
    unseen    = a fault of a CUTTING or DELAYING kind overlaps (s.inv_idx, d.idx), or a session of any process ended in
                it, or a process that has sessions began in it (until its client was back the broker may have believed
                in a connection that had ended): deliveries that no client saw may have used up the retries
    expired   = d.reason begins with "expired" (time to live and total timeout are not part of the contract)
    A12 = {d : not rejected, not exhausted, not unseen, not expired}

One row per (Q, v): its first such delivery. Severity: ``safety``; rows carry the queue ``$dlq/Q``.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.excuses import CUTTING, DELAYING, active, timeouts_within
from assay.conformance.checkers.tables import DLQ_PREFIX, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpKind

CHECKER = "dlq_without_cause"
EXPIRY_REASON = "expired"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All A12 rows; ``index`` is the delivery's."""
    if not tables.dead or contract.max_deliveries == 0:
        return []
    rejected = {
        (queue, value)
        for queue, group, value in tables.refused
        if any(row.kind is OpKind.REJECT for row in tables.settlements[queue, group, value])
    }
    groups = sorted({group for _, group in tables.scopes()})
    reported: set[tuple[str, str]] = set()
    rows = []
    for event in tables.dead:
        pair = (event.queue.removeprefix(DLQ_PREFIX), event.value)
        if (
            pair in reported
            or pair in rejected
            or _hidden(tables, event)
            or _most_deliveries(tables, contract, event, groups) >= contract.max_deliveries
        ):
            continue
        reported.add(pair)
        rows.append(
            Anomaly(
                checker=CHECKER,
                anomaly="A12",
                severity=Severity.SAFETY,
                queue=event.queue,
                group=event.group,
                value=event.value,
                index=event.index,
                detail=f"reason given: {event.reason or 'none'}",
            )
        )
    return rows


def _most_deliveries(tables: Tables, contract: Contract, event: HistoryEvent, groups: list[str]) -> int:
    """The greatest number of deliveries that a dead letter may have had: seen, stated, or timed out unseen."""
    queue, value = event.queue.removeprefix(DLQ_PREFIX), event.value
    most = 0
    for group in groups:
        for number, delivery in enumerate(tables.main.get((queue, group, value), ()), start=1):
            most = max(most, number, delivery.delivery_count)
    return most + timeouts_within(contract, event.time_ns - tables.sends[value].inv_ns)


def _hidden(tables: Tables, event: HistoryEvent) -> bool:
    send = tables.sends.get(event.value)
    if send is None or event.reason.startswith(EXPIRY_REASON):
        return True
    if active(tables, CUTTING | DELAYING, send.inv_idx, event.index):
        return True
    return any(
        send.inv_idx < tables.started[process] < event.index or any(send.inv_idx < idx < event.index for idx, _ in ends)
        for process, ends in tables.session_ends.items()
    )
