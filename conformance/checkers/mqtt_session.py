"""``mqtt_session`` (S1, S2): a session was lost before its time, or outlived it.

Over the connections c_1, c_2, ... of one session, all of which ask for it to be resumed (no clean start), x its Session
Expiry Interval (-1: for ever). The broker may have noticed the end of a connection as early as its last sign of life to
the client, and must have noticed it when the client did, unless the network kept it from it::

    S1 = {c_k accepted as new : there is c_a, and x < 0 or c_k.ok_ns < c.alive_ns + x - EARLY_SLACK_NS, c = c_last, c_a}
    S2 = {c_k accepted as resumed : no c_i, i < k, at all; or x >= 0, c_k.inv_ns > c_last.end_ns + x + LATE_SLACK_NS,
          and no fault overlaps (c_last.inv_idx, c_k.ok_idx)}

with c_last = c_(k-1), of S1 the last one before c_k that was not refused, c_a the last one before it that was accepted,
and END where one has not ended (a takeover). Connections without an answer may have begun the session, or its time
anew, so c_i counts with them for S2 and c_last is one of them, too; but they need not have, so S1 asks c_a as well. A
refused one does neither. Sessions with x = 0 are passed over. MQTT-3.1.2-4 to -6, MQTT-4.1.0-1, -2; 3.1.1:
MQTT-3.1.2-4.

S1 is ``quality`` when a fault that the contract lets destroy what was acknowledged began since c_a was accepted.
Both are not claimed after a fault of the clock. Severity else: ``safety``; ``index`` is that of CONNECT ``ok``.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, quality_if
from assay.conformance.checkers.excuses import WRONG_CLOCK, active, destroyed
from assay.conformance.checkers.tables import END_NS, Link, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, OpType

CHECKER = "mqtt_session"
EARLY_SLACK_NS = 500_000_000
LATE_SLACK_NS = 1_000_000_000
"""Expiries are whole seconds, and a broker may look for them once a second."""


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All S1 and S2 rows."""
    rows = []
    for name, links in tables.sessions.items():
        accepted: Link | None = None
        before: Link | None = None
        """The last one that was not refused."""
        for number, link in enumerate(links):
            if link.status is OpType.OK and link.expiry_ns != 0:
                last = links[number - 1] if number else None
                if link.present:
                    if last is None or _outlived(tables, last, link):
                        rows.append(_row("S2", name, link, "resumed although it had ended", Severity.SAFETY))
                elif (
                    accepted is not None
                    and not any(_over(each, link) for each in (before, accepted) if each is not None)
                    and not _wrong_clock(tables, link)
                ):
                    severity = quality_if(destroyed(tables, contract, accepted.inv_idx, link.ok_idx))
                    rows.append(_row("S1", name, link, "lost before its time", severity))
                accepted = link
            if link.status is not OpType.FAIL:
                before = link
    return rows


def _over(last: Link, link: Link) -> bool:
    """The session may have ended by then."""
    if link.expiry_ns < 0:
        return False
    alive_ns = link.inv_ns if last.alive_ns == END_NS else last.alive_ns
    return link.ok_ns >= alive_ns + last.expiry_ns - EARLY_SLACK_NS


def _outlived(tables: Tables, last: Link, link: Link) -> bool:
    if last.expiry_ns < 0 or last.end_ns == END_NS or link.inv_ns <= last.end_ns + last.expiry_ns + LATE_SLACK_NS:
        return False
    return not any(span.overlaps(last.inv_idx, link.ok_idx) for span in tables.faults)


def _wrong_clock(tables: Tables, link: Link) -> bool:
    return active(tables, WRONG_CLOCK, -1, link.ok_idx)


def _row(anomaly: str, name: str, link: Link, detail: str, severity: Severity) -> Anomaly:
    return Anomaly(
        checker=CHECKER,
        anomaly=anomaly,
        severity=severity,
        queue="",
        group=name,
        value="",
        index=link.ok_idx,
        detail=detail,
    )
