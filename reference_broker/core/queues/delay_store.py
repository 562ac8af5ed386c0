"""Delayed messages of one queue: kept in a log of their own until they are due, then published like any other.

A message is *scheduled* once it is in that log, as durably as the queue promises; then its publisher is told. A timing
wheel says when it is due. It is published then, to the partition its options and key choose, and *done* as soon as that
partition has it durably: a crash in between may fire it twice, never lose it. Cancelling makes it done, too. The log
frees segments below the oldest message that is not done. After a restart the wheel is filled from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from typing import Protocol

import msgspec

from reference_broker.config import QueueConfig
from reference_broker.core.message import Message
from reference_broker.core.queues.agenda import Agenda
from reference_broker.core.queues.confirms import Confirm, Stored, StoredAs, SyncPoint
from reference_broker.core.queues.delivery import DelayStats
from reference_broker.core.queues.done_log import DoneLog
from reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode
from reference_broker.core.queues.message_cache import MessageCache
from reference_broker.core.queues.partition import QueuePartition
from reference_broker.core.queues.publish_options import PublishOptions, parse
from reference_broker.core.queues.store import LogRecord, NewRecord, QueueFiles
from reference_broker.core.queues.stored_message import MessageCodec, StoredMessage
from reference_broker.core.queues.timing_wheel import TimingWheel

FIRED_PER_TURN = 1_024
"""More that are due wait for the next turn, so that others have theirs."""
RETRY_S = 1.0
"""After the queue or the disk refused something, it is tried again so much later."""
MAX_LISTED = 1_000
DELAY_ID = StoredAs.DELAYED.value
"""The user property that names a delayed message."""
_DUE = b"_due"
_READ_GAP = 3
"""Records this near each other are read in one go, up to so many; others one by one."""
_READ_RECORDS = 256
_RECOVERY_RECORDS = 512
_TRIM_AFTER = 1_024
_TRIM_INTERVAL_S = 1.0
_ID_MARK = ":delay:"
_MAX_DIGITS = 19


class DelayTarget(Protocol):
    """What delayed messages need of their queue."""

    name: str
    config: QueueConfig

    def enqueue_due(
        self,
        routing_key: str,
        message: Message,
        size: int,
        now: float,
        confirm: Confirm,
        options: PublishOptions | None,
    ) -> QueuePartition:
        """Publish a message whose time has come. Raises :class:`QueueError` when the queue refuses it now."""


class DelayedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its time. Times are Unix seconds."""

    delay_id: str
    deliver_at: float
    published_at: float
    topic: str
    publisher: str
    payload_bytes: int
    refused: bool
    """It is due, and the queue refused it for now."""


class DelayCounts:
    """What happened since the engine opened; they only grow."""

    __slots__ = ("cancelled", "fired", "refused", "scheduled", "unreadable")

    def __init__(self) -> None:
        self.scheduled = self.fired = self.cancelled = self.refused = self.unreadable = 0


def delay_id_of(queue: str, offset: int) -> str:
    return f"{queue}{_ID_MARK}{offset}"


def parse_delay_id(queue: str, delay_id: str) -> int:
    """The offset that a delay id of a queue names. Raises :class:`QueueError` (BAD_ADDRESS)."""
    named, _, digits = delay_id.rpartition(_ID_MARK)
    if named and digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS:
        if named == queue:
            return int(digits)
        raise QueueError(
            QueueErrorCode.BAD_ADDRESS, f"the delay id {delay_id[:80]!r} is of another queue than {queue!r}"
        )
    raise QueueError(QueueErrorCode.BAD_ADDRESS, f"the delay id {delay_id[:80]!r} is not <queue>{_ID_MARK}<number>")


