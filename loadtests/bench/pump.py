"""The bench client: one publisher and one subscriber on two sockets in one thread, far faster than a broker.

It measures a broker only if it is not itself the limit. So packets are handled in blocks, never one by one, and the
same client is run against a pipe (``null``) to show its own ceiling. MQTT 3.1.1, because its acknowledgements have one
size and its in-flight window is the client's own choice.

Flow control is the client's too: never more than ``window`` messages are anywhere between publisher, broker and
subscriber, so no broker has a reason to drop QoS 0 messages, and every count must come out exact.
"""

from __future__ import annotations

import select
import socket
import time

import numpy as np

from assay.conformance.targets import Endpoint
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.frames import (
    ACK_BYTES,
    AckType,
    Frames,
    Ids,
    PublishFrames,
    build_acks,
    in_sequence,
    packet_ids,
    read_acks,
)
from assay.loadtests.bench.handshake import connect, subscribe
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure, Workload

READ_BYTES = 1 << 20
STALL_TIMEOUT_S = 10.0
COALESCE_S = 0.000_3
"""Pause after a turn that read little. A broker that writes message by message would otherwise wake this client for
each one, and the client's waking would be the limit. Some hundred messages under way keep the broker busy meanwhile."""
COALESCE_SHARE = 32
"""A turn read little when it advanced fewer than ``window / 32`` packets."""
UNBOUNDED_MESSAGES = 1 << 40
TOPIC = "b/t"


class Stream:
    """A non-blocking socket with one read buffer and one pending output."""

    def __init__(self, connection: socket.socket, *, read_bytes: int = READ_BYTES) -> None:
        """``read_bytes``: at most, and more than a packet has."""
        connection.setblocking(False)
        self.socket = connection
        self._buffer = bytearray(read_bytes)
        self._filled = 0
        self._output: list[memoryview] = []

    @property
    def writing(self) -> bool:
        return bool(self._output)

    def read(self) -> memoryview:
        """What has arrived and was not consumed; valid until the next call."""
        view = memoryview(self._buffer)
        try:
            received = self.socket.recv_into(view[self._filled :])
        except BlockingIOError:
            return view[: self._filled]
        if received == 0:
            message = "the broker closed the connection"
            raise BenchError(message)
        self._filled += received
        return view[: self._filled]

    def consume(self, count: int) -> None:
        rest = self._filled - count
        if rest:
            self._buffer[:rest] = self._buffer[count : self._filled]
        self._filled = rest

    def write(self, data: bytes | memoryview) -> None:
        self._output.append(memoryview(data))
        self.flush()

    def flush(self) -> None:
        while self._output:
            try:
                sent = self.socket.send(self._output[0])
            except BlockingIOError:
                return
            if sent == len(self._output[0]):
                self._output.pop(0)
            else:
                self._output[0] = self._output[0][sent:]


