"""One node of the reference broker as stations: the loop that handles turns, the disk that syncs groups, the network.

The loop is one server that takes everything that waits, up to a bound, in one turn: it parses, appends, dispatches and
encodes, reads and writes each connection once, and sends when the turn is over. With ``fsync`` a confirm waits for the
sync of its group, comes back through the hand-over of a thread, and takes a part in a later turn. Consumers settle each
delivery, which is work for the loop, too. What a client and its sockets add is the delay of the null broker.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from simpy import Environment

from assay.reference_broker.trace.integrity import READ_ERRORS
from assay.reference_broker.trace.results import Percentiles, RunKind, RunResult, Series, Verdict, read_result
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.kernel import substream
from assay.sim.models import closed_forms
from assay.sim.models.model import Floats, Latencies, Model, ModelError, Outcome, Part, Progress, Row, within
from assay.sim.models.stations import GroupCommit, Steps, arrivals, run_until

AIM_PERCENT: Final = 15.0
MAX_MESSAGES: Final = 400_000
_EVENTS_A_MESSAGE: Final = 30
_WARM_UP_SHARE: Final = 0.1
_Z99: Final = 2.326
_MAX_BATCH: Final = 1_000_000
Seconds = Annotated[float, Meta(ge=0, le=10)]


class Durability(StrEnum):
    """When a publish is confirmed."""

    INTERVAL = "interval"
    """Once it is written; syncs happen now and then."""
    FSYNC = "fsync"
    """Once it is synced."""


class BrokerParameters(Part, frozen=True, kw_only=True):
    """Times of one message on the loop, of a turn, of the disk, and of what is outside."""

    durability: Durability
    publishers: Annotated[int, Meta(ge=1, le=10_000)]
    consumers: Annotated[int, Meta(ge=1, le=10_000)]
    groups: Annotated[int, Meta(ge=1, le=100)]
    parse_s: Seconds
    append_s: Seconds
    dispatch_s: Seconds
    """Of one delivery, as the next two."""
    encode_s: Seconds
    settle_s: Seconds
    confirm_s: Seconds
    """To encode a confirm that waited for a sync."""
    turn_s: Seconds
    """Of a turn, whatever it does."""
    wake_s: Seconds
    """Of a turn besides, when the loop had slept for long: the processor and its caches must come back."""
    asleep_s: Annotated[float, Meta(gt=0, le=10)]
    """Of sleep: after so much, 63 % of ``wake_s`` are due, as all of it is in the end."""
    spread: Annotated[float, Meta(ge=0, le=3)]
    """Of the time of a turn as a whole: sigma of a lognormal, whose median is what the rest says."""
    io_s: Seconds
    """To read and write one connection in a turn."""
    max_turn: Annotated[int, Meta(ge=1, le=100_000)]
    """Packets that a turn takes."""
    fsync_s: Annotated[float, Meta(gt=0, le=10)]
    handover_s: Seconds
    network_s: Seconds
    """One way."""
    client_p50_s: Seconds
    """What the client itself adds, as the null broker shows it; lognormal."""
    client_p99_s: Seconds
    messages: Annotated[int, Meta(ge=1_000, le=MAX_MESSAGES)]
    """Of each rate."""
    loads: tuple[Annotated[float, Meta(gt=0, lt=1)], ...]
    """Rates that are predicted, as shares of what the loop can do."""

    @property
    def publish_cost_s(self) -> float:
        """Of the loop, from the bytes of a publish to those of its deliveries and confirm."""
        return self.parse_s + self.append_s + self.groups * (self.dispatch_s + self.encode_s)

    @property
    def capacity_per_s(self) -> float:
        """Messages a second when every turn is full; half of its packets are publishes if there is one group."""
        packets = self.max_turn / (1 + self.groups)
        connections = min(self.publishers, packets) + min(self.consumers * self.groups, packets * self.groups)
        confirm_s = self.confirm_s if self.durability is Durability.FSYNC else 0.0
        work_s = packets * (self.publish_cost_s + self.groups * self.settle_s + confirm_s)
        return packets / (self.turn_s + connections * self.io_s + work_s)


class _Kind(StrEnum):
    PUBLISH = "publish"
    SETTLE = "settle"
    CONFIRM = "confirm"


_Packet = tuple[_Kind, int, int]
"""What, the message, the connection."""


class BrokerWorld:
    """One run at one rate: when each message was due, confirmed and delivered."""

    def __init__(self, parameters: BrokerParameters, rate_per_s: float, count: int, seed: int) -> None:
        self._parameters = parameters
        self._env = Environment()
        self._rng = substream(seed, "models/broker/clients")
        self._turns = substream(seed, "models/broker/turns")
        gaps = substream(seed, "models/broker/gaps")
        self._gaps_s = [gaps.expovariate(rate_per_s) for _ in range(count)]
        self.due_s = np.cumsum(self._gaps_s)
        self.confirmed_s = np.full(count, math.nan)
        self.delivered_s = np.full(count, math.nan)
        self._waiting: deque[_Packet] = deque()
        self._wake = self._env.event()
        self._done = self._env.event()
        self._left = count * (1 + parameters.groups)
        self._number = 0
        self._closed = False
        self._commit: GroupCommit[_Packet] = GroupCommit(
            self._env, lambda _: parameters.fsync_s, self._synced, _MAX_BATCH
        )

    def run(self, window: int = 0) -> float:
        """Until all is confirmed and settled; returns how long that took.

        With a ``window`` nothing is due: so many messages are under way, and each that is settled makes the next.
        """
        self._closed = window > 0
        for _ in range(min(window, len(self._gaps_s))):
            self._published(0.0)
        if not window:
            self._env.process(arrivals(self._env, self._gaps_s, self._published))
        self._env.process(self._loop())
        run_until(self._env, self._done, len(self._gaps_s) * _EVENTS_A_MESSAGE + 1_000)
        return float(self._env.now)

    def _arrive(self, packet: _Packet, delay_s: float) -> None:
        if delay_s <= 0:
            self._put(packet)
            return
        self._env.timeout(delay_s).callbacks.append(lambda _: self._put(packet))

    def _put(self, packet: _Packet) -> None:
        self._waiting.append(packet)
        if not self._wake.triggered:
            self._wake.succeed()

    def _published(self, _: float) -> None:
        message, self._number = self._number, self._number + 1
        packet = (_Kind.PUBLISH, message, message % self._parameters.publishers)
        self._arrive(packet, self._parameters.network_s)

    def _synced(self, packet: _Packet) -> None:
        self._arrive((_Kind.CONFIRM, *packet[1:]), self._parameters.handover_s)

    def take_turn(self) -> list[_Packet]:
        """What the next turn does."""
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._parameters.max_turn))]

    def _loop(self) -> Steps:
        parameters, env = self._parameters, self._env
        costs_s = {
            _Kind.PUBLISH: parameters.publish_cost_s,
            _Kind.SETTLE: parameters.settle_s,
            _Kind.CONFIRM: parameters.confirm_s,
        }
        while True:
            asleep_since_s = env.now
            if not self._waiting:
                self._wake = env.event()
                yield self._wake
            turn = self.take_turn()
            connections = len({connection for _, _, connection in turn})
            work_s = sum(costs_s[kind] for kind, _, _ in turn)
            work_s += parameters.turn_s + connections * parameters.io_s
            work_s += parameters.wake_s * -math.expm1((asleep_since_s - env.now) / parameters.asleep_s)
            if parameters.spread:
                work_s *= self._turns.lognormvariate(0.0, parameters.spread)
            yield env.timeout(work_s)
            for packet in turn:
                self._finish(packet)

    def _finish(self, packet: _Packet) -> None:
        parameters, env = self._parameters, self._env
        kind, message, _ = packet
        if kind is _Kind.PUBLISH:
            if parameters.durability is Durability.FSYNC:
                self._commit.put(packet)
            else:
                self._confirm(message)
            self.delivered_s[message] = env.now + parameters.network_s
            for group in range(parameters.groups):
                consumer = group * parameters.consumers + message % parameters.consumers
                settled = (_Kind.SETTLE, message, parameters.publishers + consumer)
                self._arrive(settled, 2 * parameters.network_s)
        elif kind is _Kind.CONFIRM:
            self._confirm(message)
        else:
            self._count()
            if self._closed and self._number < len(self._gaps_s):
                self._published(0.0)

    def _confirm(self, message: int) -> None:
        self.confirmed_s[message] = self._env.now + self._parameters.network_s
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.succeed()

    def latencies_s(self, operation: LatencyOperation) -> Floats:
        """With what a client adds; the first tenth is left out."""
        done = self.confirmed_s if operation is LatencyOperation.PUBLISH_TO_ACK else self.delivered_s
        skipped = int(len(done) * _WARM_UP_SHARE)
        added = client_delays_s(self._parameters, len(done) - skipped, self._rng)
        spent_s: Floats = (done - self.due_s)[skipped:] + added
        return spent_s


def client_delays_s(parameters: BrokerParameters, count: int, rng: random.Random) -> Floats:
    """Lognormal with the median and p99 of the null broker; none where they are 0."""
    median_s, p99_s = parameters.client_p50_s, parameters.client_p99_s
    if not median_s:
        return np.zeros(count)
    sigma = max(0.0, math.log(max(p99_s, median_s) / median_s) / _Z99)
    return np.array([rng.lognormvariate(math.log(median_s), sigma) for _ in range(count)])


def predict(parameters: BrokerParameters, rate_per_s: float, seed: int, count: int = 0) -> BrokerWorld:
    """A run at a rate. Raises :class:`ModelError` when it cannot end."""
    world = BrokerWorld(parameters, rate_per_s, count or parameters.messages, seed)
    world.run()
    return world


def checks(base: BrokerParameters, seed: int) -> list[Row]:
    """Loads at which the latency and the throughput are known exactly."""
    alone = msgspec.structs.replace(base, client_p50_s=0.0, durability=Durability.INTERVAL, publishers=1, consumers=1)
    idle_s = alone.turn_s + alone.io_s + alone.publish_cost_s + 2 * alone.network_s
    rows = []
    for durability in Durability:
        parameters = msgspec.structs.replace(alone, durability=durability)
        slow = predict(parameters, 1e-3 / (idle_s + parameters.fsync_s), seed, 500)
        expected_s = idle_s
        if durability is Durability.FSYNC:
            # The settlement comes back while the disk syncs, and is over before.
            expected_s += parameters.fsync_s + parameters.handover_s
            expected_s += parameters.turn_s + parameters.io_s + parameters.confirm_s
        value = float(np.median(slow.latencies_s(LatencyOperation.PUBLISH_TO_ACK)))
        method = "closed form: sum of the stages"
        rows.append(within(f"idle, {durability}: p50", value * 1e3, expected_s * 1e3, "ms", method, percent=0.5))
    full = msgspec.structs.replace(alone, network_s=0.0, groups=1)
    count = 40 * full.max_turn
    busy_s = BrokerWorld(full, 1.0, count, seed).run(window=full.max_turn)
    method = "closed form: a full turn by its time"
    rows.append(within("full turns: messages a second", count / busy_s, full.capacity_per_s, "", method))
    nothing = dict.fromkeys(
        ("parse_s", "append_s", "dispatch_s", "encode_s", "settle_s", "confirm_s", "turn_s", "io_s", "handover_s"), 0.0
    )
    disk = msgspec.structs.replace(alone, **nothing, network_s=0.0, durability=Durability.FSYNC)
    rate = 3 / disk.fsync_s
    synced = predict(disk, rate, seed, 20_000).latencies_s(LatencyOperation.PUBLISH_TO_ACK)
    expected_s = closed_forms.group_commit_mean_s(rate, disk.fsync_s)
    method = "closed form: group commit"
    rows.append(within("a loop that costs nothing: mean", float(synced.mean()) * 1e3, expected_s * 1e3, "ms", method))
    return rows


def run(parameters: BrokerParameters, seed: int, progress: Progress) -> Outcome:
    """p50 and p99 against the rate, for both durabilities, and the checks."""
    rows = checks(parameters, seed)
    series: list[Series] = []
    samples: list[Latencies] = []
    metrics: dict[str, float | int | str] = {}
    for place, durability in enumerate(Durability):
        chosen = msgspec.structs.replace(parameters, durability=durability)
        capacity = chosen.capacity_per_s
        metrics[f"{durability}.messages_per_s"] = round(capacity)
        curves: dict[str, list[float]] = {"p50": [], "p99": []}
        rates = [round(share * capacity, 1) for share in parameters.loads]
        for number, rate in enumerate(rates):
            progress(f"{durability}, {rate:,.0f}/s", (place + number / len(rates)) / 2)
            world = predict(chosen, rate, seed)
            latencies_s = world.latencies_s(LatencyOperation.PUBLISH_TO_ACK)
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                curves[name].append(float(np.quantile(latencies_s, share)) * 1e3)
                metrics[f"{durability}.{rate:g}.{name}_ms"] = round(curves[name][-1], 3)
            due_s = world.due_s[-len(latencies_s) :]
            samples.append(
                Latencies(
                    workload=f"broker {durability} {rate:g}/s",
                    operation=LatencyOperation.PUBLISH_TO_ACK,
                    intended_s=due_s,
                    completed_s=due_s + latencies_s,
                )
            )
        series += [
            Series(name=f"{durability}, {name}", unit="ms", x_s=rates, y=list(values), group="publish to confirm")
            for name, values in curves.items()
        ]
    told = ", ".join(f"{each} {metrics[f'{each}.messages_per_s']:,}" for each in Durability)
    answers = [f"messages/s at most, with full turns: {told}"]
    return Outcome(
        rows=rows, samples=samples, series=series, x_axis="messages per second", metrics=metrics, answers=answers
    )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What load runs at one rate say of one queue workload: the median of each figure."""

    rate_per_s: float
    workload: str
    operation: LatencyOperation
    found: Percentiles
    client_p50_s: float
    client_p99_s: float
    doubt: str
    """Why nothing can be said of the broker from it; empty when something can."""
    runs: int = 1


