"""Batches, of which a segment file consists. FluxMQ's format, byte for byte: a 44-byte little-endian header, records.

The checksum is CRC32-C over everything after itself, so over the records as stored (compressed).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum, IntFlag

import msgspec
from crc32c import crc32c

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.compression import (
    CompressionCode,
    CompressionError,
    compression_code,
    compressor,
    decompress,
)
from assay.reference_broker.storage.record import RecordEncoder, RecordError
from assay.reference_broker.storage.record_decoder import Wanted, decode_records

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "MAGIC_BYTES",
    "MAX_BATCH_RECORDS",
    "MAX_RECORDS_BYTES",
    "VERSION",
    "BatchEncoder",
    "BatchError",
    "BatchFlag",
    "BatchHeader",
    "BatchProblem",
    "CompressionCode",
    "HeaderFields",
    "Wanted",
    "decode_batch",
    "decode_header",
    "decode_verified",
    "header_of",
    "header_problem",
    "verify_checksum",
]

MAGIC = 0x464C5558
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
VERSION = 1
HEADER_BYTES = 44
MAX_BATCH_RECORDS = 65_535
MAX_RECORDS_BYTES = 64 * 1024 * 1024
"""Bound of a batch's records section, stored or decompressed."""
HEADER = struct.Struct("<IIQIHHBBHqq")
"""Magic, checksum, base offset, records bytes, record count, flags, compression, version, reserved, base timestamp in
Unix ms, highest timestamp in Unix ms."""
HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""What :data:`HEADER` unpacks."""
CHECKED_FROM = 8
"""Behind the magic, which is compared, and the checksum itself."""
_AFTER_CHECKSUM = struct.Struct("<QIHHBBHqq")
_BEFORE_CHECKED = struct.Struct("<II")
_COMPRESS_ABOVE_BYTES = 256
_COPIED_BYTES = 1_024
"""Up to it, copying once more is faster than a second call for the checksum."""
_MAX_OFFSETS = 2**63
"""Readers refuse larger ones."""


class BatchFlag(IntFlag):
    COMPRESSED = 1
    HAS_TIMESTAMP = 2
    HAS_KEYS = 4
    HAS_HEADERS = 8
    TRANSACTIONAL = 16
    """Some of the records belong to a transaction, or end one."""


_FLAGS = tuple(BatchFlag(flags) for flags in range(32))
_COMPRESSED = int(BatchFlag.COMPRESSED)
_HAS_TIMESTAMP = int(BatchFlag.HAS_TIMESTAMP)
_HAS_KEYS = int(BatchFlag.HAS_KEYS)
_HAS_HEADERS = int(BatchFlag.HAS_HEADERS)
_TRANSACTIONAL = int(BatchFlag.TRANSACTIONAL)


class BatchProblem(Enum):
    """Why bytes are not a batch."""

    TRUNCATED = "the batch is cut short"
    BAD_MAGIC = "no batch starts here"
    BAD_VERSION = "the batch is of a newer format"
    BAD_HEADER = "the batch header is out of bounds"
    TOO_LARGE = "the batch exceeds the size limit"
    BAD_CHECKSUM = "the checksum does not match"
    BAD_COMPRESSION = "the records cannot be decompressed"
    BAD_RECORDS = "the records cannot be decoded"


class BatchError(ValueError):
    """Bytes are not a whole, sound batch."""

    def __init__(self, problem: BatchProblem, detail: str = "") -> None:
        super().__init__(f"{problem.value}: {detail}" if detail else problem.value)
        self.problem = problem


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fixed part of a batch; sizes in bytes, times in Unix ms."""

    checksum: int
    base_offset: int
    records_bytes: int
    record_count: int
    flags: BatchFlag
    compression: int
    base_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + self.records_bytes


class BatchEncoder:
    """Encodes batches. All logs of one compression share one, since its caches and buffers are not small."""

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._code = int(compression_code(compression))
        self._records = RecordEncoder()
        self._compress = compressor(compression)

    @property
    def compresses(self) -> bool:
        """Batches may take less than their records."""
        return self._compress is not None

    def again(self) -> BatchEncoder:
        """Another one, for another thread."""
        return BatchEncoder(self._compression)

    def encode(self, base_offset: int, records: Sequence[NewRecord], *, transactional: bool = False) -> bytes:
        """One batch of 1 to 65535 records with consecutive offsets; ``transactional``: some belong to a transaction.

        Raises :class:`BatchError` when it is too large or a time or an offset does not fit, and :class:`RecordError`
        when a record has too many headers.
        """
        count = len(records)
        if not 1 <= count <= MAX_BATCH_RECORDS:
            raise BatchError(BatchProblem.BAD_HEADER, f"a batch holds 1 to {MAX_BATCH_RECORDS} records")
        if base_offset + count > _MAX_OFFSETS:
            raise BatchError(BatchProblem.BAD_HEADER, f"offset {base_offset} leaves no room for {count} records")
        body, max_timestamp_ms, has_keys, has_headers = self._records.encode(records)
        flags = _HAS_TIMESTAMP | _TRANSACTIONAL if transactional else _HAS_TIMESTAMP
        if has_keys:
            flags |= _HAS_KEYS
        if has_headers:
            flags |= _HAS_HEADERS
        if len(body) > MAX_RECORDS_BYTES:
            raise BatchError(BatchProblem.TOO_LARGE, f"{len(body)} bytes of records; the limit is {MAX_RECORDS_BYTES}")
        if self._compress is not None and len(body) > _COMPRESS_ABOVE_BYTES:
            compressed = self._compress(body)
            if len(compressed) < len(body):
                body = compressed
                flags |= _COMPRESSED
        try:
            checked = _AFTER_CHECKSUM.pack(
                base_offset, len(body), count, flags, self._code, VERSION, 0, records[0].timestamp_ms, max_timestamp_ms
            )
        except struct.error as error:
            raise BatchError(BatchProblem.BAD_HEADER, "an offset or a timestamp is beyond 64 bits") from error
        if len(body) <= _COPIED_BYTES:
            checked += body
            return _BEFORE_CHECKED.pack(MAGIC, crc32c(checked)) + checked
        return b"".join((_BEFORE_CHECKED.pack(MAGIC, crc32c(body, crc32c(checked))), checked, body))


