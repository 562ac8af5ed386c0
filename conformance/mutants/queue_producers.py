"""Bugs of producers that number their messages."""

from __future__ import annotations

from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.partitions import producers
from assay.reference_broker.queues.partitions.producers import PartitionProducers
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.transactions import producer_names
from assay.reference_broker.queues.transactions.coordinator import Coordinator, Producer
from assay.reference_broker.queues.transactions.transactions import Transactions


@mutant("queue-repetition-enqueued", "a repeated sequence number is taken for a new message")
def repetition_enqueued(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def first_offset(self: PartitionProducers, producer: int, epoch: int, sequence: int) -> int | None:
            original(self, producer, epoch, sequence)
            return None

        return first_offset

    patch.wrap(PartitionProducers, "first_offset", make)


@mutant("queue-gap-taken", "a sequence number that is not the next is taken")
def gap_taken(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def first_offset(self: PartitionProducers, producer: int, epoch: int, sequence: int) -> int | None:
            try:
                found: int | None = original(self, producer, epoch, sequence)
            except QueueError as error:
                if error.code is not QueueErrorCode.OUT_OF_SEQUENCE:
                    raise
                return None
            return found

        return first_offset

    patch.wrap(PartitionProducers, "first_offset", make)


@mutant("queue-remembers-one-sequence", "only the last sequence number of a producer is known again")
def remembers_one(patch: Patch) -> None:
    patch.replace(producers, "REMEMBERED_SEQUENCES", 1)


@mutant("queue-sequences-shared", "a producer's messages without a choice go to partitions in turn")
def shared(patch: Patch) -> None:
    turns = iter(range(10**9))

    def make(original: Any) -> Any:
        def partition_for(self: DurableQueue, message: Any, options: Any, producer: int) -> Any:
            return original(self, message, options, next(turns))

        return partition_for

    patch.wrap(DurableQueue, "partition_for", make)


@mutant("queue-epoch-not-raised", "a transactional id that is initialised again keeps its epoch")
def epoch_not_raised(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def save_producer(self: Coordinator, name: str, producer: Producer) -> None:
            producer.epoch = 0
            original(self, name, producer)

        return save_producer

    patch.wrap(Coordinator, "save_producer", make)


@mutant("queue-sequences-forgotten", "a restart forgets the sequence numbers")
def forgotten(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def replay(self: PartitionProducers, mark: Any, offset: int) -> None:
            original(self, mark._replace(sequence=None), offset)

        return replay

    patch.wrap(PartitionProducers, "replay", make)


@mutant("queue-producer-ids-reused", "a restart gives producer ids out again")
def ids_reused(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def take(self: Coordinator, key: bytes, value: bytes) -> None:
            if key != b"ids":
                original(self, key, value)

        return take

    patch.wrap(Coordinator, "take_record", make)


@mutant("queue-numbers-of-anybody", "any user may number messages as the producer of another")
def of_anybody(patch: Patch) -> None:
    patch.replace(producer_names, "check_tag", lambda tag, owner, what: None)


@mutant("queue-unknown-producer-taken", "a producer id that was never given out is taken")
def unknown_taken(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def check(self: Transactions, producer_id: int, epoch: int) -> Coordinator:
            try:
                found: Coordinator = original(self, producer_id, epoch)
            except QueueError as error:
                if error.code is not QueueErrorCode.UNKNOWN_PRODUCER:
                    raise
                return self.memory.coordinator
            return found

        return check

    patch.wrap(Transactions, "check_producer", make)
