"""A queue with priorities and times to live, and power that fails before each of its disk operations."""

from __future__ import annotations

import random
from collections.abc import Callable

from assay.sim.power_cuts import WatchedDisk, power_cuts

from .conftest import Outcome, QueueBench


def _left(disk: object, bench_with: Callable[..., QueueBench], now: float) -> list[str]:
    """What a group is given after the power came back."""
    bench = bench_with(disk, message_ttl_s=0.0)
    bench.now = now
    consumer = bench.consumer()
    bench.turn()
    return consumer.values


def test_power_cut_at_every_operation_of_a_queue_with_lanes(bench_with: Callable[..., QueueBench]) -> None:
    """Confirmed publishes are there in every lane; confirmed settlements hold in every lane; nothing comes twice."""
    disk = WatchedDisk(random.Random(3))
    bench = bench_with(disk, message_ttl_s=0.0)
    published: dict[str, Outcome] = {}
    settled: dict[str, Outcome] = {}
    asked: set[str] = set()
    seen: set[tuple[bytes, int, int]] = set()
    points = 0

    def before() -> None:
        nonlocal points
        points += 1
        must_be_there = {value for value, outcome in published.items() if outcome.confirmed} - asked
        must_be_gone = {value for value, outcome in settled.items() if outcome.confirmed}
        for cut in power_cuts(disk, f"{points}"):
            state = (cut.digest, len(must_be_there), len(must_be_gone))
            if state in seen:
                continue
            seen.add(state)
            found = _left(cut.boot(), bench_with, bench.now)
            where = f"operation {points}, {cut.what}: {found}"
            assert len(found) == len(set(found)), where
            assert must_be_there <= set(found), where
            assert not must_be_gone & set(found), where

    disk.before = before
    consumer = bench.consumer(room=0)
    for number, lane in enumerate((2, 0, 4, 1, 2, 3, 0)):
        value = f"{number}"
        properties = [("priority", str(lane))] if lane != 2 else []
        if number == 4:
            properties.append(("ttl", "1h"))
        published[value] = bench.publish(value, user_properties=tuple(properties))
        if number % 3 == 2:
            bench.turn()
            consumer.room = 2
            assert consumer.handle is not None
            bench.engine.resume(consumer.handle, bench.now)
            bench.turn()
            consumer.room = 0
            first, *others = consumer.take()
            for delivery in others:
                consumer.nack(delivery)
            asked.add(first.message.payload.decode())
            settled[first.message.payload.decode()] = consumer.ack(first)
            bench.turn()
    bench.turn()
    before()
    assert points > 20
    assert all(outcome.confirmed for outcome in (*published.values(), *settled.values()))
