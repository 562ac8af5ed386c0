"""A message that waits for its time: its id, its record in the log of delayed messages, what is told of it."""

from __future__ import annotations

import msgspec

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import Headers, LogRecord
from assay.reference_broker.queues.messages.publish_options import Priority, PublishOptions, options_in_properties
from assay.reference_broker.routing.message import Message

_DUE = b"_due"
_OPTIONS = b"_options"
"""``<partition>,<priority>``, either of them empty where the publisher asked for none."""
_ID_MARK = ":delay:"
_MAX_DIGITS = 19


class DelayedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its time. Times are Unix seconds."""

    delay_id: str
    deliver_at: float
    published_at: float
    topic: str
    publisher: str
    payload_bytes: int
    refused: bool
    """It is due, and the queue refused it for now."""


class DelayCounts:
    """What happened since the engine opened; they only grow."""

    __slots__ = ("cancelled", "fired", "refused", "scheduled", "unreadable")

    def __init__(self) -> None:
        self.scheduled = self.fired = self.cancelled = self.refused = self.unreadable = 0


def delay_id_of(queue: str, offset: int) -> str:
    return f"{queue}{_ID_MARK}{offset}"


def parse_delay_id(queue: str, delay_id: str) -> int:
    """The offset that a delay id of a queue names. Raises :class:`QueueError` (BAD_ADDRESS)."""
    named, _, digits = delay_id.rpartition(_ID_MARK)
    if named and digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS:
        if named == queue:
            return int(digits)
        raise QueueError(
            QueueErrorCode.BAD_ADDRESS, f"the delay id {delay_id[:80]!r} is of another queue than {queue!r}"
        )
    raise QueueError(QueueErrorCode.BAD_ADDRESS, f"the delay id {delay_id[:80]!r} is not <queue>{_ID_MARK}<number>")


def with_due(headers: Headers, due_ms: int, options: PublishOptions) -> Headers:
    """The headers of a delayed message's record: when it is due, what its publisher asked for then, and its own."""
    partition = b"" if options.partition is None else b"%d" % options.partition
    priority = b"" if options.priority is None else b"%d" % options.priority
    return ((_DUE, b"%d" % due_ms), (_OPTIONS, partition + b"," + priority), *headers)


def own_headers(headers: Headers) -> Headers:
    """Those of the message itself."""
    return headers[2 if len(headers) > 1 and headers[1][0] == _OPTIONS else 1 :]


def options_of(headers: Headers, message: Message) -> PublishOptions | None:
    """What holds for a message when it is due. Raises :class:`ValueError` when it is not what the broker writes."""
    if len(headers) < 2 or headers[1][0] != _OPTIONS:
        return options_in_properties(message)
    partition, _, priority = headers[1][1].partition(b",")
    if not partition and not priority:
        return None
    return PublishOptions(
        partition=int(partition) if partition else None, priority=Priority(int(priority)) if priority else None
    )


def due_of(record: LogRecord) -> int | None:
    """When the message of a record is due, Unix milliseconds; None for a record that is none."""
    headers = record.headers
    if not headers or headers[0][0] != _DUE or not headers[0][1].isdigit():
        return None
    return int(headers[0][1])
