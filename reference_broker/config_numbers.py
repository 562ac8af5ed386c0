"""One rule for every number of the configuration: it is finite, and in the range that stands at its field."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import isfinite
from typing import Annotated, Final

import msgspec

MOST: Final = 10**15
"""A thousand terabytes, or 30 million years: more is a slip."""


class Range(msgspec.Struct, frozen=True):
    """What a number may be, both ends included. A field without one has 0 and more."""

    lowest: float = 0
    highest: float = MOST
    or_zero: bool = False
    """0 as well, which means something else: no limit, not at all."""
    above: bool = False
    """The lowest excluded."""

    def allows(self, value: float) -> bool:
        """Whether a number is one of them."""
        if self.or_zero and value == 0:
            return True
        return self.lowest <= value <= self.highest and not (self.above and value == self.lowest)

    def __str__(self) -> str:
        lowest, highest = f"{self.lowest:.15g}", f"{self.highest:.15g}"
        text = f"above {lowest} and at most {highest}" if self.above else f"{lowest} to {highest}"
        return f"{text}, or 0" if self.or_zero else text


Count = Annotated[int, Range(1)]
Positive = Annotated[float, Range(above=True)]
_USUAL: Final = Range()


@cache
def _fields(section: type[msgspec.Struct]) -> tuple[tuple[str, str, Range], ...]:
    """Name, key and range. Once for each kind of section: this reads its annotations anew, which a test that starts
    brokers does often."""
    return tuple(
        (
            field.name,
            field.encode_name,
            next((each for each in getattr(field.type, "__metadata__", ()) if isinstance(each, Range)), _USUAL),
        )
        for field in msgspec.structs.fields(section)
    )


def number_problems(section: msgspec.Struct, where: str = "") -> Iterator[str]:
    """What is wrong with the numbers of a section and of those within it, each with the path of its key."""
    for name, key, allowed in _fields(type(section)):
        path = f"{where}.{key}" if where else key
        value = getattr(section, name)
        values = value if isinstance(value, tuple) else (value,)
        for index, each in enumerate(values):
            place = f"{path}[{index}]" if isinstance(value, tuple) else path
            if isinstance(each, msgspec.Struct):
                yield from number_problems(each, place)
            elif isinstance(each, int | float) and not isinstance(each, bool):
                if not isfinite(each):
                    yield f"{place} must be a finite number, not {each}"
                elif not allowed.allows(each):
                    yield f"{place} must be {allowed}, not {each:.15g}"
