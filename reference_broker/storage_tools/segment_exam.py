"""Examines one segment file with its indexes: everything that ``inspect`` shows and ``verify`` judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import msgspec

from assay.reference_broker.storage.batch import BatchError
from assay.reference_broker.storage.segment_scan import Damage
from assay.reference_broker.storage_tools.index_check import (
    MAX_INDEX_BYTES,
    IndexCheck,
    IndexInfo,
)
from assay.reference_broker.storage_tools.index_rebuild import IndexFormat
from assay.reference_broker.storage_tools.layout import Codec, SegmentPlace, StoreFormat
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.segment_reader import Chunk, read_records, walk_chunks
from assay.reference_broker.storage_tools.torn_tail import looks_unfinished
from assay.reference_broker.trace.described import described

MAX_RANGES = 10_000
"""Damaged ranges and gaps listed for one segment; more are counted."""
_PROGRESS_BYTES = 1024 * 1024

Progress = Callable[[int], None]
"""Called with the bytes that were read since the last call."""


def no_progress(_: int) -> None:
    """For callers that show none."""


class BadRange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes of a segment that cannot be read, and the record offsets that were in them."""

    start: int
    end: int
    problem: str
    offset: int
    """The lowest offset that can have been there."""
    end_offset: int | None = None
    """First offset behind the range; None when nothing sound follows."""
    is_tail: bool = False
    is_unfinished: bool = False
    """A tail that looks like a write that did not finish, rather than like damage."""
    has_good_checksum: bool = False
    """The batch is as it was written, but its records do not decode."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that should come at a position of the segment and do not."""

    position: int
    offset: int
    end_offset: int


class IndexExam(msgspec.Struct, frozen=True, kw_only=True):
    """An index file held against its segment."""

    path: str
    info: IndexInfo
    problems: tuple[tuple[int, str, bool], ...]
    """(byte position in the index file, problem, whether it is harmless)."""


class SegmentExam(msgspec.Struct, frozen=True, kw_only=True):
    """A segment file as it is. Times in Unix ms."""

    path: str
    base_offset: int
    end_offset: int
    """First offset behind the last sound batch."""
    bytes: int
    batches: int
    records: int
    """As the batch headers say."""
    decoded_records: int
    compression: dict[str, int]
    """Codec -> batches."""
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    bad_ranges: tuple[BadRange, ...]
    gaps: tuple[Gap, ...]
    more_ranges: int
    """Bad ranges and gaps over the limit of the lists."""
    indexes: tuple[IndexExam, ...]
    """Of offsets, of times."""


