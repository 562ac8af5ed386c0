"""Which later deliveries of a message have a cause: the ground of B3, B6 and A15.

A client sees a delivery some time after the broker made it, and two clients see theirs in any order, so no rule may
rest on the time *between* two deliveries. What can be proved is a count: between two consecutive deliveries of one
message the broker needs a cause, and each cause serves once. Take the main deliveries of one subject (queue Q, group
g, value v) in order of idx: d_1, d_2, ..., d_n; let s be the send of v (idx 0, time 0 without one), and f the ACK or
REJECT of the subject with status ok and the least cpl_idx, if there is one. For k >= 2:

- d_k is *late* when f.cpl_idx < d_k.idx; its ``end`` is f's completion then (only what came before the broker confirmed
  f can have put d_k on its way), else d_k itself.
- ``causes(k)`` is the sum of

  1. NACKs of the subject with inv_idx < end.idx;
  2. ACKs and REJECTs of the subject with inv_idx < end.idx and status fail or info;
  3. session ends, with idx < end.idx, of the processes that received one of d_1 .. d_(k-1); when d_k is not late, also
     those with time <= d_k.time + SESSION_END_GRACE_NS (a client may notice the end of its session late);
  4. faults of a CUTTING kind with from_idx < end.idx and to_idx > s.inv_idx;
  5. delivery timeouts that fit in: floor((end.time - s.inv_ns + TIMEOUT_SLACK_NS) / timeout), with timeout =
     contract.delivery_timeout_s; none when that is 0.

- A late d_k is *unjustified* when k - 1 > causes(k). The others are judged in order, with j = 0 at first: if
  j < causes(k), d_k is justified and j grows by one, else d_k is unjustified. (causes(k) never shrinks as k grows, so
  j before d_k is (k - 1) + min(-1, min over 2 <= i < k of causes(i) - i).)

An unjustified d_k is of exactly one class:

- ``A15`` resurrection: it is late;
- ``B6`` concurrent delivery: not late, it went to another process than d_(k-1), and that process had invoked no
  settlement of the subject with inv_idx in (d_(k-1).idx, d_k.idx);
- ``B3`` redelivery without cause: the rest.

Plain MQTT has rules of its own. A delayed message over whose life power was lost may have fired twice (Q-DELAY-21), and
is passed over.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.excuses import CUTTING, destruction_by, fired_again, timeouts_within
from assay.conformance.checkers.tables import FaultSpan, Settlement, Subject, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpKind, OpType

SESSION_END_GRACE_NS = 1_000_000_000


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


def unjustified(tables: Tables, contract: Contract) -> list[Unjustified]:
    """Every unjustified delivery, in order of subject. Linear in the deliveries that have a predecessor.

    Three checkers ask; what was found is kept with the tables.
    """
    known = tables.derived.get(contract)
    if isinstance(known, list):
        return known
    found: list[Unjustified] = []
    tables.derived[contract] = found
    cutting = [span for span in tables.faults if span.kind in CUTTING]
    for subject in tables.repeated:
        found.extend(_Judge(tables, contract, cutting, subject).unjustified())
    return found


def rows_of(kind: RedeliveryClass, checker: str, detail: str, tables: Tables, contract: Contract) -> list[Anomaly]:
    """The unjustified deliveries of one class as rows.

    ``safety``; an A15 row is ``quality`` when a fault that the contract lets destroy acknowledged data began between
    the confirmation and the delivery, or the disk was damaged before the delivery.
    """
    destruction = destruction_by(tables, contract)
    rows = []
    for found in unjustified(tables, contract):
        event = found.delivery
        if found.kind is not kind or fired_again(tables, tables.sends.get(event.value), event.index):
            continue
        excused = kind is RedeliveryClass.RESURRECTION and any(
            each.excuses(found.settled_idx, event.index) for each in destruction
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


class _Judge:
    """The deliveries of one subject against their causes."""

    def __init__(self, tables: Tables, contract: Contract, cutting: list[FaultSpan], subject: Subject) -> None:
        self._tables = tables
        self._cutting = cutting
        self._contract = contract
        self._subject = subject
        self._events = tables.main[subject]
        self._settlements = tables.settlements.get(subject, [])
        final = [row for row in self._settlements if row.kind is not OpKind.NACK and row.status is OpType.OK]
        self._confirmed: Settlement | None = min(final, key=lambda row: row.cpl_idx, default=None)
        send = tables.sends.get(subject[2])
        self._sent_idx, self._sent_ns = (0, 0) if send is None else (send.inv_idx, send.inv_ns)

    def unjustified(self) -> list[Unjustified]:
        found = []
        justified = 0
        confirmed = self._confirmed
        for number in range(1, len(self._events)):
            event = self._events[number]
            if confirmed is not None and confirmed.cpl_idx < event.index:
                if number > self._causes(number, confirmed.cpl_idx, confirmed.cpl_ns, grace_ns=-1):
                    found.append(self._row(event, RedeliveryClass.RESURRECTION, confirmed.cpl_idx))
            elif justified < self._causes(number, event.index, event.time_ns, grace_ns=SESSION_END_GRACE_NS):
                justified += 1
            else:
                held = self._still_held(number)
                found.append(
                    self._row(event, RedeliveryClass.CONCURRENT if held else RedeliveryClass.WITHOUT_CAUSE, -1)
                )
        return found

    def _row(self, event: HistoryEvent, kind: RedeliveryClass, settled_idx: int) -> Unjustified:
        return Unjustified(subject=self._subject, delivery=event, kind=kind, settled_idx=settled_idx)

    def _causes(self, number: int, end_idx: int, end_ns: int, *, grace_ns: int) -> int:
        settling = sum(
            row.inv_idx < end_idx and (row.kind is OpKind.NACK or row.status is not OpType.OK)
            for row in self._settlements
        )
        latest_ns = end_ns + grace_ns if grace_ns >= 0 else -1
        ends = sum(
            idx < end_idx or time_ns <= latest_ns
            for process in {earlier.process for earlier in self._events[:number]}
            for idx, time_ns in self._tables.session_ends.get(process, ())
        )
        faults = sum(span.overlaps(self._sent_idx, end_idx) for span in self._cutting)
        return settling + ends + faults + timeouts_within(self._contract, end_ns - self._sent_ns)

    def _still_held(self, number: int) -> bool:
        previous, event = self._events[number - 1], self._events[number]
        return previous.process != event.process and not any(
            row.process == previous.process and previous.index < row.inv_idx < event.index for row in self._settlements
        )
