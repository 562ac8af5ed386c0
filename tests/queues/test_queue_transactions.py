"""Transactions: all of it or nothing, for whoever reads; producers, epochs, sequence numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from assay.reference_broker.config import QueuesConfig, TransactionsConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, Verb
from assay.reference_broker.queues import QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.message_cache import MessageCache
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.queues.transactions.transaction import TRANSITIONS, TransactionState
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.batch import BatchFlag, decode_header
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore
from tests.queues.actor import Actor
from tests.queues.conftest import Outcome, QueueBench
from tests.queues.failing_disk import FailingDisk

# -- transactions ----------------------------------------------------------------------------------------------------


def test_nothing_of_an_open_transaction_shows_and_all_of_it_once_it_is_committed(either: QueueBench) -> None:
    consumer, other = either.consumer(), either.consumer("o", queue="r")
    actor = Actor(either)
    either.publish("before")
    transaction = actor.begin()
    actor.publish("a", transaction)
    actor.publish("b", transaction, topic="$queue/r")
    either.publish("behind")
    either.turn()
    assert consumer.values == ["before"]
    assert other.values == []
    outcome = actor.commit(transaction)
    either.turn()
    assert outcome.confirmed
    assert consumer.values == ["before", "a", "behind"]
    assert other.values == ["b"]
    for delivery in [*consumer.got]:
        consumer.ack(delivery)
    either.turn()
    assert either.engine.stats("q").depth == 0
    assert either.engine.stats("q").enqueued == 3


def test_an_aborted_transaction_never_shows_and_counts_for_nothing(either: QueueBench) -> None:
    consumer = either.consumer()
    actor = Actor(either)
    transaction = actor.begin()
    for value in "ab":
        actor.publish(value, transaction)
    either.publish("behind")
    either.turn()
    assert either.engine.stats("q").depth == 3
    outcome = actor.abort(transaction)
    either.turn()
    assert outcome.confirmed
    assert consumer.values == ["behind"]
    stats = either.engine.stats("q")
    assert (stats.depth, stats.enqueued, stats.aborted) == (1, 3, 2)
    assert stats.groups[0].expired == 0
    late = either.consumer("late", group="h")
    either.turn()
    assert late.values == ["behind"]
    assert either.engine.stats("q").groups[1].lag == 0


def test_what_is_hidden_is_no_dead_letter_though_no_cache_holds_it(bench_with: Callable[..., QueueBench]) -> None:
    """A swarm of small insides found empty dead letters that had expired: what was hidden and not in the cache."""
    bench = bench_with(MemoryDisk(), expired_to_dead_letters=True)
    letters, consumer = bench.consumer("d", queue="$dlq/q"), bench.consumer(room=0)
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("a", transaction)
    bench.turn()
    actor.abort(transaction)
    bench.turn()
    queue = bench.engine._queues["q"]
    group = queue.groups["g"]
    (place,) = group.every_place
    place.cursor, place.partition.expiry = 0, None
    place.partition.cached.clear()
    queue.limits.arm(bench.now)
    with mock.patch.object(MessageCache, "put", return_value=0):
        bench.turn()
    assert (consumer.values, letters.values) == ([], [])


def test_what_an_aborted_transaction_wrote_stays_hidden_after_a_restart(durable: QueueBench) -> None:
    actor = Actor(durable)
    transaction = actor.begin()
    actor.publish("a", transaction)
    durable.turn()
    actor.abort(transaction)
    durable.publish("b")
    durable.turn()
    durable.engine.close(durable.now)
    durable.restart()
    consumer = durable.consumer()
    durable.turn()
    assert consumer.values == ["b"]
    assert durable.engine.stats("q").depth == 1


def test_a_restart_aborts_what_was_not_decided_and_says_so(durable: QueueBench) -> None:
    actor = Actor(durable)
    transaction = actor.begin()
    actor.publish("a", transaction)
    durable.publish("b")
    durable.turn()
    durable.restart()
    consumer = durable.consumer()
    durable.turn()
    assert consumer.values == ["b"]
    assert durable.engine.transactions.list() == []
    with pytest.raises(QueueError) as refused:
        actor.commit(transaction)
    assert refused.value.code is QueueErrorCode.UNKNOWN_TRANSACTION


def test_a_commit_twice_is_told_the_same_also_after_a_restart(durable: QueueBench) -> None:
    actor = Actor(durable)
    transaction = actor.begin()
    actor.publish("a", transaction)
    first, second = actor.commit(transaction), actor.commit(transaction)
    durable.turn()
    third = actor.commit(transaction)
    assert first.confirmed
    assert second.confirmed
    assert third.confirmed
    with pytest.raises(QueueError, match="is committed already") as refused:
        actor.abort(transaction)
    assert refused.value.code is QueueErrorCode.TRANSACTION_STATE
    durable.advance(5)
    durable.restart()
    again = actor.commit(transaction)
    durable.turn()
    assert again.confirmed


def test_a_commit_after_an_abort_names_what_happened(either: QueueBench) -> None:
    actor = Actor(either)
    transaction = actor.begin()
    actor.publish("a", transaction)
    assert actor.abort(transaction).calls == []
    either.turn()
    with pytest.raises(QueueError, match="is aborted: aborted by its producer") as refused:
        actor.commit(transaction)
    assert refused.value.code is QueueErrorCode.TRANSACTION_STATE
    assert actor.abort(transaction).confirmed
    with pytest.raises(QueueError) as late:
        actor.publish("b", transaction)
    assert late.value.code is QueueErrorCode.TRANSACTION_STATE


def test_an_empty_transaction_commits(either: QueueBench) -> None:
    actor = Actor(either)
    outcome = actor.commit(actor.begin())
    either.turn()
    assert outcome.confirmed
    assert either.engine.transactions.list() == []


def test_a_transaction_times_out_and_the_commit_that_comes_late_says_so(either: QueueBench) -> None:
    consumer = either.consumer()
    actor = Actor(either)
    transaction = actor.begin(timeout_s=10)
    actor.publish("a", transaction)
    either.publish("b")
    either.advance(9)
    assert consumer.values == []
    either.advance(2)
    assert consumer.values == ["b"]
    with pytest.raises(QueueError, match="timed out after 10 s"):
        actor.commit(transaction)
    assert actor.begin() != transaction


def test_the_default_timeout_is_a_minute_and_the_longest_is_bounded(either: QueueBench) -> None:
    actor = Actor(either)
    actor.begin()
    [info] = either.engine.transactions.list()
    assert info.ends_by - info.began_at == 60
    with pytest.raises(QueueError) as refused:
        Actor(either, "other").begin(timeout_s=901)
    assert refused.value.code is QueueErrorCode.BAD_OPTION


def test_a_producer_has_one_transaction_at_a_time(either: QueueBench) -> None:
    actor = Actor(either)
    transaction = actor.begin()
    with pytest.raises(QueueError) as refused:
        actor.begin()
    assert refused.value.code is QueueErrorCode.TRANSACTION_STATE
    assert either.engine.transactions.describe(transaction).state == "open"


def test_a_transaction_of_another_producer_is_unknown(either: QueueBench) -> None:
    actor, other = Actor(either), Actor(either, "other")
    transaction = actor.begin()
    with pytest.raises(QueueError) as refused:
        other.publish("a", transaction)
    assert refused.value.code is QueueErrorCode.UNKNOWN_TRANSACTION


def test_transactions_in_one_partition_hold_each_other_back_in_order(either: QueueBench) -> None:
    consumer = either.consumer()
    one, two = Actor(either, "one"), Actor(either, "two")
    first, second = one.begin(), two.begin()
    one.publish("a", first)
    two.publish("b", second)
    one.publish("c", first)
    either.turn()
    two.commit(second)
    either.turn()
    assert consumer.values == []
    one.abort(first)
    either.turn()
    assert consumer.values == ["b"]


def test_a_committed_message_that_will_expire_outlives_a_restart(bench_with: Callable[..., QueueBench]) -> None:
    """Read back it had expired at once: it was lost, and the depth went below zero. Lives of queues found it."""
    bench = bench_with(MemoryDisk())
    actor = Actor(bench)
    bench.consumer("first").leave()
    transaction = actor.begin()
    actor.publish("kept", transaction, expires_at=bench.now + 1_000)
    bench.turn()
    actor.commit(transaction)
    bench.turn()
    bench.restart()
    bench.turn()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["kept"]
    assert bench.engine.stats("q").depth == 1
    bench.advance(2_000)
    consumer.leave()
    bench.turn()
    assert bench.engine.stats("q").depth == 0


def test_a_dead_letter_of_an_aborted_acknowledgement_tells_its_consumer(bench_with: Callable[..., QueueBench]) -> None:
    """Whoever acknowledged in a transaction was forgotten as the last consumer: lives of queues found it."""
    bench = bench_with(MemoryDisk(), retry={"max_retries": 0})
    consumer, letters = bench.consumer(), bench.consumer(queue="$dlq/q")
    actor = Actor(bench)
    bench.publish("in")
    bench.turn()
    transaction = actor.begin()
    actor.ack(consumer.got[0], "c", transaction)
    actor.abort(transaction)
    bench.turn()
    assert [letter.message.user_property("_dlq_consumer") for letter in letters.got] == ["c"]


def test_an_acknowledgement_in_a_transaction_counts_when_that_is_committed(either: QueueBench) -> None:
    consumer = either.consumer()
    actor = Actor(either)
    either.publish("in")
    either.turn()
    transaction = actor.begin()
    actor.ack(consumer.got[0], "c", transaction)
    actor.publish("out", transaction, topic="$queue/r")
    either.advance(40)
    assert consumer.counts == [1], "it does not time out meanwhile"
    assert either.engine.stats("q").depth == 1
    actor.commit(transaction)
    either.turn()
    assert either.engine.stats("q").depth == 0
    assert either.engine.stats("q").groups[0].acked == 1


def test_an_aborted_acknowledgement_is_delivered_again(either: QueueBench) -> None:
    consumer = either.consumer()
    actor = Actor(either)
    either.publish("in")
    either.turn()
    transaction = actor.begin()
    actor.ack(consumer.got[0], "c", transaction)
    with pytest.raises(QueueError) as twice:
        consumer.ack(consumer.got[0])
    assert twice.value.code is QueueErrorCode.NOT_PENDING
    actor.abort(transaction)
    either.turn()
    assert consumer.counts == [1, 2]


def test_only_acknowledgements_can_be_in_a_transaction(bench: QueueBench) -> None:
    consumer = bench.consumer()
    actor = Actor(bench)
    bench.publish("in")
    bench.turn()
    transaction = actor.begin()
    with pytest.raises(QueueError) as refused:
        actor.ack(consumer.got[0], "c", transaction, Verb.NACK)
    assert refused.value.code is QueueErrorCode.BAD_OPTION


def test_the_log_says_which_batches_are_transactional_and_how_they_ended(durable: QueueBench) -> None:
    actor = Actor(durable)
    durable.publish("plain")
    durable.turn()
    transaction = actor.begin()
    actor.publish("a", transaction)
    durable.turn()
    actor.commit(transaction)
    durable.turn()
    assert isinstance(durable.disk, MemoryDisk)
    data = durable.disk.open("queues/q/partitions/0/00000000000000000000.seg").read_at(0, 10_000)
    flags = []
    while data:
        header = decode_header(data)
        flags.append(bool(header.flags & BatchFlag.TRANSACTIONAL))
        data = data[header.total_bytes :]
    assert flags == [False, True, True]


def test_a_queue_goes_once_its_transactions_have_ended_and_leaves_nothing(durable: QueueBench) -> None:
    reader = durable.consumer("c", queue="in")
    actor = Actor(durable)
    durable.publish("in", "$queue/in")
    durable.publish("before", "$queue/r")
    durable.turn()
    transaction = actor.begin()
    actor.publish("a", transaction)
    actor.publish("b", transaction, topic="$queue/r")
    actor.ack(reader.got[0], "c", transaction)
    durable.turn()
    for queue in ("q", "in"):
        with pytest.raises(QueueError) as refused:
            durable.engine.delete_queue(queue, durable.now)
        assert refused.value.code is QueueErrorCode.NOT_ALLOWED
    actor.abort(transaction)
    durable.turn()
    assert reader.counts == [1, 2]
    durable.engine.delete_queue("q", durable.now)
    durable.turn()
    done = actor.begin()
    actor.publish("c", done, topic="$queue/r")
    actor.publish("d", done)
    assert actor.commit(done).calls == []
    durable.turn()
    durable.engine.delete_queue("in", durable.now)
    durable.turn()
    durable.advance(2)
    durable.publish("e")
    durable.turn()
    durable.restart()
    consumers = [durable.consumer("x", queue=queue) for queue in ("q", "r")]
    durable.turn()
    assert [consumer.values for consumer in consumers] == [["d", "e"], ["before", "c"]]


@pytest.mark.parametrize("why", ["its queue is deleted", "a message is lost"])
def test_a_commit_that_is_refused_ends_the_transaction(bench_with: Callable[..., QueueBench], why: str) -> None:
    """What it wrote is never seen, and neither its producer nor what is behind it waits for its timeout."""
    disk = FailingDisk()
    bench = bench_with(disk)
    actor = Actor(bench)
    consumer, _ = bench.consumer(queue="r"), bench.publish("before", "$queue/q")
    bench.turn()
    transaction = actor.begin()
    actor.publish("a", transaction, topic="$queue/r")
    bench.publish("behind", "$queue/r")
    bench.turn()
    assert consumer.values == []
    if why == "its queue is deleted":
        key = TransactionKey(*actor.identity, transaction)
        bench.engine.add_to_transaction(key, "q", 0, bench.now)
        bench.engine.delete_queue("q", bench.now)
    else:
        disk.fail_sync = "queues/q/partitions"
        actor.publish("lost", transaction, topic="$queue/q")
    bench.turn()
    with pytest.raises(QueueError, match="was deleted" if why == "its queue is deleted" else "was lost"):
        actor.commit(transaction)
    bench.turn()
    assert consumer.values == ["behind"]
    assert actor.begin() != transaction


# -- limits ----------------------------------------------------------------------------------------------------------


def _limited(**limits: Any) -> QueueEngine:
    config = QueuesConfig(defaults={"partitions": 2}, transactions=TransactionsConfig(**limits))
    return QueueEngine(config, LogQueueStore(None), random.Random(1), 0.0)


def _run(engine: QueueEngine) -> None:
    for _ in range(5):
        engine.dispatch(0.0)
        for job in engine.take_jobs(0.0):
            job.run()
            engine.job_done(job, None, 0.0)


def _producer(engine: QueueEngine, name: str) -> ProducerIdentity:
    found: list[ProducerIdentity | None] = []
    engine.transactions.init_producer(name, 0.0, lambda error, identity: found.append(identity))
    _run(engine)
    assert found[0] is not None
    return found[0]


def _begun(engine: QueueEngine, identity: ProducerIdentity) -> str:
    found: list[str] = []
    engine.transactions.begin(*identity, 0.0, lambda error, name: found.append(name))
    _run(engine)
    return found[0]


@pytest.mark.parametrize(
    ("limits", "partitions", "count"),
    [({"max_messages": 3}, (0, 0, 0, 0), 3), ({"max_bytes": 10}, (0, 0, 0), 2), ({"max_partitions": 1}, (0, 1), 1)],
)
def test_a_transaction_is_bounded(limits: dict[str, int], partitions: tuple[int, ...], count: int) -> None:
    engine = _limited(**limits)
    identity = _producer(engine, "app")
    transaction = _begun(engine, identity)

    def publish(partition: int) -> None:
        properties = (
            ("producer-id", str(identity.producer_id)),
            ("producer-epoch", "0"),
            ("transaction-id", transaction),
            ("partition", str(partition)),
        )
        message = Message(topic="$queue/q", payload=b"12345", user_properties=properties)
        QueueTopics(engine).publish(message, 0.0)

    for partition in partitions[:-1]:
        publish(partition)
    with pytest.raises(QueueError) as refused:
        publish(partitions[-1])
    assert refused.value.code is QueueErrorCode.LIMIT
    assert engine.transactions.describe(transaction).messages == count


def test_open_transactions_and_transactional_ids_are_bounded() -> None:
    engine = _limited(max_open=1, max_transactional_ids=2)
    one, two = _producer(engine, "one"), _producer(engine, "two")
    _begun(engine, one)
    with pytest.raises(QueueError) as refused:
        engine.transactions.begin(*two, 0.0, lambda error, name: None)
    assert refused.value.code is QueueErrorCode.LIMIT
    with pytest.raises(QueueError) as full:
        engine.transactions.init_producer("three", 0.0, lambda error, identity: None)
    assert full.value.code is QueueErrorCode.LIMIT
    engine.transactions.init_producer("one", 700_000.0, lambda error, identity: None)
    engine.transactions.init_producer("three", 700_000.0, lambda error, identity: None)
    with pytest.raises(QueueError) as forgotten:
        engine.transactions.begin(*two, 700_000.0, lambda error, name: None)
    assert "has no transactional id" in forgotten.value.text


def test_one_user_has_only_some_of_the_transactional_ids() -> None:
    engine = _limited(max_transactional_ids=5, max_transactional_ids_per_user=2)

    def begins(name: str, owner: str | None, now: float = 0.0) -> bool:
        try:
            engine.transactions.init_producer(name, now, lambda error, identity: None, owner=owner)
        except QueueError as error:
            assert error.code is QueueErrorCode.LIMIT
            return False
        return True

    assert [begins(name, "u") for name in ("a", "b", "c", "a")] == [True, True, False, True]
    assert begins("c", "v")
    assert begins("d", ""), "nobody's"
    assert begins("e", None)
    assert [begins("f", owner) for owner in ("v", "", None)] == [False] * 3, "all there may be"
    assert begins("f", "u", 700_000.0), "one that was not used for long makes room"
    assert set(engine.transactions.memory.coordinator.ids_of.items()) == {("u", 2), ("v", 1), ("", 2)}


def test_transactions_that_have_ended_leave_no_deadlines() -> None:
    engine = _limited()
    lasting, short = _producer(engine, "lasting"), _producer(engine, "short")
    transactions = engine.transactions
    transactions.begin(*lasting, 0.0, lambda error, name: None, timeout_s=1.0)
    for _ in range(3_000):
        transactions.abort(*short, _begun(engine, short), 0.0, lambda error: None)
        engine.dispatch(0.0)
    assert len(transactions.list()) == 1
    assert len(transactions._deadlines) <= 1_100
    assert transactions.next_deadline() == 1.0


# -- bounded recovery ------------------------------------------------------------------------------------------------


def test_opening_reads_only_the_end_of_a_log(durable: QueueBench) -> None:
    actor = Actor(durable, None)
    for number in range(5_000):
        actor.publish(str(number), sequence=number)
        if number % 100 == 0:
            durable.turn()
    durable.turn()
    durable.advance(5)
    durable.restart()
    produced = durable.engine._queues["q"].partitions[0].produced
    assert produced is not None
    assert 3_500 < produced.covered <= 5_000
    assert actor.publish("4990", sequence=4_990).calls in ([], [None])
    durable.turn()
    assert durable.engine.stats("q").depth == 5_000


def test_a_broker_without_transactions_keeps_nothing_and_reads_nothing(durable: QueueBench) -> None:
    durable.publish("a")
    durable.turn()
    assert isinstance(durable.disk, MemoryDisk)
    assert not durable.disk.exists("transactions")
    durable.restart()
    assert durable.engine.transactions.memory.found is None
    assert durable.engine._queues["q"].partitions[0].produced is None


def test_the_table_of_states_ends_and_is_whole() -> None:
    sources = {source for source, _, _ in TRANSITIONS}
    targets = {target for _, _, target in TRANSITIONS}
    assert sources | targets == {state.value for state in TransactionState}
    assert targets - sources == {"committed", "aborted"}


@pytest.mark.parametrize("overflow", ["drop_oldest", "dead_letter_oldest"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_full_queue_gives_up_no_message_of_an_open_transaction(
    bench_with: Callable[..., QueueBench], overflow: str, commits: bool
) -> None:
    bench = bench_with(max_depth=2, overflow=overflow)
    consumer = bench.consumer()
    actor = Actor(bench)
    transaction = actor.begin()
    actor.publish("a", transaction)
    actor.publish("b", transaction)
    bench.turn()
    outcome = Outcome()
    with pytest.raises(QueueError) as refused:
        QueueTopics(bench.engine).publish(Message(topic="$queue/q", payload=b"c"), bench.now, outcome)
    assert refused.value.code is QueueErrorCode.FULL
    (actor.commit if commits else actor.abort)(transaction)
    bench.turn()
    assert consumer.values == (["a", "b"] if commits else [])
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.dead_letters, stats.refused) == (2 if commits else 0, 0, 1)
