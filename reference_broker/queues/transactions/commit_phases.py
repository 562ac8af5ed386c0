"""The two phases of a commit, and the end of a transaction in each of its parts.

First everything in it becomes durable, then the decision; then the parts are told, and once they know durably, the
decision has done its work. An abort needs no decision.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.delivery.settle_request import Outcome as Settled
from assay.reference_broker.queues.groups.pending import EntryState, PendingEntry
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import Confirm, JointConfirm, SyncPoint
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.control_records import Outcome, control_record
from assay.reference_broker.queues.transactions.coordinator import Decision, HeldOffset
from assay.reference_broker.queues.transactions.producer_memory import ProducerMemory
from assay.reference_broker.queues.transactions.transaction import (
    NOBODY,
    EndedTransaction,
    Transaction,
    TransactionState,
)
from assay.reference_broker.trace.durations import Durations

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group import ConsumerGroup
    from assay.reference_broker.queues.partitions.partition import QueuePartition
    from assay.reference_broker.queues.queue.queue import DurableQueue

_RETRY_S = 1.0
_MAX_ENDED = 10_000


class CommitPhases:
    """Carries transactions from the wish to commit or abort to the end."""

    def __init__(self, agenda: Agenda, memory: ProducerMemory) -> None:
        self._agenda = agenda
        self._memory = memory
        self.open: dict[str, Transaction] = {}
        """By id; also those that are being committed or aborted."""
        self.open_of: dict[str, int] = {}
        """How many of these somebody began."""
        self.ended: dict[str, EndedTransaction] = {}
        """The last ones, by id, to tell what became of them."""
        self.lasted = {outcome: Durations() for outcome in Outcome}
        """From their beginning to their end, of those that ended so."""
        self._preparing: dict[Transaction, None] = {}
        self._aborting: dict[Transaction, None] = {}
        self._completing: dict[Transaction, None] = {}
        self._found_rejections: list[tuple[Transaction, PendingEntry, ConsumerGroup]] = []
        """That a start found: whoever takes dead letters is there with the first turn."""
        self.has_more = False
        """The last turn had no room for all that was to be done."""
        self._marker_retries: list[tuple[float, Transaction, QueuePartition, DurableQueue, Outcome]] = []

    def add(self, transaction: Transaction) -> None:
        """One that begins."""
        self.open[transaction.id] = transaction
        if transaction.holder is not None:
            self.open_of[transaction.holder] = self.open_of.get(transaction.holder, 0) + 1

    def prepare(self, transaction: Transaction) -> None:
        """To be committed."""
        transaction.move(TransactionState.PREPARING)
        if transaction.is_empty:
            self._decide(transaction)
        else:
            self._preparing[transaction] = None
            self._agenda.is_committing = True

    def resume(self, transaction: Transaction) -> None:
        """Found when the broker started: tell the parts how it ended."""
        committed = transaction.state is TransactionState.COMMITTED
        for partition, queue in transaction.partitions.items():
            self.close_in(transaction, partition, queue, Outcome.COMMITTED if committed else Outcome.ABORTED)
        for entry, group in transaction.held.items():
            if transaction.settled.get(entry) is Settled.REJECT:
                group.hold(entry)
                transaction.markers += 1
                self._found_rejections.append((transaction, entry, group))
            else:
                group.remove(entry, None)
        if committed:
            self._completing[transaction] = None
            self._agenda.is_committing = True

    def abort(self, transaction: Transaction, reason: str) -> None:
        """To be aborted."""
        transaction.reason = reason
        transaction.move(TransactionState.ABORTING)
        self._preparing.pop(transaction, None)
        self._aborting[transaction] = None
        self._agenda.is_committing = True

    @property
    def is_busy(self) -> bool:
        """There is work for :meth:`step`."""
        return bool(self._preparing or self._aborting or self._completing)

    def step(self, now: float) -> None:
        """At the end of a turn, when everything is written: go on with what is being committed or aborted."""
        self.has_more = False
        for transaction, entry, group in self._found_rejections:
            transaction.markers -= 1
            if entry.state is EntryState.COMMITTING:
                self._settle(transaction, entry, group, now)
        self._found_rejections.clear()
        for transaction in self._written(self._preparing):
            del self._preparing[transaction]
            # The coordinator, too: a power loss may keep the decision and lose what was written just before it.
            points = [self._memory.coordinator, *transaction.partitions, *transaction.also, *transaction.held.values()]
            self._when_all_durable(points, partial(self._prepared, transaction), lazily=False)
        for transaction in self._written(self._completing):
            if transaction.markers:
                continue
            del self._completing[transaction]
            points = [*transaction.partitions, *transaction.also, *transaction.held.values()]
            self._when_all_durable(points, partial(self._completed, transaction), lazily=True)
        # Last, since it adds records that are not written yet: the others would wait for a turn that may not come.
        for transaction in self._written(self._aborting):
            del self._aborting[transaction]
            self.end(transaction, Outcome.ABORTED)

    def _written(self, waiting: dict[Transaction, None]) -> list[Transaction]:
        """Those of which nothing waits for the end of the turn, as many as the turn has room for."""
        written: list[Transaction] = []
        for transaction in waiting:
            if self._agenda.room <= 0:
                self.has_more = True
                break
            # As much to look at as to end.
            self._agenda.work += 1 + len(transaction.partitions) + len(transaction.held) + (transaction.messages >> 2)
            if transaction.is_written:
                written.append(transaction)
        return written

    def _when_all_durable(self, points: list[SyncPoint], done: Confirm, *, lazily: bool) -> None:
        """``lazily``: the next periodic sync is early enough."""
        joint = JointConfirm(done)
        agenda = self._agenda
        for point in dict.fromkeys(points):
            part = joint.part()
            if point.failure is not None:
                part(point.failure)
            elif not point.when_synced(part):
                part(None)
            elif lazily:
                agenda.unsynced[point] = None
            else:
                agenda.awaited_syncs[point] = None
        joint.close()

    def _prepared(self, transaction: Transaction, error: QueueError | None) -> None:
        """Everything in the transaction is durable: decide."""
        if transaction.state is not TransactionState.PREPARING:
            return
        is_gone = error is not None and error.code is QueueErrorCode.UNKNOWN_QUEUE
        if is_gone and transaction.holder == NOBODY and not transaction.reason:
            # A queue of it was deleted: the others are waited for anew.
            self._preparing[transaction] = None
            self._agenda.is_committing = True
            return
        if error is not None or transaction.reason:
            self.abort(transaction, transaction.reason or str(error))
            return
        self._decide(transaction)

    def _decide(self, transaction: Transaction) -> None:
        """Have the decision made durable. Nothing but that keeps an empty one known to whoever asks again."""
        decision = Decision(
            transaction.producer,
            transaction.epoch,
            transaction.name,
            [(queue.name, partition.index) for partition, queue in transaction.partitions.items()],
            [
                HeldOffset(
                    group.config.name,
                    group.group_id,
                    entry.place.index,
                    entry.offset,
                    int(entry.claimed_at * 1000),
                    entry in transaction.settled,
                )
                for entry, group in transaction.held.items()
                # What is given back is that as well when nothing is known of it.
                if transaction.settled.get(entry) is not Settled.FAIL
            ],
        )
        coordinator = self._memory.coordinator
        try:
            coordinator.decide(transaction.id, decision)
        except QueueError as refused:
            self.abort(transaction, str(refused))
            return
        transaction.move(TransactionState.DECIDING)
        coordinator.when_durable(partial(self._decided, transaction))

    def _decided(self, transaction: Transaction, error: QueueError | None) -> None:
        if error is None:
            self._agenda.work += 1 + len(transaction.partitions) + len(transaction.held) + (transaction.messages >> 2)
            self.end(transaction, Outcome.COMMITTED)
            return
        # Nobody knows whether the disk has the decision: only the next start can tell, and until then nothing shows.
        self.tell(transaction, error)

    def end(self, transaction: Transaction, outcome: Outcome) -> None:
        """A transaction is over: move it on, make room for others, give back or settle what it acknowledged."""
        committed = outcome is Outcome.COMMITTED
        now = self._agenda.now
        self.lasted[outcome].add(now - transaction.began_at)
        transaction.move(TransactionState.COMMITTED if committed else TransactionState.ABORTED)
        del self.open[transaction.id]
        if transaction.holder is not None:
            left = self.open_of.pop(transaction.holder) - 1
            if left:
                self.open_of[transaction.holder] = left
        coordinator = self._memory.coordinator
        if coordinator.open.get(transaction.producer) is transaction:
            del coordinator.open[transaction.producer]
        if transaction.holder != NOBODY:
            if len(self.ended) >= _MAX_ENDED:
                del self.ended[next(iter(self.ended))]
            self.ended[transaction.id] = EndedTransaction(
                producer=transaction.producer, outcome=outcome, reason=transaction.reason
            )
        for partition, queue in transaction.partitions.items():
            self.close_in(transaction, partition, queue, outcome)
        if committed and transaction.id in coordinator.decisions:
            # Before the settlements: a letter that is refused at once takes it out again.
            self._completing[transaction] = None
            self._agenda.is_committing = True
        for entry, group in transaction.held.items():
            if entry.state is not EntryState.COMMITTING:
                continue
            if committed:
                self._settle(transaction, entry, group, now)
            else:
                group.retry(entry, now, now, "transaction aborted")
        self.tell(transaction, None if committed else aborted_error(transaction.id, transaction.reason))

    def _settle(self, transaction: Transaction, entry: PendingEntry, group: ConsumerGroup, now: float) -> None:
        """It is committed: a delivery that was settled in it is settled for good."""
        outcome = transaction.settled.get(entry, Settled.ACCEPT)
        if outcome is not Settled.REJECT:
            settlement.settle(group, entry, outcome, "", now, None)
            return
        transaction.markers += 1

        def moved(error: QueueError | None) -> None:
            transaction.markers -= 1
            if error is not None:
                # It is tried again. If that does not come about, the next start finds the decision.
                self._completing.pop(transaction, None)

        settlement.settle(group, entry, outcome, settlement.REJECTED, now, moved)

    def tell(self, transaction: Transaction, error: QueueError | None) -> None:
        """Whoever waits for its end learns that it is committed, or why not, and goes on."""
        waiters, transaction.waiters = transaction.waiters, []
        for waiter in waiters:
            waiter(error)
        afterwards, transaction.afterwards = transaction.afterwards, []
        for call in afterwards:
            call()

    def close_in(
        self, transaction: Transaction, partition: QueuePartition, queue: DurableQueue, outcome: Outcome
    ) -> None:
        """Let the transaction's messages in a partition be delivered, or hide them, and write down which."""
        produced = partition.produced
        assert produced is not None
        had_messages = transaction.id in produced.open
        hidden = produced.close(transaction.id, outcome)
        queue.hide(partition, hidden)
        queue.aborted += len(hidden)
        partition.show()
        queue.serve_groups()
        if had_messages:
            self._write_marker(transaction, partition, queue, outcome)

    def _write_marker(
        self, transaction: Transaction, partition: QueuePartition, queue: DurableQueue, outcome: Outcome
    ) -> None:
        if partition.failure is not None:
            return
        record = control_record(
            transaction.producer, transaction.epoch, transaction.id, outcome, int(self._agenda.now * 1000)
        )
        transaction.markers += 1

        def written(error: QueueError | None) -> None:
            transaction.markers -= 1
            if error is None:
                return
            if partition.failure is None:
                transaction.markers += 1
                due = self._agenda.now + _RETRY_S
                self._marker_retries.append((due, transaction, partition, queue, outcome))

        queue.add_control(partition, record, written)

    def _completed(self, transaction: Transaction, error: QueueError | None) -> None:
        """All parts know durably: the decision has done its work."""
        coordinator = self._memory.coordinator
        if error is None and transaction.id in coordinator.decisions and transaction.id not in coordinator.kept:
            try:
                coordinator.complete(transaction.id)
            except QueueError:
                # It stays, and the next start finds that there is nothing left to do.
                return

    def forget_queue(self, queue: DurableQueue) -> None:
        """A queue is deleted: nothing more is to be told to it."""
        for retry in [each for each in self._marker_retries if each[3] is queue]:
            retry[1].markers -= 1
        self._marker_retries = [each for each in self._marker_retries if each[3] is not queue]
        for transaction in self._completing:
            transaction.forget(queue)

    def next_deadline(self) -> float | None:
        """When the disk is asked again that refused to take a control record."""
        return min((due for due, *_ in self._marker_retries), default=None)

    def tick(self, now: float) -> None:
        """Try again what the disk refused."""
        due = [retry for retry in self._marker_retries if retry[0] <= now]
        if due:
            self._marker_retries = [retry for retry in self._marker_retries if retry[0] > now]
            for _, transaction, partition, queue, outcome in due:
                transaction.markers -= 1
                self._write_marker(transaction, partition, queue, outcome)


def aborted_error(transaction_id: str, reason: str) -> QueueError:
    return QueueError(QueueErrorCode.TRANSACTION_STATE, f"transaction {transaction_id} is aborted: {reason}")
