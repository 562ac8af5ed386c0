"""What a publisher asks of a queue beside enqueueing: options that travel as user properties of the message."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.durations import parse_duration_ms, parse_time_ms
from assay.reference_broker.routing.message import Message, changed

PARTITION = "partition"
PRIORITY = "priority"
DELAY = "delay"
DELIVER_AT = "deliver-at"
TTL = "ttl"
PRODUCER_ID = "producer-id"
PRODUCER_EPOCH = "producer-epoch"
SEQUENCE = "sequence"
TRANSACTION_ID = "transaction-id"
RECEIPT = "receipt"

_MAX_TRANSACTION_ID_BYTES = 1_024


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


class PublishOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a message names; None where it does not."""

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


def _whole(limit: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # isdecimal also holds for digits of other scripts.
        if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= limit):
            message = f"must be a whole number from 0 to {limit}, not {text[:40]!r}"
            raise ValueError(message)
        return int(text)

    return parse


_PRIORITIES = {text: lane for lane in Priority for text in (lane.name.lower(), str(lane.value))}


def _priority(text: str) -> Priority:
    lane = _PRIORITIES.get(text.lower())
    if lane is None:
        message = f"must be critical, high, normal, low, background, or 0 to 4, not {text[:40]!r}"
        raise ValueError(message)
    return lane


def _transaction_id(text: str) -> str:
    if not 0 < len(text.encode()) <= _MAX_TRANSACTION_ID_BYTES:
        message = f"must have 1 to {_MAX_TRANSACTION_ID_BYTES} bytes"
        raise ValueError(message)
    return text


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        message = f"must be 0 or 1, not {text[:40]!r}"
        raise ValueError(message)
    return text == "1"


_PARSERS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    PARTITION: ("partition", _whole(2**31 - 1)),
    PRIORITY: ("priority", _priority),
    DELAY: ("delay_ms", parse_duration_ms),
    DELIVER_AT: ("deliver_at_ms", parse_time_ms),
    TTL: ("ttl_ms", parse_duration_ms),
    PRODUCER_ID: ("producer_id", _whole(2**63 - 1)),
    PRODUCER_EPOCH: ("producer_epoch", _whole(2**31 - 1)),
    SEQUENCE: ("sequence", _whole(2**63 - 1)),
    TRANSACTION_ID: ("transaction_id", _transaction_id),
    RECEIPT: ("receipt", _flag),
}
"""User property -> field and how its value is read."""

OPTION_NAMES = frozenset(_PARSERS)


def parse(message: Message) -> PublishOptions | None:
    """The options of a message; None when it names none.

    Strict, since an option that is misread is an order not carried out. Raises :class:`QueueError` (BAD_OPTION) for a
    value that cannot be read, an option named twice, and ``delay`` beside ``deliver-at``.
    """
    properties = message.user_properties
    for pair in properties:
        if pair[0] in _PARSERS:
            return _parse(properties)
    return None


def _parse(properties: tuple[tuple[str, str], ...]) -> PublishOptions:
    fields: dict[str, object] = {}
    for name, value in properties:
        known = _PARSERS.get(name)
        if known is None:
            continue
        field, read = known
        if field in fields:
            raise bad_option(f"the user property {name} is there twice")
        try:
            fields[field] = read(value)
        except ValueError as error:
            raise bad_option(f"the user property {name}: {error}") from error
    if "delay_ms" in fields and "deliver_at_ms" in fields:
        raise bad_option("a message has a delay or a deliver-at time, not both")
    return msgspec.convert(fields, PublishOptions)


_TOLD = frozenset((RECEIPT, DELAY, DELIVER_AT))


def wants_receipt(message: Message) -> bool:
    """Whether the publisher is told what its message became: it asks, or the message may be delayed."""
    return any(pair[0] in _TOLD and pair != (RECEIPT, "0") for pair in message.user_properties)


def with_ttl(message: Message, ttl_ms: int, now: float) -> Message:
    """The message, expiring ``ttl_ms`` after ``now`` unless it does so earlier. Raises :class:`QueueError`."""
    if not ttl_ms:
        raise bad_option(f"the user property {TTL} must be longer than 0")
    expires_at = now + ttl_ms / 1000
    if message.expires_at:
        expires_at = min(expires_at, message.expires_at)
    return changed(message, expires_at=expires_at)


def bad_option(text: str) -> QueueError:
    """The error for an option that cannot be honoured."""
    return QueueError(QueueErrorCode.BAD_OPTION, text)
