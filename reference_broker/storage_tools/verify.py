"""``assay storage verify``: reads every byte of a data directory and reports what is wrong. Never writes."""

from __future__ import annotations

from assay.reference_broker.storage_tools.delays import check_delays
from assay.reference_broker.storage_tools.description_check import check_descriptions
from assay.reference_broker.storage_tools.findings import Findings, Severity, VerifyReport
from assay.reference_broker.storage_tools.group_check import check_groups
from assay.reference_broker.storage_tools.layout import StoreLayout
from assay.reference_broker.storage_tools.partition_check import PartitionCheck, PartitionTotals
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.repair_record import read_lost_ranges
from assay.reference_broker.storage_tools.segment_exam import Progress, no_progress
from assay.reference_broker.storage_tools.snapshot_files import check_snapshots


def verify_directory(
    disk: ReadOnlyDisk,
    layout: StoreLayout,
    *,
    findings: Findings | None = None,
    in_use: bool | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Check queues, partitions, delayed messages, segments, indexes, groups and snapshots.

    Memory use does not grow with the data, but for 16 bytes per message that is delayed.

    It needs no lock; while a broker has the directory open, what it is writing shows as such. ``in_use``: whether one
    has, for a caller who holds the lock itself.
    """
    findings = findings or Findings()
    in_use = disk.is_in_use() if in_use is None else in_use
    lost = read_lost_ranges(disk)
    check_descriptions(disk, layout, findings, in_use=in_use)
    places = layout.logs
    totals = [
        PartitionCheck(disk, place, findings, in_use=in_use, lost=lost, progress=progress).run() for place in places
    ]
    check_groups(disk, layout, findings, in_use=in_use)
    delayed = check_delays(disk, layout, findings, in_use=in_use)
    check_snapshots(disk, findings)
    return VerifyReport(
        directory=str(disk.root),
        format=layout.format,
        in_use=in_use,
        queues=len(layout.queues),
        partitions=len(layout.select(None, None)),
        delayed=delayed,
        **{name: sum(getattr(one, name) for one in totals) for name in PartitionTotals.__struct_fields__},
        faults=findings.counts[Severity.FAULT],
        warnings=findings.counts[Severity.WARNING],
        notes=findings.counts[Severity.NOTE],
        findings=findings.listed,
    )


def total_bytes(disk: ReadOnlyDisk, layout: StoreLayout) -> int:
    """Bytes of all segments: what a progress bar counts up to."""
    return sum(disk.size(one.path) for place in layout.logs for one in place.segments)
