"""Planted bugs of the queue engine that show when it starts again: after a kill, a power loss or an orderly end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.queue_engine import after, forget
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.queues.groups.retry import exhausted_reason
from assay.reference_broker.queues.jobs.confirms import SyncPoint
from assay.reference_broker.queues.partitions.departures import Departures
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.transactions import commit_phases
from assay.reference_broker.queues.transactions.coordinator import HeldOffset
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.pending_log import PendingLogFile

Original = Callable[..., Any]


@mutant("engine-call-not-logged", "what a consumer settles within its delivery is not in the log behind the delivery")
def call_not_logged(patch: Patch) -> None:
    forget(patch, Dispatcher, "log_settled_in_call")


@mutant("engine-redeliveries-not-logged", "after a restart only the first delivery of a message is known")
def redeliveries_not_logged(patch: Patch) -> None:
    forget(patch, PendingLogFile, "claim")


@mutant("engine-retries-not-logged", "after a restart what waited for a retry is taken for with its consumer")
def retries_not_logged(patch: Patch) -> None:
    forget(patch, PendingLogFile, "expire")


@mutant("engine-passed-over-not-logged", "a cursor that moves without a delivery is not written to the log")
def passed_over_not_logged(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def write(self: ConsumerGroup, now: float) -> None:
            self.moved.clear()
            original(self, now)

        return write

    patch.wrap(ConsumerGroup, "write", make)


@mutant("engine-recovery-forgets-pending", "recovery takes everything below a cursor for settled")
def recovery_forgets_pending(patch: Patch) -> None:
    def unlist(result: None, self: PendingLogFile, *rest: object) -> None:
        self.recovered = []

    after(patch, PendingLogFile, "__init__", unlist)


@mutant("engine-recovery-forgets-cursors", "recovery begins at the first message that is kept")
def recovery_forgets_cursors(patch: Patch) -> None:
    def unlist(result: None, self: PendingLogFile, *rest: object) -> None:
        self.recovered_cursors = {}

    after(patch, PendingLogFile, "__init__", unlist)


@mutant(
    "engine-recovery-trusts-the-group", "what a group knows of messages that were lost counts for those that follow"
)
def recovery_trusts_the_group(patch: Patch) -> None:
    def rewind(self: PendingLogFile, offsets: Mapping[int, int]) -> None:
        """Believe it."""

    def keep(result: None, self: ConsumerGroup, now: float) -> None:
        for place in self.places:
            place.cursor = max(place.cursor, self.log.recovered_cursors.get(place.number, 0))

    patch.replace(PendingLogFile, "rewind", rewind)
    after(patch, ConsumerGroup, "recover", keep)


@mutant("engine-last-try-lost-at-restart", "a message that is to be dead-lettered after a restart is given up")
def last_try_lost_at_restart(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def gives_up(self: ConsumerGroup, entry: PendingEntry, *args: Any) -> bool:
            reason = exhausted_reason(self.config.retry, entry.delivery_count, 0.0)
            if reason is None or self.keeps_exhausted:
                return bool(original(self, entry, *args))
            self.counts.discarded += 1
            self.discard(entry, reason)
            return True

        return gives_up

    patch.wrap(ConsumerGroup, "gives_up", make)


@mutant("engine-last-try-repeated-at-restart", "after a restart a message is delivered more often than it may be")
def last_try_repeated_at_restart(patch: Patch) -> None:
    forget(patch, ConsumerGroup, "gives_up")


@mutant("engine-settled-before-sync", "an fsync queue confirms settlements when they are written")
def settled_before_sync(patch: Patch) -> None:
    def hasten(result: None, self: ConsumerGroup, *rest: object) -> None:
        self._confirm_when_synced = False

    after(patch, ConsumerGroup, "__init__", hasten)


@mutant("engine-shown-before-sync", "an fsync queue delivers messages before they are synced")
def shown_before_sync(patch: Patch) -> None:
    def show(result: object, self: QueuePartition) -> None:
        self.visible_end = self.log.next_offset

    after(patch, QueuePartition, "write", show)


@mutant("engine-never-synced-by-time", "queues synced by interval are synced when the engine ends")
def never_synced_by_time(patch: Patch) -> None:
    def unsync(result: None, self: QueueEngine, now: float) -> None:
        self._sync_is_due = False

    after(patch, QueueEngine, "tick", unsync)


@mutant("engine-idle-groups-unsynced", "after a restart a group is synced when it writes again, not before")
def idle_groups_unsynced(patch: Patch) -> None:
    def unlist(result: None, self: ConsumerGroup, now: float) -> None:
        self.agenda.unsynced.pop(self, None)

    after(patch, ConsumerGroup, "recover", unlist)


@mutant("engine-end-leaves-messages-unwritten", "an orderly end does not write the messages of the last turn")
def end_leaves_messages_unwritten(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def close(self: QueueEngine, now: float) -> None:
            self._agenda.partitions_to_write.clear()
            original(self, now)

        return close

    patch.wrap(QueueEngine, "close", make)


@mutant(
    "engine-rotated-segment-unsynced", "a sync covers the newest segment of a partition, not those finished before it"
)
def rotated_segment_unsynced(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def start_sync(self: SegmentedLog) -> Any:
            for segment in list(self._unsynced)[:-1]:
                del self._unsynced[segment]
            return original(self)

        return start_sync

    patch.wrap(SegmentedLog, "start_sync", make)


@mutant("engine-recovery-forgets-offset-0", "an entry at offset 0 is taken for none when a group is recovered")
def recovery_forgets_offset_0(patch: Patch) -> None:
    def unlist(result: None, self: PendingLogFile, *rest: object) -> None:
        self.recovered = [record for record in self.recovered if record.offset]

    after(patch, PendingLogFile, "__init__", unlist)


@variation("engine-snapshots-often", "a group writes a snapshot after every few operations")
def snapshots_often(patch: Patch) -> None:
    patch.replace(pending_log, "SNAPSHOT_OPERATIONS", 3)


@mutant("engine-decision-settles-what-is-given-anew", "a start settles what a commit did, also if it is delivered anew")
def decision_settles_what_is_given_anew(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def of_any_time(queue: str, group: str, partition: int, offset: int, _: int, is_rejected: bool) -> HeldOffset:
            held: HeldOffset = original(queue, group, partition, offset, None, is_rejected)
            return held

        return of_any_time

    patch.wrap(commit_phases, "HeldOffset", make)


@mutant("engine-departures-never-synced", "what limits and time took is back after a loss of power, however long ago")
def departures_never_synced(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def write(self: Departures, point: SyncPoint) -> None:
            original(self, point)
            self._agenda.unsynced.pop(point, None)

        return write

    patch.wrap(Departures, "write", make)
