"""The arguments of ``queue.declare``, as settings of a durable queue. What is not supported is refused (406)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.config import MAX_PRIORITY_LEVELS, MIN_SEGMENT_BYTES, LimitScope, Overflow
from assay.reference_broker.routing.properties import Kind, Typed

INTEGERS: Final = frozenset({Kind.I8, Kind.U8, Kind.I16, Kind.U16, Kind.I32, Kind.U32, Kind.I64, Kind.U64})
_MOST_MS: Final = (1 << 32) - 1
"""Also RabbitMQ's bound."""
_FOR_EVER_S: Final = 365.0 * 86_400
UNLIMITED_RETRIES: Final = 1_000_000_000
_AT_ONCE_S: Final = 1e-9
"""A time to live of 0 ms, where 0 s stands for none: it vanishes beside Unix time. See :func:`is_at_once`."""
MAX_IN_FLIGHT: Final = 65_535
"""What a consumer without prefetch may hold."""
MAX_DEPTH: Final = 10_000_000
STREAM: Final = "stream"
_INTERVAL: Final = re.compile(r"([0-9]{1,9})([YMWDhms])", re.ASCII)
_UNITS_S: Final = {"Y": 31_536_000, "M": 2_592_000, "W": 604_800, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_NO_LIMIT: Final = 10**15
_SEGMENTS: Final = 8
"""Of a stream that may have so many bytes."""
_DEAD_LETTERS: Final = "rmq.dlx.missing-exchange"
_OTHERS: Final = "rmq.x-queue-type"
"""Which arguments there are depends on the type of a queue."""
_RULES: Final = {
    "x-dead-letter-exchange": _DEAD_LETTERS,
    "x-dead-letter-routing-key": _DEAD_LETTERS,
    "x-message-ttl": "rmq.queue.ttl.message",
    "x-expires": "rmq.queue.expires",
    "x-max-length": "rmq.queue.max-length",
    "x-max-length-bytes": "rmq.queue.max-length",
    "x-overflow": "rmq.confirm.reject-publish",
    "x-delivery-limit": "rmq.quorum.delivery-limit",
    "x-max-priority": "rmq.queue.max-priority",
    "x-single-active-consumer": "rmq.queue.single-active",
}
"""By argument."""


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
    queue_type: str = "classic"
    max_age_s: float = 0.0
    """Of a stream; 0 = for ever."""
    segment_bytes: int = 0
    """Of a stream, which lets go of whole segments; 0 = as suits its limits."""

    @property
    def is_stream(self) -> bool:
        return self.queue_type == STREAM


def parse_arguments(queue: str, arguments: Table) -> QueueArguments:
    """Raises :class:`AmqpError` (406) for a value that makes no sense, and for an argument that is not supported."""
    given: dict[str, Any] = {}
    is_stream = any(name == "x-queue-type" and value.value == STREAM for name, value in arguments)
    allowed = _OF_STREAMS if is_stream else ARGUMENT_READERS.keys() - _OF_STREAMS_ALONE
    for name, value in arguments:
        if not name.startswith("x-"):
            # It is for people.
            continue
        reader = ARGUMENT_READERS.get(name) if name in allowed else None
        if reader is None:
            raise _refused(queue, name, value, f"it is not supported of {'streams' if is_stream else 'queues'}")
        field, problem = reader(value, given)
        if problem:
            raise _refused(queue, name, value, problem)
        if field is not None:
            given[field[0]] = field[1]
    found = QueueArguments(**given)
    if found.dead_letter_routing_key is not None and found.dead_letter_exchange is None:
        text = f"invalid arg 'x-dead-letter-routing-key' for queue '{queue}': it needs x-dead-letter-exchange"
        raise AmqpError(Reply.PRECONDITION_FAILED, text, rule=_DEAD_LETTERS)
    return found


def _refused(queue: str, name: str, value: Typed, problem: str) -> AmqpError:
    text = f"invalid arg '{name}' for queue '{queue}': {problem} (given: {str(value.value)[:40]})"
    return AmqpError(Reply.PRECONDITION_FAILED, text, rule=_RULES.get(name, _OTHERS))


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
    if value.kind is not Kind.TEXT or value.value not in ("classic", "quorum", STREAM):
        return None, "it must be classic, quorum or stream"
    return ("queue_type", value.value), ""


def interval_s(text: str) -> float:
    """Of ``7D``, ``12h`` and so on: Y, M, D, h, m, s as RabbitMQ has them, and W. Raises :class:`ValueError`."""
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise ValueError("it must be a number of Y, M, W, D, h, m or s")
    return int(found[1]) * _UNITS_S[found[2]]


def _max_age(value: Typed, _given: dict[str, Any]) -> _Read:
    if value.kind in INTEGERS and 0 < value.value < 1 << 40:
        return ("max_age_s", float(value.value)), ""
    try:
        seconds = interval_s(value.value) if value.kind is Kind.TEXT else 0.0
    except ValueError as error:
        return None, str(error)
    return (("max_age_s", seconds), "") if seconds else (None, "it must be more than nothing")


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


ARGUMENT_READERS: Final[dict[str, Any]] = {
    "x-dead-letter-exchange": _text("dead_letter_exchange"),
    "x-dead-letter-routing-key": _text("dead_letter_routing_key"),
    "x-message-ttl": _integer("message_ttl_ms", 0, _MOST_MS),
    "x-expires": _integer("expires_ms", 1, _MOST_MS),
    "x-max-length": _integer("max_length", 0, MAX_DEPTH),
    "x-max-length-bytes": _integer("max_length_bytes", 0, 1 << 50),
    "x-delivery-limit": _integer("delivery_limit", 0, 1_000_000),
    "x-max-priority": _integer("max_priority", 1, MAX_PRIORITY_LEVELS - 1),
    "x-single-active-consumer": _flag("is_single_active"),
    "x-overflow": _overflow,
    "x-queue-type": _queue_type,
    "x-max-age": _max_age,
    "x-stream-max-segment-size-bytes": _integer("segment_bytes", 1, 1 << 32),
}
_OF_STREAMS_ALONE: Final = frozenset({"x-max-age", "x-stream-max-segment-size-bytes"})
_OF_STREAMS: Final = _OF_STREAMS_ALONE | {"x-queue-type", "x-max-length", "x-max-length-bytes"}


_OVERFLOW: Final = {
    "drop-head": (Overflow.DROP_OLDEST, Overflow.DEAD_LETTER_OLDEST),
    "reject-publish": (Overflow.REJECT, Overflow.REJECT),
    "reject-publish-dlx": (Overflow.REJECT, Overflow.REJECT_TO_DEAD_LETTERS),
}
"""Without a dead letter exchange, and with one."""


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
    if arguments.is_stream:
        return settings | _stream_settings(arguments)
    if arguments.max_priority is not None:
        settings["priority"] = {"enabled": True, "levels": arguments.max_priority + 1}
    if arguments.message_ttl_ms is not None:
        settings["message_ttl_s"] = arguments.message_ttl_ms / 1_000 or _AT_ONCE_S
    if arguments.max_length is not None:
        settings["max_depth"] = arguments.max_length
    if arguments.max_length_bytes is not None:
        # Where no bytes may be there are no messages: an empty one has at least its properties.
        settings["max_bytes" if arguments.max_length_bytes else "max_depth"] = arguments.max_length_bytes
    if not durable:
        # Its declaration says when it ends, whoever consumes from it.
        settings |= {"ephemeral": True, "expires_after_s": _FOR_EVER_S}
    return settings


def _stream_settings(arguments: QueueArguments) -> dict[str, Any]:
    """Messages stay, whoever has read them, until the limits of the stream take whole segments away."""
    most = arguments.max_length_bytes or 0
    segment_bytes = arguments.segment_bytes or most // _SEGMENTS
    retention = {
        "keep_settled": True,
        "past_groups": True,
        "max_bytes": most,
        "max_messages": arguments.max_length or 0,
        "max_age_s": arguments.max_age_s,
        "segment_bytes": max(MIN_SEGMENT_BYTES, segment_bytes) if segment_bytes else 0,
    }
    return {"max_depth": _NO_LIMIT, "overflow": Overflow.REJECT.value, "retention": retention}
