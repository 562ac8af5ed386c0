"""The heap of deadlines."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.core.timers import Timer, TimerHeap


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=300), st.integers(0, 20))
def test_due_timers_fire_in_order_and_cancelled_ones_never(entries: list[tuple[int, bool]], now: int) -> None:
    heap = TimerHeap()
    fired: list[int] = []

    def fires(i: int) -> Callable[[float], None]:
        return lambda _now: fired.append(i)

    timers = [heap.schedule(deadline, fires(i)) for i, (deadline, _) in enumerate(entries)]
    for timer, (_, cancelled) in zip(timers, entries, strict=True):
        if cancelled:
            timer.cancel()
            timer.cancel()
    while heap.fire_next(now):
        pass
    alive = [(deadline, i) for i, (deadline, cancelled) in enumerate(entries) if not cancelled]
    assert fired == [i for deadline, i in sorted(alive) if deadline <= now]
    assert heap.next_deadline() == min((deadline for deadline, _ in alive if deadline > now), default=None)


def test_a_callback_may_schedule_again() -> None:
    heap = TimerHeap()
    fired: list[float] = []

    def again(now: float) -> None:
        fired.append(now)
        heap.schedule(now + 1, again)

    heap.schedule(1, again)
    for now in (1.0, 2.0, 3.0):
        while heap.fire_next(now):
            pass
    assert fired == [1.0, 2.0, 3.0]
    assert heap.next_deadline() == 4.0


def test_cancelled_timers_do_not_pile_up() -> None:
    heap = TimerHeap()
    for number in range(10_000):
        heap.schedule(1e9 + number, lambda _now: None).cancel()
    assert len(heap._entries) < 200


@pytest.mark.parametrize("seed", range(5))
def test_a_long_life_of_timers_goes_as_a_sorted_list_does(seed: int) -> None:
    """Timers come, are cancelled, most of them at times, and fire, in no order: the next one is always the first."""
    rng, heap = random.Random(seed), TimerHeap()
    waiting: dict[int, tuple[float, Timer]] = {}
    fired: list[int] = []
    now = 0.0

    def fires(number: int) -> Callable[[float], None]:
        return lambda _now: fired.append(number)

    for number in range(3_000):
        deadline = now + rng.choice((0, 1, 1, rng.random() * 50))
        waiting[number] = deadline, heap.schedule(deadline, fires(number))
        if rng.random() < 0.02:
            for gone in rng.sample(sorted(waiting), int(len(waiting) * rng.random())):
                waiting.pop(gone)[1].cancel()
        if rng.random() < 0.1:
            now += rng.random()
            while heap.fire_next(now):
                pass
            due = [each for each, (at, _) in sorted(waiting.items(), key=lambda item: item[1][0]) if at <= now]
            assert fired == due
            fired.clear()
            for each in due:
                del waiting[each]
        assert heap.next_deadline() == min((at for at, _ in waiting.values()), default=None)
