"""Consumers that leave in the middle of something: nothing is sent to them any more, and nothing of theirs is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assay.reference_broker.queues import Delivery
from assay.reference_broker.storage.memory_disk import MemoryDisk

from .conftest import QueueBench

BenchWith = Callable[..., QueueBench]


@pytest.mark.parametrize("ordering", ["partition", "none"])
def test_who_leaves_within_a_delivery_gets_nothing_more(bench_with: BenchWith, ordering: str) -> None:
    """P6, P8: redelivery, or a send, to a consumer that is gone."""
    bench = bench_with(MemoryDisk(), ordering=ordering)
    consumer = bench.consumer("a")
    plain = consumer.deliver

    def deliver(delivery: Delivery) -> bool:
        taken = plain(delivery)
        if delivery.message.payload == b"2":
            consumer.leave()
        return taken

    assert consumer.handle is not None
    consumer.handle.deliver = deliver
    for number in range(6):
        bench.publish(str(number))
    bench.turn()
    assert consumer.values == ["0", "1", "2"]
    following = bench.consumer("b")
    bench.turn()
    assert following.values == ["0", "1", "2", "3", "4", "5"]
    assert following.counts == [2, 2, 2, 1, 1, 1]
    assert consumer.values == ["0", "1", "2"]
    for delivery in following.take():
        assert following.ack(delivery).calls in ([], [None])
    bench.turn()
    assert bench.engine.stats("q").depth == 0


def test_who_leaves_after_a_nack_does_not_get_it_back(bench_with: BenchWith) -> None:
    """P8: what waits for its next delivery finds its last consumer gone."""
    bench = bench_with(MemoryDisk(), retry={"nack_immediately": False, "initial_backoff_s": 5.0})
    consumer = bench.consumer("a")
    bench.publish("nacked")
    bench.publish("held")
    bench.turn()
    nacked, _ = consumer.take()
    consumer.nack(nacked)
    consumer.leave()
    following = bench.consumer("b")
    bench.advance(10.0)
    assert consumer.got == []
    assert sorted(following.values) == ["held", "nacked"]
    assert following.counts == [2, 2]
    stats = bench.engine.stats("q")
    assert (stats.in_flight, stats.depth) == (2, 2)
