"""Consumers that hold as much as they may and settle nothing: what becomes of them is the queue's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.reference_broker.config import SlowConsumerAction
from assay.reference_broker.queues.jobs.agenda import NEVER

if TYPE_CHECKING:
    from assay.reference_broker.config import SlowConsumerConfig
    from assay.reference_broker.queues.groups.group_state import GroupState
    from assay.reference_broker.queues.groups.pending import Consumer


class SlowConsumers:
    """Of one group. The time counts from the moment a consumer is full until it settles anything by itself; that
    deliveries time out meanwhile is no settling."""

    def __init__(self, group: GroupState, config: SlowConsumerConfig) -> None:
        self._group = group
        self._config = config
        self.is_taking_back = False
        """Deliveries that are released now were not settled by their consumers."""

    @staticmethod
    def for_group(group: GroupState) -> SlowConsumers | None:
        """None where the queue leaves slow consumers alone."""
        config = group.config.slow_consumer
        return None if config.action is SlowConsumerAction.NONE else SlowConsumers(group, config)

    def note(self, now: float) -> None:
        """Deliveries were made: who is full now?"""
        for consumer in self._group.consumers.values():
            full = consumer.in_flight > 0 and (consumer.blocked or consumer.in_flight >= consumer.limit)
            if full and consumer.full_since == NEVER:
                consumer.full_since = now
                self._group.agenda.wake(self._group, now + self._config.after_s)

    def settled(self, consumer: Consumer) -> None:
        """The consumer let go of a delivery."""
        if not self.is_taking_back:
            consumer.full_since = NEVER

    def pass_time(self, now: float) -> None:
        """Send away who has been full for too long, and ask to be woken for the next."""
        group, after_s = self._group, self._config.after_s
        for consumer in list(group.consumers.values()):
            if consumer.full_since + after_s <= now:
                self._send_away(consumer, now)
            elif consumer.full_since != NEVER:
                group.agenda.wake(group, consumer.full_since + after_s)

    def _send_away(self, consumer: Consumer, now: float) -> None:
        group = self._group
        group.counts.slow_consumers += 1
        on_slow = consumer.on_slow
        self.is_taking_back = True
        group.leave(consumer, now)
        self.is_taking_back = False
        if self._config.action is SlowConsumerAction.DISCONNECT and on_slow is not None:
            on_slow()
