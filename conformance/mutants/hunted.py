"""Planted bugs that show only under drawn faults: of a disk that errs, of a node that goes at a bad moment, of clocks.

The schedules of the shipped files find none of them. Each has a near miss, a lawful broker that comes close to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups import group_recovery, group_state
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.jobs.confirms import call_all
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.queues.partitions import partition
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.server.clock import Clock
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.durable_mark import DurableMark, DurableMarkFile
from assay.reference_broker.storage.file_sync import FileSync
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.notes import Notes
from assay.reference_broker.storage.pending_codec import LogDamage, walk_frames
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.pending_recovery import GroupRecovery
from assay.reference_broker.storage.pending_snapshot import GroupPaths, PendingSync, Snapshot
from assay.reference_broker.storage.segment import Segment, SegmentScan
from assay.reference_broker.storage.segment_scan import BatchPlace, Window, scan_batches

Original = Callable[..., Any]
_SOON: Final = 20
"""Operations after which a group replaces its log, where that is to happen in a short run."""
_PATIENCE_S: Final = 0.25
_PASSING: Final = 4
"""EINTR: the call is taken for one that was not tried."""


# -- errors of the disk --------------------------------------------------------------------------------------------


def _with_error(patch: Patch, owner: type, name: str, change: Callable[[OSError | None], OSError | None]) -> None:
    """Have ``owner.name(self, ..., error, ...)`` be told another error."""

    def make(original: Original) -> Original:
        def told(self: Any, *rest: Any) -> Any:
            return original(self, *[change(each) if isinstance(each, OSError) else each for each in rest])

        return told

    patch.wrap(owner, name, make)


@mutant("hunt-partition-sync-error-swallowed", "a sync of messages that fails counts as done")
def partition_sync_error_swallowed(patch: Patch) -> None:
    _with_error(patch, QueuePartition, "finish_sync", lambda _: None)


@mutant("hunt-group-sync-error-swallowed", "a sync of settlements that fails counts as done")
def group_sync_error_swallowed(patch: Patch) -> None:
    _with_error(patch, ConsumerGroup, "finish_sync", lambda _: None)


@mutant("hunt-sync-error-retried", "a sync that fails is tried again, and the disk says yes although the data is gone")
def sync_error_retried(patch: Patch) -> None:
    _with_error(patch, QueueEngine, "job_done", lambda error: OSError(_PASSING, f"not tried ({error})"))


@variation("hunt-syncs-twice", "every sync of messages is made twice, for good measure")
def syncs_twice(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def run(self: FileSync) -> None:
            original(self)
            original(self)

        return run

    patch.wrap(FileSync, "run", make)


@mutant("hunt-slow-sync-counts-as-done", "whoever waits for a sync for long is told that it is over")
def slow_sync_counts_as_done(patch: Patch) -> None:
    begun: dict[QueuePartition, float] = {}

    def note(original: Original) -> Original:
        def start_sync(self: QueuePartition) -> Any:
            task = original(self)
            if task is not None:
                begun[self] = self._agenda.now
            return task

        return start_sync

    def hasten(original: Original) -> Original:
        def dispatch(self: QueueEngine, now: float) -> None:
            for point, since in begun.items():
                if point.is_syncing and now - since > _PATIENCE_S:
                    call_all(point._running, None)
                    point._running = ()
            original(self, now)

        return dispatch

    patch.wrap(QueuePartition, "start_sync", note)
    patch.wrap(QueueEngine, "dispatch", hasten)


@mutant("hunt-refused-write-confirmed", "messages that the disk refuses to take are confirmed like the others")
def refused_write_confirmed(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def write(self: SegmentedLog, *rest: Any) -> None:
            try:
                original(self, *rest)
            except LogError:
                self._unsynced[self._segments[-1]] = None

        return write

    patch.wrap(SegmentedLog, "write", make)


@mutant("hunt-half-batch-confirmed", "of several messages that the disk refuses together the first half is confirmed")
def half_batch_confirmed(patch: Patch) -> None:
    def told(confirms: list[Any], error: Any) -> None:
        half = 0 if error is None else len(confirms) // 2
        call_all(confirms[:half], None)
        call_all(confirms[half:], error)

    patch.replace(partition, "call_all", told)


@variation("hunt-refuses-last-first", "of several messages that the disk refuses together the last is refused first")
def refuses_last_first(patch: Patch) -> None:
    def told(confirms: list[Any], error: Any) -> None:
        call_all(confirms if error is None else confirms[::-1], error)

    patch.replace(partition, "call_all", told)


@mutant("hunt-settlements-refused-are-forgotten", "settlements that the disk refuses are confirmed and forgotten")
def settlements_refused_are_forgotten(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def flush(self: PendingLogFile) -> None:
            try:
                original(self)
            except LogError:
                self._forget()

        return flush

    patch.wrap(PendingLogFile, "flush", make)


@mutant("hunt-rest-forgotten", "a group that rests after a refused write is not woken if something else was due before")
def rest_forgotten(patch: Patch) -> None:
    patch.rewrite(ConsumerGroup, "rearm", "self.stalled_until > now", "False")


@variation("hunt-rests-longer", "a group rests half as long again after a refused write")
def rests_longer(patch: Patch) -> None:
    patch.replace(group_state, "WRITE_RETRY_S", 1.5)


@mutant(
    "hunt-dead-letter-let-go", "a message whose dead letter the disk refuses is let go, and its rejection confirmed"
)
def dead_letter_let_go(patch: Patch) -> None:
    patch.rewrite(DurableQueue, "dead_letter", "if error is None:", "if True:")


@mutant("hunt-unread-message-skipped", "a message that the disk does not give just now is taken for none")
def unread_message_skipped(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def load(self: QueuePartition, offset: int, end: int | None = None) -> tuple[int, StoredMessage] | None:
            try:
                found: tuple[int, StoredMessage] | None = original(self, offset, end)
            except LogError:
                found = original(self, offset + 1, end)
            return found

        return load

    patch.wrap(QueuePartition, "load", make)


@mutant("hunt-unread-group-is-new", "a group whose file the disk does not give just now is taken for a new one")
def unread_group_is_new(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def open_log(self: GroupRecovery, path: str) -> Any:
            try:
                return original(self, path)
            except OSError:
                return None

        return open_log

    patch.wrap(GroupRecovery, "open_log", make)


@mutant("hunt-says-nothing", "the broker tells nobody what it finds on a damaged disk")
def says_nothing(patch: Patch) -> None:
    def add(self: Notes, queue: str, place: str, problem: str) -> None:
        """Nobody needs to know."""

    patch.replace(Notes, "add", add)


# -- what a node leaves behind that goes down -----------------------------------------------------------------------


@mutant("hunt-torn-tail-takes-one-more", "with the torn end of a log the last sound batch before it is cut off")
def torn_tail_takes_one_more(patch: Patch) -> None:
    def make(original: Callable[[Segment], SegmentScan]) -> Callable[[Segment], SegmentScan]:
        def scan(self: Segment) -> SegmentScan:
            found = original(self)
            batches = [
                batch for batch in scan_batches(Window(self.file()), self.base_offset) if isinstance(batch, BatchPlace)
            ]
            if not found.tail_problem or not batches:
                return found
            last = batches[-1]
            return SegmentScan(
                sound_bytes=last.position, end_offset=last.base_offset, damages=(), tail_problem=found.tail_problem
            )

        return scan

    def read(self: DurableMarkFile) -> DurableMark | None:
        """Nothing stands in the way of the cut."""

    patch.wrap(Segment, "scan", make)
    patch.replace(DurableMarkFile, "read", read)


@variation("hunt-mark-not-trusted", "a start reads every log from its beginning, whatever the mark says")
def mark_not_trusted(patch: Patch) -> None:
    def read(self: DurableMarkFile) -> DurableMark | None:
        """Read everything."""

    patch.replace(DurableMarkFile, "read", read)


@mutant("hunt-group-tail-takes-one-more", "with the torn end of a group's log the last sound frame is cut off")
def group_tail_takes_one_more(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def cut(self: GroupRecovery, log: Any, damage: LogDamage) -> None:
            starts = [
                each.position for each in walk_frames(log.file, log.header.size) if not isinstance(each, LogDamage)
            ]
            original(self, log, damage)
            if damage.is_tail and starts:
                log.file.truncate(starts[-1])
                log.file.sync()

        return cut

    patch.wrap(GroupRecovery, "cut", make)


@mutant("hunt-group-tail-stays", "the torn end of a group's log stays, and what is settled next is written behind it")
def group_tail_stays(patch: Patch) -> None:
    def cut(self: GroupRecovery, log: Any, damage: LogDamage) -> None:
        """It does no harm to this start."""

    patch.replace(GroupRecovery, "cut", cut)


@mutant("hunt-snapshot-unsynced", "a group's snapshot is put in its place without a sync of its own files")
def snapshot_unsynced(patch: Patch) -> None:
    def write(self: Snapshot, disk: Disk, paths: GroupPaths) -> None:
        for path, content in ((paths.cursors, self._cursor_file), (paths.pending, self._encoder.encode(self._now_ms))):
            file = disk.open(f"{path}.tmp", create=True)
            file.truncate(0)
            file.append(content)
            file.close()

    patch.replace(pending_log, "SNAPSHOT_OPERATIONS", _SOON)
    patch.replace(Snapshot, "write", write)


@variation("hunt-snapshots-soon", "a group writes a snapshot after every twenty operations")
def snapshots_soon(patch: Patch) -> None:
    patch.replace(pending_log, "SNAPSHOT_OPERATIONS", _SOON)


@mutant("hunt-group-name-unsynced", "the name of a group's new log is not synced")
def group_name_unsynced(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def build(self: PendingSync, disk: Disk, paths: GroupPaths, files: Any, folders: Any, snapshot: Any) -> None:
            original(self, disk, paths, files, [], snapshot)

        return build

    patch.wrap(PendingSync, "__init__", make)


@variation("hunt-group-name-synced-always", "each sync of a group covers its folder, too")
def group_name_synced_always(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def build(self: PendingSync, disk: Disk, paths: GroupPaths, files: Any, folders: Any, snapshot: Any) -> None:
            original(self, disk, paths, files, folders or [paths.folder], snapshot)

        return build

    patch.wrap(PendingSync, "__init__", make)


# -- clocks --------------------------------------------------------------------------------------------------------


@mutant("hunt-timers-by-the-wall-clock", "the broker's time is the wall clock's, wherever that goes")
def timers_by_the_wall_clock(patch: Patch) -> None:
    def now(self: Clock) -> float:
        return self._wall()

    patch.replace(Clock, "now", now)


@variation("hunt-clock-is-fast-by-a-second", "the broker's time is a second ahead of the wall clock when it starts")
def clock_is_fast_by_a_second(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def build(self: Clock, ahead_s: float = 0.0, **clocks: Any) -> None:
            original(self, ahead_s + 1.0, **clocks)

        return build

    patch.wrap(Clock, "__init__", make)


_WAITS, _IS_READY = "min(due_at, now + max(0.0, due_at - entry.claimed_at))", "if due_at else now"


@mutant("hunt-timeouts-outlive-the-clock", "what was held before a restart comes back at the time that was set")
def timeouts_outlive_the_clock(patch: Patch) -> None:
    held = "if due_at else entry.claimed_at + group.config.delivery_timeout_s"
    patch.rewrite(group_recovery, "recover", _IS_READY, held)


@variation("hunt-timeouts-begin-again", "what consumers held before a restart comes back a whole timeout after it")
def timeouts_begin_again(patch: Patch) -> None:
    held = "if due_at else now + group.config.delivery_timeout_s"
    patch.rewrite(group_recovery, "recover", _IS_READY, held)


@mutant("hunt-retries-outlive-the-clock", "what waits for a retry waits until the time that was set, by whatever clock")
def retries_outlive_the_clock(patch: Patch) -> None:
    patch.rewrite(group_recovery, "recover", _WAITS, "due_at")
