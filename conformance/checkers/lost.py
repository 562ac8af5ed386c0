"""``lost``: acknowledged messages that a group never got (A1), and unsettled messages that vanished (F6).

For a main queue Q and a group g, with every set taken over the tables of :mod:`assay.conformance.checkers.tables`::

    acked(Q, g)  = {s in sends : s.queue = Q, s.status = ok, s.inv_idx > subscribed[Q, g] (where g has a SUBSCRIBE ok)}
    read(Q, g)   = {d.value : d main delivery of Q to g}
    dead(Q)      = {d.value : d delivery of $dlq/Q}
    closed(Q, g) = DRAIN ok of (Q, g), and (contract.dead_letters and Q a queue imply DRAIN ok of $dlq/Q)

    A1 = {s in acked(Q, g) : s.value not in read(Q, g) + dead(Q)}                        if closed(Q, g), else no claim
    F6 = {s in acked(Q, g) : s.value in read(Q, g), not in dead(Q), not final(Q, g, s)}  if closed(Q, g), else no claim
    final(Q, g, s) = an ACK or REJECT by g was invoked for s.value with status ok or info, or was refused while a fault
                     of a REFUSING kind overlaps (inv_idx, cpl_idx): what the disk refused at first may be done later

F6 says that the broker took a message for settled although nobody settled it (a dropped nack, for example). It is
claimed only of contracts that promise at least one delivery until settlement, that is of all but ``at_most_once``, and
not of plain MQTT, where nobody says whether an acknowledgement arrived.

Severity: ``safety``; ``quality`` when the contract is ``at_most_once``, or when a fault that the contract lets destroy
acknowledged data (:func:`assay.conformance.checkers.excuses.destruction_by`) began after the send was acknowledged (A1)
or after the last delivery (F6), or when the disk was damaged at any time. What a client saw after the fault may have
been on its way before: the broker may have acknowledged as early as the publish was invoked (``asked_idx``), and
delivered as early as the process that saw it began (``started``), since no connection outlives a loss of power. A
session of plain MQTT that such a fault set back (it began since g subscribed) may have lost its subscription to
messages, or that to wills; then no message, or no will, comes any more that was sent after what is missing was
confirmed. It may also give a message of QoS 2 a packet identifier that its client has in use since before, which takes
it for that one (IGNORE). A1 of those is ``quality``, too. So is A1 of what was sent before the first SUBSCRIBE ``ok``
that was invoked after the last such fault: it may have taken the group, which began anew then, at the latest message or
at what the other groups had left.

``detail`` of A1 is the place of the hole in its producer's stream, which tells restarts, holes and slow readers apart:
over the sequence numbers of the values of one (Q, producer) in read(Q, g) + dead(Q), ``prefix`` below the least,
``postfix`` above the greatest, else ``middle``; ``all`` when that set is empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.excuses import REFUSING, active, destroyed_to, destruction_by
from assay.conformance.checkers.tables import END_IDX, MQTT_PREFIX, Scope, Send, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, DeliveryGuarantee, OpKind, OpType

CHECKER = "lost"


def closed(tables: Tables, contract: Contract, scope: Scope) -> bool:
    """Whether absence from this group's reads proves anything."""
    queue, group = scope
    if not tables.drained(queue, group):
        return False
    return queue.startswith(MQTT_PREFIX) or not contract.dead_letters or tables.dead_letters_drained(queue)


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All A1 and F6 rows. ``index`` is the send's completion (A1) or the last delivery (F6)."""
    rows: list[Anomaly] = []
    by_queue: defaultdict[str, list[Send]] = defaultdict(list)
    for send in tables.sends.values():
        if send.status is OpType.OK:
            by_queue[send.queue].append(send)
    destroyed = destroyed_to(tables, contract)
    for scope in tables.scopes():
        if closed(tables, contract, scope):
            rows.extend(_check_scope(tables, contract, scope, by_queue[scope[0]], destroyed))
    return rows


