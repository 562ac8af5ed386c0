"""How a connection of any protocol waits for what must come: with all the patience of its case, and no more."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from assay.conformance.outcome import CaseFailureError

_LEAST_WAIT_S = 1.0
"""A wait that the limit of the case cut shorter than this fails nobody."""
_LATE_LOOKS = 5
_PAUSE_SHARE, _LONGEST_PAUSE_S = 1 / 8, 0.25
"""Before another look: such a share of the time since the first one, so that a long wait costs few of them."""


class Patience(Protocol):
    """How long a case may wait: see :class:`assay.conformance.case.CaseContext`."""

    patience_s: float
    greeting_s: float

    @property
    def looked_on(self) -> str: ...

    def remaining_s(self, within_s: float | None = None) -> float: ...

    def give_back(self, seconds: float) -> None: ...

    async def more_time_for_a_slow_broker(self) -> bool: ...

    def second_look(self) -> bool: ...


async def arrival(
    ctx: Patience, wake: asyncio.Event, expected: str, *, within_s: float | None = None, since: float | None = None
) -> None:
    """Wait until ``wake`` is set anew: something may be in the inbox, or the connection has ended.

    ``expected`` begins the text of a failure; ``since`` is when this was first waited for.
    Raises :class:`CaseFailureError`, and :class:`TimeoutError` where the limit of the case left no time to wait: that
    says nothing of the broker.
    """
    wake.clear()
    patience_s = ctx.remaining_s(within_s)
    began = time.monotonic()
    try:
        async with asyncio.timeout(patience_s):
            await wake.wait()
    except TimeoutError as error:
        if within_s is not None:
            ctx.give_back(patience_s)  # the case asked for silence, or for what need not come
        if await ctx.more_time_for_a_slow_broker() or wake.is_set():
            return
        if within_s is None and ctx.second_look():
            return
        ctx.give_back(time.monotonic() - began)
        waited_s = time.monotonic() - (began if since is None else since)
        least_s = max(_LEAST_WAIT_S, 2 * ctx.greeting_s)  # what is as slow as its greeting may still come
        if within_s is None and waited_s < min(least_s, ctx.patience_s):
            raise
        message = f"{expected}; nothing arrived within {patience_s:.1f} s{ctx.looked_on}"
        raise CaseFailureError(message) from error
    ctx.give_back(time.monotonic() - began)


def soon(ctx: Patience) -> Callable[[], Awaitable[bool]]:
    """Whether to look once more for what is looked for again and again, as for what is waited for.

    Pauses before it says so: the longer it is looked for, the longer. Where the looks themselves take long, the time is
    over behind one that was begun early: some more come behind it.
    """
    began, late_looks = time.monotonic(), itertools.count()
    deadline = began + ctx.remaining_s()

    async def more() -> bool:
        now = time.monotonic()
        if now >= deadline:
            return next(late_looks) < _LATE_LOOKS
        pause_s = min(_PAUSE_SHARE * (now - began), _LONGEST_PAUSE_S, deadline - now)
        await asyncio.sleep(pause_s)
        ctx.give_back(pause_s)
        return True

    return more
