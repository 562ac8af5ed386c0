"""A group's snapshots as the engine drives them: some entries a turn, syncs as they come, nothing lost at a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.queues import Outcome
from assay.reference_broker.storage import pending_log, pending_snapshot
from assay.reference_broker.storage.group_files import decode_cursor_file, decode_pending_file
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]
FOLDER = "queues/q/consumers/g"


@pytest.fixture(autouse=True)
def _frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 50)
    monkeypatch.setattr(pending_snapshot, "ENTRIES_PER_STEP", 4)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether there was more, after each step of a snapshot."""
    taken: list[bool] = []
    original = pending_snapshot.Snapshot.take_some

    def take_some(self: pending_snapshot.Snapshot) -> bool:
        more = original(self)
        taken.append(more)
        return more

    monkeypatch.setattr(pending_snapshot.Snapshot, "take_some", take_some)
    return taken


def read(disk: MemoryDisk, name: str) -> bytes:
    file = disk.open(f"{FOLDER}/{name}")
    return file.read_at(0, file.size)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
def test_a_group_replaces_its_log_also_when_it_falls_idle(
    bench_with: BenchWith, steps: list[bool], durability: Durability
) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, durability=durability, partitions=2)
    consumer = bench.consumer()
    for number in range(60):
        bench.publish(str(number), key=str(number % 7))
    bench.advance(2.0)
    deliveries = consumer.take()
    for delivery in deliveries[:40]:
        consumer.ack(delivery)
    consumer.nack(deliveries[40])
    bench.advance(10.0)
    assert steps.count(True) >= 4, "four entries a turn"
    assert disk.list(FOLDER) == ["g.cur", "g.group", "g.pel", "g.pel.log"]
    pending = decode_pending_file(read(disk, "g.pel"))
    cursors = decode_cursor_file(read(disk, "g.cur"))
    assert pending.group == cursors.group == "g"
    assert sum(record.cursor for record in cursors.cursors.values()) == 60
    for partition, record in cursors.cursors.items():
        unsettled = [entry.offset for entry in pending.entries if entry.partition == partition]
        assert record.committed <= min(unsettled, default=record.cursor)
    assert (bench.engine.next_deadline() or float("inf")) > bench.now
    bench.restart()
    again = bench.consumer()
    bench.advance(10.0)
    assert sorted(map(int, again.values)) == sorted(int(delivery.message.payload) for delivery in deliveries[40:])
    counts = {delivery.message.payload: delivery.delivery_count for delivery in again.got}
    assert max(counts.values()) == counts[deliveries[40].message.payload]


def test_what_settles_while_a_snapshot_is_taken_stays_settled(bench_with: BenchWith, steps: list[bool]) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    consumer = bench.consumer()
    for number in range(60):
        bench.publish(str(number))
    bench.advance(2.0)
    for delivery in consumer.got[:30]:
        consumer.ack(delivery)
    bench.engine.dispatch(bench.now)
    assert steps == [True], "four of thirty entries are taken"
    outcomes = [consumer.ack(delivery) for delivery in (*consumer.got[30:32], *consumer.got[40:50])]
    bench.turn()
    assert steps[-1] is False
    assert all(outcome.confirmed for outcome in outcomes)
    bench.advance(5.0)
    entries = decode_pending_file(read(disk, "g.pel")).entries
    assert [entry.offset for entry in entries] == [30, 31, *range(32, 40), *range(50, 60)]
    bench.restart()
    again = bench.consumer()
    bench.advance(5.0)
    assert again.values == [str(number) for number in (*range(32, 40), *range(50, 60))]


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_what_was_given_back_untried_does_not_count_over_a_snapshot(bench_with: BenchWith, failed: int) -> None:
    """But for the first delivery. What had failed as often as it may be tried again was lost at the restart."""
    disk = MemoryDisk()
    bench = bench_with(disk, retry={"max_retries": failed, "nack_immediately": True}, dead_letters=False)
    consumer = bench.consumer(room=60 + failed)
    for number in range(60):
        bench.publish(str(number))
    bench.advance(1.0)
    held = consumer.got[0]
    for _ in range(failed):
        consumer.nack(held)
        bench.turn()
        held = consumer.got[-1]
    assert (held.offset, held.delivery_count) == (0, failed + 1)
    bench.engine.settle_delivery(held, Outcome.RELEASE, consumer_id=consumer.consumer_id, now=bench.now)
    for delivery in consumer.got[1:50]:
        consumer.ack(delivery)
    bench.advance(2.0)
    first = decode_pending_file(read(disk, "g.pel")).entries[0]
    assert (first.offset, first.delivery_count) == (0, max(1, failed))
    bench.restart()
    again = bench.consumer()
    bench.advance(2.0)
    assert ("0" in again.values) is bool(failed)
