"""The timing wheel against a heap, at the edges of its levels, and under jumps of the clock."""

from __future__ import annotations

import copy
import heapq
import itertools
import random
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from assay.reference_broker.queues.delays import timing_wheel
from assay.reference_broker.queues.delays.timing_wheel import MAX_DELAY_MS, TICK_MS, TimingWheel

LEVEL_SPANS_MS = (2_560, 163_840, 10_485_760, MAX_DELAY_MS)
_ROUND_MS = LEVEL_SPANS_MS + tuple(wide + narrow for narrow, wide in itertools.combinations(LEVEL_SPANS_MS[:-1], 2))
"""A revolution, and one of a level behind one of a wider level: who moves down from there moves on in the same turn."""
EDGES_MS = sorted(
    {0, 1, TICK_MS - 1, TICK_MS, TICK_MS + 1}
    | {max(0, span + step) for span in _ROUND_MS for step in (-TICK_MS, -1, 0, 1, TICK_MS)} - {MAX_DELAY_MS + 1}
)
STARTS_MS = (0, 7, 2_559, 2_560, 163_839, 10_485_755, MAX_DELAY_MS - 1, 1_700_000_000_003)


def fire_all(wheel: TimingWheel, now_ms: int, end_ms: int) -> dict[int, int]:
    """Timer -> when it fired, by following the wheel's own deadlines."""
    fired: dict[int, int] = {}
    steps = 0
    while (deadline := wheel.next_deadline_ms()) is not None and deadline <= end_ms:
        now_ms = max(now_ms, deadline)
        for number in wheel.advance(now_ms):
            assert number not in fired
            fired[number] = now_ms
        steps += 1
        assert steps < 1_000, "it spins"
    return fired


@pytest.mark.parametrize("start_ms", STARTS_MS)
@pytest.mark.parametrize("delay_ms", EDGES_MS)
def test_delays_at_the_edges_fire_within_a_tick_of_their_time(start_ms: int, delay_ms: int) -> None:
    """G2: a delay below a tick fired a revolution late; neighbours of every revolution."""
    wheel = TimingWheel(start_ms)
    wheel.add(5, start_ms + delay_ms, start_ms)
    assert fire_all(wheel, start_ms, start_ms + 2 * MAX_DELAY_MS).keys() == {5}
    wheel = TimingWheel(start_ms)
    wheel.add(5, start_ms + delay_ms, start_ms)
    fired_at = fire_all(wheel, start_ms, start_ms + 2 * MAX_DELAY_MS)[5]
    assert start_ms + delay_ms <= fired_at <= start_ms + delay_ms + TICK_MS or (delay_ms == 0 and fired_at == start_ms)
    assert len(wheel) == 0
    assert wheel.next_deadline_ms() is None


