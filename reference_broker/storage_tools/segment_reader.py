"""Reads segment files of any format as one thing: chunks (batches, or single GoQueue messages) and damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.storage.batch import (
    BatchError,
    BatchFlag,
    BatchProblem,
    CompressionCode,
    decode_header,
    decode_verified,
    verify_checksum,
)
from assay.reference_broker.storage.disk import DiskFile
from assay.reference_broker.storage.segment_scan import Damage, SoundBatch, walk_batches
from assay.reference_broker.storage_tools.foreign.goqueue_log import SoundMessage, walk_messages
from assay.reference_broker.storage_tools.foreign.goqueue_message import (
    GoQueueFlag,
    GoQueueLayout,
    decode_message,
    detect_layout,
)
from assay.reference_broker.storage_tools.foreign.goqueue_records import ConversionError, to_record
from assay.reference_broker.storage_tools.layout import Codec, StoreFormat

NS_PER_MS = 1_000_000
_CODES = {int(code): code.name.lower() for code in CompressionCode}


class Chunk(NamedTuple):
    """A sound batch of a segment, or a sound message; times in Unix ms, sizes and positions in bytes of the file."""

    position: int
    size: int
    base_offset: int
    record_count: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    indexed_time: int
    """What a time index says of it: ms, in a GoQueue directory ns."""
    compression: str
    """``none``, ``s2``, ``zstd``: what its records are stored with."""
    source: SoundBatch | SoundMessage

    @property
    def end_offset(self) -> int:
        """The lowest offset that the next chunk may have."""
        return self.base_offset + self.record_count

    @property
    def end(self) -> int:
        return self.position + self.size


def walk_chunks(
    file: DiskFile, base_offset: int, codec: Codec, *, start: int = 0, end_offset: int | None = None
) -> Iterator[Chunk | Damage]:
    """The chunks from a position on, each with a right checksum, and the damage between them, in order.

    ``base_offset``: the least offset that may come; ``end_offset``: offsets stay below it. Raises :class:`OSError`.
    """
    layout = message_layout_of(file, codec)
    if layout is not None:
        parts = walk_messages(file, layout=layout, base_offset=base_offset, end_offset=end_offset, start=start)
        for part in parts:
            yield part if isinstance(part, Damage) else _chunk_of_message(part)
    else:
        for found in walk_batches(file, base_offset, start=start, end_offset=end_offset):
            yield found if isinstance(found, Damage) else _chunk_of_batch(found)


def message_layout_of(file: DiskFile, codec: Codec) -> GoQueueLayout | None:
    """The layout of the messages of a GoQueue segment; None for the other formats. Raises :class:`OSError`."""
    if codec.format is not StoreFormat.GOQUEUE:
        return None
    return codec.message_layout or detect_segment_layout(file) or GoQueueLayout.V34


def detect_segment_layout(file: DiskFile) -> GoQueueLayout | None:
    """The layout in which the first message of a segment is sound; None when it is in none, or there is none."""
    return detect_layout(file.read_at(0, GoQueueLayout.V34.max_message_bytes))


def read_chunk(file: DiskFile, position: int, size: int, layout: GoQueueLayout | None) -> Chunk:
    """A chunk that a walk found before; ``layout`` as of :func:`message_layout_of`.

    Raises :class:`ValueError` when it has changed meanwhile.
    """
    data = file.read_at(position, size)
    if layout is not None:
        message = decode_message(data, layout=layout)
        return _chunk_of_message(SoundMessage(position=position, size=size, message=message))
    header = decode_header(data)
    verify_checksum(header, data)
    return _chunk_of_batch(SoundBatch(position=position, header=header, data=data))


def _chunk_of_batch(batch: SoundBatch) -> Chunk:
    header = batch.header
    stored = header.compression if header.flags & BatchFlag.COMPRESSED else 0
    return Chunk(
        position=batch.position,
        size=header.total_bytes,
        base_offset=header.base_offset,
        record_count=header.record_count,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        indexed_time=header.max_timestamp_ms,
        compression=_CODES.get(stored, f"unknown ({stored})"),
        source=batch,
    )


def _chunk_of_message(found: SoundMessage) -> Chunk:
    message = found.message
    timestamp_ms = message.timestamp_ns // NS_PER_MS
    return Chunk(
        position=found.position,
        size=found.size,
        base_offset=message.offset,
        record_count=1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        indexed_time=message.timestamp_ns,
        compression="flagged" if message.flags & GoQueueFlag.COMPRESSED else "none",
        source=found,
    )


def read_records(chunk: Chunk) -> list[LogRecord]:
    """The records of a chunk. Raises ``storage.batch.BatchError`` when they do not decode."""
    if isinstance(chunk.source, SoundMessage):
        message = chunk.source.message
        try:
            return [LogRecord(message.offset, *to_record(message))]
        except ConversionError as error:
            raise BatchError(BatchProblem.BAD_RECORDS, error.detail) from error
    return decode_verified(chunk.source.header, chunk.source.data)
