"""The queue bench over AMQP 0.9.1, for RabbitMQ: persistent publishes with confirms, a durable queue, manual acks.

The same flow as :mod:`loadtests.bench.queue`, in the broker's favour where they differ: a broker does not confirm an
acknowledgement in AMQP, so a message counts once its publish is confirmed and its acknowledgement was sent.
"""

from __future__ import annotations

import struct

from loadtests.bench import amqp
from loadtests.bench.frames import SEQUENCE_BYTES
from loadtests.bench.pump import WARM_UP_S, Stream
from loadtests.bench.queue_flow import QueueFlow
from loadtests.bench.workload import BenchError, Figure, Meter, Workload

_MAX_PREFETCH = 65_535
_TAG = struct.Struct(">Q")
_SEQUENCE = struct.Struct(">Q")


class AmqpQueuePump(QueueFlow):
    """Publishes on one channel, consumes and settles on another, in one thread. ``multiple``: one ack a turn."""

    def __init__(
        self, publisher: Stream, consumer: Stream, queue: str, *, payload_bytes: int, window: int, multiple: bool
    ) -> None:
        super().__init__(publisher, consumer, window)
        self._multiple = multiple
        self._start = amqp.publish_start(queue, payload_bytes)
        self._rest = bytes(payload_bytes - SEQUENCE_BYTES)
        self._floor = 0
        """Every publish up to this tag is confirmed ..."""
        self._above: set[int] = set()
        """... and these."""

    def _block(self, first: int, count: int) -> bytes:
        start, rest = self._start, self._rest
        output: list[bytes] = []
        for number in range(first, first + count):
            output += (start, amqp.frame(amqp.BODY, amqp.CHANNEL, _SEQUENCE.pack(number) + rest))
        return b"".join(output)

    def _on_confirms(self, data: bytes) -> int:
        used = 0
        for found in amqp.frames(data):
            if found.kind != amqp.METHOD or amqp.name_of(data, found) != amqp.BASIC_ACK:
                message = f"expected a confirm, received {data[found.start : found.end][:80]!r}"
                raise BenchError(message)
            (tag,) = _TAG.unpack_from(data, found.start + 4)
            self._confirm(tag, multiple=bool(data[found.start + 12] & 1))
            used = found.end + 1
        return used

    def _confirm(self, tag: int, *, multiple: bool) -> None:
        """Tags count the publishes of a channel from 1. Single confirms may overtake each other."""
        if multiple:
            self._floor = max(self._floor, tag)
            self._above = {above for above in self._above if above > self._floor}
        else:
            self._above.add(tag)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)
        self._confirmed = self._floor + len(self._above)

    def _on_deliveries(self, data: bytes) -> int:
        used, tag = 0, 0
        output: list[bytes] = []
        for found in amqp.frames(data):
            if found.kind == amqp.METHOD:
                if amqp.name_of(data, found) != amqp.BASIC_DELIVER:
                    message = f"expected a delivery, received {data[found.start : found.end][:80]!r}"
                    raise BenchError(message)
                (tag,) = _TAG.unpack_from(data, found.start + 5 + data[found.start + 4])
            elif found.kind == amqp.BODY:
                (number,) = _SEQUENCE.unpack_from(data, found.start)
                self._see(number)
                self._settled += 1
                if not self._multiple:
                    output.append(amqp.method(amqp.BASIC_ACK, _TAG.pack(tag) + b"\0"))
                used = found.end + 1
        if self._multiple and used:
            # The last whole delivery: a method frame behind it belongs to one that is not read yet.
            output = [amqp.method(amqp.BASIC_ACK, _TAG.pack(self._settled) + b"\x01")]
        if output:
            self._consumer.write(b"".join(output))
        return used


class AmqpQueueLife(Workload):
    """A durable queue of its own in every round, with one publisher and one consumer."""

    line = "queue"
    multiple = False

    def measure(self, number: int) -> list[Figure]:
        plan, queue = self.plan, f"bench-{self.line}-{number}"
        host, port = self.endpoint.host, self.endpoint.port
        with amqp.open_channel(host, port) as consumer, amqp.open_channel(host, port) as publisher:
            amqp.declare_durable(consumer, queue)
            amqp.consume(consumer, queue, _MAX_PREFETCH)
            amqp.select_confirms(publisher)
            pump = AmqpQueuePump(
                Stream(publisher),
                Stream(consumer),
                queue,
                payload_bytes=plan.payload_bytes,
                window=plan.window_of(1),
                multiple=self.multiple,
            )
            pump.run(seconds=WARM_UP_S)
            meter = Meter(self.broker)
            messages = pump.run(messages=plan.messages, seconds=0.0 if plan.messages else plan.seconds)
            return [meter.rate(self.line, messages)]


class AmqpQueueBatch(AmqpQueueLife):
    """One acknowledgement for all deliveries of a turn."""

    line = "queue_batch"
    multiple = True
