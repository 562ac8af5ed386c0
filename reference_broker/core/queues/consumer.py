"""A consumer of a group: where deliveries go, and how many more it may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from reference_broker.core.queues.delivery import Delivery

if TYPE_CHECKING:
    from reference_broker.core.queues.pending import GroupPartition

Deliver = Callable[[Delivery], bool]


class Consumer:
    """One subscription's end of a group. Protocols keep it to resume or unsubscribe; only the engine changes it."""

    __slots__ = (
        "active",
        "blocked",
        "consumer_id",
        "deliver",
        "group",
        "in_flight",
        "limit",
        "next_turn",
        "places",
        "queue",
        "served_at",
    )

    def __init__(self, queue: str, group: str, consumer_id: str, deliver: Deliver) -> None:
        self.queue = queue
        self.group = group
        """Effective group id."""
        self.consumer_id = consumer_id
        self.deliver = deliver
        """Takes a delivery; False = no room now, keep it until :meth:`QueueEngine.resume`."""
        self.in_flight = 0
        """Unsettled deliveries it holds."""
        self.limit = 0
        """Most unsettled deliveries it may hold; its group says."""
        self.served_at = 0
        """Number of the last delivery to it, counted over its group, where deliveries go to consumers in turn."""
        self.blocked = False
        """It said that it has no room."""
        self.active = True
        """False once unsubscribed or replaced by a newer subscription of the same id."""
        self.places: list[GroupPartition] = []
        """The partitions assigned to it."""
        self.next_turn = 0
        """Which of its partitions is served first next time."""
