"""Judges of a history, in memory: pure functions from events and a contract to findings and a verdict.

:mod:`.tables` derives the relations; each checker module states its rule as set algebra over them, so that another
form (SQL) can state the same. A checker returns rows (:class:`Anomaly`); rows are grouped to findings with evidence.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager

import msgspec

from assay.conformance.checkers import (
    concurrent_delivery,
    cursor,
    delays,
    delivery_count,
    dlq_loss,
    dlq_without_cause,
    duplicate,
    lost,
    mqtt_duplicate,
    mqtt_session,
    order,
    phantom,
    priority,
    redelivery_without_cause,
    resurrection,
    retained,
    topology,
    transactions,
    wills,
)
from assay.conformance.checkers.anomaly import Anomaly, to_findings
from assay.conformance.checkers.excuses import with_its_clock
from assay.conformance.checkers.forgetting import Judge
from assay.conformance.checkers.tables import DLQ_PREFIX, MQTT_PREFIX, Tables, build_tables
from assay.reference_broker.trace.results import Finding, Severity, Verdict
from assay.reference_broker.trace.schema import Contract, HistoryEvent, HistoryHeader, OpKind, OpType

__all__ = ["CHECKERS", "Anomaly", "CheckOutcome", "Tables", "anomalies", "build_tables", "check_history", "relations"]

_FEW_EVENTS = 20_000
"""So many are held as they are: to forget would save nothing worth having."""

CHECKERS: dict[str, Callable[[Tables, Contract], list[Anomaly]]] = {
    lost.CHECKER: lost.check,
    phantom.CHECKER: phantom.check,
    duplicate.CHECKER: duplicate.check,
    redelivery_without_cause.CHECKER: redelivery_without_cause.check,
    concurrent_delivery.CHECKER: concurrent_delivery.check,
    resurrection.CHECKER: resurrection.check,
    order.CHECKER: order.check,
    dlq_loss.CHECKER: dlq_loss.check,
    dlq_without_cause.CHECKER: dlq_without_cause.check,
    delivery_count.CHECKER: delivery_count.check,
    transactions.CHECKER: transactions.check,
    topology.CHECKER: topology.check,
    delays.CHECKER: delays.check,
    priority.CHECKER: priority.check,
    cursor.CHECKER: cursor.check,
    mqtt_duplicate.CHECKER: mqtt_duplicate.check,
    mqtt_session.CHECKER: mqtt_session.check,
    retained.CHECKER: retained.check,
    wills.CHECKER: wills.check,
}

OF_ONE_VALUE = (
    phantom.check,
    duplicate.check,
    redelivery_without_cause.check,
    concurrent_delivery.check,
    resurrection.check,
    dlq_without_cause.check,
    delivery_count.check,
    topology.check_unbound,
    delays.check,
    cursor.check,
    mqtt_duplicate.check,
)
"""Those whose rules look at one value at a time. Nothing is lost of a value that was settled."""


class CheckOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the history proves.

    ``verdict``: ``fail`` with any safety finding; else ``unknown`` when no claim is possible (nothing acknowledged,
    nothing delivered, or a group or dead-letter queue not drained: ``reasons`` says which); else ``pass``.
    """

    verdict: Verdict
    findings: list[Finding]
    counts: dict[str, int]
    """Rows per checker, and the sizes of the tables."""
    reasons: list[str] = []
    undrained: dict[str, str] = {}
    """Those of ``reasons`` that name a queue which was not read to its end, each with its name."""


def anomalies(tables: Tables, contract: Contract) -> list[Anomaly]:
    """The rows of all checkers, sorted."""
    contract = with_its_clock(tables, contract)
    rows = [row for check in CHECKERS.values() for row in check(tables, contract)]
    rows.sort()
    return rows


