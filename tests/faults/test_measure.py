"""Figures from small histories whose answers are known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.faults.measure import BUCKET_S, check_targets, measure, percentile, unknown_metrics
from assay.faults.scenario import Target
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

MS = 1_000_000


class Book:
    """Writes a history by hand, times in milliseconds."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []

    def add(self, ms: float, f: OpKind, type_: OpType, **fields: Any) -> int:
        index = len(self.events)
        event = HistoryEvent(index=index, time_ns=round(ms * MS), process="p", f=f, type=type_, **fields)
        self.events.append(event)
        return index

    def publish(
        self, at: float, completed: float | None, type_: OpType = OpType.OK, *, intended: float | None = None
    ) -> str:
        value = f"p-{len(self.events)}"
        detail = "" if intended is None else f"intended_ns={round(intended * MS)}"
        op = self.add(at, OpKind.PUBLISH, OpType.INVOKE, value=value, queue="q", detail=detail)
        if completed is not None:
            self.add(completed, OpKind.PUBLISH, type_, value=value, queue="q", op=op)
        return value


def test_latency_counts_from_the_intended_time() -> None:
    book = Book()
    book.publish(10, 12)
    value = book.publish(500, 503, intended=100)
    book.add(510, OpKind.DELIVER, OpType.OK, value=value, queue="q", group="g")
    book.add(900, OpKind.DELIVER, OpType.OK, value=value, queue="q", group="g", redelivered=True)
    measures = measure(book.events)
    ack, deliver = measures.percentiles
    assert (ack.name, ack.count, ack.p50_us, ack.max_us) == ("publish_to_ack", 2, 2_000, 403_000)
    assert (deliver.name, deliver.count, deliver.max_us) == ("publish_to_deliver", 1, 410_000), (
        "the first delivery only"
    )
    assert measures.metrics["publish_to_ack_p99_ms"] == 403


def test_gap_recovery_and_bands() -> None:
    book = Book()
    book.publish(0, 10)
    fault = book.add(100, OpKind.FAULT, OpType.INVOKE, detail="crash broker")
    book.publish(150, 1_300, OpType.INFO)
    book.add(1_100, OpKind.FAULT, OpType.OK, detail="crash broker", op=fault)
    book.publish(1_350, 1_450)
    lasting = book.add(1_500, OpKind.FAULT, OpType.INVOKE, detail="latency clients 5 ms")
    book.publish(1_600, 1_700)
    measures = measure(book.events)
    assert lasting >= 0
    assert measures.metrics["publish_gap_max_s"] == pytest.approx(1.44)
    assert measures.metrics["recovery_1_crash_s"] == pytest.approx(0.35)
    assert measures.metrics["recovery_max_s"] == pytest.approx(0.35)
    assert [(band.label, band.from_s, band.to_s) for band in measures.bands] == [
        ("crash broker", 0.1, 1.1),
        ("latency clients 5 ms", 1.5, 1.7),
    ]
    assert measures.metrics["publish_ok_ratio"] == 0.75


def test_a_confirm_of_something_sent_before_the_healing_is_no_recovery() -> None:
    book = Book()
    fault = book.add(0, OpKind.FAULT, OpType.INVOKE, detail="pause broker")
    op = book.add(10, OpKind.PUBLISH, OpType.INVOKE, value="early", queue="q")
    book.add(1_000, OpKind.FAULT, OpType.OK, detail="pause broker", op=fault)
    book.add(1_001, OpKind.PUBLISH, OpType.OK, value="early", queue="q", op=op)
    book.publish(1_100, 1_105)
    assert measure(book.events).metrics["recovery_1_pause_s"] == pytest.approx(0.105)


def test_without_any_confirm_the_whole_time_is_a_gap() -> None:
    book = Book()
    book.publish(100, 900, OpType.INFO)
    metrics = measure(book.events).metrics
    assert metrics["publish_gap_max_s"] == pytest.approx(0.8)
    assert metrics["publish_ok_ratio"] == 0
    assert "publish_to_ack_p99_ms" not in metrics


