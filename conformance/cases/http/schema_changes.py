"""Pairs of schemas, keyword by keyword, and which of the two allows more; each was thought through by hand.

A document that tells them apart exists for each pair that is not the same, so that who says that all documents of the
one fit the other is wrong. That they do where they do takes a proof, which a server may not find.
"""

from __future__ import annotations

import json
import re
from typing import Any

from assay.conformance.http.context import SCHEMAS, HttpContext, http_case

Schema = dict[str, Any] | bool
Pair = tuple[Schema, Schema]

_DRAFT7: dict[str, Any] = {"$schema": "http://json-schema.org/draft-07/schema#"}
_DRAFT6: dict[str, Any] = {"$schema": "http://json-schema.org/draft-06/schema#"}
_DRAFT2019: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
_INT, _NUM, _TEXT, _NULL = {"type": "integer"}, {"type": "number"}, {"type": "string"}, {"type": "null"}
_LIST, _OPEN = {"type": "array"}, {"type": "object"}
_CLOSED = {"type": "object", "additionalProperties": False}
_MAYBE = {"type": ["string", "null"]}
_KIND_A = {"properties": {"kind": {"const": "a"}}}
_KIND_B = {"properties": {"kind": {"const": "b"}}}
_OF_A, _OF_B = _OPEN | _KIND_A | {"required": ["kind"]}, _OPEN | _KIND_B | {"required": ["kind"]}
_REASON = re.compile(r": [A-Z]+(_[A-Z]+)* at #(/.*?)?: .")
_EVERY_TYPE = ("null", "boolean", "object", "array", "number", "string")


def _above(least: int, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, **more}


def _linked(value: dict[str, Any]) -> dict[str, Any]:
    """A list of values, each with the next."""
    return _OPEN | {"properties": {"next": {"$ref": "#"}, "value": value}}


