"""What a start finds of producers and transactions: snapshots, the ends of logs, and decisions that were made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from assay.reference_broker.queues.delivery.settle_request import Outcome as Settled
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, raise_if_not_tried
from assay.reference_broker.queues.jobs.store import PartitionLog
from assay.reference_broker.queues.messages.control_records import mark_of
from assay.reference_broker.queues.partitions.producers import OpenSpan, PartitionProducers
from assay.reference_broker.queues.transactions.coordinator import Coordinator, Decision
from assay.reference_broker.queues.transactions.transaction import Transaction, TransactionState

if TYPE_CHECKING:
    from assay.reference_broker.queues.partitions.partition import QueuePartition
    from assay.reference_broker.queues.queue.queue import DurableQueue

READ_RECORDS = 1_000
SetAside = Callable[[str, str, Exception], None]
"""The queue, what is wrong with it for people, and by what."""


def recover(
    coordinator: Coordinator,
    queues: Mapping[str, DurableQueue],
    now: float,
    forget_partition: Callable[[str, int], None],
    set_aside: SetAside,
    is_unusable: Callable[[str], bool],
) -> list[Transaction]:
    """Restore what partitions know of producers; returns the transactions that must be ended in some of them.

    Those that were decided are in state COMMITTED, the others ABORTING. ``forget_partition`` is called with those that
    are not there any more. A queue that cannot be read is ``set_aside``; what concerns it stays as it is.

    Raises :class:`LogError`.
    """
    found: dict[str, Transaction] = {}
    for transaction_id, decision in coordinator.decisions.items():
        found[transaction_id] = _decided(transaction_id, decision, queues, now)
    snapshots: dict[tuple[str, int], bytes] = {}
    for (name, index), snapshot in sorted(coordinator.partitions.items()):
        queue = queues.get(name)
        if queue is None and is_unusable(name):
            continue
        if queue is None or queue.volatile or index >= len(queue.partitions):
            forget_partition(name, index)
        else:
            snapshots[name, index] = snapshot
    is_stale = False
    lost: list[DurableQueue] = []
    for name, queue in list(queues.items()):
        for partition in queue.partitions:
            snapshot_of = snapshots.get((name, partition.index))
            # Without a snapshot power was lost before the first one was durable: then the log itself tells.
            if snapshot_of is None and not (queue.had_producers(partition.index) and not queue.volatile):
                continue
            try:
                produced, is_cut = _restore(partition, snapshot_of)
            except LogError as error:
                raise_if_not_tried(error)
                set_aside(name, str(error), error)
                lost.append(queue)
                break
            partition.produced = produced
            queue.has_producers = True
            # Killed between the coordinator's record and the queue's description, only the first knew of producers.
            queue.remember_producers(partition.index)
            if is_cut:
                try:
                    coordinator.save_partition(name, partition.index, produced.snapshot(produced.covered))
                except QueueError as error:
                    raise LogError(str(error)) from error
                is_stale = True
            for transaction_id, span in produced.open.items():
                transaction = found.get(transaction_id)
                if transaction is None:
                    transaction = found[transaction_id] = _undecided(coordinator, transaction_id, span, queues, now)
                transaction.partitions[partition] = queue
    coordinator.partitions = {at: each for at, each in coordinator.partitions.items() if is_unusable(at[0])}
    for transaction_id, decision in coordinator.decisions.items():
        names = [*(name for name, _ in decision.partitions), *(held.queue for held in decision.held)]
        if any(map(is_unusable, names)):
            coordinator.kept.add(transaction_id)
        else:
            coordinator.kept.discard(transaction_id)
    if is_stale:
        # Before the offsets are given out again that a stale snapshot knows as other messages'.
        coordinator.sync_now()
    for transaction in found.values():
        # Parts that were told already count only once they are durable.
        transaction.partitions = {
            partition: queue for partition, queue in transaction.partitions.items() if partition.produced is not None
        }
        for queue in lost:
            transaction.forget(queue)
    return list(found.values())


def _restore(partition: QueuePartition, snapshot: bytes | None) -> tuple[PartitionProducers, bool]:
    """Also tells whether the log ends before what the snapshot knows. Raises :class:`LogError`."""
    log = partition.log
    known: PartitionProducers | None = None
    if snapshot is not None:
        with suppress(ValueError):
            known = PartitionProducers.restore(snapshot)
    is_cut = known is not None and known.covered > log.next_offset
    produced = PartitionProducers(log.start_offset) if known is None or is_cut else known
    _replay(produced, log)
    if known is not None and is_cut:
        # The log lost what had been durable: it may be believed about what it has, the snapshot about the rest.
        produced.inherit(known, log.next_offset)
    produced.unregistered = None
    produced.forget_below(log.start_offset)
    return produced, is_cut


def _replay(produced: PartitionProducers, log: PartitionLog) -> None:
    """Raises :class:`LogError`."""
    offset = max(produced.covered, log.start_offset)
    while offset < log.next_offset:
        records = log.read(offset, READ_RECORDS)
        if not records:
            break
        for record in records:
            mark = mark_of(record)
            if mark is not None:
                produced.replay(mark, record.offset)
        offset = records[-1].offset + 1


def _undecided(
    coordinator: Coordinator, transaction_id: str, span: OpenSpan, queues: Mapping[str, DurableQueue], now: float
) -> Transaction:
    """A transaction without an end in some partition, and without a decision: aborted, as a rule."""
    name = coordinator.names.get(span.producer, "")
    producer = coordinator.producers.get(name)
    if producer is not None and producer.last_committed == transaction_id:
        # It was complete, so its end was durable; a log has lost it.
        decision = coordinator.decisions[transaction_id] = Decision(span.producer, span.epoch, name, [], [])
        return _decided(transaction_id, decision, queues, now)
    transaction = Transaction(transaction_id, span.producer, span.epoch, "", now=now, timeout_s=0.0)
    transaction.move(TransactionState.ABORTING)
    return transaction


def _decided(transaction_id: str, decision: Decision, queues: Mapping[str, DurableQueue], now: float) -> Transaction:
    transaction = Transaction(
        transaction_id, decision.producer, decision.epoch, decision.transactional_id, now=now, timeout_s=0.0
    )
    for state in (TransactionState.PREPARING, TransactionState.DECIDING, TransactionState.COMMITTED):
        transaction.move(state)
    for name, index in decision.partitions:
        queue = queues.get(name)
        if queue is not None and index < len(queue.partitions):
            transaction.partitions[queue.partitions[index]] = queue
    for held in decision.held:
        queue = queues.get(held.queue)
        group = None if queue is None else queue.groups.get(held.group)
        if group is None:
            continue
        transaction.also[group] = None
        entry = group.unsettled_entry(held.partition, held.offset)
        if entry is not None and held.delivered_at_ms in (None, int(entry.claimed_at * 1000)):
            transaction.held[entry] = group
            if held.is_rejected:
                transaction.settled[entry] = Settled.REJECT
    return transaction
