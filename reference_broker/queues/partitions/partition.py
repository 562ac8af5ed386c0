"""One partition of a queue: what was published this turn, the log, and the messages still in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, SyncPoint, call_all, ignore
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import NewRecord, PartitionLog, RetentionPolicy
from assay.reference_broker.queues.messages.lanes import LANES, NORMAL, PartitionLanes
from assay.reference_broker.queues.messages.message_cache import SIZE, MessageCache
from assay.reference_broker.queues.messages.stored_message import (
    HIDDEN,
    SHORT_NAMES,
    MessageCodec,
    StoredMessage,
    beside_bytes,
)
from assay.reference_broker.queues.partitions.expiry import MessageSizes, PartitionExpiry
from assay.reference_broker.queues.partitions.producers import PartitionProducers
from assay.reference_broker.trace.schema import TraceKind
from assay.reference_broker.trace.tracing import Traced

READ_AHEAD = 128


class _Unwritten:
    """What was published to a partition in this turn."""

    __slots__ = ("beside_bytes", "confirms", "messages", "records", "told", "traced", "transactional", "unlisted")

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self.records: list[NewRecord] = []
        """Of all messages, or of the first ones: those that are missing are made when they are needed."""
        self.beside_bytes = 0
        """See the function."""
        self.confirms: list[Confirm] = []
        self.told: list[tuple[int, Callable[[int, int], None]]] | None = None
        """Who is told partition and offset of a message, by its position."""
        self.traced: list[tuple[int, Traced]] | None = None
        """Messages that are traced, by position."""
        self.unlisted = False
        """Some message is to be listed in the partition's lanes, or as expiring."""
        self.transactional = False
        """Some of the records belong to a transaction, or end one."""

    def all_records(self) -> list[NewRecord]:
        """Those of all messages."""
        records = self.records
        records += [message.record() for message in self.messages[len(records) :]]
        return records


