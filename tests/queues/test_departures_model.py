"""The record of what left a queue, against a set: intervals, some of whose messages are held back, and restarts."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.partitions import departures as departures_module
from assay.reference_broker.queues.partitions.departures import Departures
from assay.reference_broker.queues.partitions.expiry import PartitionExpiry
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore

_PARTITIONS, _OFFSETS, _STEPS = 2, 60, 120


class _Partition:
    """As much of one as departures know."""

    def __init__(self, index: int) -> None:
        self.index, self.head = index, 0
        self.log = SimpleNamespace(next_offset=_OFFSETS, start_offset=0)
        self.expiry = PartitionExpiry()

    def open_expiry(self) -> PartitionExpiry:
        return self.expiry

    @property
    def gone(self) -> set[int]:
        return {*range(self.head), *self.expiry.gone(0, _OFFSETS)}


class _Life:
    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.gone: list[set[int]] = [set() for _ in range(_PARTITIONS)]
        self.held: list[dict[int, int]] = [{} for _ in range(_PARTITIONS)]
        self.start()

    def start(self) -> None:
        """Anew on the same disk: what was held is not, since its dead letters never arrived."""
        self.disk.unlock()
        files = LogQueueStore(self.disk).open_queue(QueueConfig(name="q", partitions=_PARTITIONS))
        self.partitions: list[Any] = [_Partition(index) for index in range(_PARTITIONS)]
        self.departures = Departures(files, Agenda(), cast("Any", self.partitions))
        self.held = [{} for _ in range(_PARTITIONS)]

    def add(self, index: int, first: int, end: int) -> None:
        self.departures.add(self.partitions[index], first, end)
        self.gone[index] |= set(range(first, end)) - self.held[index].keys()

    def hold(self, index: int, offset: int, letters: int) -> None:
        if offset not in self.gone[index]:
            self.departures.hold(self.partitions[index], offset, letters)
            self.held[index][offset] = self.held[index].get(offset, 0) + letters

    def release(self, index: int, offset: int) -> None:
        self.departures.release(self.partitions[index], offset)
        self.held[index][offset] -= 1
        if not self.held[index][offset]:
            del self.held[index][offset]
            self.gone[index].add(offset)

    def check(self) -> None:
        """After a restart the queue knows exactly what left it."""
        assert self.departures.held_count == sum(map(len, self.held))
        self.departures.flush()
        self.start()
        assert [partition.gone for partition in self.partitions] == self.gone


@pytest.mark.parametrize("seed", range(12))
def test_what_left_is_known_after_every_restart(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(departures_module, "RESTATE_ABOVE_BYTES", 100)
    rng, life = random.Random(seed), _Life()
    for _ in range(_STEPS):
        index, chance = rng.randrange(_PARTITIONS), rng.random()
        held = sorted(life.held[index])
        if chance < 0.4:
            first = rng.randrange(_OFFSETS)
            life.add(index, first, min(_OFFSETS, first + rng.choice((1, 2, 5))))
        elif chance < 0.7:
            life.hold(index, rng.randrange(_OFFSETS), rng.choice((1, 1, 2)))
        elif chance < 0.92 and held:
            life.release(index, rng.choice(held))
        else:
            life.check()
    life.check()
