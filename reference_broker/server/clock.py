"""The server's clock: Unix time that never steps back."""

from __future__ import annotations

import time


class Clock:
    """Wall time taken once, advanced by monotonic time."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return time.monotonic() + self._offset_s
