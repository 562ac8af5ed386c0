"""One damaged file never stops the broker: its queue is set aside, untouched, and the others go on."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind
from tests.queues.actor import Actor
from tests.queues.conftest import QueueBench

BenchWith = Callable[..., QueueBench]


def write(disk: MemoryDisk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.append(content)


def files_of(disk: MemoryDisk, folder: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        found |= files_of(disk, path)
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        found[path] = file.read_at(0, file.size)
    return found


def damaged_description(disk: MemoryDisk) -> None:
    write(disk, "queues/q/queue.json", b"\0" * 40)


def missing_description(disk: MemoryDisk) -> None:
    disk.remove("queues/q/queue.json")


def newer_description(disk: MemoryDisk) -> None:
    write(disk, "queues/q/queue.json", b'{"version":2,"name":"q","partitions":1}')


def description_of_another(disk: MemoryDisk) -> None:
    write(disk, "queues/q/queue.json", msgspec.json.encode({"version": 1, "name": "other", "partitions": 1}))


def overlapping_segments(disk: MemoryDisk) -> None:
    folder = "queues/q/partitions/0"
    first = disk.open(f"{folder}/{0:020d}.seg")
    write(disk, f"{folder}/{1:020d}.seg", first.read_at(0, first.size))
    for name in ("durable.mark", f"{0:020d}.idx", f"{0:020d}.tix"):
        if disk.exists(f"{folder}/{name}"):
            disk.remove(f"{folder}/{name}")


KINDS = (
    damaged_description,
    missing_description,
    newer_description,
    description_of_another,
    overlapping_segments,
)


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("damage", KINDS)
def test_a_damaged_queue_is_set_aside(
    bench_with: BenchWith, damage: Callable[[MemoryDisk], None], configured: bool
) -> None:
    disk = MemoryDisk()
    more = {"configured": (QueueConfig(name="q", partitions=1),)} if configured else {}
    bench = bench_with(disk, **more)
    consumer = bench.consumer()
    for topic in ("$queue/q", "$queue/sound"):
        for number in range(3):
            bench.publish(f"m{number}", topic)
    bench.turn()
    consumer.leave()
    bench.turn()
    damage(disk)
    before = files_of(disk, "queues/q")
    bench.restart()
    engine = bench.engine
    assert engine.queues() == ["sound"]
    assert engine.unusable_queues() == ["q"]
    operations = (
        lambda: bench.publish("x"),
        lambda: bench.consumer("c"),
        lambda: engine.stats("q"),
        lambda: engine.create_queue("q", {}, bench.now),
        lambda: engine.delete_queue("q", bench.now),
        lambda: engine.browse("q", 1),
    )
    for operation in operations:
        with pytest.raises(QueueError, match="'q' cannot be used: ") as caught:
            operation()
        assert caught.value.code is QueueErrorCode.STORAGE_FAILED
    other = bench.consumer(queue="sound")
    bench.publish("new", "$queue/sound")
    bench.turn()
    assert other.values == ["m0", "m1", "m2", "new"]
    bench.advance(60)
    bench.engine.close(bench.now)
    assert files_of(disk, "queues/q") == before
    notes = [fields for kind, fields in bench.trace if kind is TraceKind.RECOVERED and fields["queue"] == "q"]
    assert any(re.match(r"queues/q.*: .*left as they are", str(fields["detail"])) for fields in notes)


def test_put_right_it_is_as_it_was(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    bench.publish("m")
    bench.turn()
    kept = disk.open("queues/q/queue.json").read_at(0, 1 << 16)
    damaged_description(disk)
    bench.restart()
    bench.engine.close(bench.now)
    write(disk, "queues/q/queue.json", kept)
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["m"]


def test_files_that_nobody_knows_are_left_alone(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    bench.publish("m")
    bench.turn()
    for folder in ("queues/lost+found", "queues/q/notes", "queues/q/consumers/odd", "queues/q/partitions/0/x"):
        disk.make_folder(folder)
    for path in ("queues/README", "queues/q/x.bin", "queues/q/partitions/0/y", "queues/q/consumers/z", "stray"):
        write(disk, path, b"not ours")
    before = disk.list("queues/q")
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["m"]
    assert disk.list("queues/q") == before
    assert disk.open("queues/README").read_at(0, 100) == b"not ours"


def _overwritten(disk: MemoryDisk, path: str) -> None:
    log = disk.open(path)
    log.write_at(0, b"\xff" * min(16, log.size))


@pytest.mark.parametrize("harm", [_overwritten, MemoryDisk.remove])
def test_a_group_with_a_damaged_log_keeps_what_it_has_not_settled(
    bench_with: BenchWith, harm: Callable[[MemoryDisk, str], None]
) -> None:
    """It is there before anybody subscribes, so that nothing is freed under it."""
    disk = MemoryDisk()
    bench = bench_with(disk, segment_bytes=200)
    slow, quick = bench.consumer("a", group="g", room=0), bench.consumer("b", group="h")
    for number in range(20):
        bench.publish(f"m{number}")
        bench.turn()
    slow.leave()
    quick.leave()
    bench.turn()
    harm(disk, "queues/q/consumers/g/g.pel.log")
    bench.restart()
    assert [group.group for group in bench.engine.stats("q").groups] == ["g", "h"]
    assert bench.engine.stats("q").storage_notes >= 1
    quick = bench.consumer("b", group="h")
    bench.turn()
    for delivery in quick.got:
        quick.ack(delivery)
    bench.advance(30)
    late = bench.consumer("a", group="g")
    bench.turn()
    assert late.values == [f"m{number}" for number in range(20)]


def test_damaged_transactions_stop_producers_alone(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    bench.publish("plain", "$queue/plain")
    bench.turn()
    actor = Actor(bench)
    actor.publish("numbered", sequence=0)
    bench.turn()
    bench.advance(5)
    for name in disk.list("transactions/log"):
        if name.endswith(".seg"):
            disk.remove(f"transactions/log/{name}")
            write(disk, f"transactions/log/{7:020d}.seg", b"")
    before = files_of(disk, "transactions") | files_of(disk, "queues/q")
    bench.restart()
    assert bench.engine.queues() == ["plain"]
    assert bench.engine.unusable_queues() == ["q"]
    consumer = bench.consumer(queue="plain")
    bench.turn()
    assert consumer.values == ["plain"]
    with pytest.raises(QueueError, match="no transactions now") as caught:
        bench.engine.transactions.init_producer("t", bench.now, lambda error, identity: None)
    assert caught.value.code is QueueErrorCode.STORAGE_FAILED
    bench.advance(30)
    bench.engine.close(bench.now)
    assert files_of(disk, "transactions") | files_of(disk, "queues/q") == before


@pytest.mark.parametrize("rounds", range(9))
def test_a_decision_waits_for_a_queue_that_was_set_aside(bench_with: BenchWith, rounds: int) -> None:
    """A kill somewhere in a commit, then a start without one of its queues: it is all of the transaction or nothing."""
    disk = MemoryDisk()
    bench = bench_with(disk)
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("a", transaction)
    actor.publish("b", transaction, topic="$queue/r")
    bench.turn()
    actor.commit(transaction)
    for _ in range(rounds):
        bench.engine.dispatch(bench.now)
        for job in bench.engine.take_jobs(bench.now)[:1]:
            job.run()
            bench.engine.job_done(job, None, bench.now)
    kept = disk.open("queues/q/queue.json").read_at(0, 1 << 16)
    damaged_description(disk)
    bench.restart()
    bench.advance(5)
    bench.engine.close(bench.now)
    write(disk, "queues/q/queue.json", kept)
    bench.restart()
    consumers = bench.consumer(), bench.consumer(queue="r")
    bench.turn()
    assert [consumer.values for consumer in consumers] in ([["a"], ["b"]], [[], []])


@pytest.mark.parametrize("rounds", range(7))
def test_producers_that_a_kill_cut_short_are_known_of_without_the_transactions(
    bench_with: BenchWith, rounds: int
) -> None:
    """A kill as a partition gets its first producer; then a start that can read the queue alone loses no commit."""
    disk = MemoryDisk()
    bench = bench_with(disk)
    bench.publish("plain")
    bench.turn()
    Actor(bench).publish("numbered", sequence=0)
    for _ in range(rounds):
        bench.engine.dispatch(bench.now)
        for job in bench.engine.take_jobs(bench.now)[:1]:
            job.run()
            bench.engine.job_done(job, None, bench.now)
    bench.restart()
    actor = Actor(bench, "again")
    transaction = actor.begin()
    actor.publish("committed", transaction)
    actor.commit(transaction)
    bench.turn()
    bench.engine.close(bench.now)
    [log] = [name for name in disk.list("transactions/log") if name.endswith(".seg")]
    kept = files_of(disk, "transactions")
    disk.remove(f"transactions/log/{log}")
    write(disk, f"transactions/log/{7:020d}.seg", b"")
    bench.restart()
    assert bench.engine.unusable_queues() == ["q"]
    bench.engine.close(bench.now)
    disk.remove(f"transactions/log/{7:020d}.seg")
    for path, content in kept.items():
        write(disk, path, content)
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values in (["plain", "numbered", "committed"], ["plain", "committed"])
