"""What the same queue costs the broker over each of its faces: messages a second of its processor time.

One queue in memory with one partition, payloads of 100 bytes, one client at a time. A message is published once it is
confirmed, consumed once its settlement is. The clients are simple and slow, which the figure does not show: it is the
broker's own time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import msgspec

from assay.conformance.targets import Endpoint
from assay.conformance.wire import Subscribe, Subscription, encode
from assay.loadtests.bench.broker_process import process_cpu_s
from assay.loadtests.bench.frames import ACK_BYTES, PublishFrames
from assay.loadtests.bench.handshake import connect
from assay.loadtests.bench.lines import Line
from assay.loadtests.packets import PUBACK, acknowledgement, read_publish, split_frames
from assay.reference_broker.clients.http_client import HttpQueues
from assay.reference_broker.grpc_api import schema

PAYLOAD_BYTES: Final = 100
BATCH: Final = 100
WINDOW: Final = 500
_PUBLISH: Final = 3
_FEWEST_CPU_S: Final = 0.01
_CONFIG: Final = """\
listeners:
  - {port: 0}
  - {port: 0, protocols: [http]}
  - {port: 0, protocols: [grpc]}
queues:
  defaults: {partitions: 1, durability: memory, max_depth: 1000000, max_in_flight: 1000}
"""
"""As for every queue, but in memory, so that the disk has no say."""


class FacesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    messages: int = 20_000
    """Of a figure; of those that send one request for each a tenth."""
    rounds: int = 3


class Faces:
    """A running broker."""

    def __init__(self, pid: int, urls: dict[str, str]) -> None:
        self._pid = pid
        self.urls = urls
        self._numbers = count()

    def new_queue(self) -> str:
        return f"faces-{next(self._numbers)}"

    def cpu_s(self) -> float:
        spent = process_cpu_s(self._pid)
        if spent is None:
            message = "the broker's processor time cannot be read on this system"
            raise OSError(message)
        return spent

    @property
    def endpoint(self) -> Endpoint:
        parts = urlsplit(self.urls["mqtt"])
        return Endpoint(host=str(parts.hostname), port=parts.port or 0)

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel(self.urls["grpc"].partition("://")[2]) as channel:
            yield channel

    def call(self, channel: grpc.Channel, service: str, method: str) -> Any:
        """A method, as grpcio's synchronous library has it."""
        (kind,) = [
            kind
            for each in schema.services()
            if each.full_name == service
            for kind in each.methods
            if kind.name == method
        ]
        sides = ["stream" if streams else "unary" for streams in (kind.client_streaming, kind.server_streaming)]
        asked, answer = schema.message_class(kind.input_type), schema.message_class(kind.output_type)
        make = getattr(channel, "_".join(sides))
        return make(f"/{service}/{method}", asked.SerializeToString, answer.FromString)


