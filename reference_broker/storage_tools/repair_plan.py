"""What a repair would do, derived from what ``verify`` finds, so that both see the same faults. Changes nothing."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from assay.reference_broker.storage.cleaner_file import CLEANER_NAME
from assay.reference_broker.storage.file_names import parse_swap_name, segment_name
from assay.reference_broker.storage_tools.findings import Finding, FindingKind, FindingPlace, Severity, VerifyReport
from assay.reference_broker.storage_tools.layout import PartitionPlace, SegmentPlace, StoreFormat, StoreLayout
from assay.reference_broker.storage_tools.repair_record import LostRange

REPAIR_SCHEMA = "assay.storage.repair_report/1"


class ActionKind(StrEnum):
    """A kind of change. They are made in this order."""

    DROP = "drop"
    """Remove a file, or a folder of an unfinished import."""
    FINISH_SWAP = "finish_swap"
    """Let a compacted segment take its place."""
    CUT_TAIL = "cut_tail"
    """Cut the end of a segment off: a write that did not finish."""
    MOVE_OUT = "move_out"
    """Write a segment anew without a damaged range. The offsets of the other records stay."""
    GIVE_UP = "give_up"
    """Note that records are gone for good, so that the gap counts as known."""
    REBUILD_INDEX = "rebuild_index"
    WRITE_MARK = "write_mark"
    WRITE_CLEANER = "write_cleaner"
    RECOVER_GROUP = "recover_group"
    """Open a consumer group as a broker does, which cuts or sets aside what is damaged, and write a new snapshot."""


class RepairAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change."""

    kind: ActionKind
    path: str
    """File or folder, relative to the data directory."""
    reason: str
    queue: str | None = None
    partition: int | None = None
    position: int | None = None
    end_position: int | None = None
    offset: int | None = None
    """First record offset that is lost with it."""
    end_offset: int | None = None
    """None when no record is known to be lost."""


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, or what was done."""

    schema: str = REPAIR_SCHEMA
    directory: str
    format: StoreFormat
    applied: bool
    kept_in: str | None
    """Folder with the copies of all that was changed; None when nothing was."""
    actions: list[RepairAction]
    unrepairable: list[Finding]
    """What only people can put right."""


_DAMAGED = (FindingKind.CORRUPT_BATCH, FindingKind.BAD_RECORDS, FindingKind.LOST_CONFIRMED)
_GROUP = (FindingKind.GROUP_DAMAGED, FindingKind.GROUP_TORN_TAIL)
_DROPPED = (
    FindingKind.INDEX_ORPHAN,
    FindingKind.LEFTOVER,
    FindingKind.SESSIONS_LOST,
    FindingKind.SNAPSHOT_DAMAGED,
)
_BY_PEOPLE = (
    FindingKind.OVERLAP,
    FindingKind.UNREADABLE,
    FindingKind.DESCRIPTION_DAMAGED,
    FindingKind.DELAY_UNDATED,
    FindingKind.DELAY_INDEX_WRONG,
)


class _Planner:
    """Turns findings into actions."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._places: dict[str, tuple[PartitionPlace, int]] = {}
        for place in layout.logs:
            for number, segment in enumerate(place.segments):
                self._places[segment.path] = (place, number)
                for suffix in layout.format.index_suffixes:
                    self._places[segment.stem + suffix] = (place, number)
        self._actions: dict[tuple[ActionKind, str, int], RepairAction] = {}
        self.unrepairable: list[Finding] = []

    @property
    def actions(self) -> list[RepairAction]:
        order = list(ActionKind)
        return sorted(self._actions.values(), key=lambda one: (order.index(one.kind), one.path, one.position or 0))

    def take(self, finding: Finding) -> None:
        """Plan what a finding needs."""
        kind = finding.kind
        if kind in _DAMAGED and finding.end_position is not None:
            self._move_out(finding)
        elif kind in (FindingKind.MISSING_OFFSETS, FindingKind.LOST_CONFIRMED):
            self._add(ActionKind.GIVE_UP, finding, "they are nowhere; restore the file instead if you can")
        elif kind is FindingKind.TORN_TAIL:
            self._add(ActionKind.CUT_TAIL, finding, "a write that did not finish; none of it was confirmed as durable")
            self._rebuild(finding, "its segment is cut")
        elif kind is FindingKind.INDEX_WRONG:
            self._rebuild(finding, finding.problem)
        elif kind is FindingKind.INDEX_MISSING:
            place, number = self._places[finding.path]
            if place.end_offset_of(number) is not None:
                self._rebuild(finding, "it is missing")
        elif kind is FindingKind.MARK_DAMAGED:
            self._add(ActionKind.WRITE_MARK, finding, finding.problem, without_range=True)
        elif kind in _GROUP and self._layout.format is StoreFormat.ASSAY:
            folder = finding.path.rpartition("/")[0]
            self._add(ActionKind.RECOVER_GROUP, finding, finding.problem, path=folder, without_range=True)
        elif kind in _DROPPED and finding.severity is not Severity.NOTE:
            swap = parse_swap_name(finding.path.rpartition("/")[2])
            action = ActionKind.DROP if swap is None else ActionKind.FINISH_SWAP
            self._add(action, finding, finding.problem, without_range=True)
        elif kind is FindingKind.DESCRIPTION_DAMAGED and finding.path.endswith(f"/{CLEANER_NAME}"):
            self._add(ActionKind.WRITE_CLEANER, finding, finding.problem, without_range=True)
        elif kind in (*_BY_PEOPLE, *_GROUP) and finding.severity is Severity.FAULT:
            self.unrepairable.append(finding)

    def _move_out(self, finding: Finding) -> None:
        self._add(ActionKind.MOVE_OUT, finding, finding.problem)
        self._rebuild(finding, "its segment is written anew")

    def _rebuild(self, finding: Finding, reason: str) -> None:
        place, number = self._places[finding.path]
        path = _name_after_swap(place.segments[number].path)
        self._add(ActionKind.REBUILD_INDEX, finding, reason, path=path, without_range=True)

    def _add(
        self,
        kind: ActionKind,
        finding: Finding,
        reason: str,
        *,
        path: str | None = None,
        without_range: bool = False,
    ) -> None:
        if path is None:
            path = finding.path if kind is ActionKind.FINISH_SWAP else _name_after_swap(finding.path)
        fields = ("queue", "partition") if without_range else FindingPlace.__annotations__
        place = {name: getattr(finding, name) for name in fields}
        action = RepairAction(kind=kind, path=path, reason=reason, **place)
        self._actions.setdefault((kind, action.path, action.position or 0), action)


