"""Reads the records of a batch back. Strict: what is not exactly the claimed records is refused.

Three ways, which give the same. A run of records of one shape (the same sizes, as most producers write) is checked and
cut by strides (``record_runs``). Other records go through a loop that knows the common short forms of the varints. What
it does not know, damage included, is read the careful way, which also says what is wrong.
"""

from __future__ import annotations

from enum import IntFlag

from assay.reference_broker.queues.jobs.store import Headers, LogRecord
from assay.reference_broker.storage.record import MAX_RECORD_HEADERS, RecordError, read_uvarint, read_zigzag, uvarints
from assay.reference_broker.storage.record_runs import LEAST_RUN, find_run

_WIDER_AT = (1 << 7, 1 << 14, 1 << 21)
"""Indexes from which on an offset delta takes a byte more."""
_FIRST_PATIENCE = 16
"""Records to read one by one before looking for a run again; doubled each time there was none."""
_STRETCH = 256
"""Most records to read one by one in a go: bounds what is prepared in vain when one of them is odd."""
_NO_HEADERS: Headers = ()


class Wanted(IntFlag):
    """The fields of a record that a reader needs."""

    KEY = 1
    VALUE = 2
    HEADERS = 4
    ALL = 7


_KEY, _VALUE, _HEADERS = int(Wanted.KEY), int(Wanted.VALUE), int(Wanted.HEADERS)


def decode_records(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp_ms: int,
    *,
    start: int = 0,
    end: int | None = None,
    from_offset: int = 0,
    limit: int | None = None,
    wanted: Wanted = Wanted.ALL,
) -> list[LogRecord]:
    """Exactly ``count`` records that fill ``data[start:end]``, those from ``from_offset`` on and at most ``limit``.

    Fields that are not wanted come as None or ``()``. With a limit, records behind the last one returned are not read.
    Raises :class:`RecordError`.
    """
    end = len(data) if end is None else end
    if end > len(data):
        raise RecordError(f"{end - len(data)} of {end - start} bytes of records are missing")
    first = 0 if from_offset <= base_offset else min(count, from_offset - base_offset)
    stop = count if limit is None else min(count, first + max(0, limit))
    reader = _Reader(data, end, base_offset, base_timestamp_ms, first, int(wanted))
    index, at = 0, start
    patience, try_at = _FIRST_PATIENCE, 0
    while index < stop:
        if index >= try_at and stop - index >= LEAST_RUN:
            taken, at = reader.read_run(index, at, stop)
            if taken:
                index += taken
                patience = _FIRST_PATIENCE
                continue
            try_at = index + patience
            patience *= 2
        index, at = reader.read_singly(index, at, min(stop, try_at) if index < try_at else stop)
    if index == count and at != end:
        raise RecordError(f"{end - at} bytes follow the last record")
    return reader.records


