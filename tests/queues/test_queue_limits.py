"""Limits of a queue: depth, bytes, size, time to live, overflow. Each at the limit and one over it (R19)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST
from assay.reference_broker.queues.jobs import agenda
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind

from .actor import Actor
from .conftest import Outcome, QueueBench

Benches = Callable[..., QueueBench]


def _refused(bench: QueueBench, value: str, **fields: Any) -> QueueErrorCode:
    with pytest.raises(QueueError) as refused:
        bench.publish(value, **fields)
    return refused.value.code


def _dead(bench: QueueBench) -> list[tuple[str, str | None]]:
    consumer = bench.consumer("dlq", queue="$dlq/q")
    bench.turn()
    return [(each.message.payload.decode(), each.message.user_property("_dlq_reason")) for each in consumer.got]


@pytest.fixture(params=["memory", "disk"])
def disk(request: pytest.FixtureRequest) -> MemoryDisk | None:
    return MemoryDisk() if request.param == "disk" else None


# -- at the limit and over it ----------------------------------------------------------------------------------------


def test_max_depth(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, max_depth=3)
    for number in range(3):
        bench.publish(str(number))
    assert _refused(bench, "over") is QueueErrorCode.FULL
    consumer = bench.consumer()
    bench.turn()
    assert _refused(bench, "over") is QueueErrorCode.FULL, "what is in flight counts"
    consumer.ack(consumer.got[0])
    bench.publish("fits again")
    assert _refused(bench, "over") is QueueErrorCode.FULL


def test_max_bytes(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, max_bytes=10)
    bench.publish("12345")
    bench.publish("12345")
    assert _refused(bench, "1") is QueueErrorCode.FULL
    consumer = bench.consumer()
    bench.turn()
    assert _refused(bench, "1") is QueueErrorCode.FULL
    consumer.ack(consumer.got[0])
    assert _refused(bench, "123456") is QueueErrorCode.FULL
    bench.publish("12345")
    assert bench.engine.stats("q").held_bytes == 10


def test_a_message_that_a_group_does_not_want_frees_its_own_bytes(bench_with: Benches) -> None:
    """The bytes of the message behind it were freed instead."""
    bench = bench_with(max_bytes=100)
    bench.consumer(pattern="wanted")
    for routing_key, value in (("other", "1234567890"), ("wanted", "12345")):
        bench.publish(value, topic=f"$queue/q/{routing_key}")
    bench.turn()
    assert bench.engine.stats("q").held_bytes == 5


def test_max_message_bytes_counts_the_user_properties(bench_with: Benches) -> None:
    bench = bench_with(max_message_bytes=10)
    bench.publish("1234567890")
    bench.publish("12345", user_properties=(("na", "val"),))
    assert _refused(bench, "12345678901") is QueueErrorCode.TOO_LARGE
    assert _refused(bench, "123456", user_properties=(("na", "val"),)) is QueueErrorCode.TOO_LARGE


def test_bytes_stay_right_through_a_restart(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), max_bytes=100_000, partitions=2)
    rng = random.Random(4)
    consumer = bench.consumer(room=0)
    held: dict[str, int] = {}
    for number in range(120):
        value = f"{number}:".ljust(rng.randint(5, 60), "x")
        lane = str(rng.randrange(5))
        bench.publish(value, user_properties=(("priority", lane),))
        held[value] = len(value) + len("priority") + 1
        if number % 20 == 10:
            consumer.room = 9
            assert consumer.handle is not None
            bench.engine.resume(consumer.handle, bench.now)
            bench.turn()
            for delivery in consumer.take()[:6]:
                consumer.ack(delivery)
                del held[delivery.message.payload.decode()]
        if number % 50 == 49:
            bench.turn()
            bench.restart()
            consumer = bench.consumer(room=0)
        assert bench.engine.stats("q").held_bytes == sum(held.values()), number


@pytest.mark.parametrize("is_run", [True, False])
def test_a_batch_meets_the_same_limits_as_singles(bench_with: Benches, is_run: bool) -> None:
    """P5: a batch publish bypassed the time to live."""
    bench = bench_with(max_depth=40, message_ttl_s=5.0, max_message_bytes=4)
    if is_run:
        # To a queue that is there already the batch goes as a whole.
        bench.engine.create_queue("q", {}, bench.now)
    messages = [Message(topic="$queue/q", payload=b"%d" % number) for number in range(40)]
    outcome = Outcome()
    bench.engine.publish_many(QueueTopics(bench.engine).address("$queue/q"), messages, bench.now, outcome)
    bench.turn()
    assert bench.engine.stats("q").depth == 40
    assert _refused(bench, "large") is QueueErrorCode.TOO_LARGE
    assert _refused(bench, "o") is QueueErrorCode.FULL
    bench.advance(5.1)
    assert bench.engine.stats("q").depth == 0
    assert bench.engine.stats("q").expired == 40


# -- overflow --------------------------------------------------------------------------------------------------------


def test_the_oldest_makes_room(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, max_depth=3, overflow="drop_oldest", partitions=2)
    for number in range(8):
        bench.publish(str(number))
        bench.turn()
        bench.advance(0.01)
    assert bench.engine.stats("q").depth == 3
    assert bench.engine.stats("q").dropped == 5
    consumer = bench.consumer()
    bench.turn()
    assert sorted(consumer.values) == ["5", "6", "7"]
    assert bench.kinds(TraceKind.DISCARDED) == [TraceKind.DISCARDED] * 5


def test_the_oldest_of_each_full_group_makes_room_but_nothing_that_was_delivered(bench_with: Benches) -> None:
    bench = bench_with(max_depth=3, overflow="drop_oldest")
    for number in range(3):
        bench.publish(str(number))
    slow = bench.consumer(group="slow", room=1)
    fast = bench.consumer(group="fast")
    bench.turn()
    for delivery in fast.take():
        fast.ack(delivery)
    bench.publish("3")
    bench.publish("4")
    bench.turn()
    assert fast.values == ["3", "4"]
    stats = {group.group: group for group in bench.engine.stats("q").groups}
    assert (stats["slow"].dropped, stats["slow"].in_flight, stats["slow"].lag) == (2, 1, 2)
    assert len(bench.kinds(TraceKind.DISCARDED)) == 2, "what is counted is traced"
    assert stats["fast"].dropped == 0
    slow.nack(slow.got[0])
    slow.room = 10
    assert slow.handle is not None
    bench.engine.resume(slow.handle, bench.now)
    bench.turn()
    assert slow.values == ["0", "0", "3", "4"]
    assert _refused(bench, "none is left to drop") is QueueErrorCode.FULL


def test_a_burst_in_one_turn_keeps_the_newest(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, max_depth=3, overflow="drop_oldest")
    consumer = bench.consumer(room=0)
    outcomes = [bench.publish(str(number)) for number in range(10)]
    bench.turn()
    assert all(outcome.confirmed for outcome in outcomes)
    consumer.room = 10
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert consumer.values == ["7", "8", "9"]


@pytest.mark.parametrize("has_group", [False, True])
def test_the_oldest_makes_room_before_it_is_synced_and_when_it_is_not_in_memory_any_more(
    bench_with: Benches, monkeypatch: pytest.MonkeyPatch, has_group: bool
) -> None:
    """A burst that is larger than the cache was refused: what no sync covered yet was not read back."""
    monkeypatch.setattr("assay.reference_broker.queues.registry.registry.CACHE_BYTES", 1_000)
    bench = bench_with(MemoryDisk(), durability="fsync", max_depth=3, overflow="drop_oldest")
    consumer = bench.consumer(room=0) if has_group else None
    for number in range(9):
        bench.publish(str(number))
    bench.turn()
    if consumer is None or consumer.handle is None:
        consumer = bench.consumer()
    else:
        consumer.room = 9
        bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert consumer.values == ["6", "7", "8"]


def test_the_oldest_goes_to_the_dead_letters_when_asked(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, max_depth=3, overflow="dead_letter_oldest")
    consumer = bench.consumer(room=0)
    for number in range(6):
        bench.publish(str(number))
        bench.turn()
    assert bench.engine.stats("q").depth == 3
    assert bench.engine.stats("q").groups[0].dead_lettered == 3
    assert _dead(bench) == [("0", "QUEUE_FULL"), ("1", "QUEUE_FULL"), ("2", "QUEUE_FULL")]
    consumer.room = 5
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert consumer.values == ["3", "4", "5"]


def test_a_full_dead_letter_queue_refuses_in_the_end(bench_with: Benches) -> None:
    for group in (True, False):
        bench = bench_with(max_depth=3, overflow="dead_letter_oldest")
        if group:
            bench.consumer(room=0)
        for _ in range(9):
            bench.publish("x")
            bench.turn()
        # Three are here, three are dead letters, three on their way.
        assert _refused(bench, "x") is QueueErrorCode.FULL


def test_without_a_group_the_oldest_goes_to_the_dead_letters_too(bench_with: Benches) -> None:
    bench = bench_with(max_depth=2, overflow="dead_letter_oldest")
    for number in range(4):
        bench.publish(str(number))
        bench.turn()
    assert _dead(bench) == [("0", "QUEUE_FULL"), ("1", "QUEUE_FULL")]
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["2", "3"]


def test_bytes_make_room_by_dropping_as_many_as_it_takes(bench_with: Benches) -> None:
    bench = bench_with(max_bytes=10, overflow="drop_oldest")
    bench.consumer(room=0)
    for value in ("aa", "bb", "cccc"):
        bench.publish(value)
    bench.publish("dddddd")
    assert bench.engine.stats("q").held_bytes == 10
    assert _refused(bench, "eleven byte") is QueueErrorCode.FULL
    assert bench.engine.stats("q").groups[0].dropped == len(bench.kinds(TraceKind.DISCARDED)) == 2


def test_a_message_without_bytes_makes_room_too_where_a_late_group_is_over_the_limit(bench_with: Benches) -> None:
    bench = bench_with(max_bytes=10, overflow="drop_oldest")
    consumer = bench.consumer()
    for value in ("aaaa", "bbbb", "cccc", "dddd"):
        bench.publish(value)
        bench.turn()
        consumer.ack(consumer.got[-1])
    bench.consumer(group="late", room=0)
    bench.turn()
    assert bench.engine.stats("q").held_bytes == 16
    bench.publish("")
    bench.turn()
    stats = bench.engine.stats("q")
    assert (stats.held_bytes, [group.dropped for group in stats.groups]) == (8, [0, 2])
    assert consumer.values[-1] == ""


def test_what_is_refused_in_the_end_costs_no_other_message(bench_with: Benches) -> None:
    """Lives found it: all that could go was given up, and it did not fit all the same (Q-LIMIT-05)."""
    retry = {"initial_backoff_s": 60.0, "max_backoff_s": 60.0}
    bench = bench_with(max_bytes=100, overflow="drop_oldest", retry=retry)
    consumer = bench.consumer(room=2)
    for value in ("a" * 40, "b" * 40, "c" * 10):
        bench.publish(value)
    bench.turn()
    assert len(consumer.got) == 2
    assert _refused(bench, "d" * 30) is QueueErrorCode.FULL
    bench.publish("e" * 20)
    bench.turn()
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.held_bytes, stats.groups[0].dropped) == (3, 100, 1), "the c are gone, for the e"
    consumer.nack(consumer.got[0])
    bench.turn()
    assert _refused(bench, "f" * 30) is QueueErrorCode.FULL, "what waits for a second delivery is nobody's to drop"
    assert bench.engine.stats("q").groups[0].dropped == 1


def test_neither_limit_costs_a_message_that_the_other_refuses(bench_with: Benches) -> None:
    bench = bench_with(max_bytes=100, max_depth=2, overflow="drop_oldest")
    consumer = bench.consumer(room=1)
    bench.publish("a" * 80)
    bench.publish("b")
    bench.turn()
    assert len(consumer.got) == 1
    assert _refused(bench, "c" * 30) is QueueErrorCode.FULL
    assert bench.engine.stats("q").groups[0].dropped == 0


def test_what_is_behind_an_open_transaction_is_not_counted_on(bench_with: Benches) -> None:
    bench = bench_with(max_bytes=200, overflow="drop_oldest")
    bench.consumer(room=0)
    actor = Actor(bench)
    bench.publish("a" * 10)
    transaction = actor.begin()
    actor.publish("b" * 40, transaction)
    bench.publish("c" * 80)
    bench.turn()
    assert _refused(bench, "d" * 60) is QueueErrorCode.FULL
    assert bench.engine.stats("q").groups[0].dropped == 0
    actor.commit(transaction)
    bench.turn()
    bench.publish("d" * 60)
    bench.turn()
    assert bench.engine.stats("q").groups[0].dropped == 2


# -- time to live ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
def test_expired_messages_leave_the_depth_while_nobody_consumes(
    bench_with: Benches, disk: MemoryDisk | None, grouped: bool
) -> None:
    bench = bench_with(disk, message_ttl_s=60.0, partitions=3)
    if grouped:
        bench.consumer().leave()
    for number in range(30):
        ttl = "5s" if number % 3 == 0 else "1m" if number % 3 == 1 else "1h"
        bench.publish(str(number), user_properties=(("ttl", ttl),))
    bench.turn()
    bench.advance(4.9)
    assert bench.engine.stats("q").depth == 30
    bench.advance(0.3)
    assert bench.engine.stats("q").depth == 20, "although live messages are before them"
    bench.advance(56.0)
    stats = bench.engine.stats("q")
    assert stats.depth == 0, "the queue's time to live ends what the publisher wanted to live longer"
    assert stats.expired + sum(group.expired for group in stats.groups) == 30
    late = bench.consumer(group="late")
    bench.turn()
    assert late.got == []


def test_what_expired_behind_a_live_message_is_counted_once(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, message_ttl_s=0.0)
    consumer = bench.consumer(room=0)
    bench.publish("live")
    bench.publish("short", user_properties=(("ttl", "1s"),))
    bench.publish("also live")
    bench.advance(2.0)
    (group,) = bench.engine.stats("q").groups
    assert (group.lag, group.expired) == (2, 1)
    late = bench.consumer("late", group="late")
    bench.turn()
    assert late.values == ["live", "also live"]
    consumer.room = 10
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert consumer.values == ["live", "also live"]
    stats = {group.group: group for group in bench.engine.stats("q").groups}
    assert (stats["g"].lag, stats["g"].expired, stats["late"].lag) == (0, 1, 0)


def test_a_message_in_flight_outlives_its_time_and_a_waiting_one_does_not(bench_with: Benches) -> None:
    bench = bench_with(message_ttl_s=0.0, retry={"nack_immediately": False, "initial_backoff_s": 3_600.0})
    consumer = bench.consumer()
    bench.publish("held", user_properties=(("ttl", "2s"),))
    bench.publish("nacked", user_properties=(("ttl", "2s"),))
    bench.turn()
    held, nacked = consumer.take()
    consumer.nack(nacked)
    bench.advance(3.0)
    (group,) = bench.engine.stats("q").groups
    assert (group.in_flight, group.retrying, group.expired) == (1, 0, 1)
    assert consumer.ack(held)
    assert bench.engine.stats("q").depth == 0


def test_a_message_may_expire_before_it_is_safe(bench_with: Benches) -> None:
    """P10: its time is over before the sync is. The publisher is told of the sync; nobody was to get it."""
    bench = bench_with(MemoryDisk(), message_ttl_s=0.0, durability="fsync")
    consumer = bench.consumer()
    bench.turn()
    outcomes = [bench.publish("lasts")] + [bench.publish(f"short {n}", user_properties=(("ttl", "2s"),)) for n in "ab"]
    bench.engine.dispatch(bench.now)
    jobs = bench.engine.take_jobs(bench.now)
    assert jobs
    bench.now += 5.0
    bench.engine.tick(bench.now)
    bench.engine.dispatch(bench.now)
    before = bench.engine.stats("q").groups[0]
    assert (before.expired, [outcome.calls for outcome in outcomes]) == (0, [[], [], []]), "it may yet fail"
    for job in jobs:
        job.run()
        bench.engine.job_done(job, None, bench.now)
    bench.advance(1.0)
    assert all(outcome.confirmed for outcome in outcomes)
    assert consumer.values == ["lasts"]
    stats = bench.engine.stats("q")
    assert (stats.groups[0].expired, stats.depth, stats.in_flight) == (2, 1, 1)


def test_the_earliest_time_to_live_counts(bench_with: Benches) -> None:
    bench = bench_with(message_ttl_s=10.0)
    bench.publish("own", expires_at=bench.now + 3.0, user_properties=(("ttl", "5s"),))
    bench.publish("option", expires_at=bench.now + 300.0, user_properties=(("ttl", "5s"),))
    bench.publish("queue", user_properties=(("ttl", "1h"),))
    bench.turn()
    gone = []
    for second in range(12):
        gone.append(bench.engine.stats("q").depth)
        bench.advance(1.0 if second else 1.2)
    assert gone == [3, 3, 3, 2, 2, 1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("ttl", ["0s", "-1s", "soon", ""])
def test_a_bad_time_to_live_is_refused(bench: QueueBench, ttl: str) -> None:
    assert _refused(bench, "x", user_properties=(("ttl", ttl),)) is QueueErrorCode.BAD_OPTION


@pytest.mark.parametrize("grouped", [False, True])
def test_expired_messages_become_dead_letters_when_asked(
    bench_with: Benches, disk: MemoryDisk | None, grouped: bool
) -> None:
    """F33: a time to live of the protocol reaches the dead letters, with the reason."""
    bench = bench_with(disk, expired_to_dead_letters=True, message_ttl_s=10.0)
    if grouped:
        bench.consumer(room=0)
    for value, ttl in (("first", "1m"), ("behind", "2s"), ("third", "1m")):
        bench.publish(value, user_properties=(("ttl", ttl),))
    bench.advance(2.2)
    assert _dead(bench) == [("behind", "TTL_EXPIRED")]
    assert bench.engine.stats("q").depth == 2
    bench.advance(9.0)
    assert bench.engine.stats("q").depth == 0
    assert bench.engine.stats("$dlq/q").depth == 3


@pytest.mark.parametrize("restarts", [False, True])
def test_what_waits_for_a_retry_leaves_when_it_expires(bench_with: Benches, restarts: bool) -> None:
    """Also where nothing else of its queue expires or is done at that time (Q-LIMIT-09)."""
    retry = {"nack_immediately": False, "initial_backoff_s": 1_000.0, "max_backoff_s": 1_000.0}
    bench = bench_with(MemoryDisk(), ordering="none", message_ttl_s=10.0, retry=retry)
    consumer = bench.consumer()
    bench.publish("first")
    bench.advance(5.0)
    bench.publish("second")
    bench.turn()
    for delivery in consumer.take():
        consumer.nack(delivery)
    bench.turn()
    if restarts:
        bench.restart()
    bench.advance(5.2)
    assert bench.engine.stats("q").depth == 1
    bench.advance(5.2)
    assert bench.engine.stats("q").depth == 0


@pytest.mark.parametrize("leaves", [False, True])
def test_what_has_expired_leaves_once_more_after_a_reset(bench_with: Benches, leaves: bool) -> None:
    bench = bench_with(MemoryDisk(), durability="interval", delivery_timeout_s=1_000.0)
    consumer = bench.consumer()
    bench.publish("expires", user_properties=(("ttl", "100s"),))
    bench.turn()
    assert consumer.take()
    if leaves:
        consumer.leave()
    bench.advance(2_000.0)
    bench.consumer("other", room=0)
    bench.engine.groups.reset("q", "g", EARLIEST, partition=None, now=bench.now)
    bench.advance(1.0)
    assert bench.engine.stats("q").depth == 0


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("settled", [("expires",), ("lives", "expires")])
def test_what_expired_behind_others_does_not_come_back_by_a_reset(
    bench_with: Benches, settled: tuple[str, ...], groups: int
) -> None:
    """It counted until somebody read so far. Be it that all before it is settled, or that a message is still out."""
    bench = bench_with(MemoryDisk(), durability="interval", delivery_timeout_s=1_000.0)
    bench.publish("lives")
    bench.publish("expires", user_properties=(("ttl", "10s"),))
    for number in range(groups):
        consumer = bench.consumer(f"c{number}", group=f"g{number}", room=2)
        bench.turn()
        for delivery in consumer.take():
            if delivery.message.payload.decode() in settled:
                consumer.ack(delivery)
        bench.turn()
        consumer.leave()
    bench.advance(100.0)
    for number in range(groups):
        bench.engine.groups.reset("q", f"g{number}", EARLIEST, partition=None, now=bench.now)
    bench.advance(1.0)
    stats = bench.engine.stats("q")
    assert [(each.lag, each.expired) for each in stats.groups] == [(1, 0)] * groups
    assert stats.depth == 1
    bench.restart()
    bench.advance(1.0)
    assert bench.engine.stats("q").depth == 1
    consumer = bench.consumer("reader", group="g0")
    bench.turn()
    assert consumer.values == ["lives"]


def test_of_thousands_that_wait_for_a_retry_all_leave_that_expire(
    bench_with: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it many that live longer which came before them; and no turn looks at more than it has room for."""
    retry = {"nack_immediately": False, "initial_backoff_s": 1_000.0, "max_backoff_s": 1_000.0}
    bench = bench_with(ordering="none", max_in_flight=20_000, group={"max_pending": 20_000}, retry=retry)
    consumer = bench.consumer()
    for _ in range(4_200):
        bench.publish("lives")
    for _ in range(100):
        bench.publish("expires", user_properties=(("ttl", "10s"),))
    bench.advance(1.0)
    for delivery in consumer.take():
        consumer.nack(delivery)
    bench.turn()
    bench.now += 10.0
    monkeypatch.setattr(agenda, "MAX_WORK", 40)
    limits = bench.engine._queues["q"].limits
    with patch.object(limits, "expire_entry", wraps=limits.expire_entry) as looks:
        for _ in range(4):
            looks.reset_mock()
            bench.engine.tick(bench.now)
            assert looks.call_count <= 40
    monkeypatch.undo()
    bench.advance(1.0)
    assert bench.engine.stats("q").depth == 4_200


