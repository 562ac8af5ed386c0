"""Spans in files, and sent by OTLP: whole, in order, bounded, and what is lost is counted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from assay.reference_broker.config import TracingConfig
from assay.reference_broker.server.span_export import BATCH, SpanExport, SpanFile, start_exports
from assay.reference_broker.trace.context import TraceContext
from assay.reference_broker.trace.files import read_trace
from assay.reference_broker.trace.schema import TraceEvent, TraceKind
from assay.reference_broker.trace.tracing import Tracing

CONTEXT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True, "vendor=1")


def _tracing() -> Tracing:
    return Tracing("n", random.Random(1), ratio=0.0, max_traces=10, max_spans=10, max_messages=10)


def _publish(tracing: Tracing, times: int = 1) -> None:
    for at in range(times):
        tracing.begin(CONTEXT, "q", "$queue/q", "ann", 100.0 + at)


class _Gate:
    """Takes spans once it is opened."""

    descriptors: list[int] = []

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.batches: Queue[list[int]] = Queue()
        self.error: OSError | None = None

    def take(self, spans: Sequence[TraceEvent]) -> None:
        assert self.opened.wait(60)
        self.batches.put([span.seq for span in spans])
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.batches.put([])


def test_what_has_no_room_is_lost_and_counted() -> None:
    gate, tracing = _Gate(), _tracing()
    export = SpanExport("gate", gate, max_waiting=2 * BATCH)
    tracing.sinks.append(export)
    _publish(tracing, 10 * BATCH)
    # The thread holds none or one batch in its hands.
    assert 7 * BATCH <= export.lost <= 8 * BATCH
    gate.opened.set()
    export.close()
    assert export.exported + export.lost == 10 * BATCH
    taken = list(gate.batches.queue)
    assert taken.pop() == [], "closed when all is handed on"
    numbers = [seq for batch in taken for seq in batch]
    assert len(numbers) == export.exported
    assert numbers == sorted(set(numbers)), "in order, and a gap says that some are lost"
    assert max(map(len, taken)) <= BATCH


def test_what_cannot_be_written_is_lost_and_the_next_goes_on() -> None:
    gate, tracing = _Gate(), _tracing()
    gate.error = OSError("the disk is full")
    gate.opened.set()
    export = SpanExport("gate", gate, max_waiting=10)
    tracing.sinks.append(export)
    _publish(tracing)
    assert gate.batches.get(timeout=60) == [0]
    gate.error = None
    _publish(tracing)
    export.close()
    assert (export.exported, export.lost) == (1, 1)


def test_a_file_is_a_trace_that_every_judge_reads(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.zst"
    tracing = _tracing()
    (export,) = start_exports(TracingConfig(enabled=True, path=str(path)), tracing, "n")
    _publish(tracing, 3)
    export.close()
    header, events = read_trace(path)
    spans = list(events)
    assert header.node == "n"
    assert [span.seq for span in spans] == [0, 1, 2]
    assert {(span.trace_id, span.parent_id, span.trace_state) for span in spans} == {
        (CONTEXT.trace_id, CONTEXT.span_id, CONTEXT.state)
    }
    # The next start keeps it.
    start_exports(TracingConfig(enabled=True, path=str(path)), tracing, "n")[0].close()
    assert len(list(read_trace(tmp_path / "trace.1.jsonl.zst")[1])) == 3


def test_a_full_file_makes_room_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    spans = SpanFile(path, "n", max_bytes=2_000)
    event = TraceEvent(seq=0, time_ns=1, node="n", kind=TraceKind.PUBLISHED, detail="x" * 500)
    for seq in range(20):
        spans.take([msgspec.structs.replace(event, seq=seq)])
        assert path.stat().st_size <= 2_600
    spans.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["spans.1.jsonl", "spans.jsonl"]
    numbers = [event.seq for name in ("spans.1.jsonl", "spans.jsonl") for event in read_trace(tmp_path / name)[1]]
    assert numbers == list(range(numbers[0], 20))


@contextmanager
def _collector(status: int = 200) -> Iterator[tuple[str, Queue[ExportTraceServiceRequest]]]:
    """A collector of OTLP over HTTP: its URL, and what it gets."""
    got: Queue[ExportTraceServiceRequest] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = ExportTraceServiceRequest()
            request.ParseFromString(body)
            got.put(request)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def test_a_collector_gets_spans_by_otlp() -> None:
    tracing = _tracing()
    with _collector() as (url, got):
        (export,) = start_exports(TracingConfig(enabled=True, otlp_endpoint=url), tracing, "n")
        traced = tracing.begin(CONTEXT, "q", "$queue/q", "ann", 100.0)
        tracing.written(traced, TraceKind.ENQUEUED, {}, 3, 7, 100.5)
        export.close()
        spans = {}
        while not got.empty():
            (resource,) = got.get().resource_spans
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert (attributes["service.name"], attributes["service.instance.id"]) == ("assay", "n")
            spans |= {span.name: span for scope in resource.scope_spans for span in scope.spans}
    assert (export.exported, export.lost) == (2, 0)
    published, appended = spans["publish q"], spans["append q"]
    assert published.trace_id.hex() == appended.trace_id.hex() == CONTEXT.trace_id
    assert published.parent_span_id.hex() == CONTEXT.span_id
    assert appended.parent_span_id == published.span_id
    assert appended.trace_state == CONTEXT.state
    assert appended.end_time_unix_nano - appended.start_time_unix_nano == 500_000_000
    named = {each.key: each.value.string_value or each.value.int_value for each in appended.attributes}
    assert named["messaging.destination.name"] == "q"
    assert (named["messaging.destination.partition.id"], named["assay.offset"]) == ("3", 7)


def test_what_a_collector_refuses_is_lost() -> None:
    tracing = _tracing()
    with _collector(status=400) as (url, got):
        (export,) = start_exports(TracingConfig(enabled=True, otlp_endpoint=url), tracing, "n")
        _publish(tracing)
        got.get(timeout=60)
        export.close()
    assert (export.exported, export.lost) == (0, 1)
