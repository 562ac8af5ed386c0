"""Whether every document that fits one schema fits another: JSON Schema containment, decided on the safe side.

An answer is one of three: it is proven that all fit; some keyword, by its :class:`Change`, asks for more than the old
schema promised; or that is not decided (:attr:`Change.UNDECIDED`), which counts as incompatible and says so.

What is known of the old side is a *conjunction* of subschemas: itself, its ``allOf``, where its ``$ref`` leads. The new
side is taken keyword by keyword through the table :data:`RULES`, each row saying which types it concerns. Where that
fails, the old side is split into its cases (types, ``anyOf``, ``oneOf``), which must all fit. References may be
recursive: while two places are compared, they count as compatible further down.

Annotations, ``format`` among them (which the registry's validators do not judge), never matter.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from assay.reference_broker.schemas import facts
from assay.reference_broker.schemas.document import Draft, Json, Node, SchemaDocument, canonical
from assay.reference_broker.schemas.facts import ALL, ARRAY, NUMBERS, OBJECT, STRING, Bound, Conjunction

MAX_STEPS: Final = 40_000
"""Comparisons of one decision; a thousand take about four milliseconds."""
MAX_DIFFERENCES: Final = 20
"""That are told."""


class Compatibility(StrEnum):
    """What a new version must be to those before it: the latest, or (``_TRANSITIVE``) all."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    """Who has the new schema can read what was written by the old one."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    """Who has the old schema can read what is written by the new one."""
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        return self.value.endswith("_TRANSITIVE")

    @property
    def reads_old(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_old(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))


class Change(StrEnum):
    """What makes the reader's schema accept less than the writer's."""

    TYPE_NARROWED = "TYPE_NARROWED"
    ENUM_NARROWED = "ENUM_NARROWED"
    MINIMUM_RAISED = "MINIMUM_RAISED"
    MAXIMUM_LOWERED = "MAXIMUM_LOWERED"
    MULTIPLE_OF_CHANGED = "MULTIPLE_OF_CHANGED"
    MIN_LENGTH_RAISED = "MIN_LENGTH_RAISED"
    MAX_LENGTH_LOWERED = "MAX_LENGTH_LOWERED"
    PATTERN_CHANGED = "PATTERN_CHANGED"
    CONTENT_CHANGED = "CONTENT_CHANGED"
    REQUIRED_ADDED = "REQUIRED_ADDED"
    DEPENDENCY_ADDED = "DEPENDENCY_ADDED"
    PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL = "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
    PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL = "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
    ADDITIONAL_PROPERTIES_NARROWED = "ADDITIONAL_PROPERTIES_NARROWED"
    PROPERTY_NAMES_NARROWED = "PROPERTY_NAMES_NARROWED"
    MIN_PROPERTIES_RAISED = "MIN_PROPERTIES_RAISED"
    MAX_PROPERTIES_LOWERED = "MAX_PROPERTIES_LOWERED"
    ITEMS_NARROWED = "ITEMS_NARROWED"
    MIN_ITEMS_RAISED = "MIN_ITEMS_RAISED"
    MAX_ITEMS_LOWERED = "MAX_ITEMS_LOWERED"
    UNIQUE_ITEMS_ADDED = "UNIQUE_ITEMS_ADDED"
    NOTHING_ALLOWED = "NOTHING_ALLOWED"
    """``false``, or ``additionalItems: false`` where elements could be."""
    UNDECIDED = "UNDECIDED"
    """It may be compatible; that is not proven, and refused."""


class Difference(msgspec.Struct, frozen=True):
    """Why a document that fits the one schema need not fit the other."""

    change: Change
    pointer: str
    """Where in the reader's schema."""
    text: str

    def __str__(self) -> str:
        return f"{self.change} at #{self.pointer}: {self.text}"


class _TooMuchError(Exception):
    """The steps are used up."""