@pytest.mark.parametrize("nacks", [1, 40])
def test_what_waits_often_is_listed_for_its_expiry_a_bounded_number_of_times(bench_with: Benches, nacks: int) -> None:
    bench = bench_with(message_ttl_s=1_000.0, retry={"max_retries": 1_000})
    consumer = bench.consumer()
    for _ in range(50):
        bench.publish("m")
    bench.turn()
    for _ in range(nacks):
        for delivery in consumer.take():
            consumer.nack(delivery)
        bench.turn()
    assert len(bench.engine._queues["q"].limits._waiting) <= 2 * 50 + 1_024


@pytest.mark.parametrize("letters", [False, True])
def test_what_waited_behind_a_retry_that_expires_comes(bench_with: Benches, *, letters: bool) -> None:
    retry = {"nack_immediately": False, "initial_backoff_s": 1_000.0, "max_backoff_s": 1_000.0}
    bench = bench_with(MemoryDisk(), retry=retry, expired_to_dead_letters=letters)
    consumer = bench.consumer()
    bench.publish("first", user_properties=(("ttl", "10s"),))
    bench.turn()
    consumer.nack(consumer.take()[0])
    bench.publish("second")
    bench.advance(9.0)
    assert consumer.got == []
    bench.advance(2.0)
    assert consumer.values == ["second"]


