"""One transaction: its state, what belongs to it, and who waits for its end."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.queues.delivery.settle_request import Outcome as Settled
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint
from assay.reference_broker.queues.messages.control_records import Outcome

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.groups.pending import PendingEntry
    from assay.reference_broker.queues.partitions.partition import QueuePartition
    from assay.reference_broker.queues.queue.queue import DurableQueue


class TransactionState(Enum):
    """Where a transaction stands."""

    OPEN = "open"
    """It takes messages and acknowledgements."""
    PREPARING = "preparing"
    """To be committed once everything in it is durable."""
    ABORTING = "aborting"
    """To be aborted once everything in it is written."""
    DECIDING = "deciding"
    """The decision to commit is being made durable; from here on nothing can abort it."""
    COMMITTED = "committed"
    ABORTED = "aborted"


TRANSITIONS: Final = (
    ("open", "commit", "preparing"),
    ("open", "abort, timeout, new epoch, or lost message", "aborting"),
    ("preparing", "all of it is durable", "deciding"),
    ("preparing", "timeout, new epoch, or lost message", "aborting"),
    ("aborting", "all of it is written", "aborted"),
    ("deciding", "the decision is durable", "committed"),
    ("open", "restart", "aborted"),
    ("preparing", "restart", "aborted"),
    ("deciding", "restart that finds the decision", "committed"),
    ("deciding", "restart without it", "aborted"),
)
"""Source, event, target, by the values of the states; docs/spec/transactions.md draws it."""
STEPS: Final = frozenset((source, target) for source, event, target in TRANSITIONS if not event.startswith("restart"))
NOBODY: Final = ""
"""Holder of transactions that nobody asks about once they have ended."""
UNDECIDED: Final = frozenset((TransactionState.OPEN, TransactionState.PREPARING))


class Transaction:
    """A transaction that has not ended, or whose end some part of it does not know durably yet."""

    def __init__(
        self,
        transaction_id: str,
        producer: int,
        epoch: int,
        name: str,
        *,
        now: float,
        timeout_s: float,
        holder: str | None = None,
    ):
        self.id = transaction_id
        self.producer = producer
        self.epoch = epoch
        self.name = name
        """Transactional id."""
        self.holder = holder
        """Who began it; None = the broker's own program."""
        self.state = TransactionState.OPEN
        self.began_at = now
        self.ends_by = now + timeout_s
        self.partitions: dict[QueuePartition, DurableQueue] = {}
        self.held: dict[PendingEntry, ConsumerGroup] = {}
        """Deliveries that were settled in it."""
        self.settled: dict[PendingEntry, Settled] = {}
        """What becomes of those of them that are not accepted."""
        self.also: dict[SyncPoint, None] = {}
        """Other logs that must be durable with it: the partitions of those deliveries, and what their queues know."""
        self.messages = 0
        self.bytes = 0
        self.reason = ""
        """Why it is aborted; also of an open one that can only be aborted any more."""
        self.waiters: list[Confirm] = []
        """Told once it is committed, or with the error."""
        self.afterwards: list[Callable[[], None]] = []
        """Called when it has ended."""
        self.markers = 0
        """Control records that are not written yet, and rejected messages that are not where they go."""

    @property
    def is_empty(self) -> bool:
        return not self.partitions and not self.held

    @property
    def info(self) -> TransactionInfo:
        """As it is shown."""
        return TransactionInfo(
            transaction_id=self.id,
            transactional_id=self.name,
            producer_id=self.producer,
            producer_epoch=self.epoch,
            state=self.state.value,
            messages=self.messages,
            acknowledgements=len(self.held),
            partitions=tuple(f"{queue.name}:{partition.index}" for partition, queue in self.partitions.items()),
            began_at=self.began_at,
            ends_by=self.ends_by,
            reason=self.reason,
        )

    def move(self, state: TransactionState) -> None:
        """Raises :class:`AssertionError` for a transition that the table does not have."""
        assert (self.state.value, state.value) in STEPS, f"{self.state} -> {state}"
        self.state = state

    def forget(self, queue: DurableQueue) -> bool:
        """A queue is no part of it any more; False when it never was."""
        partitions = [partition for partition, owner in self.partitions.items() if owner is queue]
        held = [entry for entry, group in self.held.items() if queue.groups.get(group.group_id) is group]
        for partition in partitions:
            del self.partitions[partition]
        for entry in held:
            del self.held[entry]
        gone = {*queue.partitions, *queue.groups.values(), queue.description}
        self.also = {point: None for point in self.also if point not in gone}
        return bool(partitions or held)

    @property
    def is_written(self) -> bool:
        """Nothing of it waits for the end of the turn."""
        return not any(partition.unwritten for partition in self.partitions) and not any(
            group.log.has_unflushed for group in self.held.values()
        )


class EndedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a transaction that has ended."""

    producer: int
    outcome: Outcome
    reason: str = ""


class TransactionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as it is shown. Times are Unix seconds."""

    transaction_id: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    messages: int
    acknowledgements: int
    partitions: tuple[str, ...]
    """``<queue>:<partition>``"""
    began_at: float
    ends_by: float
    reason: str = ""
