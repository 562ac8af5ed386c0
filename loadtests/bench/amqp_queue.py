"""The queue bench over AMQP 0.9.1, for RabbitMQ: persistent publishes with confirms, a durable queue, manual acks.

The same flow as :mod:`assay.loadtests.bench.queue`, in the broker's favour where they differ: a broker does not confirm
an acknowledgement in AMQP, so a message counts once its publish is confirmed and its acknowledgement was sent.
"""

from __future__ import annotations

import numpy as np

from assay.loadtests.bench import amqp
from assay.loadtests.bench.pump import Stream
from assay.loadtests.bench.queue_flow import KEYS, QueueFlow, queue_stream
from assay.loadtests.bench.queue_frames import key_of
from assay.loadtests.bench.shape import Shape
from assay.loadtests.bench.workload import BenchError, Figure, Workload

_MAX_PREFETCH = 65_535


class AmqpQueuePump(QueueFlow):
    """Publishes on one channel, consumes and settles on another, in one thread. ``multiple``: one ack a turn."""

    def __init__(
        self,
        publisher: Stream,
        consumer: Stream,
        queue: str,
        *,
        payload_bytes: int,
        window: int,
        multiple: bool,
        keyed: bool,
    ) -> None:
        """``keyed``: each message has its key as a header."""
        super().__init__(publisher, consumer, window, keyed=keyed)
        self._multiple = multiple
        self._keys = np.array([key_of(number) for number in range(KEYS)]) if keyed else None
        key_bytes = len(key_of(0)) if keyed else 0
        self._publishes = Shape("", *amqp.publish_parts(queue, payload_bytes, key_bytes))
        self._deliveries = Shape("a delivery", *amqp.delivery_parts(queue, payload_bytes, key_bytes))
        self._confirms = Shape("a confirm", *amqp.ack_parts())
        self._acks = Shape("", *amqp.ack_parts())
        self._floor = amqp.ConfirmFloor()

    def _block(self, first: int, count: int) -> memoryview:
        numbers = np.arange(first, first + count)
        if self._keys is None:
            return self._publishes.build(count, seq=numbers)
        return self._publishes.build(count, seq=numbers, key=self._keys[numbers % KEYS])

    def _on_confirms(self, data: bytes) -> int:
        found = self._confirms.read(data)
        for tag, multiple in zip(found["tag"].tolist(), found["multiple"].tolist(), strict=True):
            self._floor.confirm(tag, multiple=bool(multiple & 1))
        self._confirmed = self._floor.count
        return len(found) * self._confirms.size

    def _on_deliveries(self, data: bytes) -> int:
        found = self._deliveries.read(data)
        if len(found):
            if self._keys is not None and not bool((found["key"] == self._keys[found["seq"] % KEYS]).all()):
                raise BenchError("a message was delivered with another key than it was sent with")
            self._see(found["seq"].astype(np.uint64))
            self._settled += len(found)
            tags = found["tag"][-1:] if self._multiple else found["tag"]
            # A copy: what the socket does not take at once is sent later.
            self._consumer.write(bytes(self._acks.build(len(tags), tag=tags, multiple=int(self._multiple))))
        return len(found) * self._deliveries.size


class AmqpQueueLife(Workload):
    """A durable queue of its own in every round, with one publisher and one consumer."""

    line = "queue"
    multiple = False
    keyed = False

    def measure(self, number: int) -> list[Figure]:
        plan, queue = self.plan, f"bench-{self.line}-{number}"
        host, port = self.endpoint.host, self.endpoint.port
        with amqp.open_channel(host, port) as consumer, amqp.open_channel(host, port) as publisher:
            amqp.declare_durable(consumer, queue)
            amqp.consume(consumer, queue, _MAX_PREFETCH)
            amqp.select_confirms(publisher)
            pump = AmqpQueuePump(
                queue_stream(publisher, plan.payload_bytes),
                queue_stream(consumer, plan.payload_bytes),
                queue,
                payload_bytes=plan.payload_bytes,
                window=plan.window_of(1),
                multiple=self.multiple,
                keyed=self.keyed,
            )
            return [self.pumped(self.line, pump)]


class AmqpQueueBatch(AmqpQueueLife):
    """One acknowledgement for all deliveries of a turn."""

    line = "queue_batch"
    multiple = True


class AmqpQueueKeyed(AmqpQueueLife):
    """A key on each message, as a header of the same size. A queue has no partitions here: it keeps all in order."""

    line = "queue_keyed"
    keyed = True
