"""Planted bugs of the storage engine, each of the kind that real engines had, and legal ways to store differently.

They are what the storage checks are judged by: crash points, bit flips, a full disk, a sync that fails. None of them
shows as long as nothing goes wrong, but for those that answer wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

from crc32c import crc32c

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage import batch, log, log_opening, segment_scan
from assay.reference_broker.storage.batch import HEADER_BYTES, BatchEncoder, BatchError, decode_header
from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.durable_mark import DurableMark, DurableMarkFile
from assay.reference_broker.storage.file_names import parse_swap_name
from assay.reference_broker.storage.file_sync import FileSync
from assay.reference_broker.storage.index_files import TIME_INTERVAL_MS
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.log_opening import Note, OpenedLog
from assay.reference_broker.storage.offset_index import OffsetIndex
from assay.reference_broker.storage.segment import Segment, SegmentScan
from assay.reference_broker.storage.segment_scan import BatchPlace, Window
from assay.reference_broker.storage.time_index import TimeIndex

_FAR: Final = 2**62
_LARGE_BYTES: Final = 16 * 1024 * 1024


# -- what a batch promises ---------------------------------------------------------------------------------------


@mutant("storage-checksum-skips-header", "the checksum covers the records only, not the header")
def checksum_skips_header(patch: Patch) -> None:
    def make(original: Callable[..., bytes]) -> Callable[..., bytes]:
        def encode(self: BatchEncoder, base_offset: int, records: list[NewRecord], **options: bool) -> bytes:
            data = original(self, base_offset, records, **options)
            return data[:4] + crc32c(data[HEADER_BYTES:]).to_bytes(4, "little") + data[8:]

        return encode

    patch.wrap(BatchEncoder, "encode", make)
    patch.replace(batch, "CHECKED_FROM", HEADER_BYTES)
    patch.replace(segment_scan, "CHECKED_FROM", HEADER_BYTES)


@mutant("storage-length-not-bounded", "a buffer of the claimed length is made before anything is compared with it")
def length_not_bounded(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def unpack(data: bytes, at: int) -> Any:
            fields = original(data, at)
            bytearray(min(fields[3], _LARGE_BYTES))
            return fields

        return unpack

    patch.replace(segment_scan, "HEADER", SimpleNamespace(unpack_from=make(batch.HEADER.unpack_from)))


@mutant("storage-middle-cut-like-a-tail", "whatever follows a damaged batch is taken for a torn tail")
def middle_cut_like_a_tail(patch: Patch) -> None:
    def none(*_: object, **__: object) -> None:
        """There is no sound batch behind damage."""

    patch.replace(segment_scan, "next_sound_batch", none)


@mutant("storage-long-batch-ends-the-log", "a damaged batch that claims all the rest of a file is believed")
def long_batch_ends_the_log(patch: Patch) -> None:
    def make(original: Callable[..., int | None]) -> Callable[..., int | None]:
        def find(window: Window, position: int, *rest: Any, **named: Any) -> int | None:
            with suppress(BatchError):
                header = decode_header(window.bytes_at(position, HEADER_BYTES))
                if position + header.total_bytes >= window.size:
                    return None
            return original(window, position, *rest, **named)

        return find

    patch.wrap(segment_scan, "next_sound_batch", make)


# -- syncing -----------------------------------------------------------------------------------------------------


def _syncing(patch: Patch, change: Callable[[list[DiskFile], list[str], list[str]], tuple[Any, Any, Any]]) -> None:
    """Sync other files, folders or paths than the log asked for."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: FileSync, disk: Disk, files: Iterable[DiskFile], folders: Any, *, paths: Any = ()) -> None:
            kept_files, kept_folders, kept_paths = change(list(files), list(folders), list(paths))
            original(self, disk, kept_files, kept_folders, paths=kept_paths)

        return build

    patch.wrap(FileSync, "__init__", make)


@mutant("storage-confirms-without-sync", "a sync confirms what was written without syncing the files")
def confirms_without_sync(patch: Patch) -> None:
    _syncing(patch, lambda files, folders, paths: ([], folders, []))


@mutant("storage-folder-not-synced", "the folder of a new segment is not synced")
def folder_not_synced(patch: Patch) -> None:
    _syncing(patch, lambda files, folders, paths: (files, [], paths))


