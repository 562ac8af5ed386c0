"""The queues for code in the broker's event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from reference_broker.config import QueueConfig
from reference_broker.core.broker_state import default_group, is_queue_topic
from reference_broker.core.message import Message
from reference_broker.core.queues import Consumer, Delivery, QueueError, QueueErrorCode, QueueStats, Verb
from reference_broker.core.queues.address import dead_letter_name
from reference_broker.core.queues.confirms import Confirm, StoredAs
from reference_broker.core.queues.dead_letters import ORIGINAL_QUEUE, REASON
from reference_broker.core.queues.settle_request import SettleRequest
from reference_broker.core.queues.times import parse_duration_ms
from reference_broker.core.queues.transaction import TransactionKey
from reference_broker.embedded.errors import BrokerClosedError, named
from reference_broker.embedded.health import DeadLetterStats, HealthSnapshot, health_of
from reference_broker.embedded.messages import (
    ACK_POLICY,
    ACK_TIMEOUT,
    PUBLISHER,
    AckPolicy,
    MessageOptions,
    NewMessage,
    Published,
    StoredCopy,
    as_new,
    new_message,
    topic_of,
)
from reference_broker.embedded.replies import Replies, Reply
from reference_broker.embedded.transaction import AsyncTransaction, Producers

if TYPE_CHECKING:
    from reference_broker.server.tcp import NodeDriver

log = logging.getLogger(__name__)
MAX_BUFFER = 65_536
_MAX_REASON = 1_024
Callback = Callable[["AsyncReceived"], Awaitable[None] | None]


class AsyncQueues:
    """All queues of a running broker. Every method may raise the errors of :mod:`reference_broker.embedded.errors`."""

    def __init__(self, driver: Callable[[], NodeDriver]) -> None:
        """``driver`` raises :class:`BrokerClosedError` when the broker does not run."""
        self._driver = driver
        self._subscriptions: set[AsyncSubscription] = set()
        self._count = 0
        self._producers = Producers()
        self._replies = Replies(self)

    def turn(self) -> tuple[NodeDriver, float]:
        """The driver and the time; what is done before the next await belongs to one turn."""
        driver = self._driver()
        now = driver.clock.now()
        driver.node.state.now = now
        driver.schedule_turn()
        return driver, now

    async def confirmed(self, start: Callable[[Confirm], None]) -> None:
        """Start something that is confirmed, and wait for that."""
        driver, _ = self.turn()
        future: asyncio.Future[None] = driver.loop.create_future()

        def confirm(error: QueueError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(named(error))

        try:
            start(confirm)
        except QueueError as error:
            raise named(error) from error
        await future

    # -- publishing ----------------------------------------------------------------------------------------------

    async def publish(
        self, queue: str, message: bytes | NewMessage, *, wait: bool = True, **options: Unpack[MessageOptions]
    ) -> Published | None:
        """Enqueue a message; returns what it became once the queue has it as durably as it promises.

        ``queue``: a name, perhaps with a routing key (``orders/eu``). ``options``: the fields of :class:`NewMessage`.
        Without ``wait`` it returns None at once, and what goes wrong later is not told.
        """
        driver, now = self.turn()
        new = new_message(message, options)
        topic = topic_of(queue)
        told: list[tuple[StoredAs, str]] = []

        def start(confirm: Confirm | None) -> None:
            engine = driver.node.engine
            engine.publish(
                engine.address(topic),
                new.to_message(topic, now),
                now,
                confirm,
                lambda kind, name: told.append((kind, name)),
            )

        if not wait:
            try:
                start(None)
            except QueueError as error:
                raise named(error) from error
            return None
        await self.confirmed(start)
        kind, name = told[0]
        return Published(kind=kind.value, id=name)

    async def publish_batch(self, queue: str, messages: Sequence[bytes | NewMessage]) -> int:
        """Enqueue many; returns how many once all are as durable as promised.

        Raises the first error when some are refused; the others are enqueued all the same.
        """
        driver, now = self.turn()
        topic = topic_of(queue)
        made: list[Message] = [message.to_message(topic, now) for message in as_new(messages)]
        engine = driver.node.engine
        await self.confirmed(lambda confirm: engine.publish_many(engine.address(topic), made, now, confirm))
        return len(made)

    # -- consuming -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        queue: str,
        *,
        group: str = "",
        pattern: str = "",
        consumer_id: str = "",
        buffer_size: int = 16,
        callback: Callback | None = None,
    ) -> AsyncSubscription:
        """Consume a queue: ``async with`` it, then ``async for`` over what comes, or give a ``callback``.

        ``group``: by default the consumer id up to its first ``-``. At most ``buffer_size`` deliveries wait to be
        taken. A callback's delivery is acknowledged when it returns and given back when it raises, unless it settled.
        """
        if not 1 <= buffer_size <= MAX_BUFFER:
            message = f"buffer_size must be 1 to {MAX_BUFFER}, not {buffer_size}"
            raise ValueError(message)
        self._count += 1
        consumer_id = consumer_id or f"{PUBLISHER}-{self._count}"
        return AsyncSubscription(
            self, queue, group or default_group(consumer_id), pattern, consumer_id, buffer_size, callback
        )

    def remember(self, subscription: AsyncSubscription) -> None:
        """It ends when the broker does."""
        self._subscriptions.add(subscription)

    def forget(self, subscription: AsyncSubscription) -> None:
        self._subscriptions.discard(subscription)

    async def close(self) -> None:
        """End every subscription; the broker is about to stop. Twice is fine."""
        for subscription in list(self._subscriptions):
            await subscription.cancel()

    # -- transactions --------------------------------------------------------------------------------------------

    def transaction(self, transactional_id: str | None = None, *, timeout_s: float | None = None) -> AsyncTransaction:
        """All that is published and acknowledged by it shows at the end of the ``async with`` block, or nothing.

        ``transactional_id``: whose transactions these are; a new one fences what an earlier holder of the name has
        open, which is what a restarted worker wants. ``timeout_s``: aborted if it is still open then.
        """
        return AsyncTransaction(self, self._producers, transactional_id, timeout_s)

    # -- request and response ------------------------------------------------------------------------------------

    async def request(
        self, queue: str, message: bytes | NewMessage, *, timeout_s: float = 30.0, **options: Unpack[MessageOptions]
    ) -> Reply:
        """Publish a request and wait for its reply; whoever gets it calls ``reply``, or answers over a protocol.

        Raises :class:`TimeoutError`; a reply that comes later is dropped.
        """
        await self._replies.start()
        correlation, reply = self._replies.expect()
        try:
            async with asyncio.timeout(timeout_s):
                new = new_message(message, options)
                addressed = msgspec.structs.replace(
                    new, response_topic=self._replies.topic, correlation_data=correlation
                )
                await self.publish(queue, addressed)
                return await reply
        finally:
            self._replies.forget(correlation)

    # -- managing queues -----------------------------------------------------------------------------------------

    async def create(self, queue: str, **settings: Any) -> QueueConfig:
        """Create a queue; ``settings`` are keys of its configuration. Raises ``QueueExistsError`` and others."""
        driver, now = self.turn()
        try:
            return driver.node.engine.create_queue(queue, settings, now)
        except QueueError as error:
            raise named(error) from error

    async def update(self, queue: str, **changes: Any) -> QueueConfig:
        """Change settings of a queue in use."""
        driver, now = self.turn()
        try:
            return driver.node.engine.update_queue(queue, changes, now)
        except QueueError as error:
            raise named(error) from error

    # -- dead letters and stored messages ------------------------------------------------------------------------

    async def dead_letter(self, queue: str, message: bytes | NewMessage, reason: str) -> Published | None:
        """Put a message straight into the dead-letter queue of a queue."""
        new = new_message(message, {})
        origin = ((ORIGINAL_QUEUE, queue), (REASON, reason[:_MAX_REASON]), *new.user_properties)
        return await self.publish(dead_letter_name(queue), new, user_properties=origin)

    async def dead_letter_stats(self, queue: str) -> DeadLetterStats:
        """How many there were, and are."""
        driver, _ = self.turn()
        engine = driver.node.engine
        name = dead_letter_name(queue)
        enabled = engine.config_of(queue).dead_letters
        if name not in engine.queues():
            return DeadLetterStats(queue=name, enabled=enabled, total=0, current=0)
        stats = engine.stats(name)
        return DeadLetterStats(queue=name, enabled=enabled, total=stats.enqueued, current=stats.depth)

    async def recover(self, queue: str, limit: int = 100) -> list[StoredCopy]:
        """The oldest messages that some group has not settled, as stored; nothing is taken out."""
        driver, _ = self.turn()
        try:
            found = driver.node.engine.browse(queue, limit)
        except QueueError as error:
            raise named(error) from error
        return [
            StoredCopy(
                message_id=message_id,
                payload=stored.message.payload,
                topic=stored.topic,
                enqueued_at=stored.enqueued_at,
                user_properties=stored.message.user_properties,
            )
            for message_id, stored in found
        ]

    # -- figures -------------------------------------------------------------------------------------------------

    async def stats(self, queue: str) -> QueueStats:
        """Figures of one queue."""
        driver, _ = self.turn()
        try:
            return driver.node.engine.stats(queue)
        except QueueError as error:
            raise named(error) from error

    async def health(self) -> HealthSnapshot:
        """All queues together."""
        driver, now = self.turn()
        engine = driver.node.engine
        return health_of(
            [engine.stats(queue) for queue in engine.queues()],
            now=now,
            started_at=driver.node.state.sys_topics.started_at,
            connections=driver.node.connection_count,
        )


class AsyncSubscription:
    """One consumer. It holds its deliveries until they are settled; cancelling gives them back."""

    def __init__(
        self,
        queues: AsyncQueues,
        queue: str,
        group: str,
        pattern: str,
        consumer_id: str,
        buffer_size: int,
        callback: Callback | None,
    ) -> None:
        self.queue, self.group, self.consumer_id = queue, group, consumer_id
        self._queues = queues
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
        driver, now = self._queues.turn()
        try:
            address = driver.node.engine.address(topic_of(self.queue))
            if address.verb is not None or (address.routing_key and self._pattern):
                problem = "give the routing key's filter once: behind the queue's name, or as pattern"
                raise QueueError(QueueErrorCode.BAD_ADDRESS, problem)
            self._consumer = driver.node.engine.subscribe(
                address.queue,
                pattern=self._pattern or address.routing_key,
                group=self.group,
                consumer_id=self.consumer_id,
                deliver=self._deliver,
                now=now,
            )
        except QueueError as error:
            raise named(error) from error
        self._queues.remember(self)
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
            driver, now = self._queues.turn()
            driver.node.engine.resume(consumer, now)
        return taken

    def _hand_out(self, delivery: Delivery) -> AsyncReceived:
        received = AsyncReceived(self._queues, delivery, self.consumer_id)
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
        self._queues.forget(self)
        if self._consumer is not None:
            try:
                driver, now = self._queues.turn()
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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


class ReceivedMessage:
    """A delivery as the application sees it."""

    __slots__ = ("consumer_id", "delivery", "settled")

    def __init__(self, delivery: Delivery, consumer_id: str) -> None:
        self.delivery = delivery
        self.consumer_id = consumer_id
        self.settled = False
        """Whether it was acknowledged, given back or rejected by this object."""

    @property
    def payload(self) -> bytes:
        return self.delivery.message.payload

    @property
    def message_id(self) -> str:
        return self.delivery.message_id

    @property
    def queue(self) -> str:
        return self.delivery.queue

    @property
    def topic(self) -> str:
        return self.delivery.topic

    @property
    def delivery_count(self) -> int:
        """1 at the first delivery to this group."""
        return self.delivery.delivery_count

    @property
    def user_properties(self) -> tuple[tuple[str, str], ...]:
        return self.delivery.message.user_properties

    @property
    def response_topic(self) -> str | None:
        return self.delivery.message.response_topic

    @property
    def correlation_data(self) -> bytes | None:
        return self.delivery.message.correlation_data

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id} delivery {self.delivery_count}>"


class AsyncReceived(ReceivedMessage):
    """A delivery, with coroutines to settle it."""

    __slots__ = ("_queues",)

    def __init__(self, queues: AsyncQueues, delivery: Delivery, consumer_id: str) -> None:
        super().__init__(delivery, consumer_id)
        self._queues = queues

    def apply_policy(self) -> None:
        """What the publisher wants of a subscriber: see :class:`AckPolicy`."""
        message = self.delivery.message
        policy = message.user_property(ACK_POLICY)
        driver, now = self._queues.turn()
        try:
            if policy == AckPolicy.NONE:
                driver.node.engine.settle_request(
                    self.queue, self._request(Verb.ACK), consumer_id=self.consumer_id, now=now
                )
                self.settled = True
            elif policy == AckPolicy.TIMEOUT and (text := message.user_property(ACK_TIMEOUT)) is not None:
                request = self._request(Verb.EXTEND, extend_s=parse_duration_ms(text) / 1000)
                driver.node.engine.settle_request(self.queue, request, consumer_id=self.consumer_id, now=now)
        except (QueueError, ValueError) as error:
            log.info("the ack policy of %s cannot be kept: %s", self.message_id, error)

    def _request(self, verb: Verb, **options: float | str | TransactionKey | None) -> SettleRequest:
        return SettleRequest(verb=verb, message_ids=(self.message_id,), group=self.delivery.group, **options)  # type: ignore[arg-type]

    async def _settle(self, request: SettleRequest) -> None:
        driver, now = self._queues.turn()
        engine = driver.node.engine
        await self._queues.confirmed(
            lambda confirm: engine.settle_request(
                self.queue, request, consumer_id=self.consumer_id, now=now, on_done=confirm
            )
        )
        self.settled = self.settled or request.verb is not Verb.EXTEND

    async def ack(self, *, within: TransactionKey | None = None) -> None:
        """Done with it. Returns when that is as durable as the queue promises; ``within`` a transaction, when that has
        it."""
        await self._settle(self._request(Verb.ACK, within=within))

    async def nack(self, delay_s: float | None = None) -> None:
        """Deliver it again: by the queue's rule, or no earlier than ``delay_s`` from now."""
        await self._settle(self._request(Verb.NACK, delay_s=delay_s))

    async def reject(self, reason: str = "rejected by consumer") -> None:
        """Give it up: it goes to the dead-letter queue, with the reason."""
        await self._settle(self._request(Verb.REJECT, reason=reason))

    async def extend(self, seconds: float | None = None) -> None:
        """More time: ``seconds`` from now, or the queue's delivery timeout once more."""
        await self._settle(self._request(Verb.EXTEND, extend_s=seconds))

    async def reply(self, message: bytes | NewMessage) -> None:
        """Answer the request: on its response topic, with its correlation data. It is not settled by that.

        Raises :class:`ValueError` when the message is no request.
        """
        topic = self.response_topic
        if topic is None:
            problem = f"{self.message_id} has no response topic"
            raise ValueError(problem)
        new = msgspec.structs.replace(new_message(message, {}), correlation_data=self.correlation_data)
        if is_queue_topic(topic):
            await self._queues.publish(topic, new)
        else:
            driver, now = self._queues.turn()
            driver.node.state.publish(new.to_message(topic, now), None, now)
