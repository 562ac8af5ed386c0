"""Fan-out: one publisher, a crowd of subscribers to its topic. A delivery is one message at one subscriber.

All subscribers are sent the same frames, so a chunk is checked by one comparison with the stream that is due; at QoS 1
the packet ids, which the broker chooses, are cut out first.
"""

from __future__ import annotations

import select
import socket
import time

from assay.conformance.targets import Endpoint
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.crowd import close_all, open_crowd
from assay.loadtests.bench.frames import ACK_BYTES, AckType, PublishFrames, read_acks
from assay.loadtests.bench.handshake import connect
from assay.loadtests.bench.pump import COALESCE_S, STALL_TIMEOUT_S, Stream
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure, Meter, Workload

TOPICS = ("b/fan/0", "b/fan/1")
"""By QoS. The subscription has the QoS of the publishes: some brokers deliver at the subscription's otherwise."""
BATCH_MESSAGES = 16
"""Messages published at once, two batches under way; fewer where a broker is slow."""
BATCHES_UNDER_WAY = 2
BATCH_TARGET_S = 1.0
"""A batch should not take a broker longer, sent message by message."""
CYCLE_MESSAGES = 4_096
"""The stream repeats after so many messages, far more than are ever under way."""
READ_BYTES = 32_768
QUIET_SHARE = 8
"""A turn with fewer than an eighth of the sockets ready waits a moment for more."""


class _Subscriber:
    __slots__ = ("got", "recv", "rest", "send")

    def __init__(self, connection: socket.socket) -> None:
        self.recv = connection.recv
        self.send = connection.send
        self.rest = b""
        self.got = 0
        """Bytes of whole stream received in this measurement (at QoS 0 also cut-off frames)."""


