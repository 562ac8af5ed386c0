"""Moves bytes and time between sockets and the sans-IO clients of a workload: one asyncio protocol per connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, cast

from assay.faults.workload import WorkloadClient, WorkloadPlan

CLOSE_PATIENCE_S: Final = 1.0
"""Time for a closing connection to send what it still has; then it is cut."""

AddressOf = Callable[[WorkloadClient], tuple[str, int]]


class Clock:
    """Unix seconds that never step back, tied to the clock of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset_s = time.time() - loop.time()

    def now(self) -> float:
        """Unix seconds."""
        return self._loop.time() + self._offset_s

    def loop_time(self, when: float) -> float:
        """The loop's time at Unix seconds ``when``."""
        return when - self._offset_s


class _Connection(asyncio.Protocol):
    """The transport of one client, from dialling to its end."""

    def __init__(self, driver: _ClientDriver) -> None:
        self._driver = driver
        self.transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._driver.opened(self)

    def data_received(self, data: bytes) -> None:
        self._driver.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self.transport = None
        self._driver.lost()

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close in order, and by force if the peer does not take our last bytes."""
        if self.transport is not None and self._patience is None:
            self.transport.close()
            self._patience = loop.call_later(CLOSE_PATIENCE_S, self._abort)

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _ClientDriver:
    """Drives one client."""

    def __init__(self, pump: Pump, client: WorkloadClient) -> None:
        self._pump = pump
        self.client = client
        self._connection: _Connection | None = None
        self._dial: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Nothing open and nothing being opened."""
        return self._connection is None and self._dial is None

    def opened(self, connection: _Connection) -> None:
        self._connection = connection
        self.client.connection_made(self._pump.clock.now())
        self.settle()

    def received(self, data: bytes) -> None:
        self.client.receive(data, self._pump.clock.now())
        self.settle()

    def lost(self) -> None:
        self._connection = None
        self.client.connection_lost(self._pump.clock.now())
        self.settle()

    def settle(self) -> None:
        """After anything that changed the client: send, close, dial, set the timer, tell the plan."""
        self.flush()
        self._pump.changed()

    def flush(self) -> None:
        """Send, close, dial and set the timer as the client now wants."""
        connection = self._connection
        if connection is not None and connection.transport is not None:
            data = self.client.take_output()
            if data and not connection.transport.is_closing():
                connection.transport.write(data)
            if self.client.closing:
                connection.close(self._pump.loop)
        now = self._pump.clock.now()
        if self.idle and self.client.wants_connection(now):
            self._dial = self._pump.loop.create_task(self._connect())
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.client.next_deadline()
        if deadline is not None:
            self._timer = self._pump.loop.call_at(self._pump.clock.loop_time(deadline), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.client.tick(self._pump.clock.now())
        self.settle()

    async def _connect(self) -> None:
        host, port = self._pump.address_of(self.client)
        try:
            async with asyncio.timeout(self.client.timing.handshake_timeout_s):
                await self._pump.loop.create_connection(lambda: _Connection(self), host, port)
        except OSError:  # TimeoutError is one
            if self._connection is None:
                self.client.connection_lost(self._pump.clock.now())
        finally:
            self._dial = None
            self.settle()

    async def close(self) -> None:
        """Let go of everything, whatever the client wants."""
        if self._timer is not None:
            self._timer.cancel()
        if self._dial is not None:
            self._dial.cancel()
            await asyncio.gather(self._dial, return_exceptions=True)
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()


class Pump:
    """Runs a plan over sockets: ``await Pump(...).run()`` returns when the plan is finished and every socket closed."""

    def __init__(self, plan: WorkloadPlan, clock: Clock, address_of: AddressOf) -> None:
        self.plan = plan
        self.clock = clock
        self.address_of = address_of
        self.loop = asyncio.get_running_loop()
        self._drivers = [_ClientDriver(self, client) for client in plan.clients]
        self._finished = asyncio.Event()
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Raises whatever a client or the plan raised, which would be a defect of ours."""
        self.plan.start(self.clock.now())
        try:
            for driver in self._drivers:
                driver.flush()
            self.changed()
            await self._finished.wait()
        finally:
            for handle in (self._timer, self._turn):
                if handle is not None:
                    handle.cancel()
            for driver in self._drivers:
                await driver.close()
        if self._error is not None:
            raise self._error

    def changed(self) -> None:
        """Something happened: have the plan look at it once per turn of the loop."""
        if self._turn is None:
            self._turn = self.loop.call_soon(self._update)

    def _update(self) -> None:
        self._turn = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        phase = self.plan.phase
        try:
            self.plan.update(self.clock.now())
            if self.plan.phase is not phase:
                # The plan told clients to begin, drain or stop, so each may have output or a new deadline.
                for driver in self._drivers:
                    driver.flush()
        except Exception as error:  # the loop would only log it, and the run would never end
            self._error = error
            self._finished.set()
            return
        if self.plan.finished and all(driver.idle for driver in self._drivers):
            self._finished.set()
            return
        deadline = self.plan.next_deadline()
        if deadline is not None:
            self._timer = self.loop.call_at(self.clock.loop_time(deadline), self.changed)
