"""A consumer joins a group: how long partitions pause, and how many move, eager and cooperative.

Eager: every member gives everything up when it hears of the new one, finishes what it works on and joins again; when
all have, everybody is told what it gets. Cooperative: members go on with what they keep; what moves is given up first,
and handed over in a second round. Assignments are the broker's own functions: ranges for eager, sticky for cooperative.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from simpy import Environment, Event

from assay.reference_broker.config import Assignor
from assay.reference_broker.queues.groups.assignment import Assignment, assign
from assay.reference_broker.trace.results import Series
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.kernel import substream
from assay.sim.models.model import Floats, Latencies, Model, ModelError, Outcome, Part, Progress, Row, between, within
from assay.sim.models.stations import Steps

ASSIGNORS: Final = {"eager": Assignor.RANGE, "cooperative": Assignor.STICKY}


class RebalanceParameters(Part, frozen=True, kw_only=True):
    """A group before and after one more member."""

    partitions: Annotated[int, Meta(ge=1, le=10_000)]
    members: tuple[Annotated[int, Meta(ge=1, le=1_000)], ...]
    """Before the new one joins."""
    heartbeat_s: Annotated[float, Meta(ge=0, le=60)]
    """Members hear of a rebalance with their next heartbeat: at any moment until then."""
    work_s: Annotated[float, Meta(ge=0, le=600)]
    """To finish what is being worked on."""
    coordination_s: Annotated[float, Meta(ge=0, le=60)]
    """From the last member's joining until all know what they get."""
    trials: Annotated[int, Meta(ge=10, le=2_000)]


class Rebalance(msgspec.Struct, frozen=True, kw_only=True):
    """What became of every partition."""

    pauses_s: Floats
    moved: int


class _Group:
    """One rebalance of members that hold ``before`` and shall hold ``after``."""

    def __init__(
        self, parameters: RebalanceParameters, before: Assignment, after: Assignment, rng: random.Random
    ) -> None:
        self._parameters, self._rng = parameters, rng
        self._before, self._after = before, after
        self._env = Environment()
        owner = {index: name for name, held in after.items() for index in held}
        self._moving = {name: [index for index in held if owner[index] != name] for name, held in before.items()}
        self._stopped_s: dict[int, float] = {}
        self._pauses_s = np.zeros(parameters.partitions)

    def eager(self) -> Rebalance:
        joined = [self._env.process(self._rejoin(held)) for held in self._before.values()]
        self._env.run(until=self._env.process(self._resume(joined)))
        return self._found()

    def cooperative(self) -> Rebalance:
        self._env.run(until=self._env.process(self._two_rounds()))
        return self._found()

    def _found(self) -> Rebalance:
        return Rebalance(pauses_s=self._pauses_s, moved=sum(map(len, self._moving.values())))

    def _stop(self, partitions: tuple[int, ...] | list[int]) -> None:
        for index in partitions:
            self._stopped_s[index] = self._env.now

    def _rejoin(self, held: tuple[int, ...] | list[int]) -> Steps:
        yield self._env.timeout(self._rng.uniform(0, self._parameters.heartbeat_s))
        self._stop(held)
        if held:
            yield self._env.timeout(self._parameters.work_s)

    def _resume(self, joined: Sequence[Event]) -> Steps:
        yield self._env.all_of(joined)
        yield self._env.timeout(self._parameters.coordination_s)
        for index, stopped_s in self._stopped_s.items():
            self._pauses_s[index] = self._env.now - stopped_s

    def _two_rounds(self) -> Steps:
        # First everybody joins again, and works on; then what moves is given up, and handed over.
        joined = [self._env.process(self._rejoin(())) for _ in self._before]
        yield self._env.all_of(joined)
        yield self._env.timeout(self._parameters.coordination_s)
        second = [self._env.process(self._give_up(moving)) for moving in self._moving.values()]
        yield self._env.process(self._resume(second))

    def _give_up(self, moving: list[int]) -> Steps:
        self._stop(moving)
        if moving:
            yield self._env.timeout(self._parameters.work_s)
        else:
            yield self._env.timeout(self._rng.uniform(0, self._parameters.heartbeat_s))


def _assignments(assignor: Assignor, partitions: int, members: int) -> tuple[Assignment, Assignment]:
    """Before and after one more member joins, the group having grown one by one."""
    names = [f"c{number:05}" for number in range(members + 1)]
    held: Mapping[str, tuple[int, ...]] = {}
    for count in range(1, members + 1):
        held = assign(assignor, partitions, names[:count], held)
    before = dict(held)
    return before, assign(assignor, partitions, names, before)


