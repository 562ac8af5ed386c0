"""What a case offers to the run: prepared once for a broker, measured once a round, closed at the end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Protocol, Self

import msgspec

from assay.conformance.targets import Endpoint
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.cases import COMPARED, Case

WARM_UP_S = 0.2
SETTLE_TIMEOUT_S = 3.0
"""A broker may take that long to be done with the end of many connections."""


class BenchError(RuntimeError):
    """The broker lost, repeated or reordered messages, broke the protocol, or stopped; the text says which."""


class UnsupportedError(RuntimeError):
    """The broker does not do what the case needs, e.g. grants a lower QoS; the text says what."""


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. Either ``seconds`` or ``messages`` bounds one measurement (``messages`` = 0: seconds)."""

    rounds: int = 3
    seconds: float = 1.0
    messages: int = 0
    cases: tuple[Case, ...] = COMPARED
    payload_bytes: int = 100
    window: int = 1_000
    """QoS 0 messages under way at most."""
    in_flight: int = 500
    """QoS 1 and 2 messages under way at most. Half of what brokers usually allow: a broker may well read the next
    publishes before the acknowledgements that were sent first, on another connection."""
    crowd: int = 1_000
    """Subscribers of the fan-out, publishers of the fan-in."""
    amqp_crowd: int = 100
    """Consumers of the fan-out over AMQP."""
    bindings: int = 10_000
    """Of the topic exchange."""
    filters: int = 100_000
    """The most filters of the subscriptions case."""
    open_rate_per_s: int = 10_000
    open_clients: int = 10
    """Publishers of the open loop, and as many subscribers."""
    idle: int = 10_000
    storm_rate_per_s: int = 2_000
    storm_at_once: int = 64
    """Connections on their way in the storm without a rate."""
    patience_s: float = 8.0
    """The longest that preparing a case, e.g. 100 000 subscriptions, may take with one broker."""

    def window_of(self, qos: int) -> int:
        """Messages under way at most, one publisher to one subscriber."""
        return self.in_flight if qos else self.window


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line's value in one round. ``value`` None: not measured, ``note`` says why."""

    line: str
    value: float | None
    count: int = 0
    """What was counted: messages, deliveries, connections."""
    client_load: float | None = None
    """Share of a core that the client used; near 1 it is the limit."""
    broker_cpu_s: float | None = None
    """Processor time the broker used for ``count``; None where it cannot be read."""
    note: str = ""
    """Why there is no value, or why the client may have been the limit."""


class Meter:
    """Measures a span: time, and processor time of client and broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._broker_s = broker.cpu_s()
        self._client_s = time.process_time()
        self.started = time.perf_counter()

    def rate(self, line: str, count: int, *, note: str = "") -> Figure:
        """``count`` per second since the start."""
        return self.figure(line, count / (time.perf_counter() - self.started), count, note=note)

    def figure(self, line: str, value: float, count: int, *, note: str = "") -> Figure:
        """Any value, with the processor times since the start. ``note`` says why the client may be the limit."""
        duration_s = time.perf_counter() - self.started
        after_s = self._broker.cpu_s()
        return Figure(
            line=line,
            value=value,
            count=count,
            client_load=(time.process_time() - self._client_s) / duration_s,
            broker_cpu_s=None if after_s is None or self._broker_s is None else after_s - self._broker_s,
            note=note,
        )


class Pumping(Protocol):
    """Moves messages from publisher to subscriber."""

    def run(self, *, messages: int = 0, seconds: float = 0.0) -> int:
        """Until so many have arrived, or so long; returns how many."""


class Workload(ABC):
    """One case on one broker. Any method may raise :class:`BenchError`, :class:`UnsupportedError`, ``HandshakeError``
    and :class:`OSError`; then the rest of the case is not measured on this broker.
    """

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess) -> None:
        self.endpoint, self.plan, self.broker = endpoint, plan, broker
        self.held = ExitStack()
        """What :meth:`close` gives back."""

    @property
    def measurements(self) -> int:
        """How often :meth:`measure` is to be called, in turn with the other brokers."""
        return self.plan.rounds

    def prepare(self) -> None:
        """Connect and subscribe, once; here: see that the broker is done with what was before."""
        self.broker.settle(SETTLE_TIMEOUT_S)

    @abstractmethod
    def measure(self, number: int) -> list[Figure]:
        """Measure round ``number``."""

    def pumped(self, line: str, pump: Pumping) -> Figure:
        """What is moved a second, once it is under way."""
        plan = self.plan
        pump.run(seconds=WARM_UP_S)
        meter = Meter(self.broker)
        return meter.rate(line, pump.run(messages=plan.messages, seconds=0.0 if plan.messages else plan.seconds))

    def close(self) -> None:
        """Close all connections; twice is fine."""
        self.held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
