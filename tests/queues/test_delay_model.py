"""Delayed messages against a plain model of what must come, with kills between any two turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Durability
from assay.reference_broker.queues.delays import delay_store, done_log
from assay.reference_broker.queues.delays.timing_wheel import TICK_MS
from assay.reference_broker.storage import queue_store
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.conftest import QueueBench
from tests.queues.test_delays import delay_id

TICK_S = TICK_MS / 1000


@contextmanager
def patched_sizes(few: bool) -> Iterator[None]:
    """With ``few``, a handful of messages does what otherwise takes thousands."""
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(delay_store, "TOLD_OFFSETS", 3)
            patch.setattr(delay_store, "TOLD_WAITING", 2)
            patch.setattr(delay_store, "TOLD_PER_TURN", 1)
            patch.setattr(done_log, "RESTATE_ABOVE_BYTES", 300)
            patch.setattr(queue_store, "DONE_SEGMENT_BYTES", 200)
        yield


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["memory", "interval", "fsync"]),
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(0, 5_000)),
            st.tuples(st.just("cancel"), st.integers(0, 20)),
            st.tuples(st.just("pass"), st.integers(0, 3_000)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_against_a_plain_model(durability: str, steps: list[tuple[str, int]], few: bool) -> None:
    with patched_sizes(few):
        _live(durability, steps)


def _live(durability: str, steps: list[tuple[str, int]]) -> None:
    """Every message comes exactly once and in time, whenever the broker is killed, but those that are cancelled."""
    bench = QueueBench(MemoryDisk(), durability=Durability(durability))
    waiting: dict[str, float] = {}
    names: dict[str, str] = {}
    expected: list[tuple[float, str]] = []
    consumer = bench.consumer()
    got: list[tuple[float, str]] = []

    def settle() -> None:
        got.extend(zip(consumer.times, consumer.values, strict=True))
        for delivery in consumer.take():
            consumer.ack(delivery)
        bench.turn()

    for number, (step, amount) in enumerate(steps):
        value = str(number)
        if step == "publish" and amount:
            names[value] = delay_id(bench, value, ("delay", f"{amount}ms"))
            waiting[value] = bench.now + amount / 1000
            expected.append((waiting[value], value))
        elif step == "cancel" and names:
            chosen = sorted(names)[amount % len(names)]
            is_waiting = waiting.get(chosen, 0) > bench.now
            cancelled = bench.engine.cancel_delayed("q", names[chosen], bench.now)
            if is_waiting:
                assert cancelled
            if cancelled:
                expected = [pair for pair in expected if pair[1] != chosen]
                waiting.pop(chosen, None)
            bench.turn()
        elif step == "pass":
            bench.advance(amount / 1000)
            settle()
        elif step == "restart" and durability != "memory":
            settle()
            bench.restart()
            consumer = bench.consumer()
            bench.turn()
    bench.advance(10)
    settle()
    values = sorted(value for _, value in got)
    assert values == sorted(value for _, value in expected)
    at = {value: time for time, value in reversed(got)}
    for due, value in expected:
        assert due - 1e-3 <= at[value] <= due + TICK_S + 2e-3
