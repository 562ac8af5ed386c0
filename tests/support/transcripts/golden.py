"""The file of golden lives, and how what is said now differs from it."""

from __future__ import annotations

import difflib
import lzma
from collections.abc import Iterator
from pathlib import Path

from transcripts.life import LIVES, Life

FILE = Path(__file__).with_name("golden.txt.xz")
_TITLE = "=== life "
_SHOWN_LINES = 30


def played(number: int) -> list[str]:
    """A life as it goes now; of some with their traces."""
    life = Life(number, traced=number % 4 == 1)
    return life.run() + life.world.trace


def read() -> list[list[str]]:
    """All lives as they went."""
    text = lzma.decompress(FILE.read_bytes()).decode()
    return [life.splitlines()[1:] for life in text.split(_TITLE)[1:]]


def write(lives: list[list[str]]) -> None:
    text = "".join(f"{_TITLE}{number}\n" + "".join(f"{line}\n" for line in life) for number, life in enumerate(lives))
    FILE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def difference(number: int, before: list[str], now: list[str], most: int = _SHOWN_LINES) -> Iterator[str]:
    """What went otherwise, in its surroundings; nothing where all is as before."""
    lines = difflib.unified_diff(before, now, "as it was", "as it is", n=3, lineterm="")
    for place, line in enumerate(lines):
        if place == 0:
            yield f"life {number} goes otherwise:"
        if place == most:
            yield "..."
            return
        yield line[:400]


__all__ = ["LIVES", "difference", "played", "read", "write"]