@contextmanager
def serve_faces() -> Iterator[Faces]:
    """A broker of its own, until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broker.yaml"
        path.write_text(_CONFIG, encoding="utf-8")
        command = [sys.executable, "-m", "assay", "serve", "--config", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            try:
                urls = dict.fromkeys(("mqtt", "http", "grpc"), "")
                for scheme in urls:
                    urls[scheme] = broker.stdout.readline().split()[1]
                yield Faces(broker.pid, urls)
            finally:
                broker.terminate()


_FLUXMQ: Final = "fluxmq.queue.v1.QueueService"
_PAYLOAD: Final = bytes(65 + index % 26 for index in range(PAYLOAD_BYTES))


def _mqtt_publish(faces: Faces, queue: str, messages: int) -> None:
    frames = PublishFrames(f"$queue/{queue}", 1, PAYLOAD_BYTES)
    connection, _ = connect(faces.endpoint, f"bench-{queue}")
    with closing(connection):
        for first in range(0, messages, WINDOW):
            number = min(WINDOW, messages - first)
            connection.sendall(frames.block(first, number))
            left = number * ACK_BYTES
            while left:
                left -= len(connection.recv(left))


def _mqtt_consume(faces: Faces, queue: str, messages: int) -> None:
    connection, _ = connect(faces.endpoint, f"bench-{queue}")
    with closing(connection):
        wanted = Subscription(filter=f"$queue/{queue}", qos=1)
        connection.sendall(encode(Subscribe(packet_id=1, subscriptions=(wanted,)), 4))
        rest, seen = b"", 0
        while seen < messages:
            rest += connection.recv(1 << 16)
            frames, used = split_frames(rest)
            # The first of them is the SUBACK.
            found = [frame for frame in frames if frame[0] >> 4 == _PUBLISH]
            acks = [acknowledgement(PUBACK, read_publish(rest, frame, 4)[1]) for frame in found]
            rest = rest[used:]
            connection.sendall(b"".join(acks))
            seen += len(acks)


def _http_publish(faces: Faces, queue: str, messages: int) -> None:
    with HttpQueues(faces.urls["http"]) as queues:
        for first in range(0, messages, BATCH):
            queues.publish_many(queue, [_PAYLOAD] * min(BATCH, messages - first))


def _http_consume(faces: Faces, queue: str, messages: int) -> None:
    with HttpQueues(faces.urls["http"]) as queues:
        consumed = queues.consume(queue, "bench", max_in_flight=BATCH)
        for first in range(0, messages, BATCH):
            queues.ack(*(next(consumed) for _ in range(min(BATCH, messages - first))))
        consumed.close()


def _grpc_batches(faces: Faces, queue: str, messages: int) -> None:
    made = schema.fluxmq()
    with faces.channel() as channel:
        append = faces.call(channel, _FLUXMQ, "AppendBatch")
        for first in range(0, messages, BATCH):
            wanted = [{"value": _PAYLOAD}] * min(BATCH, messages - first)
            append(made.AppendBatchRequest(queue_name=queue, messages=wanted))


def _grpc_stream(faces: Faces, queue: str, messages: int) -> None:
    request = schema.fluxmq().AppendRequest(queue_name=queue, value=_PAYLOAD)
    with faces.channel() as channel:
        answer = faces.call(channel, _FLUXMQ, "AppendQueue")(request for _ in range(messages))
    assert answer.count == messages


def _grpc_both_ways(faces: Faces, queue: str, messages: int) -> None:
    request = schema.goqueue().PublishStreamRequest(topic=queue, value=_PAYLOAD)
    with faces.channel() as channel:
        answers = faces.call(channel, "goqueue.v1.PublishService", "PublishStream")(request for _ in range(messages))
        assert sum(not each.error.code for each in answers) == messages


def _grpc_single(faces: Faces, queue: str, messages: int) -> None:
    request = schema.fluxmq().AppendRequest(queue_name=queue, value=_PAYLOAD)
    with faces.channel() as channel:
        append = faces.call(channel, _FLUXMQ, "Append")
        for _ in range(messages):
            append(request)


def _grpc_consume(faces: Faces, queue: str, messages: int) -> None:
    made = schema.fluxmq()
    group = {"queue_name": queue, "group_id": "bench"}
    with faces.channel() as channel:
        ack = faces.call(channel, _FLUXMQ, "Ack")
        stream = faces.call(channel, _FLUXMQ, "ConsumeQueue")(made.ConsumeQueueRequest(**group, max_in_flight=WINDOW))
        for first in range(0, messages, BATCH):
            receipts = [next(stream).receipt for _ in range(min(BATCH, messages - first))]
            ack(made.AckRequest(**group, receipts=receipts))
        stream.cancel()


def _grpc_subscribe(faces: Faces, queue: str, messages: int) -> None:
    made = schema.goqueue()
    with faces.channel() as channel:
        ack = faces.call(channel, "goqueue.v1.AckService", "BatchAck")
        stream = faces.call(channel, "goqueue.v1.ConsumeService", "Subscribe")(
            made.SubscribeRequest(topics=[queue], group_id="bench")
        )
        seen = 0
        while seen < messages:
            found = next(stream).messages.messages
            if found:
                ack(made.BatchAckRequest(receipt_handles=[each.receipt_handle for each in found]))
                seen += len(found)
        stream.cancel()


_Measured = Callable[[Faces, str, int], None]
_PUBLISHING: Final[tuple[tuple[str, str, _Measured, int], ...]] = (
    ("mqtt.publish", "publish: MQTT 3.1.1, QoS 1", _mqtt_publish, 1),
    ("grpc.batch", f"publish: gRPC, AppendBatch of {BATCH}", _grpc_batches, 1),
    ("http.batch", f"publish: HTTP, {BATCH} in a request", _http_publish, 1),
    ("grpc.stream", "publish: gRPC, AppendQueue", _grpc_stream, 1),
    ("grpc.both", "publish: gRPC, PublishStream", _grpc_both_ways, 1),
    ("grpc.single", "publish: gRPC, Append, one after the other", _grpc_single, 10),
)
_CONSUMING: Final[tuple[tuple[str, str, _Measured], ...]] = (
    ("mqtt.consume", "consume: MQTT 3.1.1, QoS 1", _mqtt_consume),
    ("grpc.consume", f"consume: gRPC, ConsumeQueue, Ack of {BATCH}", _grpc_consume),
    ("http.consume", f"consume: HTTP, {BATCH} in a request, settled together", _http_consume),
    ("grpc.subscribe", "consume: gRPC, Subscribe, BatchAck", _grpc_subscribe),
)


def faces_lines(faces: Faces, plan: FacesPlan) -> list[Line]:
    """A line for each way to publish and to consume."""

    def timed(measured: _Measured, queue: str, messages: int) -> float:
        before = faces.cpu_s()
        measured(faces, queue, messages)
        return messages / max(faces.cpu_s() - before, _FEWEST_CPU_S)

    def consumed(measured: _Measured) -> float:
        queue = faces.new_queue()
        _grpc_batches(faces, queue, plan.messages)
        return timed(measured, queue, plan.messages)

    unit = "messages/CPU s"
    lines = [
        Line(
            name=name,
            title=title,
            unit=unit,
            measure=lambda measured=measured, share=share: timed(measured, faces.new_queue(), plan.messages // share),  # type: ignore[misc]
        )
        for name, title, measured, share in _PUBLISHING
    ]
    return lines + [
        Line(name=name, title=title, unit=unit, measure=lambda measured=measured: consumed(measured))  # type: ignore[misc]
        for name, title, measured in _CONSUMING
    ]
