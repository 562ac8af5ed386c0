"""Records inside a batch: LEB128 varints, zigzag where a value may be negative, little else.

Record = offset delta (uvarint), timestamp delta in ms (zigzag), key length (zigzag, -1 = null) and key, value length
(zigzag, -1 = null) and value, header count (uvarint), then per header: key length (uvarint), key, value length
(uvarint), value. The layout is FluxMQ's.

The encoder works on columns: a batch of many records costs no Python call per field, and what is the same in all of
them (most often everything but offset, key and value) is one constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from assay.reference_broker.queues.jobs.store import Headers, NewRecord
from assay.reference_broker.routing.remembered import remember

MAX_RECORD_HEADERS = 65_535
_MAX_VARINT_BYTES = 10
_MAX_DELTA_MS = 1 << 63
_TABLE_SIZE = 1 << 14
CACHED_HEADER_SETS = 16_384
_NO_HEADERS = b"\x00"
_HEADER_BYTES: dict[Headers, bytes] = {}
"""Of header sets, for all logs."""
FEW = 32
"""Records that columns are not worth it for."""


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
_LENGTHS = _UVARINTS[::2]
"""Zigzag of what is not negative."""
_LENGTHS_SIZE = len(_LENGTHS)
_NULL = _UVARINTS[1]


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
    raise RecordError(f"no varint at byte {at}")


def read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    """As :func:`read_uvarint`, signed."""
    number, at = read_uvarint(data, at)
    return (number >> 1) ^ -(number & 1), at


EncodedRecords = tuple[bytes, int, bool, bool]
"""The records section of a batch, the highest timestamp in ms, whether a key is not null, whether there are headers."""


class RecordEncoder:
    """Encodes records. The bytes of header sets are remembered, since most publishers repeat theirs."""

    def encode(self, records: Sequence[NewRecord]) -> EncodedRecords:
        """At least one record; offsets count from 0, times from the first record's. Raises :class:`RecordError`."""
        if len(records) <= FEW and (few := self._encode_few(records)) is not None:
            return few
        timestamps, keys, values, header_sets = zip(*records, strict=True)
        layout = _Layout(len(records))
        layout.add(uvarints(0, len(records)))
        max_timestamp_ms = max(timestamps)
        layout.add(_tick_column(timestamps, max_timestamp_ms))
        has_keys = _add_fields(layout, keys)
        _add_fields(layout, values)
        headers = self._header_column(header_sets)
        layout.add(headers)
        return layout.join(), max_timestamp_ms, has_keys, headers != _NO_HEADERS

    def _encode_few(self, records: Sequence[NewRecord]) -> EncodedRecords | None:
        """As :meth:`encode`, record by record; None where times differ or something is null."""
        base_ms = records[0][0]
        known = _HEADER_BYTES
        parts: list[bytes] = []
        has_headers = False
        for delta, (timestamp_ms, key, value, headers) in enumerate(records):
            if timestamp_ms != base_ms or key is None or value is None:
                return None
            header_bytes = known.get(headers) or self._encode_headers(headers)
            if header_bytes != _NO_HEADERS:
                has_headers = True
            key_bytes, value_bytes = len(key), len(value)
            parts += (
                _UVARINTS[delta],
                b"\x00",
                _LENGTHS[key_bytes] if key_bytes < _LENGTHS_SIZE else uvarint(key_bytes << 1),
                key,
                _LENGTHS[value_bytes] if value_bytes < _LENGTHS_SIZE else uvarint(value_bytes << 1),
                value,
                header_bytes,
            )
        return b"".join(parts), base_ms, True, has_headers

    def _header_column(self, header_sets: tuple[Headers, ...]) -> bytes | Iterable[bytes]:
        first = header_sets[0]
        known = _HEADER_BYTES
        # Publishers' records alternate at random, so the last one shows soonest that they are not all the same.
        if first == header_sets[-1] and header_sets.count(first) == len(header_sets):
            return known.get(first) or self._encode_headers(first)
        return [known.get(headers) or self._encode_headers(headers) for headers in header_sets]

    def _encode_headers(self, headers: Headers) -> bytes:
        if len(headers) > MAX_RECORD_HEADERS:
            raise RecordError(f"a record may have at most {MAX_RECORD_HEADERS} headers, not {len(headers)}")
        parts = [uvarint(len(headers))]
        for key, value in headers:
            if len(value) < _TABLE_SIZE > len(key):
                parts += (_UVARINTS[len(key)], key, _UVARINTS[len(value)], value)
            else:
                parts += (uvarint(len(key)), key, uvarint(len(value)), value)
        encoded = b"".join(parts)
        return remember(_HEADER_BYTES, headers, encoded, len(encoded), CACHED_HEADER_SETS)


class _Layout:
    """The fields of records, side by side: the same pieces for each, some of which differ from record to record."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pieces: list[bytes] = []
        self._columns: list[tuple[int, Iterable[bytes]]] = []
        self._last_is_constant = False

    def add(self, field: bytes | Iterable[bytes]) -> None:
        """The next field: one value for all records, or one for each. Adjoining constants become one piece."""
        if not isinstance(field, bytes):
            self._columns.append((len(self._pieces), field))
            self._pieces.append(b"")
            self._last_is_constant = False
        elif self._last_is_constant:
            self._pieces[-1] += field
        else:
            self._pieces.append(field)
            self._last_is_constant = True

    def join(self) -> bytes:
        parts = self._pieces * self._count
        width = len(self._pieces)
        for position, column in self._columns:
            parts[position::width] = column
        return b"".join(parts)


def uvarints(start: int, stop: int) -> list[bytes]:
    """The varints of the numbers from ``start`` to ``stop - 1``."""
    if stop <= _TABLE_SIZE:
        return _UVARINTS[start:stop]
    return [uvarint(number) for number in range(start, stop)]


def _tick_column(timestamps: tuple[int, ...], latest: int) -> bytes | Iterable[bytes]:
    base, earliest = timestamps[0], min(timestamps)
    if earliest == latest:
        return _UVARINTS[0]
    if latest - base >= _MAX_DELTA_MS or base - earliest > _MAX_DELTA_MS:
        raise RecordError("the timestamps of a batch lie further apart than 63 bits of milliseconds")
    varints = {timestamp_ms: zigzag(timestamp_ms - base) for timestamp_ms in set(timestamps)}
    return map(varints.__getitem__, timestamps)


def _no_nulls(fields: tuple[bytes | None, ...]) -> TypeGuard[tuple[bytes, ...]]:
    return all(fields) or None not in fields


def _add_fields(layout: _Layout, fields: tuple[bytes | None, ...]) -> bool:
    """Add lengths and contents of a field that may be null; true unless it is null in every record."""
    if _no_nulls(fields):
        sizes = set(map(len, fields))
        if len(sizes) == 1:
            size = sizes.pop()
            layout.add(uvarint(size << 1))
            layout.add(fields if size else b"")
            return True
        if max(sizes) < len(_LENGTHS):
            layout.add(map(_LENGTHS.__getitem__, map(len, fields)))
        else:
            layout.add([uvarint(len(field) << 1) for field in fields])
        layout.add(fields)
        return True
    layout.add([_NULL if field is None else uvarint(len(field) << 1) for field in fields])
    layout.add([field or b"" for field in fields])
    return fields.count(None) < len(fields)
