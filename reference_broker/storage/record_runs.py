"""Runs of records that have the same shape: every length in them is the same, so each field has one place in a stride.

A run needs no Python call per record. Its lengths are checked by comparing every ``stride``-th byte with what the first
record has there, and its fields are cut by one ``struct`` format. Offset deltas count up by one, so their bytes are
known in advance; timestamp deltas may differ as long as they have the same width.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import NamedTuple

from assay.reference_broker.queues.jobs.store import Headers, LogRecord
from assay.reference_broker.storage.record import RecordError, read_uvarint, uvarint

LEAST_RUN = 16
"""Shorter runs cost more to find than they save."""
_MOST_HEADERS = 16
_MOST_TICK_BYTES = 9
_LAST_BYTES = bytes(range(128))
"""What a varint may end in; its other bytes have the high bit."""
_MORE_BYTES = bytes(range(128, 256))
_MOST_DELTAS = 1 << 16
_DELTA_BYTES = {
    1: (_LAST_BYTES,),
    2: (_MORE_BYTES * 128, b"".join(bytes((byte,)) * 128 for byte in _LAST_BYTES)),
    3: (
        _MORE_BYTES * 512,
        b"".join(bytes((byte,)) * 128 for byte in _MORE_BYTES) * 4,
        b"".join(bytes((byte,)) * (1 << 14) for byte in range(4)),
    ),
}
"""By the width of an offset delta, for each of its bytes: what that byte is in the deltas 0, 1, 2 ... of that width."""


class Shape(NamedTuple):
    """Where everything is in a record. Places count bytes from the record's start."""

    delta_bytes: int
    tick_bytes: int
    lengths: tuple[int, ...]
    """Places of the bytes that say lengths and counts: they make the shape."""
    key: tuple[int, int] | None
    """Place and size; None when it is null."""
    value: tuple[int, int] | None
    headers: tuple[tuple[int, int], ...]
    """Key, value, key, value ..."""
    stride: int


class Run(NamedTuple):
    """Consecutive records of one shape, checked."""

    data: bytes
    start: int
    size: int
    """Number of records."""
    shape: Shape

    @property
    def end(self) -> int:
        return self.start + self.size * self.shape.stride

    def column(self, place: int) -> bytes:
        """One byte of each record."""
        stride = self.shape.stride
        return self.data[self.start + place : self.end : stride]

    def records(
        self, offset: int, base_ms: int, skipped: int, *, key: bool, value: bool, headers: bool
    ) -> Iterable[LogRecord]:
        """The records behind the first ``skipped``; ``offset`` is that of the run's first, skipped or not."""
        run = Run(self.data, self.start + skipped * self.shape.stride, self.size - skipped, self.shape)
        shape = self.shape
        fields = [shape.key if key else None, shape.value if value else None, *(shape.headers if headers else ())]
        columns = run._cut(fields)
        rows = zip(
            range(offset + skipped, offset + self.size),
            run._timestamps(base_ms),
            columns[0] or repeat(None),
            columns[1] or repeat(None),
            _header_sets(columns[2:]),
            strict=False,  # what is the same in all of them repeats without end
        )
        # A LogRecord is a tuple; its own constructor would be a Python call per record.
        return map(tuple.__new__, repeat(LogRecord), rows)

    def _cut(self, fields: list[tuple[int, int] | None]) -> list[list[bytes] | None]:
        """A column per field; None for what is None."""
        wanted = [field for field in fields if field is not None]
        if not wanted:
            return [None] * len(fields)
        layout, at = "", 0
        for place, size in wanted:
            layout += f"{place - at}x{size}s"
            at = place + size
        rows = _cutter(f"{layout}{self.shape.stride - at}x").iter_unpack(memoryview(self.data)[self.start : self.end])
        cells: list[bytes] = list(chain.from_iterable(rows))
        columns = iter(range(len(wanted)))
        return [None if field is None else cells[next(columns) :: len(wanted)] for field in fields]

    def _timestamps(self, base_ms: int) -> Iterable[int]:
        """The timestamp of each record, in Unix ms."""
        first = self.shape.delta_bytes
        columns = [self.column(place) for place in range(first, first + self.shape.tick_bytes)]
        if all(column.count(column[0]) == self.size for column in columns):
            columns = [column[:1] for column in columns]
        ticks: Iterable[int] = columns.pop()
        while columns:
            ticks = [high << 7 | low & 0x7F for high, low in zip(ticks, columns.pop(), strict=True)]
        timestamps = [base_ms + (tick >> 1 ^ -(tick & 1)) for tick in ticks]
        return timestamps if len(timestamps) == self.size else repeat(timestamps[0])


