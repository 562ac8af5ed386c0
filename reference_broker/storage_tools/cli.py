"""``assay storage``: look into data directories of Assay, FluxMQ and GoQueue, check and repair them, move records."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from assay.reference_broker.config import Compression
from assay.reference_broker.storage_tools import rendering
from assay.reference_broker.storage_tools.cli_common import (
    AsJson,
    Directory,
    ExitStatus,
    Forced,
    Queue,
    described_command,
    failures_as_exits,
    open_layout,
    print_json,
    progress_bar,
    say,
    tables,
)
from assay.reference_broker.storage_tools.dump import RecordFilter, read_places
from assay.reference_broker.storage_tools.export import STANDARD_OUTPUT, ExportFormat, ExportOptions, export_queue
from assay.reference_broker.storage_tools.foreign.goqueue_message import GoQueueLayout
from assay.reference_broker.storage_tools.foreign.goqueue_records import BrokerHeaders
from assay.reference_broker.storage_tools.importing import MAX_PARTITIONS, ImportOptions, import_source
from assay.reference_broker.storage_tools.inspect import inspect_directory, inspect_segment
from assay.reference_broker.storage_tools.json_lines import encode_line
from assay.reference_broker.storage_tools.layout import (
    Codec,
    LayoutError,
    SegmentPlace,
    StoreFormat,
    StoreLayout,
    segment_base,
)
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.repair import apply_repair, plan_for
from assay.reference_broker.storage_tools.verify import total_bytes, verify_directory

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
command = partial(described_command, app)


@command("inspect")
def inspect_command(
    directory: Directory,
    queue: Queue = None,
    segment: Annotated[
        str | None,
        typer.Option("--segment", help="Show one segment file batch by batch: a path below DIR.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="With --segment: most batches to show.")] = 1_000,
    forced: Forced = None,
    as_json: AsJson = False,
) -> None:
    """Show what a directory holds: queues, partitions, delayed messages, segments, indexes, groups, snapshots.

    It reads all segments, writes nothing, and works while a broker runs.

    Examples:

        assay storage inspect data

        assay storage inspect data --queue orders --json

        assay storage inspect data --segment queues/orders/partitions/0/00000000000000000000.seg

    Exit status: 0; 2 when DIR cannot be read.
    """
    with failures_as_exits():
        disk, layout = open_layout(directory, forced)
        if segment is not None:
            place, codec = _find_segment(layout, disk, segment)
            shown = inspect_segment(disk, place, codec, limit=limit)
            print_json(shown) if as_json else rendering.show_segment(tables(), shown)
            return
        with progress_bar("reading", total_bytes(disk, layout)) as progress:
            report = inspect_directory(disk, layout, queue=queue, progress=progress)
        print_json(report) if as_json else rendering.show_inspect(tables(), report)


def _find_segment(layout: StoreLayout, disk: ReadOnlyDisk, path: str) -> tuple[SegmentPlace, Codec]:
    """A segment named by a path below the directory, or by one that starts elsewhere and leads into it."""
    relative = os.path.relpath(path, disk.root) if not disk.exists(path) else os.path.normpath(path)
    for place in layout.logs:
        for one in place.segments:
            if one.path == relative:
                return one, place.codec
    base = segment_base(os.path.basename(path), layout.format)
    if base is None or not disk.exists(path):
        raise LayoutError(f"there is no segment {path} below {disk.root}; `assay storage inspect` lists them")
    return SegmentPlace(path=path, base_offset=base), Codec(format=layout.format)


@command("verify")
def verify_command(
    directory: Directory,
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings fail too: torn tails and leftovers, which a broker puts right.")
    ] = False,
    forced: Forced = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte and report each fault with file, byte position, record offsets and what it means.

    Checked are batches (bounds, checksums, order, records), indexes against the batches, group logs and snapshots,
    queue descriptions and durable marks; in a GoQueue directory messages, indexes and committed offsets. Nothing is
    written and no lock is needed: while a broker runs, what it is writing shows as that.

    Examples:

        assay storage verify data

        assay storage verify backup --strict --json > check.json

    Exit status: 0 sound; 1 faults; 2 when DIR cannot be read.
    """
    with failures_as_exits():
        disk, layout = open_layout(directory, forced)
        with progress_bar("verifying", total_bytes(disk, layout)) as progress:
            report = verify_directory(disk, layout, progress=progress)
        print_json(report) if as_json else rendering.show_verify(tables(), report, strict=strict)
        if not report.is_sound(strict=strict):
            raise typer.Exit(ExitStatus.FAULTS)


