"""Where groups begin and how they move: commits, automatic ones, resets."""

from __future__ import annotations

from typing import Any

import pytest

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.group_properties import request_of_group
from assay.reference_broker.mqtt.queue_topics.subscribe_properties import parse_subscribe_options
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.cursors import resolve
from assay.reference_broker.queues.groups.subscribe_options import CursorKind, CursorPosition, parse_cursor
from tests.queues.conftest import BenchConsumer, QueueBench
from tests.queues.group_bench import BenchWith, code_of, join, publish, reset

# -- where a group begins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        ("earliest", ["0", "1", "2", "3", "new"]),
        ("latest", ["new"]),
        ("committed", ["0", "1", "2", "3", "new"]),
        ("0", ["0", "1", "2", "3", "new"]),
        ("2", ["2", "3", "new"]),
        ("99", ["new"]),
    ],
)
def test_a_new_group_begins_where_it_asks(bench: QueueBench, cursor: str, expected: list[str]) -> None:
    publish(bench, "0", "1", "2", "3")
    consumer = join(bench, asks={"cursor": cursor})
    publish(bench, "new")
    assert consumer.values == expected


def test_latest_means_behind_what_was_published_in_the_same_turn(bench: QueueBench) -> None:
    bench.publish("before")
    consumer = join(bench, asks={"cursor": "latest"})
    bench.publish("after")
    bench.turn()
    assert consumer.values == ["after"]


def test_a_queue_says_where_groups_begin(bench_with: BenchWith) -> None:
    bench = bench_with(group={"start": "latest"})
    publish(bench, "old")
    late, early = join(bench, "l"), join(bench, "e", group="e", asks={"cursor": "earliest"})
    publish(bench, "new")
    assert late.values == ["new"]
    assert early.values == ["old", "new"]


def test_a_time_means_the_first_message_that_is_not_earlier(bench: QueueBench) -> None:
    times = []
    for number in range(50):
        times.append(int(bench.now * 1000))
        publish(bench, str(number))
        bench.advance(0.001 + number % 7 * 0.4)
    partition = bench.engine._queues["q"].partitions[0]
    for at in [*times, *(time + 1 for time in times), *(time - 1 for time in times), 0, times[-1] + 10_000]:
        position = CursorPosition(kind=CursorKind.TIME, value=at)
        wanted = next((offset for offset, time in enumerate(times) if time >= at), len(times))
        assert resolve(position, partition, 0) == wanted


def test_a_cursor_is_only_for_a_group_without_position(durable: QueueBench) -> None:
    publish(durable, "0", "1")
    first = join(durable)
    durable.turn()
    first.ack(first.take()[0])
    durable.turn()
    first.leave()
    again = join(durable, asks={"cursor": "latest"})
    durable.turn()
    assert again.values == ["1"]
    durable.restart()
    once_more = join(durable, asks={"cursor": "earliest"})
    durable.turn()
    assert once_more.values == ["1"]


def test_where_a_group_began_survives_a_restart(durable: QueueBench) -> None:
    publish(durable, "0", "1", "2")
    join(durable, asks={"cursor": "2"})
    durable.turn()
    durable.restart()
    again = join(durable)
    durable.turn()
    assert again.values == ["2"]


@pytest.mark.parametrize("text", ["", "first", "-1", "١", "2026-01-31", "1" * 20, "2026-13-01T00:00:00Z"])
def test_bad_cursors_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cursor|digits"):
        parse_cursor(text)


@pytest.mark.parametrize(
    "pair",
    [("ack-mode", "never"), ("prefetch", "0"), ("prefetch", "65536"), ("notify", "yes"), ("cursor", "x")],
)
def test_bad_subscribe_options_are_refused(pair: tuple[str, str]) -> None:
    assert code_of(lambda: parse_subscribe_options((pair,))) is QueueErrorCode.BAD_OPTION
    assert code_of(lambda: parse_subscribe_options((("notify", "1"), ("notify", "1")))) is QueueErrorCode.BAD_OPTION


