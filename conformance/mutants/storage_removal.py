"""Planted bugs where storage removes and replaces: retention, compaction, snapshots, group logs; and legal variations.

As in :mod:`assay.conformance.mutants.storage`, most show only when power is lost at the wrong time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.storage import (
    log,
    log_opening,
    notes,
    offset_index,
    pending_recovery,
    segment_copies,
    snapshots,
    time_index,
)
from assay.reference_broker.storage.compaction import CompactionTask
from assay.reference_broker.storage.disk import Disk, DiskFile, RealFile
from assay.reference_broker.storage.durable_mark import DurableMark, DurableMarkFile
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.log_reader import LogReader
from assay.reference_broker.storage.pending_codec import LogFrame
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.segment import Segment
from assay.reference_broker.storage.segment_copies import SegmentCopier
from assay.reference_broker.storage.segment_indexes import SegmentIndexFiles
from assay.reference_broker.storage.sparse_log import ThinningTask

_FAR: Final = 2**62


# -- removing ----------------------------------------------------------------------------------------------------


@mutant("storage-drops-one-too-many", "dropping what is below an offset also drops the segment that holds it")
def drops_one_too_many(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def drop(self: SegmentedLog, count: int) -> None:
            original(self, min(count + 1, len(self._segments) - 1))

        return drop

    patch.wrap(SegmentedLog, "drop", make)


@mutant("storage-front-not-missed", "a log begins at its first segment, whatever was removed on purpose")
def front_not_missed(patch: Patch) -> None:
    patch.replace(log, "read_removed", lambda _disk, _path: None)


@mutant("storage-removal-not-told", "segments are removed without a word, so the next start takes them for lost")
def removal_not_told(patch: Patch) -> None:
    patch.replace(SegmentedLog, "tell_removal", lambda _self, _removed_to: True)


@mutant("storage-compacted-not-missed", "where compaction left gaps nobody looks which segments it left")
def compacted_not_missed(patch: Patch) -> None:
    patch.replace(SegmentCopier, "left", lambda _self, _segments: ())


@mutant("storage-damage-not-told", "what cannot be read is passed over without a word")
def damage_not_told(patch: Patch) -> None:
    patch.replace(LogReader, "report", lambda *_args: None)


@mutant("storage-damage-told-each-time", "damage is told as often as somebody comes there")
def damage_told_each_time(patch: Patch) -> None:
    patch.replace(notes, "MAX_PLACES", 0)


@mutant("storage-nameless-file-is-safe", "a sync of a file that was removed says yes")
def nameless_is_safe(patch: Patch) -> None:
    patch.replace(RealFile, "sync", lambda self: os.fsync(self._descriptor))


@mutant("storage-age-ignored", "a segment is never too old to be appended to")
def age_ignored(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def is_full(self: SegmentedLog, size: int, timestamp_ms: int) -> bool:
            return original(self, size, -_FAR)

        return is_full

    patch.wrap(SegmentedLog, "is_full", make)


@mutant("storage-compaction-drops-newest", "compaction keeps the first record of each key")
def compaction_drops_newest(patch: Patch) -> None:
    def make(original: Callable[..., dict[bytes, int]]) -> Callable[..., dict[bytes, int]]:
        def latest(self: CompactionTask) -> dict[bytes, int]:
            first: dict[bytes, int] = dict.fromkeys(original(self), -1)
            for segment in self._sources:
                for record in self._records(segment):
                    if record.key and first.get(record.key) == -1:
                        first[record.key] = record.offset
            return first

        return latest

    def is_kept(self: CompactionTask, record: LogRecord, latest: dict[bytes, int]) -> bool:
        return not record.key or latest.get(record.key, record.offset) >= record.offset

    patch.wrap(CompactionTask, "latest_offsets", make)
    patch.replace(CompactionTask, "is_kept", is_kept)


@mutant("storage-tombstone-kills-newer", "an expired deletion marker also takes what was written for its key later")
def tombstone_kills_newer(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def is_kept(self: CompactionTask, record: LogRecord, latest: dict[bytes, int]) -> bool:
            if record.key and record.value is None:
                latest[record.key] = _FAR
            return original(self, record, latest)

        return is_kept

    patch.wrap(CompactionTask, "is_kept", make)


@mutant("storage-tombstone-goes-first", "an expired deletion marker goes although the oldest segment is left as it is")
def tombstone_goes_first(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def copy(self: CompactionTask, group: list[Segment], latest: dict[bytes, int]) -> None:
            rest = [segment for segment in group if segment is not self._sources[0]]
            if rest:
                original(self, rest, latest)

        return copy

    patch.wrap(CompactionTask, "copy_group", make)


class _ForgetfulDisk:
    """Passes everything on but the syncs of folders."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync_folder(self, path: str) -> None:
        """Say yes."""


