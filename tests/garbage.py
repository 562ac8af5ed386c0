"""What a life leaves for the garbage collector: nothing, so that a broker of many short lives is never paused by it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable


def cycles_left(live: Callable[[], None], *, times: int = 3, of: tuple[str, ...] = ()) -> Counter[str]:
    """Objects in reference cycles after ``times`` lives, by type. The first life is not counted: it fills caches.

    ``of``: beginnings of the modules whose objects count; empty = all.
    """
    live()
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(times):
            live()
        gc.collect()
        return Counter(_name(thing) for thing in gc.garbage if not of or _module(thing).startswith(of))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()


def _module(thing: object) -> str:
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))
