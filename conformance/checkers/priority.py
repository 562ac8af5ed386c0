"""``priority`` (D10): an urgent message waited behind more messages of less urgent lanes than its share allows.

Lanes share a partition by deficit round robin (Q-PRIO-02, Q-PRIO-03): each round of ROUND deliveries serves a lane its
share, the urgent first. So a message m with k messages of its own lane before it comes within k + 2 rounds at the
latest, whatever the weights. Take the first main deliveries that are not called redeliveries of one (queue, group,
partition), in order of idx; m is one of a send s with status ok and a lane above the last, without delay or
transaction::

    before(m) = first deliveries of the same lane with s.cpl_idx < idx < m.idx
    lower(m)  = first deliveries of less urgent lanes with idx < m.idx and time > s.cpl_ns + GRACE_NS
    D10 = {m : |lower(m)| > ROUND * (|before(m)| + 2)}

Not claimed when a fault of any kind overlaps (s.inv_idx, m.idx), nor while a message of the same lane was between two
deliveries: what waits for a retry holds back its lane. Severity: ``safety``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from assay.conformance.checkers.anomaly import Anomaly, row_of
from assay.conformance.checkers.tables import Tables
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpType

CHECKER = "priority"
ROUND = 100
GRACE_NS = 500_000_000
"""What was delivered before the confirm may be seen after it."""
_NORMAL = 2

Place = tuple[str, str, int]
"""(queue, group, partition)."""


class _Lanes:
    """First deliveries of one place, by lane: indices, times, and when a message was between two deliveries."""

    def __init__(self) -> None:
        self.indices: dict[int, list[int]] = {}
        self.times: dict[int, list[int]] = {}
        self.retried: dict[int, list[tuple[int, int]]] = {}

    def lower(self, lane: int, since_ns: int, until_idx: int) -> int:
        """First deliveries of less urgent lanes since then, seen before that one."""
        return sum(
            max(0, bisect_left(self.indices[other], until_idx) - bisect_right(self.times[other], since_ns))
            for other in self.indices
            if other > lane
        )


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All D10 rows; ``index`` is the delivery of the urgent message."""
    del contract
    if all(send.lane < 0 for send in tables.sends.values()):
        return []
    places: dict[Place, _Lanes] = {}
    firsts: list[tuple[Place, int, HistoryEvent]] = []
    for (queue, group, value), events in tables.main.items():
        send = tables.sends.get(value)
        first = events[0]
        if send is None:
            continue
        place, lane = (queue, group, first.partition), send.lane if send.lane >= 0 else _NORMAL
        lanes = places.setdefault(place, _Lanes())
        if len(events) > 1 or first.redelivered:
            lanes.retried.setdefault(lane, []).append(
                (send.inv_idx if first.redelivered else first.index, events[-1].index)
            )
        if not first.redelivered:
            firsts.append((place, lane, first))
    firsts.sort(key=lambda each: each[2].index)
    for place, lane, first in firsts:
        lanes = places[place]
        lanes.indices.setdefault(lane, []).append(first.index)
        lanes.times.setdefault(lane, []).append(first.time_ns)
    return [
        row_of(CHECKER, "D10", first, "behind less urgent messages")
        for place, lane, first in firsts
        if _starved(tables, places[place], lane, first)
    ]


def _starved(tables: Tables, lanes: _Lanes, lane: int, first: HistoryEvent) -> bool:
    send = tables.sends[first.value]
    if send.status is not OpType.OK or send.delay_ns >= 0 or send.txn or lane == max(lanes.indices):
        return False
    lower = lanes.lower(lane, send.cpl_ns + GRACE_NS, first.index)
    if lower <= 2 * ROUND:
        return False
    own = lanes.indices[lane]
    before = bisect_left(own, first.index) - bisect_right(own, send.cpl_idx)
    if lower <= ROUND * (before + 2):
        return False
    held = any(since < first.index and until > send.cpl_idx for since, until in lanes.retried.get(lane, ()))
    return not held and not any(span.overlaps(send.inv_idx, first.index) for span in tables.faults)