def _check_scope(tables: Tables, contract: Contract, scope: Scope, acked: list[Send], destroyed: int) -> list[Anomaly]:
    queue, group = scope
    dead = tables.dead_values(queue)
    since = tables.subscribed.get(scope, -1)
    excused = contract.delivery is DeliveryGuarantee.AT_MOST_ONCE
    settles = not excused and not queue.startswith(MQTT_PREFIX)
    missing: list[Send] = []
    rows: list[Anomaly] = []
    for send in acked:
        if send.inv_idx <= since or send.value in dead:
            continue
        seen = tables.main.get((queue, group, send.value))
        if seen is None:
            missing.append(send)
        elif settles and not _final(tables, queue, group, send.value):
            last = seen[-1].index
            sent_idx = min(last, tables.started[seen[-1].process])
            severity = Severity.QUALITY if sent_idx < destroyed else Severity.SAFETY
            rows.append(
                Anomaly(
                    checker=CHECKER,
                    anomaly="F6",
                    severity=severity,
                    queue=queue,
                    group=group,
                    value=send.value,
                    index=last,
                    detail="delivered, never settled, not redelivered",
                )
            )
    if missing:
        bounds = _read_bounds(tables, queue, group, dead)
        is_set_back = _set_back(tables, contract, scope, destroyed) if since < destroyed else _never
        for send in missing:
            severity = Severity.SAFETY
            if excused or send.asked_idx < destroyed or is_set_back(send):
                severity = Severity.QUALITY
            rows.append(
                Anomaly(
                    checker=CHECKER,
                    anomaly="A1",
                    severity=severity,
                    queue=queue,
                    group=group,
                    value=send.value,
                    index=send.cpl_idx,
                    detail=_place(send, bounds),
                )
            )
    return rows


def _set_back(tables: Tables, contract: Contract, scope: Scope, destroyed: int) -> Callable[[Send], bool]:
    """Whether a message may be missing because of what the last destruction took of the group or session itself."""
    queue, group = scope
    began_anew = next((answered for asked, answered in tables.subscribed_ok.get(scope, ()) if asked > destroyed), -1)
    if not queue.startswith(MQTT_PREFIX):
        return lambda send: send.inv_idx < began_anew
    newest = newest_got(tables, scope)
    back_idx = max(each.over_idx for each in destruction_by(tables, contract))
    none = END_IDX
    return lambda send: newest < send.cpl_idx or tables.ignored.get((queue, group, send.value), none) < back_idx


def newest_got(tables: Tables, scope: Scope, *, of_wills: bool = False) -> int:
    """Where the newest message, or will, of its queue was sent that a group got; -1: it got none.

    A session subscribes to wills by themselves, so it may have the one subscription without the other.
    """
    values = (value for queue, group, value in tables.main if (queue, group) == scope)
    got = (tables.sends.get(value) for value in values if (value in tables.wills) is of_wills)
    newest = max((send.inv_idx for send in got if send is not None and send.queue == scope[0]), default=-1)
    return newest if of_wills else max(newest, tables.forgotten.newest.get(scope, -1))


def _never(send: Send) -> bool:
    return False


def _final(tables: Tables, queue: str, group: str, value: str) -> bool:
    for row in tables.settlements.get((queue, group, value), ()):  # nearly always one, which is no work for a generator
        if row.kind is not OpKind.NACK and (
            row.status is not OpType.FAIL or active(tables, REFUSING, row.inv_idx, row.cpl_idx)
        ):
            return True
    return False


def _read_bounds(tables: Tables, queue: str, group: str, dead: set[str]) -> dict[str, tuple[int, int]]:
    """Least and greatest sequence number seen, by producer."""
    bounds = dict(tables.forgotten.bounds.get((queue, group), {}))
    for producer, (least, most) in tables.forgotten.bounds.get((queue, ""), {}).items():
        low, high = bounds.get(producer, (least, most))
        bounds[producer] = (min(low, least), max(high, most))
    for send in tables.sends.values():
        if send.queue == queue and (send.value in dead or (queue, group, send.value) in tables.main):
            low, high = bounds.get(send.producer, (send.seq, send.seq))
            bounds[send.producer] = (min(low, send.seq), max(high, send.seq))
    return bounds


def _place(send: Send, bounds: dict[str, tuple[int, int]]) -> str:
    if send.producer not in bounds:
        return "all"
    low, high = bounds[send.producer]
    if send.seq < low:
        return "prefix"
    return "postfix" if send.seq > high else "middle"
