"""Batches, of which a segment file consists. FluxMQ's format, byte for byte: a 44-byte little-endian header, records.

The checksum is CRC32-C over everything after itself, so over the records as stored (compressed).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum, IntEnum, IntFlag

import msgspec
import zstandard
from crc32c import crc32c

from reference_broker.config import Compression
from reference_broker.core.queues.store import LogRecord, NewRecord
from reference_broker.storage.record import RecordEncoder, RecordError, decode_records

MAGIC = 0x464C5558
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
VERSION = 1
HEADER_BYTES = 44
MAX_BATCH_RECORDS = 65_535
MAX_RECORDS_BYTES = 64 * 1024 * 1024
"""Bound of a batch's records section, stored or decompressed."""
_COMPRESS_ABOVE_BYTES = 256
_CHECKED_FROM = 8
_HEADER = struct.Struct("<IIQIHHBBHqq")
_AFTER_CHECKSUM = struct.Struct("<QIHHBBHqq")


class BatchFlag(IntFlag):
    COMPRESSED = 1
    HAS_TIMESTAMP = 2
    HAS_KEYS = 4
    HAS_HEADERS = 8
    TRANSACTIONAL = 16


class CompressionCode(IntEnum):
    NONE = 0
    S2 = 1
    ZSTD = 2


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


_CODES = {Compression.NONE: CompressionCode.NONE, Compression.ZSTD: CompressionCode.ZSTD}


class BatchEncoder:
    """Encodes batches. All logs of one compression share one, since its caches and buffers are not small."""

    def __init__(self, compression: Compression) -> None:
        self._code = _CODES[compression]
        self._records = RecordEncoder()
        self._compressor = zstandard.ZstdCompressor() if compression is Compression.ZSTD else None

    def encode(self, base_offset: int, records: Sequence[NewRecord]) -> bytes:
        """One batch of 1 to 65535 records with consecutive offsets. Raises :class:`BatchError` when too large."""
        if not 1 <= len(records) <= MAX_BATCH_RECORDS:
            raise BatchError(BatchProblem.BAD_HEADER, f"a batch holds 1 to {MAX_BATCH_RECORDS} records")
        base_timestamp_ms = records[0].timestamp_ms
        flags = int(BatchFlag.HAS_TIMESTAMP)
        max_timestamp_ms = base_timestamp_ms
        for timestamp_ms, key, _, headers in records:
            if timestamp_ms > max_timestamp_ms:
                max_timestamp_ms = timestamp_ms
            if key:
                flags |= 4
            if headers:
                flags |= 8
        body = self._records.encode(records, base_timestamp_ms)
        if len(body) > MAX_RECORDS_BYTES:
            raise BatchError(BatchProblem.TOO_LARGE, f"{len(body)} bytes of records; the limit is {MAX_RECORDS_BYTES}")
        if self._compressor is not None and len(body) > _COMPRESS_ABOVE_BYTES:
            compressed = self._compressor.compress(body)
            if len(compressed) < len(body):
                body = compressed
                flags |= int(BatchFlag.COMPRESSED)
        checked = _AFTER_CHECKSUM.pack(
            base_offset,
            len(body),
            len(records),
            flags,
            self._code,
            VERSION,
            0,
            base_timestamp_ms,
            max_timestamp_ms,
        )
        checksum = crc32c(body, crc32c(checked))
        return b"".join((MAGIC_BYTES, checksum.to_bytes(4, "little"), checked, body))


def decode_header(data: bytes, at: int = 0) -> BatchHeader:
    """The header at a position; its checksum is not verified yet. Raises :class:`BatchError`."""
    if len(data) - at < HEADER_BYTES:
        raise BatchError(BatchProblem.TRUNCATED, f"{max(0, len(data) - at)} of {HEADER_BYTES} header bytes")
    magic, checksum, base_offset, records_bytes, count, flags, code, version, reserved, base_ms, max_ms = (
        _HEADER.unpack_from(data, at)
    )
    if magic != MAGIC:
        raise BatchError(BatchProblem.BAD_MAGIC)
    if version > VERSION:
        raise BatchError(BatchProblem.BAD_VERSION, f"version {version}; this broker reads up to {VERSION}")
    if version != VERSION or reserved or not count or records_bytes > MAX_RECORDS_BYTES or base_offset >> 63:
        raise BatchError(BatchProblem.BAD_HEADER)
    return BatchHeader(
        checksum=checksum,
        base_offset=base_offset,
        records_bytes=records_bytes,
        record_count=count,
        flags=BatchFlag(flags),
        compression=code,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
    )


def verify_checksum(header: BatchHeader, batch: bytes | memoryview) -> None:
    """``batch`` is the whole batch, header included. Raises :class:`BatchError`."""
    if len(batch) < header.total_bytes:
        raise BatchError(BatchProblem.TRUNCATED, f"{len(batch)} of {header.total_bytes} bytes")
    if crc32c(memoryview(batch)[_CHECKED_FROM : header.total_bytes]) != header.checksum:
        raise BatchError(BatchProblem.BAD_CHECKSUM)


def decode_batch(batch: bytes) -> list[LogRecord]:
    """The records of one whole batch, verified. Raises :class:`BatchError`."""
    header = decode_header(batch)
    verify_checksum(header, batch)
    return decode_verified(header, batch)


def decode_verified(header: BatchHeader, batch: bytes) -> list[LogRecord]:
    """The records of one whole batch whose checksum was verified. Raises :class:`BatchError`."""
    body = batch[HEADER_BYTES : header.total_bytes]
    if header.flags & BatchFlag.COMPRESSED:
        body = _decompress(header.compression, body)
    try:
        return decode_records(body, header.record_count, header.base_offset, header.base_timestamp_ms)
    except RecordError as error:
        raise BatchError(BatchProblem.BAD_RECORDS, str(error)) from error


def _decompress(code: int, body: bytes) -> bytes:
    """Bounded: a frame that claims more than the limit is refused before anything is allocated for it."""
    if code != CompressionCode.ZSTD:
        raise BatchError(BatchProblem.BAD_COMPRESSION, f"compression {code} is not supported; only zstd (2) is")
    try:
        claimed = zstandard.frame_content_size(body)
        if claimed > MAX_RECORDS_BYTES:
            raise BatchError(
                BatchProblem.BAD_COMPRESSION, f"it claims {claimed} bytes; the limit is {MAX_RECORDS_BYTES}"
            )
        # With a known size the library allocates just that; without one it stops at the limit.
        limit = MAX_RECORDS_BYTES if claimed < 0 else 0
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BatchError(BatchProblem.BAD_COMPRESSION, str(error)) from error
