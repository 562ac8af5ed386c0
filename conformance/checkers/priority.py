"""``priority`` (D10): an urgent message waited behind more messages of less urgent lanes than the shares allow.

Lanes share a partition by deficit round robin (Q-PRIO-02, Q-PRIO-03): each round serves a lane its share of a hundred
deliveries (contract.lane_shares), the urgent first. So a message with k of its own lane before it comes within
k DIV share + 2 rounds at the latest. Take the first main deliveries that are not called redeliveries of one (queue,
group, partition), in order of idx; m is one of a send s with status ok and a lane l above the last, without delay or
transaction::

    before(m) = first deliveries of the same lane with s.cpl_idx < idx < m.idx
    lower(m)  = first deliveries of less urgent lanes with idx < m.idx and time > s.cpl_ns + GRACE_NS
    D10 = {m : |lower(m)| > (|before(m)| DIV share(l) + 2) * (sum of the shares of the lanes below l)}

Not claimed when a fault of any kind overlaps (s.inv_idx, m.idx), nor while a message of the same lane was between two
deliveries: what waits for a retry holds back its lane. Severity: ``safety``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from assay.conformance.checkers.anomaly import Anomaly, row_of
from assay.conformance.checkers.tables import Tables
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpType

CHECKER = "priority"
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
    shares = [int(share) for share in contract.lane_shares.split()]
    if not shares or all(send.lane < 0 for send in tables.sends.values()):
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
        if _starved(tables, places[place], shares, lane, first)
    ]


def _starved(tables: Tables, lanes: _Lanes, shares: list[int], lane: int, first: HistoryEvent) -> bool:
    send = tables.sends[first.value]
    if send.status is not OpType.OK or send.delay_ns >= 0 or send.txn or lane >= len(shares) - 1:
        return False
    lower = lanes.lower(lane, send.cpl_ns + GRACE_NS, first.index)
    below = sum(shares[lane + 1 :])
    if lower <= 2 * below:
        return False
    own = lanes.indices[lane]
    before = bisect_left(own, first.index) - bisect_right(own, send.cpl_idx)
    if lower <= (before // shares[lane] + 2) * below:
        return False
    held = any(since < first.index and until > send.cpl_idx for since, until in lanes.retried.get(lane, ()))
    return not held and not any(span.overlaps(send.inv_idx, first.index) for span in tables.faults)
