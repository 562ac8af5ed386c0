"""Replies to the requests of one broker: a queue in memory, and who waits for which."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from assay.reference_broker.embedded.errors import QueueExistsError

if TYPE_CHECKING:
    from assay.reference_broker.embedded.aio import AsyncQueues
    from assay.reference_broker.embedded.received import AsyncReceived
    from assay.reference_broker.embedded.subscription import AsyncSubscription

QUEUE: Final = "embedded-replies"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    payload: bytes
    content_type: str | None
    user_properties: tuple[tuple[str, str], ...]


class Replies:
    """Hands each reply to the request with its correlation data; others are dropped."""

    def __init__(self, queues: AsyncQueues) -> None:
        self._queues = queues
        self._subscription: AsyncSubscription | None = None
        self._waiting: dict[bytes, asyncio.Future[Reply]] = {}
        self._count = 0

    @property
    def topic(self) -> str:
        """The response topic of every request."""
        return f"$queue/{QUEUE}"

    async def start(self) -> None:
        """Begin to receive replies, unless that is done."""
        if self._subscription is not None and not self._subscription.has_ended:
            return
        with contextlib.suppress(QueueExistsError):
            await self._queues.create(QUEUE, ephemeral=True, partitions=1)
        self._subscription = self._queues.subscribe(QUEUE, group=QUEUE, buffer_size=1_000, callback=self._on_reply)
        await self._subscription.start()

    def expect(self) -> tuple[bytes, asyncio.Future[Reply]]:
        """The correlation data of one more request, and its reply to come."""
        self._count += 1
        correlation = b"%d" % self._count
        future = self._waiting[correlation] = asyncio.get_running_loop().create_future()
        return correlation, future

    def forget(self, correlation: bytes) -> None:
        """Nobody waits for that reply any more."""
        self._waiting.pop(correlation, None)

    def _on_reply(self, received: AsyncReceived) -> None:
        waiting = self._waiting.pop(received.correlation_data or b"", None)
        if waiting is not None and not waiting.done():
            message = received.delivery.message
            waiting.set_result(
                Reply(
                    payload=message.payload,
                    content_type=message.content_type,
                    user_properties=message.user_properties,
                )
            )
