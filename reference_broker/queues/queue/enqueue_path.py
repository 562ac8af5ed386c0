"""What goes into a durable queue: where a message goes, whether there is room, and what is known of it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from assay.reference_broker.config import Durability, Ordering, QueueConfig, SchemaCheckConfig, SchemaMode
from assay.reference_broker.queues.groups.contents import QueueContents
from assay.reference_broker.queues.jobs.agenda import NEVER, Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored, StoredAs, ignore
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import Headers, NewRecord, QueueFiles
from assay.reference_broker.queues.limits.limits import QueueLimits
from assay.reference_broker.queues.messages.address import message_id_of
from assay.reference_broker.queues.messages.control_records import RecordMark, mark_headers
from assay.reference_broker.queues.messages.lanes import NORMAL, lane_of_exact
from assay.reference_broker.queues.messages.message_batch import Columns, MessageBatch
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY, Partitioner
from assay.reference_broker.queues.messages.publish_options import Priority, PublishOptions, bad_option, with_ttl
from assay.reference_broker.queues.messages.stored_message import (
    AT_ONCE_S,
    HIDDEN,
    Described,
    Head,
    MessageCodec,
    StoredMessage,
    beside_bytes,
    is_plain,
    message_bytes,
)
from assay.reference_broker.queues.messages.trace_context import sample, sample_batch
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.partitions.queue_facts import LANES_FACT, TTL_FACT, QueueFacts
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.remembered import SharedMemory

if TYPE_CHECKING:
    from assay.reference_broker.queues.delays.delays import Delays

_new = tuple.__new__
"""``_new(NewRecord, (...))`` is ``NewRecord(...)`` without a call of Python."""
"""Of a message the record headers but for user properties, the topic to deliver on, the routing key, what counts of it
beside payload and user properties, in bytes, and its lane."""
SCHEMA_ERROR = "schema-error"
"""User property of a message that does not fit its queue's schema, where such are only marked: why not."""
SCHEMA_INVALID = "SCHEMA_INVALID"
"""What the reason of such a dead letter begins with."""
_CHECKED_SHIFT = 12
"""A check of so many bytes costs as much as a message."""
BLOCK_MESSAGES = 32
"""Messages without a key that go to one partition together, at least, when there are enough for several blocks."""


