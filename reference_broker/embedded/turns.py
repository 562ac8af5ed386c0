"""What is done in the engine's turns, with the errors of ``embedded.errors``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Unpack

from assay.reference_broker.api.turns import Driver, Turns
from assay.reference_broker.embedded.errors import named
from assay.reference_broker.embedded.messages import MessageOptions, NewMessage, Published, new_message, topic_of
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.jobs.confirms import Confirm, StoredAs

_T = TypeVar("_T")


class EngineTurns(Turns):
    """The running engine. Every method may raise the errors of ``embedded.errors``."""

    async def confirmed(self, start: Callable[[Confirm], object]) -> None:
        """Start something that is confirmed, and wait for that."""
        try:
            await super().confirmed(start)
        except QueueError as error:
            raise named(error) from error

    async def told(self, start: Callable[[Driver, float, Callable[[QueueError | None, _T], None]], object]) -> _T:
        """Start something that tells its outcome once, and wait for that."""
        try:
            return await super().told(start)
        except QueueError as error:
            raise named(error) from error

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
