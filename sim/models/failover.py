"""Failover of replicated queues: detection, election, and the client, for brokers whose parameters are known.

Followers learn of the leader's death by a timer that every message from it resets, or because its connections close;
kill and pause differ in that. The first whose time is up asks for votes; if its log lacks what others have it is
refused, and who refused campaigns soon itself. A client publishes on, one message at a time, and gives each up after
its timeout; the gap is what it sees between the last confirm before and the first after.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from msgspec import Meta
from simpy import Environment

from assay.reference_broker.trace.integrity import READ_ERRORS
from assay.reference_broker.trace.results import Series, read_result
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.kernel import substream
from assay.sim.models import statistics
from assay.sim.models.model import Floats, Latencies, Model, ModelError, Outcome, Part, Progress, Row, between, within
from assay.sim.models.raft_election import Span
from assay.sim.models.stations import Steps

P_MIN: Final = 0.05
"""Distributions that are the same differ as much as measured in more of the cases than this."""
LIMIT_S: Final = 600.0
_NO_WIDTH_S: Final = 1e-6
_STEPS: Final = 20_001
MAX_MEASURED: Final = 1_000


class FaultTimes(Part, frozen=True, kw_only=True):
    """How followers learn of one kind of fault, and what was measured."""

    detector_s: Span
    """Of each follower, from the fault until it knows and its timer begins; 0 where a timer ran already."""
    contact_age_s: Span
    """How long before the fault the last message came that had reset the timers; 0 where detectors begin them."""
    timeout_s: Span
    """Of each follower's own timer."""
    measured_s: tuple[Annotated[float, Meta(gt=0)], ...] = ()
    """Gaps of real clusters; the source of the parameter says whose."""


class FailoverParameters(Part, frozen=True, kw_only=True):
    """A queue on several nodes, the leader of which is killed or paused."""

    followers: Annotated[int, Meta(ge=1, le=98)]
    kill: FaultTimes
    pause: FaultTimes
    rounds: Annotated[int, Meta(ge=1, le=4)]
    """Of messages until a leader is known: 1 for votes, 2 with pre-votes."""
    round_s: Span
    """Of one round, what is written to disk included."""
    behind_share: Annotated[float, Meta(ge=0, le=1)]
    """How often the first to ask for votes lacks what the others have."""
    campaign_s: Span
    """After which one that refused asks for votes itself."""
    ready_s: Span
    """From the election until the leader takes messages."""
    attempt_s: Annotated[float, Meta(ge=0, le=60)]
    """The client waits so long for a confirm, and sends another message then; 0 = what it sent is kept for the next
    leader, and confirmed by it."""
    pace_s: Annotated[float, Meta(ge=0.0001, le=10)]
    """Between two messages while all is well."""
    trials: Annotated[int, Meta(ge=100, le=4_000)]


class _Trial:
    """One failover."""

    def __init__(self, parameters: FailoverParameters, fault: FaultTimes, rng: random.Random) -> None:
        self._parameters, self._fault, self._rng = parameters, fault, rng
        self._env = Environment()
        self._elected = self._env.event()
        self._ready = self._env.event()
        self._confirmed = self._env.event()
        self._asked = False
        self.first_timeout_s = 0.0

    def run(self) -> float:
        """The gap that the client sees. Raises :class:`ModelError` after :data:`LIMIT_S`."""
        env, rng, fault = self._env, self._rng, self._fault
        age_s = rng.uniform(*fault.contact_age_s)
        timeouts_s = [
            rng.uniform(*fault.detector_s) + rng.uniform(*fault.timeout_s) - age_s
            for _ in range(self._parameters.followers)
        ]
        self.first_timeout_s = min(timeouts_s)
        for timeout_s in timeouts_s:
            env.process(self._follow(max(0.0, timeout_s)))
        env.process(self._lead())
        env.process(self._publish())
        env.run(until=env.any_of([self._confirmed, env.timeout(LIMIT_S)]))
        if not self._confirmed.triggered:
            raise ModelError("nobody was elected")
        # The last confirm came at most a pace before the fault.
        return float(env.now) + rng.uniform(0, self._parameters.pace_s)

    def _follow(self, wait_s: float) -> Steps:
        env, rng, parameters = self._env, self._rng, self._parameters
        yield env.timeout(wait_s)
        if self._asked:
            return  # it gave its vote to another, and its timer began anew
        self._asked = True
        if rng.random() < parameters.behind_share:
            yield env.timeout(rng.uniform(*parameters.round_s))
            yield env.timeout(rng.uniform(*parameters.campaign_s))
        for _ in range(parameters.rounds):
            yield env.timeout(rng.uniform(*parameters.round_s))
        self._elected.succeed()

    def _lead(self) -> Steps:
        yield self._elected
        yield self._env.timeout(self._rng.uniform(*self._parameters.ready_s))
        self._ready.succeed()

    def _publish(self) -> Steps:
        env, attempt_s = self._env, self._parameters.attempt_s
        if not attempt_s:
            yield self._ready
        else:
            yield env.timeout(self._rng.uniform(0, self._parameters.pace_s))
            while not self._ready.triggered:
                yield env.timeout(attempt_s)  # what is sent to nobody is lost
        self._confirmed.succeed()


def gaps(parameters: FailoverParameters, fault: FaultTimes, name: str, seed: int) -> tuple[Floats, Floats]:
    """Gaps of many failovers, and when the first follower's time was up in each."""
    rng = substream(seed, f"models/failover/{name}")
    found: list[tuple[float, float]] = []
    for _ in range(parameters.trials):
        trial = _Trial(parameters, fault, rng)
        found.append((trial.run(), trial.first_timeout_s))
    table = np.array(found)
    return table[:, 0], table[:, 1]


