"""What one partition remembers of producers and transactions: sequence numbers, open transactions, hidden records.

Only partitions that a producer ever wrote to have this. It is rebuilt from a snapshot and the records behind it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Sequence

import msgspec

from assay.reference_broker.queues.jobs.confirms import Confirm, call_all
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.control_records import Outcome, RecordMark
from assay.reference_broker.trace.described import described

REMEMBERED_SEQUENCES = 32
"""A publisher that repeats one of its last so many messages gets the offset of the first; older ones are refused."""
MAX_PRODUCERS = 10_000
"""Per partition; the one that was silent longest is forgotten first, but none with an open transaction."""
MAX_HIDDEN = 1_000_000
"""Offsets of hidden records that are remembered, so that they do not count as messages; the oldest go first."""
SNAPSHOT_RECORDS = 1_000


class ProducerWindow(msgspec.Struct, array_like=True):
    """What one producer wrote to the partition last."""

    epoch: int
    last: int
    """Sequence number of its last message; -1 = none yet."""
    offsets: list[int]
    """Of its last messages, the newest at the end."""


class OpenSpan(msgspec.Struct, array_like=True):
    """The records of an open transaction in the partition."""

    producer: int
    epoch: int
    offsets: list[int]
    """Ascending, never empty."""


class _Snapshot(msgspec.Struct, array_like=True):
    covered: int
    floor: int
    windows: dict[int, ProducerWindow]
    open: dict[str, OpenSpan]
    aborted: list[tuple[int, int]]
    hidden: bytes


class Acceptance:
    """The confirm of a producer's message; those of its repetitions wait with it."""

    __slots__ = ("_confirms", "_mark", "_offset", "_owner")

    def __init__(self, owner: PartitionProducers, mark: RecordMark, offset: int, confirm: Confirm | None) -> None:
        self._owner = owner
        self._mark = mark
        self._offset = offset
        self._confirms = [] if confirm is None else [confirm]

    def join(self, confirm: Confirm | None) -> None:
        """The same message again: it is confirmed with the first."""
        if confirm is not None:
            self._confirms.append(confirm)

    def __call__(self, error: QueueError | None) -> None:
        owner = self._owner
        if owner.unconfirmed.get(self._offset) is self:
            del owner.unconfirmed[self._offset]
        if error is not None:
            owner.take_back(self._mark, self._offset)
            call_all(self._confirms, error)
        elif owner.unregistered is not None:
            # Were the record durable and the partition not known to have producers, nobody would look for it.
            owner.unregistered += self._confirms
        else:
            call_all(self._confirms, None)


