"""Judges one partition: its segments, their indexes, the durable mark, and the files beside them."""

from __future__ import annotations

from functools import partial

import msgspec

from assay.reference_broker.storage.cleaner_file import CLEANER_NAME, CleanerState
from assay.reference_broker.storage.description import ROOT
from assay.reference_broker.storage.durable_mark import MARK_NAME, DurableMark, decode_mark
from assay.reference_broker.storage.removed_mark import decode_removed, removed_path
from assay.reference_broker.storage.session_store import FOLDER as SESSIONS_FOLDER
from assay.reference_broker.storage_tools.findings import FindingKind, Findings, Severity
from assay.reference_broker.storage_tools.index_check import IndexState
from assay.reference_broker.storage_tools.layout import PartitionPlace, SegmentPlace, StoreFormat
from assay.reference_broker.storage_tools.partition_files import (
    MARK_SLOT_BYTES,
    MARK_SLOT_STARTS,
    FileRole,
    read_cleaner,
    role_of,
    split_mark,
)
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.repair_record import LostRange, merged
from assay.reference_broker.storage_tools.segment_exam import (
    BadRange,
    Gap,
    IndexExam,
    Progress,
    SegmentExam,
    examine_segment,
    no_progress,
)

_EVERYTHING = 1 << 63


class PartitionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a partition."""

    segments: int = 0
    segment_bytes: int = 0
    batches: int = 0
    records: int = 0


class PartitionCheck:
    """Checks a partition and adds what it finds to ``findings``."""

    def __init__(
        self,
        disk: ReadOnlyDisk,
        place: PartitionPlace,
        findings: Findings,
        *,
        in_use: bool,
        lost: tuple[LostRange, ...] = (),
        progress: Progress = no_progress,
    ) -> None:
        """``in_use``: a broker has the directory open. ``lost``: offsets that former repairs gave up."""
        self._disk = disk
        self._place = place
        self._add = partial(findings.report, queue=place.queue, partition=place.partition)
        self._unreadable = partial(findings.unreadable, queue=place.queue, partition=place.partition)
        self._leftover = partial(findings.leftover, queue=place.queue, partition=place.partition)
        self._quarantine = partial(findings.quarantine, queue=place.queue, partition=place.partition)
        self._in_use = in_use
        self._lost = merged([one for one in lost if (one.queue, one.partition) == (place.queue, place.partition)])
        self._progress = progress
        self._mark: DurableMark | None = None
        self._cleaner: CleanerState | None = None
        self._lost_confirmed = False
        self._exams: list[SegmentExam] = []

    def run(self) -> PartitionTotals:
        """Read everything."""
        # The mark first: while a broker writes, segments only get longer than it says.
        self._check_mark()
        self._check_cleaner()
        for number, segment in enumerate(self._place.segments):
            try:
                self._check_segment(number, segment)
            except FileNotFoundError:
                self._report_vanished(segment.path)
            except OSError as error:
                self._unreadable(segment.path, error)
        self._check_end()
        self._check_missing()
        self._check_other_files()
        return PartitionTotals(
            segments=len(self._exams),
            segment_bytes=sum(exam.bytes for exam in self._exams),
            batches=sum(exam.batches for exam in self._exams),
            records=sum(exam.decoded_records for exam in self._exams),
        )

    # -- the mark and the cleaner's state ------------------------------------------------------------------------

    def _check_mark(self) -> None:
        path = f"{self._place.folder}/{MARK_NAME}"
        if self._place.codec.format is not StoreFormat.ASSAY or not self._disk.exists(path):
            return
        try:
            data = self._disk.read(path, 1 << 16)
        except OSError as error:
            self._unreadable(path, error)
            return
        self._mark = decode_mark(data)
        for start, slot in zip(MARK_SLOT_STARTS, split_mark(data), strict=True):
            if slot is not None:
                continue
            # The mark is not synced by itself, so its first write may be cut by power loss.
            is_cut = len(data) < start + MARK_SLOT_BYTES
            lost = self._mark is None and not is_cut
            self._add(
                Severity.FAULT if lost else Severity.WARNING,
                FindingKind.MARK_DAMAGED,
                path,
                "a slot of the durable mark is cut short" if is_cut else "a slot of the durable mark is damaged",
                "nothing says any more how far the log was confirmed, so lost data would look like a torn tail; "
                "repair writes it anew"
                if lost
                else "a write of the mark did not finish; the next sync writes it again",
                position=start,
            )

    def _check_cleaner(self) -> None:
        if self._place.codec.format is not StoreFormat.ASSAY:
            return
        try:
            self._cleaner = read_cleaner(self._disk, self._place.folder)
        except ValueError as error:
            self._add(
                Severity.FAULT,
                FindingKind.DESCRIPTION_DAMAGED,
                f"{self._place.folder}/{CLEANER_NAME}",
                str(error),
                "without it gaps that a compaction left look like lost records; repair writes it anew",
                position=0,
            )

    @property
    def _gaps_are_fine_below(self) -> int:
        if self._place.codec.format is StoreFormat.GOQUEUE:
            # It compacts topics and keeps no account of it.
            return _EVERYTHING
        return 0 if self._cleaner is None else self._cleaner.gaps_until

    # -- segments ------------------------------------------------------------------------------------------------

    def _check_segment(self, number: int, segment: SegmentPlace) -> None:
        end_offset = self._place.end_offset_of(number)
        exam = examine_segment(
            self._disk,
            segment,
            self._place.codec,
            end_offset=end_offset,
            decode=True,
            gaps_are_fine_below=self._gaps_are_fine_below,
            progress=self._progress,
        )
        if self._exams:
            self._check_seam(self._exams[-1], exam)
        self._exams.append(exam)
        for bad in exam.bad_ranges:
            self._report_bad_range(exam, bad, next_base=end_offset)
        for gap in exam.gaps:
            self._report_gap(exam.path, gap)
        for index in exam.indexes:
            self._report_index(exam, index, is_last=end_offset is None)

    def _check_seam(self, before: SegmentExam, exam: SegmentExam) -> None:
        if exam.base_offset < before.end_offset:
            self._add(
                Severity.FAULT,
                FindingKind.OVERLAP,
                exam.path,
                f"it starts at offset {exam.base_offset}, but the segment before it holds offsets "
                f"up to {before.end_offset - 1}",
                "one of the two does not belong here; a broker refuses the partition; move the wrong one away",
                position=0,
                offset=exam.base_offset,
                end_offset=before.end_offset,
            )
        ends_in_damage = bool(before.bad_ranges) and before.bad_ranges[-1].is_tail
        if exam.base_offset > max(before.end_offset, self._gaps_are_fine_below) and not ends_in_damage:
            gap = Gap(position=before.bytes, offset=before.end_offset, end_offset=exam.base_offset)
            self._report_gap(before.path, gap)

    def _report_bad_range(self, exam: SegmentExam, bad: BadRange, *, next_base: int | None) -> None:
        severity, kind, meaning = self._judge(exam, bad, is_last=next_base is None)
        end_offset = bad.end_offset
        if kind is FindingKind.LOST_CONFIRMED and self._mark is not None:
            end_offset, self._lost_confirmed = self._mark.offset, True
        elif bad.is_tail:
            end_offset = next_base
        self._add(
            severity,
            kind,
            exam.path,
            bad.problem,
            meaning,
            position=bad.start,
            end_position=bad.end,
            offset=bad.offset,
            end_offset=end_offset,
        )

    def _judge(self, exam: SegmentExam, bad: BadRange, *, is_last: bool) -> tuple[Severity, FindingKind, str]:
        """How bad a range is, what it is, and what it means."""
        mark = self._mark
        unconfirmed = mark is not None and (exam.base_offset, bad.start) >= (mark.segment_base, mark.position)
        if bad.has_good_checksum:
            meaning = "the batch is as it was written, so its writer was wrong; readers skip it; repair moves it out"
            return Severity.FAULT, FindingKind.BAD_RECORDS, meaning
        if unconfirmed and not bad.is_tail:
            meaning = "none of it was confirmed as durable: power was lost before it was on disk; readers skip it"
            return Severity.WARNING, FindingKind.CORRUPT_BATCH, meaning
        if not bad.is_tail or not (is_last or unconfirmed):
            meaning = "records that were stored are damaged; readers skip them; repair moves the range out"
            return Severity.FAULT, FindingKind.CORRUPT_BATCH, meaning
        if mark is not None and not unconfirmed:
            meaning = (
                f"records up to offset {mark.offset - 1} were confirmed as durable, so this is no torn tail: "
                "the disk or somebody damaged them; restore the file, or let repair move the range out"
            )
            return Severity.FAULT, FindingKind.LOST_CONFIRMED, meaning
        if self._in_use:
            meaning = "a broker has the directory open and is writing here; check again when it has stopped"
            return Severity.NOTE, FindingKind.BEING_WRITTEN, meaning
        if unconfirmed or bad.is_unfinished:
            meaning = "a write that did not finish; none of it was confirmed as durable; a broker or repair cuts it off"
            return Severity.WARNING, FindingKind.TORN_TAIL, meaning
        meaning = "the last batch is all there and damaged, which a torn write does not do; repair moves it out"
        return Severity.FAULT, FindingKind.CORRUPT_BATCH, meaning

    def _report_gap(self, path: str, gap: Gap) -> None:
        severity, kind = Severity.FAULT, FindingKind.MISSING_OFFSETS
        meaning = "no compaction and no repair accounts for it: a segment file is missing, or part of one; restore it"
        if any(one.offset <= gap.offset and gap.end_offset <= one.end_offset for one in self._lost):
            severity, kind, meaning = Severity.NOTE, FindingKind.REPAIRED_GAP, "a former repair gave them up"
        elif self._mark is not None and gap.offset >= self._mark.offset:
            severity = Severity.WARNING
            meaning = "none of them was confirmed as durable: power was lost before they were on disk"
        self._add(
            severity,
            kind,
            path,
            "these offsets are not there",
            meaning,
            position=gap.position,
            offset=gap.offset,
            end_offset=gap.end_offset,
        )

    def _report_index(self, exam: SegmentExam, index: IndexExam, *, is_last: bool) -> None:
        if index.info.state is IndexState.MISSING and exam.batches:
            moving = self._in_use or is_last
            self._add(
                Severity.NOTE,
                FindingKind.BEING_WRITTEN if self._in_use else FindingKind.INDEX_MISSING,
                index.path,
                "there is no such index",
                "it is written when the segment is finished or the broker stops"
                if moving
                else "opening takes longer: the segment is read instead; a broker or repair rebuilds it",
            )
        for position, problem, is_harmless in index.problems:
            severity = Severity.WARNING if is_harmless else Severity.FAULT
            self._add(
                severity,
                FindingKind.INDEX_WRONG,
                index.path,
                problem,
                "no record is lost: readers check what an index says; repair rebuilds it",
                position=position,
                offset=exam.base_offset,
                end_offset=exam.end_offset,
            )

    def _check_end(self) -> None:
        """Confirmed records that no segment holds any more."""
        if self._mark is None or self._lost_confirmed:
            return
        end_offset = self._exams[-1].end_offset if self._exams else 0
        if self._mark.offset <= max(end_offset, self._gaps_are_fine_below):
            return
        path = self._exams[-1].path if self._exams else self._place.folder
        size = self._exams[-1].bytes if self._exams else 0
        gap = Gap(position=size, offset=end_offset, end_offset=self._mark.offset)
        if any(one.offset <= gap.offset and gap.end_offset <= one.end_offset for one in self._lost):
            self._report_gap(path, gap)
            return
        self._add(
            Severity.FAULT,
            FindingKind.LOST_CONFIRMED,
            path,
            f"the log ends at offset {end_offset}, but everything below {self._mark.offset} was confirmed as durable",
            "the file was cut, or a segment is gone; restore it",
            position=size,
            offset=end_offset,
            end_offset=self._mark.offset,
        )

    def _check_missing(self) -> None:
        """Segments that ought to be there: in front, and those that a compaction left."""
        if self._place.codec.format is not StoreFormat.ASSAY or self._in_use:
            # A running broker removes and compacts while this is read.
            return
        bases = [segment.base_offset for segment in self._place.segments]
        if bases and (start := self._removed_to()) is not None and bases[0] > start:
            self._report_gap(self._place.folder, Gap(position=0, offset=start, end_offset=bases[0]))
        for base, size in () if self._cleaner is None else self._cleaner.kept:
            exam = next((exam for exam in self._exams if exam.base_offset == base), None)
            end = next((other for other in bases if other > base), base + 1)
            if bases and base > bases[0] and base not in bases:
                self._report_gap(self._place.folder, Gap(position=0, offset=base, end_offset=end))
            elif exam is not None and exam.bytes < size:
                self._report_gap(exam.path, Gap(position=exam.bytes, offset=exam.end_offset, end_offset=end))

    def _removed_to(self) -> int | None:
        """Below it segments were removed on purpose; None when nothing says it. Of sessions none ever are."""
        root, _, rest = self._place.folder.partition("/")
        if self._place.folder == SESSIONS_FOLDER:
            return 0
        if root != ROOT:
            return None
        queue, _, log = rest.partition("/")
        path = removed_path(f"{ROOT}/{queue}", log)
        try:
            return decode_removed(self._disk.read(path, 1 << 10)) if self._disk.exists(path) else None
        except OSError as error:
            self._unreadable(path, error)
            return None

    # -- files beside the segments -------------------------------------------------------------------------------

    def _check_other_files(self) -> None:
        stems = {segment.stem for segment in self._place.segments}
        for name in self._disk.list(self._place.folder):
            path = f"{self._place.folder}/{name}"
            role = role_of(name, self._place.codec.format)
            if role is FileRole.SWAP:
                self._add(
                    Severity.NOTE if self._in_use else Severity.WARNING,
                    FindingKind.LEFTOVER,
                    path,
                    "a compacted segment that has not taken its place yet; it was read instead of what it replaces",
                    "a broker finishes the exchange when it opens the directory, or repair",
                )
            elif role is FileRole.INDEX and path.rpartition(".")[0] not in stems:
                self._add(
                    Severity.WARNING,
                    FindingKind.INDEX_ORPHAN,
                    path,
                    "it belongs to no segment",
                    "its segment is gone, by retention most likely; repair drops it",
                )
            elif role is FileRole.LEFTOVER:
                meaning = "a broker drops it when it opens the directory, or repair"
                self._leftover(path, meaning, in_use=self._in_use)
            elif role is FileRole.QUARANTINE:
                self._quarantine(path, "not part of the log")
            elif role is FileRole.UNKNOWN and not self._disk.is_folder(path):
                meaning = "brokers ignore it; find out who put it there"
                self._add(Severity.NOTE, FindingKind.UNKNOWN_FILE, path, "no file of a known kind", meaning)

    # -- reporting -----------------------------------------------------------------------------------------------

    def _report_vanished(self, path: str) -> None:
        severity = Severity.NOTE if self._in_use else Severity.FAULT
        meaning = "retention or compaction of the running broker removed it" if self._in_use else "who removed it?"
        self._add(severity, FindingKind.UNREADABLE, path, "the file vanished while the directory was read", meaning)
