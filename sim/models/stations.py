"""The parts that models are built of: stations, group commit, lanes, arrivals, on SimPy's stores and processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

from simpy import Environment, Event, Store
from simpy.core import EmptySchedule

from assay.reference_broker.queues.messages.lanes import LANES, LaneScheduler
from assay.sim.models.model import ModelError

T = TypeVar("T")
Steps = Generator[Event, Any, None]


def run_until(env: Environment, end: Event, max_events: int) -> None:
    """Play until ``end`` happens. Raises :class:`ModelError` when it never will, or not within so many events."""
    step = env.step
    try:
        for _ in range(max_events):
            if end.processed:
                return
            step()
    except EmptySchedule:
        raise ModelError("the model came to a standstill before its end") from None
    message = f"the model did not end within {max_events:,} events: it may be overloaded; ask for fewer customers"
    raise ModelError(message)


def arrivals(env: Environment, gaps_s: Iterable[float], put: Callable[[float], object]) -> Steps:
    """Call ``put`` with the time, after each gap."""
    for gap_s in gaps_s:
        yield env.timeout(gap_s)
        put(env.now)


class Station(Generic[T]):
    """Servers that take items in the order of their arrival, each for its service time."""

    def __init__(
        self,
        env: Environment,
        service_s: Callable[[T], float],
        then: Callable[[T], object],
        servers: int = 1,
    ) -> None:
        self.env = env
        self.queue = Store(env)
        self.busy_s = 0.0
        """Of all servers together."""
        self._service_s, self._then = service_s, then
        for _ in range(servers):
            env.process(self._serve())

    def put(self, item: T) -> None:
        self.queue.put(item)

    def _serve(self) -> Steps:
        env, take, service_s, then = self.env, self.queue.get, self._service_s, self._then
        while True:
            item = yield take()
            wanted_s = service_s(item)
            yield env.timeout(wanted_s)
            self.busy_s += wanted_s
            then(item)


class GroupCommit(Generic[T]):
    """One sync at a time, for whatever was waiting when it began, at most ``max_batch`` items."""

    def __init__(
        self,
        env: Environment,
        sync_s: Callable[[list[T]], float],
        then: Callable[[T], object],
        max_batch: int,
    ) -> None:
        self.env = env
        self.max_batch = max_batch
        self.busy_s = 0.0
        self.syncs = 0
        self.items = 0
        self._sync_s, self._then = sync_s, then
        self._waiting: deque[T] = deque()
        self._wake = env.event()
        env.process(self._commit())

    def put(self, item: T) -> None:
        self._waiting.append(item)
        if not self._wake.triggered:
            self._wake.succeed()

    def _take(self) -> list[T]:
        """What the next sync is for."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(len(waiting), self.max_batch))]

    def _commit(self) -> Steps:
        while True:
            if not self._waiting:
                self._wake = self.env.event()
                yield self._wake
            batch = self._take()
            wanted_s = self._sync_s(batch)
            yield self.env.timeout(wanted_s)
            self.busy_s += wanted_s
            self.syncs += 1
            self.items += len(batch)
            for item in batch:
                self._then(item)


class Lanes(Generic[T]):
    """One server, whose next item the broker's own :class:`LaneScheduler` chooses."""

    def __init__(
        self,
        env: Environment,
        weights: Iterable[int],
        service_s: Callable[[T], float],
        then: Callable[[int, T], object],
    ) -> None:
        self.env = env
        given = tuple(weights)
        self._scheduler = LaneScheduler((*given, *[0] * (LANES - len(given))), 0.0, env.now)
        self._lanes: list[deque[T]] = [deque() for _ in range(LANES)]
        self._service_s, self._then = service_s, then
        self._wake = env.event()
        env.process(self._serve())

    def put(self, lane: int, item: T) -> None:
        self._lanes[lane].append(item)
        if not self._wake.triggered:
            self._wake.succeed()

    def _serve(self) -> Steps:
        lanes, scheduler, env = self._lanes, self._scheduler, self.env
        while True:
            lane, _ = scheduler.pick([not lane for lane in lanes], env.now, lambda _: None)
            if lane < 0:
                self._wake = env.event()
                yield self._wake
                continue
            item = lanes[lane].popleft()
            scheduler.served(lane, 1, env.now)
            yield env.timeout(self._service_s(item))
            self._then(lane, item)