def test_series_put_each_operation_into_its_bucket() -> None:
    book = Book()
    for at in (0, 10, 240, 260, 600):
        book.publish(at, at + 5)
    measures = measure(book.events)
    series = {each.name: each for each in measures.series}
    confirmed = series["publishes confirmed"]
    assert confirmed.x_s == [0.0, 0.25, 0.5]
    assert [y * BUCKET_S for y in confirmed.y if y is not None] == [3, 1, 1]
    assert series["publish to ack p99"].y == [5.0, 5.0, 5.0]
    assert series["publish to deliver p99"].y == [None, None, None]


def test_an_empty_history_has_no_figures_and_does_not_fail() -> None:
    measures = measure([])
    assert "publish_gap_max_s" not in measures.metrics
    assert measures.percentiles == []


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.floats(0.001, 1.0))
def test_percentile_is_the_nearest_rank(values: list[int], q: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, q)
    assert sum(value <= found for value in ordered) >= q * len(ordered) - 1e-9
    smaller = [value for value in ordered if value < found]
    assert len(smaller) < q * len(ordered) + 1e-9


@pytest.mark.parametrize(
    ("relation", "bound", "verdict"),
    [("<=", 5, "pass"), ("<", 5, "fail"), (">=", 5, "pass"), (">", 5, "fail"), ("==", 5, "pass"), ("<=", 4.9, "fail")],
)
def test_targets(relation: Any, bound: float, verdict: str) -> None:
    target = Target(metric="recovery_max_s", relation=relation, bound=bound)
    (check,) = check_targets([target], {"recovery_max_s": 5.0})
    assert (check.verdict.value, check.value, check.unit) == (verdict, 5.0, "s")


def test_a_target_without_figure_is_unknown_and_a_wrong_name_is_told() -> None:
    target = Target(metric="recovery_max_s", bound=1)
    assert check_targets([target], {})[0].verdict is Verdict.UNKNOWN
    assert unknown_metrics([target, Target(metric="nonsense", bound=1)]) == ["nonsense"]


def two_queues() -> Book:
    """``a`` is confirmed all the time, ``b`` is silent from 200 to 1 201 ms; a fault lasts from 200 to 300 ms."""
    book = Book()

    def publish(queue: str, at: float, completed: float | None) -> None:
        value = f"{queue}-{len(book.events)}"
        op = book.add(at, OpKind.PUBLISH, OpType.INVOKE, value=value, queue=queue)
        if completed is not None:
            book.add(completed, OpKind.PUBLISH, OpType.OK, value=value, queue=queue, op=op)

    publish("b", 0, 1)
    for at in range(0, 200, 20):
        publish("a", at + 1, at + 2)
    publish("b", 199, 200)
    fault = book.add(200, OpKind.FAULT, OpType.INVOKE, detail="crash broker")
    book.add(300, OpKind.FAULT, OpType.OK, op=fault, detail="crash broker")
    for at in range(300, 1_100, 20):
        publish("a", at + 1, at + 2)
    publish("b", 1_101, 1_201)
    return book


def test_another_queues_confirms_do_not_end_the_silence_of_a_queue() -> None:
    measures = measure(two_queues().events)
    assert measures.metrics["publish_gap_max_s"] == pytest.approx(1.001)
    assert measures.metrics["recovery_max_s"] == pytest.approx(0.901)
    assert measures.metrics["publish_to_ack_p99_ms"] == pytest.approx(100), "the slow queue's, not that of the mix"
    assert [row.name for row in measures.percentiles] == ["publish_to_ack b", "publish_to_ack a"]
    names = {line.name for line in measures.series if line.group == "throughput"}
    assert names == {"acks confirmed", "publishes confirmed, a", "publishes confirmed, b"}


