"""Fan-in: a crowd of publishers, each with a topic of its own, and one subscriber to all of them.

A publisher sends a few messages at once and goes on when all of them have arrived (and are confirmed, at QoS 1). What
the subscriber receives is rebuilt from the numbers in the payloads and compared whole.
"""

from __future__ import annotations

import select
import socket
import time

import numpy as np
import numpy.typing as npt

from assay.conformance.targets import Endpoint
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.crowd import ANSWER_BYTES, close_all, open_crowd
from assay.loadtests.bench.frames import ACK_BYTES, AckType, PublishFrames, build_acks
from assay.loadtests.bench.handshake import connect, subscribe
from assay.loadtests.bench.pump import COALESCE_S, STALL_TIMEOUT_S, Stream
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure, Meter, Workload

FILTERS = ("b/in/0/+", "b/in/1/+")
"""By QoS. The subscription has the QoS of the publishes: some brokers deliver at the subscription's otherwise."""
DIGITS = 5
BURST_MESSAGES = 4
"""Messages a publisher sends at once. With one, the client's own system calls would be the limit."""
PUBLISHER_SHIFT = 40
"""The number in a payload is publisher << 40 | message."""
BUSY_TARGET_S = 0.2
"""All messages under way together should not take a broker longer."""
FIRST_PUBLISHERS = 10

Numbers = npt.NDArray[np.int64]


