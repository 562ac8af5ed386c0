"""Exit statuses of the load and bench commands, the same as those of ``assay conformance``."""

from __future__ import annotations

from enum import IntEnum

from assay.reference_broker.trace.results import Verdict


class ExitStatus(IntEnum):
    PASS = 0
    FAIL = 1
    USAGE = 2
    UNREACHABLE = 3
    HARNESS = 4
    UNKNOWN = 5
    """Nothing can be said: the generator was the limit, or the broker supports nothing of what was asked."""


OF_VERDICT = {
    Verdict.PASS: ExitStatus.PASS,
    Verdict.FAIL: ExitStatus.FAIL,
    Verdict.ERROR: ExitStatus.HARNESS,
    Verdict.UNKNOWN: ExitStatus.UNKNOWN,
}
