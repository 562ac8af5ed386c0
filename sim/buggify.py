"""Whims of a run, drawn from its seed: insides of other sizes than usual, and other orders where any is right.

What a broker remembers, does in one go or writes before it tidies up is its own affair; so is when it starts a sync and
whom of those that are ready it serves first. Bugs hide where that is hardly ever otherwise. A scenario with
``buggify`` has each size changed with a chance of a quarter, somewhere between the smallest and the usual one (each
order of magnitude as likely: what is measured in megabytes is never small for a short run otherwise), and
each of :class:`Whims` enabled with that chance; an enabled one strikes with that chance each time.

Nothing of it is in the broker: constants are patched for the run, and orders are changed by who drives it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from assay.conformance.mutants import Patch
from assay.conformance.mutants.tiny_insides import TINY, resize, usual_size
from assay.sim.kernel import substream

ENABLED: Final = 0.25
FIRING: Final = 0.25
_LATER_S: Final = 0.005
_LONG_TURN_S: Final = 0.001


@contextmanager
def other_sizes(seed: int) -> Iterator[None]:
    """Within the block, insides have the sizes of this seed."""
    rng = substream(seed, "buggify/sizes")
    with ExitStack() as stack:
        patch = Patch(stack)
        for place, constants in TINY.items():
            for name, least in constants.items():
                drawn, share = rng.random(), rng.random()
                if drawn < ENABLED:
                    more = usual_size(place, name) - least
                    resize(patch, place, name, least + int((more + 1) ** share) - 1)
        yield


class Whims:
    """Of the driver of a broker. Each is asked where it may strike; one that is not enabled never does."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._shuffles, self._delays_syncs, self._takes_long_turns = (rng.random() < ENABLED for _ in range(3))

    def _strikes(self) -> bool:
        return self._rng.random() < FIRING

    def order(self, equals: list[Any]) -> None:
        """Put those that are ready at the same time into another order."""
        if self._shuffles and self._strikes():
            self._rng.shuffle(equals)

    def sync_delay_s(self) -> float:
        """How much later a sync begins."""
        return self._rng.uniform(0, _LATER_S) if self._delays_syncs and self._strikes() else 0.0

    def turn_delay_s(self) -> float:
        """How much later a turn begins: more input shares it."""
        return self._rng.uniform(0, _LONG_TURN_S) if self._takes_long_turns and self._strikes() else 0.0
