"""How partitions change hands."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Assignor, RebalanceProtocol
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.groups.assignment import assign
from assay.reference_broker.queues.groups.group import ConsumerGroup
from tests.queues.conftest import BenchConsumer, QueueBench

BenchWith = Callable[..., QueueBench]
COOPERATIVE = {"protocol": "cooperative", "assignor": "sticky"}


def group_of(bench: QueueBench, group: str = "g") -> ConsumerGroup:
    return bench.engine._queues["q"].groups[group]


def owned(bench: QueueBench) -> dict[str, tuple[int, ...]]:
    return group_of(bench).rebalance.assignment


def publish_to_all(bench: QueueBench, partitions: int, rounds: int = 1) -> None:
    """The same number of messages into every partition, named ``<partition>/<round>``."""
    queue = bench.engine._queues["q"]
    for number in range(rounds):
        sent = dict.fromkeys(range(partitions), 0)
        key = 0
        while not all(sent.values()):
            partition = queue._partitioner.choose(f"k{key}", partitions)
            if not sent[partition]:
                sent[partition] = 1
                bench.publish(f"{partition}/{number}", key=f"k{key}")
            key += 1
    bench.turn()


def test_eager_hands_over_at_once_and_deliveries_stay_with_their_consumer(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2)
    first = bench.consumer("a")
    publish_to_all(bench, 2)
    second = bench.consumer("b")
    bench.turn()
    assert owned(bench) == {"a": (0,), "b": (1,)}
    publish_to_all(bench, 2)
    assert [delivery.partition for delivery in second.got] == [1]
    for delivery in first.take():
        assert first.ack(delivery).calls == []
    bench.turn()


def test_cooperative_hands_a_partition_over_when_its_deliveries_are_settled(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2, group=COOPERATIVE)
    first = bench.consumer("a")
    publish_to_all(bench, 2)
    held = {delivery.partition: delivery for delivery in first.take()}
    second = bench.consumer("b")
    bench.turn()
    assert owned(bench) == {"a": (0,), "b": ()}, "partition 1 is revoked and not assigned yet"
    publish_to_all(bench, 2)
    assert [delivery.partition for delivery in first.take()] == [0], "what does not move goes on, what moves rests"
    assert second.got == []
    first.ack(held[1])
    bench.turn()
    assert owned(bench) == {"a": (0,), "b": (1,)}
    assert [delivery.partition for delivery in second.got] == [1]


def test_a_nacked_delivery_of_a_revoked_partition_goes_to_the_new_owner_first(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2, group=COOPERATIVE)
    first = bench.consumer("a")
    publish_to_all(bench, 2)
    held = {delivery.partition: delivery for delivery in first.take()}
    second = bench.consumer("b")
    publish_to_all(bench, 2)
    first.nack(held[1])
    bench.turn()
    assert [(delivery.offset, delivery.delivery_count) for delivery in second.got] == [(0, 2), (1, 1)]


def test_the_rebalance_timeout_takes_back_what_is_not_settled(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2, delivery_timeout_s=600, group={**COOPERATIVE, "rebalance_timeout_s": 20})
    first = bench.consumer("a")
    publish_to_all(bench, 2)
    held = {delivery.partition: delivery for delivery in first.take()}
    second = bench.consumer("b")
    bench.advance(19.9)
    assert second.got == []
    bench.advance(0.2)
    assert [(delivery.offset, delivery.delivery_count) for delivery in second.got] == [(0, 2)]
    with pytest.raises(QueueError, match="not pending"):
        first.ack(held[1])
    first.ack(held[0])


def test_a_move_is_called_off_when_its_reason_goes(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2, group=COOPERATIVE)
    first = bench.consumer("a")
    publish_to_all(bench, 2)
    first.take()
    second = bench.consumer("b")
    bench.turn()
    second.leave()
    bench.turn()
    assert owned(bench) == {"a": (0, 1)}
    publish_to_all(bench, 2)
    assert sorted(delivery.partition for delivery in first.got) == [0, 1]


def test_a_partition_whose_owner_leaves_moves_at_once(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2, group=COOPERATIVE)
    first = bench.consumer("a")
    publish_to_all(bench, 2)
    second = bench.consumer("b")
    bench.turn()
    first.leave()
    bench.turn()
    assert owned(bench) == {"b": (0, 1)}
    assert sorted((delivery.partition, delivery.delivery_count) for delivery in second.got) == [(0, 2), (1, 2)]


def test_every_join_and_leave_is_a_generation(bench: QueueBench) -> None:
    first = bench.consumer("a")
    bench.consumer("b")
    assert group_of(bench).generation == 2
    first.leave()
    bench.consumer("b")
    assert group_of(bench).generation == 4


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.booleans()), max_size=25),
    assignor=st.sampled_from([Assignor.RANGE, Assignor.ROUND_ROBIN]),
    protocol=st.sampled_from(RebalanceProtocol),
)
def test_bursts_end_in_the_assignment_of_the_final_membership(
    steps: list[tuple[str, bool, bool]], assignor: Assignor, protocol: RebalanceProtocol
) -> None:
    """A step: somebody joins or leaves, and perhaps a turn passes with messages in flight."""
    bench = QueueBench(partitions=5, group={"assignor": assignor, "protocol": protocol})
    members: dict[str, BenchConsumer] = {}
    bench.consumer("z").leave()
    for consumer_id, joins, turns in steps:
        if joins:
            members[consumer_id] = bench.consumer(consumer_id)
        elif consumer_id in members:
            members.pop(consumer_id).leave()
        if turns:
            publish_to_all(bench, 5)
            served = [index for indexes in owned(bench).values() for index in indexes]
            assert len(served) == len(set(served)), "two consumers never serve one partition"
    bench.advance(300)
    assert owned(bench) == assign(assignor, 5, members, {})
    assert not group_of(bench).rebalance.moves


def test_without_an_order_nothing_moves_and_everybody_serves_everything(bench_with: BenchWith) -> None:
    bench = bench_with(
        partitions=2, ordering="none", delivery_timeout_s=600, group={**COOPERATIVE, "rebalance_timeout_s": 5}
    )
    first = bench.consumer("a")
    publish_to_all(bench, 2)
    held = first.take()
    second = bench.consumer("b")
    bench.advance(60)
    assert owned(bench) == {"a": (0, 1), "b": (0, 1)}
    assert not second.got, "what is in flight stays where it is"
    assert not group_of(bench).rebalance.moves
    for delivery in held:
        first.ack(delivery)
    publish_to_all(bench, 2, rounds=2)
    assert {len(first.got), len(second.got)} == {2}, "the next ones are shared out"


def test_a_consumer_takes_less_than_a_kilobyte(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=10)
    bench.consumer("first")
    bench.turn()

    def take(delivery: object) -> bool:
        return True

    count = 500
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    handles = [
        bench.engine.subscribe("q", pattern="", group="g", consumer_id=f"c{number}", deliver=take, now=bench.now)
        for number in range(count)
    ]
    bench.turn()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(handles) == count
    assert (after - before) / count < 1_000
