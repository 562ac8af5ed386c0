"""Notices when the harness itself is held up, by a loaded machine: what a case sees then says nothing of the broker."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

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
