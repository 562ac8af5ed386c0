"""Deleting and purging queues in use, ephemeral queues, and partitions that are added online."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore
from tests.queues.actor import Actor

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]


class Told:
    """What an operation told in the end."""

    def __init__(self) -> None:
        self.results: list[object] = []

    def __call__(self, result: object) -> None:
        self.results.append(result)


def delete(bench: QueueBench, queue: str = "q") -> Told:
    told = Told()
    bench.engine.delete_queue(queue, bench.now, told)
    return told


def purge(bench: QueueBench, queue: str = "q") -> Told:
    told = Told()
    bench.engine.purge_queue(queue, bench.now, told)
    return told


def stored_files(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk._files if path.startswith("queues/"))


# -- delete ------------------------------------------------------------------------------------------------------


def test_deleted_and_created_anew_it_is_empty(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    consumer = bench.consumer()
    for number in range(5):
        bench.publish(str(number))
    bench.turn()
    consumer.ack(consumer.got[0])
    bench.turn()
    told = delete(bench)
    assert bench.engine.queues() == []
    bench.turn()
    assert told.results == [None]
    assert stored_files(disk) == []
    bench.publish("new")
    bench.turn()
    bench.restart()
    again = bench.consumer()
    bench.turn()
    assert [(delivery.offset, delivery.message.payload) for delivery in again.got] == [(0, b"new")]


@pytest.mark.parametrize("although_used", [False, True])
@pytest.mark.parametrize("waits_for", ["purge", "publish"])
def test_who_is_told_by_a_deletion_finds_no_queue(bench_with: BenchWith, waits_for: str, although_used: bool) -> None:
    """The deletion writes what is not written, which confirms; whoever is told may delete and make queues, too."""
    bench = bench_with(MemoryDisk())
    consumer = bench.consumer()
    bench.publish("old")
    bench.turn()
    told: list[object] = []
    made = Told()

    def meddle(result: object) -> None:
        told.append(result)
        try:
            bench.engine.delete_queue("q", bench.now, told.append, although_used=although_used)
        except QueueError as error:
            told.append(error.code)
        with suppress(QueueError):  # while it goes there is no other of its name
            bench.engine.create_queue("q", {}, bench.now, made)

    if waits_for == "purge":
        consumer.ack(consumer.got[0])
        bench.engine.purge_queue("q", bench.now, meddle)
    else:
        QueueTopics(bench.engine).publish(Message(topic="$queue/q", payload=b"new"), bench.now, meddle)
    outer = Told()
    try:
        bench.engine.delete_queue("q", bench.now, outer, although_used=although_used)
    except QueueError as error:
        outer(error.code)
    bench.turn()
    bench.turn()
    assert len(told) == 2, told
    assert set(outer.results) <= {None, QueueErrorCode.UNKNOWN_QUEUE}
    assert len(outer.results) == 1
    if bench.engine.queues() == ["q"]:
        again = bench.consumer()
        bench.turn()
        assert again.values == [], "it is another queue"


def test_nobody_who_waits_is_left_without_an_answer(durable: QueueBench) -> None:
    consumer = durable.consumer()
    durable.publish("held")
    durable.turn()
    unsynced, settled = durable.publish("unsynced"), consumer.ack(consumer.got[0])
    durable.engine.dispatch(durable.now)
    jobs = durable.engine.take_jobs(durable.now)
    unwritten = durable.publish("unwritten")
    told = delete(durable)
    assert unsynced.failed
    assert settled.failed
    assert unwritten.failed
    assert durable.engine.take_jobs(durable.now) == [], "not while a sync of its logs is running"
    with pytest.raises(QueueError) as caught:
        durable.publish("too soon")
    assert caught.value.code is QueueErrorCode.UNKNOWN_QUEUE
    for job in jobs:
        job.run()
        durable.engine.job_done(job, None, durable.now)
    assert told.results == []
    durable.turn()
    assert told.results == [None]
    with pytest.raises(QueueError) as caught:
        consumer.ack(consumer.got[0])
    assert caught.value.code is QueueErrorCode.UNKNOWN_QUEUE


def test_consumers_are_told_and_get_nothing_more(bench: QueueBench) -> None:
    ended: list[str] = []
    consumer = bench.consumer()
    assert consumer.handle is not None
    consumer.handle.on_end = lambda: ended.append("c")
    delete(bench)
    assert ended == ["c"]
    bench.turn()
    bench.publish("new")
    bench.turn()
    assert consumer.values == []
    consumer.leave()
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()


def test_what_was_to_be_dead_lettered_does_not_come_back(durable: QueueBench) -> None:
    consumer = durable.consumer()
    durable.publish("bad")
    durable.turn()
    rejected = consumer.reject(consumer.got[0])
    durable.engine.dispatch(durable.now)
    delete(durable)
    durable.advance(100.0)
    assert len(rejected.calls) == 1
    assert durable.engine.queues() == ["$dlq/q"]
    assert durable.engine.stats("$dlq/q").depth == 1


def test_delayed_messages_go_with_their_queue(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    bench.publish("later", user_properties=(("delay", "10s"),))
    bench.turn()
    delete(bench)
    bench.advance(20.0)
    assert bench.engine.queues() == []
    assert stored_files(disk) == []


def test_a_file_configured_queue_comes_back_empty(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), configured=(QueueConfig(name="q", partitions=1),))
    bench.publish("a")
    bench.turn()
    delete(bench)
    bench.turn()
    bench.restart()
    assert bench.engine.stats("q").depth == 0


def test_names_with_a_common_prefix_are_not_mixed_up(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    for name in ("orders", "orders-eu", "orders/eu"):
        bench.engine.create_queue(name, {}, bench.now)
        bench.publish("m", f"$queue/{name}")
    bench.turn()
    purge(bench, "orders")
    bench.turn()
    depths = {name: bench.engine.stats(name).depth for name in bench.engine.queues()}
    assert depths == {"orders": 0, "orders-eu": 1, "orders/eu": 1}
    delete(bench, "orders")
    bench.turn()
    bench.restart()
    assert bench.engine.queues() == ["orders-eu", "orders/eu"]
    assert [bench.engine.stats(name).depth for name in bench.engine.queues()] == [1, 1]


class StoppingDisk(MemoryDisk):
    """Fails from its n-th change on."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10**9

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "stopped")

    def remove(self, path: str) -> None:
        if path in self._files:
            self._change()
        super().remove(path)

    def sync_folder(self, path: str) -> None:
        self._change()
        super().sync_folder(path)