def test_expired_at_delivery_becomes_a_dead_letter(bench_with: Benches) -> None:
    bench = bench_with(expired_to_dead_letters=True, message_ttl_s=10.0)
    consumer = bench.consumer(room=0)
    bench.publish("old")
    bench.turn()
    consumer.room = 5
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.now += 10.0
    bench.engine.dispatch(bench.now)
    bench.turn()
    assert consumer.got == []
    assert _dead(bench) == [("old", "TTL_EXPIRED")]
    (group,) = bench.engine.stats("q").groups
    assert (group.dead_lettered, group.expired, group.lag) == (1, 0, 0)


def test_expiry_survives_a_restart(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), message_ttl_s=0.0)
    bench.consumer(room=0).leave()
    bench.publish("live")
    bench.publish("short", user_properties=(("ttl", "5s"),))
    bench.publish("shorter", expires_at=bench.now + 2.0)
    bench.advance(3.0)
    assert bench.engine.stats("q").depth == 2
    bench.restart()
    bench.advance(0.2)
    assert bench.engine.stats("q").depth == 2
    bench.advance(3.0)
    assert bench.engine.stats("q").depth == 1
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["live"]


def test_unread_messages_stay_without_limits(bench_with: Benches) -> None:
    """R3: with no consumer and no limit everything is still there."""
    bench = bench_with(MemoryDisk(), segment_bytes=200, message_ttl_s=0.0)
    for number in range(100):
        bench.publish(str(number))
    bench.advance(100_000.0)
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == [str(number) for number in range(100)]


