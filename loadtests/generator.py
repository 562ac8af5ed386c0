"""The open-loop generator: connects every role, fires the schedule, waits for what is under way, and watches itself.

Everything happens in one thread of one process on one clock, so publish-to-deliver needs no clock synchronisation.
"""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from assay.conformance.targets import Endpoint
from assay.loadtests.capabilities import UnsupportedError
from assay.loadtests.client import LoadClient, LoadClientError
from assay.loadtests.ledger import ConnectTime, Ledger, PublisherLog
from assay.loadtests.packets import user_property
from assay.loadtests.payload import RUN_ID_BYTES
from assay.loadtests.profile import Load, Phases, Profile, PubSubLoad, QueueLoad
from assay.loadtests.roles import ConsumerClient, PublisherClient, SubscriberClient
from assay.loadtests.schedule import NS_PER_S, intended_times, spread

LEAD_S = 0.05
"""Between the last handshake and the start of the schedule."""
MAX_BURST_PER_TURN = 256
"""Due messages handed out before the sockets are looked at again."""
PROGRESS_EVERY_S = 0.25
KEEP_ALIVE_EVERY_S = 0.25
"""How often to look whether a broker that imposes a keep alive (1 s at least) must hear of a client."""

LOOKS_PER_DRAIN = 8
DRAINS_MAX = 10
"""A broker that goes on delivering gets so many times the drain timeout."""

Progress = Callable[[float, int, int], None]
"""Called with seconds since the start, messages handed out, messages in all."""


