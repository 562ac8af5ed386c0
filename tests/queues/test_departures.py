"""What left a queue by its limits or by time stays gone, however often the broker starts again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.config import Durability, PriorityConfig, QueueConfig
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST, SubscribeOptions
from assay.reference_broker.queues.partitions import departures
from assay.reference_broker.queues.partitions.intervals import Intervals
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.sim.disk import Persistence, SimDisk
from tests.queues.conftest import BenchConsumer, QueueBench
from tests.queues.failing_disk import FailingDisk

BenchWith = Callable[..., QueueBench]
ENDS = ("kill", "close")


def end(bench: QueueBench, how: str) -> None:
    if how == "close":
        bench.engine.close(bench.now)
    bench.restart()


def figures(bench: QueueBench) -> tuple[int, ...]:
    """What a restart must not change."""
    stats = bench.engine.stats("q")
    held = [group.lag + group.retrying + group.in_flight for group in stats.groups]
    return (stats.depth, stats.held_bytes, stats.dead_letters, *held)


def restarts(bench: QueueBench, times: int = 3) -> None:
    """In both ways; each time everything is as it was, at once and after a while."""
    before = figures(bench)
    for number in range(times):
        end(bench, ENDS[number % 2])
        assert figures(bench) == before
        bench.advance(5)
        assert figures(bench) == before


def joined(bench: QueueBench, group: str = "late", **options: Any) -> BenchConsumer:
    consumer = BenchConsumer(bench, group, 10**9)
    consumer.handle = bench.engine.subscribe(
        "q",
        pattern="",
        group=group,
        consumer_id=group,
        deliver=consumer.deliver,
        now=bench.now,
        options=SubscribeOptions(**options),
    )
    bench.turn()
    return consumer


def publish(bench: QueueBench, *values: str, **fields: Any) -> None:
    for value in values:
        bench.publish(value, **fields)
        bench.turn()


LIMITS: dict[str, dict[str, Any]] = {
    "depth, dropped": {"max_depth": 3, "overflow": "drop_oldest"},
    "depth, to the dead letters": {"max_depth": 3, "overflow": "dead_letter_oldest"},
    "bytes, dropped": {"max_bytes": 6, "overflow": "drop_oldest"},
    "bytes, to the dead letters": {"max_bytes": 6, "overflow": "dead_letter_oldest"},
}


@pytest.mark.parametrize("durability", ["fsync", "interval"])
@pytest.mark.parametrize("groups", [0, 1, 2])
@pytest.mark.parametrize("limits", list(LIMITS))
def test_what_a_limit_took_stays_gone(bench_with: BenchWith, limits: str, groups: int, durability: str) -> None:
    letters_config = QueueConfig(name="$dlq/q", partitions=1, durability=Durability(durability), dead_letters=False)
    bench = bench_with(MemoryDisk(), durability=durability, configured=(letters_config,), **LIMITS[limits])
    for number in range(groups):
        joined(bench, f"g{number}").leave()
    publish(bench, *[f"m{number}" for number in range(8)])
    assert bench.engine.stats("q").depth == 3
    restarts(bench)
    publish(bench, "m8")
    assert bench.engine.stats("q").depth == 3
    restarts(bench)
    assert joined(bench, cursor=EARLIEST).values == ["m6", "m7", "m8"]
    letters = BenchConsumer(bench, "l", 10**9)
    if "letters" in limits:
        bench.engine.subscribe("$dlq/q", pattern="", group="l", consumer_id="l", deliver=letters.deliver, now=bench.now)
        bench.turn()
        assert letters.values == [f"m{number}" for number in range(6) for _ in range(max(1, groups))]


@pytest.mark.parametrize("holders", [1, 2])
@pytest.mark.parametrize(
    ("limits", "priority"), [*((each, "") for each in LIMITS), *((each, "high") for each in LIMITS if "depth" in each)]
)
def test_what_a_limit_took_behind_one_in_flight_stays_gone(
    bench_with: BenchWith, limits: str, holders: int, priority: str
) -> None:
    """No group made later gets it, before a restart or after, and none that is set back."""
    letters_config = QueueConfig(name="$dlq/q", partitions=1, dead_letters=False)
    fields = {**LIMITS[limits], "priority": PriorityConfig(enabled=bool(priority)), "configured": (letters_config,)}
    bench = bench_with(MemoryDisk(), durability="fsync", **fields)
    publish(bench, "m0", user_properties=(("priority", priority),) if priority else ())
    holding = [joined(bench, f"g{number}", cursor=EARLIEST) for number in range(holders)]
    for each in holding:
        each.room = 0
    publish(bench, *[f"m{number}" for number in range(1, 8)])
    assert [each.values for each in holding] == [["m0"]] * holders
    assert joined(bench, "soon", cursor=EARLIEST).values == ["m0", "m6", "m7"]
    restarts(bench)
    assert joined(bench, "late", cursor=EARLIEST).values == ["m0", "m6", "m7"]
    bench.engine.groups.reset("q", "g0", EARLIEST, partition=None, now=bench.now)
    bench.turn()
    again = bench.consumer(group="g0")
    bench.turn()
    assert again.values == ["m0", "m6", "m7"]
    restarts(bench)
    if "letters" in limits:
        letters = bench.consumer(queue="$dlq/q")
        bench.turn()
        assert sorted(letters.values) == [f"m{number}" for number in range(1, 6) for _ in range(holders)]


@pytest.mark.parametrize("groups", [0, 1, 2])
@pytest.mark.parametrize("to_letters", [True, False])
@pytest.mark.parametrize("own_ttl", [True, False])
def test_what_expired_stays_gone(bench_with: BenchWith, groups: int, to_letters: bool, own_ttl: bool) -> None:
    """With a time to live of its own it expires behind messages that live on, too."""
    bench = bench_with(
        MemoryDisk(),
        durability="fsync",
        expired_to_dead_letters=to_letters,
        **({} if own_ttl else {"message_ttl_s": 2}),
    )
    for number in range(groups):
        joined(bench, f"g{number}").leave()
    ttl = {"user_properties": (("ttl", "2s"),)} if own_ttl else {}
    publish(bench, "a", **ttl)
    if own_ttl:
        publish(bench, "b")
    publish(bench, "c", **ttl)
    if own_ttl:
        publish(bench, "d")
    bench.advance(10)
    stats = bench.engine.stats("q")
    assert stats.depth == (2 if own_ttl else 0)
    assert stats.dead_letters == (2 * max(1, groups) if to_letters else 0)
    restarts(bench)
    assert joined(bench, cursor=EARLIEST).values == (["b", "d"] if own_ttl else [])
    restarts(bench)


def test_priorities_and_partitions(bench_with: BenchWith) -> None:
    bench = bench_with(
        MemoryDisk(), durability="fsync", partitions=3, max_depth=4, overflow="drop_oldest", priority={"enabled": True}
    )
    for number in range(12):
        bench.now += 1
        publish(bench, f"m{number}", user_properties=(("partition", str(number % 3)), ("priority", str(number % 5))))
    restarts(bench)
    assert sorted(joined(bench).values) == ["m10", "m11", "m8", "m9"]
    restarts(bench)


def test_the_hidden_of_a_transaction_and_the_dropped_of_a_queue(bench_with: BenchWith) -> None:
    """Purged, dropped, and what a group to come begins with: each remembered in its own way."""
    bench = bench_with(MemoryDisk(), durability="fsync", max_depth=3, overflow="drop_oldest")
    publish(bench, *"abcde")
    bench.engine.purge_queue("q", bench.now, lambda _: None)
    bench.turn()
    publish(bench, "f", "g")
    restarts(bench)
    assert joined(bench).values == ["f", "g"]


def test_what_is_gone_takes_no_room(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), max_depth=3, overflow="drop_oldest", segment_bytes=1_000)
    for number in range(200):
        publish(bench, f"m{number}")
    assert bench.engine.stats("q").stored_bytes < 3_000
    restarts(bench)


def test_the_last_group_goes_and_nothing_comes_back(bench_with: BenchWith) -> None:
    """Neither what it dropped, nor more than the limits let a queue hold."""
    bench = bench_with(MemoryDisk(), max_depth=3, overflow="dead_letter_oldest", durability="fsync")
    consumer = joined(bench, "g")
    for value in "abcdefgh":
        publish(bench, value)
        consumer.ack(consumer.got[-1])
    bench.turn()
    consumer.leave()
    publish(bench, *"ijklm")
    bench.engine.groups.delete("q", "g", bench.now)
    bench.turn()
    assert bench.engine.stats("q").depth == 3
    assert bench.engine.stats("q").dead_letters == 2
    restarts(bench)
    assert joined(bench, cursor=EARLIEST).values == ["k", "l", "m"]


def test_replayed_letters_stay_gone_when_their_last_group_goes(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), message_ttl_s=1, expired_to_dead_letters=True, durability="fsync")
    publish(bench, "a", "b")
    bench.advance(3)
    letters = BenchConsumer(bench, "l", 10**9)
    letters.handle = bench.engine.subscribe(
        "$dlq/q", pattern="", group="l", consumer_id="l", deliver=letters.deliver, now=bench.now
    )
    bench.turn()
    letters.ack(letters.got[0])
    bench.turn()
    letters.leave()
    bench.turn()
    bench.engine.groups.delete("$dlq/q", "l", bench.now)
    bench.turn()
    assert bench.engine.stats("q").dead_letters == 1
    restarts(bench)


def test_a_lowered_limit_is_reached(bench_with: BenchWith) -> None:
    """What is over it goes with the next publishes, some with each."""
    bench = bench_with(MemoryDisk(), max_depth=40, overflow="drop_oldest")
    publish(bench, *[f"m{number}" for number in range(40)])
    bench.engine.update_queue("q", {"max_depth": 10}, bench.now)
    bench.turn()
    for number in range(6):
        publish(bench, f"n{number}")
    assert bench.engine.stats("q").depth == 10


def test_a_letter_that_finds_no_place_keeps_its_message(bench_with: BenchWith) -> None:
    """Until it has one, each start finds the message in the queue again."""
    bench = bench_with(
        MemoryDisk(),
        message_ttl_s=1,
        expired_to_dead_letters=True,
        durability="fsync",
        configured=(QueueConfig(name="$dlq/q", partitions=1, max_depth=1),),
    )
    publish(bench, "a", "b", "c")
    bench.advance(5)
    assert bench.engine.stats("q").dead_letters == 1
    assert bench.engine.stats("q").depth == 2
    restarts(bench)
    bench.engine.update_queue("$dlq/q", {"max_depth": 10}, bench.now)
    bench.turn()
    bench.advance(5)
    assert figures(bench)[0::2] == (0, 3)
    restarts(bench)


def test_the_disk_refuses_and_takes_it_later(bench_with: BenchWith) -> None:
    disk = FailingDisk()
    bench = bench_with(disk, max_depth=3, overflow="drop_oldest")
    publish(bench, *"abcd")
    disk.fail_write = "/departures/"
    publish(bench, *"ef")
    disk.fail_write = ""
    bench.advance(2)
    restarts(bench)
    assert joined(bench).values == ["d", "e", "f"]


def test_it_is_stated_anew_when_it_has_grown(bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "RESTATE_ABOVE_BYTES", 2_000)
    monkeypatch.setattr(departures, "INTERVALS_PER_RECORD", 4)
    disk = MemoryDisk()
    bench = bench_with(disk, segment_bytes=1_000)
    publish(bench, "first")
    for number in range(100):
        publish(bench, f"s{number}", user_properties=(("ttl", "1s"),))
        publish(bench, f"l{number}")
        bench.advance(2)
    size = sum(disk.open(f"queues/q/departures/{name}").size for name in disk.list("queues/q/departures"))
    assert size < 14_000
    restarts(bench)
    assert joined(bench).values == ["first", *[f"l{number}" for number in range(100)]]


def test_a_start_reads_record_by_record_and_writes_nothing(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "READ_RECORDS", 1)
    disk = MemoryDisk()
    bench = bench_with(disk, max_depth=3, overflow="drop_oldest")
    publish(bench, *[f"m{number}" for number in range(9)])
    (name,) = [name for name in disk.list("queues/q/departures") if name.endswith(".seg")]
    size = disk.open(f"queues/q/departures/{name}").size
    restarts(bench)
    assert disk.open(f"queues/q/departures/{name}").size == size
    assert joined(bench, cursor=EARLIEST).values == ["m6", "m7", "m8"]


@pytest.mark.parametrize("mode", list(Persistence))
@pytest.mark.parametrize("seed", range(6))
def test_after_a_loss_of_power_nothing_kept_is_lost(bench_with: BenchWith, mode: Persistence, seed: int) -> None:
    """Offsets may be given out again; what was known of them does not hold for what has them then."""
    disk = SimDisk(random.Random(seed))
    bench = bench_with(disk, durability="interval", max_depth=3, overflow="drop_oldest", segment_bytes=300)
    for round_number in range(4):
        for number in range(5):
            bench.publish(f"r{round_number}m{number}")
            bench.engine.dispatch(bench.now)
        if (seed + round_number) % 2:
            jobs = bench.engine.take_jobs(bench.now)
            for job in jobs[: seed % 3]:
                job.run()
        disk.power_loss((mode,))
        bench.engine = bench._open()
    publish(bench, "n0", "n1", "n2")
    restarts(bench)
    publish(bench, "n3", "n4")
    assert joined(bench, cursor=EARLIEST).values == ["n2", "n3", "n4"]


def test_what_is_gone_amid_is_passed_though_it_never_expires(bench_with: BenchWith) -> None:
    """The letter of the first found no place before the restart, those of the next did not need one any more."""
    letters = QueueConfig(name="$dlq/q", partitions=1, max_depth=1, dead_letters=False)
    bench = bench_with(MemoryDisk(), max_depth=2, overflow="dead_letter_oldest", configured=(letters,))
    publish(bench, *"abcd")
    assert bench.engine.stats("q").dead_letters == 1
    bench.engine.update_queue("q", {"overflow": "drop_oldest"}, bench.now)
    bench.turn()
    publish(bench, *"ef")
    restarts(bench)
    late = joined(bench)
    assert late.values == ["b", "e", "f"]
    for delivery in late.got:
        late.ack(delivery)
    bench.turn()
    assert bench.engine.stats("q").depth == 0


def test_what_left_behind_one_in_flight_takes_no_room_and_no_time(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they were, they are one interval, which a new group passes in one step."""
    bench = bench_with(MemoryDisk(), max_depth=2, overflow="drop_oldest", segment_bytes=4_096)
    publish(bench, "held")
    holder = joined(bench, "holder", cursor=EARLIEST)
    holder.room = 0
    publish(bench, *map(str, range(300)))
    (partition,) = bench.engine._queues["q"].partitions
    assert partition.expiry is not None
    assert partition.gone_count == 299
    assert list(partition.expiry._gone) == [(1, 300)]
    asked: list[int] = []
    sound = QueuePartition.load
    monkeypatch.setattr(
        QueuePartition, "load", lambda self, offset, end=None: (asked.append(offset), sound(self, offset, end))[1]
    )
    assert joined(bench, cursor=EARLIEST).values == ["held", "299"]
    assert len(asked) < 10, asked


def test_intervals_are_cut_and_listed() -> None:
    known = Intervals([(0, 3), (5, 9), (12, 13)])
    assert (known.end, Intervals().end) == (13, 0)
    assert known.starting_at(5, 1) == [(5, 9)]
    assert known.starting_at(6, 5) == [(12, 13)]
    known.cut(6)
    assert list(known) == [(0, 3), (5, 6)]
    known.cut(0)
    assert not list(known)
