"""Compaction: keep the last record of each key, drop the ones it replaced.

Sealed, durable segments are copied without what is not needed any more: see :mod:`segment_copies`. Oldest copies come
first, so that a deletion marker never goes before what it deletes.
"""

from __future__ import annotations

import msgspec

from assay.reference_broker.queues.jobs.errors import LogError, reason_of
from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.storage.batch import HEADER_BYTES, BatchEncoder
from assay.reference_broker.storage.cleaner_file import CleanerState, read_cleaner_file, write_cleaner_file
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.segment import Segment
from assay.reference_broker.storage.segment_copies import MAX_RELATIVE_OFFSET, SegmentCopier, put_in_place


class CompactionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to compact and what to keep."""

    min_dirty_ratio: float = 0.5
    """Least share of the sealed bytes that were never compacted."""
    tombstone_age_ms: int = 86_400_000
    """A record without value deletes its key; it is kept that long, so that slow readers see it."""
    max_keys: int = 1_000_000
    """Keys to remember in one go; segments beyond them wait for the next."""
    max_key_bytes: int = 64 * 1024 * 1024
    """Bytes of these keys."""


class CompactionTask(SegmentCopier):
    """One compaction. :meth:`run` does the copying, in any thread; then give the task to :meth:`Compactor.finish`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        sources: tuple[Segment, ...],
        *,
        state: CleanerState,
        policy: CompactionPolicy,
        encoder: BatchEncoder,
        segment_bytes: int,
        now_ms: int,
    ) -> None:
        super().__init__(disk, folder, encoder)
        self._sources = sources
        self._state = state
        self._policy = policy
        self._segment_bytes = segment_bytes
        self._now_ms = now_ms
        self.clean_until = 0
        self.kept: tuple[tuple[int, int], ...] = ()
        """See :attr:`CleanerState.kept`."""

    def run(self) -> None:
        """Blocks. Raises :class:`OSError` or :class:`LogError`; what was copied by then may still be swapped in."""
        latest = self.latest_offsets()
        self._write_state()
        surveyed = [
            (segment, *self._survey(segment, latest))
            for segment in self._sources
            if segment.base_offset < self.clean_until
        ]
        group: list[Segment] = []
        group_bytes = 0
        removes = False
        for segment, kept_bytes, removed in surveyed:
            if segment in self.damaged:
                self._copy_if_useful(group, latest, removes=removes)
                group, group_bytes, removes = [], 0, False
                continue
            fits = group_bytes + kept_bytes <= self._segment_bytes
            if group and not (fits and segment.base_offset - group[0].base_offset <= MAX_RELATIVE_OFFSET):
                self._copy_if_useful(group, latest, removes=removes)
                group, group_bytes, removes = [], 0, False
            group.append(segment)
            group_bytes += kept_bytes
            removes = removes or removed > 0
        self._copy_if_useful(group, latest, removes=removes)
        self.kept = self.left([segment for segment in self._sources if segment.base_offset < self.clean_until])
        # Before the copies take their places: what is named is there, with or without them.
        self._write_state()

    def _write_state(self) -> None:
        """Which segments are left is not known before all copies are there."""
        gaps_until = max(self._state.gaps_until, self.clean_until)
        state = msgspec.structs.replace(self._state, gaps_until=gaps_until, kept=self.kept)
        write_cleaner_file(self._disk, self._folder, state)

    def _copy_if_useful(self, group: list[Segment], latest: dict[bytes, int], *, removes: bool) -> None:
        """One segment of which nothing goes stays as it is."""
        if removes or len(group) > 1:
            self.copy_group(group, latest)

    def _survey(self, segment: Segment, latest: dict[bytes, int]) -> tuple[int, int]:
        """About how many bytes of a segment stay, and how many records go."""
        kept_bytes = removed = 0
        for record in self._records(segment):
            if self.is_kept(record, latest):
                kept_bytes += HEADER_BYTES + _about_bytes(record)
            else:
                removed += 1
        return min(kept_bytes, segment.size), removed

    def latest_offsets(self) -> dict[bytes, int]:
        """Key -> offset of its last record in the segments not compacted yet, as many as the policy lets remember."""
        latest: dict[bytes, int] = {}
        key_bytes = 0
        self.clean_until = self._state.clean_until
        for segment in self._sources:
            if segment.base_offset < self._state.clean_until:
                continue
            for record in self._records(segment):
                if record.key and record.key not in latest:
                    key_bytes += len(record.key)
                if record.key:
                    latest[record.key] = record.offset
            if len(latest) > self._policy.max_keys or key_bytes > self._policy.max_key_bytes:
                # Keys of a segment that is remembered in part would be kept twice, which is harmless.
                if self.clean_until == self._state.clean_until:
                    self.clean_until = segment.limit_offset or segment.end_offset
                break
            self.clean_until = segment.limit_offset or segment.end_offset
        return latest

    def copy_group(self, group: list[Segment], latest: dict[bytes, int]) -> None:
        """Write one compacted segment and make it count."""
        self._write(group, (record for record in self.sound_records(group) if self.is_kept(record, latest)))

    def is_kept(self, record: LogRecord, latest: dict[bytes, int]) -> bool:
        """Records without a key replace nothing and are never replaced."""
        if not record.key:
            return True
        if latest.get(record.key, -1) > record.offset:
            return False
        # A segment that is not rewritten may hold what a deletion marker deletes.
        return (
            record.value is not None
            or bool(self.damaged)
            or record.timestamp_ms + self._policy.tombstone_age_ms > self._now_ms
        )