class _Exam:
    """Collects what a walk over a segment shows."""

    def __init__(self, segment: SegmentPlace, checks: list[IndexCheck], *, decode: bool, gaps_are_fine_below: int):
        self.path = segment.path
        self.base_offset = self.end_offset = segment.base_offset
        self.bytes = self.batches = self.records = self.decoded_records = self.more_ranges = 0
        self.compression: dict[str, int] = {}
        self.first_timestamp_ms: int | None = None
        self.last_timestamp_ms: int | None = None
        self.indexes: list[IndexExam] = []
        self.bad_ranges: list[BadRange] = []
        self.gaps: list[Gap] = []
        self._checks = checks
        self._decode = decode
        self._fine_below = gaps_are_fine_below
        self._pending: Damage | None = None

    def see(self, found: Chunk | Damage) -> None:
        if isinstance(found, Damage):
            self._pending = found
            return
        if self._pending is not None:
            self._close_damage(self._pending, found.base_offset)
            self._pending = None
        elif found.base_offset > self.end_offset and found.base_offset > self._fine_below:
            gap = Gap(position=found.position, offset=self.end_offset, end_offset=found.base_offset)
            if self._has_room(self.gaps):
                self.gaps.append(gap)
        self._see_chunk(found)

    def _see_chunk(self, chunk: Chunk) -> None:
        self.batches += 1
        self.records += chunk.record_count
        self.compression[chunk.compression] = self.compression.get(chunk.compression, 0) + 1
        least_ms = min(chunk.base_timestamp_ms, chunk.max_timestamp_ms)
        first_ms, last_ms = self.first_timestamp_ms, self.last_timestamp_ms
        self.first_timestamp_ms = least_ms if first_ms is None else min(first_ms, least_ms)
        self.last_timestamp_ms = chunk.max_timestamp_ms if last_ms is None else max(last_ms, chunk.max_timestamp_ms)
        self.end_offset = chunk.end_offset
        for check in self._checks:
            check.see(chunk)
        if self._decode:
            try:
                self.decoded_records += len(read_records(chunk))
            except BatchError as error:
                bad = BadRange(
                    start=chunk.position,
                    end=chunk.end,
                    problem=str(error),
                    offset=chunk.base_offset,
                    end_offset=chunk.end_offset,
                    has_good_checksum=True,
                )
                self._add_bad(bad)

    def _close_damage(self, damage: Damage, end_offset: int | None, *, is_unfinished: bool = False) -> None:
        bad = BadRange(
            start=damage.start,
            end=damage.end,
            problem=damage.problem,
            offset=self.end_offset,
            end_offset=end_offset,
            is_tail=damage.is_tail,
            is_unfinished=is_unfinished,
        )
        for check in self._checks:
            # Of a damaged tail nobody knows which offsets it held.
            check.see_damage(damage.start, damage.end, self.end_offset, end_offset or 1 << 63)
        self._add_bad(bad)

    def _add_bad(self, bad: BadRange) -> None:
        if self._has_room(self.bad_ranges):
            self.bad_ranges.append(bad)

    def _has_room(self, ranges: Sequence[BadRange | Gap]) -> bool:
        if len(ranges) < MAX_RANGES:
            return True
        self.more_ranges += 1
        return False

    def close_tail(self, *, is_unfinished: bool) -> None:
        """The walk ended with a damaged range."""
        if self._pending is not None:
            self._close_damage(self._pending, None, is_unfinished=is_unfinished)
            self._pending = None

    @property
    def tail(self) -> Damage | None:
        return self._pending


def examine_segment(
    disk: ReadOnlyDisk,
    segment: SegmentPlace,
    codec: Codec,
    *,
    end_offset: int | None,
    decode: bool,
    gaps_are_fine_below: int = 0,
    progress: Progress = no_progress,
) -> SegmentExam:
    """Read a whole segment and its indexes.

    ``end_offset``: base offset of the next segment; None for the last. ``decode``: take every record apart, too.
    ``gaps_are_fine_below``: a compaction removed records below this offset. Raises :class:`OSError`.
    """
    is_final = end_offset is not None or codec.format is StoreFormat.ASSAY
    checks: dict[str, IndexCheck] = {}
    for suffix in codec.format.index_suffixes:
        path = segment.stem + suffix
        checks[path] = IndexCheck(_read_index(disk, path), segment.base_offset, IndexFormat(suffix), is_final=is_final)
    exam = _Exam(segment, list(checks.values()), decode=decode, gaps_are_fine_below=gaps_are_fine_below)
    with closing(disk.open(segment.path)) as file:
        reported = 0
        for found in walk_chunks(file, segment.base_offset, codec, end_offset=end_offset):
            exam.see(found)
            end = found.end
            if end - reported >= _PROGRESS_BYTES:
                progress(end - reported)
                reported = end
        tail = exam.tail
        exam.close_tail(is_unfinished=tail is not None and looks_unfinished(file, tail, codec))
        progress(file.size - reported)
        exam.bytes = file.size
    exam.indexes = [_index_exam(path, check) for path, check in checks.items()]
    return msgspec.convert(exam, described(SegmentExam), from_attributes=True)


def _read_index(disk: ReadOnlyDisk, path: str) -> bytes | None:
    try:
        return disk.read(path, MAX_INDEX_BYTES)
    except FileNotFoundError:
        return None


def _index_exam(path: str, check: IndexCheck) -> IndexExam:
    state = check.finish()
    problems = tuple((problem.position, problem.problem, problem.is_harmless) for problem in check.problems)
    return IndexExam(path=path, info=check.info(state), problems=problems[:MAX_RANGES])
