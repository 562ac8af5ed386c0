"""``duplicate``: one message stored twice (B1), or delivered twice against the contract (B2).

Over the main deliveries, with ``position(d)`` = (partition, offset) where offset >= 0, else message id where it is not
empty, else none::

    positions(Q, v) = {position(d) : d main delivery of v from Q, position(d) exists}
    B1 = {(Q, v) : v has a send s, |positions(Q, v)| > 1, and (s.invocations = 1 or the contract is exactly_once)}
    B2 = {(Q, g, v) : v delivered from Q to g more than once}           unless the contract is at_least_once

A publisher that sent a value once must find it stored once, whatever the contract; a publisher that retried may find
it twice unless the broker promised to deduplicate. Copies in a dead-letter queue do not count: each group dead-letters
its own, and a crash between copying and settling may copy again. A delayed message over whose life power was lost may
have fired twice (Q-DELAY-21), and is passed over; so is plain MQTT, which has rules of its own.

Severity: ``safety``. ``index`` is the first delivery that shows a second position (B1) or the second delivery (B2);
B1 rows have no group.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.excuses import fired_again
from assay.conformance.checkers.tables import MQTT_PREFIX, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, DeliveryGuarantee, HistoryEvent

CHECKER = "duplicate"

Position = tuple[int, int] | str


def position(event: HistoryEvent) -> Position | None:
    """Where the broker says that it keeps the message."""
    if event.offset >= 0:
        return (event.partition, event.offset)
    return event.message_id or None


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All B1 and B2 rows."""
    exactly_once = contract.delivery is DeliveryGuarantee.EXACTLY_ONCE
    rows: list[Anomaly] = []
    first: dict[tuple[str, str], Position] = {}
    reported: set[tuple[str, str]] = set()
    for (queue, group, value), events in tables.main.items():
        for event in events:
            where = position(event)
            if where is None or first.setdefault((queue, value), where) == where or (queue, value) in reported:
                continue
            send = tables.sends.get(value)
            once = send is not None and (send.invocations == 1 or exactly_once)
            if once and not fired_again(tables, send, event.index):
                reported.add((queue, value))
        if (
            len(events) > 1
            and contract.delivery is not DeliveryGuarantee.AT_LEAST_ONCE
            and not queue.startswith(MQTT_PREFIX)
        ):
            rows.append(_row("B2", queue, group, events[1], "delivered again"))
    if reported:
        rows.extend(_stored_twice(tables, reported))
    return rows


def _stored_twice(tables: Tables, pairs: set[tuple[str, str]]) -> list[Anomaly]:
    """The first delivery of each pair, in order of index, whose position differs from the first known one."""
    first: dict[tuple[str, str], Position] = {}
    rows = []
    for event in tables.deliveries:
        pair = (event.queue, event.value)
        where = position(event)
        if pair in pairs and where is not None and first.setdefault(pair, where) != where:
            pairs = pairs - {pair}
            rows.append(_row("B1", event.queue, "", event, "stored at two positions"))
    return rows


def _row(anomaly: str, queue: str, group: str, event: HistoryEvent, detail: str) -> Anomaly:
    return Anomaly(
        checker=CHECKER,
        anomaly=anomaly,
        severity=Severity.SAFETY,
        queue=queue,
        group=group,
        value=event.value,
        index=event.index,
        detail=detail,
    )
