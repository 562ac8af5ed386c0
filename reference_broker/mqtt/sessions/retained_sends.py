"""Which retained messages a session is still to be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.routing.message import Message

Walk = Iterator[Message | None]


class RetainedSends:
    """Retained messages that a session is still to be sent, by the filter that it subscribed to; at least one."""

    __slots__ = ("_waiting", "ahead", "count", "walk")

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[Subscription, int]]] = {}
        self.count = 0
        """Subscriptions that wait for theirs."""
        self.walk: Walk | None = None
        """Through the messages for the first of them, once it has begun."""
        self.ahead: Message | None = None
        """What the walk has found while the client takes no more: that there is nothing is to be known at once, since
        a restart begins with a walk that has not ended."""

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._waiting

    def add(self, subscription: Subscription, newest: int) -> None:
        """To be sent behind the others; those of the same filter belong together.

        ``newest``: the last that was retained then (:attr:`RetainedStore.newest`); what comes later it has as it comes.
        """
        self._waiting.setdefault(subscription.topic_filter, deque()).append((subscription, newest))
        self.count += 1

    def first(self) -> tuple[Subscription, int]:
        """Whose turn it is, and the last that it is to get."""
        return next(iter(self._waiting.values()))[0]

    def newest(self, topic_filter: str) -> int:
        """The last that the last subscription with a filter is to get."""
        return self._waiting[topic_filter][-1][1]

    def finish_first(self) -> str | None:
        """It has all of them. Returns its filter if that was the last subscription with it."""
        self.walk = self.ahead = None
        topic_filter, subscriptions = next(iter(self._waiting.items()))
        subscriptions.popleft()
        self.count -= 1
        if subscriptions:
            return None
        del self._waiting[topic_filter]
        return topic_filter

    def cancel(self, topic_filter: str) -> None:
        """The session unsubscribed."""
        if topic_filter in self._waiting:
            if self.first()[0].topic_filter == topic_filter:
                self.walk = self.ahead = None
            self.count -= len(self._waiting.pop(topic_filter))
