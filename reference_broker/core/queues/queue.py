"""One durable queue: its partitions, its consumer groups, and its limits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from reference_broker.config import Durability, Ordering, QueueConfig
from reference_broker.core.message import Message
from reference_broker.core.queues import settlement
from reference_broker.core.queues.address import MARK_GROUP, check_group_name, is_dead_letter, message_id_of
from reference_broker.core.queues.agenda import Agenda
from reference_broker.core.queues.alerts import Alerts
from reference_broker.core.queues.bindings import Captures
from reference_broker.core.queues.confirms import Confirm, Stored, StoredAs
from reference_broker.core.queues.control_records import RecordMark, mark_headers
from reference_broker.core.queues.cursors import starting_cursors
from reference_broker.core.queues.dead_letters import alert_of, dead_letter_message
from reference_broker.core.queues.delays import Delays
from reference_broker.core.queues.delivery import QueueStats
from reference_broker.core.queues.dispatcher import Dispatcher
from reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode
from reference_broker.core.queues.expiry import MessageSizes
from reference_broker.core.queues.figures import queue_stats
from reference_broker.core.queues.group import ConsumerGroup
from reference_broker.core.queues.lanes import NORMAL
from reference_broker.core.queues.limits import QueueLimits
from reference_broker.core.queues.loose_letters import LooseLetters
from reference_broker.core.queues.message_cache import MessageCache
from reference_broker.core.queues.partition import QueuePartition
from reference_broker.core.queues.partitioner import PARTITION_KEY, Partitioner
from reference_broker.core.queues.pending import GroupPartition, PendingEntry
from reference_broker.core.queues.priority_figures import PriorityRates
from reference_broker.core.queues.publish_options import Priority, PublishOptions, bad_option, parse, with_ttl
from reference_broker.core.queues.replay import inherit
from reference_broker.core.queues.store import NewRecord, QueueFiles, SyncTask
from reference_broker.core.queues.stored_message import HIDDEN, MessageCodec, StoredMessage, is_plain, message_bytes
from reference_broker.core.queues.subscribe_options import CursorPosition
from reference_broker.core.topics import TopicError, validate_filter
from reference_broker.trace.schema import TraceKind

Tracer = Callable[[TraceKind, dict[str, str | int]], None]
DeadLetterTarget = Callable[[], "DurableQueue"]

MAX_GROUPS = 1_000
PRODUCERS_FACT = "producers-"
"""And the number of a partition: producers wrote to it. The coordinator remembers them, unless power was lost first."""
LANES_FACT = "lanes"
"""Some message of the queue was not of normal priority."""
TTL_FACT = "ttl"
"""Some message had a time to live of its own."""
_RUN_MESSAGES = 8
"""Fewer are not worth a block."""
_BLOCK_MESSAGES = 32
"""Messages without a key that go to one partition together, at least, when there are enough for several blocks."""
_FACTS_OF_MESSAGES = frozenset((LANES_FACT, TTL_FACT))
"""A start looks at every message where they are true."""


class DurableQueue:
    """Implements :class:`reference_broker.core.queues.group.GroupOwner`."""

    def __init__(
        self,
        config: QueueConfig,
        files: QueueFiles,
        *,
        cache: MessageCache,
        agenda: Agenda,
        dead_letter_target: DeadLetterTarget,
        alerts: Alerts,
        tracer: Tracer | None,
        rng: random.Random,
        now: float,
    ) -> None:
        """Open the partitions and groups. Raises :class:`LogError`."""
        self.config = config
        self.name = config.name
        self.groups: dict[str, ConsumerGroup] = {}
        self._dispatchers: dict[ConsumerGroup, Dispatcher] = {}
        self.enqueued = 0
        self.refused = 0
        self.volatile = files.volatile
        self.has_producers = False
        """Some partition remembers producers."""
        self.aborted = 0
        """Messages of transactions that were aborted."""
        self.captures = Captures(self)
        self._files = files
        self._partitioner = Partitioner(config.partitioner, rng)
        self._agenda = agenda
        self._dead_letter_target = dead_letter_target
        self._alerts = alerts
        self._tracer = tracer
        self._rng = rng
        self._codec = MessageCodec(config.name, config.message_ttl_s)
        self._confirm_when_synced = config.durability is Durability.FSYNC and not files.volatile
        self.is_volatile = files.volatile
        """It is kept in memory."""
        self.priority_rates = PriorityRates()
        self.limits = QueueLimits(self, agenda, volatile=files.volatile)
        self.loose_letters = LooseLetters(self, agenda)
        self._cache = cache
        self.partitions = [self._open_partition(index) for index in range(config.partitions)]
        self._has_priorities = config.priority.enabled and config.ordering is not Ordering.STRICT
        self._counts_bytes = config.max_bytes > 0
        self._facts = set(files.facts)
        self._restore_purge()
        for partition in self.partitions:
            self._look_through(partition)
        self._end_total = sum(partition.log.next_offset for partition in self.partitions)
        """Sum of the next offsets, those of unwritten messages included."""
        for stored in files.groups():
            self._open_group(stored.group, stored.pattern).recover(now)
        for group in self.groups.values() if files.purged else ():
            for place in group.every_place:
                # The broker may have stopped before the group itself had written it down.
                self.limits.pass_purged(group, place, place.partition.head)
        self.delays = Delays(self, files, self._codec, agenda, now, confirm_when_synced=self._confirm_when_synced)
        if self.depth:
            self.limits.arm(now)
        self._room = config.max_depth - self.depth
        """Messages that certainly still fit; depth is only counted again when it is used up."""

    def _open_partition(self, index: int) -> QueuePartition:
        """Raises :class:`LogError`."""
        return QueuePartition(
            index,
            self._files.open_partition(index),
            self._codec,
            self._cache,
            self._agenda,
            confirm_when_synced=self._confirm_when_synced,
            volatile=self._files.volatile,
            on_confirmed=None if self._tracer is None else self._trace_confirmed,
        )

    def _look_through(self, partition: QueuePartition) -> None:
        """List what is special about the stored messages, where anything is. Raises :class:`LogError`."""
        if self._counts_bytes:
            partition.sizes = MessageSizes(partition.log.start_offset)
        if LANES_FACT in self._facts:
            partition.open_lanes()
        if not (self._facts & _FACTS_OF_MESSAGES or self._counts_bytes):
            return

        def found(offset: int, stored: StoredMessage) -> None:
            partition.list_message(offset, stored)
            if partition.sizes is not None:
                partition.sizes.put(offset, stored.size)

        partition.scan(found)
        if partition.sizes is not None:
            self.limits.loose_bytes += partition.sizes.total(partition.head)

    def _remember(self, fact: str) -> None:
        """Durably, before the first message of which it is true: no restart takes that for a common one.

        Raises :class:`QueueError` (STORAGE_FAILED).
        """
        if fact not in self._facts:
            try:
                self._files.add_fact(fact)
            except LogError as error:
                raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
            self._facts.add(fact)

    def remember_producers(self, index: int) -> None:
        """A partition gets its first producer. Durable on return. Raises :class:`QueueError` (STORAGE_FAILED)."""
        self._remember(f"{PRODUCERS_FACT}{index}")

    def had_producers(self, index: int) -> bool:
        """Whether a partition ever had producers."""
        return f"{PRODUCERS_FACT}{index}" in self._facts

    @property
    def settings(self) -> dict[str, Any]:
        """What was configured at run time."""
        return self._files.settings

    def _restore_purge(self) -> None:
        """Raises :class:`LogError`."""
        purged = self._files.purged
        for partition in self.partitions:
            end = purged.get(partition.index, 0)
            if end > partition.log.next_offset:
                # The log was damaged: what gets these offsets now is new.
                self._files.update_description(purged={**purged, partition.index: partition.log.next_offset})
                purged = self._files.purged
            partition.head = max(partition.head, min(end, partition.log.next_offset))

    def remember_purge(self, ends: dict[int, int]) -> None:
        """Nobody gets what is in front of these offsets, by partition. Raises :class:`LogError`."""
        self._files.update_description(purged=ends)

    def removal(self) -> SyncTask:
        """See :meth:`QueueFiles.removal`."""
        return self._files.removal()

    @property
    def consumer_count(self) -> int:
        return sum(len(group.consumers) for group in self.groups.values())

    def add_partitions(self, total: int) -> list[QueuePartition]:
        """Have so many partitions, durably on return, and share them out; returns the new ones.

        What is stored stays where it is; a key may lead to another partition from now on. Raises :class:`LogError`.
        """
        self._files.update_description(partitions=total, settings={**self.settings, "partitions": total})
        self.config = msgspec.structs.replace(self.config, partitions=total)
        self.limits.reconfigure(self.config)
        added = [self._open_partition(index) for index in range(len(self.partitions), total)]
        for partition in added:
            self._look_through(partition)
            self._end_total += partition.log.next_offset
            self.partitions.append(partition)
        for group in self.groups.values():
            group.add_partitions(added, self.config)
        self._room = 0
        return added

    def reconfigure(self, config: QueueConfig, settings: dict[str, Any]) -> None:
        """Change what may change while the queue is in use. Raises :class:`LogError`, with nothing changed."""
        self._files.update_description(settings=settings)
        if config.partitioner is not self.config.partitioner:
            self._partitioner = Partitioner(config.partitioner, self._rng)
        if config.max_bytes and not self._counts_bytes:
            self.count_bytes()
        self.config = config
        self._codec.ttl_s = config.message_ttl_s
        self.limits.reconfigure(config)
        self.limits.arm(self._agenda.now)
        self._has_priorities = config.priority.enabled and config.ordering is not Ordering.STRICT
        for group in self.groups.values():
            group.reconfigure(config)
            self._dispatchers[group] = Dispatcher(group)
        self._room = 0
        self.serve_groups()

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(
        self,
        routing_key: str,
        message: Message,
        now: float,
        on_confirmed: Confirm | None,
        on_stored: Stored | None = None,
    ) -> None:
        """Enqueue; written with the rest of the turn.

        Raises :class:`QueueError` (TOO_LARGE, FULL, STORAGE_FAILED, BAD_OPTION).
        """
        properties = message.user_properties
        size = message_bytes(message) if properties else len(message.payload)
        if size > self.config.max_message_bytes:
            self.refused += 1
            text = f"{size} bytes; the queue {self.name!r} takes at most {self.config.max_message_bytes}"
            raise QueueError(QueueErrorCode.TOO_LARGE, text)
        options = parse(message) if properties else None
        if options is not None and options.ttl_ms is not None:
            message = with_ttl(message, options.ttl_ms, now)
        if options is not None and self._agenda.produce is not None and options.is_produced:
            self._agenda.produce(self, routing_key, message, options, now, on_confirmed, on_stored)
            return
        if options is not None and self._is_kept(routing_key, message, size, options, now, on_confirmed, on_stored):
            return
        partition = self._add(routing_key, message, size, now, on_confirmed, options)
        if on_stored is not None:
            self.tell_place(partition, on_stored)

    def _lane(self, priority: Priority) -> int:
        """The lane of a message. Raises :class:`QueueError` (STORAGE_FAILED)."""
        if priority is Priority.NORMAL or not self._has_priorities:
            return NORMAL
        self._remember(LANES_FACT)
        return priority.value

    def _add(
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
        if self._room <= 0:
            self.limits.make_room(now)
            self._room = max(1, self.config.max_depth - self.staying)
        key = message.user_property(PARTITION_KEY) if message.user_properties else None
        if mark is not None:
            partition = self.partition_for(message, options, mark.producer)
        elif options is None or options.partition is None:
            partition = self.partitions[self._partitioner.choose(key, len(self.partitions))]
        else:
            partition = self.partitions[self._explicit(options.partition)]
        if partition.failure is not None:
            self.refused += 1
            raise partition.failure
        if self._counts_bytes:
            self.limits.make_byte_room(size, now)
        lane = NORMAL if options is None or options.priority is None else self._lane(options.priority)
        headers, topic = self._codec.headers(message, routing_key, lane)
        timestamp_ms = int(now * 1000)
        enqueued_at = timestamp_ms / 1000
        expires_at = self._codec.expiry(enqueued_at, message.expires_at)
        stored = StoredMessage(message, topic, routing_key, enqueued_at, expires_at, size, lane)
        if lane != NORMAL or message.expires_at:
            if message.expires_at:
                self._remember(TTL_FACT)
            partition.list_next()
        if expires_at < self.limits.wake_at:
            self.limits.arm(expires_at)
        if self._counts_bytes:
            self.limits.add_bytes(size)
        record = NewRecord(timestamp_ms, b"" if key is None else key.encode(), message.payload, headers)
        if mark is None:
            partition.add(record, stored, on_confirmed)
        else:
            marked = record._replace(headers=headers + mark_headers(mark))
            partition.add_marked(marked, stored, on_confirmed, transactional=mark.transaction is not None)
        self._room -= 1
        self._end_total += 1
        return partition

    def partition_for(self, message: Message, options: PublishOptions | None, producer: int) -> QueuePartition:
        """Where a producer's message goes: without a choice or a key always to one, so that it can number them.

        Raises :class:`QueueError` (BAD_OPTION).
        """
        if options is not None and options.partition is not None:
            return self.partitions[self._explicit(options.partition)]
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
        partition = self._add(routing_key, message, message_bytes(message), now, on_confirmed, options, mark)
        if on_stored is not None:
            self.tell_place(partition, on_stored)

    def add_control(self, partition: QueuePartition, record: NewRecord, confirm: Confirm) -> None:
        """Enqueue the record that ends a transaction, whatever the limits."""

        def told(_index: int, offset: int) -> None:
            if partition.produced is not None:
                partition.produced.hide(offset)
            self.hide(partition, (offset,))

        self._end_total += 1
        self._room -= 1
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

    def _explicit(self, partition: int) -> int:
        """Raises :class:`QueueError` (BAD_OPTION)."""
        if partition >= len(self.partitions):
            self.refused += 1
            raise bad_option(f"there is no partition {partition}: {self.name!r} has {len(self.partitions)}, from 0 on")
        return partition

    def tell_place(self, partition: QueuePartition, on_stored: Stored) -> None:
        def told(index: int, offset: int) -> None:
            on_stored(StoredAs.MESSAGE, message_id_of(self.name, index, offset))

        partition.tell_place(told)

    def _is_kept(
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
            self._explicit(options.partition)
        try:
            return self.delays.take(routing_key, message, size, options, now, on_confirmed, on_stored)
        except QueueError:
            self.refused += 1
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
        return self._add(routing_key, message, size, now, confirm, options)

    def publish_run(
        self, routing_key: str, messages: Sequence[Message], now: float, part: Callable[[int], Confirm]
    ) -> bool:
        """See :meth:`QueueEngine.publish_run`."""
        count = len(messages)
        limit = self.config.max_message_bytes
        if count < _RUN_MESSAGES or self._counts_bytes:
            return False
        if count > self._room:
            self._room = self.config.max_depth - self.depth
            if count > self._room:
                return False
        if not all(is_plain(message) and len(message.payload) <= limit for message in messages):
            return False
        if any(partition.failure is not None for partition in self.partitions):
            return False
        timestamp_ms = int(now * 1000)
        enqueued_at = timestamp_ms / 1000
        expires_at = self._codec.expiry(enqueued_at, 0.0)
        if expires_at < self.limits.wake_at:
            self.limits.arm(expires_at)
        headers = self._codec.headers
        blocks = max(1, min(len(self.partitions), count // _BLOCK_MESSAGES))
        size = -(-count // blocks)
        first = self._partitioner.choose(None, len(self.partitions))
        for block in range(blocks):
            some = messages[block * size : (block + 1) * size]
            records: list[NewRecord] = []
            stored: list[StoredMessage] = []
            for message in some:
                payload = message.payload
                header, topic = headers(message, routing_key)
                records.append(NewRecord(timestamp_ms, b"", payload, header))
                stored.append(StoredMessage(message, topic, routing_key, enqueued_at, expires_at, len(payload)))
            if some:
                partition = self.partitions[(first + block) % len(self.partitions)]
                partition.add_run(records, stored, part(len(some)))
        self._room -= count
        self._end_total += count
        return True

    def write(self, partition: QueuePartition) -> None:
        """Write what was published to a partition since the last time, and have it delivered."""
        wanted = partition.unwritten
        had_lanes = partition.lanes is not None
        unwritten_bytes = partition.unwritten_bytes if self._counts_bytes else 0
        base_offset, messages = partition.write()
        if not had_lanes and partition.lanes is not None:
            for group in self.groups.values():
                group.open_lanes(group.places[partition.index])
        self.enqueued += len(messages)
        if partition.produced is not None:
            self.enqueued -= messages.count(HIDDEN)
        self.refused += wanted - len(messages)
        self._end_total -= wanted - len(messages)
        if len(messages) < wanted:
            if self._counts_bytes:
                self.limits.add_bytes(-unwritten_bytes)
            # The disk may be full: what is settled makes room for the next.
            self.trim()
        if self._tracer is not None:
            for offset, stored in enumerate(messages, base_offset):
                self._trace(TraceKind.ENQUEUED, partition.index, offset, stored)
        if not self._confirm_when_synced:
            self.serve_groups()

    def write_unwritten(self) -> bool:
        """Write what this turn has published so far; False when that is nothing."""
        waiting = [partition for partition in self.partitions if partition.unwritten]
        for partition in waiting:
            self._agenda.partitions_to_write.pop(partition, None)
            self.write(partition)
        return bool(waiting)

    def trace_place(self, kind: TraceKind, partition: int, offset: int, group: str, detail: str) -> None:
        """Something happened to a message that was never delivered."""
        if self._tracer is not None:
            fields: dict[str, str | int] = {
                "queue": self.name,
                "partition": partition,
                "offset": offset,
                "message_id": message_id_of(self.name, partition, offset),
                "detail": detail,
            }
            if group:
                fields["group"] = group
            self._tracer(kind, fields)

    def _trace(self, kind: TraceKind, partition: int, offset: int, stored: StoredMessage) -> None:
        if self._tracer is not None and stored is not HIDDEN:
            fields: dict[str, str | int] = {
                "queue": self.name,
                "partition": partition,
                "offset": offset,
                "message_id": message_id_of(self.name, partition, offset),
                "client_id": stored.message.publisher,
                "topic": stored.message.topic,
            }
            self._tracer(kind, fields)

    def _trace_confirmed(self, partition: int, offset: int, stored: StoredMessage) -> None:
        self._trace(TraceKind.CONFIRMED, partition, offset, stored)

    def serve_groups(self) -> None:
        """Something may be deliverable."""
        for group in self.groups.values():
            if group.consumers:
                self._agenda.groups_to_serve[group] = None

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, group: str, pattern: str, position: CursorPosition | None = None) -> ConsumerGroup:
        """The group of that name and routing-key filter, created when it is new. Raises :class:`QueueError`.

        A new group starts at ``position``; None = where the queue's configuration says.
        A filter makes a group of its own, ``<group>@<filter>``, since each group has one cursor per partition.
        """
        check_group_name(group)
        pattern = "" if pattern == "#" else pattern
        if pattern:
            try:
                validate_filter(pattern)
            except TopicError as error:
                raise QueueError(QueueErrorCode.BAD_ADDRESS, str(error)) from error
        group_id = f"{group}@{pattern}" if pattern else group
        existing = self.groups.get(group_id)
        if existing is not None:
            if existing.pattern != pattern:
                text = f"the group id {group_id!r} is taken by a group with the filter {existing.pattern!r}"
                raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
            return existing
        if len(self.groups) >= MAX_GROUPS:
            text = f"the queue {self.name!r} has {MAX_GROUPS} consumer groups, which is the limit"
            raise QueueError(QueueErrorCode.LIMIT, text)
        starts = starting_cursors(self, position)
        try:
            created = self._open_group(group_id, pattern)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        if others := is_dead_letter(self.name) and list(self.groups.values())[:-1]:
            starts = [max(start, min(other.low(index) for other in others)) for index, start in enumerate(starts)]
        created.start_at(starts)
        if others:
            inherit(created, others, self._agenda.now)
            self.retire_mark()
        self._room = 0
        return created

    def mark_without_groups(self) -> None:
        """See to it that there is a group, if only the broker's own, that remembers what is gone.

        Raises :class:`QueueError` (STORAGE_FAILED).
        """
        self.retire_mark()
        if self.groups:
            return
        starts = [partition.head for partition in self.partitions]
        try:
            self._open_group(MARK_GROUP, "").start_at(starts)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        self._room = 0

    def retire_mark(self) -> None:
        """The broker's own group is not needed beside another. Where it cannot go now it goes later."""
        mark = self.groups.get(MARK_GROUP)
        if mark is None or len(self.groups) == 1 or mark.is_syncing or mark.entry_states()[2]:
            return
        with suppress(LogError):
            self.delete_group(mark)

    def _open_group(self, group_id: str, pattern: str) -> ConsumerGroup:
        group = ConsumerGroup(
            self,
            self.config,
            group_id,
            pattern,
            self._files.open_group(group_id, pattern),
            self.partitions,
            self._agenda,
            self._tracer,
            rng=self._rng,
            confirm_when_synced=self._confirm_when_synced,
            volatile=self._files.volatile,
        )
        self.groups[group_id] = group
        self._dispatchers[group] = Dispatcher(group)
        return group

    def unsettled_starts(self) -> list[tuple[QueuePartition, int]]:
        """Every partition, with the lowest offset that some group has not settled, or the lowest that is kept."""
        starts = self.low_watermarks() if self.groups else [partition.head for partition in self.partitions]
        return [
            (partition, max(start, partition.head)) for partition, start in zip(self.partitions, starts, strict=True)
        ]

    def low_watermarks(self) -> list[int]:
        """Per partition, the lowest offset that some group has not settled."""
        return [min(group.low(index) for group in self.groups.values()) for index in self._indexes]

    @property
    def _indexes(self) -> range:
        return range(len(self.partitions))

    def delete_group(self, group: ConsumerGroup) -> None:
        """Delete a group that has no consumers and no sync under way. Raises :class:`LogError`."""
        self._agenda.forget(group)
        del self.groups[group.group_id]
        del self._dispatchers[group]
        group.close_log()
        self._files.remove_group(group.group_id)
        self.trim()
        self.recount()

    def dispatcher(self, group: ConsumerGroup) -> Dispatcher:
        return self._dispatchers[group]

    def write_waiting(self) -> None:
        """Write what was published this turn, so that it has offsets."""
        for partition in self.partitions:
            if partition.unwritten:
                self._agenda.partitions_to_write.pop(partition, None)
                self.write(partition)

    def recount(self) -> None:
        """Groups moved: what room there is has to be counted again."""
        self._room = 0

    def serve(self, group: ConsumerGroup, now: float) -> None:
        """Deliver what the group's consumers have room for."""
        self._dispatchers[group].serve(now)

    # -- dead letters --------------------------------------------------------------------------------------------

    def dead_letter_target(self) -> DurableQueue:
        """Its dead-letter queue, created when it is new. Raises :class:`QueueError`."""
        return self._dead_letter_target()

    def enqueue_dead_letter(self, routing_key: str, message: Message, size: int, now: float, on_done: Confirm) -> None:
        """Take a dead letter, whatever its size. Raises :class:`QueueError` (FULL, STORAGE_FAILED)."""
        self._add(routing_key, message, size, now, on_done)

    def dead_letter(
        self, group: ConsumerGroup, entry: PendingEntry, reason: str, now: float, on_done: Confirm | None
    ) -> None:
        """Append to the dead-letter queue; the entry is settled once that is durable, so at least once."""
        if not self.config.dead_letters:
            group.counts.discarded += 1
            group.discard(entry, f"{reason}; the queue keeps no dead letters", on_done)
            return

        stored: StoredMessage | None = None

        def moved(error: QueueError | None) -> None:
            if error is None:
                group.dead_lettered(entry, reason, on_done)
                if stored is not None:
                    self.alert(entry, stored, reason, self._agenda.now)
                return
            group.dead_letter_failed(entry, reason)
            if on_done is not None:
                on_done(error)

        try:
            stored = entry.place.partition.get(entry.offset)
        except LogError as error:
            moved(QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))
            return
        if stored is None:
            group.counts.unreadable += 1
            group.discard(entry, "unreadable", on_done)
            return
        message = dead_letter_message(self.name, group.group_id, entry, stored, reason, now)
        try:
            target = self._dead_letter_target()
            target._add(stored.routing_key, message, stored.size, now, moved)
        except QueueError as error:
            moved(error)

    def alert(self, entry: PendingEntry, stored: StoredMessage, reason: str, now: float) -> None:
        """Tell the web hook, if there is one, of a dead letter that is safe."""
        config = self.config.dead_letter
        if config.alert_webhook:
            alert = alert_of(self.name, entry, stored, reason, now)
            self._alerts.add(
                config.alert_webhook, alert, attempts=config.alert_attempts, timeout_s=config.alert_timeout_s
            )

    # -- limits --------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages that the slowest group has not settled; all that are stored while there is no group."""
        if not self.groups:
            return self._end_total - sum(partition.head + partition.gone_count for partition in self.partitions)
        end = self._end_total
        return max(end - group.cursor_total + group.unsettled for group in self.groups.values())

    @property
    def staying(self) -> int:
        """The depth, without what is only waiting for the dead-letter queue to have it."""
        return max(map(self.staying_of, self.groups.values())) if self.groups else self.depth

    def staying_of(self, group: ConsumerGroup) -> int:
        """Likewise, of one group."""
        return self._end_total - group.cursor_total + group.unsettled - group.leaving

    def expire_next(self, group: ConsumerGroup, place: GroupPartition, now: float) -> None:
        """See :meth:`GroupOwner.expire_next`."""
        self.limits.expire_next(group, place, now)

    def expire_entry(self, group: ConsumerGroup, entry: PendingEntry, now: float) -> None:
        """See :meth:`GroupOwner.expire_entry`."""
        self.limits.expire_entry(group, entry, now)

    def pass_time(self, group: ConsumerGroup, now: float) -> None:
        """See :class:`GroupOwner`."""
        settlement.pass_time(group, now)

    def trim(self) -> None:
        """See :meth:`QueueLimits.trim`."""
        self.limits.trim()

    def retain(self, now: float) -> None:
        """See :meth:`QueueLimits.retain`."""
        self.limits.retain(now)
        self._room = 0

    def count_bytes(self) -> None:
        """From now on; the stored messages are looked through. Raises :class:`LogError`."""
        self._counts_bytes = True
        for partition in self.partitions:
            sizes = partition.sizes = MessageSizes(partition.log.start_offset)
            partition.scan(lambda offset, stored, sizes=sizes: sizes.put(offset, stored.size))  # type: ignore[misc]
        self.limits.loose_bytes = sum(
            partition.sizes.total(partition.head) + partition.unwritten_bytes
            for partition in self.partitions
            if partition.sizes is not None
        )
        for group in self.groups.values():
            group.count_bytes()

    # -- figures -------------------------------------------------------------------------------------------------

    def stats(self, dead_letters: int) -> QueueStats:
        """``dead_letters``: depth of its dead-letter queue."""
        return queue_stats(self, dead_letters)

    @property
    def end_total(self) -> int:
        """Sum of the partitions' ends, unwritten messages included."""
        return self._end_total
