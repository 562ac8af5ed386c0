"""The arguments of ``basic.consume``. What is not supported is refused (406)."""

from __future__ import annotations

from typing import Final

import msgspec

from assay.reference_broker.amqp091.queue_settings import INTEGERS
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply

PRIORITY: Final = "x-priority"


class ConsumerArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What the arguments of a consumer say."""

    priority: int = 0
    """Those with a higher one get everything while they have room."""


NO_ARGUMENTS: Final = ConsumerArguments()


def parse_consumer(arguments: Table) -> ConsumerArguments:
    """Raises :class:`AmqpError` (406) for a value that makes no sense, and for an argument that is not supported."""
    found = NO_ARGUMENTS
    for name, value in arguments:
        if not name.startswith("x-"):
            # It is for people.
            continue
        if name != PRIORITY:
            raise _refused(name, "it is not supported")
        if value.kind not in INTEGERS:
            raise _refused(name, "it must be an integer")
        found = msgspec.structs.replace(found, priority=value.value)
    return found


def _refused(name: str, problem: str) -> AmqpError:
    text = f"invalid arg '{name[:80]}' of basic.consume: {problem}"
    return AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.consumer.priority")
