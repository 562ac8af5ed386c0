"""What repairs did, as they write it down: ``repair-<UTC time>/repair.json`` beside the copies they keep.

Offsets that a repair gave up are gaps for ever; this record is how a later check knows them from fresh losses.
"""

from __future__ import annotations

import msgspec

from assay.reference_broker.storage_tools.layout import REPAIR_PREFIX, UNREADABLE_JSON
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.trace.described import described

RECORD_NAME = "repair.json"
REPAIR_SCHEMA = "assay.storage.repair/1"
_MAX_RECORD_BYTES = 64 * 1024 * 1024


class LostRange(msgspec.Struct, frozen=True, kw_only=True):
    """Record offsets of a partition that are gone for good."""

    queue: str
    partition: int
    offset: int
    end_offset: int


class RepairRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``repair.json``."""

    schema: str = REPAIR_SCHEMA
    time: str
    """UTC, ISO 8601."""
    changed: list[str]
    """Files that were changed or removed; their copies lie beside this record."""
    lost: list[LostRange]


def read_lost_ranges(disk: ReadOnlyDisk) -> tuple[LostRange, ...]:
    """What all former repairs of a directory gave up. A record that does not decode counts for nothing."""
    found: list[LostRange] = []
    for name in disk.list(""):
        if not name.startswith(REPAIR_PREFIX):
            continue
        try:
            data = disk.read(f"{name}/{RECORD_NAME}", _MAX_RECORD_BYTES)
            found += msgspec.json.decode(data, type=described(RepairRecord)).lost
        except (OSError, *UNREADABLE_JSON):
            continue
    return tuple(found)


def merged(ranges: list[LostRange]) -> list[LostRange]:
    """Ranges of one partition, those that overlap or touch as one."""
    found: list[LostRange] = []
    for one in sorted(ranges, key=lambda lost: lost.offset):
        if found and one.offset <= found[-1].end_offset:
            end_offset = max(found[-1].end_offset, one.end_offset)
            found[-1] = msgspec.structs.replace(found[-1], end_offset=end_offset)
        else:
            found.append(one)
    return found
