"""What a crash, a close or a disk that fails leave of transactions, and what their producers are told."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from assay.reference_broker.config import Durability, QueueConfig
from assay.reference_broker.queues import Outcome as Settled
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.sim.disk import Persistence, SimDisk
from tests.queues.actor import Actor
from tests.queues.conftest import Outcome, QueueBench
from tests.queues.failing_disk import FailingDisk
from tests.queues.group_bench import code_of, reset

BenchWith = Callable[..., QueueBench]


def test_a_commit_of_nothing_twice_is_told_the_same_also_after_a_restart(durable: QueueBench) -> None:
    """Nothing kept it known: the second one was told that it never began."""
    actor = Actor(durable)
    transaction = actor.begin()
    first = actor.commit(transaction)
    assert not first.calls, "what is told is durable"
    durable.turn()
    assert first.confirmed
    assert actor.commit(transaction).confirmed
    durable.restart()
    again = actor.commit(transaction)
    assert not again.calls, "the decision was found, and may not be on disk"
    durable.turn()
    assert again.confirmed
    actor.init()
    durable.turn()
    assert actor.commit(transaction).confirmed, "nor does a new epoch forget it"


def test_the_last_commit_is_remembered_although_an_earlier_one_was_complete_later(
    bench_with: Callable[..., QueueBench],
) -> None:
    """Completing the earlier one, once a periodic sync covered its parts, took the place of the later one."""
    queues = (
        QueueConfig(name="q", partitions=1, durability=Durability.INTERVAL),
        QueueConfig(name="r", partitions=1, durability=Durability.MEMORY),
    )
    bench = bench_with(MemoryDisk(), configured=queues)
    actor = Actor(bench)
    transactions = []
    for topic in ("$queue/q", "$queue/r"):
        transactions.append(actor.begin())
        actor.publish("a", transactions[-1], topic=topic)
        actor.commit(transactions[-1])
        bench.turn()
    bench.advance(5)
    bench.restart()
    again = actor.commit(transactions[-1])
    bench.turn()
    assert again.confirmed


@pytest.mark.parametrize("priority", ["high", "normal"])
def test_a_decided_acknowledgement_counts_after_a_crash_whatever_the_priority(
    bench_with: Callable[..., QueueBench], priority: str
) -> None:
    """The start looked for it among the messages of normal priority only, and delivered the others again."""
    disk = SimDisk(random.Random(1))
    bench = bench_with(disk, durability=Durability.FSYNC)
    bench.publish("a", user_properties=(("priority", priority),))
    consumer = bench.consumer()
    bench.turn()
    actor = Actor(bench)
    transaction = actor.begin()
    actor.ack(consumer.got[0], "c", transaction)
    outcome = actor.commit(transaction)
    bench.turn()
    assert outcome.confirmed
    disk.power_loss((Persistence.NONE,))
    bench.restart()
    assert bench.engine.stats("q").depth == 0


@pytest.mark.parametrize("anew", ["reset before the commit", "reset", "group", "queue"])
def test_a_decided_acknowledgement_settles_no_later_delivery_at_a_start(bench_with: BenchWith, anew: str) -> None:
    """The start knew of queue, group, partition and offset only, and settled what came there again in the meantime."""
    bench = bench_with(MemoryDisk(), durability=Durability.FSYNC)
    bench.publish("a")
    consumer = bench.consumer()
    bench.turn()
    actor = Actor(bench)
    transaction = actor.begin()
    actor.ack(consumer.got[0], "c", transaction)
    actor.publish("b", transaction)
    bench.now += 0.002
    if anew == "reset before the commit":
        reset(bench, "earliest")
        bench.turn()
    outcome = actor.commit(transaction)
    bench.turn()
    assert outcome.confirmed
    bench.now += 0.002
    if anew == "reset":
        reset(bench, "earliest")
    elif anew == "group":
        consumer.leave()
        bench.engine.groups.delete("q", "g", bench.now)
        bench.turn()
        consumer = bench.consumer()
    elif anew == "queue":
        bench.engine.delete_queue("q", bench.now)
        bench.turn()
        bench.publish("a")
        consumer = bench.consumer()
    bench.turn()
    expected = ["a"] if anew == "queue" else ["a", "b"]
    assert consumer.values[-len(expected) :] == expected, "it is delivered anew"
    if anew != "group":
        assert bench.engine.transactions.memory.coordinator.decisions, "or it is no test"
    bench.restart()
    again = bench.consumer()
    bench.turn()
    assert again.values == expected


@pytest.mark.parametrize("commits", [True, False])
def test_a_group_is_not_deleted_while_a_transaction_may_give_back_what_it_acknowledged(
    bench_with: BenchWith, commits: bool
) -> None:
    """The abort gave it back to a group that was gone, and the broker fell over."""
    bench = bench_with(MemoryDisk(), durability=Durability.FSYNC)
    bench.publish("a")
    consumer = bench.consumer()
    bench.turn()
    actor = Actor(bench)
    transaction = actor.begin()
    actor.ack(consumer.got[0], "c", transaction)
    consumer.leave()
    bench.turn()
    assert code_of(lambda: bench.engine.groups.delete("q", "g", bench.now)) is QueueErrorCode.IN_USE
    outcome = (actor.commit if commits else actor.abort)(transaction)
    bench.turn()
    assert outcome.confirmed
    bench.engine.groups.delete("q", "g", bench.now)
    bench.advance(3)
    assert not bench.engine.transactions.memory.coordinator.decisions, "it is complete without the group"


@pytest.mark.parametrize("turns", [True, False])
def test_who_waits_for_a_settlement_is_told_although_the_group_is_deleted(bench_with: BenchWith, turns: bool) -> None:
    """Nobody was told any more, neither of what was written and not synced, nor of what was not written."""
    bench = bench_with(MemoryDisk(), durability=Durability.FSYNC)
    bench.publish("a")
    consumer = bench.consumer()
    bench.turn()
    outcome = consumer.ack(consumer.got[0])
    consumer.leave()
    if turns:
        bench.engine.dispatch(bench.now)
    assert not outcome.calls
    bench.engine.groups.delete("q", "g", bench.now)
    bench.turn()
    assert outcome.confirmed


def test_an_identity_is_told_when_it_is_durable_also_while_the_first_sync_after_a_kill_runs(
    bench_with: BenchWith,
) -> None:
    """That sync, which covers what the killed broker wrote, was taken to cover what came while it ran, too."""
    disk = SimDisk(random.Random(1))
    bench = bench_with(disk)
    Actor(bench, "one")
    disk.crash()
    bench.restart()
    told: list[ProducerIdentity | None] = []
    transactions = bench.engine.transactions
    transactions.init_producer("one", bench.now, lambda _, identity: told.append(identity))
    jobs = bench.engine.take_jobs(bench.now)
    assert jobs
    transactions.init_producer("two", bench.now, lambda _, identity: told.append(identity))
    for job in jobs:
        job.run()
        bench.engine.job_done(job, None, bench.now)
    assert len(told) == 1
    bench.turn()
    disk.power_loss((Persistence.NONE,))
    bench.restart()
    assert Actor(bench, "two").identity == (told[1].producer_id, 1)


def test_a_close_finishes_a_commit_that_was_asked_for(durable: QueueBench) -> None:
    """It was never answered, and lost."""
    actor = Actor(durable)
    transaction = actor.begin()
    actor.publish("a", transaction)
    outcome = actor.commit(transaction)
    durable.engine.close(durable.now)
    assert outcome.confirmed
    durable.restart()
    assert durable.engine.stats("q").depth == 1
    again = actor.commit(transaction)
    durable.turn()
    assert again.confirmed


def test_a_close_finishes_an_abort_that_was_asked_for(durable: QueueBench) -> None:
    actor = Actor(durable)
    transaction = actor.begin()
    actor.publish("a", transaction)
    outcome = actor.abort(transaction)
    durable.engine.close(durable.now)
    assert outcome.confirmed


def test_a_commit_is_not_held_up_by_an_abort_of_the_same_turn(either: QueueBench) -> None:
    """The abort's control record was not written yet when the commit was looked at, and nobody looked again."""
    first, second = Actor(either, "one"), Actor(either, "two")
    transactions = first.begin(), second.begin()
    first.publish("a", transactions[0])
    second.publish("b", transactions[1])
    outcome = first.commit(transactions[0])
    second.abort(transactions[1])
    either.turn()
    assert outcome.confirmed


