"""What is done in the engine's turns, for who is in the broker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from assay.reference_broker.embedded.errors import named
from assay.reference_broker.embedded.messages import MessageOptions, NewMessage, Published, new_message, topic_of
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.jobs.confirms import Confirm, StoredAs

if TYPE_CHECKING:
    from assay.reference_broker.server.tcp import NodeDriver


class EngineTurns:
    """The running engine. Every method may raise the errors of ``embedded.errors``."""

    def __init__(self, driver: Callable[[], NodeDriver]) -> None:
        """``driver`` raises :class:`BrokerClosedError` when the broker does not run."""
        self._driver = driver

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
            message = new.to_message(topic, now)
            driver.node.state.topics.publish(message, now, confirm, lambda kind, name: told.append((kind, name)))

        if not wait:
            try:
                start(None)
            except QueueError as error:
                raise named(error) from error
            return None
        await self.confirmed(start)
        kind, name = told[0]
        return Published(kind=kind.value, id=name)
