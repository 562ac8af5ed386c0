"""``wills`` (W1, W2, W3): a will was not published, was published without a cause, or before its delay was over.

A will w was left with a connection that ended at w.end (idx, time), by DISCONNECT (``fail``), without (``ok``), or was
never answered (``info``). The broker may have noticed the end as early as its last sign of life to the client,
alive_ns, which is as old as a fault of the network that held it up, and as late as such a fault ended that was active
at w.end: noticed_ns, else w.end_ns. ``back`` is the client's next connection of the same session (accepted and
resumed), x the will's delay::

    W1 = {(w, g) : w.status = ok, closed(Q, g), g subscribed before w.inv_idx, no delivery of w to g, no crash overlaps
          (w.inv_idx, w.end) or began within x + PATIENCE_NS of it, no fault of a REFUSING kind whose files sessions
          are kept in overlaps (the broker's last start, w.end) or began within x + PATIENCE_NS of it, unless it does
          not stick and was over PATIENCE_NS before alive_ns, the client did not try to come back before
          noticed_ns + x + SLACK_NS, and the final read ended more than x + PATIENCE_NS after noticed_ns}
                                                                                                 MQTT-3.1.2-8, 3.1.3-9
    W2 = {d of w : w.status = fail, and no fault that hides things overlaps w's connection or began within SLACK_NS of
          its end, nor did one of the disk, as for W1, with a crash that overlaps (w.end, d);
          or x > 0 and back was accepted before alive_ns + x - SLACK_NS}                        MQTT-3.1.2-10, 3.1.3-9
    W3 = {d of w : d.time < alive_ns + x - SLACK_NS, the client had not connected anew, or resumed, by d}

What cannot be written a broker may refuse, a will as well, although nobody is there to be told. After a sync that
failed it may until it is started again; else it goes on within PATIENCE_NS of there being a disk again.

None is claimed when a fault of the clock is in the history. Severity: ``safety``; ``quality`` when a fault that the
contract lets destroy what was acknowledged began: of W2 after DISCONNECT between it and d, of W1 since g subscribed,
where g got nothing that was sent after w.end (its subscription may be lost). ``index``: of the delivery; of w's end.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, quality_if, row_of
from assay.conformance.checkers.excuses import (
    CRASHING,
    DISTURBING,
    STICKING,
    WRONG_CLOCK,
    active,
    destroyed,
    destroyed_to,
    disturbed,
    refuses_sessions,
)
from assay.conformance.checkers.lost import closed, newest_got
from assay.conformance.checkers.tables import END_IDX, SHARE_PREFIX, Link, Tables, Will
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpType

CHECKER = "wills"
SLACK_NS = 500_000_000
PATIENCE_NS = 4_000_000_000
"""Until the broker must have noticed that a client is gone, and told of it, or that its disk takes something again."""


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All W1, W2 and W3 rows."""
    if not tables.wills or active(tables, WRONG_CLOCK, -1, END_IDX):
        return []
    rows: list[Anomaly] = []
    for event in tables.deliveries:
        will = tables.wills.get(event.value)
        if will is not None:
            rows += _judge(tables, contract, will, event)
    scopes = [scope for scope in tables.scopes() if not scope[1].startswith(SHARE_PREFIX)]
    for queue, group in scopes:
        if closed(tables, contract, (queue, group)):
            rows += missing(tables, contract, queue, group)
    return rows


def _after(tables: Tables, will: Will) -> tuple[Link | None, Link | None]:
    """The will's connection, and the next one of its client."""
    links = tables.sessions.get(will.session, [])
    for number, link in enumerate(links):
        if link.process == will.process:
            return link, links[number + 1] if number + 1 < len(links) else None
    return None, None


def _judge(tables: Tables, contract: Contract, will: Will, event: HistoryEvent) -> list[Anomaly]:
    link, after = _after(tables, will)
    if link is None:
        return []
    due_ns = link.alive_ns + max(0, will.send.delay_ns) - SLACK_NS
    if will.status is OpType.FAIL:
        hidden = disturbed(tables, DISTURBING, will.send.inv_idx, will.end_idx, will.end_ns + SLACK_NS) or (
            active(tables, CRASHING, will.end_idx, event.index)
            and _refused(tables, will, min(link.alive_ns, will.end_ns), will.end_ns + SLACK_NS)
        )
        severity = quality_if(destroyed(tables, contract, will.end_idx, event.index))
        return [] if hidden else [row_of(CHECKER, "W2", event, "although DISCONNECT withdrew it", severity)]
    resumed = after is not None and after.status is OpType.OK and after.present and after.ok_ns < due_ns
    if resumed and will.send.delay_ns > 0:
        return [row_of(CHECKER, "W2", event, "although its client came back in time")]
    if event.time_ns < due_ns and (after is None or after.inv_idx > event.index):
        return [row_of(CHECKER, "W3", event, "before its time")]
    return []


def missing(tables: Tables, contract: Contract, queue: str, group: str) -> list[Anomaly]:
    """The W1 rows of one closed scope."""
    since = tables.subscribed.get((queue, group), -1)
    may_be_set_back = since < destroyed_to(tables, contract)
    drain = tables.drains.get((queue, group)) or tables.drains.get((queue, "")) or tables.drains[("", "")]
    rows = []
    for will in tables.wills.values():
        delay_ns = max(0, will.send.delay_ns)
        if will.status is not OpType.OK or will.send.queue != queue or will.send.inv_idx < since:
            continue
        due_ns = _noticed_ns(tables, will) + delay_ns
        if (queue, group, will.send.value) in tables.main or drain.time_ns < due_ns + PATIENCE_NS:
            continue
        link, after = _after(tables, will)
        if after is not None and delay_ns > 0 and after.inv_ns < due_ns + SLACK_NS:
            continue
        until_ns = due_ns + PATIENCE_NS
        if disturbed(tables, CRASHING, will.send.inv_idx, will.end_idx, until_ns) or _refused(
            tables, will, 0 if link is None else min(link.alive_ns, will.end_ns), until_ns
        ):
            continue
        is_set_back = may_be_set_back and newest_got(tables, (queue, group), of_wills=True) < will.end_idx
        rows.append(
            Anomaly(
                checker=CHECKER,
                anomaly="W1",
                severity=quality_if(is_set_back),
                queue=queue,
                group=group,
                value=will.send.value,
                index=will.end_idx,
                detail="never published",
            )
        )
    return rows


def _noticed_ns(tables: Tables, will: Will) -> int:
    """By when the broker knows that the connection ended: not before the network tells it."""
    spans = (span for span in tables.faults if span.kind in DISTURBING and span.from_ns <= will.end_ns <= span.to_ns)
    return max((span.to_ns for span in spans), default=will.end_ns)


def _refused(tables: Tables, will: Will, alive_ns: int, until_ns: int) -> bool:
    """Whether a fault of the disk may have kept a will's end from being written, or the will from those that it was
    for, by then."""
    started = [span.to_idx for span in tables.faults if span.kind in CRASHING and span.to_idx <= will.end_idx]
    started_idx = max(started, default=-1)
    return any(
        (span.from_idx < will.end_idx or span.from_ns <= until_ns)
        and span.to_idx > started_idx
        and (span.kind in STICKING or span.to_ns > alive_ns - PATIENCE_NS)
        and refuses_sessions(span.kind, span.detail)
        for span in tables.faults
    )
