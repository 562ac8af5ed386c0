"""Words, symbols and order of every verdict that a report shows.

Colour is never the only carrier: each verdict has its own shape (``symbol`` names an SVG symbol of ``icons.svg.j2``)
and a label. ``tone`` names the CSS class. Only ``pass`` has the tone ``pass``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from assay.reference_broker.trace.conformance import CaseVerdict, ClauseStatus
from assay.reference_broker.trace.results import RunKind, Verdict


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How one verdict is shown to people."""

    tone: str
    label: str
    symbol: str
    glyph: str
    """One character for places without SVG: Markdown, page titles."""
    meaning: str


RUN_LOOKS: dict[Verdict, Look] = {
    Verdict.PASS: Look(
        tone="pass",
        label="Pass",
        symbol="check",
        glyph="✓",
        meaning="Everything that was judged held. Findings of quality may still be listed.",
    ),
    Verdict.FAIL: Look(
        tone="fail",
        label="Fail",
        symbol="cross",
        glyph="✗",
        meaning="The broker broke a promise: a MUST of a standard, its contract, or a target it is held to.",
    ),
    Verdict.UNKNOWN: Look(
        tone="unknown",
        label="Unknown",
        symbol="question",
        glyph="?",
        meaning="No claim is possible: nothing succeeded, the final read did not finish, or there is no data.",
    ),
    Verdict.ERROR: Look(
        tone="error",
        label="Error",
        symbol="warning",
        glyph="!",
        meaning="The bench itself failed or was cut short, so nothing is said of the broker.",
    ),
}

CASE_LOOKS: dict[CaseVerdict, Look] = {
    CaseVerdict.PASS: Look(
        tone="pass", label="Pass", symbol="check", glyph="✓", meaning="The broker did what the clause asks."
    ),
    CaseVerdict.FAIL: Look(
        tone="fail", label="Fail", symbol="cross", glyph="✗", meaning="A MUST was seen to be violated. Fails the run."
    ),
    CaseVerdict.BLOCKED: Look(
        tone="blocked",
        label="Blocked",
        symbol="bar",
        glyph="⊟",
        meaning="A step failed that the case is not about, so that it says nothing. The case that failed on this step "
        "is named.",
    ),
    CaseVerdict.NON_STRICT: Look(
        tone="non-strict",
        label="Non-strict",
        symbol="tilde",
        glyph="≈",
        meaning="A SHOULD was missed, or a debated reaction chosen. Worth knowing; never fails a run.",
    ),
    CaseVerdict.UNSUPPORTED: Look(
        tone="unsupported",
        label="Unsupported",
        symbol="minus",
        glyph="−",
        meaning="The broker declares, or its CONNACK shows, that it lacks an optional ability the case needs. "
        "It is never guessed from failures.",
    ),
    CaseVerdict.XFAIL: Look(
        tone="xfail",
        label="Expected failure",
        symbol="flag",
        glyph="⚑",
        meaning="Failed as the target file predicts, with a reason and a link. Does not fail the run.",
    ),
    CaseVerdict.XPASS: Look(
        tone="xpass",
        label="Unexpected pass",
        symbol="exclaim",
        glyph="‼",
        meaning="Passed although the target file predicts a failure: the file is out of date. Fails the run.",
    ),
    CaseVerdict.ERROR: Look(
        tone="error",
        label="Error",
        symbol="warning",
        glyph="!",
        meaning="The bench failed on this case, so nothing is said of the broker.",
    ),
    CaseVerdict.NOT_RUN: Look(
        tone="not-run", label="Not run", symbol="circle", glyph="○", meaning="Not executed; the detail says why."
    ),
}
"""In the order of the guide and of all legends."""

CLAUSE_LOOKS: dict[ClauseStatus, Look] = {
    ClauseStatus.TESTED: Look(
        tone="tested", label="Tested", symbol="check", glyph="✓", meaning="At least one case tests the clause."
    ),
    ClauseStatus.UNTESTED: Look(
        tone="untested",
        label="Untested",
        symbol="circle",
        glyph="○",
        meaning="A client could observe it, but no case does so yet.",
    ),
    ClauseStatus.UNTESTABLE: Look(
        tone="untestable",
        label="Untestable",
        symbol="minus",
        glyph="−",
        meaning="No black-box client can observe it; the reason is given.",
    ),
}

CASE_GRAVITY: tuple[CaseVerdict, ...] = (
    CaseVerdict.PASS,
    CaseVerdict.UNSUPPORTED,
    CaseVerdict.XFAIL,
    CaseVerdict.NON_STRICT,
    CaseVerdict.NOT_RUN,
    CaseVerdict.BLOCKED,
    CaseVerdict.ERROR,
    CaseVerdict.XPASS,
    CaseVerdict.FAIL,
)
"""From harmless to grave: a cell that sums up cases shows the gravest."""

FAILING_CASES = frozenset({CaseVerdict.FAIL, CaseVerdict.XPASS, CaseVerdict.ERROR})
"""Case verdicts that fail a run, so a person has to look at them."""

KIND_LABELS: dict[RunKind, str] = {
    RunKind.CONFORMANCE: "Conformance",
    RunKind.SELF_CHECK: "Self-check",
    RunKind.SIM: "Simulation",
    RunKind.FAULTS: "Faults",
    RunKind.LOAD: "Load",
    RunKind.BENCH: "Bench",
    RunKind.SPARK: "Spark analysis",
    RunKind.MODEL: "Model",
}
"""In the order of the index."""

KIND_QUESTIONS: dict[RunKind, str] = {
    RunKind.CONFORMANCE: "Does the broker do what the standard says?",
    RunKind.SELF_CHECK: "Does the suite notice brokers that were broken on purpose?",
    RunKind.SIM: "Does it keep its promises in a simulated world of crashes and losses?",
    RunKind.FAULTS: "Does it keep them with real processes that are killed and cut off?",
    RunKind.LOAD: "How fast is it at a stated rate, and does it lose or repeat anything?",
    RunKind.BENCH: "How does its speed compare with other brokers on the same machine?",
    RunKind.SPARK: "What do the recorded data say when Spark SQL judges them?",
    RunKind.MODEL: "Does the model agree with theory and measurement, and what does it say of clusters?",
}


def worst_case(verdicts: list[CaseVerdict]) -> CaseVerdict:
    """The gravest verdict; ``not_run`` for an empty list."""
    return max(verdicts, key=CASE_GRAVITY.index, default=CaseVerdict.NOT_RUN)


def look_of(verdict: StrEnum) -> Look:
    """How to show a run verdict, a case verdict or a clause status. Raises ``TypeError`` for another enum."""
    match verdict:
        case Verdict():
            return RUN_LOOKS[verdict]
        case CaseVerdict():
            return CASE_LOOKS[verdict]
        case ClauseStatus():
            return CLAUSE_LOOKS[verdict]
    raise TypeError(f"{verdict!r} is no verdict")