def test_a_disk_that_fails_leaves_nobody_without_an_answer(bench_with: BenchWith) -> None:
    """Who wanted a new epoch while the decision was made waited for ever."""
    disk = FailingDisk()
    bench = bench_with(disk)
    actor = Actor(bench)
    transaction = actor.begin()
    outcome = actor.commit(transaction)
    told: list[QueueError | None] = []
    bench.engine.transactions.init_producer("app", bench.now, lambda error, _: told.append(error))
    assert not told
    disk.fail_sync = "transactions"
    bench.turn()
    [error] = told
    assert error is not None
    assert error.code is QueueErrorCode.STORAGE_FAILED
    assert outcome.failed


@pytest.mark.parametrize("place", ["transactions", "queues"])
def test_a_close_with_a_disk_that_fails_answers_a_commit(bench_with: BenchWith, place: str) -> None:
    disk = FailingDisk()
    bench = bench_with(disk)
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("a", transaction)
    outcome: Outcome = actor.commit(transaction)
    disk.fail_sync = place
    bench.engine.close(bench.now)
    assert outcome.failed


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("commits", [True, False])
def test_the_record_of_an_end_takes_no_place_even_before_it_is_written(
    bench_with: BenchWith, durability: Durability, commits: bool
) -> None:
    """Between the sync that decided and the next turn it counted, and a publisher that came then was refused."""
    disk = None if durability is Durability.MEMORY else MemoryDisk()
    bench = bench_with(disk, durability=durability, max_depth=2)
    bench.consumer(room=0)
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("a", transaction)
    bench.turn()
    outcome = (actor.commit if commits else actor.abort)(transaction)
    depths = set()
    while not outcome.calls or bench.engine.transactions.is_busy:
        bench.engine.tick(bench.now)
        depths.add(bench.engine.stats("q").depth)
        bench.engine.dispatch(bench.now)
        for job in bench.engine.take_jobs(bench.now):
            job.run()
            bench.engine.job_done(job, None, bench.now)
            depths.add(bench.engine.stats("q").depth)
    last = bench.publish("b") if commits else [bench.publish("b"), bench.publish("c")][-1]
    bench.turn()
    assert last.confirmed
    assert depths <= ({1} if commits else {0, 1})
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.groups[0].lag, stats.refused) == (2, 2, 0)


