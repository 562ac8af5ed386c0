"""Replay of a group's operations against a dictionary: ranges far wider than what is pending, partitions mixed."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.queues.jobs.store import PendingRecord
from assay.reference_broker.storage.pending_codec import MAX_DELIVERY_COUNT, Code, Operation
from assay.reference_broker.storage.pending_state import SHARDS, PendingState


class Model:
    """What each operation means, offset by offset."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], PendingRecord] = {}
        self.cursors: dict[int, int] = {}

    def apply(self, operation: Operation) -> None:
        code, partition, start, end, consumer, at_ms, count, noted = operation
        entry = self.entries.get((partition, start))
        if code is Code.ADD:
            for offset in range(start, end):
                self.entries[partition, offset] = PendingRecord(partition, offset, consumer, at_ms, 0, count)
            self.cursors[partition] = max(self.cursors.get(partition, 0), end)
        elif code is Code.ACK:
            for place in [place for place in self.entries if place[0] == partition and place[1] in range(start, end)]:
                del self.entries[place]
        elif code is Code.CURSOR:
            self.cursors[partition] = start
        elif code is Code.REWIND:
            if partition in self.cursors:
                self.cursors[partition] = min(self.cursors[partition], start)
            for place in [place for place in self.entries if place[0] == partition and place[1] >= start]:
                del self.entries[place]
        elif entry is not None and code is Code.CLAIM:
            count = count or min(entry.delivery_count + 1, MAX_DELIVERY_COUNT)
            kept = entry.annotations
            self.entries[partition, start] = PendingRecord(partition, start, consumer, at_ms, 0, count, kept)
        elif entry is not None and code is Code.ANNOTATE:
            self.entries[partition, start] = entry._replace(annotations=noted)
        elif entry is not None:
            self.entries[partition, start] = entry._replace(due_at_ms=at_ms)


def _drawn(rng: random.Random, model: Model) -> Operation:
    """An operation; most begin or end at an entry that is pending, in its own partition or another one."""
    partition, offset = rng.choice([*model.entries, (rng.randrange(3), rng.randrange(40))])
    partition = rng.choice([partition, partition, rng.randrange(3)])
    code = rng.choice(
        [Code.ADD, Code.ADD, Code.ACK, Code.ACK, Code.CLAIM, Code.CLAIM, Code.EXPIRE, Code.CURSOR, Code.ANNOTATE]
    )
    if rng.random() < 0.03:
        code = Code.REWIND
    end = offset + 1
    if code is Code.ADD:
        offset, end = offset + 1, offset + 1 + rng.randint(1, 3)
    elif code is Code.ACK:
        width = rng.choice([1, 2, SHARDS - 1, SHARDS, SHARDS + 1, 30, 10**12])
        offset = max(0, rng.choice([offset, offset + 1, offset - width, offset - width + 1]))
        end = offset + width
    count = rng.choice([0, 0, 1, 7, MAX_DELIVERY_COUNT]) if code is Code.CLAIM else rng.choice([1, MAX_DELIVERY_COUNT])
    noted = rng.choice((b"", b"1", b"22")) if code is Code.ANNOTATE else b""
    return Operation(code, partition, offset, end, rng.choice("cd"), rng.randrange(1, 9), count, noted)


@pytest.mark.parametrize("seed", range(20))
def test_replay_does_what_each_operation_means(seed: int) -> None:
    rng = random.Random(seed)
    state, model, counted = PendingState(), Model(), 0
    for step in range(150):
        operations = [_drawn(rng, model)]
        model.apply(operations[0])
        if rng.random() < 0.2:
            operations.append(_drawn(rng, model))
            model.apply(operations[1])
        applied = state.apply(operations)
        counted += applied
        assert applied == sum(operation.end - operation.offset for operation in operations)
        assert state.records() == [model.entries[place] for place in sorted(model.entries)], (step, operations)
        assert state.cursors == model.cursors
        assert len(state) == len(model.entries)
    assert counted > 10**12, "ranges far wider than what is pending were among them"