class PartitionProducers:
    """The state of one partition, in step with its log."""

    def __init__(self, covered: int) -> None:
        """``covered``: offset from which on the log must be looked through when the partition is opened again."""
        self.covered = covered
        self.floor = covered
        """Records of transactions below it are of a past that nobody knows any more: they are hidden."""
        self.windows: dict[int, ProducerWindow] = {}
        self.open: dict[str, OpenSpan] = {}
        """By transaction, in the order of their first records."""
        self.unconfirmed: dict[int, Acceptance] = {}
        """By offset."""
        self.unregistered: list[Confirm] | None = []
        """Confirms that wait until it is durable that the partition has producers; None once it is."""
        self._aborted_starts: list[int] = []
        self._aborted_ends: list[int] = []
        self._hidden = array("q")

    # -- sequences -----------------------------------------------------------------------------------------------

    def first_offset(self, producer: int, epoch: int, sequence: int) -> int | None:
        """Offset of the message if it is a repetition; None when it is the next one.

        Raises :class:`QueueError` (FENCED, OUT_OF_SEQUENCE).
        """
        window = self.windows.get(producer)
        if window is not None and epoch < window.epoch:
            text = f"epoch {epoch} of producer {producer} is over: epoch {window.epoch} has begun"
            raise QueueError(QueueErrorCode.FENCED, text)
        last = window.last if window is not None and window.epoch == epoch else -1
        if sequence == last + 1:
            return None
        if window is not None and last >= sequence > last - len(window.offsets):
            return window.offsets[sequence - last - 1]
        text = f"sequence {sequence} of producer {producer}: {last + 1} is due, and older ones are not remembered"
        raise QueueError(QueueErrorCode.OUT_OF_SEQUENCE, text)

    def check_room(self, producer: int, busy: Container[int]) -> None:
        """Raises :class:`QueueError` (LIMIT) when one would have to be forgotten that is ``busy``."""
        windows = self.windows
        if len(windows) >= MAX_PRODUCERS and producer not in windows and all(known in busy for known in windows):
            text = f"all of the {MAX_PRODUCERS} producers of the partition, which is the limit, have open transactions"
            raise QueueError(QueueErrorCode.LIMIT, text)

    def add(self, mark: RecordMark, offset: int, busy: Container[int] | None = None) -> None:
        """A record of a producer gets, or has, that offset. ``busy``: producers with open transactions."""
        if mark.sequence is not None:
            window = self.windows.pop(mark.producer, None)
            if window is None or window.epoch != mark.epoch:
                window = ProducerWindow(mark.epoch, -1, [])
                if len(self.windows) >= MAX_PRODUCERS:
                    self._forget_one(busy)
            self.windows[mark.producer] = window
            window.last = mark.sequence
            window.offsets.append(offset)
            if len(window.offsets) > REMEMBERED_SEQUENCES:
                del window.offsets[0]
        if mark.transaction is not None:
            span = self.open.get(mark.transaction)
            if span is None:
                self.open[mark.transaction] = OpenSpan(mark.producer, mark.epoch, [offset])
            else:
                span.offsets.append(offset)

    def _forget_one(self, busy: Container[int] | None) -> None:
        if busy is None:
            busy = {span.producer for span in self.open.values()}
        idle = next((known for known in self.windows if known not in busy), None)
        if idle is not None:
            del self.windows[idle]

    def take_back(self, mark: RecordMark, offset: int) -> None:
        """The record was not written after all, nor those behind it."""
        if mark.sequence is not None:
            window = self.windows.get(mark.producer)
            if window is not None and window.epoch == mark.epoch and window.last >= mark.sequence:
                surplus = window.last - mark.sequence + 1
                del window.offsets[max(0, len(window.offsets) - surplus) :]
                window.last = mark.sequence - 1
        if mark.transaction is not None and (span := self.open.get(mark.transaction)) is not None:
            del span.offsets[bisect_left(span.offsets, offset) :]
            if not span.offsets:
                del self.open[mark.transaction]

    # -- transactions --------------------------------------------------------------------------------------------

    def stable_end(self, end: int) -> int:
        """The last stable offset: no record at or behind the first of an open transaction may be delivered."""
        for span in self.open.values():
            return min(end, span.offsets[0])
        return end

    def close(self, transaction: str, outcome: Outcome) -> list[int]:
        """A transaction ended; returns the offsets that must not be delivered."""
        span = self.open.pop(transaction, None)
        if span is None or outcome is Outcome.COMMITTED:
            return []
        for start, end in _runs(span.offsets):
            at = bisect_left(self._aborted_starts, start)
            self._aborted_starts.insert(at, start)
            self._aborted_ends.insert(at, end)
        for offset in span.offsets:
            self.hide(offset)
        return span.offsets

    def is_aborted(self, offset: int) -> bool:
        """Whether a record of a transaction must not be delivered, for one below the last stable offset."""
        if offset < self.floor:
            return True
        at = bisect_right(self._aborted_starts, offset) - 1
        return at >= 0 and offset < self._aborted_ends[at]

    def hide(self, offset: int) -> None:
        """A record is not delivered."""
        hidden = self._hidden
        if not hidden or offset > hidden[-1]:
            hidden.append(offset)
        else:
            at = bisect_left(hidden, offset)
            if hidden[at] != offset:
                hidden.insert(at, offset)
        if len(hidden) > MAX_HIDDEN:
            del hidden[: len(hidden) - MAX_HIDDEN]

    @property
    def hidden(self) -> Sequence[int]:
        """Offsets of the records that are not delivered."""
        return self._hidden

    def forget_below(self, start: int) -> None:
        """Records below an offset do not exist any more."""
        gone = bisect_right(self._aborted_ends, start)
        del self._aborted_starts[:gone], self._aborted_ends[:gone]
        del self._hidden[: bisect_left(self._hidden, start)]

    # -- snapshots -----------------------------------------------------------------------------------------------

    @property
    def snapshot_interval(self) -> int:
        """Records between two snapshots: more where a snapshot is large, so that it costs each record little."""
        return SNAPSHOT_RECORDS + 4 * len(self.windows) + len(self._hidden) + 2 * len(self._aborted_starts)

    def snapshot(self, covered: int) -> bytes:
        """The state as of an offset, which must be durable before this is."""
        aborted = list(zip(self._aborted_starts, self._aborted_ends, strict=True))
        return msgspec.msgpack.encode(
            _Snapshot(covered, self.floor, self.windows, self.open, aborted, self._hidden.tobytes())
        )

    @classmethod
    def restore(cls, data: bytes) -> PartitionProducers:
        """Raises :class:`ValueError`."""
        found = msgspec.msgpack.decode(data, type=described(_Snapshot))
        restored = cls(found.covered)
        restored.floor = found.floor
        restored.windows = found.windows
        restored.open = {name: span for name, span in found.open.items() if span.offsets}
        restored._aborted_starts = [start for start, _ in found.aborted]
        restored._aborted_ends = [end for _, end in found.aborted]
        restored._hidden.frombytes(found.hidden[: len(found.hidden) // 8 * 8])
        restored.unregistered = None
        return restored

    def inherit(self, snapshot: PartitionProducers, end: int) -> None:
        """This was rebuilt from the whole log, which ends before what a snapshot knows: take over what still holds.

        That is how transactions ended whose control records are lost, and the sequences of messages that are too old to
        be kept. What it says about messages at or behind ``end`` is about others than those that will come there.
        """
        for transaction, span in list(self.open.items()):
            if transaction not in snapshot.open:
                aborted = snapshot.is_aborted(span.offsets[0])
                self.close(transaction, Outcome.ABORTED if aborted else Outcome.COMMITTED)
        before = {
            producer: window
            for producer, window in snapshot.windows.items()
            if producer not in self.windows and all(offset < self.floor for offset in window.offsets)
        }
        room = max(0, MAX_PRODUCERS - len(self.windows))
        self.windows = dict(list(before.items())[-room:] if room else ()) | self.windows
        self.floor = max(self.floor, min(snapshot.floor, end))
        self.covered = end

    def replay(self, mark: RecordMark, offset: int) -> None:
        """A record behind the snapshot, found at opening."""
        if mark.outcome is None:
            self.add(mark, offset)
        else:
            assert mark.transaction is not None
            self.close(mark.transaction, mark.outcome)
            self.hide(offset)


def _runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Ascending offsets as ranges ``(first, end)``."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
