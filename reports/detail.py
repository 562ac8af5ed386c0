"""Split a case's detail into what was expected and what was seen, where it is told in that form."""

from __future__ import annotations

import re

import msgspec

_EXPECTED_SEEN = re.compile(
    r"^(?:(?P<place>[^\n]{1,60}?): )?expected (?P<expected>.+?); (?:seen:? )?(?P<seen>.+)$",
    re.DOTALL | re.IGNORECASE,
)


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A detail in two halves."""

    place: str
    """The connection or the variation of the case where it was seen; may be empty."""
    expected: str
    seen: str


def split_detail(text: str) -> Detail | None:
    """``c1: expected X; seen Y`` in its parts; ``None`` for text of any other form."""
    match = _EXPECTED_SEEN.match(text)
    if match is None:
        return None
    return Detail(place=match["place"] or "", expected=match["expected"], seen=match["seen"])
