"""Delayed messages through a loss of power before each operation of the disk."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueError
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage import segment_copies, sparse_log
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.segment_copies import SegmentCopy
from assay.sim.power_cuts import PowerCut, WatchedDisk, power_cuts
from tests.queues.conftest import START, BenchConsumer, QueueBench


class Story:
    """Schedules, cancels and fires a few messages, and remembers what was promised of each."""

    def __init__(self, disk: Disk, durability: Durability) -> None:
        self.kept: set[str] = set()
        """Confirmed, and durable by the queue's promise: must come."""
        self.may_come: set[str] = set()
        self.gone: set[str] = set()
        """Cancelled, and that is durable: must not come."""
        self.due: dict[str, float] = {}
        self.acked: set[str] = set()
        self.durability = durability
        self.bench = QueueBench(disk, durability=durability, segment_bytes=400)
        self.bench.consumer("early").leave()
        self.bench.turn()

    def schedule(self, value: str, delay_ms: int) -> str:
        ids: list[str] = []
        bench, engine = self.bench, self.bench.engine
        self.due[value] = bench.now + delay_ms / 1000
        self.may_come.add(value)

        def confirmed(error: QueueError | None) -> None:
            assert error is None
            if self.durability is Durability.FSYNC:
                self.kept.add(value)

        message = Message(topic="$queue/q", payload=value.encode(), user_properties=(("delay", f"{delay_ms}ms"),))
        QueueTopics(engine).publish(message, bench.now, confirmed, lambda _, name: ids.append(name))
        bench.turn()
        return ids[0]

    def cancel(self, value: str, name: str) -> None:
        def confirmed(error: QueueError | None) -> None:
            assert error is None
            if self.durability is Durability.FSYNC:
                self.gone.add(value)

        self.kept.discard(value)
        assert self.bench.engine.cancel_delayed("q", name, self.bench.now, confirmed)
        self.bench.turn()

    def live(self) -> None:
        bench = self.bench
        self.schedule("short", 1_000)
        long = self.schedule("long", 50_000)
        cancelled = self.schedule("cancelled", 5_000)
        self.schedule("middle", 3_000)
        self.cancel("cancelled", cancelled)
        self.settled({"short", "long", "middle"}, {"cancelled"})
        bench.advance(1.2)
        self.settled({"short", "long", "middle"}, {"cancelled"})
        self.schedule("x" * 300, 60_000)
        self.settled({"x" * 300}, set())
        bench.advance(2.5)
        consumer = bench.consumer()
        bench.turn()
        assert sorted(consumer.values) == ["middle", "short"]
        for delivery in consumer.take():
            value = delivery.message.payload.decode()
            self.kept.discard(value)
            consumer.ack(delivery)
            bench.turn()
        self.settled(set(), set())
        self.cancel("long", long)
        self.settled(set(), {"long"})
        self.cancel("taken back", self.schedule("taken back", 60_000))
        self.settled(set(), {"taken back"})
        bench.engine.close(bench.now)

    def settled(self, kept: set[str], gone: set[str]) -> None:
        """Two intervals pass: whatever the queue's durability, this much is on disk now."""
        self.bench.advance(0.9 if self.durability is Durability.FSYNC else 2.1)
        self.kept |= kept - self.acked
        self.gone |= gone


class ThinnedStory(Story):
    """One long delay amid many short ones, whose segments are copied without them."""

    def live(self) -> None:
        bench = self.bench
        self.schedule("long", 50_000)
        for number in range(5):
            self.schedule(f"{number:0200d}", 1_000)
        self.settled(set(self.due), set())
        bench.advance(1.5)
        consumer = bench.consumer()
        bench.turn()
        for delivery in consumer.take():
            value = delivery.message.payload.decode()
            self.kept.discard(value)
            self.acked.add(value)
            consumer.ack(delivery)
            bench.turn()
        self.settled({"long"}, set())
        for number in range(2):
            self.cancel(f"more {number}", self.schedule(f"more {number}", 60_000))
        self.settled({"long"}, set())
        bench.engine.close(bench.now)


def found_after(cut: PowerCut, durability: Durability, now: float) -> tuple[list[str], list[float]]:
    """What comes, and when, from what a power loss left."""
    bench = QueueBench(cut.boot(), durability=durability, segment_bytes=400)
    bench.now = now
    bench.engine._agenda.now = now
    consumer = bench.consumer()
    values: list[str] = []
    times: list[float] = []

    def drain(consumer: BenchConsumer) -> None:
        values.extend(consumer.values)
        times.extend(consumer.times)
        for delivery in consumer.take():
            consumer.ack(delivery)

    for step_s in (0, *(5,) * 14):
        bench.advance(step_s)
        drain(consumer)
    # What is scheduled now reuses offsets that were lost, and must come all the same.
    bench.publish("fresh", user_properties=(("delay", "5s"),))
    bench.advance(2.2)
    bench.restart()
    consumer = bench.consumer()
    bench.advance(3)
    drain(consumer)
    assert "fresh" in values, f"after {cut.what}: a new message did not come"
    assert bench.engine.stats("q").delayed == 0
    return [value for value in values if value != "fresh"], times


@pytest.mark.parametrize("kind", [Story, ThinnedStory])
@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
def test_no_power_loss_loses_or_revives_a_delayed_message(
    durability: Durability, kind: type[Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    thinned: list[SegmentCopy] = []

    def put_in_place(disk: Disk, folder: str, log: SegmentedLog, copy: SegmentCopy) -> bool:
        thinned.append(copy)
        return segment_copies.put_in_place(disk, folder, log, copy)

    monkeypatch.setattr(sparse_log, "put_in_place", put_in_place)
    disk = WatchedDisk(random.Random(1))
    seen: set[bytes] = set()
    story: Story | None = None
    looked = 0

    def look() -> None:
        nonlocal looked
        if story is None:
            return
        for cut in power_cuts(disk, f"cut {looked}"):
            digest = cut.digest + repr((sorted(story.kept), sorted(story.gone))).encode()
            if digest in seen:
                continue
            seen.add(digest)
            looked += 1
            values, times = found_after(cut, durability, story.bench.now)
            for value in story.kept:
                assert value in values, f"after {cut.what} at {story.bench.now - START} s {value[:9]} is lost"
            for value, time in zip(values, times, strict=False):
                assert value not in story.gone, f"after {cut.what} {value} came, though it was cancelled"
                assert value in story.may_come
                assert time >= story.due[value] - 1e-3

    started = kind(disk, durability)
    story = started
    disk.before = look
    started.live()
    disk.before = None
    look()
    assert looked > 200, looked
    assert thinned or kind is not ThinnedStory