def _moved_by_ranges(partitions: int, members: int) -> int:
    """Partitions whose range goes to another member, counted by the ends of ranges alone."""

    def owner(index: int, count: int) -> int:
        share, extra = divmod(partitions, count)
        smaller = (count - extra) * share
        return index // share if index < smaller else (count - extra) + (index - smaller) // (share + 1)

    return sum(owner(index, members) != owner(index, members + 1) for index in range(partitions))


def run(parameters: RebalanceParameters, seed: int, progress: Progress) -> Outcome:
    """Both protocols, for each size of the group. Raises :class:`ModelError`."""
    if parameters.partitions <= max(parameters.members):
        raise ModelError("more partitions than members are needed: those that hold none would not be waited for")
    partitions, wait_s = parameters.partitions, parameters.heartbeat_s
    rows: list[Row] = []
    curves: dict[str, list[float]] = {"eager": [], "cooperative": []}
    moves: dict[str, list[float]] = {"eager": [], "cooperative": []}
    samples: list[Latencies] = []
    for number, members in enumerate(parameters.members):
        progress(f"{members} members", number / len(parameters.members))
        for protocol, assignor in ASSIGNORS.items():
            before, after = _assignments(assignor, partitions, members)
            rng = substream(seed, f"models/rebalance/{members}/{protocol}")
            found = []
            for _ in range(parameters.trials):
                group = _Group(parameters, before, after, rng)
                found.append(group.eager() if protocol == "eager" else group.cooperative())
            pauses_s = np.array([each.pauses_s for each in found])
            mean_s, moved = float(pauses_s.mean()), found[0].moved
            curves[protocol].append(mean_s * 1e3)
            moves[protocol].append(moved)
            samples.append(
                Latencies(
                    workload=f"rebalance {protocol} {members}",
                    operation=LatencyOperation.DELIVER_TO_SETTLE,
                    intended_s=np.zeros(partitions),
                    completed_s=pauses_s[0],
                )
            )
            rows += _rows(parameters, members, protocol, moved, pauses_s)
    x = [float(members) for members in parameters.members]
    series = [
        Series(name=name, unit="ms", x_s=x, y=list(values), group="pause of a partition, mean")
        for name, values in curves.items()
    ]
    series += [
        Series(name=name, unit="partitions", x_s=x, y=list(values), group="partitions that change hands")
        for name, values in moves.items()
    ]
    most = parameters.members[-1]
    eager, cooperative = moves["eager"][-1], moves["cooperative"][-1]
    answer = (
        f"{partitions} partitions, one more than {most} members, heartbeats of {wait_s:g} s: eager moves {eager:.0f} "
        f"and pauses each for {curves['eager'][-1] / 1e3:.2f} s, cooperative moves and pauses {cooperative:.0f}"
    )
    return Outcome(rows=rows, samples=samples, series=series, x_axis="members before", answers=[answer])


def _rows(parameters: RebalanceParameters, members: int, protocol: str, moved: int, pauses_s: Floats) -> list[Row]:
    """What a rebalance of this size must come to."""
    partitions, wait_s = parameters.partitions, parameters.heartbeat_s
    name = f"{protocol}, {members} + 1 members"
    if protocol == "eager":
        # The last to hear of it ends the wait; on average each partition stopped at half a heartbeat.
        latest_s = wait_s * members / (members + 1)
        expected_s = latest_s - wait_s / 2 + parameters.work_s + parameters.coordination_s
        exact = _moved_by_ranges(partitions, members)
        mean_s = float(pauses_s.mean())
        return [
            between(f"{name}: moved", moved, exact, exact, "", "exact: ends of ranges"),
            within(
                f"{name}: mean pause",
                mean_s,
                expected_s,
                "s",
                "closed form: latest of uniforms",
                percent=5,
                standard_error=float(pauses_s.mean(axis=1).std(ddof=1)) / len(pauses_s) ** 0.5,
            ),
        ]
    fewest = partitions // (members + 1)
    paused = (pauses_s > 0).sum(axis=1)
    return [
        between(f"{name}: moved", moved, fewest, fewest, "", "closed form: the new member's share, no more"),
        between(f"{name}: paused, at most", float(paused.max()), 0, moved, "", "only what moves pauses"),
    ]


MODEL = Model(
    name="rebalance",
    what="a consumer joins a group: pauses and moves, eager and cooperative",
    parameters=RebalanceParameters,
    run=run,
)
