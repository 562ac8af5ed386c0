"""Bugs in how packets that come together are handled as one; those that come alone are not touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.batches.publish_batches import PublishBatch, PublishBatchReader
from assay.reference_broker.mqtt.batches.queue_deliveries import DeliveryEncoder
from assay.reference_broker.mqtt.connections.queue_batches import QueueBatches
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.queues.messages.address import QueueAddress
from assay.reference_broker.queues.messages.message_batch import MessageBatch
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.storage.log import SegmentedLog
from assay.reference_broker.storage.pending_log import PendingLogFile

Original = Callable[..., Any]


@mutant("queue-burst-shares-properties", "publishes that come together get the user properties of the first")
def shares_properties(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def read(self: PublishBatchReader, *args: Any, **more: Any) -> PublishBatch:
            batch: PublishBatch = original(self, *args, **more)
            pairs = batch.properties
            return batch if pairs is None else batch._replace(properties=pairs[:1] * len(pairs))

        return read

    patch.wrap(PublishBatchReader, "read", make)


@mutant("queue-burst-reversed", "publishes that come together are enqueued from the last to the first")
def reversed_run(patch: Patch) -> None:
    def change(batch: MessageBatch) -> MessageBatch:
        return batch._replace(messages=batch.messages[::-1], payloads=batch.payloads[::-1])

    _change_batches(patch, change)


@mutant("queue-burst-shares-a-key", "publishes that come together get the routing key of the first")
def shares_a_key(patch: Patch) -> None:
    def change(batch: MessageBatch) -> MessageBatch:
        origins = batch.origins
        return batch if isinstance(origins, Origin) else batch._replace(origins=origins[0])

    _change_batches(patch, change)


def _change_batches(patch: Patch, change: Callable[[MessageBatch], MessageBatch]) -> None:
    def make(original: Original) -> Original:
        def publish_batch(self: QueueEngine, address: QueueAddress, batch: MessageBatch, *rest: Any) -> bool:
            return bool(original(self, address, change(batch), *rest))

        return publish_batch

    patch.wrap(QueueEngine, "publish_batch", make)


@mutant("queue-burst-ids-shifted", "deliveries that go out together name each the message behind their own")
def ids_shifted(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def encode_run(self: DeliveryEncoder, first_id: int, run: DeliveryRun, *rest: Any) -> bytes | None:
            encoded: bytes | None = original(self, first_id, run._replace(offset=run.offset + 1), *rest)
            return encoded

        return encode_run

    patch.wrap(DeliveryEncoder, "encode_run", make)


@mutant("queue-burst-acks-one-less", "of acknowledgements that come together the last is confirmed and not made")
def acks_one_less(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def ack_run(
            self: QueueEngine,
            queue: str,
            group: str,
            places: Sequence[tuple[int, int]],
            consumer_id: str,
            now: float,
            begin: Callable[[int], Confirm],
        ) -> int:
            some = places[:-1] if len(places) > 1 else places
            more = len(places) - len(some)
            count = int(original(self, queue, group, some, consumer_id, now, lambda given: begin(given + more)))
            return count + more if count else 0

        return ack_run

    patch.wrap(QueueEngine, "ack_run", make)


@mutant("queue-burst-shares-a-buffer", "payloads of equal length that are written together are those of the last one")
def burst_shares_a_buffer(patch: Patch) -> None:
    def make(original: Callable[..., int]) -> Callable[..., int]:
        def append(self: SegmentedLog, records: Sequence[NewRecord], **options: Any) -> int:
            last = {len(record.value or b""): record.value for record in records}
            shared = [record._replace(value=last[len(record.value or b"")]) for record in records]
            return original(self, shared, **options)

        return append

    patch.wrap(SegmentedLog, "append", make)


@mutant("queue-burst-repeats-a-message", "of messages that come together the last is stored as the one before it")
def repeats_a_message(patch: Patch) -> None:
    def change(batch: MessageBatch) -> MessageBatch:
        last = max(0, len(batch.messages) - 2)
        messages, payloads = batch.messages, batch.payloads
        return batch._replace(messages=[*messages[:-1], messages[last]], payloads=[*payloads[:-1], payloads[last]])

    _change_batches(patch, change)


@mutant("queue-burst-settlements-unwritten", "of acknowledgements that come together the log gets the last only")
def settlements_unwritten(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def ack_all(self: PendingLogFile, partition: int, offsets: Any) -> None:
            original(self, partition, list(offsets)[-1:])

        return ack_all

    patch.wrap(PendingLogFile, "ack_all", make)


@mutant(
    "queue-burst-passes-bound-queues",
    "publishes that come together reach no other queue that their topics are bound to",
)
def passes_bound_queues(patch: Patch) -> None:
    patch.rewrite(QueueBatches, "granted_place", " or read.address.bound", "")