class FanIn(Workload):
    """``plan.crowd`` publishers, one subscriber."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess) -> None:
        super().__init__(endpoint, plan, broker)
        self._publishers: list[socket.socket] = []
        self._subscriber: Stream | None = None

    def prepare(self) -> None:
        super().prepare()
        subscriber, _ = connect(self.endpoint, "bench-in-subscriber")
        self.held.callback(close_all, [subscriber])
        for qos, topic_filter in enumerate(FILTERS):
            subscribe(subscriber, topic_filter, qos)
        self._subscriber = Stream(subscriber)
        names = [f"bench-in-{number}" for number in range(self.plan.crowd)]
        self._publishers = open_crowd(self.endpoint, names, timeout_s=self.plan.patience_s)
        self.held.callback(close_all, self._publishers)

    def measure(self, number: int) -> list[Figure]:
        return [self._figure(qos) for qos in (0, 1)]

    def _figure(self, qos: int) -> Figure:
        assert self._subscriber is not None
        started = time.perf_counter()
        first = _Gather(self._publishers[:FIRST_PUBLISHERS], self._subscriber, self.plan, qos)
        once_s = (time.perf_counter() - started) / first.run(bursts=FIRST_PUBLISHERS)
        # A slow broker gets fewer publishers at once, or one turn would outlast the measurement.
        most = max(FIRST_PUBLISHERS, int(BUSY_TARGET_S / (once_s * BURST_MESSAGES)))
        gather = _Gather(self._publishers[:most], self._subscriber, self.plan, qos)
        meter = Meter(self.broker)
        bursts = -(-self.plan.messages // BURST_MESSAGES)
        return meter.rate(f"fan_in_qos{qos}", gather.run(seconds=self.plan.seconds, bursts=bursts))


class _Gather:
    """One measurement: bursts from many publishers to the subscriber."""

    def __init__(self, publishers: list[socket.socket], subscriber: Stream, plan: BenchPlan, qos: int) -> None:
        self._publishers, self._subscriber, self._qos = publishers, subscriber, qos
        self._numbers = {connection.fileno(): index for index, connection in enumerate(publishers)}
        frames = PublishFrames(FILTERS[qos].replace("+", "0" * DIGITS), qos, plan.payload_bytes)
        self._dtype, self._size = frames.dtype, frames.size
        self._template = np.frombuffer(bytes(frames.block(0, 1)), frames.dtype)
        self._digits_at = len(frames.head) - DIGITS
        crowd = len(publishers)
        self._sent: Numbers = np.zeros(crowd, np.int64)
        self._delivered: Numbers = np.zeros(crowd, np.int64)
        self._confirmed: Numbers = np.zeros(crowd, np.int64)
        self._ready: Numbers = np.arange(crowd)
        self._bursts = 0

    def _frames(self, publishers: Numbers, messages: Numbers) -> npt.NDArray[np.void]:
        """Frames with packet id 0 for messages of publishers."""
        frames = np.repeat(self._template, len(publishers))
        frames["seq"] = (publishers << PUBLISHER_SHIFT | messages).astype(np.uint64)
        raw = frames.view(np.uint8).reshape(-1, self._size)
        rest = publishers.copy()
        for place in range(DIGITS - 1, -1, -1):
            raw[:, self._digits_at + place] = rest % 10 + 48
            rest //= 10
        if self._qos:
            frames["packet_id"] = 0
        return frames

    def run(self, *, seconds: float = 0.0, bursts: int = 0) -> int:
        """Publish for some time or so many bursts; returns how many messages have gone the whole way."""
        most = bursts or 1 << 40
        deadline = float("inf") if bursts else time.perf_counter() + seconds
        subscriber_fd = self._subscriber.socket.fileno()
        with select.epoll() as poll:
            for connection in (*self._publishers, self._subscriber.socket):
                poll.register(connection, select.EPOLLIN)
            while True:
                if time.perf_counter() >= deadline:
                    most = min(most, self._bursts)
                self._publish(most)
                if self._bursts >= most and len(self._ready) == len(self._publishers):
                    return self._bursts * BURST_MESSAGES
                events = poll.poll(STALL_TIMEOUT_S)
                if not events:
                    message = (
                        f"nothing arrived for {STALL_TIMEOUT_S:g} s: sent {self._sent.sum()}, delivered "
                        f"{self._delivered.sum()}, confirmed {self._confirmed.sum()}"
                    )
                    raise BenchError(message)
                for fd, _ in events:
                    if fd == subscriber_fd:
                        self._deliver()
                    else:
                        self._confirm(self._numbers[fd])
                self._find_ready()
                if len(self._ready) * 8 < len(self._publishers):
                    time.sleep(COALESCE_S)

    def _find_ready(self) -> None:
        settled = np.minimum(self._delivered, self._confirmed) if self._qos else self._delivered
        self._ready = np.flatnonzero(settled == self._sent)

    def _publish(self, most: int) -> None:
        ready = self._ready[: max(0, most - self._bursts)]
        if not len(ready):
            return
        publishers = np.repeat(ready, BURST_MESSAGES)
        messages = np.repeat(self._sent[ready], BURST_MESSAGES) + np.tile(np.arange(BURST_MESSAGES), len(ready))
        frames = self._frames(publishers, messages)
        if self._qos:
            frames["packet_id"] = messages % 60_000 + 1
        burst_bytes = BURST_MESSAGES * self._size
        data = frames.data.cast("B")
        for place, index in enumerate(ready.tolist()):
            if self._publishers[index].send(data[place * burst_bytes : (place + 1) * burst_bytes]) != burst_bytes:
                message = f"the broker does not read a publisher's {BURST_MESSAGES} messages"
                raise BenchError(message)
        self._sent[ready] += BURST_MESSAGES
        self._bursts += len(ready)
        self._ready = self._ready[len(ready) :]

    def _deliver(self) -> None:
        chunk = self._subscriber.read()
        whole = len(chunk) - len(chunk) % self._size
        frames = np.frombuffer(bytes(chunk[:whole]), self._dtype).copy()
        chunk.release()
        self._subscriber.consume(whole)
        if not len(frames):
            return
        numbers = frames["seq"].astype(np.int64)
        publishers, messages = numbers >> PUBLISHER_SHIFT, numbers & ((1 << PUBLISHER_SHIFT) - 1)
        if self._qos:
            ids = frames["packet_id"].astype(np.uint16)
            frames["packet_id"] = 0
            self._subscriber.write(build_acks(AckType.PUBACK, ids))
        if int(publishers.max()) >= len(self._sent) or frames.tobytes() != self._frames(publishers, messages).tobytes():
            message = f"a delivery is none of the messages published: {frames[:1].tobytes()[:40].hex()}..."
            raise BenchError(message)
        self._check_order(publishers, messages)

    def _check_order(self, publishers: Numbers, messages: Numbers) -> None:
        order = np.argsort(publishers, kind="stable")
        publishers, messages = publishers[order], messages[order]
        counts = np.bincount(publishers, minlength=len(self._sent))
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        expected = self._delivered[publishers] + np.arange(len(publishers)) - starts[publishers]
        if not np.array_equal(expected, messages):
            at = int(np.argmax(expected != messages))
            message = (
                f"out of sequence: expected message {expected[at]} of publisher {publishers[at]}, "
                f"received {messages[at]}"
            )
            raise BenchError(message)
        self._delivered += counts
        if bool((self._delivered > self._sent).any()):
            message = "more messages were delivered than published"
            raise BenchError(message)

    def _confirm(self, index: int) -> None:
        data = self._publishers[index].recv(ANSWER_BYTES)
        # Bursts are small and confirmed by small packets: one that is cut off has not been seen, and would be an error.
        if not data or len(data) % ACK_BYTES or data[::ACK_BYTES] != bytes([AckType.PUBACK]) * (len(data) // ACK_BYTES):
            message = f"a publisher received {data[:16].hex() or 'the end of its connection'} in place of PUBACK"
            raise BenchError(message)
        self._confirmed[index] += len(data) // ACK_BYTES
