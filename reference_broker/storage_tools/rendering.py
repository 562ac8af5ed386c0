"""Tables for people. Everything shown here is also in the JSON output."""

from __future__ import annotations

from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.reference_broker.storage_tools.export import ExportReport
from assay.reference_broker.storage_tools.findings import Finding, Severity, VerifyReport
from assay.reference_broker.storage_tools.importing import ImportReport
from assay.reference_broker.storage_tools.index_check import IndexState
from assay.reference_broker.storage_tools.inspect import InspectReport, PartitionInfo, QueueInfo, SegmentReport
from assay.reference_broker.storage_tools.repair_plan import RepairAction, RepairReport
from assay.reference_broker.trace.terminal import WholeTable

MAX_SHOWN = 200
"""Rows of one table; the JSON output has all."""
_STYLES = {Severity.FAULT: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_INDEX_STYLES = {
    IndexState.SOUND: "green",
    IndexState.MISSING: "dim",
    IndexState.STALE: "yellow",
    IndexState.DAMAGED: "bold red",
}


def show_inspect(console: Console, report: InspectReport) -> None:
    """A directory."""
    state = "in use by a broker, so figures are moving" if report.in_use else "not in use"
    console.print(f"{report.directory}: {report.format}, {state}", markup=False)
    if not report.queues:
        console.print("no queues")
    for queue in report.queues:
        _show_queue(console, queue)
    if report.snapshots:
        table = _table("snapshot", "kind", "last offset", "taken", "entries", "bytes", "state")
        for one in report.snapshots[:MAX_SHOWN]:
            table.add_row(
                one.path,
                one.kind,
                f"{one.last_offset:,}",
                format_time(one.timestamp_ms),
                f"{one.entries:,}",
                f"{one.bytes:,}",
                Text(one.problem or "sound", style="red" if one.problem else "green"),
            )
        console.print(table)


def _show_queue(console: Console, queue: QueueInfo) -> None:
    console.print()
    console.print(
        Text(f"Queue {queue.name}", style="bold"),
        f"{_counted(queue.records, 'record')}, {queue.bytes:,} bytes, {_counted(len(queue.partitions), 'partition')}, "
        f"in {queue.folder}",
    )
    if (delays := queue.delays) is not None:
        console.print(
            f"{_counted(delays.waiting, 'delayed message')} waiting, due {format_time(delays.next_due_ms)} to "
            f"{format_time(delays.last_due_ms)}; {delays.done:,} done, {delays.undated:,} without a due time",
            markup=False,
        )
    partitions = _table("partition", "offsets", "records", "bytes", "segments", "durable below", "compacted below")
    segments = _table("segment", "next offset", "records", "batches", "bytes", "codec", "from", "span", "idx", "tix")
    for partition in queue.partitions[:MAX_SHOWN]:
        _add_partition(partitions, segments, str(partition.partition), partition)
    if delays is not None:
        _add_partition(partitions, segments, "delayed", delays.log)
        if delays.done_log is not None:
            _add_partition(partitions, segments, "done", delays.done_log)
    console.print(partitions)
    if segments.row_count:
        console.print(segments)
    if queue.groups:
        groups = _table("group", "pattern", "cursors", "pending", "by consumer", "log bytes", "state")
        for group in queue.groups[:MAX_SHOWN]:
            groups.add_row(
                group.group,
                group.pattern,
                _listing({str(number): f"{offset:,}" for number, offset in group.cursors.items()}),
                f"{group.pending:,}",
                _listing({name or "(waiting)": f"{count:,}" for name, count in group.pending_by_consumer.items()}),
                f"{group.log_bytes:,}",
                Text(group.problem or "sound", style="red" if group.problem else "green"),
            )
        console.print(groups)


def _add_partition(partitions: Table, segments: Table, name: str, partition: PartitionInfo) -> None:
    partitions.add_row(
        name,
        _offsets(partition.start_offset, partition.next_offset),
        f"{partition.records:,}",
        f"{partition.bytes:,}",
        str(len(partition.segments)),
        "-" if partition.durable is None else f"{partition.durable.offset:,}",
        "-" if partition.compacted_until is None else f"{partition.compacted_until:,}",
    )
    for one in partition.segments:
        if segments.row_count >= MAX_SHOWN:
            return
        damaged = f"{one.damaged_bytes:,} damaged" if one.damaged_bytes else ""
        segments.add_row(
            f"{name}/{one.base_offset}",
            f"{one.end_offset:,}",
            f"{one.records:,}",
            f"{one.batches:,}",
            Text(f"{one.bytes:,}\n{damaged}" if damaged else f"{one.bytes:,}", style="bold red" if damaged else ""),
            _listing({name: f"{count:,}" for name, count in one.compression.items()}),
            format_time(one.first_timestamp_ms),
            _span(one.first_timestamp_ms, one.last_timestamp_ms),
            Text(one.offset_index, style=_INDEX_STYLES[one.offset_index]),
            Text(one.time_index, style=_INDEX_STYLES[one.time_index]),
        )


def _table(*columns: str) -> Table:
    """A narrow table."""
    return WholeTable(*columns, box=box.SIMPLE_HEAD, padding=0, collapse_padding=True)


def _span(first_ms: int | None, last_ms: int | None) -> str:
    return "-" if first_ms is None or last_ms is None else f"{(last_ms - first_ms) / 1000:,.1f} s"


def _offsets(first: int, end: int) -> str:
    return f"{first:,} to {end - 1:,}" if end > first else f"none; next {end:,}"


def _listing(items: dict[str, str]) -> str:
    shown = [f"{name}: {text}" for name, text in list(items.items())[:8]]
    return ", ".join([*shown, f"{len(items) - 8} more"] if len(items) > 8 else shown)


def format_time(timestamp_ms: int | None) -> str:
    """A time in UTC, to the second."""
    if timestamp_ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")[:-6]
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def show_segment(console: Console, report: SegmentReport) -> None:
    """One segment file."""
    console.print(report.path, style="bold", markup=False)
    table = _table("bytes", "offsets", "records", "codec", "from", "to")
    for one in report.batches:
        place = f"{one.position:,} to {one.end_position:,}"
        if one.base_offset is None:
            table.add_row(place, Text(one.problem, style="bold red"), "", "", "", "")
        else:
            table.add_row(
                place,
                _offsets(one.base_offset, one.base_offset + one.records),
                f"{one.records:,}",
                one.compression,
                format_time(one.first_timestamp_ms),
                format_time(one.last_timestamp_ms),
            )
    console.print(table)
    if report.more_batches:
        console.print(f"and {report.more_batches:,} more batches (see --limit)")


def show_verify(console: Console, report: VerifyReport, *, strict: bool) -> None:
    """What a check found: worst first, then the verdict."""
    ranks = list(Severity)
    ordered = sorted(report.findings, key=lambda finding: ranks.index(finding.severity))
    for finding in ordered[:MAX_SHOWN]:
        _show_finding(console, finding)
    if len(ordered) > MAX_SHOWN:
        console.print(f"and {len(ordered) - MAX_SHOWN:,} more findings (--json lists them)")
    if report.in_use:
        console.print("A broker has the directory open: tails and indexes are moving.", style="yellow")
    counted = (
        _counted(report.records, "record"),
        _counted(report.batches, "batch", "batches"),
        f"{_counted(report.segments, 'segment')} ({report.segment_bytes:,} bytes)",
        _counted(report.partitions, "partition"),
        _counted(report.queues, "queue"),
        *((_counted(report.delayed, "delayed message"),) if report.delayed else ()),
    )
    console.print(f"Read {', '.join(counted)} ({report.format}).", markup=False)
    if report.is_sound(strict=strict):
        more = f", {_counted(report.warnings, 'warning')}" if report.warnings else ""
        console.print(f"SOUND: no faults{more}", style="green")
    else:
        found = f"{_counted(report.faults, 'fault')}, {_counted(report.warnings, 'warning')}"
        console.print(f"NOT SOUND: {found}", style="bold red")


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _show_finding(console: Console, finding: Finding) -> None:
    place = finding.path
    if finding.position is not None:
        place += f" byte {finding.position:,}"
        if finding.end_position is not None:
            place += f" to {finding.end_position:,}"
    if finding.offset is not None:
        place += f", offset {_range_of(finding.offset, finding.end_offset)}"
    console.print(Text(f"{finding.severity.upper():<8}{place}", style=_STYLES[finding.severity]))
    console.print(Text(f"        {finding.problem} ({finding.kind})"))
    console.print(Text(f"        {finding.meaning}", style="dim"))


def show_repair(console: Console, report: RepairReport) -> None:
    """A plan, or what was done."""
    for action in report.actions[:MAX_SHOWN]:
        console.print(Text(f"{action.kind:<14}{_place_of(action)}", style="bold"))
        console.print(Text(f"              {action.reason}", style="dim"))
    if len(report.actions) > MAX_SHOWN:
        console.print(f"and {len(report.actions) - MAX_SHOWN:,} more actions (--json lists them)")
    for finding in report.unrepairable[:MAX_SHOWN]:
        console.print("Only you can put this right:", style="yellow")
        _show_finding(console, finding)
    if not report.actions:
        console.print("Nothing to repair.", style="green")
    elif report.applied:
        console.print(f"Done; copies of what was changed: {report.kept_in}", style="green", markup=False)
    else:
        console.print("Nothing was changed. Stop the broker, then do it with --apply.", style="yellow")


def _range_of(first: int, end: int | None) -> str:
    if end is None:
        return f"{first:,} on"
    return f"{first:,}" if end <= first + 1 else f"{first:,} to {end - 1:,}"


def _place_of(action: RepairAction) -> str:
    place = action.path
    if action.position is not None and action.end_position is not None:
        place += f" bytes {action.position:,} to {action.end_position:,}"
    if action.offset is not None and action.end_offset is not None:
        place += f", gives up offset {_range_of(action.offset, action.end_offset)}"
    return place


def show_import(console: Console, report: ImportReport) -> None:
    """What an import did."""
    table = _table("partition", "records", "offsets", "gaps", "left out")
    for one in report.partitions[:MAX_SHOWN]:
        table.add_row(
            str(one.partition),
            f"{one.records:,}",
            _offsets(one.start_offset, one.next_offset),
            f"{one.gaps:,}",
            f"{one.left_out:,}",
        )
    console.print(table)
    _show_skipped(console, report.skipped)
    console.print(
        f"Imported {report.records:,} records of {report.source} ({report.source_format}) into queue {report.queue} "
        f"of {report.directory}",
        markup=False,
    )


def show_export(console: Console, report: ExportReport) -> None:
    """What an export did."""
    _show_skipped(console, report.skipped)
    console.print(
        f"Exported {report.records:,} records of {report.partitions:,} partitions to {report.out} ({report.format})",
        markup=False,
    )


def _show_skipped(console: Console, skipped: list[str]) -> None:
    for place in skipped:
        console.print(f"left out {place}", style="yellow", markup=False)
