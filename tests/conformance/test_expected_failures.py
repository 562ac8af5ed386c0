"""What a target file expects: a failure that is known, and one that chance decides."""

from __future__ import annotations

import msgspec
import pytest

from conformance.case import load_cases
from conformance.engine import blank_result, with_expectation
from conformance.targets import ExpectedFailure, Target
from reference_broker.trace.conformance import CaseVerdict

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
