"""Records inside a batch: LEB128 varints, zigzag where a value may be negative, little else.

Record = offset delta (uvarint), timestamp delta in ms (zigzag), key length (zigzag, -1 = null) and key, value length
(zigzag, -1 = null) and value, header count (uvarint), then per header: key length (uvarint), key, value length
(uvarint), value. The layout is FluxMQ's.
"""

from __future__ import annotations

from collections.abc import Sequence

from reference_broker.core.queues.store import Headers, LogRecord, NewRecord

MAX_RECORD_HEADERS = 65_535
_MAX_VARINT_BYTES = 10
_TABLE_SIZE = 1 << 14
_CACHED_HEADER_SETS = 1_024
_CACHED_HEADER_BYTES = 1_024
_NULL = b"\x01"


class RecordError(ValueError):
    """The bytes are not records."""


def _encode_uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_UVARINTS = [_encode_uvarint(number) for number in range(_TABLE_SIZE)]


def uvarint(number: int) -> bytes:
    """Unsigned LEB128 of a number from 0 to 2**64 - 1."""
    return _UVARINTS[number] if number < _TABLE_SIZE else _encode_uvarint(number)


def zigzag(number: int) -> bytes:
    """Signed number -> zigzag -> LEB128."""
    return uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it. Raises :class:`RecordError`."""
    number = shift = 0
    for index in range(at, min(at + _MAX_VARINT_BYTES, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number, index + 1
        shift += 7
    message = f"no varint at byte {at}"
    raise RecordError(message)


def read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    """As :func:`read_uvarint`, signed."""
    number, at = read_uvarint(data, at)
    return (number >> 1) ^ -(number & 1), at


class RecordEncoder:
    """Encodes records. It remembers the bytes of header sets, since most publishers repeat theirs."""

    def __init__(self) -> None:
        self._header_bytes: dict[Headers, bytes] = {}

    def encode(self, records: Sequence[NewRecord], base_timestamp_ms: int) -> bytes:
        """The records section of a batch whose first offset is the first record's."""
        parts: list[bytes] = []
        add = parts.extend
        varints, table_size = _UVARINTS, _TABLE_SIZE
        known = self._header_bytes
        for delta, (timestamp_ms, key, value, headers) in enumerate(records):
            ticks = timestamp_ms - base_timestamp_ms
            ticks = ticks << 1 if ticks >= 0 else (-ticks << 1) - 1
            key_size = 1 if key is None else len(key) << 1
            value_size = 1 if value is None else len(value) << 1
            header_bytes = known.get(headers)
            add(
                (
                    varints[delta] if delta < table_size else _encode_uvarint(delta),
                    varints[ticks] if ticks < table_size else _encode_uvarint(ticks),
                    varints[key_size] if key_size < table_size else _encode_uvarint(key_size),
                    key or b"",
                    varints[value_size] if value_size < table_size else _encode_uvarint(value_size),
                    value or b"",
                    self._encode_headers(headers) if header_bytes is None else header_bytes,
                )
            )
        return b"".join(parts)

    def _encode_headers(self, headers: Headers) -> bytes:
        if len(headers) > MAX_RECORD_HEADERS:
            message = f"a record may have at most {MAX_RECORD_HEADERS} headers, not {len(headers)}"
            raise RecordError(message)
        parts = [uvarint(len(headers))]
        for key, value in headers:
            parts += (uvarint(len(key)), key, uvarint(len(value)), value)
        encoded = b"".join(parts)
        if len(encoded) <= _CACHED_HEADER_BYTES:
            if len(self._header_bytes) >= _CACHED_HEADER_SETS:
                self._header_bytes.clear()
            self._header_bytes[headers] = encoded
        return encoded


def encoded_size(record: NewRecord) -> int:
    """An upper bound of a record's encoded size in bytes."""
    size = 5 * _MAX_VARINT_BYTES + len(record.key or b"") + len(record.value or b"")
    for key, value in record.headers:
        size += len(key) + len(value) + 10
    return size


def decode_records(data: bytes, count: int, base_offset: int, base_timestamp_ms: int) -> list[LogRecord]:
    """Exactly ``count`` records that fill ``data``. Raises :class:`RecordError`."""
    records: list[LogRecord] = []
    at = 0
    previous = base_offset - 1
    for _ in range(count):
        delta, at = read_uvarint(data, at)
        ticks, at = read_zigzag(data, at)
        key, at = _read_nullable(data, at)
        value, at = _read_nullable(data, at)
        headers: Headers = ()
        if at < len(data) and data[at] == 0:
            at += 1
        else:
            headers, at = _read_headers(data, at)
        offset = base_offset + delta
        if offset <= previous:
            message = f"offset {offset} does not follow {previous}"
            raise RecordError(message)
        previous = offset
        records.append(LogRecord(offset, base_timestamp_ms + ticks, key, value, headers))
    if at != len(data):
        message = f"{len(data) - at} bytes follow the last record"
        raise RecordError(message)
    return records


def _read_nullable(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_zigzag(data, at)
    if size == -1:
        return None, at
    return _read_bytes(data, at, size)


def _read_bytes(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if size < 0 or end > len(data):
        message = f"a field of {size} bytes at byte {at} reaches past the end"
        raise RecordError(message)
    return data[at:end], end


def _read_headers(data: bytes, at: int) -> tuple[Headers, int]:
    count, at = read_uvarint(data, at)
    if count > MAX_RECORD_HEADERS:
        message = f"a record claims {count} headers"
        raise RecordError(message)
    headers: list[tuple[bytes, bytes]] = []
    for _ in range(count):
        size, at = read_uvarint(data, at)
        key, at = _read_bytes(data, at, size)
        size, at = read_uvarint(data, at)
        value, at = _read_bytes(data, at, size)
        headers.append((key, value))
    return tuple(headers), at
