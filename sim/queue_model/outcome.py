"""What a client waits to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from assay.reference_broker.core.queues import QueueError
from assay.sim.queue_model.state import ViolationError

if TYPE_CHECKING:
    from assay.sim.queue_model.life import QueueLife


class Outcome:
    """Waits for one answer, which must come once and be good, unless something was not there to settle."""

    def __init__(self, life: QueueLife, what: str, *, fails: bool = False, told: frozenset[str] | None = None) -> None:
        self._life = life
        self._fails = fails
        self._told = told
        """What a failure must say in its details."""
        self._what = f"{what} ({life.oracle.step})"
        self._then: Callable[[], object] | None = None
        self._calls = 0

    def __call__(self, error: QueueError | None) -> None:
        self._calls += 1
        if (error is not None) is not self._fails or self._calls > 1:
            raise ViolationError(f"{self._what}: answer {self._calls} is {error}")
        if error is not None and self._told not in (None, {" ".join(pair) for pair in error.details}):
            raise ViolationError(f"{self._what}: says {error.details}, not {self._told}")
        self._life.waiting.discard(self._what)
        if self._then is not None:
            self._then()

    def accepted(self, then: Callable[[], object]) -> None:
        """The engine took it; ``then`` is called with its confirm, which is yet to come."""
        self._then = then
        if self._calls:
            then()
        else:
            self._life.waiting.add(self._what)
