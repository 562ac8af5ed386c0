"""What a value is drawn from."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Protocol

import msgspec


class Draw(Protocol):
    """A distribution of values; ``drawn`` holds what was drawn before for the same fault."""

    def draw(self, rng: random.Random, drawn: Mapping[str, object]) -> object: ...


class Spread(msgspec.Struct, frozen=True):
    """A number between two, each order of magnitude as likely: short is as interesting as long."""

    low: float
    high: float

    def draw(self, rng: random.Random, drawn: Mapping[str, object]) -> float:
        """Three digits of it, as a file would have it."""
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(float(f"{value:.3g}"), self.low), self.high)


class Whole(msgspec.Struct, frozen=True):
    """A whole number between two, both included, each order of magnitude as likely."""

    low: int
    high: int

    def draw(self, rng: random.Random, drawn: Mapping[str, object]) -> int:
        return min(self.high, math.floor(math.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))))


class Among(msgspec.Struct, frozen=True):
    """One of some values."""

    values: tuple[object, ...]

    def draw(self, rng: random.Random, drawn: Mapping[str, object]) -> object:
        return rng.choice(self.values)


class Unless(msgspec.Struct, frozen=True):
    """What ``draw`` says, unless what was drawn before is ``value``; then it is ``otherwise``."""

    name: str
    value: object
    draw_it: Draw
    otherwise: object

    def draw(self, rng: random.Random, drawn: Mapping[str, object]) -> object:
        return self.otherwise if drawn[self.name] == self.value else self.draw_it.draw(rng, drawn)


class PartOf(msgspec.Struct, frozen=True):
    """Some share of a number that was drawn before."""

    name: str

    def draw(self, rng: random.Random, drawn: Mapping[str, object]) -> float:
        whole = drawn[self.name]
        assert isinstance(whole, int | float)
        return math.floor(rng.random() * whole * 1e3) / 1e3
