"""Untrusted schemas: what is refused, and that nothing they ask for costs without bound."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assay.reference_broker.schemas import document as module
from assay.reference_broker.schemas.document import Draft, SchemaDocument
from assay.reference_broker.schemas.errors import SchemaError, SchemaErrorCode

DRAFT7 = "http://json-schema.org/draft-07/schema#"


def read(schema: Any, **more: Any) -> SchemaDocument:
    return SchemaDocument(msgspec.json.encode(schema).decode(), **more)


def doubling(levels: int) -> dict[str, Any]:
    """Each definition asks for the one below it twice."""
    names = [{"$ref": f"#/$defs/a{level}"} for level in range(levels)]
    defs = {f"a{level + 1}": {"allOf": [name, name]} for level, name in enumerate(names)}
    return {"$defs": {"a0": {"type": "integer"}, **defs}, "$ref": f"#/$defs/a{levels}"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "a JSON object"),
        ({"type": "nothing"}, "nothing"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "drafts 6, 7"),
        ({"$schema": 7}, "drafts 6, 7"),
        ({"$ref": "http://example.com/other"}, "http://example.com/other"),
        ({"$ref": "file:///etc/passwd"}, "file:///etc/passwd"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "nowhere"),
        ({"properties": {"a": {"$id": "b"}}}, "$id within"),
        ({"$dynamicRef": "#a"}, "$dynamicRef within"),
        ({"pattern": "(?=a)b"}, "regex"),
        ({"pattern": r"(a)\1"}, "regex"),
        ({"pattern": "(a{1000}){1000}"}, "regex"),
        ({"patternProperties": {"(?!a)": {}}}, "regex"),
        ({"$ref": "#"}, "refers to itself"),
        ({"anyOf": [{"$ref": "#"}, {}]}, "refers to itself"),
        (doubling(20), "more than 512 times"),
        ({"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}, "more than 512 times"),
        ({"properties": {"c": {"$ref": "#"}}, "additionalProperties": {"allOf": [{"$ref": "#"}] * 2}}, "more than 512"),
    ],
)
def test_a_schema_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said.replace("$", r"\$").replace("(", r"\(")) as error:
        read(schema)
    assert error.value.code is SchemaErrorCode.INVALID_SCHEMA
    assert error.value.code.status == 422


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
        {"$schema": DRAFT7, "definitions": {"a": {}}, "$ref": "#/definitions/a"},
        doubling(7),
        {"$id": "http://example.com/a", "items": {"$ref": "#/$defs/a~0~1%25"}, "$defs": {"a~/%": {"type": "null"}}},
        {"properties": {"$ref": {"type": "string"}, "$id": {"type": "integer"}}},
    ],
)
def test_a_schema_is_taken(schema: Any) -> None:
    assert read(schema).fingerprint


def test_text_that_is_no_json_or_too_long_or_too_deep_is_refused() -> None:
    for text in (
        "{",
        "\ud800",
        "[" * 100_000,
        '{"not":' * 70 + "{}" + "}" * 70,
        '{"description":"' + "x" * 70_000 + '"}',
    ):
        with pytest.raises(SchemaError):
            SchemaDocument(text)
    with pytest.raises(SchemaError, match="patterns"):
        read({"anyOf": [{"pattern": "a"}] * (module.MAX_PATTERNS + 1)})


def test_looking_for_the_cost_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    closure = module._closure

    def counted(start: Any) -> Any:
        nonlocal taken
        found = closure(start)
        taken += sum(count for _, count in found.values())
        return found

    monkeypatch.setattr(module, "_closure", counted)
    many = {"properties": {f"p{index}": {"anyOf": [{"const": index}] * 200} for index in range(120)}}
    with pytest.raises(SchemaError, match=r"more than 512|too many") as refused:
        read({"patternProperties": {".": many}, "additionalProperties": {"$ref": "#"}, **many}, max_bytes=1 << 22)
    assert refused.value.code is SchemaErrorCode.INVALID_SCHEMA
    assert taken < 2 * module.MAX_STEPS


def test_drafts_and_fingerprints() -> None:
    assert read({"$schema": DRAFT7}).draft is Draft.DRAFT7
    assert read({}).draft is Draft.DRAFT2020
    assert read({"a": 1, "type": "null"}).fingerprint == SchemaDocument(' {"type":"null", "a":1}').fingerprint
    assert read({"type": "null"}).fingerprint != read({"type": "string"}).fingerprint


def test_a_subschema_judges_by_itself() -> None:
    schema = read({"properties": {"a/b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "integer"}}})
    part = schema.root.at("properties", "a/b")
    assert schema.validator(part.pointer).is_valid(1)
    assert not schema.validator(part.pointer).is_valid("1")
    assert schema.matches("^a", "ab")
    assert not schema.matches("^a", "ba")
