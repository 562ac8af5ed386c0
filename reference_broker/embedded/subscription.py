"""A consumer in the broker's event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, Self

from assay.reference_broker.embedded.errors import BrokerClosedError, named
from assay.reference_broker.embedded.messages import topic_of
from assay.reference_broker.embedded.received import AsyncReceived
from assay.reference_broker.queues import Consumer, Delivery, QueueError, QueueErrorCode

if TYPE_CHECKING:
    from assay.reference_broker.embedded.turns import EngineTurns

log = logging.getLogger(__name__)
MAX_BUFFER: Final = 65_536
Callback = Callable[[AsyncReceived], Awaitable[None] | None]


class AsyncSubscription:
    """One consumer. It holds its deliveries until they are settled; cancelling gives them back."""

    def __init__(
        self,
        turns: EngineTurns,
        running: set[AsyncSubscription],
        queue: str,
        group: str,
        pattern: str,
        consumer_id: str,
        buffer_size: int,
        callback: Callback | None,
    ) -> None:
        """``running``: those that end when the broker does."""
        self.queue, self.group, self.consumer_id = queue, group, consumer_id
        self._turns = turns
        self._running = running
        self._pattern = pattern
        self._buffer_size = buffer_size
        self._callback = callback
        self._buffer: deque[Delivery] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def has_ended(self) -> bool:
        return self._ended

    async def start(self) -> Self:
        """Join the group; ``async with`` does it."""
        driver, now = self._turns.turn()
        try:
            address = driver.node.state.topics.address(topic_of(self.queue))
            if address.routing_key and self._pattern:
                problem = "give the routing key's filter once: behind the queue's name, or as pattern"
                raise QueueError(QueueErrorCode.BAD_ADDRESS, problem)
            consumer = self._consumer = driver.node.engine.subscribe(
                address.queue,
                pattern=self._pattern or address.routing_key,
                group=self.group,
                consumer_id=self.consumer_id,
                deliver=self._deliver,
                now=now,
            )
        except QueueError as error:
            raise named(error) from error
        self._running.add(self)
        try:
            await self._turns.confirmed(lambda confirm: driver.node.engine.when_begun(consumer, confirm))
        except BaseException:
            await self.cancel()
            raise
        if self._callback is not None:
            self._task = asyncio.create_task(self._call_back(self._callback))
        return self

    def _deliver(self, delivery: Delivery) -> bool:
        if self._ended or len(self._buffer) >= self._buffer_size:
            return False
        self._buffer.append(delivery)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return True

    async def take(self, limit: int = MAX_BUFFER, timeout_s: float | None = None) -> list[AsyncReceived]:
        """Everything that waits, at least one delivery; empty once the subscription has ended.

        Raises :class:`TimeoutError`; then nothing was taken.
        """
        async with asyncio.timeout(timeout_s):
            while not self._buffer and not self._ended:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        taken = [self._hand_out(self._buffer.popleft()) for _ in range(min(limit, len(self._buffer)))]
        consumer = self._consumer
        if consumer is not None and consumer.blocked and len(self._buffer) <= self._buffer_size // 2:
            driver, now = self._turns.turn()
            driver.node.engine.resume(consumer, now)
        return taken

    def _hand_out(self, delivery: Delivery) -> AsyncReceived:
        received = AsyncReceived(self._turns, delivery, self.consumer_id)
        if delivery.message.user_properties:
            received.apply_policy()
        return received

    def __aiter__(self) -> AsyncIterator[AsyncReceived]:
        return self

    async def __anext__(self) -> AsyncReceived:
        taken = await self.take(1)
        if not taken:
            raise StopAsyncIteration
        return taken[0]

    async def _call_back(self, callback: Callback) -> None:
        async for received in self:
            await run_callback(received, callback)

    async def cancel(self) -> None:
        """Leave the group; what is not settled is ready for others at once. Twice is fine, in the callback, too."""
        if self._ended:
            return
        self._ended = True
        self._buffer.clear()
        self._running.discard(self)
        if self._consumer is not None:
            try:
                driver, now = self._turns.turn()
            except BrokerClosedError:
                pass  # the broker was faster
            else:
                driver.node.engine.unsubscribe(self._consumer, now)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._task is not None and self._task is not asyncio.current_task():
            await self._task

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()


async def run_callback(received: AsyncReceived, callback: Callback) -> None:
    """Call it; acknowledge when it returns, give back when it raises."""
    try:
        outcome = callback(received)
        if inspect.isawaitable(outcome):
            await outcome
    except Exception:
        log.exception("a subscriber's callback failed on %s", received.message_id)
        if not received.settled:
            await _quietly(received.nack())
    else:
        if not received.settled:
            await _quietly(received.ack())


async def _quietly(settling: Awaitable[None]) -> None:
    """The delivery may have timed out meanwhile, or the broker may close: then it comes again."""
    try:
        await settling
    except (QueueError, BrokerClosedError) as error:
        log.info("a delivery could not be settled: %s", error)
