"""Planted bugs of what queues write down and read again: each shows after a restart, some after the second one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.queue_engine import after
from assay.reference_broker.queues.delays.done_records import DONE_KEY, DoneReader
from assay.reference_broker.queues.groups import group_recovery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.group_state import GroupState
from assay.reference_broker.queues.limits.limits import QueueLimits
from assay.reference_broker.queues.partitions.producers import PartitionProducers
from assay.reference_broker.storage.pending_codec import Operation
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.pending_operations import OperationCollector
from assay.reference_broker.storage.pending_state import PendingState


@mutant("queue-replay-widens-ranges", "a range of settled messages is read as one longer than it was written")
def widens_ranges(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def ack(self: PendingState, operation: Operation) -> None:
            is_range = operation.end - operation.offset > 1
            original(self, operation._replace(end=operation.end + 1) if is_range else operation)

        return ack

    patch.wrap(PendingState, "ack", make)


@mutant(
    "queue-two-holes-are-none", "what was settled but for two in between is written as if those were settled as well"
)
def two_holes(patch: Patch) -> None:
    found = "_ranges(sorted(offsets))"
    whole = "[(min(offsets), max(offsets) + 1)]"
    patch.rewrite(
        OperationCollector,
        "end_acks",
        found,
        f"{whole} if max(offsets) - min(offsets) == len(offsets) + 1 else {found}",
    )


@mutant("queue-members-come-back-one-behind-the-other", "after a restart what one member held comes before another's")
def members_one_by_one(patch: Patch) -> None:
    rank = "entry.deadline -= int.from_bytes(record.consumer.encode()) % 1_000_003"
    again = "group.wait_again(entry, now)"
    patch.rewrite(group_recovery, "recover", again, f"{rank}\n        {again}")


def _snapshots(patch: Patch, change: Callable[[PartitionProducers], None]) -> None:
    """Change what is read of the snapshots of producers."""

    def restore(cls: type[PartitionProducers], data: bytes) -> PartitionProducers:
        restored = original(data)
        change(restored)
        return restored

    original = PartitionProducers.restore
    patch.replace(PartitionProducers, "restore", classmethod(restore))


@mutant("queue-snapshots-leave-a-sequence-out", "a snapshot of a partition's producers has not their last sequences")
def leave_a_sequence_out(patch: Patch) -> None:
    def change(restored: PartitionProducers) -> None:
        for window in restored.windows.values():
            window.last -= 1
            del window.offsets[-1:]

    _snapshots(patch, change)


@mutant("queue-snapshots-forget-silent-producers", "a snapshot of a partition has its last producer alone")
def forget_silent(patch: Patch) -> None:
    def change(restored: PartitionProducers) -> None:
        for producer in list(restored.windows)[:-1]:
            del restored.windows[producer]

    _snapshots(patch, change)


@mutant("queue-snapshots-forget-what-was-aborted", "a snapshot of a partition does not say what was aborted")
def forget_aborted(patch: Patch) -> None:
    _snapshots(patch, lambda restored: restored.forget_below(1 << 62))


@mutant("queue-acks-of-one-partition", "acknowledgements of several partitions are written under the first of them")
def acks_of_one(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def end_acks(self: Any) -> None:
            if len(self._acks) > 1:
                first, *rest = self._acks
                for other in rest:
                    self._acks[first] |= self._acks.pop(other)
            original(self)

        return end_acks

    patch.wrap(PendingLogFile, "end_acks", make)


@mutant("queue-absent-groups-need-nothing", "segments are freed once the groups that have consumers have settled them")
def absent_need_nothing(patch: Patch) -> None:
    trimming: list[QueueLimits] = []

    def make_trim(original: Callable[..., None]) -> Callable[..., None]:
        def trim(self: QueueLimits) -> None:
            trimming.append(self)
            try:
                original(self)
            finally:
                trimming.pop()

        return trim

    def make_low(original: Callable[..., int]) -> Callable[..., int]:
        def low(self: GroupState, partition: int) -> int:
            if trimming and isinstance(self, ConsumerGroup) and not self.consumers:
                return self.places[partition].partition.log.next_offset
            return original(self, partition)

        return low

    patch.wrap(QueueLimits, "trim_some", make_trim)
    patch.wrap(GroupState, "low", make_low)


@mutant("queue-done-delays-forgotten", "which delayed messages were cancelled or fired is not read at the start")
def done_forgotten(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        return lambda self, key, value: key == DONE_KEY or original(self, key, value)

    patch.wrap(DoneReader, "take", make)


def _on_opening(patch: Patch, change: Callable[[PendingLogFile, str], None]) -> None:
    def changed(_result: None, self: PendingLogFile, _disk: Any, path: str, *_rest: object, **_named: object) -> None:
        change(self, path)

    after(patch, PendingLogFile, "__init__", changed)


@mutant("queue-dead-letter-groups-forgotten", "what consumers of dead letters have settled is not read at the start")
def letters_forgotten(patch: Patch) -> None:
    def forget(log: PendingLogFile, path: str) -> None:
        if "dlq" in path:
            log.recovered, log.recovered_cursors = [], {}

    _on_opening(patch, forget)


@mutant("queue-lanes-begin-anew", "where a group stands in the lanes that are not normal is not read at the start")
def lanes_anew(patch: Patch) -> None:
    def forget(log: PendingLogFile, _path: str) -> None:
        log.recovered_cursors = {place: at for place, at in log.recovered_cursors.items() if place < 65_536}

    _on_opening(patch, forget)


@mutant(
    "queue-cursors-of-two-bytes", "how far a group has come past its first unsettled message is read from two bytes"
)
def two_bytes(patch: Patch) -> None:
    def cut(log: PendingLogFile, _path: str) -> None:
        for place, cursor in log.recovered_cursors.items():
            first = min((record.offset for record in log.recovered if record.partition == place), default=cursor)
            log.recovered_cursors[place] = first + ((cursor - first) & 0xFFFF)

    _on_opening(patch, cut)
