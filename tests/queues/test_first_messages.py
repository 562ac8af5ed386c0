"""The first message of a kind that a start must know of waits until the queue is known to have such, and holds up
nobody else but who publishes there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.watched_disk import WatchedDisk

from .actor import Actor
from .conftest import Outcome, QueueBench

Publish = Callable[[QueueBench, int], Outcome]


def _producer(bench: QueueBench) -> Publish:
    actor = Actor(bench)
    return lambda _, number: actor.publish("special", sequence=number)


KINDS: dict[str, Callable[[QueueBench], Publish]] = {
    "priority": lambda _: lambda bench, _: bench.publish("special", user_properties=(("priority", "high"),)),
    "time to live": lambda _: lambda bench, _: bench.publish("special", user_properties=(("ttl", "1h"),)),
    "producer": _producer,
}


def _stored_bytes(disk: WatchedDisk) -> int:
    return sum(len(content) for path, content in disk._files.items() if path.startswith("queues/q/partitions"))


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


@pytest.mark.parametrize("durability", ["fsync", "interval"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_written_once_the_queue_is_known_to_have_such(
    disk: WatchedDisk, bench_with: Callable[..., QueueBench], kind: str, durability: str
) -> None:
    bench = bench_with(disk, durability=durability)
    consumer = bench.consumer()
    bench.publish("before")
    publish = KINDS[kind](bench)
    bench.turn()
    before = _stored_bytes(disk)
    disk.synced.clear()
    outcomes = [publish(bench, 0), bench.publish("plain")]
    for _ in range(2):
        bench.engine.dispatch(bench.now)
        assert (disk.synced, _stored_bytes(disk), consumer.values) == ([], before, ["before"])
        assert not any(outcome.calls for outcome in outcomes)
    bench.turn()
    assert all(outcome.confirmed for outcome in outcomes)
    assert disk.synced[:2] == ["queues/q/queue.json.tmp", "queues/q"]
    assert sorted(consumer.values) == ["before", "plain", "special"]
    disk.synced.clear()
    publish(bench, 1)
    bench.turn()
    assert "queues/q" not in disk.synced, "it is known"


@pytest.mark.parametrize("kind", KINDS)
def test_where_the_disk_refuses_that_what_was_published_is_refused_and_may_be_tried_again(
    disk: WatchedDisk, bench_with: Callable[..., QueueBench], kind: str
) -> None:
    bench = bench_with(disk, durability="fsync")
    publish = KINDS[kind](bench)
    bench.publish("before")
    bench.turn()
    before = _stored_bytes(disk)
    outcomes = [publish(bench, 0), bench.publish("plain")]
    bench.engine.dispatch(bench.now)
    for job in bench.engine.take_jobs(bench.now):
        disk.fails = job.place == "queues/q"
        bench.engine.job_done(job, job.failure(), bench.now)
    assert all(outcome.failed for outcome in outcomes)
    assert (bench.engine.stats("q").depth, _stored_bytes(disk)) == (1, before)
    disk.fails = False
    bench.turn()
    disk.synced.clear()
    again = [bench.publish("plain"), publish(bench, 0)]
    bench.turn()
    assert all(outcome.confirmed for outcome in again)
    assert "queues/q/queue.json.tmp" in disk.synced
    bench.restart()
    consumer = bench.consumer(cursor=None)
    bench.turn()
    assert sorted(consumer.values) == ["before", "plain", "special"]


def test_a_delayed_message_for_a_new_queue_is_written_once_that_is_made(
    disk: WatchedDisk, bench_with: Callable[..., QueueBench]
) -> None:
    bench = bench_with(disk, durability="fsync")
    outcome = bench.publish("m", user_properties=(("delay", "10s"),))
    bench.engine.dispatch(bench.now)
    assert (disk.synced, disk.list("queues")) == ([], [])
    bench.turn()
    assert outcome.confirmed
    assert disk.synced[:2] == ["queues/q/queue.json.tmp", "queues/q"]
    bench.restart()
    consumer = bench.consumer()
    bench.advance(11)
    assert consumer.values == ["m"]


def test_who_deletes_the_queue_meanwhile_is_told_and_so_is_who_published(
    disk: WatchedDisk, bench_with: Callable[..., QueueBench]
) -> None:
    bench = bench_with(disk, durability="fsync")
    bench.publish("before")
    bench.turn()
    published = bench.publish("special", user_properties=(("ttl", "1h"),))
    bench.engine.dispatch(bench.now)
    deleted = Outcome()
    bench.engine.delete_queue("q", bench.now, deleted)
    bench.turn()
    assert deleted.confirmed
    assert len(published.calls) == 1
