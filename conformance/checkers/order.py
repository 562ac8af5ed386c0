"""``order`` (D8): a producer's messages of one key reached a group in another order than they were sent.

Claimed only when the contract's order is ``per_producer_key``. Take the *first* main deliveries: per subject
(queue, group, value) the delivery of least idx; keep those whose send s has status ok (an unconfirmed message may have
travelled on a connection that the producer had given up), and, when contract.redelivery_may_reorder, drop those with
``redelivered`` or ``delivery_count > 1`` (the broker had delivered them before, to a client that never saw it). Of
those sent before the group subscribed are dropped, too: what was sent again, as it never gets what came first, and what
comes after a fault that may have undone that an earlier session of its client ended, whose messages it has then.
Messages with a delay take no part, nor do shared subscriptions, whose order MQTT leaves open (5.0, 4.6).
A stream is (queue, group, s.producer, s.key, s.lane), where no lane means lane 2. In plain MQTT, whose keys are
topic and QoS, that is MQTT-4.6.0-5. ::

    D8 = {b : there is a in the stream of b with a.idx < b.idx, a.seq > b.seq, and
              (a.process = b.process and no loss of power overlaps (s.inv_idx, min(s.cpl_idx, b.idx)),
               or started[b.process] > a.idx and no fault of a CRASHING kind overlaps (s.inv_idx of b, b.idx))}

Deliveries to two consumers that are connected at the same time travel on two connections, so their order at the
clients says nothing; to one consumer, or to one that came after the other delivery, it does. After a crash the broker
may no longer know that it had delivered b to a third one, so there only a consumer's own deliveries count. What was
not synced may vanish in part: b and not a, which were both not confirmed; b is then sent again, and comes after a.

Severity: ``safety``. ``index`` is b's.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.excuses import CRASHING, POWER, active, destruction_by
from assay.conformance.checkers.tables import SHARE_PREFIX, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, OpType, OrderGuarantee

CHECKER = "order"
NORMAL_LANE = 2


class _Stream:
    """The sequence numbers that a process must not fall behind."""

    __slots__ = ("inherited", "own", "rises")

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        """Greatest that the process itself received."""
        self.inherited: dict[str, int] = {}
        """Greatest that anybody had received when the process started."""
        self.rises: list[tuple[int, int]] = []
        """(idx, seq) of the first deliveries so far that were in front of all before them."""

    def admit(self, process: str, started: int, idx: int, seq: int) -> tuple[bool, bool]:
        """Record a first delivery; says whether it is behind its process's own, and behind the inherited ones."""
        own = self.own.get(process)
        if own is None:
            own = -1
            self.inherited[process] = max((other for at, other in self.rises if at < started), default=-1)
        if not self.rises or seq > self.rises[-1][1]:
            self.rises.append((idx, seq))
        self.own[process] = seq if seq > own else own
        return seq < own, seq < self.inherited[process]


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All D8 rows."""
    if contract.order is not OrderGuarantee.PER_PRODUCER_KEY:
        return []
    sends = tables.sends
    started = tables.started
    streams: dict[tuple[str, str, str, str, int], _Stream] = {}
    rows = []
    may_reorder = contract.redelivery_may_reorder
    destructions = destruction_by(tables, contract)
    for (queue, group, value), events in tables.main.items():  # in order of the first deliveries
        event = events[0]
        send = sends.get(value)
        if send is None or send.status is not OpType.OK or send.delay_ns >= 0 or group.startswith(SHARE_PREFIX):
            continue
        since = tables.subscribed.get((queue, group), -1)
        if send.inv_idx < since and (
            send.invocations > 1 or any(fault.excuses(since, event.index) for fault in destructions)
        ):
            continue
        if may_reorder and (event.redelivered or event.delivery_count > 1):
            continue
        lane = send.lane if send.lane >= 0 else NORMAL_LANE
        identity = (queue, group, send.producer, send.key, lane)
        stream = streams.get(identity)
        if stream is None:
            stream = streams[identity] = _Stream()
        process = event.process
        own, inherited = stream.admit(process, started[process], event.index, send.seq)
        own = own and not active(tables, POWER, send.inv_idx, min(send.cpl_idx, event.index))
        if own or (inherited and not active(tables, CRASHING, send.inv_idx, event.index)):
            rows.append(
                Anomaly(
                    checker=CHECKER,
                    anomaly="D8",
                    severity=Severity.SAFETY,
                    queue=event.queue,
                    group=event.group,
                    value=event.value,
                    index=event.index,
                    detail="after a later one of its producer and key",
                )
            )
    return rows
