"""``assay storage import``: copies records of a FluxMQ, GoQueue or Assay directory, or JSON lines, into a new queue.

The queue is built under ``queues/<queue>.importing`` and takes its name at the very end: a crash leaves no half queue.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import BatchEncoder, BatchError
from assay.reference_broker.storage.description import ROOT, QueueDescription
from assay.reference_broker.storage.disk import DiskFile, RealDisk
from assay.reference_broker.storage.file_names import encode_name
from assay.reference_broker.storage.segment_scan import Damage, SoundBatch
from assay.reference_broker.storage_tools.foreign.goqueue_log import SoundMessage
from assay.reference_broker.storage_tools.foreign.goqueue_message import GoQueueFlag, GoQueueLayout
from assay.reference_broker.storage_tools.foreign.goqueue_records import BrokerHeaders, ConversionError, to_record
from assay.reference_broker.storage_tools.json_lines import read_lines
from assay.reference_broker.storage_tools.layout import (
    DESCRIPTION_NAME,
    IMPORTING_SUFFIX,
    Codec,
    LayoutError,
    PartitionPlace,
    StoreFormat,
    find_layout,
    open_directory,
)
from assay.reference_broker.storage_tools.read_only_disk import LOCK_NAME, ReadOnlyDisk
from assay.reference_broker.storage_tools.segment_exam import Progress, no_progress
from assay.reference_broker.storage_tools.segment_reader import detect_segment_layout, walk_chunks
from assay.reference_broker.storage_tools.segment_writer import SegmentWriter, write_file

IMPORT_SCHEMA = "assay.storage.import/1"
JSON_LINES = "jsonl"
MAX_PARTITIONS = 10_000
_BATCH_RECORDS = 500
_BATCH_BYTES = 256 * 1024
_MAX_PROBLEMS = 100


class TransferError(ValueError):
    """An import or export cannot be done. ``str(error)`` says what to do."""


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to import."""

    queue: str
    """Name of the new queue."""
    source_queue: str | None = None
    """Queue (or topic) to copy; None: the one of the same name, or the only one."""
    source_format: StoreFormat | None = None
    message_layout: GoQueueLayout | None = GoQueueLayout.V34
    """Of GoQueue's messages; None: each segment's own."""
    partitions: int | None = None
    """Of the new queue; None: as many as the source has."""
    keep_offsets: bool = False
    """GoQueue and JSON lines: keep offsets, gaps included, instead of counting anew from 0."""
    skip_damaged: bool = False
    compression: Compression = Compression.NONE
    """Of batches that are encoded anew."""
    broker_headers: BrokerHeaders = BrokerHeaders.DROP


class ImportedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """What came into a partition."""

    partition: int
    records: int
    start_offset: int
    next_offset: int
    gaps: int
    """How often offsets are skipped."""
    left_out: int
    """Markers of transactions, which are no messages."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did."""

    schema: str = IMPORT_SCHEMA
    source: str
    source_format: str
    source_queue: str
    directory: str
    queue: str
    records: int
    partitions: list[ImportedPartition]
    skipped: list[str]
    """Damaged ranges that were left out, up to a hundred."""


class _Target:
    """A partition under construction: collects records into batches."""

    def __init__(self, disk: RealDisk, folder: str, partition: int, encoder: BatchEncoder) -> None:
        self.writer = SegmentWriter(disk, f"{folder}/partitions/{partition}", encoder)
        self.partition = partition
        self.records = self.left_out = 0
        self._pending: list[NewRecord] = []
        self._pending_bytes = 0
        self._pending_base = 0

    @property
    def next_offset(self) -> int:
        return self._pending_base + len(self._pending) if self._pending else self.writer.next_offset

    def add(self, offset: int, record: NewRecord) -> None:
        """Raises :class:`ValueError` when the offset goes back or the record fits no batch."""
        if offset < self.next_offset:
            raise ValueError(f"offset {offset} goes back; at least {self.next_offset} is due")
        full = len(self._pending) >= _BATCH_RECORDS or self._pending_bytes >= _BATCH_BYTES
        if self._pending and (full or offset != self.next_offset):
            self.flush()
        if not self._pending:
            self._pending_base = offset
        self._pending.append(record)
        self._pending_bytes += len(record.value or b"") + len(record.key or b"")
        self.records += 1

    def flush(self) -> None:
        if self._pending:
            self.writer.add_records(self._pending_base, self._pending)
            self._pending, self._pending_bytes = [], 0

    def close(self) -> ImportedPartition:
        self.flush()
        self.writer.close()
        return ImportedPartition(
            partition=self.partition,
            records=self.records,
            start_offset=self.writer.first_offset or 0,
            next_offset=self.writer.next_offset,
            gaps=self.writer.gaps,
            left_out=self.left_out,
        )