class DelayStore:
    """The delayed messages of one queue."""

    def __init__(
        self,
        target: DelayTarget,
        files: QueueFiles,
        codec: MessageCodec,
        agenda: Agenda,
        now: float,
        *,
        confirm_when_synced: bool,
    ) -> None:
        """Open and recover, or create. Raises :class:`LogError`."""
        self.counts = DelayCounts()
        self.wake_at = float("inf")
        self._target = target
        self._codec = codec
        self._agenda = agenda
        self._done_when_synced = not files.volatile and not confirm_when_synced
        self._log = QueuePartition(
            0,
            files.open_delays(),
            codec,
            MessageCache(0),
            agenda,
            confirm_when_synced=confirm_when_synced,
            volatile=files.volatile,
        )
        self._done: DoneLog | None = None
        if not files.volatile:
            self._done = DoneLog(files.open_delays_done(), agenda, confirm_when_synced=confirm_when_synced)
        now_ms = _floor_ms(now)
        self._wheel = TimingWheel(now_ms)
        self._unwritten: list[int] = []
        """Due times of what the log gets this turn."""
        self._unarmed: deque[tuple[int, int]] = deque()
        """Offset and due time of what is written and not yet as durable as promised."""
        self._refused: dict[int, int] = {}
        """Due times of what the queue refused, to be tried again."""
        self._in_hand: dict[int, QueuePartition | None] = {}
        """Published, and not yet done."""
        self._retry_at = 0.0
        self._since_trim = 0
        self._trim_at = 0.0
        agenda.owners[self._log] = self
        if self._done is not None:
            agenda.owners[self._done] = self
            self._recover(self._done, now_ms)
        self._wake()

    def _recover(self, done: DoneLog, now_ms: int) -> None:
        log = self._log.log
        start, end = log.start_offset, log.next_offset
        is_done = done.recover(start, end, now_ms)
        at = start
        while at < end and (records := log.read(at, _RECOVERY_RECORDS)):
            for record in records:
                if not is_done[record.offset - start]:
                    due_ms = _due_of(record)
                    if due_ms is None:
                        self.counts.unreadable += 1
                    else:
                        self._wheel.add(record.offset, due_ms, now_ms)
            at = records[-1].offset + 1

    # -- scheduling ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._unwritten) + len(self._unarmed) + len(self._wheel) + len(self._refused)

    def schedule(
        self,
        routing_key: str,
        message: Message,
        size: int,
        due_ms: int,
        now: float,
        on_confirmed: Confirm | None,
        on_stored: Stored | None,
    ) -> None:
        """Keep a message until it is due. Raises :class:`QueueError` (FULL, STORAGE_FAILED)."""
        limit = self._target.config.max_delayed
        if len(self) >= limit:
            text = f"the queue {self._target.name!r} holds {limit} delayed messages, which is its limit (max_delayed)"
            raise QueueError(QueueErrorCode.FULL, text)
        for point in (self._log, self._done):
            if point is not None and point.failure is not None:
                raise point.failure
        headers, topic = self._codec.headers(message, routing_key)
        timestamp_ms = int(now * 1000)
        record = NewRecord(timestamp_ms, None, message.payload, ((_DUE, b"%d" % due_ms), *headers))
        stored = StoredMessage(message, topic, routing_key, timestamp_ms / 1000, float("inf"), size)
        self._log.add(record, stored, on_confirmed)
        self._unwritten.append(due_ms)
        if on_stored is not None:
            self._log.tell_place(self._teller(on_stored))

    def _teller(self, on_stored: Stored) -> Callable[[int, int], None]:
        return lambda _, offset: on_stored(StoredAs.DELAYED, delay_id_of(self._target.name, offset))

    def write(self, point: SyncPoint) -> None:
        """See :class:`LogOwner`."""
        now = self._agenda.now
        if point is self._done:
            if not self._done.write(now):
                self._retry_at = max(self._retry_at, now + RETRY_S)
            elif self._done.wants_restatement:
                self._done.restate(self._alive(), self._log.log.start_offset, self._log.log.next_offset, now)
            self._wake()
            return
        dues, self._unwritten = self._unwritten, []
        base_offset, messages, _ = self._log.write()
        self.counts.scheduled += len(messages)
        if messages:
            self._unarmed.extend(enumerate(dues, base_offset))
            self._arm()

    def serve_groups(self) -> None:
        """See :class:`LogOwner`: what is durable now can fire."""
        self._arm()

    def _arm(self) -> None:
        now_ms = _floor_ms(self._agenda.now)
        end = self._log.visible_end
        while self._unarmed and self._unarmed[0][0] < end:
            self._wheel.add(*self._unarmed.popleft(), now_ms)
        self._wake()

    def _wake(self) -> None:
        deadline_ms = self._wheel.next_deadline_ms()
        if self._refused or (self._done is not None and self._done.has_unwritten):
            self._agenda.wake(self, self._retry_at)
        elif deadline_ms is not None:
            self._agenda.wake(self, max(deadline_ms / 1000, self._retry_at))

    # -- firing --------------------------------------------------------------------------------------------------

    def pass_time(self, now: float) -> None:
        """The time that :meth:`Agenda.wake` was told has come."""
        if now >= self._retry_at:
            if self._done is not None and self._done.has_unwritten:
                self._agenda.partitions_to_write[self._done] = None
            due = list(self._refused)[:FIRED_PER_TURN]
            due += self._wheel_due(now, FIRED_PER_TURN - len(due))
            if due:
                self._fire(due, now)
            if now >= self._trim_at:
                self._trim(now)
        self._wake()

    def _wheel_due(self, now: float, limit: int) -> list[int]:
        return self._wheel.advance(_floor_ms(now), limit) if limit > 0 else []

    def _fire(self, due: list[int], now: float) -> None:
        try:
            records = self._read(due)
        except LogError:
            self._refuse(due, now)
            return
        for at, offset in enumerate(due):
            stored = self._decode(records.get(offset))
            if stored is None:
                self.counts.unreadable += 1
                self._refused.pop(offset, None)
                self._finish(offset)
                continue
            try:
                self._in_hand[offset] = self._target.enqueue_due(
                    stored.routing_key,
                    stored.message,
                    stored.size,
                    now,
                    partial(self._fired, offset),
                    parse(stored.message),
                )
            except QueueError as error:
                self._in_hand.pop(offset, None)
                if error.code is QueueErrorCode.STORAGE_FAILED:
                    # Only its partition.
                    self._refuse([offset], now)
                    continue
                self._refuse(due[at:], now)
                return
            self._refused.pop(offset, None)

    def _read(self, offsets: list[int]) -> dict[int, LogRecord]:
        """Raises :class:`LogError`."""
        wanted = sorted(offsets)
        found: dict[int, LogRecord] = {}
        at = 0
        while at < len(wanted):
            first = wanted[at]
            end = at + 1
            while end < len(wanted) and wanted[end] - wanted[end - 1] <= _READ_GAP and end - at < _READ_RECORDS:
                end += 1
            if end == at + 1:
                record = self._log.log.get(first)
                if record is not None:
                    found[first] = record
                at = end
                continue
            some = set(wanted[at:end])
            for record in self._log.log.read(first, wanted[end - 1] - first + 1):
                if record.offset in some:
                    found[record.offset] = record
            at = end
        return found

    def _decode(self, record: LogRecord | None) -> StoredMessage | None:
        if record is None or _due_of(record) is None:
            return None
        try:
            return self._codec.decode(record._replace(headers=record.headers[1:]))
        except ValueError:
            return None

    def _refuse(self, offsets: list[int], now: float) -> None:
        """The queue does not take them now: later again."""
        self.counts.refused += len(offsets)
        now_ms = _floor_ms(now)
        for offset in offsets:
            self._refused.setdefault(offset, now_ms)
        self._retry_at = now + RETRY_S

    def _fired(self, offset: int, error: QueueError | None) -> None:
        """The partition wrote it, or could not."""
        partition = self._in_hand.get(offset)
        if error is not None:
            self._in_hand.pop(offset, None)
            self._refuse([offset], self._agenda.now)
            self._wake()
            return
        self.counts.fired += 1
        if self._done_when_synced and partition is not None:
            # The confirm says less than was promised when it was scheduled: it may have been on disk for days.
            partition.waiting.append(partial(self._synced, offset))
        else:
            self._finish(offset)

    def _synced(self, offset: int, error: QueueError | None) -> None:
        if error is None:
            self._finish(offset)

    def _finish(self, offset: int, confirm: Confirm | None = None) -> None:
        """It is done for good."""
        self._in_hand.pop(offset, None)
        self._since_trim += 1
        if self._done is not None:
            self._done.add(offset, confirm)
        elif confirm is not None:
            confirm(None)
        if self._since_trim >= _TRIM_AFTER:
            self._trim(self._agenda.now)

    def _trim(self, now: float) -> None:
        """Free what nobody needs any more."""
        if not self._since_trim:
            return
        self._since_trim = 0
        self._trim_at = now + _TRIM_INTERVAL_S
        self._wheel.thin_out()
        end = self._unarmed[0][0] if self._unarmed else self._log.log.next_offset
        needed = (self._wheel.lowest, min(self._refused, default=None), min(self._in_hand, default=None))
        self._log.log.drop_before(min((offset for offset in needed if offset is not None), default=end))

    def _alive(self) -> Iterator[int]:
        """What is not done, ascending."""
        unarmed = [offset for offset, _ in self._unarmed]
        return merge(self._wheel.numbers(), sorted(self._refused), sorted(self._in_hand), unarmed)

    # -- cancelling and listing ----------------------------------------------------------------------------------

    def cancel(self, delay_id: str, confirm: Confirm | None) -> bool:
        """True: it is never delivered, and ``confirm`` is called once that is as durable as the queue promises.

        False: there is none of that id, or it is due and published already. Raises :class:`QueueError`.
        """
        offset = parse_delay_id(self._target.name, delay_id)
        if self._done is not None and self._done.failure is not None:
            raise self._done.failure
        if self._refused.pop(offset, None) is None and not self._wheel.cancel(offset):
            kept = [pair for pair in self._unarmed if pair[0] != offset]
            if len(kept) == len(self._unarmed):
                return False
            self._unarmed = deque(kept)
        self.counts.cancelled += 1
        self._finish(offset, confirm)
        return True

    def list(self, limit: int, after: str | None) -> list[DelayedMessage]:
        """Messages that wait, in the order they were published, from behind an id on. Raises :class:`QueueError`."""
        last = -1 if after is None else parse_delay_id(self._target.name, after)
        unarmed = [offset for offset, _ in self._unarmed if offset > last]
        refused = sorted(offset for offset in self._refused if offset > last)
        offsets: list[int] = []
        for offset in merge(self._wheel.numbers(last), refused, unarmed):
            if len(offsets) >= min(limit, MAX_LISTED):
                break
            offsets.append(offset)
        try:
            records = self._read(offsets)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        return [self._describe(records[offset]) for offset in offsets if offset in records]

    def _describe(self, record: LogRecord) -> DelayedMessage:
        stored = self._decode(record)
        return DelayedMessage(
            delay_id=delay_id_of(self._target.name, record.offset),
            deliver_at=(_due_of(record) or 0) / 1000,
            published_at=record.timestamp_ms / 1000,
            topic=stored.message.topic if stored is not None else "",
            publisher=stored.message.publisher if stored is not None else "",
            payload_bytes=len(record.value or b""),
            refused=record.offset in self._refused,
        )

    def stats(self) -> DelayStats:
        counts = self.counts
        return DelayStats(
            pending=len(self),
            scheduled=counts.scheduled,
            fired=counts.fired,
            cancelled=counts.cancelled,
            refused=counts.refused,
            unreadable=counts.unreadable,
            stored_bytes=self.stored_bytes,
        )

    @property
    def stored_bytes(self) -> int:
        return self._log.log.stored_bytes

    @property
    def failed(self) -> bool:
        return any(point is not None and point.failure is not None for point in (self._log, self._done))

    @property
    def points(self) -> tuple[SyncPoint, ...]:
        """Its logs."""
        return (self._log,) if self._done is None else (self._log, self._done)


def _floor_ms(now: float) -> int:
    """Whole milliseconds, safe from what a float lacks in precision: a deadline that has come is not missed by one."""
    return int(now * 1000 + 0.001)


def _due_of(record: LogRecord) -> int | None:
    headers = record.headers
    if not headers or headers[0][0] != _DUE or not headers[0][1].isdigit():
        return None
    return int(headers[0][1])