@pytest.mark.parametrize("steps", range(16))
def test_a_crash_within_the_removal_leaves_all_or_nothing(bench_with: BenchWith, steps: int) -> None:
    disk = StoppingDisk()
    bench = bench_with(disk, partitions=2)
    consumer = bench.consumer()
    for number in range(8):
        bench.publish(str(number))
    bench.turn()
    consumer.ack(consumer.got[0])
    bench.turn()
    told = delete(bench)
    disk.left = steps
    bench.turn()
    disk.left = 10**9
    (result,) = told.results
    bench.restart()
    known = bench.engine.queues()
    if result is None:
        assert known == []
    if known:
        assert bench.engine.stats("q").depth == 7
    else:
        again = bench.consumer()
        bench.publish("new")
        bench.turn()
        assert again.values == ["new"]
        assert again.got[0].offset == 0


# -- purge -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "interval", "memory"])
def test_a_purge_takes_what_is_ready_for_every_group(bench_with: BenchWith, durability: str) -> None:
    bench = bench_with(MemoryDisk(), durability=durability, ordering="none")
    consumer, other = bench.consumer(room=2), bench.consumer("d", group="other", room=0)
    for number in range(6):
        bench.publish(str(number))
    bench.turn()
    held, failed = consumer.got
    bench.engine.update_queue("q", {"retry": {"nack_immediately": False}}, bench.now)
    bench.turn()
    consumer.nack(failed)
    told = purge(bench)
    bench.turn()
    assert told.results == [5], "what a consumer holds stays"
    stats = bench.engine.stats("q")
    assert [(group.lag, group.in_flight, group.purged) for group in stats.groups] == [(0, 1, 5), (0, 0, 6)]
    assert consumer.ack(held).calls == []
    consumer.room = other.room = 9
    for each in (consumer, other):
        assert each.handle is not None
        bench.engine.resume(each.handle, bench.now)
    bench.publish("new")
    bench.advance(9.0)
    assert (consumer.values[2:], other.values) == (["new"], ["new"])


def test_a_purge_that_begins_during_a_sync_is_answered(durable: QueueBench) -> None:
    """It waited for the sync after that one, which nothing was left for: lives of queues found it."""
    durable.publish("0")
    durable.engine.dispatch(durable.now)
    (job,) = durable.engine.take_jobs(durable.now)
    told = purge(durable)
    job.run()
    durable.engine.job_done(job, None, durable.now)
    durable.turn()
    assert told.results == [1]


@pytest.mark.parametrize("with_group", [True, False])
def test_what_was_purged_stays_away(bench_with: BenchWith, with_group: bool) -> None:
    bench = bench_with(MemoryDisk(), durability="interval")
    if with_group:
        bench.consumer(room=0)
    for number in range(6):
        bench.publish(str(number))
    bench.turn()
    told = purge(bench)
    bench.turn()
    assert told.results == [6]
    assert bench.engine.stats("q").depth == 0
    bench.publish("new")
    bench.turn()
    bench.restart()
    assert bench.engine.stats("q").depth == 1
    for group in ("g", "fresh"):
        consumer = bench.consumer(group=group)
        bench.turn()
        assert consumer.values == ["new"]


def test_a_purged_queue_takes_messages_again(bench_with: BenchWith) -> None:
    bench = bench_with(max_depth=3, max_bytes=100)
    for number in range(3):
        bench.publish(str(number) * 30)
    bench.turn()
    with pytest.raises(QueueError):
        bench.publish("4")
    purge(bench)
    bench.turn()
    bench.publish("5" * 90)
    bench.turn()
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.held_bytes, stats.purged) == (1, 90, 3)


