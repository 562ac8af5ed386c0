"""Judges the files of consumer groups, one by one and against each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from crc32c import crc32c

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage.group_files import (
    MAX_FILE_BYTES,
    GroupFileError,
    decode_cursor_file,
    decode_pending_file,
)
from assay.reference_broker.storage.pending_codec import (
    MAX_FRAME_BYTES,
    LogDamage,
    LogHeader,
    decode_operations,
    walk_frames,
)
from assay.reference_broker.storage.pending_snapshot import LOG_SUFFIX, MARK_SUFFIX, GroupPaths
from assay.reference_broker.storage.record import RecordError
from assay.reference_broker.storage_tools.findings import FindingKind, Findings, Severity
from assay.reference_broker.storage_tools.fluxmq_groups import check_fluxmq_groups
from assay.reference_broker.storage_tools.foreign.goqueue_files import (
    MAX_OFFSETS_BYTES,
    GoQueueFileError,
    decode_offsets,
)
from assay.reference_broker.storage_tools.group_info import GroupPlace, find_group_folders, position_in
from assay.reference_broker.storage_tools.group_reader import find_offset_files, read_log_header
from assay.reference_broker.storage_tools.layout import StoreFormat, StoreLayout
from assay.reference_broker.storage_tools.partition_files import CORRUPT_SUFFIX
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.torn_tail import has_empty_sector

_FRAME_BYTES = 8
_LOST_SETTLEMENTS = "what it settled is delivered again; no message is lost; a broker or repair puts the group right"


def check_groups(disk: ReadOnlyDisk, layout: StoreLayout, findings: Findings, *, in_use: bool) -> None:
    """Check all groups of a directory."""
    if layout.format is StoreFormat.GOQUEUE:
        for path in find_offset_files(disk):
            _check_offsets(disk, path, findings)
        return
    if layout.format is not StoreFormat.ASSAY:
        check_fluxmq_groups(disk, layout, findings)
        return
    for place in find_group_folders(disk, layout):
        try:
            _GroupCheck(disk, place, findings, in_use=in_use).run()
        except OSError as error:
            findings.unreadable(place.folder, error, queue=place.queue)


def _check_offsets(disk: ReadOnlyDisk, path: str, findings: Findings) -> None:
    try:
        decode_offsets(disk.read(path, MAX_OFFSETS_BYTES + 1))
    except GoQueueFileError as error:
        meaning = "the group's committed offsets are lost: it reads from where its reset policy says"
        position = position_in(str(error))
        findings.report(Severity.FAULT, FindingKind.GROUP_DAMAGED, path, str(error), meaning, position=position)


class _GroupCheck:
    """Checks one group that has a folder of its own."""

    def __init__(self, disk: ReadOnlyDisk, place: GroupPlace, findings: Findings, *, in_use: bool) -> None:
        self._disk = disk
        self._place = place
        self._findings = findings
        self._add = partial(findings.report, queue=place.queue)
        self._in_use = in_use

    def run(self) -> None:
        paths = GroupPaths(self._place.stem + LOG_SUFFIX)
        has_cursors = self._check_json(paths.cursors, lambda data: decode_cursor_file(data).group)
        has_pending = self._check_json(paths.pending, lambda data: decode_pending_file(data).group)
        header, end = self._check_log(paths.log)
        if header is not None and header.sequence and not (has_cursors and has_pending):
            missing = paths.pending if has_cursors else paths.cursors
            self._add(Severity.FAULT, FindingKind.GROUP_DAMAGED, missing, "it is missing", _LOST_SETTLEMENTS)
        if not self._disk.exists(paths.log):
            self._check_missing_log(paths.log, is_begun=has_cursors or has_pending)
        self._check_next(paths.next_log, header, end)
        for name in self._disk.list(self._place.folder):
            path = f"{self._place.folder}/{name}"
            if name.endswith(".tmp"):
                meaning = "a broker drops it when it opens the group, or repair"
                self._findings.leftover(path, meaning, in_use=self._in_use, queue=self._place.queue)
            elif name.endswith(CORRUPT_SUFFIX):
                self._findings.quarantine(path, "not part of the group's state", queue=self._place.queue)

    def _check_missing_log(self, path: str, *, is_begun: bool) -> None:
        if self._disk.exists(self._place.stem + MARK_SUFFIX):
            self._add(Severity.FAULT, FindingKind.GROUP_DAMAGED, path, "it is missing", _LOST_SETTLEMENTS)
        elif is_begun:
            meaning = "unless the group was being deleted, which a broker finishes, it begins anew: restore the file"
            self._add(Severity.WARNING, FindingKind.GROUP_DAMAGED, path, "it is missing", meaning)

    def _check_json(self, path: str, decode: Callable[[bytes], str]) -> bool:
        """Check a ``.cur`` or ``.pel``. False when there is none."""
        try:
            group = decode(self._disk.read(path, MAX_FILE_BYTES + 1))
        except FileNotFoundError:
            return False
        except GroupFileError as error:
            position = position_in(str(error))
            self._add(Severity.FAULT, FindingKind.GROUP_DAMAGED, path, str(error), _LOST_SETTLEMENTS, position=position)
            return True
        if not self._place.is_of(group):
            problem = f"it belongs to the group {group!r}, whose folder this is not"
            meaning = "the file was moved here or is damaged; restore the right one"
            self._add(Severity.FAULT, FindingKind.GROUP_DAMAGED, path, problem, meaning, position=0)
        return True

    def _check_next(self, path: str, before: LogHeader | None, end: int) -> None:
        """The log that continues another one while a snapshot is under way."""
        header, _ = self._check_log(path)
        if header is None or before is None or header.sequence == before.sequence:
            return
        if header.sequence != before.sequence + 1 or header.previous_bytes != end:
            problem = (
                f"log {header.sequence} continues one of {header.previous_bytes} bytes, but before it lies "
                f"log {before.sequence} with {end} sound bytes"
            )
            severity = Severity.NOTE if self._in_use else Severity.FAULT
            self._add(severity, FindingKind.GROUP_DAMAGED, path, problem, _LOST_SETTLEMENTS, position=0)

    def _check_log(self, path: str) -> tuple[LogHeader | None, int]:
        """Header and end of the sound part; None and 0 without a sound header."""
        size = self._disk.size(path)
        if not self._disk.exists(path):
            return None, 0
        try:
            header = read_log_header(self._disk, path)
        except LogError as error:
            meaning = "a newer program wrote it; use that one"
            self._add(Severity.FAULT, FindingKind.GROUP_DAMAGED, path, str(error), meaning, position=4)
            return None, 0
        if header is None:
            is_new = size < 32
            severity = Severity.WARNING if is_new else Severity.FAULT
            kind = FindingKind.GROUP_TORN_TAIL if is_new else FindingKind.GROUP_DAMAGED
            problem = "its header is cut short" if is_new else "its header is damaged"
            self._add(severity, kind, path, problem, _LOST_SETTLEMENTS, position=0, end_position=size)
            return None, 0
        if not self._place.is_of(header.group):
            problem = f"it belongs to the group {header.group!r}, whose folder this is not"
            meaning = "the file was moved here; restore the right one"
            self._add(Severity.FAULT, FindingKind.GROUP_DAMAGED, path, problem, meaning, position=0)
        return header, self._check_frames(path, header)

    def _check_frames(self, path: str, header: LogHeader) -> int:
        end = header.size
        with closing(self._disk.open(path)) as file:
            for found in walk_frames(file, header.size):
                if isinstance(found, LogDamage):
                    rest = file.read_at(found.position, MAX_FRAME_BYTES + _FRAME_BYTES)
                    is_unfinished = _is_unfinished(rest, found.position, is_tail=found.is_tail)
                    self._report_damage(path, found, is_unfinished=is_unfinished)
                    break
                try:
                    decode_operations(found.payload, header.version)
                except RecordError as error:
                    damage = LogDamage(found.position, file.size, str(error), is_tail=False)
                    self._report_damage(path, damage, is_unfinished=False)
                    break
                end = found.end
        return end

    def _report_damage(self, path: str, damage: LogDamage, *, is_unfinished: bool) -> None:
        severity, kind, meaning = Severity.FAULT, FindingKind.GROUP_DAMAGED, _LOST_SETTLEMENTS
        if is_unfinished and self._in_use:
            severity, kind = Severity.NOTE, FindingKind.BEING_WRITTEN
            meaning = "a broker has the directory open and is writing here"
        elif is_unfinished:
            severity, kind = Severity.WARNING, FindingKind.GROUP_TORN_TAIL
            meaning = "a write that did not finish; a broker or repair cuts it off; " + _LOST_SETTLEMENTS
        self._add(severity, kind, path, damage.problem, meaning, position=damage.position, end_position=damage.end)


def _is_unfinished(tail: bytes, position: int, *, is_tail: bool) -> bool:
    """Whether what is no frame of an operation log looks like a write that power loss took back or cut short."""
    if not any(tail[:_FRAME_BYTES]):
        # A hole: later writes reached the disk and this one did not.
        return True
    if not is_tail:
        return False
    if has_empty_sector(tail, position) or len(tail) < _FRAME_BYTES:
        return True
    length, checksum = int.from_bytes(tail[:4], "little"), int.from_bytes(tail[4:8], "little")
    # A checksum that fits what is there says that only the length is damaged.
    return length > len(tail) - _FRAME_BYTES and crc32c(tail[_FRAME_BYTES:]) != checksum
