"""What the engine has to do next: logs to write, groups to serve, syncs that confirms wait for, deadlines."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_broker.core.queues.confirms import SyncPoint
    from reference_broker.core.queues.group import ConsumerGroup
    from reference_broker.core.queues.partition import QueuePartition


class Agenda:
    """Everything is kept in the order in which it came up, so that a run repeats exactly."""

    def __init__(self) -> None:
        self.partitions_to_write: dict[QueuePartition, None] = {}
        self.groups_to_serve: dict[ConsumerGroup, None] = {}
        self.groups_to_write: dict[ConsumerGroup, None] = {}
        self.awaited_syncs: dict[SyncPoint, None] = {}
        """Logs whose confirms wait for a sync."""
        self.unsynced: dict[SyncPoint, None] = {}
        """Logs with writes that the next periodic sync covers."""
        self._wakes: list[tuple[float, int, ConsumerGroup]] = []
        self._wake_count = 0
        self.now = 0.0
        """The latest time the engine was told."""

    @property
    def has_immediate_work(self) -> bool:
        return bool(self.partitions_to_write or self.groups_to_serve or self.groups_to_write)

    def wake(self, group: ConsumerGroup, at: float) -> None:
        """Call ``group.on_time`` at a time, unless it is called earlier anyway and then asks again."""
        if at < group.wake_at:
            group.wake_at = at
            self._wake_count += 1
            heapq.heappush(self._wakes, (at, self._wake_count, group))

    def next_wake(self) -> float | None:
        return self._wakes[0][0] if self._wakes else None

    def due_groups(self, now: float) -> list[ConsumerGroup]:
        """Groups whose time has come, each once."""
        due: dict[ConsumerGroup, None] = {}
        while self._wakes and self._wakes[0][0] <= now:
            at, _, group = heapq.heappop(self._wakes)
            if group.wake_at == at:
                group.wake_at = float("inf")
                due[group] = None
        return list(due)