class Pump:
    """Moves messages from a publisher through the broker to a subscriber.

    ``publisher`` and ``subscriber`` are sockets past their handshake, the subscriber granted the QoS that the frames
    are delivered at. ``window`` bounds the messages under way.
    """

    def __init__(self, publisher: socket.socket, subscriber: socket.socket, frames: Frames, *, window: int) -> None:
        self._frames = frames
        self._window = window
        self._publisher = Stream(publisher)
        self._subscriber = Stream(subscriber)
        self._first = 0  # sequence number of the first message of this measurement
        self._sent = 0
        self._limit = 0
        self._delivered = 0
        self._received_back = 0  # PUBREC at QoS 2
        self._completed = 0  # PUBACK or PUBCOMP
        self._released = 0  # PUBREL at the subscriber

    def run(self, *, messages: int = 0, seconds: float = 0.0) -> int:
        """Move ``messages``, or as many as start within ``seconds``; returns how many when all have gone all the way.

        May be called again: sequence numbers go on. Raises :class:`BenchError`.
        """
        if (messages > 0) == (seconds > 0):
            message = "give either messages or seconds"
            raise ValueError(message)
        first = self._sent
        self._limit = first + (messages or UNBOUNDED_MESSAGES)
        poll = select.poll()
        by_fd = {stream.socket.fileno(): stream for stream in (self._publisher, self._subscriber)}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        masks = dict.fromkeys(by_fd, select.POLLIN)
        deadline = time.perf_counter() + seconds if seconds else float("inf")
        while True:
            if time.perf_counter() >= deadline:
                self._limit = min(self._limit, self._sent)
            self._publish()
            if self._sent == self._limit and self._settled() == self._limit:
                break
            for fd, stream in by_fd.items():
                wanted = select.POLLIN | (select.POLLOUT if stream.writing else 0)
                if masks[fd] != wanted:
                    poll.modify(fd, wanted)
                    masks[fd] = wanted
            ready = poll.poll(STALL_TIMEOUT_S * 1_000)
            if not ready:
                raise BenchError(self._stalled())
            before = self._advanced()
            for fd, _ in ready:
                self._turn(by_fd[fd])
            if self._advanced() - before < self._window // COALESCE_SHARE:
                time.sleep(COALESCE_S)
        return self._sent - first

    def _settled(self) -> int:
        """Messages that have gone the whole way."""
        if self._frames.qos == 0:
            return self._delivered
        if self._frames.qos == 1:
            return min(self._delivered, self._completed)
        return min(self._released, self._completed)

    def _advanced(self) -> int:
        """Packets received so far."""
        return self._delivered + self._received_back + self._completed + self._released

    def _publish(self) -> None:
        if self._publisher.writing:
            return
        allowed = min(self._window - (self._sent - self._settled()), self._limit - self._sent)
        # Small top-ups would make the broker's reads small too: wait until an eighth of the window is free.
        if allowed >= min(self._window // 8 + 1, self._limit - self._sent) > 0:
            block = self._frames.block(self._sent, allowed)
            self._sent += allowed
            self._publisher.write(block)

    def _turn(self, stream: Stream) -> None:
        stream.flush()
        chunk = stream.read()
        if not chunk:
            return
        try:
            if stream is self._publisher:
                consumed = self._acknowledged(chunk)
            elif self._frames.qos == 2:
                consumed = self._deliver_mixed(chunk)
            else:
                consumed = self._deliver(chunk)
        except ValueError as error:
            raise BenchError(str(error)) from error
        finally:
            chunk.release()
        stream.consume(consumed)

    def _deliver(self, chunk: memoryview) -> int:
        consumed = 0
        while True:
            found = self._frames.deliveries(chunk[consumed:], self._delivered)
            if not found.messages:
                return consumed
            self._delivered += found.messages
            consumed += found.size
            if found.ids is not None:
                self._subscriber.write(build_acks(AckType.PUBACK, found.ids))

    def _deliver_mixed(self, chunk: memoryview) -> int:
        assert isinstance(self._frames, PublishFrames)
        ids, sequences, releases, consumed = self._frames.read_mixed(bytes(chunk))
        self._delivered = in_sequence("delivery", sequences, self._delivered)
        self._released += len(releases)
        answer = build_acks(AckType.PUBREC, ids) + build_acks(AckType.PUBCOMP, releases)
        if answer:
            self._subscriber.write(answer)
        return consumed

    def _acknowledged(self, chunk: memoryview) -> int:
        whole = len(chunk) - len(chunk) % ACK_BYTES
        kinds, ids = read_acks(chunk[:whole])
        if self._frames.qos < 2:
            if not bool((kinds == AckType.PUBACK).all()):
                message = f"the publisher received something else than PUBACK: {bytes(chunk[:16]).hex()}"
                raise ValueError(message)
            self._completed = _ids_in_sequence("PUBACK", ids, self._completed)
            return whole
        received, completed = ids[kinds == AckType.PUBREC], ids[kinds == AckType.PUBCOMP]
        if len(received) + len(completed) != len(ids):
            message = f"the publisher received something else than PUBREC and PUBCOMP: {bytes(chunk[:16]).hex()}"
            raise ValueError(message)
        self._received_back = _ids_in_sequence("PUBREC", received, self._received_back)
        self._completed = _ids_in_sequence("PUBCOMP", completed, self._completed)
        if len(received):
            self._publisher.write(build_acks(AckType.PUBREL, received))
        return whole

    def _stalled(self) -> str:
        return (
            f"nothing arrived for {STALL_TIMEOUT_S:g} s at QoS {self._frames.qos}: sent {self._sent}, delivered "
            f"{self._delivered}, acknowledged {self._completed}, released {self._released}"
        )


def _ids_in_sequence(what: str, ids: Ids, expected: int) -> int:
    """As :func:`in_sequence` for packet ids: a broker acknowledges in the order received (MQTT-4.6.0-2, -3)."""
    wanted = packet_ids(expected, len(ids))
    if not np.array_equal(ids, wanted):
        at = int(np.argmax(ids != wanted))
        message = f"{what} out of sequence: expected packet id {int(wanted[at])}, received {int(ids[at])}"
        raise ValueError(message)
    return expected + len(ids)


class PubSub(Workload):
    """One publisher, one subscriber, on fresh connections in every round."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess, *, qos: int) -> None:
        super().__init__(endpoint, plan, broker)
        self._qos = qos

    def measure(self, number: int) -> list[Figure]:
        plan, qos = self.plan, self._qos
        subscriber, _ = connect(self.endpoint, f"bench-s-{qos}-{number}")
        with subscriber:
            subscribe(subscriber, TOPIC, qos)
            publisher, _ = connect(self.endpoint, f"bench-p-{qos}-{number}")
            with publisher:
                frames = PublishFrames(TOPIC, qos, plan.payload_bytes)
                pump = Pump(publisher, subscriber, frames, window=plan.window_of(qos))
                return [self.pumped(f"qos{qos}", pump)]
