"""One transaction: its state, what belongs to it, and who waits for its end."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from reference_broker.core.queues.confirms import Confirm, SyncPoint
from reference_broker.core.queues.control_records import Outcome

if TYPE_CHECKING:
    from reference_broker.core.queues.group import ConsumerGroup
    from reference_broker.core.queues.partition import QueuePartition
    from reference_broker.core.queues.pending import PendingEntry
    from reference_broker.core.queues.queue import DurableQueue


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


TRANSITIONS: Final[dict[TransactionState, tuple[TransactionState, ...]]] = {
    TransactionState.OPEN: (TransactionState.PREPARING, TransactionState.ABORTING),
    TransactionState.PREPARING: (TransactionState.DECIDING, TransactionState.ABORTING),
    TransactionState.ABORTING: (TransactionState.ABORTED,),
    TransactionState.DECIDING: (TransactionState.COMMITTED,),
    TransactionState.COMMITTED: (),
    TransactionState.ABORTED: (),
}
UNDECIDED: Final = frozenset((TransactionState.OPEN, TransactionState.PREPARING))


class Transaction:
    """A transaction that has not ended, or whose end some part of it does not know durably yet."""

    def __init__(self, transaction_id: str, producer: int, epoch: int, name: str, *, now: float, timeout_s: float):
        self.id = transaction_id
        self.producer = producer
        self.epoch = epoch
        self.name = name
        """Transactional id."""
        self.state = TransactionState.OPEN
        self.began_at = now
        self.ends_by = now + timeout_s
        self.partitions: dict[QueuePartition, DurableQueue] = {}
        self.held: dict[PendingEntry, ConsumerGroup] = {}
        """Deliveries that were acknowledged in it."""
        self.also: dict[SyncPoint, None] = {}
        """Other logs that must be durable with it: the partitions of those deliveries."""
        self.messages = 0
        self.bytes = 0
        self.reason = ""
        """Why it is aborted; also of an open one that can only be aborted any more."""
        self.waiters: list[Confirm] = []
        """Told once it is committed, or with the error."""
        self.afterwards: list[Callable[[], None]] = []
        """Called when it has ended."""
        self.markers = 0
        """Control records that are not written yet."""

    @property
    def is_empty(self) -> bool:
        return not self.partitions and not self.held

    def move(self, state: TransactionState) -> None:
        """Raises :class:`AssertionError` for a transition that the table does not have."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    @property
    def is_written(self) -> bool:
        """Nothing of it waits for the end of the turn."""
        return not any(partition.unwritten for partition in self.partitions) and not any(
            group.log.has_unflushed for group in self.held.values()
        )


class TransactionKey(NamedTuple):
    """What a settlement in a transaction names."""

    producer_id: int
    epoch: int
    transaction_id: str


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
