"""Bugs of delayed messages, and ways of firing them that are as good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.queue_topics import publish_properties
from assay.reference_broker.queues.delays import delay_recovery, delay_store, delays
from assay.reference_broker.queues.delays.delay_store import DelayStore
from assay.reference_broker.queues.delays.delayed_message import parse_delay_id
from assay.reference_broker.queues.delays.delays import Delays
from assay.reference_broker.queues.delays.done_log import DoneLog
from assay.reference_broker.queues.delays.timing_wheel import MAX_DELAY_MS, TimingWheel
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.queues.messages import durations as times
from assay.reference_broker.queues.messages.publish_options import PublishOptions
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.queue_store import LogQueueFiles

_REVOLUTION_TICKS = 256 * 64


@variation("queue-due-read-singly", "delayed messages that are due are read from the log one by one")
def read_singly(patch: Patch) -> None:
    patch.replace(delay_store, "READ_GAP", -1)


@mutant("queue-delay-ignored", "a delay is accepted and the message delivered at once")
def ignored(patch: Patch) -> None:
    def take(self: Delays, *args: object) -> bool:
        return False

    patch.replace(Delays, "take", take)


@mutant("queue-short-delay-a-revolution-late", "a delay below one tick goes into a slot that has just passed")
def revolution_late(patch: Patch) -> None:
    def make(original: Callable[[TimingWheel, int, int], None]) -> Callable[[TimingWheel, int, int], None]:
        def place(self: TimingWheel, number: int, due_tick: int) -> None:
            late = due_tick - self._tick <= 1
            if late:
                at = number - self._base
                self._dues[at] += _REVOLUTION_TICKS * 10
            original(self, number, due_tick + _REVOLUTION_TICKS if late else due_tick)

        return place

    patch.wrap(TimingWheel, "place", make)


@mutant("queue-round-moment-is-lost", "who moves down by exactly a revolution goes into the slot that is emptied now")
def round_moment(patch: Patch) -> None:
    patch.rewrite(TimingWheel, "place", "distance < 1 << 8", "distance <= 1 << 8")


@mutant("queue-deliver-at-without-zone", "the zone of a deliver-at time is ignored")
def without_zone(patch: Patch) -> None:
    original = times.parse_time_ms

    def parse(text: str) -> int:
        return original(f"{text[:-6]}Z" if text[-6:-5] in ("+", "-") else text)

    name, _ = publish_properties.PARSERS["deliver-at"]
    patch.item(publish_properties.PARSERS, "deliver-at", (name, parse))


@mutant("queue-past-waits", "a time that is past is taken for one far ahead")
def past_waits(patch: Patch) -> None:
    def make(original: Callable[..., int | None]) -> Callable[..., int | None]:
        def due(options: PublishOptions, message: Message, now: float) -> int | None:
            found = original(options, message, now)
            asked = options.delay_ms is not None or options.deliver_at_ms is not None
            return int(now * 1000) + MAX_DELAY_MS if found is None and asked else found

        return due

    patch.wrap(delays, "due_time_ms", make)


@mutant("queue-long-delay-cut", "a delay that is too long becomes the longest there is")
def cut(patch: Patch) -> None:
    def make(original: Callable[..., int | None]) -> Callable[..., int | None]:
        def due(options: PublishOptions, message: Message, now: float) -> int | None:
            try:
                return original(options, message, now)
            except QueueError:
                return int(now * 1000) + MAX_DELAY_MS

        return due

    patch.wrap(delays, "due_time_ms", make)


@mutant("queue-bad-delay-ignored", "a delay that cannot be read counts as none")
def bad_ignored(patch: Patch) -> None:
    def make(original: Callable[..., PublishOptions]) -> Callable[..., PublishOptions]:
        def parse(properties: tuple[tuple[str, str], ...]) -> PublishOptions:
            try:
                return original(properties)
            except QueueError:
                return PublishOptions()

        return parse

    patch.wrap(publish_properties, "options_of", make)


@mutant("queue-delays-forgotten", "delayed messages are not looked for when the broker starts")
def forgotten(patch: Patch) -> None:
    patch.replace(LogQueueFiles, "has_delays", property(lambda self: False))
    patch.replace(DelayStore, "recover", lambda self, done, now_ms: None)


@mutant("queue-delays-start-anew", "after a restart the whole delay counts again")
def start_anew(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def recover(self: DelayStore, done: DoneLog, now_ms: int) -> None:
            started_ms.append(now_ms)
            original(self, done, now_ms)

        return recover

    def make_due(original: Callable[[LogRecord], int | None]) -> Callable[[LogRecord], int | None]:
        def anew(record: LogRecord) -> int | None:
            due_ms = original(record)
            return None if due_ms is None else started_ms[-1] + due_ms - record.timestamp_ms

        return anew

    started_ms: list[int] = []
    patch.wrap(DelayStore, "recover", make)
    patch.wrap(delay_recovery, "due_of", make_due)


@mutant("queue-cancel-only-says-so", "a cancel is confirmed and the timer left in its slot")
def only_says_so(patch: Patch) -> None:
    patch.replace(TimingWheel, "cancel", lambda self, number: number in self)


@mutant("queue-cancel-not-persisted", "a cancel is kept in memory only")
def cancel_not_persisted(patch: Patch) -> None:
    def cancel(self: DelayStore, delay_id: str, confirm: Callable[[QueueError | None], None] | None) -> bool:
        found = self._wheel.cancel(parse_delay_id(self._target.name, delay_id))
        if found and confirm is not None:
            confirm(None)
        return found

    patch.replace(DelayStore, "cancel", cancel)


@mutant("queue-fired-not-persisted", "that a message fired is not written down")
def fired_not_persisted(patch: Patch) -> None:
    def finish(self: DelayStore, offset: int, confirm: Callable[[QueueError | None], None] | None = None) -> None:
        self._in_hand.pop(offset, None)
        if confirm is not None:
            confirm(None)

    patch.replace(DelayStore, "finish", finish)
    patch.replace(DoneLog, "note_firing", lambda _self, _offsets, _ends, _now: None)


@mutant("queue-firing-not-noted", "that a message fires is only written down once the queue has it durably")
def firing_not_noted(patch: Patch) -> None:
    patch.replace(DoneLog, "note_firing", lambda _self, _offsets, _ends, _now: None)


@mutant("queue-fired-anywhere", "a message fires without its key and options, into any partition")
def fired_anywhere(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def enqueue(self: DurableQueue, routing_key: str, message: Message, size: int, now: float, *rest: Any) -> Any:
            confirm, _ = rest
            pairs = tuple(pair for pair in message.user_properties if pair[0] != "partition-key")
            plain = msgspec.structs.replace(message, user_properties=pairs)
            return original(self, routing_key, plain, size, now, confirm, None)

        return enqueue

    patch.wrap(DurableQueue, "enqueue_due", make)


@mutant("queue-delayed-counts-as-stored", "delayed messages count against max_depth")
def counts_as_stored(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish(self: DurableQueue, *args: Any, **kwargs: Any) -> None:
            if self.contents.depth + len(self.delays) >= self.config.max_depth:
                raise QueueError(QueueErrorCode.FULL, "full")
            original(self, *args, **kwargs)

        return publish

    patch.wrap(DurableQueue, "publish", make)


@mutant(
    "queue-delays-of-a-turn-unbounded", "delayed messages count once they are written: any number may come in one go"
)
def unbounded_turn(patch: Patch) -> None:
    patch.rewrite(DelayStore, "schedule", "if len(self) >= limit:", "if self._waiting.armed >= limit:")


@mutant("queue-delays-unbounded", "max_delayed is read and never applied")
def unbounded(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def schedule(self: DelayStore, *args: Any) -> None:
            target = self._target
            config = target.config
            target.config = msgspec.structs.replace(config, max_delayed=2**31)
            try:
                original(self, *args)
            finally:
                target.config = config

        return schedule

    patch.wrap(DelayStore, "schedule", make)


@mutant("queue-full-loses-delayed", "a message that is due while the queue is full is given up")
def full_loses(patch: Patch) -> None:
    def refuse(self: DelayStore, offsets: list[int], now: float) -> None:
        for offset in offsets:
            self.finish(offset)

    patch.replace(DelayStore, "refuse", refuse)


@mutant("queue-delay-eats-time-to-live", "the time to live counts from the publish, also of a delayed message")
def eats_ttl(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def schedule(self: DelayStore, routing_key: str, message: Message, *args: Any) -> None:
            now = args[3]
            expires_at = self._codec.expiry(now, message.expires_at)
            if expires_at < float("inf"):
                message = msgspec.structs.replace(message, expires_at=expires_at)
            original(self, routing_key, message, *args)

        return schedule

    patch.wrap(DelayStore, "schedule", make)


@mutant("queue-fires-backwards", "messages that are due at one time fire newest first")
def backwards(patch: Patch) -> None:
    def make(original: Callable[..., list[int]]) -> Callable[..., list[int]]:
        return lambda self, *args: original(self, *args)[::-1]

    patch.wrap(TimingWheel, "advance", make)


@mutant("queue-cancel-in-any-queue", "a delay id is read for its number only, whatever queue it names")
def any_queue(patch: Patch) -> None:
    patch.replace(delay_store, "IDS_PER_MS", 0)  # each queue counts from 0
    patch.replace(delay_store, "parse_delay_id", lambda _queue, delay_id: int(delay_id.rpartition(":")[2]))


@mutant("queue-delays-listed-from-the-start", "every page of the list is the first one")
def from_the_start(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, limit, after: original(self, limit, None)

    patch.wrap(DelayStore, "list", make)
