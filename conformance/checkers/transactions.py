"""``transactions`` (E1, E2): a transaction is seen as a whole and after its commit was asked for, or not at all.

The messages of a transaction complete as it does, so ``lost`` judges those of a confirmed commit and ``phantom`` (A10)
those of one that was aborted or abandoned. What remains, over the sends s with s.txn, c the COMMIT of s.txn::

    E1 = {d main or dead delivery of s : c exists and d.idx < c.inv_idx}
    E2 = {(Q, g, s) : c.status = info, s.status = info, closed(Q, g), some other message of s.txn with status info in
          read(Q, g) + dead(Q), s not in it}

``closed``, ``read`` and ``dead`` as in :mod:`assay.conformance.checkers.lost`; only groups that were subscribed before
the first message of the transaction. E1: ``index`` is the delivery's. E2: that of the COMMIT; ``quality`` when a fault
that the contract lets destroy acknowledged data began after it. Severity else: ``safety``.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, quality_if, row_of
from assay.conformance.checkers.excuses import destroyed
from assay.conformance.checkers.lost import closed
from assay.conformance.checkers.tables import END_IDX, Send, Tables
from assay.reference_broker.trace.schema import Contract, OpType

CHECKER = "transactions"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All E1 and E2 rows."""
    if not tables.commits:
        return []
    rows = []
    for event in tables.deliveries:
        send = tables.sends.get(event.value)
        commit = tables.commits.get(send.txn) if send is not None and send.txn else None
        if commit is not None and event.index < commit.inv_idx:
            rows.append(row_of(CHECKER, "E1", event, "before its commit"))
    unknown: dict[str, list[Send]] = {}
    for send in tables.sends.values():
        commit = tables.commits.get(send.txn) if send.status is OpType.INFO else None
        if commit is not None and commit.status is OpType.INFO:
            unknown.setdefault(send.txn, []).append(send)
    for txn, members in unknown.items():
        rows += _torn(tables, contract, txn, members)
    return rows


def _torn(tables: Tables, contract: Contract, txn: str, members: list[Send]) -> list[Anomaly]:
    began = min(send.inv_idx for send in members)
    asked = tables.commits[txn].inv_idx
    rows = []
    for queue, group in tables.scopes():
        inside = [send for send in members if send.queue == queue]
        if not inside or tables.subscribed.get((queue, group), -1) > began:
            continue
        if not closed(tables, contract, (queue, group)):
            continue
        dead = tables.dead_values(queue)
        absent = [s for s in inside if s.value not in dead and (queue, group, s.value) not in tables.main]
        if 0 < len(absent) < len(inside):
            severity = quality_if(destroyed(tables, contract, asked, END_IDX))
            rows += [
                Anomaly(
                    checker=CHECKER,
                    anomaly="E2",
                    severity=severity,
                    queue=queue,
                    group=group,
                    value=send.value,
                    index=asked,
                    detail="missing from its transaction",
                )
                for send in absent
            ]
    return rows
