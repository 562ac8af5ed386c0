"""``assay storage repair --apply``: carries a plan out, keeping a copy of every file before it changes.

Crash-safe: copies and the record of what is given up are on disk before anything changes, files are replaced by rename,
and a repair that was interrupted is simply repeated.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from assay.reference_broker.storage.cleaner_file import CleanerState, write_cleaner_file
from assay.reference_broker.storage.disk import DirectoryInUseError, RealDisk
from assay.reference_broker.storage.durable_mark import MARK_NAME, DurableMark, decode_mark
from assay.reference_broker.storage.file_names import parse_swap_name
from assay.reference_broker.storage.log_opening import finish_swap
from assay.reference_broker.storage.whole_file import sync_up
from assay.reference_broker.storage_tools.findings import Findings
from assay.reference_broker.storage_tools.group_repair import recover_group
from assay.reference_broker.storage_tools.layout import (
    REPAIR_PREFIX,
    PartitionPlace,
    SegmentPlace,
    StoreFormat,
    StoreLayout,
    find_layout,
    open_directory,
)
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.repair_plan import (
    ActionKind,
    RepairAction,
    RepairReport,
    lost_ranges,
    plan_repair,
    segment_at,
)
from assay.reference_broker.storage_tools.repair_record import RECORD_NAME, RepairRecord
from assay.reference_broker.storage_tools.segment_exam import Progress, examine_segment, no_progress
from assay.reference_broker.storage_tools.segment_rebuild import cut_ranges, rebuild_indexes
from assay.reference_broker.storage_tools.segment_writer import write_file, write_mark
from assay.reference_broker.storage_tools.verify import verify_directory

MAX_PLANNED = 1_000_000
"""Findings that one repair looks at."""


class RepairError(ValueError):
    """A repair cannot be done. ``str(error)`` says what to do."""


def plan_for(
    directory: Path, forced: StoreFormat | None, *, in_use: bool | None = None, progress: Progress = no_progress
) -> tuple[StoreLayout, RepairReport]:
    """Check a directory and plan its repair. Changes nothing. Raises LayoutError and :class:`OSError`.

    ``in_use``: whether a broker has it open; None: look.
    """
    disk = open_directory(directory)
    layout = find_layout(disk, forced)
    report = verify_directory(disk, layout, findings=Findings(MAX_PLANNED), in_use=in_use, progress=progress)
    return layout, plan_repair(layout, report)


def apply_repair(
    directory: Path, forced: StoreFormat | None, *, now: datetime, progress: Progress = no_progress
) -> RepairReport:
    """Plan and repair, alone with the directory. ``now``: UTC, names the folder of the copies.

    Raises :class:`RepairError` while a broker has it open, LayoutError and :class:`OSError`.
    """
    layout = find_layout(open_directory(directory), forced)
    with _alone_with(directory, layout.format) as disk:
        # Planned under the lock: nobody changes what was checked.
        layout, plan = plan_for(directory, layout.format, in_use=False, progress=progress)
        if not plan.actions:
            return msgspec.structs.replace(plan, applied=True)
        repair = _Repair(disk, layout, plan, now)
        repair.run()
        return msgspec.structs.replace(plan, applied=True, kept_in=str(directory / repair.folder))


@contextmanager
def _alone_with(directory: Path, store_format: StoreFormat) -> Iterator[RealDisk]:
    """Exclude brokers and other repairs. Raises :class:`RepairError`."""
    disk = RealDisk(directory)
    try:
        if store_format is StoreFormat.ASSAY:
            disk.lock()
            try:
                yield disk
            finally:
                disk.unlock()
            return
        # A lock file would be a foreign file in another broker's directory, so the folder itself is locked.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield disk
        finally:
            os.close(descriptor)
    except (DirectoryInUseError, BlockingIOError) as error:
        raise RepairError(f"{directory} is in use; stop the broker (or the other repair) first") from error


class _Repair:
    """Carries out the actions of a plan."""

    def __init__(self, disk: RealDisk, layout: StoreLayout, plan: RepairReport, now: datetime) -> None:
        self._disk = disk
        self._reader = ReadOnlyDisk(disk.root)
        self._layout = layout
        self._actions = plan.actions
        self._now = now
        self.folder = self._new_folder()

    def _new_folder(self) -> str:
        stem = f"{REPAIR_PREFIX}{self._now:%Y%m%dT%H%M%SZ}"
        number, name = 1, stem
        while self._disk.exists(name):
            number += 1
            name = f"{stem}-{number}"
        return name

    def _of(self, *kinds: ActionKind) -> list[RepairAction]:
        return [one for one in self._actions if one.kind in kinds]

    def run(self) -> None:
        """Copies first, then the record, then the changes."""
        changed = self._keep_copies()
        record = RepairRecord(
            time=self._now.isoformat(timespec="seconds"), changed=changed, lost=lost_ranges(self._actions)
        )
        write_file(
            self._disk, f"{self.folder}/{RECORD_NAME}", msgspec.json.format(msgspec.json.encode(record), indent=2)
        )
        for action in self._of(ActionKind.DROP):
            self._drop(action.path)
        for action in self._of(ActionKind.FINISH_SWAP):
            self._finish_swap(action.path)
        removed = self._cut_segments()
        self._write_marks(removed)
        for action in self._of(ActionKind.REBUILD_INDEX):
            place, segment = segment_at(self._layout, action.path)
            rebuild_indexes(self._disk, self._reader, place, segment)
        for action in self._of(ActionKind.WRITE_CLEANER):
            self._write_cleaner(action)
        for action in self._of(ActionKind.RECOVER_GROUP):
            recover_group(self._disk, action.path, now_ms=round(self._now.timestamp() * 1000))

    # -- copies --------------------------------------------------------------------------------------------------

    def _keep_copies(self) -> list[str]:
        """Copy every file that may change, durably; returns their paths."""
        self._disk.make_folder(self.folder)
        changed = sorted({path for action in self._actions for path in self._files_of(action)})
        for path in changed:
            self._keep_copy(path)
        for folder in sorted({f"{self.folder}/{path}".rpartition("/")[0] for path in changed}, reverse=True):
            sync_up(self._disk, folder)
        sync_up(self._disk, self.folder)
        return changed

    def _files_of(self, action: RepairAction) -> list[str]:
        """Files that exist and that an action may change or remove."""
        paths = [action.path]
        folder = action.path.rpartition("/")[0]
        if action.kind in (ActionKind.CUT_TAIL, ActionKind.MOVE_OUT, ActionKind.REBUILD_INDEX):
            stem = action.path.rpartition(".")[0]
            paths += [stem + suffix for suffix in self._layout.format.index_suffixes]
            paths.append(f"{folder}/{MARK_NAME}")
        elif action.kind is ActionKind.FINISH_SWAP:
            paths += [f"{folder}/{name}" for name in self._replaced_by(action.path)]
        if self._reader.is_folder(action.path):
            paths = [f"{action.path}/{name}" for name in self._reader.list(action.path)]
        if action.kind is ActionKind.GIVE_UP:
            return []
        return [path for path in paths if self._disk.exists(path) and not self._reader.is_folder(path)]

    def _replaced_by(self, swap_path: str) -> list[str]:
        """Files that a compacted segment replaces."""
        folder, _, name = swap_path.rpartition("/")
        swap = parse_swap_name(name)
        assert swap is not None
        stems = {f"{base:020d}" for base in self._bases_in(folder) if swap[0] <= base < swap[1]}
        return [other for other in self._reader.list(folder) if other.rpartition(".")[0] in stems]

    def _bases_in(self, folder: str) -> list[int]:
        names = (name.rpartition(".")[0] for name in self._reader.list(folder))
        return [int(stem) for stem in names if len(stem) == 20 and stem.isascii() and stem.isdecimal()]

    def _keep_copy(self, path: str) -> None:
        target = self._disk.root / self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self._disk.root / path, target)
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # -- changes -------------------------------------------------------------------------------------------------

    def _drop(self, path: str) -> None:
        if self._reader.is_folder(path):
            # An import that did not finish: no broker ever read it.
            shutil.rmtree(self._disk.root / path)
        elif self._disk.exists(path):
            self._disk.remove(path)
        self._disk.sync_folder(path.rpartition("/")[0])

    def _finish_swap(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        swap = parse_swap_name(name)
        assert swap is not None
        finish_swap(self._disk, folder, name, *swap)
        self._disk.sync_folder(folder)
        self._layout = find_layout(self._reader, self._layout.format)

    def _cut_segments(self) -> dict[str, list[tuple[int, int]]]:
        """Cut tails off and move damaged ranges out; returns the removed ranges by segment."""
        removed: dict[str, list[tuple[int, int]]] = {}
        for action in self._of(ActionKind.CUT_TAIL, ActionKind.MOVE_OUT):
            if action.position is not None and action.end_position is not None:
                removed.setdefault(action.path, []).append((action.position, action.end_position))
        for path, ranges in sorted(removed.items()):
            _, segment = segment_at(self._layout, path)
            for suffix in self._layout.format.index_suffixes:
                if self._disk.exists(segment.stem + suffix):
                    self._disk.remove(segment.stem + suffix)
            self._disk.sync_folder(path.rpartition("/")[0])
            cut_ranges(self._disk, path, sorted(ranges))
        return removed

    def _write_marks(self, removed: dict[str, list[tuple[int, int]]]) -> None:
        """Write marks anew that are damaged, or that point into a segment that became shorter."""
        if self._layout.format is not StoreFormat.ASSAY:
            return
        damaged = {action.path.rpartition("/")[0] for action in self._of(ActionKind.WRITE_MARK)}
        for place in self._layout.logs:
            path = f"{place.folder}/{MARK_NAME}"
            mark = decode_mark(self._reader.read(path, 4_096)) if self._disk.exists(path) else None
            if mark is not None:
                at = next((one for one in place.segments if one.base_offset == mark.segment_base), None)
                ranges = removed.get(at.path, []) if at is not None else []
                if ranges or place.folder in damaged:
                    write_mark(self._disk, place.folder, _moved(mark, ranges))
            elif place.folder in damaged and place.segments:
                write_mark(self._disk, place.folder, self._mark_of_end(place, place.segments[-1]))

    def _mark_of_end(self, place: PartitionPlace, segment: SegmentPlace) -> DurableMark:
        """The whole log is durable: it was just read, and is synced here."""
        with closing(self._disk.open(segment.path)) as file:
            file.sync()
        exam = examine_segment(self._reader, segment, place.codec, end_offset=None, decode=False)
        return DurableMark(exam.end_offset, segment.base_offset, exam.bytes)

    def _write_cleaner(self, action: RepairAction) -> None:
        """What gaps there are count as compaction's: the file that says so is lost, and it did run."""
        folder = action.path.rpartition("/")[0]
        gaps_until = 0
        for place in self._layout.select(action.queue, action.partition):
            before = place.segments[0].base_offset if place.segments else 0
            for number, segment in enumerate(place.segments):
                exam = examine_segment(
                    self._reader, segment, place.codec, end_offset=place.end_offset_of(number), decode=False
                )
                if segment.base_offset > before:
                    gaps_until = segment.base_offset
                gaps_until = max([gaps_until, *(gap.end_offset for gap in exam.gaps)])
                before = exam.end_offset
        write_cleaner_file(self._disk, folder, CleanerState(gaps_until=gaps_until))


def _moved(mark: DurableMark, ranges: list[tuple[int, int]]) -> DurableMark:
    """A mark after ranges before it were removed."""
    removed = sum(min(end, mark.position) - start for start, end in ranges if start < mark.position)
    return DurableMark(mark.offset, mark.segment_base, mark.position - removed)
