"""Producers and transactions: the operations, the two phases of a commit, timeouts, and what a start finds.

A commit is atomic through a crash at any point. First everything in the transaction becomes durable; then one record
with the decision does, in the coordinator's log; only then the parts are told: messages become visible,
acknowledgements count, and control records end the transaction in each partition. A start that finds a decision tells
the parts again; a transaction without one is aborted. Until the end no consumer is given anything at or behind the
first message of an open transaction in its partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from assay.reference_broker.config import TransactionsConfig
from assay.reference_broker.queues.delivery.settle_request import Outcome as Settled
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored, StoredAs
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode, raise_if_not_tried
from assay.reference_broker.queues.jobs.store import QueueStore
from assay.reference_broker.queues.messages.address import message_id_of
from assay.reference_broker.queues.messages.control_records import Outcome, RecordMark
from assay.reference_broker.queues.messages.publish_options import PublishOptions, TransactionKey, bad_option
from assay.reference_broker.queues.partitions.producers import Acceptance
from assay.reference_broker.queues.transactions import transaction_recovery
from assay.reference_broker.queues.transactions.commit_phases import aborted_error
from assay.reference_broker.queues.transactions.producer_names import ProducerNames, producer_of_broker
from assay.reference_broker.queues.transactions.transaction import (
    NOBODY,
    UNDECIDED,
    EndedTransaction,
    Transaction,
    TransactionInfo,
    TransactionState,
)
from assay.reference_broker.queues.transactions.transaction_recovery import SetAside
from assay.reference_broker.routing.message import Message
from assay.reference_broker.trace.durations import Durations

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.partitions.partition import QueuePartition
    from assay.reference_broker.queues.queue.queue import DurableQueue
    from assay.reference_broker.queues.transactions.coordinator import Coordinator

_ENDED_DEADLINES = 1_024
"""So many more than there are transactions that have not ended are kept for those that have."""
_UNKNOWN: Final = "which of its transactions are committed is not known"
OnBegun = Callable[[QueueError | None, str], None]
OnBegunAlone = Callable[[QueueError | None, TransactionKey], None]


class Transactions(ProducerNames):
    """All producers and transactions of an engine. Without any it holds nothing and does nothing."""

    def __init__(
        self,
        config: TransactionsConfig,
        store: QueueStore,
        agenda: Agenda,
        queues: Mapping[str, DurableQueue],
        set_aside: SetAside,
        is_unusable: Callable[[str], bool],
    ) -> None:
        super().__init__(config, store, agenda)
        self._queues = queues
        self._set_aside = set_aside
        self._is_unusable = is_unusable
        self._deadlines: list[tuple[float, str]] = []

    # -- opening -------------------------------------------------------------------------------------------------

    def recover(self, now: float) -> None:
        """Take up what is stored: finish what was decided, abort the rest. Raises :class:`LogError`.

        Where it cannot be read, queues with messages of producers are ``set_aside``, with the reason: nobody knows
        which of their messages count. So are those with deliveries that were settled in transactions: what is settled
        for good would come again.
        """
        try:
            coordinator = self.memory.open_existing()
        except LogError as error:
            raise_if_not_tried(error)
            self.memory.set_aside(error)
            for queue in list(self._queues.values()):
                if queue.needs_transactions:
                    self._set_aside(queue.name, f"{_UNKNOWN}: {error}", error)
            return
        if coordinator is None:
            if not any(queue.needs_transactions for queue in self._queues.values()):
                return
            coordinator = self.memory.coordinator
        self._take_up(coordinator, self._queues, now)

    def take_up(self, queue: DurableQueue, now: float) -> None:
        """Likewise, of a queue that was set aside at the start and is open now; what concerns others stays as it is.

        Where the transactions could not be read for now, they are tried again with each such queue that needs them.
        """
        self._agenda.now = now
        # Without producers of its own a decision may still settle what its groups hold.
        if self.memory.found is None and not queue.needs_transactions:
            return
        try:
            if self.memory.reopening.due_at is not None:
                self.recover(now)
            else:
                self._take_up(self.memory.coordinator, {queue.name: queue}, now)
        except (LogError, QueueError) as error:
            self._set_aside(queue.name, f"{_UNKNOWN}: {error}", error)

    def _take_up(self, coordinator: Coordinator, queues: Mapping[str, DurableQueue], now: float) -> None:
        is_unusable = self._is_unusable
        ended = transaction_recovery.recover(
            coordinator, queues, now, self.memory.forget_partition, self._set_aside, is_unusable
        )
        for queue in queues.values():
            for partition in queue.partitions if queue.has_producers and not is_unusable(queue.name) else ():
                self.memory.remember(queue, partition)
                if partition.produced is not None:
                    queue.hide(partition, partition.produced.hidden)
        for transaction in ended:
            if queues is self._queues or transaction.partitions or transaction.also:
                self._phases.resume(transaction)

    # -- beginning and finding -----------------------------------------------------------------------------------

    def begin(
        self,
        producer_id: int,
        epoch: int,
        now: float,
        on_done: OnBegun,
        *,
        timeout_s: float | None = None,
        holder: str | None = None,
    ) -> None:
        """Begin a transaction; ``on_done`` gets its id, or the error, once.

        ``holder``: who may have only some of all that may be open; None = the broker's own program.

        Raises :class:`QueueError` (UNKNOWN_PRODUCER, FENCED, TRANSACTION_STATE while another is open, LIMIT,
        BAD_OPTION) and then does not call it.
        """
        self._agenda.now = now
        config = self._config
        coordinator = self.check_producer(producer_id, epoch)
        name = coordinator.names.get(producer_id)
        if name is None:
            raise bad_option(f"producer {producer_id} has no transactional id, so it can have no transactions")
        running = coordinator.open.get(producer_id)
        if running is not None:
            text = f"transaction {running.id} of producer {producer_id} is {running.state.value}"
            raise QueueError(QueueErrorCode.TRANSACTION_STATE, text)
        if timeout_s is not None and not 0 < timeout_s <= config.max_timeout_s:
            raise bad_option(f"a transaction's timeout is over 0 and at most {config.max_timeout_s:g} s")
        count = len(self._phases.open) - self._phases.open_of.get(NOBODY, 0)
        if count >= config.max_open:
            raise QueueError(QueueErrorCode.LIMIT, f"{count} transactions are open, which is the limit")
        if holder is not None and self._phases.open_of.get(holder, 0) >= config.max_open_per_user:
            text = f"{config.max_open_per_user} transactions of this user are open, which is the limit"
            raise QueueError(QueueErrorCode.LIMIT, text)
        transaction = Transaction(
            str(coordinator.take_number()),
            producer_id,
            epoch,
            name,
            now=now,
            timeout_s=config.timeout_s if timeout_s is None else timeout_s,
            holder=holder,
        )
        coordinator.producers[name].used_at_s = now
        self._add(transaction, on_done)

    def begin_alone(self, now: float, on_done: OnBegunAlone) -> None:
        """Begin a transaction whose producer has no other, and that nobody asks about later: ``on_done`` gets its key,
        or the error, once. No client can name its producer.

        They do not count among those that may be open: who begins them bounds how many there are. Raises
        :class:`QueueError` (STORAGE_FAILED, CLOSED) and then does not call it.
        """
        self._agenda.now = now
        coordinator = self._usable_coordinator()
        number = coordinator.take_number()
        key = TransactionKey(producer_of_broker(number), 0, str(number))
        timeout_s = self._config.max_timeout_s
        transaction = Transaction(
            key.transaction_id, key.producer_id, 0, "", now=now, timeout_s=timeout_s, holder=NOBODY
        )
        self._add(transaction, lambda error, _name: on_done(error, key))

    def _add(self, transaction: Transaction, on_done: OnBegun) -> None:
        """It has begun; that is told once its number is never given out again."""
        coordinator = self.memory.coordinator
        coordinator.open[transaction.producer] = transaction
        self._phases.add(transaction)
        if len(self._deadlines) > 2 * len(self._phases.open) + _ENDED_DEADLINES:
            self._deadlines = [(each.ends_by, each.id) for each in self._phases.open.values()]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (transaction.ends_by, transaction.id))
        if coordinator.numbers_are_safe:
            on_done(None, transaction.id)
        else:
            coordinator.when_durable(lambda error: on_done(error, transaction.id if error is None else ""))

    def find(self, producer_id: int, epoch: int, transaction_id: str) -> Transaction:
        """A transaction of that producer that has not ended. Raises :class:`QueueError`."""
        coordinator = self.check_producer(producer_id, epoch)
        transaction = self._phases.open.get(transaction_id)
        if transaction is not None and transaction.producer == producer_id:
            return transaction
        ended = self._phases.ended.get(transaction_id)
        if ended is not None and ended.producer == producer_id:
            raise _ended_error(transaction_id, ended)
        name = coordinator.names.get(producer_id, "")
        known = coordinator.producers.get(name)
        decision = coordinator.decisions.get(transaction_id)
        if (known is not None and transaction_id and known.last_committed == transaction_id) or (
            decision is not None and decision.producer == producer_id
        ):
            raise _ended_error(transaction_id, EndedTransaction(producer=producer_id, outcome=Outcome.COMMITTED))
        text = f"transaction {transaction_id[:80]!r} of producer {producer_id} never began, or a restart aborted it"
        raise QueueError(QueueErrorCode.UNKNOWN_TRANSACTION, text)

    def _find_open(self, producer_id: int, epoch: int, transaction_id: str) -> Transaction:
        """One that takes more. Raises :class:`QueueError`."""
        transaction = self.find(producer_id, epoch, transaction_id)
        if transaction.state is not TransactionState.OPEN or transaction.reason:
            text = f"transaction {transaction_id} is {transaction.state.value}"
            if transaction.reason:
                text = f"transaction {transaction_id} can only be aborted: {transaction.reason}"
            raise QueueError(QueueErrorCode.TRANSACTION_STATE, text)
        return transaction

    def check_open(self, producer_id: int, epoch: int, transaction_id: str) -> None:
        """Whether that transaction takes more. Raises :class:`QueueError`."""
        self._find_open(producer_id, epoch, transaction_id)

    # -- what belongs to a transaction ---------------------------------------------------------------------------

    def publish(
        self,
        queue: DurableQueue,
        routing_key: str,
        message: Message,
        options: PublishOptions,
        now: float,
        on_confirmed: Confirm | None,
        on_stored: Stored | None,
    ) -> None:
        """A message that names a producer: numbered, in a transaction, or both. As :meth:`QueueEngine.publish`.

        A repetition of one of the last messages of that producer is confirmed with the first, and not enqueued.
        """
        producer_id, epoch = options.producer_id, options.producer_epoch
        if producer_id is None or epoch is None:
            raise bad_option("a sequence or transaction-id needs producer-id and producer-epoch beside it")
        if options.sequence is None and options.transaction_id is None:
            raise bad_option("a producer's message needs a sequence, a transaction-id, or both")
        if options.delay_ms is not None or options.deliver_at_ms is not None:
            raise bad_option("a producer's message cannot be delayed: it is numbered when it is enqueued")
        coordinator = self.check_producer(producer_id, epoch)
        partition = queue.partition_for(message, options, producer_id)
        transaction: Transaction | None = None
        if options.transaction_id is not None:
            transaction = self._find_open(producer_id, epoch, options.transaction_id)
        produced = self.memory.of(queue, partition)
        if options.sequence is not None:
            first = produced.first_offset(producer_id, epoch, options.sequence)
            if first is not None:
                _confirm_again(queue, partition, first, on_confirmed, on_stored)
                return
            produced.check_room(producer_id, coordinator.open)
        size = len(message.payload)
        if transaction is not None:
            self.check_room(transaction, partition, size)
        offset = partition.log.next_offset + partition.unwritten
        mark = RecordMark(producer_id, epoch, options.sequence, options.transaction_id, None)
        confirm = on_confirmed if transaction is None else partial(_confirmed_in, transaction, on_confirmed)
        acceptance = Acceptance(produced, mark, offset, confirm)
        queue.enqueue_marked(routing_key, message, now, acceptance, options, mark, on_stored)
        produced.add(mark, offset, coordinator.open)
        produced.unconfirmed[offset] = acceptance
        if transaction is not None:
            transaction.partitions[partition] = queue
            transaction.messages += 1
            transaction.bytes += size

    def check_room(self, transaction: Transaction, partition: QueuePartition | None, size: int, count: int = 1) -> None:
        """Raises :class:`QueueError` (LIMIT)."""
        config = self._config
        text = ""
        if transaction.messages + len(transaction.held) + count > config.max_messages:
            text = f"{config.max_messages} messages"
        elif transaction.bytes + size > config.max_bytes:
            text = f"{config.max_bytes} bytes"
        elif (
            partition is not None
            and partition not in transaction.partitions
            and len(transaction.partitions) >= config.max_partitions
        ):
            text = f"{config.max_partitions} partitions"
        if text:
            raise QueueError(QueueErrorCode.LIMIT, f"a transaction holds at most {text}")

    def add_partition(
        self, producer_id: int, epoch: int, transaction_id: str, queue: DurableQueue, partition: int
    ) -> None:
        """Say beforehand where a message will go. Publishing does it by itself. Raises :class:`QueueError`."""
        transaction = self._find_open(producer_id, epoch, transaction_id)
        if not 0 <= partition < len(queue.partitions):
            raise bad_option(
                f"there is no partition {partition}: {queue.name!r} has {len(queue.partitions)}, from 0 on"
            )
        place = queue.partitions[partition]
        if place not in transaction.partitions:
            self.check_room(transaction, place, 0)
            self.memory.of(queue, place)
            transaction.partitions[place] = queue

    def hold(
        self,
        within: TransactionKey,
        entries: Mapping[PendingEntry, ConsumerGroup],
        outcome: Settled = Settled.ACCEPT,
    ) -> None:
        """Settle deliveries in a transaction: by ``outcome``, if and when that is committed.

        Until then they do not time out, and nobody else gets them; an abort gives them back. All or none: raises
        :class:`QueueError`.
        """
        transaction = self._find_open(*within)
        self.check_room(transaction, None, 0, len(entries))
        for entry, group in entries.items():
            group.hold(entry)
            transaction.held[entry] = group
            if outcome is not Settled.ACCEPT:
                transaction.settled[entry] = outcome
            transaction.also[entry.place.partition] = None
            queue = self._queues[group.config.name]
            # Before the decision: a start that cannot read that knows by it that there may be one.
            queue.remember_settled()
            transaction.also[queue.description] = None

    # -- ending --------------------------------------------------------------------------------------------------

    def commit(self, producer_id: int, epoch: int, transaction_id: str, now: float, on_done: Confirm) -> None:
        """Commit: ``on_done`` gets None once that is durable and shows, or the error; then nothing of it ever shows.

        Twice is fine, also after a restart. Raises :class:`QueueError` (TRANSACTION_STATE when it was aborted, ...) and
        then does not call ``on_done``.
        """
        self._agenda.now = now
        try:
            transaction = self.find(producer_id, epoch, transaction_id)
        except QueueError as error:
            if error.code is QueueErrorCode.TRANSACTION_STATE and self._was_committed(transaction_id):
                self.memory.coordinator.when_verified(on_done)
                return
            raise
        if transaction.state is TransactionState.ABORTING or transaction.reason:
            if transaction.state is TransactionState.OPEN:
                self._phases.abort(transaction, transaction.reason)
            raise aborted_error(transaction_id, transaction.reason)
        transaction.waiters.append(on_done)
        if transaction.state is not TransactionState.OPEN:
            return
        self._phases.prepare(transaction)

    def _was_committed(self, transaction_id: str) -> bool:
        ended = self._phases.ended.get(transaction_id)
        return ended is None or ended.outcome is Outcome.COMMITTED

    def abort(self, producer_id: int, epoch: int, transaction_id: str, now: float, on_done: Confirm) -> None:
        """Abort: nothing of it will be delivered, what it acknowledged is delivered again. Twice is fine.

        Raises :class:`QueueError` (TRANSACTION_STATE when it is committed, ...) and then does not call ``on_done``.
        """
        self._agenda.now = now
        try:
            transaction = self.find(producer_id, epoch, transaction_id)
        except QueueError as error:
            if error.code is not QueueErrorCode.TRANSACTION_STATE or self._was_committed(transaction_id):
                raise
            on_done(None)
            return
        if transaction.state is TransactionState.DECIDING:
            raise QueueError(QueueErrorCode.TRANSACTION_STATE, f"transaction {transaction_id} is being committed")
        if transaction.state in UNDECIDED:
            self._phases.abort(transaction, transaction.reason or "aborted by its producer")
        transaction.afterwards.append(lambda: on_done(None))

    def forget_queue(self, queue: DurableQueue) -> None:
        """A queue is deleted: what it held is gone, and open transactions that wrote to it or read from it fail.

        Those that the broker began (:meth:`begin_alone`) go on without it.
        """
        for transaction in [each for each in self._phases.open.values() if each.forget(queue)]:
            if transaction.state in UNDECIDED and transaction.holder != NOBODY:
                self._phases.abort(transaction, f"the queue {queue.name!r} was deleted")
        self._phases.forget_queue(queue)
        self.memory.forget(queue)

    # -- time and closing ----------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick` at the latest; None = never."""
        while self._deadlines and not self._is_live(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        times = [self._phases.next_deadline(), self.memory.reopening.due_at]
        if self._deadlines:
            times.append(self._deadlines[0][0])
        return min([time for time in times if time is not None], default=None)

    def _is_live(self, transaction_id: str) -> bool:
        transaction = self._phases.open.get(transaction_id)
        return transaction is not None and transaction.state in UNDECIDED

    def tick(self, now: float) -> None:
        """Abort what has been open too long; try again to write what the disk refused, and to read what it did not
        give at the start."""
        while self._deadlines and self._deadlines[0][0] <= now and self._agenda.room > 0:
            _, transaction_id = heapq.heappop(self._deadlines)
            self._agenda.work += 1
            transaction = self._phases.open.get(transaction_id)
            if transaction is not None and transaction.state in UNDECIDED:
                self._phases.abort(transaction, f"timed out after {transaction.ends_by - transaction.began_at:g} s")
        self._phases.tick(now)
        if self.memory.reopening.next_due(now) is not None:
            try:
                self.recover(now)
            except (LogError, QueueError) as error:
                self.memory.set_aside(error)

    @property
    def is_busy(self) -> bool:
        """There is work for :meth:`step`."""
        return self._phases.is_busy or self.memory.has_snapshots

    @property
    def has_more(self) -> bool:
        """The last turn had no room for all that was to be done."""
        return self._phases.has_more

    def step(self, now: float) -> None:
        """At the end of a turn, when everything is written."""
        self._phases.step(now)
        self.memory.take_snapshots()

    def close(self) -> None:
        """All logs are synced: leave snapshots of everything."""
        self.memory.close()

    def abandon(self, error: QueueError) -> None:
        """The engine is closed: whoever waits for the end of a transaction is told so."""
        for transaction in list(self._phases.open.values()):
            self._phases.tell(transaction, error)

    # -- figures -------------------------------------------------------------------------------------------------

    def list(self) -> list[TransactionInfo]:
        """The transactions that have not ended, oldest first."""
        return [transaction.info for transaction in self._phases.open.values()]

    @property
    def lasted(self) -> Mapping[Outcome, Durations]:
        """How long those took that ended since the start, by how they ended; those of AMQP included."""
        return self._phases.lasted

    def open_of(self, producer_id: int) -> str | None:
        """The id of the transaction that a producer has open; None = it has none."""
        coordinator = self.memory.found
        running = None if coordinator is None else coordinator.open.get(producer_id)
        return None if running is None else running.id

    def describe(self, transaction_id: str) -> TransactionInfo:
        """One that has not ended. Raises :class:`QueueError` (UNKNOWN_TRANSACTION, TRANSACTION_STATE)."""
        transaction = self._phases.open.get(transaction_id)
        if transaction is not None:
            return transaction.info
        ended = self._phases.ended.get(transaction_id)
        if ended is not None:
            raise _ended_error(transaction_id, ended)
        text = f"there is no transaction {transaction_id[:80]!r}: it never began, or ended before the broker started"
        raise QueueError(QueueErrorCode.UNKNOWN_TRANSACTION, text)


def _confirmed_in(transaction: Transaction, on_confirmed: Confirm | None, error: QueueError | None) -> None:
    """A message of a transaction that is lost dooms it, unless its queue was deleted and the others go on."""
    is_gone = error is not None and error.code is QueueErrorCode.UNKNOWN_QUEUE and transaction.holder == NOBODY
    if error is not None and not is_gone and not transaction.reason:
        transaction.reason = f"a message of it was lost: {error}"
    if on_confirmed is not None:
        on_confirmed(error)


def _confirm_again(
    queue: DurableQueue, partition: QueuePartition, first: int, on_confirmed: Confirm | None, on_stored: Stored | None
) -> None:
    """A repetition: it became what the first became, and is safe when that is."""
    if on_stored is not None:
        on_stored(StoredAs.MESSAGE, message_id_of(queue.name, partition.index, first))
    assert partition.produced is not None
    waiting = partition.produced.unconfirmed.get(first)
    if waiting is not None:
        waiting.join(on_confirmed)
    elif partition.produced.unregistered is not None:
        partition.produced.unregistered += [] if on_confirmed is None else [on_confirmed]
    elif on_confirmed is not None:
        on_confirmed(None)


def _ended_error(transaction_id: str, ended: EndedTransaction) -> QueueError:
    if ended.outcome is Outcome.COMMITTED:
        return QueueError(QueueErrorCode.TRANSACTION_STATE, f"transaction {transaction_id} is committed already")
    return aborted_error(transaction_id, ended.reason)
