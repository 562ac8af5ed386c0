"""The arguments of ``queue.declare``, as settings of a durable queue. What is not supported is refused (406)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.config import LimitScope, Overflow
from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.routing.properties import Kind, Typed

INTEGERS: Final = frozenset({Kind.I8, Kind.U8, Kind.I16, Kind.U16, Kind.I32, Kind.U32, Kind.I64, Kind.U64})
_MOST_MS: Final = (1 << 32) - 1
"""Also RabbitMQ's bound."""
_FOR_EVER_S: Final = 365.0 * 86_400
UNLIMITED_RETRIES: Final = 1_000_000_000
AT_ONCE_MS: Final = 50
"""A time to live of 0: what cannot be delivered at once is gone. Who waits for it gets it once it is on disk."""
_AT_ONCE_IN_MEMORY_S: Final = 0.0001
"""What no disk is asked for goes out in the same turn."""
MAX_IN_FLIGHT: Final = 65_535
"""What a consumer without prefetch may hold."""
MAX_DEPTH: Final = 10_000_000
_STRICT_WEIGHTS: Final = [1_000_000, 100_000, 10_000, 100, 1]


class QueueArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What the arguments of a queue say."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    """It is deleted when nobody used it for so long."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    delivery_limit: int | None = None
    max_priority: int | None = None
    is_single_active: bool = False
    """One consumer gets all; the next one takes its place when it leaves."""
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    """None = the one that the message has."""


def parse_arguments(queue: str, arguments: Table) -> QueueArguments:
    """Raises :class:`AmqpError` (406) for a value that makes no sense, and for an argument that is not supported."""
    given: dict[str, Any] = {}
    for name, value in arguments:
        if not name.startswith("x-"):
            # It is for people.
            continue
        reader = _READERS.get(name)
        if reader is None:
            raise _refused(queue, name, value, "it is not supported")
        field, problem = reader(value, given)
        if problem:
            raise _refused(queue, name, value, problem)
        if field is not None:
            given[field[0]] = field[1]
    found = QueueArguments(**given)
    if found.dead_letter_routing_key is not None and found.dead_letter_exchange is None:
        text = f"invalid arg 'x-dead-letter-routing-key' for queue '{queue}': it needs x-dead-letter-exchange"
        raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.queue.declare.arguments")
    return found


def _refused(queue: str, name: str, value: Typed, problem: str) -> AmqpError:
    text = f"invalid arg '{name}' for queue '{queue}': {problem} (given: {str(value.value)[:40]})"
    return AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.queue.declare.arguments")


_Read = tuple[tuple[str, Any] | None, str]
"""The field and its value, or what is wrong."""


def _integer(field: str, least: int, most: int) -> Any:
    def read(value: Typed, _given: dict[str, Any]) -> _Read:
        if value.kind not in INTEGERS:
            return None, "it must be an integer"
        if not least <= value.value <= most:
            return None, f"it must be {least} to {most}"
        return (field, value.value), ""

    return read


def _overflow(value: Typed, _given: dict[str, Any]) -> _Read:
    if value.kind is not Kind.TEXT or value.value not in _OVERFLOW:
        return None, f"it must be one of {', '.join(_OVERFLOW)}"
    return ("overflow", value.value), ""


def _queue_type(value: Typed, _given: dict[str, Any]) -> _Read:
    if value.kind is not Kind.TEXT or value.value not in ("classic", "quorum"):
        return None, "it must be classic or quorum"
    return None, ""


def _flag(field: str) -> Any:
    def read(value: Typed, _given: dict[str, Any]) -> _Read:
        if value.kind is not Kind.BOOL:
            return None, "it must be true or false"
        return (field, value.value), ""

    return read


def _text(field: str) -> Any:
    def read(value: Typed, _given: dict[str, Any]) -> _Read:
        if value.kind is not Kind.TEXT or len(value.value.encode()) > 255:
            return None, "it must be a text of at most 255 bytes"
        return (field, value.value), ""

    return read


_READERS: Final[dict[str, Any]] = {
    "x-dead-letter-exchange": _text("dead_letter_exchange"),
    "x-dead-letter-routing-key": _text("dead_letter_routing_key"),
    "x-message-ttl": _integer("message_ttl_ms", 0, _MOST_MS),
    "x-expires": _integer("expires_ms", 1, _MOST_MS),
    "x-max-length": _integer("max_length", 0, MAX_DEPTH),
    "x-max-length-bytes": _integer("max_length_bytes", 0, 1 << 50),
    "x-delivery-limit": _integer("delivery_limit", 0, 1_000_000),
    "x-max-priority": _integer("max_priority", 1, 255),
    "x-single-active-consumer": _flag("is_single_active"),
    "x-overflow": _overflow,
    "x-queue-type": _queue_type,
}


_OVERFLOW: Final = {
    "drop-head": (Overflow.DROP_OLDEST, Overflow.DEAD_LETTER_OLDEST),
    "reject-publish": (Overflow.REJECT, Overflow.REJECT),
    "reject-publish-dlx": (Overflow.REJECT, Overflow.REJECT_TO_DEAD_LETTERS),
}
"""Without a dead letter exchange, and with one."""


def lane_of(priority: int | None, most: int) -> Priority:
    """The lane of a message in a queue whose highest priority is ``most``: the more urgent, the higher its priority.

    A queue has five lanes; of more priorities than that, neighbours share one.
    """
    level = min(priority or 0, most)
    return Priority(Priority.BACKGROUND - (level if most < len(Priority) else level * len(Priority) // (most + 1)))


def settings_of(arguments: QueueArguments, *, durable: bool, max_message_bytes: int) -> dict[str, Any]:
    """Settings for :meth:`QueueEngine.create_queue`: one partition, whose order a message that comes back keeps to, no
    delivery timeout, and retries at once until the delivery limit."""
    limit = arguments.delivery_limit
    settings: dict[str, Any] = {
        "partitions": 1,
        "ordering": "place",
        "delivery_timeout_s": _FOR_EVER_S,
        "dead_letters": arguments.dead_letter_exchange is not None,
        "expired_to_dead_letters": arguments.dead_letter_exchange is not None,
        "max_in_flight": MAX_IN_FLIGHT,
        "max_depth": MAX_DEPTH,
        "max_message_bytes": max_message_bytes,
        "message_ttl_s": 0.0,
        "retry": {
            "max_retries": UNLIMITED_RETRIES if limit is None else limit,
            "initial_backoff_s": 0.0,
            "max_backoff_s": 0.0,
            "total_timeout_s": 0.0,
        },
        "priority": {"enabled": False},
        "limits_count": LimitScope.READY.value,
        "overflow": _OVERFLOW[arguments.overflow][arguments.dead_letter_exchange is not None].value,
    }
    if arguments.max_priority is not None:
        # As good as strictly by priority.
        settings["priority"] = {"enabled": True, "weights": _STRICT_WEIGHTS, "starvation_s": 0.0}
    if arguments.message_ttl_ms is not None:
        least_s = AT_ONCE_MS / 1_000 if durable else _AT_ONCE_IN_MEMORY_S
        settings["message_ttl_s"] = max(arguments.message_ttl_ms / 1_000, least_s)
    if arguments.max_length is not None:
        settings["max_depth"] = max(1, arguments.max_length)
    if arguments.max_length_bytes is not None:
        settings["max_bytes"] = max(1, arguments.max_length_bytes)
    if not durable:
        # Its declaration says when it ends, whoever consumes from it.
        settings |= {"ephemeral": True, "expires_after_s": _FOR_EVER_S}
    return settings
