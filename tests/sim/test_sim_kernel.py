"""Reproducible order, streams and hashes."""

from __future__ import annotations

from assay.sim.kernel import Alarm, Kernel, substream


def order_of_ties(seed: int) -> list[int]:
    kernel = Kernel(seed)
    order: list[int] = []
    for number in range(20):
        kernel.at(kernel.now + 1.0, lambda number=number: order.append(number))
    kernel.env.run(kernel.now + 2.0)
    return order


def test_simultaneous_events_come_in_an_order_drawn_from_the_seed() -> None:
    assert order_of_ties(1) == order_of_ties(1)
    assert order_of_ties(1) != order_of_ties(2)
    assert sorted(order_of_ties(1)) == list(range(20))
    assert order_of_ties(1) != list(range(20))


def test_time_decides_before_ties() -> None:
    kernel = Kernel(5)
    order: list[float] = []
    for delay in (3.0, 1.0, 2.0):
        kernel.after(delay, lambda delay=delay: order.append(delay))
    kernel.env.run(kernel.now + 5.0)
    assert order == [1.0, 2.0, 3.0]


def test_a_stream_depends_on_seed_and_name_only() -> None:
    kernel = Kernel(9)
    before = kernel.stream("network").random()
    kernel.stream("faults").random()
    assert kernel.stream("network").random() == before == substream(9, "network").random()
    assert substream(9, "disk").random() != before
    assert substream(10, "network").random() != before


def test_a_call_in_the_past_happens_now_and_never_goes_back() -> None:
    kernel = Kernel(1)
    seen: list[float] = []
    kernel.after(2.0, lambda: kernel.at(kernel.now - 1.0, lambda: seen.append(kernel.elapsed_s)))
    kernel.env.run(kernel.now + 3.0)
    assert seen == [2.0]


def test_a_cancelled_call_does_nothing() -> None:
    kernel = Kernel(1)
    seen: list[str] = []
    kernel.after(1.0, lambda: seen.append("cancelled")).cancel()
    kernel.after(1.0, lambda: seen.append("kept"))
    kernel.env.run(kernel.now + 2.0)
    assert seen == ["kept"]


def test_the_deadline_is_met_exactly() -> None:
    """A deadline that is met an instant early would be set anew for ever."""
    kernel = Kernel(1)
    deadline = kernel.now + 0.1 + 0.2
    seen: list[float] = []
    kernel.after(0.05, lambda: kernel.at(deadline, lambda: seen.append(kernel.now)))
    kernel.env.run(kernel.now + 1.0)
    assert seen == [deadline]


def test_an_alarm_rings_once_at_its_last_deadline() -> None:
    kernel = Kernel(1)
    rings: list[float] = []
    alarm = Alarm(kernel, lambda: rings.append(round(kernel.elapsed_s, 6)))
    alarm.set(kernel.now + 1.0)
    alarm.set(kernel.now + 3.0)
    kernel.env.run(kernel.now + 2.0)
    assert rings == []
    alarm.set(kernel.now + 0.5)
    kernel.env.run(kernel.now + 5.0)
    assert rings == [2.5]
    alarm.set(kernel.now + 1.0)
    alarm.set(None)
    kernel.env.run(kernel.now + 5.0)
    assert rings == [2.5]


def test_the_hash_covers_time_text_and_bytes() -> None:
    def hash_of(delay_s: float, what: str, data: bytes) -> str:
        kernel = Kernel(1)
        kernel.after(delay_s, lambda: kernel.trace(what, data))
        kernel.env.run(kernel.now + 5.0)
        return kernel.trace_hash

    base = hash_of(1.0, "a", b"x")
    assert base == hash_of(1.0, "a", b"x")
    assert len({base, hash_of(1.5, "a", b"x"), hash_of(1.0, "b", b"x"), hash_of(1.0, "a", b"y")}) == 4
