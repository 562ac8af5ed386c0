"""What a group's operations lead to: cursors, and the pending entries in eight shards."""

from __future__ import annotations

from collections.abc import Iterable

from assay.reference_broker.queues.jobs.store import PendingRecord
from assay.reference_broker.storage.pending_codec import MAX_DELIVERY_COUNT, Code, Operation

SHARDS = 8
Place = tuple[int, int]
"""Partition and offset."""


class PendingState:
    """Cursors and unsettled entries. Entry (p, o) is in shard ``o % 8``, as in the seeds' consumer state.

    Every operation says what is, not what changes. So replaying a whole log over a state that was captured at any
    place within it, even entry by entry at different places, leads to the state at the log's end.
    """

    def __init__(self) -> None:
        self.cursors: dict[int, int] = {}
        """Partition -> next offset to deliver for the first time."""
        self.shards: list[dict[Place, PendingRecord]] = [{} for _ in range(SHARDS)]

    def __len__(self) -> int:
        return sum(len(shard) for shard in self.shards)

    def records(self) -> list[PendingRecord]:
        """All entries by partition and offset."""
        return sorted(entry for shard in self.shards for entry in shard.values())

    def put(self, entry: PendingRecord) -> None:
        """Set an entry, whatever was there."""
        self.shards[entry.offset % SHARDS][(entry.partition, entry.offset)] = entry

    def apply(self, operations: Iterable[Operation]) -> int:
        """Replay operations in their order; returns how many there were, a run or range counted by its offsets."""
        applied = 0
        for operation in operations:
            code = operation.code
            if code is Code.ADD:
                self._add(operation)
            elif code is Code.ACK:
                self.ack(operation)
            elif code is Code.CURSOR:
                self.cursors[operation.partition] = operation.offset
            elif code is Code.REWIND:
                self._rewind(operation.partition, operation.offset)
            else:
                self.change(operation)
            applied += operation.end - operation.offset
        return applied

    def _add(self, operation: Operation) -> None:
        _, partition, start, end, consumer, at_ms, count, _ = operation
        shards = self.shards
        for offset in range(start, end):
            entry = PendingRecord(partition, offset, consumer, at_ms, 0, count)
            shards[offset % SHARDS][(partition, offset)] = entry
        self.cursors[partition] = max(self.cursors.get(partition, 0), end)

    def ack(self, operation: Operation) -> None:
        """Forget the entries of a range of offsets."""
        partition, start, end = operation.partition, operation.offset, operation.end
        shards = self.shards
        if end - start <= SHARDS or end - start <= len(self):
            for offset in range(start, end):
                shards[offset % SHARDS].pop((partition, offset), None)
            return
        # A range may be far wider than what is pending.
        self._drop(partition, start, end)

    def _drop(self, partition: int, start: int, end: int | None) -> None:
        for shard in self.shards:
            dropped = [
                place
                for place in shard
                if place[0] == partition and start <= place[1] and (end is None or place[1] < end)
            ]
            for place in dropped:
                del shard[place]

    def _rewind(self, partition: int, offset: int) -> None:
        """Offsets from here on are given out again: nothing that is known of them counts."""
        if partition in self.cursors:
            self.cursors[partition] = min(self.cursors[partition], offset)
        self._drop(partition, offset, None)

    def change(self, operation: Operation) -> None:
        """A claim, an expiry or annotations; of an entry that is settled it says nothing."""
        shard = self.shards[operation.offset % SHARDS]
        place = (operation.partition, operation.offset)
        entry = shard.get(place)
        if entry is None:
            return
        if operation.code is Code.EXPIRE:
            shard[place] = entry._replace(due_at_ms=operation.at_ms)
        elif operation.code is Code.ANNOTATE:
            shard[place] = entry._replace(annotations=operation.annotations)
        else:
            count = operation.delivery_count or min(entry.delivery_count + 1, MAX_DELIVERY_COUNT)
            shard[place] = PendingRecord(*place, operation.consumer, operation.at_ms, 0, count, entry.annotations)