def test_the_record_of_an_end_that_the_disk_refuses_is_no_message_that_was_refused(bench_with: BenchWith) -> None:
    disk = FailingDisk()
    bench = bench_with(disk, max_depth=2)
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("a", transaction)
    bench.turn()
    outcome = actor.commit(transaction)
    disk.fail_write = "q/"
    bench.turn()
    bench.advance(1.5)
    stats = bench.engine.stats("q")
    assert outcome.confirmed
    assert (stats.depth, stats.refused) == (1, 0)
    disk.fail_write = ""
    bench.advance(10.0)
    consumer = bench.consumer()
    bench.publish("b")
    bench.turn()
    stats = bench.engine.stats("q")
    assert consumer.values == ["a", "b"]
    assert (stats.depth, stats.refused, stats.groups[0].in_flight) == (2, 0, 2)


def test_a_commit_is_complete_when_the_queue_is_deleted_whose_disk_refused_to_know(bench_with: BenchWith) -> None:
    """The end of a transaction is written to each queue; one that is deleted needs it no more, now or after a start."""
    disk = FailingDisk()
    bench = bench_with(disk)
    actor = Actor(bench)
    transaction = actor.begin()
    for queue in "qr":
        actor.publish(queue, transaction, topic=f"$queue/{queue}")
    bench.turn()
    disk.fail_write = "queues/q/partitions"
    outcome = actor.commit(transaction)
    bench.turn()
    assert outcome.confirmed
    bench.engine.delete_queue("q", bench.now)
    disk.fail_write = ""
    for _ in range(2):
        bench.advance(10.0)
        assert bench.engine.queues() == ["r"]
        assert bench.engine.transactions.memory.coordinator.decisions == {}
        bench.restart()
    consumer = bench.consumer(queue="r")
    bench.turn()
    assert consumer.values == ["r"]


def test_the_next_start_finds_a_committed_rejection_whose_letter_was_refused_at_once(bench_with: BenchWith) -> None:
    """Its decision was taken for done, and the message came again after a kill (amqp, swarm seed 5188)."""
    disk = FailingDisk()
    bench = bench_with(disk, durability=Durability.FSYNC)
    letters, consumer = bench.consumer("d", queue="$dlq/q"), bench.consumer()
    bench.publish("first")
    bench.turn()
    bench.engine.settle_delivery(consumer.got[0], Settled.REJECT, consumer_id="c", now=bench.now)
    bench.turn()
    assert letters.values == ["first"]
    disk.fail_read = "dlq"
    bench.restart()
    consumer = bench.consumer()
    bench.publish("a")
    bench.turn()
    actor = Actor(bench)
    transaction = actor.begin()
    within = (*actor.identity, transaction)
    bench.engine.hold_delivery(consumer.got[0], Settled.REJECT, consumer_id="c", now=bench.now, within=within)
    outcome = actor.commit(transaction)
    for _ in range(5):
        bench.turn()
    assert outcome.confirmed
    disk.fail_read = ""
    bench.restart()
    letters, consumer = bench.consumer("d", queue="$dlq/q"), bench.consumer()
    for _ in range(5):
        bench.turn()
    assert letters.values == ["first", "a"]
    assert not consumer.got
    # It waited for its retry when the decision was found (fuzzing: it was counted among those that wait ever after).
    assert bench.engine.ready_count("q", "g") == 0
    assert bench.engine.stats("q").groups[0].retrying == 0
