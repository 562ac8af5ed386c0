"""Queue bench: publish -> deliver -> ``$ack`` per second on one durable queue, over MQTT 5.0.

One publisher and one consumer group of one consumer. A message counts once the broker has confirmed its ``$ack``
publish, so a figure covers the whole life of a message: confirmed to its publisher, delivered, settled. Settled one by
one, or all deliveries of a turn and partition by one ``$ack`` that names their ``offsets``.
"""

from __future__ import annotations

import socket
from collections import deque

from loadtests.bench.frames import PACKET_IDS, SEQUENCE_BYTES, PublishFrames
from loadtests.bench.handshake import connect, subscribe
from loadtests.bench.pump import WARM_UP_S, Stream
from loadtests.bench.queue_flow import QueueFlow
from loadtests.bench.workload import BenchError, Figure, Meter, Workload
from loadtests.packets import (
    PUBACK,
    acknowledgement,
    find_user_property,
    property_section,
    publish_frame,
    read_publish,
    split_frames,
    user_property,
)

GROUP = "bench"
QOS = 1
FIRST_FAILURE_CODE = 0x80
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
    ) -> None:
        super().__init__(Stream(publisher), Stream(consumer), min(window, receive_maximum))
        topic = f"$queue/{queue}"
        self._frames = PublishFrames(topic, QOS, payload_bytes, section=property_section(b"", 5))
        self._ack_topic = f"{topic}/$ack".encode()
        self._receive_maximum = receive_maximum
        self._acks_sent = 0
        self._unconfirmed: set[int] = set()
        self._waiting: deque[tuple[bytes, bytes]] = deque()  # bounded by the window
        self._batch = batch
        self._settling: deque[int] = deque()
        """How many messages each unconfirmed ``$ack`` settles, in the order sent."""

    def _block(self, first: int, count: int) -> bytes | memoryview:
        ids = {number % PACKET_IDS + 1 for number in range(first, first + count)}
        if self._unconfirmed & ids:
            message = f"a publish is still unconfirmed after {PACKET_IDS} later ones"
            raise BenchError(message)
        self._unconfirmed |= ids
        return self._frames.block(first, count)

    @staticmethod
    def _split(data: bytes) -> tuple[list[tuple[int, int, int]], int]:
        try:
            return split_frames(data)
        except ValueError as error:
            raise BenchError(str(error)) from error

    def _on_confirms(self, data: bytes) -> int:
        frames, used = self._split(data)
        for frame in frames:
            self._unconfirmed.remove(self._confirmation(data, *frame))
        self._confirmed += len(frames)
        return used

    @staticmethod
    def _confirmation(data: bytes, first: int, start: int, end: int) -> int:
        """Packet id of a successful PUBACK. Raises :class:`BenchError` for a refusal or another packet."""
        if first != PUBACK or (end - start > 2 and data[start + 2] >= FIRST_FAILURE_CODE):
            message = f"expected a successful PUBACK, received {bytes([first]).hex()} .. {data[start:end].hex()}"
            raise BenchError(message)
        return data[start] << 8 | data[start + 1]

    def _on_deliveries(self, data: bytes) -> int:
        frames, used = self._split(data)
        output = []
        for frame in frames:
            if frame[0] >> 4 != 3:
                self._confirmation(data, *frame)
                self._settled += self._settling.popleft()
                continue
            _, packet_id, properties, payload = read_publish(data, frame, 5)
            number = int.from_bytes(payload[:SEQUENCE_BYTES], "big")
            self._see(number)
            output.append(acknowledgement(PUBACK, packet_id))
            self._waiting.append(
                (find_user_property(properties, b"message-id"), find_user_property(properties, b"group-id"))
            )
        if self._batch:
            output += self._settle_together()
        while self._waiting and len(self._settling) < self._receive_maximum:
            message_id, group = self._waiting.popleft()
            pairs = user_property(b"message-id", message_id) + user_property(b"group-id", group)
            output.append(self._settlement(pairs, 1))
        if output:
            self._consumer.write(b"".join(output))
        return used

    def _settlement(self, pairs: bytes, messages: int) -> bytes:
        """A ``$ack`` with these user properties."""
        packet_id = self._acks_sent % PACKET_IDS + 1
        self._acks_sent += 1
        self._settling.append(messages)
        return publish_frame(QOS, self._ack_topic, packet_id, property_section(pairs, 5), b"")

    def _settle_together(self) -> list[bytes]:
        """One ``$ack`` for all waiting deliveries of a partition; offsets come in ascending order, mostly in a row."""
        partitions: dict[bytes, list[int]] = {}
        group = b""
        while self._waiting:
            message_id, group = self._waiting.popleft()
            _, partition, offset = message_id.rsplit(b":", 2)
            partitions.setdefault(partition, []).append(int(offset))
        output = []
        for partition, offsets in partitions.items():
            for at in range(0, len(offsets), BATCH_OFFSETS):
                part = offsets[at : at + BATCH_OFFSETS]
                in_a_row = part[-1] - part[0] == len(part) - 1
                named = f"{part[0]}-{part[-1]}" if in_a_row else ",".join(map(str, part))
                pairs = (
                    user_property(b"group-id", group)
                    + user_property(b"partition", partition)
                    + user_property(b"offsets", named.encode())
                )
                output.append(self._settlement(pairs, len(part)))
        return output


class QueueLife(Workload):
    """A queue of its own in every round, with one publisher and one consumer."""

    line = "queue"
    batch = False

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
                )
                pump.run(seconds=WARM_UP_S)
                meter = Meter(self.broker)
                messages = pump.run(messages=plan.messages, seconds=0.0 if plan.messages else plan.seconds)
                return [meter.rate(self.line, messages)]


class QueueBatch(QueueLife):
    """The deliveries of a turn are settled together."""

    line = "queue_batch"
    batch = True
