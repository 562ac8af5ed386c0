"""Planted bugs that show in the long run: in what comes back from the disk after a death, and in what is counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.queue_engine import after
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.queues.delays.delay_store import DelayStore
from assay.reference_broker.queues.delays.delayed_message import DelayedMessage
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.limits import limits
from assay.reference_broker.queues.limits.time_to_live import TimeToLive
from assay.reference_broker.queues.messages.lanes import NORMAL
from assay.reference_broker.queues.messages.stored_message import MessageCodec, StoredMessage


@mutant("queue-content-type-lost-on-disk", "what is read back from the disk has no content type any more")
def content_type_lost(patch: Patch) -> None:
    def forget(stored: StoredMessage, *_args: object) -> None:
        stored.message.content_type = None

    after(patch, MessageCodec, "decode_record", forget)


@mutant("queue-priority-lost-on-disk", "what is read back from the disk has the normal priority")
def priority_lost(patch: Patch) -> None:
    def forget(stored: StoredMessage, *_args: object) -> None:
        stored.lane = NORMAL

    after(patch, MessageCodec, "decode_record", forget)


@mutant("queue-redeliveries-count-twice", "the figures of a group count each redelivery as two")
def redeliveries_twice(patch: Patch) -> None:
    def count(_result: object, self: Dispatcher, *_args: object) -> None:
        self._group.counts.redelivered += 1

    after(patch, Dispatcher, "redeliver", count)


@mutant("queue-bursts-drop-nothing", "a full queue gives up only what is on disk already, and refuses a burst")
def bursts_drop_nothing(patch: Patch) -> None:
    patch.replace(limits, "settled_end", lambda partition: partition.visible_end)


@mutant("queue-refused-commits-unanswered", "a $commit or $claim that cannot be served is not answered")
def refused_commits_unanswered(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def request(*args: Any, **named: Any) -> None:
            with suppress(QueueError):
                original(*args, **named)

        return request

    patch.wrap(mqtt_broker, "request_of_group", make)


@mutant("queue-delays-listed-late", "the list of delayed messages says that they were published an hour later")
def delays_listed_late(patch: Patch) -> None:
    def make(original: Callable[..., DelayedMessage]) -> Callable[..., DelayedMessage]:
        def describe(*args: Any) -> DelayedMessage:
            described = original(*args)
            return msgspec.structs.replace(described, published_at=described.published_at + 3_600.0)

        return describe

    patch.wrap(DelayStore, "describe", make)


@mutant("queue-expiry-looks-once", "when something has expired, nobody looks when the next will, until it is asked for")
def expiry_looks_once(patch: Patch) -> None:
    def pass_time(self: TimeToLive, now: float) -> None:
        self.sweep_at = NEVER
        self._pass_expired(now)
        self._expire_within(now)
        self._expire_waiting(now)

    patch.replace(TimeToLive, "pass_time", pass_time)


@mutant("queue-expiry-ends-with-the-turn", "of thousands that expire at once those stay that the turn has no room for")
def expiry_ends_with_the_turn(patch: Patch) -> None:
    stuck: set[int] = set()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def pass_time(self: TimeToLive, now: float) -> None:
            def arm(at: float) -> None:
                if at > now:
                    TimeToLive.arm(self, at)
                else:
                    stuck.add(id(self))

            if id(self) not in stuck:
                with mock.patch.object(self, "arm", arm):
                    original(self, now)

        return pass_time

    patch.wrap(TimeToLive, "pass_time", make)
