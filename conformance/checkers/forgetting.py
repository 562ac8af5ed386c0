"""Judges a history in one pass that forgets what is settled, so that memory is bounded by what is open.

A *life* is what the history tells of one value. It has *ended* when its publish was confirmed, every group that was
subscribed by then has settled it for good (and where that was a rejection, the dead letter was read), and nothing of it
is under way. One that went the straight way, one delivery and one acknowledgement in each group, breaks no rule of any
checker, and is forgotten at once. The others wait until sessions that ended have been seen to end, and are judged by
the checkers themselves, many at a time; a life that one of them accuses is kept, the rest forgotten.

What is kept is judged at the end as ever. Three things tie values together, and are watched as they pass, by what is
bounded by streams and partitions: the order of a producer's values of a key (greatest numbers so far), offsets (runs of
those that were delivered), and bounds of what was read (for the place of a hole). Where one of them stirs suspicion, or
a forgotten value shows again, the values concerned are read once more from the history, whole. So the rows are those of
:func:`assay.conformance.checkers.tables.build_tables` over all events, whatever happens; only their cost differs.

Nothing is forgotten of priority lanes, nor of groups that never subscribed: their rules look at all values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

import msgspec

from assay.conformance.checkers.anomaly import Anomaly
from assay.conformance.checkers.duplicate import Position
from assay.conformance.checkers.excuses import with_its_clock
from assay.conformance.checkers.redeliveries import SESSION_END_GRACE_NS
from assay.conformance.checkers.tables import (
    DLQ_PREFIX,
    MQTT_PREFIX,
    SETTLING,
    SHARE_PREFIX,
    Builder,
    Forgotten,
    Scope,
    Tables,
    build_tables,
)
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpKind, OpType, OrderGuarantee

Check = Callable[[Tables, Contract], list[Anomaly]]
_TOGETHER = 1_000
"""Ended lives that are judged at a time."""
_RISES = 64
"""Of the greatest numbers of a stream so many are remembered with their time; before them the next one counts."""
_SENDING = frozenset({OpKind.PUBLISH, OpKind.WILL})
_index = attrgetter("index")


class _Life(msgspec.Struct, gc=False):
    """What the history has told of one value so far."""

    queue: str
    events: list[HistoryEvent]
    todo: set[str]
    """Groups that have not settled it."""
    counts: dict[str, int]
    """By group, the delivery count of its last delivery."""
    ends: bool
    """Whether it can end at all."""
    straight: bool
    needs_no_settlement: bool
    confirmed: bool = False
    open: int = 0
    """Settlements that were not answered, and dead letters that nobody has read."""
    position: Position | None = None

    @property
    def is_over(self) -> bool:
        return self.ends and self.confirmed and not self.todo and self.open == 0


class _Stream:
    """What a process must not fall behind: as :mod:`assay.conformance.checkers.order`, of more deliveries."""

    __slots__ = ("inherited", "own", "rises")

    def __init__(self) -> None:
        self.own: dict[str, int] = {}
        self.inherited: dict[str, int] = {}
        self.rises: deque[tuple[int, int]] = deque(maxlen=_RISES)

    def is_behind(self, process: str, started: int, idx: int, seq: int) -> bool:
        """Record a first delivery; whether it may be behind another."""
        own = self.own.get(process, -1)
        if own < 0:
            rises = self.rises
            place = bisect_right(rises, started, key=_first)
            # What is not remembered is less than what is.
            at = place - 1 if place or len(rises) < _RISES else 0
            self.inherited[process] = rises[at][1] if at >= 0 and rises else -1
        if not self.rises or seq > self.rises[-1][1]:
            self.rises.append((idx, seq))
        if seq > own:
            self.own[process] = seq
        return seq < own or seq < self.inherited[process]


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


class _Offsets:
    """Which offsets of a partition were delivered, as runs."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, offset: int) -> bool:
        """Whether it is new."""
        starts, ends = self.starts, self.ends
        if ends and offset == ends[-1]:
            ends[-1] += 1
            return True
        at = bisect_right(starts, offset) - 1
        if at >= 0 and offset < ends[at]:
            return False
        joins_left, joins_right = at >= 0 and ends[at] == offset, at + 1 < len(starts) and starts[at + 1] == offset + 1
        if joins_left and joins_right:
            ends[at] = ends.pop(at + 1)
            del starts[at + 1]
        elif joins_left:
            ends[at] += 1
        elif joins_right:
            starts[at + 1] = offset
        else:
            starts.insert(at + 1, offset)
            ends.insert(at + 1, offset + 1)
        return True


