"""Changes to one segment file, each by a new file that replaces the old one: ranges removed, indexes built anew."""

from __future__ import annotations

from collections.abc import Iterable

from reference_broker.storage.disk import Disk
from reference_broker.storage.foreign.goqueue_files import INDEX_INTERVAL_BYTES, encode_index
from reference_broker.storage.offset_index import OffsetIndex
from reference_broker.storage.segment_scan import Damage
from reference_broker.storage.time_index import TimeIndex
from reference_broker.storage_tools.layout import PartitionPlace, SegmentPlace, StoreFormat
from reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from reference_broker.storage_tools.segment_reader import Chunk, walk_chunks
from reference_broker.storage_tools.segment_writer import write_file, write_indexes

_COPY_BYTES = 1024 * 1024


def cut_ranges(disk: Disk, path: str, ranges: list[tuple[int, int]]) -> None:
    """Remove byte ranges, given in order, from a file. Raises :class:`OSError`; then the file is as it was."""
    source = disk.open(path)
    temporary = f"{path}.tmp"
    target = disk.open(temporary, create=True)
    try:
        target.truncate(0)
        position = 0
        for start, end in [*ranges, (source.size, source.size)]:
            while position < start:
                data = source.read_at(position, min(_COPY_BYTES, start - position))
                if not data:
                    break
                target.append(data)
                position += len(data)
            position = max(position, end)
        target.sync()
    finally:
        source.close()
        target.close()
    disk.rename(temporary, path)
    disk.sync_folder(path.rpartition("/")[0])


def rebuild_indexes(disk: Disk, reader: ReadOnlyDisk, place: PartitionPlace, segment: SegmentPlace) -> None:
    """Write both indexes of a segment from its batches. A segment without batches has none."""
    number = place.segments.index(segment)
    file = reader.open(segment.path)
    try:
        walk = walk_chunks(file, segment.base_offset, place.codec, end_offset=place.end_offset_of(number))
        chunks = (found for found in walk if not isinstance(found, Damage))
        if place.codec.format is StoreFormat.GOQUEUE:
            contents = _goqueue_indexes(chunks)
            for suffix, content in zip(place.codec.format.index_suffixes, contents, strict=True):
                write_file(disk, segment.stem + suffix, content)
            return
        indexes = (OffsetIndex(), TimeIndex())
        end = 0
        for chunk in chunks:
            relative = chunk.base_offset - segment.base_offset
            indexes[0].add(relative, chunk.position)
            indexes[1].add(relative, chunk.base_timestamp_ms, chunk.max_timestamp_ms)
            end = chunk.end
    finally:
        file.close()
    if end:
        write_indexes(disk, place.folder, segment.base_offset, indexes, below=end)
    else:
        for suffix in place.codec.format.index_suffixes:
            if disk.exists(segment.stem + suffix):
                disk.remove(segment.stem + suffix)
        disk.sync_folder(place.folder)


def _goqueue_indexes(chunks: Iterable[Chunk]) -> tuple[bytes, bytes]:
    """``.index`` and ``.timeindex``: the first message, then one after each 4096 bytes."""
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    for chunk in chunks:
        if not offsets or chunk.position - offsets[-1][1] >= INDEX_INTERVAL_BYTES:
            offsets.append((chunk.base_offset, chunk.position))
            times.append((chunk.indexed_time, chunk.base_offset))
    return encode_index(offsets), encode_index(times)
