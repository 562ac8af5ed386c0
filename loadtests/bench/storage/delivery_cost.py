"""Why deliveries are not sent with ``sendfile``: what copying a payload costs, beside all that a delivery costs.

A stored payload is not what goes out on the wire: each needs a packet header of its own, so ``sendfile`` takes two
system calls a message where copying takes two a group of messages.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from assay.loadtests.bench.storage.measurement import Case, MeasuredRow, RowSpec, Sample
from assay.loadtests.bench.storage.plan import StoragePlan
from assay.reference_broker.config import Durability, QueueConfig, QueuesConfig
from assay.reference_broker.queues import Delivery, Outcome, QueueAddress, QueueEngine
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.queue_store import LogQueueStore

PAYLOAD_SIZES = (100, 1_000, 64_000)
WORTH_SAVING = 0.25
"""A sendfile path would have to save at least this share of a delivery to pay for itself."""
_QUEUE = "bench"
_GROUP_MESSAGES = 32
_GROUP_BYTES = 64 * 1024
_LARGEST_TOTAL_BYTES = 64_000_000
_HEADER = bytes(40)
"""As large as a PUBLISH packet's header with topic and packet id."""
_SOCKET_BUFFER_BYTES = 200 * 1024


class _Costs(NamedTuple):
    """Rows of one payload size; microseconds a message."""

    copied: RowSpec
    whole: RowSpec


def _specs(size: int) -> _Costs:
    return _Costs(
        RowSpec(
            key=f"delivery.copy.{size}",
            title=f"payload of {size:,} bytes: read, cut out, joined, sent",
            unit="us/msg",
            raw_title="send header, sendfile payload",
        ),
        RowSpec(
            key=f"delivery.whole.{size}",
            title="  delivery from the log and ack, without protocol and socket",
            unit="us/msg",
        ),
    )


def delivery_cases(plan: StoragePlan, folder: Path) -> list[Case]:
    """One case for each payload size."""
    return [Case(tuple(_specs(size)), partial(_measure, plan, folder, size)) for size in PAYLOAD_SIZES]


def decision(rows: dict[str, MeasuredRow]) -> str:
    """What the figures say about a sendfile path, in a sentence or two."""
    parts: list[str] = []
    savings: list[float] = []
    for size in PAYLOAD_SIZES:
        copied, whole = (rows[spec.key] for spec in _specs(size))
        sent_us = copied.raw_median
        assert sent_us is not None, "the sendfile path was measured beside the copying one"
        saving = (copied.median - sent_us) / (copied.median + whole.median)
        savings.append(saving)
        parts.append(
            f"{size:,} B: copying {copied.median:.1f} us, sendfile {sent_us:.1f} us, all else {whole.median:.1f} us "
            f"({saving:+.0%} of a delivery saved)"
        )
    worth = [size for size, saving in zip(PAYLOAD_SIZES, savings, strict=True) if saving >= WORTH_SAVING]
    verdict = (
        f"worth it from {worth[0]:,} bytes on" if worth else f"not worth it: nowhere near {WORTH_SAVING:.0%} is saved"
    )
    return f"sendfile path {verdict}. " + "; ".join(parts)


def _measure(plan: StoragePlan, folder: Path, size: int) -> Sequence[Sample]:
    count = min(plan.delivered_messages, _LARGEST_TOTAL_BYTES // size)
    group = max(1, min(_GROUP_MESSAGES, _GROUP_BYTES // size))
    path = folder / "payloads"
    path.write_bytes(random.Random(size).randbytes(size * group))
    groups = max(1, count // group)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with _loopback() as (sender, drain):
            copied_us = _time_us(partial(_send_copied, sender, descriptor, size, group), drain, groups) / group
            sent_us = _time_us(partial(_send_files, sender, descriptor, size, group), drain, groups) / group
    finally:
        os.close(descriptor)
        path.unlink()
    return [Sample(copied_us, sent_us), Sample(_whole_us(folder / f"delivery-{size}", count, size))]


@contextmanager
def _loopback() -> Iterator[tuple[socket.socket, Callable[[int], None]]]:
    """A TCP connection that takes a group without anybody reading, and what reads that many bytes from it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with socket.socket() as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
            space = bytearray(_SOCKET_BUFFER_BYTES)

            def drain(size: int) -> None:
                while size:
                    size -= receiver.recv_into(space)

            with receiver:
                yield sender, drain


def _time_us(send: Callable[[], int], drain: Callable[[int], None], times: int) -> float:
    """Mean microseconds of a call of ``send``, which returns the bytes to drain; draining is not timed."""
    took_s = 0.0
    for _ in range(times):
        began = time.perf_counter()
        size = send()
        took_s += time.perf_counter() - began
        drain(size)
    return took_s / times * 1e6


def _send_copied(sender: socket.socket, descriptor: int, size: int, group: int) -> int:
    """As the broker does it: one read of the batch, each payload cut out of it, all packets joined, one send."""
    data = os.pread(descriptor, size * group, 0)
    pieces: list[bytes] = []
    for start in range(0, size * group, size):
        pieces += (_HEADER, data[start : start + size])
    packets = b"".join(pieces)
    sender.sendall(packets)
    return len(packets)


def _send_files(sender: socket.socket, descriptor: int, size: int, group: int) -> int:
    """Each header by a call, each payload by another, straight from the page cache."""
    for start in range(0, size * group, size):
        sender.sendall(_HEADER, socket.MSG_MORE)
        position, end = start, start + size
        while position < end:
            position += os.sendfile(sender.fileno(), descriptor, position, end - position)
    return group * (size + len(_HEADER))


def _whole_us(folder: Path, count: int, size: int) -> float:
    """Microseconds a message of taking stored messages out of a queue that was just opened, and acknowledging them."""
    queue = QueueConfig(name=_QUEUE, partitions=1, durability=Durability.INTERVAL, max_depth=count)
    config = QueuesConfig(configured=(queue,))
    now = time.time()
    if not folder.exists():
        engine = QueueEngine(config, LogQueueStore(RealDisk(folder)), random.Random(1), now)
        address, payload = QueueAddress(queue=_QUEUE), random.Random(2).randbytes(size)
        for number in range(count):
            engine.publish(address, Message(topic=f"$queue/{_QUEUE}", payload=payload), now)
            if number % _GROUP_MESSAGES == 0:
                engine.dispatch(now)
        engine.dispatch(now)
        engine.close(now)
    engine = QueueEngine(config, LogQueueStore(RealDisk(folder)), random.Random(1), now)
    held: list[Delivery] = []

    def deliver(delivery: Delivery) -> bool:
        held.append(delivery)
        return True

    # A group of its own each time: it starts at the first message.
    group = f"g{time.monotonic_ns()}"
    engine.subscribe(_QUEUE, pattern="", group=group, consumer_id="c", deliver=deliver, now=now)
    settled = 0
    began = time.perf_counter()
    while settled < count:
        engine.dispatch(now)
        settled += _acknowledge(engine, held, now)
    engine.dispatch(now)
    took_s = time.perf_counter() - began
    engine.close(now)
    return took_s / count * 1e6


def _acknowledge(engine: QueueEngine, held: list[Delivery], now: float) -> int:
    """Settle all that was delivered; returns how many."""
    for delivery in held:
        engine.settle_delivery(delivery, Outcome.ACCEPT, consumer_id="c", now=now)
    count = len(held)
    held.clear()
    assert count, "the queue stopped delivering before its end"
    return count
