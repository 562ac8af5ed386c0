"""Which later deliveries of a message have a cause: the ground of B3, B6 and A15.

Take the main deliveries of one subject (queue Q, group g, value v) in order of idx: d1, d2, ... Each d_k, k >= 2, is
judged in a *window* ``(start, end)`` of indices (open on both sides), whose ends have times too.

*Settled before.* Let f be the ACK or REJECT of the subject with status ok and the least cpl_idx. If f.cpl_idx <
d_k.idx, d_k is a *late* delivery and ``end`` = f's completion: only what happened before the broker confirmed f can
have put d_k on its way. Else ``end`` = d_k.

*Start.* The last delivery of the subject with idx < end; but when a fault of a DELAYING kind overlaps
(s.inv_idx, d_k.idx), s being the send of v, the start is s's invocation (idx 0, time 0 without a send): clients may
then see deliveries long after they were made, and in another order.

*Causes* in the window:

1. a NACK of the subject with inv_idx inside;
2. an ACK or REJECT of the subject with inv_idx inside and status fail or info;
3. a session end inside of a process that received one of d_1 .. d_(k-1); when ``end`` is d_k itself, also one that came
   at most SESSION_END_GRACE_NS after d_k (a client may notice the end of its session late);
4. a fault of a CUTTING kind that overlaps the window;
5. the delivery timeout: time(end) - time(start) >= timeout - min(timeout / 2, TIMEOUT_SLACK_NS), with timeout =
   contract.delivery_timeout_s; it never elapses when that is 0.

A d_k without any cause is *unjustified*, and of exactly one class:

- ``A15`` resurrection: it is late;
- ``B6`` concurrent delivery: not late, it went to another process than d_(k-1), and that process had invoked no
  settlement of the subject with inv_idx in (d_(k-1).idx, d_k.idx);
- ``B3`` redelivery without cause: the rest.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from conformance.checkers.anomaly import Anomaly
from conformance.checkers.excuses import CUTTING, DELAYING, active, destroying_faults
from conformance.checkers.tables import Settlement, Subject, Tables
from reference_broker.trace.results import Severity
from reference_broker.trace.schema import Contract, HistoryEvent, OpKind, OpType

SESSION_END_GRACE_NS = 1_000_000_000
TIMEOUT_SLACK_NS = 1_000_000_000


class RedeliveryClass(StrEnum):
    """Catalogue id of an unjustified delivery."""

    WITHOUT_CAUSE = "B3"
    CONCURRENT = "B6"
    RESURRECTION = "A15"


class Unjustified(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that nothing in the history explains."""

    subject: Subject
    delivery: HistoryEvent
    kind: RedeliveryClass
    settled_idx: int
    """Index of the confirmation that preceded it (A15), else -1."""


class _Window(msgspec.Struct, frozen=True, kw_only=True):
    from_idx: int
    from_ns: int
    to_idx: int
    to_ns: int
    late: bool


def unjustified(tables: Tables, contract: Contract) -> list[Unjustified]:
    """Every unjustified delivery, in order of subject. Linear in the deliveries that have a predecessor."""
    timeout_ns = int(contract.delivery_timeout_s * 1e9)
    found = []
    for subject in tables.repeated:
        events = tables.main[subject]
        settlements = tables.settlements.get(subject, [])
        confirmed = _confirmation(settlements)
        for number in range(1, len(events)):
            row = _judge(tables, timeout_ns, subject, events, number, settlements, confirmed)
            if row is not None:
                found.append(row)
    return found


