"""What a target file expects: a failure that is known, and one that chance decides."""

from __future__ import annotations

import msgspec
import pytest

from assay.conformance.case import load_cases
from assay.conformance.engine import blank_result, with_expectation
from assay.conformance.rules import Rule
from assay.conformance.targets import ExpectedFailure, ExpectedStep, Target, TargetError, parse_target
from assay.reference_broker.trace.conformance import CaseVerdict

PING = load_cases()["mqtt311/ping/every-pingreq-is-answered"]
KNOWN = ExpectedFailure(case=PING.id, reason="it sleeps", link="docs/findings/x.md")


def judged(verdict: CaseVerdict, entry: ExpectedFailure) -> CaseVerdict:
    return with_expectation(blank_result(PING, verdict, ""), Target(name="x", expect_fail=(entry,))).verdict


@pytest.mark.parametrize("sometimes", [False, True])
def test_a_failure_is_expected(sometimes: bool) -> None:
    assert judged(CaseVerdict.FAIL, msgspec.structs.replace(KNOWN, sometimes=sometimes)) is CaseVerdict.XFAIL


@pytest.mark.parametrize("verdict", [CaseVerdict.PASS, CaseVerdict.NON_STRICT])
def test_a_pass_is_a_surprise_unless_chance_decides(verdict: CaseVerdict) -> None:
    assert judged(verdict, KNOWN) is CaseVerdict.XPASS
    assert judged(verdict, msgspec.structs.replace(KNOWN, sometimes=True)) is verdict


@pytest.mark.parametrize("verdict", [CaseVerdict.BLOCKED, CaseVerdict.ERROR, CaseVerdict.UNSUPPORTED])
def test_what_is_not_judged_is_left_alone(verdict: CaseVerdict) -> None:
    assert judged(verdict, KNOWN) is verdict


def test_a_step_that_fails_by_chance_is_expected_where_it_is_booked() -> None:
    """Moquette cuts off now this client, now that one, that sends SUBSCRIBE behind its CONNACK."""
    step = ExpectedStep(statement="MQTT-3.8.4-1", reason="now and then", link="docs/findings/x.md")
    target = Target(name="x", expect_step=(step,))

    def judged_by(verdict: CaseVerdict, clauses: list[str]) -> CaseVerdict:
        return with_expectation(
            msgspec.structs.replace(blank_result(PING, verdict, ""), clauses=clauses), target
        ).verdict

    booked = list(Rule.SUBACK.clauses(4))
    assert judged_by(CaseVerdict.FAIL, booked) is CaseVerdict.XFAIL
    assert judged_by(CaseVerdict.FAIL, [*booked, "MQTT-3.8.4-5"]) is CaseVerdict.FAIL, "a case about it"
    assert judged_by(CaseVerdict.FAIL, list(Rule.PINGRESP.clauses(4))) is CaseVerdict.FAIL
    for other in (CaseVerdict.PASS, CaseVerdict.BLOCKED, CaseVerdict.ERROR):
        assert judged_by(other, booked) is other
    with pytest.raises(TargetError, match="needs a statement"):
        parse_target("name = 'x'\n[[expect_step]]\nstatement = ''\nreason = 'r'\nlink = 'l'\n")


def test_a_step_that_is_known_by_its_own_case_is_expected_where_that_was_not_asked() -> None:
    """Artemis answers SUBSCRIBE without a filter; so fails what provokes an end by that, if it is asked alone."""
    case = load_cases()["mqtt5/disconnect/server-says-goodbye-properly"]
    known = ExpectedFailure(case="mqtt5/subscribe/without-filter-refused", reason="answered", link="docs/findings/x.md")
    booked = list(Rule.EMPTY_SUBSCRIBE.clauses(5))

    def judged_by(entry: ExpectedFailure, clauses: list[str]) -> CaseVerdict:
        result = msgspec.structs.replace(blank_result(case, CaseVerdict.FAIL, ""), clauses=clauses)
        return with_expectation(result, Target(name="x", expect_fail=(entry,))).verdict

    assert judged_by(known, booked) is CaseVerdict.XFAIL
    assert judged_by(known, list(case.clauses)) is CaseVerdict.FAIL, "what the case itself is about"
    assert judged_by(msgspec.structs.replace(known, case=PING.id), booked) is CaseVerdict.FAIL
