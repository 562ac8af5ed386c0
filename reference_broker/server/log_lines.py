"""The broker's log: one event a line, and a bounded number of lines, whatever clients and disks do."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

from assay.reference_broker.config import LogConfig, LogFormat

INTERVAL_S = 10.0
MOST_OF_A_KIND = 10
"""In an interval."""
MOST_LINES = 100
"""In an interval, of all kinds together."""
_MOST_CHARACTERS = 2_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LogLimit:
    """Writes some lines of each kind in an interval, and says with the next ones how many were left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._since = float("-inf")
        self._lines = 0
        self._kinds: dict[str, int] = {}
        """Kind -> lines in this interval, those left out included."""
        self._unseen = 0
        """Lines of kinds that are not among them."""

    def tell(self, kind: str, text: str, now: float, level: int = logging.WARNING) -> None:
        """``now`` in seconds, of any clock that never steps back."""
        if now - self._since >= INTERVAL_S:
            self._begin(now)
        count = self._kinds.get(kind, 0)
        if count < MOST_OF_A_KIND and self._lines < MOST_LINES:
            self._lines += 1
            self._log.log(level, "%s", text)
        elif not count:
            self._unseen += 1
            return
        self._kinds[kind] = count + 1

    def _begin(self, now: float) -> None:
        kinds, self._kinds = self._kinds, {}
        unseen, self._unseen = self._unseen, 0
        self._since, self._lines = now, 0
        for kind, count in kinds.items():
            if count > MOST_OF_A_KIND:
                self._log.warning("%s: %d more lines like the last ones", kind, count - MOST_OF_A_KIND)
        if unseen:
            self._log.warning("%d more lines were left out", unseen)


class OneLine(logging.Formatter):
    """Control characters are escaped and long texts cut: nobody forges a line by the name of a client."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", _cut(record.message))
        return super().formatMessage(record)


class JsonLine(logging.Formatter):
    """An object a line, as :class:`LogFormat` has it; with ``exception`` where one was raised."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        if record.exc_info:
            told["exception"] = _cut(self.formatException(record.exc_info))
        return json.dumps(told)


def _cut(message: str) -> str:
    if len(message) <= _MOST_CHARACTERS:
        return message
    return f"{message[:_MOST_CHARACTERS]}... ({len(message)} characters)"


def log_to_stderr(config: LogConfig) -> None:
    """Set up the process's log, for a command that runs a broker. Twice is fine: the last one holds."""
    handler = logging.StreamHandler()
    is_json = config.format is LogFormat.JSON
    handler.setFormatter(JsonLine() if is_json else OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
