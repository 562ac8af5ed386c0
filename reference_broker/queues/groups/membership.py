"""The members of a group beside what they are delivered: heartbeats, generations, automatic commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from assay.reference_broker.queues.groups.group_state import GroupState
    from assay.reference_broker.queues.groups.pending import Consumer


class Membership:
    """Members of one group. Whoever is bound to a connection leaves with it and needs no heartbeat, however idle."""

    __slots__ = ("_commit_at", "_expires", "_group", "_received")

    def __init__(self, group: GroupState) -> None:
        self._group = group
        self._expires: dict[Consumer, float] = {}
        """Members without connection, in the order in which their sessions end."""
        self._received: dict[Consumer, None] = {}
        """Consumers with automatic commit that have something to commit."""
        self._commit_at = NEVER

    # -- sessions ------------------------------------------------------------------------------------------------

    def expect_heartbeats(self, consumer: Consumer, now: float) -> None:
        """The consumer is bound to no connection: its session ends when no heartbeat comes for long."""
        group = self._group
        self._expires.pop(consumer, None)
        expires_at = self._expires[consumer] = now + group.config.group.session_timeout_s
        group.agenda.wake(group, expires_at)

    def heartbeat(self, consumer_id: str, generation: int, now: float) -> Consumer:
        """A member is alive, also one that knows an old generation only.

        Raises :class:`QueueError`: UNKNOWN_MEMBER, STALE_GENERATION.
        """
        consumer = self.member(consumer_id)
        if consumer in self._expires:
            self.expect_heartbeats(consumer, now)
        self.check(consumer_id, generation)
        return consumer

    def check(self, consumer_id: str, generation: int) -> None:
        """Refuse who left or decides on an old assignment. Raises :class:`QueueError`."""
        self.member(consumer_id)
        current = self._group.generation
        if generation != current:
            text = (
                f"generation {generation} of group {self._group.group_id!r} is not the current one, {current}: "
                "its consumers have changed"
            )
            raise QueueError(QueueErrorCode.STALE_GENERATION, text)

    def member(self, consumer_id: str) -> Consumer:
        """Raises :class:`QueueError` (UNKNOWN_MEMBER)."""
        consumer = self._group.consumers.get(consumer_id)
        if consumer is None:
            text = f"{consumer_id[:80]!r} is not a consumer of group {self._group.group_id!r}"
            raise QueueError(QueueErrorCode.UNKNOWN_MEMBER, text)
        return consumer

    def left(self, consumer: Consumer) -> None:
        """Forget a consumer."""
        self._expires.pop(consumer, None)
        self._received.pop(consumer, None)

    # -- automatic commit ----------------------------------------------------------------------------------------

    def received(self, consumer: Consumer, partition: int, offset: int, now: float) -> None:
        """A consumer with automatic commit has a delivery: it is committed with the next interval.

        Or earlier, when it has half of what it may hold; otherwise the interval would limit its rate.
        """
        if consumer.received is None or not consumer.active:
            return
        consumer.received.append((partition, offset))
        if 2 * len(consumer.received) >= consumer.limit:
            self.commit(consumer)
        elif consumer not in self._received:
            self._received[consumer] = None
            if self._commit_at == NEVER:
                self._commit_at = now + self._group.config.group.auto_commit_interval_s
                self._group.agenda.wake(self._group, self._commit_at)

    def commit(self, consumer: Consumer) -> None:
        """Settle what a consumer with automatic commit received until now."""
        group = self._group
        received, consumer.received = consumer.received or [], []
        # It may have been taken back since, and come again.
        found = [group.pending_entry(partition, offset) for partition, offset in dict.fromkeys(received)]
        entries = [entry for entry in found if entry is not None and entry.consumer is consumer]
        group.counts.acked += len(entries)
        if group.has_trace:
            group.trace_run(TraceKind.ACKED, entries, "automatic commit")
        group.remove_many(entries)

    # -- time ----------------------------------------------------------------------------------------------------

    def pass_time(self, now: float) -> None:
        """End sessions and commit what is due."""
        if self._commit_at <= now:
            self._commit_at = NEVER
            committing, self._received = self._received, {}
            for consumer in committing:
                self.commit(consumer)
        while self._expires:
            consumer, expires_at = next(iter(self._expires.items()))
            if expires_at > now:
                break
            self._group.counts.sessions_ended += 1
            self._group.leave(consumer, now)

    def rearm(self) -> None:
        """Ask to be woken for whatever comes first."""
        group = self._group
        group.agenda.wake(group, self._commit_at)
        if self._expires:
            group.agenda.wake(group, next(iter(self._expires.values())))
