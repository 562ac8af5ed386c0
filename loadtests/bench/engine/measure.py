"""The queue engine by itself, in this process: no sockets, messages in memory, time from the machine.

What the seeds state as their figures is measured alike: enqueued in batches and one by one, the whole life of a message
(enqueue, deliver, ack), latency at a fixed rate, and what a standing backlog, a consumer and a partition cost.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from assay.reference_broker.config import Durability, QueuesConfig
from assay.reference_broker.queues import Consumer, Delivery, Outcome, QueueAddress, QueueEngine
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.trace.tracing import Tracing

QUEUE = "bench"
BATCH = 1_000
PAYLOAD_BYTES = 100
TURN = 100
"""Messages of a turn, where a turn has several."""
_NOW = 1_700_000_000.0
_SAMPLE = 10_000
_UNLIMITED = 1 << 60
_SERVED = (50_000, 20, 50)
"""Thresholds of the collector in a process that is only a broker."""


class Drive:
    """An engine with one queue in memory, its time, and perhaps a consumer that settles what it gets."""

    def __init__(
        self,
        *,
        partitions: int = 10,
        max_depth: int = 100_000_000,
        payload_bytes: int = PAYLOAD_BYTES,
        traced: float | None = None,
    ) -> None:
        """``traced``: the ratio of messages whose spans are recorded; None = tracing is off."""
        defaults = {"durability": Durability.MEMORY, "partitions": partitions, "max_depth": max_depth}
        defaults["max_in_flight"] = 10 * BATCH
        config = QueuesConfig(defaults=defaults)
        tracing = None
        if traced is not None:
            most = {"max_traces": 1_000, "max_spans": 64, "max_messages": 4_096}
            tracing = Tracing("bench", random.Random(2), ratio=traced, **most)
        self.engine = QueueEngine(config, LogQueueStore(None), random.Random(1), _NOW, None, tracing)
        self.address = QueueAddress(queue=QUEUE)
        self.topic = f"$queue/{QUEUE}"
        self.payload = bytes(payload_bytes)
        self.now = _NOW
        self.received: list[Delivery] = []
        self._consumer: Consumer | None = None

    def message(self) -> Message:
        return Message(topic=self.topic, payload=self.payload, qos=1)

    def join(self, consumer_id: str = "consumer", room: int = _UNLIMITED) -> None:
        """A consumer whose deliveries gather in ``received``, so many at most."""
        received = self.received

        def deliver(delivery: Delivery) -> bool:
            if len(received) >= room:
                return False
            received.append(delivery)
            return True

        self._consumer = self.engine.subscribe(
            QUEUE, pattern="", group="bench", consumer_id=consumer_id, deliver=deliver, now=self.now
        )

    def ack_all(self) -> int:
        """Settle what was received; how many."""
        received, settle, now = self.received, self.engine.settle_delivery, self.now
        for delivery in received:
            settle(delivery, Outcome.ACCEPT, consumer_id="consumer", now=now)
        count = len(received)
        received.clear()
        if self._consumer is not None and self._consumer.blocked:
            self.engine.resume(self._consumer, now)
        return count

    def turn(self) -> None:
        self.engine.dispatch(self.now)


@contextmanager
def _as_served() -> Iterator[None]:
    """Garbage is looked for as seldom as in the server: by default it costs what lives long, as traces, time again."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_SERVED)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _rate(work: Callable[[], int]) -> float:
    with _as_served():
        began = time.perf_counter()
        count = work()
        return count / (time.perf_counter() - began)


def enqueue_batches(batches: int) -> float:
    """Messages per second, made in time, in batches of ``BATCH``, each written and confirmed as one."""
    drive = Drive()
    confirmed: list[object] = []

    def work() -> int:
        for _ in range(batches):
            messages = [drive.message() for _ in range(BATCH)]
            drive.engine.publish_many(drive.address, messages, drive.now, confirmed.append)
            drive.turn()
        return batches * BATCH

    rate = _rate(work)
    assert confirmed == [None] * batches
    return rate


def enqueue_singly(count: int) -> float:
    """Messages per second when each is a turn of its own: published, written, confirmed."""
    drive = Drive()
    confirmed: list[object] = []

    def work() -> int:
        for _ in range(count):
            drive.engine.publish(drive.address, drive.message(), drive.now, confirmed.append)
            drive.turn()
        return count

    rate = _rate(work)
    assert confirmed == [None] * count
    return rate


def life(turns: int, per_turn: int = TURN, traced: float | None = None) -> float:
    """Messages per second from publish to ack, so many in a turn. ``traced`` as in :class:`Drive`."""
    drive = Drive(traced=traced)
    drive.join()

    def work() -> int:
        acked = 0
        for _ in range(turns):
            for _ in range(per_turn):
                drive.engine.publish(drive.address, drive.message(), drive.now)
            drive.turn()
            acked += drive.ack_all()
        drive.turn()
        return acked

    with _as_served():
        began = time.perf_counter()
        acked = work()
        rate = acked / (time.perf_counter() - began)
    assert acked == turns * per_turn
    return rate


def latency_ms(rate_per_s: int, seconds: float, percentile: float = 99.0) -> float:
    """From when a message was due to its acknowledgement, at a fixed rate, in milliseconds."""
    drive = Drive()
    drive.join()
    count = int(rate_per_s * seconds)
    taken = np.zeros(count)
    with _as_served():
        done = 0
        began = time.perf_counter()
        while done < count:
            elapsed = time.perf_counter() - began
            due = min(count, int(elapsed * rate_per_s) + 1)
            if due == done:
                continue
            for _ in range(due - done):
                drive.engine.publish(drive.address, drive.message(), drive.now)
            drive.turn()
            acked = drive.ack_all()
            drive.turn()
            ended = time.perf_counter() - began
            assert acked == due - done
            taken[done:due] = ended - np.arange(done, due) / rate_per_s
            done = due
    return float(np.percentile(taken, percentile)) * 1_000


def cost_us(queued: int) -> float:
    """Microseconds of a message's life in a queue that holds so many all the time: as many come as are settled."""
    drive = Drive()
    for _ in range(queued // TURN):
        drive.engine.publish_many(drive.address, [drive.message() for _ in range(TURN)], drive.now)
        drive.turn()
    drive.join(room=TURN)
    with _as_served():
        acked, began = 0, 0.0
        for until in (_SAMPLE, 2 * _SAMPLE):  # the first to warm up
            began = time.perf_counter()
            while acked < until:
                for _ in range(TURN):
                    drive.engine.publish(drive.address, drive.message(), drive.now)
                drive.turn()
                acked += drive.ack_all()
        took_s = time.perf_counter() - began
    return took_s / _SAMPLE * 1e6


def consumer_bytes(count: int = 1_000) -> float:
    """Memory of an idle consumer."""
    drive = Drive(partitions=10)
    drive.join("first")
    drive.turn()

    def join_all() -> None:
        for number in range(count):
            drive.join(f"consumer-{number}")

    return _growth(join_all, drive) / count


def partition_bytes(count: int = 500) -> float:
    """Memory of an empty partition of a queue with one group."""
    small = Drive(partitions=1)
    one = _growth(small.join, small)
    large = Drive(partitions=1 + count)
    return (_growth(large.join, large) - one) / count


def _growth(work: Callable[[], object], drive: Drive) -> float:
    gc.collect()
    tracemalloc.start()
    work()
    drive.turn()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return float(size)
