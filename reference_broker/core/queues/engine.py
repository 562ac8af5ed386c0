"""The durable queue engine: protocol-neutral, sans-IO."""

from __future__ import annotations

import random
from collections.abc import Callable

from reference_broker.config import QueuesConfig
from reference_broker.core.message import Message
from reference_broker.core.queues.address import QueueAddress, Verb
from reference_broker.core.queues.consumer import Consumer, Deliver
from reference_broker.core.queues.delivery import Delivery, QueueStats
from reference_broker.core.queues.errors import QueueError
from reference_broker.core.queues.store import QueueStore
from reference_broker.core.queues.sync_job import SyncJob
from reference_broker.trace.schema import TraceKind

Confirm = Callable[[QueueError | None], None]
Tracer = Callable[[TraceKind, dict[str, str | int]], None]


class QueueEngine:
    """All queues of a broker. The API below is fixed; the machinery behind it is being filled in."""

    def __init__(
        self, config: QueuesConfig, store: QueueStore, rng: random.Random, now: float, tracer: Tracer | None = None
    ) -> None:
        """Open and recover. Raises :class:`QueueOpenError`, :class:`LogError`."""
        raise NotImplementedError

    def address(self, topic: str) -> QueueAddress:
        """Raises :class:`QueueError` (BAD_ADDRESS)."""
        raise NotImplementedError

    def publish(self, address: QueueAddress, message: Message, now: float, on_confirmed: Confirm | None = None) -> None:
        """Enqueue. Raises :class:`QueueError` when refused at once; else ``on_confirmed`` is called exactly once."""
        raise NotImplementedError

    def subscribe(
        self, queue: str, *, pattern: str, group: str, consumer_id: str, deliver: Deliver, now: float
    ) -> Consumer:
        """Join a group. Never calls ``deliver`` itself; :meth:`dispatch` does. Raises :class:`QueueError`."""
        raise NotImplementedError

    def resume(self, consumer: Consumer, now: float) -> None:
        """The consumer has room again."""
        raise NotImplementedError

    def unsubscribe(self, consumer: Consumer, now: float) -> None:
        """Leave: what it holds is ready again at once. Twice is fine."""
        raise NotImplementedError

    def settle(
        self,
        verb: Verb,
        *,
        queue: str,
        message_id: str | None,
        partition: int | None,
        offset: int | None,
        group: str | None,
        consumer_id: str | None,
        reason: str,
        now: float,
        on_done: Confirm | None = None,
    ) -> None:
        """Raises :class:`QueueError` when nothing such is pending; else ``on_done`` is called exactly once."""
        raise NotImplementedError

    def dispatch(self, now: float) -> None:
        """Once per loop turn: write what collected, push deliveries."""
        raise NotImplementedError

    def next_deadline(self) -> float | None:
        raise NotImplementedError

    def tick(self, now: float) -> None:
        raise NotImplementedError

    def take_sync_jobs(self, now: float) -> list[SyncJob]:
        raise NotImplementedError

    def sync_done(self, job: SyncJob, error: OSError | None, now: float) -> None:
        raise NotImplementedError

    def stats(self, queue: str) -> QueueStats:
        raise NotImplementedError

    def queues(self) -> list[str]:
        raise NotImplementedError

    def delivery_properties(self, delivery: Delivery) -> tuple[tuple[str, str], ...]:
        raise NotImplementedError

    def close(self, now: float) -> None:
        raise NotImplementedError
