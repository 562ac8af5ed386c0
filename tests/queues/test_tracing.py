"""Messages that are traced: which they are, the spans of their way, and that all others go as they did."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.queues import PublishOptions, QueueAddress, QueueEngine
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.trace.context import DELIVERY_TRACEPARENT, TRACEPARENT, TRACESTATE, parse_traceparent
from assay.reference_broker.trace.ring import MAX_TEXT, TraceStatus
from assay.reference_broker.trace.schema import TraceEvent, TraceKind
from assay.reference_broker.trace.tracing import Tracing

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = ((TRACEPARENT, f"00-{TRACE_ID}-{PARENT}-01"),)
UNSAMPLED = ((TRACEPARENT, f"00-{TRACE_ID}-{PARENT}-00"),)
K = TraceKind


@pytest.fixture
def traced_with(bench_with: Callable[..., QueueBench]) -> Callable[..., QueueBench]:
    """Makes benches whose engine traces, and has no tracer that is told all."""

    def make(disk: MemoryDisk | None = None, *, ratio: float = 0.0, **fields: Any) -> QueueBench:
        bounds = {name: fields.pop(name, most) for name, most in (("max_traces", 100), ("max_messages", 100))}
        max_spans = fields.pop("max_spans", 64)
        bench = bench_with(disk or MemoryDisk(), **fields)
        bench.disk.unlock()

        def opened() -> QueueEngine:
            store = LogQueueStore(bench.disk, options=LogOptions(segment_bytes=bench.config.segment_bytes))
            tracing = Tracing("n", random.Random(7), ratio=ratio, max_spans=max_spans, **bounds)
            return QueueEngine(bench.config, store, random.Random(bench.seed), bench.now, None, tracing)

        bench._open = opened
        bench.engine = opened()
        return bench

    return make


def spans_of(bench: QueueBench, trace_id: str = TRACE_ID) -> list[TraceEvent]:
    tracing = bench.engine.agenda.tracing
    assert tracing is not None
    trace = tracing.ring.get(trace_id)
    return [] if trace is None else trace.spans


def kinds(bench: QueueBench) -> list[TraceKind]:
    return [span.kind for span in spans_of(bench)]


def status(bench: QueueBench) -> TraceStatus:
    tracing = bench.engine.agenda.tracing
    assert tracing is not None
    trace = tracing.ring.get(TRACE_ID)
    assert trace is not None
    return trace.status


def test_the_way_of_a_message(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with(durability=Durability.FSYNC)
    consumer = bench.consumer()
    bench.turn()
    state = (TRACESTATE, "vendor=1")
    bench.publish("m", user_properties=(*SAMPLED, state, ("own", "1")))
    bench.engine.dispatch(bench.now)
    bench.now += 2
    bench.turn()
    bench.now += 3
    consumer.ack(consumer.got[0])
    bench.turn()
    published, enqueued, confirmed, delivered, acked = spans_of(bench)
    assert kinds(bench) == [K.PUBLISHED, K.ENQUEUED, K.CONFIRMED, K.DELIVERED, K.ACKED]
    assert published.parent_id == PARENT
    assert {span.parent_id for span in (enqueued, confirmed, delivered)} == {published.span_id}
    assert acked.parent_id == delivered.span_id
    assert len({span.span_id for span in spans_of(bench)}) == 5
    assert [round(span.duration_ns / 1e9) for span in spans_of(bench)] == [0, 0, 2, 0, 3]
    assert {span.trace_state for span in spans_of(bench)} == {"vendor=1"}
    assert [span.seq for span in spans_of(bench)] == list(range(5))
    assert (delivered.group, delivered.client_id, delivered.message_id) == ("g", "c", "q:0:0")
    assert status(bench) is TraceStatus.COMPLETED
    assert len(bench.engine.agenda.tracing) == 0, "nobody awaits anything of it any more"
    # Its publisher's properties stand as they came; the broker's own span comes behind them.
    told = consumer.got[0].message.user_properties
    assert told[:-1] == (*SAMPLED, state, ("own", "1"))
    assert told[-1] == (DELIVERY_TRACEPARENT, f"00-{TRACE_ID}-{delivered.span_id}-01")


def test_the_flag_of_the_publisher_decides(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with(ratio=1.0)
    consumer = bench.consumer()
    bench.publish("a", user_properties=UNSAMPLED)
    bench.publish("b")
    bench.turn()
    assert kinds(bench) == []
    first, second = consumer.got
    assert first.message.user_properties == UNSAMPLED
    ((name, text),) = second.message.user_properties
    context = parse_traceparent(text)
    assert name == DELIVERY_TRACEPARENT
    assert context is not None
    assert spans_of(bench, context.trace_id)[0].parent_id == ""


@pytest.mark.parametrize(
    "wrong",
    [
        f"ff-{TRACE_ID}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{PARENT}-01",
        f"00-{TRACE_ID}-{PARENT}-01-more",
        f"00-{TRACE_ID}-{PARENT}-1",
        "",
    ],
)
def test_a_context_that_cannot_be_read_begins_a_new_trace(traced_with: Callable[..., QueueBench], wrong: str) -> None:
    bench = traced_with(ratio=1.0)
    consumer = bench.consumer()
    assert not bench.publish("m", user_properties=((TRACEPARENT, wrong),)).failed
    bench.turn()
    assert kinds(bench) == []
    assert len(bench.engine.agenda.tracing.ring) == 1
    assert consumer.got[0].message.user_properties[0] == (TRACEPARENT, wrong), "forwarded as it came"


def test_headers_of_amqp_say_the_same(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with()
    properties = MessageProperties(headers=tuple((name, Typed(Kind.TEXT, text)) for name, text in SAMPLED))
    bench.publish("m", properties=properties)
    bench.turn()
    assert kinds(bench) == [K.PUBLISHED, K.ENQUEUED, K.CONFIRMED]


def test_retries_and_dead_letters_are_one_trace(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with(retry={"max_retries": 1, "initial_backoff_s": 5.0, "nack_immediately": False})
    consumer = bench.consumer()
    bench.publish("m", user_properties=SAMPLED)
    bench.turn()
    consumer.nack(consumer.got[0])
    bench.turn()
    assert status(bench) is TraceStatus.RETRYING
    bench.advance(5)
    second = spans_of(bench)[-1]
    assert (second.kind, second.delivery_count, second.duration_ns) == (K.DELIVERED, 2, 5_000_000_000)
    consumer.nack(consumer.got[1])
    bench.turn()
    assert kinds(bench)[3:] == [
        K.DELIVERED,
        K.NACKED,
        K.RETRY_SCHEDULED,
        K.DELIVERED,
        K.NACKED,
        K.ENQUEUED,
        K.DEAD_LETTERED,
        K.CONFIRMED,
    ]
    assert status(bench) is TraceStatus.FAILED
    letters = bench.consumer("d", queue="$dlq/q", group="d")
    bench.turn()
    assert spans_of(bench)[-1].message_id == "$dlq/q:0:0"
    assert [name for name, _ in letters.got[0].message.user_properties].count(DELIVERY_TRACEPARENT) == 1


def test_a_delay_is_a_span(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with(ratio=1.0)
    consumer = bench.consumer()
    address, message = QueueAddress(queue="q", routing_key=""), Message(topic="$queue/q", payload=b"m")
    bench.engine.publish(address, message, bench.now, options=PublishOptions(delay_ms=7_000))
    bench.turn()
    (trace,) = bench.engine.agenda.tracing.ring.latest()
    assert trace.status is TraceStatus.DELAYED
    bench.advance(8)
    assert len(consumer.got) == 1
    assert [span.kind for span in trace.spans] == [
        K.PUBLISHED,
        K.DELAYED,
        K.CONFIRMED,
        K.DELAYED,
        K.ENQUEUED,
        K.CONFIRMED,
        K.DELIVERED,
    ]
    assert round(trace.spans[3].duration_ns / 1e9) == 7
    assert len(bench.engine.agenda.tracing.ring) == 1, "what becomes due is not sampled once more"
    assert len(bench.engine.agenda.tracing) == 1


def test_a_delay_that_is_cancelled_ends_its_trace(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with(ratio=1.0)
    address, message = QueueAddress(queue="q", routing_key=""), Message(topic="$queue/q", payload=b"m")
    ids: list[str] = []
    bench.engine.publish(
        address, message, bench.now, on_stored=lambda _, name: ids.append(name), options=PublishOptions(delay_ms=7_000)
    )
    bench.turn()
    bench.now += 2
    assert bench.engine.cancel_delayed("q", ids[0], bench.now)
    bench.turn()
    (trace,) = bench.engine.agenda.tracing.ring.latest()
    last = trace.spans[-1]
    assert (last.kind, last.detail, last.duration_ns) == (K.DISCARDED, "cancelled", 2_000_000_000)
    assert trace.status is TraceStatus.COMPLETED
    assert len(bench.engine.agenda.tracing) == 0


def test_expiry_is_a_span(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with()
    bench.consumer(room=0)
    bench.publish("m", user_properties=SAMPLED, expires_at=bench.now + 1)
    bench.turn()
    bench.advance(100)
    assert spans_of(bench)[-1].kind is K.DISCARDED
    assert status(bench) is TraceStatus.EXPIRED


def test_runs_hold_what_is_traced(traced_with: Callable[..., QueueBench], monkeypatch: pytest.MonkeyPatch) -> None:
    """Published as a batch, delivered in runs, settled in one: all in order, and each that is traced says so."""
    monkeypatch.setattr("assay.reference_broker.queues.delivery.dispatcher.QUANTUM_ALONE", 32)
    bench = traced_with()
    consumer = bench.consumer()
    taken: list[tuple[int, Message]] = []
    runs: list[int] = []

    def take(run: DeliveryRun) -> int:
        # The second one is taken as far as between two that are traced; 41 is delivered alone then.
        count = 9 if run.offset == 32 else len(run.stored)
        taken.extend(enumerate([each.message for each in run.stored[:count]], run.offset))
        runs.append(count)
        return count

    assert consumer.handle is not None
    consumer.handle.deliver_run = take
    consumer.handle.deliver = lambda each: taken.append((each.offset, each.message)) is None
    traced = {40, 41, 90}
    messages = [
        Message(topic="$queue/q", payload=b"%d" % at, user_properties=SAMPLED if at in traced else ())
        for at in range(128)
    ]
    bench.engine.publish_many(QueueAddress(queue="q", routing_key=""), messages, bench.now)
    bench.turn()
    assert [offset for offset, _ in taken] == list(range(128))
    assert runs == [32, 9, 32, 32]
    assert {offset for offset, message in taken if DELIVERY_TRACEPARENT in dict(message.user_properties)} == traced
    deliveries = [(span.offset, span.client_id) for span in spans_of(bench) if span.kind is K.DELIVERED]
    assert deliveries == [(offset, "c") for offset in sorted(traced)]
    count = bench.engine.ack_run("q", "g", [(0, at) for at in range(128)], "c", bench.now, lambda _: lambda _: None)
    assert count == 128
    assert [span.offset for span in spans_of(bench) if span.kind is K.ACKED] == [40, 41, 90]


def test_runs_that_settle_at_once_end_spans(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with()
    consumer = bench.consumer()
    assert consumer.handle is not None
    consumer.handle.deliver_run = lambda run: len(run.stored)
    consumer.handle.settles_at_once = True
    for number in range(20):
        bench.publish("m", user_properties=SAMPLED if number == 7 else ())
    bench.turn()
    assert kinds(bench)[-2:] == [K.DELIVERED, K.ACKED]
    assert len(bench.engine.agenda.tracing) == 0


def test_a_ratio_holds_for_single_ones_and_for_batches(traced_with: Callable[..., QueueBench]) -> None:
    counts = []
    for single in (True, False):
        bench = traced_with(ratio=0.05, max_traces=10_000, max_messages=10_000)
        messages = [Message(topic="$queue/q", payload=b"") for _ in range(4_000)]
        address = QueueAddress(queue="q", routing_key="")
        bench.engine.publish(address, messages[0], bench.now)
        for at in range(1, 4_000, 100):
            if single:
                for message in messages[at : at + 100]:
                    bench.engine.publish(address, message, bench.now)
            else:
                bench.engine.publish_many(address, messages[at : at + 100], bench.now)
        bench.turn()
        counts.append(len(bench.engine.agenda.tracing.ring))
    assert counts[0] == counts[1], "one draw decides, however they come"
    assert 140 <= counts[0] <= 260


def test_every_group_has_spans_and_the_last_one_ends_it(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with()
    first, second = bench.consumer("a", group="a"), bench.consumer("b", group="b")
    bench.publish("m", user_properties=SAMPLED)
    bench.turn()
    first.ack(first.got[0])
    assert (status(bench), len(bench.engine.agenda.tracing)) == (TraceStatus.IN_PROGRESS, 1)
    second.ack(second.got[0])
    assert (status(bench), len(bench.engine.agenda.tracing)) == (TraceStatus.COMPLETED, 0)
    tokens = {dict(each.got[0].message.user_properties)[DELIVERY_TRACEPARENT] for each in (first, second)}
    assert len(tokens) == 2


def test_a_consumer_without_room_makes_no_span(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with()
    consumer = bench.consumer(room=0)
    bench.publish("m", user_properties=SAMPLED)
    bench.turn()
    assert K.DELIVERED not in kinds(bench)
    consumer.room = 1
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert kinds(bench)[-1] is K.DELIVERED


def test_a_settlement_within_the_call_follows_its_delivery(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with()
    consumer = bench.consumer()
    assert consumer.handle is not None
    consumer.handle.deliver = lambda delivery: consumer.ack(delivery) is not None
    bench.publish("m", user_properties=SAMPLED)
    bench.turn()
    assert kinds(bench)[-2:] == [K.DELIVERED, K.ACKED]
    assert status(bench) is TraceStatus.COMPLETED


def test_a_restart_forgets_what_was_noted(traced_with: Callable[..., QueueBench]) -> None:
    """What the publisher wrote is kept with the message; the broker's spans of it end."""
    bench = traced_with()
    bench.publish("m", user_properties=SAMPLED)
    bench.turn()
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.got[0].message.user_properties == SAMPLED
    assert kinds(bench) == []


