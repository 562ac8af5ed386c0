"""Delayed messages of one queue: kept in a log of their own until they are due, then published like any other.

A message is *scheduled* once it is in that log, as durably as the queue promises; then its publisher is told. A timing
wheel says when it is due. It *fires* then: it is published, to the partition its options and key choose, and *done* as
soon as that partition has it durably. A power loss in between may fire it twice, a kill does not, and neither loses it:
see :mod:`done_log`. Cancelling makes it done, too. The log frees segments below the oldest message that is not done.
After a restart the wheel is filled from the two logs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Protocol

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.delays.delay_recovery import fired_among, waiting_runs
from assay.reference_broker.queues.delays.delay_thinning import DelayThinning
from assay.reference_broker.queues.delays.delayed_message import (
    DelayCounts,
    DelayedMessage,
    delay_id_of,
    due_of,
    options_of,
    own_headers,
    parse_delay_id,
    with_due,
)
from assay.reference_broker.queues.delays.done_log import DoneLog
from assay.reference_broker.queues.delays.waiting_offsets import WaitingOffsets
from assay.reference_broker.queues.groups.delivery import DelayStats
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored, StoredAs, SyncPoint
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord, QueueFiles
from assay.reference_broker.queues.messages.message_cache import MessageCache
from assay.reference_broker.queues.messages.publish_options import PublishOptions
from assay.reference_broker.queues.messages.stored_message import DELAY_HEADER, MessageCodec, StoredMessage, is_plain
from assay.reference_broker.queues.messages.trace_context import sample
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.routing.message import Message
from assay.reference_broker.trace.ring import CANCELLED
from assay.reference_broker.trace.schema import TraceKind
from assay.reference_broker.trace.tracing import Traced

FIRED_PER_TURN = 1_024
"""More that are due wait for the next turn, so that others have theirs."""
RETRY_S = 1.0
"""After the queue or the disk refused something, it is tried again so much later."""
ASKED_BETWEEN = 64
"""Most that are tried again before that, when another message is due and the queue has room."""
MAX_LISTED = 1_000
READ_GAP = 3
"""Records this near each other are read in one go, up to so many; others one by one."""
READ_RECORDS = 256
TRIM_AFTER = 1_024
_TRIM_INTERVAL_S = 1.0
TOLD_OFFSETS = 4_096
"""Once so many more were scheduled, the done log is told what of them waits, so that a start need not read them."""
TOLD_WAITING = 4_096
"""Most that are told in one record."""
TOLD_PER_TURN = 4
"""Records; more wait for the next turn."""


IDS_PER_MS = 1_000
"""Delayed messages of a queue in memory are numbered from the milliseconds of its start, times this: fewer than so many
come in each, so that an id of before a start names nothing after it."""


class DelayTarget(Protocol):
    """What delayed messages need of their queue."""

    name: str
    config: QueueConfig
    partitions: list[QueuePartition]

    @property
    def room(self) -> int:
        """Messages that it takes before it is full, as it is now."""

    def holds(self, point: SyncPoint) -> bool:
        """Nothing of a log is to be written now: it will be, later."""

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
        log = files.open_delays()
        self._log = QueuePartition(
            0,
            log,
            codec,
            MessageCache(0),
            agenda,
            confirm_when_synced=confirm_when_synced,
            volatile=files.volatile,
            written_as=TraceKind.DELAYED,
        )
        self._done: DoneLog | None = None
        if not files.volatile:
            self._done = DoneLog(files.open_delays_done(), agenda, confirm_when_synced=confirm_when_synced)
        now_ms = _floor_ms(now)
        self._first_id = now_ms * IDS_PER_MS if files.volatile else 0
        """Of offset 0. Those in memory begin anew with each start, and an id of before must not name another."""
        self._waiting = WaitingOffsets(now_ms)
        self._wheel = self._waiting.wheel
        self._unwritten: list[int] = []
        """Due times of what the log gets this turn."""
        self._unarmed = self._waiting.unarmed
        self._refused = self._waiting.refused
        self._in_hand = self._waiting.in_hand
        self._thinning = DelayThinning(log, self._waiting, agenda)
        self._retry_at = 0.0
        """Until then the disk is left alone."""
        self._refused_until = 0.0
        """Until then what was refused is left alone."""
        self._is_full = False
        """It was for want of room: until then, what is due lines up behind it."""
        self._since_trim = 0
        self._trim_at = 0.0
        self._told_to = self._log.log.next_offset
        """The done log has told of every offset below it, since it was opened or began to be stated anew."""
        agenda.owners[self._log] = self
        if self._done is not None:
            agenda.owners[self._done] = self
            self.recover(self._done, now_ms)
        self._wake()

    def recover(self, done: DoneLog, now_ms: int) -> None:
        """Find those that wait, and finish those that fired before the start."""
        log = self._log.log
        known = done.recover(log.start_offset, log.next_offset, now_ms)
        fired = fired_among(self._target.partitions, known.firing)
        for offsets, dues in waiting_runs(log, known):
            if None in dues:
                self.counts.unreadable += dues.count(None)
            readable = [(offset, due_ms) for offset, due_ms in zip(offsets, dues, strict=True) if due_ms is not None]
            self._wheel.load([offset for offset, _ in readable], [due_ms for _, due_ms in readable], now_ms)
        for offset, partition in fired.items():
            if self._wheel.cancel(offset):
                self._in_hand[offset] = partition
                done.keep_firing(offset, known.firing[offset])
                self._finish_when_synced(offset, partition)
        self._told_to = known.untold[0][0] if known.untold else log.next_offset

    # -- scheduling ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._unwritten) + self._waiting.armed

    def schedule(
        self,
        routing_key: str,
        message: Message,
        size: int,
        due_ms: int,
        options: PublishOptions,
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
        headers, topic = self._codec.headers(message, routing_key, plain=is_plain(message))
        timestamp_ms = int(now * 1000)
        record = NewRecord(timestamp_ms, None, message.payload, with_due(headers, due_ms, options))
        stored = StoredMessage(message, topic, routing_key, timestamp_ms / 1000, float("inf"), size)
        self._log.add(record, stored, on_confirmed)
        self._unwritten.append(due_ms)
        if on_stored is not None:
            self._log.tell_place(self._teller(on_stored))
        if self._agenda.tracing is not None:
            traced = sample(self._agenda.tracing, message, self._target.name, now)
            if traced is not None:
                self._log.trace(traced)

    def _teller(self, on_stored: Stored) -> Callable[[int, int], None]:
        return lambda _, offset: on_stored(StoredAs.DELAYED, self._id_of(offset))

    def _id_of(self, offset: int) -> str:
        return delay_id_of(self._target.name, self._first_id + offset)

    def _offset_of(self, delay_id: str) -> int:
        """Below 0 for one of before the start. Raises :class:`QueueError` (BAD_ADDRESS)."""
        return parse_delay_id(self._target.name, delay_id) - self._first_id

    def write(self, point: SyncPoint) -> None:
        """See :class:`LogOwner`."""
        if self._target.holds(point):
            return
        now = self._agenda.now
        if point is self._done:
            if not self._done.write(now):
                self._retry_at = max(self._retry_at, now + RETRY_S)
            elif self._done.wants_restatement and self._done.begin_restatement(now):
                self._told_to = 0  # also what lay before the log: a loss of power may bring freed segments back
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

    @property
    def _armed_to(self) -> int:
        """Offsets below it are known to the wheel, or done."""
        return self._unarmed[0][0] if self._unarmed else self._log.log.next_offset

    @property
    def _has_to_tell(self) -> bool:
        done = self._done
        if done is None or done.failure is not None:
            return False
        return done.is_restating or self._armed_to - self._told_to >= TOLD_OFFSETS

    def _tell(self, done: DoneLog, now: float) -> None:
        """Let the done log know what waits: some of it, the rest another turn."""
        end = self._armed_to
        for _ in range(TOLD_PER_TURN):
            if not self._has_to_tell:
                return
            first = self._told_to
            waiting = self._waiting.due_times(first, end, TOLD_WAITING)
            stop = end if len(waiting) < TOLD_WAITING else waiting[-1][0] + 1
            if first < stop and not done.tell(first, stop, waiting, now):
                self._retry_at = max(self._retry_at, now + RETRY_S)
                return
            self._told_to = stop
            if stop == end:
                if done.is_restating:
                    done.end_restatement()
                return

    def _wake(self) -> None:
        deadline_ms = self._wheel.next_deadline_ms()
        if self._has_to_tell:
            self._agenda.wake(self, max(self._agenda.now, self._retry_at))
        if self._since_trim:
            self._agenda.wake(self, max(self._trim_at, self._retry_at))
        if self._refused:
            self._agenda.wake(self, max(self._refused_until, self._retry_at))
        if self._done is not None and self._done.has_unwritten:
            self._agenda.wake(self, self._retry_at)
        elif deadline_ms is not None:
            self._agenda.wake(self, max(deadline_ms / 1000, self._retry_at))

    # -- firing --------------------------------------------------------------------------------------------------

    def pass_time(self, now: float) -> None:
        """The time that :meth:`Agenda.wake` was told has come."""
        if now >= self._retry_at:
            if self._done is not None and self._done.has_unwritten:
                self._agenda.partitions_to_write[self._done] = None
            due = self.due(now)
            if due:
                self.fire(due, now)
            if self._done is not None and self._has_to_tell:
                self._tell(self._done, now)
            if now >= self._trim_at:
                self._trim(now)
        self._wake()

    def due(self, now: float) -> list[int]:
        """What the queue is to be asked for: first what it refused. Where it was full that is as much as it has room
        for now, once more is due, and all of it later.
        """
        if now >= self._refused_until:
            self._is_full = False
            due = list(islice(self._refused, FIRED_PER_TURN))
            return due + self.wheel_due(now, FIRED_PER_TURN - len(due))
        due = self.wheel_due(now, FIRED_PER_TURN)
        if not self._is_full:
            return due
        self._refused.update(dict.fromkeys(due, _floor_ms(now)))
        return list(islice(self._refused, max(0, min(self._target.room, ASKED_BETWEEN)))) if due else []

    def wheel_due(self, now: float, limit: int) -> list[int]:
        """Offsets that are due, at most ``limit``, in the order of their times."""
        return self._wheel.advance(_floor_ms(now), limit) if limit > 0 else []

    def fire(self, due: list[int], now: float) -> None:
        """Publish those that are due; what is refused is kept."""
        try:
            records = self._read(due)
        except LogError:
            self.refuse(due, now)
            self._retry_at = now + RETRY_S
            return
        firing: list[int] = []
        config = self._target.config
        may_drop = self._done is not None and config.overflow.drops
        room = self._target.room if may_drop and not config.max_bytes else 0
        for at, offset in enumerate(due):
            if may_drop and at >= room:
                # Where an older message is dropped for it, the partitions get those before it at once.
                self._note_firing(firing, now)
                firing = []
            found = self._decode(records.get(offset))
            if found is None:
                self.counts.unreadable += 1
                self._refused.pop(offset, None)
                self.finish(offset)
                continue
            stored, options = found
            try:
                if self._log.traced:
                    self._carry(self._log.traced.get(offset))
                partition = self._target.enqueue_due(
                    stored.routing_key,
                    stored.message,
                    stored.size,
                    now,
                    partial(self._fired, offset),
                    options,
                )
            except QueueError as error:
                if error.code is QueueErrorCode.STORAGE_FAILED:
                    # Only its partition: others have their turn first.
                    self._refused.pop(offset, None)
                    self.refuse([offset], now)
                    continue
                self._is_full = True
                self.refuse(due[at:], now)
                break
            finally:
                if self._log.traced:
                    self._carry(None)
            self._in_hand[offset] = partition
            self._refused.pop(offset, None)
            if self._done is not None:
                partition.mark_last((DELAY_HEADER, b"%d" % offset))
                firing.append(offset)
        self._note_firing(firing, now)

    def _carry(self, traced: Traced | None) -> None:
        """What is published next goes on with a trace."""
        if self._agenda.tracing is not None:
            self._agenda.tracing.carried = traced

    def _note_firing(self, firing: list[int], now: float) -> None:
        """Before their partitions get them."""
        if self._done is not None and firing:
            partitions = {self._in_hand[offset] for offset in firing}
            ends = {partition.index: partition.log.next_offset for partition in partitions}
            self._done.note_firing(firing, dict(sorted(ends.items())), now)

    def _read(self, offsets: list[int]) -> dict[int, LogRecord]:
        """Raises :class:`LogError`."""
        wanted = sorted(offsets)
        found: dict[int, LogRecord] = {}
        at = 0
        while at < len(wanted):
            first = wanted[at]
            end = at + 1
            while end < len(wanted) and wanted[end] - wanted[end - 1] <= READ_GAP and end - at < READ_RECORDS:
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

    def _decode(self, record: LogRecord | None) -> tuple[StoredMessage, PublishOptions | None] | None:
        if record is None or due_of(record) is None:
            return None
        try:
            stored = self._codec.decode(record._replace(headers=own_headers(record.headers)))
            return stored, options_of(record.headers, stored.message)
        except ValueError:
            return None

    def refuse(self, offsets: list[int], now: float) -> None:
        """The queue does not take them now: later again."""
        self.counts.refused += len(offsets)
        now_ms = _floor_ms(now)
        for offset in offsets:
            self._refused.setdefault(offset, now_ms)
        if now >= self._refused_until:
            self._refused_until = now + RETRY_S

    def _fired(self, offset: int, error: QueueError | None) -> None:
        """The partition wrote it, or could not."""
        partition = self._in_hand.get(offset)
        if error is not None:
            self._in_hand.pop(offset, None)
            if self._done is not None:
                self._done.forget_firing(offset)
            self.refuse([offset], self._agenda.now)
            self._wake()
            return
        self.counts.fired += 1
        if self._done_when_synced and partition is not None:
            # The confirm says less than was promised when it was scheduled: it may have been on disk for days.
            self._finish_when_synced(offset, partition)
        else:
            self.finish(offset)

    def _finish_when_synced(self, offset: int, partition: QueuePartition) -> None:
        if partition.when_synced(partial(self._synced, offset)):
            self._agenda.unsynced[partition] = None
        else:
            self.finish(offset)

    def _synced(self, offset: int, error: QueueError | None) -> None:
        if error is None:
            self.finish(offset)

    def finish(self, offset: int, confirm: Confirm | None = None) -> None:
        """It is done for good."""
        self._in_hand.pop(offset, None)
        self._since_trim += 1
        if self._done is not None:
            self._done.add(offset, confirm)
        elif confirm is not None:
            confirm(None)
        if self._since_trim >= TRIM_AFTER:
            self._trim(self._agenda.now)
        else:
            self._agenda.wake(self, max(self._trim_at, self._agenda.now))

    def _trim(self, now: float) -> None:
        """Free what nobody needs any more."""
        if not self._since_trim:
            return
        self._trim_at = now + _TRIM_INTERVAL_S
        if self._thinning.is_syncing:
            # What was dropped must not come back with a copy that is under way.
            return
        self._since_trim = 0
        self._wheel.thin_out()
        lowest = self._waiting.lowest
        self._log.log.drop_before(self._armed_to if lowest is None else lowest)
        self._thinning.ask(now)

    def free_settled(self) -> None:
        """Free also what was written last, where nothing of it waits; see :meth:`QueueLimits.free_settled`."""
        log = self._log.log
        if self._waiting.lowest is None and self._armed_to >= log.next_offset > log.start_offset:
            with suppress(LogError):  # which the log has told of
                log.roll()
            if log.needs_sync:
                self._agenda.unsynced[self._log] = None
            log.drop_before(self._armed_to)

    # -- cancelling and listing ----------------------------------------------------------------------------------

    def cancel(self, delay_id: str, confirm: Confirm | None) -> bool:
        """True: it is never delivered, and ``confirm`` is called once that is as durable as the queue promises.

        False: there is none of that id, or it is due and published already. Raises :class:`QueueError`.
        """
        offset = self._offset_of(delay_id)
        if self._done is not None and self._done.failure is not None:
            raise self._done.failure
        if not self._waiting.cancel(offset):
            return False
        self.counts.cancelled += 1
        traced = self._log.traced.get(offset) if self._log.traced else None
        if traced is not None:
            self._log.happened(TraceKind.DISCARDED, traced, "", "", 0, CANCELLED, 0)
        self.finish(offset, confirm)
        return True

    def list(self, limit: int, after: str | None) -> list[DelayedMessage]:
        """Messages that wait, in the order they were published, from behind an id on. Raises :class:`QueueError`."""
        last = -1 if after is None else self._offset_of(after)
        offsets = self._waiting.listed(last, min(limit, MAX_LISTED))
        try:
            records = self._read(offsets)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        return [self.describe(records[offset]) for offset in offsets if offset in records]

    def describe(self, record: LogRecord) -> DelayedMessage:
        """A waiting message, as requests list it."""
        found = self._decode(record)
        message = Message(topic="", payload=b"") if found is None else found[0].message
        return DelayedMessage(
            delay_id=self._id_of(record.offset),
            deliver_at=(due_of(record) or 0) / 1000,
            published_at=record.timestamp_ms / 1000,
            topic=message.topic,
            publisher=message.publisher,
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
        return (self._log, self._thinning) if self._done is None else (self._log, self._done, self._thinning)


def _floor_ms(now: float) -> int:
    """Whole milliseconds, safe from what a float lacks in precision: a deadline that has come is not missed by one."""
    return int(now * 1000 + 0.001)
