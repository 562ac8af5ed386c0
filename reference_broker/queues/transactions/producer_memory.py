"""What is remembered of producers beyond one turn: by the coordinator, and by each partition that they wrote to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode, may_pass
from assay.reference_broker.queues.jobs.store import QueueStore
from assay.reference_broker.queues.partitions.producers import PartitionProducers
from assay.reference_broker.queues.registry.reopening import Reopening
from assay.reference_broker.queues.transactions.coordinator import FOLDER, Coordinator, open_coordinator

if TYPE_CHECKING:
    from assay.reference_broker.queues.partitions.partition import QueuePartition
    from assay.reference_broker.queues.queue.queue import DurableQueue


class ProducerMemory:
    """The coordinator, opened when it is first used, and the snapshots of partitions that it keeps."""

    def __init__(self, store: QueueStore, agenda: Agenda) -> None:
        self._store = store
        self._agenda = agenda
        self.found: Coordinator | None = None
        """None as long as nobody ever used it."""
        self._failure: QueueError | None = None
        self.reopening = Reopening()
        """When it is tried again, where it could not be read for a reason that may pass."""
        self.queue_of: dict[QueuePartition, DurableQueue] = {}
        """Of the partitions with producers that are on disk."""
        self._snapshots: dict[QueuePartition, tuple[DurableQueue, int, bytes]] = {}
        """Taken, and to be written once the partition's log is durable up to an offset."""

    def open_existing(self) -> Coordinator | None:
        """The coordinator, if there was ever one. Raises :class:`LogError`."""
        self.found = open_coordinator(self._store, self._agenda, create=False)
        if self._failure is not None:
            self._failure, self.reopening = None, Reopening()
            self._store.note("", FOLDER, "it could be read now")
        return self.found

    def set_aside(self, error: LogError | QueueError) -> None:
        """The coordinator's state cannot be read, and stays as it is: nobody produces until it can."""
        problem = str(error)
        if may_pass(error):
            self.reopening.failed(FOLDER, self._agenda.now)
        else:
            self.reopening = Reopening()
        self._failure = QueueError(QueueErrorCode.STORAGE_FAILED, f"there are no transactions now: {problem}")
        self._store.note("", FOLDER, f"{problem}; producers and transactions are refused, other messages are not")

    @property
    def coordinator(self) -> Coordinator:
        """Created when it is first used. Raises :class:`QueueError`."""
        if self._failure is not None:
            raise self._failure
        if self.found is None:
            try:
                self.found = open_coordinator(self._store, self._agenda, create=True)
            except LogError as error:
                raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error
            assert self.found is not None
        return self.found

    def of(self, queue: DurableQueue, partition: QueuePartition) -> PartitionProducers:
        """The partition's memory of producers, which it gets with the first. Raises :class:`QueueError`."""
        produced = partition.produced
        if produced is None:
            coordinator = self.coordinator
            produced = PartitionProducers(partition.log.durable_offset)
            if not queue.volatile:
                queue.remember_producers(partition.index)
                coordinator.save_partition(queue.name, partition.index, produced.snapshot(produced.covered))
            partition.produced = produced
            queue.has_producers = True
            if queue.volatile:
                produced.unregistered = None
            else:
                self.remember(queue, partition)
        return produced

    def remember(self, queue: DurableQueue, partition: QueuePartition) -> None:
        """A partition has producers: confirms wait until that is durable."""
        produced = partition.produced
        if produced is not None:
            self.queue_of[partition] = queue
            produced.unregistered = []
            self.coordinator.when_durable(partial(_registered, produced))

    def forget(self, queue: DurableQueue) -> None:
        """A queue is deleted; another of its name must not take over what is remembered."""
        for partition in queue.partitions:
            self._agenda.written_produced.pop(partition, None)
            self._snapshots.pop(partition, None)
            if self.queue_of.pop(partition, None) is not None:
                self.forget_partition(queue.name, partition.index)

    def forget_partition(self, queue: str, partition: int) -> None:
        """A partition does not exist any more."""
        coordinator = self.coordinator
        try:
            coordinator.save_partition(queue, partition, None)
        except QueueError:
            # It is tried again when the broker starts and finds no such queue.
            return
        self._agenda.awaited_syncs[coordinator] = None

    @property
    def has_snapshots(self) -> bool:
        """Some wait for their partition's log."""
        return bool(self._snapshots)

    def take_snapshots(self) -> None:
        """Remember what partitions know of producers, so that a start needs to read only the end of their logs."""
        written, self._agenda.written_produced = self._agenda.written_produced, {}
        for partition in written:
            produced = partition.produced
            queue = self.queue_of.get(partition)
            if produced is None or queue is None or partition.unwritten:
                continue
            end = partition.log.next_offset
            if partition not in self._snapshots and end - produced.covered >= produced.snapshot_interval:
                self._snapshots[partition] = (queue, end, produced.snapshot(end))
        for partition, (queue, covered, snapshot) in list(self._snapshots.items()):
            if partition.failure is not None or partition.log.durable_offset >= covered:
                del self._snapshots[partition]
                self._save_snapshot(partition, queue, covered, snapshot)

    def _save_snapshot(self, partition: QueuePartition, queue: DurableQueue, covered: int, snapshot: bytes) -> None:
        produced = partition.produced
        coordinator = self.found
        if produced is None or coordinator is None or partition.failure is not None:
            return

        def saved(error: QueueError | None) -> None:
            if error is None:
                produced.covered = max(produced.covered, covered)

        try:
            coordinator.save_partition(queue.name, partition.index, snapshot)
        except QueueError:
            return
        if not coordinator.when_synced(saved):
            saved(None)

    def close(self) -> None:
        """All logs are synced: leave snapshots of everything. Blocking."""
        for partition, queue in self.queue_of.items():
            log, produced = partition.log, partition.produced
            if (
                produced is not None
                and partition.failure is None
                and produced.covered < log.next_offset == log.durable_offset
            ):
                self._save_snapshot(partition, queue, log.next_offset, produced.snapshot(log.next_offset))


def _registered(produced: PartitionProducers, error: QueueError | None) -> None:
    """It is durable, or will never be, that the partition has producers."""
    confirms, produced.unregistered = produced.unregistered or [], None
    for confirm in confirms:
        confirm(error)
