"""Schemas, what becomes of them, and documents that come near their bounds; all drawn from one ``random.Random``."""

from __future__ import annotations

import copy
import random
from typing import Any

Json = Any
NAMES = ("a", "b", "ab", "c")
PATTERNS = ("^a", "b$", "c")
STRINGS = ("", "a", "b", "ab", "abc", "caa")
NUMBERS: tuple[Json, ...] = (-1, 0, 1, 2, 3, 4, 6, 0.5, 1.5, 12, 2.0)
SCALARS: tuple[Json, ...] = (None, True, False, *NUMBERS, *STRINGS)
TYPES = ("null", "boolean", "object", "array", "string", "number", "integer")


def schema(rng: random.Random, depth: int = 3, *, refs: bool = True) -> Json:
    """A schema of draft 2020-12 with a few keywords, and definitions that may be recursive."""
    root = _schema(rng, depth, refs=refs)
    if isinstance(root, dict):
        root["$defs"] = {"d": _schema(rng, min(depth, 2), refs=False), "r": _recursive(rng)}
    return root


def _recursive(rng: random.Random) -> Json:
    below = {"$ref": "#/$defs/r"}
    return {
        "type": "object",
        "properties": {"a": _schema(rng, 0, refs=False), "b": below},
        **rng.choice(({}, {"additionalProperties": False}, {"required": ["a"]}, {"additionalProperties": below})),
    }


def _schema(rng: random.Random, depth: int, *, refs: bool) -> Json:
    kind = rng.random()
    if kind < 0.04:
        return rng.random() < 0.7
    if refs and kind < 0.14:
        return {"$ref": rng.choice(("#/$defs/d", "#/$defs/r"))}
    found: dict[str, Json] = {}
    if rng.random() < 0.75:
        found["type"] = rng.choice(TYPES) if rng.random() < 0.7 else rng.sample(TYPES, 2)
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        keyword(rng, found, depth, refs=refs)
    return found


def keyword(rng: random.Random, into: dict[str, Json], depth: int, *, refs: bool) -> None:
    """Add or change one keyword."""

    def inner() -> Json:
        return _schema(rng, depth - 1, refs=refs)

    flat = (
        ("enum", lambda: rng.sample(SCALARS, rng.randint(1, 4))),
        ("const", lambda: rng.choice(SCALARS)),
        ("minimum", lambda: rng.choice(NUMBERS)),
        ("exclusiveMinimum", lambda: rng.choice(NUMBERS)),
        ("maximum", lambda: rng.choice(NUMBERS)),
        ("exclusiveMaximum", lambda: rng.choice(NUMBERS)),
        ("multipleOf", lambda: rng.choice((1, 2, 3, 4, 6, 0.5))),
        ("minLength", lambda: rng.randint(0, 3)),
        ("maxLength", lambda: rng.randint(0, 3)),
        ("pattern", lambda: rng.choice(PATTERNS)),
        ("required", lambda: rng.sample(NAMES, rng.randint(0, 2))),
        ("minProperties", lambda: rng.randint(0, 2)),
        ("maxProperties", lambda: rng.randint(0, 3)),
        ("minItems", lambda: rng.randint(0, 2)),
        ("maxItems", lambda: rng.randint(0, 3)),
        ("uniqueItems", lambda: rng.random() < 0.7),
        ("dependentRequired", lambda: {rng.choice(NAMES): rng.sample(NAMES, rng.randint(0, 2))}),
        ("additionalProperties", lambda: rng.random() < 0.3),
        ("format", lambda: "date"),
    )
    deep = (
        ("properties", lambda: {name: inner() for name in rng.sample(NAMES, rng.randint(1, 3))}),
        ("properties", lambda: {name: inner() for name in rng.sample(NAMES, rng.randint(1, 3))}),
        ("patternProperties", lambda: {name: inner() for name in rng.sample(PATTERNS, rng.randint(1, 2))}),
        ("additionalProperties", inner),
        ("propertyNames", lambda: {"maxLength": rng.randint(1, 2)} if rng.random() < 0.5 else inner()),
        ("items", inner),
        ("prefixItems", lambda: [inner() for _ in range(rng.randint(1, 2))]),
        ("contains", inner),
        ("minContains", lambda: rng.randint(0, 2)),
        ("maxContains", lambda: rng.randint(1, 2)),
        ("dependentSchemas", lambda: {rng.choice(NAMES): inner()}),
        ("allOf", lambda: [inner() for _ in range(rng.randint(1, 2))]),
        ("anyOf", lambda: [inner() for _ in range(rng.randint(1, 3))]),
        ("oneOf", lambda: [inner() for _ in range(rng.randint(1, 3))]),
        ("not", inner),
        ("if", inner),
        ("then", inner),
        ("else", inner),
        ("unevaluatedProperties", lambda: rng.random() < 0.3),
        ("unevaluatedItems", lambda: rng.random() < 0.3),
    )
    name, make = rng.choice(deep if depth > 0 and rng.random() < 0.6 else flat)
    into[name] = make()


