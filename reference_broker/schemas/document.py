"""One JSON Schema: what it says, where its references lead, and what judging a document by it can cost at most.

Schemas are untrusted. References lead within the document only; patterns run on an engine whose time is linear in the
text (jsonschema-rs with ``RegexOptions``: the regex crate, which has neither look-around nor back-references); a schema
that would judge one place of a document more than :data:`MAX_JUDGEMENTS` times, however it nests, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import IntEnum
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

import msgspec

from assay.reference_broker.schemas.errors import SchemaError, SchemaErrorCode

try:
    import jsonschema_rs
except ImportError:  # the extra `schemas` is not installed
    _library: ModuleType | None = None
else:
    _library = jsonschema_rs

Json = Any
MAX_DEPTH: Final = 64
"""Levels of a schema's JSON."""
MAX_PATTERNS: Final = 256
PATTERN_BYTES: Final = 128 * 1024
"""What one compiled pattern may take in memory."""
MAX_JUDGEMENTS: Final = 512
"""How many subschemas may judge one place of a document."""
MAX_STEPS: Final = 50_000
"""Subschemas that are looked at to find that out."""
_ABOUT: Final = ("$schema", "$id", "$comment", "title", "description", "default", "examples", "format")
_ASKS_NOTHING: Final = frozenset((*_ABOUT, "$defs", "definitions", "deprecated", "readOnly", "writeOnly"))
_encode = msgspec.json.Encoder(order="sorted").encode


class Draft(IntEnum):
    """Versions of JSON Schema, in their order."""

    DRAFT6 = 6
    DRAFT7 = 7
    DRAFT2019 = 2019
    DRAFT2020 = 2020


_DRAFTS: Final = {
    "http://json-schema.org/draft-06/schema": Draft.DRAFT6,
    "http://json-schema.org/draft-07/schema": Draft.DRAFT7,
    "https://json-schema.org/draft/2019-09/schema": Draft.DRAFT2019,
    "https://json-schema.org/draft/2020-12/schema": Draft.DRAFT2020,
}
_NAMES: Final = {draft: name for name, draft in _DRAFTS.items()}
_NAME: Final = "urn:assay:schema"
_DEPENDENT: Final = ("dependentSchemas", "dependencies")
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", *_DEPENDENT)
"""Keywords whose subschemas judge the same place as the schema itself."""
_ELEMENTS: Final = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems")
_OTHER_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")


class Validator(Protocol):
    """A compiled schema, of jsonschema-rs."""

    def is_valid(self, instance: Json, /) -> bool: ...

    def iter_errors(self, instance: Json, /) -> Iterator[Any]: ...


def is_available() -> bool:
    """Whether the extra ``schemas`` is installed."""
    return _library is not None


def canonical(value: Json) -> bytes:
    """The same bytes for the same JSON, whatever the order of its members."""
    return _encode(value)


def fingerprint_of(text: str) -> str:
    """See :attr:`SchemaDocument.fingerprint`; of what is no JSON, too."""
    try:
        return _fingerprint(msgspec.json.decode(text))
    except (ValueError, RecursionError):
        return ""


def _fingerprint(root: Json) -> str:
    return hashlib.sha256(canonical(root)).hexdigest()


class Node:
    """A subschema: where it stands in which document."""

    __slots__ = ("_text", "document", "pointer", "schema")

    def __init__(self, document: SchemaDocument, pointer: str, schema: Json) -> None:
        self.document = document
        self.pointer = pointer
        self.schema = schema
        self._text: bytes | None = None

    @property
    def key(self) -> tuple[int, str]:
        """Names it among all nodes that are there."""
        return id(self.document), self.pointer

    @property
    def text(self) -> bytes:
        """What it asks of values, as :func:`canonical`, but for what its references lead to."""
        if self._text is None:
            schema = self.schema
            if isinstance(schema, dict):
                schema = {name: value for name, value in schema.items() if name not in _ASKS_NOTHING}
            self._text = canonical(schema)
        return self._text

    @property
    def is_anything(self) -> bool:
        """Nothing is asked of a value."""
        return self.schema is True or self.schema == {}

    def get(self, keyword: str) -> Json:
        """The value of a keyword; None where there is none."""
        return self.schema.get(keyword) if isinstance(self.schema, dict) else None

    def at(self, *path: str | int) -> Node:
        """The subschema below it."""
        schema = self.schema
        for step in path:
            schema = schema[step]
        pointer = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
        return Node(self.document, self.pointer + pointer, schema)

    def listed(self, keyword: str) -> list[Node]:
        """The subschemas of a keyword that has a list of them."""
        value = self.get(keyword)
        return [self.at(keyword, index) for index in range(len(value))] if isinstance(value, list) else []

    def named(self, keyword: str) -> dict[str, Node]:
        """The subschemas of a keyword that has an object of them."""
        value = self.get(keyword)
        return {name: self.at(keyword, name) for name in value} if isinstance(value, dict) else {}

    def one(self, keyword: str) -> Node | None:
        """The subschema of a keyword that has one."""
        return self.at(keyword) if isinstance(self.get(keyword), (dict, bool)) else None

    @property
    def tuple_items(self) -> list[Node]:
        """The schemas of an array's first elements."""
        is_new = self.document.draft is Draft.DRAFT2020
        return self.listed("prefixItems") if is_new else self.listed("items")

    @property
    def other_items(self) -> Node | None:
        """The schema of the elements behind those; None = they may be anything."""
        if self.document.draft is not Draft.DRAFT2020 and isinstance(self.get("items"), list):
            return self.one("additionalItems")
        return self.one("items")

    @property
    def target(self) -> Node | None:
        """Where ``$ref`` leads; None where there is none, or it cannot be followed."""
        reference = self.get("$ref")
        return self.document.resolve(reference) if isinstance(reference, str) else None

    @property
    def ignores_siblings(self) -> bool:
        """Up to draft 7 nothing beside ``$ref`` counts."""
        return self.document.draft <= Draft.DRAFT7 and isinstance(self.get("$ref"), str)