def test_every_message_is_accounted_for(bench_with: Benches) -> None:
    """Published = settled + expired + dropped + dead-lettered + still there, whatever happens."""
    for seed in range(6):
        rng = random.Random(seed)
        bench = bench_with(
            MemoryDisk() if seed % 2 else None,
            max_depth=20,
            partitions=2,
            overflow=rng.choice(["drop_oldest", "dead_letter_oldest"]),
            expired_to_dead_letters=rng.random() < 0.5,
            message_ttl_s=30.0,
        )
        consumer = bench.consumer(room=0)
        published = 0
        for _ in range(60):
            for _ in range(rng.randint(0, 6)):
                properties = [("priority", str(rng.randrange(5)))] if rng.random() < 0.5 else []
                if rng.random() < 0.4:
                    properties.append(("ttl", f"{rng.randint(1, 40)}s"))
                try:
                    bench.publish(str(published), user_properties=properties)
                except QueueError:
                    continue
                published += 1
            consumer.room = rng.randint(0, 4)
            assert consumer.handle is not None
            bench.engine.resume(consumer.handle, bench.now)
            bench.turn()
            for delivery in consumer.take():
                action = rng.random()
                if action < 0.6:
                    consumer.ack(delivery)
                elif action < 0.8:
                    consumer.nack(delivery)
            bench.advance(rng.choice([0.0, 0.5, 3.0]))
            (group,) = bench.engine.stats("q").groups
            there = group.lag + group.in_flight + group.retrying + group.dead_lettering
            left = group.acked + group.expired + group.dropped + group.dead_lettered + group.discarded
            assert there + left == published, (seed, group)
            assert group.lag >= 0


