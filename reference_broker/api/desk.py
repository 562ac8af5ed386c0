"""The engine's turns for many requests at once: how much may be under way, and what the broker's stop means to them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.turns import Driver, Turns
from assay.reference_broker.api.waiting import Slots
from assay.reference_broker.config import HttpConfig
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.rates import ArrivalRates, arrival_key
from assay.reference_broker.queues import QueueEngine

MAX_TRACKED: Final = 10_000


class Desk(Turns):
    """See :class:`assay.reference_broker.api.service.Service`, which is one."""

    def __init__(self, driver: Callable[[], Driver], config: HttpConfig) -> None:
        super().__init__(driver)
        self.config = config
        self.requests = Slots(config.max_requests, "requests")
        self.waiting = Slots(config.max_waiting, "requests that wait for messages")
        self.held_bytes = Slots(config.max_held_bytes, "bytes of requests")
        self._rates: ArrivalRates | None = None
        if config.requests_per_s:
            self._rates = ArrivalRates(config.requests_per_s, config.request_burst, MAX_TRACKED)
        self.stopping = False
        self._on_stop: dict[Callable[[], None], None] = {}

    def tell_of_bug(self, what: str) -> RequestError:
        """Have the log tell of the exception that is being handled, by which ``what`` failed; returns what is told to
        its client."""
        told = traceback.format_exc(limit=-6).strip().replace("\n", " | ")
        self.turn()[0].warn("bug", f"{what} failed, by a bug of the broker: {told}")
        return RequestError(Code.INTERNAL, "the broker has a bug; its log has more")

    def check_rate(self, client: str, *, is_user: bool = False) -> None:
        """Raises :class:`RequestError` (RATE_LIMIT) for an address, or a user, that asks too often."""
        if self._rates is None:
            return
        _, now = self.turn()
        if not self._rates.allows(f"user {client}" if is_user else arrival_key("", client), now):
            raise RequestError(Code.RATE_LIMIT, "this client asks too often: wait a little")

    def stop(self) -> None:
        """The broker is about to stop: whoever waits for messages goes without."""
        self.stopping = True
        for wake in list(self._on_stop):
            wake()

    @contextmanager
    def until_stopped(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have ``wake`` called if the broker stops within the block."""
        self._on_stop[wake] = None
        try:
            yield
        finally:
            self._on_stop.pop(wake, None)

    @property
    def engine(self) -> QueueEngine:
        """The engine, in a turn of its own."""
        return self.turn()[0].node.engine

    @property
    def broker(self) -> Broker:
        """The broker, in a turn of its own."""
        return self.turn()[0].node.state