_TYPES_WIDER: tuple[Pair, ...] = (
    ({"type": ["integer", "string"]}, {"type": ["number", "string"]}),
    ({"type": ["boolean", "null"]}, {"enum": [True, False, None, 1]}),
    ({"type": "boolean"}, {"type": ["boolean", "null"]}),
    ({"type": "null"}, {"enum": [None, 0]}),
    (_INT, True),
    (_INT, {}),
    (False, _INT),
    ({"enum": ["a", "b"]}, _TEXT | {"maxLength": 1}),
    ({"enum": [1, 2.0]}, _INT),
    ({"enum": [1.5]}, _NUM),
    ({"enum": [[1], {"a": 1}]}, {"type": ["array", "object"]}),
    ({"enum": [True]}, {"type": "boolean"}),
    ({"enum": [1, "a"]}, {"type": ["integer", "string"]}),
    ({"enum": ["a"]} | _INT, _TEXT | {"minLength": 9}),
    ({"enum": [1, 2, 3], "minimum": 3}, {"enum": [3, 4]}),
    ({"const": None}, {"enum": [None, 1], "type": ["null", "integer"]}),
)
_NUMBERS_WIDER: tuple[Pair, ...] = (
    ({"minimum": 5}, {"minimum": 4}),
    ({"minimum": 5}, {"exclusiveMinimum": 4}),
    ({"exclusiveMinimum": 4}, {"minimum": 4}),
    ({"maximum": 4}, {"exclusiveMaximum": 5}),
    ({"maximum": 4}, {"maximum": 5}),
    ({"exclusiveMaximum": 4}, {"maximum": 4}),
    ({"minimum": 4}, {"exclusiveMinimum": 3}),
    (_TEXT, {"minimum": 5}),
    (_INT, {"minLength": 2, "minItems": 2, "minProperties": 2}),
    ({"exclusiveMaximum": 4}, {"exclusiveMaximum": 5}),
    ({"minimum": 1, "exclusiveMinimum": 3}, {"minimum": 3}),
    ({"minimum": 3, "exclusiveMinimum": 1}, {"minimum": 2}),
    ({"maximum": 9, "exclusiveMaximum": 7}, {"maximum": 7}),
    ({"multipleOf": 6}, {"multipleOf": 3}),
    ({"multipleOf": 0.5, "minimum": 1}, {"multipleOf": 0.5}),
    (_NUM | {"multipleOf": 1}, _NUM),
    (_INT | {"multipleOf": 2}, _INT | {"multipleOf": 1}),
    ({"allOf": [{"minimum": 3}, {"minimum": 8}]}, {"minimum": 7}),
)
_TEXTS_WIDER: tuple[Pair, ...] = (
    ({"minLength": 2}, {"minLength": 1}),
    ({"maxLength": 4}, {"maxLength": 5}),
    (_TEXT | {"minLength": 3, "maxLength": 2}, _TEXT | {"minLength": 9}),
    ({"pattern": "a", "minLength": 2}, {"pattern": "a"}),
    (_DRAFT7 | _TEXT | {"contentEncoding": "base64"}, _DRAFT7 | _TEXT),
    (_DRAFT7 | _TEXT | {"contentMediaType": "application/json"}, _DRAFT7 | _TEXT),
    (
        _DRAFT7 | _TEXT | {"contentEncoding": "base64", "minLength": 4},
        _DRAFT7 | _TEXT | {"contentEncoding": "base64"},
    ),
)
_OBJECTS_WIDER: tuple[Pair, ...] = (
    ({"required": ["a", "b"]}, {"required": ["a"]}),
    ({"properties": {"a": _INT}}, {"properties": {"a": _NUM}}),
    (_OPEN | {"properties": {"a": _INT}}, _OPEN),
    (
        _OPEN | {"properties": {"a": _INT}, "additionalProperties": _TEXT},
        _OPEN | {"properties": {"a": _NUM}, "additionalProperties": _MAYBE},
    ),
    ({"additionalProperties": _INT}, {"properties": {"a": _NUM}, "additionalProperties": _INT}),
    (_CLOSED | {"properties": {"a": _INT}}, _CLOSED | {"properties": {"a": _INT, "b": _INT}}),
    (
        _CLOSED | {"properties": {"a": _INT, "b": _TEXT}},
        _OPEN | {"properties": {"a": _INT}, "additionalProperties": _TEXT},
    ),
    (_CLOSED | {"properties": {"a": False, "b": _TEXT}}, _CLOSED | {"properties": {"a": _TEXT, "b": _TEXT}}),
    (_CLOSED | {"patternProperties": {"^a": _INT}}, {"additionalProperties": _INT}),
    (_CLOSED | {"patternProperties": {"^a": _INT, "^b": _INT}}, {"additionalProperties": _NUM}),
    ({"patternProperties": {"^a": _INT}, "additionalProperties": _INT}, {"additionalProperties": _NUM}),
    (_CLOSED | {"properties": {"ab": _INT}}, _CLOSED | {"patternProperties": {"^a": _NUM}}),
    (
        {"patternProperties": {"^a": _INT}},
        {"properties": {"ab": _NUM}, "patternProperties": {"^a": _NUM}},
    ),
    (
        {"patternProperties": {"^a": _INT}, "additionalProperties": _TEXT},
        {"patternProperties": {"^a": _INT}, "additionalProperties": _MAYBE},
    ),
    ({"properties": {"ab": _INT}, "patternProperties": {"^a": _INT}}, {"properties": {"ab": _INT}}),
    ({"propertyNames": {"enum": ["a", "b"]}}, {"propertyNames": {"enum": ["a", "b", "c"]}}),
    (_CLOSED | {"properties": {"ab": {}}}, {"propertyNames": {"maxLength": 2}}),
    ({"required": ["a", "b"]}, {"minProperties": 2}),
    ({"minProperties": 2}, {"minProperties": 1}),
    ({"maxProperties": 2}, {"maxProperties": 3}),
    (_CLOSED | {"properties": {"a": {}, "b": {}}}, _OPEN | {"maxProperties": 2}),
    ({"dependentRequired": {"a": ["b", "c"]}}, {"dependentRequired": {"a": ["b"]}}),
    ({"required": ["b"]}, {"dependentRequired": {"a": ["b"]}}),
    ({"properties": {"a": False}}, {"dependentRequired": {"a": ["b"]}}),
    ({"dependentSchemas": {"a": {"minProperties": 3}}}, {"dependentSchemas": {"a": {"minProperties": 2}}}),
    ({"minProperties": 3}, {"dependentSchemas": {"a": {"minProperties": 2}}}),
    (
        _DRAFT7 | {"dependencies": {"a": ["b", "c"], "d": {"minProperties": 3}}},
        _DRAFT7 | {"dependencies": {"a": ["b"], "d": {"minProperties": 2}}},
    ),
    (_DRAFT2019 | {"dependentRequired": {"a": ["b", "c"]}}, _DRAFT7 | {"dependencies": {"a": ["b"]}}),
    ({"dependentRequired": {"a": ["b"]}}, _DRAFT7 | {"dependentRequired": {"a": ["b"]}}),
    (_OPEN | {"properties": {"a": _INT}, "unevaluatedProperties": False}, _OPEN),
)
_ARRAYS_WIDER: tuple[Pair, ...] = (
    ({"prefixItems": [_INT], "items": _TEXT}, {"prefixItems": [_NUM], "items": _MAYBE}),
    ({"items": _INT}, {"prefixItems": [_INT, _NUM], "items": _INT}),
    ({"prefixItems": [_INT], "items": False}, {"prefixItems": [_INT], "items": _TEXT}),
    ({"prefixItems": [_INT], "items": False}, {"maxItems": 1}),
    ({"prefixItems": [_INT], "items": False}, {"prefixItems": [_INT, _TEXT], "items": False}),
    ({"items": _INT, "maxItems": 1}, {"prefixItems": [_INT, _TEXT]}),
    ({"prefixItems": [_INT, _TEXT]}, {"prefixItems": [_INT]}),
    (_DRAFT7 | {"items": [_INT], "additionalItems": False}, _DRAFT7 | {"items": [_INT], "additionalItems": _TEXT}),
    (_DRAFT7 | {"items": [_INT], "additionalItems": False}, {"maxItems": 1}),
    (_DRAFT7 | {"items": [_INT]}, _DRAFT7 | {"items": [_NUM]}),
    (_DRAFT7 | {"items": _INT, "additionalItems": False}, _DRAFT7 | {"items": _NUM}),
    ({"minItems": 2}, {"minItems": 1}),
    ({"maxItems": 2}, {"maxItems": 3}),
    ({"maxItems": 1}, {"uniqueItems": True}),
    ({"uniqueItems": True, "minItems": 2}, {"uniqueItems": True}),
    ({"contains": _INT, "minContains": 3}, {"contains": _NUM, "minContains": 2}),
    ({"contains": _INT, "maxContains": 2}, {"contains": _INT, "maxContains": 3}),
    ({"items": _INT, "minItems": 2}, {"contains": _INT, "minContains": 2}),
    ({"maxItems": 2}, {"contains": _INT, "minContains": 0, "maxContains": 2}),
    ({"contains": _INT, "maxContains": 2, "minItems": 2}, {"contains": _INT, "maxContains": 2}),
    (_DRAFT2019 | {"contains": _INT, "minContains": 2}, _DRAFT2019 | {"contains": _INT}),
    (_DRAFT2019 | {"contains": _INT, "maxContains": 2}, _DRAFT2019 | {"contains": _INT}),
    ({"contains": _INT, "minContains": 2}, _DRAFT7 | {"contains": _INT, "minContains": 5}),
    ({"contains": _INT, "maxContains": 2}, _DRAFT7 | {"contains": _INT, "maxContains": 1}),
    ({"unevaluatedItems": False, "prefixItems": [_INT]}, {"prefixItems": [_INT]}),
)
_CHOICES_WIDER: tuple[Pair, ...] = (
    (_above(0), {"allOf": [_NUM, {"minimum": -1}]}),
    ({"anyOf": [_INT, _TEXT]}, {"type": ["number", "string"]}),
    ({"anyOf": [_INT, _TEXT]}, {"anyOf": [_TEXT, _NUM]}),
    ({"oneOf": [_INT, _TEXT]}, {"anyOf": [_INT, _TEXT, _NULL]}),
    (_INT, {"oneOf": [_NUM, _TEXT]}),
    (_above(10), {"oneOf": [_above(5), _INT | {"maximum": 3}]}),
    (_above(10), {"oneOf": [_above(10), _INT | {"exclusiveMaximum": 10}]}),
    (_NUM | {"minimum": 10}, {"oneOf": [_NUM | {"minimum": 10}, _NUM | {"exclusiveMaximum": 10}]}),
    (_TEXT | {"minLength": 5}, {"oneOf": [_TEXT | {"minLength": 3}, _TEXT | {"maxLength": 2}]}),
    (_LIST | {"minItems": 5}, {"oneOf": [_LIST | {"minItems": 3}, _LIST | {"maxItems": 2}]}),
    (_OPEN | {"minProperties": 5}, {"oneOf": [_OPEN | {"minProperties": 3}, _OPEN | {"maxProperties": 2}]}),
    (_OF_A, {"oneOf": [_OF_A, _OF_B]}),
    (_above(3), {"oneOf": [_INT, False]}),
    (_INT | {"exclusiveMinimum": 10}, {"oneOf": [_INT | {"exclusiveMinimum": 10}, _INT | {"maximum": 10}]}),
    (
        _OPEN | {"properties": {"a": _INT}, "required": ["a"]},
        {"oneOf": [_OPEN | {"required": ["a"]}, _OPEN | {"properties": {"a": _TEXT}, "required": ["a", "b"]}]},
    ),
    ({"type": "number", "oneOf": [_INT, {"minimum": 5}]}, {"oneOf": [{"minimum": 5}, _INT]}),
    (
        {"type": "number", "oneOf": [_INT, _NUM | {"minimum": 5}]},
        {"oneOf": [_NUM | {"minimum": 5}, _INT, _TEXT]},
    ),
    (_INT, {"not": _TEXT}),
    (_INT, {"not": False}),
    ({"not": {"enum": [1, 2]}}, {"not": {"const": 1}}),
    (_TEXT | {"minLength": 5}, {"not": _TEXT | {"maxLength": 4}}),
    ({"enum": [1, 2]}, {"not": {"const": 3}}),
    (_OF_A, {"not": _OF_B}),
    (_OPEN | {"maxProperties": 0}, {"not": _OPEN | {"required": ["a"]}}),
    (_above(0), {"if": _INT, "then": {"minimum": 0}}),
    (_TEXT, {"if": _INT, "then": {"minimum": 0}}),
    (_INT, {"if": _INT, "else": {"minLength": 3}}),
    (_TEXT | {"minLength": 3}, {"if": _INT, "else": {"minLength": 3}}),
    ({"if": _INT, "then": {"minimum": 5}}, {"if": _INT, "then": {"minimum": 4}}),
    ({"if": _INT, "else": {"minLength": 5}}, {"if": _INT, "else": {"minLength": 4}}),
    (_DRAFT7 | {"if": _INT, "then": {"minimum": 5}}, _DRAFT7 | {"if": _INT, "then": {"minimum": 4}}),
    (_DRAFT7 | {"if": _INT, "then": {"minimum": 5}}, _DRAFT6 | {"if": _INT, "then": {"minimum": 5}}),
)
_REFERENCES_WIDER: tuple[Pair, ...] = (
    (_INT, {"$ref": "#/$defs/a", "$defs": {"a": _NUM}}),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": _INT}}, _NUM),
    ({"$ref": "#/$defs/a~0b", "$defs": {"a~b": _INT}}, _NUM),
    ({"$ref": "#/$defs/a%20b", "$defs": {"a b": _INT}}, _NUM),
    ({"$ref": "#/$defs/a", "minimum": 0, "$defs": {"a": _INT}}, _above(-1)),
    ({"$ref": "#/$defs/a", "$defs": {"a": _above(5)}, "maximum": 9}, {"$ref": "#/$defs/a", "$defs": {"a": _INT}}),
    (_DRAFT7 | {"$ref": "#/definitions/a", "minimum": 0, "definitions": {"a": _INT}}, _NUM),
    ({"items": {"$ref": "#/prefixItems/1"}, "prefixItems": [_TEXT, _INT]}, {"prefixItems": [_TEXT], "items": _NUM}),
    (_linked(_INT), _linked(_NUM)),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": _INT}},
        {"$ref": "#/$defs/b", "$defs": {"b": {"$ref": "#/$defs/c"}, "c": _NUM}},
    ),
)
WIDER: tuple[Pair, ...] = (
    *_TYPES_WIDER,
    *_NUMBERS_WIDER,
    *_TEXTS_WIDER,
    *_OBJECTS_WIDER,
    *_ARRAYS_WIDER,
    *_CHOICES_WIDER,
    *_REFERENCES_WIDER,
)
"""The second allows all that the first one does, and more."""
SAME: tuple[Pair, ...] = (
    (_INT, _INT | {"title": "a", "description": "b", "format": "date", "default": 0, "examples": [1]}),
    ({"type": "boolean"}, {"enum": [True, False]}),
    (_NULL, {"const": None}),
    ({"enum": [1, 2, "a"]} | _INT, {"enum": [1, 2]}),
    ({"enum": [1, 2], "minimum": 2}, {"const": 2}),
    (_INT, _INT | {"multipleOf": 1}),
    ({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"required": ["b", "a"]}),
    ({}, {"dependentRequired": {"a": ["a"]}}),
    (_LIST, _LIST | {"uniqueItems": False}),
    (_OPEN, _OPEN | {"unevaluatedProperties": True}),
    (_LIST, _LIST | {"unevaluatedItems": True}),
    (_TEXT, _TEXT | {"contentEncoding": "base64"}),
    (_DRAFT7 | {"items": [_INT], "additionalItems": False}, {"prefixItems": [_INT], "items": False}),
    (_DRAFT7 | {"contains": _INT, "minContains": 5}, _DRAFT7 | {"contains": _INT}),
    (_DRAFT6 | {"if": _INT, "then": {"minimum": 5}}, _DRAFT6),
    ({"anyOf": [_INT]}, _INT),
    ({"anyOf": [{"anyOf": [_INT, _TEXT]}, _NULL]}, {"type": ["integer", "string", "null"]}),
    ({"type": ["integer", "string"]}, {"anyOf": [_INT, _TEXT]}),
    ({"type": list(_EVERY_TYPE)}, {"anyOf": [{"type": each} for each in _EVERY_TYPE]}),
    ({"type": list(_EVERY_TYPE)}, {}),
    (
        _NUM | {"oneOf": [_INT, _NUM | {"minimum": 5}]},
        _NUM | {"oneOf": [_NUM | {"minimum": 5}, _INT]},
    ),
    (_DRAFT7 | {"$ref": "#/definitions/a", "minimum": 0, "definitions": {"a": _INT}}, _INT),
    (_DRAFT7 | {"$ref": "#/definitions/a", "allOf": [{"$ref": "#"}], "definitions": {"a": _INT}}, _INT),
    ({"$id": "https://assay.invalid/a", "$ref": "#/$defs/a", "$defs": {"a": _INT}}, _INT),
    (_linked(_INT), {"$ref": "#/$defs/a", "$defs": {"a": _OPEN | {"properties": _linked(_INT)["properties"]}}}),
)
"""Both allow the same."""
APART: tuple[Pair, ...] = (
    ({"enum": [1.5]}, _INT),
    ({"enum": [1, 2]}, {"enum": [2, 3]}),
    (_TEXT, {"enum": ["a", 1]}),
    ({"multipleOf": 4}, {"multipleOf": 6}),
    (_NUM | {"multipleOf": 0.5}, {"type": ["integer", "string"], "multipleOf": 2}),
    ({"pattern": "a"}, {"pattern": "b"}),
    (_TEXT | {"minLength": 2, "maxLength": 2}, _TEXT | {"minLength": 3}),
    (_LIST | {"minItems": 2, "maxItems": 2}, _LIST | {"minItems": 3}),
    (_OPEN | {"minProperties": 2, "maxProperties": 2}, _OPEN | {"minProperties": 3}),
    ({"minimum": 3}, {"minimum": 2, "maximum": 9}),
    ({"additionalProperties": _INT}, {"properties": {"a": _TEXT}, "additionalProperties": _INT}),
    (_CLOSED | {"properties": {"a": _INT, "b": _INT}}, {"properties": {"a": _INT}, "additionalProperties": _TEXT}),
    (_CLOSED | {"properties": {"a": _INT}}, _CLOSED | {"properties": {"b": _INT}}),
    (_CLOSED | {"patternProperties": {"^a": _INT, "^b": _TEXT}}, {"additionalProperties": _INT}),
    (_CLOSED | {"properties": {"b": _INT}}, _CLOSED | {"patternProperties": {"^a": _NUM}}),
    (_CLOSED | {"properties": {"ab": _TEXT}}, _CLOSED | {"patternProperties": {"^a": _NUM}}),
    ({"patternProperties": {"^a": _INT}}, {"patternProperties": {"^a": _TEXT}, "minProperties": 1}),
    (
        {"patternProperties": {"^a": _INT}, "additionalProperties": _TEXT},
        {"patternProperties": {"^b": _INT}, "additionalProperties": _TEXT},
    ),
    ({"additionalProperties": _INT}, {"patternProperties": {"^a": _TEXT}, "additionalProperties": _INT}),
    (_CLOSED | {"properties": {"ab": {}}}, {"propertyNames": {"maxLength": 1}}),
    ({"propertyNames": {"maxLength": 3}}, {"propertyNames": {"minLength": 1}}),
    (_CLOSED | {"properties": {"a": {}, "b": {}}}, {"maxProperties": 1}),
    (_OPEN | {"required": ["a"]}, _OPEN | {"minProperties": 2}),
    ({"dependentRequired": {"a": ["b"]}}, {"dependentRequired": {"a": ["c"]}}),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"dependentSchemas": {"a": {"required": ["c"]}}}),
    (_OPEN | {"properties": {"a": _INT}}, {"properties": {"b": _INT}, "unevaluatedProperties": False}),
    ({"maxItems": 2}, {"uniqueItems": True}),
    ({"prefixItems": [_INT]}, {"prefixItems": [_TEXT]}),
    ({"prefixItems": [_INT, _TEXT], "items": False}, {"prefixItems": [_INT, _NUM], "items": False, "minItems": 1}),
    ({"items": _INT}, {"prefixItems": [_TEXT]}),
    ({"items": _INT, "minItems": 1}, {"contains": _INT, "minContains": 2}),
    ({"contains": _INT, "maxContains": 2}, {"contains": _NUM, "maxContains": 2}),
    ({"prefixItems": [_TEXT], "items": _INT, "minItems": 2}, {"contains": _INT, "minContains": 2}),
    ({"contains": _INT}, {"contains": _TEXT}),
    ({"maxItems": 3}, {"contains": _INT, "minContains": 0, "maxContains": 2}),
    (_INT, {"allOf": [_NUM, {"minimum": 0}]}),
    ({"anyOf": [_INT, _TEXT]}, {"anyOf": [_TEXT, _NULL]}),
    ({"oneOf": [_INT, _TEXT]}, {"oneOf": [_NULL, _TEXT]}),
    (_INT, {"oneOf": [_NUM, _INT]}),
    (_above(10), {"oneOf": [_above(5), _INT | {"maximum": 12}]}),
    (_above(10), {"oneOf": [_above(10), _INT | {"maximum": 10}]}),
    (_NUM | {"minimum": 10}, {"oneOf": [_NUM | {"minimum": 10}, _NUM | {"maximum": 10}]}),
    (_TEXT | {"minLength": 3}, {"oneOf": [_TEXT | {"minLength": 3}, _TEXT | {"maxLength": 3}]}),
    (_LIST | {"minItems": 3}, {"oneOf": [_LIST | {"minItems": 3}, _LIST | {"maxItems": 3}]}),
    (_OPEN | {"minProperties": 3}, {"oneOf": [_OPEN | {"minProperties": 3}, _OPEN | {"maxProperties": 3}]}),
    (_above(10), {"oneOf": [_above(5), _above(12)]}),
    (_INT | {"maximum": 5}, {"oneOf": [_INT | {"maximum": 9}, _INT | {"maximum": 3}]}),
    (_NUM | {"exclusiveMinimum": 10}, {"oneOf": [_NUM | {"exclusiveMinimum": 10}, _NUM | {"exclusiveMaximum": 12}]}),
    (_NUM | {"oneOf": [_INT, {"minimum": 5}]}, _NUM | {"oneOf": [_NUM, {"minimum": 5}]}),
    (_OPEN | _KIND_A, {"oneOf": [_OPEN | _KIND_A, _OPEN | _KIND_B]}),
    (
        _OPEN | {"properties": {"a": _INT}, "required": ["a"]},
        {"oneOf": [_OPEN | {"required": ["a"]}, _OPEN | {"properties": {"a": _NUM}, "required": ["a", "b"]}]},
    ),
    (_INT, {"not": {"const": 1}, "minimum": 0}),
    ({"enum": [1, 2]}, {"not": {"const": 2}}),
    ({"not": {"const": 1}}, {"not": {"const": 2}}),
    (_INT, {"if": _INT, "then": {"minimum": 0}}),
    (_TEXT, {"if": _INT, "else": {"minLength": 3}}),
    ({"if": _INT, "then": {"minimum": 5}}, {"if": _NUM, "then": {"minimum": 4}}),
    ({"if": _INT, "else": {"minLength": 5}}, {"if": _TEXT, "else": {"minimum": 5}}),
    ({"$ref": "#/$defs/a", "$defs": {"a": _INT}}, {"$ref": "#/$defs/a", "$defs": {"a": _TEXT}}),
    (_linked(_INT), _linked(_TEXT)),
    (_DRAFT7 | {"items": [_INT]}, {"items": _TEXT}),
)
"""Each allows what the other does not."""
NARROWER: tuple[Pair, ...] = (
    (
        _NUM | {"oneOf": [_INT, {"minimum": 5}]},
        _NUM | {"oneOf": [{"minimum": 5}, _INT, {"minimum": 100}]},
    ),
    ({"if": _NUM, "then": {"minimum": 5}}, {"if": {}, "then": {"minimum": 5}, "else": False, "type": "integer"}),
    ({"multipleOf": 0.5}, {"multipleOf": 1.5}),
    ({"if": _NUM, "else": _TEXT}, {"if": _INT, "else": _TEXT}),
)
"""The second allows less, which is hard to prove, and no document tells so by the other way round."""
TABLE = ((WIDER, (True, False)), (SAME, (True, True)), (APART, (False, False)), (NARROWER, (False, None)))
"""With each: may the second follow the first by BACKWARD, and by FORWARD?"""


