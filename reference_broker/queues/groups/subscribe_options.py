"""What a consumer asks of its group when it joins."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final

import msgspec

from assay.reference_broker.queues.messages.durations import parse_time_ms

MAX_PREFETCH: Final = 65_535
_MAX_DIGITS: Final = 19


class AckMode(StrEnum):
    """Who settles what a consumer gets."""

    EXPLICIT = "explicit"
    """The consumer, one delivery or commit after the other."""
    AUTO = "auto"
    """The broker, every ``auto_commit_interval_s``: what the consumer has received by then."""


class CursorKind(Enum):
    """How a place in a queue is named."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    """Where the group is; a new group starts where the queue's configuration says."""
    OFFSET = "offset"
    TIME = "time"
    LAST = "last"
    """The last message that there is."""


class CursorPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a queue, to be looked up in each partition."""

    kind: CursorKind
    value: int = 0
    """The offset, or Unix milliseconds."""


EARLIEST = CursorPosition(kind=CursorKind.EARLIEST)
LATEST = CursorPosition(kind=CursorKind.LATEST)
LAST = CursorPosition(kind=CursorKind.LAST)
_NAMED = {
    "earliest": EARLIEST,
    "latest": LATEST,
    "committed": CursorPosition(kind=CursorKind.COMMITTED),
}


class SubscribeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one consumer consumes. The defaults are those of a consumer that asks for nothing."""

    cursor: CursorPosition | None = None
    """Where its group begins, should it be new; None = where the queue's configuration says."""
    ack_mode: AckMode = AckMode.EXPLICIT
    prefetch: int = 0
    """Most unsettled deliveries it wants to hold; 0 = as many as the queue allows."""
    notify: bool = False
    """Tell it what it is assigned."""
    transient: bool = False
    """Its group is its own, new, in memory, and gone with it."""
    receipts: bool = False
    """Its deliveries carry a receipt, also where the queue gives none."""
    priority: int = 0
    """Where a group keeps no order: consumers with a higher one get everything while they have room."""
    lanes_alike: bool = False
    """It is not told of which lane a message is, so that those of any lane may come several at once."""
    waits: bool = True
    """False: it takes what is there when it asks, and others leave. What is too much for a queue, or to live for no
    time at all, goes only to those who wait."""


DEFAULT_OPTIONS = SubscribeOptions()


def parse_cursor(text: str) -> CursorPosition:
    """``earliest``, ``latest``, ``committed``, an offset, or an RFC 3339 time. Raises :class:`ValueError`."""
    named = _NAMED.get(text)
    if named is not None:
        return named
    # isdecimal also holds for digits of other scripts.
    if text.isascii() and text.isdecimal():
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"an offset has at most {_MAX_DIGITS} digits")
        return CursorPosition(kind=CursorKind.OFFSET, value=int(text))
    try:
        return CursorPosition(kind=CursorKind.TIME, value=parse_time_ms(text))
    except ValueError as error:
        message = f"a cursor is earliest, latest, committed, an offset or an RFC 3339 time, not {text[:40]!r}"
        raise ValueError(message) from error
