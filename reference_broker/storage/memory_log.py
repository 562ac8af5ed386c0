"""The log of a partition that ends with the process: its records stay as they came, since hardly any is read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import Wanted
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.segment import AppendedBatch, Segment
from assay.reference_broker.storage.segment_scan import Damage

RECORD_BYTES: Final = 128
"""What a record takes beside its content and its headers."""
HEADER_BYTES: Final = 96
"""What a header takes beside its content: a tuple, and a byte string, since its name is mostly one of all."""


class MemorySegment(Segment):
    """Records in a list. It has no file, and its sizes are about what they take."""

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        super().__init__(disk, folder, base_offset)
        self._records: list[NewRecord] = []

    def create(self) -> None:
        """There is nothing to make."""

    def remove(self) -> None:
        """Nothing is left once nobody has it."""

    def hold(self, records: Sequence[NewRecord], size_bytes: int) -> None:
        """Append."""
        first_ms = latest_ms = records[0][0]
        count = len(records)
        if count > 1:
            latest_ms = max([record[0] for record in records])
        self._records += records
        self.adopt((AppendedBatch(self.end_offset, count, size_bytes, first_ms, latest_ms),), self.size)

    def get(self, offset: int) -> LogRecord | None:
        """As :meth:`Segment.get`."""
        at = offset - self.base_offset
        return LogRecord(offset, *self._records[at]) if 0 <= at < len(self._records) else None

    def read(self, offset: int, limit: int, wanted: Wanted = Wanted.ALL) -> tuple[list[LogRecord], list[Damage]]:
        """As :meth:`Segment.read`: nothing is damaged, and all fields are there."""
        first = max(offset, self.base_offset)
        at = first - self.base_offset
        found = self._records[at : at + limit]
        return [LogRecord(each, *record) for each, record in enumerate(found, first)], []

    def offset_at(self, timestamp_ms: int) -> int | None:
        """As :meth:`Segment.offset_at`."""
        entry = self.indexes()[1].entry_before(timestamp_ms)
        records = self._records
        behind = range(0 if entry is None else entry[1], len(records))
        at = next((at for at in behind if records[at][0] >= timestamp_ms), None)
        return None if at is None else self.base_offset + at


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
        if not self._segments or self.is_full(size_bytes, records[0][0]):
            self.roll()
        segment = self._segments[-1]
        assert isinstance(segment, MemorySegment)
        if not segment.size:
            self.begin_age(records[0][0])
        segment.hold(records, size_bytes)
        self._next_offset += len(records)
