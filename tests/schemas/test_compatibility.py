"""The decider against documents: what it allows has no counterexample, what it names has one."""

from __future__ import annotations

import random
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.schemas.compatibility import RULES, Budget, Change, Compatibility, differences
from assay.reference_broker.schemas.document import SchemaDocument
from assay.reference_broker.schemas.errors import SchemaError
from tests.schemas import drawn

Json = Any
INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}


def read(schema: Json) -> SchemaDocument:
    return SchemaDocument(msgspec.json.encode(schema).decode())


def members(properties: Json, *required: str, **more: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def tagged(*kinds: str, value: Json) -> Json:
    return {"oneOf": [members({"kind": {"const": kind}, "value": value}, "kind") for kind in kinds]}


TREE = members({"value": INTEGER, "next": {"$ref": "#"}})
DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}

FITS: list[tuple[Json, Json]] = [
    (INTEGER, NUMBER),
    ({"type": ["string", "null"]}, {"type": ["null", "integer", "string"]}),
    ({"enum": [1, "a"]}, {"enum": ["a", 1.0, 2]}),
    ({"enum": ["ab", "ac"]}, {"type": "string", "pattern": "^a", "minLength": 2}),
    ({"const": 3}, {"minimum": 3, "exclusiveMaximum": 4}),
    ({"type": "boolean"}, {"enum": [True, False, 1]}),
    ({"minimum": 3}, {"exclusiveMinimum": 2}),
    ({"exclusiveMaximum": 3}, {"maximum": 3}),
    ({"multipleOf": 6}, {"multipleOf": 3}),
    (INTEGER, {"multipleOf": 1}),
    ({"minLength": 3, "maxLength": 4, "pattern": "a"}, {"minLength": 2, "pattern": "a"}),
    ({"type": "string"}, {"minimum": 3}),
    (members({"a": INTEGER}, "a"), members({"a": NUMBER})),
    (
        members({"a": INTEGER}, additionalProperties=False),
        members({"a": INTEGER, "b": STRING}, additionalProperties=False),
    ),
    (members({"a": INTEGER, "b": STRING}), members({"a": INTEGER})),
    (members({}, additionalProperties=INTEGER), members({"a": NUMBER}, additionalProperties=NUMBER)),
    ({"patternProperties": {"^a": INTEGER}}, {"patternProperties": {"^a": NUMBER}}),
    (members({"a": INTEGER}, additionalProperties=False), {"propertyNames": {"maxLength": 1}, "maxProperties": 1}),
    (members({}, "a", "b"), {"minProperties": 2, "dependentRequired": {"c": ["a"]}}),
    ({"dependentRequired": {"a": ["b", "c"]}}, {"dependentRequired": {"a": ["b"]}}),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"dependentSchemas": {"a": {"required": ["b"]}}, "title": "x"}),
    ({"items": INTEGER, "maxItems": 3}, {"items": NUMBER, "maxItems": 4}),
    ({"prefixItems": [INTEGER, STRING], "items": False}, {"prefixItems": [NUMBER], "maxItems": 2}),
    ({"maxItems": 1}, {"uniqueItems": True}),
    ({"items": INTEGER, "minItems": 2}, {"contains": NUMBER, "minContains": 2}),
    ({"contains": INTEGER, "minContains": 2}, {"contains": NUMBER}),
    ({"allOf": [INTEGER, {"minimum": 3}]}, {"type": "integer", "minimum": 2}),
    ({"anyOf": [INTEGER, STRING]}, {"anyOf": [STRING, NUMBER]}),
    ({"type": ["integer", "string"]}, {"anyOf": [STRING, NUMBER]}),
    ({"oneOf": [INTEGER, STRING]}, {"oneOf": [INTEGER, STRING, {"type": "null"}]}),
    (tagged("a", "b", value=INTEGER), tagged("a", "b", "c", value=NUMBER)),
    ({"not": NUMBER}, {"not": INTEGER}),
    (STRING, {"not": NUMBER}),
    ({"if": INTEGER, "then": {"minimum": 3}}, {"if": INTEGER, "then": {"minimum": 2}}),
    ({"$defs": {"x": INTEGER}, "$ref": "#/$defs/x"}, {"$defs": {"y": NUMBER}, "$ref": "#/$defs/y"}),
    (TREE, members({"value": NUMBER, "next": {"$ref": "#"}})),
    ({**DRAFT7, "definitions": {"a": INTEGER}, "$ref": "#/definitions/a", "type": "string"}, NUMBER),
    ({**DRAFT7, "items": [INTEGER], "additionalItems": False}, {"maxItems": 1}),
    ({"unevaluatedProperties": False, "description": "x"}, {"unevaluatedProperties": False}),
    (False, {"type": "null"}),
    ({"format": "date"}, {"format": "time"}),
]
"""The second accepts all that the first does."""

