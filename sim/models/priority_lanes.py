"""Priority lanes: one server that the broker's own deficit round robin tells whom to serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from msgspec import Meta
from simpy import Environment

from assay.sim.models import closed_forms, statistics
from assay.sim.models.customers import Customers, Load
from assay.sim.models.model import Floats, Model, ModelError, Outcome, Progress, generator, within
from assay.sim.models.stations import Lanes, arrivals, run_until

_SATURATED = 20_000
"""Messages served of lanes that are never empty."""


class PriorityLanes(Load, frozen=True, kw_only=True):
    """Two lanes; the first is the more urgent."""

    utilisation: Annotated[float, Meta(gt=0, le=0.7)]
    urgent_share: Annotated[float, Meta(gt=0, lt=1)]
    weights: tuple[Annotated[int, Meta(ge=1, le=8)], Annotated[int, Meta(ge=1, le=8)]]


def _serve(customers: Customers, lanes: Floats, weights: tuple[int, int]) -> Floats:
    env = Environment()
    done = env.event()
    times_s = np.zeros(customers.count)
    places, service_s = iter(range(customers.count)), customers.service_s.tolist()
    lane_of = lanes.astype(int).tolist()
    left = customers.count

    def put(now: float) -> None:
        customer = next(places)
        times_s[customer] = -now
        server.put(lane_of[customer], customer)

    def then(lane: int, customer: int) -> None:
        nonlocal left
        times_s[customer] += env.now
        left -= 1
        if not left:
            done.succeed()

    server: Lanes[int] = Lanes(env, weights, service_s.__getitem__, then)
    env.process(arrivals(env, customers.gaps_s.tolist(), put))
    run_until(env, done, customers.max_events)
    return times_s


def _share_when_full(weights: tuple[int, int]) -> float:
    """Share of the urgent lane while both always have messages."""
    env = Environment()
    done = env.event()
    counts = [0, 0]

    def again() -> Iterator[int]:
        for lane in (0, 1):
            for number in range(_SATURATED):
                server.put(lane, number)
                yield lane

    def then(lane: int, _: int) -> None:
        counts[lane] += 1
        if sum(counts) == _SATURATED:
            done.succeed()

    server: Lanes[int] = Lanes(env, weights, lambda _: 1.0, then)
    for _ in again():
        pass
    run_until(env, done, _SATURATED * 4)
    return counts[0] / _SATURATED


def run(parameters: PriorityLanes, seed: int, progress: Progress) -> Outcome:
    """Mean wait of each lane, of both together, and the shares when both are full."""
    per_s = parameters.served_per_s
    rate = parameters.utilisation * per_s
    rates = (rate * parameters.urgent_share, rate * (1 - parameters.urgent_share))
    customers = Customers.poisson(parameters.customers, rate, seed).exponential(1 / per_s, seed)
    lanes = (generator(seed, "models/lanes").random(customers.count) >= parameters.urgent_share).astype(np.float64)
    progress("priority lanes", 0.0)
    spent_s = _serve(customers, lanes, parameters.weights)
    progress("the chain of two lanes", 0.7)
    waits_s = statistics.settled(spent_s - customers.service_s)
    chosen = statistics.settled(lanes)
    expected = closed_forms.two_lanes_wait_s(rates, per_s, parameters.weights)
    rows = []
    for lane, name in enumerate(("urgent", "other")):
        in_lane = chosen == lane
        if not in_lane.any():
            raise ModelError("a lane got no message: ask for more customers")
        controls = [(sequence[in_lane], true) for sequence, true in customers.controls()]
        average = statistics.mean(waits_s[in_lane], controls)
        rows.append(
            within(
                f"mean wait of the {name} lane",
                average.value * 1e3,
                float(expected[lane]) * 1e3,
                "ms",
                "exact: Markov chain of both lanes",
                standard_error=average.standard_error * 1e3,
            )
        )
    together = statistics.mean(waits_s, customers.controls())
    rows += [
        within(
            "mean wait of both",
            together.value * 1e3,
            closed_forms.mmc_wait_s(1, rate, per_s) * 1e3,
            "ms",
            "closed form: conservation law, as M/M/1",
            standard_error=together.standard_error * 1e3,
        ),
        within(
            "share of the urgent lane when both are full",
            _share_when_full(parameters.weights),
            parameters.weights[0] / sum(parameters.weights),
            "",
            "closed form: weights",
        ),
    ]
    return Outcome(rows=rows, samples=[customers.latencies("priority_lanes", spent_s)])


MODEL = Model(
    name="priority-lanes",
    what="two priority lanes, the broker's own deficit round robin",
    parameters=PriorityLanes,
    run=run,
)
