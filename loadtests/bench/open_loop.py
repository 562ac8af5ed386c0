"""Open loop: messages become due at a fixed mean rate (Poisson), whatever the broker does. Publish-to-deliver latency
counts from when a message was due, so a broker that pauses is charged for every message that waited.
"""

from __future__ import annotations

import gc
import select
import socket
import time

import numpy as np
import numpy.typing as npt

from assay.conformance.targets import Endpoint
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.crowd import close_all, open_crowd
from assay.loadtests.bench.frames import ACK_BYTES, AckType, PublishFrames
from assay.loadtests.bench.pump import STALL_TIMEOUT_S
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure, Meter, Workload

SEED = 4
SECONDS = 2.0
WARM_UP_SHARE = 0.1
"""The first messages of a measurement do not count."""
LEAD_S = 0.02
LATE_S = 0.001
"""The client is late when the 99th percentile of its own delay is above this."""
MAX_BURST = 64
READ_BYTES = 65_536


class OpenLoop(Workload):
    """``plan.open_clients`` publishers, each with a subscriber of its own."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess) -> None:
        super().__init__(endpoint, plan, broker)
        self._publishers: list[socket.socket] = []
        self._subscribers: list[socket.socket] = []

    def prepare(self) -> None:
        super().prepare()
        count = self.plan.open_clients
        self._subscribers = open_crowd(
            self.endpoint,
            [f"bench-open-s{number}" for number in range(count)],
            subscriptions=lambda index: [(_topic(index, qos), qos) for qos in (0, 1)],
            timeout_s=self.plan.patience_s,
        )
        self.held.callback(close_all, self._subscribers)
        names = [f"bench-open-p{number}" for number in range(count)]
        self._publishers = open_crowd(self.endpoint, names, timeout_s=self.plan.patience_s)
        self.held.callback(close_all, self._publishers)

    def measure(self, number: int) -> list[Figure]:
        figures = []
        for qos in (0, 1):
            schedule = _Schedule(self._publishers, self._subscribers, self.plan, qos, seed=SEED + number)
            meter = Meter(self.broker)
            gc.disable()  # the client's own pauses are not the broker's
            try:
                latencies_s, lateness_s = schedule.run()
            finally:
                gc.enable()
            late = float(np.percentile(lateness_s, 99)) > LATE_S
            for name, percent in (("p50", 50.0), ("p99", 99.0), ("p999", 99.9)):
                value = float(np.percentile(latencies_s, percent)) * 1_000
                line = f"open_loop_qos{qos}_{name}"
                note = "the client itself was late" if late else ""
                figures.append(meter.figure(line, value, len(latencies_s), note=note))
        return figures


def _topic(index: int, qos: int) -> str:
    return f"b/open/{qos}/{index:03}"


class _Lane:
    """One publisher, its subscriber, and the stream between them."""

    def __init__(
        self, index: int, publisher: socket.socket, subscriber: socket.socket, frames: PublishFrames, count: int
    ) -> None:
        self.index = index
        self.send, self.confirmations = publisher.send, publisher.recv
        self.deliveries, self.acknowledge = subscriber.recv, subscriber.send
        self.size, self.qos = frames.size, frames.qos
        self.stream = bytes(frames.block(0, count))
        self.id_at = len(frames.head)
        self.expected = self.stream
        if frames.qos:
            masked = bytearray(self.stream)
            masked[self.id_at :: self.size] = masked[self.id_at + 1 :: self.size] = bytes(count)
            self.expected = bytes(masked)
        self.rest = b""
        self.sent = self.delivered = self.confirmed = 0

    def publish(self) -> None:
        at = self.sent * self.size
        if self.send(self.stream[at : at + self.size]) != self.size:
            message = "the broker does not read a publisher's messages"
            raise BenchError(message)
        self.sent += 1

    def deliver(self) -> int:
        """Read what came; returns how many messages. Raises :class:`BenchError` unless they are the next ones."""
        received = self.deliveries(READ_BYTES)
        data = self.rest + received
        count = len(data) // self.size
        whole = count * self.size
        self.rest = data[whole:]
        masked = bytearray(data[:whole])
        if self.qos and count:
            acks = bytearray(bytes([AckType.PUBACK, 2, 0, 0]) * count)
            acks[2::4], acks[3::4] = masked[self.id_at :: self.size], masked[self.id_at + 1 :: self.size]
            masked[self.id_at :: self.size] = masked[self.id_at + 1 :: self.size] = bytes(count)
            self.acknowledge(acks)
        if not received or not self.expected.startswith(masked, self.delivered * self.size):
            message = f"a subscriber received something else than its next messages: {data[:32].hex()}"
            raise BenchError(message)
        self.delivered += count
        return count

    def confirm(self) -> int:
        """Read PUBACKs; returns how many."""
        data = self.confirmations(READ_BYTES)
        if not data or data[::ACK_BYTES].strip(bytes([AckType.PUBACK])):
            message = f"a publisher received {data[:16].hex() or 'the end of its connection'} in place of PUBACK"
            raise BenchError(message)
        count = len(data) // ACK_BYTES
        self.confirmed += count
        return count


class _Schedule:
    """One measurement."""

    def __init__(
        self, publishers: list[socket.socket], subscribers: list[socket.socket], plan: BenchPlan, qos: int, *, seed: int
    ) -> None:
        clients = len(publishers)
        each = max(1, (plan.messages or round(plan.open_rate_per_s * SECONDS)) // clients)
        self._count = each * clients
        gaps_s = np.random.default_rng(seed).exponential(1 / plan.open_rate_per_s, self._count)
        self._due_s: list[float] = np.cumsum(gaps_s).tolist()
        self._lanes = [
            _Lane(index, publisher, subscriber, PublishFrames(_topic(index, qos), qos, plan.payload_bytes), each)
            for index, (publisher, subscriber) in enumerate(zip(publishers, subscribers, strict=True))
        ]
        self._actions = {subscriber: (lane, True) for lane, subscriber in zip(self._lanes, subscribers, strict=True)}
        if qos:
            self._actions |= {publisher: (lane, False) for lane, publisher in zip(self._lanes, publishers, strict=True)}
        self._left = self._count * (2 if qos else 1)

    def run(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Latencies of the messages that count, in seconds, and how late the client sent each message."""
        latencies_s = np.zeros(self._count)
        lateness_s = np.zeros(self._count)
        sockets, due_s, lanes = list(self._actions), self._due_s, self._lanes
        clients, begun = len(lanes), 0
        started = time.perf_counter() + LEAD_S
        while self._left:
            now = time.perf_counter() - started
            last = min(self._count, begun + MAX_BURST)
            while begun < last and due_s[begun] <= now:
                lateness_s[begun] = now - due_s[begun]
                lanes[begun % clients].publish()
                begun += 1
            wait_s = STALL_TIMEOUT_S
            if begun < self._count:
                wait_s = max(0.0, due_s[begun] - (time.perf_counter() - started))
            ready = select.select(sockets, [], [], wait_s)[0]
            if not ready and wait_s == STALL_TIMEOUT_S:
                message = f"nothing arrived for {STALL_TIMEOUT_S:g} s: {self._left} deliveries or PUBACKs are missing"
                raise BenchError(message)
            for connection in ready:
                lane, delivers = self._actions[connection]
                if not delivers:
                    self._left -= lane.confirm()
                    continue
                first = lane.delivered
                count = lane.deliver()
                now = time.perf_counter() - started
                self._left -= count
                for number in range(first, first + count):
                    at = number * clients + lane.index
                    latencies_s[at] = now - due_s[at]
        skipped = int(self._count * WARM_UP_SHARE)
        return latencies_s[skipped:], lateness_s[skipped:]