@command("dump")
def dump_command(
    directory: Directory,
    queue: Queue = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.", show_default=False)] = None,
    from_offset: Annotated[int, typer.Option("--from", min=0, help="First offset.")] = 0,
    to_offset: Annotated[
        int | None, typer.Option("--to", min=0, help="First offset not wanted any more.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Records from this time on: ISO 8601 (UTC) or Unix ms.", show_default=False)
    ] = None,
    until: Annotated[str | None, typer.Option(help="Records before this time.", show_default=False)] = None,
    key: Annotated[str | None, typer.Option(help="Only records with this key.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many records.", show_default=False)] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Newest first, partition by partition.")] = False,
    values_only: Annotated[
        bool, typer.Option("--values-only", help="Only values, as they are, each followed by a line feed.")
    ] = False,
    forced: Forced = None,
) -> None:
    """Print records, one JSON object a line, partition by partition.

    Keys, values and headers are text when they are UTF-8; otherwise their field is called ..._base64. What cannot be
    read is skipped and named on stderr. assay storage import reads the lines back.

    Examples:

        assay storage dump data --queue orders --limit 10

        assay storage dump data --queue orders --partition 0 --reverse --limit 1

        assay storage dump data --since 2026-01-31T12:00Z --key customer-7 --values-only

    Exit status: 0; 1 when records were skipped as unreadable; 2 when DIR cannot be read.
    """
    skipped: list[str] = []

    def note(place: str, problem: str) -> None:
        skipped.append(place)
        say(f"skipped {place}: {problem}")

    with failures_as_exits():
        disk, layout = open_layout(directory, forced)
        wanted = RecordFilter(
            from_offset=from_offset,
            to_offset=to_offset,
            since_ms=None if since is None else parse_time(since),
            until_ms=None if until is None else parse_time(until),
            key=None if key is None else key.encode(),
        )
        out = sys.stdout.buffer
        places = layout.select(queue, partition)
        for place, record in read_places(disk, places, wanted, note, newest_first=reverse, limit=limit):
            if not values_only:
                out.write(encode_line(place.queue, place.partition, record))
            elif record.value is not None:
                out.write(record.value + b"\n")
        out.flush()
    if skipped:
        raise typer.Exit(ExitStatus.FAULTS)


def parse_time(text: str) -> int:
    """Unix ms of an ISO 8601 time, UTC unless it says otherwise, or of a number of ms. Raises BadParameter."""
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no time; write it like 2026-01-31T12:00:00Z, or as Unix milliseconds"
        raise typer.BadParameter(message) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


@command("repair")
def repair_command(
    directory: Directory,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without it, only the plan is shown.")] = False,
    forced: Forced = None,
    as_json: AsJson = False,
) -> None:
    """Show what would put a directory right, and do it with --apply.

    Torn tails are cut, never below what was confirmed as durable. Damaged ranges are moved out of their segments; the
    offsets of all other records stay. Indexes are built anew, groups recovered, leftovers dropped. Before a file
    changes, a copy goes to DIR/repair-<UTC time>/, with a record of what is given up; keep its repair.json, by
    which later checks know these gaps. Stop the broker first.

    Examples:

        assay storage repair data

        assay storage repair data --apply

    Exit status: 0 nothing to do, or all done; 1 there is something to do, or something only people can put right;
    2 when DIR cannot be read or is in use.
    """
    with failures_as_exits():
        disk, layout = open_layout(directory, forced)
        with progress_bar("checking", total_bytes(disk, layout)) as progress:
            if apply:
                report = apply_repair(directory, forced, now=datetime.now(UTC), progress=progress)
            else:
                report = plan_for(directory, forced, progress=progress)[1]
        print_json(report) if as_json else rendering.show_repair(tables(), report)
        if report.unrepairable or (report.actions and not apply):
            raise typer.Exit(ExitStatus.FAULTS)


MessageLayout = Annotated[
    str, typer.Option("--layout", metavar="34|32|30", help="GoQueue only: bytes of a message's fixed part.")
]
KeepHeaders = Annotated[
    bool,
    typer.Option(
        "--broker-headers",
        help="GoQueue only: carry Assay's own headers along, marked with assay., for a way there and back.",
    ),
]
SkipDamaged = Annotated[
    bool, typer.Option("--skip-damaged", help="Leave damaged ranges out instead of stopping at the first.")
]