def relations(
    events: Iterable[HistoryEvent], contract: Contract, few: int = _FEW_EVENTS
) -> tuple[Tables, list[HistoryEvent]]:
    """The tables to judge a history by, and its events, without what is settled where there are more than a few.

    Raises :class:`ValueError` if events are not in order of ``index``. What can be read once alone is held whole.
    """
    if iter(events) is events:
        events = list(events)
    if isinstance(events, Sized) and len(events) <= few:
        kept = list(events)
        return build_tables(kept), kept
    judge = Judge(contract, OF_ONE_VALUE)
    judge.take(events)
    return judge.finish(events)


def check_history(header: HistoryHeader, events: Iterable[HistoryEvent]) -> CheckOutcome:
    """Judge one history. Raises :class:`ValueError` if its events are not in order of ``index``.

    ``events`` may be anything that can be read twice, of any length: what is settled is forgotten
    (:mod:`assay.conformance.checkers.forgetting`).
    """
    with _collector_paused():
        tables, kept = relations(events, header.contract)
        rows = anomalies(tables, header.contract)
    undrained = _undrained(tables, header.contract)
    reasons = [*_nothing_done(tables), *undrained]
    if any(row.severity is Severity.SAFETY for row in rows):
        verdict = Verdict.FAIL
    else:
        verdict = Verdict.UNKNOWN if reasons else Verdict.PASS
    return CheckOutcome(
        verdict=verdict,
        findings=to_findings(rows, kept),
        counts=_counts(tables, rows),
        reasons=reasons,
        undrained=undrained,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Tables only grow and hold no cycles; walking them again and again would cost a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _nothing_done(tables: Tables) -> list[str]:
    """Why this history cannot prove that the broker is right, for want of events."""
    reasons = []
    forgotten = tables.forgotten
    if not forgotten.sends and not any(send.status is OpType.OK for send in tables.sends.values()):
        reasons.append("no publish was acknowledged")
    if not tables.main and not forgotten.deliveries:
        reasons.append("nothing was delivered")
    return reasons


def _undrained(tables: Tables, contract: Contract) -> dict[str, str]:
    """Likewise, for want of a queue that was read to its end: (why, that queue)."""
    scopes = tables.scopes()
    reasons = {
        f"queue {queue!r} was not drained by group {group!r}": queue
        for queue, group in scopes
        if not tables.drained(queue, group) and not tables.ended(queue, group)
    }
    if contract.dead_letters:
        reasons |= {
            f"the dead-letter queue of {queue!r} was not drained": f"{DLQ_PREFIX}{queue}"
            for queue in sorted({queue for queue, _ in scopes if not queue.startswith(MQTT_PREFIX)})
            if not tables.dead_letters_drained(queue)
        }
    return reasons


def _counts(tables: Tables, rows: list[Anomaly]) -> dict[str, int]:
    status = {OpType.OK: 0, OpType.FAIL: 0, OpType.INFO: 0}
    recovered = 0
    read = {event.value for event in tables.deliveries}
    for send in tables.sends.values():
        status[send.status] += 1
        if send.status is OpType.INFO and send.value in read:
            recovered += 1
    forgotten = tables.forgotten
    settled = Counter(row.kind for subject in tables.settlements.values() for row in subject if row.status is OpType.OK)
    settled += forgotten.settled
    by_checker = Counter(row.checker for row in rows)
    main = sum(len(events) for events in tables.main.values()) + forgotten.deliveries
    counts = {
        "events": tables.events,
        "sends_ok": status[OpType.OK] + forgotten.sends,
        "sends_fail": status[OpType.FAIL],
        "sends_info": status[OpType.INFO],
        "recovered": recovered,
        "deliveries": main,
        "redeliveries": main - len(tables.main) - forgotten.subjects,
        "dead_lettered": len(tables.dead) + forgotten.dead,
        "acks_ok": settled[OpKind.ACK],
        "nacks_ok": settled[OpKind.NACK],
        "rejects_ok": settled[OpKind.REJECT],
        "session_ends": sum(len(ends) for ends in tables.session_ends.values()),
        "faults": len(tables.faults),
    }
    return counts | {name: by_checker[name] for name in CHECKERS}