def test_what_is_kept_is_bounded(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with(ratio=1.0, max_traces=3, max_messages=5, max_spans=4)
    tracing = bench.engine.agenda.tracing
    for _ in range(20):
        bench.publish("m", publisher="x" * 1_000)
    bench.turn()
    assert (len(tracing.ring), tracing.ring.forgotten) == (3, 17)
    assert (len(tracing), tracing.forgotten) == (5, 15)
    consumer = bench.consumer()
    bench.turn()
    for _ in range(3):
        for delivery in consumer.take():
            consumer.nack(delivery)
        bench.turn()
    assert all(len(trace.spans) <= 4 for trace in tracing.ring.latest())
    assert tracing.ring.left_out > 0
    assert all(len(trace.spans[0].client_id) == MAX_TEXT for trace in tracing.ring.latest())
    # A trace that everybody names is as long as any other.
    for _ in range(20):
        bench.publish("m", user_properties=SAMPLED)
    bench.turn()
    assert len(spans_of(bench)) == 4


def test_a_refused_write_is_told(traced_with: Callable[..., QueueBench]) -> None:
    bench = traced_with(max_depth=1)
    bench.publish("a", user_properties=SAMPLED)
    with pytest.raises(Exception, match="limit"):
        bench.publish("b", user_properties=SAMPLED)
    bench.turn()
    assert kinds(bench) == [K.PUBLISHED, K.ENQUEUED, K.CONFIRMED], "what was never taken has no span"
