"""The arguments of ``basic.consume``. What is not supported is refused (406)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from assay.reference_broker.amqp091.messages import STREAM_OFFSET
from assay.reference_broker.amqp091.queue_settings import (
    Reader,
    flag,
    integer,
    interval_s,
    read_arguments,
)
from assay.reference_broker.amqp091.topology.arguments import INTEGERS
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues.groups.subscribe_options import (
    EARLIEST,
    LAST,
    LATEST,
    CursorKind,
    CursorPosition,
)
from assay.reference_broker.queues.messages.address import MAX_GROUP_BYTES
from assay.reference_broker.routing.properties import Kind, Typed

_NAMED: Final = {"first": EARLIEST, "last": LAST, "next": LATEST}
_NUMBERED: Final = re.compile(r"(?:(offset|timestamp)=)?([0-9]{1,18})", re.ASCII)
_MILLISECONDS_FROM: Final = 10**12
"""Unix times from there on are milliseconds."""


class ConsumerArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What the arguments of a consumer say."""

    priority: int = 0
    """Those with a higher one get everything while they have room."""
    offset: CursorPosition | None = None
    """Where a stream is read from."""
    group: str = ""
    """Who read a stream together, and go on where they were; empty = alone."""
    commits: bool = True
    """The group goes on where all is acknowledged; otherwise where it commits."""


NO_ARGUMENTS: Final = ConsumerArguments()


def parse_consumer(arguments: Table, now: float, *, is_stream: bool) -> ConsumerArguments:
    """Raises :class:`AmqpError` (406) for a value that makes no sense, and for an argument that is not supported."""
    if not arguments:
        return NO_ARGUMENTS
    readers = _OF_STREAMS if is_stream else _OF_QUEUES
    found = ConsumerArguments(**read_arguments(arguments, readers, _refused, now, is_stream=is_stream))
    if not found.commits and not found.group:
        raise _refused("x-auto-commit", None, "it needs x-consumer-group")
    return found


def _refused(name: str, _value: Typed | None, problem: str) -> AmqpError:
    text = f"invalid arg '{name[:80]}' of basic.consume: {problem}"
    return AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.consumer.priority")


def position_of(value: Typed, now: float) -> CursorPosition:
    """An offset, ``first``, ``last``, ``next``, a time, or how long ago. Raises :class:`ValueError`."""
    if value.kind in INTEGERS:
        return CursorPosition(kind=CursorKind.OFFSET, value=max(0, value.value))
    if value.kind is Kind.SECONDS:
        return CursorPosition(kind=CursorKind.TIME, value=value.value * 1_000)
    if value.kind is not Kind.TEXT:
        raise ValueError("it must be a text, an integer or a timestamp")
    text = value.value
    named = _NAMED.get(text)
    if named is not None:
        return named
    numbered = _NUMBERED.fullmatch(text)
    if numbered is None:
        return CursorPosition(kind=CursorKind.TIME, value=max(0, int((now - interval_s(text)) * 1_000)))
    number = int(numbered[2])
    if numbered[1] != "timestamp":
        return CursorPosition(kind=CursorKind.OFFSET, value=number)
    return CursorPosition(kind=CursorKind.TIME, value=number if number > _MILLISECONDS_FROM else number * 1_000)


def _group(value: Typed, _now: float) -> str:
    if value.kind is not Kind.TEXT or not 0 < len(value.value.encode()) <= MAX_GROUP_BYTES or "\0" in value.value:
        raise ValueError(f"it must be a text of 1 to {MAX_GROUP_BYTES} bytes without NUL")
    return str(value.value)


_OF_QUEUES: Final[dict[str, tuple[str, Reader]]] = {"x-priority": ("priority", integer())}
_OF_STREAMS: Final[dict[str, tuple[str, Reader]]] = {
    STREAM_OFFSET: ("offset", lambda value, now: position_of(value, now)),
    "x-consumer-group": ("group", _group),
    "x-auto-commit": ("commits", flag),
}
