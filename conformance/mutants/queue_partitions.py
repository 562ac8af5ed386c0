"""Bugs of choosing and adding partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mmh3

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import PartitionerKind, QueueConfig
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.messages import partitioner
from assay.reference_broker.queues.messages.partitioner import Partitioner
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.registry.registry import QueueRegistry
from assay.reference_broker.storage.queue_store import LogQueueFiles


@mutant("queue-fnv1-for-fnv1a", "FNV-1 is taken for FNV-1a: multiplied first, then xored")
def fnv1(patch: Patch) -> None:
    def fnv1_32(key: str) -> int:
        value = 0x811C9DC5
        for byte in key.encode():
            value = (value * 0x01000193 & 0xFFFFFFFF) ^ byte
        return value

    patch.item(partitioner.HASHES, PartitionerKind.FNV1A, fnv1_32)


@mutant("queue-murmur3-of-another-seed", "murmur3 is seeded like another well-known broker's")
def seeded(patch: Patch) -> None:
    patch.item(
        partitioner.HASHES, PartitionerKind.MURMUR3, lambda key: mmh3.hash(key.encode(), 0x9747B28C, signed=False)
    )


@mutant("queue-round-robin-from-zero", "the first message in turn goes to partition 0")
def from_zero(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Partitioner, *args: Any) -> None:
            original(self, *args)
            self._turn = -1

        return init

    patch.wrap(Partitioner, "__init__", make)


@mutant("queue-keyless-to-one-partition", "a message without a key has the empty key")
def keyless(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        return lambda self, key, partitions: original(self, key or "", partitions)

    patch.wrap(Partitioner, "choose", make)


@mutant("queue-explicit-partition-ignored", "a message with a partition key goes where the key leads")
def ignored(patch: Patch) -> None:
    def explicit(self: DurableQueue, partition: int) -> int:
        return self._partitioner.choose("one", len(self.partitions))

    patch.replace(DurableQueue, "explicit_partition", explicit)


@mutant("queue-explicit-partition-wraps", "a partition beyond the last is taken modulo their number")
def wraps(patch: Patch) -> None:
    patch.replace(DurableQueue, "explicit_partition", lambda self, partition: partition % len(self.partitions))


@mutant("queue-added-partitions-unassigned", "added partitions are assigned with the next consumer that comes or goes")
def unassigned(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def add(self: ConsumerGroup, partitions: Sequence[QueuePartition], config: QueueConfig) -> None:
            original(self, partitions, config)
            self.rebalance.is_due = False

        return add

    patch.wrap(ConsumerGroup, "add_partitions", make)


@mutant("queue-added-partitions-forgotten", "that partitions were added is not written down")
def forgotten(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def update(self: LogQueueFiles, *, partitions: int | None = None, **more: Any) -> None:
            if partitions is None:
                original(self, **more)

        return update

    patch.wrap(LogQueueFiles, "update_description", make)


@mutant("queue-fewer-partitions-accepted", "a request for fewer partitions says yes and does nothing")
def fewer(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def add(self: QueueRegistry, name: str, total: int, on_done: Confirm) -> None:
            original(self, name, max(total, len(self.existing(name).partitions)), on_done)

        return add

    patch.wrap(QueueRegistry, "add_partitions", make)
