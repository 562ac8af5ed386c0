"""What the engine hands to protocols: deliveries, and the figures of a queue."""

from __future__ import annotations

from typing import Protocol

import msgspec

from assay.reference_broker.queues.messages.address import topic_of
from assay.reference_broker.queues.messages.lanes import NORMAL
from assay.reference_broker.routing.message import Message


class Delivery(msgspec.Struct, kw_only=True, eq=False, gc=False):
    """One message pushed to one consumer of a group; it must be settled. Treat as immutable."""

    queue: str
    partition: int
    offset: int
    message_id: str
    """``<queue>:<partition>:<offset>``"""
    group: str
    """Effective group id (``<group>`` or ``<group>@<pattern>``): what a settlement must name."""
    delivery_count: int
    """Deliveries to this group, this one included."""
    topic: str
    """The topic to deliver on."""
    message: Message
    receipt: str = ""
    """The handle of this one delivery; empty where the queue gives none."""
    lane: int = NORMAL
    """Its priority, as the queue took it."""
    redelivered: bool = False
    """The group has had it before, if only to give it back untried."""

    @property
    def routing_key(self) -> str:
        return self.topic[len(topic_of(self.queue, "")) + 1 :]

    @property
    def is_plain(self) -> bool:
        """What is told of it is constant but for the message id and the offset."""
        return self.delivery_count == 1 and not self.receipt and self.lane == NORMAL and not self.redelivered


class Held(Protocol):
    """What names a delivery that a consumer has: what is kept of many."""

    @property
    def queue(self) -> str: ...

    @property
    def group(self) -> str:
        """Effective group id."""

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group now, and what it did since the engine opened."""

    group: str
    consumers: int
    lag: int
    """Messages never delivered to this group yet."""
    in_flight: int
    """Delivered, not settled."""
    retrying: int
    """Delivered before and waiting for redelivery."""
    dead_lettering: int
    """On their way to the dead-letter queue."""
    ack_floors: tuple[int, ...]
    """By partition, the offset below which everything is settled."""
    generation: int
    """Assignments made so far; it grows with every consumer that joins or leaves."""
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    rejected: int
    released: int
    """Given back untried."""
    timed_out: int
    expired: int
    dead_lettered: int
    replayed: int
    """Of a dead-letter queue: sent back to their own queue."""
    discarded: int
    """Exhausted or rejected while the queue keeps no dead letters."""
    purged: int
    """Taken away by an administrator, ready or waiting for a retry."""
    dropped: int
    """Given up for newer messages by ``overflow``."""
    unmatched: int
    """Passed over since the group's filter does not want their routing keys."""
    slow_consumers: int
    """Consumers sent away for settling nothing."""
    claimed: int
    """Deliveries taken over by a claim; they are among the redelivered."""
    rewound: int
    """Settled messages that became ready again since the group was set back."""
    skipped: int
    """Unsettled messages that the group was set past."""
    sessions_ended: int
    """Members removed since no heartbeat came."""
    unreadable: int
    """Skipped since their bytes in the log are damaged."""


class DelayStats(msgspec.Struct, frozen=True, kw_only=True):
    """Delayed messages of a queue: those that wait now, and what happened since the engine opened."""

    pending: int = 0
    """Accepted and neither published to a partition nor cancelled yet."""
    scheduled: int = 0
    fired: int = 0
    """Published to a partition when they were due."""
    cancelled: int = 0
    refused: int = 0
    """Times that the queue did not take a message that was due; it is tried again."""
    unreadable: int = 0
    """Given up since their bytes in the log are damaged."""
    stored_bytes: int = 0


class QueueUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What some queues use together."""

    queues: int
    """Without dead-letter queues; so are the partitions."""
    partitions: int
    groups: int
    stored_bytes: int


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue now, and what it did since the engine opened."""

    queue: str
    partitions: int
    depth: int
    """Messages that some group has not settled; all messages while there is no group."""
    ready: int
    """Largest number of messages that a group could get now or after a retry wait."""
    in_flight: int
    """Unsettled deliveries of all groups."""
    dead_letters: int
    """Depth of its dead-letter queue."""
    consumers: int
    stored_bytes: int
    held_bytes: int
    """Bytes of what the slowest group has not settled; only counted where the queue has ``max_bytes``."""
    dropped: int
    """Messages given up for newer ones while there was no group; groups count their own."""
    expired: int
    """Likewise, expired."""
    purged: int
    """Likewise, purged."""
    enqueued: int
    aborted: int
    """Of them, messages of transactions that were aborted."""
    refused: int
    failed: bool
    """A write or sync failed for good; the queue refuses work until the broker restarts."""
    groups: tuple[GroupStats, ...]
    delayed: int = 0
    """Messages that wait for their time; not part of the depth."""
    captured: int = 0
    """Messages of ordinary topics that a binding brought."""
    capture_failures: int = 0
    """Likewise, but refused by the queue or the disk."""
    capture_dropped: int = 0
    """Likewise, but not taken since too many waited for the disk."""
    storage_notes: int = 0
    """Damage and missing files that opening or reading found, and what the disk refused, since the broker started;
    the log has a line for each."""
    delays: DelayStats = DelayStats()
