"""Planted bugs of the queue engine that show in what a message says: its size, its properties, and their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.queues.messages.stored_message import MessageCodec, StoredMessage
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue import queue
from assay.reference_broker.routing.message import Message

Original = Callable[..., Any]
_CUT_BYTES = 65_535


@mutant("engine-large-payload-cut", "what is read back from the log is cut behind 65 535 bytes")
def large_payload_cut(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def load(self: QueuePartition, offset: int, end: int | None = None) -> tuple[int, StoredMessage] | None:
            found: tuple[int, StoredMessage] | None = original(self, offset, end)
            if found is not None and len(found[1].message.payload) > _CUT_BYTES:
                found[1].message.payload = found[1].message.payload[:_CUT_BYTES]
            return found

        return load

    patch.wrap(QueuePartition, "load", make)


@mutant("engine-own-property-taken-for-a-brokers", "a user property that begins with _ is lost when it is read back")
def own_property_taken_for_a_brokers(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def decode(self: MessageCodec, record: Any) -> StoredMessage:
            stored: StoredMessage = original(self, record)
            message = stored.message
            message.user_properties = tuple(
                pair for pair in message.user_properties if not pair[0].startswith("_") or pair[0].startswith("_dlq_")
            )
            return stored

        return decode

    patch.wrap(MessageCodec, "decode", make)


@mutant("engine-letter-keeps-the-last-of-a-name", "of user properties of one name a dead letter keeps the last")
def letter_keeps_the_last_of_a_name(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def dead_letter_message(*args: Any) -> Message:
            letter: Message = original(*args)
            return msgspec.structs.replace(letter, user_properties=tuple(dict(letter.user_properties).items()))

        return dead_letter_message

    patch.wrap(queue, "dead_letter_message", make)
