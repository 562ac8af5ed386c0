"""The latest traces, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Protocol

from assay.reference_broker.trace.schema import TraceEvent, TraceKind


class TraceStatus(StrEnum):
    """How the messages of a trace stand; the worst first."""

    FAILED = "failed"
    """A group gave one up: it is a dead letter, or gone."""
    EXPIRED = "expired"
    RETRYING = "retrying"
    IN_PROGRESS = "in_progress"
    DELAYED = "delayed"
    COMPLETED = "completed"


MAX_TEXT: Final = 256
"""Characters of a name in a span; longer ones are cut."""
SCHEDULED: Final = "scheduled"
"""Detail of a message that waits for its time."""
CANCELLED: Final = "cancelled"
"""Likewise, of one that was taken back before it."""
EXPIRED: Final = "expired"
"""What the detail of a message begins with that expired."""
_OF_KIND: Final = {
    TraceKind.REJECTED: TraceStatus.FAILED,
    TraceKind.DEAD_LETTERED: TraceStatus.FAILED,
    TraceKind.DISCARDED: TraceStatus.FAILED,
    TraceKind.NACKED: TraceStatus.RETRYING,
    TraceKind.TIMED_OUT: TraceStatus.RETRYING,
    TraceKind.RETRY_SCHEDULED: TraceStatus.RETRYING,
    TraceKind.DELAYED: TraceStatus.DELAYED,
    TraceKind.ACKED: TraceStatus.COMPLETED,
}
_ORDER: Final = list(TraceStatus)


class TracedMessage(Protocol):
    """What all spans of a message have."""

    node: str
    trace: Trace
    ids: int
    """Of its first span; the others have the numbers that follow."""
    state: str
    queue: str
    topic: str
    client_id: str
    partition: int
    """Below 0: it has no place in a queue, or none yet."""
    offset: int


Step = tuple[int, TraceKind, TracedMessage, int, int, float, float, str, str, int, str]
"""A span as it is kept: what it is told of is made of it when somebody asks, by :func:`span_of`. Sequence number, kind,
message, number among those of the message, parent (0 = none), when it ended and since when it was, group, consumer,
number of the delivery, and detail."""


def span_of(step: Step) -> TraceEvent:
    """A span as it is told."""
    seq, kind, message, number, parent_id, time, since, group, consumer, count, detail = step
    partition = -1 if kind is TraceKind.PUBLISHED else message.partition
    placed = partition >= 0
    return TraceEvent(
        seq=seq,
        time_ns=int(time * 1e9),
        node=message.node,
        kind=kind,
        client_id=consumer[:MAX_TEXT] or message.client_id[:MAX_TEXT],
        topic=message.topic[:MAX_TEXT],
        queue=message.queue[:MAX_TEXT],
        partition=partition,
        offset=message.offset if placed else -1,
        message_id=f"{message.queue[:MAX_TEXT]}:{partition}:{message.offset}" if placed else "",
        group=group[:MAX_TEXT],
        delivery_count=count,
        detail=detail[:MAX_TEXT],
        trace_id=f"{message.trace.trace_id:032x}",
        span_id=f"{message.ids + number:016x}",
        parent_id=f"{parent_id:016x}" if parent_id else "",
        trace_state=message.state,
        duration_ns=max(0, int((time - since) * 1e9)),
    )


class Trace:
    """The spans of one trace, in the order in which they ended."""

    __slots__ = ("is_forgotten", "left_out", "steps", "trace_id")

    def __init__(self, trace_id: int) -> None:
        self.trace_id = trace_id
        self.steps: list[Step] = []
        self.left_out = 0
        """Spans over the limit."""
        self.is_forgotten = False

    @property
    def spans(self) -> list[TraceEvent]:
        return list(map(span_of, self.steps))

    @property
    def status(self) -> TraceStatus:
        """The worst of what came of its messages, group by group."""
        spans = [span for span in self.spans if span.kind is not TraceKind.CONFIRMED]
        latest = {(span.message_id, span.group): span for span in spans}
        in_groups = {message_id for message_id, group in latest if group}
        found = [
            _status_of(span)
            for (message_id, group), span in latest.items()
            if group or (message_id not in in_groups and (message_id or span.detail in (SCHEDULED, CANCELLED)))
        ]
        return min(found, key=_ORDER.index, default=TraceStatus.IN_PROGRESS)


def _status_of(span: TraceEvent) -> TraceStatus:
    if span.kind is TraceKind.DISCARDED and span.detail.startswith(EXPIRED):
        return TraceStatus.EXPIRED
    if span.kind is TraceKind.DISCARDED and span.detail == CANCELLED:
        return TraceStatus.COMPLETED
    return _OF_KIND.get(span.kind, TraceStatus.IN_PROGRESS)


class TraceRing:
    """Holds the traces that began last."""

    def __init__(self, max_traces: int, max_spans: int) -> None:
        self._max_traces = max_traces
        self._max_spans = max_spans
        self._traces: dict[int, Trace] = {}
        self._order: deque[Trace] = deque()
        """As they began: of a dict, the first one is ever harder to find the more have left."""
        self.spans = 0
        """Spans that it was given."""
        self.forgotten = 0
        """Traces that made room for others."""
        self.left_out = 0
        """Spans over the limit of their trace, or of traces that are forgotten."""

    def __len__(self) -> int:
        return len(self._traces)

    def open(self, trace_id: int) -> Trace:
        """The trace of that id, which begins unless it is there."""
        trace = self._traces.get(trace_id)
        if trace is None:
            trace = self._traces[trace_id] = Trace(trace_id)
            self._order.append(trace)
            if len(self._order) > self._max_traces:
                oldest = self._order.popleft()
                del self._traces[oldest.trace_id]
                oldest.is_forgotten = True
                oldest.steps.clear()  # each of them holds its trace
                self.forgotten += 1
        return trace

    def add(self, trace: Trace, step: Step) -> None:
        """Keep a span."""
        self.spans += 1
        if trace.is_forgotten or len(trace.steps) >= self._max_spans:
            trace.left_out += 1
            self.left_out += 1
        else:
            trace.steps.append(step)

    def get(self, trace_id: str) -> Trace | None:
        """By its 32 hexadecimal digits."""
        try:
            return self._traces.get(int(trace_id, 16))
        except ValueError:
            return None

    def latest(self) -> Iterable[Trace]:
        """All of them, the one that began last first."""
        return reversed(list(self._order))
