"""The append-only log of a partition: segments, group commit, reading by offset and time, retention.

Implements :class:`assay.reference_broker.queues.jobs.store.PartitionLog`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from assay.reference_broker.queues.jobs.errors import LogError, is_passing, reason_of
from assay.reference_broker.queues.jobs.store import Kept, LogRecord, NewRecord, RetentionPolicy
from assay.reference_broker.storage.batch import MAX_BATCH_RECORDS, BatchEncoder, Wanted
from assay.reference_broker.storage.batching import WriteBuffer, batches_of, bound_of
from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.disk_room import DiskRoom
from assay.reference_broker.storage.durable_mark import DurableMark, DurableMarkFile
from assay.reference_broker.storage.file_sync import FileSync
from assay.reference_broker.storage.log_opening import Note, OpenedLog, open_segments
from assay.reference_broker.storage.log_options import LogOptions
from assay.reference_broker.storage.log_reader import LogReader
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.removed_mark import read_removed, write_removed
from assay.reference_broker.storage.retention import expired_count
from assay.reference_broker.storage.segment import AppendedBatch, Segment

__all__ = ["LogOptions", "SegmentedLog"]

_MAX_RELATIVE_OFFSET = 2**32 - 1 - MAX_BATCH_RECORDS
_MAX_POSITION = 2**32 - 1
_RANGE_RECORDS = 1_000
_NEVER = 2**63
_NO_BUFFER = WriteBuffer()
"""Of all logs that write every append at once: nothing is ever in it, and there are many of them."""


class SegmentedLog:
    """The records of one partition, in segment files."""

    always_collects = False
    """Nothing is written: what :meth:`collect` has taken is in the log."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        options: LogOptions,
        encoder: BatchEncoder,
        volatile: bool,
        note: Note,
        open_files: OpenFiles | None = None,
        room: DiskRoom | None = None,
        removed_path: str = "",
    ) -> None:
        """Open and recover. ``volatile``: the disk is memory, nothing ever needs a sync. Raises :class:`LogError`.

        ``open_files`` bounds the files that are open, together with those of other logs; so does ``room`` what is
        written to a disk that is nearly full. ``removed_path``: where it is written down what segments were removed.
        """
        self._disk = disk
        self._folder = folder
        self._removed_path = removed_path
        self.options = options
        self._encoder = encoder
        self._volatile = volatile
        self.note = note
        self._failure = ""
        self._closed = False
        self._uncut: tuple[Segment, int, int] | None = None
        """A partial write behind that size and end of a segment, which could not be cut off yet."""
        self._buffer = WriteBuffer() if options.write_buffer_bytes else _NO_BUFFER
        self.collects = self.always_collects or bool(options.write_buffer_bytes)
        """What is appended need not be written at once: see :meth:`collect`."""
        self._room = None if volatile else room or DiskRoom(disk, options.reserve_bytes)
        self._open_files = None if volatile else open_files
        self._unsynced: dict[Segment, None] = {}
        self._names_unsynced = False
        self._named_until = -1
        """The names of segments with bases up to it are on disk."""
        self._unsettled: list[Segment] = []
        """Sealed, and still without the index files that they get once they are on disk as a whole."""
        self._syncing: tuple[Segment, ...] | None = None
        self._syncing_to = DurableMark(0, 0, 0)
        self._mark_file = DurableMarkFile(disk, folder, self._open_files)
        try:
            mark = None if volatile else self._mark_file.read()
            self._removed_to = read_removed(disk, removed_path) if removed_path else None
            opened = open_segments(disk, folder, mark, note, self._removed_to)
        except OSError as error:
            note(folder, f"cannot be opened: {reason_of(error)}")
            raise LogError(f"cannot read {folder}: {reason_of(error)}") from error
        self._segments = opened.segments
        self._reader = LogReader(self._segments, self._is_idle, note)
        self._next_offset = opened.next_offset
        self._roll_at_ms = _NEVER
        self._take_over(opened)
        self._durable = self._end()

    def _take_over(self, opened: OpenedLog) -> None:
        self._must_roll = opened.is_sealed
        for segment in opened.segments:
            segment.bound_by(self._open_files, self._is_synced)
        self._named_until = _NEVER if self._volatile else opened.named_until
        for segment in opened.segments[:-1]:
            self._reader.remember_loaded(segment)
        if opened.segments:
            self._set_age_limit(opened.segments[-1])
        if opened.segments and not self._volatile:
            # A broker that was killed may have left writes to the operating system; the next sync covers them.
            self._unsynced = dict.fromkeys([*opened.unverified, opened.segments[-1]])
            self._names_unsynced = True

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._segments[0].base_offset if self._segments else self._next_offset

    @property
    def next_offset(self) -> int:
        return self._next_offset

    @property
    def durable_offset(self) -> int:
        # What is in memory is as safe as it ever gets, so nobody keeps a mark of it.
        return self._next_offset - len(self._buffer.records) if self._volatile else self._durable.offset

    @property
    def needs_sync(self) -> bool:
        return bool(self._unsynced)

    @property
    def stored_bytes(self) -> int:
        return sum(segment.size for segment in self._segments) + self._buffer.size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first; the last one is appended to."""
        return tuple(self._segments)

    def _end(self) -> DurableMark:
        if not self._segments:
            return DurableMark(self._next_offset, 0, 0)
        last = self._segments[-1]
        return DurableMark(self._next_offset, last.base_offset, last.size)

    def _refuse_when_failed(self) -> None:
        if self._failure:
            raise LogError(self._failure, sticky=True)
        if self._closed:
            raise LogError("the log is closed", sticky=True)

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[NewRecord], *, transactional: bool = False, size_bytes: int = 0) -> int:
        """See :meth:`PartitionLog.append`. With a write buffer the records may only be collected so far."""
        if self._failure or self._closed:
            self._refuse_when_failed()
        base_offset = self._next_offset
        if self.collects:
            self.collect(records, size_bytes, transactional=transactional)
            return base_offset
        data, batches = batches_of(
            self._encoder, base_offset, records, self.options.batch_records, transactional=transactional
        )
        room = self._room
        if room is not None:
            if self.options.reserve_bytes:
                room.check(len(data))
            else:
                room.written_bytes += len(data)
        if not self._segments or self.is_full(len(data), records[0][0]):
            self.roll()
        self.write(data, batches)
        self._next_offset = base_offset + len(records)
        return base_offset

    def keep(self, messages: Sequence[Kept], size_bytes: int) -> int:
        """See :meth:`PartitionLog.keep`."""
        return self.append([message.record() for message in messages], size_bytes=size_bytes)

    def write(self, data: bytes, batches: list[AppendedBatch]) -> None:
        """To the active segment, all or nothing. Raises :class:`LogError`."""
        segment = self._segments[-1]
        if self._uncut is not None:
            self._cut_rest()
        before, end_before = segment.size, segment.end_offset
        try:
            if segment.has_index_files:
                # They would be behind. Gone they cannot be mistaken for those that the sealed segment gets.
                segment.remove_index_files()
                self._names_unsynced = True
            segment.append(data, batches)
        except OSError as error:
            self.undo(segment, before, end_before)
            raise self._refusal("write", segment.path, error) from error
        if self._roll_at_ms == _NEVER:
            self.begin_age(batches[0].base_timestamp_ms)
        if not self._volatile:
            self._unsynced[segment] = None

    def undo(self, segment: Segment, size: int, end_offset: int) -> None:
        """Cut a partial write off; where even that fails, before anything else is written."""
        try:
            segment.truncate(size, end_offset)
        except OSError:
            self._uncut = (segment, size, end_offset)

    def _cut_rest(self) -> None:
        """Raises :class:`LogError` while a partial write is there that cannot be cut off."""
        if self._uncut is None:
            return
        segment, size, end_offset = self._uncut
        try:
            segment.truncate(size, end_offset)
        except OSError as error:
            raise self._refusal("cut a partial write off", segment.path, error) from error
        self._uncut = None

    def _refusal(self, doing: str, path: str, error: OSError) -> LogError:
        """What could not be done leaves the log as it was; people are told, too."""
        self.note(path, f"cannot {doing}: {reason_of(error)}; what was to be written is refused, the next is tried")
        return LogError(f"cannot {doing} {path}: {reason_of(error)}")

    def is_full(self, size: int, timestamp_ms: int) -> bool:
        """Whether the next append of that size and time must go to a new segment."""
        last = self._segments[-1]
        filled = last.size + self._buffer.size
        return (
            self._must_roll
            or filled >= self.options.segment_bytes
            or timestamp_ms >= self._roll_at_ms
            or filled + size > _MAX_POSITION
            or self._next_offset - last.base_offset > _MAX_RELATIVE_OFFSET
        )

    # -- write buffer --------------------------------------------------------------------------------------------

    def collect(self, records: Sequence[NewRecord], _size_bytes: int, *, transactional: bool) -> None:
        """Put records into the buffer; what cannot be taken is refused now, not when it is written."""
        size = bound_of(records)
        room = self._room
        if room is not None:
            if self.options.reserve_bytes:
                room.check(size)
            else:
                room.written_bytes += size
        if not self._segments or self.is_full(size, records[0][0]):
            self.roll()
        if self._roll_at_ms == _NEVER:
            self.begin_age(records[0][0])
        self._buffer.add(records, size, transactional=transactional)
        self._next_offset += len(records)
        if not self._volatile:
            self._unsynced[self._segments[-1]] = None
        if self._buffer.size > self.options.write_buffer_bytes:
            try:
                self.flush()
            except LogError:
                self._buffer.take_back(len(records), size)
                self._next_offset -= len(records)
                raise

    def flush(self) -> None:
        """Write what the buffer holds; it stays there when that fails. Raises :class:`LogError`."""
        if not self._buffer.records:
            return
        self._refuse_when_failed()
        buffer, end = self._buffer, self._segments[-1].end_offset
        most = self.options.batch_records
        self.write(*batches_of(self._encoder, end, buffer.records, most, transactional=buffer.transactional))
        self._buffer.clear()

    def roll(self) -> None:
        """Seal the active segment and begin a new one. Raises :class:`LogError`."""
        self._refuse_when_failed()
        self.flush()
        self._cut_rest()
        if self._segments and self._segments[-1].base_offset == self._next_offset:
            # Nothing was written to it yet.
            return
        segment = self.make_segment(self._next_offset)
        segment.bound_by(self._open_files, self._is_synced)
        try:
            self._disk.make_folder(self._folder)
            segment.create()
        except OSError as error:
            segment.close()
            raise self._refusal("create", segment.path, error) from error
        self._names_unsynced = True
        self._must_roll = False
        self._roll_at_ms = _NEVER
        if self._segments and self._removed_to is None and self._removed_path:
            with suppress(OSError):
                # A hint, that the next segment may bring as well.
                write_removed(self._disk, self._removed_path, self._segments[0].base_offset, durably=False)
                self._removed_to = self._segments[0].base_offset
        if self._segments:
            self._segments[-1].limit_offset = segment.base_offset
            if not self._volatile:
                self._unsettled.append(self._segments[-1])
        self._segments.append(segment)
        if not self._volatile:
            self._unsynced[segment] = None

    def begin_age(self, first_ms: int) -> None:
        """The active segment has its first record."""
        if self.options.segment_age_ms:
            self._roll_at_ms = first_ms + self.options.segment_age_ms

    def make_segment(self, base_offset: int) -> Segment:
        """One that nothing is in yet."""
        return Segment(self._disk, self._folder, base_offset)

    def _set_age_limit(self, segment: Segment) -> None:
        """Remember when the active segment will be too old."""
        try:
            first_ms = segment.first_timestamp_ms
        except OSError:
            first_ms = None
        if first_ms is not None:
            self.begin_age(first_ms)

    # -- syncing -------------------------------------------------------------------------------------------------

    def start_sync(self) -> FileSync | None:
        if self._syncing is not None or not self._unsynced or self._failure or self._closed:
            return None
        if self._buffer.records:
            try:
                self.flush()
            except LogError as error:
                self.note(self._folder, str(error))
        self._syncing = tuple(self._unsynced)
        last = self._segments[-1]
        self._syncing_to = DurableMark(last.end_offset, last.base_offset, last.size)
        marks = self._mark_file.take_due()
        folders = [self._folder, self._folder.rpartition("/")[0]] if self._names_unsynced or marks else []
        self._unsynced.clear()
        self._names_unsynced = False
        if self._buffer.records:
            self._unsynced[last] = None
        files: list[DiskFile] = []
        paths: list[str] = []
        for segment in self._syncing:
            if segment.is_open:
                files.append(segment.file())
            else:
                paths.append(segment.path)
        task = FileSync(self._disk, files, folders, paths=[*paths, *marks])
        task.place = self._folder
        return task

    def finish_sync(self, error: OSError | None) -> None:
        """See :meth:`PartitionLog.finish_sync`.

        After a failure the unsynced records are cut off if possible, unless somebody relies on them. A sync that was
        not tried changes nothing: the next one covers all that it was to cover.
        """
        synced, self._syncing = self._syncing or (), None
        if error is None:
            if self._syncing_to >= self._durable:
                self._durable = self._syncing_to
                self._write_mark()
            self._named_until = max(self._named_until, self._syncing_to.segment_base)
            last = self._segments[-1]
            for segment in dict.fromkeys((*synced, *self._unsettled)):
                if segment is not last:
                    self._settle_sealed(segment)
            return
        if is_passing(error):
            self._unsynced = dict.fromkeys((*synced, *self._unsynced))
            self._names_unsynced = True
            return
        self._unsynced.clear()
        self._failure = (
            f"a sync of {self._folder} failed ({reason_of(error)}); nobody knows what is on disk, "
            "so this log refuses work until the broker restarts"
        )
        self.note(self._folder, self._failure)
        if not self.options.unsynced_counts:
            self._cut_unsynced()

    def _write_mark(self) -> None:
        try:
            self._mark_file.write(self._durable)
        except OSError as error:
            self.note(self._folder, f"the durable mark cannot be written: {reason_of(error)}")

    def _settle_sealed(self, segment: Segment) -> None:
        """A sealed segment that is on disk as a whole gets its index files, and is closed."""
        if not self._is_idle(segment):
            return
        if segment in self._unsettled:
            self._unsettled.remove(segment)
        if not segment.has_index_files and segment.limit_offset is not None:
            try:
                segment.write_index_files(below=segment.size)
            except OSError as error:
                self.note(segment.path, f"its index files cannot be written: {reason_of(error)}")
            self._reader.remember_loaded(segment)
        self._reader.close_unless_reading(segment)

    def _cut_unsynced(self) -> None:
        """Their publishers were refused, so a restart should not find them. Only a best effort: the disk is failing."""
        durable = self._durable
        self._buffer.clear()
        try:
            for segment in reversed(self._segments):
                if segment.end_offset <= durable.offset:
                    break
                if segment.base_offset >= durable.offset:
                    segment.truncate(0, segment.base_offset)
                elif segment.base_offset == durable.segment_base:
                    segment.truncate(durable.position, durable.offset)
        except OSError as error:
            self.note(self._folder, f"unsynced records cannot be cut off: {reason_of(error)}")

    # -- reading -------------------------------------------------------------------------------------------------

    def report(self, offset: int, problem: str) -> None:
        self.note(f"{self._folder} offset {offset}", problem)

    def get(self, offset: int) -> LogRecord | None:
        """The record with exactly that offset; None when there is none or it is damaged. Raises :class:`LogError`."""
        self._show_buffer()
        return self._reader.get(offset)

    def read(self, offset: int, limit: int, wanted: Wanted = Wanted.ALL) -> list[LogRecord]:
        """See :meth:`PartitionLog.read`; fields that are not wanted come as None or ``()``, which is faster."""
        self._show_buffer()
        return self._reader.read(offset, limit, wanted)

    def read_range(self, start_offset: int, end_offset: int) -> Iterator[LogRecord]:
        """The records from one offset to below another, in order, a few batches in memory at a time.

        Raises :class:`LogError` on the way.
        """
        while start_offset < end_offset:
            records = self.read(start_offset, min(_RANGE_RECORDS, end_offset - start_offset))
            if not records:
                return
            for record in records:
                if record.offset >= end_offset:
                    return
                yield record
            start_offset = records[-1].offset + 1

    def offset_at(self, timestamp_ms: int) -> int:
        """Offset of the first record that is not earlier than a time; ``next_offset`` when all are.

        First by offset: where clocks stepped back, later records may be earlier. Raises :class:`LogError`.
        """
        self._show_buffer()
        offset = self._reader.offset_at(timestamp_ms)
        return self._next_offset if offset is None else offset

    def _show_buffer(self) -> None:
        """Write buffered records so that they can be read; where that fails the others still can."""
        if self._buffer.records:
            try:
                self.flush()
            except LogError as error:
                self.note(self._folder, str(error))

    def _is_synced(self, segment: Segment) -> bool:
        return segment not in self._unsynced and segment not in (self._syncing or ())

    def _is_idle(self, segment: Segment) -> bool:
        return segment is not self._segments[-1] and self._is_synced(segment)

    # -- retention -----------------------------------------------------------------------------------------------

    def drop_before(self, offset: int) -> None:
        """Remove whole segments below an offset, oldest first; never the last one, never one being synced."""
        count = 0
        while count + 1 < len(self._segments) and self._segments[count + 1].base_offset <= offset:
            count += 1
        self.drop(count)

    def retain(self, policy: RetentionPolicy, *, now_ms: int, needed_from: int | None) -> None:
        """See :meth:`PartitionLog.retain`.

        The active segment is sealed when all of it is too old; a call after the next sync deletes it.
        """
        self._show_buffer()
        try:
            count = expired_count(
                self._segments, policy, now_ms=now_ms, needed_from=needed_from, next_offset=self._next_offset
            )
        except OSError as error:
            raise LogError(f"cannot read {self._folder}: {reason_of(error)}") from error
        if count == len(self._segments) and count:
            self.roll()
            count = len(self._segments) - 1
        self.drop(count)

    def drop(self, count: int) -> None:
        """Remove the first ``count`` segments, but those that somebody still needs or reads."""
        while count and self._segments[count].base_offset > self._named_until:
            # Were a removal on disk and the name of what stays not, the log would begin anew at offset 0.
            count -= 1
        count = next((at for at, each in enumerate(self._segments[:count]) if not self._is_idle(each)), count)
        if not count or not self.tell_removal(self._segments[count].base_offset):
            return
        for segment in self._segments[:count]:
            try:
                segment.remove()
            except OSError as error:
                self.note(segment.path, f"cannot be removed: {reason_of(error)}")
                return
            self._segments.pop(0)
            self._forget(segment)

    def tell_removal(self, removed_to: int) -> bool:
        """Durably, so that a start can tell these segments from lost ones; False when the disk refuses it."""
        if not self._removed_path:
            return True
        try:
            write_removed(self._disk, self._removed_path, removed_to, durably=True)
        except OSError as error:
            self.note(self._folder, f"it cannot be written down what is removed, so nothing is: {reason_of(error)}")
            return False
        self._removed_to = removed_to
        return True

    def _forget(self, segment: Segment) -> None:
        """It is not part of the log any more."""
        self._reader.forget(segment)
        if segment in self._unsettled:
            self._unsettled.remove(segment)

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Compacted segments take the place of sealed ones; the files have been swapped already."""
        for segment in old:
            segment.close()
            self._forget(segment)
        for segment in new:
            segment.bound_by(self._open_files, self._is_synced)
        at = self._segments.index(old[0])
        self._segments[at : at + len(old)] = new

    def is_replaceable(self, segment: Segment) -> bool:
        """Sealed, on disk as a whole, and still part of the log."""
        return segment in self._segments and self._is_idle(segment) and segment.end_offset <= self.durable_offset

    def close(self) -> None:
        """Write the buffer and close the files, without syncing them. Twice is fine."""
        if self._closed:
            return
        self._show_buffer()
        if not self._volatile and not self._failure and not self._unsynced and self._segments:
            last = self._segments[-1]
            if not last.has_index_files:
                try:
                    last.write_index_files(below=last.size)
                except OSError as error:
                    self.note(last.path, f"its index files cannot be written: {reason_of(error)}")
        self._closed = True
        for segment in self._segments:
            segment.close()
        self._mark_file.close()