class SchemaDocument:
    """A schema that may be registered."""

    def __init__(self, text: str, max_bytes: int = 65_536, *, was_taken: bool = False) -> None:
        """``was_taken``: it was looked at before. Raises :class:`SchemaError` (INVALID_SCHEMA)."""
        if _library is None:
            raise _invalid("this broker has no validator: install the extra `schemas`")
        if len(text) > max_bytes or len(text.encode(errors="replace")) > max_bytes:
            raise _invalid(f"a schema has at most {max_bytes} bytes here")
        try:
            root = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise _invalid(f"it is no JSON: {error}") from error
        if not isinstance(root, (dict, bool)):
            raise _invalid("a schema is a JSON object, or true or false")
        if _depth_of(root) > MAX_DEPTH:
            raise _invalid(f"its JSON nests deeper than {MAX_DEPTH} levels")
        self.text = text
        self.root = Node(self, "", root)
        self.draft = _draft_of(root)
        self.fingerprint = _fingerprint(root)
        """The same for schemas that differ in white space and the order of members only."""
        self.patterns = _count_patterns(root)
        if self.patterns > MAX_PATTERNS:
            raise _invalid(f"it has {self.patterns} patterns; at most {MAX_PATTERNS} are allowed")
        _refuse_bases(root)
        self._validators: dict[str, Validator] = {}
        self._registry: Any = None
        self.validator()
        if not was_taken:
            check_cost(self.root)

    @property
    def weight_bytes(self) -> int:
        """What it takes in memory when it is compiled, at most."""
        return 16 * len(self.text) + self.patterns * PATTERN_BYTES

    def resolve(self, reference: str) -> Node | None:
        """Where a reference leads; None where it does not lead to a subschema."""
        pointer = unquote(reference[1:])
        if not reference.startswith("#") or (pointer and not pointer.startswith("/")):
            return None
        place: Json = self.root.schema
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and name in place:
                place = place[name]
            elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
                place = place[int(name)]
            else:
                return None
        return Node(self, pointer, place) if isinstance(place, (dict, bool)) else None

    def validator(self, pointer: str = "") -> Validator:
        """Of the whole, or of the subschema there; kept. Raises :class:`SchemaError` (INVALID_SCHEMA)."""
        found = self._validators.get(pointer)
        if found is None:
            found = self._validators[pointer] = self._compile(pointer)
        return found

    def is_compiled(self, pointer: str) -> bool:
        """Whether :meth:`validator` costs nothing."""
        return pointer in self._validators

    def _compile(self, pointer: str) -> Validator:
        assert _library is not None
        schema, registry = self.root.schema, None
        if pointer:
            if self._registry is None:
                # Its own name would give it another base than the one that it is looked up by.
                whole = {name: value for name, value in schema.items() if name != "$id"}
                self._registry = _library.Registry([(_NAME, whole)], draft=_library_draft(self.draft))
            registry = self._registry
            schema = {"$ref": f"{_NAME}#{quote(pointer)}", "$schema": _NAMES[self.draft]}
        try:
            compiled: Validator = _library.validator_for(
                schema,
                registry=registry,
                offline=True,
                validate_formats=False,
                pattern_options=_library.RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES),
            )
        except (ValueError, _library.ReferencingError) as error:
            lines = str(error).splitlines() or ["it is no JSON Schema"]
            raise _invalid(lines[0][:400]) from error
        return compiled

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern of the schema is found in a name, as the validator sees it."""
        key = f"\0{pattern}"
        found = self._validators.get(key)
        if found is None:
            assert _library is not None
            options = _library.RegexOptions(size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES)
            found = _library.validator_for({"pattern": pattern}, pattern_options=options)
            self._validators[key] = found
        return found.is_valid(name)


def _invalid(text: str) -> SchemaError:
    return SchemaError(SchemaErrorCode.INVALID_SCHEMA, text)


def _library_draft(draft: Draft) -> int:
    assert _library is not None
    number: int = {
        Draft.DRAFT6: _library.Draft6,
        Draft.DRAFT7: _library.Draft7,
        Draft.DRAFT2019: _library.Draft201909,
        Draft.DRAFT2020: _library.Draft202012,
    }[draft]
    return number


def _draft_of(root: Json) -> Draft:
    named = root.get("$schema") if isinstance(root, dict) else None
    if named is None:
        return Draft.DRAFT2020
    draft = _DRAFTS.get(named.removesuffix("#")) if isinstance(named, str) else None
    if draft is None:
        raise _invalid(f"its $schema is {str(named)[:80]!r}; drafts 6, 7, 2019-09 and 2020-12 are known")
    return draft


def _depth_of(value: Json) -> int:
    """Levels of lists and objects."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        if deepest > MAX_DEPTH:
            break
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    return deepest


