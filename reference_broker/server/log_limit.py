"""Lines of the broker's log that a client, or a failing disk, may cause any number of."""

from __future__ import annotations

import logging

INTERVAL_S = 10.0
MOST_LINES = 20
"""In an interval, of all kinds together."""


class LogLimit:
    """Writes a line of each kind once in an interval, and says with the next one how many were left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._since = float("-inf")
        self._lines = 0
        self._left_out: dict[str, int] = {}
        """By kind, of those that were written in this interval."""
        self._unseen = 0
        """Of kinds that were not."""

    def warn(self, kind: str, text: str, now: float) -> None:
        """``now`` in seconds, of any clock that never steps back."""
        if now - self._since >= INTERVAL_S:
            self._begin(now)
        if kind in self._left_out:
            self._left_out[kind] += 1
        elif self._lines < MOST_LINES:
            self._lines += 1
            self._left_out[kind] = 0
            self._log.warning("%s", text)
        else:
            self._unseen += 1

    def _begin(self, now: float) -> None:
        left_out, self._left_out = self._left_out, {}
        unseen, self._unseen = self._unseen, 0
        self._since, self._lines = now, 0
        for kind, count in left_out.items():
            if count:
                self._log.warning("%s: %d more lines like the last one", kind, count)
        if unseen:
            self._log.warning("%d more warnings were left out", unseen)