@http_case(
    "schemas/each-keyword-is-compared",
    SCHEMAS,
    clauses=("H-SCHEMA-4",),
    mutant="schemas-several-branches-fit-one-of",
    kills=("schemas-references-alike-by-name", "schemas-ends-of-ranges-are-alike"),
    limit_s=30.0,
)
async def compared(ctx: HttpContext) -> None:
    """No schema may follow another that it does not fit, whatever keyword says so: a table of pairs.

    Each is compared both ways. One that fits, and is refused for want of a proof, is reported and fails nothing; so is
    a reason that does not name a change and the place in the schema that it is about.
    """
    subject = ctx.name("s")
    for query in ("?permanent=true", ""):
        ctx.leaves(f"/subjects/{subject}{query}")
    ctx.status(await ctx.me.put(f"/config/{subject}", {"compatibility": "NONE"}), 200)
    table = [(pair, ways) for pairs, ways in TABLE for pair in pairs]
    versions: dict[str, int] = {}
    for (before, _), _ in table:
        text = json.dumps(before, sort_keys=True)
        if text not in versions:
            versions[text] = len(versions) + 1
            answer = await ctx.me.post(f"/subjects/{subject}/versions", {"schemaType": "JSON", "schema": text})
            ctx.status(answer, 200)
    for way, level in enumerate(("BACKWARD", "FORWARD")):
        ctx.status(await ctx.me.put(f"/config/{subject}", {"compatibility": level}), 200)
        for (before, after), ways in table:
            wanted, number = ways[way], versions[json.dumps(before, sort_keys=True)]
            path = f"/compatibility/subjects/{subject}/versions/{number}?verbose=true"
            answer = await ctx.me.post(path, {"schemaType": "JSON", "schema": json.dumps(after)})
            ctx.status(answer, 200)
            told = answer.at("is_compatible", kind=bool)
            text = f"{level}: whether {after} may follow {before}: expected {wanted}; seen {told}"
            ctx.must(wanted is not False or not told, text)
            ctx.should(wanted is not True or told, text)
            for reason in [] if told else answer.at("messages", kind=list):
                ctx.should(
                    bool(_REASON.search(reason)), f"{level}: {after} behind {before}: seen the reason {reason!r}"
                )
