"""What caches keep: answers for short questions only, so many at most. Then all are forgotten."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_SOME_BYTES: Final = 4_096
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


class Known(Generic[K, V]):
    """A cache that shares memory with others: when it is too much for all of them, it is emptied as well."""

    __slots__ = ("_bytes", "_memory", "_most", "_room", "answers")

    def __init__(self, memory: SharedMemory, most: int) -> None:
        self.answers: dict[K, V] = {}
        """Always the same dict."""
        self._memory = memory
        self._most = most
        self._bytes = 0
        self._room = 0
        """Of these, what is not used yet: they are taken some at a time."""

    def remember(self, key: K, answer: V, length: int, size: int) -> V:
        """As :func:`remember`, of an answer that takes ``size`` bytes with its question."""
        if length <= LONGEST_KEY:
            answers = self.answers
            if len(answers) >= self._most:
                self.let_go()
            if size > self._room:
                more = size + _SOME_BYTES
                self._memory.take(self, more)
                self._bytes += more
                self._room += more
            self._room -= size
            answers[key] = answer
        return answer

    def forget(self) -> None:
        """As :class:`Rememberer`."""
        self.answers.clear()
        self._bytes = self._room = 0

    def let_go(self) -> None:
        """Forget, and count for nothing."""
        self._memory.give_back(self, self._bytes)
        self.forget()
