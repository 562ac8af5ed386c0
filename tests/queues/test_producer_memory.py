"""What partitions remember of producers: how many, and what is left of it when a log has lost its end."""

from __future__ import annotations

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.control_records import RecordMark
from assay.reference_broker.queues.partitions import producers
from assay.reference_broker.queues.partitions.producers import PartitionProducers
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.actor import Actor
from tests.queues.conftest import QueueBench


@pytest.mark.parametrize("restart", [False, True])
def test_the_producer_that_was_silent_longest_is_forgotten_but_none_with_an_open_transaction(
    durable: QueueBench, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    first, second, third, fourth, fifth = [Actor(durable, name) for name in "abcde"]
    transaction = first.begin()
    first.publish("0", transaction, sequence=0)
    for actor in (second, third, fourth, fifth):
        actor.publish("0", sequence=0)
    durable.turn()
    # Silent longest, but in the middle of something: it is still known, and its repetition, too.
    again = first.publish("0", transaction, sequence=0)
    first.publish("1", transaction, sequence=1)
    with pytest.raises(QueueError) as forgotten:
        second.publish("1", sequence=1)
    assert forgotten.value.code is QueueErrorCode.OUT_OF_SEQUENCE
    committed = first.commit(transaction)
    durable.turn()
    assert again.confirmed
    assert committed.confirmed
    if restart:
        durable.restart()
    consumer = durable.consumer()
    durable.turn()
    assert sorted(consumer.values) == ["0", "0", "0", "0", "0", "1"]
    assert fifth.publish("0", sequence=0).calls == [None] or restart
    durable.turn()
    assert len(consumer.values) == 6


def test_a_producer_too_many_is_refused_while_all_have_open_transactions(
    either: QueueBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    busy = [Actor(either, name) for name in "ab"]
    late = Actor(either, "c")
    transactions = [actor.begin() for actor in busy]
    for actor, transaction in zip(busy, transactions, strict=True):
        actor.publish("0", transaction, sequence=0)
    with pytest.raises(QueueError, match="open transactions") as refused:
        late.publish("late", sequence=0)
    assert refused.value.code is QueueErrorCode.LIMIT
    busy[0].commit(transactions[0])
    either.turn()
    assert late.publish("late", sequence=0).calls != [refused.value]
    busy[1].commit(transactions[1])
    consumer = either.consumer()
    either.turn()
    assert consumer.values == ["0", "0", "late"]


# -- logs that lost their end ----------------------------------------------------------------------------------------

PARTITION = "queues/q/partitions/0"


class Damage:
    """A broker whose log loses its end, and with it the mark that vouched for it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.bench = QueueBench(self.disk, durability=Durability.FSYNC)
        self.sizes: dict[str, int] = {}

    def _segments(self) -> list[str]:
        return [f"{PARTITION}/{name}" for name in self.disk.list(PARTITION) if name.endswith(".seg")]

    def keep(self) -> None:
        """What is written so far stays."""
        self.bench.turn()
        self.sizes = {path: self.disk.open(path).size for path in self._segments()}

    def restart(self, *, killed: bool = False) -> None:
        """The broker ends, in an orderly way with snapshots of everything; what was written since is lost."""
        if not killed:
            self.bench.engine.close(self.bench.now)
        for path in self._segments():
            self.disk.open(path).truncate(self.sizes[path])
        self.disk.remove(f"{PARTITION}/durable.mark")
        self.bench.restart()

    def delivered(self, group: str = "g") -> list[str]:
        consumer = self.bench.consumer(group=group)
        self.bench.turn()
        return consumer.values


@pytest.fixture
def damage() -> Damage:
    return Damage()


def test_what_is_left_of_a_damaged_log_shows_what_was_committed_and_hides_what_was_aborted(damage: Damage) -> None:
    actor = Actor(damage.bench)
    for value, end in (("a", actor.commit), ("x", actor.abort), ("b", actor.commit)):
        transaction = actor.begin()
        actor.publish(value, transaction)
        end(transaction)
        damage.keep()
    damage.bench.publish("lost")
    damage.bench.turn()
    damage.restart()
    assert damage.delivered() == ["a", "b"]
    stats = damage.bench.engine.stats("q")
    assert (stats.depth, stats.groups[0].lag) == (2, 0)


def test_a_transaction_whose_end_is_lost_is_what_it_was(damage: Damage) -> None:
    """Its control record is gone; the snapshot still knows what became of it."""
    actors = [Actor(damage.bench, name) for name in "abcd"]
    transactions = [actor.begin() for actor in actors]
    for actor, transaction in zip(actors, transactions, strict=True):
        actor.publish(actor.name or "", transaction)
    damage.keep()
    for actor, transaction, verb in zip(actors, transactions, ("commit", "abort", "commit"), strict=False):
        getattr(actor, verb)(transaction)
        damage.bench.turn()
    damage.restart()
    assert damage.delivered() == ["a", "c"]
    damage.bench.restart()
    assert damage.delivered("h") == ["a", "c"]


def test_a_commit_that_only_its_producer_is_known_by_is_not_taken_back(damage: Damage) -> None:
    """No snapshot of the partition knows of it: it was killed before there was another one."""
    actor = Actor(damage.bench)
    damage.bench.publish("0")
    transaction = actor.begin()
    actor.publish("1", transaction)
    damage.keep()
    assert actor.commit(transaction).calls == []
    damage.bench.turn()
    damage.restart(killed=True)
    assert damage.delivered() == ["0", "1"]
    damage.bench.restart()
    assert damage.delivered("h") == ["0", "1"]
    assert actor.commit(transaction).confirmed


@pytest.mark.parametrize("killed", [False, True])
def test_offsets_that_are_given_out_again_owe_nothing_to_what_was_there_before(damage: Damage, killed: bool) -> None:
    actor = Actor(damage.bench)
    damage.bench.publish("kept")
    damage.keep()
    transaction = actor.begin()
    for value in "xyz":
        actor.publish(value, transaction)
    actor.abort(transaction)
    damage.bench.turn()
    damage.restart()
    transaction = actor.begin()
    for value in "abc":
        damage.bench.publish(value)
        actor.publish(value.upper(), transaction)
    actor.commit(transaction)
    damage.bench.turn()
    if not killed:
        damage.bench.engine.close(damage.bench.now)
    damage.bench.restart()
    assert damage.bench.engine.stats("q").depth == 7
    assert damage.delivered() == ["kept", *"aAbBcC"]


def test_a_repetition_of_a_lost_message_is_not_taken_for_it(damage: Damage) -> None:
    actor, other = Actor(damage.bench, "a"), Actor(damage.bench, "b")
    actor.publish("0", sequence=0)
    damage.keep()
    actor.publish("lost", sequence=1)
    other.publish("lost, too", sequence=0)
    damage.bench.turn()
    damage.restart()
    again = [actor.publish("0", sequence=0), actor.publish("1", sequence=1), other.publish("2", sequence=0)]
    damage.bench.turn()
    assert [outcome.calls for outcome in again] == [[None], [None], [None]]
    assert damage.delivered() == ["0", "1", "2"]
    with pytest.raises(QueueError, match="2 is due"):
        actor.publish("gap", sequence=3)


def test_of_what_lies_before_the_log_the_snapshot_is_believed() -> None:
    """Sequences of messages that are not kept any more, but nothing about messages that are lost."""
    known = PartitionProducers(0)
    for producer, offset in ((1, 3), (2, 7), (3, 12)):
        known.add(RecordMark(producer, 0, 0, None, None), offset)
    log = PartitionProducers(5)
    log.replay(RecordMark(2, 0, 0, None, None), 7)
    log.inherit(known, end=10)
    assert {producer: window.offsets for producer, window in log.windows.items()} == {1: [3], 2: [7]}
    assert log.covered == 10
