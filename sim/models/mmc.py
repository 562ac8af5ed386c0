"""M/M/c: several servers that share one queue."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from assay.sim.models import closed_forms, statistics
from assay.sim.models.customers import Customers, Load
from assay.sim.models.mm1 import P99, serve
from assay.sim.models.model import Model, Outcome, Progress, within


class Mmc(Load, frozen=True, kw_only=True):
    """Load as a share of what all servers can do."""

    servers: Annotated[int, Meta(ge=1, le=256)]
    utilisation: Annotated[float, Meta(gt=0, le=0.9)]


def run(parameters: Mmc, seed: int, progress: Progress) -> Outcome:
    """Who waits, how long on average, and p99 of the wait."""
    servers, per_s = parameters.servers, parameters.served_per_s
    rate = parameters.utilisation * servers * per_s
    customers = Customers.poisson(parameters.customers, rate, seed).exponential(1 / per_s, seed)
    progress("M/M/c", 0.0)
    spent_s, _ = serve(customers, servers)
    waits_s = statistics.settled(spent_s - customers.service_s)
    average = statistics.mean(waits_s, customers.controls())
    waiting = statistics.mean((waits_s > 1e-9).astype(np.float64), customers.controls())
    p99 = statistics.quantile(waits_s, P99)
    rows = [
        within(
            "share that waits",
            waiting.value,
            closed_forms.erlang_c(servers, rate / per_s),
            "",
            "closed form: Erlang C",
            standard_error=waiting.standard_error,
        ),
        within(
            "mean wait",
            average.value * 1e3,
            closed_forms.mmc_wait_s(servers, rate, per_s) * 1e3,
            "ms",
            "closed form: C / (c mu - lambda)",
            standard_error=average.standard_error * 1e3,
        ),
        within(
            "p99 of the wait",
            p99.value * 1e3,
            closed_forms.mmc_wait_quantile_s(servers, rate, per_s, P99) * 1e3,
            "ms",
            "closed form: ln(100 C) / (c mu - lambda)",
            standard_error=p99.standard_error * 1e3,
        ),
    ]
    return Outcome(rows=rows, samples=[customers.latencies("mmc", spent_s)])


MODEL = Model(name="mmc", what="M/M/c: several servers, one queue", parameters=Mmc, run=run)