class _Import:
    """One import into a staging folder."""

    def __init__(self, disk: RealDisk, folder: str, options: ImportOptions, progress: Progress) -> None:
        self._disk = disk
        self._folder = folder
        self._options = options
        self._progress = progress
        self._encoder = BatchEncoder(options.compression)
        self._targets: dict[int, _Target] = {}
        self.skipped: list[str] = []

    def target(self, partition: int) -> _Target:
        """Raises :class:`TransferError` for a partition that the queue does not have."""
        known = self._targets.get(partition)
        if known is None:
            limit = self._options.partitions or MAX_PARTITIONS
            if partition >= limit:
                message = f"the source has a partition {partition}, but the queue shall have only {limit}; "
                raise TransferError(message + "choose a higher --partitions")
            known = self._targets[partition] = _Target(self._disk, self._folder, partition, self._encoder)
        return known

    def copy_partition(self, source: ReadOnlyDisk, place: PartitionPlace) -> None:
        """Raises :class:`TransferError` at damage that is not to be skipped."""
        target = self.target(place.partition)
        for number, segment in enumerate(place.segments):
            file = source.open(segment.path)
            end_offset = place.end_offset_of(number)
            try:
                codec = self._codec_of(place, file, segment.path)
                for found in walk_chunks(file, segment.base_offset, codec, end_offset=end_offset):
                    if isinstance(found, Damage):
                        is_torn = found.is_tail and end_offset is None
                        self._skip(f"{segment.path} bytes {found.start} to {found.end}", found.problem, is_torn=is_torn)
                        continue
                    self._progress(found.size)
                    if isinstance(found.source, SoundBatch):
                        self._copy_batch(target, found.source, segment.path)
                    else:
                        self._copy_message(target, found.source, segment.path)
            finally:
                file.close()

    def _codec_of(self, place: PartitionPlace, file: DiskFile, path: str) -> Codec:
        """With the message layout that was asked for. Raises :class:`TransferError` when the messages have another."""
        asked = self._options.message_layout
        if place.codec.format is not StoreFormat.GOQUEUE or asked is None:
            return place.codec
        found = detect_segment_layout(file)
        if found is not None and found is not asked:
            raise TransferError(
                f"the messages in {path} have the {found.value}-byte layout, not the {asked.value}-byte one; "
                f"add --layout {found.value} if that is right, or --layout auto"
            )
        return Codec(format=place.codec.format, message_layout=asked)

    def _copy_batch(self, target: _Target, batch: SoundBatch, path: str) -> None:
        target.writer.add_batch(batch.header, batch.data)
        target.records += batch.header.record_count

    def _copy_message(self, target: _Target, found: SoundMessage, path: str) -> None:
        if found.message.flags & GoQueueFlag.CONTROL:
            target.left_out += 1
            return
        try:
            record = to_record(found.message, broker_headers=self._options.broker_headers)
        except ConversionError as error:
            self._skip(f"{path} byte {found.position}", str(error), is_torn=False)
            return
        offset = found.message.offset if self._options.keep_offsets else target.next_offset
        target.add(offset, record)

    def copy_line(self, partition: int, record: LogRecord) -> None:
        target = self.target(partition)
        new = NewRecord(record.timestamp_ms, record.key, record.value, record.headers)
        target.add(record.offset if self._options.keep_offsets else target.next_offset, new)

    def _skip(self, place: str, problem: str, *, is_torn: bool) -> None:
        if not is_torn and not self._options.skip_damaged:
            message = f"{place} cannot be read ({problem}); repair the source, or leave it out with --skip-damaged"
            raise TransferError(message)
        if len(self.skipped) < _MAX_PROBLEMS:
            self.skipped.append(f"{place}: {problem}")

    def finish(self) -> list[ImportedPartition]:
        """Sync all partitions and write the description."""
        done = [self._targets[number].close() for number in sorted(self._targets)]
        partitions = self._options.partitions or max(self._targets, default=0) + 1
        description = QueueDescription(version=1, name=self._options.queue, partitions=partitions)
        for name in ("partitions", "consumers"):
            self._disk.make_folder(f"{self._folder}/{name}")
        self._disk.sync_folder(f"{self._folder}/partitions")
        write_file(self._disk, f"{self._folder}/{DESCRIPTION_NAME}", msgspec.json.encode(description))
        return done


