"""Schema of a conformance report: JSON lines ``header``, ``clause``..., ``result``..., ``footer``.

The lines are tagged by ``type``. A reader may meet a report without footer: the run was cut, and says so by that.
``transcripts/*.jsonl`` beside the report hold :class:`WireLine` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.results import Machine
from assay.reference_broker.trace.schema import Record

CONFORMANCE_SCHEMA: Literal["assay.conformance/1"] = "assay.conformance/1"


class CaseVerdict(StrEnum):
    """The nine verdicts."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    """A MUST was seen to be violated."""
    BLOCKED = "blocked"
    """A step failed that the case is not about, so that it says nothing; ``blocked_by`` names the case that does."""
    NON_STRICT = "non_strict"
    """A SHOULD was missed, or a debated reaction chosen; never fails a run."""
    UNSUPPORTED = "unsupported"
    """The target declares, or a probe of CONNACK shows, that it lacks a capability the case needs."""
    XFAIL = "xfail"
    """Failed as the target file predicts, with reason and link."""
    XPASS = "xpass"
    """Passed although the target file predicts a failure: the target file is out of date. Fails the run."""
    ERROR = "error"
    """The harness failed, so nothing is said of the target."""
    NOT_RUN = "not_run"
    """Not executed; ``detail`` says why."""


class ClauseStatus(StrEnum):
    TESTED = "tested"
    UNTESTED = "untested"
    """Observable from outside, no case yet."""
    UNTESTABLE = "untestable"
    """No black-box client can observe it; ``reason`` says why."""


class Header(Record, frozen=True, kw_only=True, omit_defaults=False, tag="header", tag_field="type"):
    schema: str = CONFORMANCE_SCHEMA
    target: str
    target_version: str = ""
    started_at: str
    suite_version: str
    seed: int
    capabilities: dict[str, bool | int | str] = {}
    machine: Machine | None = None
    left_out: dict[str, int] = {}
    """Cases that were not selected because the target lacks a capability, by its name: they have no result."""


class Clause(Record, frozen=True, kw_only=True, tag="clause", tag_field="type"):
    """A statement of a standard, in our own words, with the cases that test it."""

    spec: str
    """``mqtt311`` or ``mqtt5``."""
    id: str
    level: str
    """``MUST``, ``SHOULD`` or ``MAY``."""
    role: str
    """``server``, ``client`` or ``both``."""
    section: str
    sentence: str
    status: ClauseStatus
    reason: str = ""
    cases: list[str] = []


class CaseResult(Record, frozen=True, kw_only=True, tag="result", tag_field="type"):
    case: str
    """``<spec>/<area>/<slug>``, never renamed, never reused."""
    title: str
    expectation: str = ""
    """What the case does and what it expects, in prose."""
    spec: str
    area: str
    clauses: list[str]
    """What the case is about; of a failure on a step that no failing case is about, the statements of that step."""
    level: str
    verdict: CaseVerdict
    detail: str = ""
    """What was expected, what was seen; the reason of ``blocked``, ``unsupported``, ``xfail`` and ``not_run``."""
    link: str = ""
    blocked_by: str = ""
    """Of a ``blocked`` case: the case of the same run that failed on the step."""
    duration_ms: float = 0.0
    requires: list[str] = []
    mutant: str = ""
    transcript: str = ""
    """Path of the wire transcript, relative to the report."""
    reproduce: str = ""


class BrokerDeath(Record, frozen=True, kw_only=True):
    """A broker that ended, or answered no more, while cases ran on it."""

    during: list[str]
    """The cases that ran on it."""
    status: str
    """How its process ended, or how it failed to answer."""
    killers: list[str] = []
    """Those of the cases that kill the broker when they have one to themselves."""
    log: str = ""
    """Path of what it wrote, relative to the report; empty if it was not ours to start."""


class Footer(Record, frozen=True, kw_only=True, tag="footer", tag_field="type"):
    counts: dict[str, int]
    exit_code: int
    duration_s: float
    deaths: list[BrokerDeath] = []


Line = Header | Clause | CaseResult | Footer


class WireLine(Record, frozen=True, kw_only=True):
    """One row of a transcript."""

    t_ns: int
    """Nanoseconds since the case began."""
    connection: str
    direction: Literal["send", "recv", "event"]
    hex: str = ""
    decoded: str = ""


def read_report(path: Path) -> Iterator[Line]:
    """Lines of a ``report.jsonl``. Raises :class:`ValueError` on a line that is not of the schema."""
    decoder = msgspec.json.Decoder(described(Line))
    with path.open("rb") as lines:
        for line in lines:
            if line.strip():
                str(line, "utf-8")  # the decoder passes over names that it does not know, however they are damaged
                yield decoder.decode(line)
