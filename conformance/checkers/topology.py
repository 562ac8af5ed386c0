"""``topology``: over AMQP, what was declared is there, what was deleted or unbound is not (T1, T2, T3).

``unbound[Q, g]`` is the idx of the first UNSUBSCRIBE ok of a group whose ``reason`` says that a binding was removed.
``asked`` are the LOOKs, ``declared`` and ``deleted`` the DECLAREs and DELETEs of what their ``key`` names::

    T1 = {d main delivery from Q to g : unbound[Q, g] < s.inv_idx}
    T2 = {l in asked : l.status = ok, some x in deleted of it with status ok and x.cpl_idx < l.inv_idx, and no DECLARE
          of it with inv_idx in (x.inv_idx, l.cpl_idx)}
    T3 = {l in asked : l.status = fail, some x in declared of it with status ok and x.cpl_idx < l.inv_idx, and no
          DELETE of it with inv_idx in (x.inv_idx, l.cpl_idx)}

Severity: ``safety``; ``quality`` when a fault that the contract lets destroy acknowledged data began between the
confirmation and what was seen. ``index`` is that of the delivery, or of the answer; the rows of T2 and T3 have the name
of the thing as value.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, quality_if, row_of
from assay.conformance.checkers.excuses import destroyed
from assay.conformance.checkers.tables import Step, Tables
from assay.reference_broker.trace.schema import Contract, OpKind, OpType

CHECKER = "topology"


def check_unbound(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All T1 rows, one for each subject."""
    rows: list[Anomaly] = []
    if not tables.unbound:
        return rows
    for (queue, group, value), events in tables.main.items():
        ended, send = tables.unbound.get((queue, group), -1), tables.sends.get(value)
        if send is not None and 0 <= ended < send.inv_idx:
            severity = quality_if(destroyed(tables, contract, ended, events[0].index))
            detail = "published after the binding was removed"
            rows.append(row_of(CHECKER, "T1", events[0], detail, severity))
    return rows


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All rows."""
    rows = check_unbound(tables, contract)
    for (queue, key), steps in tables.things.items():
        for look in steps:
            if look.kind is not OpKind.LOOK or look.status is OpType.INFO:
                continue
            there = look.status is OpType.OK
            because = _last(steps, OpKind.DELETE if there else OpKind.DECLARE, look)
            if because is None or _may_have(steps, OpKind.DECLARE if there else OpKind.DELETE, because, look):
                continue
            rows.append(
                Anomaly(
                    checker=CHECKER,
                    anomaly="T2" if there else "T3",
                    severity=quality_if(destroyed(tables, contract, because.inv_idx, look.cpl_idx)),
                    queue=queue,
                    group="",
                    value=key,
                    index=look.cpl_idx,
                    detail="deleted, and there again" if there else "declared, and not there",
                )
            )
    return rows


def _last(steps: list[Step], kind: OpKind, look: Step) -> Step | None:
    """The last one that was confirmed before somebody looked."""
    done = [step for step in steps if step.kind is kind and step.status is OpType.OK and step.cpl_idx < look.inv_idx]
    return max(done, key=_asked, default=None)


def _may_have(steps: list[Step], kind: OpKind, since: Step, until: Step) -> bool:
    return any(step.kind is kind and step.cpl_idx > since.inv_idx and step.inv_idx < until.cpl_idx for step in steps)


def _asked(step: Step) -> int:
    return step.inv_idx