def import_source(
    source: Path, destination: Path, options: ImportOptions, *, progress: Progress = no_progress
) -> ImportReport:
    """Copy into a new queue of an Assay directory, which is created when it does not exist.

    ``source``: a data directory, a file of JSON lines, or ``-`` for standard input. Raises :class:`TransferError`,
    :class:`LayoutError`, JsonLineError, DirectoryInUseError and other :class:`OSError`.
    """
    check_destination(destination, options.queue)
    with _locked(destination) as disk:
        folder = f"{ROOT}/{encode_name(options.queue)}"
        staging = folder + IMPORTING_SUFFIX
        if disk.exists(staging):
            # An import that did not finish. No broker reads it.
            shutil.rmtree(disk.root / staging)
        disk.make_folder(staging)
        run = _Import(disk, staging, options, progress)
        try:
            if source.is_dir():
                source_format, source_queue = _import_directory(run, source, options)
            else:
                source_format, source_queue = JSON_LINES, _import_lines(run, source, options)
            partitions = run.finish()
        except BaseException:
            shutil.rmtree(disk.root / staging)
            raise
        disk.rename(staging, folder)
        for changed in (ROOT, ""):
            disk.sync_folder(changed)
    return ImportReport(
        source=str(source),
        source_format=source_format,
        source_queue=source_queue,
        directory=str(destination),
        queue=options.queue,
        records=sum(one.records for one in partitions),
        partitions=partitions,
        skipped=run.skipped,
    )


def check_destination(destination: Path, queue: str) -> None:
    """Refuse to overwrite anything. Raises :class:`TransferError`."""
    if destination.exists() and not destination.is_dir():
        raise TransferError(f"{destination} is a file; name the data directory to import into")
    if destination.is_dir() and any(destination.iterdir()):
        try:
            found = find_layout(ReadOnlyDisk(destination)).format
        except LayoutError as error:
            raise TransferError(f"{destination} is not empty and is no data directory; choose another one") from error
        if found is not StoreFormat.ASSAY:
            message = f"{destination} is a directory of {found}, which an import would mix up; choose another one"
            raise TransferError(message)
    if (destination / ROOT / encode_name(queue)).exists():
        raise TransferError(f"{destination} has a queue {queue!r} already; choose another name with --queue")


@contextmanager
def _locked(directory: Path) -> Iterator[RealDisk]:
    is_new = not directory.exists()
    disk = RealDisk(directory)
    disk.lock()
    try:
        yield disk
    except BaseException:
        if is_new:
            _remove_empty(directory)
        raise
    finally:
        disk.unlock()


def _remove_empty(directory: Path) -> None:
    """Take a directory away again that was made for an import and holds nothing."""
    with suppress(OSError):
        (directory / ROOT).rmdir()
        (directory / LOCK_NAME).unlink()
        directory.rmdir()


def _import_directory(run: _Import, source: Path, options: ImportOptions) -> tuple[str, str]:
    disk = open_directory(source)
    layout = find_layout(disk, options.source_format)
    name = options.source_queue
    if name is None:
        names = [queue.name for queue in layout.queues if not queue.is_internal]
        if options.queue in names:
            name = options.queue
        elif len(names) == 1:
            name = names[0]
        else:
            known = ", ".join(names[:20]) or "none"
            raise TransferError(f"choose which queue of {source} to import with --from-queue; there are: {known}")
    for place in layout.select(name, None):
        run.copy_partition(disk, place)
    return layout.format, name


def _import_lines(run: _Import, source: Path, options: ImportOptions) -> str:
    names: set[str] = set()
    with _opened(source) as lines:
        for queue, partition, record in read_lines(lines):
            if options.source_queue is not None and queue != options.source_queue:
                continue
            names.add(queue)
            if len(names) > 1:
                message = f"the lines hold several queues ({', '.join(sorted(names))}); choose one with --from-queue"
                raise TransferError(message)
            try:
                run.copy_line(partition, record)
            except (BatchError, ValueError) as error:
                raise TransferError(f"queue {queue}, partition {partition}, offset {record.offset}: {error}") from error
    return next(iter(names), "")


@contextmanager
def _opened(source: Path) -> Iterator[BinaryIO]:
    with ExitStack() as stack:
        if str(source) == "-":
            yield sys.stdin.buffer
        else:
            yield stack.enter_context(source.open("rb"))
