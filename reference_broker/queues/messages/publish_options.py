"""What a publisher asks of a queue beside enqueueing."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.routing.message import Message, changed


class TransactionKey(NamedTuple):
    """What a settlement in a transaction names."""

    producer_id: int
    epoch: int
    transaction_id: str


class Priority(IntEnum):
    """The lanes of a queue, most urgent first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4


_PRIORITIES = {text: lane for lane in Priority for text in (lane.name.lower(), str(lane.value))}


def priority_named(text: str) -> Priority:
    """``critical``, ``high``, ``normal``, ``low``, ``background``, or ``0`` to ``4``. Raises :class:`ValueError`."""
    lane = _PRIORITIES.get(text.lower())
    if lane is None:
        raise ValueError(f"must be critical, high, normal, low, background, or 0 to 4, not {text[:40]!r}")
    return lane


class PublishOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one message; None where its publisher asks for none."""

    partition: int | None = None
    """Explicit partition; whether the queue has it is the queue's to check."""
    priority: Priority | None = None
    delay_ms: int | None = None
    """Deliver no earlier than so long after the publish."""
    deliver_at_ms: int | None = None
    """Deliver no earlier than this Unix time. A message has this or ``delay_ms``, not both."""
    ttl_ms: int | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    sequence: int | None = None
    transaction_id: str | None = None
    receipt: bool = False
    """Tell the publisher what the message became."""

    @property
    def is_produced(self) -> bool:
        """It is numbered by a producer, or part of a transaction."""
        return self.producer_id is not None or self.transaction_id is not None or self.sequence is not None


def options_in_properties(message: Message) -> PublishOptions | None:
    """Of a record from before options had headers of their own: the user properties of its publisher had been read."""
    partition, priority = message.user_property("partition"), message.user_property("priority")
    if partition is None and priority is None:
        return None
    return PublishOptions(
        partition=int(partition) if partition is not None else None,
        priority=priority_named(priority) if priority is not None else None,
    )


def with_ttl(message: Message, ttl_ms: int, now: float) -> Message:
    """The message, expiring ``ttl_ms`` after ``now`` unless it does so earlier. Raises :class:`QueueError`."""
    if not ttl_ms:
        raise bad_option("a time to live must be longer than 0")
    expires_at = now + ttl_ms / 1000
    if message.expires_at:
        expires_at = min(expires_at, message.expires_at)
    return changed(message, expires_at=expires_at)


def options_within(transaction: TransactionKey, options: PublishOptions | None) -> PublishOptions:
    """The same, in a transaction."""
    return msgspec.structs.replace(
        options or PublishOptions(),
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_id=transaction.transaction_id,
    )


def bad_option(text: str) -> QueueError:
    """The error for an option that cannot be honoured."""
    return QueueError(QueueErrorCode.BAD_OPTION, text)
