"""The badge of a report: JSON of the shields.io endpoint schema (https://shields.io/badges/endpoint-badge)."""

from __future__ import annotations

import msgspec

from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.results import Verdict
from assay.reports.collect import Collection
from assay.reports.humanise import plural
from assay.reports.verdicts import RUN_LOOKS

_COLOURS: dict[Verdict, str] = {
    Verdict.PASS: "brightgreen",
    Verdict.FAIL: "red",
    Verdict.ERROR: "orange",
    Verdict.UNKNOWN: "lightgrey",
}


class Badge(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One badge; ``is_error`` keeps a viewer from overriding the colour of a failure."""

    schema_version: int = 1
    label: str = "assay"
    message: str
    color: str
    is_error: bool = False


def badge(collection: Collection) -> Badge:
    """The badge of the overall verdict, with the count of conformance cases where there are any."""
    verdict = collection.verdict
    judged = passed = 0
    for run in collection.deciding:
        counts = run.conformance.counts if run.conformance else {}
        passed += counts.get(CaseVerdict.PASS, 0)
        judged += sum(
            count
            for case_verdict, count in counts.items()
            if case_verdict not in {CaseVerdict.BLOCKED, CaseVerdict.UNSUPPORTED, CaseVerdict.NOT_RUN}
        )
    scope = f"{passed}/{judged} cases" if judged else plural(len(collection.deciding), "run")
    return Badge(
        message=f"{RUN_LOOKS[verdict].label.lower()} · {scope}",
        color=_COLOURS[verdict],
        is_error=verdict in {Verdict.FAIL, Verdict.ERROR},
    )


def encode_badge(collection: Collection) -> bytes:
    """``badge.json`` as bytes."""
    return msgspec.json.format(msgspec.json.encode(badge(collection)), indent=1) + b"\n"