def rows_of(kind: RedeliveryClass, checker: str, detail: str, tables: Tables, contract: Contract) -> list[Anomaly]:
    """The unjustified deliveries of one class as rows.

    ``safety``; an A15 row is ``quality`` when a fault that the contract lets destroy acknowledged data began between
    the confirmation and the delivery.
    """
    destroying = destroying_faults(tables, contract)
    rows = []
    for found in unjustified(tables, contract):
        if found.kind is not kind:
            continue
        event = found.delivery
        excused = kind is RedeliveryClass.RESURRECTION and any(
            found.settled_idx < span.from_idx < event.index for span in destroying
        )
        rows.append(
            Anomaly(
                checker=checker,
                anomaly=kind.value,
                severity=Severity.QUALITY if excused else Severity.SAFETY,
                queue=event.queue,
                group=event.group,
                value=event.value,
                index=event.index,
                detail=detail,
            )
        )
    return rows


def _confirmation(settlements: list[Settlement]) -> Settlement | None:
    final = [row for row in settlements if row.kind is not OpKind.NACK and row.status is OpType.OK]
    return min(final, key=lambda row: row.cpl_idx, default=None)


def _judge(
    tables: Tables,
    timeout_ns: int,
    subject: Subject,
    events: list[HistoryEvent],
    number: int,
    settlements: list[Settlement],
    confirmed: Settlement | None,
) -> Unjustified | None:
    event = events[number]
    window = _window(tables, subject, events, number, confirmed)
    if (
        _settlement_cause(settlements, window)
        or _session_cause(tables, events, number, window)
        or active(tables, CUTTING, window.from_idx, window.to_idx)
        or _timeout_elapsed(timeout_ns, window)
    ):
        return None
    kind = RedeliveryClass.WITHOUT_CAUSE
    if window.late:
        kind = RedeliveryClass.RESURRECTION
    elif _still_held(events[number - 1], event, settlements):
        kind = RedeliveryClass.CONCURRENT
    settled = confirmed.cpl_idx if window.late and confirmed is not None else -1
    return Unjustified(subject=subject, delivery=event, kind=kind, settled_idx=settled)


def _window(
    tables: Tables, subject: Subject, events: list[HistoryEvent], number: int, confirmed: Settlement | None
) -> _Window:
    event = events[number]
    late = confirmed is not None and confirmed.cpl_idx < event.index
    to_idx, to_ns = event.index, event.time_ns
    if late and confirmed is not None:
        to_idx, to_ns = confirmed.cpl_idx, confirmed.cpl_ns
    send = tables.sends.get(subject[2])
    sent_idx, sent_ns = (send.inv_idx, send.inv_ns) if send is not None else (0, 0)
    before = [earlier for earlier in events[:number] if earlier.index < to_idx]
    if not before or active(tables, DELAYING, sent_idx, event.index):
        from_idx, from_ns = sent_idx, sent_ns
    else:
        from_idx, from_ns = before[-1].index, before[-1].time_ns
    return _Window(from_idx=from_idx, from_ns=from_ns, to_idx=to_idx, to_ns=to_ns, late=late)


def _settlement_cause(settlements: list[Settlement], window: _Window) -> bool:
    return any(
        window.from_idx < row.inv_idx < window.to_idx and (row.kind is OpKind.NACK or row.status is not OpType.OK)
        for row in settlements
    )


def _session_cause(tables: Tables, events: list[HistoryEvent], number: int, window: _Window) -> bool:
    grace = -1 if window.late else window.to_ns + SESSION_END_GRACE_NS
    for process in {earlier.process for earlier in events[:number]}:
        for idx, time_ns in tables.session_ends.get(process, ()):
            if window.from_idx < idx and (idx < window.to_idx or time_ns <= grace):
                return True
    return False


def _timeout_elapsed(timeout_ns: int, window: _Window) -> bool:
    slack = min(timeout_ns // 2, TIMEOUT_SLACK_NS)
    return timeout_ns > 0 and window.to_ns - window.from_ns >= timeout_ns - slack


def _still_held(previous: HistoryEvent, event: HistoryEvent, settlements: list[Settlement]) -> bool:
    return previous.process != event.process and not any(
        row.process == previous.process and previous.index < row.inv_idx < event.index for row in settlements
    )
