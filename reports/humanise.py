"""Figures as people read them: thousands apart, three significant digits, the unit that fits."""

from __future__ import annotations

import math
import re

_SUFFIX_UNITS = (
    ("_per_s", "/s"),
    ("_us", "µs"),
    ("_ms", "ms"),
    ("_ns", "ns"),
    ("_s", "s"),
    ("_bytes", "bytes"),
    ("_mib", "MiB"),
    ("_pct", "%"),
    ("_percent", "%"),
)
_TIME_US = {"ns": 1e-3, "µs": 1.0, "us": 1.0, "ms": 1e3, "s": 1e6}
_INITIALISMS = {"qos": "QoS", "mqtt": "MQTT", "dlq": "DLQ", "cpu": "CPU", "rss": "RSS", "id": "id", "sim": "sim"}
_NAME_DOT = re.compile(r"(?<=[A-Za-z0-9])\.(?=[A-Za-z])")
_QOS = re.compile(r"\bqos ?([012])\b", re.IGNORECASE)
NO_DATA = "no data"
NOT_MEASURED = "not measured"


def number(value: float) -> str:
    """``1234567`` as ``1,234,567``; fractions keep three significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if math.isnan(value) or math.isinf(value):
        return NO_DATA
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 1e-6:
        return f"{value:.2e}"  # not zero, so it must not look like it
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def duration_us(value_us: float) -> str:
    """A time span given in microseconds, in the unit that keeps it short."""
    if math.isnan(value_us) or math.isinf(value_us):
        return NO_DATA
    size = abs(value_us)
    if size < 1_000:
        return f"{number(value_us)} µs"
    if size < 1_000_000:
        return f"{number(value_us / 1_000)} ms"
    if size < 120 * 1_000_000:
        return f"{number(value_us / 1_000_000)} s"
    minutes, seconds = divmod(round(size / 1_000_000), 60)
    return f"{minutes:,} min {seconds} s"


def quantity(value: float | None, unit: str = "") -> str:
    """A figure with its unit; times are scaled, ``None`` reads ``no data``."""
    if value is None:
        return NO_DATA
    if unit in _TIME_US:
        return duration_us(value * _TIME_US[unit])
    text = number(value)
    if not unit or text == NO_DATA:
        return text
    if unit == "1/s":
        return f"{text} /s"
    return f"{text}×" if unit in {"x", "×"} else f"{text}{'' if unit == '%' else ' '}{unit}"


def bytes_size(size: int) -> str:
    """A file size: ``812 bytes``, ``4.3 MiB``."""
    if size < 1024:
        return f"{size} bytes"
    if size < 1024 * 1024:
        return f"{number(size / 1024)} KiB"
    return f"{number(size / 1024 / 1024)} MiB"


def label_and_unit(key: str) -> tuple[str, str]:
    """Split a metric's key into words and the unit that its last part names: ``p99_us`` is ``p99`` in µs."""
    for suffix, unit in _SUFFIX_UNITS:
        if key.endswith(suffix) and len(key) > len(suffix):
            return words(key[: -len(suffix)]), unit
    return words(key), ""


def words(key: str) -> str:
    """An identifier as words: ``messages_lost`` reads ``messages lost``, ``mosquitto.qos1`` ``mosquitto · QoS 1``.

    A dot only parts two names: ``p99.9`` stays whole.
    """
    spaced = key if " " in key else _NAME_DOT.sub(" · ", key)
    parts = _QOS.sub(r"QoS \1", spaced.replace("_", " ")).split()
    return " ".join(_INITIALISMS.get(part.lower(), part) for part in parts)


def relation(symbol: str) -> str:
    """A comparison as people write it: ``>=`` is ``≥``."""
    return {"<=": "≤", ">=": "≥", "==": "="}.get(symbol, symbol)


def check_name(name: str, unit: str) -> str:
    """A check's name in words; the unit is not said twice where the name ends in it (``gap_max_s`` in s)."""
    label, named = label_and_unit(name)
    return label if named == unit else words(name)


def metric(key: str, value: float | str) -> tuple[str, str]:
    """Label and readable value of one entry of ``RunResult.metrics``."""
    if isinstance(value, str):
        return words(key), value
    label, unit = label_and_unit(key)
    return label, quantity(value, unit)


def plural(count: int, noun: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
