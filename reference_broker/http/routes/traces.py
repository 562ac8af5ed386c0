"""GoQueue's traces: the spans of messages that were sampled, as long as they are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from fastapi import Query

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.topics import topic_out
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Call, Limit
from assay.reference_broker.http.shapes import timestamp
from assay.reference_broker.queues.messages.durations import parse_time_ms
from assay.reference_broker.trace.ring import CANCELLED, SCHEDULED, Trace, TraceRing, TraceStatus
from assay.reference_broker.trace.schema import TraceEvent, TraceKind

AREA = Area("traces", "Traces of messages; also at /traces and /v1/traces.")
_EVENTS: Final = {
    TraceKind.PUBLISHED: "publish.received",
    TraceKind.ENQUEUED: "publish.persisted",
    TraceKind.CONFIRMED: "publish.confirmed",
    TraceKind.DELIVERED: "consume.fetched",
    TraceKind.ACKED: "consume.acked",
    TraceKind.NACKED: "consume.nacked",
    TraceKind.REJECTED: "consume.rejected",
    TraceKind.TIMED_OUT: "visibility.expired",
    TraceKind.RETRY_SCHEDULED: "retry.scheduled",
    TraceKind.DEAD_LETTERED: "dlq.routed",
    TraceKind.DISCARDED: "message.discarded",
}
"""GoQueue's names, and our own for what it has none for. A delay begins and ends: see :func:`_event_of`."""
_PORTION: Final = 200
"""Traces that are looked at between two chances for others to be served."""


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a message. It ended at ``timestamp``, and took ``duration_ms`` since the one it waited for."""

    span_id: str
    event_type: str
    timestamp: str
    """RFC 3339."""
    duration_ms: float
    topic: str
    parent_span_id: str = ""
    partition: int = -1
    offset: int = -1
    message_id: str = ""
    consumer_group: str = ""
    client_id: str = ""
    """Of the publisher; of what is of a delivery, the consumer's."""
    delivery_count: int = 0
    details: str = ""
    node: str = ""


class TraceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    trace_id: str
    """32 hexadecimal digits: W3C Trace Context."""
    topic: str
    """Where its first message was published, as the next two."""
    partition: int
    """Below 0: it has no place yet."""
    offset: int
    start_time: str
    end_time: str
    duration_ms: float
    status: TraceStatus
    spans: list[Span]
    spans_left_out: int
    """Over the limit of a trace."""


class TracesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The one that began last is the first."""

    traces: list[TraceAnswer]
    count: int


class TraceStats(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool
    traces: int = 0
    """In memory."""
    traces_forgotten: int = 0
    """They made room for others."""
    spans: int = 0
    """Recorded since the start."""
    spans_left_out: int = 0
    messages: int = 0
    """Traced messages that are in queues."""
    messages_forgotten: int = 0
    """Nothing further is traced of them."""
    spans_exported: int = 0
    """Written to the file, and sent to the collector."""
    spans_lost: int = 0
    """Neither, since there was no room or it failed."""


def _event_of(span: TraceEvent) -> str:
    if span.kind is TraceKind.DELAYED:
        return "delay.scheduled" if span.detail == SCHEDULED else "delay.fired"
    if span.kind is TraceKind.DISCARDED and span.detail == CANCELLED:
        return "delay.canceled"
    return _EVENTS.get(span.kind, span.kind.value)


class _Reader:
    """What one caller may see: spans of queues that it may read."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._reads: dict[str, bool] = {}

    def _may_read(self, queue: str) -> bool:
        known = self._reads.get(queue)
        if known is None:
            known = self._reads[queue] = self._caller.reads(queue)
        return known

    def spans(self, trace: Trace) -> list[TraceEvent]:
        return [span for span in trace.spans if self._may_read(span.queue)]

    def answer(self, trace: Trace, spans: list[TraceEvent]) -> TraceAnswer:
        """Of one with spans that the caller sees."""
        start = min(span.time_ns - span.duration_ns for span in spans)
        end = max(span.time_ns for span in spans)
        first = next((span for span in spans if span.partition >= 0), spans[0])
        return TraceAnswer(
            trace_id=f"{trace.trace_id:032x}",
            topic=self._topic(first.queue),
            partition=first.partition,
            offset=first.offset,
            start_time=timestamp(start / 1e9),
            end_time=timestamp(end / 1e9),
            duration_ms=(end - start) / 1e6,
            status=trace.status,
            spans=[self._span(span) for span in spans],
            spans_left_out=trace.left_out,
        )

    def _topic(self, queue: str) -> str:
        return topic_out(self._caller.told(queue))

    def _span(self, span: TraceEvent) -> Span:
        return Span(
            span_id=span.span_id,
            event_type=_event_of(span),
            timestamp=timestamp(span.time_ns / 1e9),
            duration_ms=span.duration_ns / 1e6,
            topic=self._topic(span.queue),
            parent_span_id=span.parent_id,
            partition=span.partition,
            offset=span.offset,
            message_id=self._caller.told(span.message_id) if span.message_id else "",
            consumer_group=span.group,
            client_id=span.client_id,
            delivery_count=span.delivery_count,
            details=span.detail,
            node=span.node,
        )


