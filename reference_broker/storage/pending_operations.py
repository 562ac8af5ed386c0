"""Collects a group's operations in memory, as bytes: this is called for every delivery and every settlement."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from assay.reference_broker.routing.remembered import remember
from assay.reference_broker.storage.pending_codec import (
    MAX_DELIVERY_COUNT,
    MAX_OFFSET,
    MAX_RUN,
    PLACE,
    PLACE_TIME,
    Code,
    encode_ack_ranges,
)
from assay.reference_broker.storage.record import uvarint

CACHED_LAYOUTS = 4_096
_LAYOUTS: dict[str, tuple[struct.Struct, bytes]] = {}
"""By consumer id, for all groups."""
_DENSE = 4
"""Acks become ranges when at least one offset in so many is acked; below that it takes longer than it saves."""
_ACK, _ADD, _ADD_RUN, _CLAIM = int(Code.ACK), int(Code.ADD), int(Code.ADD_RUN), int(Code.CLAIM)
_CURSOR, _EXPIRE, _REWIND = int(Code.CURSOR), int(Code.EXPIRE), int(Code.REWIND)
_pack_place = PLACE.pack

_RunKey = tuple[int, str, int, int]
_NO_RUN: _RunKey = (-1, "", 0, 0)


class OperationCollector:
    """Operations since the last flush, in order.

    Adds of following offsets to one consumer at one time become a run, acks that follow each other become ranges:
    a consumer that gets messages in bulk costs the log a few bytes each. At most one of the two is open.
    """

    def __init__(self) -> None:
        self._operations: list[bytes] = []
        self._extra = 0
        """Offsets in the list beyond one per operation."""
        self._run_key = _NO_RUN
        """Partition, consumer, time and count of the open run."""
        self._run_start = 0
        self._run_end = 0
        """0 when none is open."""
        self._acks: dict[int, set[int]] = {}

    @property
    def has_unflushed(self) -> bool:
        return bool(self._operations or self._run_end or self._acks)

    def add(self, partition: int, offset: int, consumer: str, claimed_at_ms: int, delivery_count: int) -> None:
        """See :meth:`PendingLog.add`."""
        if (
            offset == self._run_end
            and self._run_key == (partition, consumer, claimed_at_ms, delivery_count)
            and offset - self._run_start < MAX_RUN
        ):
            self._run_end = offset + 1
            return
        if self._run_end:
            self._end_run()
        elif self._acks:
            self.end_acks()
        self._run_key = (partition, consumer, claimed_at_ms, delivery_count)
        self._run_start = offset
        self._run_end = offset + 1

    def add_run(self, partition: int, offset: int, end: int, consumer: str, claimed_at_ms: int) -> None:
        """See :meth:`PendingLog.add_run`."""
        while offset < end:
            # The first begins a run or goes on with the open one; what fits into that is the rest of this one.
            self.add(partition, offset, consumer, claimed_at_ms, 1)
            self._run_end = offset = min(end, self._run_start + MAX_RUN)

    def ack(self, partition: int, offset: int) -> None:
        """See :meth:`PendingLog.ack`."""
        if self._run_end:
            self._end_run()
        acks = self._acks.get(partition)
        if acks is None:
            self._acks[partition] = {offset}
        else:
            acks.add(offset)

    def ack_all(self, partition: int, offsets: Iterable[int]) -> None:
        """See :meth:`PendingLog.ack_all`."""
        if self._run_end:
            self._end_run()
        self._acks.setdefault(partition, set()).update(offsets)

    def ack_many(self, partition: int, ranges: Iterable[tuple[int, int]]) -> None:
        """See :meth:`PendingLog.ack_many`. Raises :class:`ValueError` for offsets that do not exist."""
        merged = _merge(ranges)
        if merged and (merged[0][0] < 0 or merged[-1][1] > MAX_OFFSET):
            message = f"cannot ack offsets {merged[0][0]} to {merged[-1][1]}: they must lie between 0 and {MAX_OFFSET}"
            raise ValueError(message)
        self._end_open()
        self._add_ranges(partition, merged)

    def claim(self, partition: int, offset: int, consumer: str, claimed_at_ms: int, delivery_count: int) -> None:
        """See :meth:`PendingLog.claim`."""
        if self._run_end or self._acks:
            self._end_open()
        self._operations.append(self._delivery(_CLAIM, partition, offset, consumer, claimed_at_ms, delivery_count))

    def expire(self, partition: int, offset: int, due_at_ms: int) -> None:
        """See :meth:`PendingLog.expire`."""
        if self._run_end or self._acks:
            self._end_open()
        self._operations.append(PLACE_TIME.pack(_EXPIRE, offset, partition, due_at_ms))

    def annotate(self, partition: int, offset: int, annotations: bytes) -> None:
        """See :meth:`PendingLog.annotate`."""
        self._end_open()
        self._operations.append(_pack_place(Code.ANNOTATE, offset, partition) + uvarint(len(annotations)) + annotations)

    def move_cursor(self, partition: int, offset: int) -> None:
        """See :meth:`PendingLog.move_cursor`."""
        self._end_open()
        self._operations.append(_pack_place(_CURSOR, offset, partition))

    def _collect_rewind(self, partition: int, offset: int) -> None:
        self._end_open()
        self._operations.append(_pack_place(_REWIND, offset, partition))

    @property
    def _collected(self) -> int:
        """Operations in the list, runs and ranges counted by their offsets."""
        return len(self._operations) + self._extra

    def _end_open(self) -> None:
        """Encode the open run or the open acks, so that what follows stays behind them."""
        if self._run_end:
            self._end_run()
        elif self._acks:
            self.end_acks()

    def _end_run(self) -> None:
        partition, consumer, claimed_at_ms, delivery_count = self._run_key
        start = self._run_start
        length = self._run_end - start
        if length == 1:
            operation = self._delivery(_ADD, partition, start, consumer, claimed_at_ms, delivery_count)
        else:
            operation = self._delivery(_ADD_RUN, partition, start, consumer, claimed_at_ms, delivery_count)
            operation += uvarint(length)
            self._extra += length - 1
        self._operations.append(operation)
        self._run_key, self._run_end = _NO_RUN, 0

    def end_acks(self) -> None:
        acks, self._acks = self._acks, {}
        for partition, offsets in acks.items():
            if max(offsets) - min(offsets) < _DENSE * len(offsets):
                self._add_ranges(partition, _ranges(sorted(offsets)))
            else:
                self._operations += [_pack_place(_ACK, offset, partition) for offset in offsets]

    def _add_ranges(self, partition: int, ranges: list[tuple[int, int]]) -> None:
        operations = encode_ack_ranges(partition, ranges)
        self._operations += operations
        self._extra += sum(end - first for first, end in ranges) - len(operations)

    def _delivery(
        self, code: int, partition: int, offset: int, consumer: str, at_ms: int, delivery_count: int
    ) -> bytes:
        """An add or a claim. The layout for a consumer's id is remembered, so that packing is one call."""
        known = _LAYOUTS.get(consumer)
        if known is None:
            raw = consumer.encode()
            name = uvarint(len(raw)) + raw
            known = (struct.Struct(f"<BQI{len(name)}sQH"), name)
            remember(_LAYOUTS, consumer, known, len(raw), CACHED_LAYOUTS)
        layout, name = known
        count = delivery_count if delivery_count < MAX_DELIVERY_COUNT else MAX_DELIVERY_COUNT
        return layout.pack(code, offset, partition, name, at_ms, count)

    def _forget(self) -> None:
        self._operations.clear()
        self._acks.clear()
        self._run_key, self._run_end = _NO_RUN, 0
        self._extra = 0


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    """Ascending, different offsets as ranges ``(first, end)``."""
    first = offsets[0]
    if offsets[-1] - first + 1 == len(offsets):
        return [(first, first + len(offsets))]
    ranges: list[tuple[int, int]] = []
    end = first
    for offset in offsets:
        if offset != end:
            ranges.append((first, end))
            first = offset
        end = offset + 1
    ranges.append((first, end))
    return ranges


def _merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, end in sorted(span for span in ranges if span[0] < span[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged
