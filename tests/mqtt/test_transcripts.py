"""A hundred lives go as they went: whatever the broker says to its clients, counts, and leaves on its disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transcripts import golden
from transcripts.life import Life

_A_TEST = 4
"""Lives."""
_GOLDEN = golden.read()
_HOW = "if that is what you want: python tests/support/transcripts --update"


@pytest.mark.parametrize("first", range(0, golden.LIVES, _A_TEST))
def test_lives_go_as_they_went(first: int) -> None:
    for number in range(first, first + _A_TEST):
        lines = list(golden.difference(number, _GOLDEN[number], golden.played(number)))
        assert not lines, "\n".join([*lines, _HOW])


@pytest.mark.parametrize("number", range(0, golden.LIVES, 20))
def test_the_general_ways_say_the_same_as_the_fast_ones(number: int) -> None:
    """A broker that writes traces takes them."""
    assert not list(golden.difference(number, _GOLDEN[number], Life(number, traced=True).run()))


def test_a_life_that_goes_otherwise_is_told() -> None:
    other = [line.replace("SUBACK", "SUBNACK") for line in _GOLDEN[0]]
    text = "\n".join(golden.difference(0, _GOLDEN[0], other))
    assert text.startswith("life 0 goes otherwise:\n--- as it was\n+++ as it is\n")
    assert "\n-ada < SUBACK" in text
    assert "\n+ada < SUBNACK" in text


@pytest.mark.parametrize(("hash_seed", "first"), [("1", 0), ("2", 6)])
def test_lives_are_the_same_in_every_process(hash_seed: str, first: int) -> None:
    """However sets and dictionaries of texts are ordered there."""
    command = (
        "from transcripts import golden\n"
        "lives = golden.read()\n"
        f"assert all(golden.played(number) == lives[number] for number in range({first}, 100, 8))\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join((str(root / "tests" / "support"), str(root), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", command], check=True, env=environment)