def read_loads(paths: Iterable[Path]) -> list[Measured]:
    """Confirms and deliveries by rate: one run has a p99 a fifth off that of the next, three a good median.

    A run that says nothing of the broker counts only where there is no other. Raises :class:`ModelError`.
    """
    by_rate: dict[tuple[float, LatencyOperation], list[Measured]] = {}
    for path in paths:
        for each in read_load(path):
            by_rate.setdefault((each.rate_per_s, each.operation), []).append(each)
    return [_median_of([each for each in by_rate[key] if not each.doubt] or by_rate[key]) for key in sorted(by_rate)]


def _median_of(runs: list[Measured]) -> Measured:
    def median(figure: Callable[[Measured], float]) -> float:
        return statistics.median(map(figure, runs))

    found = msgspec.structs.replace(
        runs[0].found,
        count=sum(each.found.count for each in runs),
        missing=sum(each.found.missing for each in runs),
        p50_us=median(lambda each: each.found.p50_us),
        p99_us=median(lambda each: each.found.p99_us),
    )
    return msgspec.structs.replace(
        runs[0],
        found=found,
        client_p50_s=median(lambda each: each.client_p50_s),
        client_p99_s=median(lambda each: each.client_p99_s),
        doubt="; ".join(sorted({each.doubt for each in runs if each.doubt})),
        runs=len(runs),
    )