class WheelModel(RuleBasedStateMachine):
    """Random adds, cancels and steps of the clock; the model is a heap. Also G1: what is cancelled never fires."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_003
        self.patch = pytest.MonkeyPatch()
        self.wheel = TimingWheel(self.now_ms)
        self.heap: list[tuple[int, int]] = []
        self.alive: dict[int, int] = {}
        self.next_number = 3

    @initialize(compact_above=st.sampled_from([0, 2, 4_096]))
    def begin(self, compact_above: int) -> None:
        """Few numbers lead to where many would."""
        self.patch.setattr(timing_wheel, "COMPACT_ABOVE", compact_above)

    def teardown(self) -> None:
        self.patch.undo()

    @rule(
        delay_ms=st.one_of(
            st.integers(0, 3_000),
            st.integers(0, MAX_DELAY_MS),
            st.sampled_from(EDGES_MS),
        ),
        skip=st.sampled_from([0, 0, 0, 1, 10_000]),
    )
    def add(self, delay_ms: int, skip: int) -> None:
        number = self.next_number + skip
        self.next_number = number + 1
        due_ms = self.now_ms + delay_ms
        self.wheel.add(number, due_ms, self.now_ms)
        self.alive[number] = due_ms
        heapq.heappush(self.heap, (due_ms, number))

    @rule(pick=st.integers(0, 10_000))
    def cancel(self, pick: int) -> None:
        number = sorted(self.alive)[pick % len(self.alive)] if self.alive else pick
        assert self.wheel.cancel(number) == (number in self.alive)
        self.alive.pop(number, None)
        assert not self.wheel.cancel(number)

    @rule(pick=st.integers(0, 10_000), delay_ms=st.integers(0, 20_000))
    def move(self, pick: int, delay_ms: int) -> None:
        """Cancel and add anew: the old time does not count any more."""
        if not self.alive:
            return
        number = sorted(self.alive)[pick % len(self.alive)]
        assert self.wheel.cancel(number)
        due_ms = self.now_ms + delay_ms
        self.wheel.add(number, due_ms, self.now_ms)
        self.alive[number] = due_ms
        heapq.heappush(self.heap, (due_ms, number))

    @rule(step_ms=st.one_of(st.integers(0, 30), st.integers(0, 200_000), st.sampled_from(EDGES_MS)))
    def step(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self._advance(2**31)

    @rule(limit=st.integers(1, 3))
    def step_to_the_deadline(self, limit: int) -> None:
        deadline = self.wheel.next_deadline_ms()
        if deadline is not None:
            self.now_ms = max(self.now_ms, deadline)
            self._advance(limit)

    def _advance(self, limit: int) -> None:
        fired = self.wheel.advance(self.now_ms, limit)
        assert len(fired) <= limit
        must: list[int] = []
        while self.heap and self.heap[0][0] <= self.now_ms - TICK_MS:
            due_ms, number = heapq.heappop(self.heap)
            if self.alive.get(number) == due_ms:
                must.append(number)
        dues = [self.alive.pop(number) for number in fired]
        assert all(due_ms <= self.now_ms for due_ms in dues), "early"
        late = [number for number in must if number not in fired]
        if len(fired) < limit:
            assert not late, "late"
        for number in late:
            heapq.heappush(self.heap, (self.alive[number], number))

    @rule()
    def thin_out(self) -> None:
        self.wheel.thin_out()

    @rule(ends=st.tuples(st.integers(0, 7), st.integers(0, 7)), view=st.integers(0, 4))
    def look(self, ends: tuple[int, int], view: int) -> None:
        """Every view at the edges of what there is, each of them also as the first one behind a change."""
        numbers = sorted(self.alive) or [self.next_number]
        low, high = numbers[0], numbers[-1]
        places = (0, low - 1, low, low + 1, numbers[len(numbers) // 2], high, high + 1, 2**40)
        first, end = sorted((places[ends[0]], places[ends[1]]))
        for each in (view, *range(5)):
            self._compare(each, first, end)

    def _compare(self, view: int, first: int, end: int) -> None:
        wanted = sorted((number, due_ms) for number, due_ms in self.alive.items() if first <= number < end)
        if view == 0:
            assert list(self.wheel.items(first, end)) == wanted
        elif view == 1:
            assert sorted(self.wheel.snapshot(first, end)) == [number for number, _ in wanted]
        elif view == 2:
            assert self.wheel.count(first, end) == len(wanted)
        elif view == 3:
            assert list(self.wheel.numbers(first)) == sorted(number for number in self.alive if number > first)
        else:
            assert self.wheel.lowest == min(self.alive, default=None)

    @invariant()
    def agrees(self) -> None:
        assert len(self.wheel) == len(self.alive)
        # Of copies, since a view may put in order what the next one needs.
        assert list(copy.copy(self.wheel).numbers()) == sorted(self.alive)
        assert copy.copy(self.wheel).lowest == min(self.alive, default=None)
        for number, due_ms in self.alive.items():
            assert self.wheel.due_ms(number) == due_ms
        deadline = self.wheel.next_deadline_ms()
        assert (deadline is None) == (not self.alive)
        if deadline is not None:
            assert deadline <= min(self.alive.values()) + TICK_MS, "it would be woken too late"


WheelModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWheelModel = WheelModel.TestCase


@pytest.mark.parametrize("view", ["lowest", "numbers", "items"])
def test_old_timers_that_come_back_in_any_order_are_seen_in_order(monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    """Those that left the array, were taken out and are added again, the lowest last."""
    monkeypatch.setattr(timing_wheel, "COMPACT_ABOVE", 4)
    wheel = TimingWheel(0)
    for number in (*range(10), 100):
        wheel.add(number, 50_000 + number, 0)
    for number in (7, 5, 3, 1):
        assert wheel.cancel(number)
    for number in (7, 5, 3, 1, 0):
        if number == 0:
            assert wheel.cancel(number)
        wheel.add(number, 60_000 + number, 0)
    if view == "lowest":
        assert wheel.cancel(0)
        wheel.add(0, 70_000, 0)
        assert wheel.lowest == 0
    elif view == "numbers":
        assert list(wheel.numbers()) == [*range(10), 100]
    else:
        assert [number for number, _ in wheel.items(0, 1_000)] == [*range(10), 100]


def test_timers_of_one_tick_fire_by_due_time_then_by_number() -> None:
    wheel = TimingWheel(0)
    for number, due_ms in enumerate((19, 12, 12, 20, 11, 11)):
        wheel.add(number, due_ms, 0)
    assert wheel.advance(20) == [4, 5, 1, 2, 0, 3]


def test_a_burst_fires_in_portions() -> None:
    wheel = TimingWheel(0)
    for number in range(10):
        wheel.add(number, 50, 0)
    assert wheel.advance(49) == []
    assert wheel.advance(50, 4) == [0, 1, 2, 3]
    assert wheel.next_deadline_ms() == 50
    assert wheel.cancel(5), "what has not fired can be cancelled, due or not"
    assert wheel.advance(50, 4) == [4, 6, 7, 8]
    assert wheel.advance(60) == [9]


def test_a_jump_over_days_is_fast() -> None:
    wheel = TimingWheel(0)
    rng = random.Random(1)
    for number in range(1_000):
        wheel.add(number, rng.randrange(MAX_DELAY_MS), 0)
    began = time.perf_counter()
    assert len(wheel.advance(10 * MAX_DELAY_MS)) == 1_000
    wheel.add(2_000, 20 * MAX_DELAY_MS, 20 * MAX_DELAY_MS)
    assert wheel.advance(10**15) == [2_000]
    assert time.perf_counter() - began < 1.0


def test_it_does_not_wake_before_anything_can_happen() -> None:
    wheel = TimingWheel(0)
    wheel.add(0, MAX_DELAY_MS, 0)
    wakes = 0
    while (deadline := wheel.next_deadline_ms()) is not None:
        wheel.advance(deadline)
        wakes += 1
    assert wakes <= 4


def test_memory_of_a_million_timers() -> None:
    wheel = TimingWheel(0)
    rng = random.Random(1)
    for number in range(1_000_000):
        wheel.add(number, rng.randrange(MAX_DELAY_MS), 0)
    slots = sum(sys.getsizeof(held) for level in wheel._slots for held in level if held is not None)
    assert slots + sys.getsizeof(wheel._dues) < 20 * 1024 * 1024


def test_cancelled_timers_do_not_pile_up() -> None:
    wheel = TimingWheel(0)
    wheel.add(0, MAX_DELAY_MS, 0)
    for number in range(1, 50_000):
        wheel.add(number, MAX_DELAY_MS, 0)
        assert wheel.cancel(number)
        if not number % 1_000:
            wheel.thin_out()
    assert sum(len(held) for level in wheel._slots for held in level if held is not None) < 10_000
    assert len(wheel._dues) < 20_000
    assert list(wheel.numbers()) == [0]
    assert wheel.advance(MAX_DELAY_MS + TICK_MS) == [0]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.lists(st.integers(0, MAX_DELAY_MS), min_size=40, max_size=40),
    st.integers(0, 10_000_000),
    st.booleans(),
)
def test_many_timers_at_once_are_as_one_by_one(gaps: list[int], delays: list[int], now_ms: int, split: bool) -> None:
    numbers = [sum(gaps[: at + 1]) for at in range(len(gaps))]
    dues = [now_ms + delay for delay in delays[: len(numbers)]]
    singly, together = TimingWheel(now_ms), TimingWheel(now_ms)
    for number, due in zip(numbers, dues, strict=True):
        singly.add(number, due, now_ms)
    half = len(numbers) // 2 if split else 0
    together.load(numbers[:half], dues[:half], now_ms)
    together.load(numbers[half:], dues[half:], now_ms)
    assert list(together.items(0, numbers[-1] + 1)) == list(zip(numbers, dues, strict=True))
    assert list(together.items(3, 50)) == [pair for pair in zip(numbers, dues, strict=True) if 3 <= pair[0] < 50]
    kept = together.snapshot(3, 50)
    together.cancel(numbers[0])
    singly.cancel(numbers[0])
    assert sorted(kept) == [number for number in numbers if 3 <= number < 50], "as it was"
    while (deadline := singly.next_deadline_ms()) is not None:
        assert together.next_deadline_ms() == deadline
        assert together.advance(deadline) == singly.advance(deadline)
    assert len(together) == 0