class QueuePartition(SyncPoint):
    """Collects what is published in a turn and writes it as one batch.

    There are many partitions, and most are idle: an empty one holds as few objects as possible.
    """

    __slots__ = (
        "_agenda",
        "_cache",
        "_codec",
        "_confirm_when_synced",
        "_lane_count",
        "_on_confirmed",
        "_unwritten",
        "_volatile",
        "_written_as",
        "cached",
        "expiry",
        "head",
        "index",
        "lanes",
        "log",
        "produced",
        "sizes",
        "traced",
        "unreadable",
        "visible_end",
    )

    def __init__(
        self,
        index: int,
        log: PartitionLog,
        codec: MessageCodec,
        cache: MessageCache,
        agenda: Agenda,
        *,
        confirm_when_synced: bool,
        volatile: bool,
        on_confirmed: Callable[[int, int, StoredMessage], None] | None = None,
        lane_count: int = LANES,
        written_as: TraceKind = TraceKind.ENQUEUED,
    ) -> None:
        """``on_confirmed`` is told the partition, offset and message of each confirm, for the trace. ``written_as``:
        what it is to a message that is traced that the log has it."""
        super().__init__(log)
        self.index = index
        self.log = log
        self.cached: dict[int, StoredMessage] = {}
        self.visible_end = log.next_offset
        """Messages below it may be delivered: those that are as durable as their confirm says, and in front of every
        open transaction."""
        self.produced: PartitionProducers | None = None
        """Producers and transactions; None as long as there never was one."""
        self.head = log.start_offset
        """Nobody gets messages below it who has not got them yet; see :meth:`DurableQueue.move_head`."""
        self.unreadable = 0
        self.lanes: PartitionLanes | None = None
        """Once a message was not of normal priority."""
        self._lane_count = lane_count
        self._codec = codec
        self._cache = cache
        self._agenda = agenda
        self._confirm_when_synced = confirm_when_synced
        self._volatile = volatile
        self._on_confirmed = on_confirmed
        self._written_as = written_as
        self.expiry: PartitionExpiry | None = None
        """Once a message had a time to live of its own."""
        self.sizes: MessageSizes | None = None
        """Of the messages, where the queue limits its bytes."""
        self._unwritten: _Unwritten | None = None
        self.traced: dict[int, Traced] | None = None
        """Messages that are traced, by offset; None as long as there never was one."""
        if log.next_offset > log.start_offset and not volatile:
            agenda.unsynced[self] = None

    @property
    def unwritten(self) -> int:
        """Messages that :meth:`write` will write."""
        return 0 if self._unwritten is None else len(self._unwritten.messages)

    def _begin(self) -> _Unwritten:
        self._agenda.partitions_to_write[self] = None
        self._unwritten = _Unwritten()
        return self._unwritten

    def add(
        self, record: NewRecord | None, message: StoredMessage, confirm: Confirm | None, *, plain: bool = False
    ) -> None:
        """Enqueue; :meth:`write` writes it. ``record``: None where logs keep messages; ``plain``: it is known that
        the message is, as of :func:`is_plain`."""
        unwritten = self._unwritten
        if unwritten is None:
            # As _begin: one call less for a message that is alone in its turn.
            self._agenda.partitions_to_write[self] = None
            unwritten = self._unwritten = _Unwritten()
        if record is not None:
            unwritten.records.append(record)
        unwritten.messages.append(message)
        content = message.message
        # beside_bytes() finds nothing in a payload and short names, which is what most messages have.
        if not plain or len(content.topic) + len(message.topic) + len(message.routing_key) > SHORT_NAMES:
            unwritten.beside_bytes += beside_bytes(content, message.topic, message.routing_key)
        unwritten.confirms.append(confirm or ignore)

    def list_next(self) -> None:
        """The message added next is not of normal priority, or has a time to live of its own."""
        (self._unwritten or self._begin()).unlisted = True

    @property
    def unwritten_bytes(self) -> int:
        return sum(message.size for message in self._unwritten.messages) if self._unwritten is not None else 0

    @property
    def unwritten_beside_bytes(self) -> int:
        """As of :func:`beside_bytes`."""
        return 0 if self._unwritten is None else self._unwritten.beside_bytes

    def tell_place(self, told: Callable[[int, int], None]) -> None:
        """Call it with partition and offset of the message added last, once that is written, before the confirm."""
        unwritten = self._unwritten or self._begin()
        if unwritten.told is None:
            unwritten.told = []
        unwritten.told.append((len(unwritten.messages) - 1, told))

    def trace(self, traced: Traced, behind: int = 0) -> None:
        """The message added last is traced, or that so many before it."""
        unwritten = self._unwritten or self._begin()
        if unwritten.traced is None:
            unwritten.traced = []
        unwritten.traced.append((len(unwritten.messages) - 1 - behind, traced))

    def mark_last(self, header: tuple[bytes, bytes]) -> None:
        """The record added last gets a header more."""
        records = (self._unwritten or self._begin()).all_records()
        timestamp_ms, key, value, headers = records[-1]
        records[-1] = NewRecord(timestamp_ms, key, value, (*headers, header))

    def add_marked(
        self, record: NewRecord, message: StoredMessage, confirm: Confirm | None, *, transactional: bool
    ) -> int:
        """As :meth:`add` for a producer's record, or one that ends a transaction; returns the offset it will get."""
        unwritten = self._unwritten or self._begin()
        unwritten.all_records()
        self.add(record, message, confirm)
        unwritten.transactional |= transactional
        return self.log.next_offset + len(unwritten.messages) - 1

    def add_run(
        self, records: list[NewRecord], messages: list[StoredMessage], beside_bytes: int, confirm: Confirm
    ) -> None:
        """Enqueue many, which are confirmed together. ``records``: empty where logs keep messages; ``beside_bytes``:
        as of the function, of all."""
        unwritten = self._unwritten or self._begin()
        unwritten.records += records
        unwritten.messages += messages
        unwritten.beside_bytes += beside_bytes
        unwritten.confirms += [ignore] * (len(messages) - 1)
        unwritten.confirms.append(confirm)

    def write(self) -> tuple[int, list[StoredMessage], list[StoredMessage]]:
        """Append what collected as one batch; returns its first offset and the messages, and which were refused: all
        or none.
        """
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is None:
            return 0, [], []
        messages, confirms = unwritten.messages, unwritten.confirms
        append = self.log.append
        size_bytes = sum(map(SIZE, messages)) + unwritten.beside_bytes
        try:
            if not unwritten.records:
                base_offset = self.log.keep(messages, size_bytes)
            elif self._volatile:
                records = unwritten.all_records()
                base_offset = append(records, transactional=unwritten.transactional, size_bytes=size_bytes)
            elif unwritten.transactional:
                base_offset = append(unwritten.records, transactional=True)
            else:
                base_offset = append(unwritten.records)
        except LogError as error:
            if error.sticky:
                self.fail(str(error))
            return 0, [], self._refuse(unwritten, QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))
        if unwritten.told is not None:
            for position, tell in unwritten.told:
                tell(self.index, base_offset + position)
        if self._on_confirmed is not None:
            confirms = [
                self._traced(confirm, self._on_confirmed, offset, message)
                for offset, (confirm, message) in enumerate(zip(confirms, messages, strict=True), base_offset)
            ]
        if unwritten.traced is not None:
            confirms = confirms + self._trace_written(unwritten.traced, base_offset)
        self._cache.put_run(self.cached, base_offset, messages, size_bytes)
        if unwritten.unlisted:
            for offset, message in enumerate(messages, base_offset):
                self.list_message(offset, message)
        if self.sizes is not None:
            for offset, message in enumerate(messages, base_offset):
                self.sizes.put(offset, message.size)
        if not self._volatile:
            self._agenda.unsynced[self] = None
        if self.produced is not None:
            self._agenda.written_produced[self] = None
        if self._confirm_when_synced:
            self.waiting += confirms
            self._agenda.awaited_syncs[self] = None
        else:
            if self.produced is None:
                self.visible_end = base_offset + len(messages)
            else:
                self.show()
            call_all(confirms, None)
        return base_offset, messages, []

    def refuse_unwritten(self, error: QueueError) -> list[StoredMessage]:
        """Nothing of what collected is written; returns the messages."""
        unwritten, self._unwritten = self._unwritten, None
        return [] if unwritten is None else self._refuse(unwritten, error)

    def _refuse(self, unwritten: _Unwritten, error: QueueError) -> list[StoredMessage]:
        call_all(unwritten.confirms, error)
        for _, traced in unwritten.traced or ():
            self._tell_traced(traced, error)
        return unwritten.messages

    def _trace_written(self, traced: list[tuple[int, Traced]], base_offset: int) -> list[Confirm]:
        """Note messages where they are; returns who is to be told of their confirms."""
        tracing, place = self._agenda.tracing, self.traced
        assert tracing is not None
        if place is None:
            place = self.traced = {}
        now = self._agenda.now
        for position, each in traced:
            tracing.written(each, self._written_as, place, self.index, base_offset + position, now)
            if not self._confirm_when_synced:
                tracing.confirmed(each, now, None)
        return [partial(self._tell_traced, each) for _, each in traced] if self._confirm_when_synced else []

    def _tell_traced(self, traced: Traced, error: QueueError | None) -> None:
        if self._agenda.tracing is not None:
            self._agenda.tracing.confirmed(traced, self._agenda.now, None if error is None else error.text)

    def happened(
        self, kind: TraceKind, traced: Traced, group: str, consumer: str, count: int, detail: str, groups: int
    ) -> None:
        """Something became of a message that is traced, in one of so many groups."""
        tracing = self._agenda.tracing
        if tracing is not None:
            tracing.happened(kind, traced, self._agenda.now, group, consumer, count, detail)
            if traced.settled >= max(1, groups):
                tracing.forget(traced)

    def open_expiry(self) -> PartitionExpiry:
        """From now on the partition remembers messages that nobody gets."""
        if self.expiry is None:
            self.expiry = PartitionExpiry()
        return self.expiry

    def open_lanes(self) -> PartitionLanes:
        """From now on the partition has lanes."""
        if self.lanes is None:
            self.lanes = PartitionLanes(self._lane_count)
        return self.lanes

    def list_message(self, offset: int, message: StoredMessage) -> None:
        """Remember what is special about a message."""
        if message.lane != NORMAL:
            self.open_lanes().add(offset, message.lane)
        if message.message.expires_at:
            # Read back, what was published in a transaction has its time below zero.
            self.open_expiry().add(offset, abs(message.expires_at))

    def scan(self, found: Callable[[int, StoredMessage], None]) -> None:
        """At opening: every readable message, oldest first. Raises :class:`LogError`."""
        at = self.log.start_offset
        while records := self.log.read(at, READ_AHEAD):
            for record in records:
                try:
                    message = self._codec.decode(record)
                except ValueError as error:
                    self.log.report(record.offset, f"no message ({error}); skipped")
                else:
                    found(record.offset, message)
            at = records[-1].offset + 1

    @property
    def gone_count(self) -> int:
        """Messages from the head on that left before their turn, and records that nobody gets."""
        return self.expiry.gone_count(self.head, self.log.next_offset) if self.expiry is not None else 0

    def mark_gone(self, offset: int) -> None:
        """A message behind one that stays has left: nobody gets it any more."""
        self.open_expiry().mark_gone(offset)
        if (cached := self.cached.get(offset)) is not None:
            # Other queues of a fan-out may have the very same one.
            self.cached[offset] = msgspec.structs.replace(cached, expires_at=0.0)

    @property
    def kept_bytes(self) -> int:
        """Of the messages that :attr:`head` and :attr:`gone_count` leave; 0 where sizes are not kept."""
        if self.sizes is None:
            return 0
        gone = self.expiry.gone(self.head, self.log.next_offset) if self.expiry is not None else ()
        return self.sizes.total(self.head) - sum(map(self.sizes.of, gone))

    def forget_before(self, offset: int) -> None:
        """What is below the offset is kept no more."""
        if self.lanes is not None:
            self.lanes.drop_before(offset)
        if self.expiry is not None:
            self.expiry.drop_before(offset)
        if self.sizes is not None:
            self.sizes.drop_before(offset)
        if self.produced is not None:
            self.produced.forget_below(offset)

    def _traced(
        self, confirm: Confirm, trace: Callable[[int, int, StoredMessage], None], offset: int, message: StoredMessage
    ) -> Confirm:
        def traced(error: QueueError | None) -> None:
            if error is None:
                trace(self.index, offset, message)
            confirm(error)

        return traced

    def finish_sync(self, error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """See :meth:`SyncPoint.finish_sync`; messages that are durable now become visible."""
        finished = super().finish_sync(error)
        if self._confirm_when_synced:
            self.show()
        return finished

    def show(self) -> None:
        """Let be delivered what may be delivered now."""
        end = self.log.durable_offset if self._confirm_when_synced else self.log.next_offset
        self.visible_end = end if self.produced is None else self.produced.stable_end(end)

    def is_under_way(self, end: int) -> bool:
        """Whether messages below an offset are on their way to the disk, and nobody may see them before."""
        return self._confirm_when_synced and self.failure is None and self.log.durable_offset < end

    def drop_before(self, offset: int) -> None:
        """Nobody needs what is below the offset any more; what a start has to read stays."""
        self.log.drop_before(offset if self.produced is None else min(offset, self.produced.covered))
        self.forget_before(self.log.start_offset)

    def retain(self, policy: RetentionPolicy, *, needed_from: int | None, now_ms: int = 0) -> bool:
        """Free what the policy does not keep, but nothing that groups or a start need; False: the disk failed.
        Whoever asks forgets (:meth:`forget_before`) what went."""
        if self.produced is not None:
            needed_from = self.produced.covered if needed_from is None else min(needed_from, self.produced.covered)
        try:
            self.log.retain(policy, now_ms=now_ms, needed_from=needed_from)
        except LogError:  # which the log has told of
            return False
        return True

    def load(self, offset: int, end: int | None = None) -> tuple[int, StoredMessage] | None:
        """Read the first message from an offset to ``end`` back; None when there is none. Raises :class:`LogError`.

        ``end``: None = what may be delivered. What makes room for others also reads what no sync has covered yet.
        """
        first: tuple[int, StoredMessage] | None = None
        at, end = offset, self.visible_end if end is None else end
        while first is None and at < end:
            records = self.log.read(at, min(READ_AHEAD, self._cache.most_ahead))
            if not records:
                break
            room = self._cache.ahead_bytes
            for record in records:
                try:
                    message = self._codec.decode(record)
                except ValueError as error:
                    # The checksum was right, so another program wrote it; skipping shows in the unreadable count.
                    self.log.report(record.offset, f"no message ({error}); skipped")
                    continue
                if message.expires_at < 0.0:
                    message = self._judged(record.offset, message)
                if self.expiry is not None and message is not HIDDEN and self.expiry.is_gone(record.offset):
                    # It left before a restart: whoever comes to it passes it, as what has expired.
                    message.expires_at = 0.0
                room -= self._cache.put(self.cached, record.offset, message)
                if first is None:
                    first = (record.offset, message)
                if room <= 0:
                    # A batch is read as a whole: the end of a large one would push out what is asked for next.
                    break
            at = records[-1].offset + 1
        return first

    def _judged(self, offset: int, message: StoredMessage) -> StoredMessage:
        """A message that belongs to a transaction, if that was committed or is open still; otherwise nothing."""
        if message is HIDDEN or self.produced is None or self.produced.is_aborted(offset):
            return HIDDEN
        message.expires_at = -message.expires_at
        return message

    def get(self, offset: int, end: int | None = None) -> StoredMessage | None:
        """The message at exactly that offset; None when it is damaged or gone. ``end`` and errors as :meth:`load`."""
        message = self.cached.get(offset)
        if message is None and (loaded := self.load(offset, end)) is not None and loaded[0] == offset:
            message = loaded[1]
        return message

    def uncache(self, offset: int, count: int) -> None:
        """Every group has settled these: their memory serves what comes next while the processor still has it at
        hand."""
        pop = self.cached.pop
        for each in range(offset, offset + count):
            pop(each, None)

    def abandon(self, error: QueueError) -> None:
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            call_all(unwritten.confirms, error)
        super().abandon(error)
