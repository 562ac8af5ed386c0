"""The server's clock: Unix time that never steps back, and that a test may move forward."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from assay.reference_broker.queues import QueueError, QueueErrorCode

MAX_ADVANCE_S = 3.2e8
"""Ten years: what comes after them is a slip of the pen."""


class Clock:
    """Wall time taken once, advanced by monotonic time."""

    def __init__(
        self,
        ahead_s: float = 0.0,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ahead_s``: how far ahead of the wall clock it begins. ``wall``, ``steady``: the machine's clocks."""
        self._wall = wall
        self._steady = steady
        self._offset_s = wall() - steady() + ahead_s

    def now(self) -> float:
        """Unix seconds."""
        return self._steady() + self._offset_s

    def advance(self, seconds: float) -> None:
        """Move forward at once. Raises :class:`QueueError` for a time that is not over 0 and at most ten years."""
        if not 0 < seconds <= MAX_ADVANCE_S:
            message = f"a clock moves by more than 0 and at most {MAX_ADVANCE_S:g} s, not {seconds:g}"
            raise QueueError(QueueErrorCode.BAD_OPTION, message)
        self._offset_s += seconds


def seconds_of(payload: bytes) -> float:
    """Seconds as a payload names them, in decimal. Raises :class:`QueueError`."""
    try:
        seconds = float(payload.decode("ascii"))
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise QueueError(QueueErrorCode.BAD_OPTION, f"the payload must be a number of seconds, not {payload[:40]!r}")
    return seconds
