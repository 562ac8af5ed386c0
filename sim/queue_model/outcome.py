"""What a client waits to be told."""

from __future__ import annotations

from collections.abc import Callable

from assay.reference_broker.queues import QueueError
from assay.sim.queue_model.state import ViolationError


class Outcome:
    """Waits for one answer, which must come once and be good, unless something was not there to settle."""

    def __init__(
        self, what: str, waiting: set[str], *, fails: bool = False, told: frozenset[str] | None = None
    ) -> None:
        """``waiting``: names of those that have not been answered."""
        self._waiting = waiting
        self._fails = fails
        self._told = told
        """What a failure must say in its details."""
        self._what = what
        self._then: Callable[[], object] | None = None
        self._calls = 0

    def __call__(self, error: QueueError | None) -> None:
        self._calls += 1
        if (error is not None) is not self._fails or self._calls > 1:
            raise ViolationError(f"{self._what}: answer {self._calls} is {error}")
        if error is not None and self._told not in (None, {" ".join(pair) for pair in error.details}):
            raise ViolationError(f"{self._what}: says {error.details}, not {self._told}")
        self._waiting.discard(self._what)
        if self._then is not None:
            self._then()

    def accepted(self, then: Callable[[], object]) -> None:
        """The engine took it; ``then`` is called with its confirm, which is yet to come."""
        self._then = then
        if self._calls:
            then()
        else:
            self._waiting.add(self._what)
