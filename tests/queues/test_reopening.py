"""Queues that the disk does not let be opened, for now: refused, tried again ever more rarely, and whole then."""

from __future__ import annotations

import errno
import random

import msgspec
import pytest

from assay.reference_broker.config import QueueConfig, QueuesConfig
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode, may_pass
from assay.reference_broker.queues.registry.reopening import Reopening
from assay.sim.disk import DiskProfile, SimDisk

from .actor import Actor
from .conftest import QueueBench
from .failing_disk import FailingDisk


def _with_room(disk: SimDisk, spare_bytes: int) -> None:
    capacity_bytes = disk.used_bytes + spare_bytes
    disk.profile = msgspec.structs.replace(disk.profile, capacity_bytes=capacity_bytes)


def _commit_until_decided(bench: QueueBench, actor: Actor, transaction: str) -> None:
    """Up to the moment at which the decision is durable, and no queue was told."""
    engine = bench.engine
    decided = actor.commit(transaction)
    for _ in range(10):
        engine.tick(bench.now)
        engine.dispatch(bench.now)
        coordinator = engine.transactions.memory.coordinator
        jobs = engine.take_jobs(bench.now)
        for job in jobs:
            job.run()
        if transaction in coordinator.decisions and jobs:
            break
        for job in jobs:
            engine.job_done(job, None, bench.now)
    assert transaction in coordinator.decisions
    assert not decided.confirmed


def _restart(bench: QueueBench, disk: SimDisk, *configured: QueueConfig) -> None:
    """As after an end that nobody saw coming, with other queues configured."""
    disk.crash()
    bench.config = msgspec.structs.replace(bench.config, configured=configured)
    bench.engine = bench._open()


def _is_refused(bench: QueueBench) -> bool:
    try:
        bench.publish("more")
    except QueueError as error:
        assert error.code is QueueErrorCode.STORAGE_FAILED
        return True
    return False


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(random.Random(5), DiskProfile(stall_rate=0))


@pytest.fixture
def bench(disk: SimDisk) -> QueueBench:
    return QueueBench(disk, durability="fsync")


def test_a_queue_is_opened_once_there_is_room_with_all_that_it_holds(bench: QueueBench, disk: SimDisk) -> None:
    actor = Actor(bench)
    committed, aborted = actor.begin(), None
    actor.publish("committed", committed)
    bench.turn()
    actor.commit(committed)
    bench.turn()
    aborted = actor.begin()
    actor.publish("aborted", aborted)
    actor.publish("elsewhere", aborted, topic="$queue/other")
    bench.publish("plain")
    bench.turn()
    _with_room(disk, 0)
    _restart(bench, disk, QueueConfig(name="q", partitions=2))
    assert bench.engine.unusable_queues() == ["q"]
    bench.advance(50)
    assert _is_refused(bench)
    _with_room(disk, 1_000_000)
    bench.advance(60)
    assert bench.engine.unusable_queues() == []
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["committed", "plain"], "the open transaction was aborted by the end of the broker"
    other = bench.consumer("o", queue="other")
    bench.turn()
    assert other.values == []
    again = Actor(bench).begin()
    bench.publish("more")
    bench.turn()
    assert consumer.values[2:] == ["more"]
    assert again


