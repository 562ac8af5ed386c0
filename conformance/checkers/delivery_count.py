"""``delivery_count``: what the broker says about earlier deliveries contradicts the history (B4, B7).

For the main deliveries d_1, d_2, ... of one subject in order of idx, s being the send of the value::

    undisturbed(d) = no fault of any kind overlaps (s.inv_idx, d.idx)
    B4 low  = {d_k : undisturbed(d_k), and some d_i, i < k, has the same delivery_count > 0, or neither d_k nor d_i is
               marked redelivered}
    B4 high = {d_1 : undisturbed(d_1), no session ended in (s.inv_idx, d_1.idx), no delivery timeout fits into the time
               between (d_1.time - s.inv < timeout), and (d_1.redelivered or d_1.delivery_count > 1)}
    B7      = {d : contract.max_deliveries > 0 and d.delivery_count > contract.max_deliveries}

A value without a send takes part in B7 alone, plain MQTT in nothing.
 Severity: ``safety`` for ``B4 low`` and B7; ``quality`` for ``B4 high``
(a broker may hand a message to a connection that is about to end, and count it).
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.tables import MQTT_PREFIX, Send, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, HistoryEvent

CHECKER = "delivery_count"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All B4 and B7 rows; ``index`` is the delivery's."""
    rows: list[Anomaly] = []
    limit = contract.max_deliveries
    for (_, _, value), events in tables.main.items():
        first = events[0]
        if len(events) == 1 and not first.redelivered and first.delivery_count <= 1:
            continue  # nearly every message
        if first.queue.startswith(MQTT_PREFIX):
            continue
        if limit > 0:
            rows.extend(_row("B7", event, "beyond the limit") for event in events if event.delivery_count > limit)
        send = tables.sends.get(value)
        if send is None:
            continue
        if _claims_too_much(tables, contract, send, first):
            rows.append(_row("B4", first, "first delivery called a redelivery", Severity.QUALITY))
        for number, event in enumerate(events[1:], start=1):
            if _counted_twice(events[:number], event) and _undisturbed(tables, send, event):
                rows.append(_row("B4", event, "redelivery not called one, or counted as another"))
    return rows


def _counted_twice(earlier: list[HistoryEvent], event: HistoryEvent) -> bool:
    """Clients may see deliveries in any order, but no two of them can be the first, or the n-th."""
    return any(
        (0 < event.delivery_count == other.delivery_count) or not (event.redelivered or other.redelivered)
        for other in earlier
    )


def _undisturbed(tables: Tables, send: Send, event: HistoryEvent) -> bool:
    return not any(span.overlaps(send.inv_idx, event.index) for span in tables.faults)


def _claims_too_much(tables: Tables, contract: Contract, send: Send, first: HistoryEvent) -> bool:
    if not (first.redelivered or first.delivery_count > 1) or not _undisturbed(tables, send, first):
        return False
    if first.time_ns - send.inv_ns >= contract.delivery_timeout_s * 1e9:
        return False
    return not any(send.inv_idx < idx < first.index for ends in tables.session_ends.values() for idx, _ in ends)


def _row(anomaly: str, event: HistoryEvent, detail: str, severity: Severity = Severity.SAFETY) -> Anomaly:
    return Anomaly(
        checker=CHECKER,
        anomaly=anomaly,
        severity=severity,
        queue=event.queue,
        group=event.group,
        value=event.value,
        index=event.index,
        detail=detail,
    )
