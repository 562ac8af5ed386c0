"""What a check can find, as data: the same structs feed the tables, the JSON output and the repair plan."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import TypedDict, Unpack

import msgspec

from assay.reference_broker.storage_tools.layout import StoreFormat

VERIFY_SCHEMA = "assay.storage.verify/1"
MAX_FINDINGS = 10_000
"""More are counted, not listed."""


class Severity(StrEnum):
    """How bad a finding is."""

    FAULT = "fault"
    """Data or its description is damaged or missing; ``verify`` exits with 1."""
    WARNING = "warning"
    """What a crash leaves behind and a broker puts right by itself when it opens the directory."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""


class FindingKind(StrEnum):
    """What was found."""

    CORRUPT_BATCH = "corrupt_batch"
    """Bytes that are no sound batch, with sound ones behind them, or in a segment that is finished."""
    TORN_TAIL = "torn_tail"
    """The last bytes of the last segment are an unfinished write."""
    LOST_CONFIRMED = "lost_confirmed"
    """Records below the durable mark are damaged or gone: their publishers were told that they are safe."""
    BEING_WRITTEN = "being_written"
    """An unfinished tail, or a missing index, of a directory that a broker has open."""
    BAD_RECORDS = "bad_records"
    """A batch with a right checksum whose records do not decode."""
    MISSING_OFFSETS = "missing_offsets"
    """Offsets that no batch holds, and no compaction or repair accounts for."""
    REPAIRED_GAP = "repaired_gap"
    """Offsets that a former repair or a compaction removed."""
    OVERLAP = "overlap"
    """Two segments claim the same offsets."""
    INDEX_DAMAGED = "index_damaged"
    """An index file that is no index."""
    INDEX_WRONG = "index_wrong"
    """An index entry that names no batch of its segment."""
    INDEX_MISSING = "index_missing"
    INDEX_ORPHAN = "index_orphan"
    """An index file without its segment."""
    MARK_DAMAGED = "mark_damaged"
    """The durable mark of a partition does not decode."""
    GROUP_DAMAGED = "group_damaged"
    """A file of a consumer group does not decode."""
    GROUP_TORN_TAIL = "group_torn_tail"
    """The last bytes of a group's log are an unfinished write."""
    DESCRIPTION_DAMAGED = "description_damaged"
    """A file that describes a queue is missing, does not decode, or describes another queue."""
    DELAY_UNDATED = "delay_undated"
    """A delayed message without a due time."""
    DELAY_INDEX_WRONG = "delay_index_wrong"
    """What is known of delayed messages does not fit to them, or cannot be understood."""
    SESSIONS_LOST = "sessions_lost"
    """A start missed the folder of sessions and retained messages, and began a new one."""
    SNAPSHOT_DAMAGED = "snapshot_damaged"
    LEFTOVER = "leftover"
    """A temporary file of a write that never finished."""
    QUARANTINE = "quarantine"
    """Damaged bytes that a recovery put aside."""
    UNKNOWN_FILE = "unknown_file"
    UNREADABLE = "unreadable"
    """The operating system refused to read."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was found. Positions are bytes from the start of the file at ``path``."""

    severity: Severity
    kind: FindingKind
    path: str
    """Relative to the data directory."""
    problem: str
    """What is there."""
    meaning: str
    """What it means for the data, and what to do."""
    queue: str | None = None
    partition: int | None = None
    position: int | None = None
    end_position: int | None = None
    """First byte behind the range."""
    offset: int | None = None
    """First record offset concerned."""
    end_offset: int | None = None
    """First record offset behind those concerned; None when it is not known."""


class FindingPlace(TypedDict, total=False):
    """As far as it is known; see :class:`Finding`."""

    queue: str | None
    partition: int | None
    position: int | None
    end_position: int | None
    offset: int | None
    end_offset: int | None


class Findings:
    """Collects findings up to a limit, and counts all of them."""

    def __init__(self, limit: int = MAX_FINDINGS) -> None:
        self.listed: list[Finding] = []
        self.counts = dict.fromkeys(Severity, 0)
        self._limit = limit

    def report(
        self,
        severity: Severity,
        kind: FindingKind,
        path: str,
        problem: str,
        meaning: str,
        **place: Unpack[FindingPlace],
    ) -> None:
        """Add a finding made of these fields; a check binds the place it looks at once and for all."""
        self.add(Finding(severity=severity, kind=kind, path=path, problem=problem, meaning=meaning, **place))

    def unreadable(self, path: str, error: OSError, **place: Unpack[FindingPlace]) -> None:
        """The operating system refused to read it."""
        meaning = "make it readable for this user and check again"
        if error.errno == errno.EIO:
            meaning = "the disk fails: copy what can be read before anything else"
        self.report(Severity.FAULT, FindingKind.UNREADABLE, path, str(error.strerror or error), meaning, **place)

    def leftover(self, path: str, meaning: str, *, in_use: bool, **place: Unpack[FindingPlace]) -> None:
        """A temporary file; a broker that has the directory open may be writing it."""
        severity = Severity.NOTE if in_use else Severity.WARNING
        self.report(severity, FindingKind.LEFTOVER, path, "a write that never finished", meaning, **place)

    def quarantine(self, path: str, problem: str, **place: Unpack[FindingPlace]) -> None:
        """Damaged bytes that a recovery kept."""
        meaning = "damaged bytes that a recovery put aside; delete it when nobody wants to look at them"
        self.report(Severity.NOTE, FindingKind.QUARANTINE, path, problem, meaning, **place)

    def add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        if len(self.listed) < self._limit:
            self.listed.append(finding)


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``assay storage verify`` saw."""

    schema: str = VERIFY_SCHEMA
    directory: str
    format: StoreFormat
    in_use: bool
    """A broker had the directory open, so what was read was moving."""
    queues: int
    partitions: int
    segments: int
    segment_bytes: int
    batches: int
    """Sound ones; messages in a GoQueue directory."""
    records: int
    """Decoded ones."""
    delayed: int = 0
    """Messages that wait for their time."""
    faults: int
    warnings: int
    notes: int
    findings: list[Finding]
    """By file, in the order of reading; not more than 10000."""

    def is_sound(self, *, strict: bool = False) -> bool:
        """``strict``: what a broker would put right by itself counts too."""
        return not self.faults and not (strict and self.warnings)
