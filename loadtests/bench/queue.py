"""Queue bench: publish -> deliver -> ``$ack`` per second on one durable queue, over MQTT 5.0.

One publisher and one consumer group of one consumer. A message counts once the broker has confirmed its ``$ack``
publish, so a figure covers the whole life of a message: confirmed to its publisher, delivered, settled. Settled one by
one, or all deliveries of a turn and partition by one ``$ack`` that names their ``offsets``.
"""

from __future__ import annotations

import socket
from collections import deque

import numpy as np
import numpy.typing as npt

from assay.loadtests.bench.frames import ACK_BYTES, PACKET_IDS, AckType, PublishFrames, packet_ids, read_acks
from assay.loadtests.bench.handshake import connect, subscribe
from assay.loadtests.bench.queue_flow import KEYS, QueueFlow, queue_stream
from assay.loadtests.bench.queue_frames import AckFrames, DeliveryReader, acknowledgements, key_sections
from assay.loadtests.bench.workload import BenchError, Figure, Workload
from assay.loadtests.packets import property_section, user_property

GROUP = "bench"
QOS = 1
BATCH_OFFSETS = 500
"""Most deliveries that one ``$ack`` settles."""


class QueuePump(QueueFlow):
    """Publishes, consumes and settles on two connections in one thread.

    ``window`` bounds the messages between publish and confirmed settlement; ``receive_maximum`` is the broker's.
    """

    def __init__(
        self,
        publisher: socket.socket,
        consumer: socket.socket,
        queue: str,
        *,
        payload_bytes: int,
        window: int,
        receive_maximum: int,
        batch: bool = False,
        keyed: bool = False,
    ) -> None:
        super().__init__(
            queue_stream(publisher, payload_bytes),
            queue_stream(consumer, payload_bytes),
            min(window, receive_maximum),
            keyed=keyed,
        )
        topic = f"$queue/{queue}"
        sections = key_sections(KEYS) if keyed else [property_section(b"", 5)]
        self._frames = PublishFrames(topic, QOS, payload_bytes, sections=sections)
        self._keyed = keyed
        self._acks = AckFrames(f"{topic}/$ack".encode())
        self._reader = DeliveryReader(payload_bytes)
        self._receive_maximum = receive_maximum
        self._is_unconfirmed: npt.NDArray[np.bool_] = np.zeros(PACKET_IDS + 1, np.bool_)
        """By packet id."""
        self._waiting: deque[bytes] = deque()  # message ids, bounded by the window
        self._batch = batch
        self._settling: deque[int] = deque()
        """How many messages each unconfirmed ``$ack`` settles, in the order sent."""

    def _block(self, first: int, count: int) -> memoryview:
        ids = packet_ids(first, count)
        if bool(self._is_unconfirmed[ids].any()):
            message = f"a publish is still unconfirmed after {PACKET_IDS} later ones"
            raise BenchError(message)
        self._is_unconfirmed[ids] = True
        return self._frames.block(first, count)

    def _on_confirms(self, data: bytes) -> int:
        used = len(data) - len(data) % ACK_BYTES
        try:
            kinds, ids = read_acks(memoryview(data)[:used])
        except ValueError as error:
            message = f"expected a successful PUBACK: {error}"
            raise BenchError(message) from error
        known = self._is_unconfirmed[ids]
        if not bool((kinds == AckType.PUBACK).all() and known.all()) or len(np.unique(ids)) < len(ids):
            message = f"expected a PUBACK for each publish, received {data[:used][:80].hex()}"
            raise BenchError(message)
        self._is_unconfirmed[ids] = False
        self._confirmed += len(ids)
        return used

    def _on_deliveries(self, data: bytes) -> int:
        found = self._reader.read(data)
        settling = self._settling
        if found.confirms > len(settling):
            message = "more settlements are confirmed than were sent"
            raise BenchError(message)
        self._settled += sum([settling.popleft() for _ in range(found.confirms)])
        if self._keyed and not np.array_equal(found.keys, found.sequences % KEYS):
            raise BenchError("a message was delivered with another key than it was sent with")
        self._see(found.sequences)
        self._waiting += found.names
        output = [acknowledgements(found.ids)] if found.ids else []
        if self._batch:
            output += self._settle_together()
        count = min(len(self._waiting), self._receive_maximum - len(settling))
        if count > 0:
            waiting = self._waiting
            output.append(self._acks.each([waiting.popleft() for _ in range(count)], self._reader.group))
            settling += [1] * count
        if output:
            self._consumer.write(b"".join(output))
        return found.used

    def _settle_together(self) -> list[bytes]:
        """One ``$ack`` for all waiting deliveries of a partition; offsets come in ascending order, mostly in a row."""
        partitions: dict[bytes, list[int]] = {}
        while self._waiting:
            _, partition, offset = self._waiting.popleft().rsplit(b":", 2)
            partitions.setdefault(partition, []).append(int(offset))
        output = []
        for partition, offsets in partitions.items():
            for at in range(0, len(offsets), BATCH_OFFSETS):
                part = offsets[at : at + BATCH_OFFSETS]
                in_a_row = part[-1] - part[0] == len(part) - 1
                named = f"{part[0]}-{part[-1]}" if in_a_row else ",".join(map(str, part))
                pairs = (
                    user_property(b"group-id", self._reader.group)
                    + user_property(b"partition", partition)
                    + user_property(b"offsets", named.encode())
                )
                output.append(self._acks.one(pairs))
                self._settling.append(len(part))
        return output


class QueueLife(Workload):
    """A queue of its own in every round, with one publisher and one consumer."""

    line = "queue"
    batch = False
    keyed = False

    def measure(self, number: int) -> list[Figure]:
        plan, queue = self.plan, f"bench-{self.line}-{number}"
        consumer, _ = connect(self.endpoint, f"bench-c-{queue}", version=5, receive_maximum=PACKET_IDS)
        with consumer:
            subscribe(consumer, f"$queue/{queue}", QOS, version=5, group=GROUP)
            publisher, connack = connect(self.endpoint, f"bench-q-{queue}", version=5)
            with publisher:
                pump = QueuePump(
                    publisher,
                    consumer,
                    queue,
                    payload_bytes=plan.payload_bytes,
                    window=plan.window_of(QOS),
                    receive_maximum=connack.properties.receive_maximum or PACKET_IDS,
                    batch=self.batch,
                    keyed=self.keyed,
                )
                return [self.pumped(self.line, pump)]


class QueueBatch(QueueLife):
    """The deliveries of a turn are settled together."""

    line = "queue_batch"
    batch = True


class QueueKeyed(QueueLife):
    """A key on each message; the queue has as many partitions as the broker gives it: 10."""

    line = "queue_keyed"
    keyed = True
