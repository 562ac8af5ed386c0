"""Who is told of messages of topics as they come, bound to no session: nothing is kept for it, nobody waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.routing.message import Message

MAX_WATCHED: Final = 1_000
"""Messages that wait for who watches to take them; more are missed, and counted."""
MAX_WATCHED_BYTES: Final = 4 * 1024 * 1024
"""Of their payloads, likewise."""


class Watcher:
    """Implements :class:`assay.reference_broker.core.clients.Subscriber`, at QoS 0."""

    connection = None
    kept = None
    has_room = True
    can_wait = False

    def __init__(self, broker: Broker, topic_filter: str) -> None:
        self.ended = False
        self._broker = broker
        self._subscription = Subscription(topic_filter=topic_filter, qos=0, retain_as_published=True)
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._missed = 0
        self._some = asyncio.Event()
        broker.tree.add(self, self._subscription)

    def deliver(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...] = (), *, share: str = ""
    ) -> None:
        """See the protocol."""
        if len(self._waiting) >= MAX_WATCHED or self._bytes + len(message.payload) > MAX_WATCHED_BYTES:
            self._missed += 1
        else:
            self._waiting.append(message)
            self._bytes += len(message.payload)
        self._some.set()

    async def take(self, most: int, wait_s: float) -> tuple[list[Message], int]:
        """Messages that came, and how many were missed before or between them; nothing if none came in time."""
        try:
            async with asyncio.timeout(wait_s):
                await self._some.wait()
        except TimeoutError:
            return [], 0
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._bytes -= sum(len(message.payload) for message in taken)
        missed, self._missed = self._missed, 0
        if not self._waiting:
            self._some.clear()
        return taken, missed

    def wake(self) -> None:
        """Have who waits go on with nothing."""
        self._some.set()

    def end(self) -> None:
        """It watches no more."""
        self.ended = True
        self._broker.tree.remove(self, self._subscription)
