"""One durable queue: its partitions, its consumer groups, and its limits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from reference_broker.config import Durability, Ordering, QueueConfig
from reference_broker.core.message import Message
from reference_broker.core.queues import settlement
from reference_broker.core.queues.address import check_group_name, message_id_of
from reference_broker.core.queues.agenda import Agenda
from reference_broker.core.queues.confirms import Confirm, Stored, StoredAs
from reference_broker.core.queues.dead_letters import dead_letter_message
from reference_broker.core.queues.delays import Delays
from reference_broker.core.queues.delivery import GroupStats, QueueStats
from reference_broker.core.queues.dispatcher import Dispatcher
from reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode
from reference_broker.core.queues.group import ConsumerGroup
from reference_broker.core.queues.lanes import NORMAL
from reference_broker.core.queues.message_cache import MessageCache
from reference_broker.core.queues.partition import QueuePartition
from reference_broker.core.queues.partitioner import PARTITION_KEY, Partitioner
from reference_broker.core.queues.pending import GroupPartition, PendingEntry
from reference_broker.core.queues.publish_options import Priority, PublishOptions, bad_option, parse
from reference_broker.core.queues.store import NewRecord, QueueFiles, RetentionPolicy
from reference_broker.core.queues.stored_message import MessageCodec, StoredMessage, is_plain, message_bytes
from reference_broker.core.topics import TopicError, validate_filter
from reference_broker.trace.schema import TraceKind

Tracer = Callable[[TraceKind, dict[str, str | int]], None]
DeadLetterTarget = Callable[[], "DurableQueue"]

MAX_GROUPS = 1_000
LANES_FACT = "lanes"
"""Some message of the queue was not of normal priority."""
_TRIM_INTERVAL_S = 1.0
_TRIM_STEPS = 4_096
_RUN_MESSAGES = 8
"""Fewer are not worth a block."""
_BLOCK_MESSAGES = 32
"""Messages without a key that go to one partition together, at least, when there are enough for several blocks."""


class DurableQueue:
    """Implements :class:`reference_broker.core.queues.group.GroupOwner`."""

    def __init__(
        self,
        config: QueueConfig,
        files: QueueFiles,
        *,
        partitioner: Partitioner,
        cache: MessageCache,
        agenda: Agenda,
        dead_letter_target: DeadLetterTarget,
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
        self._files = files
        self._partitioner = partitioner
        self._agenda = agenda
        self._dead_letter_target = dead_letter_target
        self._tracer = tracer
        self._rng = rng
        self._codec = MessageCodec(config.name, config.message_ttl_s)
        self._confirm_when_synced = config.durability is Durability.FSYNC and not files.volatile
        self._trimmed_at = float("-inf")
        limits = config.retention
        self._retention = RetentionPolicy(
            max_bytes=limits.max_bytes, max_age_ms=int(limits.max_age_s * 1000), max_records=limits.max_messages
        )
        self.partitions = [
            QueuePartition(
                index,
                files.open_partition(index),
                self._codec,
                cache,
                agenda,
                confirm_when_synced=self._confirm_when_synced,
                volatile=files.volatile,
                on_confirmed=None if tracer is None else self._trace_confirmed,
            )
            for index in range(config.partitions)
        ]
        self._has_priorities = config.priority.enabled and config.ordering is not Ordering.STRICT
        self._has_lanes = LANES_FACT in files.facts
        if self._has_lanes:
            for partition in self.partitions:
                self._find_lanes(partition)
        self._end_total = sum(partition.log.next_offset for partition in self.partitions)
        """Sum of the next offsets, those of unwritten messages included."""
        for stored in files.groups():
            self._open_group(stored.group, stored.pattern).recover(now)
        self.delays = Delays(self, files, self._codec, agenda, now, confirm_when_synced=self._confirm_when_synced)
        self._room = config.max_depth - self.depth
        """Messages that certainly still fit; depth is only counted again when it is used up."""

    def _find_lanes(self, partition: QueuePartition) -> None:
        """Raises :class:`LogError`."""
        lanes = partition.open_lanes()

        def found(offset: int, stored: StoredMessage) -> None:
            if stored.lane != NORMAL:
                lanes.add(offset, stored.lane)

        partition.scan(found)

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
        if options is not None and self._is_kept(routing_key, message, size, options, now, on_confirmed, on_stored):
            return
        partition = self._add(routing_key, message, size, now, on_confirmed, options)
        if on_stored is not None:
            self._tell_place(partition, on_stored)

    def _lane(self, priority: Priority) -> int:
        """The lane of a message. Raises :class:`QueueError` (STORAGE_FAILED)."""
        if priority is Priority.NORMAL or not self._has_priorities:
            return NORMAL
        if not self._has_lanes:
            # Known before the first such message is, so that no restart takes it for a normal one.
            try:
                self._files.add_fact(LANES_FACT)
            except LogError as error:
                raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
            self._has_lanes = True
        return priority.value

    def _add(
        self,
        routing_key: str,
        message: Message,
        size: int,
        now: float,
        on_confirmed: Confirm | None,
        options: PublishOptions | None = None,
    ) -> QueuePartition:
        """Enqueue whatever its size; returns the partition that it goes to."""
        if self._room <= 0:
            self._make_room(now)
        key = message.user_property(PARTITION_KEY) if message.user_properties else None
        if options is None or options.partition is None:
            chosen = self._partitioner.choose(key, len(self.partitions))
        else:
            chosen = self._explicit(options.partition)
        partition = self.partitions[chosen]
        if partition.failure is not None:
            self.refused += 1
            raise partition.failure
        lane = NORMAL if options is None or options.priority is None else self._lane(options.priority)
        headers, topic = self._codec.headers(message, routing_key, lane)
        timestamp_ms = int(now * 1000)
        enqueued_at = timestamp_ms / 1000
        expires_at = self._codec.expiry(enqueued_at, message.expires_at)
        stored = StoredMessage(message, topic, routing_key, enqueued_at, expires_at, size, lane)
        record = NewRecord(timestamp_ms, b"" if key is None else key.encode(), message.payload, headers)
        partition.add(record, stored, on_confirmed)
        self._room -= 1
        self._end_total += 1
        return partition

    def _explicit(self, partition: int) -> int:
        """Raises :class:`QueueError` (BAD_OPTION)."""
        if partition >= len(self.partitions):
            self.refused += 1
            raise bad_option(f"there is no partition {partition}: {self.name!r} has {len(self.partitions)}, from 0 on")
        return partition

    def _tell_place(self, partition: QueuePartition, on_stored: Stored) -> None:
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
        if count < _RUN_MESSAGES:
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

    def _make_room(self, now: float) -> None:
        """Count again. Raises :class:`QueueError` (FULL)."""
        self._room = self.config.max_depth - self.depth
        if self._room <= 0 and now - self._trimmed_at >= _TRIM_INTERVAL_S:
            self._trimmed_at = now
            self._drop_expired(now)
            self._room = self.config.max_depth - self.depth
        if self._room <= 0:
            self.refused += 1
            text = f"the queue {self.name!r} holds {self.config.max_depth} messages, which is its limit"
            raise QueueError(QueueErrorCode.FULL, text)

    def write(self, partition: QueuePartition) -> None:
        """Write what was published to a partition since the last time, and have it delivered."""
        wanted = partition.unwritten
        had_lanes = partition.lanes is not None
        base_offset, messages = partition.write()
        if not had_lanes and partition.lanes is not None:
            for group in self.groups.values():
                group.open_lanes(group.places[partition.index])
        self.enqueued += len(messages)
        self.refused += wanted - len(messages)
        self._end_total -= wanted - len(messages)
        if len(messages) < wanted:
            # The disk may be full: what is settled makes room for the next.
            self.trim()
        if self._tracer is not None:
            for offset, stored in enumerate(messages, base_offset):
                self._trace(TraceKind.ENQUEUED, partition.index, offset, stored)
        if not self._confirm_when_synced:
            self.serve_groups()

    def _trace(self, kind: TraceKind, partition: int, offset: int, stored: StoredMessage) -> None:
        if self._tracer is not None:
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

    def group(self, group: str, pattern: str) -> ConsumerGroup:
        """The group of that name and routing-key filter, created when it is new. Raises :class:`QueueError`.

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
        cursors = self._starting_cursors()
        try:
            created = self._open_group(group_id, pattern)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        created.start_at(cursors)
        self._room = 0
        return created

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

    def _starting_cursors(self) -> list[int]:
        """A new group starts at the earliest message.

        Messages that every group has settled may still be in the log. They count for a new group only as far as
        ``max_depth`` allows, or its arrival would close the queue to publishers.
        """
        starts = [partition.head for partition in self.partitions]
        if not self.groups:
            return starts
        ends = [partition.log.next_offset for partition in self.partitions]
        total = sum(ends) - sum(starts)
        if total <= self.config.max_depth:
            return starts
        needed = self._low_watermarks()
        share = self.config.max_depth / total
        kept = [end - int((end - start) * share) for start, end in zip(starts, ends, strict=True)]
        return [min(start, low) for start, low in zip(kept, needed, strict=True)]

    def _low_watermarks(self) -> list[int]:
        """Per partition, the lowest offset that some group has not settled."""
        return [min(group.low(index) for group in self.groups.values()) for index in self._indexes]

    @property
    def _indexes(self) -> range:
        return range(len(self.partitions))

    def serve(self, group: ConsumerGroup, now: float) -> None:
        """Deliver what the group's consumers have room for."""
        self._dispatchers[group].serve(now)

    # -- dead letters --------------------------------------------------------------------------------------------

    def dead_letter(
        self, group: ConsumerGroup, entry: PendingEntry, reason: str, now: float, on_done: Confirm | None
    ) -> None:
        """Append to the dead-letter queue; the entry is settled once that is durable, so at least once."""
        if not self.config.dead_letters:
            group.counts.discarded += 1
            group.discard(entry, f"{reason}; the queue keeps no dead letters", on_done)
            return

        def moved(error: QueueError | None) -> None:
            if error is None:
                group.dead_lettered(entry, reason, on_done)
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

    # -- limits --------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages that the slowest group has not settled; all that are stored while there is no group."""
        if not self.groups:
            return self._end_total - sum(partition.head for partition in self.partitions)
        end = self._end_total
        return max(end - group.cursor_total + group.unsettled for group in self.groups.values())

    def _drop_expired(self, now: float) -> None:
        """Let go of expired messages at the front, so that they do not keep new ones out. Bounded work."""
        steps = _TRIM_STEPS
        for group in self.groups.values():
            for place in group.every_place:
                live = self._first_live(place.partition, place.lane, place.cursor, now, steps)
                steps -= self._skip(group, place, live)
        if not self.groups:
            for partition in self.partitions:
                start = partition.head
                partition.head = self._first_live(partition, None, start, now, steps)
                steps -= partition.head - start
                partition.drop_before(partition.head)

    def _first_live(self, partition: QueuePartition, lane: int | None, offset: int, now: float, steps: int) -> int:
        """The first offset from ``offset`` on, of one lane or of all, whose message has not expired."""
        lanes = partition.lanes if lane is not None else None
        for _ in range(steps):
            if lanes is not None and lane is not None:
                offset = min(lanes.next_in(lane, offset), partition.visible_end)
            if offset >= partition.visible_end:
                return offset
            try:
                stored = partition.get(offset)
            except LogError:
                return offset
            if stored is None or now < stored.expires_at:
                return offset
            offset += 1
        return offset

    def pass_time(self, group: ConsumerGroup, now: float) -> None:
        """See :class:`GroupOwner`."""
        settlement.pass_time(group, now)

    def trim(self) -> None:
        """Free whole segments that every group has settled. Without groups nothing is freed: a first may come."""
        if self.groups:
            for partition, low in zip(self.partitions, self._low_watermarks(), strict=True):
                partition.drop_before(low)
                partition.head = max(partition.head, partition.log.start_offset)

    def retain(self, now: float) -> None:
        """Apply the retention limits; where the disk fails, later again."""
        policy, past_groups = self._retention, self.config.retention.past_groups
        lows = [None] * len(self.partitions) if past_groups or not self.groups else self._low_watermarks()
        for partition, needed_from in zip(self.partitions, lows, strict=True):
            try:
                partition.log.retain(policy, now_ms=int(now * 1000), needed_from=needed_from)
            except LogError:
                continue
            if partition.log.needs_sync and not self._files.volatile:
                # What is too old as a whole goes once the segment that follows it is on disk.
                self._agenda.unsynced[partition] = None
            partition.head = max(partition.head, partition.log.start_offset)
            for group in self.groups.values():
                place = group.places[partition.index]
                for lane in place.lanes or (place,):
                    self._skip(group, lane, partition.head)
            if partition.lanes is not None:
                partition.lanes.drop_before(partition.head)
        self._room = 0

    def _skip(self, group: ConsumerGroup, place: GroupPartition, offset: int) -> int:
        """A group cannot be given what is not kept any more; it counts as expired. Returns how many these are."""
        lanes = place.partition.lanes
        passed = offset - place.cursor if lanes is None else lanes.count(place.lane, place.cursor, offset)
        if offset > place.cursor:
            place.cursor = offset
            group.counts.expired += passed
            group.cursor_total += passed
            group.moved[place] = None
            self._agenda.groups_to_write[group] = None
        return max(passed, 0)

    # -- figures -------------------------------------------------------------------------------------------------

    def stats(self, dead_letters: int) -> QueueStats:
        """``dead_letters``: depth of its dead-letter queue."""
        groups = tuple(self._group_stats(group) for group in self.groups.values())
        ready = max((group.lag + group.retrying for group in groups), default=self.depth)
        failed = self.delays.failed or any(partition.failure is not None for partition in self.partitions)
        return QueueStats(
            queue=self.name,
            partitions=len(self.partitions),
            depth=self.depth,
            ready=ready,
            in_flight=sum(group.in_flight for group in groups),
            dead_letters=dead_letters,
            consumers=sum(group.consumers for group in groups),
            stored_bytes=sum(partition.log.stored_bytes for partition in self.partitions),
            enqueued=self.enqueued,
            refused=self.refused,
            failed=failed or any(group.failure is not None for group in self.groups.values()),
            groups=groups,
            delayed=len(self.delays),
            delays=self.delays.stats(),
        )

    def _group_stats(self, group: ConsumerGroup) -> GroupStats:
        in_flight, waiting, dead_lettering = group.entry_states()
        counts = group.counts
        return GroupStats(
            group=group.group_id,
            consumers=len(group.consumers),
            lag=self._end_total - group.cursor_total,
            in_flight=in_flight,
            retrying=waiting,
            dead_lettering=dead_lettering,
            ack_floors=tuple(place.committed for place in group.places),
            generation=group.generation,
            delivered=counts.delivered,
            redelivered=counts.redelivered,
            acked=counts.acked,
            nacked=counts.nacked,
            rejected=counts.rejected,
            timed_out=counts.timed_out,
            expired=counts.expired,
            dead_lettered=counts.dead_lettered,
            discarded=counts.discarded,
            unreadable=counts.unreadable,
        )