class Budget:
    """The work that is left for one decision, be it about many versions."""

    __slots__ = ("left",)

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps

    def take(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise _TooMuchError


def differences(writer: SchemaDocument, reader: SchemaDocument, budget: Budget | None = None) -> list[Difference]:
    """Why not every document that fits ``writer`` fits ``reader``; empty = it does. Never raises."""
    comparison = Comparison(budget or Budget())
    try:
        found = comparison.fits([writer.root], reader.root)
    except (_TooMuchError, RecursionError):
        found = [Difference(Change.UNDECIDED, "", "the schemas are too complex to be compared")]
    return found[:MAX_DIFFERENCES]


def _counts(node: Node, keyword: str) -> bool:
    """Whether it has a keyword that means something in its draft."""
    since, until = _DRAFTS_OF[keyword]
    return facts.has(node, keyword) and since <= node.document.draft <= until


# -- the table -------------------------------------------------------------------------------------------------------

Check = Callable[["Comparison", "Conjunction", Node, str, Change], list[Difference]]
"""What of a keyword of the new side the old side does not promise."""


class Rule(NamedTuple):
    """One row: a keyword of the reader's schema."""

    keyword: str
    concerns: frozenset[str]
    """Types of values that it judges; of others it asks nothing."""
    change: Change
    """What it is called when it asks for more."""
    check: Check
    since: Draft = Draft.DRAFT6
    until: Draft = Draft.DRAFT2020


def _differs(new: Node, keyword: str, change: Change, text: str) -> list[Difference]:
    return [Difference(change, f"{new.pointer}/{keyword}", text)]


def _check_type(_: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    more = facts.types(old) - facts.atoms_of(new.schema[keyword])
    return _differs(new, keyword, change, f"{' and '.join(sorted(more))} is not allowed any more") if more else []


def _check_enum(_: Comparison, __: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    # Where the old values can be counted this is never asked: they are judged one by one.
    return _differs(new, keyword, change, "the values were not limited to these")


def _lower(inclusive: str, exclusive: str, sign: int) -> Check:
    def check(_: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
        promised = facts.bound(old, inclusive, exclusive, sign)
        asked = Bound(new.schema[keyword], keyword == exclusive)
        if promised is not None and promised.rank(sign) >= asked.rank(sign):
            return []
        return _differs(new, keyword, change, f"it was {'unlimited' if promised is None else promised.value}")

    return check


def _check_multiple(_: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    asked, promised = new.schema[keyword], facts.numbers(old, keyword)
    if asked in promised or (asked == 1 and "fraction" not in facts.types(old)):
        return []
    # What is no whole number is judged with the roundings of floats: no conclusion holds for all values.
    if asked == int(asked) and any(each == int(each) and Fraction(each) % Fraction(asked) == 0 for each in promised):
        return []
    return _differs(new, keyword, change, "it was not a divisor of what was promised")


def _least(least: str, most: str) -> Check:
    def check(_: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
        low, high = facts.count_bounds(old, least, most)
        asked = new.schema[keyword]
        if low > high or (low >= asked if keyword == least else high <= asked):
            return []
        return _differs(new, keyword, change, f"it was {low if keyword == least else high}")

    return check


def _check_same(_: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    asked = canonical(new.schema[keyword])
    if any(_counts(node, keyword) and canonical(node.schema[keyword]) == asked for node in old):
        return []
    return _differs(new, keyword, change, "it was another, or none")


def _check_required(_: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    more = [name for name in new.schema[keyword] if name not in facts.required(old)]
    return _differs(new, keyword, change, f"{', '.join(sorted(more))[:200]} could be absent") if more else []


def _check_unique(_: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    few = facts.count_bounds(old, "minItems", "maxItems")[1] <= 1
    if new.schema[keyword] is not True or few or any(node.get(keyword) is True for node in old):
        return []
    return _differs(new, keyword, change, "elements could repeat")


def _check_properties(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    """Every name that either side knows; :func:`_check_other_properties` does the rest."""
    found: list[Difference] = []
    known = facts.names(old)
    for name in dict.fromkeys([*new.schema[keyword], *known]):
        if name not in new.schema[keyword]:
            continue
        its.budget.take()
        member = new.at(keyword, name)
        below = its.fits([each for node in old for each in facts.at_name(node, name)], member)
        if below and name not in known:
            found.append(Difference(change, member.pointer, f"{name[:80]!r} could be anything before: {below[0]}"))
        else:
            found += below
    return found


def _check_other_properties(
    its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change
) -> list[Difference]:
    """``additionalProperties``, and ``patternProperties`` one by one: of names that are not in ``properties``."""
    found: list[Difference] = []
    patterns = new.named("patternProperties")
    targets = patterns if keyword == "patternProperties" else {None: new.at(keyword)}
    own = new.get("properties") or ()
    for pattern, target in targets.items():
        for name in facts.names(old):
            its.budget.take()
            if pattern is None:
                concerned = name not in own and not any(new.document.matches(each, name) for each in patterns)
            else:
                concerned = new.document.matches(pattern, name)
            if not concerned:
                continue
            below = its.fits([each for node in old for each in facts.at_name(node, name)], target)
            if below and target.schema is False:
                removed = Change.PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL
                found.append(Difference(removed, target.pointer, f"{name[:80]!r} was allowed"))
            else:
                found += below
        for name in own:
            if pattern is not None and name not in facts.names(old) and new.document.matches(pattern, name):
                found += its.fits([each for node in old for each in facts.at_name(node, name)], target)
        below = _of_any_name(its, old, target, pattern, patterns)
        if below:
            found.append(Difference(change, target.pointer, f"other members were freer: {below[0]}"))
    return found


def _of_any_name(
    its: Comparison, old: Conjunction, target: Node, pattern: str | None, patterns: dict[str, Node]
) -> list[Difference]:
    """Members whose names the old side does not name. ``pattern``: they match it; None = they match none of
    ``patterns``."""
    sure: list[Node] = []
    unsure: list[list[Node]] = []
    for node in old:
        own = node.named("patternProperties")
        if pattern is not None and pattern in own:
            sure.append(own[pattern])
            continue
        other = node.one("additionalProperties")
        choices = [each for name, each in own.items() if pattern is not None or name not in patterns]
        if not choices:
            sure += [] if other is None else [other]
        elif other is not None:
            unsure.append([*choices, other])
    below = its.fits(sure, target)
    for choices in unsure if below else ():
        if not any(its.fits([*sure, choice], target) for choice in choices):
            return []
    return below


def _check_names(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    target = new.at(keyword)
    closed = [node for node in old if facts.is_closed(node)]
    if closed and all(its.allows(target, name) for name in facts.names(closed[:1])):
        return []
    named = [each for node in old if (each := node.one(keyword)) is not None]
    below = its.fits(named, target, among=STRING)
    return _differs(new, keyword, change, f"names were freer: {below[0]}") if below else []


def _check_dependencies(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    """``dependentRequired``, ``dependentSchemas``, and ``dependencies``, which was both."""
    found: list[Difference] = []
    required = facts.required(old)
    for name, asked in new.schema[keyword].items():
        its.budget.take()
        if any(each.schema is False for node in old for each in facts.at_name(node, name)):
            continue
        promised: set[str] = set(required)
        schemas: list[Node] = []
        for node in old:
            for key in ("dependentRequired", "dependentSchemas", "dependencies"):
                value = node.schema[key].get(name) if _counts(node, key) else None
                if isinstance(value, list):
                    promised.update(value)
                elif isinstance(value, (dict, bool)):
                    schemas.append(node.at(key, name))
        if isinstance(asked, list):
            more = [each for each in asked if each not in promised and each != name]
            if more:
                found += _differs(new, keyword, change, f"{name[:80]!r} could be there without {more[0][:80]!r}")
        else:
            below = its.fits([*old, *schemas], new.at(keyword, name))
            if below:
                text = f"{name[:80]!r} did not ask for as much: {below[0]}"
                found += _differs(new, keyword, change, text)
    return found


def _check_elements(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    """All elements, whichever keyword tells of them; asked once, by the first of these."""
    if keyword != next(name for name in ("prefixItems", "items", "additionalItems") if _counts(new, name)):
        return []
    found: list[Difference] = []
    first = new.tuple_items
    most = facts.count_bounds(old, "minItems", "maxItems")[1]
    count = max([len(first), *(len(node.tuple_items) for node in old)])
    for index in range(count + 1):
        its.budget.take()
        if index >= most:
            break
        for target in facts.at_index(new, index):
            elements = [each for node in old for each in facts.at_index(node, index)]
            below = its.fits(elements, target)
            if below and target.schema is False:
                found.append(Difference(Change.NOTHING_ALLOWED, target.pointer, f"element {index} could be there"))
            elif below and not elements:
                found.append(Difference(change, target.pointer, f"elements could be anything: {below[0]}"))
            else:
                found += below
    return found


def check_contains(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    """Some element must fit, ``minContains`` of them, and no more than ``maxContains``."""
    asked = new.at(keyword)
    is_counted = new.document.draft >= Draft.DRAFT2019
    least = new.schema.get("minContains", 1) if is_counted else 1
    most = new.schema.get("maxContains") if is_counted else None
    for node in old:
        if (own := node.one(keyword)) is None:
            continue
        own_counts = node.document.draft >= Draft.DRAFT2019
        own_least = node.schema.get("minContains", 1) if own_counts else 1
        own_most = node.schema.get("maxContains") if own_counts else None
        is_enough = own_least >= least and not its.fits([own], asked)
        is_few = most is None or (own_most is not None and own_most <= most and not its.fits([asked], own))
        if is_enough and is_few:
            return []
    low, high = facts.count_bounds(old, "minItems", "maxItems")
    if most is None or high <= most:
        everywhere = [each for node in old if not node.tuple_items and (each := node.other_items) is not None]
        if least == 0 or (low >= least and not its.fits(everywhere, asked)):
            return []
    return _differs(new, keyword, change, "it is not proven that arrays contain as many such elements")


def _check_all_of(its: Comparison, old: Conjunction, new: Node, keyword: str, _: Change) -> list[Difference]:
    return [each for branch in new.listed(keyword) for each in its.fits(old, branch)]


def _check_any_of(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    found: list[Difference] = []
    for branch in new.listed(keyword):
        below = its.fits(old, branch)
        if not below:
            return []
        found = below if not found or len(below) < len(found) else found
    branches = new.listed(keyword)
    return found if len(branches) == 1 else _differs(new, keyword, change, f"no branch is known to fit: {found[0]}")


def check_one_of(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    branches = new.listed(keyword)
    fitting = [index for index, branch in enumerate(branches) if not its.fits(old, branch)]
    if len(fitting) == 1:
        others = [branch for index, branch in enumerate(branches) if index != fitting[0]]
        if all(its.excludes(old, branch) for branch in others):
            return []
        return _differs(new, keyword, change, "it is not proven that only one branch fits")
    if not fitting and any(its.is_same_choice(node, new, old) for node in old):
        return []
    text = "more than one branch fits" if fitting else "no branch is known to fit"
    return _differs(new, keyword, change, text)


def _check_not(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    refused = new.at(keyword)
    if its.excludes(old, refused):
        return []
    for node in old:
        own = node.one(keyword)
        if own is not None and not its.fits([refused], own):
            return []
    return _differs(new, keyword, change, "it is not proven that values never fitted what is refused")


def _check_if(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    condition = new.at(keyword)
    cases = [(name, each) for name in ("then", "else") if (each := new.one(name)) is not None]
    for name, target in cases:
        more = [condition] if name == "then" else []
        for node in old:
            own, consequence = node.one(keyword), node.one(name)
            if own is not None and consequence is not None and node.document.draft >= Draft.DRAFT7:
                is_same = not its.fits([own], condition) and not its.fits([condition], own)
                more += [consequence] if is_same else []
        is_never = its.excludes(old, condition) if name == "then" else not its.fits(old, condition)
        if not is_never and its.fits([*old, *more], target):
            return _differs(new, name, change, "it is not proven that what it asks for was so")
    return []


def _check_ref(its: Comparison, old: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    target = new.target
    return _differs(new, keyword, change, "it leads nowhere") if target is None else its.fits(old, target)


def _check_exact(_: Comparison, __: Conjunction, new: Node, keyword: str, change: Change) -> list[Difference]:
    # The same schema on both sides was found before: it depends on everything that stands beside it.
    if new.schema[keyword] is True:
        return []
    return _differs(new, keyword, change, "it is compared as a whole schema only")


_BELOW, _ABOVE = ("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)

RULES: Final = (
    Rule("$ref", ALL, Change.UNDECIDED, _check_ref),
    Rule("type", ALL, Change.TYPE_NARROWED, _check_type),
    Rule("enum", ALL, Change.ENUM_NARROWED, _check_enum),
    Rule("const", ALL, Change.ENUM_NARROWED, _check_enum),
    Rule("minimum", NUMBERS, Change.MINIMUM_RAISED, _lower(*_BELOW)),
    Rule("exclusiveMinimum", NUMBERS, Change.MINIMUM_RAISED, _lower(*_BELOW)),
    Rule("maximum", NUMBERS, Change.MAXIMUM_LOWERED, _lower(*_ABOVE)),
    Rule("exclusiveMaximum", NUMBERS, Change.MAXIMUM_LOWERED, _lower(*_ABOVE)),
    Rule("multipleOf", NUMBERS, Change.MULTIPLE_OF_CHANGED, _check_multiple),
    Rule("minLength", STRING, Change.MIN_LENGTH_RAISED, _least("minLength", "maxLength")),
    Rule("maxLength", STRING, Change.MAX_LENGTH_LOWERED, _least("minLength", "maxLength")),
    Rule("pattern", STRING, Change.PATTERN_CHANGED, _check_same),
    Rule("contentEncoding", STRING, Change.CONTENT_CHANGED, _check_same, until=Draft.DRAFT7),
    Rule("contentMediaType", STRING, Change.CONTENT_CHANGED, _check_same, until=Draft.DRAFT7),
    Rule("required", OBJECT, Change.REQUIRED_ADDED, _check_required),
    Rule("properties", OBJECT, Change.PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL, _check_properties),
    Rule("patternProperties", OBJECT, Change.ADDITIONAL_PROPERTIES_NARROWED, _check_other_properties),
    Rule("additionalProperties", OBJECT, Change.ADDITIONAL_PROPERTIES_NARROWED, _check_other_properties),
    Rule("propertyNames", OBJECT, Change.PROPERTY_NAMES_NARROWED, _check_names),
    Rule("minProperties", OBJECT, Change.MIN_PROPERTIES_RAISED, _least("minProperties", "maxProperties")),
    Rule("maxProperties", OBJECT, Change.MAX_PROPERTIES_LOWERED, _least("minProperties", "maxProperties")),
    Rule("dependencies", OBJECT, Change.DEPENDENCY_ADDED, _check_dependencies),
    Rule("dependentRequired", OBJECT, Change.DEPENDENCY_ADDED, _check_dependencies, since=Draft.DRAFT2019),
    Rule("dependentSchemas", OBJECT, Change.DEPENDENCY_ADDED, _check_dependencies, since=Draft.DRAFT2019),
    Rule("unevaluatedProperties", OBJECT, Change.UNDECIDED, _check_exact, since=Draft.DRAFT2019),
    Rule("prefixItems", ARRAY, Change.ITEMS_NARROWED, _check_elements, since=Draft.DRAFT2020),
    Rule("items", ARRAY, Change.ITEMS_NARROWED, _check_elements),
    Rule("additionalItems", ARRAY, Change.ITEMS_NARROWED, _check_elements, until=Draft.DRAFT2019),
    Rule("contains", ARRAY, Change.UNDECIDED, check_contains),
    Rule("minItems", ARRAY, Change.MIN_ITEMS_RAISED, _least("minItems", "maxItems")),
    Rule("maxItems", ARRAY, Change.MAX_ITEMS_LOWERED, _least("minItems", "maxItems")),
    Rule("uniqueItems", ARRAY, Change.UNIQUE_ITEMS_ADDED, _check_unique),
    Rule("unevaluatedItems", ARRAY, Change.UNDECIDED, _check_exact, since=Draft.DRAFT2019),
    Rule("allOf", ALL, Change.UNDECIDED, _check_all_of),
    Rule("anyOf", ALL, Change.UNDECIDED, _check_any_of),
    Rule("oneOf", ALL, Change.UNDECIDED, check_one_of),
    Rule("not", ALL, Change.UNDECIDED, _check_not),
    Rule("if", ALL, Change.UNDECIDED, _check_if, since=Draft.DRAFT7),
)
"""Every keyword that judges values. ``then``, ``else``, ``minContains`` and ``maxContains`` count with another."""
_DRAFTS_OF: Final = {rule.keyword: (rule.since, rule.until) for rule in RULES}
_CHOICES: Final = frozenset(("anyOf", "oneOf", "not", "if", "allOf", "$ref"))


_OF_TYPES: Final = "types "
"""What pointers of schemas begin with that stand in no document; no pointer does."""
_KINDS: Final = (*(frozenset((name,)) for name in ("null", "boolean", "object", "array", "string")), NUMBERS)
_Key = tuple[int, str]


# -- the comparison --------------------------------------------------------------------------------------------------


class Comparison:
    """A comparison of two schemas that is under way: what is assumed, and what it may still take."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._assumed: set[tuple[tuple[_Key, ...], _Key, frozenset[str], frozenset[_Key]]] = set()
        self._types: dict[tuple[int, frozenset[str]], Node] = {}

    def fits(
        self,
        old: Conjunction,
        new: Node,
        split: frozenset[_Key] = frozenset(),
        among: frozenset[str] = ALL,
    ) -> list[Difference]:
        """Why not every value that fits all of ``old`` fits ``new``. ``among``: types of the values."""
        self.budget.take()
        if new.is_anything:
            return []
        old = self.flatten(old)
        atoms = facts.types(old) & among
        if not atoms or any(node.schema is False for node in old):
            return []
        if new.schema is False:
            return [Difference(Change.NOTHING_ALLOWED, new.pointer, "values were allowed")]
        if any(are_same(node, new) for node in old):
            return []
        key = tuple(node.key for node in old), new.key, atoms, split
        if key in self._assumed:
            return []
        self._assumed.add(key)
        try:
            return self._compare(old, new, split, atoms)
        finally:
            self._assumed.discard(key)

    def _compare(self, old: Conjunction, new: Node, split: frozenset[_Key], atoms: frozenset[str]) -> list[Difference]:
        values = facts.values(old, atoms)
        if values is not None:
            return self._judge(values, old, new)
        found: list[Difference] = []
        draft = new.document.draft
        for rule in RULES:
            is_asked = facts.has(new, rule.keyword) and rule.since <= draft <= rule.until and atoms & rule.concerns
            if is_asked and (rule.keyword == "$ref" or not new.ignores_siblings):
                narrowed = old if atoms == facts.types(old) else [*old, self._of_types(new.document, atoms)]
                found += rule.check(self, narrowed, new, rule.keyword, rule.change)
        if not found or not isinstance(new.schema, dict) or len(split) > 8:
            return found
        for node in old:
            for keyword in ("anyOf", "oneOf"):
                branches = node.listed(keyword)
                name = (node.key[0], f"{node.pointer}/{keyword}")
                if branches and name not in split:
                    left = frozenset({*split, name})
                    for branch in branches:
                        below = self.fits([*old, branch], new, left, atoms)
                        if below:
                            return below if keyword == "anyOf" or len(branches) == 1 else found
                    return []
        kinds = [kind & atoms for kind in _KINDS if kind & atoms]
        is_worth_it = len(kinds) > 1 and _CHOICES.intersection(new.schema)
        return [] if is_worth_it and not any(self.fits(old, new, split, kind) for kind in kinds) else found

    def _of_types(self, document: SchemaDocument, atoms: frozenset[str]) -> Node:
        """A schema that allows these alone."""
        key = id(document), atoms
        if key not in self._types:
            names = sorted("number" if each == "fraction" else each for each in atoms)
            if "number" in names and "integer" in names:
                names.remove("integer")
            self._types[key] = Node(document, f"{_OF_TYPES}{','.join(names)}", {"type": names})
        return self._types[key]

    def flatten(self, old: Conjunction) -> list[Node]:
        """All that must hold, each once."""
        found: dict[_Key, Node] = {}
        waiting = list(old)[::-1]
        while waiting:
            node = waiting.pop()
            if node.is_anything or node.key in found:
                continue
            self.budget.take()
            target = node.target
            if not (node.ignores_siblings and target is not None):
                found[node.key] = node
                waiting += node.listed("allOf")[::-1]
            if target is not None:
                waiting.append(target)
        return list(found.values())

    def _judge(self, values: list[Json], old: Conjunction, new: Node) -> list[Difference]:
        """Every value that there can be."""
        for value in values:
            if not self.allows(new, value) and all(self.allows(node, value) for node in old):
                shown = canonical(value).decode()[:80]
                return [Difference(Change.ENUM_NARROWED, new.pointer, f"{shown} was allowed")]
        return []

    def allows(self, node: Node, value: Json) -> bool:
        if node.pointer.startswith(_OF_TYPES):
            return facts.atom_of_value(value) in facts.atoms_of(node.schema["type"])
        self.budget.take(1 if node.document.is_compiled(node.pointer) else 2 + len(node.text) // 64)
        return node.document.validator(node.pointer).is_valid(value)

    def excludes(self, old: Conjunction, other: Node) -> bool:
        """Whether it is proven that no value fits all of ``old`` and ``other``."""
        self.budget.take()
        both = self.flatten([*old, other])
        atoms = facts.types(both)
        if any(node.schema is False for node in both):
            return True
        values = facts.values(both, atoms)
        if values is not None:
            return not any(all(self.allows(node, value) for node in both) for value in values)
        return all(self.is_empty(both, atom) for atom in atoms)

    def is_empty(self, both: Conjunction, atom: str) -> bool:
        """Whether it is proven that no value of a type fits them all."""
        match atom:
            case "object":
                low, high = facts.count_bounds(both, "minProperties", "maxProperties")
                return low > high or any(self._is_never(both, name) for name in facts.required(both))
            case "array":
                low, high = facts.count_bounds(both, "minItems", "maxItems")
                return low > high
            case "string":
                low, high = facts.count_bounds(both, "minLength", "maxLength")
                return low > high
            case "integer" | "fraction":
                least, most = facts.bound(both, *_BELOW), facts.bound(both, *_ABOVE)
                if least is None or most is None:
                    return False
                is_point = least.value == most.value and (least.is_strict or most.is_strict)
                return least.value > most.value or is_point
        return False

    def _is_never(self, both: Conjunction, name: str) -> bool:
        """No value of that member is allowed."""
        self.budget.take()
        members = self.flatten([each for node in both for each in facts.at_name(node, name)])
        atoms = facts.types(members)
        if not atoms or any(node.schema is False for node in members):
            return True
        values = facts.values(members, atoms)
        return values is not None and not any(all(self.allows(node, value) for node in members) for value in values)

    def is_same_choice(self, own: Node, new: Node, old: Conjunction) -> bool:
        """Whether two ``oneOf`` have the same branches, but for some that the old side never allowed."""
        before, after = own.listed("oneOf"), new.listed("oneOf")
        left = list(after)
        for branch in before:
            same = [each for each in left if not self.fits([branch], each) and not self.fits([each], branch)]
            if not same:
                return False
            left.remove(same[0])
        return bool(before) and all(self.excludes(old, each) for each in left)


def are_same(node: Node, new: Node) -> bool:
    """The same schema, and what it refers to is the same, too."""
    if node.document.draft is not new.document.draft or node.text != new.text:
        return False
    if b'"$ref"' not in new.text:
        return True
    return node.pointer == new.pointer and node.document.fingerprint == new.document.fingerprint
