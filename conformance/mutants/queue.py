"""Planted bugs of the durable queues: each loses, invents, repeats or reorders messages in its own way.

They are what the history checkers are judged by, in simulation and on real processes. Bugs that depend on the disk
show when the process is killed, and those of the sync only when power fails, which only the simulator can do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.config import Durability, QueueConfig, RetryConfig
from assay.reference_broker.queues import Outcome
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.groups import group
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import Consumer, PendingEntry
from assay.reference_broker.queues.groups.retry import RETRIES_EXCEEDED
from assay.reference_broker.queues.messages.partitioner import Partitioner
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.storage.disk import DiskFile
from assay.reference_broker.storage.durable_mark import DurableMark, DurableMarkFile
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.segment import Segment, SegmentScan
from assay.reference_broker.storage.segment_scan import BatchPlace, Window, scan_batches

_BUFFER_BYTES: Final = 16 * 1024
_CUT_BATCHES: Final = 16
_EVERY: Final = 25
"""The bugs that strike now and then strike at offsets that leave this remainder of one."""


@mutant("queue-confirms-before-sync", "a durability of fsync confirms after the write and syncs once a second")
def confirms_before_sync(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def build(self: DurableQueue, config: QueueConfig, *args: object, **kwargs: object) -> None:
            if config.durability is Durability.FSYNC:
                config = msgspec.structs.replace(config, durability=Durability.INTERVAL)
            original(self, config, *args, **kwargs)

        return build

    patch.wrap(DurableQueue, "__init__", make)


class _BufferedFile:
    """A file whose appends wait in the process's memory, and whose sync forgets them."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._buffer = bytearray()

    @property
    def size(self) -> int:
        return self._file.size + len(self._buffer)

    def _write_out(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        if data:
            self._file.append(data)

    def append(self, data: bytes) -> int:
        position = self.size
        self._buffer += data
        if len(self._buffer) > _BUFFER_BYTES:
            self._write_out()
        return position

    def write_at(self, position: int, data: bytes) -> None:
        self._write_out()
        self._file.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        self._write_out()
        return self._file.read_at(position, length)

    def truncate(self, size: int) -> None:
        self._write_out()
        self._file.truncate(size)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._write_out()
        self._file.close()


@mutant("queue-confirms-before-write", "the log's writes wait in a buffer that a sync does not write out")
def confirms_before_write(patch: Patch) -> None:
    def make(original: Callable[..., DiskFile]) -> Callable[..., DiskFile]:
        def file(self: Segment, *, create: bool = False) -> DiskFile:
            opened = original(self, create=create)
            if not isinstance(opened, _BufferedFile):
                opened = self._file = _BufferedFile(opened)
            return opened

        return file

    patch.wrap(Segment, "file", make)


@mutant("queue-recovery-cuts-too-much", "recovery takes the last sixteen batches of a log for a torn tail")
def recovery_cuts_too_much(patch: Patch) -> None:
    def make(original: Callable[[Segment], SegmentScan]) -> Callable[[Segment], SegmentScan]:
        def scan(self: Segment) -> SegmentScan:
            found = original(self)
            batches = [
                batch for batch in scan_batches(Window(self.file()), self.base_offset) if isinstance(batch, BatchPlace)
            ]
            if not batches:
                return found
            first = batches[max(0, len(batches) - _CUT_BATCHES)]
            return SegmentScan(
                sound_bytes=first.position, end_offset=first.base_offset, damages=(), tail_problem="planted"
            )

        return scan

    def read(self: DurableMarkFile) -> DurableMark | None:
        """Nothing stands in the way of the cut."""

    patch.wrap(Segment, "scan", make)
    patch.replace(DurableMarkFile, "read", read)


@mutant("queue-ack-not-persisted", "an ack is confirmed but not written to the log of pending entries")
def ack_not_persisted(patch: Patch) -> None:
    def ack(self: PendingLogFile, partition: int, offset: object) -> None:
        """Forget it."""

    patch.replace(PendingLogFile, "ack", ack)
    patch.replace(PendingLogFile, "ack_all", ack)


def _settling(patch: Patch, wrong: Outcome, instead: Callable[..., None]) -> None:
    """Settle one verb in another way."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def settle(
            holder: ConsumerGroup, entry: PendingEntry, outcome: Outcome, reason: str, now: float, on_done: object
        ) -> None:
            (instead if outcome is wrong else original)(holder, entry, outcome, reason, now, on_done)

        return settle

    patch.wrap(settlement, "settle", make)


@mutant("queue-reject-discards", "a rejected message is settled without reaching the dead-letter queue")
def reject_discards(patch: Patch) -> None:
    def discard(
        holder: ConsumerGroup, entry: PendingEntry, _outcome: Outcome, reason: str, now: float, on_done: Any
    ) -> None:
        holder.remove(entry, on_done)

    _settling(patch, Outcome.REJECT, discard)


@mutant("queue-nack-settles", "a nacked message is settled for good instead of being delivered again")
def nack_settles(patch: Patch) -> None:
    def remove(
        holder: ConsumerGroup, entry: PendingEntry, _outcome: Outcome, reason: str, now: float, on_done: Any
    ) -> None:
        holder.remove(entry, on_done)

    _settling(patch, Outcome.FAIL, remove)


@mutant("queue-timeout-fires-early", "a delivery times out after a tenth of its time")
def timeout_fires_early(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: Dispatcher, served: ConsumerGroup) -> None:
            original(self, served)
            self._timeout_s /= 10

        return build

    patch.wrap(Dispatcher, "__init__", make)


@mutant("queue-key-ignored", "the partition key does not choose the partition, so a key's messages overtake each other")
def key_ignored(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def choose(self: Partitioner, key: str | None, partitions: int) -> int:
            return original(self, None, partitions)

        return choose

    patch.wrap(Partitioner, "choose", make)


@mutant("queue-wrong-payload", "now and then a delivery carries the message before it in the partition")
def wrong_payload(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def hand_over(
            self: Dispatcher, entry: PendingEntry, stored: StoredMessage, consumer: Consumer, now: float
        ) -> bool:
            if entry.offset % _EVERY == 1:
                stored = entry.place.partition.cached.get(entry.offset - 1, stored)
            return original(self, entry, stored, consumer, now)

        return hand_over

    patch.wrap(Dispatcher, "hand_over", make)


@mutant("queue-delivers-to-two", "now and then a message goes to two consumers of a group at once")
def delivers_to_two(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def hand_over(
            self: Dispatcher, entry: PendingEntry, stored: StoredMessage, consumer: Consumer, now: float
        ) -> bool:
            real, handed = consumer.deliver, list[Delivery]()

            def deliver(delivery: Delivery) -> bool:
                handed.append(delivery)
                return real(delivery)

            consumer.deliver = deliver
            try:
                taken = original(self, entry, stored, consumer, now)
            finally:
                consumer.deliver = real
            others = [other for other in self._group.consumers.values() if other is not consumer]
            if taken and others and entry.offset % _EVERY == 1:
                others[0].deliver(handed[0])
            return taken

        return hand_over

    patch.wrap(Dispatcher, "hand_over", make)


@mutant("queue-dead-letters-early", "the first failure of a delivery dead-letters the message")
def dead_letters_early(patch: Patch) -> None:
    def exhausted_reason(retry: RetryConfig, delivery_count: int, age_s: float) -> str | None:
        return RETRIES_EXCEEDED

    patch.replace(group, "exhausted_reason", exhausted_reason)


@mutant("queue-lost-session-settles", "what a consumer held when its session ended counts as settled")
def lost_session_settles(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def detach(self: ConsumerGroup, consumer: Consumer, now: float) -> None:
            held = [entry for place in self.places for entry in place.pending.values() if entry.consumer is consumer]
            for entry in held:
                self.remove(entry, None)
            original(self, consumer, now)

        return detach

    patch.wrap(ConsumerGroup, "detach", make)


@variation("queue-retry-waits-longer", "a failed delivery waits twice as long as configured before it is tried again")
def retry_waits_longer(patch: Patch) -> None:
    def make(original: Callable[..., float]) -> Callable[..., float]:
        def backoff_s(retry: RetryConfig, failures: int) -> float:
            return 2 * original(retry, failures)

        return backoff_s

    patch.wrap(settlement, "backoff_s", make)


@variation("queue-one-batch-per-message", "every message is written as a batch of its own")
def one_batch_per_message(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def append(self: SegmentedLog, records: list[Any], **more: Any) -> int:
            base_offset = original(self, records[:1], **more)
            for record in records[1:]:
                original(self, [record], **more)
            return base_offset

        return append

    patch.wrap(SegmentedLog, "append", make)
