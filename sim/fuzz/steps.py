"""Counts what a turn does: calls of functions, whatever they do. Work that grows with what others hold shows there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from assay.sim.fuzz.failure import FuzzFailureError

MOST_CALLS: Final = 400_000
"""Of what one chunk sets off, turns and syncs included."""
CALLS_PER_BYTE: Final = 40


@contextmanager
def counted(active: bool, size: int) -> Iterator[None]:
    """Raises :class:`FuzzFailureError` when a chunk of ``size`` bytes took too many calls; not under a profiler."""
    if not active or sys.getprofile() is not None:
        yield
        return
    calls = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        if event == "call":
            calls += 1

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
    most = MOST_CALLS + CALLS_PER_BYTE * size
    if calls > most:
        raise FuzzFailureError("too many steps", f"{calls} calls for {size} bytes, where {most} are the most")
