"""Replies to the requests of one broker: a queue in memory, and who waits for which."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from assay.reference_broker.embedded.received import AsyncReceived
    from assay.reference_broker.embedded.subscription import AsyncSubscription, Callback

REPLIES: Final = "embedded-replies"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    payload: bytes
    content_type: str | None
    user_properties: tuple[tuple[str, str], ...]


class Replies:
    """Hands each reply to the request with its correlation data; others are dropped."""

    def __init__(self, receive: Callable[[Callback], Awaitable[AsyncSubscription]]) -> None:
        """``receive`` has a callback called with what comes in the queue :data:`REPLIES`."""
        self._receive = receive
        self._subscription: AsyncSubscription | None = None
        self._waiting: dict[bytes, asyncio.Future[Reply]] = {}
        self._count = 0

    @property
    def topic(self) -> str:
        """The response topic of every request."""
        return f"$queue/{REPLIES}"

    async def start(self) -> None:
        """Begin to receive replies, unless that is done."""
        if self._subscription is None or self._subscription.has_ended:
            self._subscription = await self._receive(self._on_reply)

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