@lru_cache(maxsize=256)
def _cutter(layout: str) -> Struct:
    return Struct(layout)


def _header_sets(columns: list[list[bytes] | None]) -> Iterable[Headers]:
    """One tuple of headers per record, from a column for each key and each value. What is always the same is shared."""
    pairs: list[Iterable[tuple[bytes, bytes]]] = []
    shared: list[tuple[bytes, bytes]] = []
    for keys, values in zip(columns[0::2], columns[1::2], strict=True):
        assert keys is not None
        assert values is not None
        same_key, same_value = keys.count(keys[0]) == len(keys), values.count(values[0]) == len(values)
        if same_key and same_value:
            shared.append((keys[0], values[0]))
            pairs.append(repeat(shared[-1]))
        else:
            pairs.append(zip(repeat(keys[0]) if same_key else keys, values, strict=False))
    if len(shared) == len(pairs):
        return repeat(tuple(shared))
    return zip(*pairs, strict=False)


def find_run(data: bytes, at: int, end: int, index: int, stop: int) -> Run | None:
    """A run of at least :data:`LEAST_RUN` records from record ``index`` of a batch on, that ends before ``stop``.

    None when there is none, or when something is not as it should be: reading one by one will find out what.
    """
    try:
        shape = _shape_of(data, at, index)
    except RecordError:
        return None
    if shape is None:
        return None
    widest = 1 << 7 * shape.delta_bytes
    count = min(stop, widest, _MOST_DELTAS) - index
    run = Run(data, at, min(count, (end - at) // shape.stride), shape)
    for place in shape.lengths:
        if run.size < LEAST_RUN:
            return None
        column = run.column(place)
        if column.count(column[0]) != run.size:
            run = run._replace(size=run.size - len(column.lstrip(column[:1])))
    run = _with_ticks(run)
    if run.size < LEAST_RUN:
        return None
    for place, deltas in enumerate(_DELTA_BYTES[shape.delta_bytes]):
        if run.column(place) != deltas[index : index + run.size]:
            return None
    return run


def _with_ticks(run: Run) -> Run:
    """As much of a run as has timestamp deltas of the same width."""
    first = run.shape.delta_bytes
    last = first + run.shape.tick_bytes - 1
    for place in range(first, last + 1):
        column = run.column(place)
        if column and column.count(column[0]) != run.size:
            rest = column.lstrip(_LAST_BYTES if place == last else _MORE_BYTES)
            run = run._replace(size=run.size - len(rest))
    return run


def _shape_of(data: bytes, at: int, index: int) -> Shape | None:
    """The shape of one record; None when it is none that a run may have. Raises :class:`RecordError`."""
    delta = uvarint(index)
    if not data.startswith(delta, at):
        return None
    start, tick_at = at, at + len(delta)
    _, at = read_uvarint(data, tick_at)
    tick_bytes = at - tick_at
    if tick_bytes > _MOST_TICK_BYTES:
        return None
    lengths: list[int] = []
    fields: list[tuple[int, int] | None] = []

    def read_length() -> int:
        nonlocal at
        begin = at
        length, at = read_uvarint(data, begin)
        lengths.extend(range(begin - start, at - start))
        return length

    for _ in range(2):
        size = read_length()
        if size & 1 and size != 1:
            return None
        fields.append(None if size == 1 else (at - start, size >> 1))
        at += size >> 1
    count = read_length()
    if count > _MOST_HEADERS:
        return None
    headers: list[tuple[int, int]] = []
    for _ in range(2 * count):
        size = read_length()
        headers.append((at - start, size))
        at += size
    return Shape(len(delta), tick_bytes, tuple(lengths), fields[0], fields[1], tuple(headers), at - start)
