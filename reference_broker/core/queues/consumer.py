"""A consumer of a group: where deliveries go, and how many more it may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.core.queues.delivery import Delivery
from assay.reference_broker.core.queues.delivery_run import DeliverRun
from assay.reference_broker.core.queues.subscribe_options import DEFAULT_OPTIONS, AckMode, SubscribeOptions

if TYPE_CHECKING:
    from assay.reference_broker.core.queues.pending import GroupPartition

Deliver = Callable[[Delivery], bool]


class AssignmentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer is told after each rebalance of its group."""

    queue: str
    group: str
    consumer: str
    generation: int
    """To be named by operations that are to be refused once this assignment is not the latest."""
    partitions: tuple[int, ...]
    """All that it serves now."""
    assigned: tuple[int, ...]
    """Those among them that are new."""
    revoked: tuple[int, ...]
    """Those that it served before. What it holds of them is to be settled soon, or goes to others."""


Notify = Callable[[AssignmentEvent], None]


class Consumer:
    """One subscription's end of a group. Protocols keep it to resume or unsubscribe; only the engine changes it."""

    __slots__ = (
        "active",
        "blocked",
        "consumer_id",
        "deliver",
        "deliver_run",
        "full_since",
        "group",
        "in_flight",
        "limit",
        "next_turn",
        "notify",
        "on_end",
        "on_slow",
        "options",
        "places",
        "queue",
        "received",
        "served_at",
    )

    def __init__(
        self,
        queue: str,
        group: str,
        consumer_id: str,
        deliver: Deliver,
        options: SubscribeOptions = DEFAULT_OPTIONS,
        notify: Notify | None = None,
    ) -> None:
        self.queue = queue
        self.group = group
        """Effective group id."""
        self.consumer_id = consumer_id
        self.deliver = deliver
        """Takes a delivery; False = no room now, keep it until :meth:`QueueEngine.resume`."""
        self.deliver_run: DeliverRun | None = None
        """Takes many deliveries at once, where the protocol can."""
        self.in_flight = 0
        """Unsettled deliveries it holds."""
        self.limit = 0
        """Most unsettled deliveries it may hold; its group says."""
        self.served_at = 0
        """Number of the last delivery to it, counted over its group, where deliveries go to consumers in turn."""
        self.full_since = float("inf")
        """Where the queue looks after slow consumers: since when it holds all that it may and has settled nothing."""
        self.on_slow: Callable[[], None] | None = None
        """Called when it is to be disconnected for that."""
        self.blocked = False
        """It said that it has no room."""
        self.on_end: Callable[[], None] | None = None
        """Called when the queue is deleted: the consumer gets nothing any more."""
        self.active = True
        """False once unsubscribed or replaced by a newer subscription of the same id."""
        self.places: list[GroupPartition] = []
        """The partitions assigned to it."""
        self.options = options
        self.notify = notify
        """Told each new assignment, when the next turn delivers."""
        self.received: list[tuple[int, int]] | None = [] if options.ack_mode is AckMode.AUTO else None
        """Automatic commit: partition and offset of deliveries that it has and that are not committed yet."""
        self.next_turn = 0
        """Which of its partitions is served first next time."""

    def end(self) -> None:
        """It gets nothing any more, and lets go of its protocol's side, which holds it."""
        self.active = False
        self.deliver = _take_nothing
        self.deliver_run = self.notify = self.on_end = self.on_slow = None


def _take_nothing(_delivery: Delivery) -> bool:
    return False