class FanOut(Workload):
    """One publisher, ``plan.crowd`` subscribers."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess) -> None:
        super().__init__(endpoint, plan, broker)
        self._sockets: list[socket.socket] = []
        self._subscribers: dict[int, _Subscriber] = {}
        self._publisher: Stream | None = None
        self._poll = self.held.enter_context(select.epoll())

    def prepare(self) -> None:
        super().prepare()
        names = [f"bench-out-{number}" for number in range(self.plan.crowd)]
        self._sockets = open_crowd(
            self.endpoint,
            names,
            subscriptions=lambda index: [(topic, qos) for qos, topic in enumerate(TOPICS)],
            timeout_s=self.plan.patience_s,
        )
        self.held.callback(close_all, self._sockets)
        for connection in self._sockets:
            self._poll.register(connection, select.EPOLLIN)
        publisher, _ = connect(self.endpoint, "bench-out-publisher")
        self.held.callback(close_all, [publisher])
        self._publisher = Stream(publisher)
        self._poll.register(publisher, select.EPOLLIN)

    def measure(self, number: int) -> list[Figure]:
        return [
            self._figure("fan_out_qos0", 0, BATCH_MESSAGES, BATCHES_UNDER_WAY),
            self._figure("fan_out_qos1", 1, BATCH_MESSAGES, BATCHES_UNDER_WAY),
            self._figure("fan_out_single", 0, 1, 1),
        ]

    def _figure(self, line: str, qos: int, batch: int, under_way: int) -> Figure:
        assert self._publisher is not None
        started = time.perf_counter()
        _Spray(self._sockets, self._publisher, self._poll, self.plan, qos, 1, 1).run(messages=2)
        once_s = (time.perf_counter() - started) / 2
        batch = max(1, min(batch, int(BATCH_TARGET_S / once_s)))
        spray = _Spray(self._sockets, self._publisher, self._poll, self.plan, qos, batch, under_way)
        meter = Meter(self.broker)
        messages = spray.run(seconds=self.plan.seconds, messages=self.plan.messages)
        return meter.rate(line, messages * len(self._sockets))


class _Spray:
    """One measurement: batches from the publisher to all subscribers."""

    def __init__(
        self,
        sockets: list[socket.socket],
        publisher: Stream,
        poll: select.epoll,
        plan: BenchPlan,
        qos: int,
        batch: int,
        under_way: int,
    ) -> None:
        self._frames = PublishFrames(TOPICS[qos], qos, plan.payload_bytes)
        self._publisher, self._poll, self._batch, self._under_way = publisher, poll, batch, under_way
        self._qos = qos
        self._size = self._frames.size
        self._batch_bytes = batch * self._size
        cycle = -(-CYCLE_MESSAGES // batch) * batch
        self._cycle_messages = cycle
        self._cycle_bytes = cycle * self._size
        once = bytearray(self._frames.block(0, cycle))
        self._id_at = len(self._frames.head)
        if qos:
            once[self._id_at :: self._size] = once[self._id_at + 1 :: self._size] = bytes(cycle)
        self._stream = bytes(once) * 2
        self._acks = bytes([AckType.PUBACK, 2, 0, 0]) * cycle
        self._by_fd = {connection.fileno(): _Subscriber(connection) for connection in sockets}
        self._left: dict[int, int] = {}
        """Batches under way -> subscribers that have not got all of it."""
        self._sent = self._done = self._confirmed = 0
        """Batches published, batches that all have got, messages confirmed to the publisher."""

    def run(self, *, seconds: float = 0.0, messages: int = 0) -> int:
        """Publish for some time or so many messages (rounded up to batches); returns how many all have got."""
        deadline = time.perf_counter() + seconds if not messages else float("inf")
        batches = -(-messages // self._batch) if messages else 1 << 40
        publisher_fd = self._publisher.socket.fileno()
        receive = self._receive_plain if not self._qos else self._receive_confirmed
        crowd = len(self._by_fd)
        while True:
            if time.perf_counter() >= deadline:
                batches = min(batches, self._sent)
            self._publish(batches)
            if self._sent >= batches and self._settled():
                return self._sent * self._batch
            events = self._poll.poll(STALL_TIMEOUT_S)
            if not events:
                raise BenchError(self._stalled())
            for fd, _ in events:
                if fd == publisher_fd:
                    self._read_confirmations()
                else:
                    receive(self._by_fd[fd])
            if len(events) < crowd // QUIET_SHARE:
                time.sleep(COALESCE_S)

    def _settled(self) -> bool:
        return self._done == self._sent and (not self._qos or self._confirmed == self._sent * self._batch)

    def _publish(self, batches: int) -> None:
        while self._sent < batches and self._sent - self._done < self._under_way:
            first = self._sent * self._batch % self._cycle_messages
            self._left[self._sent] = len(self._by_fd)
            self._sent += 1
            self._publisher.write(self._frames.block(first, self._batch))
            while self._publisher.writing:
                select.select([], [self._publisher.socket], [], STALL_TIMEOUT_S)
                self._publisher.flush()

    def _receive_plain(self, subscriber: _Subscriber) -> None:
        data = subscriber.recv(READ_BYTES)
        got = subscriber.got
        if not data or not self._stream.startswith(data, got % self._cycle_bytes):
            raise BenchError(self._wrong(data))
        self._advance(subscriber, got + len(data))

    def _receive_confirmed(self, subscriber: _Subscriber) -> None:
        received = subscriber.recv(READ_BYTES)
        data = subscriber.rest + received
        size, at = self._size, self._id_at
        count = len(data) // size
        if not received:
            raise BenchError(self._wrong(received))
        if not count:
            subscriber.rest = data
            return
        whole = count * size
        subscriber.rest = data[whole:]
        masked = bytearray(data[:whole])
        high, low = masked[at::size], masked[at + 1 :: size]
        masked[at::size] = masked[at + 1 :: size] = bytes(count)
        if not self._stream.startswith(masked, subscriber.got % self._cycle_bytes):
            raise BenchError(self._wrong(data))
        acks = bytearray(self._acks[: ACK_BYTES * count])
        acks[2::4], acks[3::4] = high, low
        if subscriber.send(acks) != len(acks):
            message = f"the broker does not read the {count} PUBACKs of a subscriber"
            raise BenchError(message)
        self._advance(subscriber, subscriber.got + whole)

    def _advance(self, subscriber: _Subscriber, got: int) -> None:
        before, after = subscriber.got // self._batch_bytes, got // self._batch_bytes
        subscriber.got = got
        if after == before:
            return
        left = self._left
        for batch in range(before, after):
            if batch not in left:
                message = "a subscriber received more than was published"
                raise BenchError(message)
            left[batch] -= 1
        while self._done < self._sent and not left[self._done]:
            del left[self._done]
            self._done += 1

    def _read_confirmations(self) -> None:
        chunk = self._publisher.read()
        whole = len(chunk) - len(chunk) % ACK_BYTES
        try:
            kinds, _ = read_acks(chunk[:whole])
        except ValueError as error:
            raise BenchError(str(error)) from error
        finally:
            chunk.release()
        if not self._qos or not bool((kinds == AckType.PUBACK).all()):
            message = "the publisher received something else than PUBACK"
            raise BenchError(message)
        self._confirmed += len(kinds)
        self._publisher.consume(whole)

    @staticmethod
    def _wrong(data: bytes) -> str:
        if not data:
            return "the broker closed a subscriber's connection"
        return f"a subscriber received something else than the next messages: {data[:32].hex()}..."

    def _stalled(self) -> str:
        missing = sum(self._left.values())
        return f"nothing arrived for {STALL_TIMEOUT_S:g} s: {missing} batches of {self._batch} messages are missing"
