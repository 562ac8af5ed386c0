"""Changes to one segment file, each by a new file that replaces the old one: ranges removed, indexes built anew."""

from __future__ import annotations

from contextlib import closing

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.segment_scan import Damage
from assay.reference_broker.storage_tools.index_rebuild import IndexBuilder, IndexFormat
from assay.reference_broker.storage_tools.layout import PartitionPlace, SegmentPlace
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.segment_reader import walk_chunks
from assay.reference_broker.storage_tools.segment_writer import write_file

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
    """Write both indexes of a segment from its batches. A segment without batches has none. Raises :class:`OSError`."""
    number = place.segments.index(segment)
    builders = [IndexBuilder(segment.base_offset, IndexFormat(suffix)) for suffix in place.codec.format.index_suffixes]
    with closing(reader.open(segment.path)) as file:
        walk = walk_chunks(file, segment.base_offset, place.codec, end_offset=place.end_offset_of(number))
        for found in walk:
            if not isinstance(found, Damage):
                for builder in builders:
                    builder.add(found)
    for suffix, builder in zip(place.codec.format.index_suffixes, builders, strict=True):
        path = segment.stem + suffix
        if not builder.is_empty:
            write_file(disk, path, builder.encode())
        elif disk.exists(path):
            disk.remove(path)
    disk.sync_folder(place.folder)
