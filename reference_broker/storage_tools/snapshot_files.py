"""The coordinator snapshots of a data directory, Assay's and GoQueue's alike."""

from __future__ import annotations

import msgspec

from assay.reference_broker.storage.snapshots import (
    MAX_SNAPSHOT_BYTES,
    SnapshotError,
    SnapshotKind,
    decode_snapshot,
    parse_snapshot_name,
)
from assay.reference_broker.storage_tools.findings import FindingKind, Findings, Severity
from assay.reference_broker.storage_tools.layout import walk_folders
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk, join


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot file."""

    path: str
    kind: str
    """``groups``, ``transactions``, ``keyed_state``, or a number that is not known."""
    last_offset: int
    timestamp_ms: int
    bytes: int
    entries: int
    """0 when it cannot be read."""
    problem: str
    """Empty when it is sound."""


def read_snapshots(disk: ReadOnlyDisk) -> list[SnapshotInfo]:
    """All snapshots of a directory, by path. Raises :class:`OSError`."""
    found = []
    for folder in walk_folders(disk, ""):
        for name in disk.list(folder):
            parsed = parse_snapshot_name(name)
            if parsed is None:
                continue
            path = join(folder, name)
            data = disk.read(path, MAX_SNAPSHOT_BYTES + 1)
            problem, entries = "", 0
            try:
                entries = len(decode_snapshot(data, parsed).entries)
            except SnapshotError as error:
                problem = str(error)
            known = {int(kind): kind.name.lower() for kind in SnapshotKind}
            found.append(
                SnapshotInfo(
                    path=path,
                    kind=known.get(parsed.kind, str(parsed.kind)),
                    last_offset=parsed.last_offset,
                    timestamp_ms=parsed.timestamp_ms,
                    bytes=len(data),
                    entries=entries,
                    problem=problem,
                )
            )
    return found


def check_snapshots(disk: ReadOnlyDisk, findings: Findings) -> None:
    """Report the damaged ones."""
    for one in read_snapshots(disk):
        if one.problem:
            meaning = "it is of no use: the next older one counts, with a longer replay; delete it"
            kind, offset = FindingKind.SNAPSHOT_DAMAGED, one.last_offset
            findings.report(Severity.FAULT, kind, one.path, one.problem, meaning, position=0, offset=offset)
