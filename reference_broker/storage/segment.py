"""One segment file: batches end to end, named by the offset of its first record, with its two indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.storage.batch import (
    HEADER_BYTES,
    MAGIC_BYTES,
    BatchError,
    Wanted,
    decode_header,
    decode_verified,
)
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.file_names import segment_name
from assay.reference_broker.storage.offset_index import OffsetIndex
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.reopened_file import FileOnDemand
from assay.reference_broker.storage.segment_indexes import SegmentIndexFiles
from assay.reference_broker.storage.segment_scan import BatchPlace, Damage, Window, scan_batches
from assay.reference_broker.storage.time_index import TimeIndex

_FIRST_READ_BYTES = 64 * 1024
_NOWHERE = (-1, 0)


class AppendedBatch(NamedTuple):
    """What the indexes need to know of a batch that was written."""

    base_offset: int
    record_count: int
    size: int
    base_timestamp_ms: int
    max_timestamp_ms: int


class SegmentScan(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan found."""

    sound_bytes: int
    """End of the last sound batch."""
    end_offset: int
    """Offset after the last sound record."""
    damages: tuple[Damage, ...] = ()
    """Damage with sound batches behind it."""
    tail_problem: str = ""
    """Why the bytes after ``sound_bytes`` are no batch; empty when there are none."""


