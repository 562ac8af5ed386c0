"""How often a history gave a checker the chance to see its rule broken: one that saw too little proves nothing.

On a busy machine the load trickles: no message waits behind another, no consumer holds any when its connection ends,
and a broker without the rule behaves like one that keeps it. Per checker, in the terms of
:mod:`assay.conformance.checkers.tables`:

``order``
    First deliveries b that the order rule compares (of a confirmed send, not repeated by the broker) with a first
    delivery, to the same consumer, of an earlier message a of the stream that came after b had been confirmed: the
    broker had both, so that b could have overtaken a.
``lost``
    Subjects of confirmed sends that were at risk: not yet settled when the broker crashed, or when a fault began that
    cuts the sessions of its clients.
``resurrection``
    Settlements confirmed before a crash.
``dlq_loss``
    Subjects that were rejected, or failed as often as the contract allows.
``delivery_count``, ``redelivery_without_cause``
    Deliveries that the broker repeated.
``transactions``
    Transactions with messages that were not committed, or perhaps not.
``delays``
    Deliveries of delayed messages, and messages that were taken back.
``cursor``
    Per group that begins at the latest message: the messages that were confirmed before.
``mqtt_session``
    Connections that resumed a session.
``retained``
    Reads of topics that had been written twice.
``wills``
    Wills that were due, or withdrawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from assay.conformance.checkers import dlq_loss
from assay.conformance.checkers.excuses import CRASHING, CUTTING
from assay.conformance.checkers.tables import DLQ_PREFIX, RETAINED_PREFIX, Subject, Tables
from assay.reference_broker.trace.schema import Contract, OpKind, OpType


def _order(tables: Tables, contract: Contract) -> int:
    streams: defaultdict[tuple[str, ...], list[tuple[int, int, int]]] = defaultdict(list)
    for (queue, group, value), events in tables.main.items():
        send, first = tables.sends.get(value), events[0]
        if send is None or send.status is not OpType.OK:
            continue
        if contract.redelivery_may_reorder and (first.redelivered or first.delivery_count > 1):
            continue
        stream = (queue, group, first.process, send.producer, send.key)
        streams[stream].append((send.seq, send.cpl_idx, first.index))
    found = 0
    for rows in streams.values():
        latest = -1
        for _seq, confirmed, delivered in sorted(rows):
            found += latest > confirmed
            latest = max(latest, delivered)
    return found


def _final_idx(tables: Tables, subject: Subject) -> int:
    """When the subject was certainly settled for good; -1 if never."""
    rows = tables.settlements.get(subject, ())
    ends = [row.cpl_idx for row in rows if row.kind is not OpKind.NACK and row.status is OpType.OK]
    return min(ends, default=-1)


def _lost(tables: Tables, contract: Contract) -> int:
    cuts = [span.from_idx for span in tables.faults if span.kind in CUTTING]
    found = 0
    for queue, group in tables.scopes():
        for send in tables.sends.values():
            if send.queue == queue and send.status is OpType.OK:
                settled = _final_idx(tables, (queue, group, send.value))
                found += any(send.cpl_idx < cut and not 0 <= settled < cut for cut in cuts)
    return found


def _resurrection(tables: Tables, contract: Contract) -> int:
    last = max((span.from_idx for span in tables.faults if span.kind in CRASHING), default=-1)
    return sum(0 <= _final_idx(tables, subject) < last for subject in tables.settlements)


def _dlq_loss(tables: Tables, contract: Contract) -> int:
    subjects = [subject for subject in tables.refused if not subject[0].startswith(DLQ_PREFIX)]
    return sum(dlq_loss.due(tables, contract, subject) is not None for subject in subjects)


def _repeated(tables: Tables, contract: Contract) -> int:
    return sum(len(events) - 1 for events in tables.main.values())


def _transactions(tables: Tables, contract: Contract) -> int:
    return len({send.txn for send in tables.sends.values() if send.txn and send.status is not OpType.OK})


def _delays(tables: Tables, contract: Contract) -> int:
    delayed = {value: send for value, send in tables.sends.items() if send.delay_ns >= 0 and value not in tables.wills}
    came = sum(event.value in delayed for event in tables.deliveries)
    return came + sum(send.taken_back >= 0 for send in delayed.values())


def _cursor(tables: Tables, contract: Contract) -> int:
    return sum(
        send.queue == queue and 0 <= send.cpl_idx < began
        for (queue, _), began in tables.latest.items()
        for send in tables.sends.values()
    )


def _mqtt_session(tables: Tables, contract: Contract) -> int:
    return sum(link.present for links in tables.sessions.values() for link in links)


def _retained(tables: Tables, contract: Contract) -> int:
    written: defaultdict[str, list[int]] = defaultdict(list)
    for send in tables.sends.values():
        if send.queue.startswith(RETAINED_PREFIX) and send.status is OpType.OK:
            written[send.key.rpartition(":")[0]].append(send.cpl_idx)
    return sum(sum(at < read.inv_idx for at in written[read.topic]) > 1 for read in tables.reads)


def _wills(tables: Tables, contract: Contract) -> int:
    return sum(will.status is not OpType.INFO for will in tables.wills.values())


CHANCES: Mapping[str, Callable[[Tables, Contract], int]] = {
    "order": _order,
    "lost": _lost,
    "resurrection": _resurrection,
    "dlq_loss": _dlq_loss,
    "delivery_count": _repeated,
    "redelivery_without_cause": _repeated,
    "transactions": _transactions,
    "delays": _delays,
    "cursor": _cursor,
    "mqtt_session": _mqtt_session,
    "retained": _retained,
    "wills": _wills,
}
"""By checker; the others judge every send and every delivery, of which the counts tell."""


def chances(tables: Tables, contract: Contract) -> dict[str, int]:
    """How many chances each of these checkers had."""
    return {name: count(tables, contract) for name, count in CHANCES.items()}
