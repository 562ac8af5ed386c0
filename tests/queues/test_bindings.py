"""Queues that get the messages of topics that do not name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.queue import bindings
from assay.reference_broker.queues.queue.bindings import Bindings
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import matches
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]

LEVELS = st.sampled_from(["a", "b", "", "$x", "$queue"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.one_of(LEVELS, st.just("+")), max_size=4), st.booleans())
    .map(lambda parts: "/".join([*parts[0], "#"] if parts[1] else parts[0]))
    .filter(bool)
)


@given(st.lists(st.lists(FILTERS, max_size=3).map(tuple), max_size=4), st.lists(TOPICS, min_size=1, max_size=5))
def test_the_tree_agrees_with_matching_one_by_one(filters: list[tuple[str, ...]], topics: list[str]) -> None:
    named = [(f"q{number}", own) for number, own in enumerate(filters)]
    tree = Bindings(named)
    for topic in topics * 2:
        wanted = tuple(name for name, own in named if any(matches(each, topic) for each in own))
        assert tree.match(topic) == wanted


def capture(bench: QueueBench, topic: str, payload: bytes = b"m", **fields: object) -> None:
    bench.engine.capture(Message(topic=topic, payload=payload, **fields), bench.now)  # type: ignore[arg-type]


def test_fan_in_and_fan_out(bench: QueueBench) -> None:
    engine = bench.engine
    engine.create_queue("orders", {"topics": ["shop/+/order", "payments/approved"]}, bench.now)
    engine.create_queue("audit", {"topics": ["shop/#", "shop/+/order"]}, bench.now)
    orders, audit = bench.consumer(queue="orders"), bench.consumer(queue="audit")
    for number, topic in enumerate(("shop/1/order", "payments/approved", "shop", "other", "$shop/1/order")):
        capture(bench, topic, b"%d" % number)
    bench.turn()
    assert orders.values == ["0", "1"]
    assert audit.values == ["0", "2"], "once, though two filters match; the parent level matches '#'"
    first = orders.got[0]
    assert first.topic == "$queue/orders/shop/1/order"
    assert ("source-topic", "shop/1/order") in first.message.user_properties


def test_a_filter_of_the_consumer_applies_to_the_captured_topic(bench: QueueBench) -> None:
    bench.engine.create_queue("all", {"topics": ["#"]}, bench.now)
    images = bench.consumer(queue="all", pattern="images/#")
    for topic in ("images", "images/cat", "sounds/dog", "$images/x"):
        capture(bench, topic, topic.encode())
    bench.turn()
    assert images.values == ["images", "images/cat"]


def test_queue_topics_reach_other_queues_once_each(durable: QueueBench) -> None:
    engine = durable.engine
    engine.create_queue("audit", {"topics": ["$queue/#", "$queue/orders/+"]}, durable.now)
    engine.create_queue("self", {"topics": ["$queue/self/#"]}, durable.now)
    orders, audit, own = (durable.consumer(queue=name) for name in ("orders", "audit", "self"))
    outcome = durable.publish("a", "$queue/orders/new")
    durable.publish("b", "$queue/self/x")
    durable.turn()
    assert outcome.confirmed
    assert (orders.values, audit.values, own.values) == (["a"], ["a", "b"], ["b"])
    assert audit.got[0].topic == "$queue/audit/orders/new"


def test_the_confirm_waits_for_every_queue(durable: QueueBench) -> None:
    durable.engine.create_queue("audit", {"topics": ["$queue/orders/#"]}, durable.now)
    durable.consumer(queue="orders")
    durable.turn()
    outcome = durable.publish("a", "$queue/orders/new")
    durable.engine.dispatch(durable.now)
    first, second = durable.engine.take_jobs(durable.now)
    for job in (first, second):
        assert outcome.calls == []
        job.run()
        durable.engine.job_done(job, None, durable.now)
    assert outcome.confirmed


def test_a_bound_queue_that_refuses_fails_the_confirm(bench: QueueBench) -> None:
    bench.engine.create_queue("audit", {"topics": ["$queue/orders/#"], "max_message_bytes": 30}, bench.now)
    assert bench.publish("x" * 31, "$queue/orders").failed is False
    bench.turn()
    outcome = bench.publish("x" * 31, "$queue/orders")
    bench.turn()
    assert outcome.failed
    bench.engine.update_queue("orders", {"max_message_bytes": 30}, bench.now)
    with pytest.raises(QueueError):
        bench.publish("x" * 31, "$queue/orders")
    assert bench.engine.stats("audit").depth == 0


def test_dead_letters_and_settlements_are_not_bound(bench: QueueBench) -> None:
    bench.engine.create_queue("audit", {"topics": ["$queue/#"]}, bench.now)
    bench.publish("letter", "$queue/dlq/orders")
    bench.turn()
    assert bench.engine.stats("audit").depth == 0
    assert QueueTopics(bench.engine).read("$queue/orders/$ack").address.bound == ()


def test_a_topic_of_no_queue_is_enough_when_another_is_bound(bench_with: BenchWith) -> None:
    bench = bench_with(auto_create=False)
    bench.engine.create_queue("audit", {"topics": ["$queue/orders/#"]}, bench.now)
    outcome = bench.publish("a", "$queue/orders/x")
    bench.turn()
    assert outcome.confirmed
    assert bench.engine.queues() == ["audit"]
    with pytest.raises(QueueError):
        bench.publish("a", "$queue/unknown")


def test_capture_counts_what_the_queue_refuses(bench: QueueBench) -> None:
    bench.engine.create_queue("q", {"topics": ["a/#"], "max_depth": 2}, bench.now)
    for _ in range(5):
        capture(bench, "a")
    capture(bench, "a", user_properties=(("delay", "soon"),))
    capture(bench, "a/" + "x" * 65_530)
    bench.turn()
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.captured, stats.capture_failures, stats.capture_dropped) == (2, 2, 5, 0)


def test_capture_is_bounded_while_the_disk_is_slow(durable: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "MAX_WAITING", 10)
    durable.engine.create_queue("q", {"topics": ["a"]}, durable.now)
    for number in range(25):
        capture(durable, "a", b"%d" % number)
        durable.engine.dispatch(durable.now)
    stats = durable.engine.stats("q")
    assert (stats.capture_dropped, stats.captured) == (15, 0)
    durable.turn()
    consumer = durable.consumer()
    durable.turn()
    assert consumer.values == [str(number) for number in range(10)], "the newest are dropped"
    capture(durable, "a", b"later")
    durable.turn()
    assert consumer.values[-1] == "later"


def test_bindings_follow_their_queues(bench: QueueBench) -> None:
    changes: list[None] = []
    bench.engine.on_bindings_changed = lambda: changes.append(None)
    assert bench.engine.captures is None
    bench.engine.create_queue("q", {"topics": ["a"]}, bench.now)
    assert bench.engine.is_captured("a")
    assert not bench.engine.is_captured("b")
    bench.publish("x", "$queue/other")
    assert len(changes) == 1, "another queue changes nothing"
    bench.engine.update_queue("q", {"topics": ["b", "$queue/other"]}, bench.now)
    assert bench.engine.is_captured("b")
    assert QueueTopics(bench.engine).address("$queue/other").bound == ("q",)
    bench.engine.update_queue("q", {"topics": ["$queue/#"]}, bench.now)
    assert bench.engine.captures is None
    bench.engine.update_queue("q", {"topics": None}, bench.now)
    assert QueueTopics(bench.engine).address("$queue/other").bound == ()


def test_bindings_survive_a_restart(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    bench.engine.create_queue("q", {"topics": ["a/+"]}, bench.now)
    capture(bench, "a/b")
    bench.turn()
    bench.restart()
    consumer = bench.consumer()
    capture(bench, "a/c", b"n")
    bench.turn()
    assert consumer.values == ["m", "n"]
    assert [delivery.topic for delivery in consumer.got] == ["$queue/q/a/b", "$queue/q/a/c"]


@pytest.mark.parametrize("topic_filter", ["a/#/b", "a#", "+a", "", "$SYS/#", "$dlq/x", "$share/g/t", "$admin/#"])
def test_filters_that_cannot_be_bound_are_refused(bench: QueueBench, topic_filter: str) -> None:
    with pytest.raises(QueueError) as caught:
        bench.engine.create_queue("q", {"topics": [topic_filter]}, bench.now)
    assert caught.value.code is QueueErrorCode.BAD_OPTION
    assert bench.engine.queues() == []
