"""What a start finds of producers and transactions: snapshots, the ends of logs, and decisions that were made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from reference_broker.core.queues.control_records import mark_of
from reference_broker.core.queues.coordinator import Coordinator, Decision
from reference_broker.core.queues.producers import PartitionProducers
from reference_broker.core.queues.transaction import Transaction, TransactionState

if TYPE_CHECKING:
    from reference_broker.core.queues.partition import QueuePartition
    from reference_broker.core.queues.queue import DurableQueue

_READ_RECORDS = 1_000


def recover(
    coordinator: Coordinator,
    queues: Mapping[str, DurableQueue],
    now: float,
    forget_partition: Callable[[str, int], None],
) -> list[Transaction]:
    """Restore what partitions know of producers; returns the transactions that must be ended in some of them.

    Those that were decided are in state COMMITTED, the others ABORTING. ``forget_partition`` is called with those that
    are not there any more. Raises :class:`LogError`.
    """
    found: dict[str, Transaction] = {}
    for transaction_id, decision in coordinator.decisions.items():
        found[transaction_id] = _decided(transaction_id, decision, queues, now)
    snapshots: dict[tuple[str, int], bytes] = {}
    for (name, index), snapshot in sorted(coordinator.partitions.items()):
        queue = queues.get(name)
        if queue is None or queue.volatile or index >= len(queue.partitions):
            forget_partition(name, index)
        else:
            snapshots[name, index] = snapshot
    for name, queue in queues.items():
        for partition in queue.partitions:
            snapshot_of = snapshots.get((name, partition.index))
            # Without a snapshot power was lost before the first one was durable: then the log itself tells.
            if snapshot_of is None and not (queue.had_producers(partition.index) and not queue.volatile):
                continue
            produced = partition.produced = _restore(partition, snapshot_of)
            queue.has_producers = True
            for transaction_id, span in produced.open.items():
                transaction = found.get(transaction_id)
                if transaction is None:
                    transaction = Transaction(transaction_id, span.producer, span.epoch, "", now=now, timeout_s=0.0)
                    transaction.move(TransactionState.ABORTING)
                    found[transaction_id] = transaction
                transaction.partitions[partition] = queue
    coordinator.partitions.clear()
    for transaction in found.values():
        # Parts that were told already count only once they are durable.
        transaction.partitions = {
            partition: queue for partition, queue in transaction.partitions.items() if partition.produced is not None
        }
    return list(found.values())


def _restore(partition: QueuePartition, snapshot: bytes | None) -> PartitionProducers:
    """Raises :class:`LogError`."""
    log = partition.log
    try:
        produced = PartitionProducers(log.start_offset) if snapshot is None else PartitionProducers.restore(snapshot)
    except ValueError:
        produced = PartitionProducers(log.start_offset)
    if produced.covered > log.next_offset:
        # The log lost what was durable: nothing that is known of it can be relied on.
        produced = PartitionProducers(log.next_offset)
    offset = max(produced.covered, log.start_offset)
    while offset < log.next_offset:
        records = log.read(offset, _READ_RECORDS)
        if not records:
            break
        for record in records:
            mark = mark_of(record)
            if mark is not None:
                produced.replay(mark, record.offset)
        offset = records[-1].offset + 1
    produced.unregistered = None
    produced.forget_below(log.start_offset)
    return produced


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
        if group is None or held.partition >= len(group.places):
            continue
        transaction.also[group] = None
        entry = group.places[held.partition].pending.get(held.offset)
        if entry is not None:
            transaction.held[entry] = group
    return transaction
