"""Records as JSON lines: what ``dump`` prints, ``export --format jsonl`` writes and ``import`` reads back.

Keys, values, header names and header values are text when they are UTF-8, and base64 in a field ``..._base64``
otherwise; so every record comes back byte for byte.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from assay.reference_broker.queues.jobs.store import Headers, LogRecord
from assay.reference_broker.trace.described import described

MAX_LINE_BYTES = 128 * 1024 * 1024
"""A longer line is no record."""


class JsonLineError(ValueError):
    """A line is no record. ``str(error)`` names the line."""


class JsonHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record header; of each pair of fields one is set."""

    name: str | None = None
    name_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None


class JsonRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. A record without key or value has neither of the two fields."""

    queue: str
    partition: int
    offset: int
    timestamp_ms: int
    """Unix time."""
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    headers: tuple[JsonHeader, ...] = ()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(described(JsonRecord))


def encode_line(queue: str, partition: int, record: LogRecord) -> bytes:
    """A record as a line, its end included."""
    key, key_base64 = _as_text(record.key)
    value, value_base64 = _as_text(record.value)
    line = JsonRecord(
        queue=queue,
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=key,
        key_base64=key_base64,
        value=value,
        value_base64=value_base64,
        headers=tuple(_header(*header) for header in record.headers),
    )
    return _ENCODER.encode(line) + b"\n"


def _header(name: bytes, value: bytes) -> JsonHeader:
    name_text, name_base64 = _as_text(name)
    value_text, value_base64 = _as_text(value)
    return JsonHeader(name=name_text, name_base64=name_base64, value=value_text, value_base64=value_base64)


def _as_text(data: bytes | None) -> tuple[str | None, str | None]:
    """(text, None), or (None, base64) when it is no UTF-8."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def decode_line(line: bytes, number: int) -> tuple[str, int, LogRecord]:
    """Queue, partition and record of a line. Raises :class:`JsonLineError`."""
    try:
        found = _DECODER.decode(line)
        headers: Headers = tuple(
            (_as_bytes(one.name, one.name_base64) or b"", _as_bytes(one.value, one.value_base64) or b"")
            for one in found.headers
        )
        record = LogRecord(
            found.offset,
            found.timestamp_ms,
            _as_bytes(found.key, found.key_base64),
            _as_bytes(found.value, found.value_base64),
            headers,
        )
    except (ValueError, RecursionError) as error:
        raise JsonLineError(f"line {number} is no record: {error}") from error
    if not 0 <= record.offset < 1 << 63 or not 0 <= found.partition < 1 << 31 or abs(record.timestamp_ms) >= 1 << 62:
        raise JsonLineError(f"line {number}: offset, partition or time is out of bounds")
    return found.queue, found.partition, record


def _as_bytes(text: str | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise ValueError("a field is given as text and as base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    return None if text is None else text.encode()


def read_lines(source: BinaryIO) -> Iterator[tuple[str, int, LogRecord]]:
    """Queue, partition and record of every line that is not empty. Raises :class:`JsonLineError`."""
    number = 0
    while line := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise JsonLineError(f"line {number} is longer than {MAX_LINE_BYTES} bytes")
        if line.strip():
            yield decode_line(line, number)
