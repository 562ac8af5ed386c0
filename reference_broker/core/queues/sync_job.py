"""Work for the disk that confirms wait for."""

from __future__ import annotations

from reference_broker.core.queues.confirms import SyncPoint
from reference_broker.core.queues.store import SyncTask


class SyncJob:
    """One blocking sync. Run it in any thread or charge it to a simulated disk, then tell the engine."""

    __slots__ = ("_task", "point")

    def __init__(self, point: SyncPoint, task: SyncTask) -> None:
        self.point = point
        self._task = task

    def run(self) -> None:
        """Blocks until the data is on disk. Raises :class:`OSError`."""
        self._task.run()
