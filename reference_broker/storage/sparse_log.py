"""A log whose records are done with in any order: where few of a segment's are still wanted, the others make room.

Segments in which most records are done with are copied without them, several into one: see :mod:`segment_copies`. A
copy frees at least half a segment, or makes one of several small ones, so what is copied is never more than what that
frees, and what is stored stays near what is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from assay.reference_broker.queues.jobs.errors import LogError, reason_of
from assay.reference_broker.queues.jobs.store import LogRecord, WantedOffsets
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.cleaner_file import CleanerState, read_cleaner_file, write_cleaner_file
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.segment import Segment
from assay.reference_broker.storage.segment_copies import MAX_RELATIVE_OFFSET, SegmentCopier, put_in_place

_MOST_SEGMENTS = 8
"""Looked at, and copied, in one go."""
_MOST_OFFSETS = 262_144
"""When the offsets of so many records were looked at, the rest has time."""
_WANTED_SHARE = 4
"""A segment is sparse when at most one record in so many is wanted."""
_SMALL_SHARE = 8
"""A segment is small below so small a part of the size at which segments are sealed."""
_SMALL_GROUP = 4
"""So many small segments become one, though nothing is freed by that."""


class _Sparse(NamedTuple):
    segment: Segment
    kept_bytes: int
    """About."""


class ThinningTask(SegmentCopier):
    """Copies one group of segments. :meth:`run` in any thread."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        encoder: BatchEncoder,
        group: list[Segment],
        wanted: Iterable[int],
        state: CleanerState,
        most: int,
        below: Sequence[Segment],
    ) -> None:
        """``below``: every segment of the log that is not behind the group."""
        super().__init__(disk, folder, encoder, most)
        self._below = below
        self.group = group
        self.wanted = wanted
        """Iterated once."""
        end = _end_of(group[-1])
        self._behind = tuple(each for each in state.kept if each[0] >= end)
        # Which segments are left is not known before the copy is there.
        self.state = msgspec.structs.replace(state, gaps_until=max(state.gaps_until, end), kept=())

    def run(self) -> None:
        """Blocks. Raises :class:`OSError`. Segments with damage stay as they are."""
        write_cleaner_file(self._disk, self._folder, self.state)
        try:
            self._write(self.group, self.kept())
        except LogError:
            # What is damaged is noted when the task ends.
            return
        # Before the copy takes its place: what is named is there, with or without it.
        self.state = msgspec.structs.replace(self.state, kept=self.left(self._below) + self._behind)
        write_cleaner_file(self._disk, self._folder, self.state)

    def kept(self) -> Iterator[LogRecord]:
        """The records that outlive the thinning, in the order of their offsets."""
        wanted = frozenset(self.wanted)
        return (record for record in self.sound_records(self.group) if record.offset in wanted)


