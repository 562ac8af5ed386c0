"""The queues for code in the broker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.embedded.errors import QueueExistsError, named
from assay.reference_broker.embedded.health import DeadLetterStats, HealthSnapshot, health_of
from assay.reference_broker.embedded.messages import (
    PUBLISHER,
    MessageOptions,
    NewMessage,
    Published,
    StoredCopy,
    as_new,
    new_message,
    topic_of,
)
from assay.reference_broker.embedded.replies import REPLIES, Replies, Reply
from assay.reference_broker.embedded.subscription import MAX_BUFFER, AsyncSubscription, Callback
from assay.reference_broker.embedded.transaction import AsyncTransaction, Producers
from assay.reference_broker.embedded.turns import EngineTurns
from assay.reference_broker.mqtt.queue_topics.publish_properties import read_options
from assay.reference_broker.mqtt.sessions.mqtt_broker import default_group
from assay.reference_broker.queues import QueueError, QueueStats
from assay.reference_broker.queues.dead_letters.dead_letters import ORIGINAL_QUEUE, REASON
from assay.reference_broker.queues.messages.address import dead_letter_name
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.server.tcp import NodeDriver

_MAX_REASON = 1_024


class AsyncQueues(EngineTurns):
    """All queues of a running broker. Every method may raise the errors of ``embedded.errors``."""

    def __init__(self, driver: Callable[[], NodeDriver]) -> None:
        """``driver`` raises :class:`BrokerClosedError` when the broker does not run."""
        super().__init__(driver)
        self._subscriptions: set[AsyncSubscription] = set()
        self._count = 0
        self._producers = Producers()
        self._replies = Replies(self._receive_replies)

    # -- publishing ----------------------------------------------------------------------------------------------

    async def publish_batch(self, queue: str, messages: Sequence[bytes | NewMessage]) -> int:
        """Enqueue many; returns how many once all are as durable as promised.

        Raises the first error when some are refused; the others are enqueued all the same.
        """
        driver, now = self.turn()
        topic = topic_of(queue)
        made: list[Message] = [message.to_message(topic, now) for message in as_new(messages)]
        engine, address = driver.node.engine, driver.node.state.topics.address(topic)
        asked = [read_options(message.user_properties) for message in made]
        await self.confirmed(lambda confirm: engine.publish_many(address, made, now, confirm, asked))
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
            raise ValueError(f"buffer_size must be 1 to {MAX_BUFFER}, not {buffer_size}")
        self._count += 1
        consumer_id = consumer_id or f"{PUBLISHER}-{self._count}"
        group = group or default_group(consumer_id)
        return AsyncSubscription(self, self._subscriptions, queue, group, pattern, consumer_id, buffer_size, callback)

    async def _receive_replies(self, on_reply: Callback) -> AsyncSubscription:
        with contextlib.suppress(QueueExistsError):
            await self.create(REPLIES, ephemeral=True, partitions=1)
        return await self.subscribe(REPLIES, group=REPLIES, buffer_size=1_000, callback=on_reply).start()

    def forget_in_child(self) -> None:
        """In a forked child: the subscriptions are the parent's."""
        self._subscriptions.clear()

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
        return await self.created(queue, settings)

    async def update(self, queue: str, **changes: Any) -> QueueConfig:
        """Change settings of a queue in use."""
        return await self.updated(queue, changes)

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
                topic=stored.topic_in(queue),
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
