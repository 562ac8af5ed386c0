"""The flat tables that every checker reads, derived once from a history.

A history is a sequence of events; the checkers think in five relations. ``index`` is the total order (written ``idx``
below), ``time_ns`` only measures.

``sends``
    One row per distinct ``value`` that occurs in a PUBLISH or WILL event of type ``invoke``. A will is ``info``.
    ``queue, key, producer, seq, inv_idx, inv_ns`` come from the first invocation; ``invocations`` counts them (more
    than one means that the publisher retried). ``status`` is ``ok`` if any completion is ``ok``; else ``info`` if any
    is ``info`` or any invocation has no completion; else ``fail``. ``cpl_idx, cpl_ns`` come from the first ``ok``
    completion, ``asked_idx`` from the invocation of that, or are -1. A send that a CANCEL was invoked for, which was
    not refused (or by a disk that refused everything: it may be done later), is ``info`` instead of ``ok``: it may be
    there or not; ``taken_back`` is the ``idx`` of the first CANCEL ``ok``, or -1.
``deliveries``
    The DELIVER events of type ``ok``, in order of ``idx``. A delivery is *dead-lettered* when its queue begins with
    ``$dlq/``; the rest of that name is its source queue. All others are *main* deliveries.
``settlements``
    One row per ACK, NACK or REJECT event of type ``invoke``: ``kind, process, queue, group, value, inv_idx, inv_ns``
    and, from the completion whose ``op`` equals the invocation's ``index``, ``status`` (``ok``, ``fail``, ``info``; a
    missing completion is ``info``) and ``cpl_idx, cpl_ns`` (-1 without one).
``session_ends``
    The SESSION_END events: ``process, idx, time_ns``.
``faults``
    One row per FAULT ``invoke``: ``kind`` is the first word of ``detail``, ``from_idx, from_ns``; ``to_idx, to_ns``
    from the completion (``op`` = the invocation's index, or failing that the next FAULT event of the same ``detail``
    that is not an ``invoke``), or ``END_IDX``/``END_NS`` when there is none.

``commits``
    One row per transaction that a COMMIT was invoked for: ``inv_idx`` and ``status``.
``sessions``
    Per MQTT session (CONNECT events with a ``group``) its connections in order, from CONNECT and SESSION_END.
``things``
    Per queue and ``key`` of AMQP's exchanges and queues the DECLAREs, DELETEs and LOOKs, in order of invocation.
``wills``, ``reads``
    One row per WILL, and per READ ``ok``, with their invocations.

Besides: ``subscribed[queue, group]`` is the ``idx`` of the group's first SUBSCRIBE ``ok``; ``latest[queue, group]``
that of its first SUBSCRIBE of any type, where that asks to begin at the latest message, ``latest_ok[queue, group]``
``op`` and ``idx`` of all ``ok`` of such; ``drains[queue, group]`` the last DRAIN event (of any type but ``invoke``) of
that scope; ``started[process]`` the ``idx`` of its first event; ``ignored[queue, group, value]`` the ``op`` of the last
such IGNORE. A scope whose own DRAIN is ``fail`` has *ended*: nothing is owed to it. Queues that begin with ``$mqtt/``
are topic spaces of plain MQTT, whose groups are sessions and shares.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import msgspec

from assay.reference_broker.trace.fault_classes import CRASHING, CUTTING, DELAYING, REFUSING, STICKING
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

replace = msgspec.structs.replace
DLQ_PREFIX = "$dlq/"
MQTT_PREFIX = "$mqtt/"
RETAINED_PREFIX = "$retained/"
SHARE_PREFIX = "$share/"
REMOVES = "removes"
"""``reason`` of a retained publish that removes what is there."""
UNBOUND = "unbound"
"""``reason`` of an UNSUBSCRIBE that removed a binding of AMQP."""
STEPS = frozenset({OpKind.DECLARE, OpKind.DELETE, OpKind.LOOK})
SETTLING = frozenset({OpKind.ACK, OpKind.NACK, OpKind.REJECT})
END_IDX = 2**62
END_NS = 2**62
HOLDING_UP = CUTTING | DELAYING
HELD_UP_NS = 500_000_000
"""So long after the network is well again, what it held up may still be coming."""


class Send(msgspec.Struct, kw_only=True, gc=False):
    """A row of ``sends``."""

    value: str
    queue: str
    key: str
    producer: str
    seq: int
    inv_idx: int
    inv_ns: int
    invocations: int = 1
    pending: int = 1
    status: OpType = OpType.INFO
    cpl_idx: int = -1
    cpl_ns: int = -1
    asked_idx: int = -1
    """The invocation that it completes."""
    taken_back: int = -1
    removes: bool = False
    txn: str = ""
    qos: int = -1
    delay_ns: int = -1
    lane: int = -1


class Settlement(msgspec.Struct, kw_only=True, gc=False):
    """A row of ``settlements``."""

    kind: OpKind
    process: str
    queue: str
    group: str
    value: str
    inv_idx: int
    inv_ns: int
    txn: str = ""
    status: OpType = OpType.INFO
    cpl_idx: int = -1
    cpl_ns: int = -1


class FaultSpan(msgspec.Struct, kw_only=True, gc=False):
    """A row of ``faults``; one of a STICKING kind lasts until the broker was started again."""

    kind: str
    detail: str
    from_idx: int
    from_ns: int
    to_idx: int = END_IDX
    to_ns: int = END_NS

    def overlaps(self, from_idx: int, to_idx: int) -> bool:
        """Whether the fault was active at some moment of the open interval ``(from_idx, to_idx)``."""
        return self.from_idx < to_idx and self.to_idx > from_idx


class Commit(msgspec.Struct, kw_only=True, gc=False):
    """A row of ``commits``."""

    inv_idx: int
    status: OpType = OpType.INFO


class Step(msgspec.Struct, kw_only=True, gc=False):
    """A row of ``things``: a DECLARE, DELETE or LOOK."""

    kind: OpKind
    inv_idx: int
    status: OpType = OpType.INFO
    cpl_idx: int = END_IDX


class Link(msgspec.Struct, kw_only=True, gc=False):
    """One connection of an MQTT session."""

    process: str
    expiry_ns: int
    """Of the session; -1: for ever."""
    inv_idx: int
    inv_ns: int
    old: bool = False
    """MQTT 3.1.1."""
    status: OpType = OpType.INFO
    present: bool = False
    """The broker resumed a session."""
    ok_idx: int = -1
    ok_ns: int = -1
    end_idx: int = END_IDX
    end_ns: int = END_NS
    alive_ns: int = END_NS
    """Last sign of life from the broker."""


class Will(msgspec.Struct, kw_only=True, gc=False):
    """A row of ``wills``."""

    send: Send
    session: str
    process: str
    status: OpType = OpType.INFO
    """``ok``: due; ``fail``: withdrawn by DISCONNECT."""
    end_idx: int = END_IDX
    end_ns: int = END_NS


class Read(msgspec.Struct, kw_only=True, gc=False):
    """A row of ``reads``: what was retained on a topic when somebody subscribed."""

    topic: str
    value: str
    """Empty: nothing."""
    inv_idx: int
    idx: int


Scope = tuple[str, str]
"""(queue, group)."""
Subject = tuple[str, str, str]
"""(queue, group, value): one message as one group sees it."""


class Forgotten:
    """What tables no longer hold, because nothing was wrong with it: its counts, and the bounds of what was read."""

    def __init__(self) -> None:
        self.sends = self.deliveries = self.subjects = self.dead = 0
        self.settled: Counter[OpKind] = Counter()
        """Settlements that were confirmed."""
        self.bounds: dict[Scope, dict[str, tuple[int, int]]] = {}
        """By group, or "" for dead letters, and by producer: least and greatest sequence number."""
        self.newest: dict[Scope, int] = {}
        """Where the publish begins that was the last to begin, of those that the group got."""

    def count_straight(self, sent: HistoryEvent, groups: Collection[str]) -> None:
        """One value that each of these groups got once and acknowledged."""
        number = len(groups)
        self.sends += 1
        self.deliveries += number
        self.subjects += number
        if not sent.queue.startswith(MQTT_PREFIX):
            self.settled[OpKind.ACK] += number
        for group in groups:
            self._read(sent, group)

    def _read(self, sent: HistoryEvent, group: str) -> None:
        scope, seq = (sent.queue, group), sent.seq
        if sent.index > self.newest.get(scope, -1):
            self.newest[scope] = sent.index
        read = self.bounds.get(scope)
        if read is None:
            read = self.bounds[scope] = {}
        low, high = read.get(sent.producer, (seq, seq))
        if seq > high or seq < low or low == high:
            read[sent.producer] = (min(low, seq), max(high, seq))

    def count(self, events: list[HistoryEvent], times: int = 1) -> None:
        """All that was told of one value, whose publish comes first; ``times``: -1 to take it back."""
        sent, ok, deliver = events[0], OpType.OK, OpKind.DELIVER
        groups = set()
        self.sends += times
        for event in events:
            if event.type is not ok:
                continue
            if event.f is deliver:
                is_dead = event.queue != sent.queue
                if is_dead:
                    self.dead += times
                else:
                    self.deliveries += times
                    groups.add(event.group)
                self._read(sent, "" if is_dead else event.group)
            elif event.f in SETTLING:
                self.settled[event.f] += times
        self.subjects += times * len(groups)


class Tables:
    """The relations of one history, with the few groupings that several checkers share."""

    def __init__(self) -> None:
        self.sends: dict[str, Send] = {}
        self.deliveries: list[HistoryEvent] = []
        self.dead: list[HistoryEvent] = []
        self.main: dict[Subject, list[HistoryEvent]] = {}
        """Main deliveries of each subject, in order."""
        self.repeated: dict[Subject, None] = {}
        """Subjects of queues with more than one main delivery, as an ordered set."""
        self.repeated_mqtt: dict[Subject, None] = {}
        """The same for plain MQTT."""
        self.settlements: dict[Subject, list[Settlement]] = {}
        self.refused: dict[Subject, None] = {}
        """Subjects with a NACK or REJECT, as an ordered set."""
        self.session_ends: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """``(idx, time_ns)`` per process, in order."""
        self.faults: list[FaultSpan] = []
        self.subscribed: dict[Scope, int] = {}
        self.drains: dict[Scope, HistoryEvent] = {}
        self.started: dict[str, int] = {}
        self.latest: dict[Scope, int] = {}
        self.subscribed_ok: dict[Scope, list[tuple[int, int]]] = {}
        """Invocation and answer of each SUBSCRIBE, in order."""
        self.ignored: dict[Subject, int] = {}
        """Messages whose packet identifier their client had in use, and where it got the one that has it."""
        self.commits: dict[str, Commit] = {}
        self.sessions: dict[str, list[Link]] = {}
        self.links: dict[str, Link] = {}
        """The connection of each process of a session."""
        self.things: dict[tuple[str, str], list[Step]] = {}
        self.unbound: dict[Scope, int] = {}
        """First UNSUBSCRIBE ok that removed a binding."""
        self.wills: dict[str, Will] = {}
        self.reads: list[Read] = []
        self.events = 0
        self.forgotten = Forgotten()
        self.derived: dict[object, object] = {}
        """What checkers share, by what it was derived from."""
        self._scopes: list[Scope] | None = None

    def scopes(self) -> list[Scope]:
        """Every (main queue, group) that subscribed, received or was drained, sorted; fixed once asked for."""
        if self._scopes is None:
            seen = {scope for scope in (*self.subscribed, *self.drains) if scope[1]}
            seen.update((queue, group) for queue, group, _ in self.main)
            seen.update(scope for scope in self.forgotten.bounds if scope[1])
            self._scopes = sorted(scope for scope in seen if not scope[0].startswith(DLQ_PREFIX))
        return self._scopes

    def drained(self, queue: str, group: str) -> bool:
        """Whether the final read of this group emptied the queue.

        The most specific DRAIN decides: of (queue, group), of (queue, any group), of everything.
        """
        for scope in ((queue, group), (queue, ""), ("", "")):
            drain = self.drains.get(scope)
            if drain is not None:
                return drain.type is OpType.OK
        return False

    def ended(self, queue: str, group: str) -> bool:
        """Whether the group or session came to its end before the final read."""
        drain = self.drains.get((queue, group))
        return drain is not None and drain.type is OpType.FAIL

    def dead_letters_drained(self, queue: str) -> bool:
        """Whether the dead-letter queue of ``queue`` was read until empty, by whichever group read it."""
        name = DLQ_PREFIX + queue
        own = [drain for scope, drain in self.drains.items() if scope[0] == name]
        if not own:
            own = [drain for scope, drain in self.drains.items() if scope == ("", "")]
        return bool(own) and all(drain.type is OpType.OK for drain in own)

    def dead_values(self, queue: str) -> set[str]:
        """Values seen in the dead-letter queue of ``queue``."""
        name = DLQ_PREFIX + queue
        return {event.value for event in self.dead if event.queue == name}


class Builder:
    """Derives the relations event by event."""

    def __init__(self) -> None:
        self.tables = Tables()
        self._open_sends: dict[int, Send] = {}
        self._open_settlements: dict[int, Settlement] = {}
        self._open_faults: dict[int, FaultSpan] = {}
        self._open_commits: dict[int, Commit] = {}
        self._open_links: dict[int, Link] = {}
        self._open_reads: dict[int, int] = {}
        self._open_steps: dict[int, Step] = {}
        self._cancels: dict[int, HistoryEvent] = {}
        """Completions of CANCELs, or where there is none their invocations, by the index of the invocation."""

    def publish(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            send = self.tables.sends.get(event.value)
            if send is None:
                send = self.tables.sends[event.value] = Send(
                    value=event.value,
                    queue=event.queue,
                    key=event.key,
                    producer=event.producer,
                    seq=event.seq,
                    inv_idx=event.index,
                    inv_ns=event.time_ns,
                    removes=event.reason == REMOVES,
                    txn=event.txn,
                    qos=event.qos,
                    delay_ns=event.delay_ns,
                    lane=event.lane,
                )
            else:
                send.invocations += 1
                send.pending += 1
                if send.status is OpType.FAIL:
                    send.status = OpType.INFO
            self._open_sends[event.index] = send
            return
        opened = self._open_sends.pop(event.op, None)
        if opened is None:
            return
        self._complete(opened, event)

    @staticmethod
    def _complete(send: Send, event: HistoryEvent) -> None:
        if event.type is OpType.OK:
            send.pending -= 1
            if send.status is not OpType.OK:
                send.status = OpType.OK
                send.cpl_idx = event.index
                send.cpl_ns = event.time_ns
                send.asked_idx = event.op
        elif event.type is OpType.FAIL:
            send.pending -= 1
            if send.pending == 0 and send.status is not OpType.OK:
                send.status = OpType.FAIL
        # An ``info`` completion leaves ``pending`` above zero for ever: the value may exist whatever comes later.

    def settle(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            row = Settlement(
                kind=event.f,
                process=event.process,
                queue=event.queue,
                group=event.group,
                value=event.value,
                inv_idx=event.index,
                inv_ns=event.time_ns,
                txn=event.txn,
            )
            self._open_settlements[event.index] = row
            subject = (event.queue, event.group, event.value)
            if row.kind is not OpKind.ACK:
                self.tables.refused[subject] = None
            rows = self.tables.settlements.get(subject)
            if rows is None:
                self.tables.settlements[subject] = [row]
            else:
                rows.append(row)
            return
        opened = self._open_settlements.pop(event.op, None)
        if opened is not None:
            opened.status = event.type
            opened.cpl_idx = event.index
            opened.cpl_ns = event.time_ns

    def deliver(self, event: HistoryEvent) -> None:
        if event.type is not OpType.OK:
            return
        tables = self.tables
        tables.deliveries.append(event)
        if event.queue.startswith(DLQ_PREFIX):
            tables.dead.append(event)
            return
        subject = (event.queue, event.group, event.value)
        seen = tables.main.get(subject)
        if seen is None:
            tables.main[subject] = [event]
        else:
            seen.append(event)
            (tables.repeated_mqtt if event.queue.startswith(MQTT_PREFIX) else tables.repeated)[subject] = None

    def fault(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            words = event.detail.split(maxsplit=1)
            span = FaultSpan(
                kind=words[0] if words else "",
                detail=event.detail,
                from_idx=event.index,
                from_ns=event.time_ns,
            )
            self._open_faults[event.index] = span
            self.tables.faults.append(span)
            return
        opened = self._open_faults.pop(event.op, None)
        if opened is None:
            same = [index for index, span in self._open_faults.items() if span.detail == event.detail]
            opened = self._open_faults.pop(same[0]) if same else None
        if opened is not None:
            opened.to_idx = event.index
            opened.to_ns = event.time_ns

    def other(self, event: HistoryEvent) -> None:
        tables = self.tables
        kind = event.f
        if kind is OpKind.SESSION_END:
            tables.session_ends[event.process].append((event.index, event.time_ns))
            link = tables.links.get(event.process)
            if link is not None:
                link.end_idx, link.end_ns = event.index, event.time_ns
                link.alive_ns = event.time_ns - max(0, event.delay_ns)
        elif kind is OpKind.FAULT:
            self.fault(event)
        elif kind is OpKind.DRAIN and event.type is not OpType.INVOKE:
            tables.drains[event.queue, event.group] = event
        elif kind is OpKind.SUBSCRIBE:
            scope = (event.queue, event.group)
            if event.type is OpType.OK:
                tables.subscribed.setdefault(scope, event.index)
                tables.subscribed_ok.setdefault(scope, []).append((event.op, event.index))
            elif event.type is OpType.INVOKE and event.reason == "latest":
                tables.latest.setdefault(scope, event.index)
        elif kind is OpKind.UNSUBSCRIBE:
            if event.type is OpType.OK and event.reason == UNBOUND:
                tables.unbound.setdefault((event.queue, event.group), event.index)
        elif kind in STEPS and event.key:
            self.step(event)
        elif kind is OpKind.CONNECT and event.group:
            self.connect(event)
        elif kind is OpKind.WILL:
            self.will(event)
        elif kind is OpKind.IGNORE:
            tables.ignored[event.queue, event.group, event.value] = event.op
        elif kind is OpKind.READ:
            self.read(event)
        elif kind is OpKind.COMMIT:
            self.commit(event)
        elif kind is OpKind.CANCEL:
            self.cancel(event)

    def connect(self, event: HistoryEvent) -> None:
        tables = self.tables
        if event.type is OpType.INVOKE:
            link = tables.links[event.process] = self._open_links[event.index] = Link(
                process=event.process,
                expiry_ns=event.delay_ns,
                inv_idx=event.index,
                inv_ns=event.time_ns,
                old=event.detail == "MQTT 3.1.1",
            )
            tables.sessions.setdefault(event.group, []).append(link)
            return
        opened = self._open_links.pop(event.op, None)
        if opened is None:
            return
        opened.status, opened.ok_idx, opened.ok_ns = event.type, event.index, event.time_ns
        opened.present = event.reason == "present"
        if event.type is not OpType.OK:
            opened.end_idx, opened.end_ns, opened.alive_ns = event.index, event.time_ns, opened.inv_ns

    def step(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            step = self._open_steps[event.index] = Step(kind=event.f, inv_idx=event.index)
            self.tables.things.setdefault((event.queue, event.key), []).append(step)
            return
        opened = self._open_steps.pop(event.op, None)
        if opened is not None:
            opened.status, opened.cpl_idx = event.type, event.index

    def will(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            self.publish(event)
            send = self.tables.sends[event.value]
            self.tables.wills[event.value] = Will(send=send, session=event.group, process=event.process)
            return
        will = self.tables.wills.get(event.value)
        if will is not None:
            will.status, will.end_idx, will.end_ns = event.type, event.index, event.time_ns

    def read(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            self._open_reads[event.index] = event.index
        elif event.type is OpType.OK and event.op in self._open_reads:
            row = Read(topic=event.group, value=event.value, inv_idx=event.op, idx=event.index)
            self.tables.reads.append(row)

    def commit(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            opened = self._open_commits[event.index] = Commit(inv_idx=event.index)
            self.tables.commits[event.txn] = opened
            return
        done = self._open_commits.pop(event.op, None)
        if done is not None:
            done.status = event.type

    def cancel(self, event: HistoryEvent) -> None:
        if event.type is OpType.INVOKE:
            self._cancels[event.index] = event
        elif event.op in self._cancels and self._cancels[event.op].type is OpType.INVOKE:
            self._cancels[event.op] = replace(event, value=self._cancels[event.op].value)

    def take(self, event: HistoryEvent) -> None:
        """The next event."""
        kind = event.f
        if kind is OpKind.PUBLISH:
            self.publish(event)
        elif kind is OpKind.DELIVER:
            self.deliver(event)
        elif kind is OpKind.ACK or kind is OpKind.NACK or kind is OpKind.REJECT:
            self.settle(event)
        else:
            self.other(event)

    def over(self, events: Iterable[HistoryEvent]) -> Tables:
        """Tables of some values, within what was taken so far that belongs to no value."""
        other, common = Builder(), self.tables
        tables = other.tables
        tables.session_ends, tables.faults, tables.started = common.session_ends, common.faults, common.started
        tables.subscribed, tables.latest, tables.drains = common.subscribed, common.latest, common.drains
        tables.subscribed_ok = common.subscribed_ok
        tables.sessions, tables.links, tables.commits = common.sessions, common.links, common.commits
        tables.unbound = common.unbound
        take = other.take
        for event in events:
            take(event)
        return tables

    def finish(self) -> None:
        """What holds only once everything was read."""
        faults = self.tables.faults
        for span in faults:
            if span.kind in STICKING:
                restarts = (each for each in faults if each.kind in CRASHING and each.to_idx > span.to_idx)
                first = min(restarts, key=lambda each: each.to_idx, default=None)
                span.to_idx, span.to_ns = (END_IDX, END_NS) if first is None else (first.to_idx, first.to_ns)
        for links in self.tables.sessions.values():
            for link in links:
                link.alive_ns = self._sent_ns(link)
        for asked, event in self._cancels.items():
            send = self.tables.sends.get(event.value)
            refused = event.type is OpType.FAIL and not any(
                span.kind in REFUSING and span.overlaps(asked, event.index) for span in self.tables.faults
            )
            if send is None or refused:
                continue
            if event.type is OpType.OK and (send.taken_back < 0 or event.index < send.taken_back):
                send.taken_back = event.index
            if send.status is OpType.OK:
                send.status = OpType.INFO

    def _sent_ns(self, link: Link) -> int:
        """When the broker's last sign of life was sent at the earliest: what the network held up came later."""
        if link.alive_ns == END_NS:
            return END_NS
        held_up = [
            max(link.inv_ns, span.from_ns)
            for span in self.tables.faults
            if span.kind in HOLDING_UP and span.from_ns <= link.alive_ns <= span.to_ns + HELD_UP_NS
        ]
        return min([link.alive_ns, *held_up])


def build_tables(events: Iterable[HistoryEvent]) -> Tables:
    """Derive the relations in one pass. Events must come in order of ``index``; raises :class:`ValueError` if not."""
    builder = Builder()
    tables = builder.tables
    started = tables.started
    publish, deliver, settle = builder.publish, builder.deliver, builder.settle  # named: most of the time goes there
    last = -1
    count = 0
    for event in events:
        if event.index <= last:
            message = f"history is out of order: event {event.index} follows event {last}"
            raise ValueError(message)
        last = event.index
        count += 1
        if event.process not in started:
            started[event.process] = last
        kind = event.f
        if kind is OpKind.PUBLISH:
            publish(event)
        elif kind is OpKind.DELIVER:
            deliver(event)
        elif kind is OpKind.ACK or kind is OpKind.NACK or kind is OpKind.REJECT:
            settle(event)
        else:
            builder.other(event)
    builder.finish()
    tables.events = count
    return tables