def _name_after_swap(path: str) -> str:
    """What a compacted segment that waits is called when it has taken its place; other paths as they are."""
    folder, _, name = path.rpartition("/")
    swap = parse_swap_name(name)
    return path if swap is None else f"{folder}/{segment_name(swap[0])}"


def plan_repair(layout: StoreLayout, report: VerifyReport) -> RepairReport:
    """The changes that would put right what a check found."""
    planner = _Planner(layout)
    for finding in report.findings:
        planner.take(finding)
    return RepairReport(
        directory=report.directory,
        format=layout.format,
        applied=False,
        kept_in=None,
        actions=planner.actions,
        unrepairable=planner.unrepairable,
    )


def lost_ranges(actions: list[RepairAction]) -> list[LostRange]:
    """Record offsets that the actions give up, as far as it is known which they are."""
    return [
        LostRange(queue=one.queue, partition=one.partition, offset=one.offset, end_offset=one.end_offset)
        for one in actions
        if one.kind in (ActionKind.CUT_TAIL, ActionKind.MOVE_OUT, ActionKind.GIVE_UP)
        and one.queue is not None
        and one.partition is not None
        and one.offset is not None
        and one.end_offset is not None
        and one.end_offset > one.offset
    ]


def segment_at(layout: StoreLayout, path: str) -> tuple[PartitionPlace, SegmentPlace]:
    """Partition and segment of a segment's path. Raises :class:`KeyError`."""
    for place in layout.logs:
        for segment in place.segments:
            if segment.path == path:
                return place, segment
    raise KeyError(path)
