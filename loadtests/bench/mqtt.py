"""``assay bench mqtt``: messages per second through several brokers, same client, same run, rounds interleaved.

Every round measures each QoS on each broker in turn (A B A B ...), so that a slow minute of the machine hits all of
them; the figure of a broker is the median of its rounds. In the same run, the null broker shows the client's ceiling.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from conformance.targets import Endpoint, RunningTarget, running
from loadtests.bench.broker_cpu import process_cpu_s, with_broker_cpu
from loadtests.bench.frames import PublishFrames
from loadtests.bench.handshake import connect, subscribe
from loadtests.bench.peers import Peer, null_pipe, null_relay
from loadtests.bench.pump import Pump, Throughput
from loadtests.bench.queue import measure_queue

TOPIC = "b/t"
NULL = "null"
WARM_UP_S = 0.2
HEADROOM_MIN = 1.5
"""The null broker must be this much faster than the fastest broker ..."""
CLIENT_LOAD_MAX = 0.5
"""... or the client must use less than this share of a core with it; else the client may be the limit."""


class Case(StrEnum):
    """What is measured: pub/sub at one QoS, or the life of a queue message."""

    QOS_0 = "qos0"
    QOS_1 = "qos1"
    QOS_2 = "qos2"
    QUEUE = "queue"
    """publish -> deliver -> ``$ack``, all confirmed."""

    @property
    def qos(self) -> int:
        return 1 if self is Case.QUEUE else int(self.value[-1])


PUB_SUB = (Case.QOS_0, Case.QOS_1, Case.QOS_2)


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. Either ``seconds`` or ``messages`` bounds one measurement (``messages`` = 0: seconds)."""

    rounds: int = 5
    seconds: float = 1.5
    messages: int = 0
    cases: tuple[Case, ...] = PUB_SUB
    payload_bytes: int = 100
    window: int = 1_000
    """QoS 0 messages under way at most."""
    in_flight: int = 500
    """QoS 1 and 2 messages under way at most. Half of what brokers usually allow: a broker may well read the next
    publishes before the acknowledgements that were sent first, on another connection."""

    def window_of(self, case: Case) -> int:
        """Messages under way at most in a case."""
        return self.in_flight if case.qos else self.window


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, one case, one round."""

    peer: str
    case: Case
    round: int
    throughput: Throughput


class BenchRun(msgspec.Struct, kw_only=True):
    """All measurements of a run, and the peers that could not take part with the reason."""

    plan: BenchPlan
    started_at: str = ""
    duration_s: float = 0.0
    versions: dict[str, str] = {}
    """Version by peer, in the order measured; the null broker is the last."""
    measurements: list[Measurement] = []
    skipped: dict[str, str] = {}

    @property
    def peers(self) -> list[str]:
        """Names of the brokers measured, without the null broker."""
        return [name for name in self.versions if name != NULL]

    def _of(self, peer: str, case: Case) -> list[Throughput]:
        return [m.throughput for m in self.measurements if m.peer == peer and m.case == case]

    def rates_per_s(self, peer: str, case: Case) -> list[float]:
        """Messages per second of every round, in order; empty when not measured."""
        return [throughput.rate_per_s for throughput in self._of(peer, case)]

    def median_per_s(self, peer: str, case: Case) -> float | None:
        """The median rate; None when not measured."""
        rates = self.rates_per_s(peer, case)
        return statistics.median(rates) if rates else None

    def client_share(self, peer: str, case: Case) -> float | None:
        """Share of one core that the client used, median of the rounds; None when not measured."""
        shares = [throughput.client_cpu_s / throughput.duration_s for throughput in self._of(peer, case)]
        return statistics.median(shares) if shares else None

    def per_cpu_second(self, peer: str, case: Case) -> float | None:
        """Messages per second of the broker's processor time, all rounds together; None where it cannot be read."""
        parts = [(found.messages, found.broker_cpu_s) for found in self._of(peer, case)]
        cpu_s = sum(spent_s for _, spent_s in parts if spent_s is not None)
        messages = sum(count for count, spent_s in parts if spent_s is not None)
        return messages / cpu_s if cpu_s else None

    def ratio(self, peer: str, other: str, case: Case) -> float | None:
        """Median of ``peer`` over median of ``other``; None when one is missing."""
        mine, theirs = self.median_per_s(peer, case), self.median_per_s(other, case)
        return mine / theirs if mine and theirs else None

    def fastest(self, case: Case) -> str:
        """Name of the fastest peer; empty when none was measured."""
        rates = {name: self.median_per_s(name, case) or 0.0 for name in self.peers}
        return max(rates, key=lambda name: rates[name], default="")

    def headroom(self, case: Case) -> float | None:
        """Null broker's rate over the fastest peer's; None when one is missing."""
        return self.ratio(NULL, self.fastest(case), case)


def measure(endpoint: Endpoint, case: Case, plan: BenchPlan, *, label: str, pid: int | None = None) -> Throughput:
    """One measurement on fresh connections, after a short warm-up; ``pid`` is the broker's process.

    Raises :class:`BenchError`, :class:`HandshakeError`.
    """
    if case is Case.QUEUE:
        return measure_queue(
            endpoint,
            f"bench-{label}",
            messages=plan.messages,
            seconds=0.0 if plan.messages else plan.seconds,
            payload_bytes=plan.payload_bytes,
            window=plan.window_of(case),
            warm_up_s=WARM_UP_S,
            pid=pid,
        )
    with ExitStack() as stack:
        subscriber, _ = connect(endpoint, f"bench-s-{label}")
        stack.enter_context(subscriber)
        subscribe(subscriber, TOPIC, case.qos)
        publisher, _ = connect(endpoint, f"bench-p-{label}")
        stack.enter_context(publisher)
        pump = Pump(
            publisher, subscriber, PublishFrames(TOPIC, case.qos, plan.payload_bytes), window=plan.window_of(case)
        )
        pump.run(seconds=WARM_UP_S)
        before_s = process_cpu_s(pid)
        throughput = pump.run(messages=plan.messages, seconds=0.0 if plan.messages else plan.seconds)
        return with_broker_cpu(throughput, before_s, process_cpu_s(pid))


def run_bench(
    peers: Sequence[Peer], plan: BenchPlan, *, progress: Callable[[str], None] = lambda text: None
) -> BenchRun:
    """Start every peer and the null broker, measure all rounds, stop them. Raises what :func:`measure` raises.

    Pub/sub cases run against the null broker as a pipe, the queue case against it as a relay, which knows queues.
    """
    began = time.monotonic()
    bench = BenchRun(
        plan=plan,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        skipped={peer.name: peer.missing for peer in peers if peer.missing},
    )
    null = null_relay() if Case.QUEUE in plan.cases else null_pipe()
    with ExitStack() as stack:
        brokers: list[tuple[str, RunningTarget]] = []
        for peer in [*(peer for peer in peers if not peer.missing), null]:
            broker = stack.enter_context(running(peer.target))
            brokers.append((peer.name, broker))
            bench.versions[peer.name] = broker.version
        for number in range(plan.rounds):
            for case in plan.cases:
                for name, broker in brokers:
                    progress(f"round {number + 1} of {plan.rounds}, {case}, {name}")
                    throughput = measure(broker.endpoint, case, plan, label=f"{number}-{case}", pid=broker.pid)
                    bench.measurements.append(Measurement(peer=name, case=case, round=number, throughput=throughput))
    bench.duration_s = time.monotonic() - began
    return bench
