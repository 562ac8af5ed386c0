"""Planted bugs of the queue engine that show where delays meet limits, and fast groups slow or absent ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.delays.delay_store import DelayStore
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.queues.limits.limits import QueueLimits
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue.enqueue_path import EnqueuePath
from assay.reference_broker.queues.queue.queue import DurableQueue

Original = Callable[..., Any]


@mutant("engine-due-over-the-limit", "what was delayed is enqueued when it is due, however full the queue is")
def due_over_the_limit(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def enqueue_due(self: Any, *args: Any) -> Any:
            room, self._room = self._room, 1_000
            try:
                return original(self, *args)
            finally:
                self._room = room

        return enqueue_due

    patch.wrap(EnqueuePath, "enqueue_due", make)


@mutant("engine-refused-when-due-is-lost", "a delayed message that is due when its queue is full is not tried again")
def refused_when_due_is_lost(patch: Patch) -> None:
    def refuse(self: DelayStore, offsets: list[int], now: float) -> None:
        for offset in offsets:
            self._refused.pop(offset, None)
            self.finish(offset)

    patch.replace(DelayStore, "refuse", refuse)


@mutant(
    "engine-refused-when-due-waits-for-a-start", "what was due while its queue was full fires at the next start only"
)
def refused_when_due_waits_for_a_start(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def refuse(self: DelayStore, offsets: list[int], now: float) -> None:
            original(self, offsets, now)
            self._retry_at = float("inf")

        return refuse

    patch.wrap(DelayStore, "refuse", make)


@mutant("engine-refused-when-due-comes-singly", "of what was due while its queue was full one fires a second")
def refused_when_due_comes_singly(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def fire(self: DelayStore, due: list[int], now: float) -> None:
            were_refused = bool(self._refused)
            original(self, due[:1] if were_refused else due, now)
            if were_refused:
                self.refuse(due[1:], now)

        return fire

    patch.wrap(DelayStore, "fire", make)


@mutant("engine-refused-when-due-holds-back-others", "what is due while others wait for room waits with them")
def refused_when_due_holds_back_others(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def due(self: DelayStore, now: float) -> list[int]:
            is_between = self._is_full and now < self._refused_until
            found: list[int] = original(self, now)
            return [] if is_between else found

        return due

    patch.wrap(DelayStore, "due", make)


@mutant("engine-end-takes-a-place", "the record that ends a transaction counts as a message until it is written")
def end_takes_a_place(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def add_control(self: EnqueuePath, partition: QueuePartition, record: NewRecord, confirm: Confirm) -> None:
            def told(_index: int, _offset: int) -> None:
                self.contents.end_total -= 1

            original(self, partition, record, confirm)
            self.contents.end_total += 1
            self._room -= 1
            partition.tell_place(told)

        return add_control

    patch.wrap(EnqueuePath, "add_control", make)


@mutant("engine-new-limit-from-the-next-start", "a limit that is changed at run time holds from the next start on")
def new_limit_from_the_next_start(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def apply(self: DurableQueue, config: QueueConfig) -> None:
            original(self, msgspec.structs.replace(config, max_depth=self.config.max_depth))

        return apply

    patch.wrap(DurableQueue, "apply", make)


@mutant("engine-new-limit-until-the-next-start", "a limit that is changed at run time is forgotten at the next start")
def new_limit_until_the_next_start(patch: Patch) -> None:
    def make(original: Original) -> Original:
        return lambda self, config, settings, on_done: original(self, config, {}, on_done)

    patch.wrap(DurableQueue, "reconfigure", make)


def _free_for(patch: Patch, chosen: Callable[[list[ConsumerGroup]], list[ConsumerGroup]]) -> None:
    """Segments are freed as if there were only some of the groups."""

    def make(original: Original) -> Original:
        def trim(self: QueueLimits) -> None:
            queue = self._contents
            groups = queue.groups
            queue.groups = {each.group_id: each for each in chosen(list(groups.values()))} or groups
            try:
                original(self)
            finally:
                queue.groups = groups

        return trim

    patch.wrap(QueueLimits, "trim_some", make)


@mutant("engine-absent-group-needs-nothing", "what all groups with consumers have settled is freed, whoever is absent")
def absent_group_needs_nothing(patch: Patch) -> None:
    _free_for(patch, lambda groups: [group for group in groups if group.consumers])


@mutant("engine-slow-group-loses-its-pace", "what the fastest group has settled is freed while a slower one needs it")
def slow_group_loses_its_pace(patch: Patch) -> None:
    _free_for(
        patch, lambda groups: sorted(groups, key=lambda group: -sum(map(group.low, range(len(group.places)))))[:1]
    )
