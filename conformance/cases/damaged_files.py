"""What the cases of damaged files share: kinds of damage, and whose bytes they are.

Nothing is known here of what the files of a broker are: a life watches which of them grow, and by how much, with each
step that is confirmed. So it knows which bytes a message or a settlement is in, and what may be lost with them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_END = 1 << 62


class Hurt(NamedTuple):
    """What was done to a file: bytes from ``start`` on, before ``end``."""

    text: str
    start: int
    end: int = _END


Harm = Callable[[Path, random.Random], Hurt]


def _write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def cut(path: Path, rng: random.Random) -> Hurt:
    """As of a write that was under way."""
    size = path.stat().st_size
    at = rng.randrange(max(0, size - rng.choice((30, 300, 3_000))), size)
    with path.open("r+b") as file:
        file.truncate(at)
    return Hurt(f"cut from {size} to {at} bytes", at)


def zeros_behind(path: Path, rng: random.Random) -> Hurt:
    """As of a file that was made longer and never written."""
    size, more = path.stat().st_size, rng.choice((1, 7, 300, 5_000))
    _write_at(path, size, bytes(more))
    return Hurt(f"{more} zeros behind its {size} bytes", size)


def garbage_behind(path: Path, rng: random.Random) -> Hurt:
    size, more = path.stat().st_size, rng.choice((1, 11, 61, 300))
    _write_at(path, size, rng.randbytes(more))
    return Hurt(f"{more} bytes of garbage behind its {size} bytes", size)


def half_a_record_behind(path: Path, rng: random.Random) -> Hurt:
    """The begin of what stands there already, once more: it looks like a write that was cut."""
    size = path.stat().st_size
    more = path.read_bytes()[: rng.randrange(1, size)]
    _write_at(path, size, more[: max(1, len(more) // 2)])
    return Hurt(f"its first {max(1, len(more) // 2)} bytes again behind its {size} bytes", size)


def flip(path: Path, rng: random.Random, within: range | None = None) -> Hurt:
    """One bit, anywhere or of these bytes."""
    at, bit = rng.choice(within or range(path.stat().st_size)), rng.randrange(8)
    _write_at(path, at, bytes([path.read_bytes()[at] ^ 1 << bit]))
    return Hurt(f"bit {bit} of byte {at} flipped", at, at + 1)


def zeros_within(path: Path, rng: random.Random) -> Hurt:
    """As of a page that never reached the disk."""
    size = path.stat().st_size
    at, more = rng.randrange(size), rng.choice((1, 64, 512))
    _write_at(path, at, bytes(min(more, size - at)))
    return Hurt(f"{more} zeros at byte {at}", at, at + more)


def empty(path: Path, _rng: random.Random) -> Hurt:
    path.write_bytes(b"")
    return Hurt("emptied", 0)


def missing(path: Path, _rng: random.Random) -> Hurt:
    path.unlink()
    return Hurt("removed", 0)


def files_below(folder: Path) -> dict[Path, os.stat_result]:
    """The files of a broker that is at work: one that goes while it is looked at is not there."""
    found: dict[Path, os.stat_result] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            with suppress(FileNotFoundError):
                found[path] = path.stat()
    return found


class Watch:
    """Which files of a folder grow with each confirmed step of a life, and so what a damaged byte belongs to."""

    def __init__(self, folder: Path, of: str = "") -> None:
        """``of``: only files whose path holds this text."""
        self._folder, self._of = folder, of
        self._grown: list[dict[Path, tuple[int, int]]] = []
        """Of each step: file to the size before and after it."""
        self._before: dict[Path, tuple[int, int]] = {}

    def sizes(self) -> dict[Path, int]:
        """Of each file there is."""
        return {path: size for path, (size, _inode) in self._files().items()}

    def _files(self) -> dict[Path, tuple[int, int]]:
        return {
            path: (status.st_size, status.st_ino)
            for path, status in files_below(self._folder).items()
            if self._of in str(path)
        }

    def begin(self) -> None:
        """What grows from now on belongs to the next step."""
        self._before = self._look()

    def step(self) -> int:
        """The step is confirmed; returns its number."""
        now = self._look()
        unknown = (0, 0)
        grown = {
            path: (self._before.get(path, unknown)[0], size)
            for path, (size, _inode) in now.items()
            if size > self._before.get(path, unknown)[0]
        }
        self._grown.append(grown)
        return len(self._grown) - 1

    def _look(self) -> dict[Path, tuple[int, int]]:
        """What became shorter, or another file, holds nobody knows what of the steps before."""
        now = self._files()
        for path, (size, inode) in now.items():
            was = self._before.get(path)
            if was is not None and (size < was[0] or inode != was[1]):
                self.forget(path)
        return now

    def forget(self, path: Path) -> None:
        """All that a step has written to the file may be anywhere in it."""
        for grown in self._grown:
            if path in grown:
                grown[path] = (0, _END)

    def span(self, step: int, path: Path) -> range:
        """What the step has written to the file."""
        return range(*self._grown[step].get(path, (0, 0)))

    def grown(self, step: int, path: Path) -> int:
        """By how much the file grew in the step."""
        return len(self.span(step, path))

    def files_of(self, step: int) -> set[Path]:
        return set(self._grown[step])

    def is_certain(self, step: int) -> bool:
        """Whether what the step has written stands where it was written, in files that are there."""
        return all(span[1] < _END and path.exists() for path, span in self._grown[step].items())

    def with_steps_behind(self, wanted: Collection[int]) -> list[tuple[Path, range]]:
        """The bytes of each step behind which, in the same file, is what one of the ``wanted`` steps has written.

        Who takes the rest of a file for lost where one of those bytes is damaged loses what that step has written.
        """
        last: dict[Path, int] = {}
        for step in filter(self.is_certain, wanted):
            for path in self.files_of(step):
                last[path] = max(self.span(step, path).start, last.get(path, 0))
        return [
            (path, range(*span))
            for grown in self._grown
            for path, span in grown.items()
            if span[1] <= last.get(path, 0)
        ]

    def is_hit(self, step: int, path: Path, hurt: Hurt) -> bool:
        """Whether what the step has written there may be damaged."""
        span = self.span(step, path)
        return span.start < hurt.end and hurt.start < span.stop
