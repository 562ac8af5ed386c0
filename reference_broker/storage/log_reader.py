"""Reading a log across its segments, with bounds on what stays open and in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from assay.reference_broker.queues.jobs.errors import LogError, reason_of
from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.storage.batch import Wanted
from assay.reference_broker.storage.log_opening import Note
from assay.reference_broker.storage.segment import Segment
from assay.reference_broker.storage.segment_scan import Damage

_MAX_INDEX_BYTES = 4 * 1024 * 1024
"""What the indexes of sealed segments may take in memory; those used last stay."""


class LogReader:
    """Reads the segments of one log, oldest first in ``segments``, which the log changes. Raises :class:`LogError`."""

    def __init__(self, segments: Sequence[Segment], is_idle: Callable[[Segment], bool], note: Note) -> None:
        """``is_idle``: nobody writes or syncs the segment, so that it may be closed."""
        self._segments = segments
        self._is_idle = is_idle
        self._note = note
        self._reading: Segment | None = None
        self._loaded: dict[Segment, int] = {}
        self._loaded_bytes = 0

    def get(self, offset: int) -> LogRecord | None:
        """See :meth:`SegmentedLog.get`."""
        at = bisect_right(self._segments, offset, key=_base_offset) - 1
        if at < 0:
            return None
        segment = self._segments[at]
        with self._reads(segment):
            found = segment.get(offset)
            damages = segment.read(offset, 1)[1] if found is None else []
        self.report(segment, damages)
        return found

    def read(self, offset: int, limit: int, wanted: Wanted) -> list[LogRecord]:
        """See :meth:`SegmentedLog.read`."""
        at = max(0, bisect_right(self._segments, offset, key=_base_offset) - 1)
        records: list[LogRecord] = []
        while at < len(self._segments) and len(records) < limit:
            segment = self._segments[at]
            at += 1
            if segment.end_offset <= offset:
                continue
            with self._reads(segment):
                found, damages = segment.read(offset, limit - len(records), wanted)
            records = records + found if records else found
            self.report(segment, damages)
        return records

    def offset_at(self, timestamp_ms: int) -> int | None:
        """See :meth:`SegmentedLog.offset_at`; None when every record is earlier."""
        for segment in self._segments:
            with self._reads(segment):
                latest_ms = segment.latest_bound_ms
                offset = None if latest_ms is None or latest_ms < timestamp_ms else segment.offset_at(timestamp_ms)
            if offset is not None:
                return offset
        return None

    def report(self, segment: Segment, damages: list[Damage]) -> None:
        """Note what cannot be read."""
        for damage in damages:
            self._note(f"{segment.path} bytes {damage.start} to {damage.end}", f"unreadable ({damage.problem})")

    def refused(self, segment: Segment, error: OSError) -> None:
        """The disk does not give what it has."""
        self._note(segment.path, f"cannot be read: {reason_of(error)}; whoever asked is told, or asks again later")

    def _reads(self, segment: Segment) -> _Reading:
        """Around each use of a segment for reading: bounds what stays open and loaded, turns errors into LogError."""
        return _Reading(self, segment)

    def keep_open(self, segment: Segment) -> None:
        """At most one sealed segment stays open for reading, besides those being written or synced."""
        previous, self._reading = self._reading, segment
        if previous is not None and previous is not segment and self._is_idle(previous):
            previous.close()
        self.remember_loaded(segment)

    def remember_loaded(self, segment: Segment) -> None:
        """Note that a segment's indexes are in use; forget those of others when they take too much memory."""
        if not segment.is_loaded or segment.limit_offset is None:
            return
        self._loaded_bytes -= self._loaded.pop(segment, 0)
        size = self._loaded[segment] = segment.index_bytes
        self._loaded_bytes += size
        while self._loaded_bytes > _MAX_INDEX_BYTES and len(self._loaded) > 1:
            oldest = next(iter(self._loaded))
            self._loaded_bytes -= self._loaded.pop(oldest)
            oldest.forget_indexes()

    def close_unless_reading(self, segment: Segment) -> None:
        """Nothing is left to write to a segment."""
        if segment is not self._reading:
            segment.close()

    def forget(self, segment: Segment) -> None:
        """It is not part of the log any more."""
        self._loaded_bytes -= self._loaded.pop(segment, 0)
        if self._reading is segment:
            self._reading = None


class _Reading:
    """Context of one use of a segment for reading."""

    __slots__ = ("_reader", "_segment")

    def __init__(self, reader: LogReader, segment: Segment) -> None:
        self._reader = reader
        self._segment = segment

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._reader.keep_open(self._segment)
        if isinstance(error, OSError):
            self._reader.refused(self._segment, error)
            raise LogError(f"cannot read {self._segment.path}: {reason_of(error)}") from error


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