@command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="A data directory, a file of JSON lines, or - for standard input.")],
    directory: Annotated[Path, typer.Argument(metavar="DEST_DIR", help="Assay's data directory; created if missing.")],
    queue: Annotated[str, typer.Option("--queue", help="Name of the new queue.")],
    from_queue: Annotated[
        str | None,
        typer.Option(help="Queue or topic to copy. Default: of the same name, or the only one.", show_default=False),
    ] = None,
    forced: Forced = None,
    layout: Annotated[
        str, typer.Option("--layout", metavar="34|32|30|auto", help="GoQueue only: bytes of a message's fixed part.")
    ] = "34",
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_PARTITIONS, help="Of the new queue. Default: as the source.", show_default=False),
    ] = None,
    keep_offsets: Annotated[
        bool,
        typer.Option("--keep-offsets", help="Keep offsets of GoQueue or JSON lines, gaps too. FluxMQ's stay."),
    ] = False,
    compression: Annotated[Compression, typer.Option(help="Of what is encoded anew.")] = Compression.NONE,
    keep_headers: KeepHeaders = False,
    skip_damaged: SkipDamaged = False,
    as_json: AsJson = False,
) -> None:
    """Copy records into a new queue of an Assay directory.

    From FluxMQ (and Assay) batches are copied byte for byte, after their checksums were verified, with their offsets.
    From GoQueue messages become records: priority and flags go into headers, markers of transactions are left out.
    Nothing that exists is overwritten, and the queue appears only when it is complete. Groups are not imported.

    Examples:

        assay storage import goqueue-data data --queue orders --from-queue orders-topic

        assay storage import fluxmq/queue data --queue tasks --from-queue '$queue/tasks'

        assay storage dump old --queue orders | assay storage import - data --queue orders-copy

    Exit status: 0 imported; 2 when it cannot be.
    """
    with failures_as_exits():
        options = ImportOptions(
            queue=queue,
            source_queue=from_queue,
            source_format=forced,
            message_layout=None if layout == "auto" else parse_layout(layout),
            partitions=partitions,
            keep_offsets=keep_offsets,
            skip_damaged=skip_damaged,
            compression=compression,
            broker_headers=BrokerHeaders.KEEP if keep_headers else BrokerHeaders.DROP,
        )
        with progress_bar("importing", _source_bytes(source, options)) as progress:
            report = import_source(source, directory, options, progress=progress)
        print_json(report) if as_json else rendering.show_import(tables(), report)


def _source_bytes(source: Path, options: ImportOptions) -> int | None:
    """Bytes to read; None when that is not known."""
    if not source.is_dir():
        return None
    disk, layout = open_layout(source, options.source_format)
    return total_bytes(disk, layout)


def parse_layout(text: str) -> GoQueueLayout:
    """Raises :class:`typer.BadParameter`."""
    known = {str(one.value): one for one in GoQueueLayout}
    if text not in known:
        raise typer.BadParameter(f"{text!r} is no layout of GoQueue; choose 34 (today's), 32 or 30")
    return known[text]


@command("export")
def export_command(
    directory: Directory,
    out: Annotated[Path, typer.Argument(help="What to create: a directory; for jsonl a file, or - (stdout).")],
    queue: Annotated[str, typer.Option("--queue", help="Queue or topic to export.")],
    export_format: Annotated[ExportFormat, typer.Option("--format", help="What to write.")] = ExportFormat.JSON_LINES,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Option("--as", help="Name in the export. Default: as --queue.", show_default=False)
    ] = None,
    forced: Annotated[
        StoreFormat | None,
        typer.Option("--source-format", help="Read DIR as this, whatever it looks like.", show_default=False),
    ] = None,
    layout: MessageLayout = "34",
    keep_headers: KeepHeaders = False,
    skip_damaged: SkipDamaged = False,
    as_json: AsJson = False,
) -> None:
    """Write a queue as JSON lines, or as a directory that GoQueue or FluxMQ can read.

    Offsets stay. For FluxMQ batches are copied byte for byte; its queue must also exist in its own configuration. What
    GoQueue has no room for stops the export, or is left out with --skip-damaged. Nothing is overwritten.

    Examples:

        assay storage export data orders.jsonl --queue orders

        assay storage export data goqueue-data --queue orders --format goqueue

        assay storage export data fluxmq-data --queue orders --format fluxmq --as '$queue/orders'

    Exit status: 0 exported; 2 when it cannot be.
    """
    with failures_as_exits():
        disk, found = open_layout(directory, forced)
        options = ExportOptions(
            queue=queue,
            format=export_format,
            name=name,
            partition=partition,
            message_layout=parse_layout(layout),
            broker_headers=BrokerHeaders.KEEP if keep_headers else BrokerHeaders.DROP,
            skip_damaged=skip_damaged,
        )
        with progress_bar("exporting", total_bytes(disk, found)) as progress:
            report = export_queue(disk, found, out, options, progress=progress)
        if out == STANDARD_OUTPUT:
            say(f"{report.records:,} records", style="")
        else:
            print_json(report) if as_json else rendering.show_export(tables(), report)


def main() -> None:
    """Entry point of ``python -m assay.reference_broker.storage_tools.cli``."""
    app()


if __name__ == "__main__":
    main()