def _about_bytes(record: LogRecord) -> int:
    """Roughly the encoded size of a record."""
    headers = sum(len(name) + len(value) + 2 for name, value in record.headers)
    return 10 + len(record.key or b"") + len(record.value or b"") + headers


class Compactor:
    """Compacts one log. Drive it like a sync: :meth:`start`, ``task.run()`` in any thread, :meth:`finish`.

    Its encoder must not be the log's own, whose buffers the log uses while a task runs.
    """

    def __init__(
        self, disk: Disk, folder: str, log: SegmentedLog, encoder: BatchEncoder, policy: CompactionPolicy
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._log = log
        self._encoder = encoder
        self._policy = policy
        self._running = False
        self._unplaced: CompactionTask | None = None
        """Its copies could not be put in place yet; until they are, nothing may be compacted over them."""
        self._state = read_cleaner_file(disk, folder, log.note)

    @property
    def clean_until(self) -> int:
        """Below it every key has one record at most, apart from newer ones above it."""
        return self._state.clean_until

    def start(self, now_ms: int, *, at_once: bool = False) -> CompactionTask | None:
        """A compaction of what is sealed and on disk; None when there is too little to gain or one is running.

        ``at_once``: however little was written since the last one, which may have replaced much.
        """
        if self._unplaced is not None:
            try:
                self._put_in_place(self._unplaced)
            except OSError:
                return None
            self._unplaced = None
        sources = []
        for segment in self._log.segments[:-1]:
            if not self._log.is_replaceable(segment):
                break
            sources.append(segment)
        total = sum(segment.size for segment in sources)
        dirty = sum(segment.size for segment in sources if segment.base_offset >= self._state.clean_until)
        if self._running or not dirty or dirty < (0 if at_once else self._policy.min_dirty_ratio) * total:
            return None
        self._running = True
        return CompactionTask(
            self._disk,
            self._folder,
            tuple(sources),
            state=self._state,
            policy=self._policy,
            encoder=self._encoder,
            segment_bytes=self._log.options.segment_bytes,
            now_ms=now_ms,
        )

    def finish(self, task: CompactionTask, error: Exception | None) -> None:
        """Put the copies in place. After an error those that were complete still count. Raises :class:`LogError`.

        What cannot be put in place is when the next compaction would begin, or when the log is opened again.
        """
        self._running = False
        try:
            all_placed = self._put_in_place(task)
            if all_placed and error is None:
                self._state = CleanerState(
                    gaps_until=self._state.gaps_until, clean_until=task.clean_until, kept=task.kept
                )
            if error is None:
                write_cleaner_file(self._disk, self._folder, self._state)
        except OSError as failure:
            self._unplaced = task
            message = f"cannot put compacted segments of {self._folder} in place: {reason_of(failure)}; tried again"
            raise LogError(message) from failure
        for segment, problem in task.damaged.items():
            self._log.note(segment.path, f"not compacted: {problem}")
        if error is not None:
            self._log.note(self._folder, f"compaction stopped: {error}; tried again later")

    def _put_in_place(self, task: CompactionTask) -> bool:
        """False when some are not wanted any more. Raises :class:`OSError`; may be called again then."""
        all_placed = True
        while task.copies:
            all_placed &= put_in_place(self._disk, self._folder, self._log, task.copies[0])
            task.copies.pop(0)
        gaps_until = max(self._state.gaps_until, task.clean_until)
        self._state = msgspec.structs.replace(self._state, gaps_until=gaps_until, kept=())
        return all_placed
