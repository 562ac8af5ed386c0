"""What other brokers taught the suite: a broker with one fault fails the cases of this fault, and no others by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from assay.conformance.booking import settle
from assay.conformance.case import CaseContext, load_cases
from assay.conformance.engine import RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.outcome import UnsupportedError
from assay.conformance.rules import Rule, malformed
from assay.conformance.run import Run, RunPlan
from assay.conformance.targets import Endpoint, StartHook, Target, TargetError, load_target, parse_target
from assay.conformance.wire import Packet, Puback, Publish, Suback, Subscribe, Subscription
from assay.reference_broker.trace.conformance import CaseVerdict

SESSION = "mqtt311/session"


def broken(*mutants: str, capabilities: dict[str, bool] | None = None) -> Target:
    """The reference broker with bugs."""
    arguments = [word for name in mutants for word in ("--mutant", name)]
    hook = StartHook(command=("{python}", "-m", "assay.conformance.adapter", *arguments), port_from="stdout")
    return Target(name="broken", start=hook, capabilities={**(capabilities or {})})


def verdicts(target: Target, *case_ids: str) -> list[CaseVerdict]:
    """Verdicts of these cases, in order; a failed wait ends after a second."""
    return [outcome.result.verdict for outcome in outcomes(target, *case_ids)]


def outcomes(target: Target, *case_ids: str) -> list[Outcome]:
    cases = load_cases()
    with Run(RunPlan(target=target, options=RunOptions(patience_s=1.0))) as run:
        futures = run.submit_all([cases[case_id] for case_id in case_ids])
        return [futures[case_id].result(60) for case_id in case_ids]


@pytest.mark.parametrize(
    ("mutant", "guilty", "innocent"),
    [
        (
            "v3-empty-client-id-kept-session",
            "mqtt311/connect/empty-client-id-needs-clean-session",
            "mqtt311/connect/nothing-behind-a-refused-connect-is-processed",
        ),
        (
            "v3-no-filter-needed",
            "mqtt311/subscribe/needs-a-filter",
            "mqtt311/malformed/bad-input-disturbs-nobody-else",
        ),
        (
            "v3-reserved-packet-types-skipped",
            "mqtt311/malformed/reserved-packet-types-end-the-connection",
            "mqtt311/will/published-after-a-protocol-violation",
        ),
        (
            "v3-sessions-without-subscriptions-forgotten",
            f"{SESSION}/kept-without-subscriptions",
            f"{SESSION}/received-qos-2-is-remembered",
        ),
        (
            "v3-sessions-with-qos-0-alone-forgotten",
            f"{SESSION}/keeps-subscriptions-at-qos-0",
            f"{SESSION}/takeover-keeps-the-session",
        ),
    ],
)
def test_a_fault_is_charged_to_its_own_case_only(mutant: str, guilty: str, innocent: str) -> None:
    assert verdicts(broken(mutant), guilty, innocent) == [CaseVerdict.FAIL, CaseVerdict.PASS]


def test_messages_in_another_order_are_charged_to_their_order_alone() -> None:
    """Artemis: what a case compares is wrong there, and all that is wrong of it is when it came."""
    (outcome,) = outcomes(broken("confused-order"), "mqtt5/qos/delivery-at-qos1-uses-free-identifiers")
    assert outcome.result.verdict is CaseVerdict.FAIL
    assert outcome.result.clauses == ["MQTT-4.6.0-5", "MQTT-4.6.0-6"]
    assert "came behind one that was published later" in outcome.result.detail


@pytest.mark.parametrize(
    ("mutant", "case_id"),
    [
        ("confused-order", "mqtt5/publish/many-topics-in-one-write"),
        ("confused-order", "mqtt311/publish/many-topics-in-one-write"),
        ("v5-offline-messages-reversed", "mqtt5/session/order-of-waiting-messages"),
    ],
)
def test_another_order_is_booked_on_the_rule_of_order_whatever_else_a_case_cites(mutant: str, case_id: str) -> None:
    """Artemis sends messages of a topic in another order now and then; that was booked on filters and QoS as well."""
    (outcome,) = settle(outcomes(broken(mutant), case_id))
    assert outcome.result.verdict is CaseVerdict.FAIL
    assert outcome.result.clauses == ["MQTT-4.6.0-5", "MQTT-4.6.0-6"], outcome.result.detail


def test_code_4_for_a_malformed_login_is_reported_and_not_failed() -> None:
    ids = ("mqtt311/connect/password-needs-a-user-name", "mqtt311/malformed/connect-text-must-be-utf-8")
    for outcome in outcomes(broken("v3-malformed-login-gets-code-4"), *ids):
        assert outcome.result.verdict is CaseVerdict.NON_STRICT
        assert "code 4" in outcome.result.detail


def test_a_broker_without_qos_2_is_still_asked_about_the_lower_levels() -> None:
    """RabbitMQ 3.10 takes QoS 2 at QoS 1; its target file says so."""
    target = broken("v3-qos-2-acknowledged-like-qos-1", capabilities={"qos2": False})
    ids = (
        "mqtt311/publish/qos-2-is-not-acknowledged-like-qos-1",
        "mqtt311/publish/delivered-at-the-lower-qos",
        "mqtt311/order/messages-of-a-topic-keep-their-order",
        "mqtt311/order/acknowledgements-come-in-order",
        f"{SESSION}/keeps-subscriptions-and-messages",
        "mqtt311/retained/keeps-its-qos",
        "mqtt311/publish/qos-2-takes-four-steps",
    )
    fail, *lower, last = verdicts(target, *ids)
    assert (fail, last) == (CaseVerdict.FAIL, CaseVerdict.UNSUPPORTED)
    assert lower == [CaseVerdict.PASS] * 5


def test_a_connection_that_is_accepted_against_the_rules_is_told_at_once() -> None:
    target = broken("v3-surrogates-accepted")
    (outcome,) = outcomes(target, "mqtt311/malformed/connect-text-must-be-utf-8")
    assert "expected the connection to be refused; seen CONNACK" in outcome.result.detail


def test_each_case_can_have_a_broker_of_its_own(tmp_path: Path) -> None:
    """A broker that counts its lives: as many as cases, and one for the probe."""
    births = tmp_path / "births"
    births.touch()
    script = f"echo born >> {births}; exec {{python}} -m assay.conformance.adapter"
    hook = StartHook(command=("sh", "-c", script), port_from="stdout")
    ids = ("mqtt311/ping/every-pingreq-is-answered", "mqtt311/topic/byte-order-mark-is-a-character")
    for broker_per_case, lives in ((True, 3), (False, 1)):
        births.write_text("")
        target = Target(name="counted", start=hook, broker_per_case=broker_per_case)
        assert verdicts(target, *ids) == [CaseVerdict.PASS] * 2
        assert len(births.read_text().splitlines()) == lives


def test_a_case_whose_broker_does_not_start_is_an_error_of_its_own(tmp_path: Path) -> None:
    script = f"mkdir {tmp_path}/once && exec {{python}} -m assay.conformance.adapter"
    target = Target(
        name="once", start=StartHook(command=("sh", "-c", script), port_from="stdout"), broker_per_case=True
    )
    (outcome,) = outcomes(target, "mqtt311/ping/every-pingreq-is-answered")
    assert outcome.result.verdict is CaseVerdict.ERROR
    assert "before its ready line" in outcome.result.detail


def test_a_running_broker_cannot_be_started_for_each_case() -> None:
    with pytest.raises(TargetError, match="broker_per_case"):
        parse_target("name = 'x'\nbroker_per_case = true\n")
    assert load_target("amqtt").broker_per_case


def test_what_a_broker_adds_to_its_duty_is_reported_and_not_failed() -> None:
    """amqtt says PUBREC once more to a publisher that is back; aedes lets a publisher wait for a deaf subscriber."""
    (outcome,) = outcomes(broken("v3-pubrec-repeated-on-return"), f"{SESSION}/owed-release-finishes-after-reconnect")
    assert outcome.result.verdict is CaseVerdict.NON_STRICT
    assert "repeats its PUBREC" in outcome.result.detail


def test_a_broker_may_end_the_connection_of_who_publishes_to_a_dollar_topic() -> None:
    """amqtt does so; 4.7.2 asks servers to keep clients from using such topics."""
    ids = ("mqtt311/topic/dollar-topics-hide-from-leading-wildcards",)
    assert verdicts(broken("v3-dollar-topics-end-the-connection"), *ids) == [CaseVerdict.PASS]


def test_a_pubrel_that_is_not_sent_again_fails_the_case_about_it_and_blocks_one_about_identifiers() -> None:
    """Artemis forgets what it owes: that says nothing of the identifiers that it would have chosen."""
    slugs = ("owed-pubrel-is-sent-again", "new-identifiers-spare-open-exchanges")
    guilty, other = (f"mqtt5/session/{slug}" for slug in slugs)
    about, innocent = settle(outcomes(broken("v5-owed-pubrel-forgotten"), guilty, other))
    assert about.result.verdict is CaseVerdict.FAIL
    assert (innocent.result.verdict, innocent.result.blocked_by) == (CaseVerdict.BLOCKED, guilty)


def test_a_subscription_that_is_refused_fails_the_case_about_it_and_no_case_about_what_it_would_bring() -> None:
    """mochi calls an identifier in use by which it has sent something itself: nothing retained can come by that."""
    about = "mqtt5/retained/handling-by-retain-as-published-and-age"
    others = ("an-unsubscribe-amid-them-spares-others", "a-subscription-replaced-amid-them")
    ran = outcomes(
        broken("v5-subscribe-beside-an-open-delivery-refused"), about, *(f"mqtt5/retained/{slug}" for slug in others)
    )
    guilty, *innocent = settle(ran)
    assert guilty.result.verdict is CaseVerdict.FAIL
    assert [(each.result.verdict, each.result.blocked_by) for each in innocent] == [(CaseVerdict.BLOCKED, about)] * 2


def test_a_session_may_be_forgotten_a_moment_after_its_connection() -> None:
    """HiveMQ does so: what the leaving member of a share gets alone is for the member that comes next."""
    assert verdicts(broken("any-late-forgetting"), "mqtt5/shared/changes-hold-for-known-topics") == [CaseVerdict.PASS]


def test_text_that_another_case_has_sent_is_booked_on_the_case_about_text() -> None:
    """Artemis hands U+0000 on: a client that subscribes to everything meets it in a case about something else."""
    incident = malformed("PUBLISH: the topic name contains U+0000", 5, "seen in passing")
    assert (incident.rule, incident.shape) == (Rule.TEXT, frozenset())
    assert Rule.TEXT.is_subject_of("mqtt5/utf8/ill-formed-topics-refused", ["MQTT-1.5.4-1"])
    assert malformed("SUBACK: no return code", 5, "").rule is Rule.FORM


def _filters(*sizes: int) -> Subscribe:
    return Subscribe(packet_id=1, subscriptions=tuple(Subscription(filter="x" * size) for size in sizes))


@pytest.mark.parametrize(
    ("request_", "answer", "is_allowed"),
    [
        (_filters(1, 65_535), Suback(packet_id=1, reason_codes=(0, 0x83)), True),
        (_filters(1, 65_535), Suback(packet_id=1, reason_codes=(0, 0)), False),
        (_filters(1, 100), Suback(packet_id=1, reason_codes=(0, 0x83)), False),
        (Publish(topic="t" * 65_534, qos=1, packet_id=1), Puback(packet_id=1, reason_code=0x80), True),
        (Publish(topic="t" * 65_534, qos=1, packet_id=1), Puback(packet_id=2), False),
        (Publish(topic="t", payload=b"x" * 65_534, qos=1, packet_id=1), Puback(packet_id=1, reason_code=0x80), False),
        (Publish(topic="t" * 65_534, qos=1, packet_id=1), None, True),
        (Publish(topic="t", qos=1, packet_id=1), None, False),
        (None, Puback(packet_id=1, reason_code=0x80), False),
    ],
)
def test_a_server_may_refuse_a_name_as_long_as_a_name_can_be(
    request_: Packet | None, answer: Packet | None, is_allowed: bool
) -> None:
    """The store of FluxMQ takes no keys of 65,000 bytes: it refused such names, and was accused of no answer."""

    async def refused() -> bool:
        case = load_cases()["mqtt5/restart/retained-messages-on-long-and-deep-topics"]
        ctx = CaseContext(case, Endpoint(host="127.0.0.1", port=1), {}, run_token="t", seed=1)
        try:
            ctx.allow_refusal(request_, answer)
        except UnsupportedError:
            return True
        return False

    assert asyncio.run(refused()) is is_allowed
