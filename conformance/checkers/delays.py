"""``delays`` (D13, A17): no delayed message comes before its time, and none that was taken back comes at all.

Over the deliveries d, main and dead-lettered, of sends s with a delay::

    D13 = {d : d.time < s.inv_ns + s.delay_ns - EARLY_SLACK_NS}
    A17 = {d : s was taken back (a CANCEL of it has status ok)}

The broker counts from when it has the message, which is later than s.inv_ns, and a client sees a delivery later than it
is made, so the first rule holds whatever the network does. D13 is not claimed when a fault of the broker's clock began
before d. A17 is ``quality`` when a fault that the contract lets destroy acknowledged data began between the confirmed
CANCEL and d. Severity else: ``safety``; ``index`` is d's, one row per delivery.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, quality_if, row_of
from assay.conformance.checkers.excuses import WRONG_CLOCK, active, destroyed
from assay.conformance.checkers.tables import Tables
from assay.reference_broker.trace.schema import Contract

CHECKER = "delays"
EARLY_SLACK_NS = 10_000_000
"""One tick of a timer, and what two clocks of a machine may differ by."""


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All D13 and A17 rows."""
    sends = {value: send for value, send in tables.sends.items() if send.delay_ns >= 0 and value not in tables.wills}
    rows: list[Anomaly] = []
    if not sends:
        return rows
    for event in tables.deliveries:
        send = sends.get(event.value)
        if send is None:
            continue
        if event.time_ns < send.inv_ns + send.delay_ns - EARLY_SLACK_NS and not active(
            tables, WRONG_CLOCK, -1, event.index
        ):
            rows.append(row_of(CHECKER, "D13", event, "before its time"))
        if send.taken_back >= 0:
            severity = quality_if(destroyed(tables, contract, send.taken_back, event.index))
            rows.append(row_of(CHECKER, "A17", event, "was taken back", severity))
    return rows