# -- commits -----------------------------------------------------------------------------------------------------


def commit(bench: QueueBench, offset: int, consumer: str | None = "c", partition: int = 0) -> int:
    return bench.engine.groups.commit("q", "g", partition, offset, consumer_id=consumer, now=bench.now)


def test_a_commit_settles_all_below_it(durable: QueueBench) -> None:
    consumer = join(durable)
    publish(durable, *"abcde")
    consumer.nack(consumer.got[1])
    consumer.room = 0
    durable.turn()
    assert commit(durable, 3) == 3
    assert commit(durable, 3) == 0, "what is committed may be committed again"
    details = durable.engine.groups.details("q", "g").partitions[0]
    assert (details.committed, details.cursor, details.in_flight, details.waiting) == (3, 5, 2, 0)
    assert code_of(lambda: consumer.ack(consumer.got[0])) is QueueErrorCode.NOT_PENDING
    durable.turn()
    durable.restart()
    again = join(durable)
    durable.turn()
    assert list(zip(again.values, again.counts, strict=True)) == [("d", 2), ("e", 2)]


def test_a_commit_goes_neither_back_nor_beyond_the_deliveries(bench: QueueBench) -> None:
    consumer = join(bench, room=3)
    publish(bench, *"abcde")
    assert len(consumer.got) == 3
    assert commit(bench, 2) == 2
    assert code_of(lambda: commit(bench, 1)) is QueueErrorCode.BAD_CURSOR
    assert code_of(lambda: commit(bench, 4)) is QueueErrorCode.BAD_CURSOR
    assert commit(bench, 3) == 1


def _asks(bench: QueueBench, queue: str = "q", **named: str) -> list[QueueError | None]:
    """A commit up to offset 1, as a consumer writes it."""
    told: list[QueueError | None] = []
    properties = tuple({"group-id": "g", "offset": "1", **named}.items())
    request_of_group(
        bench.engine.groups, Verb.COMMIT, queue, properties, consumer_id="c", now=bench.now, on_done=told.append
    )
    bench.turn()
    return told


def test_a_commit_names_the_partition_unless_there_is_one(bench_with: BenchWith) -> None:
    for partitions in (1, 2):
        bench = bench_with(partitions=partitions)
        join(bench)
        for partition in range(partitions):
            bench.publish("x", user_properties=(("partition", str(partition)),))
        bench.turn()
        last = partitions - 1
        assert _asks(bench, partition=str(last)) == [None]
        details = bench.engine.groups.details("q", "g").partitions
        assert [each.committed for each in details] == [0] * last + [1]
        for unknown in ("2", "-1", "", "x"):
            with pytest.raises(QueueError):
                _asks(bench, partition=unknown)
        if partitions == 1:
            assert _asks(bench) == [None]
        else:
            assert code_of(lambda: _asks(bench)) is QueueErrorCode.BAD_ADDRESS  # noqa: B023 - called at once
        assert code_of(lambda: _asks(bench, "none")) is QueueErrorCode.BAD_ADDRESS  # noqa: B023


def test_the_only_partition_is_the_first(bench: QueueBench) -> None:
    join(bench)
    bench.publish("x")
    bench.turn()
    assert _asks(bench) == [None]
    assert bench.engine.groups.details("q", "g").partitions[0].committed == 1


def test_only_the_consumer_of_a_partition_commits_it(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2)
    join(bench, "a"), join(bench, "b")
    assert code_of(lambda: commit(bench, 0, "a", 1)) is QueueErrorCode.NOT_ALLOWED
    assert code_of(lambda: commit(bench, 0, "x", 1)) is QueueErrorCode.UNKNOWN_MEMBER
    assert code_of(lambda: commit(bench, 0, "a", 2)) is QueueErrorCode.BAD_ADDRESS
    assert commit(bench, 0, "b", 1) == 0
    assert commit(bench, 0, None, 0) == 0, "an administrator may"