def read_load(path: Path) -> list[Measured]:
    """Confirms and deliveries of the queue workload of a load run. Raises :class:`ModelError`."""
    place = path / "result.json" if path.is_dir() else path
    try:
        result: RunResult = read_result(place)
    except READ_ERRORS as error:
        message = f"{place}: {error}"
        raise ModelError(message) from error
    if result.kind is not RunKind.LOAD:
        message = f"{place} is a run of kind {result.kind}, not of assay load run"
        raise ModelError(message)
    names = [row.name for row in result.percentiles if row.name.endswith(": publish to ack")]
    if len(names) != 1:
        message = f"{place} has {len(names)} workloads with confirms; one is needed, that has the broker to itself"
        raise ModelError(message)
    workload = names[0].removesuffix(": publish to ack")
    doubts = [
        f"{check.name} {check.value:g} {check.unit}"
        for check in result.checks
        if check.name.startswith("generator: ") and check.verdict is not Verdict.PASS and check.value is not None
    ]
    found = []
    for row in result.percentiles:
        _, _, operation = row.name.partition(": ")
        if operation not in ("publish to ack", "publish to deliver"):
            continue
        null = [result.metrics.get(f"null broker, {row.name}, {each}_us", 0.0) for each in ("p50", "p99")]
        median_us, p99_us = (float(value) for value in null)
        if not median_us:
            message = f"{place} has no figures of the null broker: run it with a baseline"
            raise ModelError(message)
        found.append(
            Measured(
                rate_per_s=float(result.metrics["asked_messages_per_s"]),
                workload=workload,
                operation=LatencyOperation(operation.replace(" ", "_")),
                found=row,
                client_p50_s=median_us / 1e6,
                client_p99_s=p99_us / 1e6,
                doubt="; ".join(doubts),
            )
        )
    return found


