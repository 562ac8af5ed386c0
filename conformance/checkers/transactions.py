"""``transactions`` (E1, E2, E3): a transaction is seen as a whole and after its commit was asked for, or not at all.

The messages of a transaction complete as it does, so ``lost`` judges those of a confirmed commit and ``phantom`` (A10)
those of one that was aborted or abandoned. What remains, over the sends s with s.txn, c the COMMIT of s.txn::

    E1 = {d main or dead delivery of s : c exists and d.idx < c.inv_idx}
    E2 = {(Q, g, s) : c.status = info, s.status = info, closed(Q, g), some other message of s.txn with status info in
          read(Q, g) + dead(Q), s not in it}
    E3 = {a ACK of c's transaction : c.status = info, some m message of it with status info, and m seen
          in all groups that are closed while a.value was delivered again to a process that started after c was asked
          for; or m seen in none of them while a's own delivery of a.value was the last, and it is no dead letter}

E3 holds acknowledgements to the messages that go with them: where the copies are there the originals must not come
again, and where they are not the originals must.
``closed``, ``read`` and ``dead`` as in :mod:`assay.conformance.checkers.lost`; only groups that were subscribed before
the first message of the transaction. E1: ``index`` is the delivery's. E2 and E3: that of the COMMIT; ``quality`` when a
fault that the contract lets destroy acknowledged data began after it, or, of what is gone, after its last delivery.
Severity else: ``safety``.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, quality_if, row_of
from assay.conformance.checkers.excuses import destroyed
from assay.conformance.checkers.lost import closed
from assay.conformance.checkers.tables import DLQ_PREFIX, END_IDX, Send, Settlement, Tables
from assay.reference_broker.trace.schema import Contract, OpKind, OpType

CHECKER = "transactions"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All E1, E2 and E3 rows."""
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
        rows += _half_settled(tables, contract, txn, members)
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


def _half_settled(tables: Tables, contract: Contract, txn: str, members: list[Send]) -> list[Anomaly]:
    """E3 rows of a transaction whose commit is unknown."""
    asked = tables.commits[txn].inv_idx
    seen, absent = _seen(tables, contract, members)
    settled = _settlements(tables).get(txn, ())
    if seen == absent or not settled:
        return []
    rows = []
    for row in settled:
        subject = (row.queue, row.group, row.value)
        if row.queue.startswith(DLQ_PREFIX):
            continue  # of dead letters there are no main deliveries to hold it to
        if not closed(tables, contract, subject[:2]) or row.value in tables.dead_values(row.queue):
            continue
        events = tables.main.get(subject, [])
        again = [event for event in events if event.index > asked and tables.started[event.process] > asked]
        # Somebody else had it since, maybe before a client asked whose connection was dead already, and settled it.
        was_last = bool(events) and events[-1].index < asked and events[-1].process == row.process
        if (seen and again) or (absent and was_last):
            # What is gone was there when it was delivered, and may have gone before the commit was asked for.
            severity = quality_if(destroyed(tables, contract, asked if seen else events[-1].index, END_IDX))
            detail = "delivered again, and its copy is there" if seen else "gone, and its copy is not there"
            rows.append(
                Anomaly(
                    checker=CHECKER,
                    anomaly="E3",
                    severity=severity,
                    queue=row.queue,
                    group=row.group,
                    value=row.value,
                    index=asked,
                    detail=detail,
                )
            )
    return rows


def _seen(tables: Tables, contract: Contract, members: list[Send]) -> tuple[bool, bool]:
    """Whether all messages were seen wherever that can be said, and whether none was."""
    found = [
        (queue, group, send.value) in tables.main
        for queue, group in tables.scopes()
        for send in members
        if send.queue == queue and closed(tables, contract, (queue, group)) and not tables.ended(queue, group)
    ]
    return bool(found) and all(found), bool(found) and not any(found)


def _settlements(tables: Tables) -> dict[str, list[Settlement]]:
    """By transaction, those that end a delivery."""
    known = tables.derived.get(CHECKER)
    if isinstance(known, dict):
        return known
    found: dict[str, list[Settlement]] = {}
    for rows in tables.settlements.values():
        for row in rows:
            if row.txn and row.kind is OpKind.ACK:
                found.setdefault(row.txn, []).append(row)
    tables.derived[CHECKER] = found
    return found
