"""The log of ``assay serve``: one event a line, and a bounded number of lines, whatever clients do."""

from __future__ import annotations

import logging
import re

_BURST = 20
_WINDOW_S = 10.0
_MOST_CHARACTERS = 2_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class BoundedLines(logging.Filter):
    """Lets 20 lines of one kind pass in 10 seconds; the next line after a pause says how many were left out.

    A kind is a message before its arguments are filled in. What is an error always passes.
    """

    def __init__(self, burst: int = _BURST, window_s: float = _WINDOW_S) -> None:
        super().__init__()
        self._burst, self._window_s = burst, window_s
        self._kinds: dict[str, list[float]] = {}
        """Kind -> when its window began (Unix seconds), lines in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        window = self._kinds.setdefault(str(record.msg), [record.created, 0])
        if record.created - window[0] >= self._window_s:
            left_out = int(window[1]) - self._burst
            window[:] = record.created, 0
            if left_out > 0:
                record.msg, record.args = f"{record.getMessage()} ({left_out} more lines like it left out)", ()
        window[1] += 1
        return window[1] <= self._burst


class OneLine(logging.Formatter):
    """Control characters are escaped and long texts cut: nobody forges a line by the name of a client."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        message = record.message
        if len(message) > _MOST_CHARACTERS:
            message = f"{message[:_MOST_CHARACTERS]}... ({len(message)} characters)"
        record.message = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", message)
        return super().formatMessage(record)


def log_to_stderr(level: int) -> None:
    """Set up the process's log, for a command that runs a broker."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(BoundedLines())
    logging.basicConfig(level=level, handlers=[handler])
