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
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import msgspec

from assay.reference_broker.storage.disk import Disk

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
DELAY_INDEX_NAME = "delay.index"
OFFSETS_NAME = "offsets.json"
LOGS_FOLDER = "logs"
SEGMENT_BYTES = 64 * 1024 * 1024
INDEX_INTERVAL_BYTES = 4_096
MAX_INDEX_BYTES = 64 * 1024 * 1024
MAX_DELAY_INDEX_BYTES = 1024 * 1024 * 1024
MAX_OFFSETS_BYTES = 64 * 1024 * 1024
_OFFSET_DIGITS = 20
_PAIR = struct.Struct(">qq")
_DELAY_MAGIC = b"GQDL"
_DELAY_VERSION = 1
_DELAY_HEADER = struct.Struct(">4sHHQ")
_DELAY_ENTRY = struct.Struct(">qqii8x")
_MAX_PARTITION_DIGITS = 10


class GoQueueFileError(ValueError):
    """The bytes are not a sound file of the kind expected. Indexes can be rebuilt from their segment."""


class IndexEntry(NamedTuple):
    """An entry of ``.index``."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """An entry of ``.timeindex``."""

    timestamp_ns: int
    offset: int


class DelayState(IntEnum):
    PENDING = 0
    DELIVERED = 1
    CANCELLED = 2
    EXPIRED = 3
    """Delivered and consumed."""


class DelayEntry(NamedTuple):
    """A message that must not be delivered before its time."""

    offset: int
    deliver_at_ns: int
    partition: int
    state: DelayState


class DelayIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded ``delay.index``."""

    entries: tuple[DelayEntry, ...]
    claimed_count: int
    """What the header says; it is written after the entry, so a crash may leave it one behind."""
    torn_bytes: int = 0
    """Bytes after the last whole entry."""


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


class FoundPartition(NamedTuple):
    """A partition in a data directory of GoQueue."""

    topic: str
    partition: int
    folder: str


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


def find_partitions(disk: Disk) -> list[FoundPartition]:
    """The partitions of a data directory, by topic and number. Raises :class:`OSError`."""
    found: list[FoundPartition] = []
    for topic in disk.list(LOGS_FOLDER):
        for name in _folder_names(disk, f"{LOGS_FOLDER}/{topic}"):
            folder = f"{LOGS_FOLDER}/{topic}/{name}"
            is_number = name.isascii() and name.isdecimal() and len(name) <= _MAX_PARTITION_DIGITS
            if is_number and any(parse_file_name(file) is not None for file in _folder_names(disk, folder)):
                found.append(FoundPartition(topic, int(name), folder))
    return sorted(found)


def _folder_names(disk: Disk, path: str) -> list[str]:
    try:
        return disk.list(path)
    except NotADirectoryError:
        return []


def encode_index(entries: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of an ``.index`` (offset, position) or ``.timeindex`` (timestamp in ns, offset)."""
    return b"".join(_PAIR.pack(*entry) for entry in entries)


def decode_index(data: bytes) -> list[IndexEntry]:
    """Raises :class:`GoQueueFileError` when the size is odd or offsets or positions do not grow."""
    entries = [IndexEntry(*pair) for pair in _pairs(data)]
    if entries and (entries[0].offset < 0 or entries[0].position < 0):
        raise GoQueueFileError("the first entry is negative")
    for number, (before, entry) in enumerate(pairwise(entries), start=1):
        if entry.offset <= before.offset or entry.position <= before.position:
            message = f"entry {number} does not grow: {before} is followed by {entry}"
            raise GoQueueFileError(message)
    return entries


def decode_time_index(data: bytes) -> list[TimeIndexEntry]:
    """Raises :class:`GoQueueFileError` when the size is odd or offsets do not grow. Clocks may step back."""
    entries = [TimeIndexEntry(*pair) for pair in _pairs(data)]
    if entries and entries[0].offset < 0:
        raise GoQueueFileError("the first entry is negative")
    for number, (before, entry) in enumerate(pairwise(entries), start=1):
        if entry.offset <= before.offset:
            message = f"entry {number} does not grow: {before} is followed by {entry}"
            raise GoQueueFileError(message)
    return entries


def _pairs(data: bytes) -> list[tuple[int, int]]:
    if len(data) > MAX_INDEX_BYTES or len(data) % _PAIR.size:
        message = f"{len(data)} bytes are not whole entries of {_PAIR.size}, at most {MAX_INDEX_BYTES} in all"
        raise GoQueueFileError(message)
    return [(first, second) for first, second in _PAIR.iter_unpack(data)]


def encode_delay_index(entries: Sequence[DelayEntry]) -> bytes:
    """The bytes of a ``delay.index``."""
    header = _DELAY_HEADER.pack(_DELAY_MAGIC, _DELAY_VERSION, 0, len(entries))
    return header + b"".join(_DELAY_ENTRY.pack(*entry) for entry in entries)


def decode_delay_index(data: bytes) -> DelayIndex:
    """Every whole entry of the file, whatever the header counts. Raises :class:`GoQueueFileError`."""
    if len(data) > MAX_DELAY_INDEX_BYTES or len(data) < _DELAY_HEADER.size:
        message = f"{len(data)} bytes; a delay index has {_DELAY_HEADER.size} to {MAX_DELAY_INDEX_BYTES}"
        raise GoQueueFileError(message)
    magic, version, _, count = _DELAY_HEADER.unpack_from(data)
    if magic != _DELAY_MAGIC:
        raise GoQueueFileError("no delay index starts here")
    if version != _DELAY_VERSION:
        message = f"version {version} of the delay index is not known; {_DELAY_VERSION} is"
        raise GoQueueFileError(message)
    torn = (len(data) - _DELAY_HEADER.size) % _DELAY_ENTRY.size
    entries: list[DelayEntry] = []
    body = data[_DELAY_HEADER.size : len(data) - torn]
    for number, (offset, deliver_at_ns, partition, state) in enumerate(_DELAY_ENTRY.iter_unpack(body)):
        if not DelayState.PENDING <= state <= DelayState.EXPIRED or offset < 0 or partition < 0:
            message = f"entry {number} is damaged: offset {offset}, partition {partition}, state {state}"
            raise GoQueueFileError(message)
        entries.append(DelayEntry(offset, deliver_at_ns, partition, DelayState(state)))
    return DelayIndex(entries=tuple(entries), claimed_count=count, torn_bytes=torn)


def encode_offsets(offsets: GroupOffsets) -> bytes:
    """The bytes of an ``offsets.json``, indented as GoQueue does."""
    return msgspec.json.format(msgspec.json.encode(offsets), indent=2)


def decode_offsets(data: bytes) -> GroupOffsets:
    """Times come with microseconds. Raises :class:`GoQueueFileError`."""
    if len(data) > MAX_OFFSETS_BYTES:
        message = f"{len(data)} bytes of committed offsets; at most {MAX_OFFSETS_BYTES} are read"
        raise GoQueueFileError(message)
    try:
        offsets = msgspec.json.decode(data, type=GroupOffsets)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"the committed offsets cannot be read: {error}"
        raise GoQueueFileError(message) from error
    for topic in offsets.topics.values():
        for partition, committed in topic.partitions.items():
            if committed.offset < 0 or partition != committed.partition or partition < 0:
                message = f"topic {topic.topic!r}, partition {partition}: {committed} contradicts itself"
                raise GoQueueFileError(message)
    return offsets
