"""The statement registries are complete, well formed and in our own words."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib import resources

import pytest

from assay.conformance.registry import load_statements
from assay.conformance.spec_pages import REGISTRY, problems, read_pages, registry_text
from assay.conformance.wire.amqp091 import CONSTANTS, METHODS

STATEMENT_COUNT = {"mqtt311": 141, "mqtt5": 251, "amqp091": 287, "http": 183, "grpc": 46}
BY_TESTABLE = {
    "mqtt311": {"yes": 93, "partly": 38, "no": 10},
    "mqtt5": {"yes": 161, "partly": 74, "no": 16},
    "amqp091": {"yes": 225, "partly": 39, "no": 23},
    "http": {"yes": 183},
    "grpc": {"yes": 46},
}
FIELDS = ("id", "section", "level", "role", "testable", "sentence", "reason")
MAX_SENTENCE_CHARACTERS = 200


def statements(spec: str) -> list[dict[str, str]]:
    text = resources.files("assay.conformance").joinpath("registry", f"{spec}.toml").read_text(encoding="utf-8")
    entries: list[dict[str, str]] = tomllib.loads(text)["statement"]
    return entries


@pytest.fixture(params=sorted(STATEMENT_COUNT))
def spec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_holds_every_statement_once(spec: str) -> None:
    ids = Counter(statement["id"] for statement in statements(spec))
    assert len(ids) == STATEMENT_COUNT[spec]
    assert [name for name, count in ids.items() if count > 1] == []


def test_statements_have_exactly_the_known_fields(spec: str) -> None:
    for statement in statements(spec):
        assert tuple(name for name in statement if name != "variants") == FIELDS, statement["id"]
        assert statement["level"] in {"MUST", "SHOULD", "MAY"}, statement["id"]
        assert statement["role"] in {"server", "client", "both"}, statement["id"]
        assert statement["testable"] in {"yes", "partly", "no"}, statement["id"]


def test_the_ceiling_of_black_box_testing_is_known(spec: str) -> None:
    assert Counter(statement["testable"] for statement in statements(spec)) == BY_TESTABLE[spec]


@pytest.mark.parametrize("spec", ["mqtt311", "mqtt5"])
def test_ids_name_a_section_of_the_standard(spec: str) -> None:
    """An id is ``MQTT-`` + section of depth three (0 where there is none) + number; the section may go deeper."""
    for statement in statements(spec):
        match = re.fullmatch(r"MQTT-(\d+\.\d+\.\d+)-\d+", statement["id"])
        assert match, statement["id"]
        named = match[1].removesuffix(".0").removesuffix(".0")
        section = statement["section"]
        assert section == named or section.startswith(named + "."), statement["id"]


def test_variants_are_reactions_that_a_client_can_see() -> None:
    known = re.compile(r"ok|close|header|start|(channel|connection) (any|\d{3})")
    for statement in load_statements("amqp091").values():
        assert len(set(statement.variants)) == len(statement.variants), statement.id
        for variant in statement.variants:
            assert known.fullmatch(variant), (statement.id, variant)
            code = variant.partition(" ")[2]
            assert not code.isdigit() or int(code) in CONSTANTS, (statement.id, variant)


def test_an_answer_of_each_synchronous_method_is_a_rule() -> None:
    of_the_server = {"connection.start", "connection.secure", "connection.tune", "connection.update-secret"}
    waits = {f"sync.{spec.name}" for spec in METHODS.values() if spec.waits} | {"sync.confirm.select"}
    assert {name for name in load_statements("amqp091") if name.startswith("sync.")} == waits - {
        f"sync.{name}" for name in of_the_server
    }


def test_what_cannot_be_tested_says_why(spec: str) -> None:
    for statement in statements(spec):
        needs_reason = statement["testable"] != "yes"
        assert bool(statement["reason"]) >= needs_reason, statement["id"]


def test_a_server_duty_is_never_written_off_as_client_only(spec: str) -> None:
    for statement in statements(spec):
        if "Only the client acts" in statement["reason"]:
            assert statement["role"] == "client", statement["id"]
            assert statement["testable"] == "no", statement["id"]


def test_sentences_are_short_distinct_and_plain(spec: str) -> None:
    sentences = Counter(statement["sentence"] for statement in statements(spec))
    assert [sentence for sentence, count in sentences.items() if count > 1] == []
    for sentence in sentences:
        assert sentence.endswith("."), sentence
        assert 20 < len(sentence) <= MAX_SENTENCE_CHARACTERS, sentence
        assert not re.search(r"\b(MUST|SHALL|SHOULD|MAY)\b", sentence), f"a standard's phrase, not ours: {sentence}"


def test_the_misprints_of_the_standards_are_resolved() -> None:
    """A pattern run over the standards' text misses ids that are misprinted there; they must not be missing here."""
    old, new = ({s["id"]: s for s in statements(name)} for name in ("mqtt311", "mqtt5"))
    assert "Retained messages" not in old["MQTT-3.1.2-8"]["sentence"]
    assert "retained" in old["MQTT-3.1.2-7"]["sentence"]
    assert "SUBSCRIBE" in old["MQTT-3.8.3-4"]["sentence"]
    assert "MQTT-4.2.0-1" in new
    assert "not if it already existed" in new["MQTT-3.3.1-10"]["sentence"]


def test_one_id_may_mean_two_things() -> None:
    """The reason why a clause is always looked up by version and id."""
    old, new = ({s["id"]: s for s in statements(name)} for name in ("mqtt311", "mqtt5"))
    assert "silent" in old["MQTT-3.1.2-24"]["sentence"]
    assert "Maximum Packet Size" in new["MQTT-3.1.2-24"]["sentence"]


def test_the_registry_of_the_queues_is_what_their_pages_say() -> None:
    remedy = "run python -m assay.conformance.spec_pages"
    on_pages = {entry.id: (entry.level, entry.text, page.name) for page in read_pages() for entry in page.requirements}
    in_registry = {
        entry.id: (entry.level, entry.sentence, entry.section) for entry in load_statements("queue").values()
    }
    assert list(problems(read_pages())) == []
    assert in_registry == on_pages, remedy
    assert REGISTRY.read_text(encoding="utf-8") == registry_text(read_pages()), remedy
