"""The cases as data: ids are permanent, statements exist, every case is proved by a mutant that exists."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from assay.conformance.case import ABSENT, CaseContext, case, load_cases
from assay.conformance.mutants import Patch, UnknownMutantError, all_mutants, applied, find
from assay.conformance.registry import (
    STANDARDS,
    WEBSOCKET,
    clauses,
    coverage,
    home_of,
    listed_case_ids,
    load_statements,
    unproven_case_ids,
)
from assay.conformance.self_check import EVERYONE
from assay.conformance.targets import CAPABILITIES, load_target, shipped_targets
from assay.reference_broker.amqp091.channel import HANDLERS
from assay.reference_broker.amqp091.topology import routes, virtual_host
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.trace.conformance import ClauseStatus

CASES = load_cases()
UNPROVEN = set(unproven_case_ids())
UNPROVEN_COUNT = 0


def test_every_case_is_in_the_permanent_list_and_nothing_was_taken_out() -> None:
    """An id, once published, is never renamed or reused: new ids are added to conformance/registry/case_ids.txt."""
    listed = listed_case_ids()
    assert Counter(listed).most_common(1)[0][1] == 1
    assert listed == sorted(listed)
    assert set(CASES) - set(listed) == set(), "add these to case_ids.txt"
    assert set(listed) - set(CASES) == set(), "these ids are gone"


@pytest.mark.parametrize("spec", ["mqtt311", "mqtt5", "queue", "amqp091", "http", "grpc"])
def test_every_statement_that_a_case_cites_exists(spec: str) -> None:
    for known in CASES.values():
        if known.spec == spec:
            assert known.clauses, known.id
            for clause in known.clauses:
                assert clause in load_statements(home_of(known, clause)), f"{known.id} cites {clause}"


def test_the_readme_counts_cases_and_bugs() -> None:
    """Each figure is the last full hundred, or ten, of what there is."""
    text = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    bugs, variations = {known.mutant for known in CASES.values()}, {known.near_miss for known in CASES.values()} - {""}
    for words, count, step in (
        ("suites have more than {} cases", len(CASES), 100),
        ("kill more than {} planted bugs", len(bugs), 100),
        ("pass more than {} legal variations", len(variations), 10),
        (
            "more than {} of these every case must pass",
            len({name for group in EVERYONE for name in group.split("+")}),
            10,
        ),
    ):
        assert words.format(f"{(count - 1) // step * step:,}") in text


def test_every_case_names_a_bug_that_it_must_find() -> None:
    mutants = all_mutants()
    for known in CASES.values():
        if known.id in UNPROVEN:
            continue
        assert known.mutant in mutants, known.id
        assert not mutants[known.mutant].legal, known.id
        if known.near_miss:
            assert mutants[known.near_miss].legal, known.id


def test_what_has_no_proof_yet_says_so_and_becomes_less() -> None:
    """Cases of AMQP 0.9.1 wait for a broker of ours that can be broken; the number may only become smaller."""
    assert {known.id for known in CASES.values() if not known.mutant} == UNPROVEN
    assert unproven_case_ids() == sorted(UNPROVEN)
    assert all(name.startswith("amqp091/") for name in UNPROVEN)
    assert len(UNPROVEN) == UNPROVEN_COUNT


def test_every_mqtt_mutant_is_named_by_a_case() -> None:
    """Mutants of the queues also serve the history checkers; those of MQTT exist for the cases alone."""
    named = {known.mutant for known in CASES.values()} | {known.near_miss for known in CASES.values()}
    unused = [name for name in all_mutants() if name.startswith("v3-") and name not in named]
    assert unused == []


def test_cases_require_known_capabilities_only() -> None:
    for known in CASES.values():
        assert {name.removeprefix(ABSENT) for name in known.requires} <= set(CAPABILITIES), known.id
        assert known.judged_on in shipped_targets(), known.id


@pytest.mark.parametrize(("spec", "of_the_server", "of_the_client"), [("mqtt311", 103, 28), ("mqtt5", 201, 34)])
def test_every_statement_that_can_be_tested_is_tested(spec: str, of_the_server: int, of_the_client: int) -> None:
    """Those that a client can see a server violate, and the client's duties whose neglect a server reacts to."""
    found = clauses(CASES.values(), [spec])
    assert [clause.id for clause in found if clause.status is ClauseStatus.UNTESTED] == []
    counted = coverage(CASES.values(), spec)
    assert (counted.server_tested, counted.server) == (of_the_server, of_the_server)
    assert (counted.client_tested, counted.client) == (of_the_client, of_the_client)
    assert counted.untestable == sum(clause.status is ClauseStatus.UNTESTABLE for clause in found)


