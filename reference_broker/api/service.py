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