# -- limits that count what is ready ---------------------------------------------------------------------------------

_READY = {"limits_count": "ready", "ordering": "place", "retry": {"initial_backoff_s": 0.0, "max_retries": 10**6}}


@pytest.mark.parametrize("limit", [{"max_depth": 2}, {"max_bytes": 2}])
def test_what_is_with_a_consumer_does_not_count(bench_with: Benches, disk: MemoryDisk | None, limit: Any) -> None:
    bench = bench_with(disk, **_READY, **limit)
    for value in "abcd":
        bench.publish(value) if value in "ab" else _refused(bench, value)
    consumer = bench.consumer(prefetch=2)
    bench.turn()
    assert consumer.values == ["a", "b"]
    bench.publish("c")
    bench.publish("d")
    assert _refused(bench, "e") is QueueErrorCode.FULL
    consumer.ack(consumer.got[0])
    bench.turn()
    assert consumer.values == ["a", "b", "c"]
    bench.publish("f")
    assert _refused(bench, "g") is QueueErrorCode.FULL
    # What comes back counts again.
    consumer.leave()
    bench.turn()
    assert bench.engine.stats("q").ready == 4
    assert _refused(bench, "h") is QueueErrorCode.FULL


@pytest.mark.parametrize("limit", [{"max_depth": 2}, {"max_bytes": 2}])
@pytest.mark.parametrize("overflow", ["drop_oldest", "dead_letter_oldest"])
def test_what_comes_back_to_a_full_queue_is_the_oldest(
    bench_with: Benches, disk: MemoryDisk | None, overflow: str, limit: Any
) -> None:
    bench = bench_with(disk, **_READY, **limit, overflow=overflow)
    consumer = bench.consumer(prefetch=2)
    for value in "abcd":
        bench.publish(value)
        bench.turn()
    assert consumer.values == ["a", "b"]
    assert bench.engine.stats("q").ready == 2
    consumer.leave()
    bench.turn()
    other = bench.consumer("other")
    bench.turn()
    assert other.values == ["c", "d"]
    if overflow == "dead_letter_oldest":
        assert _dead(bench) == [("a", "QUEUE_FULL"), ("b", "QUEUE_FULL")]
    for delivery in other.take():
        other.ack(delivery)
    bench.turn()
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.held_bytes) == (0, 0)