class RunClock:
    """Nanoseconds since ``origin_ns``, monotonic."""

    def __init__(self) -> None:
        self.origin_ns = time.perf_counter_ns()

    def __call__(self) -> int:
        return time.perf_counter_ns() - self.origin_ns


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What a generator run leaves behind."""

    ledger: Ledger
    connects: list[ConnectTime]
    ended_ns: int
    """End of the drain."""
    drained: bool
    """Everything expected has come; otherwise the drain timed out or a connection failed."""
    cpu_s: float
    """Processor time of this process between the start of the schedule and the end of the drain."""
    gc_pauses_ms: list[float]

    @property
    def messages(self) -> int:
        return sum(len(log) for log in self.ledger.logs)


def precise_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are exact to some ten microseconds.

    epoll, and so uvloop and asyncio's default, round timeouts to whole milliseconds; select does not.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


class _Cast(msgspec.Struct, kw_only=True):
    """All clients of a run; ``publishers[i]`` belongs to ``ledger.logs[i]``."""

    ledger: Ledger
    publishers: list[PublisherClient] = []
    receivers: list[tuple[LoadClient, str, int, str]] = []
    """Client, topic, QoS and consumer group of its subscription."""

    @property
    def clients(self) -> list[LoadClient]:
        return [*self.publishers, *(client for client, *_ in self.receivers)]


def queue_name(load: Load, run: str) -> str:
    """The durable queue of a workload in one run; empty for pub/sub."""
    return f"load-{run}-{load.name}" if isinstance(load, QueueLoad) else ""


def make_logs(profile: Profile, seed: int, run: str = "") -> list[PublisherLog]:
    """The schedule of every publisher: a function of profile and seed. ``run`` only names the queues."""
    logs: list[PublisherLog] = []
    for index, load in enumerate(profile.workloads):
        rng = np.random.default_rng([seed, index])
        times = intended_times(load.arrivals, profile.phases.total_s, rng)
        for part, intended_ns in enumerate(spread(times, load.publishers, rng)):
            log = PublisherLog(
                name=f"{load.name}-p{part}",
                number=len(logs),
                workload=load.name,
                qos=load.qos,
                copies=load.copies,
                settles=isinstance(load, QueueLoad),
                intended_ns=intended_ns,
                queue=queue_name(load, run),
                protocol="mqtt5" if load.version == 5 else "mqtt311",
            )
            logs.append(log)
    return logs


def _make_cast(profile: Profile, ledger: Ledger, clock: RunClock) -> _Cast:
    cast = _Cast(ledger=ledger)
    run = ledger.run_id.hex()
    waiting = iter(ledger.logs)
    for load in profile.workloads:
        logs = [next(waiting) for _ in range(load.publishers)]
        if isinstance(load, QueueLoad):
            _add_queue(cast, load, logs, run, clock)
        else:
            _add_pub_sub(cast, load, logs, run, clock)
    return cast


def _publisher(
    cast: _Cast, load: Load, log: PublisherLog, run: str, clock: RunClock, *, topic: str, properties: bytes = b""
) -> None:
    client = PublisherClient(
        f"load-{run}-{log.name}",
        load.version,
        clock,
        ledger=cast.ledger,
        log=log,
        topic=topic,
        payload_bytes=load.payload_bytes,
        in_flight=load.in_flight,
        properties=properties,
    )
    cast.publishers.append(client)


def _add_pub_sub(cast: _Cast, load: PubSubLoad, logs: Sequence[PublisherLog], run: str, clock: RunClock) -> None:
    for log in logs:
        topic = f"load/{run}/{log.name}"
        for copy in range(load.subscribers_per_publisher):
            client_id = f"load-{run}-{log.name}-s{copy}"
            subscriber = SubscriberClient(client_id, load.version, clock, ledger=cast.ledger, copy=copy)
            cast.receivers.append((subscriber, topic, load.qos, ""))
        _publisher(cast, load, log, run, clock, topic=topic)


def _add_queue(cast: _Cast, load: QueueLoad, logs: Sequence[PublisherLog], run: str, clock: RunClock) -> None:
    topic = f"$queue/{queue_name(load, run)}"
    for copy in range(load.groups):
        for member in range(load.consumers_per_group):
            client_id = f"load-{run}-{load.name}-g{copy}c{member}"
            consumer = ConsumerClient(client_id, clock, ledger=cast.ledger, copy=copy, queue_topic=topic)
            cast.receivers.append((consumer, topic, load.qos, f"group{copy}"))
    for log in logs:
        key = user_property(b"partition-key", log.name.encode())
        _publisher(cast, load, log, run, clock, topic=topic, properties=key)


async def _connect(cast: _Cast, endpoint: Endpoint, clock: RunClock) -> list[ConnectTime]:
    """Receivers first, so that nobody publishes into the void. One by one: a connection storm is another test."""
    times = []
    subscriptions = {client: (topic, qos, group) for client, topic, qos, group in cast.receivers}
    for client in [*subscriptions, *cast.publishers]:
        started_ns = clock()
        await client.open(endpoint)
        times.append(ConnectTime(client=client.client_id, started_ns=started_ns, completed_ns=clock()))
        if client in subscriptions:
            topic, qos, group = subscriptions[client]
            await client.subscribe(topic, qos, group=group)
    return times


class _Timetable:
    """Hands every message to its publisher when it is due."""

    def __init__(self, cast: _Cast, clock: RunClock) -> None:
        logs = cast.ledger.logs
        intended = np.concatenate([np.array(log.intended_ns, np.int64) for log in logs])
        owner = np.repeat(np.arange(len(logs)), [len(log) for log in logs])
        sequence = np.concatenate([np.arange(len(log)) for log in logs])
        order = np.argsort(intended, kind="stable")
        self._intended_ns: list[int] = intended[order].tolist()
        self._owner: list[int] = owner[order].tolist()
        self._sequence: list[int] = sequence[order].tolist()
        self._publishers = cast.publishers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self.next = 0
        """Messages handed out so far."""

    def fire(self) -> None:
        now_ns = self._clock()
        intended, total = self._intended_ns, len(self._intended_ns)
        index = self.next
        stop = min(total, index + MAX_BURST_PER_TURN)
        touched: set[PublisherClient] = set()
        while index < stop and intended[index] <= now_ns:
            publisher = self._publishers[self._owner[index]]
            publisher.offer(self._sequence[index], now_ns)
            touched.add(publisher)
            index += 1
        self.next = index
        for publisher in touched:
            publisher.flush()
        if index < total:
            wait_ns = intended[index] - self._clock()
            if wait_ns <= 0:
                self._timer = self._loop.call_soon(self.fire)
            else:
                self._timer = self._loop.call_at(self._loop.time() + wait_ns / NS_PER_S, self.fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __len__(self) -> int:
        return len(self._intended_ns)


@contextmanager
def _watched_collector() -> Iterator[list[float]]:
    """Garbage collection goes on, but on new objects only; its pauses are recorded, not hidden."""
    pauses_ms: list[float] = []
    started = [0.0]

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started[0] = time.perf_counter()
        else:
            pauses_ms.append((time.perf_counter() - started[0]) * 1_000)

    gc.collect()
    gc.freeze()
    gc.callbacks.append(watch)
    try:
        yield pauses_ms
    finally:
        gc.callbacks.remove(watch)
        gc.unfreeze()


async def _barriers(clients: Sequence[LoadClient]) -> None:
    """Publishers first: once a broker has answered their pings, it has routed what they sent."""
    for client in clients:
        with suppress(LoadClientError):
            await client.ping()


async def until_drained(
    ledger: Ledger, schedule_s: float, drain_timeout_s: float, wait: Callable[[float], Awaitable[None]]
) -> None:
    """Until all has come, or for so long nothing more has: what a busy machine makes late is not lost.

    ``wait`` returns after so many seconds, or as soon as the ledger is done.
    """
    await wait(schedule_s)
    quiet = 0
    for _ in range(DRAINS_MAX * LOOKS_PER_DRAIN):
        before = ledger.outstanding
        if ledger.done.is_set() or quiet == LOOKS_PER_DRAIN:
            return
        await wait(drain_timeout_s / LOOKS_PER_DRAIN)
        quiet = 0 if ledger.outstanding < before else quiet + 1


async def _wait_for(done: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), seconds)


async def drive(profile: Profile, endpoint: Endpoint, *, seed: int, progress: Progress | None = None) -> Recording:
    """Run a profile against a broker. Raises :class:`LoadClientError` or :class:`OSError` when it cannot connect, and
    :class:`UnsupportedError` when the broker shows that it lacks what a workload needs.

    A connection that is lost later ends the run early; see ``ledger.failures``.
    """
    clock = RunClock()
    run_id = os.urandom(RUN_ID_BYTES)
    ledger = Ledger(run_id, make_logs(profile, seed, run_id.hex()))
    cast = _make_cast(profile, ledger, clock)
    ticker: asyncio.TimerHandle | None = None
    loop = asyncio.get_running_loop()
    keeper = loop.call_soon(lambda: None)
    timetable = _Timetable(cast, clock)

    def tick() -> None:
        nonlocal ticker
        if progress is not None:
            progress(clock() / NS_PER_S, timetable.next, len(timetable))
            ticker = loop.call_later(PROGRESS_EVERY_S, tick)

    def keep_alive() -> None:
        nonlocal keeper
        for client in cast.clients:
            client.keep_alive()
        keeper = loop.call_later(KEEP_ALIVE_EVERY_S, keep_alive)

    try:
        keep_alive()
        connects = await _connect(cast, endpoint, clock)
        with _watched_collector() as pauses_ms:
            shift_ns = clock() + int(LEAD_S * NS_PER_S)
            clock.origin_ns += shift_ns
            cpu_started = time.process_time()
            tick()
            timetable.fire()
            schedule_s = LEAD_S + profile.phases.total_s
            await until_drained(ledger, schedule_s, profile.drain_timeout_s, partial(_wait_for, ledger.done))
            timetable.stop()
            cpu_s = time.process_time() - cpu_started
            if ledger.unsupported:
                raise UnsupportedError(ledger.unsupported)
            # A repetition may still be on its way although nothing is missing any more.
            await _barriers(cast.clients)
            ended_ns = clock()
            if progress is not None:
                progress(ended_ns / NS_PER_S, timetable.next, len(timetable))
        return Recording(
            ledger=ledger,
            connects=[
                msgspec.structs.replace(
                    connect, started_ns=connect.started_ns - shift_ns, completed_ns=connect.completed_ns - shift_ns
                )
                for connect in connects
            ],
            ended_ns=ended_ns,
            drained=ledger.outstanding <= 0 and not ledger.failures,
            cpu_s=cpu_s,
            gc_pauses_ms=list(pauses_ms),
        )
    finally:
        keeper.cancel()
        if ticker is not None:
            ticker.cancel()
        for client in cast.clients:
            client.close()


def run_generator(profile: Profile, endpoint: Endpoint, *, seed: int, progress: Progress | None = None) -> Recording:
    """:func:`drive` in a precise event loop of its own."""
    with asyncio.Runner(loop_factory=precise_event_loop) as runner:
        return runner.run(drive(profile, endpoint, seed=seed, progress=progress))


def lateness_us(ledger: Ledger, phases: Phases) -> npt.NDArray[np.float64]:
    """How late each message due in the steady phase was handed to its client: the generator's own delay, the broker has
    no part in it."""
    parts = []
    for log in ledger.logs:
        offered, intended = np.array(log.offered_ns, np.int64), np.array(log.intended_ns, np.int64)
        since_s = intended / NS_PER_S - phases.warmup_s
        chosen = (offered != 0) & (since_s >= 0) & (since_s < phases.steady_s)
        parts.append((offered - intended)[chosen] / 1_000)
    return np.concatenate(parts) if parts else np.zeros(0)
