"""What queues in memory may hold in all, and the signal to publishers to wait while they hold more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.routing.message import MESSAGE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from assay.reference_broker.queues.jobs.agenda import Agenda
    from assay.reference_broker.queues.messages.message_cache import MessageCache
    from assay.reference_broker.queues.queue.queue import DurableQueue

_RELEASE_SHARE = 0.9
"""Publishers go on below that share of the limit, so that they do not stop and go with every message."""
_REFUSE_SHARE = 1.125
"""From there on publishes are refused: what a publisher had under way when it was told to wait fits below."""
_CHECK_INTERVAL_S = 0.02


class MemoryLimit:
    """Counts what is added and, once that could be too much, what is really held. A :class:`Wakeable`."""

    def __init__(
        self, limit_bytes: int, cache: MessageCache, queues: Callable[[], Iterable[DurableQueue]], agenda: Agenda
    ) -> None:
        self._limit_bytes = limit_bytes
        self._cache = cache
        self._queues = queues
        self._agenda = agenda
        self._bytes = 0
        self._counted_at = float("-inf")
        self.wake_at = float("inf")
        self.pressed = False
        """Too much is held: protocols read no more from those who publish to queues in memory."""
        self.on_released: Callable[[], None] = lambda: None
        """Called when :attr:`pressed` ends."""

    @property
    def held_bytes(self) -> int:
        """At the last count, and what came since."""
        return self._bytes

    def admit_run(self, added: int) -> bool:
        """Messages that take so many bytes are about to be enqueued. False: nothing was done, they may be too much and
        must go one by one."""
        if self._bytes + added > self._limit_bytes:
            return False
        self._bytes += added
        return True

    def admit(self, added: int, now: float) -> None:
        """A message that takes so many bytes is about to be enqueued. Raises :class:`QueueError` (FULL) when there is
        far too much."""
        self._bytes += added
        if self._bytes <= self._limit_bytes:
            return
        if now - self._counted_at >= _CHECK_INTERVAL_S or self._bytes > _REFUSE_SHARE * self._limit_bytes:
            self._count(now)
            self._bytes += added
        if self._bytes > self._limit_bytes and not self.pressed:
            self.pressed = True
            self._agenda.wake(self, now + _CHECK_INTERVAL_S)
        if self._bytes > _REFUSE_SHARE * self._limit_bytes:
            self._bytes -= added
            text = f"the queues in memory hold {self._bytes} bytes, more than queues.max_memory_bytes allows"
            raise QueueError(QueueErrorCode.FULL, text)

    def pass_time(self, now: float) -> None:
        """Look whether enough has been settled meanwhile."""
        if not self.pressed:
            return
        self._count(now)
        if self._bytes < _RELEASE_SHARE * self._limit_bytes:
            self.pressed = False
            self.on_released()
        else:
            self._agenda.wake(self, now + _CHECK_INTERVAL_S)

    def _count(self, now: float) -> None:
        self._counted_at = now
        self._bytes = self._cache.stored_bytes
        for queue in self._queues():
            if queue.volatile:
                self._bytes += _needed_bytes(queue)


def _needed_bytes(queue: DurableQueue) -> int:
    """What a queue in memory holds for messages that are not settled; segments are freed as a whole, so their logs
    may hold up to one segment more. Delayed messages are there until they fire."""
    lows = queue.contents.low_watermarks() if queue.groups else [partition.head for partition in queue.partitions]
    total = queue.delays.stored_bytes
    for partition, low in zip(queue.partitions, lows, strict=True):
        start, end = partition.log.start_offset, partition.log.next_offset
        if end > start:
            total += partition.log.stored_bytes * max(0, end - max(low, start)) // (end - start)
        total += partition.unwritten_bytes + partition.unwritten_beside_bytes
        total += partition.unwritten * MESSAGE_OVERHEAD_BYTES
    return total