@mutant("storage-swap-without-folder-sync", "originals are removed before the name of their copy is durable")
def swap_without_folder_sync(patch: Patch) -> None:
    def make(original: Callable[[CompactionTask], None]) -> Callable[[CompactionTask], None]:
        def run(self: CompactionTask) -> None:
            disk, self._disk = self._disk, _ForgetfulDisk(self._disk)
            try:
                original(self)
            finally:
                self._disk = disk

        return run

    patch.wrap(CompactionTask, "run", make)


@mutant("storage-swap-order-not-kept", "a copy is renamed while the removals of its originals are not durable yet")
def swap_order_not_kept(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def finish(disk: Disk, *arguments: Any) -> None:
            original(_ForgetfulDisk(disk), *arguments)

        return finish

    patch.wrap(log_opening, "finish_swap", make)
    patch.replace(segment_copies, "finish_swap", log_opening.finish_swap)


@mutant("storage-thinning-takes-the-last", "a copy of sparse segments ends before the last record that is wanted")
def thinning_takes_the_last(patch: Patch) -> None:
    def make(original: Callable[..., Iterator[LogRecord]]) -> Callable[..., Iterator[LogRecord]]:
        return lambda self: iter(list(original(self))[:-1])

    patch.wrap(ThinningTask, "kept", make)


@mutant("storage-thinning-drops-damage", "sparse segments are copied without what is damaged in them")
def thinning_drops_damage(patch: Patch) -> None:
    def sound(self: ThinningTask, group: list[Segment]) -> Iterator[LogRecord]:
        for segment in group:
            yield from self._records(segment)

    patch.replace(ThinningTask, "sound_records", sound)


# -- snapshots and groups ----------------------------------------------------------------------------------------


class _UnsyncedFile:
    """Passes everything on but syncs."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        """Say yes."""


class _UnsyncedFiles:
    """A disk whose files forget to sync."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False) -> _UnsyncedFile:
        return _UnsyncedFile(self._disk.open(path, create=create))


@mutant("storage-snapshot-renamed-before-sync", "a snapshot gets its name before its content is on disk")
def snapshot_renamed_before_sync(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def write(self: snapshots.SnapshotStore, path: str, data: bytes) -> None:
            disk, self._disk = self._disk, _UnsyncedFiles(self._disk)
            try:
                original(self, path, data)
            finally:
                self._disk = disk

        return write

    patch.wrap(snapshots.SnapshotStore, "write_file", make)


@mutant("storage-group-replay-stops-early", "replay of a group's log stops before the last frame")
def group_replay_stops_early(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def walk(file: DiskFile, start: int) -> Iterable[Any]:
            found = list(original(file, start))
            return found[:-1] if found and isinstance(found[-1], LogFrame) else found

        return walk

    patch.wrap(pending_recovery, "walk_frames", make)


@mutant("storage-batch-ack-one-too-many", "a range of acks takes in the offset behind it")
def batch_ack_one_too_many(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def ack_many(self: PendingLogFile, partition: int, ranges: Iterable[tuple[int, int]]) -> None:
            original(self, partition, [(first, end + 1) for first, end in ranges])

        return ack_many

    patch.wrap(PendingLogFile, "ack_many", make)


# -- legal variations --------------------------------------------------------------------------------------------


@variation("storage-no-index-files", "no index files are ever written")
def no_index_files(patch: Patch) -> None:
    def write(self: SegmentIndexFiles, *_: object, **__: object) -> None:
        """They are only hints."""

    patch.replace(SegmentIndexFiles, "write", write)


@variation("storage-every-batch-indexed", "every batch is in both indexes")
def every_batch_indexed(patch: Patch) -> None:
    patch.replace(offset_index, "INDEX_INTERVAL_BYTES", 1)
    patch.replace(time_index, "TIME_INTERVAL_MS", 1)


@variation("storage-mark-synced", "the durable mark is synced each time that it is written")
def mark_synced(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def write(self: DurableMarkFile, mark: DurableMark) -> None:
            original(self, mark)
            if self._file is not None:
                self._file.sync()

        return write

    patch.wrap(DurableMarkFile, "write", make)


@variation("storage-write-through", "every append is synced at once, and confirmed with the next sync")
def write_through(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def append(self: Segment, data: bytes, batches: Any) -> None:
            original(self, data, batches)
            self.file().sync()

        return append

    patch.wrap(Segment, "append", make)


@variation("storage-opening-verifies-everything", "index files are not trusted at opening, whatever the mark says")
def opening_verifies_everything(patch: Patch) -> None:
    def open_by_index(self: Segment) -> bool:
        return False

    patch.replace(Segment, "open_by_index", open_by_index)


@variation("storage-drops-late", "one more segment stays than must")
def drops_late(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def drop(self: SegmentedLog, count: int) -> None:
            original(self, max(0, count - 1))

        return drop

    patch.wrap(SegmentedLog, "drop", make)