def header_problem(fields: HeaderFields) -> BatchProblem | None:
    """What is wrong with the fields that :data:`HEADER` unpacked, None when they are within bounds.

    The cheap way of a scan, which need not build a :class:`BatchHeader`, nor catch an error, for every place it tries.
    """
    magic, _, base_offset, records_bytes, count, _, _, version, reserved, _, _ = fields
    if (
        magic == MAGIC
        and version == VERSION
        and count
        and not reserved
        and records_bytes <= MAX_RECORDS_BYTES
        and not base_offset >> 63
    ):
        return None
    if magic != MAGIC:
        return BatchProblem.BAD_MAGIC
    return BatchProblem.BAD_VERSION if version > VERSION else BatchProblem.BAD_HEADER


def header_of(fields: HeaderFields) -> BatchHeader:
    """The header of which :func:`header_problem` found nothing wrong."""
    _, checksum, base_offset, records_bytes, count, flags, code, _, _, base_ms, max_ms = fields
    return BatchHeader(
        checksum=checksum,
        base_offset=base_offset,
        records_bytes=records_bytes,
        record_count=count,
        flags=_FLAGS[flags] if flags < len(_FLAGS) else BatchFlag(flags),
        compression=code,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
    )


def decode_header(data: bytes, at: int = 0) -> BatchHeader:
    """The header at a position; its checksum is not verified yet. Raises :class:`BatchError`."""
    if len(data) - at < HEADER_BYTES:
        raise BatchError(BatchProblem.TRUNCATED, f"{max(0, len(data) - at)} of {HEADER_BYTES} header bytes")
    fields: HeaderFields = HEADER.unpack_from(data, at)
    problem = header_problem(fields)
    if problem is BatchProblem.BAD_VERSION:
        raise BatchError(problem, f"version {fields[7]}; this broker reads up to {VERSION}")
    if problem is not None:
        raise BatchError(problem)
    return header_of(fields)


def verify_checksum(header: BatchHeader, batch: bytes | memoryview, at: int = 0) -> None:
    """``batch`` holds the whole batch, header included, from ``at`` on. Raises :class:`BatchError`."""
    end = at + header.total_bytes
    if len(batch) < end:
        raise BatchError(BatchProblem.TRUNCATED, f"{len(batch) - at} of {header.total_bytes} bytes")
    if crc32c(memoryview(batch)[at + CHECKED_FROM : end]) != header.checksum:
        raise BatchError(BatchProblem.BAD_CHECKSUM)


def decode_batch(batch: bytes) -> list[LogRecord]:
    """The records of one whole batch, verified. Raises :class:`BatchError`."""
    header = decode_header(batch)
    verify_checksum(header, batch)
    return decode_verified(header, batch)


def decode_verified(
    header: BatchHeader,
    batch: bytes,
    *,
    at: int = 0,
    from_offset: int = 0,
    limit: int | None = None,
    wanted: Wanted = Wanted.ALL,
) -> list[LogRecord]:
    """The records of the batch at ``at``, whose checksum was verified, from ``from_offset`` on and up to ``limit``.

    Fields that are not wanted come as None, headers as ``()``. With a limit the records behind the last one returned
    are not looked at; otherwise every record is checked, wanted or not. Raises :class:`BatchError`.
    """
    start = at + HEADER_BYTES
    end = start + header.records_bytes
    if int(header.flags) & _COMPRESSED:
        try:
            batch = decompress(header.compression, batch[start:end], MAX_RECORDS_BYTES)
        except CompressionError as error:
            raise BatchError(BatchProblem.BAD_COMPRESSION, str(error)) from error
        start, end = 0, len(batch)
    try:
        return decode_records(
            batch,
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            start=start,
            end=end,
            from_offset=from_offset,
            limit=limit,
            wanted=wanted,
        )
    except RecordError as error:
        raise BatchError(BatchProblem.BAD_RECORDS, str(error)) from error
