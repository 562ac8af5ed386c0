"""Garbage collection of a process that is only a broker."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""Objects made before the young generation is searched. Messages hold no cycles, so a search seldom finds anything."""


def tune_collector() -> None:
    """Search less often, and never what exists since the start. Only for processes of our own, not for embedded use."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
