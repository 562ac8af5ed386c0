"""The durable queue engine: protocol-neutral and sans-IO. One per broker; not thread-safe, except for sync jobs."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat

from assay.reference_broker.config import GroupStart, QueuesConfig
from assay.reference_broker.queues.dead_letters.alerts import Alerts
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.delivery.settle_request import Outcome, SettleRequest
from assay.reference_broker.queues.groups.delivery import Delivery, Held
from assay.reference_broker.queues.groups.delivery_run import DeliverRun
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import UNLIMITED, Consumer, Deliver, Drained, Notify, PendingEntry
from assay.reference_broker.queues.groups.subscribe_options import (
    DEFAULT_OPTIONS,
    CursorPosition,
    SubscribeOptions,
)
from assay.reference_broker.queues.jobs.agenda import MAX_WORK, Agenda
from assay.reference_broker.queues.jobs.background_job import BackgroundJob
from assay.reference_broker.queues.jobs.confirms import Confirm, JointConfirm, Stored, SyncPoint, ignore
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode, is_passing, reason_of
from assay.reference_broker.queues.jobs.store import QueueStore
from assay.reference_broker.queues.messages.address import QueueAddress, is_dead_letter
from assay.reference_broker.queues.messages.message_batch import MessageBatch, batch_of
from assay.reference_broker.queues.messages.publish_options import PublishOptions, TransactionKey
from assay.reference_broker.queues.messages.stored_message import is_plain_but_for_user_properties
from assay.reference_broker.queues.operations.group_operations import GroupOperations
from assay.reference_broker.queues.operations.queue_operations import QueueOperations
from assay.reference_broker.queues.operations.replay import DeadLetterOperations
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.queue.bindings import Bindings, publish_to_all
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.registry.registry import QueueRegistry
from assay.reference_broker.queues.transactions.transactions import Transactions
from assay.reference_broker.routing.message import MESSAGE_OVERHEAD_BYTES, Message, memory_bytes
from assay.reference_broker.trace.schema import Tracer
from assay.reference_broker.trace.tracing import Tracing

MAX_CONFIRMS = 4_096
"""Confirms that leave at once when a sync is done; those behind them follow in the next turns."""
FEWEST = 8
"""Fewer messages are not worth a batch."""
FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
"""How long a sync that was not tried waits: twice as long each time, up to this."""


Asked = PublishOptions | QueueError | None
"""What a publisher asks for; an error = it cannot be read, so that its message is refused."""


class QueueEngine(QueueOperations):
    """All queues of a broker.

    A turn of the driver's loop: commands (:meth:`publish`, :meth:`settle`, ...), :meth:`tick` when
    :meth:`next_deadline` has come, :meth:`dispatch`, :meth:`take_jobs`; each job is run anywhere and reported by
    :meth:`job_done`, after which another turn follows. ``now`` is Unix seconds and never steps back.
    """

    def __init__(
        self,
        config: QueuesConfig,
        store: QueueStore,
        rng: random.Random,
        now: float,
        tracer: Tracer | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Open and recover every stored and configured queue. Raises :class:`QueueOpenError`, :class:`LogError`."""
        self._config = config
        self._store = store
        self.alerts = Alerts(allow_private=config.alert_allow_private)
        """Of dead letters; the driver sends them."""
        self._agenda = self.agenda = Agenda(tracing)
        self._agenda.now = now
        self._partition_queue = self._agenda.owners
        self.version = 0
        """Grows when a queue comes, changes or goes: what a name leads to may be something else then."""
        self._sync_due_at: float | None = None
        self._sync_is_due = False
        self._retries: list[BackgroundJob] = []
        """Jobs that the system had no means for. Until they are run again nothing else of their logs is synced."""
        self._retain_due_at: float | None = None
        self._to_retain: list[DurableQueue] = []
        """Of the round that is under way; the next one last."""
        self._confirming: deque[tuple[Confirm, QueueError | None]] = deque()
        """What syncs have decided and nobody was told yet, in order."""
        self._closed = False
        self._draining: dict[Consumer, list[tuple[QueuePartition, int]] | None] = {}
        self.captures: Bindings | None = None
        """Set while some queue gets messages of ordinary topics: see :meth:`capture`."""
        self.on_bindings_changed: Callable[[], None] | None = None
        """Called after it: who gets a topic may be another than before."""
        self._bindings: Bindings | None = None
        self._filters: list[tuple[str, tuple[str, ...]]] = []
        self._registry = QueueRegistry(config, store, self._agenda, self.alerts, rng, tracer, self.queues_changed)
        self._queues = self._registry.queues
        self.groups: GroupOperations = GroupOperations(self._queues, self._agenda, self._check_open)
        self.dead_letters = DeadLetterOperations(self._queues, self._agenda, self.alerts, self._registry.get_or_create)
        self.transactions = Transactions(
            config.transactions,
            store,
            self._agenda,
            self._queues,
            self._registry.set_aside,
            self._registry.is_unusable,
        )
        self._agenda.produce = self.transactions.publish
        self._registry.on_delete = self.transactions.forget_queue
        self.known = self._registry.known
        """Bytes that queues remember of how to store messages."""
        self.memory = self._registry.memory
        """What queues in memory hold and whether their publishers are to wait; None where that is not limited."""
        self._registry.open_all(now)
        self.transactions.recover(now)

    def queues_changed(self) -> None:
        """A queue came, changed or went."""
        self.version += 1
        if self._retain_due_at is None and any(queue.config.retention.has_limits for queue in self._queues.values()):
            self._retain_due_at = self._agenda.now
        filters = [(queue.name, queue.config.topics) for queue in self._queues.values() if queue.config.topics]
        if filters != self._filters:
            self._filters = filters
            self._bindings = Bindings(filters) if filters else None
            self.captures = self._bindings if self._bindings is not None and self._bindings.has_ordinary else None
            if self.on_bindings_changed is not None:
                self.on_bindings_changed()

    def _queue(self, name: str) -> DurableQueue:
        """An existing queue, or one created now. Raises :class:`QueueError`."""
        self._check_open()
        return self._registry.get_or_create(name)

    # -- publishing ----------------------------------------------------------------------------------------------

    def exists(self, name: str) -> bool:
        """Whether there is a queue of that engine name, be it one that could not be opened."""
        return name in self._queues or self._registry.is_unusable(name)

    def bound_to(self, topic: str, queue: str) -> tuple[str, ...]:
        """Queues beside this one whose filters match a topic that names it."""
        if self._bindings is None or is_dead_letter(queue):
            return ()
        return tuple(name for name in self._bindings.match(topic) if name != queue)

    def publish(
        self,
        address: QueueAddress,
        message: Message,
        now: float,
        on_confirmed: Confirm | None = None,
        on_stored: Stored | None = None,
        options: PublishOptions | None = None,
    ) -> None:
        """Enqueue a message.

        Raises :class:`QueueError` when it is refused at once; then ``on_confirmed`` is not called. Otherwise it is
        called exactly once, later: with None once the message is as durable as its queue promises, or with the error.
        ``on_stored`` is told before that what the message became and its id. The message's application property
        ``partition-key`` is the key that chooses its partition; everything else that a publisher may ask for is in
        ``options``.
        """
        if address.bound:
            self._agenda.cost += len(address.bound)
            publish_to_all(self.publish, address, message, now, on_confirmed, on_stored, options)
            return
        self._agenda.now = now
        queue = self._queues.get(address.queue)
        if queue is None or self._closed:
            queue = self._queue(address.queue)
        if self.memory is not None and queue.volatile:
            self.memory.admit(memory_bytes(message), now)
        queue.publish(address.routing_key, message, now, on_confirmed, on_stored, options)

    def publish_many(
        self,
        address: QueueAddress,
        messages: Sequence[Message],
        now: float,
        on_confirmed: Confirm | None = None,
        options: Sequence[Asked] | None = None,
    ) -> None:
        """As :meth:`publish` for each, in order, with one confirm: once all are decided, with the first error.

        Faster where the messages have user properties at most; those without a key then go to partitions in blocks.
        Never raises: what is refused at once shows in the confirm, and the others are enqueued all the same.
        ``options``: of each message; None = nobody asks for anything.
        """
        joint = JointConfirm(on_confirmed or ignore)
        is_batch = (
            len(messages) >= FEWEST
            and not (options is not None and any(options))
            and all(map(is_plain_but_for_user_properties, messages))
        )
        if is_batch:
            batch = batch_of(messages, address.routing_key)
            is_batch = self.publish_batch(address, batch, now, lambda _: joint.part())
        if not is_batch:
            for message, wanted in zip(messages, options or repeat(None), strict=False):
                confirm = joint.part()
                try:
                    if isinstance(wanted, QueueError):
                        raise wanted
                    self.publish(address, message, now, confirm, None, wanted)
                except QueueError as error:
                    confirm(error)
        joint.close()

    def publish_batch(
        self, address: QueueAddress, batch: MessageBatch, now: float, part: Callable[[Sequence[int]], Confirm]
    ) -> bool:
        """Enqueue messages that certainly fit; False, with nothing done, when they must go singly.

        ``part`` is told the positions of the messages that go to one partition, and gives their confirm.
        """
        self._agenda.now = now
        queue = None if self._closed or address.bound else self._queues.get(address.queue)
        if queue is None:
            return False
        if self.memory is not None and queue.volatile:
            # The others have about as much beside their payloads; an estimate will do until it is counted.
            first = batch.messages[0]
            overhead_bytes = max(memory_bytes(first) - len(first.payload), MESSAGE_OVERHEAD_BYTES)
            if not self.memory.admit_run(overhead_bytes * len(batch.payloads) + sum(map(len, batch.payloads))):
                return False
        return queue.publish_batch(batch, now, part)

    def is_pressed(self, address: QueueAddress) -> bool:
        """Whether who publishes there should wait, since queues in memory hold too much."""
        if self.memory is None or not self.memory.pressed:
            return False
        queues = [self._queues.get(name) for name in (address.queue, *address.bound)]
        return any(queue is not None and queue.volatile for queue in queues)

    def is_captured(self, topic: str) -> bool:
        """Whether some queue gets the messages of an ordinary topic."""
        return self.captures is not None and bool(self.captures.match(topic))

    def capture(self, message: Message, now: float, options: Asked = None) -> None:
        """Give a message of an ordinary topic to the queues whose filters match it. Never raises: see ``bindings``.

        Each of them counts one whose options cannot be read as refused.
        """
        if self.captures is not None and not self._closed:
            self._agenda.now = now
            names = self.captures.match(message.topic)
            self._agenda.cost += len(names)
            for name in names:
                captures = self._queues[name].captures
                if isinstance(options, QueueError):
                    captures.refuse()
                else:
                    captures.take(message, now, options)

    def take_cost(self) -> int:
        """What commands took beside what they say since it was asked the last time, in messages or the like."""
        cost, self._agenda.cost = self._agenda.cost, 0
        return cost

    # -- consuming -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        queue: str,
        *,
        pattern: str,
        group: str,
        consumer_id: str,
        deliver: Deliver,
        now: float,
        options: SubscribeOptions = DEFAULT_OPTIONS,
        notify: Notify | None = None,
        heartbeats: bool = False,
        on_end: Callable[[], None] | None = None,
        on_slow: Callable[[], None] | None = None,
        deliver_run: DeliverRun | None = None,
        settles_at_once: bool = False,
        credit: int = UNLIMITED,
    ) -> Consumer:
        """Join a group of a queue; a new group starts where ``options`` say, else as the queue is configured.

        ``heartbeats``: the consumer is bound to no connection; it is removed when it is silent for the session timeout
        of the queue (see :meth:`GroupOperations.heartbeat`). ``notify`` is told each assignment.

        ``pattern`` filters routing keys (an MQTT filter; empty = all) and makes a group of its own. ``deliver`` is
        only called by :meth:`dispatch`; it may settle or publish, and returns False when it has no room: the message is
        kept back until :meth:`resume`. ``deliver_run`` may be called in its place; with ``settles_at_once``, what that
        takes is acknowledged, and is at nobody's then. ``credit``: so many deliveries it
        gets before :meth:`grant` allows more. The same id subscribing again replaces the consumer. ``on_end`` is called
        when the queue is deleted, ``on_slow`` when it disconnects the consumer for settling nothing. Raises
        :class:`QueueError`.
        """
        self._agenda.now = now
        found = self._queue(queue)
        if options.cursor is not None or found.config.group.start is GroupStart.LATEST:
            # What was published before lies before.
            found.write_unwritten()
        joined = found.group(group, pattern, options.cursor, transient=options.transient)
        consumer = joined.join(consumer_id, deliver, now, options, notify)
        if heartbeats:
            joined.membership.expect_heartbeats(consumer, now)
        consumer.on_end = on_end
        consumer.on_slow = on_slow
        consumer.deliver_run = deliver_run
        consumer.settles_at_once = settles_at_once
        consumer.credit = credit
        return consumer

    def create_group(
        self,
        queue: str,
        group: str,
        now: float,
        on_begun: Confirm = ignore,
        *,
        pattern: str = "",
        start: CursorPosition | None = None,
    ) -> None:
        """Let a group begin before it has a consumer: from now on nothing goes before it has settled it.

        ``on_begun``: as :meth:`when_begun`. ``pattern``, ``start``: as a consumer's pattern and cursor. Raises
        :class:`QueueError`.
        """
        self._agenda.now = now
        found = self._queue(queue)
        if start is not None:
            found.write_unwritten()
        found.group(group, pattern, start).when_begun(on_begun)

    def when_begun(self, consumer: Consumer, on_begun: Confirm) -> None:
        """Whoever subscribed is to be told so once its group is there for good: ``on_begun`` is called once, at once
        where it is, later where the group is new and its queue promises to survive a loss of power, or with the
        error. Nothing is delivered before."""
        if consumer.active:
            self._queues[consumer.queue].groups[consumer.group].when_begun(on_begun)
        else:
            on_begun(None)

    def resume(self, consumer: Consumer, now: float) -> None:
        """The consumer has room again."""
        consumer.blocked = False
        self._serve(consumer, now)

    def grant(self, consumer: Consumer, credit: int, now: float, on_drained: Drained | None = None) -> None:
        """From now on the consumer gets so many deliveries; what was left of an earlier grant counts no more, so that 0
        revokes it.

        ``on_drained``: what the next turn cannot use is given back; it is told how much that is, once.
        """
        consumer.credit = credit
        consumer.on_drained = on_drained
        if on_drained is not None:
            self._draining[consumer] = None
        else:
            self._draining.pop(consumer, None)
        self._serve(consumer, now)

    def _serve(self, consumer: Consumer, now: float) -> None:
        self._agenda.now = now
        queue = self._queues.get(consumer.queue)
        if queue is not None and consumer.active and not self._closed:
            self._agenda.groups_to_serve[queue.groups[consumer.group]] = None

    def end_draining(self) -> None:
        """Whose groups have had all the turns that they asked for gives back what is left, once what came before it
        has been written."""
        waiting = self._agenda.groups_to_serve
        for consumer in list(self._draining):
            queue = self._queues.get(consumer.queue)
            group = None if queue is None else queue.groups.get(consumer.group)
            if group is not None and (group in waiting or group.is_new) and consumer.active and consumer.credit:
                continue
            if queue is not None and consumer.active and consumer.blocked and not consumer.options.waits:
                # It will be resumed: what is there is not nothing.
                continue
            if queue is not None and consumer.active and consumer.credit:
                ends = self._draining[consumer]
                if ends is None:
                    ends = self._draining[consumer] = [(each, each.log.next_offset) for each in queue.partitions]
                if [partition for partition, end in ends if partition.is_under_way(end)]:
                    continue
            del self._draining[consumer]
            on_drained, consumer.on_drained = consumer.on_drained, None
            left, consumer.credit = consumer.credit, 0
            if on_drained is not None:
                on_drained(left)

    def unsubscribe(self, consumer: Consumer, now: float) -> None:
        """Leave the group: what the consumer holds is ready again at once. Twice is fine."""
        self._agenda.now = now
        if not self._closed and consumer.active and (queue := self._queues.get(consumer.queue)) is not None:
            group = queue.groups[consumer.group]
            group.leave(consumer, now)
            if group.transient and not group.consumers:
                with contextlib.suppress(LogError):  # which the log has told of
                    queue.delete_group_now(group)
            if queue.config.ephemeral and not queue.consumer_count:
                self._registry.unused(queue, now)

    def settle(
        self, queue: str, request: SettleRequest, *, consumer_id: str | None, now: float, on_done: Confirm | None = None
    ) -> None:
        """Settle what a request names, be it many deliveries.

        ``consumer_id`` must be that of the consumer which holds them; None stands for an administrator. A receipt is
        enough by itself, whoever shows it. Raises :class:`QueueError` (NOT_PENDING, AMBIGUOUS, BAD_ADDRESS, ...) when
        nothing was done, and then never calls ``on_done``; otherwise that is called exactly once, when all of it is as
        durable as the queue promises, or with the error. See :func:`settlement.settle_request`.
        """
        self._agenda.now = now
        groups = self._settling_groups(queue, request.group)
        if request.generation is not None:
            self.groups.check_generation(queue, request.group or "", consumer_id or "", request.generation)
        settlement.settle_request(groups, queue, request, consumer_id, now, on_done, self.transactions.hold)

    def settle_delivery(
        self,
        delivery: Delivery | Held,
        outcome: Outcome,
        *,
        consumer_id: str,
        now: float,
        reason: str = "",
        on_done: Confirm | None = None,
    ) -> None:
        """As :meth:`settle`, of one delivery that the consumer was given: by what it has in hand, without names."""
        holder, entry = self._held(delivery, consumer_id, now)
        settlement.settle(holder, entry, outcome, reason or settlement.REJECTED, now, on_done)

    def hold_delivery(
        self, delivery: Delivery | Held, outcome: Outcome, *, consumer_id: str, now: float, within: TransactionKey
    ) -> None:
        """As :meth:`settle_delivery`, if and when a transaction is committed. Raises :class:`QueueError`."""
        holder, entry = self._held(delivery, consumer_id, now)
        self.transactions.hold(within, {entry: holder}, outcome)

    def _held(self, delivery: Delivery | Held, consumer_id: str, now: float) -> tuple[ConsumerGroup, PendingEntry]:
        """Raises :class:`QueueError` for one that the consumer does not hold, or not any more."""
        self._agenda.now = now
        queue, group = delivery.queue, delivery.group
        found = None if self._closed else self._queues.get(queue)
        named = None if found is None else found.groups.get(group)
        groups = self._settling_groups(queue, group) if named is None else (named,)
        return settlement.find_entry(groups, queue, delivery.partition, delivery.offset, consumer_id)

    def _settling_groups(self, queue: str, group: str | None) -> tuple[ConsumerGroup, ...]:
        """The groups that a settlement may mean. Raises :class:`QueueError` (CLOSED, UNKNOWN_QUEUE)."""
        if self._closed:
            raise QueueError(QueueErrorCode.CLOSED, "the broker is closing")
        found = self._queues.get(queue)
        if found is None:
            raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"there is no queue {queue[:80]!r}")
        if group is None:
            return tuple(found.groups.values())
        named = found.groups.get(group)
        return () if named is None else (named,)

    def ack_run(
        self,
        queue: str,
        group: str,
        places: Sequence[tuple[int, int]],
        consumer_id: str,
        now: float,
        begin: Callable[[int], Confirm],
    ) -> int:
        """Ack deliveries of one group, named by partition and offset, up to the first that :meth:`settle` must judge.

        Returns how many. ``begin`` is called first with that number, unless it is 0, and gives the confirm of all.
        """
        self._agenda.now = now
        found = self._queues.get(queue)
        holder = None if found is None or self._closed else found.groups.get(group)
        if holder is None or holder.failure is not None or now < holder.stalled_until:
            return 0
        entries = settlement.held_entries(holder, places, consumer_id)
        if entries:
            settlement.ack_many(holder, entries, begin(len(entries)))
        return len(entries)

    def add_to_transaction(self, key: TransactionKey, queue: str, partition: int, now: float) -> None:
        """See :meth:`Transactions.add_partition`; creates the queue when there is none. Raises :class:`QueueError`."""
        self._agenda.now = now
        self._check_open()
        self.transactions.check_open(*key)
        if queue not in self._queues and partition >= (count := self._registry.config_for_use(queue).partitions):
            raise QueueError(QueueErrorCode.BAD_OPTION, f"{queue!r} will have {count} partitions, from 0 on")
        self.transactions.add_partition(*key, self._queue(queue), partition)

    # -- turns ---------------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> None:
        """Once per turn: write what was published, deliver what can be delivered, write what happened."""
        agenda = self._agenda
        agenda.now = now
        if self._closed:
            return
        if self._confirming:
            self._confirm(MAX_CONFIRMS)
        if agenda.partitions_to_write:
            self._write_partitions()
        if agenda.groups_to_serve:
            agenda.work = 0
            served, agenda.groups_to_serve = agenda.groups_to_serve, {}
            for group in served:
                if agenda.work >= MAX_WORK:
                    agenda.groups_to_serve[group] = None
                else:
                    group.serve(now)
            if self._draining:
                self.end_draining()
            if agenda.partitions_to_write:
                # Deliveries that failed for good went to dead-letter queues, whose confirms settle their sources.
                self._write_partitions()
        if agenda.groups_to_write:
            written, agenda.groups_to_write = agenda.groups_to_write, {}
            for state in written:
                state.write(now)
        if agenda.is_committing or agenda.written_produced:
            agenda.work = 0
            self.transactions.step(now)
            agenda.is_committing = self.transactions.is_busy
            self._write_partitions()
        agenda.work = 0
        if agenda.unsynced and self._sync_due_at is None:
            self._sync_due_at = now + self._config.sync_interval_s

    def _write_partitions(self) -> None:
        agenda = self._agenda
        while agenda.partitions_to_write:
            partitions, agenda.partitions_to_write = agenda.partitions_to_write, {}
            for partition in partitions:
                self._partition_queue[partition].write(partition)

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick` at the latest; None = never. In the past when work is left for the next turn."""
        if self._closed:
            return None
        if self._agenda.has_immediate_work or self._confirming or self.transactions.has_more:
            return self._agenda.now
        times = [
            self._agenda.next_wake(),
            self._sync_due_at,
            self._retain_due_at,
            self._registry.expire_due_at,
            self._registry.reopening.due_at,
            self.transactions.next_deadline(),
        ]
        if self._retries:
            times.append(min(job.retry_at for job in self._retries))
        return min([time for time in times if time is not None], default=None)

    def tick(self, now: float) -> None:
        """Do what has become due: timeouts, retries, dead letters, the periodic sync, retention. Dispatch follows."""
        agenda = self._agenda
        agenda.now = now
        if self._closed:
            return
        agenda.work = 0
        self.transactions.tick(now)
        for waiting in agenda.due(now):
            if agenda.work >= MAX_WORK:
                agenda.wake(waiting, now)
            else:
                waiting.pass_time(now)
        if self._sync_due_at is not None and now >= self._sync_due_at:
            self._sync_is_due = True
        if self._registry.expire_due_at is not None and now >= self._registry.expire_due_at:
            self._registry.expire(now)
        if self._retain_due_at is not None and now >= self._retain_due_at:
            self._retain(now)
        self._registry.reopen(now, self._take_up)

    def _take_up(self, queue: DurableQueue) -> None:
        self.transactions.take_up(queue, self._agenda.now)

    def _retain(self, now: float) -> None:
        """Let queues that have not had their turn in this round apply their retention limits, as many as there is
        room for."""
        agenda = self._agenda
        if not self._to_retain:
            self._to_retain = [queue for queue in self._queues.values() if queue.config.retention.has_limits][::-1]
            self._retain_due_at = now
        while self._to_retain and agenda.work < MAX_WORK:
            queue = self._to_retain[-1]
            if self._queues.get(queue.name) is queue:
                agenda.work += min(MAX_WORK, len(queue.partitions) * (1 + len(queue.groups)) >> 1)
                if not queue.retain(now):
                    continue
            self._to_retain.pop()
        if not self._to_retain:
            self._retain_due_at = now + self._config.retention_interval_s

    # -- durability ----------------------------------------------------------------------------------------------

    def take_jobs(self, now: float) -> list[BackgroundJob]:
        """Syncs to run now, in any threads; each must be reported by :meth:`job_done`."""
        self._agenda.now = now
        agenda = self._agenda
        wanted = agenda.awaited_syncs
        if self._sync_is_due:
            self._sync_is_due = False
            self._sync_due_at = None
            wanted = {**agenda.unsynced, **wanted}
            agenda.unsynced = {}
        jobs: list[BackgroundJob] = []
        still_awaited: dict[SyncPoint, None] = {}
        for point in wanted:
            task = point.start_sync()
            if task is not None:
                agenda.unsynced.pop(point, None)
                jobs.append(BackgroundJob(point, task))
            elif point.is_syncing:
                # What was written since that sync began needs another one.
                (still_awaited if point.waiting else agenda.unsynced)[point] = None
        agenda.awaited_syncs = still_awaited
        if self._registry.removals:
            jobs += self._registry.removal_jobs()
        if self._retries:
            jobs += [job for job in self._retries if job.retry_at <= now]
            self._retries = [job for job in self._retries if job.retry_at > now]
        return jobs

    def job_done(self, job: BackgroundJob, error: OSError | None, now: float) -> None:
        """A job ended: the confirms it covers leave. After an error they fail, and so does its log until a restart.

        One that the system had no means for is run again later, and whoever waits for it waits on.
        """
        self._agenda.now = now
        if error is not None and is_passing(error) and job.runs_again:
            wait_s = min(_LAST_RETRY_S, FIRST_RETRY_S * 2**job.tries)
            job.tries = min(job.tries + 1, 30)
            job.retry_at = now + wait_s
            self._retries.append(job)
            text = f"not tried ({error.strerror or error}); tried again in {wait_s:g} s, and confirms wait until then"
            self._store.note("", job.place or "a job", text)
            return
        self._finish(job, error)

    def finish_retries(self, now: float) -> None:
        """Nobody waits any longer: run what was to be run again, here and now. Blocking."""
        self._agenda.now = now
        retries, self._retries = self._retries, []
        for job in retries:
            self._finish(job, job.failure())

    def _finish(self, job: BackgroundJob, error: OSError | None) -> None:
        point = job.point
        if error is not None and not isinstance(point, SyncPoint):
            # Logs tell of their own.
            self._store.note("", job.place or "a job", f"failed: {reason_of(error)}; nobody waits for it any longer")
        self._confirming += point.finish_sync(error)
        self._confirm(MAX_CONFIRMS)
        if isinstance(point, SyncPoint) and (owner := self._partition_queue.get(point)) is not None:
            owner.serve_groups()

    def _confirm(self, most: int) -> None:
        """Tell those who have waited longest what syncs have decided."""
        confirming, agenda = self._confirming, self._agenda
        agenda.work = 0
        for _ in range(min(most, len(confirming))):
            confirm, failure = confirming.popleft()
            confirm(failure)
            if agenda.work >= MAX_WORK:
                break

    # -- closing -------------------------------------------------------------------------------------------------

    def close(self, now: float) -> None:
        """Write and sync everything, confirm it, close the logs. Blocking; report running sync jobs before.

        Twice is fine.
        """
        if self._closed:
            return
        self.finish_retries(now)
        while self._confirming:
            self._confirm(MAX_CONFIRMS)
        # A sync may confirm a dead letter, which settles its source, or let a commit go on: hence more rounds.
        for is_last in (False, False, True):
            self._write_partitions()
            points: list[SyncPoint] = [
                *self._partition_queue,
                *(point for queue in self._queues.values() for point in queue.state_points),
                *self._agenda.state_points,
            ]
            if is_last:
                self.transactions.close()
            for group in list(self._agenda.groups_to_write):
                group.write(now)
            self._agenda.groups_to_write.clear()
            self.transactions.step(now)
            for point in points:
                task = point.start_sync()
                if task is not None:
                    job = BackgroundJob(point, task)
                    self._finish(job, job.failure())
                    while self._confirming:
                        self._confirm(MAX_CONFIRMS)
        for removal in self._registry.removal_jobs():
            with contextlib.suppress(OSError):
                removal.run()
        self._closed = self.transactions.closed = True
        closing = QueueError(QueueErrorCode.CLOSED, "the broker closed before the disk had confirmed")
        self.transactions.abandon(closing)
        for point in points:
            point.abandon(closing)
            point.close_log()
        self._store.close()
