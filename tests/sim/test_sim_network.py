"""Streams of bytes under faults: never lost, never reordered, held up or cut as the fault says."""

from __future__ import annotations

import pytest

from assay.sim.kernel import Kernel
from assay.sim.network import RETRANSMIT_S, Conditions, Impairment, Link, NetworkProfile


class Recorder:
    """An endpoint that keeps what it got, and when."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.data = b""
        self.times: list[float] = []
        self.ended_at: float | None = None

    def received(self, data: bytes) -> None:
        self.data += data
        self.times.append(self.kernel.elapsed_s)

    def disconnected(self) -> None:
        assert self.ended_at is None
        self.ended_at = self.kernel.elapsed_s


class Wire:
    """A link with a recorder at each end."""

    def __init__(self, seed: int = 1, client: str = "p0") -> None:
        self.kernel = Kernel(seed)
        self.conditions = Conditions()
        self.link = Link(self.kernel, self.conditions, NetworkProfile(), client, f"{client}/1")
        self.node, self.client = Recorder(self.kernel), Recorder(self.kernel)
        self.link.to_node.target = self.node
        self.link.to_client.target = self.client

    def at(self, delay_s: float, action: object) -> None:
        self.kernel.after(delay_s, action)

    def run(self, seconds: float = 60.0) -> None:
        self.kernel.env.run(self.kernel.now + seconds)

    def send_all(self, chunks: int = 200, every_s: float = 0.001) -> bytes:
        sent = [f"<{number}>".encode() for number in range(chunks)]
        for number, data in enumerate(sent):
            self.at(number * every_s, lambda data=data: self.link.to_node.send(data))
        return b"".join(sent)


IMPAIRMENTS = {
    "latency": Impairment(latency_s=0.05, jitter_s=0.05),
    "loss": Impairment(loss_rate=0.3),
    "bandwidth": Impairment(bytes_per_s=2_000),
    "partition": Impairment(partitioned=True),
}


@pytest.mark.parametrize("name", [*IMPAIRMENTS, "healthy", "all"])
@pytest.mark.parametrize("seed", range(5))
def test_no_impairment_loses_or_reorders_bytes(name: str, seed: int) -> None:
    wire = Wire(seed)
    sent = wire.send_all()
    chosen = IMPAIRMENTS.values() if name == "all" else [IMPAIRMENTS[name]] if name in IMPAIRMENTS else []
    for number, impairment in enumerate(chosen):
        handles: list[int] = []
        wire.at(0.02 * number, lambda i=impairment, h=handles: h.append(wire.conditions.add(["p0"], i)))
        wire.at(0.1 + 0.02 * number, lambda h=handles: wire.conditions.remove(h[0]))
    wire.run()
    assert wire.node.data == sent
    assert wire.node.times == sorted(wire.node.times)
    assert wire.link.to_node.in_flight_bytes == 0


def test_latency_is_added_each_way() -> None:
    wire = Wire()
    wire.conditions.add(["p0"], Impairment(latency_s=0.1, jitter_s=0.02))
    wire.link.to_node.send(b"x")
    wire.link.to_client.send(b"y")
    wire.run()
    assert all(0.08 <= end.times[0] <= 0.1205 for end in (wire.node, wire.client))


def test_a_fault_hits_only_the_clients_it_names() -> None:
    wire = Wire(client="c1")
    wire.conditions.add(["p0", "c0"], Impairment(partitioned=True))
    wire.link.to_node.send(b"x")
    wire.run()
    assert wire.node.data == b"x"
    assert [wire.conditions.partitioned(name) for name in ("p0", "c0", "c1")] == [True, True, False]


def test_bandwidth_spreads_bytes_over_time() -> None:
    wire = Wire()
    wire.conditions.add(["p0"], Impairment(bytes_per_s=1_000))
    for _ in range(10):
        wire.link.to_node.send(b"x" * 100)
    wire.run()
    assert wire.node.times[-1] == pytest.approx(1.0, abs=0.01)


def test_loss_delays_by_the_retransmission_timeout() -> None:
    delayed = 0
    for seed in range(40):
        wire = Wire(seed)
        wire.conditions.add(["p0"], Impairment(loss_rate=0.5))
        wire.link.to_node.send(b"x")
        wire.run()
        delayed += wire.node.times[0] >= RETRANSMIT_S
    assert 8 < delayed < 32


def test_a_partition_holds_what_is_sent_and_what_is_under_way() -> None:
    wire = Wire()
    handles: list[int] = []
    wire.link.to_node.send(b"before")
    handles.append(wire.conditions.add(["p0"], Impairment(partitioned=True)))
    wire.link.to_node.send(b"during")
    wire.at(3.0, lambda: wire.conditions.remove(handles[0]))
    wire.run()
    assert wire.node.data == b"beforeduring"
    assert wire.node.times[0] >= 3.0


def test_a_good_close_arrives_after_the_bytes() -> None:
    wire = Wire()
    wire.link.to_node.send(b"last words")
    wire.link.close_from_client()
    wire.run()
    assert wire.node.data == b"last words"
    assert wire.node.ended_at is not None
    assert wire.node.ended_at >= wire.node.times[-1]
    assert wire.client.ended_at is None


def test_a_close_waits_for_a_partition_to_heal() -> None:
    wire = Wire()
    handle = wire.conditions.add(["p0"], Impairment(partitioned=True))
    wire.link.to_node.send(b"x")
    wire.link.close_from_client()
    wire.at(2.0, lambda: wire.conditions.remove(handle))
    wire.run()
    assert wire.node.data == b"x"
    assert wire.node.ended_at is not None
    assert wire.node.ended_at >= 2.0


def test_a_reset_tells_both_ends_and_drops_the_rest() -> None:
    wire = Wire()
    wire.link.to_node.send(b"lost")
    wire.link.reset()
    wire.link.to_node.send(b"too late")
    wire.run()
    assert wire.node.data == b""
    assert wire.node.ended_at == wire.client.ended_at == 0.0