def _walk(value: Json) -> Iterator[dict[str, Json]]:
    """All objects in a value, be they schemas or not."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield each
            left += each.values()
        elif isinstance(each, list):
            left += each


def _count_patterns(root: Json) -> int:
    count = 0
    for each in _walk(root):
        members = each.get("patternProperties")
        count += ("pattern" in each) + (len(members) if isinstance(members, dict) else 0)
    return count


def _refuse_bases(root: Json) -> None:
    """What references mean must not depend on where they stand. Raises :class:`SchemaError`."""
    for each in _walk(root):
        for name in ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"):
            if isinstance(each.get(name), str) and not (each is root and name == "$id"):
                raise _invalid(f"{name} within a schema is not supported: refer to #/$defs/... by $ref")


# -- what it can cost ------------------------------------------------------------------------------------------------


def check_cost(root: Node) -> None:
    """Follow every kind of place that a document can have, with the subschemas that judge it, as often as they do.

    Raises :class:`SchemaError` (INVALID_SCHEMA) where that is too often, or a schema leads back to itself in place.
    """
    first = _closure([(root, 1)])
    seen = {_state(first)}
    steps = 0
    waiting = [first]
    while waiting:
        for place in _places_below(waiting.pop()):
            steps += 1 + sum([count for _, count in place])
            judges = _closure(place)
            state = _state(judges)
            if state not in seen:
                seen.add(state)
                steps += sum([count for _, count in judges.values()])
                if steps > MAX_STEPS:
                    raise _invalid("the kinds of places that documents can have by it are too many to be looked at")
                waiting.append(judges)


_Judges = dict[str, tuple[Node, int]]
"""By pointer: a subschema that judges a place, and how often it does."""


def _state(judges: _Judges) -> frozenset[tuple[str, int]]:
    return frozenset((pointer, count) for pointer, (_, count) in judges.items())


def _closure(start: list[tuple[Node, int]]) -> _Judges:
    """All subschemas that judge one place. Raises :class:`SchemaError`."""
    found: _Judges = {}
    total = 0
    under_way: list[tuple[Node, int, tuple[str, ...]]] = [(node, times, ()) for node, times in start]
    while under_way:
        node, times, above = under_way.pop()
        if node.pointer in above:
            raise _invalid(f"{node.pointer or '#'} refers to itself without going down into a document")
        before = found.get(node.pointer)
        found[node.pointer] = node, times + (0 if before is None else before[1])
        total += times
        if total > MAX_JUDGEMENTS:
            raise _invalid(f"one place of a document would be judged more than {MAX_JUDGEMENTS} times")
        under_way += [(inner, times, (*above, node.pointer)) for inner in in_place(node)]
    return found


def in_place(node: Node) -> Iterator[Node]:
    """Subschemas that judge the same place. Raises :class:`SchemaError` for a reference that leads nowhere."""
    reference = node.get("$ref")
    if isinstance(reference, str):
        target = node.target
        if target is None:
            raise _invalid(f"the reference {reference[:80]!r} does not lead to a schema within the document")
        yield target
        if node.ignores_siblings:
            return
    for keyword in _IN_PLACE:
        if (one := node.one(keyword)) is not None:
            yield one
        yield from node.listed(keyword)
        if keyword in _DEPENDENT:
            yield from (each for each in node.named(keyword).values() if isinstance(each.schema, (dict, bool)))


def _places_below(judges: _Judges) -> Iterator[list[tuple[Node, int]]]:
    """For each kind of place one step below: who judges it, at most."""
    elements: list[tuple[Node, int]] = []
    names: list[tuple[Node, int]] = []
    others: list[tuple[Node, int]] = []
    members: dict[str, list[tuple[Node, int]]] = {}
    for node, count in judges.values():
        if node.ignores_siblings:
            continue
        for keyword in _ELEMENTS:
            one = node.one(keyword)
            elements += [(each, count) for each in ([one] if one is not None else node.listed(keyword))]
        if (one := node.one("propertyNames")) is not None:
            names.append((one, count))
        for name, each in node.named("properties").items():
            members.setdefault(name, []).append((each, count))
        others += [(each, count) for each in node.named("patternProperties").values()]
        others += [(each, count) for each in map(node.one, _OTHER_MEMBERS) if each is not None]
    yield elements
    yield names
    yield others
    for found in members.values():
        yield found + others
