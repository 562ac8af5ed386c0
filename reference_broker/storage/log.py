"""The append-only log of a partition: segments, group commit, recovery by scan.

Implements :class:`reference_broker.core.queues.store.PartitionLog`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reference_broker.core.queues.errors import LogError
from reference_broker.core.queues.store import LogRecord, NewRecord
from reference_broker.storage.batch import MAX_BATCH_RECORDS, BatchEncoder, BatchError, BatchProblem
from reference_broker.storage.disk import Disk, DiskFile
from reference_broker.storage.file_names import parse_segment_name
from reference_broker.storage.record import RecordError
from reference_broker.storage.segment import Segment, SegmentScan

TARGET_BATCH_BYTES = 256 * 1024
"""A larger append is split into several batches, so that reading one record back stays cheap."""

Note = Callable[[str, str], None]
"""Called with (place, problem) for what people should know."""


class _Mark(NamedTuple):
    """A place in a log: an offset, and the position in its segment."""

    offset: int
    position: int


class FileSync:
    """Syncs files, then the folders whose entries changed."""

    __slots__ = ("_disk", "_files", "_folders")

    def __init__(self, disk: Disk, files: Sequence[DiskFile], folders: Sequence[str]) -> None:
        self._disk = disk
        self._files = tuple(files)
        self._folders = tuple(folders)

    def run(self) -> None:
        """Raises :class:`OSError`."""
        for file in self._files:
            file.sync()
        for folder in self._folders:
            self._disk.sync_folder(folder)


class SegmentedLog:
    """The records of one partition, in files of about ``segment_bytes``."""

    def __init__(
        self, disk: Disk, folder: str, *, segment_bytes: int, encoder: BatchEncoder, volatile: bool, note: Note
    ) -> None:
        """Open and recover. ``volatile``: the disk is memory, nothing ever needs a sync. Raises :class:`LogError`."""
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._encoder = encoder
        self._volatile = volatile
        self._note = note
        self._segments: list[Segment] = []
        self._failure = ""
        self._closed = False
        self._unsynced: dict[Segment, None] = {}
        self._names_unsynced = False
        self._syncing: tuple[Segment, ...] | None = None
        self._syncing_to = _Mark(0, 0)
        self._reading: Segment | None = None
        try:
            self._recover()
        except OSError as error:
            message = f"cannot read {folder}: {error.strerror or error}"
            raise LogError(message) from error
        self._durable = self._end()

    # -- recovery ------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        bases = [base for name in self._disk.list(self._folder) if (base := parse_segment_name(name)) is not None]
        for index, base in enumerate(sorted(bases)):
            segment = Segment(self._disk, self._folder, base)
            scan = segment.scan()
            self._report(segment, scan)
            if scan.tail_problem and index + 1 == len(bases):
                self._cut_torn_tail(segment, scan)
            segment.close()
            if self._segments and base < self._segments[-1].end_offset:
                message = f"{segment.path} overlaps the segment before it; one of them does not belong here"
                raise LogError(message)
            self._segments.append(segment)
        if self._segments and not self._volatile:
            # A broker that was killed may have left writes to the operating system; the next sync covers them.
            self._unsynced[self._segments[-1]] = None
            self._names_unsynced = True

    def _report(self, segment: Segment, scan: SegmentScan) -> None:
        for damage in scan.damages:
            self._note(
                f"{segment.path} bytes {damage.start} to {damage.end}",
                f"corrupt ({damage.problem}), sound batches follow; kept in place and skipped",
            )
        if self._segments and segment.base_offset > self._segments[-1].end_offset:
            self._note(
                segment.path,
                f"offsets {self._segments[-1].end_offset} to {segment.base_offset - 1} before it are missing",
            )

    def _cut_torn_tail(self, segment: Segment, scan: SegmentScan) -> None:
        """The last write did not finish: whatever it held was never confirmed as synced."""
        self._note(
            f"{segment.path} bytes {scan.sound_bytes} to {segment.size}",
            f"torn tail ({scan.tail_problem}); cut off",
        )
        segment.truncate(scan.sound_bytes, scan.end_offset)
        segment.file().sync()

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._segments[0].base_offset if self._segments else 0

    @property
    def next_offset(self) -> int:
        return self._segments[-1].end_offset if self._segments else 0

    @property
    def durable_offset(self) -> int:
        return self._durable.offset

    def _end(self) -> _Mark:
        last = self._segments[-1] if self._segments else None
        return _Mark(0, 0) if last is None else _Mark(last.end_offset, last.size)

    @property
    def stored_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def _refuse_when_failed(self) -> None:
        if self._failure:
            raise LogError(self._failure, sticky=True)
        if self._closed:
            raise LogError("the log is closed", sticky=True)

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[NewRecord]) -> int:
        """See :meth:`PartitionLog.append`."""
        self._refuse_when_failed()
        base_offset = self.next_offset
        pieces: list[bytes] = []
        batches: list[tuple[int, int, int]] = []
        try:
            for group in _split(records):
                self._encode(group, base_offset, pieces, batches)
        except (BatchError, RecordError) as error:
            raise LogError(str(error)) from error
        segment = self._active_segment()
        before, end_before = segment.size, segment.end_offset
        try:
            segment.append(b"".join(pieces), batches)
        except OSError as error:
            self._undo(segment, before, end_before)
            message = f"cannot write {segment.path}: {error.strerror or error}"
            raise LogError(message) from error
        if self._volatile:
            self._durable = self._end()
        else:
            self._unsynced[segment] = None
        return base_offset

    def _encode(
        self, records: Sequence[NewRecord], base_offset: int, pieces: list[bytes], batches: list[tuple[int, int, int]]
    ) -> None:
        """Add the batch of these records, or its halves when it would be too large. Raises :class:`BatchError`."""
        offset = base_offset if not batches else batches[-1][0] + batches[-1][1]
        try:
            piece = self._encoder.encode(offset, records)
        except BatchError as error:
            half = len(records) // 2
            if error.problem is not BatchProblem.TOO_LARGE or not half:
                raise
            self._encode(records[:half], base_offset, pieces, batches)
            self._encode(records[half:], base_offset, pieces, batches)
        else:
            pieces.append(piece)
            batches.append((offset, len(records), len(piece)))

    def _active_segment(self) -> Segment:
        """The segment to append to; a new one when the last is full. Raises :class:`LogError`."""
        if self._segments and self._segments[-1].size < self._segment_bytes:
            return self._segments[-1]
        segment = Segment(self._disk, self._folder, self.next_offset)
        try:
            self._disk.make_folder(self._folder)
            segment.file(create=True)
        except OSError as error:
            message = f"cannot create {segment.path}: {error.strerror or error}"
            raise LogError(message) from error
        self._names_unsynced = True
        self._segments.append(segment)
        return segment

    def _undo(self, segment: Segment, size: int, end_offset: int) -> None:
        """Cut a partial write off. When even that fails the log is in doubt and refuses everything."""
        try:
            segment.truncate(size, end_offset)
        except OSError as error:
            self._failure = f"{segment.path} has a partial write that cannot be cut off: {error.strerror or error}"

    # -- syncing -------------------------------------------------------------------------------------------------

    def start_sync(self) -> FileSync | None:
        """See :meth:`PartitionLog.start_sync`."""
        if self._syncing is not None or not self._unsynced:
            return None
        self._syncing = tuple(self._unsynced)
        self._syncing_to = self._end()
        folders = [self._folder, self._folder.rpartition("/")[0]] if self._names_unsynced else []
        self._unsynced.clear()
        self._names_unsynced = False
        return FileSync(self._disk, [segment.file() for segment in self._syncing], folders)

    def finish_sync(self, error: OSError | None) -> None:
        """See :meth:`PartitionLog.finish_sync`. After a failure the unsynced records are cut off if possible."""
        synced, self._syncing = self._syncing or (), None
        if error is None:
            self._durable = max(self._durable, self._syncing_to)
            for segment in synced:
                if self._is_idle(segment) and segment is not self._reading:
                    segment.close()
            return
        self._unsynced.clear()
        self._failure = (
            f"a sync of {self._folder} failed ({error.strerror or error}); nobody knows what is on disk, "
            "so this log refuses work until the broker restarts"
        )
        self._cut_unsynced()

    def _cut_unsynced(self) -> None:
        """Their publishers were refused, so a restart should not find them. Only a best effort: the disk is failing."""
        try:
            for segment in reversed(self._segments):
                if segment.end_offset <= self._durable.offset:
                    return
                if segment.base_offset >= self._durable.offset:
                    segment.truncate(0, segment.base_offset)
                else:
                    segment.truncate(self._durable.position, self._durable.offset)
        except OSError as error:
            self._note(self._folder, f"unsynced records cannot be cut off: {error.strerror or error}")

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, offset: int, limit: int) -> list[LogRecord]:
        """See :meth:`PartitionLog.read`."""
        at = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1
        records: list[LogRecord] = []
        for segment in self._segments[max(at, 0) :]:
            if len(records) >= limit:
                break
            if segment.end_offset <= offset:
                continue
            try:
                found, damages = segment.read(offset, limit - len(records))
            except OSError as error:
                message = f"cannot read {segment.path}: {error.strerror or error}"
                raise LogError(message) from error
            records += found
            for damage in damages:
                self._note(f"{segment.path} bytes {damage.start} to {damage.end}", f"unreadable ({damage.problem})")
            self._keep_open(segment)
        return records

    def _keep_open(self, segment: Segment) -> None:
        """At most one sealed segment stays open for reading, besides those being written or synced."""
        previous, self._reading = self._reading, segment
        if previous is not None and previous is not segment and self._is_idle(previous):
            previous.close()

    def _is_idle(self, segment: Segment) -> bool:
        return (
            segment is not self._segments[-1] and segment not in self._unsynced and segment not in (self._syncing or ())
        )

    # -- retention -----------------------------------------------------------------------------------------------

    def drop_before(self, offset: int) -> None:
        """Remove whole segments below an offset, oldest first; never the last one, never one being synced."""
        while len(self._segments) > 1 and self._segments[1].base_offset <= offset and self._is_idle(self._segments[0]):
            segment = self._segments[0]
            segment.close()
            try:
                self._disk.remove(segment.path)
            except OSError as error:
                self._note(segment.path, f"cannot be removed: {error.strerror or error}")
                return
            self._segments.pop(0)

    def close(self) -> None:
        """Close the files, without syncing them. Twice is fine."""
        self._closed = True
        for segment in self._segments:
            segment.close()


def _split(records: Sequence[NewRecord]) -> list[Sequence[NewRecord]]:
    """Cut into batches by count and payload size."""
    groups: list[Sequence[NewRecord]] = []
    start = size = 0
    for index, (_, _, value, _) in enumerate(records):
        size += len(value) if value is not None else 0
        if index > start and (size > TARGET_BATCH_BYTES or index - start >= MAX_BATCH_RECORDS):
            groups.append(records[start:index])
            start, size = index, len(value) if value is not None else 0
    groups.append(records[start:] if start else records)
    return groups
