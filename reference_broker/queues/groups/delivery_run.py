"""Deliveries that go out together: first deliveries of consecutive messages of one partition to one consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.messages.stored_message import StoredMessage

MIN_RUN = 4
"""Fewer are delivered one by one, unless the consumer has settled what it takes."""


class DeliveryRun(NamedTuple):
    """Deliveries without receipt, of offsets from ``offset`` on: in the normal lane, unless lanes are alike to whom."""

    queue: str
    group: str
    """Effective group id."""
    partition: int
    offset: int
    stored: list[StoredMessage]

    def first(self, count: int) -> DeliveryRun:
        """The run of the first ``count``."""
        return self._replace(stored=self.stored[:count])

    def delivery(self, index: int) -> Delivery:
        """One of them as it would have come alone."""
        offset, stored = self.offset + index, self.stored[index]
        return Delivery(
            queue=self.queue,
            partition=self.partition,
            offset=offset,
            message_id=f"{self.queue}:{self.partition}:{offset}",
            group=self.group,
            delivery_count=1,
            topic=stored.topic_in(self.queue),
            message=stored.message,
        )


DeliverRun = Callable[[DeliveryRun], int]
"""Takes deliveries, and may neither settle nor publish meanwhile; returns how many, in order. The others are delivered
one by one, so 0 says nothing of the consumer's room."""
