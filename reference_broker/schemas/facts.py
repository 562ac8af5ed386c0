"""What is known of the values that fit all of some subschemas.

All of it errs on the safe side: what is not known is not promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from assay.reference_broker.schemas.document import Json, Node

ATOMS: Final = {
    "null": frozenset(("null",)),
    "boolean": frozenset(("boolean",)),
    "object": frozenset(("object",)),
    "array": frozenset(("array",)),
    "string": frozenset(("string",)),
    "integer": frozenset(("integer",)),
    "number": frozenset(("integer", "fraction")),
}
"""Types as sets that do not overlap: a number is an integer or has a fraction."""
ALL: Final = frozenset().union(*ATOMS.values())
NUMBERS: Final = ATOMS["number"]
STRING, OBJECT, ARRAY = ATOMS["string"], ATOMS["object"], ATOMS["array"]
Conjunction = Sequence[Node]


def atoms_of(value: Json) -> frozenset[str]:
    """Of the keyword ``type``."""
    names = [value] if isinstance(value, str) else value
    return frozenset().union(*(ATOMS[name] for name in names))


def atom_of_value(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case dict():
            return "object"
        case list():
            return "array"
        case int():
            return "integer"
        case _:
            return "integer" if value == int(value) else "fraction"


def types(old: Conjunction) -> frozenset[str]:
    atoms = ALL
    for node in old:
        if (value := node.get("type")) is not None:
            atoms &= atoms_of(value)
        if has(node, "enum"):
            atoms &= frozenset(map(atom_of_value, node.schema["enum"]))
        if has(node, "const"):
            atoms &= {atom_of_value(node.schema["const"])}
    return atoms


def has(node: Node, keyword: str) -> bool:
    return isinstance(node.schema, dict) and keyword in node.schema


def numbers(old: Iterable[Node], keyword: str) -> list[int | float]:
    return [value for node in old if (value := node.get(keyword)) is not None]


def required(old: Conjunction) -> set[str]:
    return {name for node in old for name in node.get("required") or ()}


class Bound(NamedTuple):
    """A limit of what a conjunction allows."""

    value: int | float
    is_strict: bool

    def rank(self, sign: int) -> tuple[int | float, bool]:
        return sign * self.value, self.is_strict


def bound(old: Iterable[Node], inclusive: str, exclusive: str, sign: int) -> Bound | None:
    """The narrowest bound; ``sign`` 1 = from below, -1 = from above."""
    bounds = [Bound(value, is_strict=False) for value in numbers(old, inclusive)]
    bounds += [Bound(value, is_strict=True) for value in numbers(old, exclusive)]
    return max(bounds, key=lambda bound: bound.rank(sign), default=None)


def count_bounds(old: Conjunction, least: str, most: str) -> tuple[int | float, int | float]:
    low = max(numbers(old, least), default=0)
    high = min(numbers(old, most), default=float("inf"))
    if least == "minProperties":
        low = max(low, len(required(old)))
        high = min([high, *(len(node.named("properties")) for node in old if is_closed(node))])
    if least == "minItems":
        for node in old:
            rest = node.other_items
            if rest is not None and rest.schema is False:
                high = min(high, len(node.tuple_items))
    return low, high


def is_closed(node: Node) -> bool:
    """Only what it names may be there."""
    return node.get("additionalProperties") is False and not node.get("patternProperties")


def at_name(node: Node, name: str) -> list[Node]:
    """What a schema asks of the member of that name."""
    found = [node.at("properties", name)] if name in (node.get("properties") or ()) else []
    for pattern, each in node.named("patternProperties").items():
        if node.document.matches(pattern, name):
            found.append(each)
    other = node.one("additionalProperties")
    return found if found or other is None else [other]


def at_index(node: Node, index: int) -> list[Node]:
    """What a schema asks of an element."""
    first, rest = node.tuple_items, node.other_items
    if index < len(first):
        return [first[index]]
    return [] if rest is None else [rest]


def names(nodes: Iterable[Node]) -> list[str]:
    return list(dict.fromkeys(name for node in nodes for name in node.get("properties") or ()))


def values(old: Conjunction, atoms: frozenset[str]) -> list[Json] | None:
    """All values that there can be, and perhaps others; None where they cannot be counted."""
    lists = [node.schema["enum"] for node in old if has(node, "enum")]
    lists += [[node.schema["const"]] for node in old if has(node, "const")]
    if lists:
        return [value for value in min(lists, key=len) if atom_of_value(value) in atoms]
    if atoms <= {"null", "boolean"}:
        values: list[Json] = [None] if "null" in atoms else []
        return values + ([True, False] if "boolean" in atoms else [])
    return None
