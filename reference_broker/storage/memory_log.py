"""The log of a partition that ends with the process: what comes stays as it is, since hardly any is read again."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from assay.reference_broker.queues.jobs.store import Kept, LogRecord, NewRecord
from assay.reference_broker.storage.batch import Wanted
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.segment import AppendedBatch, Segment
from assay.reference_broker.storage.segment_scan import Damage

RECORD_BYTES: Final = 128
"""What a record takes beside its content and its headers."""
HEADER_BYTES: Final = 96
"""What a header takes beside its content: a tuple, and a byte string, since its name is mostly one of all."""


KEPT_BYTES: Final = 256
"""What a message takes that is kept, beside its content and properties: the objects of which it consists, and their
places."""
_ENQUEUED_AT: Final = attrgetter("enqueued_at")


class MemorySegment(Segment):
    """Records, or what they are made of, in a list. It has no file, and its sizes are about what they take."""

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        super().__init__(disk, folder, base_offset)
        self._records: list[NewRecord | Kept] = []

    def create(self) -> None:
        """There is nothing to make."""

    def remove(self) -> None:
        """Nothing is left once nobody has it."""

    def hold(self, records: Sequence[NewRecord | Kept], size_bytes: int, first_ms: int, latest_ms: int) -> None:
        """Append."""
        self._records += records
        self.adopt((AppendedBatch(self.end_offset, len(records), size_bytes, first_ms, latest_ms),), self.size)

    def get(self, offset: int) -> LogRecord | None:
        """As :meth:`Segment.get`."""
        at = offset - self.base_offset
        return LogRecord(offset, *_record(self._records[at])) if 0 <= at < len(self._records) else None

    def read(self, offset: int, limit: int, wanted: Wanted = Wanted.ALL) -> tuple[list[LogRecord], list[Damage]]:
        """As :meth:`Segment.read`: nothing is damaged, and all fields are there."""
        first = max(offset, self.base_offset)
        at = first - self.base_offset
        found = self._records[at : at + limit]
        return [LogRecord(each, *_record(one)) for each, one in enumerate(found, first)], []

    def offset_at(self, timestamp_ms: int) -> int | None:
        """As :meth:`Segment.offset_at`."""
        entry = self.indexes()[1].entry_before(timestamp_ms)
        records = self._records
        behind = range(0 if entry is None else entry[1], len(records))
        at = next((at for at in behind if _record(records[at])[0] >= timestamp_ms), None)
        return None if at is None else self.base_offset + at


def _record(one: NewRecord | Kept) -> NewRecord:
    return one if isinstance(one, NewRecord) else one.record()


class MemoryLog(SegmentedLog):
    """See the module's docstring. It has segments since what is settled is freed by them, and retention counts them."""

    always_collects = True

    def make_segment(self, base_offset: int) -> Segment:
        return MemorySegment(self._disk, self._folder, base_offset)

    def collect(self, records: Sequence[NewRecord], size_bytes: int, *, transactional: bool) -> None:
        """They are in the log with that."""
        headers = records[0][3]
        is_shared = headers is records[-1][3]  # as in a run of like messages
        count = len(headers) if is_shared else sum([len(record[3]) for record in records])
        size_bytes += RECORD_BYTES * len(records) + HEADER_BYTES * count
        self._hold(records, size_bytes, records[0][0], max([record[0] for record in records]))

    def keep(self, messages: Sequence[Kept], size_bytes: int) -> int:
        """As they are."""
        if self._failure or self._closed:
            self._refuse_when_failed()
        base_offset = self._next_offset
        latest_ms = round(max(map(_ENQUEUED_AT, messages)) * 1_000)
        self._hold(messages, size_bytes + KEPT_BYTES * len(messages), round(messages[0].enqueued_at * 1_000), latest_ms)
        return base_offset

    def _hold(self, records: Sequence[NewRecord | Kept], size_bytes: int, first_ms: int, latest_ms: int) -> None:
        if not self._segments or self.is_full(size_bytes, first_ms):
            self.roll()
        segment = self._segments[-1]
        assert isinstance(segment, MemorySegment)
        if not segment.size:
            self.begin_age(first_ms)
        segment.hold(records, size_bytes, first_ms, latest_ms)
        self._next_offset += len(records)
