"""What a broker still holds when a life is over is a finding, once it has had the time to let go of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import pytest

from assay.conformance.explore.control import Control
from assay.conformance.explore.held import Held
from assay.conformance.explore.rules import Rule, ViolationError


class Figures:
    """A control connection of a broker that says one thing after the other, and the last for good; nothing below 0."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def round_trip(self) -> float:
        return 0.0

    def figures(self, names: Collection[str], wait_s: float) -> dict[str, str]:
        assert wait_s
        value = self.values.pop(0) if len(self.values) > 1 else self.values[0]
        told = {"store/messages/bytes": str(value), "uptime": str(len(self.values))}
        return {name: told[name] for name in names if value >= 0 and name in told}


def life(held: Held, *values: int) -> None:
    control = cast("Control", Figures(*values))
    held.begin(control, 0.05)
    held.end(control, 0.05)


def test_what_is_let_go_of_a_moment_later_is_none() -> None:
    life(Held(("store/messages/bytes",)), 0, 70, 70, 0)


def test_what_stays_is_a_finding_once() -> None:
    held = Held(("store/messages/bytes",))
    with pytest.raises(ViolationError, match="store/messages/bytes 70, before 0") as caught:
        life(held, 0, 70)
    assert caught.value.rule is Rule.FIGURES
    assert caught.value.waited
    life(held, 70)


def test_what_is_not_told_in_time_is_unknown() -> None:
    life(Held(("store/messages/bytes", "of nobody")), 0, -1)


def test_a_broker_that_does_not_tell_is_not_asked() -> None:
    life(Held(()), 0, 70)


def test_a_life_that_was_broken_off_ends_the_questions() -> None:
    held = Held(("store/messages/bytes",))
    held.begin(cast("Control", Figures(0)), 0.05)
    life(held, 0, 70)
