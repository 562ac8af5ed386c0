"""``assay storage inspect``: what a data directory holds, as data. Reads every byte of the segments, writes nothing."""

from __future__ import annotations

from contextlib import closing

import msgspec

from assay.reference_broker.storage.durable_mark import MARK_NAME, decode_mark
from assay.reference_broker.storage.segment_scan import Damage
from assay.reference_broker.storage_tools.delays import read_delays
from assay.reference_broker.storage_tools.group_info import GroupInfo
from assay.reference_broker.storage_tools.group_reader import read_groups
from assay.reference_broker.storage_tools.index_check import IndexState
from assay.reference_broker.storage_tools.layout import (
    Codec,
    PartitionPlace,
    QueuePlace,
    SegmentPlace,
    StoreFormat,
    StoreLayout,
)
from assay.reference_broker.storage_tools.partition_files import read_cleaner
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.segment_exam import Progress, SegmentExam, examine_segment, no_progress
from assay.reference_broker.storage_tools.segment_reader import walk_chunks
from assay.reference_broker.storage_tools.snapshot_files import SnapshotInfo, read_snapshots

INSPECT_SCHEMA = "assay.storage.inspect/1"
_MAX_MARK_BYTES = 4_096


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A segment file. Times in Unix ms, None without records."""

    path: str
    base_offset: int
    end_offset: int
    bytes: int
    batches: int
    records: int
    compression: dict[str, int]
    """Codec -> batches."""
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    damaged_bytes: int
    offset_index: IndexState
    time_index: IndexState


class DurableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition is known to have been synced."""

    offset: int
    segment_base: int
    position: int


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A partition."""

    partition: int
    folder: str
    start_offset: int
    next_offset: int
    records: int
    bytes: int
    durable: DurableInfo | None
    """None when no sound mark is there."""
    compacted_until: int | None
    """Compaction has removed records below this offset; None when it never ran."""
    segments: list[SegmentInfo]


class DelaysInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The delayed messages of a queue. Times in Unix ms, None when nothing waits."""

    waiting: int
    done: int
    """Fired or cancelled, as far as their segments are still there."""
    undated: int
    """Without a due time: they never fire."""
    next_due_ms: int | None
    last_due_ms: int | None
    log: PartitionInfo
    done_log: PartitionInfo | None
    """Which of them fired or were cancelled."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, or a topic of GoQueue."""

    name: str
    folder: str
    records: int
    bytes: int
    partitions: list[PartitionInfo]
    groups: list[GroupInfo]
    delays: DelaysInfo | None = None
    """None where no message was ever delayed."""


class InspectReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole directory."""

    schema: str = INSPECT_SCHEMA
    directory: str
    format: StoreFormat
    in_use: bool
    """A broker has it open, so the figures are moving."""
    queues: list[QueueInfo]
    snapshots: list[SnapshotInfo]


class BatchInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch of a segment file, or a damaged range in it."""

    position: int
    end_position: int
    problem: str = ""
    """Why the range cannot be read; empty for a sound batch."""
    base_offset: int | None = None
    records: int = 0
    compression: str = ""
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None


class SegmentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One segment file, batch by batch."""

    schema: str = "assay.storage.segment/1"
    path: str
    format: StoreFormat
    bytes: int
    batches: list[BatchInfo]
    more_batches: int
    """Those over the limit of the list."""


def inspect_directory(
    disk: ReadOnlyDisk, layout: StoreLayout, *, queue: str | None = None, progress: Progress = no_progress
) -> InspectReport:
    """Describe a directory, or one queue of it. Raises LayoutError for an unknown queue, :class:`OSError`."""
    wanted = {(place.queue, place.folder) for place in layout.select(queue, None)}
    groups = read_groups(disk, layout)
    queues = []
    for place in layout.queues:
        if queue is not None and place.name != queue:
            continue
        partitions = [_partition(disk, one, progress) for one in place.partitions if (one.queue, one.folder) in wanted]
        queues.append(
            QueueInfo(
                name=place.name,
                folder=place.folder,
                records=sum(one.records for one in partitions),
                bytes=sum(one.bytes for one in partitions),
                partitions=partitions,
                groups=[group for group in groups if group.queue == place.name],
                delays=_delays(disk, place, progress),
            )
        )
    return InspectReport(
        directory=str(disk.root),
        format=layout.format,
        in_use=disk.is_in_use(),
        queues=queues,
        snapshots=read_snapshots(disk),
    )


def _delays(disk: ReadOnlyDisk, queue: QueuePlace, progress: Progress) -> DelaysInfo | None:
    state = read_delays(disk, queue)
    if state is None or queue.delayed is None:
        return None
    return DelaysInfo(
        waiting=state.waiting,
        done=state.done,
        undated=state.undated,
        next_due_ms=state.next_due_ms,
        last_due_ms=state.last_due_ms,
        log=_partition(disk, queue.delayed, progress),
        done_log=None if queue.delays_done is None else _partition(disk, queue.delays_done, progress),
    )


def _partition(disk: ReadOnlyDisk, place: PartitionPlace, progress: Progress) -> PartitionInfo:
    durable, compacted_until = None, None
    if place.codec.format is StoreFormat.ASSAY:
        durable = _read_mark(disk, place.folder)
        try:
            cleaner = read_cleaner(disk, place.folder)
        except ValueError:
            cleaner = None
        compacted_until = None if cleaner is None else cleaner.gaps_until
    segments = []
    for number, segment in enumerate(place.segments):
        exam = examine_segment(
            disk, segment, place.codec, end_offset=place.end_offset_of(number), decode=False, progress=progress
        )
        segments.append(_segment(exam))
    return PartitionInfo(
        partition=place.partition,
        folder=place.folder,
        start_offset=segments[0].base_offset if segments else 0,
        next_offset=max(segments[-1].end_offset if segments else 0, 0 if durable is None else durable.offset),
        records=sum(one.records for one in segments),
        bytes=sum(one.bytes for one in segments),
        durable=durable,
        compacted_until=compacted_until,
        segments=segments,
    )


def _read_mark(disk: ReadOnlyDisk, folder: str) -> DurableInfo | None:
    try:
        mark = decode_mark(disk.read(f"{folder}/{MARK_NAME}", _MAX_MARK_BYTES))
    except FileNotFoundError:
        return None
    if mark is None:
        return None
    return DurableInfo(offset=mark.offset, segment_base=mark.segment_base, position=mark.position)


def _segment(exam: SegmentExam) -> SegmentInfo:
    return SegmentInfo(
        path=exam.path,
        base_offset=exam.base_offset,
        end_offset=exam.end_offset,
        bytes=exam.bytes,
        batches=exam.batches,
        records=exam.records,
        compression=exam.compression,
        first_timestamp_ms=exam.first_timestamp_ms,
        last_timestamp_ms=exam.last_timestamp_ms,
        damaged_bytes=sum(bad.end - bad.start for bad in exam.bad_ranges),
        offset_index=exam.indexes[0].info.state,
        time_index=exam.indexes[1].info.state,
    )


def inspect_segment(disk: ReadOnlyDisk, segment: SegmentPlace, codec: Codec, *, limit: int) -> SegmentReport:
    """One file batch by batch, the first ``limit`` of them. Raises :class:`OSError`."""
    batches: list[BatchInfo] = []
    more = 0
    with closing(disk.open(segment.path)) as file:
        for found in walk_chunks(file, segment.base_offset, codec):
            if len(batches) >= limit:
                more += 1
            elif isinstance(found, Damage):
                batches.append(BatchInfo(position=found.start, end_position=found.end, problem=found.problem))
            else:
                batches.append(
                    BatchInfo(
                        position=found.position,
                        end_position=found.end,
                        base_offset=found.base_offset,
                        records=found.record_count,
                        compression=found.compression,
                        first_timestamp_ms=found.base_timestamp_ms,
                        last_timestamp_ms=found.max_timestamp_ms,
                    )
                )
        size = file.size
    return SegmentReport(path=segment.path, format=codec.format, bytes=size, batches=batches, more_batches=more)
