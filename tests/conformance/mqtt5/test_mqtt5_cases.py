"""The MQTT 5.0 cases as data: how much of the standard they cover, and what they leave out and why."""

from __future__ import annotations

import pytest

from assay.conformance.case import load_cases
from assay.conformance.mutants import all_mutants
from assay.conformance.registry import load_statements

CASES = {case_id: case for case_id, case in load_cases().items() if case.spec == "mqtt5"}
AREAS = {
    "auth",
    "connack",
    "connect",
    "disconnect",
    "flow-control",
    "lesser-server",
    "malformed",
    "ping",
    "problem-information",
    "properties",
    "publish",
    "qos",
    "retained",
    "session",
    "shared",
    "subscribe",
    "topic-alias",
    "topics",
    "unsubscribe",
    "utf8",
    "websocket",
    "will",
}


def observable_server_duties() -> set[str]:
    """Statements that bind a server and that a black-box client can see: the ceiling of the suite."""
    return {
        name
        for name, statement in load_statements("mqtt5").items()
        if statement.role in {"server", "both"} and statement.testable in {"yes", "partly"}
    }


def test_every_observable_duty_of_a_server_is_covered() -> None:
    covered = {clause for case in CASES.values() for clause in case.clauses}
    assert observable_server_duties() - covered == set()


def test_what_no_client_can_observe_is_not_claimed() -> None:
    untestable = {name for name, statement in load_statements("mqtt5").items() if statement.testable == "no"}
    assert [case.id for case in CASES.values() if untestable & set(case.clauses)] == []


def test_the_suite_does_not_shrink() -> None:
    assert len(CASES) >= 250
    assert {case.area for case in CASES.values()} >= AREAS


def test_every_variation_and_every_bug_is_named_by_a_case() -> None:
    named = {name for case in CASES.values() for name in (case.mutant, case.near_miss, *case.kills)}
    assert [name for name in all_mutants() if name.startswith("v5-") and name not in named] == []


def test_a_rule_that_only_advises_is_no_must() -> None:
    """Reactions that are argued over are reported, so their cases must not claim to be about a MUST."""
    advisory = {case.id for case in CASES.values() if case.level != "MUST"}
    assert advisory == {
        "mqtt5/connect/bytes-that-make-no-packet-keep-nothing-alive",
        "mqtt5/connect/will-topic-with-wildcard-refused",
        "mqtt5/disconnect/normal-ends-the-connection",
        "mqtt5/malformed/good-packets-before-a-bad-one-count",
        "mqtt5/malformed/longer-length-than-needed",
        "mqtt5/malformed/undefined-reason-codes-refused",
        "mqtt5/publish/payload-format-2-refused",
        "mqtt5/publish/response-topic-with-wildcard-refused",
        "mqtt5/restart/acknowledged-messages-stay-away",
        "mqtt5/restart/refused-deliveries-stay-away",
        "mqtt5/restart/retained-messages-that-are-still-to-be-sent",
        "mqtt5/restart/what-a-member-left-is-no-more-its-own",
        "mqtt5/restart/the-will-of-who-was-connected",
        "mqtt5/session/clean-start-takeover-publishes-the-will",
        "mqtt5/shared/unacknowledged-delivery-goes-to-another-member",
        "mqtt5/shared/unsent-messages-go-to-another-member",
        "mqtt5/slow-clients/a-subscribe-of-equal-filters-delays-nobody",
        "mqtt5/slow-clients/overlapping-filters-of-one-client-delay-nobody",
        "mqtt5/subscribe/deep-filters-are-answered",
        "mqtt5/utf8/ill-formed-property-texts",
        "mqtt5/will/response-topic-with-wildcard-refused",
        "mqtt5/will/takeover-publishes-a-will-without-delay",
    }


@pytest.mark.parametrize("case_id", sorted(CASES))
def test_a_case_tells_people_what_it_does(case_id: str) -> None:
    case = CASES[case_id]
    assert case.title.endswith("."), case.title
    assert len(case.expectation) > 40, "the expectation must say what is sent and what is expected"
    assert case.mutant != case.near_miss
    assert case.near_miss
