"""Work for the disk that confirms wait for."""

from __future__ import annotations

from reference_broker.core.queues.store import PartitionLog, PendingLog, SyncTask


class SyncJob:
    """One blocking sync. Run it in any thread or charge it to a simulated disk, then tell the engine."""

    __slots__ = ("_task", "log", "queue")

    def __init__(self, queue: str, log: PartitionLog | PendingLog, task: SyncTask) -> None:
        self.queue = queue
        self.log = log
        self._task = task

    def run(self) -> None:
        """Blocks until the data is on disk. Raises :class:`OSError`."""
        self._task.run()
