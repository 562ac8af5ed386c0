"""Notices when the harness itself is held up, by a loaded machine: what a case sees then says nothing of the broker."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from assay.conformance.outcome import CaseFailureError, TooSlowError

_TICK_S = 0.02
_KEPT = 4_096


class StallWatch:
    """Measures how late the event loop wakes a sleeper, while at least one user is within the ``with`` block."""

    def __init__(self) -> None:
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._stalls: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """When a late wake-up was noticed, and how late it was, in seconds of the loop's clock."""

    def __enter__(self) -> Self:
        self._users += 1
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._watch(loop.time() + _TICK_S))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            now = loop.time()
            if now - due > _TICK_S:
                self._stalls.append((now, now - due))
            due = now + _TICK_S

    def longest_since(self, when: float) -> float:
        """Seconds of the longest stall noticed after ``when`` (the loop's clock)."""
        return max((late_s for noticed, late_s in self._stalls if noticed >= when), default=0.0)


class Stopwatch:
    """Real time since it was begun, so that a case can tell a slow machine from a wrong broker.

    A case that sets an interval, such as a keep alive or an expiry, may need longer than that for its own steps, on a
    slow machine or with a slow broker. It sets ``ctx.stretch`` times as much, and asks here whether it was in time:
    otherwise the case is tried again, with a larger ``stretch``.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew; may be called in any thread."""
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def demand_less_than(self, seconds: float) -> None:
        """Raises :class:`TooSlowError`."""
        if self.elapsed_s >= seconds:
            message = f"it took {self.elapsed_s:.1f} s to do what must take less than {seconds:g} s"
            raise TooSlowError(message)

    @contextmanager
    def judging_before(self, seconds: float) -> Iterator[None]:
        """What fails in here after so many seconds says nothing: raises :class:`TooSlowError`."""
        try:
            yield
        except CaseFailureError:
            self.demand_less_than(seconds)
            raise