def test_no_requirement_of_the_queues_or_of_websocket_is_untested() -> None:
    found = clauses(CASES.values(), ["queue", WEBSOCKET, "http", "grpc"])
    assert [clause.id for clause in found if clause.status is ClauseStatus.UNTESTED] == []


def test_a_duty_of_the_server_is_not_proved_by_advice_alone() -> None:
    for spec in STANDARDS:
        for clause in clauses(CASES.values(), [spec]):
            if clause.level == "MUST" and clause.role != "client" and clause.cases:
                assert any(CASES[name].level == "MUST" for name in clause.cases), clause.id


def test_a_case_about_what_a_server_lacks_is_proved_on_one_that_lacks_it() -> None:
    for known in CASES.values():
        if any(name.startswith(ABSENT) for name in known.requires):
            assert known.judged_on != "reference", known.id


def test_statements_know_their_cases() -> None:
    found = {(clause.spec, clause.id): clause for clause in clauses(CASES.values())}
    first = found["mqtt311", "MQTT-3.1.0-1"]
    assert "mqtt311/connect/first-packet-must-be-connect" in first.cases
    assert all(not name.startswith("mqtt5/") for name in first.cases)
    of_acks = found["queue", "Q-ACK-1"].cases
    assert of_acks == sorted(name for name, case in CASES.items() if "Q-ACK-1" in case.clauses)
    assert "queue/settle/acked-is-gone" in of_acks
    for clause in found.values():
        assert (clause.status is ClauseStatus.TESTED) == bool(clause.cases)
        assert clause.reason or clause.status is not ClauseStatus.UNTESTABLE


@pytest.mark.parametrize("name", shipped_targets())
def test_expected_failures_name_cases_that_exist(name: str) -> None:
    for entry in load_target(name).expect_fail:
        assert entry.case in CASES
        assert entry.link.startswith(("https://", "docs/findings/"))


async def documented(ctx: CaseContext) -> None:
    """A rule.

    What is expected.
    """


async def undocumented(ctx: CaseContext) -> None:
    """Only a title."""


@pytest.mark.parametrize("case_id", ["mqtt311/connect", "mqtt9/connect/x", "mqtt311/Connect/x", "mqtt311/connect/x y"])
def test_bad_case_ids_are_refused(case_id: str) -> None:
    with pytest.raises(ValueError, match="case id"):
        case(case_id, clauses=("MQTT-3.1.0-1",))(documented)


def test_a_case_without_expectation_is_refused() -> None:
    with pytest.raises(ValueError, match="docstring"):
        case("mqtt311/connect/no-docstring", clauses=("MQTT-3.1.0-1",))(undocumented)


def test_a_case_id_used_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="used twice"):
        case("mqtt311/connect/first-packet-must-be-connect", clauses=("MQTT-3.1.0-1",))(documented)


def test_a_mutant_is_undone_at_the_end() -> None:
    original = MqttBroker.next_client_id
    with applied("v3-empty-client-ids-shared"):
        assert MqttBroker.next_client_id is not original
    assert MqttBroker.next_client_id is original


@pytest.mark.parametrize("name", all_mutants())
def test_every_mutant_applies_and_is_undone(name: str) -> None:
    """A patch of something that is no longer there would raise."""
    mutant = find(name)
    assert mutant.what
    with applied(name):
        pass


def test_a_slip_in_a_text_that_is_not_there_is_an_error() -> None:
    with ExitStack() as stack, pytest.raises(ValueError, match="0 times in place of once"):
        Patch(stack).rewrite(MqttBroker, "next_client_id", "what is not there", "")


@pytest.mark.parametrize(
    ("name", "method"), [("amqp-alternate-gets-all", ""), ("amqp-used-queues-deleted-if-empty", "queue.delete")]
)
def test_a_slip_is_planted_wherever_its_function_is_known(name: str, method: str) -> None:
    """Six slips that no life found were never there: others had imported the function, or had it in a table."""

    def known() -> list[object]:
        return [HANDLERS[method]] if method else [routes.find_route, virtual_host.find_route]

    sound = known()
    with applied(name):
        assert not set(sound) & set(known())
    assert known() == sound


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(UnknownMutantError, match="known: "):
        find("v3-no-such-mutant")
