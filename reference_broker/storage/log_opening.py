"""Opening a log: finish what a crash interrupted, verify what nobody vouches for, cut what was never written whole.

Every step may itself be interrupted: opening again comes to the same log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage.cleaner_file import CleanerState, read_cleaner_file
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.durable_mark import DurableMark
from assay.reference_broker.storage.file_names import (
    COMPACTING_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_segment_name,
    parse_swap_name,
    segment_name,
)
from assay.reference_broker.storage.segment import Segment, SegmentScan

Note = Callable[[str, str], None]
"""Called with (place, problem) for what people should know."""


class OpenedLog(NamedTuple):
    """What was found."""

    segments: list[Segment]
    unverified: list[Segment]
    """Those that may not be on disk as a whole: the next sync must cover them."""
    named_until: int
    """The names of segments with bases up to it are on disk; -1 when nothing is known."""
    next_offset: int
    is_sealed: bool
    """The last segment must not be appended to: durable bytes at its end are damaged, and stay as they are."""


def open_segments(
    disk: Disk, folder: str, mark: DurableMark | None, note: Note, removed_to: int | None = None
) -> OpenedLog:
    """``removed_to``: how far segments were removed on purpose, where that is known.

    Raises :class:`OSError` when the disk fails, :class:`LogError` when files contradict each other."""
    finish_swaps(disk, folder)
    names = disk.list(folder)
    bases = sorted(base for name in names if (base := parse_segment_name(name)) is not None)
    _remove_leftovers(disk, folder, names, set(bases))
    cleaner = read_cleaner_file(disk, folder, note) if bases else CleanerState()
    if bases and removed_to is not None and bases[0] > removed_to:
        note(folder, f"offsets {removed_to} to {bases[0] - 1} are missing: its first segments are gone")
    segments: list[Segment] = []
    unverified: list[Segment] = []
    is_sealed = False
    for number, base in enumerate(bases):
        segment = Segment(disk, folder, base)
        segment.limit_offset = bases[number + 1] if number + 1 < len(bases) else None
        _report_gap(segments, segment, cleaner, note)
        if not (_is_vouched_for(segment, mark) and segment.open_by_index()):
            unverified.append(segment)
            is_sealed = _verify(segment, mark, note)
        elif mark is not None and mark.segment_base == segment.base_offset:
            # It was synced up to the mark; more may have been written to it since.
            unverified.append(segment)
        if segment.limit_offset is not None and segment.end_offset > segment.limit_offset:
            raise LogError(f"{segment.path} overlaps the segment behind it; one of them does not belong here")
        _report_cut(segment, cleaner, note)
        segment.close()
        segments.append(segment)
    next_offset = segments[-1].end_offset if segments else 0
    if mark is not None and mark.offset > next_offset:
        if not is_sealed:
            note(folder, f"offsets {next_offset} to {mark.offset - 1} had been synced and are missing")
        next_offset, is_sealed = mark.offset, True
    return OpenedLog(segments, unverified, -1 if mark is None else mark.segment_base, next_offset, is_sealed)


def _is_vouched_for(segment: Segment, mark: DurableMark | None) -> bool:
    """Whether the mark says that the segment was synced at least as far as its index files reach."""
    return mark is not None and mark.segment_base >= segment.base_offset


def _verify(segment: Segment, mark: DurableMark | None, note: Note) -> bool:
    """Scan a segment, report, cut a torn tail off the last one. True when its tail must stay as it is."""
    scan = segment.scan()
    # Nobody vouches for them either, and new ones must not be mixed with them.
    segment.remove_index_files()
    for damage in scan.damages:
        note(
            f"{segment.path} bytes {damage.start} to {damage.end}",
            f"corrupt ({damage.problem}), sound batches follow; kept in place and skipped",
        )
    # A mark that is behind the log may name a sealed segment, which compaction may have made shorter since.
    is_marked = mark is not None and segment.limit_offset is None and mark.segment_base == segment.base_offset
    durable = mark.position if mark is not None and is_marked else 0
    if scan.sound_bytes < durable:
        lost = "damaged" if scan.tail_problem else "missing"
        problem = scan.tail_problem or "the file is too short"
        note(
            f"{segment.path} bytes {scan.sound_bytes} to {max(durable, segment.size)}",
            f"they had been synced up to byte {durable} and are {lost} ({problem}); what there is stays in place, "
            "and a new segment goes on behind it",
        )
        return True
    if scan.tail_problem and segment.limit_offset is None:
        cut_torn_tail(segment, scan, note)
    elif scan.tail_problem:
        note(
            f"{segment.path} bytes {scan.sound_bytes} to {segment.size}",
            f"torn tail ({scan.tail_problem}) of a segment that is not the last; kept in place and skipped",
        )
    return False


def cut_torn_tail(segment: Segment, scan: SegmentScan, note: Note) -> None:
    """The last write did not finish: whatever it held was never confirmed as synced."""
    note(f"{segment.path} bytes {scan.sound_bytes} to {segment.size}", f"torn tail ({scan.tail_problem}); cut off")
    segment.truncate(scan.sound_bytes, scan.end_offset)
    segment.file().sync()


def _report_gap(before: list[Segment], segment: Segment, cleaner: CleanerState, note: Note) -> None:
    """Offsets between segments are missing, unless compaction took them; it says which segments it left."""
    if not before:
        return
    last, base = before[-1], segment.base_offset
    if base > max(last.end_offset, cleaner.gaps_until):
        note(segment.path, f"offsets {last.end_offset} to {base - 1} before it are missing")
    for kept, _ in cleaner.kept:
        if last.base_offset < kept < base:
            note(segment.path, f"a segment before it is missing, with records from offset {kept} on")


def _report_cut(segment: Segment, cleaner: CleanerState, note: Note) -> None:
    """A segment that compaction left does not change any more."""
    for kept, size in cleaner.kept:
        if kept == segment.base_offset and segment.size < size:
            note(f"{segment.path} bytes {segment.size} to {size}", "missing; the records in them are lost")


def finish_swaps(disk: Disk, folder: str) -> None:
    """A compacted segment that was complete when the broker stopped takes its place. Raises :class:`OSError`."""
    for name in disk.list(folder):
        swap = parse_swap_name(name)
        if swap is not None:
            finish_swap(disk, folder, name, *swap)


def finish_swap(disk: Disk, folder: str, name: str, base_offset: int, end_offset: int) -> None:
    """Remove the segments and indexes that a complete compacted segment replaces, and rename it."""
    for other in disk.list(folder):
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            base = parse_segment_name(other, suffix)
            if base is not None and base_offset <= base < end_offset:
                disk.remove(f"{folder}/{other}")
        base = parse_segment_name(other)
        if base is not None and base_offset < base < end_offset:
            disk.remove(f"{folder}/{other}")
    # Were the rename on disk and a removal not, the segments would overlap.
    disk.sync_folder(folder)
    disk.rename(f"{folder}/{name}", f"{folder}/{segment_name(base_offset)}")


def _remove_leftovers(disk: Disk, folder: str, names: list[str], bases: set[int]) -> None:
    """Half-written compactions, and indexes whose segment is gone."""
    for name in names:
        is_orphan = any(
            (base := parse_segment_name(name, suffix)) is not None and base not in bases
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        if is_orphan or name.endswith(COMPACTING_SUFFIX):
            disk.remove(f"{folder}/{name}")