def test_what_consumers_have_room_for_does_not_count(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, **_READY, max_depth=1, overflow="drop_oldest")
    consumer = bench.consumer(prefetch=3)
    for value in "abc":
        bench.publish(value)
    bench.turn()
    assert consumer.values == ["a", "b", "c"], "all of one turn, though the queue holds one"
    for value in "def":
        bench.publish(value)
    bench.turn()
    consumer.ack(consumer.got[0])
    bench.turn()
    assert consumer.values == ["a", "b", "c", "f"]


def test_what_a_full_queue_refuses_becomes_a_dead_letter(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, max_depth=1, overflow="reject_to_dead_letters")
    bench.publish("a")
    assert _refused(bench, "b") is QueueErrorCode.FULL
    bench.turn()
    assert _dead(bench) == [("b", "QUEUE_FULL")]
    assert bench.engine.stats("q").depth == 1


def test_more_bytes_than_a_queue_may_hold_become_a_dead_letter(bench_with: Benches, disk: MemoryDisk | None) -> None:
    bench = bench_with(disk, max_bytes=2, overflow="reject_to_dead_letters")
    assert _refused(bench, "abc") is QueueErrorCode.FULL
    bench.turn()
    assert _dead(bench) == [("abc", "QUEUE_FULL")]


def test_what_comes_back_as_the_last_group_is_deleted_costs_nothing_more(
    bench_with: Benches, disk: MemoryDisk | None
) -> None:
    bench = bench_with(disk, **_READY, max_depth=2, overflow="drop_oldest")
    consumer = bench.consumer(prefetch=2)
    for value in "abcd":
        bench.publish(value)
        bench.turn()
    consumer.leave()
    bench.engine.groups.delete("q", "g", bench.now)
    bench.turn()
    other = bench.consumer("other", group="others")
    bench.turn()
    assert other.values == ["c", "d"]


@pytest.mark.parametrize("limit", [{"max_depth": 2}, {"max_bytes": 2}])
@pytest.mark.parametrize("overflow", ["drop_oldest", "dead_letter_oldest"])
@pytest.mark.parametrize("how", ["takes nothing", "leaves", "restart"])
def test_a_queue_is_not_left_with_more_than_its_limit(
    bench_with: Benches, overflow: str, limit: dict[str, int], how: str
) -> None:
    bench = bench_with(MemoryDisk(), **_READY, **limit, overflow=overflow)
    # It has room, as it says.
    consumer = bench.consumer(room=0 if how == "takes nothing" else 10)
    for value in "abcdef":
        bench.publish(value)
    bench.turn()
    if how == "leaves":
        assert len(consumer.got) == 6
        consumer.leave()
    elif how == "restart":
        bench.restart()
    bench.turn()
    bench.turn()
    assert bench.engine.stats("q").ready == 2
    other = bench.consumer("other")
    if how == "takes nothing":
        consumer.leave()
    bench.turn()
    assert other.values == ["e", "f"]