class Segment(FileOnDemand):
    """A segment of a log. Opens its file when needed; the log decides when to close it."""

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        super().__init__(disk, f"{folder}/{segment_name(base_offset)}", None)
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.limit_offset: int | None = None
        """Offsets stay below it: the base of the next segment, once there is one."""
        self.has_index_files = False
        """The index files hold all that is in memory, so that memory may forget it."""
        self._is_synced: Callable[[Segment], bool] | None = None
        self._index_files = SegmentIndexFiles(disk, folder, base_offset)
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = (OffsetIndex(), TimeIndex())
        self._is_proven = True
        """The indexes were built from the segment, not read from files that may be wrong."""
        self._latest_bound_ms: int | None = None
        self._read_on = _NOWHERE
        """Where the last read ended: (next offset, position)."""

    def bound_by(self, open_files: OpenFiles | None, is_synced: Callable[[Segment], bool]) -> None:
        """Count the file among those; it may be closed to make room for another while ``is_synced`` says so."""
        self._open_files = open_files
        self._is_synced = is_synced

    @property
    def may_close(self) -> bool:
        """See :class:`Closable`."""
        return self._is_synced is not None and self._is_synced(self)

    # -- opening -------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the file. Raises :class:`OSError`."""
        self.file(create=True)

    def scan(self) -> SegmentScan:
        """Verify every batch from the start, build both indexes. Linear in the file's size. Raises :class:`OSError`."""
        self.size = self.file().size
        self.has_index_files = False
        indexes = (OffsetIndex(), TimeIndex())
        scan = self._scan(indexes, self.base_offset, 0)
        self._keep(indexes, scan.end_offset, is_proven=True)
        return scan

    def _keep(self, indexes: tuple[OffsetIndex, TimeIndex], end_offset: int, *, is_proven: bool) -> None:
        self._indexes = indexes
        self._is_proven = is_proven
        self.end_offset = max(self.end_offset, end_offset)
        self._latest_bound_ms = indexes[1].latest_bound_ms

    def _scan(self, indexes: tuple[OffsetIndex, TimeIndex], end_offset: int, start: int) -> SegmentScan:
        """Verify the batches from a position on and add them to indexes."""
        damages: list[Damage] = []
        sound_bytes, tail_problem = start, ""
        add_offset, add_time, base = indexes[0].add, indexes[1].add, self.base_offset
        window = Window(self.file(), size=self.size)
        for found in scan_batches(window, end_offset, start=start, end_offset=self.limit_offset):
            if isinstance(found, Damage):
                if found.is_tail:
                    tail_problem = found.problem
                else:
                    damages.append(found)
                continue
            position, base_offset, count, size, base_ms, max_ms = found
            add_offset(base_offset - base, position)
            add_time(base_offset - base, base_ms, max_ms)
            end_offset = base_offset + count
            sound_bytes = position + size
        return SegmentScan(
            sound_bytes=sound_bytes, end_offset=end_offset, damages=tuple(damages), tail_problem=tail_problem
        )

    def open_by_index(self) -> bool:
        """Take the index files' word for what they cover and verify what lies from their last entry on.

        False when they are missing or do not fit the segment, or when what lies behind is not sound: then :meth:`scan`.
        Reads little, whatever the size of the segment. Raises :class:`OSError`.
        """
        self.size = self.file().size
        last = self._index_files.last_entry()
        if last is None or last[1] + HEADER_BYTES > self.size:
            return False
        relative_offset, position = last
        if not self._batch_starts(Window(self.file(), read_bytes=HEADER_BYTES), position, relative_offset):
            return False
        scan = self._scan((OffsetIndex(), TimeIndex()), self.base_offset + relative_offset, position)
        if scan.damages or scan.tail_problem:
            return False
        self.end_offset = scan.end_offset
        self._indexes = None
        self.has_index_files = True
        return True

    def is_right(self, number: int, window: Window) -> bool:
        """Whether the batch that an entry of the offset index names is there."""
        relative_offset, position = self.indexes()[0].entry(number)
        return number < 0 or self._is_proven or self._batch_starts(window, position, relative_offset)

    def _batch_starts(self, window: Window, position: int, relative_offset: int) -> bool:
        """Whether a batch header with that offset is where an index says."""
        header = window.bytes_at(position, 16)
        offset = int.from_bytes(header[8:16], "little")
        return header[:4] == MAGIC_BYTES and offset == self.base_offset + relative_offset

    # -- indexes -------------------------------------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        return self._indexes is not None

    @property
    def index_bytes(self) -> int:
        """About what the indexes take in memory; 0 when they are not there."""
        return 0 if self._indexes is None else 8 * len(self._indexes[0]) + 12 * len(self._indexes[1])

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes; read, checked and completed when they are not in memory, rebuilt when they do not fit."""
        if self._indexes is None:
            self._load()
        assert self._indexes is not None
        return self._indexes

    def _load(self) -> None:
        found = self._index_files.read()
        if found is None or not self._time_is_right(found):
            self.scan()
            return
        relative_offset, position = found[0].entry(len(found[0]) - 1)
        scan = self._scan(found, self.base_offset + relative_offset, position)
        self._keep(found, scan.end_offset, is_proven=False)

    def _time_is_right(self, indexes: tuple[OffsetIndex, TimeIndex]) -> bool:
        """Whether the batch that the last time entry names has that time."""
        timestamp_ms, relative_offset = indexes[1].last_entry
        number = indexes[0].floor(relative_offset)
        start_offset, position = indexes[0].entry(number)
        window = Window(self.file(), size=self.size, read_bytes=_FIRST_READ_BYTES)
        for found in scan_batches(window, self.base_offset + start_offset, start=position):
            if isinstance(found, BatchPlace) and found.base_offset >= self.base_offset + relative_offset:
                is_named = found.base_offset == self.base_offset + relative_offset
                return is_named and found.max_timestamp_ms == timestamp_ms
        return False

    @property
    def latest_bound_ms(self) -> int | None:
        """No record is later, in Unix ms; None when there is no record. Raises :class:`OSError`."""
        if self._latest_bound_ms is None and self._indexes is None:
            self._load()
        return self._latest_bound_ms

    @property
    def first_timestamp_ms(self) -> int | None:
        """The least base timestamp of a batch, in Unix ms. Raises :class:`OSError`."""
        return self.indexes()[1].min_timestamp_ms

    def write_index_files(self, *, below: int) -> None:
        """Write what is indexed before a file position, which must be durable. Raises :class:`OSError`."""
        offsets, times = self.indexes()
        if len(offsets):
            self._index_files.write(offsets, times, below=below)
            self.has_index_files = below >= self.size

    def forget_indexes(self) -> None:
        """Free their memory when the files hold everything; they are read again when needed."""
        if self.has_index_files:
            self._indexes = None

    def remove_index_files(self) -> None:
        """Raises :class:`OSError`."""
        self.has_index_files = False
        self._index_files.remove()

    def remove(self) -> None:
        """Delete the segment, then its indexes. Raises :class:`OSError`."""
        self.close()
        self._disk.remove(self.path)
        with suppress(OSError):
            # Opening the log removes indexes whose segment is gone.
            self.remove_index_files()

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, data: bytes, batches: list[AppendedBatch]) -> None:
        """Write batches given as one piece. Raises :class:`OSError`.

        After an error the file may end in a part of them: the log cuts it off with :meth:`truncate`.
        """
        if self._indexes is None:
            self._load()
        self.adopt(batches, (self._file or self.file()).append(data))

    def adopt(self, batches: Iterable[AppendedBatch], position: int = 0) -> None:
        """Index batches that are in the file from a position on."""
        offsets, times = self._indexes or self.indexes()
        base = self.base_offset
        for base_offset, count, size, base_ms, max_ms in batches:
            offsets.add(base_offset - base, position)
            times.add(base_offset - base, base_ms, max_ms)
            position += size
            self.end_offset = base_offset + count
        self.size = position
        self.has_index_files = False
        self._latest_bound_ms = times.max_timestamp_ms

    def truncate(self, size: int, end_offset: int) -> None:
        """Cut at a batch boundary. Raises :class:`OSError`."""
        offsets, times = self.indexes()
        self.file().truncate(size)
        offsets.truncate(size)
        times.truncate(end_offset - self.base_offset)
        self.size = size
        self.end_offset = end_offset
        self.has_index_files = False
        self._read_on = _NOWHERE

    # -- reading -------------------------------------------------------------------------------------------------

    def _window_at(self, number: int, end: int | None) -> tuple[Window, int, int] | None:
        """A window on the file, and least offset and position of an index entry. None when the index was wrong.

        Then it has been rebuilt: the batch may also be damaged, and either way a scan tells what can be read.
        """
        relative_offset, position = self.indexes()[0].entry(number)
        read_bytes = _FIRST_READ_BYTES if end is None else end - position
        window = Window(self.file(), size=self.size, read_bytes=read_bytes)
        if not self.is_right(number, window):
            self.scan()
            return None
        return window, self.base_offset + relative_offset, position

    def _walk(self, offset: int) -> tuple[Window, Iterator[BatchPlace | Damage]]:
        """A window and the walk through it, started at the batch that holds an offset or an indexed one before it."""
        if offset == self._read_on[0]:
            least, position = self._read_on
            window = Window(self.file(), size=self.size, read_bytes=_FIRST_READ_BYTES)
        else:
            offsets = self.indexes()[0]
            number = offsets.floor(offset - self.base_offset)
            found = self._window_at(number, offsets.following_position(number))
            if found is None:
                return self._walk(offset)
            window, least, position = found
        return window, scan_batches(window, least, start=position, end_offset=self.limit_offset)

    def get(self, offset: int) -> LogRecord | None:
        """The record with exactly that offset; None when it is missing or damaged. Raises :class:`OSError`."""
        window, walk = self._walk(offset)
        for found in walk:
            if isinstance(found, Damage) or found.base_offset + found.record_count <= offset:
                continue
            if found.base_offset > offset:
                break
            try:
                return _decode(window, found, offset, limit=1)[0]
            except BatchError:
                break
        return None

    def read(self, offset: int, limit: int, wanted: Wanted = Wanted.ALL) -> tuple[list[LogRecord], list[Damage]]:
        """Records from ``offset`` on, whole batches until ``limit`` is reached, and damage met. Raises OSError."""
        window, walk = self._walk(offset)
        records: list[LogRecord] = []
        damages: list[Damage] = []
        for found in walk:
            if isinstance(found, Damage):
                damages.append(found)
                continue
            position, base_offset, count, size, _, _ = found
            if base_offset + count <= offset:
                continue
            try:
                records += _decode(window, found, offset, wanted=wanted)
            except BatchError as error:
                damages.append(Damage(start=position, end=position + size, problem=str(error)))
            if len(records) >= limit:
                self._read_on = (base_offset + count, position + size)
                break
        return records, damages

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Offset of the first record that is not earlier than a time; None when all are. Raises :class:`OSError`."""
        times = self.indexes()[1]
        entry = start = times.entry_before(timestamp_ms)
        if entry is not None and not self._is_proven:
            # The entry before it leads past it, so that it can be checked; one wrong entry is then always harmless.
            start = times.entry_before(entry[0])
        window, walk = self._walk(self.base_offset if start is None else self.base_offset + start[1])
        for found in walk:
            if isinstance(found, Damage):
                continue
            if start != entry and entry is not None and found.base_offset >= self.base_offset + entry[1]:
                if (found.max_timestamp_ms, found.base_offset - self.base_offset) != entry:
                    break
                start = entry
            if found.max_timestamp_ms < timestamp_ms:
                continue
            try:
                records = _decode(window, found)
            except BatchError:
                continue
            for record in records:
                if record.timestamp_ms >= timestamp_ms:
                    return record.offset
        if start == entry:
            return None
        self.scan()
        return self.offset_at(timestamp_ms)


def _decode(
    window: Window,
    place: BatchPlace,
    from_offset: int = 0,
    *,
    limit: int | None = None,
    wanted: Wanted = Wanted.ALL,
) -> list[LogRecord]:
    """Records of a batch whose checksum was verified, from an offset on. Raises :class:`BatchError`."""
    data, at = window.locate(place.position, place.size)
    return decode_verified(decode_header(data, at), data, at=at, from_offset=from_offset, limit=limit, wanted=wanted)
