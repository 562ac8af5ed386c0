"""One segment file: batches end to end, named by the offset of its first record."""

from __future__ import annotations

import msgspec

from reference_broker.core.queues.store import LogRecord
from reference_broker.storage.batch import (
    HEADER_BYTES,
    MAGIC_BYTES,
    MAX_BATCH_RECORDS,
    BatchError,
    BatchHeader,
    BatchProblem,
    decode_header,
    decode_verified,
    verify_checksum,
)
from reference_broker.storage.disk import Disk, DiskFile
from reference_broker.storage.file_names import segment_name
from reference_broker.storage.offset_index import OffsetIndex

_WINDOW_BYTES = 256 * 1024


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a segment that holds no sound batch although sound ones follow; it is kept and skipped."""

    start: int
    end: int
    problem: str


class SegmentScan(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan from the start found."""

    sound_bytes: int
    """End of the last sound batch."""
    end_offset: int
    """Offset after the last sound record."""
    damages: tuple[Damage, ...]
    tail_problem: str
    """Why the bytes after ``sound_bytes`` are no batch; empty when there are none."""


class _Window:
    """Reads a file through a sliding buffer, so that a scan costs few reads."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._start = 0
        self._data = b""

    def bytes_at(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer at the end of the file."""
        begin = position - self._start
        if begin < 0 or begin + length > len(self._data):
            self._data = self._file.read_at(position, max(length, _WINDOW_BYTES))
            self._start, begin = position, 0
        return self._data[begin : begin + length]

    def sound_batch(self, position: int) -> BatchHeader:
        """Header of the batch at a position, its checksum verified. Raises :class:`BatchError`."""
        header = decode_header(self.bytes_at(position, HEADER_BYTES))
        if position + header.total_bytes > self._file.size:
            raise BatchError(BatchProblem.TRUNCATED, f"{header.total_bytes} bytes claimed")
        verify_checksum(header, self.bytes_at(position, header.total_bytes))
        return header

    def next_batch(self, position: int, least_offset: int) -> tuple[int, BatchHeader] | None:
        """The first sound batch after a bad one at ``position``; None when there is none.

        While headers look sound their lengths say where to go on: a byte search would meet batches that a publisher
        has put into a payload. Only a broken header leaves no other way.
        """
        size = self._file.size
        bad = position
        while (header := self._header_or_none(bad)) is not None:
            at = bad + header.total_bytes
            if at >= size:
                return self._search(bad, position, least_offset, to_the_end=True)
            if (found := self._plausible(at, position, least_offset)) is not None:
                return at, found
            if self._header_or_none(at) is None:
                break
            bad = at
        return self._search(bad, position, least_offset, to_the_end=False)

    def _header_or_none(self, position: int) -> BatchHeader | None:
        try:
            return decode_header(self.bytes_at(position, HEADER_BYTES))
        except BatchError:
            return None

    def _search(
        self, bad: int, position: int, least_offset: int, *, to_the_end: bool
    ) -> tuple[int, BatchHeader] | None:
        """Look for a sound batch byte by byte behind a bad one.

        ``to_the_end``: the bad one claims all that is left, as a torn write does. Then what is found in it only counts
        when it is a chain of sound batches up to the end, so that it is the length that must be wrong.
        """
        at = bad + 1
        while at < self._file.size:
            chunk = self.bytes_at(at, _WINDOW_BYTES)
            hit = chunk.find(MAGIC_BYTES)
            if hit < 0:
                at += max(1, len(chunk) - len(MAGIC_BYTES) + 1)
                continue
            at += hit
            found = self._plausible(at, position, least_offset)
            if found is not None and (not to_the_end or self._chains_to_end(at)):
                return at, found
            at += 1
        return None

    def _chains_to_end(self, position: int) -> bool:
        """Whether sound batches reach from a position to exactly the end of the file."""
        try:
            while position < self._file.size:
                position += self.sound_batch(position).total_bytes
        except BatchError:
            return False
        return True

    def _plausible(self, at: int, bad_position: int, least_offset: int) -> BatchHeader | None:
        try:
            header = self.sound_batch(at)
        except BatchError:
            return None
        most_skipped = MAX_BATCH_RECORDS * ((at - bad_position) // HEADER_BYTES + 1)
        return header if least_offset <= header.base_offset <= least_offset + most_skipped else None


class Segment:
    """A segment of a log. Opens its file when needed; the log decides when to close it."""

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self.path = f"{folder}/{segment_name(base_offset)}"
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.index = OffsetIndex()
        self._disk = disk
        self._file: DiskFile | None = None

    def file(self, *, create: bool = False) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self.path, create=create)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def scan(self) -> SegmentScan:
        """Verify every batch from the start, build the index. Linear in the file's size. Raises :class:`OSError`."""
        file = self.file()
        self.size = file.size
        window = _Window(file)
        damages: list[Damage] = []
        position, tail_problem = 0, ""
        while position < self.size:
            try:
                header = window.sound_batch(position)
                if header.base_offset < self.end_offset:
                    raise BatchError(BatchProblem.BAD_HEADER, f"offset {header.base_offset} goes back")
            except BatchError as error:
                found = window.next_batch(position, self.end_offset)
                if found is None:
                    tail_problem = str(error)
                    break
                damages.append(Damage(start=position, end=found[0], problem=str(error)))
                position, header = found
            self.index.add(header.base_offset, position)
            self.end_offset = header.base_offset + header.record_count
            position += header.total_bytes
        return SegmentScan(
            sound_bytes=position, end_offset=self.end_offset, damages=tuple(damages), tail_problem=tail_problem
        )

    def append(self, data: bytes, batches: list[tuple[int, int, int]]) -> None:
        """Write batches given as one piece; ``batches`` are (base offset, record count, size). Raises OSError.

        After an error the file may end in a part of them: the log cuts it off with :meth:`truncate`.
        """
        position = self.file().append(data)
        for base_offset, count, size in batches:
            self.index.add(base_offset, position)
            position += size
            self.end_offset = base_offset + count
        self.size = position

    def truncate(self, size: int, end_offset: int) -> None:
        """Cut at a batch boundary. Raises :class:`OSError`."""
        self.file().truncate(size)
        self.index.truncate(size)
        self.size = size
        self.end_offset = end_offset

    def read(self, offset: int, limit: int) -> tuple[list[LogRecord], list[Damage]]:
        """Records from ``offset`` on, whole batches until ``limit`` is reached, and damage met. Raises OSError."""
        window = _Window(self.file())
        records: list[LogRecord] = []
        damages: list[Damage] = []
        position = self.index.floor(offset)
        least_offset = self.base_offset
        while position < self.size and len(records) < limit:
            try:
                header = window.sound_batch(position)
                if header.base_offset < least_offset:
                    raise BatchError(BatchProblem.BAD_HEADER, f"offset {header.base_offset} goes back")
                least_offset = header.base_offset + header.record_count
                if least_offset > offset:
                    batch = decode_verified(header, window.bytes_at(position, header.total_bytes))
                    records += [record for record in batch if record.offset >= offset]
            except BatchError as error:
                found = window.next_batch(position, least_offset)
                end = self.size if found is None else found[0]
                damages.append(Damage(start=position, end=end, problem=str(error)))
                position = end
            else:
                position += header.total_bytes
        return records, damages
