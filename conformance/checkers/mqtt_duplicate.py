"""``mqtt_duplicate``: plain MQTT delivered a message more often than its QoS and the subscription allow.

Over the deliveries d_1, d_2, ... of one subject (space Q, subscriber g, value v), s the send of v. ``extra`` is the
number of times that its publisher had to send it again at QoS 1 (s.invocations - 1, 0 at QoS 2): each may be a
message of its own. For one session g::

    B2 = {d_k, k > 1 : d_k.qos = 2 (exactly once, 4.3.3) or d_k.qos = 0 (never repeated, 4.3.1), k - 1 > extra}
    B3 = {d_k, k > 1 : d_k.qos = 1, and more than 1 + extra of d_1 .. d_k went over one connection}

Nothing is repeated on a living connection (MQTT-4.4.0-1 of 5.0; ``quality`` in 3.1.1, which only advises it). For a
share::

    B2 = {d_k, k > 1 : d_k.qos = 2, some d_i, i < k, went to another member, k - 1 > extra}       (MQTT-4.8.2-4, -5)
    B6 = {d_k, k > 1 : d_k.qos <= 1, k - 1 > extra + causes(k)}

with causes(k) the ends of sessions of those processes that received one of d_1 .. d_(k-1), with idx < d_k.idx or at
most a second later (a client may notice late). B2 is ``quality`` when a fault that the contract lets destroy what was
acknowledged began since d_1. Severity else: ``safety``. ``index`` is d_k's.
"""

from __future__ import annotations

from collections import Counter

from assay.conformance.checkers.anomaly import Anomaly, quality_if, row_of
from assay.conformance.checkers.excuses import CUTTING, active, destroyed
from assay.conformance.checkers.redeliveries import SESSION_END_GRACE_NS
from assay.conformance.checkers.tables import SHARE_PREFIX, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, HistoryEvent

CHECKER = "mqtt_duplicate"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All B2, B3 and B6 rows of plain MQTT."""
    rows: list[Anomaly] = []
    for subject in tables.repeated_mqtt:
        events, send = tables.main[subject], tables.sends.get(subject[2])
        extra = send.invocations - 1 if send is not None and send.qos == 1 else 0
        judge = _of_share if subject[1].startswith(SHARE_PREFIX) else _of_session
        rows += judge(tables, contract, events, extra)
    return rows


def _lost_state(tables: Tables, contract: Contract, first: HistoryEvent, event: HistoryEvent) -> Severity:
    return quality_if(destroyed(tables, contract, first.index, event.index))


def _of_session(tables: Tables, contract: Contract, events: list[HistoryEvent], extra: int) -> list[Anomaly]:
    rows = []
    over: Counter[str] = Counter()
    for number, event in enumerate(events):
        over[event.process] += 1
        if event.qos != 1:
            if number > extra:
                severity = _lost_state(tables, contract, events[0], event)
                rows.append(row_of(CHECKER, "B2", event, f"again at QoS {event.qos}", severity))
        elif over[event.process] > 1 + extra:
            link = tables.links.get(event.process)
            severity = quality_if(link is not None and link.old)
            rows.append(row_of(CHECKER, "B3", event, "again over one connection", severity))
    return rows


def _of_share(tables: Tables, contract: Contract, events: list[HistoryEvent], extra: int) -> list[Anomaly]:
    rows = []
    for number in range(extra + 1, len(events)):
        event, earlier = events[number], {each.process: None for each in events[:number]}
        if event.qos == 2:
            member = _member(event.process)
            if any(_member(process) != member for process in earlier):
                severity = _lost_state(tables, contract, events[0], event)
                rows.append(row_of(CHECKER, "B2", event, "to two members at QoS 2", severity))
            continue
        latest_ns = event.time_ns + SESSION_END_GRACE_NS
        causes = sum(
            idx < event.index or time_ns <= latest_ns
            for process in earlier
            for idx, time_ns in tables.session_ends.get(process, ())
        )
        if number > extra + causes and not active(tables, CUTTING, events[0].index, event.index):
            rows.append(row_of(CHECKER, "B6", event, "to two members"))
    return rows


def _member(process: str) -> str:
    return process.rpartition(".")[0]
