"""Durations and times as publishers and consumers write them in user properties."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3_600 * 1_000_000_000,
}
_PART = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,15}))?(ns|us|µs|μs|ms|s|m|h)")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_UNIX_MS = re.compile(r"[0-9]{1,15}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MAX_CHARACTERS = 64
MAX_DURATION_MS = 10**15
"""Longer ones are refused: with them, sums of times would not stay exact."""


def parse_duration_ms(text: str) -> int:
    """``250ms``, ``30s``, ``1h30m``, ``1.5h`` or ``0`` as milliseconds, rounded up. Raises :class:`ValueError`.

    Go's notation without a sign: numbers, whole or decimal, each with its unit (ns, us, ms, s, m, h).
    """
    if text == "0":
        return 0
    total_ns = at = 0
    while at < len(text) <= _MAX_CHARACTERS:
        part = _PART.match(text, at)
        if part is None:
            break
        whole, fraction, unit = part.groups()
        scale = _NANOSECONDS[unit]
        total_ns += int(whole) * scale
        if fraction is not None:
            total_ns += -(-int(fraction) * scale // 10 ** len(fraction))
        at = part.end()
    if not text or at != len(text):
        raise ValueError(f"{text[:_MAX_CHARACTERS]!r} is not a duration like 250ms, 30s or 1h30m")
    total_ms = -(-total_ns // 1_000_000)
    if total_ms > MAX_DURATION_MS:
        raise ValueError(f"{text!r} is longer than any duration can be here")
    return total_ms


def parse_time_ms(text: str) -> int:
    """A time as Unix milliseconds, rounded up: RFC 3339, or Unix milliseconds already. Raises :class:`ValueError`."""
    if _UNIX_MS.fullmatch(text):
        return int(text)
    found = _TIME.fullmatch(text)
    if found is None:
        message = f"{text[:_MAX_CHARACTERS]!r} is neither an RFC 3339 time (2026-01-31T12:00:00Z) nor Unix milliseconds"
        raise ValueError(message)
    day, time, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{'+00:00' if zone in 'Zz' else zone}")
        whole_ms = (moment - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a time: {error}") from error
    if fraction is not None:
        whole_ms += -(-int(fraction) * 1_000 // 10 ** len(fraction))
    return whole_ms
