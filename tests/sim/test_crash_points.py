"""The store's log, cut off by a power loss after every single operation, in every way a disk can lose data."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.jobs.store import NewRecord, PartitionLog
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.sim.disk import Persistence, SimDisk

SEGMENT_BYTES = 600
STEPS = 36


def open_log(disk: SimDisk) -> PartitionLog:
    """As a broker does that starts: the queue is created durably, or recovered."""
    store = LogQueueStore(disk, options=LogOptions(segment_bytes=SEGMENT_BYTES))
    return store.open_queue(QueueConfig(name="tasks")).open_partition(0)


def value(number: int) -> bytes:
    return b"value %d " % number + bytes([number % 256]) * (number * 7 % 90)


def play(log: PartitionLog, steps: int) -> list[bytes]:
    """Appends with a sync after every third; returns all values appended, in order of offset."""
    written: list[bytes] = []
    for step in range(steps):
        if step % 3 == 2:
            task = log.start_sync()
            if task is not None:
                task.run()
                log.finish_sync(None)
            continue
        records = [NewRecord(1_000 + step, b"k", value(len(written) + extra), ()) for extra in range(1 + step % 2)]
        log.append(records)
        written += [record.value or b"" for record in records]
    return written


@pytest.mark.parametrize("mode", list(Persistence))
def test_nothing_synced_is_lost_and_nothing_is_invented(mode: Persistence) -> None:
    recoveries = 0
    for steps in range(1, STEPS + 1):
        for seed in range(4):
            disk = SimDisk(random.Random(seed * 1_000 + steps))
            log = open_log(disk)
            written = play(log, steps)
            durable = log.durable_offset
            disk.power_loss((mode,))
            recovered = open_log(disk)
            found = recovered.read(0, 10_000)
            where = f"mode {mode}, seed {seed}, after {steps} steps"
            assert [(record.offset, record.value) for record in found[:durable]] == list(
                enumerate(written[:durable])
            ), where
            assert all(record.value == written[record.offset] for record in found), where
            next_offset = recovered.next_offset
            assert next_offset >= durable, where
            assert recovered.append([NewRecord(5_000, b"k", b"after", ())]) == next_offset
            assert recovered.read(next_offset, 1)[0].value == b"after"
            recoveries += 1
    assert recoveries == STEPS * 4


@pytest.mark.parametrize("mode", [Persistence.TORN, Persistence.SUBSET, Persistence.SIZE_ONLY])
def test_a_second_power_loss_during_recovery_changes_nothing(mode: Persistence) -> None:
    for seed in range(60):
        disk = SimDisk(random.Random(seed))
        log = open_log(disk)
        written = play(log, STEPS)
        durable = log.durable_offset
        disk.power_loss((mode,))
        open_log(disk)  # recovers, and is interrupted before it can sync more
        disk.power_loss((mode,))
        found = open_log(disk).read(0, 10_000)
        assert [record.value for record in found[:durable]] == written[:durable], f"mode {mode}, seed {seed}"
