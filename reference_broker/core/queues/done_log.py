"""Which delayed messages fired or were cancelled: what a restart must not fire again.

A log of its own. Its records name ranges of offsets of the log of delayed messages; being done is for ever, so records
may be read in any number and order. Once the log has grown well past what is still worth knowing, everything is stated
anew in one append, and what lies before that is dropped when it is durable. When power loss took the end of the log of
delayed messages, a ``rewind`` record says that what was known of its offsets does not hold for those that reuse them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from reference_broker.core.queues.agenda import Agenda
from reference_broker.core.queues.confirms import Confirm, SyncPoint, call_all
from reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode
from reference_broker.core.queues.store import NewRecord, PartitionLog

_RANGE = struct.Struct("<QI")
_REWIND = struct.Struct("<Q")
_DONE_KEY, _REWIND_KEY = b"done", b"rewind"
_RANGES_PER_RECORD = 16_384
_MAX_RANGE = 2**32 - 1
_READ_RECORDS = 256
RESTATE_ABOVE_BYTES = 1024 * 1024
_RESTATE_FACTOR = 4
"""And so many times what it took the last time."""


class DoneLog(SyncPoint):
    """Collects what was done in a turn and writes it as one record."""

    def __init__(self, log: PartitionLog, agenda: Agenda, *, confirm_when_synced: bool) -> None:
        super().__init__(log)
        self._log = log
        self._agenda = agenda
        self._confirm_when_synced = confirm_when_synced
        self._offsets: list[int] = []
        self._confirms: list[Confirm] = []
        self._restated_bytes = 0
        self._restated: tuple[int, int] | None = None
        """First and end offset of a restatement that is not known to be durable yet."""
        if log.next_offset > log.start_offset:
            agenda.unsynced[self] = None

    # -- opening -------------------------------------------------------------------------------------------------

    def recover(self, start: int, end: int, now_ms: int) -> bytearray:
        """For each offset from ``start`` to below ``end``, 1 when it is done. Raises :class:`LogError`."""
        done = bytearray(end - start)
        known_to = 0
        for key, value in self._records():
            if key == _REWIND_KEY and len(value) == _REWIND.size:
                (at,) = _REWIND.unpack(value)
                known_to = min(known_to, at)
                if at < end:
                    done[max(at - start, 0) :] = bytes(end - max(at, start))
            elif key == _DONE_KEY and not len(value) % _RANGE.size:
                for first, count in _RANGE.iter_unpack(value):
                    known_to = max(known_to, first + count)
                    low, high = max(first, start), min(first + count, end)
                    if low < high:
                        done[low - start : high - start] = b"\x01" * (high - low)
        if known_to > end:
            self._rewind(end, now_ms)
        return done

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        at = self._log.start_offset
        while records := self._log.read(at, _READ_RECORDS):
            for record in records:
                yield record.key or b"", record.value or b""
            at = records[-1].offset + 1

    def _rewind(self, offset: int, now_ms: int) -> None:
        """Durably, before any of these offsets is given out again."""
        self._log.append([NewRecord(now_ms, _REWIND_KEY, _REWIND.pack(offset), ())])
        task = self._log.start_sync()
        if task is None:
            return
        failure: OSError | None = None
        try:
            task.run()
        except OSError as error:
            failure = error
        self._log.finish_sync(failure)
        if failure is not None:
            message = f"a sync failed while delayed messages were recovered: {failure.strerror or failure}"
            raise LogError(message, sticky=True) from failure

    # -- writing -------------------------------------------------------------------------------------------------

    def add(self, offset: int, confirm: Confirm | None = None) -> None:
        """It fired, or was cancelled; ``confirm`` is called when that is as durable as the queue promises."""
        self._offsets.append(offset)
        if confirm is not None:
            self._confirms.append(confirm)
        self._agenda.partitions_to_write[self] = None

    @property
    def has_unwritten(self) -> bool:
        return bool(self._offsets)

    def write(self, now: float) -> bool:
        """Write what collected; False when the disk refused it, to be tried again. Its confirms have failed then."""
        if not self._offsets:
            return True
        confirms, self._confirms = self._confirms, []
        try:
            self._append(_ranges(sorted(self._offsets)), now)
        except LogError as error:
            if error.sticky:
                self.fail(str(error))
            call_all(confirms, QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))
            return False
        self._offsets = []
        self._agenda.unsynced[self] = None
        if self._confirm_when_synced and confirms:
            self.waiting += confirms
            self._agenda.awaited_syncs[self] = None
        else:
            call_all(confirms, None)
        return True

    def _append(self, ranges: list[tuple[int, int]], now: float) -> None:
        packed = [_RANGE.pack(first, count) for first, count in ranges]
        self._log.append(
            [
                NewRecord(int(now * 1000), _DONE_KEY, b"".join(packed[at : at + _RANGES_PER_RECORD]), ())
                for at in range(0, len(packed), _RANGES_PER_RECORD)
            ]
        )

    @property
    def wants_restatement(self) -> bool:
        """It has grown well past what is worth knowing."""
        if self._restated is not None or self.failure is not None or self._offsets:
            return False
        return self._log.stored_bytes > max(RESTATE_ABOVE_BYTES, _RESTATE_FACTOR * self._restated_bytes)

    def restate(self, alive: Iterable[int], start: int, end: int, now: float) -> None:
        """State anew that every offset from ``start`` to below ``end`` is done but those ``alive`` (ascending)."""
        ranges: list[tuple[int, int]] = []
        at = start
        for offset in alive:
            ranges += _split(at, offset)
            at = offset + 1
        ranges += _split(at, end)
        first = self._log.next_offset
        try:
            self._append(ranges or [(start, 0)], now)
        except LogError:
            # What is there holds; the next time it is tried again.
            return
        self._restated = (first, self._log.next_offset)
        self._restated_bytes = len(ranges) * _RANGE.size
        self._agenda.unsynced[self] = None

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """See :meth:`SyncPoint.finish_sync`; what a durable restatement replaces goes."""
        finished = super().finish_sync(error)
        if error is None and self._restated is not None and self._log.durable_offset >= self._restated[1]:
            self._log.drop_before(self._restated[0])
            self._restated = None
        return finished

    def abandon(self, error: QueueError) -> None:
        """See :meth:`SyncPoint.abandon`."""
        confirms, self._confirms = self._confirms, []
        call_all(confirms, error)
        super().abandon(error)


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    """Ascending offsets as (first, count)."""
    ranges: list[tuple[int, int]] = []
    first = end = offsets[0]
    for offset in offsets:
        if offset > end:
            ranges += _split(first, end)
            first = offset
        end = offset + 1
    return ranges + _split(first, end)


def _split(first: int, end: int) -> list[tuple[int, int]]:
    return [(at, min(_MAX_RANGE, end - at)) for at in range(first, end, _MAX_RANGE)]
