"""What each toxic does to a stream, in virtual time: no sockets, no waiting."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.faults.toxiproxy.stages import CLOSE, SEGMENT_BYTES, Chain, Chunk, Ending
from assay.faults.toxiproxy.toxics import ATTRIBUTES, Stream, Toxic


def toxic(kind: str, *, name: str = "", toxicity: float = 1.0, **attributes: Any) -> Toxic:
    return Toxic(
        name=name or kind,
        type=kind,
        stream=Stream.UPSTREAM,
        toxicity=toxicity,
        attributes=ATTRIBUTES[kind](**attributes),
    )


class Line:
    """A chain on a virtual clock."""

    def __init__(self, *toxics: Toxic, seed: int = 1) -> None:
        self.now = 100.0
        self.chain = Chain(lambda name: random.Random(f"{seed}/{name}"))
        for one in toxics:
            self.chain.add(one, self.now)
        self.out: list[tuple[float, bytes | Ending]] = []

    def send(self, *items: bytes | Ending) -> None:
        for item in items:
            self.chain.push(Chunk(item, self.now) if isinstance(item, bytes) else item, self.now)
        self.collect()

    def collect(self) -> None:
        for item in self.chain.run(self.now):
            self.out.append((round(self.now - 100.0, 6), item.data if isinstance(item, Chunk) else item))

    def until(self, seconds: float) -> None:
        """Let time pass until so long after the start."""
        while (deadline := self.chain.next_deadline()) is not None and deadline <= 100.0 + seconds:
            self.now = max(self.now, deadline)
            self.collect()
        self.now = 100.0 + seconds

    @property
    def data(self) -> bytes:
        return b"".join(item for _, item in self.out if isinstance(item, bytes))

    @property
    def closed_at(self) -> float | None:
        return next((time for time, item in self.out if item is CLOSE), None)


def test_without_toxics_bytes_pass_at_once() -> None:
    line = Line()
    line.send(b"one", b"two", CLOSE)
    assert line.out == [(0.0, b"one"), (0.0, b"two"), (0.0, CLOSE)]


def test_latency_delays_each_chunk_by_its_arrival_not_the_throughput() -> None:
    line = Line(toxic("latency", latency=100))
    line.send(b"a")
    line.until(0.05)
    line.send(b"b", CLOSE)
    line.until(1.0)
    assert line.out == [(0.1, b"a"), (0.15, b"b"), (0.15, CLOSE)]


def test_jitter_stays_in_its_range_and_keeps_the_order() -> None:
    line = Line(toxic("latency", latency=100, jitter=50))
    for index in range(200):
        line.until(index * 0.2)
        line.send(b"%03d" % index)
    line.until(60.0)
    delays = [time - index * 0.2 for index, (time, _) in enumerate(line.out)]
    assert line.data == b"".join(b"%03d" % index for index in range(200))
    assert 0.05 <= min(delays) < 0.06
    assert 0.14 < max(delays) <= 0.15 + 1e-9


def test_two_latencies_add_up() -> None:
    line = Line(toxic("latency", name="a", latency=100), toxic("latency", name="b", latency=30))
    line.send(b"x")
    line.until(1.0)
    assert line.out == [(0.13, b"x")]


def test_bandwidth_takes_a_second_per_thousand_times_rate() -> None:
    line = Line(toxic("bandwidth", rate=100))
    line.send(*[b"x" * 32_768] * 6)
    line.until(10.0)
    assert len(line.data) == 196_608
    assert line.out[-1][0] == pytest.approx(1.96608, abs=1e-3)
    assert max(len(item) for _, item in line.out if isinstance(item, bytes)) <= 10_000


@pytest.mark.parametrize(
    ("one", "parts"),
    [
        (toxic("bandwidth", rate=100), 10),
        (toxic("slicer", average_size=10_000, delay=100_000), 9),
    ],
    ids=["bandwidth", "slicer"],
)
def test_timers_that_fire_late_do_not_slow_the_stream_down(one: Toxic, parts: int) -> None:
    line = Line(one)
    line.send(*[b"x" * 10_000] * parts)
    line.now = 101.01
    line.collect()
    assert len(line.data) == parts * 10_000


@pytest.mark.parametrize("rate", [0, -5])
def test_bandwidth_without_rate_is_no_limit(rate: int) -> None:
    line = Line(toxic("bandwidth", rate=rate))
    line.send(b"x" * 1_000_000)
    assert line.out == [(0.0, b"x" * 1_000_000)]


def test_slow_close_delays_the_close_alone() -> None:
    line = Line(toxic("slow_close", delay=700))
    line.send(b"data", CLOSE)
    line.until(2.0)
    assert line.out == [(0.0, b"data"), (0.7, CLOSE)]


def test_timeout_drops_and_closes_after_silence() -> None:
    line = Line(toxic("timeout", timeout=100))
    line.until(0.08)
    line.send(b"lost")
    line.until(1.0)
    assert line.out == [(0.18, CLOSE)], "data restarts the wait"


def test_timeout_closes_a_connection_that_never_sends() -> None:
    line = Line(toxic("timeout", timeout=100))
    line.until(1.0)
    assert line.out == [(0.1, CLOSE)]


def test_timeout_zero_never_closes_but_its_removal_does() -> None:
    line = Line(toxic("timeout", timeout=0))
    line.send(b"lost")
    line.until(1_000.0)
    assert line.out == []
    line.chain.remove("timeout", line.now)
    line.collect()
    assert line.closed_at == 1_000.0


def test_reset_peer_waits_for_data() -> None:
    line = Line(toxic("reset_peer", timeout=50))
    line.until(1.0)
    assert line.out == []
    line.send(b"first")
    line.until(2.0)
    assert line.out == [(1.05, CLOSE)]


def test_slicer_cuts_and_pauses() -> None:
    line = Line(toxic("slicer", average_size=10, size_variation=0, delay=1_000))
    line.send(bytes(range(80)))
    line.until(1.0)
    assert line.data == bytes(range(80))
    assert [(time, len(item)) for time, item in line.out if isinstance(item, bytes)] == [
        (round(index * 0.001, 6), 10) for index in range(8)
    ]


@given(
    data=st.binary(max_size=5_000),
    average=st.integers(-1, 600),
    variation=st.integers(-1, 200),
    seed=st.integers(0, 2**32),
)
def test_slicer_loses_nothing_whatever_its_attributes(data: bytes, average: int, variation: int, seed: int) -> None:
    line = Line(toxic("slicer", average_size=average, size_variation=variation, delay=10), seed=seed)
    line.send(data, CLOSE)
    line.until(60.0)
    assert line.data == data
    pieces = [len(item) for _, item in line.out if isinstance(item, bytes)]
    assert max(pieces, default=0) <= max(1, average) + max(0, variation)


@pytest.mark.parametrize("chunks", [[b"x" * 25], [b"x" * 3] * 9])
def test_limit_data_passes_exactly_so_much(chunks: list[bytes]) -> None:
    line = Line(toxic("limit_data", bytes=10))
    line.send(*chunks)
    assert line.data == b"x" * 10
    assert line.closed_at == 0.0


def test_limit_data_counts_on_after_an_update() -> None:
    line = Line(toxic("limit_data", bytes=10))
    line.send(b"x" * 6)
    line.chain.update(toxic("limit_data", bytes=8), line.now)
    line.send(b"y" * 6)
    assert line.data == b"xxxxxxyy"


def test_loss_arrives_a_retransmission_later_and_in_order() -> None:
    line = Line(toxic("loss_retx", loss_rate=0.3, rto=200), seed=3)
    for index in range(300):
        line.until(index * 60.0)
        line.send(b"%03d" % index)
    line.until(20_000.0)
    assert line.data == b"".join(b"%03d" % index for index in range(300))
    delays = [time - index * 60.0 for index, (time, _) in enumerate(line.out)]
    kinds = {round(delay, 6) for delay in delays}
    assert {0.0, 0.2, 0.6} <= kinds <= {0.0, 0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 25.4, 51.0}, "200 ms, doubled each time"
    lost = sum(delay > 0.0 for delay in delays)
    assert 60 <= lost <= 130


def test_a_lost_segment_holds_back_the_later_ones() -> None:
    line = Line(toxic("loss_retx", loss_rate=1.0, rto=1))
    line.send(b"a" * SEGMENT_BYTES * 2)
    line.until(1.0)
    assert line.out[0][0] == pytest.approx(0.255), "eight losses, doubled each time, and then it goes through"
    assert line.out[1][0] == pytest.approx(0.255)


def test_blackhole_holds_everything_until_it_is_removed() -> None:
    line = Line(toxic("blackhole"))
    line.send(b"one", b"two", CLOSE)
    line.until(500.0)
    assert line.out == []
    assert line.chain.held_bytes == 6
    line.chain.remove("blackhole", line.now)
    line.collect()
    assert [item for _, item in line.out] == [b"one", b"two", CLOSE]
    assert line.chain.held_bytes == 0


def test_removing_latency_lets_go_without_loss() -> None:
    line = Line(toxic("latency", latency=10_000), toxic("slow_close", delay=100))
    line.send(b"a", b"b", CLOSE)
    line.until(1.0)
    line.chain.remove("latency", line.now)
    line.collect()
    assert line.data == b"ab"
    line.until(2.0)
    assert line.closed_at == 1.1


def test_toxicity_zero_spares_and_one_hits() -> None:
    spared = Line(toxic("blackhole", toxicity=0.0))
    spared.send(b"x")
    assert spared.data == b"x"
    hit = Line(toxic("blackhole", toxicity=1.0))
    hit.send(b"x")
    assert hit.data == b""


def test_toxicity_is_a_share_of_the_connections_and_repeats_with_the_seed() -> None:
    def spared() -> list[bool]:
        lines = [Line(toxic("blackhole", toxicity=0.25), seed=seed) for seed in range(400)]
        for line in lines:
            line.send(b"x")
        return [line.data == b"x" for line in lines]

    assert spared() == spared()
    assert 0.65 < sum(spared()) / 400 < 0.85


@given(
    kinds=st.lists(
        st.sampled_from(["latency", "bandwidth", "slicer", "loss_retx", "slow_close", "blackhole"]), max_size=4
    ),
    chunks=st.lists(st.binary(min_size=1, max_size=3_000), max_size=8),
    seed=st.integers(0, 2**32),
    remove_at=st.floats(0.0, 2.0),
)
def test_toxics_that_only_delay_never_lose_or_reorder(
    kinds: list[str], chunks: list[bytes], seed: int, remove_at: float
) -> None:
    attributes: dict[str, dict[str, int]] = {
        "latency": {"latency": 50, "jitter": 50},
        "bandwidth": {"rate": 5},
        "slicer": {"average_size": 100, "size_variation": 30, "delay": 100},
        "slow_close": {"delay": 20},
    }
    names = [f"{index}-{kind}" for index, kind in enumerate(kinds)]
    line = Line(
        *(toxic(kind, name=name, **attributes.get(kind, {})) for kind, name in zip(kinds, names, strict=True)),
        seed=seed,
    )
    line.send(*chunks[:4])
    line.until(remove_at)
    line.send(*chunks[4:])
    for name in names:
        line.chain.remove(name, line.now)
        line.collect()
    line.send(CLOSE)
    line.until(10_000.0)
    assert line.data == b"".join(chunks)
    assert line.out[-1][1] is CLOSE
    assert line.chain.held_bytes == 0
