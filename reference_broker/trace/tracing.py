"""Spans of sampled messages: which are traced, where they are now, and what became of each.

Pure: the engine tells what happens with the time; random numbers come from what it is given. A message that is traced
is noted where it lies (its partition's ``traced``, by offset), so that the way of all others is as it is without
tracing. What is noted is in memory alone: a broker that starts anew traces no further what lies in its logs.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from math import inf, log, log1p
from typing import Final, Protocol

from assay.reference_broker.trace.context import TraceContext
from assay.reference_broker.trace.ring import SCHEDULED, Step, Trace, TraceRing
from assay.reference_broker.trace.schema import TraceKind

_LAST: Final = frozenset({TraceKind.ACKED, TraceKind.DEAD_LETTERED, TraceKind.DISCARDED})
"""After it a group has no more to do with a message."""
_ENDS: Final = _LAST | {TraceKind.NACKED, TraceKind.REJECTED, TraceKind.TIMED_OUT}
"""What ends a delivery, whose child it is."""


class Sink(Protocol):
    """Where spans go beside memory."""

    exported: int
    """Spans that are written or sent."""
    lost: int

    def put(self, step: Step) -> None:
        """Take a span, or count it as lost; never blocks."""


class Traced:
    """A message that is traced, in one place: a partition of a queue, or among the delayed."""

    __slots__ = (
        "client_id",
        "deliveries",
        "delivery",
        "ids",
        "node",
        "offset",
        "partition",
        "place",
        "queue",
        "root_id",
        "settled",
        "since",
        "spans",
        "state",
        "step",
        "topic",
        "trace",
    )

    def __init__(
        self, node: str, trace: Trace, ids: int, root_id: int, state: str, queue: str, topic: str, client_id: str
    ) -> None:
        self.node = node
        self.trace = trace
        self.ids = ids
        self.root_id = root_id
        """The span whose children all that happens are."""
        self.state = state
        self.queue = queue
        self.topic = topic
        self.client_id = client_id
        self.partition = self.offset = -1
        self.step = TraceKind.PUBLISHED
        """What brought it to its place."""
        self.spans = 0
        """Those over the limit included."""
        self.settled = 0
        """Groups that are done with it."""
        self.since = 0.0
        """Since when groups may have it."""
        self.deliveries: dict[str, tuple[int, float]] = {}
        """By group, the span of its latest delivery and when that was, or since when it waits for another."""
        self.delivery: tuple[int, str, str, int, float] | None = None
        """The one that is being made: span, group, consumer, number, and when."""
        self.place: dict[int, Traced] | None = None
        """Where it is noted."""


class Tracing:
    """All that a broker traces."""

    def __init__(
        self, node: str, rng: random.Random, *, ratio: float, max_traces: int, max_spans: int, max_messages: int
    ) -> None:
        """``ratio``: of the messages whose publishers say nothing; see :class:`TracingConfig` for the bounds."""
        self._node = node
        self._rng = rng
        self._draws = random.Random(rng.getrandbits(64))
        """Who is traced; ids are drawn apart, so that it does not matter how messages come."""
        self._ratio = ratio
        self._per_log = 1.0 / log1p(-ratio) if 0.0 < ratio < 1.0 else 0.0
        self._max_spans = max_spans
        self._max_messages = max_messages
        self._skip = self._draw()
        """Messages until the next one that is traced."""
        self._noted: OrderedDict[Traced, None] = OrderedDict()
        self._seq = 0
        self.ring = TraceRing(max_traces, max_spans)
        self.sinks: list[Sink] = []
        self.carried: Traced | None = None
        """What is being published goes on with this one's trace."""
        self.forgotten = 0
        """Messages that made room for others: nothing further is traced of them."""

    def __len__(self) -> int:
        """Messages that are noted."""
        return len(self._noted)

    def _draw(self) -> float:
        if 0.0 < self._ratio < 1.0:
            return float(int(log(1.0 - self._draws.random()) * self._per_log))
        return 0.0 if self._ratio else inf

    def wants(self) -> bool:
        """Whether a message that says nothing of a trace is to be traced; to be asked once of each."""
        self._skip -= 1
        if self._skip >= 0:
            return False
        self._skip = self._draw()
        return True

    def wanted_of(self, count: int) -> list[int]:
        """As :meth:`wants`, of so many: the positions of those that are to be traced."""
        found: list[int] = []
        at = self._skip
        while at < count:
            found.append(int(at))
            at += 1 + self._draw()
        self._skip = at - count
        return found

    def _ids(self) -> int:
        """Of the spans of a message: this one, and those that follow."""
        return 1 + self._rng.getrandbits(63)

    def begin(self, context: TraceContext | None, queue: str, topic: str, client_id: str, now: float) -> Traced:
        """A message that was published is traced; ``context`` None: nobody has traced it before."""
        if context is None:
            trace_id, parent_id, state = self._rng.getrandbits(128) or 1, 0, ""
        else:
            trace_id, parent_id, state = int(context.trace_id, 16), int(context.span_id, 16), context.state
        ids = self._ids()
        traced = Traced(self._node, self.ring.open(trace_id), ids, ids, state, queue, topic, client_id)
        traced.since = now
        self._emit(TraceKind.PUBLISHED, traced, now, now, parent_id)
        return traced

    def go_on(self, traced: Traced, queue: str, topic: str, now: float) -> Traced:
        """A message goes to another place: its time has come, or it becomes a dead letter."""
        if traced.step is TraceKind.DELAYED:
            self._emit(TraceKind.DELAYED, traced, now, traced.since, traced.root_id, detail="due")
            self.forget(traced)
        told = traced.root_id, traced.state, queue, topic, traced.client_id
        more = Traced(self._node, traced.trace, self._ids(), *told)
        more.spans, more.since = traced.spans, now
        return more

    def written(
        self, traced: Traced, kind: TraceKind, place: dict[int, Traced], partition: int, offset: int, now: float
    ) -> None:
        """It has an offset: the log of a partition has it, or that of the delayed (``kind`` DELAYED)."""
        traced.step, traced.offset, traced.place = kind, offset, place
        detail = SCHEDULED
        if kind is not TraceKind.DELAYED:
            traced.partition, detail = partition, ""
        place[offset] = traced
        self._noted[traced] = None
        self._emit(kind, traced, now, traced.since, traced.root_id, detail=detail)
        traced.since = now
        if len(self._noted) > self._max_messages:
            self.forget(next(iter(self._noted)))
            self.forgotten += 1

    def confirmed(self, traced: Traced, now: float, problem: str | None) -> None:
        """Its publisher is told so, after the sync where the queue promises one; or why not."""
        if problem is None:
            self._emit(TraceKind.CONFIRMED, traced, now, traced.since, traced.root_id)
            traced.since = now
        else:
            self._emit(TraceKind.DISCARDED, traced, now, traced.since, traced.root_id, detail=problem)
            self.forget(traced)

    def delivering(self, traced: Traced, group: str, consumer: str, count: int, now: float) -> str:
        """A delivery is about to be made, unless the consumer refuses it; returns what that is told of its span."""
        span_id = traced.ids + traced.spans
        traced.delivery = span_id, group, consumer, count, now
        return f"00-{traced.trace.trace_id:032x}-{span_id:016x}-01"

    def _delivered(self, traced: Traced, delivery: tuple[int, str, str, int, float]) -> None:
        """It was made, perhaps settled within the call."""
        span_id, group, consumer, count, now = delivery
        traced.delivery = None
        _, since = traced.deliveries.get(group) or (0, traced.since)
        traced.deliveries[group] = span_id, now
        self._emit(TraceKind.DELIVERED, traced, now, since, traced.root_id, group, consumer, count)

    def happened(
        self, kind: TraceKind, traced: Traced, now: float, group: str, consumer: str, count: int, detail: str
    ) -> None:
        """Something became of it in a group."""
        if traced.delivery is not None:
            self._delivered(traced, traced.delivery)
        if kind is TraceKind.DELIVERED:
            return
        parent, since = traced.deliveries.get(group) or (traced.root_id, now if group else traced.since)
        if kind is TraceKind.RETRY_SCHEDULED:
            since = now
        if kind in _ENDS or kind is TraceKind.RETRY_SCHEDULED:
            # From now on it waits, for its next delivery or for the dead letters to have it.
            traced.deliveries[group] = parent, now
        self._emit(kind, traced, now, since, parent, group, consumer, count, detail)
        traced.settled += kind in _LAST

    def forget(self, traced: Traced) -> None:
        """Nothing further is traced of it."""
        self._noted.pop(traced, None)
        if traced.place is not None:
            traced.place.pop(traced.offset, None)

    def _emit(
        self,
        kind: TraceKind,
        traced: Traced,
        now: float,
        since: float,
        parent_id: int,
        group: str = "",
        consumer: str = "",
        count: int = 0,
        detail: str = "",
    ) -> None:
        number = traced.spans
        traced.spans = number + 1
        if number >= self._max_spans:
            self.ring.left_out += 1
            return
        step = self._seq, kind, traced, number, parent_id, now, since, group, consumer, count, detail
        self._seq += 1
        self.ring.add(traced.trace, step)
        for sink in self.sinks:
            sink.put(step)
