"""What the engine has to do next: logs to write, groups to serve, syncs that confirms wait for, deadlines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from assay.reference_broker.config import EventKind
from assay.reference_broker.queues.jobs.confirms import SyncPoint

if TYPE_CHECKING:
    from assay.reference_broker.config import SchemaCheckConfig
    from assay.reference_broker.routing.message import Message
    from assay.reference_broker.trace.tracing import Tracing

NEVER: Final = float("inf")
"""When what has no deadline is due, in Unix seconds."""
MAX_WORK = 4_096
"""Messages that are delivered, taken back, moved or let go between two chances for others to be served."""
MAX_WAKES = 1_024


Notify = Callable[[EventKind, str, dict[str, Any]], int]
"""Takes what happened, to which client, queue or tenant, and what else there is to say of it; returns how many are
told of it, each of which takes about as long as a message."""


class LogOwner(Protocol):
    """Writes logs."""

    def write(self, point: Any) -> None:
        """Write what its log collected in this turn."""

    def serve_groups(self) -> None:
        """A sync made messages of one of its logs durable."""


class Wakeable(Protocol):
    """Something that waits for a time."""

    wake_at: float
    """The agenda's: when it is woken; ``inf`` = not at all."""

    def pass_time(self, now: float) -> None:
        """Do what has become due."""


class Served(Wakeable, Protocol):
    """A group, which may have something to deliver and something to write."""

    def serve(self, now: float) -> None:
        """Deliver what its consumers have room for."""

    def write(self, now: float) -> None:
        """Write what happened since the last time."""


class Agenda:
    """Everything is kept in the order in which it came up, so that a run repeats exactly."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.tracing = tracing
        """Spans of some messages; None = of none."""
        self.owners: dict[SyncPoint, LogOwner] = {}
        """Who writes a log; every log of a message but not those of groups."""
        self.partitions_to_write: dict[SyncPoint, None] = {}
        self.groups_to_serve: dict[Served, None] = {}
        self.groups_to_write: dict[Served, None] = {}
        self.awaited_syncs: dict[SyncPoint, None] = {}
        """Logs whose confirms wait for a sync."""
        self.unsynced: dict[SyncPoint, None] = {}
        """Logs with writes that the next periodic sync covers."""
        self.produce: Callable[..., None] | None = None
        """Takes the messages that name a producer or a transaction: :meth:`Transactions.publish`."""
        self.misfit: Callable[[SchemaCheckConfig, Message], str | None] | None = None
        """Says why a message does not fit what its queue asks for; None where there are no schemas."""
        self.notify: Notify | None = None
        """Takes what happens, for webhooks; None where there are none."""
        self.state_points: dict[SyncPoint, None] = {}
        """State logs beside those of queues: synced and closed with them, and never set aside."""
        self.written_produced: dict[Any, None] = {}
        """Partitions with producers that were written to; their snapshots may be due."""
        self.is_committing = False
        """Transactions are being committed or aborted, or such snapshots wait: :meth:`Transactions.step` has work."""
        self._wakes: list[tuple[float, int, Wakeable]] = []
        self._wake_count = 0
        self.now = 0.0
        """The latest time the engine was told."""
        self.work = 0
        """What was done in this part of the turn. From :data:`MAX_WORK` on what is left waits for the next one."""
        self.cost = 0
        """What commands took beside what they say, for whoever gave them; 1 is about as much as a message."""

    def tell(self, kind: EventKind, subject: str, data: dict[str, Any]) -> int:
        """Tell webhooks what happened; returns what that took."""
        told = 0 if self.notify is None else self.notify(kind, subject, data)
        self.cost += told
        self.work += told
        return told

    @property
    def room(self) -> int:
        """Work that may still be done."""
        return MAX_WORK - self.work

    @property
    def has_immediate_work(self) -> bool:
        return bool(self.partitions_to_write or self.groups_to_serve or self.groups_to_write)

    def wake(self, group: Wakeable, at: float) -> None:
        """Let time pass for it at a time, unless that is done earlier anyway and it asks again then."""
        if at < group.wake_at:
            group.wake_at = at
            self._wake_count += 1
            heapq.heappush(self._wakes, (at, self._wake_count, group))

    def forget(self, group: Any) -> None:
        """The group is deleted: nothing is to be done for it any more."""
        for todo in (self.groups_to_serve, self.groups_to_write, self.awaited_syncs, self.unsynced):
            todo.pop(group, None)
        # No time comes before it, so none is awaited.
        group.wake_at = float("-inf")

    def forget_others(self, kept: Collection[SyncPoint]) -> set[SyncPoint]:
        """At opening: nothing is to be done for other logs than these; returns those."""
        everything = (self.owners, self.partitions_to_write, self.awaited_syncs, self.unsynced)
        found = {point for work in everything for point in work} - set(kept) - self.state_points.keys()
        self.forget_all(found, found)
        return found

    def forget_all(self, points: Iterable[SyncPoint], waiting: Iterable[object]) -> None:
        """Nothing is to be done for these logs any more, and nobody of ``waiting`` is woken."""
        every: tuple[dict[Any, Any], ...] = (
            self.owners,
            self.partitions_to_write,
            self.groups_to_serve,
            self.groups_to_write,
            self.awaited_syncs,
            self.unsynced,
            self.written_produced,
        )
        for point in points:
            for work in every:
                work.pop(point, None)
        ended = {id(each) for each in waiting}
        self._wakes = [wake for wake in self._wakes if id(wake[2]) not in ended]
        heapq.heapify(self._wakes)

    def next_wake(self) -> float | None:
        return self._wakes[0][0] if self._wakes else None

    def due(self, now: float) -> list[Wakeable]:
        """Those whose time has come, each once; of very many some, and others the next time."""
        due: dict[Wakeable, None] = {}
        while self._wakes and self._wakes[0][0] <= now and len(due) < MAX_WAKES:
            at, _, group = heapq.heappop(self._wakes)
            if group.wake_at == at:
                group.wake_at = float("inf")
                due[group] = None
        return list(due)
