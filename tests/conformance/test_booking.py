"""One root cause, one failure: which verdicts remain when all cases are done."""

from __future__ import annotations

import msgspec

from assay.conformance.booking import PLAINEST, settle
from assay.conformance.case import load_cases
from assay.conformance.engine import blank_result, with_expectation
from assay.conformance.http.steps import failed_step
from assay.conformance.judged import Outcome
from assay.conformance.rules import Incident, Rule, StepFailureError, shape
from assay.conformance.targets import ExpectedStep, Target
from assay.conformance.wire import Connect, Properties, Publish, Subscribe, Subscription, Will
from assay.conformance.wire.http import GRPC, HTTP_11
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict

CASES = load_cases()
ABOUT_SUBACK = "mqtt311/subscribe/suback-answers-each-filter-in-order"
ABOUT_SESSIONS = "mqtt311/session/kept-without-subscriptions"
ONE, TWO, THREE = [name for name in sorted(CASES) if name.startswith("mqtt311/topic/")][:3]
QOS1 = frozenset({"qos 1"})


def outcome(case: str, verdict: CaseVerdict, *incidents: Incident) -> Outcome:
    detail = incidents[-1].text if incidents else "why"
    return Outcome(result=blank_result(CASES[case], verdict, detail), incidents=incidents)


def step(rule: Rule, shape: frozenset[str] = frozenset(), *, soft: bool = False) -> Incident:
    return Incident(rule=rule, shape=shape, text=f"{rule.name} failed", soft=soft)


def booked(*outcomes: Outcome) -> dict[str, tuple[CaseVerdict, str]]:
    """Verdict and what blocks, by case."""
    return {item.result.case: (item.result.verdict, item.result.blocked_by) for item in settle(outcomes)}


def test_a_failed_case_about_the_step_is_the_root_of_all_others() -> None:
    given = [
        outcome(ONE, CaseVerdict.BLOCKED, step(Rule.SUBACK)),
        outcome(ABOUT_SUBACK, CaseVerdict.FAIL, step(Rule.SUBACK)),
        outcome(TWO, CaseVerdict.BLOCKED, step(Rule.SUBACK, QOS1)),
    ]
    assert booked(*given) == {
        ONE: (CaseVerdict.BLOCKED, ABOUT_SUBACK),
        ABOUT_SUBACK: (CaseVerdict.FAIL, ""),
        TWO: (CaseVerdict.BLOCKED, ABOUT_SUBACK),
    }


def test_without_a_root_the_first_case_fails_on_the_clauses_of_the_step() -> None:
    """Nothing is hidden: whatever cases were selected, a broker that broke a rule has a failure."""
    given = [outcome(name, CaseVerdict.BLOCKED, step(Rule.SUBACK)) for name in (TWO, ONE)]
    two, one = settle(given)
    assert (one.result.verdict, one.result.clauses) == (CaseVerdict.FAIL, ["MQTT-3.8.4-1", "MQTT-3.8.4-2"])
    assert (two.result.verdict, two.result.blocked_by) == (CaseVerdict.BLOCKED, ONE)
    assert two.result.clauses == list(CASES[TWO].clauses)


def test_a_failure_of_an_unusual_request_does_not_explain_one_of_a_plain_request() -> None:
    special, plain = step(Rule.SUBACK, QOS1), step(Rule.SUBACK)
    assert booked(outcome(ONE, CaseVerdict.BLOCKED, special), outcome(TWO, CaseVerdict.BLOCKED, plain)) == {
        ONE: (CaseVerdict.BLOCKED, TWO),
        TWO: (CaseVerdict.FAIL, ""),
    }
    other = step(Rule.SUBACK, frozenset({"no_local True"}))
    both = booked(outcome(ONE, CaseVerdict.BLOCKED, special), outcome(TWO, CaseVerdict.BLOCKED, other))
    assert [verdict for verdict, _root in both.values()] == [CaseVerdict.FAIL] * 2


