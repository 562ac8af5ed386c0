"""What the records of a done log say, and what all of them together mean for a start.

Four kinds, by key. ``done``: ranges of offsets that fired or were cancelled, for ever. ``waiting``: of an interval of
offsets those that are not done, with their due times; every other one in it is done. ``firing``: ranges of offsets
that are about to go to the partitions, and where these end. ``rewind``: from an offset on, nothing that was said before
counts. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.queues.partitions.intervals import Intervals

Range = tuple[int, int]
"""First offset and count."""
Ends = Mapping[int, int]
"""Partition -> the offset that its next record gets."""

RANGE = struct.Struct("<QI")
_REWIND = struct.Struct("<Q")
_INTERVAL = struct.Struct("<QQ")
_COUNT = struct.Struct("<I")
_END = struct.Struct("<IQ")
DONE_KEY, _WAITING_KEY, _FIRING_KEY, _REWIND_KEY = b"done", b"waiting", b"firing", b"rewind"
RANGES_PER_RECORD = 16_384
_MAX_RANGE = 2**32 - 1


class Known(NamedTuple):
    """What a done log says of the offsets of a log."""

    waiting: list[tuple[Sequence[int], Sequence[int]]]
    """Offsets that are not done and their due times (Unix milliseconds), in ascending runs."""
    untold: list[tuple[int, int]]
    """Intervals of which it only says what is done; for the rest there are the messages."""
    done: Intervals
    firing: dict[int, list[Ends]]
    """Offsets that were firing and are not known to be done -> where partitions ended, each time."""
    known_to: int
    """Nothing is said of offsets from there on."""


class _Waiting(NamedTuple):
    first: int
    end: int
    offsets: Sequence[int]
    dues: Sequence[int]


class DoneReader:
    """Takes the records in their order."""

    def __init__(self) -> None:
        self._done: list[tuple[int, int]] = []
        """Intervals."""
        self._waiting: list[_Waiting] = []
        self._firing: dict[int, list[Ends]] = {}
        self._known_to = 0

    def take(self, key: bytes, value: bytes) -> bool:
        """False: it is in none of the forms, and says nothing."""
        if key == DONE_KEY and not len(value) % RANGE.size:
            self._done += [(first, first + count) for first, count in RANGE.iter_unpack(value)]
            if self._done:
                self._know(self._done[-1][1])
        elif key == _WAITING_KEY and len(value) >= _INTERVAL.size and not len(value) % 16:
            first, end = _INTERVAL.unpack_from(value)
            count = len(value) // 16 - 1
            numbers = struct.unpack_from(f"<{count}Q{count}q", value, 16)
            self._waiting.append(_Waiting(first, end, numbers[:count], numbers[count:]))
            self._know(end)
        elif key == _FIRING_KEY:
            return self._take_firing(value)
        elif key == _REWIND_KEY and len(value) == _REWIND.size:
            self._rewind(*_REWIND.unpack(value))
        else:
            return False
        return True

    def _know(self, end: int) -> None:
        self._known_to = max(self._known_to, end)

    def _take_firing(self, value: bytes) -> bool:
        if len(value) < _COUNT.size:
            return False
        (count,) = _COUNT.unpack_from(value)
        start = _COUNT.size + count * _END.size
        if len(value) < start or (len(value) - start) % RANGE.size:
            return False
        ends = dict(_END.iter_unpack(value[_COUNT.size : start]))
        for first, number in RANGE.iter_unpack(value[start:]):
            self._know(first + number)
            for offset in range(first, first + number):
                self._firing.setdefault(offset, []).append(ends)
        return True

    def _rewind(self, at: int) -> None:
        self._known_to = min(self._known_to, at)
        self._done = [(first, min(end, at)) for first, end in self._done if first < at]
        self._firing = {offset: ends for offset, ends in self._firing.items() if offset < at}
        waiting: list[_Waiting] = []
        for each in self._waiting:
            count = bisect_left(each.offsets, at)
            if each.first < at:
                waiting.append(_Waiting(each.first, min(each.end, at), each.offsets[:count], each.dues[:count]))
        self._waiting = waiting

    def known(self, start: int, end: int) -> Known:
        """What it all means for the offsets from ``start`` to below ``end``."""
        done = Intervals(self._done)
        told = Intervals()
        runs: list[tuple[Sequence[int], Sequence[int]]] = []
        for said in reversed(self._waiting):
            # The newest counts: what it does not name any more has been done since an older one.
            for first, stop in told.gaps(max(start, said.first), min(end, said.end)):
                low, high = bisect_left(said.offsets, first), bisect_left(said.offsets, stop)
                runs.append(_without(done, said.offsets[low:high], said.dues[low:high]))
            told.add(said.first, said.end)
        runs = sorted([run for run in runs if run[0]], key=lambda run: run[0][0])
        firing = {offset: ends for offset, ends in self._firing.items() if start <= offset < end and offset not in done}
        return Known(runs, told.gaps(start, end), done, firing, self._known_to)


def _without(done: Intervals, offsets: Sequence[int], dues: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    if not offsets or not done.between(offsets[0], offsets[-1] + 1):
        return offsets, dues
    kept = [(offset, due) for offset, due in zip(offsets, dues, strict=True) if offset not in done]
    return [offset for offset, _ in kept], [due for _, due in kept]


# -- writing ---------------------------------------------------------------------------------------------------------


def done_records(offsets: Iterable[int], now_ms: int) -> list[NewRecord]:
    """Of ascending offsets, at least one."""
    packed = [RANGE.pack(first, count) for first, count in ranges_of(offsets)]
    return [
        NewRecord(now_ms, DONE_KEY, b"".join(packed[at : at + RANGES_PER_RECORD]), ())
        for at in range(0, len(packed), RANGES_PER_RECORD)
    ]


def waiting_record(first: int, end: int, waiting: Sequence[tuple[int, int]], now_ms: int) -> NewRecord:
    """``waiting``: offsets and due times, ascending."""
    count = len(waiting)
    numbers = struct.pack(f"<{count}Q{count}q", *[offset for offset, _ in waiting], *[due for _, due in waiting])
    return NewRecord(now_ms, _WAITING_KEY, _INTERVAL.pack(first, end) + numbers, ())


def firing_record(offsets: Iterable[int], ends: Ends, now_ms: int) -> NewRecord:
    """``offsets`` ascending, at least one."""
    head = [_COUNT.pack(len(ends)), *(_END.pack(partition, end) for partition, end in ends.items())]
    value = b"".join([*head, *(RANGE.pack(first, count) for first, count in ranges_of(offsets))])
    return NewRecord(now_ms, _FIRING_KEY, value, ())


def rewind_record(offset: int, now_ms: int) -> NewRecord:
    return NewRecord(now_ms, _REWIND_KEY, _REWIND.pack(offset), ())


def ranges_of(offsets: Iterable[int]) -> list[Range]:
    """Ascending offsets as ranges."""
    ranges: list[Range] = []
    first = end = -1
    for offset in offsets:
        if offset > end or end - first >= _MAX_RANGE:
            if end > first:
                ranges.append((first, end - first))
            first = offset
        end = offset + 1
    if end > first:
        ranges.append((first, end - first))
    return ranges
