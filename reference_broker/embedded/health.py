"""The state of the queues at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from assay.reference_broker.queues import QueueStats
from assay.reference_broker.queues.messages.address import is_dead_letter


class HealthStatus(StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    """Some queue refuses work until the broker restarts, since its disk failed."""


class DeadLetterStats(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one queue."""

    queue: str
    """Their queue: ``$dlq/<name>``."""
    enabled: bool
    total: int
    """Since the broker started."""
    current: int
    """Kept, and not settled by a group of the dead-letter queue."""


class HealthSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All queues together; counters are since the start."""

    status: HealthStatus
    at: float
    """Unix seconds."""
    uptime_s: float
    connections: int
    queues: int
    """Dead-letter queues not included."""
    consumers: int
    ready: int
    in_flight: int
    delayed: int
    dead_letters: int
    published: int
    delivered: int
    acked: int
    refused: int
    stored_bytes: int
    failed_queues: tuple[str, ...]


def health_of(stats: Sequence[QueueStats], *, now: float, started_at: float, connections: int) -> HealthSnapshot:
    """From the figures of every queue."""
    groups = [group for queue in stats for group in queue.groups]
    failed = tuple(queue.queue for queue in stats if queue.failed)
    own = [queue for queue in stats if not is_dead_letter(queue.queue)]
    return HealthSnapshot(
        status=HealthStatus.UNHEALTHY if failed else HealthStatus.HEALTHY,
        at=now,
        uptime_s=now - started_at,
        connections=connections,
        queues=len(own),
        consumers=sum(queue.consumers for queue in stats),
        ready=sum(queue.ready for queue in own),
        in_flight=sum(queue.in_flight for queue in stats),
        delayed=sum(queue.delayed for queue in stats),
        dead_letters=sum(queue.dead_letters for queue in own),
        published=sum(queue.enqueued for queue in own),
        delivered=sum(group.delivered + group.redelivered for group in groups),
        acked=sum(group.acked for group in groups),
        refused=sum(queue.refused for queue in stats),
        stored_bytes=sum(queue.stored_bytes for queue in stats),
        failed_queues=failed,
    )
