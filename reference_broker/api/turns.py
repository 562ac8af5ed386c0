"""What is done in the engine's turns, for who is in the broker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import CursorPosition
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.trace.durations import Durations

_T = TypeVar("_T")


class Clock(Protocol):
    """As :class:`assay.reference_broker.server.clock.Clock`."""

    def now(self) -> float: ...


class Syncs(Protocol):
    """Who syncs logs."""

    @property
    def took(self) -> Durations:
        """As long as the disk took, of each."""

    @property
    def failed(self) -> int:
        """Those that ended with an error."""


class Driver(Protocol):
    """Who drives a node in an event loop."""

    @property
    def node(self) -> BrokerNode: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def read_again(self) -> Callable[[Callable[[], None]], list[str]] | None:
        """Reads the configuration again, and says which sections need a restart; it calls back once that holds
        everywhere. Raises ``ConfigError``, ``OSError``. None where there is none to read."""

    @property
    def syncs(self) -> Syncs: ...

    def schedule_turn(self) -> None:
        """Have the turn end soon: dispatch, output, jobs."""

    def warn(self, kind: str, text: str) -> None:
        """A line for the log that a client may cause any number of."""


async def in_portions(names: Iterable[_T], size: int = 50) -> AsyncIterator[_T]:
    """All of them, at most so many within a turn: what is said of the first may not hold any more at the last."""
    for index, name in enumerate(names):
        if index % size == size - 1:
            await asyncio.sleep(0)
        yield name


class Turns:
    """The running engine."""

    def __init__(self, driver: Callable[[], Driver]) -> None:
        """``driver`` raises when the broker does not run."""
        self._driver = driver

    def turn(self) -> tuple[Driver, float]:
        """The driver and the time; what is done before the next await belongs to one turn, which ends soon."""
        driver = self._driver()
        now = driver.clock.now()
        driver.node.state.now = now
        driver.schedule_turn()
        return driver, now

    async def confirmed(self, start: Callable[[Confirm], object]) -> None:
        """Start something that is confirmed, and wait until it is as durable as promised. Raises QueueError.

        Who waits may be cancelled: what was started goes on.
        """
        (error,) = await self.each_confirmed((start,))
        if error is not None:
            raise error

    async def finished(self, start: Callable[[QueueEngine, float, Confirm], object]) -> None:
        """Likewise, of an operation of the engine, by the time of this turn."""
        driver, now = self.turn()
        await self.confirmed(lambda confirm: start(driver.node.engine, now, confirm))

    async def created(self, queue: str, settings: dict[str, Any]) -> QueueConfig:
        """Create a queue; returns once it is there for good. Raises :class:`QueueError`."""
        made: list[QueueConfig] = []
        await self.finished(
            lambda engine, now, confirm: made.append(engine.create_queue(queue, settings, now, confirm))
        )
        return made[0]

    async def updated(self, queue: str, changes: dict[str, Any]) -> QueueConfig:
        """Change settings of a queue in use. Raises :class:`QueueError`."""
        await self.finished(lambda engine, now, confirm: engine.update_queue(queue, changes, now, confirm))
        return self.turn()[0].node.engine.queue_config(queue)[0]

    async def cancelled(self, queue: str, delay_id: str, otherwise: str) -> None:
        """Cancel a delayed message. Raises :class:`QueueError` (NOT_PENDING, with the text, where there is none)."""

        def start(engine: QueueEngine, now: float, confirm: Confirm) -> None:
            if not engine.cancel_delayed(queue, delay_id, now, confirm):
                raise QueueError(QueueErrorCode.NOT_PENDING, otherwise)

        await self.finished(start)

    async def group_deleted(self, queue: str, group: str) -> None:
        """Delete a group without consumers. Raises :class:`QueueError`."""
        await self.finished(lambda engine, now, confirm: engine.groups.delete(queue, group, now, confirm))

    async def reset(self, queue: str, group: str, position: CursorPosition, partition: int | None) -> dict[int, int]:
        """Let a group go on from another place; returns the new cursors. Raises :class:`QueueError`."""
        found: dict[int, int] = {}
        await self.finished(
            lambda engine, now, confirm: found.update(
                engine.groups.reset(queue, group, position, partition=partition, now=now, on_done=confirm)
            )
        )
        return found

    async def told(self, start: Callable[[Driver, float, Callable[[QueueError | None, _T], None]], object]) -> _T:
        """Start something that tells its outcome once, and wait for that. Raises :class:`QueueError`."""
        driver, now = self.turn()
        outcome: asyncio.Future[_T] = driver.loop.create_future()

        def tell(error: QueueError | None, result: _T) -> None:
            if outcome.done():
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error.bare())

        start(driver, now, tell)
        return await outcome

    async def purged(self, queue: str) -> int:
        """Purge a queue; returns how many messages went. Raises :class:`QueueError`."""
        return await self.told(
            lambda driver, now, tell: driver.node.engine.purge_queue(
                queue, now, lambda result: tell(result, 0) if isinstance(result, QueueError) else tell(None, result)
            )
        )

    async def each_confirmed(self, starts: Sequence[Callable[[Confirm], object]]) -> list[QueueError | None]:
        """Start all of it in one turn, in order, and wait until the last is decided; tells what became of each."""
        driver, _ = self.turn()
        results: list[QueueError | None] = [None] * len(starts)
        left = len(starts)
        done: asyncio.Future[None] = driver.loop.create_future()

        def confirm_of(index: int) -> Confirm:
            def confirm(error: QueueError | None) -> None:
                nonlocal left
                results[index] = error
                left -= 1
                if not left and not done.done():
                    done.set_result(None)

            return confirm

        for index, start in enumerate(starts):
            confirm = confirm_of(index)
            try:
                start(confirm)
            except QueueError as error:
                confirm(error.bare())
        if left:
            await done
        return results
