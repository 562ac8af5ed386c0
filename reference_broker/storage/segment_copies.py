"""Copies of sealed segments that leave records out, whatever the reason; how a copy takes the place of its originals.

A copy counts only when it is on disk as a whole, so a crash at any time leaves the old records or the new ones. Steps:

1. write ``<base>.seg.compacting``, sync it;
2. rename it to ``<base>-<end>.swap``, sync the folder: from now on it counts;
3. remove the segments it replaces, rename it to ``<base>.seg``. After a crash opening the log repeats this step.

Offsets do not change. A batch's offsets are consecutive, as the format has it: gaps lie between batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress

import msgspec

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import MAX_BATCH_RECORDS, BatchEncoder, BatchError, decode_verified
from assay.reference_broker.storage.batching import TARGET_BATCH_BYTES
from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.file_names import COMPACTING_SUFFIX, segment_name, swap_name
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.log_opening import finish_swap
from assay.reference_broker.storage.segment import AppendedBatch, Segment
from assay.reference_broker.storage.segment_scan import Damage, walk_batches

MAX_RELATIVE_OFFSET = 2**32 - 1 - MAX_BATCH_RECORDS
"""Bases of segments that become one lie at most so far apart."""


class SegmentCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A complete compacted segment and what it replaces."""

    sources: tuple[Segment, ...]
    base_offset: int
    end_offset: int
    """Base of the segment behind the last one it replaces."""
    batches: tuple[AppendedBatch, ...]


class SegmentCopier:
    """Writes copies, in any thread. Its encoder must not be the log's own, whose buffers the log uses meanwhile."""

    runs_again = False
    """After an error another one begins anew; nobody waits for it."""

    def __init__(self, disk: Disk, folder: str, encoder: BatchEncoder, most: int = MAX_BATCH_RECORDS) -> None:
        """``most``: records of one batch."""
        self._most = most
        self._disk = disk
        self._folder = folder
        self._encoder = encoder
        self.place = folder
        self.copies: list[SegmentCopy] = []
        """Complete, and not put in place yet."""
        self.damaged: dict[Segment, str] = {}
        """Segments left as they are, and why."""

    def _records(self, segment: Segment) -> Iterator[LogRecord]:
        """What is sound; a segment with damage is noted, and not rewritten, so that it can be looked at."""
        with closing(self._disk.open(segment.path)) as file:
            for found in walk_batches(file, segment.base_offset, end_offset=segment.limit_offset):
                if isinstance(found, Damage):
                    self.damaged[segment] = f"bytes {found.start} to {found.end} are damaged ({found.problem})"
                    continue
                try:
                    yield from decode_verified(found.header, found.data)
                except BatchError as error:
                    self.damaged[segment] = f"byte {found.position}: {error}"

    def _write(self, group: Sequence[Segment], kept: Iterable[LogRecord]) -> None:
        """Write one copy with what is kept of its originals and make it count. Raises :class:`OSError`."""
        base_offset = group[0].base_offset
        temporary = f"{self._folder}/{segment_name(base_offset)}{COMPACTING_SUFFIX}"
        file = self._disk.open(temporary, create=True)
        try:
            file.truncate(0)
            batches = [self._append(file, run) for run in _runs(kept, self._most)]
            file.sync()
        except OSError:
            # The disk may be full: half a copy must not keep it so.
            with suppress(OSError):
                self._disk.remove(temporary)
            raise
        finally:
            file.close()
        end_offset = group[-1].limit_offset or group[-1].end_offset
        self._disk.rename(temporary, f"{self._folder}/{swap_name(base_offset, end_offset)}")
        self._disk.sync_folder(self._folder)
        copy = SegmentCopy(sources=tuple(group), base_offset=base_offset, end_offset=end_offset, batches=tuple(batches))
        self.copies.append(copy)

    def left(self, segments: Sequence[Segment]) -> tuple[tuple[int, int], ...]:
        """Base and bytes of what is left of these segments once the copies are in place."""
        copied = {source: copy for copy in self.copies for source in copy.sources}
        sizes: dict[int, int] = {}
        for segment in segments:
            copy = copied.get(segment)
            if copy is None:
                sizes[segment.base_offset] = segment.size
            else:
                sizes[copy.base_offset] = sum(batch.size for batch in copy.batches)
        return tuple(sizes.items())

    def sound_records(self, group: Iterable[Segment]) -> Iterator[LogRecord]:
        """Raises :class:`LogError` when there is damage: then there must be no copy."""
        for segment in group:
            yield from self._records(segment)
            if segment in self.damaged:
                raise LogError(f"{segment.path} was damaged while it was copied: {self.damaged[segment]}")

    def _append(self, file: DiskFile, run: list[LogRecord]) -> AppendedBatch:
        base_offset = run[0].offset
        data = self._encoder.encode(base_offset, [NewRecord(*record[1:]) for record in run])
        file.append(data)
        times = [record.timestamp_ms for record in run]
        return AppendedBatch(base_offset, len(run), len(data), times[0], max(times))


def put_in_place(disk: Disk, folder: str, log: SegmentedLog, copy: SegmentCopy) -> bool:
    """Put a copy in place; False when it is not wanted any more. Raises :class:`OSError`."""
    name = swap_name(copy.base_offset, copy.end_offset)
    if not all(log.is_replaceable(source) for source in copy.sources):
        # Retention took one of them meanwhile; what it removed must not come back.
        disk.remove(f"{folder}/{name}")
        return False
    for source in copy.sources:
        source.close()
    finish_swap(disk, folder, name, copy.base_offset, copy.end_offset)
    segment = Segment(disk, folder, copy.base_offset)
    segment.limit_offset = copy.end_offset
    segment.adopt(copy.batches)
    log.replace_segments(copy.sources, [segment])
    try:
        segment.write_index_files(below=segment.size)
    except OSError as error:
        log.note(segment.path, f"its index files cannot be written: {error.strerror or error}")
    return True


def _runs(records: Iterable[LogRecord], most: int) -> Iterator[list[LogRecord]]:
    """Cut into runs of consecutive offsets, each fit for one batch."""
    run: list[LogRecord] = []
    size = 0
    for record in records:
        full = size > TARGET_BATCH_BYTES or len(run) >= most
        if run and (record.offset != run[-1].offset + 1 or full):
            yield run
            run, size = [], 0
        run.append(record)
        size += len(record.value or b"") + len(record.key or b"")
    if run:
        yield run
