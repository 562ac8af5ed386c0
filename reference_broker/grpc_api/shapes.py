"""What messages of both interfaces have in common: times, texts in bytes, groups with filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY
from assay.reference_broker.routing.message import Message

_NS = 1_000_000_000


def moment(seconds: float) -> dict[str, int] | None:
    """Unix seconds as a ``Timestamp``; 0 = not known."""
    return split(seconds) if seconds else None


def split(seconds: float) -> dict[str, int]:
    """Seconds, not below 0, as a ``Duration``."""
    whole, nanos = divmod(round(seconds * _NS), _NS)
    return {"seconds": whole, "nanos": nanos}


def seconds_of(value: Any) -> float:
    """Of a ``Duration`` or ``Timestamp``. Raises :class:`RequestError` for one below 0."""
    seconds: float = value.seconds + value.nanos / _NS
    if seconds < 0:
        raise RequestError(Code.BAD_REQUEST, "times and durations are not negative here")
    return seconds


def text(value: bytes, what: str) -> str:
    """Bytes that have to be text. Raises :class:`QueueError` (BAD_OPTION)."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise QueueError(QueueErrorCode.BAD_OPTION, f"{what} is not UTF-8") from None


def headers_in(headers: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    """Raises :class:`QueueError` (BAD_OPTION)."""
    return tuple((name, text(value, f"the header {name[:80]!r}")) for name, value in headers.items())


def headers_out(message: Message) -> dict[str, str]:
    """User properties, but for the key; of one that is there twice the last."""
    return {name: value for name, value in message.user_properties if name != PARTITION_KEY}


def key_of(message: Message) -> bytes:
    return (message.user_property(PARTITION_KEY) or "").encode()


def group_of(group_id: str) -> tuple[str, str]:
    """Group and filter of routing keys, of ``<group>`` or ``<group>@<filter>``. Raises :class:`RequestError`."""
    group, _, pattern = group_id.partition("@")
    if not group:
        raise RequestError(Code.BAD_REQUEST, "a group has a name")
    return group, pattern
