"""What proves a case: failing a broken broker on what it is about; being blocked by another case proves nothing."""

from __future__ import annotations

import pytest

from assay.conformance import mutants
from assay.conformance.case import load_cases
from assay.conformance.engine import blank_result
from assay.conformance.judged import Outcome
from assay.conformance.report import ExitCode
from assay.conformance.rules import Incident, Rule
from assay.conformance.self_check import (
    BASELINE,
    Check,
    SelfCheck,
    baselines,
    demand_difference,
    demand_proof,
    judged,
    work_of,
)
from assay.reference_broker.trace.conformance import CaseVerdict

CASES = load_cases()
KILLER = "mqtt311/subscribe/suback-answers-each-filter-in-order"
ONE, TWO = [name for name in sorted(CASES) if name.startswith("mqtt311/topic/")][:2]
STEP = Incident(rule=Rule.SUBACK, text="no SUBACK")
FLAG = Incident(rule=Rule.RETAIN_CLEAR, text="RETAIN is 1")


def outcome(case: str, verdict: CaseVerdict, *incidents: Incident) -> Outcome:
    return Outcome(result=blank_result(CASES[case], verdict, "why"), incidents=incidents)


def judge(*outcomes: Outcome, legal: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    entry = mutants.Mutant(name="m", what="", apply=lambda _patch: None, legal=legal)
    wrong, blocked = judged(entry, [CASES[each.result.case] for each in outcomes], outcomes)
    return tuple(line.split(":")[0] for line in wrong), blocked


def test_a_case_may_be_blocked_by_one_that_fails_the_same_mutant() -> None:
    given = (
        outcome(KILLER, CaseVerdict.FAIL, STEP),
        outcome(ONE, CaseVerdict.BLOCKED, STEP),
        outcome(TWO, CaseVerdict.FAIL),
    )
    assert judge(*given) == ((), (ONE,))


@pytest.mark.parametrize("verdict", [CaseVerdict.PASS, CaseVerdict.UNSUPPORTED, CaseVerdict.ERROR])
def test_whoever_neither_fails_nor_is_blocked_is_wrong(verdict: CaseVerdict) -> None:
    assert judge(outcome(KILLER, CaseVerdict.FAIL, STEP), outcome(ONE, verdict)) == ((ONE,), ())


def test_a_case_that_only_meets_a_failed_step_fails_no_mutant() -> None:
    """The engine alone would book it there; nobody who is about it has failed."""
    assert judge(outcome(ONE, CaseVerdict.BLOCKED, STEP)) == ((ONE,), ())
    assert judge(outcome(ONE, CaseVerdict.BLOCKED, STEP), outcome(TWO, CaseVerdict.BLOCKED, STEP)) == ((ONE, TWO), ())
    assert judge(outcome(ONE, CaseVerdict.PASS, FLAG)) == ((ONE,), ())
    other = outcome(KILLER, CaseVerdict.FAIL)
    pinged = Incident(rule=Rule.PINGRESP, text="no PINGRESP")
    assert judge(other, outcome(ONE, CaseVerdict.BLOCKED, pinged)) == ((ONE,), ()), "it fails on something else"


def test_a_legal_broker_breaks_no_step_either() -> None:
    assert judge(outcome(ONE, CaseVerdict.PASS), legal=True) == ((), ())
    assert judge(outcome(ONE, CaseVerdict.PASS, FLAG), legal=True) == ((ONE,), ())
    failed = outcome(KILLER, CaseVerdict.FAIL, STEP)
    assert judge(failed, outcome(ONE, CaseVerdict.BLOCKED, STEP), legal=True) == ((KILLER, ONE), ())


def test_a_case_that_all_its_mutants_only_block_is_a_defect() -> None:
    def check(name: str, *cases: str, blocked: tuple[str, ...] = (), legal: bool = False) -> Check:
        return Check(mutant=name, target="reference", what="", legal=legal, cases=cases, blocked=blocked)

    passed = check("legal", ONE, TWO, legal=True)
    first, near, second = demand_proof(
        [check("first", KILLER, ONE, TWO, blocked=(ONE, TWO)), passed, check("second", TWO)]
    )
    assert first.wrong == (f"{ONE}: no mutant does more than block it",)
    assert not first.ok
    assert near == passed
    assert second.ok


def test_a_report_that_the_sound_broker_gets_as_well_is_no_proof() -> None:
    def check(name: str, said: str, *, legal: bool = False) -> Check:
        return Check(mutant=name, target="reference", what="", legal=legal, cases=(ONE,), reported=((ONE, said),))

    given = [check(BASELINE, "late", legal=True), check("same", "late"), check("other", "lost")]
    assert [bool(found.wrong) for found in demand_difference([*given, check("legal", "late", legal=True)])] == [
        False,
        True,
        False,
        False,
    ]


def test_the_broker_as_it_is_runs_what_no_variation_of_it_runs_and_what_reports() -> None:
    advisory = next(case for case in CASES.values() if case.level != "MUST" and case.judged_on == "reference")
    must = CASES["mqtt311/ping/every-pingreq-is-answered"]
    work = work_of([must, advisory])
    assert baselines(work) == {("reference", BASELINE): [advisory]}  # a variation that passes says more
    assert baselines(work_of([must], only=must.mutant)) == {("reference", BASELINE): [must]}
    assert baselines(work_of([must], only=must.near_miss)) == {}


@pytest.mark.parametrize(
    ("problems", "code"),
    [(("", ""), ExitCode.OK), (("crash", ""), ExitCode.FAILED), (("no start", "no start"), ExitCode.UNREACHABLE)],
)
def test_where_no_broker_starts_nothing_is_judged(problems: tuple[str, ...], code: ExitCode) -> None:
    checks = [
        Check(mutant=f"m{index}", target="reference", what="", legal=False, cases=(ONE,), problem=problem)
        for index, problem in enumerate(problems)
    ]
    assert SelfCheck(checks=tuple(checks), without_mutant=(), started_at="", duration_s=0.0).exit_code is code
