"""What caches keep: answers for short questions only, so many at most. Then all are forgotten."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
LONGEST_KEY: Final = 256
"""Characters, or bytes, of a question whose answer is remembered. Longer ones are answered anew each time."""


def remember(cache: dict[K, V], key: K, answer: V, length: int, most: int) -> V:
    """Keep an answer, unless its question is too long (``length``). Returns it."""
    if length <= LONGEST_KEY:
        if len(cache) >= most:
            cache.clear()
        cache[key] = answer
    return answer


class Rememberer(Protocol):
    """Somebody with a cache."""

    def forget(self) -> None:
        """Empty it."""


class SharedMemory:
    """What the caches of many take in memory together. When it is too much, all of them forget."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._holders: dict[Rememberer, None] = {}

    def take(self, holder: Rememberer, size: int) -> None:
        """``holder`` is about to remember something."""
        self.used_bytes += size
        if self.used_bytes > self.limit_bytes:
            holders, self._holders = self._holders, {}
            for each in holders:
                each.forget()
            self.used_bytes = size
        self._holders[holder] = None

    def give_back(self, holder: Rememberer, size: int) -> None:
        """``holder`` forgot all that it had, so much."""
        if self._holders.pop(holder, size) is None:
            self.used_bytes -= size
