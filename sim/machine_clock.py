"""The clocks of a simulated machine, which may be wrong: they run too fast or too slowly, and the wall clock jumps."""

from __future__ import annotations

from assay.sim.kernel import Kernel


class MachineClock:
    """A steady clock that never jumps, and a wall clock that may."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.rate = 1.0
        self._since = self._shown = kernel.now
        self._ahead_s = 0.0

    def steady(self) -> float:
        """Seconds since some moment."""
        now = self._kernel.now
        # Not by a sum where nothing went wrong yet: until then a run is the same as one with the right time.
        return now if self._shown == self._since and self.rate == 1.0 else self._shown + (now - self._since) * self.rate

    def wall(self) -> float:
        """Unix seconds."""
        return self.steady() + self._ahead_s

    def jump(self, by_s: float) -> None:
        """Set the wall clock."""
        self._ahead_s += by_s

    def run_at(self, rate: float) -> None:
        """Both clocks go so many times as fast from now on."""
        self._shown, self._since = self.steady(), self._kernel.now
        self.rate = rate

    def when(self, in_s: float) -> float:
        """The true time, in Unix seconds, at which so many seconds have passed by these clocks."""
        return self._kernel.now + max(0.0, in_s) / self.rate
