"""A queue engine with a clock that the test moves, and consumers that remember what they got."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.config import PROFILE_DEFAULTS, Durability, Profile, QueuesConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import OUTCOMES
from assay.reference_broker.queues import Consumer, Delivery, QueueEngine, QueueError, SettleRequest
from assay.reference_broker.queues.groups.subscribe_options import SubscribeOptions
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.trace.schema import TraceKind

START = 1_700_000_000.0


class Outcome:
    """What a confirm said: None while it waits."""

    def __init__(self) -> None:
        self.calls: list[QueueError | None] = []

    def __call__(self, error: QueueError | None) -> None:
        self.calls.append(error)

    @property
    def confirmed(self) -> bool:
        return self.calls == [None]

    @property
    def failed(self) -> bool:
        return len(self.calls) == 1 and self.calls[0] is not None


class BenchConsumer:
    """Takes up to ``room`` unsettled deliveries."""

    def __init__(self, bench: QueueBench, consumer_id: str, room: int) -> None:
        self.bench = bench
        self.consumer_id = consumer_id
        self.room = room
        self.got: list[Delivery] = []
        self.times: list[float] = []
        self.handle: Consumer | None = None

    def deliver(self, delivery: Delivery) -> bool:
        if self.room <= 0:
            return False
        self.room -= 1
        self.got.append(delivery)
        self.times.append(self.bench.now)
        return True

    @property
    def values(self) -> list[str]:
        return [delivery.message.payload.decode() for delivery in self.got]

    @property
    def counts(self) -> list[int]:
        return [delivery.delivery_count for delivery in self.got]

    def take(self) -> list[Delivery]:
        taken, self.got, self.times = self.got, [], []
        return taken

    def settle(self, verb: Verb, delivery: Delivery, reason: str = "") -> Outcome:
        return self.bench.settle(verb, delivery, self.consumer_id, reason)

    def ack(self, delivery: Delivery) -> Outcome:
        return self.settle(Verb.ACK, delivery)

    def nack(self, delivery: Delivery) -> Outcome:
        return self.settle(Verb.NACK, delivery)

    def reject(self, delivery: Delivery, reason: str = "bad") -> Outcome:
        return self.settle(Verb.REJECT, delivery, reason)

    def leave(self) -> None:
        assert self.handle is not None
        self.bench.engine.unsubscribe(self.handle, self.bench.now)


class QueueBench:
    """One engine. ``fields`` override the queue defaults; the queue ``q`` is created when first used."""

    def __init__(
        self, disk: Disk | None = None, *, profile: Profile = Profile.FLUXMQ, seed: int = 1, **fields: Any
    ) -> None:
        self.disk = disk
        self.now = START
        self.seed = seed
        self.trace: list[tuple[TraceKind, dict[str, str | int]]] = []
        queues = {key: fields.pop(key) for key in QueuesConfig.__struct_fields__ if key in fields}
        retry = {**PROFILE_DEFAULTS[profile].get("retry", {}), **fields.pop("retry", {})}
        self.config = QueuesConfig(profile=profile, defaults={"partitions": 1, **fields, "retry": retry}, **queues)
        self.engine = self._open()

    def _open(self) -> QueueEngine:
        store = LogQueueStore(self.disk, options=LogOptions(segment_bytes=self.config.segment_bytes))
        return QueueEngine(self.config, store, random.Random(self.seed), self.now, self._record)

    def _record(self, kind: TraceKind, fields: dict[str, str | int]) -> None:
        self.trace.append((kind, fields))

    def restart(self) -> None:
        """Kill the broker and start it again on the same disk."""
        assert self.disk is not None
        self.disk.unlock()
        self.engine = self._open()

    def publish(self, value: str, topic: str = "$queue/q", key: str | None = None, **fields: Any) -> Outcome:
        outcome = Outcome()
        properties = tuple(fields.pop("user_properties", ())) + ((("partition-key", key),) if key is not None else ())
        message = Message(topic=topic, payload=value.encode(), user_properties=properties, **fields)
        QueueTopics(self.engine).publish(message, self.now, outcome)
        return outcome

    def consumer(
        self,
        consumer_id: str = "c",
        *,
        queue: str = "q",
        group: str = "g",
        pattern: str = "",
        room: int = 10**9,
        **options: Any,
    ) -> BenchConsumer:
        consumer = BenchConsumer(self, consumer_id, room)
        consumer.handle = self.engine.subscribe(
            queue,
            pattern=pattern,
            group=group,
            consumer_id=consumer_id,
            deliver=consumer.deliver,
            now=self.now,
            options=SubscribeOptions(**options),
        )
        return consumer

    def settle(self, verb: Verb, delivery: Delivery, consumer_id: str | None, reason: str = "") -> Outcome:
        outcome = Outcome()
        self.engine.settle(
            delivery.queue,
            SettleRequest(
                outcome=OUTCOMES[verb], message_ids=(delivery.message_id,), group=delivery.group, reason=reason
            ),
            consumer_id=consumer_id,
            now=self.now,
            on_done=outcome,
        )
        return outcome

    def turn(self) -> None:
        """Turns of the loop until nothing is left to do at this time."""
        for _ in range(20):
            self.engine.tick(self.now)
            self.engine.dispatch(self.now)
            jobs = self.engine.take_jobs(self.now)
            for job in jobs:
                try:
                    job.run()
                except OSError as error:
                    self.engine.job_done(job, error, self.now)
                else:
                    self.engine.job_done(job, None, self.now)
            deadline = self.engine.next_deadline()
            if not jobs and (deadline is None or deadline > self.now):
                return
        raise AssertionError("the engine does not come to rest")

    def advance(self, seconds: float) -> None:
        """Move the clock, stopping at each deadline on the way as a server does."""
        end = self.now + seconds
        self.turn()
        while (deadline := self.engine.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.turn()
        self.now = end
        self.turn()

    def kinds(self, *wanted: TraceKind) -> list[TraceKind]:
        return [kind for kind, _ in self.trace if kind in wanted]


@pytest.fixture(scope="session")
def bench_with() -> Callable[..., QueueBench]:
    """Makes benches: ``bench_with(disk, partitions=3, retry={...})``."""
    return QueueBench


@pytest.fixture
def bench() -> QueueBench:
    return QueueBench()


@pytest.fixture
def durable() -> QueueBench:
    """On a disk that keeps its files, so confirms wait for syncs."""
    return QueueBench(MemoryDisk())


@pytest.fixture(params=[Durability.MEMORY, Durability.INTERVAL, Durability.FSYNC])
def either(request: pytest.FixtureRequest, bench_with: Callable[..., QueueBench]) -> QueueBench:
    """One of each durability."""
    return bench_with(MemoryDisk(), durability=request.param)