@pytest.mark.parametrize("failing", ["fail_read", "fail_write"])
def test_a_queue_is_opened_once_the_disk_gives_what_it_has(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hunt found it: one error of the disk as the broker started, and its queue was refused for good
    (transactions, crash-restart and passing-groups, seeds 200673 and 200674)."""
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync")
    consumer = bench.consumer()
    for value in "ab":
        bench.publish(value)
    bench.turn()
    consumer.ack(consumer.got[0])
    bench.turn()
    if failing == "fail_write":
        disk.remove("queues/q/consumers/g/g.pel.log")  # so that one is made
    setattr(disk, failing, "queues/q/consumers/")
    monkeypatch.setattr("tests.queues.failing_disk.NO_ROOM", errno.EIO)
    bench.restart()
    assert _is_refused(bench)
    setattr(disk, failing, "")
    bench.advance(3)
    assert bench.engine.unusable_queues() == []
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == (["b"] if failing == "fail_read" else ["a", "b"])


@pytest.mark.parametrize("configured", [False, True])
def test_a_queue_is_opened_once_its_description_can_be_read(configured: bool) -> None:
    """With all that it holds, as it was created."""
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync")
    bench.engine.create_queue("long", {"partitions": 3, "max_depth": 7}, bench.now)
    bench.turn()
    for value in "ab":
        bench.publish(value, topic="$queue/long")
        bench.publish(value)
    bench.turn()
    if configured:
        queue = QueueConfig(name="long", partitions=3)
        bench.config = msgspec.structs.replace(bench.config, configured=(queue,))
    disk.fail_read = "queues/long/queue.json"
    bench.restart()
    assert bench.engine.unusable_queues() == ["long"]
    bench.advance(2)
    with pytest.raises(QueueError) as refused:
        bench.publish("more", topic="$queue/long")
    assert refused.value.code is QueueErrorCode.STORAGE_FAILED
    with pytest.raises(QueueError):
        bench.engine.create_queue("long", {}, bench.now)
    assert not _is_refused(bench)
    disk.fail_read = ""
    bench.advance(3)
    assert bench.engine.unusable_queues() == []
    config, settings = bench.engine.queue_config("long")
    assert (config.partitions, config.max_depth, settings["max_depth"]) == (3, 7, 7)
    consumer = bench.consumer(queue="long")
    bench.turn()
    assert sorted(consumer.values) == ["a", "b"]


def test_a_description_that_is_damaged_where_it_could_be_read_is_not_tried_again() -> None:
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync")
    bench.publish("m")
    bench.turn()
    disk.fail_read = "queue.json"
    bench.restart()
    disk.fail_read = ""
    disk._files["queues/q/queue.json"][:4] = b"?" * 4
    bench.advance(3)
    assert _is_refused(bench)
    assert bench.engine._registry.reopening.due_at is None


def test_a_deleted_queue_that_could_not_be_read_is_gone_for_good_then() -> None:
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync")
    bench.publish("m")
    bench.turn()
    description = msgspec.json.decode(bytes(disk._files["queues/q/queue.json"]))
    disk._files["queues/q/queue.json"][:] = msgspec.json.encode(description | {"deleted": True})
    disk.fail_read = "queue.json"
    bench.restart()
    assert _is_refused(bench)
    disk.fail_read = ""
    bench.advance(3)
    assert bench.engine.unusable_queues() == []
    assert not _is_refused(bench)
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["more"]


def test_a_queue_whose_sync_failed_as_it_was_opened_waits_for_the_next_start() -> None:
    """What is read after that need not be on disk."""
    error = LogError("a sync failed", sticky=True)
    error.__cause__ = OSError(errno.EIO, "Input/output error")
    assert not may_pass(error)
    error.sticky = False
    assert may_pass(error)


def test_a_commit_that_was_decided_is_finished_in_a_queue_that_opens_late(bench: QueueBench, disk: SimDisk) -> None:
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("here", transaction)
    actor.publish("there", transaction, topic="$queue/other")
    bench.turn()
    _commit_until_decided(bench, actor, transaction)
    _with_room(disk, 0)
    _restart(bench, disk, QueueConfig(name="q", partitions=2))
    assert bench.engine.unusable_queues() == ["q"]
    _with_room(disk, 1_000_000)
    bench.advance(0)
    for queue, value in (("other", "there"), ("q", "here")):
        bench.advance(2 if queue == "q" else 0)
        consumer = bench.consumer(queue, queue=queue)
        bench.turn()
        assert consumer.values == [value], queue
    assert transaction not in bench.engine.transactions.memory.coordinator.decisions


def _decided_alone(bench: QueueBench) -> None:
    """A message of ``q`` moved to another queue in one commit, up to the moment at which the decision is durable and no
    queue was told; no message of ``q`` was of a transaction."""
    bench.publish("moved")
    consumer = bench.consumer()
    bench.consumer("o", queue="other")
    bench.turn()
    actor = Actor(bench)
    transaction = actor.begin()
    actor.ack(consumer.got[0], "c", transaction)
    actor.publish("copy", transaction, topic="$queue/other")
    bench.turn()
    _commit_until_decided(bench, actor, transaction)


def _moved_once(bench: QueueBench) -> None:
    consumer, other = bench.consumer(), bench.consumer("o", queue="other")
    bench.publish("next")
    bench.turn()
    assert (consumer.values, other.values) == (["next"], ["copy"])
    bench.advance(3)
    assert not bench.engine.transactions.memory.coordinator.decisions


def test_what_a_decided_commit_acknowledged_is_settled_in_a_queue_that_opens_late() -> None:
    """It came again, as no message of its queue was of a transaction (swarm seed 300354 of `amqp`)."""
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync")
    _decided_alone(bench)
    disk.fail_read = "queues/q/consumers/"
    bench.restart()
    assert bench.engine.unusable_queues() == ["q"]
    disk.fail_read = ""
    bench.advance(3)
    _moved_once(bench)


def test_a_queue_that_a_commit_may_have_settled_waits_for_the_transactions() -> None:
    """Its messages came again where the transactions could not be read: no message of it was of one, so it was served.
    Once the disk gives them, all is as after any start; queues that no transaction touched are served all along."""
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync")
    bench.publish("plain", topic="$queue/plain")
    bench.turn()
    _decided_alone(bench)
    disk.fail_read = "transactions/log"
    bench.restart()
    assert bench.engine.unusable_queues() == ["other", "q"]
    bench.advance(10)
    assert _is_refused(bench)
    plain = bench.consumer("p", queue="plain")
    bench.turn()
    assert plain.values == ["plain"]
    with pytest.raises(QueueError, match="no transactions now"):
        bench.engine.transactions.init_producer("t", bench.now, lambda error, identity: None)
    disk.fail_read = ""
    bench.advance(16)
    assert bench.engine.unusable_queues() == []
    _moved_once(bench)
    assert Actor(bench, "later").begin()


def test_producers_are_served_once_the_transactions_can_be_read_though_no_queue_needs_them() -> None:
    """They were refused until a restart."""
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync")
    before = Actor(bench, "t")
    bench.turn()
    disk.fail_read = "transactions/log"
    bench.restart()
    for _ in range(2):
        with pytest.raises(QueueError, match="no transactions now"):
            bench.engine.transactions.init_producer("t", bench.now, lambda error, identity: None)
        bench.advance(100)
    notes = [note for note in bench.engine._store.recovery_notes() if "are refused, other" in note.problem]
    assert 5 <= len(notes) <= 9, "tried ever more rarely"
    disk.fail_read = ""
    bench.advance(61)
    again = Actor(bench, "t")
    assert again.identity == (before.identity[0], before.identity[1] + 1)
    assert again.begin()
    assert bench.engine.transactions.next_deadline() == bench.now + 60, "of the transaction alone"


def _content(disk: FailingDisk, folder: str) -> dict[str, bytes]:
    return {path: bytes(content) for path, content in disk._files.items() if path.startswith(folder)}


@pytest.mark.parametrize("grouped", [False, True])
def test_nothing_of_a_queue_that_waits_for_the_transactions_goes_on(grouped: bool) -> None:
    """Its clock did: what was committed passed for expired, as nobody knew better, and that was written down: it was
    lost."""
    disk = FailingDisk()
    bench = QueueBench(disk, durability="fsync", delivery_timeout_s=2)
    actor = Actor(bench)
    if grouped:
        bench.consumer(room=1)
    transaction = actor.begin()
    for value in "ab":
        actor.publish(value, transaction)
    actor.commit(transaction)
    bench.turn()
    disk.fail_read = "transactions/log"
    bench.restart()
    assert bench.engine.unusable_queues() == ["q"]
    disk.fail_read = "queues/q/queue.json"  # so that it is not opened meanwhile
    before = _content(disk, "queues/q")
    bench.advance(20)
    assert _content(disk, "queues/q") == before
    disk.fail_read = ""
    bench.advance(16)
    consumer = bench.consumer()
    bench.advance(0)
    assert consumer.values == ["a", "b"]


def test_a_configured_queue_is_created_once_there_is_room(bench: QueueBench, disk: SimDisk) -> None:
    bench.publish("plain", topic="$queue/other")
    bench.turn()
    _with_room(disk, 0)
    _restart(bench, disk, QueueConfig(name="q", partitions=1))
    assert _is_refused(bench)
    _with_room(disk, 1_000_000)
    bench.advance(1)
    assert not _is_refused(bench)
    other = bench.consumer("o", queue="other")
    bench.turn()
    assert other.values == ["plain"]


def test_it_is_tried_ever_more_rarely_and_once_a_turn() -> None:
    reopening = Reopening()
    assert reopening.due_at is None
    assert reopening.next_due(10**9) is None
    now, tries = 1_000.0, []
    for name in ("a", "b"):
        reopening.failed(name, now)
    while now < 1_000.0 + 300:
        due_at = reopening.due_at
        assert due_at is not None
        assert reopening.next_due(due_at - 0.001) is None
        now = max(now, due_at)
        name = reopening.next_due(now)
        assert name is not None
        tries.append((name, now - 1_000.0))
        reopening.failed(name, now)
    assert [at for name, at in tries if name == "a"] == [1, 3, 7, 15, 31, 63, 123, 183, 243, 303]
    assert sum(name == "b" for name, _ in tries) >= 9
    reopening.tried("a", now)
    assert reopening.due_at is not None, "it failed again meanwhile"
    for name in "ab":
        reopening.tried(name, now + 60)
    assert reopening.due_at is None


def test_nothing_is_tried_where_nothing_waits(bench: QueueBench) -> None:
    assert isinstance(bench.config, QueuesConfig)
    bench.publish("plain")
    bench.turn()
    bench.engine._registry.reopen(bench.now + 10**6, lambda queue: pytest.fail(queue.name))
