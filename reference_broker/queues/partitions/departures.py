"""What left a queue and is still in its log: a start must not bring it back.

A group's own log says what the group has settled. What nobody settles is here: what limits or time took while there was
no group, what expired behind messages that live longer, and where messages begin that a group to come may be given.
Per partition these are intervals of offsets, in a small log of the queue that is opened with the first of them.

Being gone is for ever, so records may be read twice or stated anew, piece by piece, once the log has grown well past
what is still worth knowing. After a loss of power the partition may be shorter than this log knows: then a ``rewind``
record says, before any offset is given out again, that what was known of it does not hold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.confirms import SyncPoint, sync_now
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.queues.partitions.intervals import Intervals

if TYPE_CHECKING:
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.jobs.store import PartitionLog, QueueFiles
    from assay.reference_broker.queues.partitions.partition import QueuePartition

_GONE_KEY: Final = b"gone"
_REWIND_KEY: Final = b"rewind"
_PARTITION: Final = struct.Struct("<I")
_INTERVAL: Final = struct.Struct("<QQ")
_REWIND: Final = struct.Struct("<IQ")
READ_RECORDS: Final = 256
INTERVALS_PER_RECORD: Final = 4_096
RESTATE_ABOVE_BYTES: Final = 256 * 1024
_RESTATE_FACTOR: Final = 4
"""And so many times what it took the last time."""
_RETRY_S: Final = 1.0


class Departures:
    """Of one queue. Implements :class:`LogOwner` for its log, and :class:`Wakeable`."""

    def __init__(self, files: QueueFiles, agenda: Agenda, partitions: Sequence[QueuePartition]) -> None:
        """Open what there is; the partitions begin behind what is gone. Raises :class:`LogError`."""
        self.wake_at = NEVER
        self._files = files
        self._agenda = agenda
        self._partitions = partitions
        self._known: dict[int, Intervals] = {}
        """What the log says, by partition."""
        self._held: dict[int, dict[int, int]] = {}
        """Partition -> offset -> dead letters of it that no queue has yet: not gone before all of them are there."""
        self._unwritten: list[tuple[int, int, int]] = []
        self._log: PartitionLog | None = None
        self._point: SyncPoint | None = None
        self._pieces: Iterator[NewRecord] | None = None
        """While everything is stated anew: what is still to be written."""
        self._replaces = self._replaced_by = self._restated_bytes = 0
        """The restatement under way, or not known to be durable yet, is from the one offset to below the other."""
        if files.has_departures:
            self._recover()

    @property
    def points(self) -> tuple[SyncPoint, ...]:
        """The open log."""
        return () if self._point is None else (self._point,)

    # -- opening -------------------------------------------------------------------------------------------------

    def _open(self) -> PartitionLog:
        """Raises :class:`LogError`."""
        if self._log is None:
            self._log = self._files.open_departures()
            self._point = SyncPoint(self._log)
            self._agenda.owners[self._point] = self
        return self._log

    def _recover(self) -> None:
        log = self._open()
        at = log.start_offset
        while records := log.read(at, READ_RECORDS):
            for record in records:
                self._take(record.key, record.value or b"")
            at = records[-1].offset + 1
        beyond = [
            (partition.index, partition.log.next_offset)
            for partition in self._partitions
            if (known := self._known.get(partition.index)) is not None and known.end > partition.log.next_offset
        ]
        if beyond:
            log.append([NewRecord(0, _REWIND_KEY, _REWIND.pack(index, end), ()) for index, end in beyond])
            failure = sync_now(log)
            if failure is not None:
                message = f"a sync failed while a queue was opened: {failure.strerror or failure}"
                raise LogError(message, sticky=True) from failure
            for index, end in beyond:
                self._known[index].cut(end)
        assert self._point is not None
        if log.needs_sync:
            self._agenda.unsynced[self._point] = None
        for partition in self._partitions:
            for first, end in self._known.get(partition.index, ()):
                if first <= partition.head:
                    partition.head = max(partition.head, end)
                else:
                    partition.open_expiry().restore_gone(first, end)

    def _take(self, key: bytes | None, value: bytes) -> None:
        if key == _GONE_KEY and len(value) % _INTERVAL.size == _PARTITION.size:
            (index,) = _PARTITION.unpack_from(value)
            known = self._known.setdefault(index, Intervals())
            for first, end in _INTERVAL.iter_unpack(value[_PARTITION.size :]):
                known.add(first, end)
        elif key == _REWIND_KEY and len(value) == _REWIND.size:
            index, end = _REWIND.unpack(value)
            if index in self._known:
                self._known[index].cut(end)

    # -- leaving -------------------------------------------------------------------------------------------------

    def hold(self, partition: QueuePartition, offset: int, letters: int) -> None:
        """So many dead letters of a message are on their way: it is gone once :meth:`release` was called as often."""
        held = self._held.setdefault(partition.index, {})
        held[offset] = held.get(offset, 0) + letters

    def release(self, partition: QueuePartition, offset: int) -> None:
        """One of them has arrived, or was given up."""
        held = self._held[partition.index]
        held[offset] -= 1
        if not held[offset]:
            del held[offset]
            self.add(partition, offset, offset + 1)

    def add(self, partition: QueuePartition, first: int, end: int) -> None:
        """The messages of an interval are gone, but for those that are held: they are when they are released."""
        if self._files.volatile:
            return
        for offset in sorted(offset for offset in self._held.get(partition.index, ()) if first <= offset < end):
            self._add(partition.index, first, offset)
            first = offset + 1
        self._add(partition.index, first, end)

    def _add(self, index: int, first: int, end: int) -> None:
        if first >= end:
            return
        last = self._unwritten[-1] if self._unwritten else (-1, 0, 0)
        if last[0] == index and last[2] == first:
            self._unwritten[-1] = (index, last[1], end)
        else:
            self._unwritten.append((index, first, end))
        self._write_soon()

    @property
    def held_count(self) -> int:
        """Messages whose dead letters are on their way."""
        return sum(map(len, self._held.values()))

    def flush(self) -> None:
        """Write at once what collected."""
        if self._point is not None and self._unwritten:
            self.write(self._point)

    def _write_soon(self) -> None:
        try:
            self._open()
        except LogError:
            self._agenda.wake(self, self._agenda.now + _RETRY_S)
        else:
            assert self._point is not None
            self._agenda.partitions_to_write[self._point] = None

    def free_to(self, partition: QueuePartition) -> int:
        """A partition without groups is not needed in front of this offset."""
        return min(self._held.get(partition.index) or (partition.head,), default=partition.head)

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, point: SyncPoint) -> None:
        """See :class:`LogOwner`."""
        log = self._log
        assert log is not None
        if point.failure is not None:
            # Until a restart, which finds the last of them in the queue again.
            self._unwritten.clear()
            return
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for index, first, end in self._unwritten:
            by_partition.setdefault(index, []).append((first, end))
        records = [_record(index, some) for index, intervals in by_partition.items() for some in _pieces(intervals)]
        piece = next(self._pieces, None) if self._pieces is not None else None
        if piece is not None:
            records.append(piece)
        elif self._pieces is not None:
            self._pieces, self._replaced_by = None, log.next_offset
        if not records:
            return
        try:
            log.append(records)
        except LogError as error:
            if error.sticky:
                point.fail(str(error))
                return
            # What could not be stated anew is still stated where it was.
            self._pieces = None
            self._agenda.wake(self, self._agenda.now + _RETRY_S)
            return
        self._unwritten.clear()
        for index, intervals in by_partition.items():
            known = self._known.setdefault(index, Intervals())
            for first, end in intervals:
                known.add(first, end)
        self._agenda.unsynced[point] = None
        self._restate(log, point)

    def _restate(self, log: PartitionLog, point: SyncPoint) -> None:
        """Begin to state everything anew, go on with it, or drop what that replaces."""
        if self._pieces is not None:
            self._agenda.partitions_to_write[point] = None
        elif self._replaced_by:
            if log.durable_offset >= self._replaced_by:
                log.drop_before(self._replaces)
                self._restated_bytes, self._replaced_by = log.stored_bytes, 0
        elif log.stored_bytes > max(RESTATE_ABOVE_BYTES, _RESTATE_FACTOR * self._restated_bytes):
            for partition in self._partitions:
                # What the log does not keep needs no details.
                self._known.setdefault(partition.index, Intervals()).add(0, partition.log.start_offset)
            self._replaces = log.next_offset
            self._pieces = self._everything()
            self._agenda.partitions_to_write[point] = None

    def _everything(self) -> Iterator[NewRecord]:
        for index, known in list(self._known.items()):
            at = 0
            while some := known.starting_at(at, INTERVALS_PER_RECORD):
                yield _record(index, some)
                at = some[-1][1]

    def pass_time(self, now: float) -> None:
        """See :class:`Wakeable`: try again what the disk refused."""
        if self._unwritten:
            self._write_soon()

    def serve_groups(self) -> None:
        """See :class:`LogOwner`."""


def _pieces(intervals: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    rest = iter(intervals)
    while some := list(islice(rest, INTERVALS_PER_RECORD)):
        yield some


def _record(index: int, intervals: Sequence[tuple[int, int]]) -> NewRecord:
    value = _PARTITION.pack(index) + b"".join([_INTERVAL.pack(first, end) for first, end in intervals])
    return NewRecord(0, _GONE_KEY, value, ())
