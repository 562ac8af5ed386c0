"""``dlq_loss`` (A11): a message that had to be dead-lettered is nowhere.

Claimed only when contract.dead_letters. For a main queue Q with DRAIN ok of ``$dlq/Q``, a group g with DRAIN ok of Q,
and a subject (Q, g, v) whose send has status ok or info::

    rejected(Q, g, v)  = a REJECT of the subject has status ok
    exhausted(Q, g, v) = contract.max_deliveries > 0, the last delivery of the subject is followed by a NACK of it with
                         status ok (inv_idx > its idx), and that delivery states delivery_count >= max_deliveries, or
                         states none and is at least the max_deliveries-th one
    A11 = {(Q, g, v) : rejected or exhausted, no ACK of the subject has status ok or info, v not in dead(Q)}

Severity: ``safety``; ``quality`` when a fault that the contract lets destroy acknowledged data began after the
settlement was invoked (the answer may have been on its way), or the disk was damaged at any time. ``index`` is the
completion of that REJECT or NACK.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.excuses import destroyed_to
from assay.conformance.checkers.tables import DLQ_PREFIX, Settlement, Subject, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, OpKind, OpType

CHECKER = "dlq_loss"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All A11 rows."""
    if not contract.dead_letters:
        return []
    destroyed = destroyed_to(tables, contract)
    dead: dict[str, set[str]] = {}
    rows = []
    for subject in tables.refused:
        queue, group, value = subject
        if queue.startswith(DLQ_PREFIX):
            continue
        due_row = due(tables, contract, subject)
        if due_row is None or not tables.drained(queue, group) or not tables.dead_letters_drained(queue):
            continue
        if queue not in dead:
            dead[queue] = tables.dead_values(queue)
        if value in dead[queue]:
            continue
        rows.append(
            Anomaly(
                checker=CHECKER,
                anomaly="A11",
                severity=Severity.QUALITY if due_row.inv_idx < destroyed else Severity.SAFETY,
                queue=queue,
                group=group,
                value=value,
                index=due_row.cpl_idx,
                detail="rejected" if due_row.kind is OpKind.REJECT else "retries exhausted",
            )
        )
    return rows


def due(tables: Tables, contract: Contract, subject: Subject) -> Settlement | None:
    """The settlement that obliges the broker to dead-letter, if any."""
    settlements = tables.settlements.get(subject, [])
    send = tables.sends.get(subject[2])
    if send is None or send.status is OpType.FAIL:
        return None
    if any(row.kind is OpKind.ACK and row.status is not OpType.FAIL for row in settlements):
        return None
    for row in settlements:
        if row.kind is OpKind.REJECT and row.status is OpType.OK:
            return row
    deliveries = tables.main.get(subject, [])
    if contract.max_deliveries <= 0 or not deliveries:
        return None
    last = deliveries[-1]
    if (last.delivery_count or len(deliveries)) < contract.max_deliveries:
        return None
    for row in settlements:
        if row.kind is OpKind.NACK and row.status is OpType.OK and row.inv_idx > last.index:
            return row
    return None