def first_timeout_s(parameters: FailoverParameters, fault: FaultTimes) -> float:
    """Mean time until the first follower's time is up: the least of so many sums of two uniform times, integrated."""
    (a, b), (c, d) = ((low, max(high, low + _NO_WIDTH_S)) for low, high in (fault.detector_s, fault.timeout_s))
    x = np.linspace(a + c, b + d, _STEPS)

    def square(shift: float) -> Floats:
        return np.maximum(0.0, x - shift) ** 2

    reached = (square(a + c) - square(a + d) - square(b + c) + square(b + d)) / (2 * (b - a) * (d - c))
    left = (1 - np.clip(reached, 0.0, 1.0)) ** parameters.followers
    least_s = a + c + float(np.trapezoid(left, x))
    return least_s - sum(fault.contact_age_s) / 2


def judged(name: str, modelled_s: Floats, measured_s: Floats, method: str) -> Row:
    """Whether both may come from one distribution."""
    found = statistics.ks_two_samples(measured_s, modelled_s)
    what = f"{name}: p-value, {len(measured_s)} measured, median {np.median(measured_s):.3g} s"
    told = f"{found.method}, D = {found.statistic:.2f}; {method}"
    return between(f"{what}, model {np.median(modelled_s):.3g} s", found.p_value, P_MIN, 1.0, "", told)


def read_measured(paths: list[Path]) -> dict[str, Floats]:
    """Gaps by fault of results that ``assay faults failover`` wrote. Raises :class:`ModelError`."""
    found: dict[str, list[float]] = {}
    for path in paths:
        place = path / "result.json" if path.is_dir() else path
        try:
            result = read_result(place)
        except READ_ERRORS as error:
            message = f"{place}: {error}"
            raise ModelError(message) from error
        for line in result.series:
            if line.name in ("kill", "pause") and line.unit == "s":
                found.setdefault(line.name, []).extend(value for value in line.y if value is not None)
    if not found:
        raise ModelError("no gap was measured in these: they are not of assay faults failover")
    if max(map(len, found.values())) > MAX_MEASURED:
        message = f"more than {MAX_MEASURED} gaps of one kind"
        raise ModelError(message)
    return {name: np.array(values) for name, values in found.items()}


def _outcome(
    parameters: FailoverParameters, seed: int, progress: Progress, measured: dict[str, Floats], method: str
) -> Outcome:
    rows: list[Row] = []
    samples: list[Latencies] = []
    series: list[Series] = []
    metrics: dict[str, float | int | str] = {}
    for number, name in enumerate(("kill", "pause")):
        progress(name, number / 2)
        fault: FaultTimes = getattr(parameters, name)
        modelled_s, first_s = gaps(parameters, fault, name, seed)
        rows.append(
            within(
                f"{name}: first follower's time is up",
                float(first_s.mean()),
                first_timeout_s(parameters, fault),
                "s",
                "exact: least of sums of uniform times",
                percent=5,
                standard_error=float(first_s.std() / len(first_s) ** 0.5),
            )
        )
        if name in measured:
            rows.append(judged(name, modelled_s, measured[name], method))
        metrics |= {
            f"{name}.median_s": round(float(np.median(modelled_s)), 3),
            f"{name}.p99_s": round(float(np.quantile(modelled_s, 0.99)), 3),
        }
        samples.append(
            Latencies(
                workload=f"failover {name}",
                operation=LatencyOperation.PUBLISH_TO_ACK,
                intended_s=np.zeros(len(modelled_s)),
                completed_s=modelled_s,
            )
        )
        series += [_curve(f"{name}, model", modelled_s)]
        series += [_curve(f"{name}, measured", measured[name])] if name in measured else []
    answers = [f"median gap: killed {metrics['kill.median_s']} s, paused {metrics['pause.median_s']} s"]
    return Outcome(rows=rows, samples=samples, series=series, x_axis="percentile", metrics=metrics, answers=answers)


def _curve(name: str, values: Floats) -> Series:
    shares = [1, 5, 10, 25, 50, 75, 90, 95, 99]
    return Series(
        name=name,
        unit="s",
        x_s=[float(share) for share in shares],
        y=[float(value) for value in np.percentile(values, shares)],
        group="time without a confirm",
    )


def run(parameters: FailoverParameters, seed: int, progress: Progress) -> Outcome:
    """Both faults, beside what the parameter file has measured."""
    known = {
        name: np.array(fault.measured_s)
        for name, fault in (("kill", parameters.kill), ("pause", parameters.pause))
        if fault.measured_s
    }
    return _outcome(parameters, seed, progress, known, "measured: see the parameters' sources")


def compare(parameters: FailoverParameters, seed: int, paths: list[Path], progress: Progress) -> Outcome:
    """Both faults, beside fresh measurements."""
    return _outcome(parameters, seed, progress, read_measured(paths), "measured: assay faults failover")


def _model(name: str, what: str) -> Model[FailoverParameters]:
    return Model(name=name, what=what, parameters=FailoverParameters, run=run, compare=compare)


NATS = _model("nats", "failover of a JetStream stream on three NATS servers")
RABBITMQ = _model("rabbitmq", "failover of a quorum queue on three RabbitMQ nodes")
OWN = _model("own-cluster", "failover as our own cluster is meant to do it, to be measured when it exists")
