"""One durable queue: its partitions, its consumer groups, and its limits."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from assay.reference_broker.config import EventKind, LimitScope, Overflow, QueueConfig
from assay.reference_broker.queues.dead_letters.alerts import Alerts
from assay.reference_broker.queues.dead_letters.dead_letters import alert_of, dead_letter_message, refused_letter
from assay.reference_broker.queues.dead_letters.undelivered import DeadLetterTarget, UndeliveredLetters
from assay.reference_broker.queues.delays.delays import Delays
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.groups.contents import QueueContents
from assay.reference_broker.queues.groups.cursors import starting_cursors
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import GroupPartition, PendingEntry
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST, CursorPosition
from assay.reference_broker.queues.groups.take_up import inherit
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import (
    Confirm,
    RewrittenPoint,
    SyncPoint,
    call_all,
    ignore,
    sync_now,
)
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.store import QueueFiles, SyncTask
from assay.reference_broker.queues.limits.limits import QUEUE_FULL, QueueLimits
from assay.reference_broker.queues.messages.address import MARK_GROUP, check_group_name, is_dead_letter, message_id_of
from assay.reference_broker.queues.messages.lanes import lane_count
from assay.reference_broker.queues.messages.message_cache import MessageCache
from assay.reference_broker.queues.messages.partitioner import Partitioner
from assay.reference_broker.queues.messages.stored_message import HIDDEN, StoredMessage
from assay.reference_broker.queues.partitions.departures import Departures
from assay.reference_broker.queues.partitions.expiry import MessageSizes
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue.bindings import Captures
from assay.reference_broker.queues.queue.enqueue_path import EnqueuePath, checks_of
from assay.reference_broker.queues.queue.priority_figures import PriorityRates
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import SharedMemory
from assay.reference_broker.routing.topics import TopicError, validate_filter
from assay.reference_broker.trace.schema import TraceKind, Tracer

MAX_CHANGES: Final = 64
"""Changes of one queue that wait for the disk together."""


class DurableQueue(EnqueuePath):
    """The whole queue; implements :class:`assay.reference_broker.queues.groups.group.GroupOwner`."""

    def __init__(
        self,
        config: QueueConfig,
        files: QueueFiles,
        *,
        cache: MessageCache,
        known: SharedMemory,
        agenda: Agenda,
        dead_letter_target: DeadLetterTarget,
        alerts: Alerts,
        tracer: Tracer | None,
        rng: random.Random,
        now: float,
    ) -> None:
        """Open the partitions and groups. Raises :class:`LogError`."""
        super().__init__(QueueContents(config, tracer), files, agenda, rng, known)
        self.admit_group: Callable[[], None] = lambda: None
        """Asked before a group is created; raises :class:`QueueError` where there is no room for more."""
        self._dispatchers: dict[ConsumerGroup, Dispatcher] = {}
        self.enqueued = 0
        self.volatile = files.volatile
        """It is kept in memory."""
        self.has_producers = False
        """Some partition remembers producers."""
        self.aborted = 0
        """Messages of transactions that were aborted."""
        self.captures = Captures(self.name, self.publish)
        self._dead_letter_target = dead_letter_target
        self._alerts = alerts
        self._rng = rng
        self.priority_rates = PriorityRates(self.contents)
        self.undelivered = UndeliveredLetters(self.contents, agenda, dead_letter_target, self.alert)
        self.limits = QueueLimits(
            self.contents,
            self.undelivered,
            agenda,
            write_unwritten=self.write_unwritten,
            free_delays=lambda: self.delays.free_settled(),
            volatile=files.volatile,
        )
        self._cache = cache
        self._known = known
        self.description = RewrittenPoint(files.description)
        """What is known of it, where that is changed by a sync."""
        self.is_new = files.description.is_new
        """Until a sync has made it nobody is told that it is there, and nothing is written to its logs."""
        self.is_told_of = not self.is_new
        """Webhooks may know of it."""
        self.on_unmade: Callable[[QueueError], None] = ignore
        """Called when it could not be made."""
        self._held: dict[SyncPoint, None] = {}
        """What is to be written once it is made."""
        self._told_when_made: list[Confirm] = []
        self._is_held = self._is_asked = False
        """What is known of it is not on the disk yet, and nothing is written before; and a sync was asked for."""
        self.settings = files.settings
        """What was configured at run time."""
        self.wanted = config
        """How it is configured once all changes that were asked for are on the disk."""
        self.leaving: dict[ConsumerGroup, SyncPoint] = {}
        """Groups that are being deleted, and what removes their files."""
        self._changes = 0
        """How many wait for the disk."""
        self.partitions += [self._open_partition(index) for index in range(config.partitions)]
        self._facts.restore_purge(self.partitions)
        self.departures = self.contents.departures = Departures(files, agenda, self.partitions)
        for partition in self.partitions:
            self._look_through(partition)
        self.contents.end_total = sum(partition.log.next_offset for partition in self.partitions)
        for stored in files.groups():
            self._open_group(stored.group, stored.pattern).recover(now)
        for group in self.groups.values():
            for place in group.every_place:
                # The broker may have stopped before the group itself had written it down.
                self.pass_over(group, place, place.partition.head)
        self.delays = Delays(self, files, self._codec, agenda, now, confirm_when_synced=self._confirm_when_synced)
        if self.contents.depth:
            self.limits.arm(now)
            if config.limits_count is LimitScope.READY:
                self.limits.trim_ready(now)
        self._room = config.max_depth - self.contents.depth

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
            on_confirmed=None if self.contents.tracer is None else self._trace_confirmed,
            lane_count=lane_count(self.config.priority),
        )

    def _look_through(self, partition: QueuePartition) -> None:
        """List what is special about the stored messages, where anything is. Raises :class:`LogError`."""
        if self._counts_bytes:
            partition.sizes = MessageSizes(partition.log.start_offset)
        if self._facts.has_lanes:
            partition.open_lanes()
        if not (self._facts.of_messages or self._counts_bytes):
            return

        def found(offset: int, stored: StoredMessage) -> None:
            partition.list_message(offset, stored)
            if partition.sizes is not None:
                partition.sizes.put(offset, stored.size)

        partition.scan(found)
        if partition.sizes is not None:
            self.limits.loose_bytes += partition.kept_bytes

    def remember_producers(self, index: int) -> None:
        """A partition gets its first producer."""
        self._facts.remember_producers(index)

    def had_producers(self, index: int) -> bool:
        """Whether a partition ever had producers."""
        return self._facts.had_producers(index)

    def remember_settled(self) -> None:
        """The first of its deliveries is settled in a transaction, which is decided once :attr:`description` has it."""
        if not self.volatile:
            self._facts.remember_settled()

    @property
    def needs_transactions(self) -> bool:
        """See :attr:`QueueFacts.of_transactions`."""
        return self._facts.of_transactions

    @property
    def wanted_settings(self) -> dict[str, Any]:
        """What of :attr:`wanted` was configured at run time."""
        return self._files.settings

    def remember_purge(self, ends: dict[int, int], on_done: Confirm) -> None:
        """Nobody gets what is in front of these offsets, by partition, once ``on_done`` says so."""
        self._files.update_description(purged=ends)
        self.when_remembered(on_done)

    def when_remembered(self, confirm: Confirm) -> None:
        """Call it once the disk has all that is known of the queue, or with the error."""
        self._when_done(self.description, confirm)

    def _when_done(self, point: SyncPoint, confirm: Confirm) -> None:
        def told(error: QueueError | None) -> None:
            self._changes -= 1
            confirm(error)

        self._changes += 1
        if point.failure is None and not self.volatile and point.when_synced(told):
            self._agenda.awaited_syncs[point] = None
        else:
            told(point.failure)

    def check_changes(self) -> None:
        """Raises :class:`QueueError` (LIMIT) where too many changes wait for the disk."""
        if self._changes >= MAX_CHANGES:
            raise QueueError(
                QueueErrorCode.LIMIT, f"{MAX_CHANGES} changes of the queue {self.name!r} wait for the disk"
            )

    def hold_back(self) -> None:
        """See :class:`EnqueuePath`."""
        if not self.volatile:
            self._is_held = True
            self._ask()

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self.when_remembered(self._remembered)

    def _remembered(self, error: QueueError | None) -> None:
        self._is_asked = False
        if error is not None:
            # What was to be written is refused; with what comes next it is tried again.
            self._facts.state()
            for point in [point for point in self._held if isinstance(point, QueuePartition)]:
                del self._held[point]
                self._refused(point.unwritten_bytes, point.refuse_unwritten(error))
        elif self._files.description.needs_sync:
            self._ask()
        else:
            self._is_held = False
            self._release()

    # -- being made ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """It was asked for just now: the next jobs make it, if it is not there."""
        if self.is_new and self.description.when_synced(self._made):
            self._agenda.awaited_syncs[self.description] = None

    def when_made(self, confirm: Confirm) -> None:
        """Call it once the queue is there for good, or with the error."""
        if not self.is_new:
            confirm(None)
        elif len(self._told_when_made) >= self.config.group.max_consumers:
            confirm(QueueError(QueueErrorCode.LIMIT, f"too many wait for the queue {self.name!r} to be made"))
        else:
            self._told_when_made.append(confirm)

    def _made(self, error: QueueError | None) -> None:
        was_new, self.is_new = self.is_new, False
        self._release()
        told, self._told_when_made = self._told_when_made, []
        call_all(told, error)
        if was_new and error is not None and error.code is not QueueErrorCode.CLOSED:
            self.on_unmade(error)

    def go_on(self) -> None:
        """Nothing is held back any more."""
        self.is_new = self._is_held = False
        self._release()

    def _release(self) -> None:
        if self.is_new:
            return
        held, self._held = self._held, {}
        for point in held:
            if isinstance(point, ConsumerGroup):
                self._agenda.groups_to_write[point] = None
            else:
                self._agenda.partitions_to_write[point] = None

    def holds(self, point: SyncPoint) -> bool:
        """Nothing of a log is to be written now: it will be, later, unless it is that of a group that goes."""
        if self.is_new:
            self._held[point] = None
            return True
        return point in self.leaving

    def _make_now(self) -> None:
        """Something in this turn needs to know where its messages are. Blocking. Raises :class:`LogError`."""
        if self.is_new or self._is_held:
            self._files.write_description()
            self._is_held = False
            self._made(None)

    @property
    def points(self) -> tuple[SyncPoint, ...]:
        """Every open log."""
        return (*self.state_points, *self.partitions, *self.delays.points, *self.departures.points)

    @property
    def state_points(self) -> tuple[SyncPoint, ...]:
        """Those of what is known of it, and of its groups."""
        return (self.description, *self.groups.values(), *self.leaving.values())

    @property
    def note_count(self) -> int:
        """See :attr:`QueueFiles.note_count`."""
        return self._files.note_count

    def removal(self) -> SyncTask:
        """See :meth:`QueueFiles.removal`."""
        return self._files.removal()

    @property
    def consumer_count(self) -> int:
        return sum(len(group.consumers) for group in self.groups.values())

    def add_partitions(self, total: int, on_done: Confirm) -> None:
        """Have so many partitions, and share them out; ``on_done`` is called once that is durable, or with the error.

        What is stored stays where it is; a key may lead to another partition from now on.
        """
        settings = {**self.wanted_settings, "partitions": total}
        self._files.update_description(partitions=total, settings=settings)
        self.wanted = msgspec.structs.replace(self.wanted, partitions=total)

        def extend(error: QueueError | None) -> None:
            if error is None:
                try:
                    self._extend(total)
                    self.settings = settings
                except LogError as failure:
                    error = QueueError(QueueErrorCode.STORAGE_FAILED, str(failure))
            if error is not None:
                self.wanted = msgspec.structs.replace(self.wanted, partitions=len(self.partitions))
            on_done(error)

        self.when_remembered(extend)

    def _extend(self, total: int) -> None:
        """Raises :class:`LogError`, with no more partitions than before."""
        added: list[QueuePartition] = []
        try:
            for index in range(len(self.partitions), total):
                added.append(self._open_partition(index))
                self._look_through(added[-1])
        except LogError:
            for partition in added:
                partition.close_log()
            raise
        self.config = self.contents.config = msgspec.structs.replace(self.config, partitions=total)
        self.limits.reconfigure()
        for partition in added:
            self.contents.end_total += partition.log.next_offset
            self.partitions.append(partition)
            self._agenda.owners[partition] = self
        for group in self.groups.values():
            group.add_partitions(added, self.config)
        self._room = 0

    def reconfigure(self, config: QueueConfig, settings: dict[str, Any], on_done: Confirm) -> None:
        """Change what may change while the queue is in use; ``on_done`` is called once that holds, which is once it is
        durable, or with the error, and nothing changed."""
        self._files.update_description(settings=settings)
        self.wanted = config

        def apply(error: QueueError | None) -> None:
            if error is None:
                self.settings = settings
                self.apply(msgspec.structs.replace(config, partitions=len(self.partitions)))
            else:
                self.wanted = self.config
            on_done(error)

        self.when_remembered(apply)

    def apply(self, config: QueueConfig) -> None:
        """From now on the queue is configured like that."""
        if config.partitioner is not self.config.partitioner:
            self._partitioner.cache.let_go()
            self._partitioner = Partitioner(config.partitioner, self._rng, self._known)
        self.config = self.contents.config = config
        if config.message_ttl_s != self._codec.ttl_s:
            self._codec.ttl_s = config.message_ttl_s
            self.limits.look_anew()
        self._keeps_all = config.retention.keep_settled
        self.checks = checks_of(config)
        self.limits.reconfigure()
        self.limits.arm(self._agenda.now)
        self.read_priorities()
        for group in self.groups.values():
            group.reconfigure(config)
            self._dispatchers[group] = Dispatcher(group)
        self._room = 0
        self.serve_groups()

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, partition: QueuePartition) -> None:
        """Write what was published to a partition since the last time, and have it delivered."""
        if self.is_new or self._is_held:
            self._held[partition] = None
            if not self.is_new:
                self._ask()
            return
        had_lanes = partition.lanes is not None
        unwritten_bytes = partition.unwritten_bytes if self._counts_bytes else 0
        base_offset, messages, refused = partition.write()
        if partition.lanes is not None and not had_lanes:
            for group in self.groups.values():
                group.open_lanes(group.places[partition.index])
        self.enqueued += len(messages)
        if partition.produced is not None:
            self.enqueued -= messages.count(HIDDEN)
        if refused:
            self._refused(unwritten_bytes, refused)
        if self.contents.tracer is not None:
            for offset, stored in enumerate(messages, base_offset):
                self._trace(TraceKind.ENQUEUED, partition.index, offset, stored)
        if not self._confirm_when_synced:
            self.serve_groups()

    def _refused(self, unwritten_bytes: int, refused: list[StoredMessage]) -> None:
        """The disk did not take messages that were collected."""
        count = len(refused) - refused.count(HIDDEN)
        self.contents.refused += count
        self.contents.end_total -= count
        if self._counts_bytes:
            self.limits.add_bytes(-unwritten_bytes)
        # The disk may be full: what is settled makes room for the next.
        self.trim()

    def write_unwritten(self) -> bool:
        """Write what this turn has published so far, so that it has offsets; False when that is nothing."""
        waiting = [partition for partition in self.partitions if partition.unwritten]
        if waiting and (self.is_new or self._is_held):
            try:
                self._make_now()
            except LogError:  # which people are told of
                return False
        for partition in waiting:
            self._agenda.partitions_to_write.pop(partition, None)
            self.write(partition)
        return bool(waiting)

    def _trace(self, kind: TraceKind, partition: int, offset: int, stored: StoredMessage) -> None:
        if self.contents.tracer is not None and stored is not HIDDEN:
            fields: dict[str, str | int] = {
                "queue": self.name,
                "partition": partition,
                "offset": offset,
                "message_id": message_id_of(self.name, partition, offset),
                "client_id": stored.message.publisher,
                "topic": stored.message.topic,
            }
            self.contents.tracer(kind, fields)

    def _trace_confirmed(self, partition: int, offset: int, stored: StoredMessage) -> None:
        self._trace(TraceKind.CONFIRMED, partition, offset, stored)

    def serve_groups(self) -> None:
        """Something may be deliverable."""
        for group in self.groups.values():
            if group.consumers:
                self._agenda.groups_to_serve[group] = None
        if self._has_at_once:
            # What nobody has room for goes right behind.
            self.limits.arm(self._agenda.now)

    # -- groups --------------------------------------------------------------------------------------------------

    def group(
        self, group: str, pattern: str, position: CursorPosition | None = None, *, transient: bool = False
    ) -> ConsumerGroup:
        """The group of that name and routing-key filter, created when it is new. Raises :class:`QueueError`.

        A new group starts at ``position``; None = where the queue's configuration says. ``transient``: see there.
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
            if existing in self.leaving:
                raise QueueError(QueueErrorCode.IN_USE, f"the group {group_id!r} is being deleted: try again later")
            return existing
        count = len(self.groups) - (MARK_GROUP in self.groups)
        if count >= self.config.max_groups:
            text = f"the queue {self.name!r} has {count} consumer groups, which is the limit (max_groups)"
            raise QueueError(QueueErrorCode.LIMIT, text)
        self.admit_group()
        starts = starting_cursors(self.contents, position)
        try:
            created = self._open_group(group_id, pattern, transient=transient)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
        if others := is_dead_letter(self.name) and list(self.groups.values())[:-1]:
            starts = [max(start, min(other.low(index) for other in others)) for index, start in enumerate(starts)]
        created.start_at(starts)
        if others:
            inherit(created, others, self._agenda.now)
            if not transient:
                self.retire_mark()
        created.begin(waits=self.is_new)
        # With its log: a broker that is killed in between would find a group that begins at the first message.
        created.write(self._agenda.now)
        self._room = 0
        return created

    def mark_without_groups(self) -> None:
        """See to it that there is a group, if only the broker's own, that remembers what is gone.

        Raises :class:`QueueError` (STORAGE_FAILED).
        """
        self.retire_mark()
        if self.contents.has_lasting_groups:
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
        lasting = sum(not group.transient for group in self.groups.values())
        if mark is None or lasting == 1 or mark.is_syncing or mark.moving_count:
            return
        with suppress(LogError):
            self.delete_group_now(mark)

    def _open_group(self, group_id: str, pattern: str, *, transient: bool = False) -> ConsumerGroup:
        group = ConsumerGroup(
            self,
            self.config,
            group_id,
            pattern,
            self._files.open_group(group_id, pattern, transient=transient),
            self.partitions,
            self._agenda,
            self.contents.tracer,
            rng=self._rng,
            confirm_when_synced=self._confirm_when_synced and not transient,
            volatile=self._files.volatile or transient,
            transient=transient,
        )
        self.groups[group_id] = group
        self._dispatchers[group] = Dispatcher(group)
        return group

    def pass_over(self, group: ConsumerGroup, place: GroupPartition, end: int) -> int:
        """See :class:`GroupOwner`."""
        return self.limits.pass_over(group, place, end)

    def waits(self, group: ConsumerGroup, entry: PendingEntry, now: float) -> None:
        """See :class:`GroupOwner`."""
        if self.config.limits_count is LimitScope.READY:
            self._room = 0
            self.limits.trim_ready(now)
        self.limits.waits(group, entry, now)

    def left(self, partition: QueuePartition, offset: int) -> None:
        """See :class:`GroupOwner`."""
        self.contents.left(partition, offset)
        if self.config.limits_count is LimitScope.READY:
            # What was to follow it to the dead letters may.
            self.limits.trim_ready(self._agenda.now)

    def delete_group(self, group: ConsumerGroup, on_done: Confirm) -> None:
        """Delete a group that has no consumers and no sync under way; ``on_done`` is called once its files are gone for
        good, or with the error. Until then it is there, and nothing of it is written. Raises :class:`LogError`."""
        if group.transient or self.volatile:
            self.delete_group_now(group)
            on_done(None)
            return
        if self.is_new:
            self._make_now()
        if group not in self.leaving:
            group.write(self._agenda.now)
            self._leave_mark(group)
            self._agenda.forget(group)
            group.close_log()
            group.is_leaving = True
            self.leaving[group] = SyncPoint(self._files.remove_group(group.group_id))
            self._when_done(self.leaving[group], partial(self._group_removed, group))
        self._when_done(self.leaving[group], on_done)

    def _group_removed(self, group: ConsumerGroup, error: QueueError | None) -> None:
        self.leaving.pop(group, None)
        group.is_leaving = False
        if error is None:
            self._drop_group(group)
        elif group.failure is None:
            # Nobody knows how much of it is left.
            group.failure = error
            group.abandon(error)

    def delete_group_now(self, group: ConsumerGroup) -> None:
        """Likewise, one that nobody asked to have deleted. Blocking. Raises :class:`LogError`."""
        group.write(self._agenda.now)
        self._leave_mark(group)
        self._agenda.forget(group)
        group.close_log()
        self._drop_group(group)
        if not group.transient and (error := sync_now(self._files.remove_group(group.group_id))) is not None:
            raise LogError(f"the group {group.group_id!r} cannot be deleted: {error.strerror or error}") from error

    def _leave_mark(self, group: ConsumerGroup) -> None:
        """The last group of a dead-letter queue goes: the broker's own remembers what it had settled."""
        others = [each for each in self.groups.values() if each is not group and not each.transient]
        is_last = not group.transient and all(each in self.leaving for each in others)
        if is_dead_letter(self.name) and is_last and group.group_id != MARK_GROUP:
            mark = self._open_group(MARK_GROUP, "")
            mark.start_at([group.low(partition.index) for partition in self.partitions])
            inherit(mark, [group], self._agenda.now)
            mark.write(self._agenda.now)

    def _drop_group(self, group: ConsumerGroup) -> None:
        """With the last one goes what it had settled, but for as much as the limits let a group to come have of it."""
        is_last = len(self.groups) == 1 and not group.transient
        starts = starting_cursors(self.contents, EARLIEST) if is_last else []
        del self.groups[group.group_id]
        del self._dispatchers[group]
        for partition, start in zip(self.partitions, starts, strict=False):
            self.contents.move_head(partition, start)
        self.departures.flush()
        group.end()
        self.trim()
        self.recount()

    def dispatcher(self, group: ConsumerGroup) -> Dispatcher:
        return self._dispatchers[group]

    def recount(self) -> None:
        """Groups moved: what room there is has to be counted again."""
        self._room = 0

    def serve(self, group: ConsumerGroup, now: float) -> None:
        """Deliver what the group's consumers have room for."""
        dispatcher = self._dispatchers.get(group)
        if dispatcher is not None:  # a transient one may have gone within the turn
            is_limited = self.config.limits_count is LimitScope.READY
            if is_limited:
                self.limits.drop_due(now)
            dispatcher.serve(now)
            if is_limited:
                self.limits.check_ready(group, now)

    # -- dead letters --------------------------------------------------------------------------------------------

    def dead_letter(
        self, group: ConsumerGroup, entry: PendingEntry, reason: str, now: float, on_done: Confirm | None
    ) -> None:
        """Append to the dead-letter queue; the entry is settled once that is durable, so at least once."""
        self._agenda.work += 1
        if not self.config.dead_letters:
            group.counts.discarded += 1
            group.discard(entry, f"{reason}; the queue keeps no dead letters", on_done)
            return

        stored: StoredMessage | None = None

        def moved(error: QueueError | None) -> None:
            if not vars(group):
                # The queue was deleted, and nothing is left of it.
                if on_done is not None:
                    on_done(group.failure)
            elif error is None:
                group.dead_lettered(entry, reason, on_done)
                if stored is not None:
                    self.alert(entry, stored, reason, self._agenda.now)
            else:
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
        place, tracing = entry.place.partition, self._agenda.tracing
        try:
            target = self._dead_letter_target()
            if place.traced and tracing is not None:
                tracing.carried = place.traced.get(entry.offset)
            target.enqueue_dead_letter(stored.routing_key, message, stored.size, now, moved)
        except QueueError as error:
            moved(error)
        finally:
            if tracing is not None:
                tracing.carried = None

    def bury(self, routing_key: str, message: Message, size: int, now: float) -> None:
        """See :class:`EnqueuePath`. Its publisher knows that it was refused, so that nobody tries again."""
        if self.config.overflow is Overflow.REJECT_TO_DEAD_LETTERS and self.config.dead_letters:
            with suppress(QueueError):
                self.send_letter(routing_key, message, size, QUEUE_FULL, now, ignore)

    def send_letter(
        self, routing_key: str, message: Message, size: int, reason: str, now: float, on_done: Confirm
    ) -> None:
        """See :class:`EnqueuePath`."""
        self._agenda.cost += 1
        letter = refused_letter(self.name, routing_key, message, reason, now)
        self._dead_letter_target().enqueue_dead_letter(routing_key, letter, size, now, on_done)

    def alert(self, entry: PendingEntry, stored: StoredMessage, reason: str, now: float) -> None:
        """Tell the web hooks, if there are any, of a dead letter that is safe."""
        told = {
            "queue": self.name,
            "message_id": message_id_of(self.name, entry.place.index, entry.offset),
            "reason": reason,
            "deliveries": entry.delivery_count,
        }
        self._agenda.tell(EventKind.DEAD_LETTERED, self.name, told)
        config = self.config.dead_letter
        if config.alert_webhook:
            alert = alert_of(self.name, entry, stored, reason, now)
            self._alerts.add(
                config.alert_webhook, alert, attempts=config.alert_attempts, timeout_s=config.alert_timeout_s
            )

    # -- limits --------------------------------------------------------------------------------------------------

    def expire_next(self, group: ConsumerGroup, place: GroupPartition, stored: StoredMessage, now: float) -> None:
        self.limits.expire_next(group, place, stored, now)

    def expire_entry(self, group: ConsumerGroup, entry: PendingEntry, stored: StoredMessage, now: float) -> None:
        self.limits.expire_entry(group, entry, stored, now)

    def pass_time(self, group: ConsumerGroup, now: float) -> None:
        """See :class:`GroupOwner`."""
        settlement.pass_time(group, now)

    def trim(self) -> None:
        """See :meth:`QueueLimits.trim`."""
        self.limits.trim()

    def retain(self, now: float) -> bool:
        """See :meth:`QueueLimits.retain`."""
        self._room = 0
        return self.limits.retain(now)
