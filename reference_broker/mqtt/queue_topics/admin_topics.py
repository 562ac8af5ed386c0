"""Topics of the administration of queues: ``$admin/queue/<queue>/<operation>``."""

from __future__ import annotations

from typing import Final

from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.queues.admin.admin import perform
from assay.reference_broker.queues.admin.admin_request import Answer
from assay.reference_broker.queues.messages.address import DEAD_LETTER_PREFIX, is_dead_letter

ADMIN_PREFIX: Final = "$admin/queue/"
"""Publishes to topics that begin with it are requests."""
_ADMIN_ROOT: Final = "$admin/"


def reaches_admin(topic_filter: str) -> bool:
    """Whether a filter matches topics of the broker's administration; leading wildcards do not."""
    return topic_filter.startswith(_ADMIN_ROOT)


def perform_on_topic(engine: QueueEngine, topic: str, payload: bytes, now: float, answer: Answer) -> None:
    """Serve a request on an administration topic. Raises :class:`QueueError` and then never answers."""
    queue, _, operation = topic[len(ADMIN_PREFIX) :].rpartition("/")
    perform(engine, queue, operation, payload, now, answer)


def topic_of_stats(queue: str) -> str:
    """Where the figures of a queue are published to those who subscribe."""
    plain = f"dlq/{queue[len(DEAD_LETTER_PREFIX) :]}" if is_dead_letter(queue) else queue
    return f"{ADMIN_PREFIX}{plain}/stats"
