"""Which delayed messages fired or were cancelled, and when the others are due: what a start has to know of them.

A log of its own; :mod:`done_records` has what its records say. Being done is for ever. Once the log has grown well past
what is still worth knowing, everything is stated anew, piece by piece, and what lies before that is dropped when it is
durable. When power loss took the end of the log of delayed messages, a ``rewind`` record says that what was known of
its offsets does not hold for those that reuse them.

A message is done only once its partition has it on disk. Before any partition gets what fires in a turn, a ``firing``
record says where the partitions end. A start looks behind these ends for what fired and is not done: so a message fires
once however the broker is killed, as long as what was written survives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.reference_broker.queues.delays.done_records import (
    DoneReader,
    Ends,
    Known,
    done_records,
    firing_record,
    rewind_record,
    waiting_record,
)
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint, call_all, sync_now
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import NewRecord, PartitionLog

READ_RECORDS = 256
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
        self._firing: dict[int, list[Ends]] = {}
        """What fires and is not done."""
        self._replaces: int | None = None
        """While everything is stated anew: the offset of the first record that does it."""
        self._told_bytes = self._restated_bytes = 0
        self._restated: tuple[int, int] | None = None
        """First and end offset of a restatement that is not known to be durable yet."""
        if log.next_offset > log.start_offset:
            agenda.unsynced[self] = None

    # -- opening -------------------------------------------------------------------------------------------------

    def recover(self, start: int, end: int, now_ms: int) -> Known:
        """What is known of the offsets from ``start`` to below ``end``. Raises :class:`LogError`."""
        reader = DoneReader()
        for key, value in self._records():
            reader.take(key, value)
        known = reader.known(start, end)
        if known.known_to > end:
            self._rewind(end, now_ms)
        return known

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        at = self._log.start_offset
        while records := self._log.read(at, READ_RECORDS):
            for record in records:
                yield record.key or b"", record.value or b""
            at = records[-1].offset + 1

    def _rewind(self, offset: int, now_ms: int) -> None:
        """Durably, before any of these offsets is given out again."""
        self._log.append([rewind_record(offset, now_ms)])
        failure = sync_now(self._log)
        if failure is not None:
            message = f"a sync failed while delayed messages were recovered: {failure.strerror or failure}"
            raise LogError(message, sticky=True) from failure

    # -- firing --------------------------------------------------------------------------------------------------

    def note_firing(self, offsets: Sequence[int], ends: Ends, now: float) -> None:
        """Write down that these fire into partitions that end there, before the partitions get them.

        Where the disk refuses that, a broker that is killed before they are done fires them twice.
        """
        if self._append([firing_record(sorted(offsets), ends, int(now * 1000))]):
            for offset in offsets:
                self.keep_firing(offset, [ends])

    def keep_firing(self, offset: int, ends: list[Ends]) -> None:
        """It was noted before, and is not done."""
        self._firing[offset] = ends

    def forget_firing(self, offset: int) -> None:
        """Its partition could not take it, so it has still to fire."""
        self._firing.pop(offset, None)

    # -- writing -------------------------------------------------------------------------------------------------

    def add(self, offset: int, confirm: Confirm | None = None) -> None:
        """It fired, or was cancelled; ``confirm`` is called when that is as durable as the queue promises."""
        self._offsets.append(offset)
        self._firing.pop(offset, None)
        if confirm is not None:
            self._confirms.append(confirm)
        self._agenda.partitions_to_write[self] = None

    @property
    def has_unwritten(self) -> bool:
        return bool(self._offsets)

    def write(self, now: float) -> bool:
        """Write what collected; False when the disk refused it, to be tried again.

        Then its confirms wait, too: what was cancelled is not delivered any more, so that no error may be told.
        """
        if not self._offsets:
            return True
        try:
            self._log.append(done_records(sorted(self._offsets), int(now * 1000)))
        except LogError as error:
            if error.sticky:
                confirms, self._confirms = self._confirms, []
                self.fail(str(error))
                call_all(confirms, QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))
            return False
        confirms, self._confirms = self._confirms, []
        self._offsets = []
        self._agenda.unsynced[self] = None
        if self._confirm_when_synced and confirms:
            self.waiting += confirms
            self._agenda.awaited_syncs[self] = None
        else:
            call_all(confirms, None)
        return True

    def _append(self, records: list[NewRecord]) -> bool:
        """Write what nobody waits for; False when the disk refused it."""
        if self.failure is not None:
            return False
        try:
            self._log.append(records)
        except LogError as error:
            if error.sticky:
                self.fail(str(error))
            return False
        self._agenda.unsynced[self] = None
        return True

    # -- stating -------------------------------------------------------------------------------------------------

    def tell(self, first: int, end: int, waiting: Sequence[tuple[int, int]], now: float) -> bool:
        """State that of the offsets from ``first`` to below ``end`` these wait, each with its due time, and no others.

        False when the disk refused it: what is there holds.
        """
        record = waiting_record(first, end, waiting, int(now * 1000))
        if not self._append([record]):
            return False
        self._told_bytes += len(record.value or b"")
        return True

    @property
    def is_restating(self) -> bool:
        return self._replaces is not None

    @property
    def wants_restatement(self) -> bool:
        """It has grown well past what is worth knowing."""
        if self._replaces is not None or self._restated is not None or self.failure is not None or self._offsets:
            return False
        return self._log.stored_bytes > max(RESTATE_ABOVE_BYTES, _RESTATE_FACTOR * self._restated_bytes)

    def begin_restatement(self, now: float) -> bool:
        """From now on every offset is told anew; False when the disk refuses it."""
        first = self._log.next_offset
        by_ends: dict[int, tuple[Ends, list[int]]] = {}
        for offset, noted in self._firing.items():
            for ends in noted:
                by_ends.setdefault(id(ends), (ends, []))[1].append(offset)
        now_ms = int(now * 1000)
        if by_ends and not self._append(
            [firing_record(sorted(offsets), ends, now_ms) for ends, offsets in by_ends.values()]
        ):
            return False
        self._replaces, self._told_bytes = first, 0
        return True

    def end_restatement(self) -> None:
        """Every offset has been told anew."""
        assert self._replaces is not None
        self._restated, self._replaces = (self._replaces, self._log.next_offset), None
        self._restated_bytes = self._told_bytes

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """See :meth:`SyncPoint.finish_sync`; what a durable restatement replaces goes."""
        finished = super().finish_sync(error)
        if error is None and self._restated is not None and self._log.durable_offset >= self._restated[1]:
            self._log.drop_before(self._restated[0])
            self._restated = None
        return finished

    def abandon(self, error: QueueError) -> None:
        confirms, self._confirms = self._confirms, []
        call_all(confirms, error)
        super().abandon(error)
