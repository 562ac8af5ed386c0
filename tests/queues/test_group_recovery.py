"""What a start makes of the state of a group."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.reference_broker.config import Durability
from assay.reference_broker.queues.groups.group_recovery import seconds_of
from assay.reference_broker.queues.groups.group_state import pending_records
from assay.reference_broker.queues.groups.pending import EntryState
from assay.sim.disk import Persistence, SimDisk
from tests.queues.conftest import BenchConsumer, QueueBench

BenchWith = Callable[..., QueueBench]


@given(st.integers(0, 2**43))
@example(1_024_003)
def test_the_time_of_a_delivery_is_the_same_after_any_number_of_starts(milliseconds: int) -> None:
    """Division and multiplication lost a millisecond now and then: a decision did not know its delivery any more."""
    assert int(seconds_of(milliseconds) * 1000) == milliseconds


def _aged(bench_with: BenchWith, **settings: Any) -> tuple[QueueBench, BenchConsumer]:
    """Whoever fails when it is older than 60 s has failed for good; nothing times out."""
    fields = {"durability": Durability.FSYNC, "delivery_timeout_s": 0, **settings}
    bench = bench_with(SimDisk(random.Random(1)), retry={"total_timeout_s": 60.0, "max_retries": 99}, **fields)
    return bench, bench.consumer()


def _die(bench: QueueBench, *, loses_power: bool = False) -> None:
    assert isinstance(bench.disk, SimDisk)
    if loses_power:
        bench.disk.power_loss((Persistence.NONE,))
    bench.restart()


def _reasons(bench: QueueBench) -> list[str | None]:
    reader = bench.consumer(queue="$dlq/q", group="reader")
    bench.turn()
    return [delivery.message.user_property("_dlq_reason") for delivery in reader.take()]


@pytest.mark.parametrize("is_wanted", [True, False], ids=["somebody wants it", "nobody does"])
@pytest.mark.parametrize("loses_power", [False, True], ids=["kill", "loss of power"])
def test_what_was_in_flight_and_is_too_old_is_a_dead_letter_after_a_restart(
    bench_with: BenchWith, *, loses_power: bool, is_wanted: bool
) -> None:
    """Found by lives of queues (Q-RETRY-06): it was delivered once more, since its age was known once it was read."""
    bench, consumer = _aged(bench_with)
    bench.publish("old")
    bench.advance(50.0)
    bench.publish("young")
    bench.advance(20.0)
    assert consumer.values == ["old", "young"]
    _die(bench, loses_power=loses_power)
    again = bench.consumer(room=10 if is_wanted else 0)
    bench.advance(1.0)
    assert again.values == ["young"] * is_wanted
    assert _reasons(bench) == ["total timeout exceeded"]


def test_it_is_one_also_when_it_has_expired(bench_with: BenchWith) -> None:
    """As one that fails while the broker runs: it never just disappears (Q-RETRY-10)."""
    bench, consumer = _aged(bench_with, message_ttl_s=65.0)
    bench.publish("old")
    bench.advance(70.0)
    assert consumer.values == ["old"]
    _die(bench)
    bench.advance(1.0)
    assert _reasons(bench) == ["total timeout exceeded"]


@pytest.mark.parametrize("settle", ["nack", "leave"])
def test_what_failed_in_time_comes_after_a_restart_however_old_it_is_then(bench_with: BenchWith, settle: str) -> None:
    bench, consumer = _aged(bench_with)
    bench.publish("m")
    bench.advance(50.0)
    consumer.room = 0
    if settle == "nack":
        consumer.nack(consumer.got[0])
    else:
        consumer.leave()
    bench.advance(20.0)
    _die(bench)
    again = bench.consumer()
    bench.advance(1.0)
    assert (again.values, again.counts) == (["m"], [2])


@pytest.mark.parametrize("ordering", ["partition", "place"])
def test_a_second_restart_knows_that_it_failed_at_the_first(bench_with: BenchWith, ordering: str) -> None:
    """Ready since the first, when it was young enough, it has not failed again."""
    bench, consumer = _aged(bench_with, ordering=ordering)
    bench.publish("m")
    bench.advance(50.0)
    assert consumer.values == ["m"]
    for _ in range(3):
        _die(bench)
        bench.advance(20.0)
    again = bench.consumer()
    bench.advance(1.0)
    assert (again.values, again.counts) == (["m"], [2])


def test_restarts_before_anybody_looked_do_not_forget_that_it_was_in_flight(bench_with: BenchWith) -> None:
    bench, consumer = _aged(bench_with, max_in_flight=1)
    for value in ("old", "other"):
        bench.publish(value)
    bench.advance(70.0)
    assert consumer.values == ["old"]
    for _ in range(3):
        _die(bench)
        bench.turn()
    again = bench.consumer()
    bench.advance(1.0)
    assert again.values == ["other"]
    assert _reasons(bench) == ["total timeout exceeded"]


def test_a_snapshot_tells_what_is_ready_from_what_a_start_found_in_flight(bench_with: BenchWith) -> None:
    bench = bench_with()
    bench.publish("m")
    bench.consumer()
    bench.turn()
    (entry,) = bench.engine._registry.get_or_create("q").groups["g"].places[0].pending.values()
    entry.state, entry.deadline = EntryState.WAITING, 0.0
    (ready,) = pending_records([entry])
    entry.lost_at = bench.now
    (lost,) = pending_records([entry])
    assert (ready.due_at_ms > 0, lost.due_at_ms) == (True, 0)


def test_what_keeps_its_place_keeps_it_over_a_restart(bench_with: BenchWith) -> None:
    """What was given back before a kill came behind what was in flight at it."""
    bench, consumer = _aged(bench_with, ordering="place")
    for value in "abc":
        bench.publish(value)
    bench.turn()
    consumer.room = 0
    consumer.nack(consumer.got[0])
    bench.turn()
    _die(bench)
    again = bench.consumer()
    bench.turn()
    assert again.values == ["a", "b", "c"]


def test_the_guard_of_lanes_knows_how_long_what_was_in_flight_has_waited(bench_with: BenchWith) -> None:
    """After a kill it seemed to have come just now, always, until it was delivered."""
    bench, consumer = _aged(bench_with, priority={"weights": [1000, 1, 1, 1, 1], "starvation_s": 30.0})
    lane = {"user_properties": (("priority", "background"),)}
    bench.publish("b", **lane)
    bench.turn()
    assert consumer.values == ["b"]
    consumer.room = 0
    for number in range(100):
        bench.publish(f"c{number}", user_properties=(("priority", "critical"),))
    bench.turn()
    _die(bench)
    start, times = bench.now, {}
    again = bench.consumer(room=0)
    for _ in range(40):
        again.room = 1
        assert again.handle is not None
        bench.engine.resume(again.handle, bench.now)
        bench.turn()
        for delivery in again.take():
            times[delivery.message.payload.decode()[0]] = bench.now - start
            again.ack(delivery)
        bench.advance(1.0)
    assert times["b"] == 30.0