BREAKS: list[tuple[Change, Json, Json, Json]] = [
    (Change.TYPE_NARROWED, NUMBER, INTEGER, 0.5),
    (Change.ENUM_NARROWED, {"enum": [1, 2]}, {"enum": [1]}, 2),
    (Change.ENUM_NARROWED, STRING, {"const": "a"}, "b"),
    (Change.MINIMUM_RAISED, {"minimum": 2}, {"exclusiveMinimum": 2}, 2),
    (Change.MAXIMUM_LOWERED, {"type": "number"}, {"maximum": 2}, 3),
    (Change.MULTIPLE_OF_CHANGED, {"multipleOf": 2}, {"multipleOf": 4}, 2),
    (Change.MIN_LENGTH_RAISED, {"minLength": 1}, {"minLength": 2}, "a"),
    (Change.MAX_LENGTH_LOWERED, {"maxLength": 2}, {"maxLength": 1}, "ab"),
    (Change.PATTERN_CHANGED, {"pattern": "a"}, {"pattern": "ab"}, "a"),
    (Change.CONTENT_CHANGED, STRING, {**DRAFT7, "contentMediaType": "application/json"}, "{"),
    (Change.REQUIRED_ADDED, members({"a": INTEGER}), members({"a": INTEGER}, "a"), {}),
    (Change.DEPENDENCY_ADDED, {}, {"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    (Change.DEPENDENCY_ADDED, {}, {**DRAFT7, "dependencies": {"a": {"minProperties": 2}}}, {"a": 1}),
    (Change.PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL, members({}), members({"a": INTEGER}), {"a": "b"}),
    (
        Change.PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL,
        members({"a": INTEGER}, additionalProperties=False),
        members({}, additionalProperties=False),
        {"a": 1},
    ),
    (Change.ADDITIONAL_PROPERTIES_NARROWED, members({}), members({}, additionalProperties=False), {"a": 1}),
    (Change.ADDITIONAL_PROPERTIES_NARROWED, {}, {"patternProperties": {"^a": INTEGER}}, {"a": "b"}),
    (Change.PROPERTY_NAMES_NARROWED, {}, {"propertyNames": {"maxLength": 1}}, {"ab": 1}),
    (Change.MIN_PROPERTIES_RAISED, {}, {"minProperties": 1}, {}),
    (Change.MAX_PROPERTIES_LOWERED, {}, {"maxProperties": 1}, {"a": 1, "b": 2}),
    (Change.ITEMS_NARROWED, {"type": "array"}, {"items": INTEGER}, ["a"]),
    (Change.NOTHING_ALLOWED, {"type": "array"}, {"prefixItems": [{}], "items": False}, [1, 2]),
    (Change.MIN_ITEMS_RAISED, {}, {"minItems": 1}, []),
    (Change.MAX_ITEMS_LOWERED, {"maxItems": 2}, {"maxItems": 1}, [1, 2]),
    (Change.UNIQUE_ITEMS_ADDED, {}, {"uniqueItems": True}, [1, 1]),
    (Change.UNDECIDED, {"oneOf": [INTEGER, STRING]}, {"oneOf": [INTEGER, STRING, NUMBER]}, 1),
    (Change.UNDECIDED, {}, {"not": {"const": 1}}, 1),
    (Change.UNDECIDED, {}, {"contains": INTEGER}, []),
    (Change.TYPE_NARROWED, members({"value": NUMBER, "next": {"$ref": "#"}}), TREE, {"next": {"value": 0.5}}),
]
"""What it is called, and a document that only the first accepts."""


@pytest.mark.parametrize(("old", "new"), FITS)
def test_what_is_only_widened_fits(old: Json, new: Json) -> None:
    assert differences(read(old), read(new)) == []


@pytest.mark.parametrize(("change", "old", "new", "example"), BREAKS)
def test_what_is_narrowed_has_a_counterexample(change: Change, old: Json, new: Json, example: Json) -> None:
    assert change in {each.change for each in differences(read(old), read(new))}
    assert read(old).validator().is_valid(example)
    assert not read(new).validator().is_valid(example)


def test_every_change_of_the_table_has_an_example() -> None:
    shown = {change for change, *_ in BREAKS}
    assert {rule.change for rule in RULES} <= shown
    assert set(Change) == shown


@settings(max_examples=150, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_what_is_said_to_fit_has_no_counterexample(rng: random.Random) -> None:
    old = drawn.schema(rng)
    new = drawn.changed(rng, old) if rng.random() < 0.8 else drawn.schema(rng)
    if rng.random() < 0.3:
        old, new = new, old
    try:
        before, after = read(old), read(new)
    except SchemaError:
        return
    if differences(before, after):
        return
    for _ in range(20):
        document = drawn.near(rng, old, old)
        if before.validator().is_valid(document):
            assert after.validator().is_valid(document), (old, new, document)
    # A second opinion, which knows three answers as well.
    known = [
        jsonschema_rs.canonicalize(
            each, offline=True, validate_formats=False, pattern_options=jsonschema_rs.RegexOptions()
        )
        for each in (old, new)
    ]
    assert str(_covers(known[1], known[0])) != "no", (old, new)


def _covers(new: Any, old: Any) -> object:
    try:
        return new.covers(old)
    except jsonschema_rs.canonical.CanonicalizationError:
        return "unknown"


@settings(max_examples=60, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_every_schema_fits_itself_with_other_annotations(rng: random.Random) -> None:
    schema = drawn.schema(rng)
    if isinstance(schema, bool):
        return
    try:
        old, new = read(schema), read({**schema, "title": "other"})
    except SchemaError:
        return
    if "$ref" not in msgspec.json.encode(schema).decode():
        assert differences(old, new) == []
    assert differences(old, read(schema)) == []


def test_the_work_of_a_decision_is_bounded() -> None:
    def either(*order: str) -> Json:
        return {"allOf": [{"anyOf": [{"properties": {f"{name}{i}": INTEGER}} for name in order]} for i in range(12)]}

    budget = Budget(5_000)
    found = differences(read(either("a", "b")), read(either("b", "a")), budget)
    assert [each.change for each in found] == [Change.UNDECIDED]
    assert "too complex" in found[0].text
    assert budget.left < 0


def test_levels_say_who_reads_what() -> None:
    told = {level.value: (level.reads_old, level.is_read_by_old, level.is_transitive) for level in Compatibility}
    assert told == {
        "NONE": (False, False, False),
        "BACKWARD": (True, False, False),
        "BACKWARD_TRANSITIVE": (True, False, True),
        "FORWARD": (False, True, False),
        "FORWARD_TRANSITIVE": (False, True, True),
        "FULL": (True, True, False),
        "FULL_TRANSITIVE": (True, True, True),
    }
