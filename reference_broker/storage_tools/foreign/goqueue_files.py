"""GoQueue's files: log segments with their two indexes, delay index, committed offsets. All integers are big-endian.

A partition is the folder ``logs/<topic>/<partition>/``. Per segment, named by 20 digits of its first offset: ``.log``
(messages end to end), ``.index`` (offset, position) and ``.timeindex`` (timestamp in ns, offset), entries of two signed
8-byte numbers without a header, the first message always and then one per 4096 bytes of log at most. ``delay.index``:
16-byte header (``GQDL``, version, flags, count of entries), entries of 32 bytes. ``<group>/offsets.json``: what a
consumer group has committed. Coordinator snapshots are those of :mod:`assay.reference_broker.storage.snapshots`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime

import msgspec

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.trace.described import described

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
OFFSETS_NAME = "offsets.json"
LOGS_FOLDER = "logs"
SEGMENT_BYTES = 64 * 1024 * 1024
INDEX_INTERVAL_BYTES = 4_096
MAX_OFFSETS_BYTES = 64 * 1024 * 1024
_OFFSET_DIGITS = 20
_PAIR = struct.Struct(">qq")


class GoQueueFileError(ValueError):
    """The bytes are not a sound file of the kind expected. Indexes can be rebuilt from their segment."""


class PartitionOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in one partition. ``offset`` is the next one to read."""

    partition: int
    offset: int
    committed_at: datetime
    metadata: str = ""


class TopicOffsets(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: dict[int, PartitionOffset]


class GroupOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """``offsets.json`` of a consumer group."""

    group_id: str
    topics: dict[str, TopicOffsets]
    generation: int
    updated_at: datetime


def file_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Name of a segment's file."""
    return f"{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_file_name(name: str, suffix: str = LOG_SUFFIX) -> int | None:
    """Base offset of a segment's file name; None for any other file."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _OFFSET_DIGITS or not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits)


def segment_bases(disk: Disk, folder: str) -> list[int]:
    """Base offsets of the segments in a folder, in order. Raises :class:`OSError`."""
    return sorted(base for name in disk.list(folder) if (base := parse_file_name(name)) is not None)


def encode_index(entries: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of an ``.index`` (offset, position) or ``.timeindex`` (timestamp in ns, offset)."""
    return b"".join(_PAIR.pack(*entry) for entry in entries)


def decode_offsets(data: bytes) -> GroupOffsets:
    """Times come with microseconds. Raises :class:`GoQueueFileError`."""
    if len(data) > MAX_OFFSETS_BYTES:
        raise GoQueueFileError(f"{len(data)} bytes of committed offsets; at most {MAX_OFFSETS_BYTES} are read")
    try:
        offsets = msgspec.json.decode(data, type=described(GroupOffsets))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GoQueueFileError(f"the committed offsets cannot be read: {error}") from error
    for topic in offsets.topics.values():
        for partition, committed in topic.partitions.items():
            if committed.offset < 0 or partition != committed.partition or partition < 0:
                raise GoQueueFileError(f"topic {topic.topic!r}, partition {partition}: {committed} contradicts itself")
    return offsets
