"""What a partition's log says about producers and transactions: headers of their records, and control records.

A message of a producer has the header ``_producer`` (``<id>:<epoch>:<sequence>``), one of a transaction also
``_transaction`` (its id). A transaction ends in each of its partitions with a control record, which is GoQueue's: the
key is the transaction's id, the value producer id (u64), epoch (u16), length of the id (u16) and the id, big-endian,
the flags 8 (control: aborted) or 24 (control and commit). The flags stand in the header ``_goqueue_flags``, so that an
export writes them as GoQueue does, and markers that were imported are known as such. Batches with records of
transactions have flag bit 4.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple

from assay.reference_broker.queues.jobs.store import Headers, LogRecord, NewRecord

PRODUCER_HEADER: Final = b"_producer"
TRANSACTION_HEADER: Final = b"_transaction"
FLAGS_HEADER: Final = b"_goqueue_flags"
MAX_EPOCH: Final = 65_535
_CONTROL_FLAG = 8
_COMMIT_FLAG = 16
_MARKER = struct.Struct(">QHH")
_MAX_DIGITS = 19


class Outcome(Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class RecordMark(NamedTuple):
    """What a record of a log says about its producer."""

    producer: int
    epoch: int
    sequence: int | None
    transaction: str | None
    outcome: Outcome | None
    """Set on control records only."""


def mark_headers(mark: RecordMark) -> Headers:
    """The headers of a message from a producer."""
    number = b"" if mark.sequence is None else b"%d" % mark.sequence
    headers = ((PRODUCER_HEADER, b"%d:%d:%b" % (mark.producer, mark.epoch, number)),)
    return headers if mark.transaction is None else (*headers, (TRANSACTION_HEADER, mark.transaction.encode()))


def control_record(producer: int, epoch: int, transaction: str, outcome: Outcome, timestamp_ms: int) -> NewRecord:
    """The record that ends a transaction in one partition."""
    key = transaction.encode()
    flags = _CONTROL_FLAG | (_COMMIT_FLAG if outcome is Outcome.COMMITTED else 0)
    return NewRecord(timestamp_ms, key, _MARKER.pack(producer, epoch, len(key)) + key, ((FLAGS_HEADER, b"%d" % flags),))


def is_control_header(name: bytes, value: bytes) -> bool:
    """Whether a header makes its record a control record."""
    return name == FLAGS_HEADER and len(value) <= 3 and value.isdigit() and bool(int(value) & _CONTROL_FLAG)


def mark_of(record: LogRecord) -> RecordMark | None:
    """What a record says about its producer; None for an ordinary message, and for marks that make no sense."""
    producer = transaction = None
    for name, value in record.headers:
        if name == PRODUCER_HEADER:
            producer = value
        elif name == TRANSACTION_HEADER:
            transaction = value
        elif is_control_header(name, value):
            return _control_mark(record, int(value))
    return None if producer is None else _producer_mark(producer, transaction)


def _control_mark(record: LogRecord, flags: int) -> RecordMark | None:
    value = record.value or b""
    if len(value) < _MARKER.size:
        return None
    producer, epoch, size = _MARKER.unpack_from(value)
    name = value[_MARKER.size :]
    if len(name) != size:
        return None
    outcome = Outcome.COMMITTED if flags & _COMMIT_FLAG else Outcome.ABORTED
    return RecordMark(producer, epoch, None, name.decode(errors="replace"), outcome)


def _producer_mark(producer: bytes, transaction: bytes | None) -> RecordMark | None:
    parts = producer.split(b":")
    if len(parts) != 3 or not all(len(part) <= _MAX_DIGITS and (part.isdigit() or not part) for part in parts):
        return None
    if not parts[0] or not parts[1]:
        return None
    return RecordMark(
        int(parts[0]),
        int(parts[1]),
        int(parts[2]) if parts[2] else None,
        None if transaction is None else transaction.decode(errors="replace"),
        None,
    )
