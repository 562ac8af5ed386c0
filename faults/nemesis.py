"""Executes a fault schedule on real processes and on the proxies between clients and broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from assay.faults.fault_kinds import DISK_FAULTS, Direction, Fault, FaultKind, describe
from assay.faults.process import BrokerProcess, BrokerRestartError
from assay.faults.pump import Clock
from assay.faults.scenario import Scenario, names_a_client
from assay.faults.toxiproxy import ToxiproxyClient, ToxiproxyError
from assay.faults.workload import HistoryRecorder
from assay.reference_broker.trace.schema import OpKind, OpType

PROXIES: Final = ("producers", "consumers")
"""One proxy per side, so that a fault can target one of them; a client that a fault names has its own."""
_STREAMS: Final = {
    Direction.BOTH: ("upstream", "downstream"),
    Direction.TO_BROKER: ("upstream",),
    Direction.TO_CLIENTS: ("downstream",),
}
_SLOW_STEP_S: Final = 0.002
"""A slow processor is one that is stopped again and again: it runs so long, then stands ``factor`` - 1 times that."""
_RESTART_S: Final = 0.25
"""Until a broker that its disk did not let start is started again."""
_STARTING_S: Final = 0.4
"""A storm ends a start within so long: Python takes about as much until the broker is there."""
_PROCESS: Final = "nemesis"
_BAD_REQUEST: Final = 400

_TOXIC: Final[dict[FaultKind, tuple[str, Callable[[Fault], dict[str, int | float]]]]] = {
    FaultKind.LATENCY: (
        "latency",
        lambda fault: {"latency": round(fault.latency_ms), "jitter": round(fault.jitter_ms)},
    ),
    FaultKind.BANDWIDTH: ("bandwidth", lambda fault: {"rate": max(1, round(fault.rate))}),
    FaultKind.LOSS: ("loss_retx", lambda fault: {"loss_rate": fault.rate}),
    FaultKind.PARTITION: ("blackhole", lambda fault: {}),
    FaultKind.CLOG: ("blackhole", lambda fault: {}),
}
"""Fault to the toxic that makes it; ``loss_retx`` and ``blackhole`` are of the embedded server."""


OWN_TOXICS: Final = frozenset({FaultKind.LOSS, FaultKind.CLOG})
"""Faults that no other toxiproxy server can make."""


class NemesisError(Exception):
    """A fault could not be made or healed: the run says nothing of the broker."""


class Nemesis:
    """Runs every fault of a scenario at its time and records its begin and end."""

    def __init__(
        self,
        scenario: Scenario,
        broker: BrokerProcess,
        proxies: ToxiproxyClient,
        names: dict[str, str],
        sides: dict[str, str],
        history: HistoryRecorder,
        clock: Clock,
        seed: int,
    ) -> None:
        """``names``: from each of :data:`PROXIES`, and each client that a fault names, to the name of that proxy on the
        server. ``sides``: from a client to the one of :data:`PROXIES` that it belongs to.
        """
        self._scenario = scenario
        self._broker = broker
        self._proxies = proxies
        self._names = names
        self._sides = sides
        self._history = history
        self._clock = clock
        self._rng = random.Random(f"{seed}/nemesis")
        self._broker_lock = asyncio.Lock()

    async def run(self, started_at: float) -> None:
        """All faults, each in a task of its own, since they may overlap.

        Raises :class:`BrokerRestartError` for a broker that does not come back, :class:`NemesisError` or
        :class:`ToxiproxyError` for a fault that could not be made.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number, fault in enumerate(self._scenario.faults):
                    group.create_task(self._execute(number, fault, started_at + fault.at_s))
        except BaseExceptionGroup as errors:
            # One failure ends the schedule; the rest of the group are its cancellations.
            raise errors.exceptions[0] from errors

    async def _execute(self, number: int, fault: Fault, at: float) -> None:
        await self._until(at)
        if fault.kind is FaultKind.RESTART_STORM:
            await self._storm(fault)
            return
        index = self._record(OpType.INVOKE, describe(fault), -1)
        match fault.kind:
            case FaultKind.CRASH:
                await self._down(fault, self._broker.kill)
            case FaultKind.STOP:
                await self._down(fault, self._broker.terminate)
            case FaultKind.PAUSE:
                await self._pause(fault)
            case FaultKind.SLOW_NODE:
                await self._slow(fault)
            case FaultKind.RESET:
                for proxy in self._targets(fault):
                    await asyncio.to_thread(self._proxies.cut_connections, proxy)
            case FaultKind.CLOCK_JUMP:
                self._broker.clock_ahead_s += fault.by_s
            case FaultKind.BIT_ROT:
                await asyncio.to_thread(self._broker.rot, fault, self._rng)
            case kind if kind in DISK_FAULTS:
                await self._disk(number, fault)
            case _:
                await self._toxic(number, fault)
        self._record(OpType.OK, describe(fault), index)

    def _record(self, type_: OpType, detail: str, op: int) -> int:
        return self._history.record(self._clock.now(), _PROCESS, OpKind.FAULT, type_, detail=detail, op=op)

    async def _until(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.create_future()
        timer = loop.call_at(self._clock.loop_time(when), due.set_result, None)
        try:
            await due
        finally:
            timer.cancel()

    async def _down(self, fault: Fault, end: Callable[[], Awaitable[None]]) -> None:
        # One at a time: a crash within another's downtime begins when that one is over.
        async with self._broker_lock:
            await end()
            await self._until(self._clock.now() + fault.for_s)
            await self._start()

    async def _start(self) -> None:
        """Again and again as long as its disk may keep the broker from starting. Raises :class:`BrokerRestartError`."""
        while True:
            try:
                await self._broker.start()
            except BrokerRestartError:
                if not self._broker.disk_faults:
                    raise
                await self._until(self._clock.now() + _RESTART_S)
            else:
                return

    async def _storm(self, fault: Fault) -> None:
        """Every kill is a fault of the history."""
        async with self._broker_lock:
            for number in range(fault.times + 1):
                index = self._record(OpType.INVOKE, describe(fault), -1)
                await self._broker.kill()
                if number == fault.times:
                    await self._until(self._clock.now() + fault.for_s)
                    await self._start()
                else:
                    await self._broker.launch()
                    await self._until(self._clock.now() + self._rng.uniform(0, _STARTING_S))
                self._record(OpType.OK, describe(fault), index)

    async def _slow(self, fault: Fault) -> None:
        over_at = self._clock.now() + fault.for_s
        async with self._broker_lock:
            try:
                while (now := self._clock.now()) < over_at:
                    self._broker.pause()
                    await self._until(now + _SLOW_STEP_S * (fault.factor - 1))
                    self._broker.resume()
                    await self._until(self._clock.now() + _SLOW_STEP_S)
            finally:
                self._broker.resume()

    async def _disk(self, number: int, fault: Fault) -> None:
        # The process that is there then may be another one: it is told what is wrong when it starts.
        self._broker.disk_faults[number] = fault
        self._broker.tell_disk_faults()
        await self._until(self._clock.now() + fault.for_s)
        del self._broker.disk_faults[number]
        self._broker.tell_disk_faults()

    async def _pause(self, fault: Fault) -> None:
        async with self._broker_lock:
            self._broker.pause()
            try:
                await self._until(self._clock.now() + fault.for_s)
            finally:
                self._broker.resume()

    def _targets(self, fault: Fault) -> tuple[str, ...]:
        if names_a_client(fault):
            return (self._names[fault.target],)
        sides = (fault.target,) if fault.target in PROXIES else PROXIES
        return tuple(name for proxy, name in self._names.items() if self._sides.get(proxy, proxy) in sides)

    async def _toxic(self, number: int, fault: Fault) -> None:
        places = [(proxy, stream) for proxy in self._targets(fault) for stream in _STREAMS[fault.direction]]
        for proxy, stream in places:
            await asyncio.to_thread(self._add, proxy, f"fault{number}_{stream}", stream, fault)
        await self._until(self._clock.now() + fault.for_s)
        for proxy, stream in places:
            await asyncio.to_thread(self._proxies.remove_toxic, proxy, f"fault{number}_{stream}")

    def _add(self, proxy: str, name: str, stream: str, fault: Fault) -> None:
        kind, attributes = _TOXIC[fault.kind]
        try:
            self._proxies.add_toxic(proxy, name, kind, stream, attributes(fault))
        except ToxiproxyError as error:
            if error.status != _BAD_REQUEST:
                raise
            if fault.kind not in (FaultKind.PARTITION, FaultKind.CLOG):
                message = f"{error}; the embedded server has it: run without --url and TOXIPROXY_URL"
                raise NemesisError(message) from error
            # A foreign server drops what the partition holds back, and cuts the connections when it heals.
            self._proxies.add_toxic(proxy, name, "timeout", stream, {"timeout": 0})