def test_versions_are_booked_apart() -> None:
    five = "mqtt5/topics/wildcards-match-by-level"
    both = booked(*(outcome(name, CaseVerdict.BLOCKED, step(Rule.PINGRESP)) for name in (ONE, five)))
    assert [verdict for verdict, _root in both.values()] == [CaseVerdict.FAIL] * 2


def test_a_flag_that_a_passing_case_saw_is_booked_once() -> None:
    flag = step(Rule.RETAIN_CLEAR)
    alone = booked(outcome(ONE, CaseVerdict.PASS, flag), outcome(TWO, CaseVerdict.PASS, flag))
    assert alone == {ONE: (CaseVerdict.FAIL, ""), TWO: (CaseVerdict.PASS, "")}
    judge = "mqtt311/retained/flag-is-clear-for-existing-subscribers"
    with_judge = booked(outcome(ONE, CaseVerdict.PASS, flag), outcome(judge, CaseVerdict.FAIL))
    assert with_judge == {ONE: (CaseVerdict.PASS, ""), judge: (CaseVerdict.FAIL, "")}


def test_a_missing_message_is_the_case_s_own_unless_plain_ones_are_missing() -> None:
    missing = step(Rule.DELIVERY, QOS1, soft=True)
    assert booked(outcome(ONE, CaseVerdict.FAIL, missing))[ONE] == (CaseVerdict.FAIL, "")
    basic = "mqtt311/publish/qos-0-arrives-unchanged"
    root = outcome(basic, CaseVerdict.FAIL, step(Rule.DELIVERY, soft=True))
    assert booked(outcome(ONE, CaseVerdict.FAIL, missing), root) == {
        ONE: (CaseVerdict.BLOCKED, basic),
        basic: (CaseVerdict.FAIL, ""),
    }


def test_a_session_that_is_not_kept_is_booked_on_the_case_about_it() -> None:
    gone = step(Rule.SESSION_KEPT)
    assert booked(outcome(ONE, CaseVerdict.BLOCKED, gone), outcome(ABOUT_SESSIONS, CaseVerdict.FAIL, gone))[ONE] == (
        CaseVerdict.BLOCKED,
        ABOUT_SESSIONS,
    )


def test_a_failure_that_the_target_expects_is_a_root_and_stays_expected() -> None:
    def expected(result: CaseResult) -> CaseResult:
        return msgspec.structs.replace(result, verdict=CaseVerdict.XFAIL)

    given = [outcome(name, CaseVerdict.BLOCKED, step(Rule.ACCEPT)) for name in (ONE, TWO)]
    one, two = settle(given, expected)
    assert (one.result.verdict, two.result.verdict) == (CaseVerdict.XFAIL, CaseVerdict.BLOCKED)


def test_two_cases_that_may_both_be_about_it_do_not_block_each_other() -> None:
    """amqtt keeps sessions that should be gone: both cases about it were blocked, each by the other."""
    ends, discards = (
        f"mqtt311/session/clean-session-{what}" for what in ("ends-with-its-connection", "discards-the-old-one")
    )
    given = [outcome(name, CaseVerdict.FAIL, step(Rule.SESSION_NEW, soft=True)) for name in (ends, discards)]
    given.append(outcome(ONE, CaseVerdict.BLOCKED, step(Rule.SESSION_NEW)))
    verdicts = booked(*given)
    failed = [name for name, (verdict, _root) in verdicts.items() if verdict is CaseVerdict.FAIL]
    assert len(failed) == 1
    assert {root for _verdict, root in verdicts.values()} == {"", *failed}


def test_every_blocked_case_names_a_failure_of_the_same_run() -> None:
    given = [
        outcome(name, CaseVerdict.BLOCKED, step(rule, frozenset(special)))
        for name, rule, special in zip(
            sorted(CASES)[:40], [*Rule, *Rule, *Rule], [("a",), (), ("a", "b"), ("c",)] * 10, strict=False
        )
    ]
    settled = settle(given)
    failed = {item.result.case for item in settled if item.result.verdict is CaseVerdict.FAIL}
    assert failed
    assert {item.result.blocked_by for item in settled if item.result.verdict is CaseVerdict.BLOCKED} <= failed