class _Reader:
    """The records of one batch so far. Indexes count a batch's records from 0, positions the bytes of ``data``."""

    __slots__ = ("_base_ms", "_base_offset", "_data", "_end", "_first", "_known_headers", "_wanted", "records")

    def __init__(self, data: bytes, end: int, base_offset: int, base_ms: int, first: int, wanted: int) -> None:
        self.records: list[LogRecord] = []
        self._data = data
        self._end = end
        self._base_offset = base_offset
        self._base_ms = base_ms
        self._first = first
        self._wanted = wanted
        # A set of headers says itself where it ends, so bytes that were one are one wherever a set may start.
        self._known_headers: dict[bytes, Headers] = {}

    def read_run(self, index: int, at: int, stop: int) -> tuple[int, int]:
        """Records of one shape from here on, if there are many; their number and the position behind them."""
        run = find_run(self._data, at, self._end, index, stop)
        if run is None:
            return 0, at
        skipped = max(0, self._first - index)
        if skipped < run.size:
            wanted = self._wanted
            self.records += run.records(
                self._base_offset + index,
                self._base_ms,
                skipped,
                key=bool(wanted & _KEY),
                value=bool(wanted & _VALUE),
                headers=bool(wanted & _HEADERS),
            )
        return run.size, run.end

    def read_singly(self, index: int, at: int, until: int) -> tuple[int, int]:
        """The records up to ``until``; index and position behind them. Raises :class:`RecordError`."""
        while index < until:
            # Within a stretch the offset deltas have one width, and records are either all kept or all skipped.
            stretch = min(until, index + _STRETCH)
            if index < self._first < stretch:
                stretch = self._first
            if stretch > _WIDER_AT[0]:
                stretch = min([stretch, *(border for border in _WIDER_AT if border > index)])
            index, at = self._read_stretch(index, at, stretch)
            if index < stretch:
                at = self._read_carefully(index, at)
                index += 1
        return index, at

    def _read_stretch(self, index: int, at: int, until: int) -> tuple[int, int]:
        """Records as long as they are in the common form; index and position of the first that is not."""
        data, end, base_ms = self._data, self._end, self._base_ms
        want_key, want_value = self._wanted & _KEY, self._wanted & _VALUE
        add, new, keep = self.records.append, tuple.__new__, index >= self._first
        offset = self._base_offset + index
        varints = uvarints(index, until)
        width = len(varints[0])
        known, size_of_known, last_tick, timestamp_ms, begin = self._known_headers, 1, 0, base_ms, at
        try:
            for varint in varints:
                at = begin + width
                tick = data[at]
                if data[begin:at] != varint:
                    break
                at += 1
                if tick != last_tick or tick > 127:
                    last_tick = tick
                    if tick > 127:
                        tick, at = read_uvarint(data, at - 1)
                    timestamp_ms = base_ms + (tick >> 1 ^ -(tick & 1))
                key_size = data[at]
                at += 1
                if key_size > 127:
                    key_size, at = read_uvarint(data, at - 1)
                key_at = at
                at += key_size >> 1
                size = data[at]
                at += 1
                if size > 127:
                    size += (data[at] << 7) - 128
                    at += 1
                    if size > 16_383:
                        size, at = read_uvarint(data, at - 2)
                value_at = at
                at += size >> 1
                if data[at] == 0:
                    headers = _NO_HEADERS
                    at += 1
                elif (found := known.get(data[at : at + size_of_known])) is not None:
                    headers = found
                    at += size_of_known
                else:
                    field = at
                    headers, at = self._read_headers(at)
                    size_of_known = at - field
                    known[data[field:at]] = headers
                if at > end or (key_size & 1 and key_size != 1) or (size & 1 and size != 1):
                    break
                if keep:
                    key = data[key_at : key_at + (key_size >> 1)] if want_key and key_size != 1 else None
                    value = data[value_at : value_at + (size >> 1)] if want_value and size != 1 else None
                    add(new(LogRecord, (offset, timestamp_ms, key, value, headers)))
                offset += 1
                begin = at
        except IndexError:
            pass
        return offset - self._base_offset, begin

    def _read_carefully(self, index: int, at: int) -> int:
        """One record in whatever form; the position behind it. Raises :class:`RecordError`."""
        data = self._data
        delta, at = read_uvarint(data, at)
        if delta != index:
            raise RecordError(f"offset {self._base_offset + delta} does not follow {self._base_offset + index - 1}")
        ticks, at = read_zigzag(data, at)
        key, at = self._read_nullable(at)
        value, at = self._read_nullable(at)
        headers, at = self._read_headers(at)
        if at > self._end:
            raise RecordError(f"record {index} reaches {at - self._end} bytes past the end")
        if index >= self._first:
            wanted = self._wanted
            record = LogRecord(
                self._base_offset + index,
                self._base_ms + ticks,
                key if wanted & _KEY else None,
                value if wanted & _VALUE else None,
                headers,
            )
            self.records.append(record)
        return at

    def _read_nullable(self, at: int) -> tuple[bytes | None, int]:
        size, at = read_zigzag(self._data, at)
        if size == -1:
            return None, at
        return self._read_bytes(at, size)

    def _read_bytes(self, at: int, size: int) -> tuple[bytes, int]:
        end = at + size
        if size < 0 or end > self._end:
            raise RecordError(f"a field of {size} bytes at byte {at} reaches past the end")
        return self._data[at:end], end

    def _read_headers(self, at: int) -> tuple[Headers, int]:
        """Headers, ``()`` when they are not wanted, and the position behind them. Raises :class:`RecordError`."""
        data = self._data
        count, at = read_uvarint(data, at)
        if count > MAX_RECORD_HEADERS:
            raise RecordError(f"a record claims {count} headers")
        headers: list[tuple[bytes, bytes]] = []
        for _ in range(count):
            size, at = read_uvarint(data, at)
            key, at = self._read_bytes(at, size)
            size, at = read_uvarint(data, at)
            value, at = self._read_bytes(at, size)
            headers.append((key, value))
        return (tuple(headers) if self._wanted & _HEADERS else _NO_HEADERS), at