@mutant("storage-sealed-not-synced", "a sync covers the newest segment only, not those sealed since the last one")
def sealed_not_synced(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(self: SegmentedLog) -> Any:
            self._unsynced = dict.fromkeys(list(self._unsynced)[-1:])
            return original(self)

        return start

    patch.wrap(SegmentedLog, "start_sync", make)


@mutant("storage-sync-confirms-later-appends", "a sync also confirms what was appended after it began")
def sync_confirms_later_appends(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def finish(self: SegmentedLog, error: OSError | None) -> None:
            self._syncing_to = self._end()
            original(self, error)

        return finish

    patch.wrap(SegmentedLog, "finish_sync", make)


@mutant("storage-sync-error-forgotten", "after a failed sync the next one is believed again")
def sync_error_forgotten(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def finish(self: SegmentedLog, error: OSError | None) -> None:
            if error is None:
                original(self, None)
                return
            # Nothing is confirmed now; the next sync, which finds clean pages, confirms it all.
            self._unsynced = dict.fromkeys([*(self._syncing or ()), self._segments[-1]])
            self._syncing = None

        return finish

    patch.wrap(SegmentedLog, "finish_sync", make)


@mutant("storage-mark-before-sync", "the durable mark is written when a sync begins")
def mark_before_sync(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(self: SegmentedLog) -> Any:
            task = original(self)
            if task is not None:
                self._mark_file.write(self._syncing_to)
            return task

        return start

    patch.wrap(SegmentedLog, "start_sync", make)


@mutant("storage-partial-write-stays", "what a full disk took of an append stays in the file")
def partial_write_stays(patch: Patch) -> None:
    def undo(self: SegmentedLog, segment: Segment, size: int, end_offset: int) -> None:
        """Leave it."""

    patch.replace(SegmentedLog, "undo", undo)


# -- recovery ----------------------------------------------------------------------------------------------------


@mutant("storage-tail-not-cut", "a torn tail stays, and the next batch is written behind it")
def tail_not_cut(patch: Patch) -> None:
    def cut(segment: Segment, scan: SegmentScan, note: Note) -> None:
        """Leave it."""

    patch.replace(log_opening, "cut_torn_tail", cut)


@mutant("storage-tail-cut-too-far", "a torn tail takes the last whole batch with it")
def tail_cut_too_far(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def cut(segment: Segment, scan: SegmentScan, note: Note) -> None:
            original(segment, scan, note)
            places = [
                place
                for place in segment_scan.scan_batches(Window(segment.file()), segment.base_offset)
                if isinstance(place, BatchPlace)
            ]
            if places:
                segment.truncate(places[-1].position, places[-1].base_offset)
                segment.file().sync()

        return cut

    patch.wrap(log_opening, "cut_torn_tail", make)


@mutant("storage-durable-tail-cut", "the durable mark is ignored: damage at the end is always a torn tail")
def durable_tail_cut(patch: Patch) -> None:
    def read(self: DurableMarkFile) -> DurableMark | None:
        """There is none."""

    patch.replace(DurableMarkFile, "read", read)


@mutant("storage-offsets-restart", "recovery overlooks empty segments, so that offsets below them are given out again")
def offsets_restart(patch: Patch) -> None:
    def make(original: Callable[..., OpenedLog]) -> Callable[..., OpenedLog]:
        def open_segments(*arguments: Any) -> OpenedLog:
            opened = original(*arguments)
            used = [segment for segment in opened.segments if segment.size]
            return opened._replace(segments=used, next_offset=used[-1].end_offset if used else 0)

        return open_segments

    patch.wrap(log, "open_segments", make)


@mutant("storage-swap-not-finished", "a compaction that a crash interrupted after its commit point is thrown away")
def swap_not_finished(patch: Patch) -> None:
    def finish(disk: Disk, folder: str) -> None:
        for name in disk.list(folder):
            if parse_swap_name(name) is not None:
                disk.remove(f"{folder}/{name}")

    patch.replace(log_opening, "finish_swaps", finish)


@mutant("storage-names-taken-for-durable", "segments are removed before the name of the one that stays is durable")
def names_taken_for_durable(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def drop(self: SegmentedLog, count: int) -> None:
            self._named_until = _FAR
            original(self, count)

        return drop

    patch.wrap(SegmentedLog, "drop", make)


# -- indexes -----------------------------------------------------------------------------------------------------


@mutant("storage-index-off-by-one", "the offset index gives the entry behind the one that is asked for")
def index_off_by_one(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def floor(self: OffsetIndex, relative_offset: int) -> int:
            return min(original(self, relative_offset) + 1, len(self) - 1)

        return floor

    patch.wrap(OffsetIndex, "floor", make)


@mutant("storage-index-believed", "what an index file says is not checked against the batches")
def index_believed(patch: Patch) -> None:
    def is_right(self: Segment, number: int, window: Window) -> bool:
        return True

    patch.replace(Segment, "is_right", is_right)


@mutant("storage-time-index-late", "the time index gives an entry that is not earlier than the time asked for")
def time_index_late(patch: Patch) -> None:
    def make(original: Callable[..., tuple[int, int] | None]) -> Callable[..., tuple[int, int] | None]:
        def entry_before(self: TimeIndex, timestamp_ms: int) -> tuple[int, int] | None:
            return original(self, timestamp_ms + TIME_INTERVAL_MS)

        return entry_before

    patch.wrap(TimeIndex, "entry_before", make)


@mutant("storage-time-index-believed", "what a time index file says is not checked against the batches")
def time_index_believed(patch: Patch) -> None:
    def make(original: Callable[..., int | None]) -> Callable[..., int | None]:
        def offset_at(self: Segment, timestamp_ms: int) -> int | None:
            self.indexes()
            self._is_proven = True
            return original(self, timestamp_ms)

        return offset_at

    patch.wrap(Segment, "offset_at", make)
