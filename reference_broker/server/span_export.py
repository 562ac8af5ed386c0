"""Spans leave the broker: to a file for analysis, to a collector by OTLP. Each has a thread and a bounded queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from assay.reference_broker.config import ConfigError, TracingConfig
from assay.reference_broker.trace.files import TraceWriter
from assay.reference_broker.trace.ring import Step, span_of
from assay.reference_broker.trace.schema import TraceEvent, TraceHeader, TraceKind
from assay.reference_broker.trace.tracing import Tracing

log = logging.getLogger("assay.broker")
BATCH: Final = 512
"""Spans that are written or sent at once, at most."""
_CLOSE_TIMEOUT_S = 5.0
"""For what waits to be written or sent when the broker stops."""
_SEND_TIMEOUT_S = 10
_VERBS: Final = {
    TraceKind.PUBLISHED: "publish",
    TraceKind.ENQUEUED: "append",
    TraceKind.CONFIRMED: "sync",
    TraceKind.DELIVERED: "deliver",
    TraceKind.ACKED: "settle",
    TraceKind.NACKED: "settle",
    TraceKind.REJECTED: "settle",
    TraceKind.TIMED_OUT: "time out",
    TraceKind.RETRY_SCHEDULED: "retry",
    TraceKind.DELAYED: "delay",
    TraceKind.DEAD_LETTERED: "dead letter",
    TraceKind.DISCARDED: "discard",
}
_PROBLEMS: Final = frozenset(
    {TraceKind.NACKED, TraceKind.REJECTED, TraceKind.TIMED_OUT, TraceKind.DEAD_LETTERED, TraceKind.DISCARDED}
)


class Target(Protocol):
    """Writes or sends spans."""

    @property
    def descriptors(self) -> list[int]:
        """Of open files."""

    def take(self, spans: Sequence[TraceEvent]) -> None:
        """Blocking. Raises :class:`OSError`, and then they are lost."""

    def close(self) -> None: ...


class SpanExport:
    """Takes spans in the event loop, and hands them on in a thread."""

    def __init__(self, name: str, target: Target, max_waiting: int) -> None:
        self.name = name
        self.target = target
        self.exported = 0
        self.lost = 0
        """No room for them, or what takes them failed."""
        self._max_waiting = max_waiting
        self._waiting: deque[Step] = deque()
        self._wake = threading.Event()
        self._closing = self._failing = False
        self._thread = threading.Thread(target=self._run, name=f"assay-{name}", daemon=True)
        self._thread.start()

    def put(self, step: Step) -> None:
        """Never blocks."""
        if len(self._waiting) >= self._max_waiting:
            self.lost += 1
        else:
            self._waiting.append(step)
            self._wake.set()

    def _run(self) -> None:
        while not (self._closing and not self._waiting):
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                self._hand_on([span_of(self._waiting.popleft()) for _ in range(min(BATCH, len(self._waiting)))])
        self.target.close()

    def _hand_on(self, spans: list[TraceEvent]) -> None:
        try:
            self.target.take(spans)
        except OSError as error:
            self.lost += len(spans)
            if not self._failing:
                log.warning("spans are lost: %s fails: %s", self.name, error)
            self._failing = True
        else:
            self.exported += len(spans)
            self._failing = False

    def close(self) -> None:
        """Hand on what waits, for as long as there is time."""
        self._closing = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT_S)


class SpanFile:
    """A trace file as ``assay spark`` reads it. Once full it becomes ``<name>.1.<suffix>``, and another begins."""

    def __init__(self, path: Path, node: str, max_bytes: int) -> None:
        """Raises :class:`OSError`."""
        self._path = path
        self._header = TraceHeader(node=node)
        self._max_bytes = max_bytes
        self._writer = self._begin()

    def _begin(self) -> TraceWriter:
        if self._path.exists():
            stem, dot, suffixes = self._path.name.partition(".")
            self._path.replace(self._path.with_name(f"{stem}.1{dot}{suffixes}"))
        return TraceWriter(self._path, self._header)

    @property
    def descriptors(self) -> list[int]:
        """See :class:`Target`."""
        return [self._writer.descriptor]

    def take(self, spans: Sequence[TraceEvent]) -> None:
        """See :class:`Target`."""
        for span in spans:
            self._writer.write(span)
        self._writer.flush()
        if self._writer.bytes_written >= self._max_bytes:
            self._writer.close()
            self._writer = self._begin()

    def close(self) -> None:
        self._writer.close()


class OtlpSender:
    """Sends spans to a collector, by the OpenTelemetry SDK's exporter over HTTP."""

    def __init__(self, endpoint: str, node: str) -> None:
        """Raises :class:`ConfigError` without the extra ``otlp``."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk import trace as sdk
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            message = f"tracing.otlp_endpoint needs the extra `otlp`: pip install 'assay-mq[otlp]' ({error})"
            raise ConfigError(message) from error
        self._trace, self._sdk = trace, sdk
        self._resource = Resource({"service.name": "assay", "service.instance.id": node})
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_TIMEOUT_S)

    @property
    def descriptors(self) -> list[int]:
        """See :class:`Target`."""
        return []

    def take(self, spans: Sequence[TraceEvent]) -> None:
        """See :class:`Target`."""
        result = self._exporter.export([self._read(span) for span in spans])
        if result.name != "SUCCESS":
            raise OSError("the collector did not take them")

    def _read(self, span: TraceEvent) -> Any:
        trace = self._trace
        trace_id, flags = int(span.trace_id, 16), trace.TraceFlags(trace.TraceFlags.SAMPLED)
        state = trace.TraceState.from_header([span.trace_state])
        attributes: dict[str, str | int] = {
            "messaging.system": "assay",
            "messaging.operation.name": _VERBS.get(span.kind, span.kind.value),
            "messaging.destination.name": span.queue,
            "messaging.message.id": span.message_id,
            "messaging.consumer.group.name": span.group,
            "messaging.client.id": span.client_id,
            "assay.kind": span.kind.value,
            "assay.topic": span.topic,
            "assay.detail": span.detail,
        }
        if span.partition >= 0:
            attributes |= {"messaging.destination.partition.id": str(span.partition), "assay.offset": span.offset}
        if span.delivery_count:
            attributes["assay.delivery_count"] = span.delivery_count
        parent = int(span.parent_id, 16) if span.parent_id else 0
        # What its publisher did is in another process.
        is_remote = span.kind is TraceKind.PUBLISHED
        failed = span.kind in _PROBLEMS
        return self._sdk.ReadableSpan(
            name=f"{_VERBS.get(span.kind, span.kind.value)} {span.queue}",
            context=trace.SpanContext(
                trace_id, int(span.span_id, 16), is_remote=False, trace_flags=flags, trace_state=state
            ),
            parent=trace.SpanContext(trace_id, parent, is_remote=is_remote, trace_flags=flags) if parent else None,
            resource=self._resource,
            attributes={name: value for name, value in attributes.items() if value != ""},
            kind=trace.SpanKind.INTERNAL,
            status=trace.Status(trace.StatusCode.ERROR, span.detail or None) if failed else trace.Status(),
            start_time=span.time_ns - span.duration_ns,
            end_time=span.time_ns,
        )

    def close(self) -> None:
        self._exporter.shutdown()


def start_exports(config: TracingConfig, tracing: Tracing, node: str) -> list[SpanExport]:
    """What is configured. Raises :class:`ConfigError`, :class:`OSError`."""
    targets: dict[str, Target] = {}
    if config.otlp_endpoint:
        targets["tracing.otlp_endpoint"] = OtlpSender(config.otlp_endpoint, node)
    if config.path:
        targets["tracing.path"] = SpanFile(Path(config.path), node, config.max_file_bytes)
    exports = [SpanExport(name, target, config.max_waiting) for name, target in targets.items()]
    tracing.sinks += exports
    return exports