# -- automatic commit --------------------------------------------------------------------------------------------


def receive(bench: QueueBench, consumer: BenchConsumer, *deliveries: Any) -> None:
    assert consumer.handle is not None
    for delivery in deliveries:
        bench.engine.groups.received(consumer.handle, delivery.partition, delivery.offset, bench.now)


def test_what_was_received_is_committed_every_interval(bench: QueueBench) -> None:
    consumer = join(bench, asks={"ack_mode": "auto"})
    publish(bench, "a", "b", "c")
    receive(bench, consumer, *consumer.got[:2])
    bench.advance(4.9)
    assert bench.engine.stats("q").groups[0].acked == 0
    bench.advance(0.2)
    stats = bench.engine.stats("q").groups[0]
    assert (stats.acked, stats.in_flight) == (2, 1)
    receive(bench, consumer, consumer.got[2])
    bench.advance(5.1)
    assert bench.engine.stats("q").depth == 0


def test_what_is_not_committed_comes_again(bench: QueueBench) -> None:
    first = join(bench, "first", asks={"ack_mode": "auto"})
    publish(bench, "a", "b")
    receive(bench, first, first.got[0])
    bench.advance(5.1)
    publish(bench, "c")
    receive(bench, first, *first.got[1:])
    bench.advance(3)
    first.leave()
    second = join(bench, "second", asks={"ack_mode": "auto"})
    bench.advance(30)
    assert list(zip(second.values, second.counts, strict=True))[:2] == [("b", 2), ("c", 2)]


def test_automatic_commit_does_not_limit_the_rate(bench_with: BenchWith) -> None:
    bench = bench_with(max_in_flight=10)
    consumer = join(bench, asks={"ack_mode": "auto"})
    publish(bench, *map(str, range(100)))
    for _ in range(100):
        receive(bench, consumer, *consumer.take())
        bench.turn()
    assert bench.engine.stats("q").groups[0].delivered == 100


def test_a_delivery_that_was_taken_back_is_not_committed(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=2, retry={"initial_backoff_s": 60})
    consumer = join(bench, asks={"ack_mode": "auto"})
    publish(bench, "a")
    receive(bench, consumer, consumer.got[0])
    bench.advance(10)
    stats = bench.engine.stats("q").groups[0]
    assert (stats.acked, stats.timed_out) == (0, 1)


# -- resets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cursor", "expected"), [("earliest", "abcd"), ("1", "bcd"), ("committed", "bcd"), ("3", "d"), ("latest", "")]
)
def test_a_reset_sets_the_group_back_or_forth(durable: QueueBench, cursor: str, expected: str) -> None:
    consumer = join(durable, room=3)
    publish(durable, *"abcd")
    consumer.ack(consumer.got[0])
    held = consumer.take()
    reset(durable, cursor)
    for delivery in held[1:]:
        with pytest.raises(QueueError, match="not pending"):
            consumer.ack(delivery)
    consumer.room = 10**9
    assert consumer.handle is not None
    durable.engine.resume(consumer.handle, durable.now)
    durable.turn()
    assert (consumer.values, set(consumer.counts) <= {1}) == (list(expected), True)
    assert durable.engine.stats("q").depth == len(expected)
    durable.restart()
    again = join(durable)
    durable.turn()
    assert again.values == list(expected)


def test_a_reset_keeps_the_counts_whole(bench: QueueBench) -> None:
    consumer = join(bench)
    publish(bench, *"abcd")
    for delivery in consumer.got[:3]:
        consumer.ack(delivery)
    consumer.room = 0
    reset(bench, "earliest")
    counts = bench.engine._queues["q"].groups["g"].counts
    assert (counts.rewound, counts.skipped) == (3, 0)
    reset(bench, "latest")
    assert (counts.rewound, counts.skipped) == (3, 4)
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.ready, stats.in_flight) == (0, 0, 0)


