"""Exit statuses of ``assay spark``, the same as those of the other commands."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from assay.reference_broker.trace.results import Verdict


class ExitStatus(IntEnum):
    PASS = 0
    FAIL = 1
    USAGE = 2
    """Wrong arguments, a folder that is not there, a wrong targets file."""
    UNAVAILABLE = 3
    """Spark cannot start here."""
    HARNESS = 4
    UNKNOWN = 5
    """No claim is possible."""


OF_VERDICT: Final = {
    Verdict.PASS: ExitStatus.PASS,
    Verdict.FAIL: ExitStatus.FAIL,
    Verdict.ERROR: ExitStatus.HARNESS,
    Verdict.UNKNOWN: ExitStatus.UNKNOWN,
}