def changed(rng: random.Random, before: Json) -> Json:
    """The same schema with a few keywords added, taken away, or others; often it accepts more, or the same."""
    after = copy.deepcopy(before)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.choice(_places(after))
        if place and rng.random() < 0.5:
            del place[rng.choice([name for name in place if name != "$defs"] or [next(iter(place))])]
        else:
            keyword(rng, place, rng.randint(0, 1), refs=False)
    if isinstance(after, dict) and isinstance(before, dict):
        after.setdefault("$defs", before["$defs"])
    return after


def _places(value: Json) -> list[dict[str, Json]]:
    """Objects in a schema that are schemas."""
    if not isinstance(value, dict):
        return [{}]
    found = [value]
    for name, inner in value.items():
        if name in ("properties", "patternProperties", "$defs", "dependentSchemas"):
            found += [place for each in inner.values() if isinstance(each, dict) for place in _places(each)]
        elif isinstance(inner, dict) and name not in ("dependentRequired", "const"):
            found += _places(inner)
        elif isinstance(inner, list):
            found += [place for each in inner if isinstance(each, dict) for place in _places(each)]
    return found


def document(rng: random.Random, depth: int = 3) -> Json:
    """Any document of the names and values that schemas are drawn from."""
    kind = rng.random()
    if depth <= 0 or kind < 0.4:
        return rng.choice(SCALARS)
    if kind < 0.6:
        few = rng.random() < 0.3
        elements = [document(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        return elements[:1] * len(elements) if few else elements
    names = rng.sample((*NAMES, "cc", "zb", "z"), rng.randint(0, 3))
    return {name: document(rng, depth - 1) for name in names}


def near(rng: random.Random, wanted: Json, whole: Json, depth: int = 6) -> Json:
    """A document that has a chance to fit a schema."""
    if not isinstance(wanted, dict) or depth <= 0 or rng.random() < 0.05:
        return document(rng, min(depth, 2))
    if isinstance(reference := wanted.get("$ref"), str):
        return near(rng, whole["$defs"][reference.rpartition("/")[2]], whole, depth)
    for name in ("anyOf", "oneOf", "allOf"):
        if wanted.get(name) and rng.random() < 0.5:
            return near(rng, rng.choice(wanted[name]), whole, depth)
    if "const" in wanted and rng.random() < 0.9:
        return wanted["const"]
    if wanted.get("enum") and rng.random() < 0.9:
        return rng.choice(wanted["enum"])
    types = wanted.get("type") or [kind for kind, names in _TELLS.items() if names & wanted.keys()] or list(TYPES)
    return _of_type(rng, types if isinstance(types, str) else rng.choice(types), wanted, whole, depth)


_TELLS = {
    "object": {"properties", "patternProperties", "additionalProperties", "required", "dependentRequired"},
    "array": {"items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems"},
    "string": {"pattern", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "multipleOf"},
}


def _of_type(rng: random.Random, kind: str, wanted: dict[str, Json], whole: Json, depth: int) -> Json:
    match kind:
        case "object":
            own = wanted.get("properties") or {}
            names = [name for name in own if rng.random() < 0.6] + list(wanted.get("required") or ())
            if wanted.get("additionalProperties") is not False:
                names += rng.sample((*NAMES, "cc", "z"), rng.randint(0, 2))
            other = next(
                iter((wanted.get("patternProperties") or {}).values()), wanted.get("additionalProperties", True)
            )
            return {name: near(rng, own.get(name, other), whole, depth - 1) for name in names}
        case "array":
            first = wanted.get("prefixItems") or []
            rest = wanted.get("items", wanted.get("contains", True))
            count = rng.randint(wanted.get("minItems", 0), max(wanted.get("minItems", 0), wanted.get("maxItems", 3)))
            schemas = (first + [rest] * count)[:count]
            return [near(rng, each, whole, depth - 1) for each in schemas]
        case "string":
            return rng.choice(STRINGS)
        case "integer":
            return rng.choice([number for number in NUMBERS if number == int(number)])
        case "number":
            return rng.choice(NUMBERS)
        case "boolean":
            return rng.random() < 0.5
    return None
