"""The arguments of ``queue.declare``, as settings of a durable queue. What is not supported is refused (406)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from assay.reference_broker.amqp091.topology.arguments import INTEGERS
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.config import MAX_PRIORITY_LEVELS, MIN_SEGMENT_BYTES, LimitScope, Overflow
from assay.reference_broker.routing.properties import Kind, Typed

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
    is_stream = any(name == "x-queue-type" and value.value == STREAM for name, value in arguments)
    allowed = _OF_STREAMS if is_stream else ARGUMENT_READERS.keys() - _OF_STREAMS_ALONE
    readers = {name: reader for name, reader in ARGUMENT_READERS.items() if name in allowed}
    given = read_arguments(arguments, readers, partial(_refused, queue), 0.0, is_stream=is_stream)
    found = QueueArguments(**given)
    if found.dead_letter_routing_key is not None and found.dead_letter_exchange is None:
        text = f"invalid arg 'x-dead-letter-routing-key' for queue '{queue}': it needs x-dead-letter-exchange"
        raise AmqpError(Reply.PRECONDITION_FAILED, text, rule=_DEAD_LETTERS)
    return found


def _refused(queue: str, name: str, value: Typed, problem: str) -> AmqpError:
    text = f"invalid arg '{name}' for queue '{queue}': {problem} (given: {str(value.value)[:40]})"
    return AmqpError(Reply.PRECONDITION_FAILED, text, rule=_RULES.get(name, _OTHERS))


Reader = Callable[[Typed, float], Any]
"""What a value means, given at a time. Raises :class:`ValueError`, saying what it must be."""


def read_arguments(
    arguments: Table,
    readers: Mapping[str, tuple[str, Reader]],
    refused: Callable[[str, Typed, str], AmqpError],
    now: float,
    *,
    is_stream: bool,
) -> dict[str, Any]:
    """Fields by the arguments whose names begin with ``x-``; others are for people. Raises what ``refused`` makes."""
    given: dict[str, Any] = {}
    for name, value in arguments:
        if not name.startswith("x-"):
            continue
        if name not in readers:
            raise refused(name, value, f"it is not supported of {'streams' if is_stream else 'queues'}")
        field, reader = readers[name]
        try:
            given[field] = reader(value, now)
        except ValueError as error:
            raise refused(name, value, str(error)) from error
    return given


def integer(least: int | None = None, most: int = 0) -> Reader:
    """From ``least`` to ``most``; None = any."""

    def read(value: Typed, _now: float) -> Any:
        if value.kind not in INTEGERS:
            raise ValueError("it must be an integer")
        if least is not None and not least <= value.value <= most:
            raise ValueError(f"it must be {least} to {most}")
        return value.value

    return read


def _one_of(names: Collection[str], told: str) -> Reader:
    def read(value: Typed, _now: float) -> Any:
        if value.kind is not Kind.TEXT or value.value not in names:
            raise ValueError(f"it must be {told}")
        return value.value

    return read


def interval_s(text: str) -> float:
    """Of ``7D``, ``12h`` and so on: Y, M, D, h, m, s as RabbitMQ has them, and W. Raises :class:`ValueError`."""
    found = _INTERVAL.fullmatch(text)
    if found is None:
        raise ValueError("it must be a number of Y, M, W, D, h, m or s")
    return int(found[1]) * _UNITS_S[found[2]]


def _max_age(value: Typed, _now: float) -> float:
    if value.kind in INTEGERS and 0 < value.value < 1 << 40:
        return float(value.value)
    seconds = interval_s(value.value) if value.kind is Kind.TEXT else 0.0
    if not seconds:
        raise ValueError("it must be more than nothing")
    return seconds


def flag(value: Typed, _now: float) -> bool:
    """Raises :class:`ValueError`."""
    if value.kind is not Kind.BOOL:
        raise ValueError("it must be true or false")
    return bool(value.value)


def _text(value: Typed, _now: float) -> str:
    if value.kind is not Kind.TEXT or len(value.value.encode()) > 255:
        raise ValueError("it must be a text of at most 255 bytes")
    return str(value.value)


_OVERFLOW: Final = {
    "drop-head": (Overflow.DROP_OLDEST, Overflow.DEAD_LETTER_OLDEST),
    "reject-publish": (Overflow.REJECT, Overflow.REJECT),
    "reject-publish-dlx": (Overflow.REJECT, Overflow.REJECT_TO_DEAD_LETTERS),
}
"""Without a dead letter exchange, and with one."""
ARGUMENT_READERS: Final[dict[str, tuple[str, Reader]]] = {
    "x-dead-letter-exchange": ("dead_letter_exchange", _text),
    "x-dead-letter-routing-key": ("dead_letter_routing_key", _text),
    "x-message-ttl": ("message_ttl_ms", integer(0, _MOST_MS)),
    "x-expires": ("expires_ms", integer(1, _MOST_MS)),
    "x-max-length": ("max_length", integer(0, MAX_DEPTH)),
    "x-max-length-bytes": ("max_length_bytes", integer(0, 1 << 50)),
    "x-delivery-limit": ("delivery_limit", integer(0, 1_000_000)),
    "x-max-priority": ("max_priority", integer(1, MAX_PRIORITY_LEVELS - 1)),
    "x-single-active-consumer": ("is_single_active", flag),
    "x-overflow": ("overflow", _one_of(_OVERFLOW, f"one of {', '.join(_OVERFLOW)}")),
    "x-queue-type": ("queue_type", _one_of(("classic", "quorum", STREAM), "classic, quorum or stream")),
    "x-max-age": ("max_age_s", _max_age),
    "x-stream-max-segment-size-bytes": ("segment_bytes", integer(1, 1 << 32)),
}
_OF_STREAMS_ALONE: Final = frozenset({"x-max-age", "x-stream-max-segment-size-bytes"})
_OF_STREAMS: Final = _OF_STREAMS_ALONE | {"x-queue-type", "x-max-length", "x-max-length-bytes"}


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
