"""The index files of one segment on a disk: peeked at, read, written, removed."""

from __future__ import annotations

from contextlib import closing

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.file_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from assay.reference_broker.storage.index_files import (
    OFFSET_ENTRY_BYTES,
    OFFSET_HEADER_BYTES,
    IndexFileError,
    decode_offset_index,
    decode_time_index,
)
from assay.reference_broker.storage.offset_index import OffsetIndex
from assay.reference_broker.storage.time_index import TimeIndex

_MAX_INDEX_BYTES = 256 * 1024 * 1024
_COUNT_AT = 13
_COUNT_END = 17


class SegmentIndexFiles:
    """``<base>.idx`` and ``<base>.tix``. Methods raise :class:`OSError` when the disk fails."""

    __slots__ = ("_base_offset", "_disk", "_offset_path", "_time_path")

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self._disk = disk
        self._base_offset = base_offset
        self._offset_path = f"{folder}/{segment_name(base_offset, OFFSET_INDEX_SUFFIX)}"
        self._time_path = f"{folder}/{segment_name(base_offset, TIME_INDEX_SUFFIX)}"

    def last_entry(self) -> tuple[int, int] | None:
        """The last (relative offset, position) of the ``.idx``, which is not read as a whole.

        None unless both files exist and this one's header and last entry look sound.
        """
        if not self._disk.exists(self._offset_path) or not self._disk.exists(self._time_path):
            return None
        with closing(self._disk.open(self._offset_path)) as file:
            entries, rest = divmod(file.size - OFFSET_HEADER_BYTES, OFFSET_ENTRY_BYTES)
            if entries < 1 or rest:
                return None
            header = file.read_at(0, OFFSET_HEADER_BYTES)
            last = file.read_at(file.size - OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
        if int.from_bytes(header[_COUNT_AT:_COUNT_END], "little") > entries:
            return None
        uncounted = header[:_COUNT_AT] + bytes(_COUNT_END - _COUNT_AT) + header[_COUNT_END:]
        try:
            index = decode_offset_index(uncounted + last)
        except IndexFileError:
            return None
        return index.entries[0] if index.base_offset == self._base_offset else None

    def read(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """Both indexes; None when a file is missing, damaged or of another segment."""
        try:
            offsets = decode_offset_index(self._content(self._offset_path))
            times = decode_time_index(self._content(self._time_path))
        except (IndexFileError, FileNotFoundError):
            return None
        if not offsets.base_offset == times.base_offset == self._base_offset or not times.offsets:
            return None
        return OffsetIndex(offsets), TimeIndex(times)

    def _content(self, path: str) -> bytes:
        with closing(self._disk.open(path)) as file:
            return file.read_at(0, min(file.size, _MAX_INDEX_BYTES))

    def write(self, offsets: OffsetIndex, times: TimeIndex, *, below: int) -> None:
        """Write what is indexed before a file position, which must be durable."""
        for path, content in (
            (self._offset_path, offsets.encode(self._base_offset, below=below)),
            (self._time_path, times.encode(self._base_offset)),
        ):
            with closing(self._disk.open(path, create=True)) as file:
                file.truncate(0)
                file.write_at(0, content)

    def remove(self) -> None:
        """Remove what there is of them."""
        for path in (self._offset_path, self._time_path):
            if self._disk.exists(path):
                self._disk.remove(path)
