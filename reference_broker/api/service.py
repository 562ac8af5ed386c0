"""What a face of the broker has to ask."""

from __future__ import annotations

from collections.abc import Callable

from assay.reference_broker.api.callers import Callers
from assay.reference_broker.api.consumers import Members
from assay.reference_broker.api.desk import Desk
from assay.reference_broker.api.turns import Driver
from assay.reference_broker.config import HttpConfig


class Service(Desk):
    """One for a broker, whatever faces it has."""

    def __init__(self, driver: Callable[[], Driver], config: HttpConfig) -> None:
        super().__init__(driver, config)
        self.callers = Callers(self)
        self.members = Members(self)
        self.timeouts: dict[int, float] = {}
        """Of transactions, by producer, of those that asked for one; the oldest are forgotten first."""

    def remember_timeout(self, producer_id: int, timeout_s: float) -> None:
        """0 = as configured."""
        self.timeouts.pop(producer_id, None)
        if timeout_s:
            while len(self.timeouts) >= self.config.max_consumers:
                del self.timeouts[next(iter(self.timeouts))]
            self.timeouts[producer_id] = timeout_s