def predicted(parameters: BrokerParameters, measured: Measured, seed: int) -> Floats:
    """Latencies that the model expects of the run, the client's own included."""
    delays = {"client_p50_s": measured.client_p50_s, "client_p99_s": measured.client_p99_s}
    # The null broker's delay holds the network already.
    chosen = msgspec.structs.replace(parameters, **delays, network_s=0.0)
    return predict(chosen, measured.rate_per_s, seed).latencies_s(measured.operation)


def compare(parameters: BrokerParameters, seed: int, paths: list[Path], progress: Progress) -> Outcome:
    """p50 and p99 beside those of open-loop load runs, and the rate that was answered. Runs at one rate are one row."""
    rows: list[Row] = []
    curves: dict[str, list[tuple[float, float]]] = {}
    runs = read_loads(paths)
    for number, measured in enumerate(runs):
        progress(f"{measured.rate_per_s:,.0f}/s", number / len(runs))
        latencies_ms = predicted(parameters, measured, seed) * 1e3
        name = measured.operation.replace("_", " ")
        for figure, share, value_us in (("p50", 0.5, measured.found.p50_us), ("p99", 0.99, measured.found.p99_us)):
            row = within(
                f"{name} at {measured.rate_per_s:,.0f}/s: {figure}",
                float(np.quantile(latencies_ms, share)),
                value_us / 1e3,
                "ms",
                f"measured: {'' if measured.runs == 1 else f'median of {measured.runs} runs of '}assay load run, "
                f"{measured.found.count} samples",
                percent=AIM_PERCENT,
            )
            rows.append(msgspec.structs.replace(row, doubt=measured.doubt))
            curves.setdefault(f"{name}, {figure}, model", []).append((measured.rate_per_s, row.value))
            curves.setdefault(f"{name}, {figure}, measured", []).append((measured.rate_per_s, value_us / 1e3))
        answered = 1 - measured.found.missing / max(1, measured.found.count + measured.found.missing)
        if measured.operation is LatencyOperation.PUBLISH_TO_ACK:
            expected = min(1.0, parameters.capacity_per_s / measured.rate_per_s)
            what = f"{name} at {measured.rate_per_s:,.0f}/s: share answered"
            row = within(what, expected, answered, "", "measured: assay load run", percent=AIM_PERCENT)
            rows.append(msgspec.structs.replace(row, doubt=measured.doubt))
    series = [
        Series(
            name=name,
            unit="ms",
            x_s=[rate for rate, _ in points],
            y=[value for _, value in points],
            group="model and measurement",
        )
        for name, points in curves.items()
    ]
    doubts = sorted({each.doubt for each in runs if each.doubt})
    answers = [f"nothing is claimed where the generator was the limit: {'; '.join(doubts)}"] if doubts else []
    return Outcome(rows=rows, series=series, x_axis="messages per second", answers=answers)


MODEL = Model(
    name="broker",
    what="one node of the reference broker as stations, for p50 and p99 against the rate",
    parameters=BrokerParameters,
    run=run,
    compare=compare,
)