# -- ephemeral ---------------------------------------------------------------------------------------------------


def test_an_ephemeral_queue_ends_when_nobody_consumes(bench: QueueBench) -> None:
    bench.engine.create_queue("e", {"ephemeral": True, "expires_after_s": 10.0}, bench.now)
    bench.publish("m", "$queue/e")
    bench.advance(9.0)
    consumer = bench.consumer(queue="e")
    bench.advance(100.0)
    assert bench.engine.queues() == ["e"]
    consumer.reject(consumer.got[0])
    bench.turn()
    consumer.leave()
    bench.advance(9.0)
    assert bench.engine.queues() == ["$dlq/e", "e"]
    bench.advance(1.5)
    assert bench.engine.queues() == [], "its dead letters go with it"
    assert bench.engine.next_deadline() is None
    bench.engine.create_queue("e", {"ephemeral": True}, bench.now)
    assert bench.engine.stats("e").depth == 0


def test_a_queue_that_was_never_used_expires_too(bench_with: BenchWith) -> None:
    bench = bench_with(templates={"tmp-*": {"ephemeral": True, "expires_after_s": 5}})
    bench.publish("m", "$queue/tmp-1")
    bench.publish("m", "$queue/kept")
    bench.advance(6.0)
    assert bench.engine.queues() == ["kept"]


# -- partitions --------------------------------------------------------------------------------------------------


def test_partitions_are_added_while_in_use(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, partitions=2, configured=(QueueConfig(name="q", partitions=2),))
    first, second = bench.consumer("a"), bench.consumer("b")
    keys = [f"k{number}" for number in range(40)]
    for key in keys:
        bench.publish(f"{key} old", key=key)
    bench.turn()
    generation = bench.engine.stats("q").groups[0].generation
    bench.engine.add_partitions("q", 5, bench.now)
    bench.turn()
    assert bench.engine.queue_config("q")[0].partitions == 5
    for key in keys:
        bench.publish(f"{key} new", key=key)
    bench.turn()
    stats = bench.engine.stats("q")
    assert (stats.partitions, stats.groups[0].generation) == (5, generation + 1)
    got = first.got + second.got
    assert len(got) == 80
    assert {delivery.partition for delivery in got if delivery.message.payload.endswith(b"old")} == {0, 1}
    assert {delivery.partition for delivery in got if delivery.message.payload.endswith(b"new")} == set(range(5))
    assert {delivery.partition for delivery in first.got} | {delivery.partition for delivery in second.got} == set(
        range(5)
    )
    for consumer in (first, second):
        for delivery in consumer.take():
            consumer.ack(delivery)
    bench.turn()
    bench.publish("more", key="k1")
    bench.turn()
    bench.restart()
    assert bench.engine.stats("q").partitions == 5, "although the file says 2"
    late = bench.consumer("late")
    bench.turn()
    assert late.values == ["more"]


def test_partitions_can_only_be_added(bench: QueueBench) -> None:
    bench.engine.create_queue("q", {"partitions": 3}, bench.now)
    bench.engine.create_queue("s", {"ordering": "strict"}, bench.now)
    for queue, count, code in (
        ("q", 2, QueueErrorCode.BAD_OPTION),
        ("q", 1_025, QueueErrorCode.BAD_OPTION),
        ("s", 2, QueueErrorCode.NOT_ALLOWED),
        ("x", 2, QueueErrorCode.UNKNOWN_QUEUE),
    ):
        with pytest.raises(QueueError) as caught:
            bench.engine.add_partitions(queue, count, bench.now)
        assert caught.value.code is code
    told: list[object] = []
    bench.engine.add_partitions("q", 3, bench.now, told.append)
    assert told == [None]


def test_added_partitions_know_lanes(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=1)
    consumer = bench.consumer(room=0)
    bench.publish("a", user_properties=(("priority", "high"),))
    bench.turn()
    bench.engine.add_partitions("q", 3, bench.now)
    for partition in range(3):
        bench.publish(str(partition), user_properties=(("priority", "low"), ("partition", str(partition))))
    bench.turn()
    consumer.room = 9
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.turn()
    assert sorted(consumer.values) == ["0", "1", "2", "a"]


def test_a_store_names_only_what_is_not_deleted() -> None:
    disk = MemoryDisk()
    store = LogQueueStore(disk)
    files = store.open_queue(QueueConfig(name="q", partitions=1))
    files.removal().run()
    assert store.stored_queues() == []


def test_producers_and_transactions_outlive_a_queue(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("a", transaction)
    with pytest.raises(QueueError) as caught:
        delete(bench)
    assert caught.value.code is QueueErrorCode.NOT_ALLOWED
    actor.commit(transaction)
    bench.turn()
    delete(bench)
    bench.turn()
    transaction = actor.begin()
    actor.publish("b", transaction)
    actor.publish("c", transaction, topic="$queue/other")
    actor.commit(transaction)
    bench.advance(100.0)
    bench.restart()
    consumers = [bench.consumer(queue=queue) for queue in ("q", "other")]
    bench.turn()
    assert [consumer.values for consumer in consumers] == [["b"], ["c"]]
