"""Writes a partition's segments with their indexes and durable mark, at offsets that the caller chooses.

What a log cannot do, since it always goes on at its end: an import keeps the offsets of its source, gaps included.
Nothing is promised before :meth:`SegmentWriter.close`, which syncs everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.batch import (
    MAX_BATCH_RECORDS,
    BatchEncoder,
    BatchError,
    BatchHeader,
    BatchProblem,
    decode_header,
)
from assay.reference_broker.storage.cleaner_file import CleanerState, write_cleaner_file
from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.durable_mark import MARK_NAME, DurableMark, encode_slot
from assay.reference_broker.storage.file_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from assay.reference_broker.storage.offset_index import OffsetIndex
from assay.reference_broker.storage.time_index import TimeIndex
from assay.reference_broker.storage.whole_file import replace_whole

SEGMENT_BYTES = 64 * 1024 * 1024
_MAX_RELATIVE_OFFSET = 2**32 - 1 - MAX_BATCH_RECORDS
_WRITE_BYTES = 1024 * 1024
_SLOT_BYTES = 512


class SegmentWriter:
    """Appends batches to the segments of a new partition folder. Methods raise :class:`OSError`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        encoder: BatchEncoder,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        with_mark: bool = True,
    ) -> None:
        """``with_mark``: write Assay's durable mark, and its ``cleaner.json`` when there are gaps."""
        self._disk = disk
        self._folder = folder
        self._encoder = encoder
        self._segment_bytes = segment_bytes
        self._with_mark = with_mark
        self._file: DiskFile | None = None
        self._base_offset = self._size = 0
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._indexes = (OffsetIndex(), TimeIndex())
        self.first_offset: int | None = None
        self.next_offset = 0
        self.gaps = 0
        """How often offsets were skipped after the first."""
        self._gaps_until = 0
        self._last: DurableMark | None = None
        disk.make_folder(folder)

    def add_records(self, base_offset: int, records: Sequence[NewRecord]) -> None:
        """Records of consecutive offsets as one batch, or more when it would be too large.

        Raises :class:`BatchError` for a record that fits no batch.
        """
        try:
            batch = self._encoder.encode(base_offset, records)
        except BatchError as error:
            half = len(records) // 2
            if error.problem is not BatchProblem.TOO_LARGE or not half:
                raise
            self.add_records(base_offset, records[:half])
            self.add_records(base_offset + half, records[half:])
        else:
            self.add_batch(decode_header(batch), batch)

    def add_batch(self, header: BatchHeader, batch: bytes) -> None:
        """A whole encoded batch as it is. Raises :class:`ValueError` when its offsets go back."""
        base = header.base_offset
        if base < self.next_offset:
            raise ValueError(f"offset {base} goes back; at least {self.next_offset} is due")
        if self.first_offset is None:
            self.first_offset = base
        elif base > self.next_offset:
            self.gaps += 1
            self._gaps_until = base
        if self._file is not None and (
            self._size >= self._segment_bytes or base - self._base_offset > _MAX_RELATIVE_OFFSET
        ):
            self._finish_segment()
        if self._file is None:
            self._base_offset = base
            self._file = self._disk.open(f"{self._folder}/{segment_name(base)}", create=True)
        self._indexes[0].add(base - self._base_offset, self._size)
        self._indexes[1].add(base - self._base_offset, header.base_timestamp_ms, header.max_timestamp_ms)
        self._pieces.append(batch)
        self._piece_bytes += len(batch)
        self._size += len(batch)
        self.next_offset = base + header.record_count
        if self._piece_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        assert self._file is not None
        self._file.append(b"".join(self._pieces))
        self._pieces.clear()
        self._piece_bytes = 0

    def _finish_segment(self) -> None:
        assert self._file is not None
        self._write()
        self._file.sync()
        self._file.close()
        self._file = None
        write_indexes(self._disk, self._folder, self._base_offset, self._indexes, below=self._size)
        self._indexes = (OffsetIndex(), TimeIndex())
        self._last = DurableMark(self.next_offset, self._base_offset, self._size)
        self._size = 0

    def close(self) -> None:
        """Finish and sync everything. Twice is fine."""
        if self._file is not None:
            self._finish_segment()
            if self._with_mark and self._last is not None:
                write_mark(self._disk, self._folder, self._last)
        if self._with_mark and self._gaps_until:
            state = CleanerState(gaps_until=self._gaps_until)
            write_cleaner_file(self._disk, self._folder, state)
        self._disk.sync_folder(self._folder)


def write_indexes(
    disk: Disk, folder: str, base_offset: int, indexes: tuple[OffsetIndex, TimeIndex], *, below: int
) -> None:
    """Write both index files of a segment durably, each in place of what was there. Raises :class:`OSError`."""
    contents = (
        (OFFSET_INDEX_SUFFIX, indexes[0].encode(base_offset, below=below)),
        (TIME_INDEX_SUFFIX, indexes[1].encode(base_offset)),
    )
    for suffix, content in contents:
        write_file(disk, f"{folder}/{segment_name(base_offset, suffix)}", content)


def write_mark(disk: Disk, folder: str, mark: DurableMark) -> None:
    """Replace a partition's durable mark, whatever the old one said, durably. Raises :class:`OSError`."""
    write_file(disk, f"{folder}/{MARK_NAME}", bytes(_SLOT_BYTES) + encode_slot(1, mark))


def write_file(disk: Disk, path: str, content: bytes) -> None:
    """Replace a file: write beside it, sync, rename, sync the folder. Raises :class:`OSError`."""
    replace_whole(disk, path, content)
    disk.sync_folder(path.rpartition("/")[0])