class Judge:
    """Takes a history event by event. ``checks`` are those whose rules look at one value at a time."""

    def __init__(self, contract: Contract, checks: Iterable[Check]) -> None:
        self._contract = contract
        self._checks = tuple(checks)
        self._may_reorder = contract.redelivery_may_reorder
        self._is_ordered = contract.order is OrderGuarantee.PER_PRODUCER_KEY
        self._common = Builder()
        """Of what belongs to no value."""
        self._told: list[HistoryEvent] = []
        """Its events."""
        self._live: dict[str, _Life] = {}
        self._ended: deque[tuple[int, str, _Life]] = deque()
        """Lives that did not go straight, with the time of their end."""
        self._last_seq: dict[str, int] = {}
        self._groups: dict[str, list[str]] = {}
        """By queue, those that have subscribed."""
        self._streams: dict[tuple[str, str, str, str, int], _Stream] = {}
        self._offsets: dict[tuple[str, int], _Offsets] = {}
        self._suspected: set[tuple[str, str]] = set()
        """(producer, key) whose order is in doubt."""
        self._doubled: set[tuple[str, int, int]] = set()
        """(queue, partition, offset) that may have two values."""
        self._again: set[str] = set()
        """Values that showed when nothing was known of them."""
        self._needs_all = False
        self._forgotten = Forgotten()
        self._last = -1

    # -- one pass ------------------------------------------------------------------------------------------------

    def take(self, events: Iterable[HistoryEvent]) -> None:
        """Read on. Raises :class:`ValueError` if they are not in order of ``index``."""
        live, started = self._live, self._common.tables.started
        ok, invoke, deliver, publish, ack = OpType.OK, OpType.INVOKE, OpKind.DELIVER, OpKind.PUBLISH, OpKind.ACK
        last, count = self._last, 0
        for event in events:
            index = event.index
            if index <= last:
                message = f"history is out of order: event {index} follows event {last}"
                raise ValueError(message)
            last = index
            count += 1
            if event.process not in started:
                started[event.process] = index
            value = event.value
            if not value:
                self._take_common(event)
                continue
            life = live.get(value)
            if life is None:
                life = self._begin(event)
            life.events.append(event)
            kind, type_ = event.f, event.type
            if kind is deliver:
                self._deliver(life, event)
            elif kind is publish:
                if type_ is ok:
                    life.confirmed = True
                elif type_ is not invoke or len(life.events) > 1:
                    life.ends = False  # refused, unknown, or sent again
            elif kind is ack or kind in SETTLING:
                if type_ is invoke:
                    life.open += 1
                    if kind is not ack or event.group not in life.todo:
                        life.straight = False
                    continue
                life.open -= 1
                if type_ is ok:
                    self._settled(life, event)
                else:
                    life.straight = False
            else:
                life.ends = False  # a will, what was retained, what was taken back
            if life.confirmed and not life.todo and life.is_over:
                self._end(value, life, event.time_ns)
        self._last = last
        self._common.tables.events += count

    def _take_common(self, event: HistoryEvent) -> None:
        self._told.append(event)
        self._common.take(event)
        groups = self._groups.setdefault(event.queue, [])
        if event.f is OpKind.DRAIN and event.type is OpType.FAIL and event.group in groups:
            groups.remove(event.group)  # it is owed nothing more
        elif event.f is not OpKind.SUBSCRIBE:
            pass
        elif event.type is OpType.OK and event.group not in groups:
            groups.append(event.group)
        elif event.type is OpType.INVOKE and event.group in groups:
            scope = (event.queue, event.group)
            self._needs_all |= self._common.tables.latest.get(scope) == event.index

    def _begin(self, event: HistoryEvent) -> _Life:
        """The first that is told of a value, or was since it was forgotten."""
        value, producer = event.value, event.producer
        is_new = (
            event.f in _SENDING
            and event.type is OpType.INVOKE
            and event.seq > self._last_seq.get(producer, -1)
            and value == f"{producer}-{event.seq}"
        )
        if is_new:
            self._last_seq[producer] = event.seq
            self._needs_all |= event.lane >= 0 and bool(self._contract.lane_shares)
        else:
            self._again.add(value)
        todo = set(self._groups.get(event.queue, ()))
        ends = is_new and bool(todo) and not event.txn
        is_mqtt = event.queue.startswith(MQTT_PREFIX)
        life = self._live[value] = _Life(event.queue, [], todo, {}, ends, event.delay_ns < 0, is_mqtt)
        return life

    def _deliver(self, life: _Life, event: HistoryEvent) -> None:
        queue, group, counts = event.queue, event.group, life.counts
        if queue != life.queue:
            life.straight = False
            if queue == DLQ_PREFIX + life.queue:
                life.open -= 1
            else:
                life.ends = False
            return
        is_first = group not in counts
        counts[group] = event.delivery_count or len(life.events)
        where = (event.partition, event.offset) if event.offset >= 0 else event.message_id or None
        if where is not None and where != life.position:
            life.straight &= life.position is None
            life.position = where
            if event.offset >= 0:
                self._take_offset(event)
        if not is_first or event.delivery_count > 1 or event.redelivered or group not in life.todo:
            life.straight = False
        if life.needs_no_settlement:
            life.todo.discard(group)
        if is_first and self._is_ordered:
            self._look_at_order(life.events[0], event)

    def _take_offset(self, event: HistoryEvent) -> None:
        place = (event.queue, event.partition)
        offsets = self._offsets.get(place)
        if offsets is None:
            offsets = self._offsets[place] = _Offsets()
        if not offsets.add(event.offset):
            self._doubled.add((*place, event.offset))

    def _look_at_order(self, sent: HistoryEvent, event: HistoryEvent) -> None:
        called_again = event.redelivered or event.delivery_count > 1
        if sent.delay_ns >= 0 or (called_again and self._may_reorder) or event.group.startswith(SHARE_PREFIX):
            return
        key = (event.queue, event.group, sent.producer, sent.key, sent.lane)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
        if stream.is_behind(event.process, self._common.tables.started[event.process], event.index, sent.seq):
            self._suspected.add((sent.producer, sent.key))

    def _settled(self, life: _Life, event: HistoryEvent) -> None:
        """A settlement was confirmed."""
        group, most = event.group, self._contract.max_deliveries
        if event.queue != life.queue:
            return
        if group not in life.counts:
            life.ends = False
        if event.f is not OpKind.ACK:
            is_exhausted = 0 < most <= life.counts.get(group, 0)
            if event.f is OpKind.NACK and not (is_exhausted and self._contract.dead_letters):
                return
            life.open += self._contract.dead_letters
        life.todo.discard(group)

    # -- forgetting ----------------------------------------------------------------------------------------------

    def _end(self, value: str, life: _Life, time_ns: int) -> None:
        if life.straight:
            del self._live[value]
            self._forgotten.count_straight(life.events[0], life.counts)
            return
        ended = self._ended
        ended.append((time_ns, value, life))
        if len(ended) >= 2 * _TOGETHER and ended[_TOGETHER][0] < time_ns - 2 * SESSION_END_GRACE_NS:
            self._judge_some()

    def _judge_some(self) -> None:
        lives: dict[str, _Life] = {}
        for _ in range(min(_TOGETHER, len(self._ended))):
            _, value, life = self._ended.popleft()
            if life.is_over and self._live.get(value) is life:  # it may have gone on, and then ends anew
                lives[value] = life
        tables = self._common.over(event for life in lives.values() for event in life.events)
        contract = with_its_clock(tables, self._contract)
        accused = {row.value for check in self._checks for row in check(tables, contract)}
        for value, life in lives.items():
            if value in accused:
                life.ends = False
            else:
                del self._live[value]
                self._forgotten.count(life.events)

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self, events: Iterable[HistoryEvent]) -> tuple[Tables, list[HistoryEvent]]:
        """Tables of what is not forgotten, and its events; ``events`` are all of them again, to be read if need be."""
        while self._ended:
            self._judge_some()
        common = self._common.tables
        common.forgotten = self._forgotten
        if self._needs_all or any(scope not in common.subscribed for scope in self._scopes()):
            kept = list(events)
            return build_tables(kept), kept
        told = [event for life in self._live.values() for event in life.events]
        again = self._again
        if self._suspected or self._doubled:
            again = again.union(event.value for event in events if self._is_concerned(event))
        if again:
            known = {event.index for event in told}
            before: dict[str, list[HistoryEvent]] = {}
            for event in events:
                if event.value in again and event.index not in known:
                    before.setdefault(event.value, []).append(event)
            for forgotten in before.values():
                self._forgotten.count(forgotten, -1)
                told += forgotten
        kept = sorted([*self._told, *told], key=_index)
        tables = build_tables(kept)
        tables.started, tables.events, tables.forgotten = common.started, common.events, self._forgotten
        return tables, kept

    def _scopes(self) -> Iterator[Scope]:
        """Those of deliveries and of drains that name a group, dead letters aside."""
        common = self._common.tables
        yield from (scope for scope in self._forgotten.bounds if scope[1])
        yield from (scope for scope in common.drains if scope[1] and not scope[0].startswith(DLQ_PREFIX))
        yield from ((life.queue, group) for life in self._live.values() for group in life.counts)

    def _is_concerned(self, event: HistoryEvent) -> bool:
        if event.f is OpKind.DELIVER:
            return (event.queue, event.partition, event.offset) in self._doubled
        return event.f is OpKind.PUBLISH and (event.producer, event.key) in self._suspected
