"""One rule for every number of the configuration: it is finite, in a range, and 0 only where 0 means something."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import isfinite

import msgspec

_MOST = 10**15
"""A thousand terabytes, or 30 million years: more is a slip."""
_FROM_ONE = {
    "max_connections",
    "max_in_flight",
    "max_messages",
    "max_open",
    "max_open_per_user",
    "max_partitions",
    "max_queues",
    "max_subscriptions_per_client",
    "max_topic_levels",
    "max_transactional_ids",
    "max_transactional_ids_per_user",
    "max_unread_bytes",
    "segment_bytes",
}
_ABOVE_ZERO = {
    "after_s",
    "connect_timeout_s",
    "delivery_timeout_s",
    "id_expiry_s",
    "max_timeout_s",
    "retention_interval_s",
    "sync_interval_s",
    "timeout_s",
}
_ZERO_IS_NO_LIMIT = ("group.max_in_flight", "retention.max_messages", "retention.segment_bytes", "quotas.")
"""Parts of paths: the same names elsewhere need more than 0."""


@cache
def _fields(section: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Once for each kind of section: this reads its annotations anew, which a test that starts brokers does often."""
    return msgspec.structs.fields(section)


def number_problems(section: msgspec.Struct, where: str = "") -> Iterator[str]:
    """What is wrong with the numbers of a section and of those within it, each with the path of its key."""
    for field in _fields(type(section)):
        path = f"{where}.{field.encode_name}" if where else field.encode_name
        value = getattr(section, field.name)
        values = value if isinstance(value, tuple) else (value,)
        for index, each in enumerate(values):
            place = f"{path}[{index}]" if isinstance(value, tuple) else path
            if isinstance(each, msgspec.Struct):
                yield from number_problems(each, place)
            elif isinstance(each, int | float) and not isinstance(each, bool):
                yield from _problem(each, place, field.encode_name)


def _problem(value: float, path: str, name: str) -> Iterator[str]:
    lowest = 1 if name in _FROM_ONE and not any(part in path for part in _ZERO_IS_NO_LIMIT) else 0
    most = 65_535 if name == "port" else _MOST
    if not isfinite(value):
        yield f"{path} must be a finite number, not {value}"
    elif not lowest <= value <= most:
        yield f"{path} must be {lowest} to {most}, not {value:g}"
    elif name in _ABOVE_ZERO and not value:
        yield f"{path} must be above 0"
