"""How many requests are under way at once, and who asks too often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from assay.reference_broker.api.problems import Code, RequestError


class Slots:
    """A number of places. Whoever finds none is refused: a queue of requests would only hide that."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self.taken = 0

    @contextmanager
    def take(self, count: int = 1) -> Iterator[None]:
        """Have places until the end of the block. Raises :class:`RequestError` (BUSY)."""
        if self.taken + count > self._limit:
            raise RequestError(Code.BUSY, f"so many {self._what} are under way that this one must come later")
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count

    @contextmanager
    def leave(self, count: int = 1) -> Iterator[None]:
        """Give places up within the block: who waits for messages keeps nobody else out."""
        self.taken -= count
        try:
            yield
        finally:
            self.taken += count
