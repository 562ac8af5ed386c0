"""The table of schemas that cases compare says what documents say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest

from assay.conformance.cases.http.schema_changes import APART, NARROWER, SAME, WIDER, Pair

library = pytest.importorskip("jsonschema_rs")

_VALUES = (1, -1, 1.5, "a", "b", None)
_NAMES = ("", "a", "b", "c", "ab", "ba", "kind", "d", "x", "abcdefg", "value")


def _documents() -> Iterator[Any]:
    yield from (None, True, False, *range(-5, 21), 100, 100.5, 0.5, 1.5, 2.5, 3.5, 4.5, 7.5, 9.5, 10.5, 2.0)
    yield from ("", "a", "b", "z", "ab", "bb", "abc", "abcd", "abcde", "abcdefghij", "x=", "YWJj", "aGk=", "{")
    for count in range(4):
        yield from map(list, product((1, 2, 1.5, "a", "ab", None, False), repeat=count))
    for count in range(8):
        yield from ([1] * count, ["a"] * count, dict.fromkeys("abcdefgh"[:count], 1))
    for count in range(3):
        for names in combinations(_NAMES, count):
            yield from (dict(zip(names, values, strict=True)) for values in product(_VALUES, repeat=count))
    yield from ({"d": 1, "x": 1, "y": 1}, {"z": 1, "y": 1, "x": 1, "w": 1, "v": 1})
    yield from ({"next": {"value": value}} for value in (1, 1.5, "a"))


def _fits(schema: Any, documents: list[Any]) -> list[bool]:
    if isinstance(schema, bool):
        return [schema] * len(documents)
    validator = library.validator_for(schema)
    return [validator.is_valid(each) for each in documents]


@pytest.mark.parametrize(
    ("pairs", "lost", "gained"),
    [
        pytest.param(WIDER, False, True, id="wider"),
        pytest.param(SAME, False, False, id="same"),
        pytest.param(APART, True, True, id="apart"),
        pytest.param(NARROWER, True, False, id="narrower"),
    ],
)
def test_documents_tell_pairs_apart(pairs: tuple[Pair, ...], lost: bool, gained: bool) -> None:
    documents = list(_documents())
    for first, second in pairs:
        both = list(zip(documents, _fits(first, documents), _fits(second, documents), strict=True))
        losses = [each for each, before, after in both if before and not after]
        gains = [each for each, before, after in both if after and not before]
        assert (bool(losses), bool(gains)) == (lost, gained), (first, second, losses[:3], gains[:3])