class SparseLog(SegmentedLog):
    """Implements :class:`assay.reference_broker.queues.jobs.store.SparseLog`."""

    _task: ThinningTask | None = None
    _unplaced: ThinningTask | None = None
    """Its copies could not be put in place yet; until they are, nothing may be copied over them."""
    _state: CleanerState | None = None
    _counts: Mapping[Segment, int] = MappingProxyType({})
    """Records of segments that were copied; others have one for each offset."""
    _damaged: frozenset[Segment] = frozenset()
    _looked_until = 0

    def start_thinning(self, wanted: WantedOffsets) -> ThinningTask | None:
        """See :meth:`assay.reference_broker.queues.jobs.store.SparseLog.start_thinning`."""
        if self._task is not None or self._failure or self._closed:
            return None
        if self._unplaced is not None and not self._put_in_place(self._unplaced):
            return None
        group = self._next_group(wanted)
        if not group:
            return None
        if self._state is None:
            try:
                self._state = read_cleaner_file(self._disk, self._folder, self.note)
            except OSError as error:
                self.note(self._folder, f"not thinned out: {reason_of(error)}")
                return None
        offsets = wanted.numbers(group[0].base_offset, _end_of(group[-1]))
        most = self.options.batch_records
        below = self._segments[: self._segments.index(group[-1]) + 1]
        self._task = ThinningTask(
            self._disk, self._folder, self._encoder.again(), group, offsets, self._state, most, below
        )
        return self._task

    def _next_group(self, wanted: WantedOffsets) -> list[Segment]:
        """Adjacent segments worth a copy among the next few; none when there are none, and others come next time."""
        window = [segment for segment in self._segments[:-1] if segment.base_offset >= self._looked_until]
        group: list[_Sparse] = []
        looked_at = 0
        for segment in window[:_MOST_SEGMENTS]:
            if looked_at >= _MOST_OFFSETS:
                break
            looked_at += 0 if self._is_small(segment) else _end_of(segment) - segment.base_offset
            sparse = self._sparse(segment, wanted)
            if sparse is None or not self._fits(group, sparse):
                if self._is_worth(group):
                    break
                group = []
            self._looked_until = _end_of(segment)
            if sparse is not None:
                group.append(sparse)
        if not window or self._looked_until >= _end_of(window[-1]):
            self._looked_until = 0
        return [each.segment for each in group] if self._is_worth(group) else []

    def _sparse(self, segment: Segment, wanted: WantedOffsets) -> _Sparse | None:
        """None for a segment that stays as it is."""
        if segment in self._damaged or not self.is_replaceable(segment) or _end_of(segment) > self._named_until:
            # Were the next segment's name lost, the end of a copy would be taken for the end of the log.
            return None
        if self._is_small(segment):
            # Not worth counting: it may become part of a larger one.
            return _Sparse(segment, segment.size)
        count = wanted.count(segment.base_offset, _end_of(segment))
        records = max(1, self._counts.get(segment, segment.end_offset - segment.base_offset))
        if _WANTED_SHARE * count > records:
            return None
        return _Sparse(segment, segment.size * min(count, records) // records)

    def _is_small(self, segment: Segment) -> bool:
        return _SMALL_SHARE * segment.size <= self.options.segment_bytes

    def _fits(self, group: list[_Sparse], sparse: _Sparse) -> bool:
        kept_bytes = sparse.kept_bytes + sum(each.kept_bytes for each in group)
        span = sparse.segment.base_offset - group[0].segment.base_offset if group else 0
        return kept_bytes <= self.options.segment_bytes and span <= MAX_RELATIVE_OFFSET

    def _is_worth(self, group: list[_Sparse]) -> bool:
        freed_bytes = sum(each.segment.size - each.kept_bytes for each in group)
        return 2 * freed_bytes >= self.options.segment_bytes or len(group) >= _SMALL_GROUP

    def finish_thinning(self, error: OSError | None) -> None:
        """See :meth:`assay.reference_broker.queues.jobs.store.SparseLog.finish_thinning`."""
        task, self._task = self._task, None
        if task is None:
            return
        for segment, problem in task.damaged.items():
            self._damaged |= {segment}
            self.note(segment.path, f"not thinned out: {problem}")
        if error is not None:
            self.note(self._folder, f"not thinned out: {reason_of(error)}; tried again later")
        self._put_in_place(task)

    def _put_in_place(self, task: ThinningTask) -> bool:
        """What cannot be put in place now is when the next thinning would begin, or when the log is opened again."""
        self._unplaced = task
        try:
            while task.copies:
                copy = task.copies[0]
                if put_in_place(self._disk, self._folder, self, copy):
                    self._state = task.state
                    self._count(copy.base_offset, sum(batch.record_count for batch in copy.batches))
                task.copies.pop(0)
        except OSError as error:
            self.note(self._folder, f"copies cannot be put in place: {reason_of(error)}; tried again later")
            return False
        self._unplaced = None
        return True

    def _count(self, base_offset: int, records: int) -> None:
        copied = {segment: records for segment in self._segments if segment.base_offset == base_offset}
        self._counts = {each: count for each, count in self._counts.items() if each in self._segments} | copied


def _end_of(segment: Segment) -> int:
    return segment.end_offset if segment.limit_offset is None else segment.limit_offset
