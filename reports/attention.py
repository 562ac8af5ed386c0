"""What a person should look at first: every failure of every run, gravest first, with the way to see it again."""

from __future__ import annotations

from collections import Counter

import msgspec

from assay.reference_broker.trace.conformance import CaseResult
from assay.reference_broker.trace.results import GRAVITY, Check, RunKind, Severity, Verdict
from assay.reports.collect import Collection, Run
from assay.reports.humanise import NOT_MEASURED, check_name, plural, quantity, relation, words
from assay.reports.verdicts import CASE_LOOKS, FAILING_CASES, KIND_LABELS, RUN_LOOKS, Look

MAX_ITEMS = 2_000
_MAX_FINDINGS_PER_RUN = 50
_TOLD = {Verdict.FAIL: "misses its target", Verdict.UNKNOWN: "was not judged"}
_SELF_CHECK_TITLES = {
    "survives": "The suite does not notice a broken broker",
    "accused": "The suite accuses a legal broker",
    "problem": "A broken broker could not be judged",
}


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong."""

    run: Run | None
    """``None`` for a file that could not be read."""
    gravity: int
    look: Look
    title: str
    detail: str
    clauses: list[str] = []
    case: str = ""
    """Set where the item is a conformance case, so that it can link to its page."""
    reproduce: str = ""


def needs_attention(collection: Collection) -> list[Attention]:
    """At most ``MAX_ITEMS`` of the runs that decide, gravest first, otherwise in the order of the runs."""
    items = [
        Attention(
            run=None,
            gravity=GRAVITY.index(Verdict.ERROR),
            look=RUN_LOOKS[Verdict.ERROR],
            title=f"Cannot read {problem.path}",
            detail=problem.message,
        )
        for problem in collection.problems
    ]
    for run in collection.deciding:
        items += _of_run(run)
    items.sort(key=lambda item: -item.gravity)  # stable
    return items[:MAX_ITEMS]


def first_of_each_run(items: list[Attention], most: int) -> list[tuple[Attention, int]]:
    """At most ``most`` items of a run, the last of them with the number that is left out (0 elsewhere).

    So a run with a hundred failures does not push the single failure of another run off the front page.
    """
    place_of = [item.run.place if item.run else "" for item in items]
    total = Counter(place_of)
    taken: Counter[str] = Counter()
    shown: list[tuple[Attention, int]] = []
    for place, item in zip(place_of, items, strict=True):
        taken[place] += 1
        if taken[place] <= most:
            shown.append((item, total[place] - most if taken[place] == most else 0))
    return shown


def describe_check(check: Check) -> str:
    """``2.1 ms, target < 1 ms (background)``: the figure beside what it was held to."""
    text = NOT_MEASURED if check.value is None else quantity(check.value, check.unit)
    if check.bound is not None and check.relation:
        text += f", target {relation(check.relation)} {quantity(check.bound, check.unit)}"
    return f"{text} ({check.background})" if check.background else text


def _of_run(run: Run) -> list[Attention]:
    if run.verdict is Verdict.PASS:
        return []
    if run.conformance is not None:  # its checks only count the cases
        items = [_of_case(run, result) for result in run.conformance.results if result.verdict in FAILING_CASES]
        if run.conformance.footer is None:
            items.append(_of_whole_run(run, "cut before its end"))
    elif run.result.kind is RunKind.SELF_CHECK and run.result.findings:  # so do those of a self-check
        items = _of_findings(run)
    else:
        # What was not measured is worth a look only where nothing worse is known.
        told = {Verdict.FAIL, Verdict.ERROR} | ({Verdict.UNKNOWN} if run.verdict is Verdict.UNKNOWN else set())
        items = [_of_check(run, check) for check in run.result.checks if check.verdict in told]
        items += _of_findings(run)
    return items or [_of_whole_run(run, RUN_LOOKS[run.verdict].label.lower())]


def _of_check(run: Run, check: Check) -> Attention:
    name = check_name(check.name, check.unit)
    return Attention(
        run=run,
        gravity=GRAVITY.index(check.verdict),
        look=RUN_LOOKS[check.verdict],
        title=f"{name} {_TOLD[check.verdict]}" if check.verdict in _TOLD else name,
        detail=describe_check(check),
        reproduce=run.result.command,
    )


def _of_findings(run: Run) -> list[Attention]:
    result = run.result
    safety = [finding for finding in result.findings if finding.severity is Severity.SAFETY]
    items = [
        Attention(
            run=run,
            gravity=GRAVITY.index(Verdict.FAIL),
            look=RUN_LOOKS[Verdict.FAIL],
            title=_SELF_CHECK_TITLES.get(finding.anomaly, f"{words(finding.checker)} ({finding.anomaly})"),
            detail=finding.message,
            reproduce=result.command,
        )
        for finding in safety[:_MAX_FINDINGS_PER_RUN]
    ]
    if len(safety) > _MAX_FINDINGS_PER_RUN:
        items.append(_of_whole_run(run, plural(len(safety) - _MAX_FINDINGS_PER_RUN, "more finding")))
    return items


def _of_case(run: Run, result: CaseResult) -> Attention:
    look = CASE_LOOKS[result.verdict]
    gravity = Verdict.ERROR if look.tone == "error" else Verdict.FAIL
    return Attention(
        run=run,
        gravity=GRAVITY.index(gravity),
        look=look,
        title=result.title or result.case,
        detail=result.detail,
        clauses=result.clauses,
        case=result.case,
        reproduce=result.reproduce,
    )


def _of_whole_run(run: Run, what: str) -> Attention:
    return Attention(
        run=run,
        gravity=GRAVITY.index(run.verdict),
        look=RUN_LOOKS[run.verdict],
        title=f"{KIND_LABELS[run.result.kind]}: {what}",
        detail=" ".join([run.result.summary, *run.notes]).strip(),
        reproduce=run.result.command,
    )