def test_the_shape_of_a_request_is_what_is_special_about_it() -> None:
    assert shape(Connect(client_id="a", version=5, username="u")) == frozenset()
    will = Will(topic="t", retain=True, properties=Properties(will_delay_interval=3))
    assert shape(Connect(clean=False, will=will)) == {
        "clean False",
        "will",
        "will retain True",
        "will will_delay_interval",
    }
    filters = (Subscription(filter="a"), Subscription(filter="b", qos=1))
    assert shape(Subscribe(packet_id=1, subscriptions=filters)) == {"many", "qos 1"}
    assert shape(Publish(topic="t", payload=b"x", qos=1, packet_id=3)) == QOS1


def test_every_rule_stands_in_the_registry_and_has_a_case() -> None:
    for spec, version in (("mqtt311", 4), ("mqtt5", 5), ("http", HTTP_11), ("grpc", GRPC)):
        cited = {clause for case in CASES.values() if case.spec == spec for clause in case.clauses}
        for rule in Rule:
            assert set(rule.clauses(version)) <= cited, rule
            if version >= HTTP_11 and rule.clauses(version):
                assert rule.value.judges is not None
                assert {f"{spec}/{slug}" for slug in rule.value.judges} <= set(CASES), rule
    assert set(CASES) >= set().union(*PLAINEST.values())


def test_a_broker_that_does_not_start_again_is_booked_on_that_and_may_be_expected_to() -> None:
    case = "mqtt311/restart/many-filters-and-many-sessions"
    given = [outcome(case, CaseVerdict.FAIL, step(Rule.STARTS_AGAIN, soft=True))]
    (alone,) = settle(given)
    assert (alone.result.verdict, alone.result.clauses) == (CaseVerdict.FAIL, ["MQTT-4.1.0-1"])
    entry = ExpectedStep(statement="MQTT-4.1.0-1", reason="now and then", link="docs/findings/x.md")
    target = Target(name="x", expect_step=(entry,))
    (known,) = settle(given, lambda result: with_expectation(result, target))
    assert known.result.verdict is CaseVerdict.XFAIL


def test_a_request_that_is_not_done_is_a_step_of_its_route() -> None:
    def incident(what: str, body: object, status: int, *allowed: int) -> Incident | None:
        error = failed_step(what, body, "x", status=status, allowed=allowed)
        return error.incident if isinstance(error, StepFailureError) else None

    path = "POST /api/v1/queues/a/messages"
    plain = incident(path, {"messages": [{"payload": "x"}]}, 500, 200)
    assert plain == Incident(rule=Rule.HTTP_PUBLISH, text="x")
    special = incident(path, {"messages": [{"payload": "x", "ttl": "1s"}]}, 0, 200)
    assert special == Incident(rule=Rule.HTTP_PUBLISH, shape=frozenset({"ttl"}), text="x", soft=True)
    refusal = incident(path, {"messages": [{"payload": "x"}]}, 429, 200)
    assert refusal == Incident(rule=Rule.HTTP_PUBLISH, text="x", soft=True)
    assert incident(path, None, 500, 400, 404) == Incident(rule=Rule.HTTP_PUBLISH, text="x", soft=True)
    assert incident(path, None, 200, 400) is None, "what should be refused and is not is the case's own"
    assert incident("GET /health", None, 500, 200) is None, "nothing rests on it"
    waits = incident("POST /api/v1/queues/a/consume", {"group": "g", "wait_s": 5}, 0, 200)
    assert waits == Incident(rule=Rule.HTTP_DELIVERY, text="x", soft=True), "it may be the message that does not come"
    rejects = incident("POST /api/v1/queues/a/settle?x=1", {"outcome": "reject"}, 500, 200)
    assert rejects is not None
    assert rejects.shape == {"outcome reject", "x"}
