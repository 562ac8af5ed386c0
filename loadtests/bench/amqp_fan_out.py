"""Fan-out over AMQP 0.9.1: one publisher, a fanout exchange, a crowd of consumers with a queue each; and gets."""

from __future__ import annotations

import select
import socket
import struct
import time

from assay.conformance.targets import Endpoint
from assay.loadtests.bench import amqp
from assay.loadtests.bench.amqp_messages import Cycle, alike_messages
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.pump import STALL_TIMEOUT_S, Stream
from assay.loadtests.bench.queue_flow import TURN_BYTES
from assay.loadtests.bench.shape import Shape
from assay.loadtests.bench.workload import WARM_UP_S, BenchError, BenchPlan, Figure, Meter, Workload

_EXCHANGE = "bench-fan-out"
_BATCH = 16
"""Messages published at once; about two batches are under way."""
GETS = 5_000
_GETS_UNDER_WAY = 50


class AmqpFanOut(Workload):
    """One publisher, ``plan.amqp_crowd`` consumers that acknowledge nothing. A delivery is a message at a consumer."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess) -> None:
        super().__init__(endpoint, plan, broker)
        self._consumers: dict[int, Stream] = {}
        self._got: dict[int, int] = {}
        self._publisher: Stream | None = None
        self._poll = self.held.enter_context(select.epoll())
        self._cycle = Cycle(alike_messages(_EXCHANGE, "", plan.payload_bytes, amqp.TRANSIENT), amqp.CONSUMER)
        self._sent = self._delivered = 0

    def prepare(self) -> None:
        super().prepare()
        for number in range(self.plan.amqp_crowd):
            connection = self._connect()
            talk, queue = amqp.Talk(connection), f"bench-fan-out-{number}"
            if not number:
                talk.declare_exchange(_EXCHANGE, "fanout")
            talk.declare(queue, exclusive=True)
            talk.bind(queue, _EXCHANGE, [""])
            amqp.consume(connection, queue, 0, no_ack=True)
            stream = Stream(connection, read_bytes=TURN_BYTES + 2 * self._cycle.largest_bytes)
            self._consumers[connection.fileno()] = stream
            self._got[connection.fileno()] = 0
            self._poll.register(connection, select.EPOLLIN)
        self._publisher = Stream(self._connect())

    def _connect(self) -> socket.socket:
        return self.held.enter_context(amqp.open_channel(self.endpoint.host, self.endpoint.port))

    def measure(self, number: int) -> list[Figure]:
        self._run(seconds=WARM_UP_S)
        meter = Meter(self.broker)
        return [meter.rate("amqp_fan_out", self._run(seconds=self.plan.seconds, messages=self.plan.messages))]

    def _run(self, *, seconds: float, messages: int = 0) -> int:
        """Deliveries. Raises :class:`BenchError`."""
        assert self._publisher is not None
        publisher, crowd, first = self._publisher, len(self._consumers), self._delivered
        most = self._sent + (messages or 1 << 40)
        deadline = time.perf_counter() + seconds
        while True:
            if not messages and time.perf_counter() >= deadline:
                most = self._sent
            publisher.flush()
            count = min(_BATCH, most - self._sent)
            if count and not publisher.writing and self._sent * crowd - self._delivered <= _BATCH * crowd:
                publisher.write(self._cycle.publishes(self._sent, count))
                self._sent += count
            if self._sent >= most and self._delivered == self._sent * crowd:
                return self._delivered - first
            events = self._poll.poll(STALL_TIMEOUT_S)
            if not events:
                message = f"nothing arrived for {STALL_TIMEOUT_S:g} s: {self._delivered} of {self._sent * crowd}"
                raise BenchError(message)
            for fd, _ in events:
                self._read(fd)

    def _read(self, fd: int) -> None:
        stream = self._consumers[fd]
        chunk = stream.read()
        tags, used = self._cycle.read(bytes(chunk), self._got[fd])
        chunk.release()
        self._got[fd] += len(tags)
        self._delivered += len(tags)
        stream.consume(used)


class AmqpGets(Workload):
    """Messages that wait in a queue, fetched by gets without acknowledgements, some gets under way at a time."""

    def measure(self, number: int) -> list[Figure]:
        queue, size = f"bench-get-{number}", self.plan.payload_bytes
        count = self.plan.messages or GETS
        with amqp.open_channel(self.endpoint.host, self.endpoint.port) as connection:
            amqp.Talk(connection).declare(queue, exclusive=True)
            cycle = Cycle(alike_messages("", queue, size, amqp.TRANSIENT), amqp.CONSUMER)
            connection.sendall(cycle.publishes(0, count))
            # The answer says that all before it is in its queue.
            amqp.select_confirms(connection)
            shape = Shape("an answer to a get", *_get_ok_parts(queue, size))
            get = amqp.method(amqp.BASIC_GET, b"\0\0" + amqp.short_string(queue) + b"\x01")
            stream = Stream(connection, read_bytes=TURN_BYTES + 2 * shape.size)
            meter = Meter(self.broker)
            asked = got = 0
            while got < count:
                wanted = min(count - asked, _GETS_UNDER_WAY - (asked - got))
                if wanted:
                    stream.write(get * wanted)
                    asked += wanted
                if not select.select([connection], [], [], STALL_TIMEOUT_S)[0]:
                    message = f"nothing arrived for {STALL_TIMEOUT_S:g} s: {got} of {count} gets were answered"
                    raise BenchError(message)
                stream.flush()
                chunk = stream.read()
                found = shape.read(bytes(chunk))
                chunk.release()
                if found["seq"].tolist() != list(range(got, got + len(found))):
                    message = f"messages came out of sequence: {found['seq'][:5].tolist()} in place of {got}"
                    raise BenchError(message)
                got += len(found)
                stream.consume(len(found) * shape.size)
            return [meter.rate("amqp_get", got)]


def _get_ok_parts(queue: str, body_bytes: int) -> tuple[bytes | tuple[str, str], ...]:
    """How a message comes in answer to a get."""
    names = b"\0" + amqp.short_string("") + amqp.short_string(queue)
    ids = struct.pack(">HH", *amqp.BASIC_GET_OK)
    head = struct.pack(">BHI", amqp.METHOD, amqp.CHANNEL, 4 + 8 + len(names) + 4) + ids
    header = struct.pack(">HHQHB", 60, 0, body_bytes, 0x1000, amqp.TRANSIENT)
    content = bytes((amqp.FRAME_END,)) + amqp.frame(amqp.HEADER, amqp.CHANNEL, header)
    body = struct.pack(">BHI", amqp.BODY, amqp.CHANNEL, body_bytes)
    rest = bytes(body_bytes - 8) + bytes((amqp.FRAME_END,))
    return (head, ("tag", ">u8"), names, ("left", ">u4"), content + body, ("seq", ">u8"), rest)
