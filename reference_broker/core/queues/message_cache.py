"""A bounded cache of messages, so that most deliveries need not read the log back."""

from __future__ import annotations

from collections import deque

from reference_broker.core.queues.stored_message import StoredMessage

_OVERHEAD_BYTES = 512
"""What the objects around a small message take."""


class MessageCache:
    """Shared by all partitions; the oldest entries go first. Each partition keeps its own part, by offset."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._order: deque[tuple[dict[int, StoredMessage], int, int]] = deque()

    @property
    def stored_bytes(self) -> int:
        return self._bytes

    def put(self, part: dict[int, StoredMessage], offset: int, message: StoredMessage) -> None:
        """Add a message unless it is there."""
        if offset in part:
            return
        size = message.size + _OVERHEAD_BYTES
        part[offset] = message
        self._order.append((part, offset, size))
        self._bytes += size
        while self._bytes > self._max_bytes:
            oldest, oldest_offset, oldest_size = self._order.popleft()
            del oldest[oldest_offset]
            self._bytes -= oldest_size
