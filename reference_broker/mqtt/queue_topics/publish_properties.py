"""Options of a publish to a queue, as MQTT clients write them: user properties of the PUBLISH."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.messages.durations import parse_duration_ms, parse_time_ms
from assay.reference_broker.queues.messages.publish_options import PublishOptions, bad_option, priority_named
from assay.reference_broker.trace.described import described

Properties = tuple[tuple[str, str], ...]

PARTITION = "partition"
PRIORITY = "priority"
DELAY = "delay"
DELIVER_AT = "deliver-at"
TTL = "ttl"
PRODUCER_ID = "producer-id"
PRODUCER_EPOCH = "producer-epoch"
SEQUENCE = "sequence"
TRANSACTION_ID = "transaction-id"
RECEIPT = "receipt"
DELAY_ID = "delay-id"
"""Names a delayed message, to cancel it."""

_MAX_TRANSACTION_ID_BYTES = 1_024
_OPTIONS = described(PublishOptions)


def _whole(limit: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # isdecimal also holds for digits of other scripts.
        if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= limit):
            raise ValueError(f"must be a whole number from 0 to {limit}, not {text[:40]!r}")
        return int(text)

    return parse


def _transaction_id(text: str) -> str:
    if not 0 < len(text.encode()) <= _MAX_TRANSACTION_ID_BYTES:
        raise ValueError(f"must have 1 to {_MAX_TRANSACTION_ID_BYTES} bytes")
    return text


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"must be 0 or 1, not {text[:40]!r}")
    return text == "1"


PARSERS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    PARTITION: ("partition", _whole(2**31 - 1)),
    PRIORITY: ("priority", priority_named),
    DELAY: ("delay_ms", parse_duration_ms),
    DELIVER_AT: ("deliver_at_ms", parse_time_ms),
    TTL: ("ttl_ms", parse_duration_ms),
    PRODUCER_ID: ("producer_id", _whole(2**63 - 1)),
    PRODUCER_EPOCH: ("producer_epoch", _whole(2**31 - 1)),
    SEQUENCE: ("sequence", _whole(2**63 - 1)),
    TRANSACTION_ID: ("transaction_id", _transaction_id),
    RECEIPT: ("receipt", _flag),
}
"""User property -> field and how its value is read."""

OPTION_NAMES = frozenset(PARSERS)


def parse_options(properties: Properties) -> PublishOptions | None:
    """The options among the user properties of a message; None when there are none.

    Strict, since an option that is misread is an order not carried out. Raises :class:`QueueError` (BAD_OPTION) for a
    value that cannot be read, an option named twice, and ``delay`` beside ``deliver-at``.
    """
    for pair in properties:
        if pair[0] in PARSERS:
            return options_of(properties)
    return None


def read_options(properties: Properties) -> PublishOptions | QueueError | None:
    """As :func:`parse_options`, with the error in place of what cannot be read."""
    try:
        return parse_options(properties) if properties else None
    except QueueError as error:
        return error


def options_of(properties: Properties) -> PublishOptions:
    fields: dict[str, object] = {}
    for name, value in properties:
        known = PARSERS.get(name)
        if known is None:
            continue
        field, read = known
        if field in fields:
            raise bad_option(f"the user property {name} is there twice")
        try:
            fields[field] = read(value)
        except ValueError as error:
            raise bad_option(f"the user property {name}: {error}") from error
    if "delay_ms" in fields and "deliver_at_ms" in fields:
        raise bad_option("a message has a delay or a deliver-at time, not both")
    if fields.get("ttl_ms") == 0:
        raise bad_option(f"the user property {TTL} must be longer than 0")
    return msgspec.convert(fields, _OPTIONS)


_TOLD = frozenset((RECEIPT, DELAY, DELIVER_AT))


def wants_receipt(properties: Properties) -> bool:
    """Whether the publisher is told what its message became: it asks, or the message may be delayed."""
    return any(pair[0] in _TOLD and pair != (RECEIPT, "0") for pair in properties)
