"""How records become batches: several for a large append, one for many small appends that waited in a buffer."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.batch import (
    MAX_BATCH_RECORDS,
    MAX_RECORDS_BYTES,
    BatchEncoder,
    BatchError,
    BatchProblem,
)
from assay.reference_broker.storage.record import MAX_RECORD_HEADERS, RecordError
from assay.reference_broker.storage.segment import AppendedBatch

TARGET_BATCH_BYTES = 256 * 1024
"""A larger append is split into several batches, so that reading one record back stays cheap."""
_MAX_WHOLE_BYTES = 2 * TARGET_BATCH_BYTES
"""An append that is a little larger still stays one batch: it is encoded before its size is known."""
_MAX_TIME_MS = 2**62
_COUNT_AND_TIMES = struct.Struct("<H6xqq")
_COUNT_AT = 20
_FIXED_BYTES = 64
"""At least the batch header and the varints of one record."""


class WriteBuffer:
    """Records that were taken and are not written yet."""

    __slots__ = ("records", "size", "transactional")

    def __init__(self) -> None:
        self.records: list[NewRecord] = []
        self.size = 0
        """Bytes that they take at most, about."""
        self.transactional = False
        """Some of them belong to a transaction."""

    def add(self, records: Sequence[NewRecord], size: int, *, transactional: bool) -> None:
        self.records += records
        self.size += size
        self.transactional |= transactional

    def take_back(self, count: int, size: int) -> None:
        """Forget the newest records."""
        del self.records[-count:]
        self.size -= size

    def clear(self) -> None:
        self.records = []
        self.size = 0
        self.transactional = False


def bound_of(records: Sequence[NewRecord]) -> int:
    """About how many bytes records take at most. Raises :class:`LogError` for one that no batch can hold."""
    total = 0
    for timestamp_ms, key, value, headers in records:
        size = _FIXED_BYTES
        if key:
            size += len(key)
        if value:
            size += len(value)
        if headers:
            size += sum([len(name) + len(content) + 20 for name, content in headers])
        if (
            size > MAX_RECORDS_BYTES
            or len(headers) > MAX_RECORD_HEADERS
            or not -_MAX_TIME_MS < timestamp_ms < _MAX_TIME_MS
        ):
            message = f"a record of {size} bytes with {len(headers)} headers at {timestamp_ms} ms fits in no batch"
            raise LogError(message)
        total += size
    return total


def batches_of(
    encoder: BatchEncoder, base_offset: int, records: Sequence[NewRecord], most: int, *, transactional: bool
) -> tuple[bytes, list[AppendedBatch]]:
    """Records as batches of at most so many, each of a size that is cheap to read back. Raises :class:`LogError`."""
    try:
        if len(records) == 1:
            data = encoder.encode(base_offset, records, transactional=transactional)
            timestamp_ms = records[0][0]
            return data, [AppendedBatch(base_offset, 1, len(data), timestamp_ms, timestamp_ms)]
        pieces = encode_batches(encoder, base_offset, records, most, transactional=transactional)
    except (BatchError, RecordError) as error:
        raise LogError(str(error)) from error
    batches: list[AppendedBatch] = []
    for piece in pieces:
        count, base_ms, max_ms = _COUNT_AND_TIMES.unpack_from(piece, _COUNT_AT)
        batches.append(AppendedBatch(base_offset, count, len(piece), base_ms, max_ms))
        base_offset += count
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), batches


def encode_batches(
    encoder: BatchEncoder,
    base_offset: int,
    records: Sequence[NewRecord],
    max_records: int = MAX_BATCH_RECORDS,
    *,
    transactional: bool = False,
) -> list[bytes]:
    """The batches of an append, in order. Raises :class:`BatchError` and :class:`RecordError`."""
    if len(records) <= max_records and not _is_surely_large(records):
        piece = encoder.encode(base_offset, records, transactional=transactional)
        if len(piece) <= _MAX_WHOLE_BYTES:
            return [piece]
    pieces: list[bytes] = []
    for group in _split(records, max_records):
        _encode(encoder, base_offset, group, pieces, transactional=transactional)
        base_offset += len(group)
    return pieces


def _encode(
    encoder: BatchEncoder, base_offset: int, records: Sequence[NewRecord], pieces: list[bytes], *, transactional: bool
) -> None:
    """Add the batch of these records, or its halves when it would be too large. Raises :class:`BatchError`."""
    try:
        pieces.append(encoder.encode(base_offset, records, transactional=transactional))
    except BatchError as error:
        half = len(records) // 2
        if error.problem is not BatchProblem.TOO_LARGE or not half:
            raise
        _encode(encoder, base_offset, records[:half], pieces, transactional=transactional)
        _encode(encoder, base_offset + half, records[half:], pieces, transactional=transactional)


def _is_surely_large(records: Sequence[NewRecord]) -> bool:
    """Whether an append need not be encoded as one batch to see that it is too large for one."""
    count = len(records)
    if count > MAX_BATCH_RECORDS:
        return True
    sample = records[:: max(1, count // 16)]
    sampled_bytes = sum([len(value) for _, _, value, _ in sample if value])
    return sampled_bytes * count > 2 * _MAX_WHOLE_BYTES * len(sample)


def _split(records: Sequence[NewRecord], max_records: int) -> list[Sequence[NewRecord]]:
    """Cut into batches by count and payload size."""
    groups: list[Sequence[NewRecord]] = []
    start = size = 0
    for index, (_, _, value, _) in enumerate(records):
        size += len(value) if value is not None else 0
        if index > start and (size > TARGET_BATCH_BYTES or index - start >= max_records):
            groups.append(records[start:index])
            start, size = index, len(value) if value is not None else 0
    groups.append(records[start:] if start else records)
    return groups