class EnqueuePath(ABC):
    """The half of a queue that takes messages.

    The other, :class:`assay.reference_broker.queues.queue.queue.DurableQueue`, opens the partitions, and has the groups
    and the limits. A base class, and no object of its own, so that a message costs no call more.
    """

    limits: QueueLimits
    delays: Delays

    def __init__(
        self, contents: QueueContents, files: QueueFiles, agenda: Agenda, rng: random.Random, known: SharedMemory
    ) -> None:
        self.contents = contents
        config = self.config = contents.config
        self.name = config.name
        self.partitions = contents.partitions
        self.groups = contents.groups
        self._files = files
        self._facts = QueueFacts(files, self.hold_back)
        self._partitioner = Partitioner(config.partitioner, rng, known)
        self._agenda = agenda
        self._codec = MessageCodec(config.name, config.message_ttl_s, known)
        self._keeps_messages = files.keeps_messages
        self._confirm_when_synced = config.durability is Durability.FSYNC and not files.volatile
        self.read_priorities()
        self._counts_bytes = config.max_bytes > 0
        self._keeps_all = config.retention.keep_settled
        self.checks: SchemaCheckConfig | None = checks_of(config)
        """What messages must fit; None = anything."""
        self._has_at_once = False
        """Some message was to live for no time at all."""
        self._room = 0
        """Messages that certainly still fit; depth is only counted again when it is used up."""

    def read_priorities(self) -> None:
        """The configuration is new."""
        config = self.config
        self._has_priorities = config.priority.enabled and config.ordering is not Ordering.STRICT
        self._has_levels = self._has_priorities and config.priority.levels > 0
        self._codec.let_go()  # what is remembered of messages has a lane

    def forget_known(self) -> None:
        """It is gone: what it remembers of how to store messages is nobody's."""
        self._partitioner.cache.let_go()
        self._codec.let_go()

    @property
    def room(self) -> int:
        """See :class:`DelayTarget`."""
        return self.config.max_depth - self.contents.staying

    def publish(
        self,
        routing_key: str,
        message: Message,
        now: float,
        on_confirmed: Confirm | None,
        on_stored: Stored | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """Enqueue; written with the rest of the turn.

        Raises :class:`QueueError` (TOO_LARGE, FULL, STORAGE_FAILED, BAD_OPTION).
        """
        if message.expires_at and self._keeps_all:
            message = changed(message, expires_at=0.0)
        size = len(message.payload)
        if message.user_properties or message.properties is not None:
            size = message_bytes(message)
        if size > self.config.max_message_bytes:
            self.contents.refused += 1
            text = f"{size} bytes; the queue {self.name!r} takes at most {self.config.max_message_bytes}"
            raise QueueError(QueueErrorCode.TOO_LARGE, text)
        if self._counts_bytes and 0 < self.config.max_bytes < size and not self.limits.drops_what_comes:
            # Delayed, it would be tried for ever, and others behind it would wait.
            self.contents.refused += 1
            self.bury(routing_key, message, size, now)
            text = f"{size} bytes; the queue {self.name!r} holds at most {self.config.max_bytes}"
            raise QueueError(QueueErrorCode.FULL, text)
        if self.checks is not None:
            fitting = self._fitting(self.checks, routing_key, message, size, now, on_confirmed, options)
            if fitting is None:
                return
            if fitting is not message:
                message, size = fitting, message_bytes(fitting)
        if options is not None:
            if options.ttl_ms is not None and not self._keeps_all:
                message = with_ttl(message, options.ttl_ms, now)
            if self._agenda.produce is not None and options.is_produced:
                self._agenda.produce(self, routing_key, message, options, now, on_confirmed, on_stored)
                return
            if self.is_kept(routing_key, message, size, options, now, on_confirmed, on_stored):
                return
        try:
            partition = self.add(routing_key, message, size, now, on_confirmed, options)
        except QueueError as error:
            if error.code is QueueErrorCode.FULL:
                self.bury(routing_key, message, size, now)
            raise
        if on_stored is not None:
            self.tell_place(partition, on_stored)

    @property
    def refuses_misfits(self) -> bool:
        """What does not fit is not only marked."""
        return self.checks is not None and self.checks.mode is not SchemaMode.MARK

    def misfit(self, message: Message) -> str | None:
        """Why a message does not fit what the queue asks for; None = it does."""
        if self.checks is None:
            return None
        self._agenda.cost += 1 + (len(message.payload) >> _CHECKED_SHIFT)
        if self._agenda.misfit is None:
            return "this broker has no schemas: it needs the extra `schemas`"
        return self._agenda.misfit(self.checks, message)

    def _fitting(
        self,
        checks: SchemaCheckConfig,
        routing_key: str,
        message: Message,
        size: int,
        now: float,
        on_confirmed: Confirm | None,
        options: PublishOptions | None,
    ) -> Message | None:
        """The message, marked perhaps; None where it became a dead letter. Raises :class:`QueueError` (MISFIT)."""
        problem = self.misfit(message)
        if checks.mode is SchemaMode.MARK:
            own = tuple([pair for pair in message.user_properties if pair[0] != SCHEMA_ERROR])
            told = own if problem is None else (*own, (SCHEMA_ERROR, problem))
            return message if told == message.user_properties else changed(message, user_properties=told)
        if problem is None:
            return message
        # A dead letter is part of no transaction, and no number of a producer's is used up by it.
        is_alone = options is None or not options.is_produced
        if checks.mode is SchemaMode.DEAD_LETTER and self.config.dead_letters and is_alone:
            reason = f"{SCHEMA_INVALID}: {problem}"
            self.send_letter(routing_key, message, size, reason, now, ignore if on_confirmed is None else on_confirmed)
            return None
        self.contents.refused += 1
        raise QueueError(QueueErrorCode.MISFIT, f"the message does not fit the schema of {self.name!r}: {problem}")

    @abstractmethod
    def hold_back(self) -> None:
        """Have nothing written before what is known of the queue is on the disk for good."""

    @abstractmethod
    def send_letter(
        self, routing_key: str, message: Message, size: int, reason: str, now: float, on_done: Confirm
    ) -> None:
        """Have a message that the queue never took become a dead letter. Raises :class:`QueueError`."""

    @abstractmethod
    def bury(self, routing_key: str, message: Message, size: int, now: float) -> None:
        """The queue is full, and refuses a message: where it is configured so, that becomes a dead letter."""

    def lane_of(self, message: Message, priority: Priority | None) -> int:
        """The lane of a message, which was published with a priority by name, perhaps."""
        if not self._has_priorities:
            return NORMAL
        if priority is not None:
            lane = priority.value
        elif self._has_levels:
            kept = message.properties
            lane = lane_of_exact(0 if kept is None else kept.priority or 0, self.config.priority)
        else:
            return NORMAL
        if lane != NORMAL:
            self._facts.remember(LANES_FACT)
        return lane

    def add(
        self,
        routing_key: str,
        message: Message,
        size: int,
        now: float,
        on_confirmed: Confirm | None,
        options: PublishOptions | None = None,
        mark: RecordMark | None = None,
    ) -> QueuePartition:
        """Enqueue whatever its size; returns the partition that it goes to.

        ``mark``: it is from a producer, whose state the caller keeps.
        """
        if self._counts_bytes:
            self.limits.make_byte_room(size, now)
        if self._room <= 0:
            self.limits.make_room(now)
            self._room = max(1, self.contents.certain_room)
        key = message.user_property(PARTITION_KEY) if message.user_properties else None
        if mark is not None:
            partition = self.partition_for(message, options, mark.producer)
        elif options is None or options.partition is None:
            partition = self.partitions[self._partitioner.choose(key, len(self.partitions))]
        else:
            partition = self.partitions[self.explicit_partition(options.partition)]
        if partition.failure is not None:
            self.contents.refused += 1
            raise partition.failure
        priority = None if options is None else options.priority
        lane = NORMAL if priority is None and not self._has_levels else self.lane_of(message, priority)
        timestamp_ms = int(now * 1000)
        record: NewRecord | None = None
        plain = is_plain(message)
        if self._keeps_messages:
            topic = self._codec.topic(routing_key)
        else:
            headers, topic = self._codec.headers(message, routing_key, lane, plain=plain)
            record = _new(NewRecord, (timestamp_ms, b"" if key is None else key.encode(), message.payload, headers))
        enqueued_at = timestamp_ms / 1000
        expires_at = NEVER
        if message.expires_at or self._codec.ttl_s > 0:
            expires_at = self._codec.expiry(enqueued_at, message.expires_at)
            if expires_at - enqueued_at < AT_ONCE_S:
                self._has_at_once = True
            if expires_at < self.limits.sweep_at:
                self.limits.arm(expires_at)
        stored = StoredMessage(message, topic, routing_key, enqueued_at, expires_at, size, lane)
        if lane != NORMAL or message.expires_at:
            if message.expires_at:
                self._facts.remember(TTL_FACT)
            partition.list_next()
        if self._counts_bytes:
            self.limits.add_bytes(size)
        if mark is None:
            partition.add(record, stored, on_confirmed, plain=plain)
        else:
            record = record or stored.record()
            marked = record._replace(headers=record.headers + mark_headers(mark))
            partition.add_marked(marked, stored, on_confirmed, transactional=mark.transaction is not None)
        if self._agenda.tracing is not None:
            traced = sample(self._agenda.tracing, message, self.name, now)
            if traced is not None:
                partition.trace(traced)
        self._room -= 1
        self.contents.end_total += 1
        return partition

    def partition_for(self, message: Message, options: PublishOptions | None, producer: int) -> QueuePartition:
        """Where a producer's message goes: without a choice or a key always to one, so that it can number them.

        Raises :class:`QueueError` (BAD_OPTION).
        """
        if options is not None and options.partition is not None:
            return self.partitions[self.explicit_partition(options.partition)]
        key = message.user_property(PARTITION_KEY)
        count = len(self.partitions)
        return self.partitions[producer % count if key is None else self._partitioner.choose(key, count)]

    def enqueue_marked(
        self,
        routing_key: str,
        message: Message,
        now: float,
        on_confirmed: Confirm,
        options: PublishOptions,
        mark: RecordMark,
        on_stored: Stored | None,
    ) -> None:
        """Enqueue a producer's message, which was found to fit. Raises :class:`QueueError` (FULL, STORAGE_FAILED)."""
        partition = self.add(routing_key, message, message_bytes(message), now, on_confirmed, options, mark)
        if on_stored is not None:
            self.tell_place(partition, on_stored)

    def add_control(self, partition: QueuePartition, record: NewRecord, confirm: Confirm) -> None:
        """Enqueue the record that ends a transaction, whatever the limits. It never counts as a message."""

        def told(_index: int, offset: int) -> None:
            if partition.produced is not None:
                partition.produced.hide(offset)
            self.contents.end_total += 1
            self.hide(partition, (offset,))

        partition.add_marked(record, HIDDEN, confirm, transactional=True)
        partition.tell_place(told)

    def hide(self, partition: QueuePartition, offsets: Iterable[int]) -> None:
        """Records that nobody gets, and that count for no group: control records, and what was aborted."""
        expiry = partition.open_expiry()
        for offset in offsets:
            if offset < partition.log.start_offset or expiry.is_gone(offset):
                continue
            lanes = partition.lanes
            stored = partition.cached.get(offset)
            if stored is not None:
                partition.cached[offset] = HIDDEN
            expiry.mark_gone(offset)
            for group in self.groups.values():
                home = group.places[partition.index]
                place = home
                if lanes is not None:
                    place = next(lane for lane in home.lanes or (home,) if lanes.count(lane.lane, offset, offset + 1))
                if offset >= place.cursor:
                    group.cursor_total += 1
                    if partition.sizes is not None:
                        group.held_bytes -= partition.sizes.of(offset)
            if not self.groups and partition.sizes is not None and offset >= partition.head:
                self.limits.loose_bytes -= partition.sizes.of(offset)

    def explicit_partition(self, partition: int) -> int:
        """Raises :class:`QueueError` (BAD_OPTION)."""
        if partition >= len(self.partitions):
            self.contents.refused += 1
            raise bad_option(f"there is no partition {partition}: {self.name!r} has {len(self.partitions)}, from 0 on")
        return partition

    def tell_place(self, partition: QueuePartition, on_stored: Stored) -> None:
        def told(index: int, offset: int) -> None:
            on_stored(StoredAs.MESSAGE, message_id_of(self.name, index, offset))

        partition.tell_place(told)

    def is_kept(
        self,
        routing_key: str,
        message: Message,
        size: int,
        options: PublishOptions,
        now: float,
        on_confirmed: Confirm | None,
        on_stored: Stored | None,
    ) -> bool:
        """Whether the message waits for its time now. Raises :class:`QueueError`."""
        if options.partition is not None:
            self.explicit_partition(options.partition)
        try:
            return self.delays.take(routing_key, message, size, options, now, on_confirmed, on_stored)
        except QueueError:
            self.contents.refused += 1
            raise

    def enqueue_due(
        self,
        routing_key: str,
        message: Message,
        size: int,
        now: float,
        confirm: Confirm,
        options: PublishOptions | None,
    ) -> QueuePartition:
        """See :class:`DelayTarget`."""
        return self.add(routing_key, message, size, now, confirm, options)

    def enqueue_dead_letter(self, routing_key: str, message: Message, size: int, now: float, on_done: Confirm) -> None:
        """Take a dead letter, whatever its size. Raises :class:`QueueError` (FULL, STORAGE_FAILED)."""
        try:
            self.add(routing_key, message, size, now, on_done)
        except QueueError as error:
            if error.code is QueueErrorCode.FULL:
                self.bury(routing_key, message, size, now)
            raise

    def publish_batch(self, batch: MessageBatch, now: float, part: Callable[[Sequence[int]], Confirm]) -> bool:
        """See :meth:`QueueEngine.publish_batch`."""
        if self.checks is not None:
            return False
        count, timestamp_ms = len(batch.payloads), int(now * 1000)
        described = None if batch.properties is None else list(map(self._codec.describe, batch.properties))
        expires_at = self._codec.expiry(timestamp_ms / 1000, 0.0)
        largest, beside, beside_of_all, records, stored = self._columns(batch, described, timestamp_ms, expires_at)
        if largest > self.config.max_message_bytes or not self._takes_batch(count):
            return False
        self._has_at_once |= expires_at - timestamp_ms / 1000 < AT_ONCE_S
        self.limits.arm(expires_at)
        tracing = self._agenda.tracing
        chosen = {} if tracing is None else sample_batch(tracing, batch, self.name, now)
        for index, positions in self._spread(described, count):
            if self._has_levels:
                self.partitions[index].list_next()
            if isinstance(positions, range):
                block = slice(positions.start, positions.stop)
                some, run, more = records[block], stored[block], sum(beside[block])
            else:
                some, run = records and [records[at] for at in positions], [stored[at] for at in positions]
                more = sum([beside[at] for at in positions]) if beside else 0
            more += beside_of_all * len(run)
            self.partitions[index].add_run(some, run, more, part(positions))
            for at in chosen and [at for at in chosen if at in positions]:
                self.partitions[index].trace(chosen[at], len(positions) - 1 - positions.index(at))
        self._room -= count
        self.contents.end_total += count
        return True

    def _columns(
        self, batch: MessageBatch, described: Sequence[Described] | None, timestamp_ms: int, expires_at: float
    ) -> Columns:
        """What it makes of messages; where logs keep these, and lanes are none, the next queue has the same."""
        enqueued_at = timestamp_ms / 1000
        shared = batch.shared if self._keeps_messages and not self._has_levels else None
        if shared and (found := shared.get((enqueued_at, expires_at))) is not None:
            return found
        messages, payloads = batch.messages, batch.payloads
        sizes = list(map(len, payloads))
        beside = [] if described is None else [each.beside_bytes for each in described]
        beside_of_all = 0
        if described is not None:
            sizes = [each.size + size for each, size in zip(described, sizes, strict=True)]
        origins = batch.origins
        heads: Iterable[Head]
        known = self._codec.known_origins
        if isinstance(origins, Origin):
            head = known.get(origins) or self._head(origins)
            heads = repeat(head)
            if head.size:
                sizes = [size + head.size for size in sizes]
            beside_of_all = head.beside_bytes
        else:
            heads = [known.get(origin) or self._head(origin) for origin in origins]
            sizes = [size + head.size for size, head in zip(sizes, heads, strict=True)]
            beside = [head.beside_bytes + size for head, size in zip(heads, beside or repeat(0), strict=False)]
        records: list[NewRecord] = []
        if described is None and not self._keeps_messages:
            records = [
                _new(NewRecord, (timestamp_ms, b"", payload, common))
                for payload, (common, _, _, _, _, _) in zip(payloads, heads, strict=False)
            ]
        elif described is not None and not self._keeps_messages:
            records = [
                _new(NewRecord, (timestamp_ms, each.key_bytes, payload, common + each.headers))
                for payload, (common, _, _, _, _, _), each in zip(payloads, heads, described, strict=False)
            ]
        stored = [
            StoredMessage(message, topic, key, enqueued_at, expires_at, size, lane)
            for message, (_, topic, key, _, lane, _), size in zip(messages, heads, sizes, strict=False)
        ]
        made = Columns(max(sizes), beside, beside_of_all, records, stored)
        if shared is not None:
            shared[enqueued_at, expires_at] = made
        return made

    def _head(self, origin: Origin) -> Head:
        like, routing_key = origin.like, origin.routing_key
        first = Message(topic=origin.topic, payload=b"", publisher=origin.publisher) if like is None else like
        lane = self.lane_of(first, None) if self._has_levels else NORMAL
        if like is not None:
            return self._codec.alike(origin, like, lane, is_kept=self._keeps_messages)
        headers: Headers = ()
        if self._keeps_messages:
            target = self._codec.topic(routing_key)
        else:
            headers, target = self._codec.headers(first, routing_key, lane, plain=is_plain(first))
        return Head(headers, target, routing_key, 0, lane, beside_bytes(first, target, routing_key))

    def _takes_batch(self, count: int) -> bool:
        """Whether so many messages can be enqueued without a look at what each does to the limits."""
        if self._counts_bytes:
            return False
        if count > self._room:
            self._room = self.config.max_depth - self.contents.depth
            if count > self._room:
                return False
        return not [partition for partition in self.partitions if partition.failure is not None]

    def _spread(self, described: Sequence[Described] | None, count: int) -> Iterable[tuple[int, Sequence[int]]]:
        """Which of so many messages go to which partition: by their keys, and in blocks where they have none."""
        partitions = len(self.partitions)
        keys = None if described is None else self._partitioner.of_keys([each.key for each in described], partitions)
        free = count if keys is None else keys.count(None)
        size = -(-free // max(1, min(partitions, free // BLOCK_MESSAGES))) if free else 0
        first = self._partitioner.choose(None, partitions) if free else 0
        if keys is None:
            for block, begin in enumerate(range(0, count, size)):
                yield (first + block) % partitions, range(begin, min(begin + size, count))
            return
        chosen: dict[int, list[int]] = {}
        free = 0
        for at, index in enumerate(keys):
            if index is None:
                index = (first + free // size) % partitions
                free += 1
            run = chosen.get(index)
            if run is None:
                chosen[index] = [at]
            else:
                run.append(at)
        yield from chosen.items()


def checks_of(config: QueueConfig) -> SchemaCheckConfig | None:
    """None where nothing is checked."""
    return config.schema if config.schema.subject else None