def test_a_reset_of_one_partition_leaves_the_others(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2)
    consumer = join(bench)
    publish(bench, *map(str, range(20)))
    for delivery in consumer.take():
        consumer.ack(delivery)
    assert reset(bench, "earliest", 1) == {1: 0}
    bench.turn()
    assert {delivery.partition for delivery in consumer.got} == {1}
    assert code_of(lambda: reset(bench, "earliest", 2)) is QueueErrorCode.BAD_ADDRESS


def test_a_dead_letter_that_is_under_way_survives_a_reset(durable: QueueBench) -> None:
    consumer = join(durable)
    publish(durable, "a")
    outcome = consumer.reject(consumer.take()[0])
    reset(durable, "earliest")
    durable.turn()
    assert outcome.confirmed
    assert durable.engine.stats("q").dead_letters == 1
    assert consumer.values == ["a"]


def test_a_dead_letter_that_was_refused_before_a_reset_and_again_after_it_is_two(bench_with: BenchWith) -> None:
    bench = bench_with(max_depth=3, overflow="dead_letter_oldest", retry={"max_retries": 0})
    consumer = bench.consumer()
    for number in range(3):
        bench.publish(str(number))
        bench.turn()
        consumer.reject(consumer.got[-1])
    for number in range(3, 5):
        bench.publish(str(number))
        bench.turn()
        consumer.reject(consumer.got[-1])
    # The dead-letter queue is full; the last two are refused, then all again at the same time.
    for _ in range(2):
        reset(bench, "3")
        bench.turn()
        for delivery in consumer.got[-2:]:
            consumer.reject(delivery)
        bench.turn()
    bench.advance(60.0)
    assert bench.engine.stats("q").groups[0].dead_lettering == 2


def test_what_was_leaving_for_a_full_dead_letter_queue_is_not_leaving_after_a_reset(bench_with: BenchWith) -> None:
    bench = bench_with(max_depth=3, overflow="dead_letter_oldest")
    bench.consumer(room=0)
    group = bench.engine._queues["q"].groups["g"]
    for number in range(9):
        bench.publish(str(number))
        bench.turn()
    assert group.leaving == 3
    reset(bench, "latest")
    assert group.leaving == 0
    bench.advance(60.0)
    assert group.leaving == 0
    for number in range(6):
        bench.publish(str(number))
        bench.turn()
    assert code_of(lambda: bench.publish("over")) is QueueErrorCode.FULL


def test_a_delivery_that_its_consumer_did_not_take_is_none(durable: QueueBench) -> None:
    """Neither a first one nor another one: whoever takes it at last is told how often it was really delivered."""
    consumer = join(durable, room=0)
    handle = consumer.handle
    assert handle is not None
    publish(durable, "a")
    consumer.room = 1
    durable.engine.resume(handle, durable.now)
    durable.turn()
    consumer.room = 0
    consumer.nack(consumer.got[0])
    for _ in range(3):
        durable.turn()
        durable.engine.resume(handle, durable.now)
    consumer.room = 9
    durable.turn()
    assert consumer.counts == [1, 2]


def test_what_a_retry_held_back_comes_once_that_is_committed(bench_with: BenchWith) -> None:
    """Found by lives of queues: nobody was served until something else happened to the group."""
    retry = {"nack_immediately": False, "initial_backoff_s": 1_000.0, "max_backoff_s": 1_000.0}
    bench = bench_with(retry=retry)
    only = join(bench, "a")
    publish(bench, "x", "y")
    bench.turn()
    only.nack(only.got[0])
    publish(bench, "z")
    bench.turn()
    assert only.values == ["x", "y"]
    bench.engine.groups.commit("q", "g", 0, 2, consumer_id="a", now=bench.now)
    bench.turn()
    assert only.values == ["x", "y", "z"]
