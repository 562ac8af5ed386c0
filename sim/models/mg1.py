"""M/G/1: one server, messages of two sizes."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from msgspec import Meta

from assay.sim.models import closed_forms, statistics
from assay.sim.models.customers import Customers, Load
from assay.sim.models.mm1 import serve
from assay.sim.models.model import Model, Outcome, Progress, generator, within


class Mg1(Load, frozen=True, kw_only=True):
    """Small messages take 1 / ``served_per_s``, large ones ``large_times`` as long."""

    utilisation: Annotated[float, Meta(gt=0, le=0.9)]
    large_share: Annotated[float, Meta(ge=0, le=1)]
    large_times: Annotated[float, Meta(ge=1, le=1_000)]


def run(parameters: Mg1, seed: int, progress: Progress) -> Outcome:
    """Mean and standard deviation of the wait."""
    small_s, share = 1 / parameters.served_per_s, parameters.large_share
    large_s = small_s * parameters.large_times
    first, second, third = ((1 - share) * small_s**k + share * large_s**k for k in (1, 2, 3))
    rate = parameters.utilisation / first
    customers = Customers.poisson(parameters.customers, rate, seed)
    is_large = generator(seed, "models/service").random(customers.count) < share
    customers = customers.served(np.where(is_large, large_s, small_s), first)
    progress("M/G/1", 0.0)
    spent_s, _ = serve(customers, 1)
    waits_s = statistics.settled(spent_s - customers.service_s)
    average = statistics.mean(waits_s, customers.controls())
    square = statistics.mean(waits_s**2, customers.controls())
    wait_s = closed_forms.mg1_wait_s(rate, first, second)
    wanted = closed_forms.mg1_wait_square(rate, first, second, third)
    rows = [
        within(
            "mean wait",
            average.value * 1e3,
            wait_s * 1e3,
            "ms",
            "closed form: Pollaczek-Khinchine",
            standard_error=average.standard_error * 1e3,
        ),
        within(
            "standard deviation of the wait",
            math.sqrt(max(0.0, square.value - average.value**2)) * 1e3,
            math.sqrt(wanted - wait_s**2) * 1e3,
            "ms",
            "closed form: Takacs, in order of arrival",
            standard_error=square.standard_error / (2 * math.sqrt(wanted - wait_s**2)) * 1e3,
        ),
    ]
    return Outcome(rows=rows, samples=[customers.latencies("mg1", spent_s)])


MODEL = Model(name="mg1", what="M/G/1: one server, messages of two sizes", parameters=Mg1, run=run)