def _ring(call: Call) -> TraceRing:
    """Raises :class:`RequestError` (UNSUPPORTED)."""
    tracing = call.service.turn()[0].node.tracing
    if tracing is None:
        raise RequestError(Code.UNSUPPORTED, "tracing is off: it is configured by tracing.enabled")
    return tracing.ring


async def _find(call: Call, limit: int, fits: Callable[[TraceAnswer], bool]) -> TracesAnswer:
    reader = _Reader(call.caller)
    found: list[TraceAnswer] = []
    for looked_at, trace in enumerate(_ring(call).latest(), 1):
        if looked_at % _PORTION == 0:
            await asyncio.sleep(0)
        spans = reader.spans(trace)
        if spans and fits(answer := reader.answer(trace, spans)):
            found.append(answer)
            if len(found) >= limit:
                break
    return TracesAnswer(traces=found, count=len(found))


_Limit = Limit


@AREA.get("/traces", Scope.READ, errors=(Code.UNSUPPORTED,))
async def list_traces(call: Asked, limit: _Limit = 100) -> TracesAnswer:
    """The traces that began last, of the queues that the caller may read."""
    return await _find(call, limit, lambda _: True)


@AREA.get("/traces/search", Scope.READ, errors=(Code.UNSUPPORTED,))
async def search_traces(
    call: Asked,
    topic: Annotated[str | None, Query(max_length=1_024)] = None,
    partition: Annotated[int | None, Query(ge=0)] = None,
    consumer_group: Annotated[str | None, Query(max_length=1_024)] = None,
    start: Annotated[str | None, Query(max_length=64, description="RFC 3339, or Unix milliseconds")] = None,
    end: Annotated[str | None, Query(max_length=64, description="likewise")] = None,
    status: Annotated[TraceStatus | Literal["error"] | None, Query(description="error = failed")] = None,
    limit: _Limit = 100,
) -> TracesAnswer:
    """Likewise, of those alone that fit: a span of the topic, partition and group, begun within a time."""
    try:
        first_ms = None if start is None else parse_time_ms(start)
        end_ms = None if end is None else parse_time_ms(end)
    except ValueError as error:
        raise RequestError(Code.BAD_REQUEST, str(error)) from error
    wanted = TraceStatus.FAILED if status == "error" else status

    def fits(trace: TraceAnswer) -> bool:
        if wanted is not None and trace.status is not wanted:
            return False
        start_ms = parse_time_ms(trace.start_time)
        if (first_ms is not None and start_ms < first_ms) or (end_ms is not None and start_ms >= end_ms):
            return False
        return any(
            (topic is None or span.topic == topic)
            and (partition is None or span.partition == partition)
            and (consumer_group is None or span.consumer_group == consumer_group)
            for span in trace.spans
        )

    return await _find(call, limit, fits)


@AREA.get("/traces/stats", Scope.READ)
async def trace_stats(call: Asked) -> TraceStats:
    """How many there are, and what was left out or lost."""
    tracing = call.service.turn()[0].node.tracing
    if tracing is None:
        return TraceStats(enabled=False)
    ring = tracing.ring
    return TraceStats(
        enabled=True,
        traces=len(ring),
        traces_forgotten=ring.forgotten,
        spans=ring.spans,
        spans_left_out=ring.left_out,
        messages=len(tracing),
        messages_forgotten=tracing.forgotten,
        spans_exported=sum(sink.exported for sink in tracing.sinks),
        spans_lost=sum(sink.lost for sink in tracing.sinks),
    )


@AREA.get("/traces/{trace_id}", Scope.READ, errors=(Code.UNKNOWN_TRACE, Code.UNSUPPORTED))
async def get_trace(call: Asked, trace_id: str) -> TraceAnswer:
    """One trace."""
    trace = _ring(call).get(trace_id)
    reader = _Reader(call.caller)
    spans = [] if trace is None else reader.spans(trace)
    if trace is None or not spans:
        raise RequestError(Code.UNKNOWN_TRACE, f"there is no trace {trace_id[:80]!r} here")
    return reader.answer(trace, spans)
