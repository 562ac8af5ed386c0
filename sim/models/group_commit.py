"""Group commit: one sync at a time makes durable whatever waits when it begins."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta
from simpy import Environment

from assay.sim.models import closed_forms, statistics
from assay.sim.models.customers import MAX_CUSTOMERS, Customers
from assay.sim.models.mm1 import P99
from assay.sim.models.model import Floats, Model, Outcome, Part, Progress, within
from assay.sim.models.stations import GroupCommit, arrivals, run_until


class GroupCommits(Part, frozen=True, kw_only=True):
    """``max_batch`` bounds the second of the two runs only."""

    customers: Annotated[int, Meta(ge=1_000, le=MAX_CUSTOMERS)]
    sync_s: Annotated[float, Meta(gt=0, le=10)]
    arrivals_per_sync: Annotated[float, Meta(gt=0, le=50)]
    max_batch: Annotated[int, Meta(ge=1, le=64)]
    utilisation: Annotated[float, Meta(gt=0, le=0.9)]
    """Of syncs that take ``max_batch`` at most."""


def commit(customers: Customers, sync_s: float, max_batch: int) -> tuple[Floats, float]:
    """Times until durable, and how many each sync took on average."""
    env = Environment()
    done = env.event()
    times_s = np.zeros(customers.count)
    places = iter(range(customers.count))
    left = customers.count

    def put(now: float) -> None:
        customer = next(places)
        times_s[customer] = -now
        station.put(customer)

    def then(customer: int) -> None:
        nonlocal left
        times_s[customer] += env.now
        left -= 1
        if not left:
            done.succeed()

    station: GroupCommit[int] = GroupCommit(env, lambda _: sync_s, then, max_batch)
    env.process(arrivals(env, customers.gaps_s.tolist(), put))
    run_until(env, done, customers.max_events)
    return times_s, station.items / station.syncs


def run(parameters: GroupCommits, seed: int, progress: Progress) -> Outcome:
    """Mean and p99 until durable when a sync takes all, and the mean when it takes a few at most."""
    sync_s, count = parameters.sync_s, parameters.customers
    rate = parameters.arrivals_per_sync / sync_s
    free = Customers.poisson(count, rate, seed)
    progress("group commit", 0.0)
    spent_s, _ = commit(free, sync_s, count)
    shown = statistics.settled(spent_s)
    average, p99 = statistics.mean(shown, free.controls()), statistics.quantile(shown, P99)
    progress("group commit of a few", 0.5)
    bounded_rate = parameters.utilisation * parameters.max_batch / sync_s
    bounded = Customers.poisson(count, bounded_rate, seed + 1)
    bounded_s, _ = commit(bounded, sync_s, parameters.max_batch)
    bounded_mean = statistics.mean(statistics.settled(bounded_s), bounded.controls())
    rows = [
        within(
            "mean time until durable",
            average.value * 1e3,
            closed_forms.group_commit_mean_s(rate, sync_s) * 1e3,
            "ms",
            "closed form: D (3a/2 + e^-a) / (a + e^-a), a = lambda D",
            standard_error=average.standard_error * 1e3,
        ),
        within(
            "p99 until durable",
            p99.value * 1e3,
            closed_forms.group_commit_quantile_s(rate, sync_s, P99) * 1e3,
            "ms",
            "closed form: D, or uniform in D to 2 D",
            standard_error=p99.standard_error * 1e3,
        ),
        within(
            f"mean time with {parameters.max_batch} a sync at most",
            bounded_mean.value * 1e3,
            closed_forms.bounded_commit_mean_s(bounded_rate, sync_s, parameters.max_batch) * 1e3,
            "ms",
            "exact: embedded Markov chain and Little's law",
            standard_error=bounded_mean.standard_error * 1e3,
        ),
    ]
    samples = [free.latencies("group_commit", spent_s), bounded.latencies("group_commit_bounded", bounded_s)]
    return Outcome(rows=rows, samples=samples)


MODEL = Model(name="group-commit", what="syncs that take all who wait", parameters=GroupCommits, run=run)
