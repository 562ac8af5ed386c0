"""``assay storage dump``: the records of a directory one after the other, filtered, forwards or backwards.

Memory holds one batch at a time, backwards also where the batches of one segment start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import msgspec

from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.storage.batch import BatchError
from assay.reference_broker.storage.segment_scan import Damage
from assay.reference_broker.storage_tools.layout import PartitionPlace
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk, ReadOnlyFile
from assay.reference_broker.storage_tools.segment_reader import (
    Chunk,
    message_layout_of,
    read_chunk,
    read_records,
    walk_chunks,
)

Note = Callable[[str, str], None]
"""Called with (place, problem) for what cannot be read and was skipped."""


class RecordFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted."""

    from_offset: int = 0
    to_offset: int | None = None
    """First offset that is not wanted any more."""
    since_ms: int | None = None
    """Unix ms, inclusive."""
    until_ms: int | None = None
    """Unix ms, exclusive."""
    key: bytes | None = None

    def wants(self, record: LogRecord) -> bool:
        return (
            record.offset >= self.from_offset
            and (self.to_offset is None or record.offset < self.to_offset)
            and (self.since_ms is None or record.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or record.timestamp_ms < self.until_ms)
            and (self.key is None or record.key == self.key)
        )

    def may_want(self, chunk: Chunk) -> bool:
        """Whether a chunk can hold a wanted record, by its header."""
        return (
            chunk.end_offset > self.from_offset
            and (self.to_offset is None or chunk.base_offset < self.to_offset)
            and (self.since_ms is None or chunk.max_timestamp_ms >= self.since_ms)
        )


class PlacedRecord(NamedTuple):
    """A record and where it is."""

    place: PartitionPlace
    record: LogRecord


def read_partition(
    disk: ReadOnlyDisk,
    place: PartitionPlace,
    wanted: RecordFilter,
    note: Note,
    *,
    newest_first: bool = False,
    limit: int | None = None,
) -> Iterator[PlacedRecord]:
    """The wanted records of a partition, at most ``limit``. Raises :class:`OSError`."""
    left = limit
    numbers = range(len(place.segments))
    for number in reversed(numbers) if newest_first else numbers:
        if not _segment_may_hold(place, number, wanted):
            continue
        for record in _read_segment(disk, place, number, wanted, note, newest_first=newest_first):
            if left is not None:
                if not left:
                    return
                left -= 1
            yield PlacedRecord(place, record)


def _segment_may_hold(place: PartitionPlace, number: int, wanted: RecordFilter) -> bool:
    end_offset = place.end_offset_of(number)
    if end_offset is not None and end_offset <= wanted.from_offset:
        return False
    return wanted.to_offset is None or place.segments[number].base_offset < wanted.to_offset


def _read_segment(
    disk: ReadOnlyDisk, place: PartitionPlace, number: int, wanted: RecordFilter, note: Note, *, newest_first: bool
) -> Iterator[LogRecord]:
    segment = place.segments[number]
    end_offset = place.end_offset_of(number)
    with closing(disk.open(segment.path)) as file:
        walk = walk_chunks(file, segment.base_offset, place.codec, end_offset=end_offset)
        chunks = _wanted_chunks(walk, wanted, segment.path, note)
        for chunk in _backwards(chunks, file, place) if newest_first else chunks:
            try:
                records = read_records(chunk)
            except BatchError as error:
                note(f"{segment.path} bytes {chunk.position} to {chunk.end}", str(error))
                continue
            yield from filter(wanted.wants, reversed(records) if newest_first else records)


def _wanted_chunks(walk: Iterator[Chunk | Damage], wanted: RecordFilter, path: str, note: Note) -> Iterator[Chunk]:
    for found in walk:
        if isinstance(found, Damage):
            note(f"{path} bytes {found.start} to {found.end}", found.problem)
        elif wanted.may_want(found):
            yield found
        elif wanted.to_offset is not None and found.base_offset >= wanted.to_offset:
            return


def _backwards(chunks: Iterator[Chunk], file: ReadOnlyFile, place: PartitionPlace) -> Iterator[Chunk]:
    """The same chunks, last first; only their places are kept in between."""
    layout = message_layout_of(file, place.codec)
    positions, sizes = array("Q"), array("Q")
    for chunk in chunks:
        positions.append(chunk.position)
        sizes.append(chunk.size)
    for position, size in zip(reversed(positions), reversed(sizes), strict=True):
        yield read_chunk(file, position, size, layout)


def read_places(
    disk: ReadOnlyDisk,
    places: list[PartitionPlace],
    wanted: RecordFilter,
    note: Note,
    *,
    newest_first: bool = False,
    limit: int | None = None,
) -> Iterator[PlacedRecord]:
    """The wanted records of partitions, one partition after the other, at most ``limit`` in all."""
    left = limit
    for place in places:
        for found in read_partition(disk, place, wanted, note, newest_first=newest_first, limit=left):
            if left is not None:
                left -= 1
            yield found
        if left == 0:
            return
