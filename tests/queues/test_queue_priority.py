"""Priority lanes: shares, the guard against starvation, order within a lane, restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.config import ConfigError, parse_config
from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import QueueAddress
from assay.reference_broker.queues.messages.lanes import (
    LANES,
    NO_OFFSET,
    NORMAL,
    LaneScheduler,
    PartitionLanes,
    lane_of_level,
    place_number,
)
from assay.reference_broker.queues.messages.message_batch import MessageBatch
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.queues.messages.stored_message import MessageCodec
from assay.reference_broker.routing.message import Message, MessageProperties, changed
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.mqtt.turn_steps import Steps

from .conftest import Outcome, QueueBench

Benches = Callable[..., QueueBench]
WEIGHTS = (50, 25, 15, 7, 3)


def _nobody(_lane: int) -> float | None:
    return None


# -- the scheduler by itself -----------------------------------------------------------------------------------------


def test_full_lanes_get_their_shares_within_two_percent_over_100_000_dequeues() -> None:
    """Facts 4.5: a scheduler that moves on after every dequeue serves 1:1:1:1:1 whatever the weights."""
    scheduler = LaneScheduler(WEIGHTS, 30.0, 0.0)
    served = Counter[int]()
    rng = random.Random(7)
    done = 0
    while done < 100_000:
        lane, share = scheduler.pick([False] * LANES, 0.0, _nobody)
        count = min(rng.randint(1, 40), share)
        scheduler.served(lane, count, 0.0)
        served[lane] += count
        done += count
    for lane, weight in enumerate(WEIGHTS):
        assert served[lane] / done == pytest.approx(weight / 100, rel=0.02)


@pytest.mark.parametrize("busy", [(0,), (4,), (2, 3, 4), (0, 4), (1, 3)])
def test_the_share_of_idle_lanes_goes_to_the_others_by_their_weights(busy: tuple[int, ...]) -> None:
    scheduler = LaneScheduler(WEIGHTS, 30.0, 0.0)
    dry = [lane not in busy for lane in range(LANES)]
    served = Counter[int]()
    for _ in range(10_000):
        lane, _ = scheduler.pick(dry, 0.0, _nobody)
        scheduler.served(lane, 1, 0.0)
        served[lane] += 1
    total = sum(WEIGHTS[lane] for lane in busy)
    for lane in busy:
        assert served[lane] / 10_000 == pytest.approx(WEIGHTS[lane] / total, rel=0.03)
    assert set(served) == set(busy)


def test_idle_time_is_not_saved_up() -> None:
    """No deficit grows: a lane that was idle for long gets its share of a round, not of all rounds before."""
    scheduler = LaneScheduler(WEIGHTS, 30.0, 0.0)
    for _ in range(5_000):
        lane, _ = scheduler.pick([True, False, False, False, False], 0.0, _nobody)
        scheduler.served(lane, 1, 0.0)
    served = Counter[int]()
    for _ in range(1_000):
        lane, _ = scheduler.pick([False] * LANES, 0.0, _nobody)
        scheduler.served(lane, 1, 0.0)
        served[lane] += 1
    assert served[0] <= 550


def test_nothing_is_picked_when_all_lanes_are_dry() -> None:
    """G17: the loop over the lanes ends."""
    assert LaneScheduler(WEIGHTS, 30.0, 0.0).pick([True] * LANES, 0.0, _nobody) == (-1, 0)


def test_the_scheduler_serves_what_a_plain_model_serves() -> None:
    rng = random.Random(3)
    for _ in range(200):
        weights = tuple(rng.randint(1, 9) for _ in range(LANES))
        scheduler = LaneScheduler(weights, 0.0, 0.0)
        left = list(weights)
        waiting = [rng.randint(0, 40) for _ in range(LANES)]
        while any(waiting):
            if not any(waiting[lane] and left[lane] for lane in range(LANES)):
                left = list(weights)
            expected = next(lane for lane in range(LANES) if waiting[lane] and left[lane])
            lane, share = scheduler.pick([not count for count in waiting], 0.0, _nobody)
            assert (lane, share) == (expected, left[expected])
            scheduler.served(lane, 1, 0.0)
            left[lane] -= 1
            waiting[lane] -= 1
            if rng.random() < 0.1:
                waiting[rng.randrange(LANES)] += rng.randint(0, 5)
                if rng.random() < 0.9:
                    waiting = [min(count, 40) for count in waiting]


def test_a_lane_that_waited_too_long_is_next_and_then_waits_anew() -> None:
    scheduler = LaneScheduler((1_000, 1, 1, 1, 1), 30.0, 0.0)
    picks = []
    now = 0.0
    while now < 100.0:
        lane, _ = scheduler.pick([False, True, True, True, False], now, lambda lane: 0.0)
        scheduler.served(lane, 1, now)
        picks.append((now, lane))
        now += 1.0
    assert [at for at, lane in picks if lane == 4] == [30.0, 60.0, 90.0]


# -- the lanes of a partition ----------------------------------------------------------------------------------------


def test_offsets_that_come_out_of_order_are_all_reachable_once() -> None:
    """G3: 74 of 500 shuffled offsets were unreachable."""
    lanes = PartitionLanes()
    offsets = list(range(500))
    random.Random(1).shuffle(offsets)
    wanted: dict[int, list[int]] = {lane: [] for lane in range(LANES)}
    for offset in offsets:
        lane = offset % LANES
        wanted[lane].append(offset)
        if lane != NORMAL:
            lanes.add(offset, lane)
            lanes.add(offset, lane)
    for lane in range(LANES):
        found, at = [], 0
        while (offset := lanes.next_in(lane, at)) < 500:
            found.append(offset)
            at = offset + 1
        assert found == sorted(wanted[lane])
        assert lanes.count(lane, 0, 500) == 100
        assert lanes.count(lane, 100, 200) == 20
    lanes.drop_before(250)
    assert lanes.next_in(0, 0) == 250
    assert lanes.next_in(4, 500) == NO_OFFSET


def test_the_next_of_a_lane_is_found_in_a_few_steps_however_many_of_others_stand_before_it() -> None:
    """A queue whose messages all have a priority was looked through from its start by every delivery."""
    lanes = PartitionLanes()
    for offset in (*range(20_000), *range(20_001, 20_100)):
        lanes.add(offset, 4)
    found: list[int] = []
    spent = Steps().count(lambda: found.append(lanes.next_in(NORMAL, 3)))
    spent += Steps().count(lambda: found.append(lanes.stretch(4, 5, 20_000)))
    assert (found, lanes.next_in(NORMAL, 20_001), lanes.stretch(4, 20_000, 9)) == ([20_000, 19_995], 20_100, 0)
    assert spent < 100


def test_plumego_levels_map_to_the_lanes() -> None:
    assert [lane_of_level(level) for level in (40, 30, 20, 10, 0)] == list(Priority)
    assert lane_of_level(25) is Priority.NORMAL
    for level in (-1, 41):
        with pytest.raises(ValueError, match="0 to 40"):
            lane_of_level(level)


def test_place_numbers_are_the_partitions_own_in_the_normal_lane_and_unique() -> None:
    numbers = [place_number(partition, lane) for partition in range(1_024) for lane in range(LANES)]
    assert len(set(numbers)) == len(numbers)
    assert [place_number(partition, NORMAL) for partition in range(3)] == [0, 1, 2]


# -- queues ----------------------------------------------------------------------------------------------------------


def _put(bench: QueueBench, value: str, priority: str | None = None, **fields: Any) -> None:
    properties = () if priority is None else (("priority", priority),)
    bench.publish(value, user_properties=properties, **fields)


@pytest.fixture(params=["memory", "disk"])
def lanes_bench(request: pytest.FixtureRequest, bench_with: Benches) -> QueueBench:
    return bench_with(MemoryDisk() if request.param == "disk" else None)


def test_urgent_messages_overtake(lanes_bench: QueueBench) -> None:
    for value, priority in (("n", None), ("b", "background"), ("l", "LOW"), ("h", "High"), ("c", "0")):
        _put(lanes_bench, value, priority)
    consumer = lanes_bench.consumer()
    lanes_bench.turn()
    assert consumer.values == ["c", "h", "n", "l", "b"]


def test_a_queue_serves_the_shares_whatever_the_order_of_the_publishes(bench_with: Benches) -> None:
    bench = bench_with(partitions=3)
    rng = random.Random(5)
    for number in range(5_000):
        _put(bench, str(number), str(rng.randrange(LANES)))
    consumer = bench.consumer(room=0)
    seen = Counter[str]()
    for _ in range(14):
        consumer.room = 100
        assert consumer.handle is not None
        bench.engine.resume(consumer.handle, bench.now)
        bench.turn()
        for delivery in consumer.take():
            seen[delivery.message.user_property("priority") or ""] += 1
            consumer.ack(delivery)
    assert [seen[str(lane)] for lane in range(LANES)] == [weight * 14 for weight in WEIGHTS]


def test_all_messages_come_once_and_in_order_within_a_lane(bench_with: Benches) -> None:
    bench = bench_with(partitions=3)
    rng = random.Random(6)
    for number in range(500):
        _put(bench, str(number), str(rng.randrange(LANES)))
    consumer = bench.consumer()
    bench.turn()
    assert sorted(map(int, consumer.values)) == list(range(500))
    places: dict[tuple[int, str | None], list[int]] = {}
    for delivery in consumer.got:
        places.setdefault((delivery.partition, delivery.message.user_property("priority")), []).append(delivery.offset)
    for offsets in places.values():
        assert offsets == sorted(offsets)


def test_a_bad_priority_is_refused(bench: QueueBench) -> None:
    for priority in ("urgent", "5", "-1", ""):
        with pytest.raises(QueueError) as refused:
            _put(bench, "x", priority)
        assert refused.value.code is QueueErrorCode.BAD_OPTION


def test_without_lanes_the_property_is_ignored(bench_with: Benches) -> None:
    bench = bench_with(priority={"enabled": False})
    for value, priority in (("l", "low"), ("c", "critical")):
        _put(bench, value, priority)
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["l", "c"]


def test_a_waiting_lane_is_served_after_the_guard_time(bench_with: Benches) -> None:
    bench = bench_with(priority={"weights": [1000, 1, 1, 1, 1], "starvation_s": 30})
    for number in range(100):
        _put(bench, f"c{number}", "critical")
    _put(bench, "b", "background")
    consumer = bench.consumer(room=0)
    times = {}
    for _ in range(40):
        consumer.room = 1
        assert consumer.handle is not None
        bench.engine.resume(consumer.handle, bench.now)
        bench.turn()
        for delivery in consumer.take():
            times[delivery.message.payload.decode()[0]] = bench.now - 1_700_000_000.0
            consumer.ack(delivery)
        bench.advance(1.0)
    assert times["b"] == 30.0


def test_a_retried_message_stays_in_its_lane_and_holds_back_only_that(bench: QueueBench) -> None:
    for value in ("h1", "h2", "n1", "n2"):
        _put(bench, value, "high" if value[0] == "h" else None)
    consumer = bench.consumer(room=1)
    bench.turn()
    (first,) = consumer.take()
    consumer.nack(first)
    consumer.room = 10
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert consumer.values == ["h1", "h2", "n1", "n2"]
    assert consumer.counts == [2, 1, 1, 1]


def test_a_filter_sees_only_its_messages_in_every_lane(bench: QueueBench) -> None:
    for number in range(20):
        _put(bench, f"a{number}", str(number % 5), topic="$queue/q/a")
        _put(bench, f"b{number}", str(number % 5), topic="$queue/q/b")
    consumer = bench.consumer(pattern="a")
    bench.turn()
    assert sorted(consumer.values) == sorted(f"a{number}" for number in range(20))
    stats = bench.engine.stats("q").groups[0]
    assert (stats.lag, stats.in_flight) == (0, 20)


def test_depth_and_lag_count_every_lane(lanes_bench: QueueBench) -> None:
    bench = lanes_bench
    _put(bench, "n")
    before = bench.consumer(group="before")
    bench.turn()
    for number in range(50):
        _put(bench, str(number), str(number % 5))
    bench.turn()
    assert len(before.got) == 51
    after = bench.consumer(group="after", room=7)
    bench.turn()
    stats = {group.group: group for group in bench.engine.stats("q").groups}
    assert (stats["before"].lag, stats["before"].in_flight) == (0, 51)
    assert (stats["after"].lag, stats["after"].in_flight) == (44, 7)
    for delivery in before.take():
        before.ack(delivery)
    for delivery in after.take():
        after.ack(delivery)
    bench.turn()
    assert bench.engine.stats("q").depth == 44


def test_a_restart_repeats_nothing_acked_and_loses_nothing(bench_with: Benches) -> None:
    bench = bench_with(MemoryDisk(), partitions=2)
    rng = random.Random(8)
    acked: set[str] = set()
    published = 0
    for life in range(6):
        consumer = bench.consumer(room=0)
        for _ in range(6):
            for _ in range(rng.randint(0, 30)):
                _put(bench, str(published), str(rng.randrange(LANES)) if rng.random() < 0.8 else None)
                published += 1
            consumer.room = rng.randint(0, 25)
            assert consumer.handle is not None
            bench.engine.resume(consumer.handle, bench.now)
            bench.turn()
            for delivery in consumer.take():
                value = delivery.message.payload.decode()
                assert value not in acked
                if rng.random() < 0.6:
                    assert consumer.settle(Verb.ACK, delivery)
                    acked.add(value)
        bench.turn()
        stats = bench.engine.stats("q")
        assert stats.depth == published - len(acked), life
        bench.restart()
        assert bench.engine.stats("q").depth == published - len(acked), life
    consumer = bench.consumer()
    bench.turn()
    assert sorted(map(int, {*consumer.values})) == sorted(set(range(published)) - {int(value) for value in acked})


def test_segments_are_freed_only_when_all_lanes_are_settled(bench_with: Benches) -> None:
    bench = bench_with(segment_bytes=4_096, durability="memory")
    for number in range(400):
        _put(bench, f"{number:0200}", "background" if number == 150 else "normal")
    consumer = bench.consumer(room=0)
    bench.turn()
    consumer.room = 300
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    got = consumer.take()
    background = [delivery for delivery in got if delivery.offset == 150]
    for delivery in got:
        if delivery.offset != 150:
            consumer.ack(delivery)
    bench.advance(5)
    assert background
    consumer.nack(background[0])
    consumer.room = 200
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert [delivery.offset for delivery in consumer.take() if delivery.delivery_count == 2] == [150]


def test_a_partition_that_moves_waits_for_what_is_held_in_every_lane(bench_with: Benches) -> None:
    bench = bench_with(partitions=2, group={"protocol": "cooperative"})
    for number in range(4):
        _put(bench, f"h{number}", "high", key=None)
        _put(bench, f"n{number}", None, key=None)
    first = bench.consumer("a")
    bench.turn()
    held = first.take()
    assert len(held) == 8
    second = bench.consumer("b")
    bench.turn()
    moving = [delivery for delivery in held if delivery.partition == 1]
    for number in range(40):
        _put(bench, f"late{number}", "high")
    bench.turn()
    assert second.got == []
    for delivery in moving:
        first.ack(delivery)
    bench.turn()
    assert {delivery.partition for delivery in second.got} == {1}


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": {"weights": [0, 1, 1, 1, 1]}},
        {"priority": {"starvation_s": -1}},
        {"max_bytes": -1},
        {"message_ttl_s": -0.5},
        {"slow_consumer": {"action": "drop", "after_s": 0}},
    ],
)
def test_limits_that_make_no_sense_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse_config({"queues": {"defaults": fields}})


def test_what_is_remembered_of_a_batch_follows_a_priority_that_is_switched(bench_with: Benches) -> None:
    """The lane of messages of one origin was remembered, and held on after the queue's priorities were switched off."""
    bench = bench_with(priority={"enabled": True, "levels": 10})
    bench.publish("first")
    like = Message(topic="$queue/q", payload=b"", properties=MessageProperties(priority=9))
    origin = Origin(topic="$queue/q", publisher="", routing_key="", like=like)

    def put(*values: str) -> None:
        payloads = [value.encode() for value in values]
        messages = [changed(like, payload=payload) for payload in payloads]
        batch = MessageBatch(messages, payloads, None, [origin] * len(payloads))
        assert bench.engine.publish_batch(QueueAddress(queue="q"), batch, bench.now, lambda _at: Outcome())
        bench.turn()

    put("urgent")
    bench.engine.update_queue("q", {"priority": {"enabled": False, "levels": 10}}, bench.now)
    bench.turn()
    put("plain")
    consumer = bench.consumer()
    bench.turn()
    lanes = {delivery.message.payload.decode(): delivery.lane for delivery in consumer.got}
    assert lanes["plain"] == NORMAL != lanes["urgent"]


@pytest.mark.parametrize("is_said_once", [True, False])
def test_what_messages_of_one_origin_have_is_encoded_once(
    bench_with: Benches, monkeypatch: pytest.MonkeyPatch, *, is_said_once: bool
) -> None:
    """However a batch says where its messages come from: else each batch pays for it, and counts it as memory, anew."""
    bench, calls = bench_with(), list[Origin]()
    bench.publish("first")
    like = Message(topic="$queue/q", payload=b"", properties=MessageProperties(priority=9))
    origin = Origin(topic="$queue/q", publisher="", routing_key="", like=like)
    alike = MessageCodec.alike

    def counted(codec: MessageCodec, of: Origin, *rest: Any, **named: Any) -> Any:
        calls.append(of)
        return alike(codec, of, *rest, **named)

    monkeypatch.setattr(MessageCodec, "alike", counted)
    for _ in range(3):
        payloads = [b"one", b"two"]
        messages = [changed(like, payload=payload) for payload in payloads]
        batch = MessageBatch(messages, payloads, None, origin if is_said_once else [origin] * 2)
        assert bench.engine.publish_batch(QueueAddress(queue="q"), batch, bench.now, lambda _at: Outcome())
        bench.turn()
    assert calls == [origin]