def test_what_never_came_counts_as_the_slowest() -> None:
    book = Book()
    for at in range(100):
        book.publish(at, at + 2 if at >= 2 else None)
    measures = measure(book.events)
    (row,) = measures.percentiles
    assert (row.count, row.missing) == (98, 2)
    target = Target(metric="publish_to_ack_p99_ms", bound=5)
    (check,) = check_targets([target], measures.metrics, measures.bounds)
    assert (check.verdict, check.value) == (Verdict.UNKNOWN, 2.0)
    assert "never came" in check.reason
    (median,) = check_targets([Target(metric="publish_to_ack_p50_ms", bound=5)], measures.metrics, measures.bounds)
    assert median.verdict is Verdict.PASS
    (slow,) = check_targets([Target(metric="publish_to_ack_p50_ms", bound=1)], measures.metrics, measures.bounds)
    assert slow.verdict is Verdict.FAIL


def test_a_confirmed_message_that_a_group_never_got_is_missing() -> None:
    book = Book()
    for group in ("g", "h"):
        book.add(0, OpKind.SUBSCRIBE, OpType.OK, queue="q", group=group)
    value = book.publish(1, 2)
    book.add(3, OpKind.DELIVER, OpType.OK, value=value, queue="q", group="g")
    _, deliver = measure(book.events).percentiles
    assert (deliver.count, deliver.missing) == (1, 1)


def missing(book: Book) -> tuple[int, int]:
    """Of confirms, and of deliveries."""
    found = {row.name: row.missing for row in measure(book.events).percentiles}
    return found["publish_to_ack"], found.get("publish_to_deliver", 0)


def test_who_comes_late_or_ends_is_owed_only_what_was_published_meanwhile() -> None:
    book = Book()
    book.add(0, OpKind.SUBSCRIBE, OpType.OK, queue="q", group="g")
    for late in (False, True):
        value = book.publish(10, 12)
        book.add(20, OpKind.DELIVER, OpType.OK, value=value, queue="q", group="g")
        if not late:
            book.add(21, OpKind.SUBSCRIBE, OpType.OK, queue="q", group="late")
            book.add(22, OpKind.SUBSCRIBE, OpType.OK, queue="q", group="gone")
    assert missing(book) == (0, 2)
    book.add(30, OpKind.DRAIN, OpType.FAIL, queue="q", group="gone")
    assert missing(book) == (0, 1)
    book.add(40, OpKind.DELIVER, OpType.OK, value=value, queue="q", group="late")
    assert missing(book) == (0, 0)


def test_what_was_taken_back_or_sent_again_or_at_qos_0_is_not_missing() -> None:
    book = Book()
    book.add(0, OpKind.SUBSCRIBE, OpType.OK, queue="q", group="g")
    book.add(9, OpKind.DELIVER, OpType.OK, value=book.publish(5, 6), queue="q", group="g")
    taken = book.publish(10, 12)
    again = book.publish(11, 13)
    book.add(14, OpKind.PUBLISH, OpType.INVOKE, value=again, queue="q")
    book.add(15, OpKind.PUBLISH, OpType.INVOKE, value="p-0", queue="q", qos=0)
    assert missing(book) == (0, 2)
    book.add(16, OpKind.CANCEL, OpType.INVOKE, value=taken, queue="q")
    assert missing(book) == (0, 1)


def test_a_delay_that_was_asked_for_is_no_latency() -> None:
    book = Book()
    fields = {"value": "p-0", "queue": "q"}
    op = book.add(0, OpKind.PUBLISH, OpType.INVOKE, delay_ns=100 * MS, **fields)
    book.add(2, OpKind.PUBLISH, OpType.OK, op=op, **fields)
    book.add(103, OpKind.DELIVER, OpType.OK, group="g", **fields)
    assert measure(book.events).metrics["publish_to_deliver_max_ms"] == 3
