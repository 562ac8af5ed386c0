"""Who comes, when, and for how long: drawn before a model runs, so that the exact methods see the same customers."""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
import numpy as np
from msgspec import Meta

from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.models.model import Floats, Latencies, Part, generator
from assay.sim.models.statistics import settled

MAX_CUSTOMERS = 5_000_000
EVENTS_A_CUSTOMER = 12
"""More than any of the stations needs for one."""


class Load(Part, frozen=True, kw_only=True):
    """What the queueing models have in common."""

    customers: Annotated[int, Meta(ge=1_000, le=MAX_CUSTOMERS)]
    served_per_s: Annotated[float, Meta(gt=0, le=1e9)]
    """Of one server."""


class Customers(msgspec.Struct, frozen=True, kw_only=True):
    """Gaps and service times in the order of arrival, and the true mean of each."""

    gaps_s: Floats
    service_s: Floats
    mean_gap_s: float
    mean_service_s: float = 0.0

    @classmethod
    def poisson(cls, count: int, rate_per_s: float, seed: int) -> Self:
        gaps_s = generator(seed, "models/gaps").exponential(1 / rate_per_s, count)
        return cls(gaps_s=gaps_s, service_s=np.zeros(count), mean_gap_s=1 / rate_per_s)

    def exponential(self, mean_s: float, seed: int) -> Self:
        """With exponential service times."""
        return self.served(generator(seed, "models/service").exponential(mean_s, self.count), mean_s)

    def served(self, service_s: Floats, mean_s: float) -> Self:
        """With these service times, whose true mean is known."""
        return msgspec.structs.replace(self, service_s=service_s, mean_service_s=mean_s)

    @property
    def count(self) -> int:
        return len(self.gaps_s)

    @property
    def arrived_s(self) -> Floats:
        return np.cumsum(self.gaps_s)

    @property
    def max_events(self) -> int:
        return self.count * EVENTS_A_CUSTOMER + 100

    def controls(self) -> list[tuple[Floats, float]]:
        """Control variates: see :func:`assay.sim.models.statistics.mean`."""
        found = [(settled(self.gaps_s), self.mean_gap_s)]
        return [*found, (settled(self.service_s), self.mean_service_s)] if self.mean_service_s else found

    def latencies(self, workload: str, spent_s: Floats) -> Latencies:
        """The customers as samples of the trace schema."""
        arrived_s = self.arrived_s
        return Latencies(
            workload=workload,
            operation=LatencyOperation.PUBLISH_TO_ACK,
            intended_s=settled(arrived_s),
            completed_s=settled(arrived_s + spent_s),
        )
