"""A bounded cache of messages, so that most deliveries need not read the log back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from assay.reference_broker.queues.messages.stored_message import StoredMessage, beside_bytes
from assay.reference_broker.routing.message import MESSAGE_OVERHEAD_BYTES

SIZE = attrgetter("size")


class MessageCache:
    """Shared by all partitions; the oldest runs of messages go first. Each partition keeps its own part, by offset."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.most_ahead = max(1, max_bytes // (2 * MESSAGE_OVERHEAD_BYTES))
        """Messages that are worth reading in one go: of more the last ones would push out the first."""
        self.ahead_bytes = max_bytes // 2
        """Likewise, bytes."""
        self._bytes = 0
        self._order: deque[tuple[dict[int, StoredMessage], int, int, int]] = deque()
        """The part, first offset and end of each run of messages, and the bytes it counts for."""

    @property
    def stored_bytes(self) -> int:
        return self._bytes

    def put(self, part: dict[int, StoredMessage], offset: int, message: StoredMessage) -> int:
        """Add a message unless it is there; returns the bytes that it adds."""
        if offset in part:
            return 0
        size = message.size + beside_bytes(message.message, message.topic, message.routing_key)
        self.put_run(part, offset, (message,), size)
        return size + MESSAGE_OVERHEAD_BYTES

    def put_run(
        self, part: dict[int, StoredMessage], base_offset: int, messages: Sequence[StoredMessage], size_bytes: int
    ) -> None:
        """Add messages of consecutive offsets, none of which is there, and of so many bytes in all, beside the objects
        that each has."""
        count = len(messages)
        end = base_offset + count
        if count == 1:
            part[base_offset] = messages[0]
        else:
            part.update(zip(range(base_offset, end), messages, strict=True))
        size = size_bytes + count * MESSAGE_OVERHEAD_BYTES
        self._order.append((part, base_offset, end, size))
        self._bytes += size
        while self._bytes > self._max_bytes:
            oldest, first, last, oldest_size = self._order.popleft()
            # Some were let go before; most often all.
            for offset in range(first, last) if oldest else ():
                oldest.pop(offset, None)
            self._bytes -= oldest_size
