"""What a start reads piece by piece is read whole, however small the pieces: as from one."""

from __future__ import annotations

import pytest

from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.actor import Actor
from tests.queues.conftest import START, QueueBench

MODULES = {
    "queues.delays.delay_recovery": ("READ_RECORDS",),
    "queues.delays.delay_store": ("READ_RECORDS",),
    "queues.delays.done_log": ("READ_RECORDS",),
    "queues.partitions.departures": ("READ_RECORDS",),
    "queues.partitions.partition": ("READ_AHEAD",),
    "queues.transactions.transaction_recovery": ("READ_RECORDS",),
    "storage.log": ("_RANGE_RECORDS",),
    "storage.state_log": ("READ_RECORDS",),
}
COUNT = 13


@pytest.fixture(params=[1, 2, 3, 1_000])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in MODULES.items():
        for name in names:
            monkeypatch.setattr(f"assay.reference_broker.{module}.{name}", request.param)


def _named(number: int) -> tuple[tuple[str, str], ...]:
    """Every third has a priority, every fourth expires."""
    pairs = [("priority", ("high", "low")[number % 2])] if number % 3 == 0 else []
    return tuple(pairs + ([("ttl", f"{number}m")] if number % 4 == 3 else []))


@pytest.mark.usefixtures("pieces")
def test_a_start_reads_everything() -> None:
    bench = QueueBench(MemoryDisk())
    consumer = bench.consumer(room=0)
    actor = Actor(bench)
    for number in range(COUNT):
        bench.publish(f"m{number}", user_properties=_named(number))
        bench.publish(f"d{number}", user_properties=(("delay", f"{number + 1}h"),))
        transaction = actor.begin()
        actor.publish(f"t{number}", transaction)
        (actor.abort if number % 3 == 1 else actor.commit)(transaction)
        bench.turn()
    consumer.leave()
    delayed = bench.engine.delayed("q")
    assert [(each.published_at, each.deliver_at) for each in delayed] == [
        (START, START + 3_600 * (number + 1)) for number in range(COUNT)
    ]
    for each in delayed[::4]:
        assert bench.engine.cancel_delayed("q", each.delay_id, bench.now)
    bench.turn()
    bench.advance(8 * 60.0)
    gone = {f"m{number}" for number in range(COUNT) if number % 4 == 3 and number < 9}
    left = [f"m{number}" for number in range(COUNT) if f"m{number}" not in gone]
    left += [f"t{number}" for number in range(COUNT) if number % 3 != 1]
    before = bench.engine.stats("q")
    assert before.depth == len(left)
    for _ in range(2):
        bench.restart()
        bench.turn()
        stats = bench.engine.stats("q")
        assert (stats.depth, stats.delayed) == (before.depth, before.delayed)
        listed = bench.engine.delayed("q")
        assert [(each.delay_id, each.deliver_at, each.published_at) for each in listed] == [
            (each.delay_id, each.deliver_at, each.published_at) for number, each in enumerate(delayed) if number % 4
        ]
        ready = bench.engine.priority_figures("q", bench.now).topics["q"].partitions["0"].ready
        assert sum(ready) == len(left)
    consumer = bench.consumer()
    bench.turn()
    assert sorted(consumer.values) == sorted(left)
    for delivery in consumer.take():
        consumer.ack(delivery)
    bench.advance(3_600.0 * (COUNT + 1))
    came = [each.message.payload.decode() for each in consumer.got if each.delivery_count == 1]
    assert came == [f"d{number}" for number in range(COUNT) if number % 4]
