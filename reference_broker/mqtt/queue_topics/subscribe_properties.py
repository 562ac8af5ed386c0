"""What a consumer asks of its group, as MQTT clients write it: user properties of SUBSCRIBE."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from assay.reference_broker.queues.groups.subscribe_options import (
    DEFAULT_OPTIONS,
    MAX_PREFETCH,
    AckMode,
    SubscribeOptions,
    parse_cursor,
)
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.trace.described import described

CURSOR: Final = "cursor"
ACK_MODE: Final = "ack-mode"
PREFETCH: Final = "prefetch"
NOTIFY: Final = "notify"

_MAX_DIGITS: Final = 19


def _prefetch(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and 1 <= int(text) <= MAX_PREFETCH):
        raise ValueError(f"it must be a whole number from 1 to {MAX_PREFETCH}, not {text[:40]!r}")
    return int(text)


def _notify(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"it must be 0 or 1, not {text[:40]!r}")
    return text == "1"


def _ack_mode(text: str) -> AckMode:
    try:
        return AckMode(text)
    except ValueError as error:
        raise ValueError(f"it must be explicit or auto, not {text[:40]!r}") from error


_PARSERS: dict[str, Callable[[str], object]] = {
    CURSOR: parse_cursor,
    ACK_MODE: _ack_mode,
    PREFETCH: _prefetch,
    NOTIFY: _notify,
}


def parse_subscribe_options(properties: Iterable[tuple[str, str]]) -> SubscribeOptions:
    """The options among the user properties; other properties are ignored.

    Raises :class:`QueueError` (BAD_OPTION) for a bad value and for an option that is there twice.
    """
    found: dict[str, object] = {}
    for name, value in properties:
        parser = _PARSERS.get(name)
        if parser is None:
            continue
        field = name.replace("-", "_")
        if field in found:
            raise QueueError(QueueErrorCode.BAD_OPTION, f"the user property {name} is there twice")
        try:
            found[field] = parser(value)
        except ValueError as error:
            raise QueueError(QueueErrorCode.BAD_OPTION, f"the user property {name}: {error}") from error
    return msgspec.convert(found, described(SubscribeOptions)) if found else DEFAULT_OPTIONS


def lasting_properties(properties: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The properties that also hold when the session consumes again after a reconnect: all options but the cursor."""
    return tuple(pair for pair in properties if pair[0] in _PARSERS and pair[0] != CURSOR)
