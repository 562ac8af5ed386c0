"""Bugs in the order of deliveries, and in what a restart finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import Durability, Ordering, QueueConfig
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import GroupPartition, PendingEntry
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.registry import registry
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.queue_store import LogQueueStore

_CLEAN_UP_S = 300.0


@mutant("queue-retries-hold-nobody-back", "later messages overtake one that waits for its retry")
def hold_nobody_back(patch: Patch) -> None:
    patch.replace(GroupPartition, "holds_back", property(lambda _self: False))


@mutant("queue-none-is-ordered", "a message that waits holds back its partition whatever the ordering")
def none_is_ordered(patch: Patch) -> None:
    def holds_back(self: GroupPartition) -> bool:
        return bool(self.waiting) and self.first_waiting() is not None

    patch.replace(GroupPartition, "holds_back", property(holds_back))


@mutant("queue-retries-hold-everybody-back", "a message that waits holds back all partitions of its group")
def hold_everybody_back(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def deliver_new(self: Dispatcher, *rest: Any) -> bool:
            return not any(place.holds_back for place in self._group.places) and original(self, *rest)

        return deliver_new

    patch.wrap(Dispatcher, "deliver_new", make)


@mutant("queue-redelivers-newest-first", "of several messages that come back, the last of the partition comes first")
def newest_first(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def push_waiting(self: GroupPartition, entry: PendingEntry) -> None:
            original(self, entry)
            turned = [(key, -abs(offset), waiting) for key, offset, waiting in self.waiting]
            self.waiting = sorted(turned, key=lambda item: item[:2])

        return push_waiting

    patch.wrap(GroupPartition, "push_waiting", make)


@mutant("queue-waits-in-order-of-text", "what comes back is ordered by its offset as text: 10 before 2")
def order_of_text(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def push_waiting(self: GroupPartition, entry: PendingEntry) -> None:
            original(self, entry)
            waiting: Any = self.waiting
            waiting.sort(key=lambda item: (item[0], str(item[1])))

        return push_waiting

    patch.wrap(GroupPartition, "push_waiting", make)


@mutant("queue-strict-has-partitions", "a strict queue has as many partitions as others")
def strict_has_partitions(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: DurableQueue, config: QueueConfig, *rest: Any, **more: Any) -> None:
            if config.ordering is Ordering.STRICT:
                config = msgspec.structs.replace(config, ordering=Ordering.PARTITION, partitions=8)
            original(self, config, *rest, **more)

        return build

    patch.wrap(DurableQueue, "__init__", make)


@mutant("queue-memory-comes-back", "a queue in memory is written to disk like others")
def memory_comes_back(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_queue(self: LogQueueStore, config: QueueConfig, *rest: Any, **how: Any) -> Any:
            return original(self, msgspec.structs.replace(config, durability=Durability.INTERVAL), *rest, **how)

        return open_queue

    patch.wrap(LogQueueStore, "open_queue", make)


@mutant("queue-counts-not-persisted", "after a restart every message counts as delivered once")
def counts_not_persisted(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def claim(
            self: PendingLogFile, partition: int, offset: int, consumer: str, claimed_at_ms: int, _count: int
        ) -> None:
            original(self, partition, offset, consumer, claimed_at_ms, 1)

        return claim

    patch.wrap(PendingLogFile, "claim", make)


@mutant("queue-restart-ends-waiting", "what waits for a retry is ready at once after a restart")
def restart_ends_waiting(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def expire(self: PendingLogFile, partition: int, offset: int, _due_at_ms: int) -> None:
            original(self, partition, offset, 0)

        return expire

    patch.wrap(PendingLogFile, "expire", make)


@mutant("queue-dead-letters-in-memory", "dead-letter queues are kept in memory, whatever their queues are")
def dead_letters_in_memory(patch: Patch) -> None:
    def make(original: Callable[[QueueConfig], QueueConfig]) -> Callable[[QueueConfig], QueueConfig]:
        return lambda origin: msgspec.structs.replace(original(origin), durability=Durability.MEMORY)

    patch.wrap(registry, "dead_letter_config", make)


@mutant("queue-unread-is-dropped", "what no group needs is deleted from time to time, also when there is no group yet")
def unread_is_dropped(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def group(self: DurableQueue, *rest: Any, **options: Any) -> Any:
            if not self.groups:
                for partition in self.partitions:
                    first = partition.get(partition.head) if partition.head < partition.log.next_offset else None
                    if first is not None and self._agenda.now - first.enqueued_at > _CLEAN_UP_S:
                        partition.head = partition.log.next_offset
            return original(self, *rest, **options)

        return group

    patch.wrap(DurableQueue, "group", make)


@mutant("queue-groups-forgotten-at-restart", "consumer groups begin anew after a restart")
def groups_forgotten(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def recover(self: ConsumerGroup, now: float) -> None:
            log: Any = self.log
            log.recovered_cursors = {}
            log.recovered = []
            original(self, now)

        return recover

    patch.wrap(ConsumerGroup, "recover", make)
