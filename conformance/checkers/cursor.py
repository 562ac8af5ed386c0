"""``cursor`` (F14): a new group that begins at the latest message got one from before it was there (Q-CURSOR-02).

``latest[Q, g]`` is the idx of the first SUBSCRIBE of a group that asks to begin at the latest message. Each life of a
group that is deleted has a name of its own, so this finds deleted groups that come back, too (Q-GROUP-15)::

    F14 = {d main delivery from Q to g : s.cpl_idx < latest[Q, g], s without a delay,
                                         no fault before d that may destroy what was acknowledged}

A disk that lied and lost its power may have lost where a group begins, or that it was deleted. What was confirmed
before the group could exist lies before its beginning. Severity: ``safety``; ``index`` is d's; one row per subject.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, row_of
from assay.conformance.checkers.excuses import destroyed
from assay.conformance.checkers.tables import Tables
from assay.reference_broker.trace.schema import Contract

CHECKER = "cursor"


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All F14 rows."""
    rows: list[Anomaly] = []
    if not tables.latest:
        return rows
    for (queue, group, value), events in tables.main.items():
        began, send = tables.latest.get((queue, group), -1), tables.sends.get(value)
        if send is None or send.delay_ns >= 0 or not 0 <= send.cpl_idx < began:
            continue
        if not destroyed(tables, contract, -1, events[0].index):
            rows.append(row_of(CHECKER, "F14", events[0], "confirmed before the group was there"))
    return rows
