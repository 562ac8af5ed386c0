"""Output that may leave only once the disk has what it tells of."""

from __future__ import annotations

from collections import deque


class OutputGate:
    """Pieces of output in order, each with the turn whose write it waits for."""

    __slots__ = ("_ready", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._ready: list[bytes] = []

    @property
    def is_released(self) -> bool:
        """Nothing waits any more."""
        return not self._waiting

    def add(self, turn: int, data: bytes) -> None:
        """Keep a piece until the write of ``turn`` is on disk; turns never decrease."""
        self._waiting.append((turn, data))

    def release(self, turn: int) -> bool:
        """Everything written up to ``turn`` is on disk; whether that lets anything go."""
        before = len(self._ready)
        while self._waiting and self._waiting[0][0] <= turn:
            self._ready.append(self._waiting.popleft()[1])
        return len(self._ready) > before

    def take(self) -> bytes:
        """What may leave now."""
        data = b"".join(self._ready)
        self._ready.clear()
        return data
