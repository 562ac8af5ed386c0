"""M/M/1: one server, exponential gaps and service times."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta
from simpy import Environment

from assay.sim.models import closed_forms, statistics
from assay.sim.models.customers import Customers, Load
from assay.sim.models.model import Floats, Model, Outcome, Progress, within
from assay.sim.models.stations import Station, arrivals, run_until

P99 = 0.99


class Mm1(Load, frozen=True, kw_only=True):
    """Load as a share of what the server can do."""

    utilisation: Annotated[float, Meta(gt=0, le=0.9)]


def serve(customers: Customers, servers: int) -> tuple[Floats, float]:
    """Times until served, by customer, and the time that the servers were busy."""
    env = Environment()
    done = env.event()
    served_at = np.zeros(customers.count)
    came_at = np.zeros(customers.count)
    places = iter(range(customers.count))
    service_s = customers.service_s.tolist()
    left = customers.count

    def put(now: float) -> None:
        customer = next(places)
        came_at[customer] = now
        station.put(customer)

    def then(customer: int) -> None:
        nonlocal left
        served_at[customer] = env.now
        left -= 1
        if not left:
            done.succeed()

    station: Station[int] = Station(env, service_s.__getitem__, then, servers)
    env.process(arrivals(env, customers.gaps_s.tolist(), put))
    run_until(env, done, customers.max_events)
    return served_at - came_at, station.busy_s


def run(parameters: Mm1, seed: int, progress: Progress) -> Outcome:
    """Mean and p99 of the time in the system, and how busy the server was."""
    rate, per_s = parameters.utilisation * parameters.served_per_s, parameters.served_per_s
    customers = Customers.poisson(parameters.customers, rate, seed).exponential(1 / per_s, seed)
    progress("M/M/1", 0.0)
    spent_s, busy_s = serve(customers, 1)
    shown = statistics.settled(spent_s)
    average = statistics.mean(shown, customers.controls())
    p99 = statistics.quantile(shown, P99)
    lasted_s = float(customers.arrived_s[-1] + spent_s[-1])
    rows = [
        within(
            "mean time in system",
            average.value * 1e3,
            closed_forms.mm1_mean_s(rate, per_s) * 1e3,
            "ms",
            "closed form: 1 / (mu - lambda)",
            standard_error=average.standard_error * 1e3,
        ),
        within(
            "p99 of the time in system",
            p99.value * 1e3,
            closed_forms.mm1_quantile_s(rate, per_s, P99) * 1e3,
            "ms",
            "closed form: ln(100) / (mu - lambda), in order of arrival",
            standard_error=p99.standard_error * 1e3,
        ),
        within("utilisation", busy_s / lasted_s, parameters.utilisation, "", "closed form: lambda / mu"),
    ]
    return Outcome(rows=rows, samples=[customers.latencies("mm1", spent_s)])


MODEL = Model(name="mm1", what="M/M/1: one server, in order of arrival", parameters=Mm1, run=run)
