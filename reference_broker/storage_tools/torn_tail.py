"""Tells a write that did not finish from damage, for directories in which nothing says what had been confirmed.

A write that power loss cut leaves a prefix of a batch, or whole sectors of zeros where data should be. A last batch
that is all there and has a wrong checksum, a wrong magic, or a length that the checksum contradicts is damaged.
"""

from __future__ import annotations

from crc32c import crc32c

from assay.reference_broker.storage.batch import (
    HEADER_BYTES,
    MAGIC_BYTES,
    MAX_RECORDS_BYTES,
    BatchError,
    BatchProblem,
    decode_header,
)
from assay.reference_broker.storage.disk import DiskFile
from assay.reference_broker.storage.segment_scan import Damage
from assay.reference_broker.storage_tools.foreign.goqueue_message import MAGIC_BYTES as MESSAGE_MAGIC_BYTES
from assay.reference_broker.storage_tools.foreign.goqueue_message import (
    GoQueueLayout,
    GoQueueMessageError,
    message_size,
)
from assay.reference_broker.storage_tools.layout import Codec
from assay.reference_broker.storage_tools.segment_reader import message_layout_of

SECTOR_BYTES = 512
_CHECKED_FROM = 8
_LENGTH_AT = 16
_MESSAGE_LENGTHS = {
    GoQueueLayout.V30: ((24, 2), (26, 4)),
    GoQueueLayout.V32: ((26, 2), (28, 4)),
    GoQueueLayout.V34: ((26, 2), (28, 4), (32, 2)),
}
"""Position and size of the length fields of a message."""


def looks_unfinished(file: DiskFile, tail: Damage, codec: Codec) -> bool:
    """Whether the damaged tail of a segment looks like a write that did not finish."""
    data = file.read_at(tail.start, min(tail.end - tail.start, HEADER_BYTES + MAX_RECORDS_BYTES))
    if has_empty_sector(data, tail.start):
        return True
    layout = message_layout_of(file, codec)
    if layout is not None:
        return is_prefix_of_message(data, layout)
    return is_prefix_of_batch(data)


def has_empty_sector(data: bytes, position: int) -> bool:
    """Whether a whole sector of the file, or all of the rest, is zeros: the size reached the disk, the data did not."""
    if not data.rstrip(b"\0"):
        return True
    empty = bytes(SECTOR_BYTES)
    first = -position % SECTOR_BYTES
    return any(data[at : at + SECTOR_BYTES] == empty for at in range(first, len(data), SECTOR_BYTES))


def is_prefix_of_batch(data: bytes) -> bool:
    """Whether the bytes are the start of a batch whose end is missing."""
    if len(data) < HEADER_BYTES:
        return data.startswith(MAGIC_BYTES[: len(data)])
    try:
        header = decode_header(data)
    except BatchError as error:
        return error.problem is BatchProblem.TRUNCATED
    if header.total_bytes <= len(data):
        return False
    there = (len(data) - HEADER_BYTES).to_bytes(4, "little")
    corrected = data[_CHECKED_FROM:_LENGTH_AT] + there + data[_LENGTH_AT + 4 :]
    # With its length set to what is there the checksum fits: the batch is whole, and its length field is damaged.
    return crc32c(corrected) != header.checksum


def is_prefix_of_message(data: bytes, layout: GoQueueLayout) -> bool:
    """As :func:`is_prefix_of_batch`, for a message of GoQueue."""
    if len(data) < layout.value:
        return data.startswith(MESSAGE_MAGIC_BYTES[: len(data)])
    try:
        missing = message_size(data, 0, layout) - len(data)
    except GoQueueMessageError:
        return False
    return missing > 0 and not any(_fits(data, at, size, missing) for at, size in _MESSAGE_LENGTHS[layout])


def _fits(data: bytes, at: int, size: int, missing: int) -> bool:
    """Whether the checksum holds when the length field at a position is made to fit what is there."""
    claimed = int.from_bytes(data[at : at + size], "big")
    if claimed < missing:
        return False
    checksum = int.from_bytes(data[4:_CHECKED_FROM], "big")
    return checksum == crc32c(data[_CHECKED_FROM:at] + (claimed - missing).to_bytes(size, "big") + data[at + size :])
