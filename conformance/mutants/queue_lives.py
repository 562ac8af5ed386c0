"""Planted bugs that show in the long run: in what comes back from the disk after a death, and in what is counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.queue_engine import after
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.limits import limits
from assay.reference_broker.queues.messages.lanes import NORMAL
from assay.reference_broker.queues.messages.stored_message import MessageCodec, StoredMessage
from assay.reference_broker.queues.operations.group_operations import GroupOperations


@mutant("queue-content-type-lost-on-disk", "what is read back from the disk has no content type any more")
def content_type_lost(patch: Patch) -> None:
    def forget(stored: StoredMessage, *_args: object) -> None:
        stored.message.content_type = None

    after(patch, MessageCodec, "_decode", forget)


@mutant("queue-priority-lost-on-disk", "what is read back from the disk has the normal priority")
def priority_lost(patch: Patch) -> None:
    def forget(stored: StoredMessage, *_args: object) -> None:
        stored.lane = NORMAL

    after(patch, MessageCodec, "_decode", forget)


@mutant("queue-redeliveries-count-twice", "the figures of a group count each redelivery as two")
def redeliveries_twice(patch: Patch) -> None:
    def count(_result: object, self: Dispatcher, *_args: object) -> None:
        self._group.counts.redelivered += 1

    after(patch, Dispatcher, "_redeliver", count)


@mutant("queue-bursts-drop-nothing", "a full queue gives up only what is on disk already, and refuses a burst")
def bursts_drop_nothing(patch: Patch) -> None:
    patch.replace(limits, "_settled_end", lambda partition: partition.visible_end)


@mutant("queue-refused-commits-unanswered", "a $commit or $claim that cannot be served is not answered")
def refused_commits_unanswered(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def request(*args: Any, **named: Any) -> None:
            with suppress(QueueError):
                original(*args, **named)

        return request

    patch.wrap(GroupOperations, "request", make)
