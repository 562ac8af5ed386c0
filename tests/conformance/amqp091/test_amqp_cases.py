"""The AMQP cases as data: how much of the registry they cover, and what they leave out and why."""

from __future__ import annotations

import pytest

from assay.conformance.amqp091.context import JUDGED_ON
from assay.conformance.case import load_cases
from assay.conformance.registry import load_statements

CASES = {case_id: case for case_id, case in load_cases().items() if case.spec == "amqp091"}
RULES = load_statements("amqp091")
AREAS = {
    *(
        "access",
        "basic",
        "channel",
        "confirm",
        "connection",
        "content",
        "exchange",
        "extensions",
        "frames",
        "heartbeat",
        "queue",
    ),
    *("restart", "settling", "streams", "tx"),
}
LEFT_OUT = {
    "channel.flow.bidirectional",
    "sec.4.10.2.negotiation-dos",
    "rmq.connection.blocked",
    "rmq.consumer.timeout",
    "rmq.delayed.x-delayed-message",
    "rmq.consistent-hash",
    "rmq.max-consumers-channels",
}
"""Testable in part only, and without a case: the registry says why."""


def test_every_rule_that_can_be_tested_has_a_case() -> None:
    cited = {clause for case in CASES.values() for clause in case.clauses}
    testable = {name for name, rule in RULES.items() if rule.testable != "no"}
    assert testable - cited == LEFT_OUT
    assert all(RULES[name].testable == "partly" and RULES[name].reason for name in LEFT_OUT)
    assert cited <= testable, "what no client can see is not claimed"


def test_the_suite_does_not_shrink() -> None:
    assert len(CASES) >= 212
    assert {case.area for case in CASES.values()} == AREAS


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_proved_where_amqp_is_spoken(name: str) -> None:
    assert CASES[name].judged_on == JUDGED_ON
    assert CASES[name].version == 91
