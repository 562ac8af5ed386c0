"""``assay storage export``: writes a queue as another broker's directory, or as JSON lines.

Everything is built beside the destination and takes its name at the end, so a crash leaves no half export.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import BatchEncoder, BatchError
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.segment_scan import Damage, SoundBatch
from assay.reference_broker.storage_tools.foreign.goqueue_files import LOGS_FOLDER
from assay.reference_broker.storage_tools.foreign.goqueue_log import GoQueueLogWriter
from assay.reference_broker.storage_tools.foreign.goqueue_message import GoQueueLayout, GoQueueMessageError
from assay.reference_broker.storage_tools.foreign.goqueue_records import BrokerHeaders, ConversionError, to_message
from assay.reference_broker.storage_tools.importing import TransferError
from assay.reference_broker.storage_tools.json_lines import encode_line
from assay.reference_broker.storage_tools.layout import PartitionPlace, StoreLayout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.segment_exam import Progress, no_progress
from assay.reference_broker.storage_tools.segment_reader import Chunk, read_records, walk_chunks
from assay.reference_broker.storage_tools.segment_writer import SegmentWriter

EXPORT_SCHEMA = "assay.storage.export/1"
STANDARD_OUTPUT = Path("-")
_MAX_PROBLEMS = 100


class ExportFormat(StrEnum):
    """What to write."""

    JSON_LINES = "jsonl"
    GOQUEUE = "goqueue"
    FLUXMQ = "fluxmq"
    """With partitions, as FluxMQ was when the seeds were written."""
    FLUXMQ_SEGMENTS = "fluxmq-segments"
    """One log for a queue, as FluxMQ is today."""


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to export."""

    queue: str
    format: ExportFormat
    name: str | None = None
    """What the queue is called in the export; None: as it is."""
    partition: int | None = None
    """Only this one."""
    message_layout: GoQueueLayout = GoQueueLayout.V34
    broker_headers: BrokerHeaders = BrokerHeaders.DROP
    skip_damaged: bool = False


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an export did."""

    schema: str = EXPORT_SCHEMA
    directory: str
    queue: str
    out: str
    format: ExportFormat
    partitions: int
    records: int
    skipped: list[str]
    """Damaged ranges that were left out, up to a hundred."""


class _Export:
    """One export."""

    def __init__(self, disk: ReadOnlyDisk, options: ExportOptions, progress: Progress) -> None:
        self._disk = disk
        self._options = options
        self._progress = progress
        self.records = 0
        self.skipped: list[str] = []

    def to_json_lines(self, places: list[PartitionPlace], out: BinaryIO) -> None:
        for place in places:
            for record in self._records(place):
                out.write(encode_line(self._options.name or place.queue, place.partition, record))
        out.flush()

    def to_goqueue(self, places: list[PartitionPlace], target: RealDisk) -> None:
        topic = self._options.name or self._options.queue
        if topic in (".", "..") or "/" in topic or "\0" in topic or not topic:
            message = f"GoQueue keeps a topic in a folder of its name, which {topic!r} cannot be; name it with --as"
            raise TransferError(message)
        for place in places:
            folder = f"{LOGS_FOLDER}/{topic}/{place.partition}"
            writer = GoQueueLogWriter(target, folder, layout=self._options.message_layout)
            for record in self._records(place):
                try:
                    writer.add(
                        to_message(
                            record, layout=self._options.message_layout, broker_headers=self._options.broker_headers
                        )
                    )
                except (ConversionError, GoQueueMessageError) as error:
                    where = f"queue {place.queue}, partition {place.partition}, offset {record.offset}"
                    self._skip(where, str(error), is_torn=False)
            writer.close()

    def to_fluxmq(self, places: list[PartitionPlace], target: RealDisk) -> None:
        one_log = self._options.format is ExportFormat.FLUXMQ_SEGMENTS
        if one_log and len(places) != 1:
            raise TransferError(
                f"queue {self._options.queue!r} has {len(places)} partitions, and this layout has one log for a queue; "
                "choose one with --partition, or --format fluxmq"
            )
        folder = f"queues/{_flux_folder(self._options.name or self._options.queue)}"
        encoder = BatchEncoder(Compression.NONE)
        for place in places:
            below = "segments" if one_log else f"partitions/{place.partition}"
            writer = SegmentWriter(target, f"{folder}/{below}", encoder, with_mark=False)
            for chunk in self._chunks(place):
                if isinstance(chunk.source, SoundBatch):
                    writer.add_batch(chunk.source.header, chunk.source.data)
                    self.records += chunk.record_count
                else:
                    for record in self._decoded(place, chunk):
                        writer.add_records(record.offset, [NewRecord(*record[1:])])
                        self.records += 1
            writer.close()

    def _records(self, place: PartitionPlace) -> Iterator[LogRecord]:
        for chunk in self._chunks(place):
            for record in self._decoded(place, chunk):
                self.records += 1
                yield record

    def _decoded(self, place: PartitionPlace, chunk: Chunk) -> list[LogRecord]:
        try:
            return read_records(chunk)
        except BatchError as error:
            where = f"queue {place.queue}, partition {place.partition}, offset {chunk.base_offset}"
            self._skip(where, str(error), is_torn=False)
            return []

    def _chunks(self, place: PartitionPlace) -> Iterator[Chunk]:
        for number, segment in enumerate(place.segments):
            end_offset = place.end_offset_of(number)
            with closing(self._disk.open(segment.path)) as file:
                for found in walk_chunks(file, segment.base_offset, place.codec, end_offset=end_offset):
                    if isinstance(found, Damage):
                        is_torn = found.is_tail and end_offset is None
                        self._skip(f"{segment.path} bytes {found.start} to {found.end}", found.problem, is_torn=is_torn)
                    else:
                        self._progress(found.size)
                        yield found

    def _skip(self, place: str, problem: str, *, is_torn: bool) -> None:
        if not is_torn and not self._options.skip_damaged:
            message = f"{place} cannot be exported ({problem}); repair it first, or leave it out with --skip-damaged"
            raise TransferError(message)
        if len(self.skipped) < _MAX_PROBLEMS:
            self.skipped.append(f"{place}: {problem}")


def _flux_folder(queue: str) -> str:
    """FluxMQ keeps a queue in a folder of its name, slashes included. Raises :class:`TransferError`."""
    if not queue or "\0" in queue or any(part in ("", ".", "..") for part in queue.split("/")):
        message = f"FluxMQ keeps a queue in a folder of its name, which {queue!r} cannot be; name it with --as"
        raise TransferError(message)
    return queue


def export_queue(
    disk: ReadOnlyDisk, layout: StoreLayout, out: Path, options: ExportOptions, *, progress: Progress = no_progress
) -> ExportReport:
    """Write a queue to ``out``: a new directory, or for JSON lines a new file or ``-`` for standard output.

    Raises :class:`TransferError`, LayoutError, :class:`OSError`. Nothing that exists is overwritten.
    """
    places = layout.select(options.queue, options.partition)
    run = _Export(disk, options, progress)
    if options.format is ExportFormat.JSON_LINES and out == STANDARD_OUTPUT:
        run.to_json_lines(places, sys.stdout.buffer)
    else:
        _refuse_existing(out)
        with _staged(out) as staging:
            if options.format is ExportFormat.JSON_LINES:
                with staging.open("wb") as file:
                    run.to_json_lines(places, file)
                    os.fsync(file.fileno())
            elif options.format is ExportFormat.GOQUEUE:
                run.to_goqueue(places, RealDisk(staging))
            else:
                run.to_fluxmq(places, RealDisk(staging))
    return ExportReport(
        directory=str(disk.root),
        queue=options.queue,
        out=str(out),
        format=options.format,
        partitions=len(places),
        records=run.records,
        skipped=run.skipped,
    )


def _refuse_existing(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise TransferError(f"{out} exists already; nothing is overwritten: choose a new name")
    if not out.resolve().parent.is_dir():
        raise TransferError(f"{out.resolve().parent} does not exist; create it first")


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A place beside the destination, which takes its name when everything went well and is removed otherwise."""
    resolved = out.resolve()
    with tempfile.TemporaryDirectory(prefix=f".{resolved.name}.", suffix=".exporting", dir=resolved.parent) as folder:
        staging = Path(folder) / "out"
        yield staging
        os.replace(staging, resolved)
    descriptor = os.open(resolved.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
